//! Relays and generators: stunnel, socat, Ncat, iperf3.

use std::process::Command;

use atoll_system_tests::{Net, Proc, Stack, until};

use super::{installed, path};
use crate::servers::{fetch, megabyte};

on_both_stacks![stunnel];
soak_on_both_stacks![socat, ncat, iperf3];

/// A server of the megabyte at the client's end.
fn server_of(net: &Net, port: &str) -> Proc {
    net.scratch.file("big", megabyte());
    let folder = net.scratch.path().to_string_lossy().into_owned();
    let arguments = ["-u", "-m", "http.server", port, "--bind", "198.18.0.1", "--directory", &folder];
    let mut server = net.client("/usr/bin/python3", &arguments);
    server.says("Serving HTTP", 10);
    server
}

/// A key and its certificate in one file.
fn certificate(net: &Net) -> String {
    let (key, certificate) = (path(net, "key"), path(net, "certificate"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    openssl.args(["-subj", "/CN=atoll.test", "-days", "2", "-keyout", &key, "-out", &certificate]);
    Proc::start(&mut openssl, None).success(30);
    let read = |file: &str| std::fs::read_to_string(file).expect("openssl has written it");
    net.scratch.file("both.pem", read(&key) + &read(&certificate))
}

/// A thread for each connection; it unwraps TLS and connects to a server at the client's end.
/// https://www.stunnel.org/static/stunnel.html
fn stunnel(stack: Stack) {
    let net = Net::new(stack);
    let _behind = server_of(&net, "8000");
    let pem = certificate(&net);
    let config = net.scratch.file(
        "stunnel.conf",
        format!(
            "foreground = yes\npid =\nsyslog = no\n[https]\naccept = 443\nconnect = 198.18.0.1:8000\n\
             cert = {pem}\n"
        ),
    );
    let mut server = net.serve(&installed("stunnel4"), &[&config]);
    net.listens(&mut server, 443);
    for number in 0..3 {
        let target = path(&net, &format!("fetched-{number}"));
        let url = format!("https://{}/big", Net::SERVER);
        net.client("curl", &["-sSk", "--fail", "--max-time", "40", "-o", &target, &url]).success(60);
        let fetched = std::fs::read(&target).expect("curl has written it");
        assert!(fetched == megabyte(), "the megabyte arrived changed: {}", server.report());
    }
    assert!(server.runs() && !server.errors().contains("libatoll"), "{}", server.report());
}

/// It forks for each connection. http://www.dest-unreach.org/socat/doc/socat.html
fn socat(stack: Stack) {
    let net = Net::new(stack);
    let _behind = server_of(&net, "8000");
    let socat = installed("socat");
    let mut server =
        net.serve(&socat, &["TCP-LISTEN:8080,fork,reuseaddr,bind=0.0.0.0", "TCP:198.18.0.1:8000"]);
    net.listens(&mut server, 8080);
    assert!(fetch(&net, 8080, "/big") == megabyte(), "the megabyte arrived changed");
    // Datagrams: a process for each peer, and one that answers what it is sent.
    let echo = net.serve(&socat, &["UDP-RECVFROM:7007,fork", "EXEC:tr a-z A-Z"]);
    let upper = "import socket, sys
peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
peer.connect((sys.argv[1], 7007)); peer.settimeout(1)
for turn in range(30):
    try:
        peer.send(b'hello'); print(peer.recv(99).decode()); break
    except OSError: pass";
    assert_eq!(net.client("/usr/bin/python3", &["-c", upper, Net::SERVER]).success(60), "HELLO\n");
    let said = std::fs::File::open(net.scratch.file("said", "hello\n")).expect("just written");
    let mut sender = net.on_stack(&socat);
    let mut there = net.client(&socat, &["-u", "TCP-LISTEN:9000,bind=198.18.0.1,reuseaddr", "STDOUT"]);
    sender.args(["-u", "STDIN", "TCP:198.18.0.1:9000,retry=50,interval=0.1"]);
    Proc::start(&mut sender, Some(said)).success(30);
    assert!(there.end(30).success());
    assert_eq!(there.output(), "hello\n");
    assert!(!(server.errors() + &echo.errors()).contains("libatoll"), "{}", server.report());
}

/// It waits in select(2), and executes a program for each connection, with TLS and without.
/// https://nmap.org/book/ncat-man.html
fn ncat(stack: Stack) {
    let net = Net::new(stack);
    let ncat = installed("ncat");
    let talk = "import socket, ssl, sys
peer = socket.create_connection((sys.argv[1], 7007), 20)
if sys.argv[2:]: peer = ssl._create_unverified_context().wrap_socket(peer)
peer.sendall(b'hello\\n')
print(peer.recv(99).decode(), end='')";
    for tls in [&[][..], &["--ssl"]] {
        let arguments = ["-l", "7007", "--keep-open", "--sh-exec", "sed -u s/^/said:/"];
        let mut server = net.serve(&ncat, &[&arguments[..], tls].concat());
        net.listens(&mut server, 7007);
        for _ in 0..3 {
            let client = net.client("/usr/bin/python3", &[&["-c", talk, Net::SERVER][..], tls].concat());
            assert_eq!(client.success(30), "said:hello\n", "{}", server.report());
        }
        assert!(server.runs() && !server.errors().contains("libatoll"), "{}", server.report());
    }
    let mut there = net.client("nc.openbsd", &["-l", "198.18.0.1", "9000"]);
    let text = net.scratch.file("text", "hello\n");
    until("Ncat to reach the other end", 20, || {
        let mut sender = net.on_stack(&ncat);
        sender.args(["--send-only", "198.18.0.1", "9000"]);
        let text = std::fs::File::open(&text).expect("just written");
        Proc::start(&mut sender, Some(text)).end(30).success().then_some(())
    });
    assert!(there.end(30).success());
    assert_eq!(there.output(), "hello\n");
}

/// Streams in both directions and at a time, and datagrams. https://software.es.net/iperf/
fn iperf3(stack: Stack) {
    let net = Net::new(stack);
    let mut server = net.serve("iperf3", &["-s"]);
    net.listens(&mut server, 5201);
    for mode in [
        &["-n", "20M"][..],
        &["-R", "-n", "20M"],
        &["-P", "4", "-n", "20M"],
        &["-u", "-b", "20M", "-n", "2M"],
    ] {
        let common = ["-c", Net::SERVER, "-J"];
        let said = net.client("iperf3", &[&common, mode].concat()).success(60);
        assert!(said.contains("\"sum_received\"") || said.contains("\"sum\""), "{mode:?}: {said}");
        assert!(!said.contains("\"error\""), "{mode:?}: {said}");
    }
    assert!(server.runs() && !server.errors().contains("libatoll"), "{}", server.report());
}

//! Do unmodified clients work on the stack, against servers on the kernel?

use atoll_system_tests::{Net, Proc, Stack};

use crate::servers::megabyte;

on_both_stacks![curl, wget, dig, many_connections_at_once, name_resolution_is_left_alone];

/// Starts a server of files on the client namespace's kernel.
fn server_of(net: &Net) -> Proc {
    net.scratch.file("big", megabyte());
    let folder = net.scratch.path().to_string_lossy().into_owned();
    let arguments = ["-u", "-m", "http.server", "8000", "--bind", "198.18.0.1", "--directory", &folder];
    let mut server = net.client("/usr/bin/python3", &arguments);
    server.says("Serving HTTP", 10);
    server
}

fn fetched(net: &Net) -> bool {
    std::fs::read(net.scratch.path().join("fetched")).is_ok_and(|bytes| bytes == megabyte())
}

fn curl(stack: Stack) {
    let net = Net::new(stack);
    let _server = server_of(&net);
    net.serve("curl", &["-sS", "--max-time", "20", "-o", "fetched", "http://198.18.0.1:8000/big"])
        .success(25);
    assert!(fetched(&net), "the megabyte arrived changed");
    let refused = net.serve("curl", &["-sS", "--max-time", "20", "http://198.18.0.1:9/"]).end(25);
    assert_eq!(refused.code(), Some(7), "a refused connection is CURLE_COULDNT_CONNECT");
}

fn wget(stack: Stack) {
    let net = Net::new(stack);
    let _server = server_of(&net);
    net.serve("wget", &["-q", "-T", "20", "-t", "1", "-O", "fetched", "http://198.18.0.1:8000/big"])
        .success(25);
    assert!(fetched(&net), "the megabyte arrived changed");
}

/// dig uses libuv, which sends datagrams by syscall(2).
fn dig(stack: Stack) {
    let net = Net::new(stack);
    let common =
        ["--keep-in-foreground", "--no-resolv", "--no-hosts", "--user=root", "--conf-file=/dev/null"];
    let answer = ["--pid-file=", "--address=/example.test/192.0.2.7", "--log-facility=-", "--log-queries"];
    let place = ["--listen-address=198.18.0.1", "--bind-interfaces"];
    let mut server = net.client("dnsmasq", &[&common[..], &answer, &place].concat());
    server.says("started", 10);
    for transport in ["+notcp", "+tcp"] {
        let ask = ["+short", "+tries=3", "+time=5", transport, "@198.18.0.1", "www.example.test"];
        assert_eq!(net.serve("dig", &ask).success(30), "192.0.2.7\n", "{}", server.report());
    }
}

/// `ab` opens its connections without blocking, twenty at a time, so it uses the local ports of all replicas.
fn many_connections_at_once(stack: Stack) {
    let net = Net::new(stack);
    net.scratch.file("small", "tiny");
    let folder = net.scratch.path().to_string_lossy().into_owned();
    let config = net.scratch.file(
        "lighttpd.conf",
        format!("server.document-root = \"{folder}\"\nserver.port = 8080\nserver.bind = \"198.18.0.1\"\n"),
    );
    let _server = net.client("lighttpd", &["-D", "-f", &config]);
    let report = atoll_system_tests::until("a complete run of ab", 30, || {
        let mut ab =
            net.serve("ab", &["-q", "-s", "10", "-n", "1000", "-c", "20", "http://198.18.0.1:8080/small"]);
        ab.end(60).success().then(|| ab.output())
    });
    assert!(report.contains("Complete requests:      1000"), "{report}");
    assert!(report.contains("Failed requests:        0"), "{report}");
}

/// A name in /etc/hosts is found without any socket, and leads to the loopback inside the stack, where no
/// socket listens.
fn name_resolution_is_left_alone(stack: Stack) {
    let net = Net::new(stack);
    let refused = net.serve("curl", &["-sS", "-4", "--max-time", "20", "http://localhost:9/"]).end(25);
    assert_eq!(refused.code(), Some(7));
}

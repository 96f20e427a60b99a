//! Does IPv6 work: with a configured address, with an autoconfigured one, and together with IPv4?

use atoll_system_tests::{Net, Proc, Stack, program, until};

use crate::servers::megabyte;

on_both_stacks![
    ping,
    nginx_serves_both_families,
    redis,
    curl_and_python_as_clients,
    datagrams,
    a_router_gives_an_address_and_a_way,
    link_local_addresses,
    a_redirect_is_followed
];

const CLIENT6: &str = "2001:db8::1";

/// Fetches a URL from the client, and returns its content.
pub fn fetch(net: &Net, url: &str) -> Vec<u8> {
    let target = net.scratch.path().join("fetched");
    let mut curl = net.on_client("curl");
    curl.args(["-g", "-sS", "--fail", "--max-time", "20", "-o"]).arg(&target).arg(url);
    Proc::start(&mut curl, None).success(25);
    std::fs::read(&target).expect("curl has written it")
}

fn ping(stack: Stack) {
    let net = Net::new(stack);
    for size in ["0", "56", "1452"] {
        net.pings(3, &["-6", "-s", size, Net::SERVER6]);
    }
}

fn nginx_serves_both_families(stack: Stack) {
    let net = Net::new(stack);
    net.scratch.file("small", "tiny");
    net.scratch.file("big", megabyte());
    let folder = net.scratch.path().to_string_lossy().into_owned();
    let settings = format!(
        "daemon off; worker_processes 2; pid {folder}/nginx.pid; error_log stderr warn; user root; events \
         {{ }}
         http {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
                 fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
                 server {{ listen 80; listen [::]:80; root {folder}; }}
                 server {{ listen [::]:81 ipv6only=off; root {folder}; }} }}"
    );
    let config = net.scratch.file("nginx.conf", settings);
    let mut server = net.serve("/usr/sbin/nginx", &["-p", &folder, "-c", &config]);
    net.listens(&mut server, 80);
    for host in [Net::SERVER, &format!("[{}]", Net::SERVER6)] {
        for port in [80, 81] {
            assert!(fetch(&net, &format!("http://{host}:{port}/big")) == megabyte(), "{host} {port}");
            let url = format!("http://{host}:{port}/small");
            let report = net.client("ab", &["-q", "-s", "10", "-n", "200", "-c", "20", &url]).success(60);
            assert!(report.contains("Complete requests:      200"), "{report}\n{}", server.report());
            assert!(report.contains("Failed requests:        0"), "{report}");
        }
    }
}

fn redis(stack: Stack) {
    let net = Net::new(stack);
    let arguments = ["--port", "6379", "--save", "", "--protected-mode", "no", "--bind", "0.0.0.0", "::"];
    let mut server = net.serve("redis-server", &arguments);
    net.listens(&mut server, 6379);
    assert_eq!(net.client("redis-cli", &["-h", Net::SERVER6, "set", "key", "value"]).success(20), "OK\n");
    assert_eq!(net.client("redis-cli", &["-h", Net::SERVER, "get", "key"]).success(20), "value\n");
    let arguments = ["-h", Net::SERVER6, "-n", "5000", "-c", "20", "-P", "16", "-t", "set,get", "--csv"];
    let report = net.client("redis-benchmark", &arguments).success(60);
    assert!(report.contains("GET"), "{report}");
}

fn curl_and_python_as_clients(stack: Stack) {
    let net = Net::new(stack);
    net.scratch.file("big", megabyte());
    let folder = net.scratch.path().to_string_lossy().into_owned();
    let arguments = ["-u", "-m", "http.server", "8000", "--bind", CLIENT6, "--directory", &folder];
    let mut server = net.client("/usr/bin/python3", &arguments);
    server.says("Serving HTTP", 10);
    let url = format!("http://[{CLIENT6}]:8000/big");
    net.serve("curl", &["-g", "-sS", "--max-time", "20", "-o", "fetched", &url]).success(25);
    assert!(std::fs::read(net.scratch.path().join("fetched")).is_ok_and(|bytes| bytes == megabyte()));
    let refused =
        net.serve("curl", &["-g", "-sS", "--max-time", "20", &format!("http://[{CLIENT6}]:9/")]).end(25);
    assert_eq!(refused.code(), Some(7), "a refused connection is CURLE_COULDNT_CONNECT");
    let script = format!(
        "import socket; s = socket.create_connection(('{CLIENT6}', 8000), 10); print(s.getsockname()[0], \
         s.getpeername()[0])"
    );
    let said = net.serve("/usr/bin/python3", &["-c", &script]).success(20);
    assert_eq!(said, format!("{} {CLIENT6}\n", Net::SERVER6));
}

fn datagrams(stack: Stack) {
    let net = Net::new(stack);
    let serve =
        "import socket; s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.bind(('::', 5353)); \
         print('ready', flush=True)
for n in range(6): data, peer = s.recvfrom(9999); s.sendto(data[::-1], peer)";
    let mut server = net.serve("/usr/bin/python3", &["-u", "-c", serve]);
    server.says("ready", 10);
    let ask = "import socket, sys
for family, host in ((socket.AF_INET6, sys.argv[1]), (socket.AF_INET, sys.argv[2])):
    for size in (1, 100, 1400):
        s = socket.socket(family, socket.SOCK_DGRAM); s.settimeout(10); s.connect((host, 5353))
        s.send(bytes([1] * (size - 1) + [2])); print(s.recv(9999) == bytes([2] + [1] * (size - 1)))";
    let said = net.client("/usr/bin/python3", &["-c", ask, Net::SERVER6, Net::SERVER]).success(60);
    assert_eq!(said, "True\n".repeat(6));
}

fn a_router_gives_an_address_and_a_way(stack: Stack) {
    let net = Net::new(stack);
    let interface = net.client_interface();
    let ip = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        net.client("ip", &arguments).success(10)
    };
    ip(&format!("addr add 2001:db8:1::1/64 dev {interface} nodad"));
    // This address lies behind the router.
    ip("addr add 2001:db8:ffff::1/128 dev lo nodad");
    let mut router =
        net.client("/usr/bin/python3", &["-u", &program("router.py"), &interface, "2001:db8:1::", "1400"]);
    router.says("advertised", 10);
    let own = until("an address from the router", 20, || {
        net.own_v6().into_iter().find(|a| a.starts_with("2001:db8:1:"))
    });
    let folder = net.scratch.path().to_string_lossy().into_owned();
    net.scratch.file("big", megabyte());
    let serve = ["-u", "-m", "http.server", "8000", "--bind", "::", "--directory", &folder];
    let mut server = net.serve("/usr/bin/python3", &serve);
    server.says("Serving HTTP", 10);
    assert!(fetch(&net, &format!("http://[{own}]:8000/big")) == megabyte());
    let mut far = net.client(
        "/usr/bin/python3",
        &["-u", "-m", "http.server", "8001", "--bind", "2001:db8:ffff::1", "--directory", &folder],
    );
    far.says("Serving HTTP", 10);
    let url = "http://[2001:db8:ffff::1]:8001/big";
    net.serve("curl", &["-g", "-sS", "--max-time", "20", "-o", "fetched", url]).success(25);
    assert!(std::fs::read(net.scratch.path().join("fetched")).is_ok_and(|bytes| bytes == megabyte()));
}

fn link_local_addresses(stack: Stack) {
    let net = Net::new(stack);
    let own = until("a link-local address", 20, || net.own_v6().into_iter().find(|a| a.starts_with("fe80:")));
    let script =
        "import socket; s = socket.create_server(('::', 8000), family=socket.AF_INET6); print('ready', \
         flush=True)
c, p = s.accept(); print(p[3] != 0, c.getsockname()[3] == p[3]); c.sendall(b'hello'); c.close()";
    let mut server = net.serve("/usr/bin/python3", &["-u", "-c", script]);
    server.says("ready", 10);
    // The kernel at the other end first checks its own address for duplicates, and would use another one
    // meanwhile.
    let interface = net.client_interface();
    until("the client's link-local address", 20, || {
        let said = net.client("ip", &["-6", "addr", "show", "dev", &interface, "scope", "link"]).success(10);
        (said.contains("fe80:") && !said.contains("tentative")).then_some(())
    });
    let script =
        format!("import socket; print(socket.create_connection(('{own}%{interface}', 8000), 10).recv(10))");
    assert_eq!(net.client("/usr/bin/python3", &["-c", &script]).success(20), "b'hello'\n");
    server.says("True True", 10);
}

/// A router redirects a destination to a better router, which is asked for its address then, and not before.
fn a_redirect_is_followed(stack: Stack) {
    let net = Net::new(stack);
    let interface = net.client_interface();
    let mut router =
        net.client("/usr/bin/python3", &["-u", &program("router.py"), &interface, "2001:db8:1::"]);
    router.says("advertised", 10);
    until("an address from the router", 20, || {
        net.own_v6().into_iter().find(|a| a.starts_with("2001:db8:1:"))
    });
    let (far, better) = ("2001:db8:ffff::1", "fe80::77");
    let script = format!(
        "import socket, time
sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
while True:
    try: print(sock.sendto(b'x', ('{far}', 9)), flush=True)
    except OSError as error: print(error, flush=True)
    time.sleep(0.2)"
    );
    let mut sender = net.serve("/usr/bin/python3", &["-u", "-c", &script]);
    sender.says("1", 10);
    let redirects = |target: &str| {
        let arguments = ["-u", &*program("router.py"), "--redirect", &interface, Net::SERVER6, far, target];
        net.client("/usr/bin/python3", &arguments)
    };
    let mut bad = redirects("2001:db8:1::77");
    bad.says("ready", 10);
    let mut good = redirects(better);
    good.says("asked for it", 20);
    assert!(!bad.output().contains("asked"), "a target that is neither a router nor the destination");
}

/// An address that a neighbour has is not used (RFC 4862 §5.4). The stack continues with its other addresses.
#[test]
fn an_address_that_a_neighbour_has_is_given_up() {
    use std::process::Command;

    use atoll_system_tests::atoll;

    let net = Net::new(Stack::Atoll);
    let interface = net.client_interface();
    // The router's prefix and the stack's hardware address make this address, which the neighbour claims
    // before the stack has it.
    let mac =
        net.atoll_says("status")["stack"]["link"]["mac"].as_str().expect("a hardware address").to_owned();
    let octets: Vec<u8> = mac.split(':').filter_map(|octet| u8::from_str_radix(octet, 16).ok()).collect();
    let [a, b, c, d, e, f] = octets[..] else { panic!("{mac}") };
    let made = std::net::Ipv6Addr::from([0x20, 1, 0xd, 0xb8, 0, 7, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    let mut claims = net
        .client("/usr/bin/python3", &["-u", &program("router.py"), "--claim", &interface, &made.to_string()]);
    claims.says("advertised", 10);
    let mut router =
        net.client("/usr/bin/python3", &["-u", &program("router.py"), &interface, "2001:db8:7::"]);
    router.says("advertised", 10);
    until("the conflict to be seen", 20, || {
        let mut status = Command::new(atoll());
        let text = Proc::start(status.args(["status", net.name(), "--interval", "0"]), None).success(10);
        text.lines().any(|line| line.contains(&made.to_string()) && line.contains("dadfailed")).then_some(())
    });
    let report = net.client("ping", &["-6", "-n", "-c", "1", Net::SERVER6]).success(20);
    assert!(report.contains("1 received"), "{report}");
}

//! Servers of names: BIND, dnsmasq, NSD, Unbound. They answer over UDP and TCP, to one that asks and to
//! dnsperf.

use atoll_system_tests::{Net, Proc, Stack, program};

use super::{folder_of, installed};

on_both_stacks![unbound];
soak_on_both_stacks![bind, nsd, dnsmasq];

const ZONE: &str = "$ORIGIN example.test.\n$TTL 60\n\
    @ IN SOA ns.example.test. me.example.test. 1 3600 600 86400 60\n\
    @ IN NS ns\nns IN A 198.18.0.2\nwww IN A 192.0.2.7\nwww IN AAAA 2001:db8::7\n";

/// Asks for `name` over IPv4 and IPv6, UDP and TCP.
fn answers(net: &Net, server: &Proc, name: &str, expected: &[&str]) {
    for address in [Net::SERVER, Net::SERVER6] {
        for transport in ["+notcp", "+tcp"] {
            let at = format!("@{address}");
            let ask = ["+short", "+tries=3", "+time=10", transport, &at, name];
            let said = net.client("dig", &ask).success(40);
            // Servers answer with several addresses in turn.
            let mut lines: Vec<&str> = said.lines().collect();
            lines.sort_unstable();
            assert_eq!(lines, expected, "{transport} {at}: {}", server.report());
        }
    }
}

/// Sends many questions at a time over UDP, and over TCP; each is answered.
fn answers_many(net: &Net, server: &mut Proc) {
    answers_many_over(net, server, &["udp", "tcp"]);
}

fn answers_many_over(net: &Net, server: &mut Proc, modes: &[&str]) {
    let questions = net.scratch.file("questions", "www.example.test A\nns.example.test A\n");
    for mode in modes {
        let mut dnsperf = net.on_client(&installed("dnsperf"));
        dnsperf.args(["-s", Net::SERVER, "-d", &questions, "-n", "500", "-c", "8", "-q", "32"]);
        dnsperf.args(["-m", mode, "-t", "20"]);
        let said = Proc::start(&mut dnsperf, None).success(60);
        assert!(said.contains("Queries completed:    1000 (100.00%)"), "{said}\n{}", server.report());
        assert!(said.contains("NOERROR 1000 (100.00%)"), "{said}");
    }
    assert!(server.runs() && !server.errors().contains("libatoll"), "{}", server.report());
}

/// It becomes `bind` before it opens sockets, one for each address that it finds, and each of its threads.
/// https://bind9.readthedocs.io/en/v9.18.24/reference.html
fn bind(stack: Stack) {
    let net = Net::configured(stack, "[users]\nallow = [\"bind\"]\n");
    let folder = folder_of(&net, "bind", "bind");
    net.scratch.file("bind/zone", ZONE);
    let config = net.scratch.file(
        "bind/named.conf",
        format!(
            "options {{ directory \"{folder}\"; pid-file none; session-keyfile none; recursion no;\n\
             listen-on {{ any; }}; listen-on-v6 {{ any; }};\n\
             dnssec-validation no; }};\ncontrols {{ }};\n\
             zone \"example.test\" {{ type primary; file \"{folder}/zone\"; }};\n"
        ),
    );
    let mut server = net.serve(&installed("named"), &["-g", "-u", "bind", "-c", &config]);
    server.says("running", 30);
    net.listens(&mut server, 53);
    answers(&net, &server, "www.example.test", &["192.0.2.7"]);
    answers_many(&net, &mut server);
}

/// Two processes that share the sockets of the one that started them.
fn nsd(stack: Stack) {
    let net = Net::configured(stack, "[users]\nallow = [\"nsd\"]\n");
    let folder = folder_of(&net, "nsd", "nsd");
    net.scratch.file("nsd/zone", ZONE);
    let config = net.scratch.file(
        "nsd/nsd.conf",
        format!(
            "server:\n ip-address: 0.0.0.0\n ip-address: ::\n server-count: 2\n username: nsd\n\
             database: \"\"\n pidfile: \"\"\n zonesdir: {folder}\n xfrdir: {folder}\n\
             zonelistfile: {folder}/list\n xfrdfile: {folder}/xfrd\n cookie-secret-file: {folder}/cookies\n\
             remote-control:\n control-enable: no\nzone:\n name: example.test\n zonefile: zone\n"
        ),
    );
    let mut server = net.serve(&installed("nsd"), &["-d", "-c", &config]);
    net.listens(&mut server, 53);
    answers(&net, &server, "www.example.test", &["192.0.2.7"]);
    answers_many(&net, &mut server);
}

/// One process, which asks with each question to which address it was sent, and forks for each connection.
/// https://thekelleys.org.uk/dnsmasq/docs/dnsmasq-man.html
fn dnsmasq(stack: Stack) {
    let net = Net::configured(stack, "[users]\nallow = [\"nobody\"]\n");
    let mut other = net.client("/usr/bin/python3", &[&program("dns.py"), "198.18.0.1", "53"]);
    other.says("answering", 10);
    let own = ["--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--pid-file="];
    let rest = ["--user=nobody", "--log-facility=-", "--server=/here.test/198.18.0.1"];
    let records = ["www.example.test,192.0.2.7", "ns.example.test,198.18.0.2"];
    let records = records.map(|record| format!("--host-record={record}"));
    let arguments = [&own[..], &rest, &records.each_ref().map(String::as_str)].concat();
    let mut server = net.serve(&installed("dnsmasq"), &arguments);
    net.listens(&mut server, 53);
    answers(&net, &server, "www.example.test", &["192.0.2.7"]);
    answers(&net, &server, "here.test", &["198.18.0.1", "198.18.0.77"]);
    // It closes a connection after some questions, and dnsperf counts those that were under way as lost.
    answers_many_over(&net, &mut server, &["udp"]);
}

/// Two threads; what it does not know it asks of a server at the client's end.
fn unbound(stack: Stack) {
    let net = Net::configured(stack, "[users]\nallow = [\"unbound\"]\n");
    let mut other = net.client("/usr/bin/python3", &[&program("dns.py"), "198.18.0.1", "53"]);
    other.says("answering", 10);
    let folder = folder_of(&net, "unbound", "unbound");
    let config = net.scratch.file(
        "unbound/unbound.conf",
        format!(
            "server:\n interface: 0.0.0.0\n interface: ::0\n access-control: 0.0.0.0/0 allow\n\
             access-control: ::0/0 allow\n num-threads: 2\n chroot: \"\"\n username: unbound\n\
             directory: {folder}\n pidfile: {folder}/pid\n use-syslog: no\n do-daemonize: no\n\
             module-config: iterator\n local-zone: example.test. static\n\
             do-not-query-localhost: no\n domain-insecure: test\n local-zone: test. nodefault\n\
             local-data: \"www.example.test. A 192.0.2.7\"\n local-data: \"ns.example.test. A 198.18.0.2\"\n\
             remote-control:\n control-enable: no\nforward-zone:\n name: here.test\n\
             forward-addr: 198.18.0.1\n"
        ),
    );
    let mut server = net.serve(&installed("unbound"), &["-d", "-c", &config]);
    net.listens(&mut server, 53);
    answers(&net, &server, "www.example.test", &["192.0.2.7"]);
    answers(&net, &server, "here.test", &["198.18.0.1", "198.18.0.77"]);
    answers_many(&net, &mut server);
}

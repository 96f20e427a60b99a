//! Do packets larger than the MTU pass in fragments, both ways, whichever replicas they arrive at, and under
//! forged fragments?

use std::process::Command;

use atoll_system_tests::{Net, Proc, Stack, program, until};
use serde_json::Value;

on_both_stacks![
    long_pings_are_answered,
    large_datagrams_come_in,
    large_datagrams_go_out,
    long_pings_over_ipv6_are_answered,
    large_datagrams_over_ipv6_come_in,
    large_datagrams_over_ipv6_go_out,
    a_narrow_way_of_ipv6_is_learned_of,
    what_must_not_be_torn_is_refused
];

/// The result of two seconds of datagrams.
pub struct Stream {
    /// The summary that iperf3 prints at the end.
    sum: Value,
    /// The number of datagrams that arrived whole and found the receiver's socket full, because its program
    /// did not get the processor in time.
    unread: u64,
}

/// Sends datagrams of 20000 octets for two seconds; with `reverse` from the stack to the client.
pub fn datagrams(net: &Net, host: &str, reverse: bool) -> Stream {
    datagrams_with(net, |program| net.on_client(program), host, reverse)
}

/// Sends datagrams for two seconds to or from a client in any namespace.
///
/// The rate is so low that no queue on the way overflows while its reader waits a second for the processor.
fn datagrams_with(net: &Net, client: impl Fn(&str) -> Command, host: &str, reverse: bool) -> Stream {
    let unread = || match (net.stack, reverse) {
        (_, true) => unread_in_kernel(client("cat")),
        (Stack::Kernel, false) => unread_in_kernel(net.on_server("cat")),
        (Stack::Atoll, false) => count(net, "datagrams_dropped"),
    };
    let before = unread();
    // The server answers from this address, where it has several.
    let mut server = net.serve("iperf3", &["-s", "-B", host, "-1", "-p", "5201", "--forceflush"]);
    server.says("listening", 10);
    let mut client = client("iperf3");
    client.args(["-c", host, "-p", "5201", "-u", "-l", "20000", "-b", "10M", "-t", "2", "-J"]);
    if reverse {
        client.arg("-R");
    }
    let said = Proc::start(&mut client, None).success(60);
    server.end(20);
    let report: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    Stream { sum: report["end"]["sum"].clone(), unread: unread() - before }
}

/// Returns the number of datagrams that the sockets of a namespace had no room for; `cat` runs in that
/// namespace.
fn unread_in_kernel(mut cat: Command) -> u64 {
    let said = Proc::start(cat.args(["/proc/net/snmp", "/proc/net/snmp6"]), None).success(10);
    let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> =
        said.lines().map(fields).filter(|row| row.first().is_some_and(|name| name == "Udp:")).collect();
    let at = rows[0].iter().position(|name| name == "RcvbufErrors").expect("Linux counts them");
    let v6 = said.lines().find_map(|line| line.strip_prefix("Udp6RcvbufErrors")).expect("Linux counts them");
    [&*rows[1][at], v6.trim()].iter().map(|count| count.parse::<u64>().expect("a number")).sum()
}

/// Checks that nearly all of the sender's datagrams arrived, except those that the receiver was too slow for.
pub fn assert_arrived(Stream { sum, unread }: &Stream) {
    let number = |field: &str| sum[field].as_f64().unwrap_or_else(|| panic!("no {field}: {sum}"));
    assert!(number("packets") > 75.0, "{sum}");
    assert!(
        number("lost_packets") < number("packets") * 0.03 + *unread as f64,
        "{unread} were not read: {sum}"
    );
}

/// Returns the sum of a counter over all replicas and IP servers.
fn count(net: &Net, stat: &str) -> u64 {
    let status = net.atoll_says("status");
    let servers =
        ["replicas", "ip_servers"].into_iter().flat_map(|kind| status[kind].as_array().expect("a list"));
    // Each server counts only what it does itself.
    servers.filter_map(|server| server["stats"][stat].as_u64()).sum()
}

fn long_pings_are_answered(stack: Stack) {
    let net = Net::new(stack);
    for size in ["1473", "20000", "65507"] {
        net.pings(20, &["-s", size, Net::SERVER]);
    }
}

/// Returns the number of frames that replicas have passed on; `None` where IP servers do that.
fn forwarded(net: &Net) -> Option<u64> {
    let is_apart = net.atoll_says("status")["ip_servers"] != serde_json::json!([]);
    (!is_apart).then(|| count(net, "frames_forwarded"))
}

fn large_datagrams_come_in(stack: Stack) {
    let net = Net::new(stack);
    assert_arrived(&datagrams(&net, Net::SERVER, false));
    if stack == Stack::Atoll {
        assert!(count(&net, "reassembled") > 75);
        assert!(
            forwarded(&net).is_none_or(|frames| frames > 0),
            "packets spread over the replicas and go to their owner"
        );
    }
}

fn large_datagrams_go_out(stack: Stack) {
    let net = Net::new(stack);
    assert_arrived(&datagrams(&net, Net::SERVER, true));
    if stack == Stack::Atoll {
        assert!(count(&net, "fragments_out") > 75 * 14);
    }
}

fn long_pings_over_ipv6_are_answered(stack: Stack) {
    let net = Net::new(stack);
    for size in ["1453", "3000", "20000", "65527"] {
        net.pings(20, &["-6", "-s", size, Net::SERVER6]);
    }
}

fn large_datagrams_over_ipv6_come_in(stack: Stack) {
    let net = Net::new(stack);
    assert_arrived(&datagrams(&net, Net::SERVER6, false));
    if stack == Stack::Atoll {
        assert!(count(&net, "reassembled") > 75);
        assert!(
            forwarded(&net).is_none_or(|frames| frames > 0),
            "packets spread over the replicas and go to their owner"
        );
    }
}

fn large_datagrams_over_ipv6_go_out(stack: Stack) {
    let net = Net::new(stack);
    assert_arrived(&datagrams(&net, Net::SERVER6, true));
    if stack == Stack::Atoll {
        assert!(count(&net, "fragments_out") > 75 * 14);
    }
}

/// A router reports once that its next link has a smaller MTU. Datagrams, pings and later connections respect
/// that, on any replica.
fn a_narrow_way_of_ipv6_is_learned_of(stack: Stack) {
    let net = Net::new(stack);
    net.add_far_host(1300);
    let interface = net.client_interface();
    let mut router =
        net.client("/usr/bin/python3", &["-u", &program("router.py"), &interface, "2001:db8:1::"]);
    router.says("advertised", 10);
    until("a way to the far host", 20, || {
        let mut ping = net.on_far_host("ping");
        ping.args(["-6", "-n", "-c", "1", "-W", "1", Net::SERVER6]);
        Proc::start(&mut ping, None).end(10).success().then_some(())
    });
    let big = "abcdefgh".repeat(40_000);
    net.scratch.file("big", &big);
    let folder = net.scratch.path().to_string_lossy().into_owned();
    let serve = ["-u", "-m", "http.server", "8000", "--bind", "::", "--directory", &folder];
    let mut server = net.serve("/usr/bin/python3", &serve);
    server.says("Serving HTTP", 10);
    for n in 0..6 {
        let mut curl = net.on_far_host("curl");
        curl.args([
            "-g",
            "-sS",
            "--fail",
            "--max-time",
            "20",
            &format!("http://[{}]:8000/big", Net::SERVER6),
        ]);
        assert!(Proc::start(&mut curl, None).success(25) == big, "download {n}");
    }
    if stack == Stack::Atoll {
        assert_eq!(count(&net, "path_mtu_lowered"), 1, "the others knew before");
    }
    let mut ping = net.on_far_host("ping");
    ping.args(["-6", "-q", "-c", "20", "-i", "0.02", "-W", "2", "-s", "3000", Net::SERVER6]);
    let said = Proc::start(&mut ping, None).success(30);
    assert!(said.contains(" 0% packet loss"), "{said}");
    assert_arrived(&datagrams_with(&net, |program| net.on_far_host(program), Net::SERVER6, true));
}

/// Without "don't fragment" iperf3 sends any size; with it, only packets that fit.
fn what_must_not_be_torn_is_refused(stack: Stack) {
    let net = Net::new(stack);
    let mut server = net.client("iperf3", &["-s", "-p", "5201", "--forceflush"]);
    server.says("listening", 10);
    for (length, fits) in [("1472", true), ("1473", false)] {
        let arguments =
            ["-c", "198.18.0.1", "-p", "5201", "-u", "--dont-fragment", "-l", length, "-b", "1M", "-t", "1"];
        let mut client = net.serve("iperf3", &arguments);
        let _ = client.end(60);
        let refused = client.report().contains("Message too long");
        assert_eq!(refused, !fits, "{length}: {}", client.report());
    }
}

#[test]
fn a_flood_of_fragments_keeps_nobody_out() {
    let net = Net::new(Stack::Atoll);
    let replicas = net.replicas();
    let interface = net.client_interface();
    let arguments = [&*program("fragment_flood.py"), &interface, Net::SERVER, Net::SERVER6, "10000", "8"];
    let mut flood = net.client("/usr/bin/python3", &arguments);
    flood.says("flooding", 20);
    let ping = |host| net.client("ping", &["-q", "-c", "50", "-i", "0.05", "-W", "2", "-s", "20000", host]);
    for mut ping in [Net::SERVER, Net::SERVER6].map(ping) {
        let _ = ping.end(30);
        let said = ping.output();
        let received: u32 = said
            .split(" received")
            .next()
            .and_then(|s| s.rsplit(' ').next()?.parse().ok())
            .expect("ping counts");
        assert!(received >= 45, "{said}");
    }
    flood.success(30);
    for stat in [
        "fragments_malformed",
        "fragments_tiny",
        "fragments_overlapping",
        "fragments_duplicate",
        "reassembly_evictions",
    ] {
        assert!(count(&net, stat) > 0, "{stat}");
    }
    assert_eq!(net.replicas(), replicas, "a replica has died");
    assert!(net.replica_memory() < 200 << 10, "{} KiB", net.replica_memory());
}

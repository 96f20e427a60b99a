//! Do packets larger than the MTU pass in fragments, both ways, whichever replicas they arrive at, and whoever disturbs them?

use atoll_system_tests::{Net, Stack, program};
use serde_json::Value;

on_both_stacks![
    long_pings_are_answered,
    large_datagrams_come_in,
    large_datagrams_go_out,
    what_must_not_be_torn_is_refused
];

/// Two seconds of datagrams of 20000 octets; `reverse`: from the stack to the client. Returns what the receiver says.
pub fn datagrams(net: &Net, reverse: bool) -> Value {
    let mut server = net.serve("iperf3", &["-s", "-4", "-1", "-p", "5201", "--forceflush"]);
    server.says("listening", 10);
    let mut arguments = vec!["-c", Net::SERVER, "-p", "5201", "-u", "-l", "20000", "-b", "40M", "-t", "2", "-J"];
    if reverse {
        arguments.push("-R");
    }
    let said = net.client("iperf3", &arguments).success(60);
    server.end(20);
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// Nearly all of what the sender sent.
pub fn assert_arrived(report: &Value) {
    let sum = &report["end"]["sum"];
    let number = |field: &str| sum[field].as_f64().unwrap_or_else(|| panic!("no {field}: {report}"));
    assert!(number("packets") > 300.0, "{sum}");
    assert!(number("lost_percent") < 3.0, "{sum}");
}

/// The sum of a counter over all replicas.
fn count(net: &Net, stat: &str) -> u64 {
    let status = net.atoll_says("status");
    let replicas = status["replicas"].as_array().expect("a list");
    replicas.iter().map(|replica| replica["stats"][stat].as_u64().expect("a counter")).sum()
}

fn long_pings_are_answered(stack: Stack) {
    let net = Net::new(stack);
    for size in ["1473", "20000", "65507"] {
        let said =
            net.client("ping", &["-q", "-c", "20", "-i", "0.02", "-W", "2", "-s", size, Net::SERVER]).success(30);
        assert!(said.contains(" 0% packet loss"), "{said}");
    }
}

fn large_datagrams_come_in(stack: Stack) {
    let net = Net::new(stack);
    assert_arrived(&datagrams(&net, false));
    if stack == Stack::Atoll {
        assert!(count(&net, "reassembled") > 300);
        assert!(count(&net, "frames_forwarded") > 0, "packets spread over the replicas and go to their owner");
    }
}

fn large_datagrams_go_out(stack: Stack) {
    let net = Net::new(stack);
    assert_arrived(&datagrams(&net, true));
    if stack == Stack::Atoll {
        assert!(count(&net, "fragments_out") > 300 * 14);
    }
}

/// Without "don't fragment" iperf3 sends what it is asked to; with it, only what fits.
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
    let arguments = [&*program("fragment_flood.py"), &interface, Net::SERVER, "10000", "8"];
    let mut flood = net.client("/usr/bin/python3", &arguments);
    flood.says("flooding", 20);
    let mut ping = net.client("ping", &["-q", "-c", "50", "-i", "0.05", "-W", "2", "-s", "20000", Net::SERVER]);
    let _ = ping.end(30);
    let said = ping.output();
    let received: u32 =
        said.split(" received").next().and_then(|s| s.rsplit(' ').next()?.parse().ok()).expect("ping counts");
    assert!(received >= 45, "{said}");
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

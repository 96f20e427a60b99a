//! Are many connections all served, and is their memory freed when they end?

use std::fs::File;
use std::io::Write;

use atoll_system_tests::{Net, Proc, Stack, compiled, program, soak};

use crate::servers::start_nginx;

on_both_stacks![
    ten_thousand_open_connections_are_served_fairly,
    short_connections_leave_nothing_behind,
    connections_that_rest_hold_no_buffers,
];

/// Starts a client with many open connections, under limits that allow them.
pub fn load(net: &Net, arguments: &[&str]) -> Proc {
    let mut command = net.on_client("sh");
    // The limits allow all connections as descriptors, and as ports from one address to one.
    let script = "ulimit -n 65536; echo 1024 65535 >/proc/sys/net/ipv4/ip_local_port_range; exec \"$@\"";
    command.args(["-c", script, "sh", &compiled("load")]).args(arguments);
    Proc::start(&mut command, None)
}

pub fn number(report: &str, key: &str) -> u64 {
    let words: Vec<&str> = report.split_whitespace().collect();
    let at = words.iter().position(|&word| word == key).unwrap_or_else(|| panic!("no {key} in {report}"));
    words[at + 1].parse().unwrap_or_else(|_| panic!("{key} is no number in {report}"))
}

/// All connections are opened. Then each sends a request whenever all the others have had their answers.
fn ten_thousand_open_connections_are_served_fairly(stack: Stack) {
    let net = Net::new(stack);
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let replicas = net.replicas();
    let report = load(&net, &["open", Net::SERVER, "80", "10000", "3"]).success(120);
    assert_eq!(number(&report, "connected"), 10_000, "{report}");
    assert_eq!(number(&report, "answers"), 30_000, "{report}");
    assert_eq!(number(&report, "failed"), 0, "{report}");
    // No connection waited while others got many answers: the slowest of a round is no outlier.
    let (median, slowest) = (number(&report, "median_us"), number(&report, "slowest_us"));
    assert!(slowest < 5 * median + 2_000_000, "{report}");
    assert_eq!(net.replicas(), replicas, "a replica has died");
}

fn short_connections_leave_nothing_behind(stack: Stack) {
    let net = Net::new(stack);
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let replicas = net.replicas();
    let (first, count) = if soak() { (150_000, 1_000_000) } else { (10_000, 20_000) };
    // The first part creates what is kept for reuse, and TIME-WAIT (one for each of the client's 64,511 ports
    // at most); the second may not add to it.
    let warm_up = load(&net, &["short", Net::SERVER, "80", &first.to_string(), "16"]).success(120);
    assert_eq!(number(&warm_up, "failed"), 0, "{warm_up}");
    let before = net.replica_memory();
    let report =
        load(&net, &["short", Net::SERVER, "80", &count.to_string(), "16"]).success(count / 500 + 60);
    assert_eq!(number(&report, "answers"), count, "{report}");
    assert_eq!(number(&report, "failed"), 0, "{report}");
    let grown = net.replica_memory().saturating_sub(before);
    assert!(grown < 8 * 1024, "the replicas have grown by {grown} KiB in {count} connections");
    assert_eq!(net.replicas(), replicas, "a replica has died");
}

/// Returns the memory that a process and its children have touched, in KiB; shared pages count by share.
fn memory_of_family(pid: u32) -> u64 {
    let own = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = own
        .lines()
        .find(|line| line.starts_with("Pss:"))
        .and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    line.unwrap_or(0)
        + children
            .split_whitespace()
            .filter_map(|child| child.parse().ok())
            .map(memory_of_family)
            .sum::<u64>()
}

/// Each connection receives a page of 64 KiB, one after another, so their buffers can be the same memory.
fn connections_that_rest_hold_no_buffers(stack: Stack) {
    const COUNT: u64 = 3000;
    let net = Net::new(stack);
    net.scratch.file("page", vec![b'x'; 64 << 10]);
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let before = memory_of_family(server.pid());
    let (reader, mut writer) = std::io::pipe().expect("there are pipes");
    let mut command = net.on_client("sh");
    let count = COUNT.to_string();
    let arguments = [Net::SERVER, "80", "/page", "65536", &count];
    command
        .args(["-c", "ulimit -n 4096; exec \"$@\"", "sh", "/usr/bin/python3", &program("fetch_and_keep.py")])
        .args(arguments);
    let mut client = Proc::start(&mut command, Some(File::from(std::os::fd::OwnedFd::from(reader))));
    client.says("all are kept", 120);
    let grown = memory_of_family(server.pid()).saturating_sub(before);
    // A buffer for each connection would be 64 KiB each.
    assert!(grown < COUNT * 20, "{grown} KiB for {COUNT} connections that rest");
    writer.write_all(b"go on\n").expect("it reads");
    client.says("all were served again", 120);
    client.success(20);
}

//! Does accept(2) behave as usual where applications ask for each connection (P4's naive accept)?

use std::process::Command;

use atoll_system_tests::{Net, NoNet, Proc, Scratch, Stack, atoll, program};

use crate::recovery::Victim;
use crate::servers::start_nginx;

const SETTINGS: &str = "[accept]\nhandshake = \"naive\"\n";

/// Runs the cases of `programs/sockets.py` about accepting: blocking or not, by poll, select and epoll, over
/// fork and exec.
#[test]
fn listeners_behave_as_on_the_kernel() {
    let (no_net, scratch) = (NoNet::new(), Scratch::new());
    let settings = scratch.file("naive.toml", format!("replicas = 2\n{SETTINGS}[link]\ntype = \"none\"\n"));
    for case in [
        "accept_without_blocking",
        "closed_before_accept",
        "closing_a_listener_resets_what_waits",
        "accept_times_out",
        "options_are_inherited",
        "deferred_accept",
        "poll_events",
        "select_events",
        "epoll_nested",
        "epoll_mixed",
        "epoll_of_a_listener",
        "interrupted_calls_continue",
        "blocked_threads",
        "accept_after_fork",
        "prefork_shares_the_work",
        "exec_with_a_listener",
        "duplicate_shares_flags",
        "v6_listener_takes_both_families",
    ] {
        let mut plain = Command::new("/usr/bin/python3");
        plain.arg(program("sockets.py")).arg(case);
        let mut asking = Command::new(atoll());
        asking.args(["run", "--config", &settings, "--"]).arg(plain.get_program()).args(plain.get_args());
        let run = |command: &Command| Proc::start(&mut no_net.without_network(command), None).success(40);
        let (kernel, naive) = (run(&plain), run(&asking));
        assert!(kernel == naive, "{case}, on the kernel:\n{kernel}\nwhere it asks:\n{naive}");
    }
}

/// Several workers wait in epoll, and one is stopped: it keeps what it took, and gets no more.
#[test]
fn a_worker_that_stops_is_passed_over() {
    let net = Net::configured(Stack::Atoll, SETTINGS);
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let url = format!("http://{}/small", Net::SERVER);
    net.client("ab", &["-q", "-s", "10", "-n", "2000", "-c", "16", &url]).success(60);
    let pid = server.pid();
    let children =
        std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("nginx has workers");
    let worker = children.split_whitespace().next().expect("nginx has workers");
    let signal =
        |name| Command::new("kill").args([name, worker]).status().is_ok_and(|status| status.success());
    assert!(signal("-STOP"));
    let report = net.client("ab", &["-q", "-s", "10", "-n", "500", "-c", "8", &url]).success(60);
    assert!(signal("-CONT"));
    assert!(report.contains("Failed requests:        0"), "{report}");
    let counts: Vec<u64> = net.atoll_says("status")["replicas"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|replica| replica["stats"]["bad_commands"].as_u64().expect("a number"))
        .collect();
    assert_eq!(counts, [0, 0]);
}

/// A worker sleeps in accept or epoll_wait and waits for an answer of a replica that dies; it asks the
/// successor.
#[test]
fn who_waits_for_a_replica_that_dies_is_told_by_its_successor() {
    const ACCEPTS: &str = "import socket\nserver = socket.create_server(('', 9300))
while True:
    client = server.accept()[0]
    # curl sends the line in two pieces. Who closes before it has read both resets the connection.
    client.sendall(b'hello ' + client.makefile('rb').readline())
    client.close()";
    let net = Net::configured(Stack::Atoll, SETTINGS);
    let mut polls = start_nginx(&net);
    net.listens(&mut polls, 80);
    let mut sleeps = net.serve("/usr/bin/python3", &["-c", ACCEPTS]);
    net.listens(&mut sleeps, 9300);
    for round in 0..3 {
        for index in 0..2 {
            Victim { net: &net, kind: "replicas", index }.kill();
        }
        for (address, said) in [("http", "tiny"), ("gopher", "hello")] {
            let port = if address == "http" { 80 } else { 9300 };
            let url = format!("{address}://{}:{port}/small", Net::SERVER);
            let got = net.client("curl", &["-sS", "-m", "20", &url]).success(30);
            assert!(got.contains(said), "round {round}: {address} got {got}");
        }
    }
    assert!(polls.runs() && sleeps.runs());
}

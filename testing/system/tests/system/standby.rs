//! Is there a standby process, and does it continue with the replicas of a process that is killed?

use std::process::Command;

use atoll_system_tests::{Net, Proc, Stack, program, until};

use crate::recovery::{assert_unharmed, connections, load, log, signal};
use crate::servers::{fetch, start_nginx};
use crate::takeover::kill_supervisor;

/// Returns the standby process, once there is one that is not among `before`.
fn standby(net: &Net, before: &[u64]) -> u64 {
    until("a process that stands by", 20, || {
        net.atoll_says("status")["stack"]["standby"].as_u64().filter(|pid| !before.contains(pid))
    })
}

/// Kills the process of replica 0. Returns that of its successor, once it serves.
fn kill_first(net: &Net) -> u64 {
    let before = net.atoll_says("status")["replicas"][0].clone();
    signal("KILL", before["pid"].as_u64().expect("it has a process"));
    until("the next one", 20, || {
        let replica = net.atoll_says("status")["replicas"][0].clone();
        let serves =
            replica["epoch"].as_u64() > before["epoch"].as_u64() && replica["recovery"]["state"] == "serving";
        serves.then(|| replica["pid"].as_u64().expect("it has a process"))
    })
}

/// Starts streams of which every octet is checked.
fn streams(net: &Net) -> (Proc, Proc) {
    let streams = program("streams.py");
    let mut echo = net.serve("/usr/bin/python3", &[&streams, "serve", "7000", "2"]);
    net.listens(&mut echo, 7000);
    (echo, net.client("/usr/bin/python3", &[&streams, "steady", Net::SERVER, "7000", "6", "10000"]))
}

fn assert_whole((mut echo, mut client): (Proc, Proc)) {
    assert!(client.runs() && echo.runs(), "{}\n{}", client.report(), echo.report());
    signal("INT", client.pid().into());
    client.success(60);
}

#[test]
fn who_stands_by_goes_on_with_open_connections_and_is_followed_by_another() {
    for configuration in ["TS2LS2CM2", "TS1+IP1+LS1+CM1"] {
        let net = Net::with(Stack::Atoll, configuration, None);
        let streams = streams(&net);
        let mut seen = net.replicas();
        for _ in 0..5 {
            let next = standby(&net, &seen);
            seen.push(next);
            assert_eq!(kill_first(&net), next, "{configuration}: {}", log(&net));
        }
        standby(&net, &seen);
        assert!(connections(&net, "connections_kept") > 0 && connections(&net, "connections_lost") == 0);
        assert_whole(streams);
    }
}

#[test]
fn nothing_happens_when_who_stands_by_dies_or_is_stopped() {
    let net = Net::new(Stack::Atoll);
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let (load, replicas) = (load(&net, true), net.replicas());
    let mut seen = Vec::new();
    for name in ["KILL", "STOP", "KILL"] {
        let pid = standby(&net, &seen);
        seen.push(pid);
        signal(name, pid);
        standby(&net, &seen);
    }
    assert_eq!(net.replicas(), replicas, "nobody else has died");
    // A process that was stopped just now is replaced at once, and while there is no standby a new process is
    // started.
    for name in ["STOP", "KILL"] {
        let pid = standby(&net, &seen);
        seen.push(pid);
        signal(name, pid);
        assert_ne!(kill_first(&net), pid);
    }
    assert_eq!(fetch(&net, 80, "/small"), b"tiny");
    assert_unharmed(load);
    assert_eq!(connections(&net, "connections_lost"), 0);
}

/// The standby ends with its supervisor. The next supervisor has another one, and a standby that was called
/// continues.
#[test]
fn another_supervisor_has_another_process_that_stands_by() {
    let net = Net::new(Stack::Atoll);
    let streams = streams(&net);
    let first = standby(&net, &[]);
    assert_eq!(kill_first(&net), first);
    let second = standby(&net, &[first]);
    kill_supervisor(&net);
    let third = standby(&net, &[first, second]);
    until("the end of the one before", 20, || {
        (!std::fs::read_to_string(format!("/proc/{second}/stat")).is_ok_and(|stat| !stat.contains(") Z ")))
            .then_some(())
    });
    assert_eq!(net.replicas()[0], first, "it serves on");
    assert_eq!(kill_first(&net), third);
    assert_whole(streams);
    // The standby ends with the stack.
    let last = standby(&net, &[third]);
    let mut down = Command::new(atoll_system_tests::atoll());
    Proc::start(down.args(["down", net.name()]), None).success(20);
    assert!(!std::fs::read_to_string(format!("/proc/{last}/stat")).is_ok_and(|stat| stat.contains("(atoll")));
}

/// The standby is confined like the processes that it may replace, before it receives anything. There is none
/// if the configuration wants none.
#[test]
fn who_stands_by_has_no_privilege() {
    let net = Net::new(Stack::Atoll);
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", standby(&net, &[]))).expect("it is there");
    for line in ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line} is missing: {status}");
    }
    // Each network waits for a turn, so this one is dropped first.
    drop(net);
    let net = Net::with_settings(Stack::Atoll, "TS1LS1CM1", "[recovery]\nstandby = false\n");
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    kill_first(&net);
    assert_eq!(fetch(&net, 80, "/small"), b"tiny");
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(net.atoll_says("status")["stack"].get("standby"), None);
}

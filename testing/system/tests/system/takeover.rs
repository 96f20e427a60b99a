//! Do servers and applications notice when the supervisor itself is killed?

use std::process::Command;

use atoll_system_tests::{Net, Proc, Stack, atoll, program, until};

use crate::recovery::{assert_unharmed, connections, load, log, signal};
use crate::servers::{fetch, megabyte, start_nginx};

/// Kills the supervisor, and waits until its successor answers.
pub fn kill_supervisor(net: &Net) {
    let stack = net.atoll_says("status")["stack"].clone();
    let takeovers = stack["takeovers"].as_u64().expect("it is counted");
    signal("KILL", stack["pid"].as_u64().expect("it has a process"));
    until("another supervisor", 20, || {
        let next = net.atoll_says("status")["stack"].clone();
        assert_eq!(next["guardian"], stack["guardian"]);
        (next["takeovers"].as_u64() == Some(takeovers + 1) && next["pid"] != stack["pid"]).then_some(())
    });
}

fn outlives(net: Net) {
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let echo = program("echo.py");
    let mut echoing = net.serve("/usr/bin/python3", &[&echo, "serve", "7777"]);
    echoing.says("listening", 10);
    let mut client = net.client("/usr/bin/python3", &["-u", &echo, Net::SERVER, "7777", "3", "30"]);
    client.says("under way", 20);
    let load = load(&net, false);
    let replicas = net.replicas();
    let sessions = net.atoll_says("status")["sessions"].as_array().expect("a list").len();

    for _ in 0..10 {
        // This program attaches while there is no supervisor to answer.
        let mut asking = net.serve(
            "/usr/bin/curl",
            &["-sS", "--max-time", "20", "-o", "/dev/null", &format!("http://{}/small", Net::SERVER)],
        );
        kill_supervisor(&net);
        assert!(asking.end(25).success(), "{}", asking.report());
    }
    assert_eq!(net.replicas(), replicas, "no server has noticed");
    until("the sessions of those that are there, and no others", 10, || {
        (net.atoll_says("status")["sessions"].as_array()?.len() == sessions).then_some(())
    });

    // The new supervisor restarts servers, too, even one that died while there was no supervisor.
    let epoch = |index: usize| net.atoll_says("status")["replicas"][index]["epoch"].as_u64();
    let supervisor = net.atoll_says("status")["stack"]["pid"].as_u64().expect("it has a process");
    signal("STOP", supervisor);
    signal("KILL", replicas[0]);
    signal("KILL", supervisor);
    until("replica 0 in epoch 2", 20, || (epoch(0) == Some(2)).then_some(()));
    until("replica 0 to serve", 20, || {
        (net.atoll_says("status")["replicas"][0]["recovery"]["state"] == "serving").then_some(())
    });
    signal("KILL", *replicas.last().expect("there are two"));
    let last = replicas.len() - 1;
    until("the last replica in epoch 2", 20, || {
        let replica = net.atoll_says("status")["replicas"][last].clone();
        (replica["epoch"] == 2 && replica["recovery"]["state"] == "serving").then_some(())
    });
    assert!(
        connections(&net, "connections_kept") > 0 && connections(&net, "connections_lost") == 0,
        "{}",
        log(&net)
    );
    kill_supervisor(&net);

    assert!(fetch(&net, 80, "/big") == megabyte());
    client.terminate();
    let said = client.success(60);
    assert!(said.contains("33 kept"), "{said}");
    assert_eq!(echoing.errors(), "", "no connection of the server has failed");
    assert_unharmed(load);
    // The supervisor knows the program only from notes, and still learns of its end.
    drop((server, echoing));
    until("the end of all sessions", 10, || {
        net.atoll_says("status")["sessions"].as_array()?.is_empty().then_some(())
    });
}

#[test]
fn servers_and_applications_outlive_the_supervisor() {
    outlives(Net::with(Stack::Atoll, "TS2LS2CM2", None));
}

#[test]
fn replicas_that_share_processes_outlive_the_supervisor() {
    outlives(Net::with_settings(Stack::Atoll, "TS4LS4CM4", "[scaling]\nstart = 2\n"));
}

/// The next supervisor continues the operation that its predecessor was asked for, and answers.
#[test]
fn replicas_on_their_way_outlive_the_supervisor() {
    let net = Net::with_settings(Stack::Atoll, "TS4LS4CM4", "[scaling]\nstart = 1\n");
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let load = load(&net, true);
    for processes in [4, 1, 3, 2, 4, 1] {
        let supervisor = net.atoll_says("status")["stack"]["pid"].as_u64().expect("it has a process");
        let mut command = Command::new(atoll());
        let scaling = Proc::start(command.args(["scale", net.name(), &processes.to_string()]), None);
        // The supervisor dies when the first replica has left, or before, or at the end.
        std::thread::sleep(std::time::Duration::from_millis(processes * 7));
        signal("KILL", supervisor);
        let said = scaling.success(30);
        assert_eq!(said, format!("processes {processes}\n"), "{}", log(&net));
        let mut pids = net.replicas();
        pids.sort_unstable();
        pids.dedup();
        assert_eq!(pids.len() as u64, processes, "{}", log(&net));
    }
    assert!(fetch(&net, 80, "/big") == megabyte());
    assert_unharmed(load);
    assert_eq!(connections(&net, "connections_lost"), 0, "{}", log(&net));
}

#[test]
fn servers_of_all_kinds_outlive_the_supervisor() {
    outlives(Net::with(Stack::Atoll, "TS2+IP1+LS1+CM1", None));
}

/// The guardian is watched, too: either process can die again and again, if not both at once.
#[test]
fn another_guardian_watches_where_one_has_died() {
    let net = Net::new(Stack::Atoll);
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let (load, replicas) = (load(&net, false), net.replicas());
    for _ in 0..3 {
        let guardian = net.atoll_says("status")["stack"]["guardian"].clone();
        signal("KILL", guardian.as_u64().expect("there is one"));
        until("another guardian", 20, || {
            let next = net.atoll_says("status")["stack"]["guardian"].clone();
            (next != guardian && next.is_u64()).then_some(())
        });
        kill_supervisor(&net);
    }
    assert_eq!(net.replicas(), replicas, "no server has noticed");
    assert_eq!(fetch(&net, 80, "/small"), b"tiny");
    assert_unharmed(load);
    let all =
        ["pid", "guardian"].map(|key| net.atoll_says("status")["stack"][key].as_u64().expect("it is there"));
    let mut down = Command::new(atoll());
    Proc::start(down.args(["down", net.name()]), None).success(20);
    until("the end of both", 20, || all.iter().all(|pid| !is_atoll(*pid)).then_some(()));
}

/// Returns whether this process is one of Atoll's that has not ended.
fn is_atoll(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.contains("(atoll") && !stat.contains(") Z ")
}

/// Stopping the stack is not taken for a death, and when supervisor and guardian are both dead no server
/// remains.
#[test]
fn without_supervisor_and_guardian_the_servers_end() {
    let net = Net::new(Stack::Atoll);
    let mut server: Proc = start_nginx(&net);
    net.listens(&mut server, 80);
    let (stack, replicas) = (net.atoll_says("status")["stack"].clone(), net.replicas());
    let pid = |key: &str| stack[key].as_u64().expect("it has a process");
    // A running supervisor could start another guardian.
    signal("STOP", pid("pid"));
    signal("KILL", pid("guardian"));
    assert_eq!(fetch(&net, 80, "/small"), b"tiny");
    signal("KILL", pid("pid"));
    until("the end of the servers", 20, || {
        let is_gone = |pid: &u64| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.contains("atoll-replica") || stat.contains(") Z ")
        };
        replicas.iter().all(is_gone).then_some(())
    });
    drop(server);
    // The name is free, and the files that were left are no obstacle.
    let mut again = Command::new(atoll());
    again.args(["up", "--daemon", "--name", net.name(), "--link", "none"]);
    Proc::start(&mut again, None).success(20);
}

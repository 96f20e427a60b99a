//! Does a stack get more processes, and fewer, without effect on programs?

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};

use atoll_system_tests::{Net, Proc, Stack, atoll, program, until};
use serde_json::Value;

use crate::recovery::{assert_unharmed, connections, load, log, signal};
use crate::servers::{fetch, megabyte, start_nginx};

/// Creates a network whose stack has all replicas in one process at first.
fn small(configuration: &str) -> Net {
    Net::with_settings(Stack::Atoll, configuration, "[scaling]\nstart = 1\n")
}

fn start_scaling(net: &Net, processes: &str) -> Child {
    let mut command = Command::new(atoll());
    command.args(["scale", net.name(), processes]).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it is there")
}

/// Sets the number of processes for the replicas, and waits until it is reached.
fn scale(net: &Net, processes: usize) {
    let ended = start_scaling(net, &processes.to_string()).wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{said}{}\n{}", String::from_utf8_lossy(&ended.stderr), log(net));
    assert_eq!(said, format!("processes {processes}\n"));
    let pids: BTreeSet<u64> = net.replicas().into_iter().collect();
    assert_eq!(pids.len(), processes, "{pids:?}");
}

fn counts(net: &Net, what: &str) -> u64 {
    let status = net.atoll_says("status");
    let replicas = status["replicas"].as_array().expect("a list").clone();
    replicas.iter().map(|replica| replica["recovery"][what].as_u64().expect("it is counted")).sum()
}

/// Full, idle and short streams; every octet is checked.
struct Echoes {
    server: Proc,
    client: Proc,
}

impl Echoes {
    /// Starts streams between the stack and the host at the other end; with `on_stack` the client is on the
    /// stack.
    fn start(net: &Net, on_stack: bool) -> Echoes {
        let echo = program("echo.py");
        let (serve, python) = ([&*echo, "serve", "7777"], "/usr/bin/python3");
        let (mut server, mut client) = if on_stack {
            (net.serve(python, &serve), net.on_client(python))
        } else {
            (net.client(python, &serve), net.on_stack(python))
        };
        server.says("listening", 10);
        let address = if on_stack { Net::SERVER } else { "198.18.0.1" };
        let mut client = Proc::start(client.args(["-u", &echo, address, "7777", "6", "50"]), None);
        client.says("under way", 20);
        Echoes { server, client }
    }

    /// Ends the streams, none of which may have failed.
    fn end(mut self) {
        assert!(
            self.client.runs() && self.server.runs(),
            "{}\n{}",
            self.client.report(),
            self.server.report()
        );
        self.client.terminate();
        let said = self.client.success(60);
        assert!(said.contains("56 kept"), "{said}");
        assert_eq!(self.server.errors(), "", "no connection of the server has failed");
    }
}

/// Starts requests over kept connections without a pause.
fn wrk(net: &Net) -> Proc {
    let url = format!("http://{}/small", Net::SERVER);
    net.client("wrk", &["-t", "1", "-c", "16", "-d", "600", "--timeout", "10", &url])
}

fn assert_wrk_unharmed(mut wrk: Proc) {
    assert!(wrk.runs(), "{}", wrk.report());
    signal("INT", wrk.pid().into());
    wrk.end(20);
    let said = wrk.output();
    assert!(
        said.contains("Requests/sec") && !said.contains("Socket errors") && !said.contains("Non-2xx"),
        "{said}"
    );
}

#[test]
fn replicas_go_from_process_to_process_under_load() {
    let net = small("TS4LS4CM4");
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    assert_eq!(net.replicas().into_iter().collect::<BTreeSet<_>>().len(), 1, "all in one");
    let echoes = Echoes::start(&net, true);
    let (kept, short) = (wrk(&net), load(&net, false));
    for processes in [4, 1, 2, 4, 3, 1, 2, 1, 4] {
        scale(&net, processes);
        assert!(fetch(&net, 80, "/big") == megabyte());
    }
    assert_wrk_unharmed(kept);
    assert_unharmed(short);
    echoes.end();
    assert_eq!((counts(&net, "crashes"), connections(&net, "connections_lost")), (0, 0), "{}", log(&net));
    // The numbers of moves are: 1 to 4: three, 4 to 1: three, to 2: two, to 4: two, to 3: one, to 1: two, to
    // 2: two, to 1: two, to 4: three.
    assert_eq!(counts(&net, "moves"), 20, "{}", log(&net));
    assert!(server.runs(), "{}", server.report());
}

#[test]
fn replicas_of_clients_move_too() {
    let net = small("TS2LS2CM2");
    let echoes = Echoes::start(&net, false);
    for processes in [2, 1, 2, 1, 2, 1] {
        scale(&net, processes);
    }
    echoes.end();
    assert_eq!((counts(&net, "crashes"), counts(&net, "moves")), (0, 6), "{}", log(&net));
}

/// Replicas move in configurations whose other components are in processes of their own, or in a replica that
/// serves others.
#[test]
fn replicas_move_whose_other_components_are_elsewhere() {
    for configuration in ["TS4LS1CM4", "TS2CM2+LS1", "TS2LS2CM1", "TS2+LS2+CM2"] {
        let net = small(configuration);
        let mut server = start_nginx(&net);
        net.listens(&mut server, 80);
        let echoes = Echoes::start(&net, true);
        let kept = wrk(&net);
        for processes in [2, 1, 2, 1] {
            scale(&net, processes);
        }
        assert_wrk_unharmed(kept);
        echoes.end();
        assert_eq!((counts(&net, "crashes"), connections(&net, "connections_lost")), (0, 0), "{}", log(&net));
    }
}

/// `atoll move` moves one replica, and several, to an existing process and to a new one.
#[test]
fn replicas_move_where_they_are_wanted_under_load() {
    let net = Net::with(Stack::Atoll, "TS4LS4CM4", None);
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let echoes = Echoes::start(&net, true);
    let (kept, short) = (wrk(&net), load(&net, false));
    let processes = || -> Vec<u64> {
        let status = net.atoll_says("status");
        let replicas = status["replicas"].as_array().expect("a list").clone();
        replicas.iter().map(|replica| replica["process"].as_u64().expect("it has a number")).collect()
    };
    let ask = |replicas: &str, to: &str| {
        Command::new(atoll()).args(["move", net.name(), replicas, "--to", to]).output().expect("it ends")
    };
    for (replicas, to, then) in [
        ("1,3", "0", [0, 0, 2, 0]),
        ("0,1", "2", [2, 2, 2, 0]),
        ("3", "1", [2, 2, 2, 1]),
        ("0,1,2,3", "3", [3, 3, 3, 3]),
        ("2", "2", [3, 3, 2, 3]),
    ] {
        let ended = ask(replicas, to);
        assert!(ended.status.success(), "{}\n{}", String::from_utf8_lossy(&ended.stderr), log(&net));
        assert_eq!(processes(), then, "{replicas} to {to}");
        let distinct = then.iter().collect::<BTreeSet<_>>().len();
        assert_eq!(net.replicas().into_iter().collect::<BTreeSet<_>>().len(), distinct);
        assert_eq!(String::from_utf8_lossy(&ended.stdout), format!("processes {distinct}\n"));
        assert!(fetch(&net, 80, "/big") == megabyte());
    }
    for (replicas, to, said) in [
        ("4", "0", "there is no replica 4"),
        ("1", "4", "there is no process 4"),
        ("one", "0", "give numbers of replicas"),
    ] {
        let ended = ask(replicas, to);
        let error = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && error.contains(said), "{error}");
    }
    scale(&net, 4);
    assert_eq!(processes(), [0, 1, 2, 3]);
    assert_wrk_unharmed(kept);
    assert_unharmed(short);
    echoes.end();
    assert_eq!((counts(&net, "crashes"), connections(&net, "connections_lost")), (0, 0), "{}", log(&net));
    assert!(server.runs(), "{}", server.report());
}

/// `atoll chaos` makes deaths and moves in any order.
#[test]
fn replicas_die_and_move_at_random() {
    let net = small("TS4LS4CM4");
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let echoes = Echoes::start(&net, true);
    let load = load(&net, true);
    let mut chaos = Command::new(atoll());
    chaos.args([
        "chaos",
        net.name(),
        "--for",
        "30s",
        "--every",
        "300ms",
        "--kill",
        "--move",
        "--seed",
        "7",
        "--json",
    ]);
    let said = Proc::start(&mut chaos, None).success(120);
    let report: Value = serde_json::from_str(&said).expect("it is JSON");
    let count = |what: &str| report[what].as_u64().expect("it is counted");
    assert!(count("kills") > 0 && count("rearrangements") > 0 && count("moves") > 0, "{said}");
    assert_eq!(
        (count("connections_lost"), report["missing"].as_array().map(Vec::len)),
        (0, Some(0)),
        "{said}"
    );
    assert_eq!(net.replicas().into_iter().collect::<BTreeSet<_>>().len(), 1, "as it was");
    assert_unharmed(load);
    echoes.end();
}

fn moves(net: &Net) -> usize {
    net.events().of("server_moved").len()
}

/// Processes are killed during moves, on either side.
#[test]
fn a_death_in_the_middle_of_a_move_costs_nothing() {
    let net = small("TS4LS4CM4");
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let echoes = Echoes::start(&net, true);
    let kept = wrk(&net);
    for round in 0..12 {
        let processes = if round % 2 == 0 { 4 } else { 1 };
        let (victim, before) = (net.replicas()[round % 4], moves(&net));
        let scaling = start_scaling(&net, &processes.to_string());
        // The first replica has moved, and others are to follow. Which process is killed differs from round
        // to round.
        if round % 3 > 0 {
            until("a move", 20, || (moves(&net) > before).then_some(()));
        }
        // The process may have ended by itself, when its last replica had left.
        let _ = Command::new("kill").args(["-9", &victim.to_string()]).stderr(Stdio::null()).status();
        let ended = scaling.wait_with_output().expect("it ends");
        assert!(ended.status.success(), "{}\n{}", String::from_utf8_lossy(&ended.stderr), log(&net));
        until("all to be where they should be", 20, || {
            let pids: BTreeSet<u64> = net.replicas().into_iter().collect();
            (pids.len() == processes && !pids.contains(&0)).then_some(())
        });
    }
    assert_wrk_unharmed(kept);
    echoes.end();
    assert!(counts(&net, "crashes") > 0 && connections(&net, "connections_lost") == 0, "{}", log(&net));
}

/// When a process with several replicas dies, all of them continue in one process.
#[test]
fn replicas_that_share_a_process_recover_together() {
    let net = small("TS4LS4CM4");
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let echoes = Echoes::start(&net, true);
    let load = load(&net, true);
    for deaths in 1..=8 {
        signal("KILL", until("a process", 10, || net.replicas().first().copied().filter(|pid| *pid != 0)));
        until("all to be back", 20, || {
            let status = net.atoll_says("status");
            let replicas = status["replicas"].as_array().expect("a list").clone();
            let is_back = |replica: &Value| {
                replica["epoch"].as_u64() == Some(deaths + 1) && replica["recovery"]["state"] == "serving"
            };
            replicas.iter().all(is_back).then_some(())
        });
        assert_eq!(net.replicas().into_iter().collect::<BTreeSet<_>>().len(), 1);
    }
    assert_unharmed(load);
    echoes.end();
    assert_eq!(connections(&net, "connections_lost"), 0, "{}", log(&net));
}

#[test]
fn what_cannot_be_is_explained() {
    let net = small("TS2LS2CM2");
    for wanted in ["0", "3"] {
        let ended = start_scaling(&net, wanted).wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && said.contains("2 replicas can be in 1 to 2 processes"), "{said}");
    }
    let ended = start_scaling(&net, "two").wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(2), "as other arguments that make no sense");
    let shown = Command::new(atoll()).args(["scale", net.name(), "--json"]).output().expect("it ends").stdout;
    let shown: Value = serde_json::from_slice(&shown).expect("it is JSON");
    assert_eq!((shown["processes"].as_u64(), shown["auto"].as_bool()), (Some(1), Some(false)));
}

/// A stack without load shrinks to one process by itself.
#[test]
fn an_idle_stack_shrinks_by_itself() {
    let net = Net::with_settings(Stack::Atoll, "TS4LS4CM4", "[scaling]\nauto = true\nstart = 4\n");
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    assert_eq!(net.replicas().into_iter().collect::<BTreeSet<_>>().len(), 4);
    until("one process", 60, || {
        let scaling = net.atoll_says("status")["stack"]["scaling"].clone();
        (scaling["processes"].as_u64() == Some(1)).then_some(())
    });
    let log = log(&net);
    let is_it = |fields: &&Value| fields["from"] == 4 && fields["to"] == 1;
    assert!(log.of("scaled").iter().any(is_it), "{log}");
    assert!(fetch(&net, 80, "/big") == megabyte());
    assert!(server.runs(), "{}", server.report());
}

//! Does any program notice that its replica dies? Programs of all kinds check every octet while replicas are
//! killed at random moments.

use std::time::Duration;

use atoll_base::Rng;
use atoll_system_tests::{Net, Proc, Stack, program, soak, until};

use crate::recovery::{Victim, assert_unharmed, load, signal};
use crate::servers::start_nginx;

const PYTHON: &str = "/usr/bin/python3";

/// The place where a client runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client is at the other end of the TAP.
    Outside,
    /// The client is on the stack itself, over the internal link.
    Inside,
}

/// Starts one of the test programs, on the stack or beside it.
pub fn start(net: &Net, side: Side, name: &str, arguments: &[&str]) -> Proc {
    let path = program(name);
    let arguments = [&[path.as_str()], arguments].concat();
    match side {
        Side::Outside => net.client(PYTHON, &arguments),
        Side::Inside => net.serve(PYTHON, &arguments),
    }
}

/// Kills replicas, one at a time and drawn at random, at random moments. The clients must run on.
fn kill_replicas(net: &Net, seed: u64, count: u32, clients: &mut [Proc]) {
    let mut rng = Rng::new(seed);
    let replicas = net.replicas().len() as u32;
    for _ in 0..count {
        std::thread::sleep(Duration::from_micros(rng.below(700_000).into()));
        Victim { net, kind: "replicas", index: rng.below(replicas) as usize }.kill();
        for client in clients.iter_mut() {
            assert!(client.runs(), "after a death: {}", client.report());
        }
    }
}

/// Returns the number of deaths for a test.
fn deaths() -> u32 {
    if soak() { 100 } else { 10 }
}

/// Asks clients to finish, which they must do with success. Returns their outputs.
pub fn finish(clients: Vec<Proc>) -> Vec<String> {
    clients.iter().for_each(|client| signal("INT", client.pid().into()));
    clients.into_iter().map(|client| client.success(60)).collect()
}

/// Checks that no replica has lost a connection, or keeps state of one that has ended.
pub fn assert_nothing_left(net: &Net) {
    until("nothing to be left", 20, || {
        let status = net.atoll_says("status");
        let replicas = status["replicas"].as_array().expect("a list");
        let is_zero = |name: &str| replicas.iter().all(|replica| replica["stats"][name] == 0);
        for name in ["connections_lost", "connections_quarantined", "orphans_reset"] {
            assert!(is_zero(name), "{name}: {status}");
        }
        ["connections", "orphans", "buffer_bytes"].into_iter().all(is_zero).then_some(())
    });
}

/// Tests a server with two workers and clients of all kinds through [`deaths`].
fn streams(configuration: &str, side: Side, addresses: &[&str], listeners: &str) {
    let net = Net::with(Stack::Atoll, configuration, None);
    let mut server = start(&net, Side::Inside, "streams.py", &["serve", "7000", "2", listeners]);
    net.listens(&mut server, 7000);
    let mut clients = Vec::new();
    for address in addresses {
        for rest in [
            ["steady", "6", "1"],
            ["steady", "3", "70000"],
            ["steady", "1", "4000000"],
            ["brief", "4", "300000"],
        ] {
            let [kind, count, limit] = rest;
            clients.push(start(&net, side, "streams.py", &[kind, address, "7000", count, limit]));
        }
    }
    kill_replicas(&net, 1, deaths(), &mut clients);
    for said in finish(clients) {
        println!("{configuration} {side:?}: {said}");
    }
    assert!(server.runs(), "{}", server.report());
    assert_nothing_left(&net);
}

#[test]
fn streams_over_a_tap() {
    streams("TS1LS1CM1", Side::Outside, &[Net::SERVER], "shared");
    streams("TS3LS3CM3", Side::Outside, &[Net::SERVER, Net::SERVER6], "shared");
}

#[test]
fn streams_with_a_link_server_apart() {
    streams("TS2CM2+LS1", Side::Outside, &[Net::SERVER6], "shared");
}

#[test]
fn streams_between_programs_of_one_stack() {
    streams("TS1LS1CM1", Side::Inside, &["127.0.0.1"], "shared");
    streams("TS2LS2CM2", Side::Inside, &[Net::SERVER6, "127.0.0.1"], "shared");
}

#[test]
fn streams_of_workers_that_listen_each() {
    streams("TS2LS2CM2", Side::Outside, &[Net::SERVER], "reuse");
}

/// The clients are on the stack.
#[test]
fn streams_that_the_stack_opens() {
    let net = Net::with(Stack::Atoll, "TS2LS2CM2", None);
    let _server = {
        let mut server = start(&net, Side::Outside, "streams.py", &["serve", "7000", "2"]);
        assert!(server.runs());
        server
    };
    until("the server to listen", 10, || {
        let mut nc = net.on_client("nc.openbsd");
        nc.args(["-z", "-w", "1", "198.18.0.1", "7000"]).stderr(std::process::Stdio::null());
        nc.status().expect("nc is installed").success().then_some(())
    });
    let mut clients: Vec<Proc> = [["steady", "6", "70000"], ["brief", "4", "300000"]]
        .into_iter()
        .flat_map(|[kind, count, limit]| {
            ["198.18.0.1", "2001:db8::1"].map(|address| {
                start(&net, Side::Inside, "streams.py", &[kind, address, "7000", count, limit])
            })
        })
        .collect();
    kill_replicas(&net, 2, deaths(), &mut clients);
    finish(clients);
    assert_nothing_left(&net);
}

/// Connections wait in the accept queue, with their text, through several deaths.
#[test]
fn connections_that_nobody_has_accepted_yet() {
    let net = Net::with(Stack::Atoll, "TS2LS2CM2", None);
    let mut server = start(&net, Side::Inside, "streams.py", &["serve", "7000", "2", "late"]);
    server.says("listening", 10);
    let clients = [Net::SERVER, Net::SERVER6]
        .map(|address| start(&net, Side::Outside, "streams.py", &["wait", address, "7000", "50"]));
    until("the connections", 20, || {
        let rows = net.atoll_says("ss");
        let is_one =
            |row: &&serde_json::Value| row["state"] != "LISTEN" && row["recv_q"].as_u64() >= Some(1000);
        (rows.as_array()?.iter().filter(is_one).count() == 100).then_some(())
    });
    let mut clients = Vec::from(clients);
    kill_replicas(&net, 3, 6, &mut clients);
    signal("USR1", server.pid().into());
    for client in clients {
        assert!(client.success(60).starts_with("50 "));
    }
    assert!(server.runs(), "{}", server.report());
    assert_nothing_left(&net);
}

#[test]
fn requests_to_nginx() {
    for (configuration, kept) in [("TS1LS1CM1", false), ("TS2LS2CM2", true), ("TS3LS3CM3", false)] {
        let net = Net::with(Stack::Atoll, configuration, None);
        let mut server = start_nginx(&net);
        net.listens(&mut server, 80);
        let mut clients = [load(&net, kept)];
        kill_replicas(&net, 4, deaths(), &mut clients);
        let [client] = clients;
        assert_unharmed(client);
        assert!(server.runs(), "{}", server.report());
        assert_nothing_left(&net);
    }
}

#[test]
fn commands_to_redis() {
    let net = Net::with(Stack::Atoll, "TS2LS2CM2", None);
    let arguments = ["--port", "6379", "--save", "", "--protected-mode", "no", "--bind", "*", "-::*"];
    let mut server = net.serve("redis-server", &arguments);
    net.listens(&mut server, 6379);
    let mut clients: Vec<Proc> = [Net::SERVER, Net::SERVER6]
        .map(|address| start(&net, Side::Outside, "store_check.py", &[address, "6379", "4"]))
        .into();
    kill_replicas(&net, 5, deaths(), &mut clients);
    for said in finish(clients) {
        assert!(said.trim().parse::<u64>().is_ok_and(|commands| commands > 1000), "{said}");
    }
    assert!(server.runs(), "{}", server.report());
    assert_nothing_left(&net);
}

#[test]
fn datagrams() {
    for side in [Side::Outside, Side::Inside] {
        let net = Net::with(Stack::Atoll, "TS2LS2CM2", None);
        let mut server = start(&net, Side::Inside, "datagrams.py", &["serve", "7000"]);
        server.says("listening", 10);
        let mut clients: Vec<Proc> = [Net::SERVER, Net::SERVER6]
            .map(|address| start(&net, side, "datagrams.py", &["ask", address, "7000", "5"]))
            .into();
        kill_replicas(&net, 6, deaths(), &mut clients);
        for said in finish(clients) {
            println!("{side:?}: {said}");
        }
        assert!(server.runs(), "{}", server.report());
        drop(server);
        assert_nothing_left(&net);
    }
}

/// The server closes first, so TIME-WAIT is at its end. The replica's successors know of it, and a client may
/// use its port again nevertheless.
#[test]
fn connections_in_time_wait() {
    const SERVER: &str = "import socket\n\
        listener = socket.create_server(('', 7000), family=socket.AF_INET6, dualstack_ipv6=True)\n\
        print('listening', flush=True)\n\
        while True:\n c, _ = listener.accept()\n c.sendall(b'x')\n c.close()";
    const CLIENT: &str = "import socket, sys\nfor port in range(20000, 20020):\n\
        \x20c = socket.create_connection((sys.argv[1], 7000), 20, ('', port))\n assert c.recv(2) + c.recv(2) \
        == b'x'\n c.close()";
    let net = Net::with(Stack::Atoll, "TS2LS2CM2", None);
    let mut server = net.serve(PYTHON, &["-c", SERVER]);
    server.says("listening", 10);
    let ask = |address: &str| net.client(PYTHON, &["-c", CLIENT, address]).success(60);
    let waiting = || {
        let rows = net.atoll_says("ss");
        rows.as_array().expect("a list").iter().filter(|row| row["state"] == "TIME-WAIT").count()
    };
    for address in [Net::SERVER, Net::SERVER6] {
        ask(address);
    }
    until("all of them to be in TIME-WAIT", 10, || (waiting() == 40).then_some(()));
    let mut servers = [server];
    kill_replicas(&net, 7, 6, &mut servers);
    assert_eq!(waiting(), 40);
    for address in [Net::SERVER, Net::SERVER6] {
        ask(address);
    }
    kill_replicas(&net, 8, 6, &mut servers);
    assert_eq!(waiting(), 40, "new ones took the places of the old ones");
}

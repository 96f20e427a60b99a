//! Does a stack continue when one of its servers is killed?

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use atoll_system_tests::{Events, Net, Proc, Stack, atoll, program, until};
use serde_json::Value;

use crate::servers::{fetch, megabyte, start_nginx};
use crate::takeover::kill_supervisor;

/// A server of a stack, as `atoll status` sees it.
pub struct Victim<'a> {
    pub net: &'a Net,
    /// The list of `atoll status` that has the server, and its index there.
    pub kind: &'static str,
    pub index: usize,
}

impl Victim<'_> {
    fn status(&self) -> Value {
        self.net.atoll_says("status")[self.kind][self.index].clone()
    }

    fn epoch(&self) -> u64 {
        self.status()["epoch"].as_u64().expect("it has an epoch")
    }

    /// Returns the number of its process, which must exist.
    fn pid(&self) -> u64 {
        until("a process", 10, || self.status()["pid"].as_u64().filter(|pid| *pid != 0))
    }

    /// Kills the server, and waits until its successor is ready.
    pub fn kill(&self) {
        let epoch = self.epoch();
        signal("KILL", self.pid());
        self.comes_back(epoch + 1);
    }

    fn comes_back(&self, epoch: u64) {
        until(&format!("{} {} in epoch {epoch}", self.kind, self.index), 20, || {
            let status = self.status();
            (status["epoch"].as_u64() >= Some(epoch) && status["recovery"]["state"] == "serving")
                .then_some(())
        });
    }
}

pub fn signal(name: &str, pid: u64) {
    let sent = Command::new("kill").args(["-s", name, &pid.to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()), "{name} to {pid}");
}

/// Returns the events of the stack's log so far, for the message of a test that fails.
pub fn log(net: &Net) -> Events {
    net.events()
}

/// Starts requests for longer than a test takes, each over a connection of its own or over kept ones.
pub fn load(net: &Net, kept: bool) -> Proc {
    load_for(net, kept, 300)
}

/// Starts requests for this many seconds, or until [`assert_unharmed`].
pub fn load_for(net: &Net, kept: bool, seconds: u64) -> Proc {
    let (url, seconds) = (format!("http://{}/small", Net::SERVER), seconds.to_string());
    let kept: &[&str] = if kept { &["-k"] } else { &[] };
    let arguments =
        [&["-q", "-s", "10", "-t", &seconds, "-n", "100000000", "-c", "8"], kept, &[&url]].concat();
    net.client("ab", &arguments)
}

/// Ends the load, and checks that no request has failed.
pub fn assert_unharmed(mut load: Proc) {
    assert!(load.runs(), "it went under load: {}", load.report());
    signal("INT", load.pid().into());
    load.end(20);
    let said = load.output();
    assert!(said.contains("Failed requests:        0"), "{said}");
    let complete =
        said.split_once("Complete requests:").and_then(|(_, rest)| rest.lines().next()?.trim().parse().ok());
    // There was load; how much depends on the machine.
    assert!(complete > Some(100u32), "{said}");
}

#[test]
fn a_killed_link_server_costs_no_request() {
    for kept in [false, true] {
        let net = Net::with(Stack::Atoll, "TS2CM2+LS1", None);
        let mut server = start_nginx(&net);
        net.listens(&mut server, 80);
        let replicas = net.replicas();
        let load = load(&net, kept);
        let victim = Victim { net: &net, kind: "link_servers", index: 0 };
        for _ in 0..20 {
            victim.kill();
        }
        assert!(fetch(&net, 80, "/big") == megabyte());
        assert_unharmed(load);
        assert_eq!(net.replicas(), replicas, "nobody else has died");
        let status = victim.status();
        assert_eq!(
            (status["epoch"].as_u64(), status["recovery"]["crashes"].as_u64()),
            (Some(21), Some(20)),
            "{status}"
        );
        let log = log(&net);
        let killed = |fields: &&Value| fields["role"] == "link_server" && fields["signal"] == "SIGKILL";
        assert_eq!(log.of("server_ended").into_iter().filter(killed).count(), 20, "{log}");
        let is_it = |fields: &&Value| fields["role"] == "link_server" && fields["index"] == 0;
        assert_eq!(log.of("server_back").into_iter().filter(is_it).count(), 20, "{log}");
    }
}

/// The successor of an IP server learns about the network by asking, and from the replicas that it serves.
#[test]
fn a_killed_ip_server_costs_no_request() {
    let net = Net::with(Stack::Atoll, "TS2CM2+IP2LS2", None);
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let replicas = net.replicas();
    let load = load(&net, true);
    for round in 0..10 {
        Victim { net: &net, kind: "ip_servers", index: round % 2 }.kill();
    }
    assert_unharmed(load);
    assert_eq!(net.replicas(), replicas, "nobody else has died");
    net.pings(20, &[Net::SERVER]);
}

/// Replicas die as well, and learn about the network from the IP server.
#[test]
fn a_killed_replica_whose_ip_is_apart_costs_no_request() {
    let net = Net::with(Stack::Atoll, "TS2CM2+IP2LS2", None);
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let load = load(&net, true);
    kill_replicas(&net, 10);
    assert_unharmed(load);
}

/// Whichever replica dies, the stack continues, and the replicas learn of the successor. (Other tests check
/// connections.)
#[test]
fn a_killed_replica_is_started_again() {
    for configuration in ["TS3LS3CM3", "TS2CM2+LS1", "TS4LS1CM4"] {
        let net = Net::with(Stack::Atoll, configuration, None);
        let mut server = start_nginx(&net);
        net.listens(&mut server, 80);
        let count = net.replicas().len();
        for index in 0..count {
            Victim { net: &net, kind: "replicas", index }.kill();
        }
        until("the replicas to have greeted each other", 10, || {
            let status = net.atoll_says("status");
            let all = status["replicas"].as_array().expect("a list").clone();
            let greeted = |replica: &Value| replica["stats"]["siblings"].as_u64() == Some(count as u64 - 1);
            (all.len() == count && all.iter().all(greeted)).then_some(())
        });
        net.pings(20, &[Net::SERVER]);
        assert!(server.runs(), "{}", server.report());
    }
}

/// A server that hangs, asleep or at work, is killed and replaced. A debugger holds it.
#[test]
fn a_server_that_hangs_is_replaced() {
    let net = Net::with(Stack::Atoll, "TS2CM2+LS1", None);
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let pids = net.replicas();
    let load = load(&net, false);
    let hold = |victim: &Victim<'_>| {
        let mut command = Command::new("/usr/bin/python3");
        let mut hold = Proc::start(command.args([program("hold.py"), victim.pid().to_string()]), None);
        hold.says("held", 20);
        victim.comes_back(2);
        hold.success(20);
    };
    // The server hangs under load.
    hold(&Victim { net: &net, kind: "link_servers", index: 0 });
    assert_unharmed(load);
    // The server hangs asleep: only the supervisor sends it anything.
    hold(&Victim { net: &net, kind: "replicas", index: 1 });
    assert_eq!(net.replicas()[0], pids[0], "nobody else is killed");
    let log = log(&net);
    for (role, index) in [("link_server", 0), ("replica", 1)] {
        let is_it =
            |fields: &&Value| fields["role"] == role && fields["index"] == index && fields["ms"] == 2000;
        assert!(log.of("server_hangs").iter().any(is_it), "{log}");
    }
}

/// A stopped server is replaced before the watchdog notices. Streams pause for less than the second after
/// which a peer without a better estimate retransmits, whichever server is stopped, also under a supervisor
/// that has not started it.
#[test]
fn a_server_that_is_stopped_is_replaced_soon() {
    let net = Net::with(Stack::Atoll, "TS1+IP1+LS1+CM1", None);
    let streams = program("streams.py");
    let mut echo = net.serve("/usr/bin/python3", &[&streams, "serve", "7000", "2"]);
    net.listens(&mut echo, 7000);
    let client = net.client("/usr/bin/python3", &[&streams, "steady", Net::SERVER, "7000", "6", "10000"]);
    let kinds = ["replicas", "link_servers", "ip_servers", "connection_managers"];
    let mut stopped = Vec::new();
    for (round, by_another) in [(2, false), (3, true)] {
        if by_another {
            kill_supervisor(&net);
        }
        for kind in kinds {
            let victim = Victim { net: &net, kind, index: 0 };
            stopped.push(victim.pid());
            signal("STOP", victim.pid());
            victim.comes_back(round);
        }
    }
    let log = log(&net);
    for pid in stopped {
        assert!(log.of("server_stopped").iter().any(|fields| fields["pid"] == pid), "{log}");
    }
    assert!(log.of("server_hangs").is_empty(), "{log}");
    signal("INT", client.pid().into());
    let said = client.success(60);
    let longest: f64 = said.split_whitespace().last().and_then(|time| time.parse().ok()).expect("how long");
    assert!(longest < 1.0, "a stream has stood still for {longest} s: {log}");
    assert!(echo.runs() && connections(&net, "connections_lost") == 0, "{}", echo.report());
}

/// A replica that was asked to leave and is stopped is replaced earlier than others.
#[test]
fn a_replica_that_is_stopped_when_it_is_to_move_goes_on_elsewhere() {
    let net = Net::with(Stack::Atoll, "TS2LS2CM2", None);
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let load = load(&net, true);
    signal("STOP", net.replicas()[1]);
    let mut scale = Command::new(atoll());
    Proc::start(scale.args(["scale", net.name(), "1"]), None).success(20);
    let replicas = net.replicas();
    assert_eq!(replicas[0], replicas[1], "both are in one process");
    let log = log(&net);
    assert!(log.of("server_stopped").iter().any(|fields| fields["servers"] == "replica 1"), "{log}");
    assert!(log.of("server_late").is_empty(), "{log}");
    assert_unharmed(load);
}

/// The connection manager is apart, or in a process of its own with everything else apart, too.
#[test]
fn a_killed_connection_manager_costs_no_request() {
    for (configuration, managers) in [("TS2LS2+CM1", 1), ("TS2+LS2+CM2", 2)] {
        let net = Net::with(Stack::Atoll, configuration, None);
        let mut server = start_nginx(&net);
        net.listens(&mut server, 80);
        let replicas = net.replicas();
        let load = load(&net, false);
        for round in 0..20 {
            Victim { net: &net, kind: "connection_managers", index: round % managers }.kill();
        }
        assert_unharmed(load);
        assert_eq!(net.replicas(), replicas, "nobody else has died");
        // The last connection manager knows every worker of nginx.
        let url = format!("http://{}/small", Net::SERVER);
        net.client("ab", &["-q", "-s", "10", "-n", "1000", "-c", "10", &url]).success(60);
    }
}

/// Kills the replicas in turn, `times` times in all.
fn kill_replicas(net: &Net, times: usize) {
    let count = net.replicas().len();
    for round in 0..times {
        Victim { net, kind: "replicas", index: round % count }.kill();
    }
}

pub fn connections(net: &Net, counter: &str) -> u64 {
    let status = net.atoll_says("status");
    let replicas = status["replicas"].as_array().expect("a list").clone();
    replicas.iter().map(|replica| replica["stats"][counter].as_u64().expect("it is counted")).sum()
}

/// Runs full, idle and short streams through deaths: no octet is lost, changed or repeated, and no connection
/// is refused.
fn echoes_through_deaths(configuration: &str, on_stack: bool) {
    let net = Net::with(Stack::Atoll, configuration, None);
    let echo = program("echo.py");
    let (serve, check) = ([&*echo, "serve", "7777"], |address| ["-u", &*echo, address, "7777", "6", "50"]);
    let (mut server, mut client) = if on_stack {
        let server = net.serve("/usr/bin/python3", &serve);
        (server, net.on_client("/usr/bin/python3"))
    } else {
        let server = net.client("/usr/bin/python3", &serve);
        (server, net.on_stack("/usr/bin/python3"))
    };
    server.says("listening", 10);
    let address = if on_stack { Net::SERVER } else { "198.18.0.1" };
    let mut client = Proc::start(client.args(check(address)), None);
    client.says("under way", 20);
    kill_replicas(&net, 20);
    assert!(
        connections(&net, "connections_kept") > 0 && connections(&net, "connections_lost") == 0,
        "{}",
        log(&net)
    );
    assert!(client.runs() && server.runs(), "{}\n{}", client.report(), server.report());
    client.terminate();
    let said = client.success(60);
    assert!(said.contains("56 kept"), "{said}");
    assert_eq!(server.errors(), "", "no connection of the server has failed");
}

#[test]
fn streams_outlive_the_replicas_of_their_server() {
    echoes_through_deaths("TS2LS2CM2", true);
}

#[test]
fn streams_outlive_the_replicas_of_their_client() {
    echoes_through_deaths("TS2LS2CM2", false);
}

#[test]
fn streams_outlive_replicas_whose_other_components_are_apart() {
    echoes_through_deaths("TS2+LS2+CM2", true);
}

#[test]
fn streams_outlive_a_replica_that_chooses_for_the_other() {
    echoes_through_deaths("TS2LS1CM1", true);
}

/// nginx with two workers serves kept and short connections; no request fails.
#[test]
fn a_killed_replica_costs_no_request() {
    for kept in [true, false] {
        let net = Net::new(Stack::Atoll);
        let mut server = start_nginx(&net);
        net.listens(&mut server, 80);
        let load = load(&net, kept);
        kill_replicas(&net, 20);
        assert!(fetch(&net, 80, "/big") == megabyte());
        assert_unharmed(load);
        assert!(server.runs(), "{}", server.report());
    }
}

/// A program ends right after its last write, when much of its text has not left. Its memory stays for as
/// long as needed, whichever replica dies meanwhile.
#[test]
fn what_a_program_that_has_ended_wrote_last_arrives() {
    const SERVER: &str = "import socket\nlistener = socket.create_server(('', 7000))\n\
                          print('listening', flush=True)\n\
        while True:\n c, _ = listener.accept()\n if c.recv(1) == b'x': break\n\
        c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)\n\
        for _ in range(500): c.sendall(bytes(range(250)) * 4)";
    const CLIENT: &str = "import socket, sys\nc = socket.socket()\n\
                          c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)\n\
        c.connect((sys.argv[1], 7000))\nc.send(b'x')\nprint('asked', flush=True)\nsys.stdin.read(1)\n\
        text = b''\nwhile part := c.recv(65536): text += part\n\
        assert text == bytes(range(250)) * 2000, len(text)";
    let net = Net::with(Stack::Atoll, "TS2LS2CM2", None);
    let sessions = || net.atoll_says("status")["sessions"].as_array().expect("a list").len();
    let before = sessions();
    let mut server = net.serve("/usr/bin/python3", &["-c", SERVER]);
    server.says("listening", 10);
    let mut client = net.on_client("/usr/bin/python3");
    client.args(["-uc", CLIENT, Net::SERVER]).stdin(Stdio::piped());
    let mut client = client.stdout(Stdio::piped()).spawn().expect("python is installed");
    assert!(server.end(20).success(), "{}", server.report());
    until("the end of its session", 10, || (sessions() == before).then_some(()));
    kill_replicas(&net, 4);
    kill_supervisor(&net);
    kill_replicas(&net, 2);
    assert!(connections(&net, "connections_kept") > 0, "{}", log(&net));
    client.stdin.take().expect("it is piped").write_all(b"!").expect("it waits");
    assert!(client.wait().is_ok_and(|status| status.success()), "{}", log(&net));
    assert_eq!(connections(&net, "connections_lost"), 0, "{}", log(&net));
}

/// A stateless replica keeps no connections: those of the dead replica are reset, and its listeners are there
/// again.
#[test]
fn a_stateless_replica_keeps_its_listeners() {
    let net = Net::with_settings(Stack::Atoll, "TS1LS1CM1", "[recovery]\nmode = \"stateless\"\n");
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    let echo = program("echo.py");
    let mut echoing = net.serve("/usr/bin/python3", &[&echo, "serve", "7777"]);
    echoing.says("listening", 10);
    let mut client = net.client("/usr/bin/python3", &["-u", &echo, Net::SERVER, "7777", "2", "2"]);
    client.says("under way", 20);
    kill_replicas(&net, 1);
    let has_failed = !client.end(20).success();
    // A client that shuts its side down only now hears ENOTCONN: the reset had come before.
    let was_reset = ["ConnectionResetError", "Transport endpoint is not connected"]
        .iter()
        .any(|error| client.errors().contains(error));
    assert!(has_failed && was_reset, "{}", client.report());
    until("the server to have heard of it", 10, || {
        echoing.errors().contains("Connection reset by peer").then_some(())
    });
    assert_eq!(fetch(&net, 80, "/small"), b"tiny");
    assert!(server.runs() && echoing.runs(), "{}", echoing.report());
    assert!(connections(&net, "connections_lost") > 0 && connections(&net, "connections_kept") == 0);
}

/// Sessions that do nothing cost a successor nothing before it serves. They are opened when they have work;
/// otherwise the oldest is announced last.
#[test]
fn idle_sessions_are_told_of_later_and_heard_then() {
    const PROGRAM: &str = "import socket, sys\ns = socket.socket()\ns.setblocking(False)\n\
                           print('idle', flush=True)\n\
        sys.stdin.read(1)\ns.setblocking(True)\ns.connect((sys.argv[1], 7000))\ns.sendall(b'x')\n\
        assert s.recv(1) == b'x'\n\
        print('heard', flush=True)\nsys.stdin.read(1)";
    const ECHO: &str = "import socket\nlistener = socket.create_server(('', 7000))\n\
                        print('listening', flush=True)\nkept = []\n\
        while True:\n c, _ = listener.accept()\n c.sendall(c.recv(1))\n kept.append(c)";
    const IDLE: usize = 300;
    let net = Net::with(Stack::Atoll, "TS1LS1CM1", None);
    let mut echo = net.client("/usr/bin/python3", &["-c", ECHO]);
    echo.says("listening", 20);
    let speaker = || {
        let mut command = net.on_stack("/usr/bin/python3");
        let mut child = command.args(["-c", PROGRAM, "198.18.0.1"]);
        child = child.stdin(Stdio::piped()).stdout(Stdio::piped());
        child.spawn().expect("python3 is there")
    };
    let mut speakers = [speaker(), speaker()];
    let said = |child: &mut Child| {
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("it is a pipe");
        BufReader::with_capacity(1, output).read_line(&mut line).expect("it is read");
        line
    };
    speakers.iter_mut().for_each(|child| assert_eq!(said(child), "idle\n"));
    let socket = format!("/run/atoll/{}.sock", net.name());
    let arguments = [&*program("idle_sessions.py"), &*socket, &IDLE.to_string(), "0"];
    let mut idle = Proc::start(Command::new("/usr/bin/python3").args(arguments), None);
    idle.says("attached", 60);
    for (round, speaker) in speakers.iter_mut().enumerate() {
        Victim { net: &net, kind: "replicas", index: 0 }.kill();
        speaker.stdin.as_mut().expect("it is a pipe").write_all(b"x").expect("it is there");
        assert_eq!(said(speaker), "heard\n", "{}", log(&net));
        let log = log(&net);
        let back = log.of("server_back");
        let later: Vec<u64> = back.iter().filter_map(|fields| fields["sessions_later"].as_u64()).collect();
        // The ledger names the sessions that have sent commands.
        let expected: Vec<u64> = (0..=round).map(|spoken| (IDLE + 2 - spoken) as u64).collect();
        assert_eq!(later, expected, "{log}");
    }
    until("all of them", 20, || {
        (net.atoll_says("status")["replicas"][0]["stats"]["sessions"].as_u64() == Some(IDLE as u64 + 2))
            .then_some(())
    });
    for mut speaker in speakers {
        drop(speaker.stdin.take());
        assert!(speaker.wait().is_ok_and(|status| status.success()));
    }
}

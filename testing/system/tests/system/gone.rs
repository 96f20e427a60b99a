//! What do programs hear when their stack goes with all of its processes, and do they serve again when a
//! stack of its name is up?

use atoll_system_tests::{Net, Proc, Stack, program, until};

use crate::recovery::signal;
use crate::servers::{fetch, start_nginx};

fn start(net: &Net, arguments: &[&str]) -> Proc {
    let program = program("gone.py");
    net.serve("/usr/bin/python3", &[&[&*program], arguments].concat())
}

/// Sends `text` to a port of the stack by `nc`, until there is an answer.
fn ask(net: &Net, protocol: &str, port: u16) {
    until(&format!("an answer from {protocol} port {port}"), 20, || {
        let text = net.scratch.file("question", "hello");
        let mut nc = net.on_client("nc.openbsd");
        nc.args([protocol, "-w", "1", Net::SERVER, &port.to_string()]);
        let mut asking = Proc::start(&mut nc, Some(std::fs::File::open(text).expect("just written")));
        asking.end(10);
        (asking.output() == "HELLO").then_some(())
    });
}

/// Returns the processes that a process has started.
fn children(pid: u32) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// Lets the stack go by `end` under a program that sleeps in every call there is, and come back.
fn sleepers(arguments: &[&str], connecting: &str, end: impl Fn(&Net)) {
    let net = Net::new(Stack::Atoll);
    let mut server = start(&net, &[&["serve"], arguments].concat());
    server.says("listening", 20);
    let mut holding = net.client("/usr/bin/python3", &[&program("gone.py"), "hold"]);
    holding.says("holding", 20);
    server.says("asleep", 20);
    end(&net);
    // The sleepers and the new socket, in any order.
    let said = until("all to hear it", 20, || {
        let said = server.output();
        (said.lines().skip_while(|line| *line != "asleep").count() > 10).then_some(said)
    });
    let mut heard: Vec<&str> = said.lines().skip_while(|line| *line != "asleep").skip(1).collect();
    heard.sort_unstable();
    let connecting = format!("connect {connecting}");
    assert_eq!(
        heard,
        [
            &*connecting,
            "epoll IN|ERR|HUP|RDHUP ECONNRESET",
            "nested epoll IN|ERR|HUP|RDHUP ECONNRESET",
            "new socket ENETDOWN",
            "poll IN|ERR|HUP ECONNRESET",
            "recv ECONNRESET",
            "recvfrom ENETDOWN",
            "select 1 ECONNRESET",
            "send ECONNRESET",
            "text b'last' ECONNRESET b''",
        ]
    );
    net.up_again();
    ask(&net, "-4", 8000);
    ask(&net, "-4", 8001);
    ask(&net, "-u", 8000);
    server.says("new connection b'hello'", 20);
    let errors = server.errors();
    let told: Vec<&str> = errors.lines().filter(|line| line.starts_with("libatoll: ")).collect();
    assert_eq!(told.len(), 2, "one line each, when it goes and when it is back: {errors}");
    assert!(told[0].contains("is gone: connections of this program are reset, and its sockets"), "{errors}");
    assert!(
        told[1].contains("is up again, and this program has joined it; sockets registered: 3"),
        "{errors}"
    );
    server.success(20);
}

#[test]
fn sleepers_hear_that_all_processes_are_killed_and_serve_on_the_next_stack() {
    sleepers(&[], "ENETDOWN", Net::kill_all);
}

#[test]
fn sleepers_hear_of_atoll_down_and_serve_on_the_next_stack() {
    sleepers(&[], "ECONNRESET", Net::down);
}

#[test]
fn a_forked_child_hears_what_its_parent_would() {
    sleepers(&["child"], "ENETDOWN", Net::kill_all);
}

#[test]
fn a_server_that_never_sleeps_hears_it_too() {
    let net = Net::new(Stack::Atoll);
    let mut server = start(&net, &["busy"]);
    server.says("listening", 20);
    let mut holding = net.client("nc.openbsd", &["-d", Net::SERVER, "8000"]);
    server.says("accepted", 20);
    net.kill_all();
    server.says("heard ECONNRESET", 20);
    net.up_again();
    until("the server to join the stack", 20, || server.errors().contains("has joined it").then_some(()));
    let mut asking = net.client("nc.openbsd", &["-d", Net::SERVER, "8000"]);
    asking.says("BUSY", 20);
    server.says("answered", 20);
    assert!(holding.runs(), "nobody has told the peer");
}

#[test]
fn nginx_and_its_workers_serve_again_and_are_reloaded() {
    let net = Net::new(Stack::Atoll);
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    for end in [Net::kill_all, Net::down] {
        end(&net);
        net.up_again();
        net.listens(&mut server, 80);
        assert_eq!(fetch(&net, 80, "/small"), b"tiny");
    }
    // The master has slept through both: it registers its listener for the new workers.
    let before = children(server.pid());
    signal("HUP", server.pid().into());
    until("new workers alone", 20, || {
        let now = children(server.pid());
        (!now.is_empty() && now.iter().all(|child| !before.contains(child))).then_some(())
    });
    until("an answer", 20, || (fetch(&net, 80, "/small") == b"tiny").then_some(()));
    assert!(server.runs(), "{}", server.report());
}

#[test]
fn a_program_that_may_not_join_again_says_why() {
    let net = Net::new(Stack::Atoll);
    let mut server = start(&net, &["user"]);
    server.says("listening", 20);
    net.kill_all();
    server.says("is gone", 20);
    net.up_again();
    server.says("cannot be joined again by this program: user 65534 may not use it", 20);
    assert!(server.runs(), "it waits");
}

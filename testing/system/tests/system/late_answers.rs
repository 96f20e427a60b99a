//! What happens if the supervisor answers late, or not at all? The thread that asks waits; the program's
//! other threads do not, because the replicas still serve their sockets.

use std::time::Duration;

use atoll_system_tests::{Net, Proc, Stack, alone, compiled, program};

use crate::full_ring::Stopped;
use crate::recovery::signal;

const ENOENT: u64 = 2;
/// The status of a program whose socket(2) fails.
const NO_SOCKET: u64 = 1;
const ENETDOWN: u64 = 100;

/// A program's report on one question: its result, its duration, and how long other threads waited.
struct Said {
    result: u64,
    took: u64,
    exchanges: u64,
    streams: u64,
    polls: u64,
    all: String,
}

/// Starts a program that exchanges messages with a peer, and the peer.
fn serving(net: &Net, what: &str) -> (Proc, Option<Proc>) {
    let program = compiled("asker");
    let mut asker = net.serve(&program, &[what, "7000"]);
    let peer = (what != "first").then(|| {
        asker.says("listening", 20);
        net.client(&program, &["peer", Net::SERVER, "7000"])
    });
    asker.says("serving", 20);
    (asker, peer)
}

fn outcome(mut asker: Proc, seconds: u64) -> Said {
    asker.says("polls", seconds);
    let all = asker.output();
    assert!(asker.end(10).success(), "{}", asker.report());
    let (_, line) = all.split_once("result ").expect("it says so");
    let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [result, took, exchanges, streams, polls] = numbers[..] else { panic!("five numbers: {line}") };
    Said { result, took, exchanges, streams, polls, all }
}

/// Stops the supervisor, and the guardian that would replace it.
fn stop_supervisor(net: &Net) -> Stopped {
    let status = net.atoll_says("status");
    let processes = ["guardian", "pid"].iter().filter_map(|name| status["stack"][*name].as_u64());
    Stopped::new(processes.filter(|pid| *pid != 0).collect())
}

/// Lets a program ask for `what` while the supervisor is stopped, until the program gives up or, with `Some`,
/// for this many seconds.
fn asked(net: &Net, what: &str, stands_still: Option<u64>) -> Said {
    let (asker, _peer) = serving(net, what);
    let stopped = stop_supervisor(net);
    signal("USR1", asker.pid().into());
    if let Some(seconds) = stands_still {
        std::thread::sleep(Duration::from_secs(seconds));
        drop(stopped);
        return outcome(asker, 20);
    }
    outcome(asker, 40)
}

/// Checks that other threads used their sockets while one waited.
fn goes_on(what: &str, said: &Said) {
    let Said { took, exchanges, streams, polls, .. } = *said;
    assert!(took >= 1500, "{what}: it was asked for, and nobody answered: {took} ms");
    assert!(streams < 1000 && polls < 1000, "{what}: others waited {streams} and {polls} ms");
    assert!(what == "first" || exchanges > 10, "{what}: {exchanges} exchanges in {took} ms");
}

#[test]
fn nobody_else_waits_while_a_thread_asks_for_a_port() {
    let net = Net::new(Stack::Atoll);
    for what in ["low", "share", "user"] {
        let said = asked(&net, what, Some(2));
        goes_on(what, &said);
        assert_eq!(said.result, 0, "{what}: it is answered when the supervisor goes on");
    }
    let said = asked(&net, "low", None);
    goes_on("low", &said);
    assert_eq!(said.result, ENETDOWN);
}

#[test]
fn nobody_else_waits_while_a_thread_forks() {
    let net = Net::new(Stack::Atoll);
    let said = asked(&net, "fork", Some(2));
    goes_on("fork", &said);
    assert_eq!(said.result, 0, "the child has what it needs when the supervisor goes on");
    let said = asked(&net, "fork", None);
    goes_on("fork", &said);
    assert_eq!(said.result, NO_SOCKET, "the child has no sockets, and not the kernel's either");
}

/// A process that forks waits for its replicas. One that does so without sleeping takes the processor from
/// whatever it waits for: on a busy machine a fork cost milliseconds of it.
#[test]
fn who_forks_while_replicas_are_late_sleeps() {
    // A replica that stands still is left alone.
    let net = Net::with_settings(Stack::Atoll, "TS2LS2CM2", "[recovery]\nhang_ms = 0\n");
    let mut forks = net.serve("/usr/bin/python3", &[&program("forks.py"), "once"]);
    forks.says("listening", 20);
    let stopped = Stopped::new(net.replicas());
    signal("USR1", forks.pid().into());
    std::thread::sleep(Duration::from_secs(1));
    drop(stopped);
    forks.says("took", 20);
    let said = forks.output();
    let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [took, used] = numbers[..] else { panic!("two numbers: {said}") };
    assert!(took >= 700, "it has waited for its replicas: {said}");
    assert!(used < 150, "it has slept: {said}");
    assert!(forks.end(10).success(), "{}", forks.report());
}

#[test]
fn nobody_else_waits_while_a_thread_executes_a_program() {
    let net = Net::new(Stack::Atoll);
    for (what, result) in [("exec", ENOENT), ("spawn", 0)] {
        let said = asked(&net, what, Some(2));
        goes_on(what, &said);
        assert_eq!(said.result, result, "{what}");
    }
}

#[test]
fn nobody_else_waits_while_a_thread_makes_the_first_socket() {
    let net = Net::new(Stack::Atoll);
    let said = asked(&net, "first", Some(2));
    goes_on("first", &said);
    assert_eq!(said.result, 0);
}

#[test]
fn a_question_under_way_does_not_harm_a_child() {
    let net = Net::new(Stack::Atoll);
    let said = asked(&net, "fork-while-asking", Some(2));
    goes_on("fork-while-asking", &said);
    assert_eq!(said.result, 0, "the thread has its port, and the child its socket");
}

#[test]
fn children_come_while_other_threads_ask() {
    let _alone = alone();
    let net = Net::new(Stack::Atoll);
    let (asker, _peer) = serving(&net, "storm");
    signal("USR1", asker.pid().into());
    let said = outcome(asker, 30);
    assert_eq!(said.result, 0, "no question fails, of a thread or a child: {}", said.all);
    assert!(said.streams < 1000 && said.polls < 1000, "others waited {} and {} ms", said.streams, said.polls);
}

#[test]
fn an_answer_for_a_socket_that_was_closed_meanwhile_is_for_no_other() {
    let net = Net::new(Stack::Atoll);
    let said = asked(&net, "close-while-asking", Some(2));
    goes_on("close-while-asking", &said);
    assert_eq!(said.result, 0, "the next socket of that number is as new, and the port is free");
}

#[test]
fn a_child_has_the_sockets_that_there_are_when_it_begins() {
    let net = Net::new(Stack::Atoll);
    let said = asked(&net, "change-while-forking", Some(2));
    goes_on("change-while-forking", &said);
    assert_eq!(said.result, 0, "it listens where another thread began to, and not where one has ended");
}

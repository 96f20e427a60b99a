//! Is it said by which way a program is served?

use std::process::Command;

use atoll_system_tests::{Net, NoNet, Proc, Stack, atoll, program, until};

#[test]
fn a_program_says_it_at_its_start_if_it_is_asked() {
    let no_net = NoNet::new();
    let start = |option: &[&str]| {
        let mut run = Command::new(atoll());
        run.arg("run").args(option).args(["--private", "--", "sh", "-c", "env true"]);
        let mut started = Proc::start(&mut no_net.without_network(&run), None);
        assert!(started.end(20).success(), "{}", started.report());
        started.errors()
    };
    let said = start(&["-v"]);
    for name in ["sh", "env", "true"] {
        let line = said.lines().find(|line| line.starts_with(&format!("libatoll: {name} (")));
        let line = line.unwrap_or_else(|| panic!("{name} has said nothing: {said}"));
        let way = "by the C library's functions, and other system calls by Syscall User Dispatch";
        assert!(line.ends_with(&format!(") is served {way}")), "{line}");
    }
    assert_eq!(start(&[]), "");
}

#[test]
fn status_says_it_of_each_session() {
    let net = Net::new(Stack::Atoll);
    let mut server = net.serve("/usr/bin/python3", &[&program("gone.py"), "busy"]);
    server.says("listening", 20);
    until("the way of its session", 20, || {
        (net.atoll_says("status")["sessions"][0]["interception"] == "dispatch").then_some(())
    });
}

/// The library's own system calls are not dispatched to itself: each that is takes a signal, and preparing a
/// fork makes about a hundred.
#[test]
fn preparing_a_fork_takes_no_signals() {
    let net = Net::new(Stack::Atoll);
    let signals = |children: &str| {
        let trace = ["-f", "-e", "trace=none", "-e", "signal=SIGSYS", "/usr/bin/python3"];
        let mut traced =
            net.serve("strace", &[&trace[..], &[&program("forks.py"), "count", children]].concat());
        assert!(traced.end(60).success(), "{}", traced.report());
        traced.errors().matches("SIGSYS {").count()
    };
    let (none, some) = (signals("0"), signals("40"));
    assert!(none > 0, "the program's start takes some, and strace shows them");
    assert!(some < none + 40, "{none} signals without children, {some} with 40 of them");
}

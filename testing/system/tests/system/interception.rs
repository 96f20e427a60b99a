//! Is it said by which way a program is served?

use std::process::Command;

use atoll_system_tests::{Net, NoNet, Proc, Stack, atoll, compiled, compiled_statically, program, until};

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
        let session = &net.atoll_says("status")["sessions"][0];
        (session["interception"] == "symbols" && session["calls_by_trap"] == 0).then_some(())
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
    assert!(none > 0, "an instruction of the program's own takes one, and strace shows it");
    // A child may take one or two of its own. Without what is tested each fork took 38.
    assert!(some < none + 120, "{none} signals without children, {some} with 40 of them");
}

/// What status says of `programs/ways.c`, built in a way: the way, and its calls by instructions and traps.
fn ways(built: &str, argument: &str) -> (String, u64, u64) {
    let net = Net::new(Stack::Atoll);
    let mut running = net.serve(built, &[argument]);
    running.says("done", 20);
    until("its calls are counted", 20, || {
        let session = &net.atoll_says("status")["sessions"][0];
        let count = |name: &str| session[name].as_u64().expect("a count");
        let way = session["interception"].as_str().expect("a word").to_owned();
        // They are published when the program sleeps.
        (count("calls") >= 21).then(|| (way, count("calls_by_instruction"), count("calls_by_trap")))
    })
}

#[test]
fn status_counts_the_socket_calls_that_came_by_an_instruction() {
    let (dynamic, fixed) = (compiled("ways"), compiled_statically("ways"));
    assert_eq!(ways(&dynamic, "functions"), ("symbols".to_owned(), 0, 0));
    assert_eq!(ways(&dynamic, "instructions"), ("dispatch".to_owned(), 21, 21));
    // All calls of a static program come by instructions, poll as well. The compiler's code decides which are
    // rewritten.
    let (_, by_instruction, by_trap) = ways(&fixed, "functions");
    assert_eq!(by_instruction, 22);
    assert!(by_trap < 22, "the C library's functions are rewritten: {by_trap}");
}

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

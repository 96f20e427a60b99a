//! What happens to more commands than a stopped stack takes? All take effect later, and the program's other
//! threads continue.

use std::process::Command;

use atoll_system_tests::{Net, Stack, program};

use crate::recovery::signal;

/// More sockets than a ring has room for commands; closing a socket takes two commands.
const COUNT: &str = "5000";

#[test]
fn what_a_program_says_while_its_stack_stands_still_counts_later() {
    let net = Net::with(Stack::Atoll, "TS1LS1CM1", None);
    let mut closes = net.serve("/usr/bin/python3", &[&program("full_ring.py"), "close", COUNT, "10000"]);
    closes.says("bound", 60);
    let status = net.atoll_says("status");
    let of_stack = ["guardian", "pid", "standby"].map(|name| status["stack"][name].as_u64());
    let replicas =
        status["replicas"].as_array().expect("a list").iter().map(|replica| replica["pid"].as_u64());
    let processes: Vec<u64> =
        of_stack.into_iter().chain(replicas).flatten().filter(|pid| *pid != 0).collect();
    assert!(processes.len() >= 3, "guardian, supervisor and replica: {status}");
    let stopped = Stopped::new(processes);
    signal("USR1", closes.pid().into());
    // No call waits for ever.
    closes.says(" ms\n", 20);
    closes.says("not executed", 10);
    drop(stopped);
    let said = closes.output();
    let (_, waited) = said.split_once("others waited ").expect("it says so");
    let waited: u64 = waited.split(' ').next().and_then(|ms| ms.parse().ok()).expect("milliseconds");
    assert!(waited < 2000, "{said}");
    // A port whose release was lost would be in use for ever.
    net.serve("/usr/bin/python3", &[&program("full_ring.py"), "bind", COUNT, "10000"]).success(60);
    assert!(closes.runs());
}

#[test]
fn who_asks_a_supervisor_that_stands_still_holds_up_nobody() {
    let net = Net::new(Stack::Atoll);
    let mut asks = net.serve("/usr/bin/python3", &[&program("full_ring.py"), "ask", "99", "20000"]);
    asks.says("bound", 60);
    let status = net.atoll_says("status");
    let supervisor = ["guardian", "pid"].iter().filter_map(|name| status["stack"][*name].as_u64());
    let stopped = Stopped::new(supervisor.filter(|pid| *pid != 0).collect());
    signal("USR1", asks.pid().into());
    std::thread::sleep(std::time::Duration::from_secs(2));
    drop(stopped);
    asks.says("others waited", 20);
    let said = asks.output();
    assert!(said.contains("got it after"), "it is answered when the supervisor goes on: {said}");
    let times: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [asked, waited] = times[..] else { panic!("two times: {said}") };
    assert!(asked >= 1000 && waited < 1000, "{said}");
}

/// Processes that stay stopped, with those that would replace them.
pub struct Stopped(Vec<u64>);

impl Stopped {
    /// Stops the processes until this is dropped.
    pub fn new(processes: Vec<u64>) -> Stopped {
        processes.iter().for_each(|pid| signal("STOP", *pid));
        Stopped(processes)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // Those that watch the others come last: who went on first would replace what is still stopped, and
        // its number would be nobody's. A process that was replaced all the same needs no signal.
        for pid in self.0.iter().rev() {
            let _ = Command::new("kill").args(["-s", "CONT", &pid.to_string()]).status();
        }
    }
}

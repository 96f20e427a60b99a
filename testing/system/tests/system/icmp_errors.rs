//! Do programs hear of errors of ICMP and ICMPv6 as on the kernel, code by code?
//!
//! `programs/icmp_errors.py` plays two hosts at the client's end, whose every packet draws the error that its
//! destination port names, and prints what sockets that send there hear.

use atoll_system_tests::{Net, Proc, Stack, program, usual_configuration};

/// Runs a question on a stack whose network has these hosts.
fn heard(stack: Stack, configuration: &str, question: &str, times: &str) -> String {
    let net = Net::with(stack, configuration, None);
    if stack == Stack::Kernel {
        let mut allow = net.on_server("sh");
        allow.args(["-c", "echo 0 2147483647 >/proc/sys/net/ipv4/ping_group_range"]);
        Proc::start(&mut allow, None).success(10);
    }
    let interface = net.client_interface();
    let script = program("icmp_errors.py");
    let mut hosts = net.client("/usr/bin/python3", &[&script, "answer", &interface]);
    hosts.says("ready", 20);
    net.serve("/usr/bin/python3", &[&script, "ask", question, times]).success(120)
}

/// Asks again, and more slowly, for the answers that differ: on a busy machine some are late, each time
/// others.
fn compare(question: &str) {
    let mut differing: Option<Vec<usize>> = None;
    let mut shown = Vec::new();
    for times in ["1", "4", "10"] {
        let kernel = heard(Stack::Kernel, &usual_configuration(), question, times);
        assert!(!kernel.is_empty(), "the question shows nothing");
        let atoll = heard(Stack::Atoll, &usual_configuration(), question, times);
        assert_eq!(
            kernel.lines().count(),
            atoll.lines().count(),
            "on the kernel:\n{kernel}\non Atoll:\n{atoll}"
        );
        let both: Vec<(&str, &str)> = kernel.lines().zip(atoll.lines()).collect();
        let before = differing.take().unwrap_or_else(|| (0..both.len()).collect());
        let still: Vec<usize> = before.into_iter().filter(|at| both[*at].0 != both[*at].1).collect();
        if still.is_empty() {
            return;
        }
        shown.extend(still.iter().map(|at| format!("{times}: {:#?}", both[*at])));
        differing = Some(still);
    }
    panic!("on the kernel and on Atoll: {}", shown.join("\n"));
}

#[test]
fn datagram_sockets_hear_what_they_hear_on_the_kernel() {
    compare("udp");
}

#[test]
fn each_family_has_its_option() {
    compare("mapped");
}

#[test]
fn connections_fail_as_on_the_kernel() {
    compare("tcp");
}

#[test]
fn sockets_of_icmp_hear_what_they_hear_on_the_kernel() {
    compare("ping");
}

#[test]
fn an_error_is_heard_before_a_reply_that_waits() {
    compare("behind");
}

#[test]
fn raw_sockets_hear_what_they_hear_on_the_kernel() {
    compare("raw");
}

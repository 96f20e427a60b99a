//! Do sockets that are bound to a network device behave as the kernel's do (`SO_BINDTODEVICE`,
//! `SO_BINDTOIFINDEX`)?
//!
//! `programs/devices.py` holds one behaviour per name and prints what happens. Each runs on the kernel and on
//! a stack, whose link is called eth0 on both, and must print the same lines.

use atoll_system_tests::{Net, Proc, Stack, program, until};

use crate::recovery::Victim;

on_both_stacks![what_comes_from_outside_reaches_the_link, a_device_outlives_its_replica];

macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        $(#[test] fn $case() { behaves_as_on_the_kernel(stringify!($case)) })*

        #[test]
        fn every_case_has_its_test() {
            let mut list = std::process::Command::new(program("devices.py"));
            let list = Proc::start(list.arg("--list"), None).success(10);
            assert_eq!(list.split_whitespace().collect::<Vec<_>>(), [$(stringify!($case)),*]);
        }
    };
}

cases! {
    values_and_errors, another_device_needs_a_capability, the_device_is_inherited,
    connections_reach_listeners_on_their_device, connections_of_ipv6, connections_that_lead_nowhere,
    ports_are_apart_on_each_device, a_listener_on_a_device_comes_first, a_device_that_is_set_later,
    a_connection_whose_device_leads_elsewhere, datagrams_reach_sockets_on_their_device,
    datagrams_that_lead_nowhere, groups_and_devices, echoes_and_devices
}

/// An address on the link that no host has.
const NOBODY: &str = "198.18.0.77";

fn behaves_as_on_the_kernel(case: &str) {
    let [kernel, atoll] = [Stack::Kernel, Stack::Atoll].map(|stack| {
        let net = Net::new(stack);
        if stack == Stack::Kernel {
            let allow = "echo 0 2147483647 >/proc/sys/net/ipv4/ping_group_range";
            Proc::start(net.on_server("sh").args(["-c", allow]), None).success(10);
        }
        let mut run = net.on_stack(&program("devices.py"));
        Proc::start(run.args([case, Net::SERVER, NOBODY, Net::SERVER6]), None).success(120)
    });
    assert!(!kernel.is_empty(), "it prints something");
    let differ = kernel.lines().zip(atoll.lines()).filter(|(ours, theirs)| ours != theirs);
    let differ: Vec<_> = differ.collect();
    assert!(differ.is_empty() && kernel == atoll, "as (kernel, Atoll): {differ:#?}");
}

fn what_comes_from_outside_reaches_the_link(stack: Stack) {
    let net = Net::new(stack);
    let mut server = net.serve(&program("devices.py"), &["serve"]);
    server.says("ready", 10);
    let said = Proc::start(net.on_client(&program("devices.py")).args(["outside", Net::SERVER]), None);
    let lines = [
        "7001 ok b'hello'",
        "7001 b'hello'",
        "7002 ECONNREFUSED b''",
        "7002 ECONNREFUSED",
        "7003 ok b'hello'",
        "7003 b'hello'",
    ];
    assert_eq!(said.success(60).lines().collect::<Vec<_>>(), lines);
}

/// The devices of ports, listeners and datagram sockets are among what a successor learns from the ledger,
/// and from the programs.
fn a_device_outlives_its_replica(stack: Stack) {
    let net = Net::new(stack);
    let mut server = net.serve(&program("devices.py"), &["serve"]);
    server.says("ready", 10);
    if stack == Stack::Atoll {
        for index in 0..net.replicas().len() {
            Victim { net: &net, kind: "replicas", index }.kill();
        }
    }
    let outside = |net: &Net| {
        let mut ask = net.on_client(&program("devices.py"));
        Proc::start(ask.args(["outside", Net::SERVER]), None).success(60)
    };
    let refused = |said: &str| said.lines().filter(|line| line.contains("ECONNREFUSED")).count();
    until("both ports of the link answer, and those of the loopback do not", 20, || {
        let said = outside(&net);
        (refused(&said) == 2 && said.matches("b'hello'").count() == 4).then_some(())
    });
}

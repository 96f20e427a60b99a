//! Do multicast groups work between hosts: are memberships reported to the network, and does every member
//! receive what is sent?

use atoll_system_tests::{Net, Proc, Stack, program, until};

on_both_stacks![members_hear_each_other_and_are_reported, members_of_a_group_of_ipv6];

/// `group.py` is a member that prints what it receives. The kernel's side sees the reports, and is a member
/// itself.
fn members_hear_each_other_and_are_reported(stack: Stack) {
    let net = Net::new(stack);
    let interface = net.client_interface();
    let mut ip = net.on_client("ip");
    ip.args(["route", "add", "224.0.0.0/4", "dev", &interface]);
    Proc::start(&mut ip, None).success(10);
    let script = program("group.py");
    let mut router = net.client("/usr/bin/python3", &[&script, "watch", &interface]);
    router.says("watching", 10);
    let member = |own: &str| [script.clone(), "listen".into(), own.into()];
    let mut members: Vec<Proc> = (0..3)
        .map(|_| Proc::start(net.on_stack("/usr/bin/python3").args(member(Net::SERVER)), None))
        .collect();
    let mut other = Proc::start(net.on_client("/usr/bin/python3").args(member("198.18.0.1")), None);
    for member in members.iter_mut().chain([&mut other]) {
        member.says("joined", 10);
    }
    router.says("joined 239.1.2.3 by 198.18.0.2", 10);
    // Both ends send, and all four members receive both.
    let words = [
        ("from-the-client", net.on_client("/usr/bin/python3"), "198.18.0.1"),
        ("from-the-stack", net.on_stack("/usr/bin/python3"), Net::SERVER),
    ];
    for (word, mut command, own) in words {
        Proc::start(command.args([&*script, "say", own, word]), None).success(10);
        for member in members.iter_mut().chain([&mut other]) {
            member.says(word, 10);
        }
    }
    // A router queries, and gets a report.
    let mut ask = net.client("/usr/bin/python3", &[&script, "ask", &interface]);
    assert!(ask.end(10).success(), "{}", ask.report());
    router.says("is in 239.1.2.3 by 198.18.0.2", 10);
    for mut member in members {
        member.kill();
    }
    router.says("left 239.1.2.3 by 198.18.0.2", 10);
    if stack == Stack::Atoll {
        until("dropped frames of a group that nobody is in", 10, || {
            Proc::start(
                net.on_client("/usr/bin/python3").args([&*script, "say", "198.18.0.1", "anybody?"]),
                None,
            )
            .success(10);
            let status = net.atoll_says("status");
            let servers =
                ["replicas", "ip_servers"].iter().filter_map(|kind| status[kind].as_array()).flatten();
            let mut dropped = servers.map(|server| server["stats"]["frames_dropped"].as_u64());
            dropped.any(|frames| frames > Some(0)).then_some(())
        });
    }
}

/// Members are reported over IPv6, too, with a datagram in fragments, and with a router that speaks the older
/// version.
fn members_of_a_group_of_ipv6(stack: Stack) {
    let net = Net::new(stack);
    let interface = net.client_interface();
    let script = program("group.py");
    let mut router = net.client("/usr/bin/python3", &["-u", &script, "watch6", &interface]);
    router.says("watching", 10);
    let own = until("link-local addresses at both ends", 20, || {
        let said = net.client("ip", &["-6", "addr", "show", "dev", &interface, "scope", "link"]).success(10);
        let is_ready = said.contains("fe80:") && !said.contains("tentative");
        net.own_v6().into_iter().find(|own| own.starts_with("fe80:")).filter(|_| is_ready)
    });
    let member = [&*script, "listen6"];
    let mut members: Vec<Proc> =
        (0..3).map(|_| Proc::start(net.on_stack("/usr/bin/python3").args(member), None)).collect();
    let mut other = Proc::start(net.on_client("/usr/bin/python3").args(member), None);
    for member in members.iter_mut().chain([&mut other]) {
        member.says("joined", 10);
    }
    router.says(&format!("joined ff15::1:2 by {own}"), 10);
    let long = "long-word".repeat(300);
    let words = [
        ("from-the-client", net.on_client("/usr/bin/python3"), "2001:db8::1"),
        ("from-the-stack", net.on_stack("/usr/bin/python3"), Net::SERVER6),
        (&*long, net.on_stack("/usr/bin/python3"), Net::SERVER6),
    ];
    for (word, mut command, own) in words {
        Proc::start(command.args([&*script, "say6", own, word]), None).success(10);
        for member in members.iter_mut().chain([&mut other]) {
            member.says(word, 10);
        }
    }
    let ask = |version| net.client("/usr/bin/python3", &[&script, "ask6", &interface, version]).success(10);
    ask("2");
    router.says(&format!("is in ff15::1:2 by {own}"), 10);
    // From now on the router is taken for one of version 1, for which the report of one member is enough.
    other.kill();
    ask("1");
    router.says("reported ff15::1:2", 10);
    for mut member in members {
        member.kill();
    }
    router.says(&format!("done ff15::1:2 by {own}"), 10);
}

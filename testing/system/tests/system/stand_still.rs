//! What happens if a stopped program's sockets have more events than its event rings hold? The program finds
//! the missing ones when it continues.

use atoll_system_tests::{Net, Stack, program};

on_both_stacks![
    whoever_came_while_a_server_stood_still_is_served,
    calls_are_answered_though_nothing_was_taken_for_long,
];

fn whoever_came_while_a_server_stood_still_is_served(stack: Stack) {
    let net = Net::new(stack);
    let mut server = net.serve("/usr/bin/python3", &[&program("echo.py"), "serve", "7000"]);
    server.says("listening", 20);
    net.listens(&mut server, 7000);
    let pid = server.pid().to_string();
    let client =
        net.client("/usr/bin/python3", &[&program("stand_still.py"), "stop", &pid, Net::SERVER, "7000"]);
    assert!(client.success(90).contains("served"));
    has_lost_events(&net, stack);
}

fn calls_are_answered_though_nothing_was_taken_for_long(stack: Stack) {
    let net = Net::new(stack);
    let mut server = net.serve("/usr/bin/python3", &[&program("stand_still.py"), "serve", "7000"]);
    server.says("listening", 20);
    let pid = server.pid().to_string();
    let client =
        net.client("/usr/bin/python3", &[&program("stand_still.py"), "fill", &pid, Net::SERVER, "7000"]);
    server.says("answered 1 1 ", 60);
    assert!(client.success(90).contains("served"));
    has_lost_events(&net, stack);
}

/// Checks that events were lost, without which the test shows nothing.
fn has_lost_events(net: &Net, stack: Stack) {
    if stack == Stack::Atoll {
        let status = net.atoll_says("status");
        let replicas = status["replicas"].as_array().expect("replicas").iter();
        let lost: u64 = replicas.filter_map(|replica| replica["stats"]["event_overflows"].as_u64()).sum();
        assert!(lost > 0, "no event was lost: {status}");
    }
}

//! What happens if a stopped program's sockets have more events than its event rings hold? The program finds
//! the missing ones when it continues.

use atoll_system_tests::{Net, Proc, Stack, program, until};

on_both_stacks![
    whoever_came_while_a_server_stood_still_is_served,
    calls_are_answered_though_nothing_was_taken_for_long,
];

fn whoever_came_while_a_server_stood_still_is_served(stack: Stack) {
    let net = Net::new(stack);
    let mut server = net.serve("/usr/bin/python3", &[&program("echo.py"), "serve", "7000"]);
    server.says("listening", 20);
    net.listens(&mut server, 7000);
    let client = fill(&net, stack, "stop", &server);
    assert!(client.success(90).contains("served"));
}

fn calls_are_answered_though_nothing_was_taken_for_long(stack: Stack) {
    let net = Net::new(stack);
    let enough = enough(&net);
    let mut server = net.serve("/usr/bin/python3", &[&program("stand_still.py"), "serve", "7000", &enough]);
    server.says("listening", 20);
    let client = fill(&net, stack, "fill", &server);
    server.says("answered 1 1 ", 60);
    assert!(client.success(90).contains("served"));
}

/// Returns the name of the file that tells the client that it has sent enough.
fn enough(net: &Net) -> String {
    net.scratch.path().join("enough").to_str().expect("a name").into()
}

/// Starts a client that sends until events are lost, without which the test shows nothing.
fn fill(net: &Net, stack: Stack, way: &str, server: &Proc) -> Proc {
    let (pid, enough) = (server.pid().to_string(), enough(net));
    let arguments = [&program("stand_still.py"), way, &pid, Net::SERVER, "7000", &enough];
    let mut client = net.client("/usr/bin/python3", &arguments);
    client.says("filled", 60);
    until("events to be lost", 60, || {
        let has_lost = || {
            let status = net.atoll_says("status");
            let replicas = status["replicas"].as_array().expect("replicas").iter();
            let lost: u64 = replicas.filter_map(|it| it["stats"]["event_overflows"].as_u64()).sum();
            lost > 0
        };
        (stack == Stack::Kernel || has_lost()).then_some(())
    });
    std::fs::write(&enough, "").expect("a file");
    client
}

//! What becomes of the connections of a program that is killed, in whatever state, at whatever instruction?

use atoll_system_tests::{Net, Stack, program, until};

on_both_stacks![connections_end_as_their_state_says];

/// The same on both stacks, down to the number of octets.
const ENDS: &str = "\
idle: FIN after 0
answered: FIN after 0
unread: RST after 0
unread after shutdown: FIN after 0
half closed by peer: FIN after 0
half closed: FIN after 0
half closed and unread: FIN after 0
linger 0: RST after 0
linger 0 inherited: RST after 0
linger 5: FIN after 0
unsent: FIN
unsent and unread: RST
made: FIN after 0
in the queue: RST after 0
in the queue with text: RST after 0
port: ECONNREFUSED
other port: ECONNREFUSED
";

fn connections_end_as_their_state_says(stack: Stack) {
    let net = Net::new(stack);
    let path = program("deaths.py");
    let mut victim = net.serve("/usr/bin/python3", &[&path, "victim", "9300", "198.18.0.1", "9400"]);
    victim.says("listening", 10);
    let mut watcher = net.client("/usr/bin/python3", &[&path, "watch", Net::SERVER, "9300", "9400"]);
    watcher.says("all there", 20);
    victim.says("ready", 20);
    victim.kill();
    let said = watcher.success(60);
    let ends = said.split_once("all there\n").expect("said before").1;
    assert_eq!(ends, ENDS, "{stack:?}");
    nothing_is_left(&net);
}

/// No connection, orphan, session or octet of a buffer.
fn nothing_is_left(net: &Net) {
    if net.stack == Stack::Kernel {
        return;
    }
    until("a stack without sessions, connections and buffers", 90, || {
        let status = net.atoll_says("status");
        let replicas = status["replicas"].as_array().expect("a list").clone();
        let left = |name: &str| replicas.iter().filter_map(|replica| replica["stats"][name].as_u64()).sum::<u64>();
        let counts = ["connections", "sessions", "buffer_bytes"].map(left);
        (counts == [0; 3] && status["sessions"].as_array().is_some_and(Vec::is_empty)).then_some(())
    });
}


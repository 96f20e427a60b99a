//! What happens to the connections of a program that is killed, in any state and at any instruction?

use atoll_system_tests::{Net, Proc, Stack, compiled, program, soak, until};

use crate::load::number;

on_both_stacks![
    connections_end_as_their_state_says,
    children_die_at_any_instruction_and_their_family_goes_on
];

/// The expected output on both stacks, including the numbers of octets.
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
    let mut watcher = net.client("/usr/bin/python3", &[&path, "watch", Net::SERVER, "9300", "9400"]);
    watcher.says("listening", 20);
    let mut victim = net.serve("/usr/bin/python3", &[&path, "victim", "9300", "198.18.0.1", "9400"]);
    watcher.says("all there", 20);
    victim.says("ready", 20);
    victim.kill();
    let said = watcher.success(60);
    let ends = said.split_once("all there\n").expect("said before").1;
    assert_eq!(ends, ENDS, "{stack:?}");
    nothing_is_left(&net);
}

/// A process is stopped under load, single-stepped into the library, and killed there. Its parent continues
/// with the connections that both had, and every octet arrives.
fn children_die_at_any_instruction_and_their_family_goes_on(stack: Stack) {
    let net = Net::new(stack);
    let replicas = net.replicas();
    let rounds = if soak() { 2000 } else { 200 };
    for seed in 1..=2 {
        let arguments = ["9500", "6", &(rounds / 2).to_string(), &seed.to_string()];
        let mut hunt = Proc::start(net.on_stack(&compiled("hunt")).args(arguments), None);
        hunt.says("listening", 20);
        let mut peer = net.client("/usr/bin/python3", &[&program("hunted.py"), Net::SERVER, "9500", "6"]);
        peer.says("connected", 20);
        let wrote = hunt_report(&mut hunt, &mut peer);
        let seen = peer.success(60);
        assert_eq!(number(&seen, "elder"), number(&wrote, "wrote"), "{seen}{wrote}");
        assert!(number(&seen, "served") > 0 && number(&seen, "victims") > 0, "{seen}");
        assert!(number(&wrote, "inside") > rounds * 5, "{wrote}");
        assert!(number(&seen, "mixed") == 0, "{seen}");
    }
    nothing_is_left(&net);
    assert_eq!(net.replicas(), replicas, "a replica has died");
}

/// Returns the hunter's report at its end. Fails at once if the peer ends before the hunter, because that
/// means an error.
fn hunt_report(hunt: &mut Proc, peer: &mut Proc) -> String {
    until("the end of the hunt", 600, || {
        assert!(peer.runs() || peer.errors().is_empty(), "{}", peer.report());
        (!hunt.runs()).then_some(())
    });
    assert!(hunt.end(1).success(), "{}", hunt.report());
    hunt.output()
}

/// Checks that no connection, orphan, session or octet of a buffer is left.
fn nothing_is_left(net: &Net) {
    if net.stack == Stack::Kernel {
        return;
    }
    until("a stack without sessions, connections and buffers", 90, || {
        let status = net.atoll_says("status");
        let replicas = status["replicas"].as_array().expect("a list").clone();
        let left =
            |name: &str| replicas.iter().filter_map(|replica| replica["stats"][name].as_u64()).sum::<u64>();
        let counts = ["connections", "sessions", "buffer_bytes"].map(left);
        (counts == [0; 3] && status["sessions"].as_array().is_some_and(Vec::is_empty)).then_some(())
    });
}

//! Do two stacks reach each other over shared memory, with no kernel in between?

use std::process::Command;

use atoll_system_tests::{NoNet, Proc, Scratch, atoll, fresh_name, program, until};

/// A stack whose link is another stack. Dropping it ends both.
struct Joined {
    names: [String; 2],
    no_net: NoNet,
}

const ADDRESSES: [&str; 2] = ["198.18.0.2", "198.18.0.3"];

impl Joined {
    fn new(configurations: [&str; 2]) -> Joined {
        let no_net = NoNet::new();
        let names = ["a", "b"].map(|end| fresh_name(&format!("joined-{end}-")));
        for (own, peer) in [(0, 1), (1, 0)] {
            let mut up = Command::new(atoll());
            up.args(["up", "--daemon", "--name", &names[own], "--peer", &names[peer]]);
            up.args(["--configuration", configurations[own], "--address", &format!("{}/24", ADDRESSES[own])]);
            Proc::start(&mut up, None).success(20);
        }
        Joined { names, no_net }
    }

    /// Starts a program on one of the two stacks, in a namespace where the kernel has no network.
    fn start(&self, end: usize, program: &str, arguments: &[&str]) -> Proc {
        let mut command = Command::new(atoll());
        command.args(["run", "--name", &self.names[end], "--", program]).args(arguments);
        Proc::start(&mut self.no_net.without_network(&command), None)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new(atoll()).args(["down", name]).status();
        }
    }
}

fn serves(joined: &Joined) {
    let scratch = Scratch::new();
    scratch.file("megabyte", crate::servers::megabyte());
    let folder = scratch.path().to_string_lossy().into_owned();
    let mut server = joined.start(0, "/usr/bin/python3", &[&program("asyncio_server.py"), "8000", &folder]);
    let copy = scratch.path().join("copy").to_string_lossy().into_owned();
    let url = format!("http://{}:8000/megabyte", ADDRESSES[0]);
    for _ in 0..5 {
        until("the server to listen", 20, || {
            assert!(server.runs(), "{}", server.report());
            joined
                .start(1, "curl", &["-sS", "--fail", "--max-time", "10", "-o", &copy, &url])
                .end(15)
                .success()
                .then_some(())
        });
        assert_eq!(std::fs::read(&copy).expect("curl wrote it"), crate::servers::megabyte());
    }
}

#[test]
fn programs_of_two_stacks_reach_each_other() {
    serves(&Joined::new(["TS2LS2CM2", "TS2LS2CM2"]));
}

/// A frame that arrives at a replica without its flow is passed to the owner.
#[test]
fn the_stacks_may_differ() {
    serves(&Joined::new(["TS3LS3CM3", "TS1LS1CM1"]));
}

/// Stack `a` hosts the link; the other one may end and start again.
#[test]
fn a_stack_may_come_back() {
    let joined = Joined::new(["TS1LS1CM1", "TS2LS2CM2"]);
    serves(&joined);
    let mut down = Command::new(atoll());
    Proc::start(down.args(["down", &joined.names[1]]), None).success(20);
    let mut up = Command::new(atoll());
    up.args(["up", "--daemon", "--name", &joined.names[1], "--peer", &joined.names[0]]);
    up.args(["--address", &format!("{}/24", ADDRESSES[1])]);
    Proc::start(&mut up, None).success(20);
    serves(&joined);
}

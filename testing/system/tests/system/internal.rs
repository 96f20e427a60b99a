//! Do programs on one machine reach each other inside a stack, without the kernel?

use atoll_system_tests::{Net, NoNet, Proc, Scratch, Stack, atoll, program};

use std::process::Command;

#[test]
fn a_private_stack_has_a_loopback() {
    private_loopback(Stack::Kernel);
    private_loopback(Stack::Atoll);
}

/// A private stack has one process tree: a server in the background and a client in front of it.
fn private_loopback(stack: Stack) {
    let no_net = NoNet::new();
    let mut both = Command::new("sh");
    let script = "cd \"$1\"; echo inside >page; /usr/bin/python3 -m http.server --bind 127.0.0.1 8000 \
                  >/dev/null 2>&1 & for try in 1 2 3 4 5 6 7 8 9 10; do \
                      curl -sS --max-time 5 http://127.0.0.1:8000/page 2>/dev/null && break; sleep 0.3; \
                  done; kill $!";
    let scratch = Scratch::new();
    both.args(["-c", script, "sh"]).arg(scratch.path());
    let said = Proc::start(&mut no_net.on(stack, &both), None).success(30);
    assert_eq!(said, "inside\n", "{stack:?}");
}

/// Two programs of one named stack reach each other by its address and by the loopback.
#[test]
fn programs_of_one_stack_reach_each_other() {
    for stack in [Stack::Kernel, Stack::Atoll] {
        let net = Net::new(stack);
        net.scratch.file("page", "inside");
        let folder = net.scratch.path().to_string_lossy().into_owned();
        let mut server = net.serve("/usr/bin/python3", &[&program("asyncio_server.py"), "8000", &folder]);
        net.listens(&mut server, 8000);
        for address in [Net::SERVER, "127.0.0.1"] {
            let url = format!("http://{address}:8000/page");
            assert_eq!(
                net.serve("curl", &["-sS", "--max-time", "10", &url]).success(15),
                "inside",
                "{stack:?} {address}"
            );
        }
    }
}

/// A socket that leaked to the kernel's stack would be served there. No socket may listen in the namespace
/// itself.
#[test]
fn a_server_on_atoll_is_not_on_the_kernel() {
    let net = Net::new(Stack::Atoll);
    let folder = net.scratch.path().to_string_lossy().into_owned();
    let mut server = net.serve("/usr/bin/python3", &[&program("asyncio_server.py"), "8000", &folder]);
    net.listens(&mut server, 8000);
    let listeners =
        std::fs::read_to_string(format!("/proc/{}/net/tcp", server.pid())).expect("the server runs");
    assert_eq!(listeners.lines().count(), 1, "the kernel has sockets:\n{listeners}");
}

/// Forty senders share 64 KiB for all their send buffers. A sender that finds no memory is woken when there
/// is some.
#[test]
fn little_memory_is_shared() {
    let no_net = NoNet::new();
    let scratch = Scratch::new();
    let config = scratch.file("small.toml", "[sessions]\nsend_log2 = 16\nreceive_log2 = 22\n");
    let crowd = program("crowd.py");
    let mut on_kernel = Command::new("/usr/bin/python3");
    on_kernel.arg(&crowd);
    let mut on_atoll = Command::new(atoll());
    on_atoll.args(["run", "--config", &config, "--", "/usr/bin/python3", &crowd]);
    for command in [&on_kernel, &on_atoll] {
        assert_eq!(
            Proc::start(&mut no_net.without_network(command), None).success(60),
            "all are whole\nall are whole again\n"
        );
    }
}

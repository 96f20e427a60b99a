//! Programs that limit their address space (RLIMIT_AS) have sockets, and read back the limit that they set,
//! whatever the library maps.

use std::process::Command;

use atoll_system_tests::{Net, Proc, Stack, program};

on_both_stacks![before, after, heirs, receives, nobody, locked, curl_with_a_limit_of_60_mib];

/// Returns the output of a case of `programs/address_space.py` on a stack, or on the kernel.
fn told(stack: Stack, case: &str) -> String {
    Proc::start(&mut on(stack, &["/usr/bin/python3", &program("address_space.py"), case]), None).success(60)
}

/// Returns a command on a private stack, or on the kernel's loopback.
fn on(stack: Stack, words: &[&str]) -> Command {
    let net = atoll_system_tests::NoNet::new();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    net.on(stack, &command)
}

fn before(stack: Stack) {
    assert_eq!(told(stack, "before"), "[256, 256] exchanged\n100 MiB fits 250 MiB ENOMEM\n");
}

fn after(stack: Stack) {
    let expected = "[256, 300] exchanged\n100 MiB fits 260 MiB ENOMEM\nsoft above hard: EINVAL\n\
                    [300, 300] 300 300\n";
    assert_eq!(told(stack, "after"), expected);
}

fn heirs(stack: Stack) {
    let child = "child [256, 300] exchanged ENOMEM\n0\n";
    let heir = "heir [256, 300] exchanged ENOMEM\nchild [256, 300] exchanged\n0\n";
    let expected = format!(
        "{child}{child}{child}parent [256, 300] exchanged ENOMEM\n{heir}parent [256, 300] exchanged\n\
         sh 262144\n{heir}"
    );
    assert_eq!(told(stack, "heirs"), expected);
}

fn receives(stack: Stack) {
    let expected = "receiver [256, 256] exchanged exchanged ENOMEM\n0\n";
    assert_eq!(told(stack, "receives"), expected);
}

fn nobody(stack: Stack) {
    let expected = "[200, 280] exchanged\n[280, 280]\nmore than the hard limit: EPERM [280, 280]\n";
    assert_eq!(told(stack, "nobody"), expected);
}

fn locked(stack: Stack) {
    assert_eq!(told(stack, "locked"), "0 exchanged\nat most 300 MiB\n");
}

fn curl_with_a_limit_of_60_mib(stack: Stack) {
    let net = Net::new(stack);
    let mut server = Proc::start(
        net.on_client("/usr/bin/python3").args(["-u", "-m", "http.server", "8000", "--bind", "0.0.0.0"]),
        None,
    );
    server.says("Serving", 10);
    let fetch = "ulimit -v 61440; curl -sS -o /dev/null -w '%{http_code}' http://198.18.0.1:8000/";
    assert_eq!(net.serve("/bin/sh", &["-c", fetch]).success(30), "200");
}

/// Where nothing can be mapped, the first socket(2) fails, and one line says why.
#[test]
fn no_address_space_is_told() {
    let mut command = on(Stack::Atoll, &["/usr/bin/python3", &program("address_space.py"), "none_left"]);
    let mut program = Proc::start(&mut command, None);
    program.end(60);
    assert_eq!(program.output(), "ENOMEM\n");
    let why = "there is no memory or address space for its session (ulimit -v)";
    assert!(program.errors().contains(why), "{}", program.errors());
}

//! Does any socket of a program on a stack reach the kernel's network, unless that was asked for?

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};

use atoll_system_tests::{Net, NoNet, Proc, Scratch, Stack, compiled, compiled_apart, compiled_statically};

/// Tries what a stack does not serve, and prints the result of each as one word a line.
const TRIES: &str = "import errno, socket, sys
def attempt(what, call, *arguments):
    try: call(*arguments); print(what, 'works')
    except OSError as error: print(what, errno.errorcode[error.errno])
udp = lambda: socket.socket(type=socket.SOCK_DGRAM)
attempt('bind', socket.socket().bind, (sys.argv[1], 0))
attempt('bind udp', udp().bind, (sys.argv[1], 0))
attempt('bind v6', socket.socket(socket.AF_INET6).bind, ('2001:db8:ffff::1', 0))
again = socket.socket()
attempt('connect', again.connect, ('203.0.113.1', 9))
attempt('connect again', again.connect, ('203.0.113.1', 9))
attempt('connect v6', socket.socket(socket.AF_INET6).connect, ('2001:db8:ffff::1', 9))
attempt('connect udp', udp().connect, ('203.0.113.1', 9))
attempt('sendto', udp().sendto, b'x', ('203.0.113.1', 9))
attempt('raw', socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
attempt('ping', socket.socket, socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
attempt('multipath', socket.socket, socket.AF_INET, socket.SOCK_STREAM, 262)
attempt('loopback', socket.socket().connect, ('127.0.0.1', int(sys.argv[2])))
";

/// The results by default: no address but the stack's, and no other kind of socket.
const CLOSED: &str = "bind EADDRNOTAVAIL
bind udp EADDRNOTAVAIL
bind v6 EADDRNOTAVAIL
connect ENETUNREACH
connect again ENETUNREACH
connect v6 ENETUNREACH
connect udp ENETUNREACH
sendto ENETUNREACH
raw EPERM
ping works
multipath EPROTONOSUPPORT
loopback ECONNREFUSED
";

/// An address of the kernel, in the namespace where the programs run.
const KERNELS: &str = "192.0.2.9";

/// Runs the attempts on a private stack, where a server of the kernel listens on port 7000 of loopback.
fn tries(options: &[&str]) -> Proc {
    let net = Net::new(Stack::Kernel);
    let mut address = net.on_server("ip");
    Proc::start(address.args(["address", "add", KERNELS, "dev", "lo"]), None).success(10);
    let listen = "import socket, time
server = socket.create_server(('127.0.0.1', 7000))
print('listening', flush=True)
time.sleep(60)";
    let mut server = Proc::start(net.on_server("/usr/bin/python3").args(["-c", listen]), None);
    server.says("listening", 10);
    let mut run = net.on_server(&atoll_system_tests::atoll().to_string_lossy());
    run.args(["run", "--private"]).args(options).args(["--", "/usr/bin/python3", "-c", TRIES]);
    let mut program = Proc::start(run.args([KERNELS, "7000"]), None);
    program.end(30);
    program
}

#[test]
fn nothing_of_a_program_gets_to_the_kernels_network() {
    let program = tries(&[]);
    assert_eq!(program.output(), CLOSED, "{}", program.report());
    // Each reason is explained by one line, which says what to do.
    let said = program.errors();
    assert_eq!(said.matches("libatoll: ").count(), 3, "{said}");
    assert_eq!(said.matches("--kernel-network").count(), 3, "{said}");
}

#[test]
fn the_kernels_network_serves_the_rest_where_that_is_asked_for() {
    let program = tries(&["--kernel-network"]);
    let output = program.output();
    for works in ["bind", "bind udp", "raw"] {
        assert!(output.contains(&format!("{works} works\n")), "{}", program.report());
    }
    // Loopback is the stack's, even if a server listens on the kernel's.
    assert!(output.ends_with("loopback ECONNREFUSED\n"), "{output}");
    assert_eq!(program.errors(), "");
}

#[test]
fn the_kernels_network_serves_the_places_that_are_named() {
    let program = tries(&["--kernel-network=192.0.2.9,127.0.0.1:7000"]);
    let expected = CLOSED
        .replace("bind EADDRNOTAVAIL", "bind works")
        .replace("bind udp EADDRNOTAVAIL", "bind udp works")
        .replace("loopback ECONNREFUSED", "loopback works");
    assert_eq!(program.output(), expected, "{}", program.report());
}

#[test]
fn what_names_no_place_is_refused() {
    let program = tries(&["--kernel-network=10.0.0.0/33"]);
    assert_eq!(program.output(), "");
    let said = program.errors();
    assert!(said.contains("\"10.0.0.0/33\" is not ADDRESS, ADDRESS/PREFIX"), "{said}");
}

/// The output of `programs/unserved.c` where none of its calls reach the library.
const UNSERVED: &str = "tcp EACCES
unix works
raw tcp EACCES
raw udp EACCES
raw tcp6 EACCES
raw unix works
tcp of 32 bits EACCES
unix of 32 bits works
io_uring ENOSYS
";

/// Runs a line of a shell on a private stack, and returns its output.
fn shell(options: &[&str], line: &str) -> String {
    let mut run = std::process::Command::new(atoll_system_tests::atoll());
    run.args(["run", "--private"]).args(options).args(["--", "/bin/sh", "-c", line]);
    Proc::start(&mut NoNet::new().without_network(&run), None).success(30)
}

#[test]
fn programs_that_load_no_library_have_no_sockets_of_the_host() {
    let program = compiled_apart("unserved");
    assert_eq!(shell(&[], &program), UNSERVED);
    // The result does not depend on how, or by which program, it is started.
    assert_eq!(shell(&[], &format!("env -i {program}")), UNSERVED);
    let line = format!("setpriv --reuid 65534 --clear-groups {program}");
    assert_eq!(shell(&[], &line), UNSERVED);
    let line = format!("unshare -n -m -p -f {program}");
    assert_eq!(shell(&[], &line), UNSERVED);
    assert_eq!(shell(&["--kernel-network=10.0.0.1"], &program), UNSERVED);
    let works = shell(&["--kernel-network"], &program);
    assert_eq!(works.matches("works").count(), 9, "{works}");
}

/// A set-user-ID program does not load its caller's library, so its sockets fail.
#[test]
fn set_user_id_programs_have_no_sockets_of_the_host() {
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
    let program = scratch.path().join("unserved");
    atoll_system_tests::copy_program(compiled("unserved"), &program);
    chown(&program, Some(65534), None).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    // ld.so reports that it does not load the library.
    assert_eq!(shell(&[], &format!("{} 2>&1 | grep -v LD_PRELOAD", program.display())), UNSERVED);
}

/// With the library loaded, calls that bypass its symbols reach it as well; calls of 32-bit code fail.
#[test]
fn calls_past_the_library_have_no_sockets_of_the_host() {
    let expected = UNSERVED
        .replace("tcp of 32 bits EACCES", "tcp of 32 bits ENOSYS")
        .replace("unix of 32 bits works", "unix of 32 bits ENOSYS")
        .replace("EACCES", "works");
    assert_eq!(shell(&[], &compiled("unserved")), expected);
    // Every call of a static program comes to it.
    assert_eq!(shell(&[], &compiled_statically("unserved")), expected);
    assert_eq!(shell(&["--kernel-network=10.0.0.1"], &compiled_statically("unserved")), expected);
}

//! What is cut off when servers die of a fault of their own that one program triggers? External signals do
//! not count as a fault, so a debugger causes one.

use std::process::Command;

use atoll_system_tests::{Net, Proc, Stack, compiled, program, until};

/// Returns the session of the program with this pid.
fn session_of(net: &Net, pid: u32) -> u64 {
    let status = net.atoll_says("status");
    let sessions = status["sessions"].as_array().expect("sessions");
    let own = sessions.iter().find(|session| session["pid"].as_u64() == Some(pid.into()));
    own.and_then(|session| session["id"].as_u64()).expect("it has a session")
}

/// Reads until the end of the stream, and prints how it ended.
const PEER: &str = "import socket, sys, time
c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print('connected', flush=True)
try:
    while c.recv(100): pass
    print('end', flush=True)
except OSError as error:
    print(type(error).__name__, flush=True)
time.sleep(60)";

/// Exchanges a question and an answer, again and again.
const ASKER: &str = "import socket, sys, time
c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
for n in range(10**9):
    c.sendall(b'%08d' % n)
    got = b''
    while len(got) < 8:
        part = c.recv(8 - len(got))
        assert part
        got += part
    assert got == b'%08d' % n
    print('answer', n, flush=True)
    time.sleep(0.01)";

const ECHO: &str = "import socket, sys
s = socket.create_server(('0.0.0.0', int(sys.argv[1])))
print('serving', flush=True)
c, _ = s.accept()
while True:
    c.sendall(c.recv(100))";

#[test]
fn a_program_that_servers_die_of_is_cut_off_and_its_neighbour_goes_on() {
    let net = Net::with(Stack::Atoll, "TS1LS1CM1", None);
    let python = |code: &str, arguments: &[&str]| [&["-c", code], arguments].concat().join("\u{0}");
    let start = |arguments: &str, on_client: bool| -> Proc {
        let arguments: Vec<&str> = arguments.split('\u{0}').collect();
        if on_client {
            net.client("/usr/bin/python3", &arguments)
        } else {
            net.serve("/usr/bin/python3", &arguments)
        }
    };
    let mut echo = start(&python(ECHO, &["7000"]), false);
    echo.says("serving", 20);
    let mut asker = start(&python(ASKER, &[Net::SERVER, "7000"]), true);
    asker.says("answer 10", 30);
    let mut rogue = net.serve("/usr/bin/python3", &[&program("rogue.py"), "7100", Net::SERVER, "7000"]);
    rogue.says("serving", 20);
    let mut peer = start(&python(PEER, &[Net::SERVER, "7100"]), true);
    peer.says("connected", 20);
    rogue.says("busy", 20);
    let session = session_of(&net, rogue.pid()).to_string();
    let condemn = compiled("condemn");
    for death in 0..2 {
        let pid = until("a replica", 20, || net.replicas().first().copied());
        let mut force = Command::new(&condemn);
        force.args([pid.to_string(), session.clone()]);
        let said = Proc::start(&mut force, None).success(60);
        assert_eq!(said, "died of signal 11\n", "death {death}");
        until("its successor", 20, || net.replicas().first().copied().filter(|next| *next != pid));
    }
    // The program gets an error, and its next attempts fail at once. Its peer is reset.
    rogue.says("over", 60);
    let output = rogue.output();
    assert!(
        output.contains("bound ENETDOWN at once") && output.contains("connected ENETDOWN at once"),
        "{output}"
    );
    peer.says("ConnectionResetError", 20);
    // The neighbour still has its connection.
    let last = || asker.output().lines().count();
    let before = last();
    until("answers for the neighbour", 20, || (last() > before + 50).then_some(()));
    assert!(!asker.errors().contains("Error") && asker.runs(), "{}", asker.report());
    let log = net.events();
    let cut_off = log.of("session_cut_off");
    assert!(cut_off.len() == 1 && cut_off[0]["pid"] == rogue.pid(), "{log}");
    assert_eq!(cut_off[0]["session"].to_string(), session, "{log}");
}

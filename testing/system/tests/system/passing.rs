//! Do real programs hand their sockets to other processes?

use std::process::Command;

use atoll_system_tests::{Net, NoNet, Proc, Stack, program};

on_both_stacks![node_cluster, node_cluster_without_scheduling, haproxy_reloads, xinetd_waits];

/// Asks 200 times, eight at once, and says which answers came.
const ASK: &str = "import collections, concurrent.futures, socket, sys
def ask(_):
    peer = socket.create_connection((sys.argv[1], 8000), 20)
    peer.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')
    return peer.makefile().read().splitlines()[-1]
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(sorted(set(pool.map(ask, range(200)))))";

fn cluster(stack: Stack, policy: &str) {
    let net = Net::new(stack);
    let mut server = net.serve("node", &[&program("cluster.js"), "8000", policy]);
    server.says("both listen", 30);
    let ask = || net.client("/usr/bin/python3", &["-c", ASK, Net::SERVER]).success(60);
    assert_eq!(ask(), "['1', '2']\n", "{}", server.report());
    // One of them dies; the other one has the listener still.
    let end = "import socket, sys; peer = socket.create_connection((sys.argv[1], 8000), 20)
peer.sendall(b'GET /end HTTP/1.0\\r\\n\\r\\n')
try: peer.recv(1)
except OSError: pass";
    net.client("/usr/bin/python3", &["-c", end, Net::SERVER]).success(30);
    let left = ask();
    assert!(left == "['1']\n" || left == "['2']\n", "{left}\n{}", server.report());
    assert!(server.runs() && !server.errors().contains("libatoll"), "{}", server.report());
}

/// The first process accepts, and sends connections to the others.
fn node_cluster(stack: Stack) {
    cluster(stack, "rr");
}

/// The first process sends its listener, which is bound and does not listen yet, to the others.
fn node_cluster_without_scheduling(stack: Stack) {
    cluster(stack, "none");
}

/// A new process gets the listeners of the old one, which ends, over a unix socket: no connection fails.
/// <https://docs.haproxy.org/2.6/management.html>, "expose-fd listeners"
fn haproxy_reloads(stack: Stack) {
    let net = Net::new(stack);
    let socket = net.scratch.path().join("admin").to_string_lossy().into_owned();
    let config = net.scratch.file(
        "haproxy.cfg",
        format!(
            "global\n stats socket {socket} level admin expose-fd listeners\ndefaults\n mode http\n timeout \
             connect 5s\n timeout client 10s\n timeout server 10s\nfrontend in\n bind 0.0.0.0:8000\n \
             http-request return status 200 content-type text/plain string one\n"
        ),
    );
    let mut old = net.serve("haproxy", &["-db", "-f", &config]);
    net.listens(&mut old, 8000);
    let ask = "import socket, sys
answers = set()
for turn in range(1000):
    peer = socket.create_connection((sys.argv[1], 8000), 20)
    peer.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')
    answers.add(peer.makefile().read().splitlines()[-1])
    if turn == 100: print('at work')
print(answers)";
    let mut client = net.client("/usr/bin/python3", &["-u", "-c", ask, Net::SERVER]);
    client.says("at work", 30);
    for _ in 0..2 {
        let number = old.pid().to_string();
        let new = net.serve("haproxy", &["-db", "-f", &config, "-x", &socket, "-sf", &number]);
        // It ends when its connections have.
        assert!(old.end(30).success(), "{}", old.report());
        old = new;
    }
    assert_eq!(client.success(60), "at work\n{'one'}\n", "{}", old.report());
    assert!(old.runs() && !old.errors().contains("is lost"), "{}", old.report());
}

/// A service with `wait` is given the listener, or the datagram socket, as its standard input.
fn xinetd_waits(stack: Stack) {
    let net = Net::new(stack);
    let service = |name: &str, text: &str| {
        let path = net.scratch.file(name, format!("#!/usr/bin/python3\nimport socket\n{text}"));
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("it is ours");
        path
    };
    let stream = service(
        "stream",
        "server = socket.socket(fileno=0)
for _ in range(3):
    peer, _ = server.accept()
    try: peer.sendall(b'waited for ' + peer.recv(10))
    except OSError: pass
    peer.close()
",
    );
    let datagrams = service(
        "datagrams",
        "server = socket.socket(fileno=0)
for _ in range(3):
    octets, peer = server.recvfrom(10); server.sendto(b'answer to ' + octets, peer)
",
    );
    let entry = |kind: &str, protocol: &str, port: u16, server: &str| {
        format!(
            "service s{port}\n{{\n type = UNLISTED\n socket_type = {kind}\n protocol = {protocol}\n port = \
             {port}\n wait = yes\n user = nobody\n server = {server}\n}}\n"
        )
    };
    let config = net.scratch.file(
        "xinetd.conf",
        entry("stream", "tcp", 7007, &stream) + &entry("dgram", "udp", 7008, &datagrams),
    );
    let mut server = net.serve("/usr/sbin/xinetd", &["-dontfork", "-f", &config]);
    net.listens(&mut server, 7007);
    let talk = "import socket, sys
for turn in range(3):
    peer = socket.create_connection((sys.argv[1], 7007), 20)
    peer.sendall(b'%d' % turn); print(peer.makefile().read())
peer = socket.socket(type=socket.SOCK_DGRAM); peer.settimeout(20)
for turn in range(3):
    peer.sendto(b'%d' % turn, (sys.argv[1], 7008)); print(peer.recv(50).decode())";
    let said = net.client("/usr/bin/python3", &["-c", talk, Net::SERVER]).success(60);
    let expected = "waited for 0\nwaited for 1\nwaited for 2\nanswer to 0\nanswer to 1\nanswer to 2\n";
    assert!(said == expected, "{said}\n{}", server.report());
    assert!(server.runs() && !server.errors().contains("libatoll"), "{}", server.report());
}

/// What a process knows of its sockets does not come with a descriptor that another one takes from it.
#[test]
fn a_socket_is_not_taken_out_of_its_process() {
    let code = "import ctypes, errno, os, socket
sock = socket.socket(); sock.bind(('127.0.0.1', 0)); sock.listen()
pipe = os.pipe()
pidfd = os.pidfd_open(os.getpid())
libc = ctypes.CDLL(None, use_errno=True)
if os.fork() == 0:
    def take(number):
        fd = libc.syscall(438, pidfd, number, 0)
        return 'taken' if fd >= 0 else errno.errorcode[ctypes.get_errno()]
    print(take(sock.fileno()), take(pipe[0]), flush=True)
    os._exit(0)
os.wait()";
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", code]);
    let said = Proc::start(&mut NoNet::new().on(Stack::Atoll, &python), None).success(30);
    assert_eq!(said, "ENOTSUP taken\n");
}

//! Does text travel on the SYN between a program on the stack and one on the kernel, both ways? RFC 7413.

use std::time::Duration;

use atoll_system_tests::{Net, Proc, Stack, until};

use crate::full_ring::Stopped;
use crate::recovery::signal;
use crate::servers::{fetch, nginx_that_listens};

on_both_stacks![
    nginx_takes_requests_on_the_syn,
    curl_sends_its_request_on_the_syn,
    who_has_nothing_to_send_is_connected,
    connect_says_once_more_how_it_goes,
];

/// Returns a counter of the kernel's TCP at the client's end.
fn kernel_counter(net: &Net, name: &str) -> u64 {
    let text = net.client("cat", &["/proc/net/netstat"]).success(10);
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let found = names.split(' ').zip(values.split(' ')).find(|(known, _)| *known == name);
    found.and_then(|(_, value)| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Returns the kernel's counter of this name where the kernel serves, and otherwise the corresponding counter
/// of all replicas.
fn opened(net: &Net, of_kernel: &str) -> u64 {
    if net.stack == Stack::Kernel {
        return kernel_counter(net, of_kernel);
    }
    let status = net.atoll_says("status");
    let replicas = status["replicas"].as_array().expect("status lists the replicas").clone();
    replicas.iter().map(|replica| replica["stats"]["fast_opens"].as_u64().unwrap_or_default()).sum()
}

/// nginx runs on the stack, curl on the kernel.
fn nginx_takes_requests_on_the_syn(stack: Stack) {
    let net = Net::fast_open(stack);
    let mut server = nginx_that_listens(&net, "fastopen=16");
    net.listens(&mut server, 80);
    let url = format!("http://{}/small", Net::SERVER);
    for _ in 0..5 {
        let said = net.client("curl", &["-sS", "--tcp-fastopen", "--max-time", "10", &url]).success(15);
        assert_eq!(said, "tiny");
    }
    // The first connection gets the cookie.
    assert_eq!(kernel_counter(&net, "TCPFastOpenActive"), 4);
    until("the stack to count them", 10, || (opened(&net, "TCPFastOpenActive") == 4).then_some(()));
    // Clients without TCP Fast Open are served, too.
    assert_eq!(fetch(&net, 80, "/small"), b"tiny");
}

/// curl runs on the stack, nginx on the kernel at the other end.
fn curl_sends_its_request_on_the_syn(stack: Stack) {
    let net = Net::fast_open(stack);
    let folder = net.scratch.path().to_string_lossy().into_owned();
    net.scratch.file("page", "from the kernel");
    let config = net.scratch.file(
        "client.conf",
        format!(
            "daemon off; worker_processes 1; pid {folder}/client.pid; error_log stderr; user root; events \
             {{ }}
             http {{ access_log off; client_body_temp_path {folder}/cb; proxy_temp_path {folder}/cp;
                     fastcgi_temp_path {folder}/cf; uwsgi_temp_path {folder}/cu; scgi_temp_path {folder}/cs;
                     server {{ listen 8000 fastopen=16; root {folder}; }} }}"
        ),
    );
    let _server: Proc = net.client("/usr/sbin/nginx", &["-p", &folder, "-c", &config]);
    let count = 12;
    for _ in 0..count {
        let options = ["-sS", "--tcp-fastopen", "--retry-connrefused", "--retry", "5", "--max-time", "10"];
        let said = net.serve("curl", &[&options[..], &["http://198.18.0.1:8000/page"]].concat()).success(15);
        assert_eq!(said, "from the kernel");
    }
    // Each replica first asks for a cookie of its own.
    let passive = kernel_counter(&net, "TCPFastOpenPassive");
    assert!(passive >= count - 3, "{passive}");
    if stack == Stack::Atoll {
        until("the stack to count them", 10, || (opened(&net, "") == passive).then_some(()));
    }
}

/// A python program on the stack connects to one on the kernel at the other end, by sends without octets.
fn who_has_nothing_to_send_is_connected(stack: Stack) {
    let net = Net::fast_open(stack);
    let server = net.scratch.file("server.py", SERVER_OF_NOTHING);
    let mut server = net.client("/usr/bin/python3", &[&server]);
    server.says("listening", 10);
    let client = net.scratch.file("client.py", CLIENT_OF_NOTHING);
    let said = net.serve("/usr/bin/python3", &[&client]).success(30);
    assert_eq!(said, "blocking: 0 None\nnot blocking: 115 None\n".repeat(6));
    // Each replica asks for a cookie before.
    assert!(kernel_counter(&net, "TCPFastOpenCookieReqd") > 0);
}

/// A python program on the stack sends its first text with TCP_FASTOPEN_CONNECT.
fn connect_says_once_more_how_it_goes(stack: Stack) {
    let net = Net::fast_open(stack);
    let server = net.scratch.file("server.py", SERVER_OF_NOTHING);
    let mut server = net.client("/usr/bin/python3", &[&server]);
    server.says("listening", 10);
    let client = net.scratch.file("client.py", CLIENT_BY_CONNECT);
    let said = net.serve("/usr/bin/python3", &[&client]).success(60);
    let expected = "True connect: None send: 4 open: True connect: EISCONN EISCONN
False connect: None send: 4 connect: None EISCONN
True connect: None send: ECONNREFUSED
False connect: None send: 4 error: ECONNREFUSED
";
    assert_eq!(said, expected.repeat(3));
}

/// A signal comes while connect(2) waits for a replica to say whether the SYN waits for text.
#[test]
fn a_signal_while_replicas_have_no_processor_harms_no_connect() {
    let net = Net::fast_open(Stack::Atoll);
    let server = net.scratch.file("server.py", SERVER_OF_NOTHING);
    let mut server = net.client("/usr/bin/python3", &[&server]);
    server.says("listening", 10);
    let client = net.scratch.file("client.py", CLIENT_WITH_SIGNALS);
    let mut client = net.serve("/usr/bin/python3", &[&client]);
    client.says("has cookies", 20);
    for number in 0..3 {
        let stopped = Stopped::new(net.replicas());
        signal("USR1", client.pid().into());
        std::thread::sleep(Duration::from_millis(300));
        drop(stopped);
        client.says(&format!("text {number}"), 10);
    }
}

const CLIENT_WITH_SIGNALS: &str = "
import signal, socket
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
signal.signal(signal.SIGALRM, lambda *_: None)
def talk(interrupted):
    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_TCP, 30, 1)  # TCP_FASTOPEN_CONNECT
    signal.setitimer(signal.ITIMER_REAL, 0.1 if interrupted else 0)
    sock.connect(('198.18.0.1', 8000))
    sock.send(b'text')
    return sock.recv(10).decode()
# Each replica asks for a cookie of its own.
for _ in range(24):
    talk(False)
print('has cookies', flush=True)
for number in range(3):
    signal.sigwait({signal.SIGUSR1})
    print(talk(True), number, flush=True)
";

const CLIENT_BY_CONNECT: &str = "
import errno, faulthandler, select, socket
faulthandler.dump_traceback_later(40)
def attempt(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
def client(blocking, port):
    sock = socket.socket()
    sock.setblocking(blocking)
    sock.setsockopt(socket.IPPROTO_TCP, 30, 1)
    return sock, ('198.18.0.1', port)
# Each replica asks for a cookie of its own.
for _ in range(24):
    sock, address = client(True, 8000)
    sock.connect(address)
    sock.send(b'text')
    sock.recv(10)
for _ in range(3):
    for blocking in (True, False):
        sock, address = client(blocking, 8000)
        said = [blocking, 'connect:', attempt(sock.connect, address), 'send:', attempt(sock.send, b'text')]
        if blocking:
            # Established, or closed by the server meanwhile.
            said += ['open:', sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in (1, 8)]
        else:
            select.select([], [sock], [], 10)
        print(*said, 'connect:', attempt(sock.connect, address), attempt(sock.connect, address))
    sock, address = client(True, 1)
    print(True, 'connect:', attempt(sock.connect, address), 'send:', attempt(sock.send, b'text'))
    sock, address = client(False, 1)
    said = [False, 'connect:', attempt(sock.connect, address), 'send:', attempt(sock.send, b'text'), 'error:']
    select.select([sock], [], [], 10)
    print(*said, errno.errorcode[sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)])
";

const SERVER_OF_NOTHING: &str = "
import socket
server = socket.create_server(('0.0.0.0', 8000))
server.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, 16)
print('listening', flush=True)
while True:
    connection = server.accept()[0]
    connection.sendall(connection.recv(10))
    connection.close()
";

const CLIENT_OF_NOTHING: &str = "
import select, socket
for turn in range(12):
    client = socket.socket()
    client.setblocking(turn % 2 == 0)
    try:
        result = client.sendto(b'', socket.MSG_FASTOPEN, ('198.18.0.1', 8000))
    except OSError as error:
        result = error.errno
    assert select.select([], [client], [], 10)[1], 'it is not open'
    client.setblocking(True)
    print('not blocking:' if turn % 2 else 'blocking:', result, client.send(b'text') and None)
    assert client.recv(10) == b'text'
    client.close()
";

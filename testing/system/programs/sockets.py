"""What do sockets do? One behaviour by name; what it prints must be the same on every stack: sockets.py CASE

Both ends live in one process (or its children), on the loopback. Nothing that differs from run to run is printed.
"""
import array
import ctypes
import errno
import fcntl
import itertools
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

LOOPBACK = "127.0.0.1"
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def attempt(what, function, *arguments):
    """Prints what a call returns, or the name of its error."""
    try:
        result = function(*arguments)
    except OSError as error:
        name = "timeout" if isinstance(error, TimeoutError) and error.errno is None else errno.errorcode.get(error.errno)
        print(f"{what}: {name}")
        return None
    shown = "a socket" if isinstance(result, socket.socket) else result
    print(f"{what}: {shown}")
    return result


def listener(backlog=16, kind=socket.SOCK_STREAM):
    server = socket.socket(socket.AF_INET, kind)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((LOOPBACK, 0))
    server.listen(backlog)
    return server


def pair():
    """A connection: what connected, and what was accepted."""
    server = listener()
    client = socket.create_connection(server.getsockname(), timeout=10)
    client.settimeout(None)
    accepted, _ = server.accept()
    server.close()
    return client, accepted


def unused_port():
    probe = socket.socket()
    probe.bind((LOOPBACK, 0))
    port = probe.getsockname()[1]
    probe.close()
    return port


def poll_of(sock, events=select.POLLIN | select.POLLOUT, timeout=0):
    poll = select.poll()
    poll.register(sock, events)
    return names_of(poll.poll(timeout), "POLL")


def names_of(events, prefix):
    names = [name for name in dir(select) if name.startswith(prefix) and name.isupper()]
    wanted = ("IN", "OUT", "ERR", "HUP", "RDHUP", "PRI", "NVAL")
    names = [prefix + name for name in wanted if prefix + name in names]
    return [sorted(name for name in names if getattr(select, name) & event) for _, event in events]


def readable(sock, seconds=10):
    return bool(select.select([sock], [], [], seconds)[0])


# --- connecting

@case
def connect_refused():
    attempt("connect", socket.create_connection, (LOOPBACK, unused_port()), 10)


@case
def connect_refused_without_blocking():
    sock = socket.socket()
    sock.setblocking(False)
    print("connect_ex:", errno.errorcode.get(sock.connect_ex((LOOPBACK, unused_port()))))
    print("poll:", poll_of(sock, timeout=5000))
    print("SO_ERROR:", errno.errorcode.get(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)))
    print("SO_ERROR again:", sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


@case
def connect_without_blocking():
    server = listener()
    sock = socket.socket()
    sock.setblocking(False)
    first = sock.connect_ex(server.getsockname())
    print("connect_ex:", errno.errorcode.get(first))
    print("writable:", bool(select.select([], [sock], [], 5)[1]))
    print("SO_ERROR:", sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    print("connect_ex again:", errno.errorcode.get(sock.connect_ex(server.getsockname())))
    print("poll:", poll_of(sock))


@case
def connect_twice():
    client, accepted = pair()
    attempt("connect", client.connect, accepted.getsockname())


@case
def connect_again_after_a_refusal():
    server = listener()
    sock = socket.socket()
    attempt("connect", sock.connect, (LOOPBACK, unused_port()))
    attempt("connect", sock.connect, server.getsockname())
    print("same:", sock.getpeername() == server.getsockname(), server.accept()[1] == sock.getsockname())


@case
def disconnected_by_connect():
    library = ctypes.CDLL(None, use_errno=True)

    def disconnect(sock):
        result = library.connect(sock.fileno(), struct.pack("=H26x", socket.AF_UNSPEC), 28)
        print("disconnect:", result)
        attempt("getpeername", sock.getpeername)

    for number in 0, 1:
        ends = pair()
        ends[number].send(b"before")
        disconnect(ends[number])
        readable(ends[1 - number])
        attempt("recv", ends[1 - number].recv, 10)
        attempt("recv", ends[1 - number].recv, 10)
    server = listener()
    client, accepted = pair()
    disconnect(client)
    client.connect(server.getsockname())
    client.send(b"again")
    print("recv:", server.accept()[0].recv(10))


@case
def operations_without_connection():
    sock = socket.socket()
    attempt("recv", sock.recv, 1)
    attempt("send", sock.send, b"x")
    attempt("getpeername", sock.getpeername)
    attempt("shutdown", sock.shutdown, socket.SHUT_RDWR)
    attempt("accept", sock.accept)
    print("getsockname:", sock.getsockname())
    print("poll:", poll_of(sock))


@case
def connection_to_itself_has_names():
    client, accepted = pair()
    print("same:", client.getsockname() == accepted.getpeername(), client.getpeername() == accepted.getsockname())
    print("address:", client.getsockname()[0], "port differs:", client.getsockname()[1] != client.getpeername()[1])


def state_number(sock):
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def names(what, sock):
    """Shows the state of a socket, and whether it has a peer and a port."""
    print(what, "in state", state_number(sock))
    attempt("getpeername", lambda: sock.getpeername()[0])
    attempt("getsockname", lambda: (sock.getsockname()[0], sock.getsockname()[1] != 0))


def await_state(sock, state):
    deadline = time.monotonic() + 10
    while state_number(sock) != state and time.monotonic() < deadline:
        time.sleep(0.01)


@case
def names_in_every_state():
    sock = socket.socket()
    names("fresh", sock)
    sock.bind((LOOPBACK, 0))
    names("bound", sock)
    sock.listen()
    names("listening", sock)
    sock.shutdown(socket.SHUT_WR)
    names("shut for writing", sock)
    sock.shutdown(socket.SHUT_RD)
    names("shut for reading", sock)
    client, accepted = pair()
    names("connected", client)
    client.shutdown(socket.SHUT_WR)
    accepted.recv(1)
    await_state(client, 5)
    names("shut", accepted)
    accepted.shutdown(socket.SHUT_WR)
    client.recv(1)
    await_state(accepted, 7)
    for what, end in ("closed first", client), ("closed second", accepted):
        names(what, end)
        attempt("send", end.send, b"x")
        attempt("recv", end.recv, 1)
        attempt("shutdown", end.shutdown, socket.SHUT_RDWR)
        attempt("connect", end.connect, (LOOPBACK, 1))
        print("SO_ERROR:", end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), poll_of(end))
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex((LOOPBACK, unused_port()))
    poll_of(sock, timeout=5000)
    names("refused", sock)


def who_was_reset():
    client, accepted = pair()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    accepted.close()
    poll_of(client, 0, timeout=5000)
    return client


def who_was_refused():
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex((LOOPBACK, unused_port()))
    poll_of(sock, 0, timeout=5000)
    return sock


@case
def the_first_call_that_asks_gets_the_error():
    """Each call in the place of the first, after a reset and after a refusal."""
    calls = {
        "send": lambda sock: sock.send(b"x"),
        "recv": lambda sock: sock.recv(1),
        "SO_ERROR": lambda sock: sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR),
        "getpeername": lambda sock: sock.getpeername(),
        "shutdown": lambda sock: sock.shutdown(socket.SHUT_WR),
        "connect": lambda sock: sock.connect((LOOPBACK, 1)),
        "listen": lambda sock: sock.listen(),
        "accept": lambda sock: sock.accept(),
    }
    signal.signal(signal.SIGPIPE, lambda *_: print("a signal"))
    for what in who_was_reset, who_was_refused:
        for first, second in itertools.permutations(calls, 2):
            sock = what()
            print(what.__name__, first, "and", second)
            for name in first, second, "recv", "send", "SO_ERROR":
                attempt(name, calls[name], sock)
            sock.close()


@case
def a_backlog_lets_one_connection_more_wait():
    """One client after the other, until one is not let in; it is later, when there is room."""
    def fill_queue(server, clients):
        """Connects until a client waits for half a second; how many got in."""
        while True:
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(server.getsockname())
            clients.append(client)
            if not select.select([], [client], [], 0.5)[1]:
                return len(clients) - 1

    for backlog in 0, 1, 2, 7:
        server, clients = listener(backlog), []
        print("backlog", backlog, "lets in:", fill_queue(server, clients))
        accepted = server.accept()[0]
        print("the next one is in:", bool(select.select([], clients[-1:], [], 10)[1]))
        print("one more:", fill_queue(server, clients))
        server.listen(backlog + 2)
        print("with two more:", bool(select.select([], clients[-1:], [], 10)[1]), fill_queue(server, clients))
        server.listen(0)
        clients.pop().close()
        print("with less:", fill_queue(server, clients))
        server.settimeout(0.1)
        count = 0
        try:
            while server.accept():
                count += 1
        except TimeoutError:
            print("waited:", count)
        accepted.close()


@case
def shutdown_without_a_connection_stays():
    for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM:
        for how in socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR:
            sock = socket.socket(socket.AF_INET, kind)
            attempt("shutdown", sock.shutdown, how)
            sock.bind((LOOPBACK, 0))
            attempt("shutdown", sock.shutdown, how)
            if kind == socket.SOCK_DGRAM:
                attempt("sendto itself", sock.sendto, b"x", sock.getsockname())
                attempt("connect", sock.connect, sock.getsockname())
                attempt("send", sock.send, b"x")
            sock.setblocking(False)
            print("poll:", poll_of(sock, select.POLLOUT | select.POLLRDHUP))


@case
def a_socket_is_its_own_peer():
    """Both sides open at once (RFC 9293, figure 7), and both close at once (figure 13)."""
    poll = select.POLLIN | select.POLLOUT | select.POLLRDHUP
    for family, bound, host in (
        (socket.AF_INET, LOOPBACK, LOOPBACK), (socket.AF_INET, "0.0.0.0", LOOPBACK), (socket.AF_INET6, "::1", "::1"),
    ):
        sock = socket.socket(family)
        sock.bind((bound, 0))
        attempt("connect", sock.connect, (host, sock.getsockname()[1]))
        print("its own peer:", sock.getsockname() == sock.getpeername(), poll_of(sock, poll))
        attempt("send", sock.send, b"hello")
        attempt("recv", sock.recv, 10)
        writer = threading.Thread(target=sock.sendall, args=(bytes(3_000_000),))
        writer.start()
        count = 0
        while count < 3_000_000:
            count += len(sock.recv(1 << 20))
        writer.join()
        print("octets:", count, "state:", state_number(sock))
        sock.send(b"last")
        attempt("shutdown", sock.shutdown, socket.SHUT_WR)
        attempt("recv", sock.recv, 10)
        attempt("recv", sock.recv, 10)
        attempt("send", sock.send, b"x")
        print(poll_of(sock, poll), "state:", state_number(sock))
        attempt("getpeername", lambda: sock.getpeername() is None)
        sock.close()


@case
def what_is_shut_before_it_connects_to_itself_ends_at_once():
    """Both SYNs cross, and so do both FINs: the connection is over before anybody has said a word."""
    for how, host, blocks in itertools.product((0, 1, 2), (LOOPBACK, "0.0.0.0", "::1"), (True, False)):
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        sock.bind((LOOPBACK if host == "0.0.0.0" else host, 0))
        to_itself = host, sock.getsockname()[1]
        attempt("shutdown", sock.shutdown, how)
        sock.setblocking(blocks)
        attempt("connect", sock.connect, to_itself)
        sock.setblocking(False)
        await_state(sock, 1 if how == socket.SHUT_RD else 7)
        print(state_of(sock))
        attempt("getpeername", lambda: sock.getpeername() is None)
        attempt("send", sock.send, b"x", socket.MSG_NOSIGNAL)
        if how == socket.SHUT_RD:
            wait_until_received(sock)
        attempt("recv", sock.recv, 10)
        attempt("recv", sock.recv, 10)
        attempt("error", sock.getsockopt, socket.SOL_SOCKET, socket.SO_ERROR)
        # What waited has heard of the end, and its port is free.
        if how == socket.SHUT_RD or not blocks:
            attempt("connect", sock.connect, to_itself)
        print(state_of(sock))
        attempt("send", sock.send, b"x", socket.MSG_NOSIGNAL)
        attempt("listen", sock.listen)


@case
def a_socket_is_its_own_peer_without_blocking():
    sock = socket.socket()
    sock.bind((LOOPBACK, 0))
    sock.setblocking(False)
    print("connect_ex:", errno.errorcode.get(sock.connect_ex(sock.getsockname())))
    print("poll:", poll_of(sock, timeout=10000))
    print("connect_ex again:", sock.connect_ex(sock.getsockname()))
    attempt("recv", sock.recv, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.send(b"unread")
    other = sock.dup()
    sock.close()
    print("readable:", readable(other))
    attempt("recv", other.recv, 10)
    library = ctypes.CDLL(None)
    print("disconnect:", library.connect(other.fileno(), struct.pack("=H26x", socket.AF_UNSPEC), 28))
    attempt("recv", other.recv, 1)
    attempt("recv", other.recv, 1)


@case
def connect_binds_the_wildcard():
    server = listener()
    sock = socket.socket()
    sock.bind(("0.0.0.0", 0))
    print("before:", sock.getsockname()[0], sock.getsockname()[1] != 0)
    port = sock.getsockname()[1]
    sock.connect(server.getsockname())
    print("after:", sock.getsockname() == (LOOPBACK, port))


# --- binding and listening

@case
def address_in_use():
    server = listener()
    other = socket.socket()
    attempt("bind", other.bind, server.getsockname())
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    attempt("bind with SO_REUSEADDR", other.bind, server.getsockname())
    server.close()
    attempt("bind after close", other.bind, (LOOPBACK, unused_port()))
    attempt("bind twice", other.bind, (LOOPBACK, unused_port()))


@case
def wildcard_and_address_conflict():
    one = socket.socket()
    one.bind(("0.0.0.0", 0))
    one.listen()
    other = socket.socket()
    attempt("bind", other.bind, (LOOPBACK, one.getsockname()[1]))


@case
def foreign_address():
    attempt("bind", socket.socket().bind, ("198.51.100.1", 0))


@case
def reuse_port():
    first, second = socket.socket(), socket.socket()
    for sock in (first, second):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    first.bind((LOOPBACK, 0))
    attempt("bind", second.bind, first.getsockname())
    third = socket.socket()
    attempt("bind without SO_REUSEPORT", third.bind, first.getsockname())
    first.listen(64)
    second.listen(64)
    clients = [socket.create_connection(first.getsockname(), timeout=10) for _ in range(40)]
    accepted = 0
    deadline = time.monotonic() + 10
    while accepted < 40 and time.monotonic() < deadline:
        for sock in select.select([first, second], [], [], 1)[0]:
            sock.accept()
            accepted += 1
    print("accepted:", accepted, "of", len(clients))


@case
def reuse_address_after_bind():
    """What a socket says of SO_REUSEADDR after bind(2) counts for later ones: ntpd sets it for its wildcard sockets."""
    for kind in socket.SOCK_DGRAM, socket.SOCK_STREAM:
        for first in 0, 1:
            for later in (), (1,), (0,), (1, 0):
                for second in 0, 1:
                    for address in LOOPBACK, "0.0.0.0":
                        one, other = socket.socket(type=kind), socket.socket(type=kind)
                        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, first)
                        one.bind(("0.0.0.0", 0))
                        for value in later:
                            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, value)
                        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, second)
                        attempt(f"{kind.name} {first} {later} {second} {address}", other.bind, (address, one.getsockname()[1]))
                        one.close()
                        other.close()
    one, other = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(2))
    one.bind(("0.0.0.0", 0))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    other.bind((LOOPBACK, one.getsockname()[1]))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    sender = socket.socket(type=socket.SOCK_DGRAM)
    for text in b"first", b"second":
        sender.sendto(text, other.getsockname())
        print("heard:", select.select([one, other], [], [], 10)[0] == [other], other.recv(10))
    other.close()
    sender.sendto(b"third", (LOOPBACK, one.getsockname()[1]))
    print("heard:", select.select([one], [], [], 10)[0] == [one], one.recv(10))


@case
def waiting_without_descriptors():
    """A process that may open no more descriptors waits for its sockets all the same, as vsftpd's sessions do."""
    listener = socket.create_server((LOOPBACK, 0))
    client = socket.create_connection(listener.getsockname())
    server = listener.accept()[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 100000))
    try:
        server.recv(10)
    except OSError as error:
        print("recv", errno.errorcode[error.errno])
    poll = select.poll()
    poll.register(server, select.POLLIN)
    print("poll", poll.poll(100))
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    for text in (b"one", b"two"):
        threading.Timer(0.2, client.sendall, (text,)).start()
        print(server.recv(10))
    # More than the buffers hold.
    sender = threading.Thread(target=client.sendall, args=(bytes(20 << 20),))
    sender.start()
    left = 20 << 20
    while left:
        left -= len(server.recv(1 << 20))
    sender.join()
    print("all")


@case
def listen_without_bind():
    server = socket.socket()
    server.listen()
    print("bound:", server.getsockname()[0], server.getsockname()[1] != 0)
    client = socket.create_connection((LOOPBACK, server.getsockname()[1]), timeout=10)
    print("accepted:", server.accept()[1] == client.getsockname())


@case
def listener_is_no_connection():
    server = listener()
    attempt("recv", server.recv, 1)
    attempt("send", server.send, b"x")
    attempt("getpeername", server.getpeername)
    attempt("connect", server.connect, server.getsockname())
    print("SO_ACCEPTCONN:", server.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    print("poll:", poll_of(server))


@case
def accept_without_blocking():
    server = listener()
    server.setblocking(False)
    attempt("accept", server.accept)
    client = socket.create_connection(server.getsockname(), timeout=10)
    print("readable:", readable(server), "poll:", poll_of(server))
    accepted, address = server.accept()
    print("address:", address == client.getsockname(), "blocking:", not fcntl.fcntl(accepted, fcntl.F_GETFL) & os.O_NONBLOCK)
    attempt("accept", server.accept)


@case
def closed_before_accept():
    server = listener()
    client = socket.create_connection(server.getsockname(), timeout=10)
    client.sendall(b"last words")
    client.close()
    accepted, _ = server.accept()
    print("recv:", accepted.recv(100), accepted.recv(100))


@case
def reset_before_accept():
    for text, early in itertools.product((b"", b"last words"), (False, True)):
        server = listener()
        if early:
            print("readable:", select.select([server], [], [], 0)[0] != [])
        client = socket.create_connection(server.getsockname(), timeout=10)
        client.sendall(text)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(0.1)
        client.close()
        time.sleep(0.1)
        print("readable:", select.select([server], [], [], 5)[0] != [])
        accepted, _ = server.accept()
        attempt("recv", accepted.recv, 100)
        attempt("recv", accepted.recv, 100)
        attempt("recv", accepted.recv, 100)
        attempt("name", accepted.getpeername)
        print("readable:", select.select([server], [], [], 0)[0] != [])


def without_time(sock, option):
    sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", -1, 0))


@case
def who_comes_late_to_a_listener_finds_what_waits():
    for how in ("accept", "select", "epoll", "poll"):
        server = listener()
        server.setblocking(False)
        events = select.epoll()
        if how == "epoll":
            events.register(server, select.EPOLLIN)
        clients = [socket.create_connection(server.getsockname(), timeout=10) for _ in range(3)]
        time.sleep(0.6)
        for _ in clients:
            if how == "select":
                print("readable:", select.select([server], [], [], 0)[0] != [])
            elif how == "epoll":
                print("readable:", events.poll(0) != [])
            elif how == "poll":
                print("readable:", state_of(server))
            attempt("accept", lambda: server.accept()[0])
        attempt("accept", lambda: server.accept()[0])


@case
def less_than_no_time():
    client, accepted = pair()
    for seconds, micros in ((-1, 0), (-5, 5), (0, -1), (0, 1_000_000)):
        attempt("set", client.setsockopt, socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, micros))
        print("get:", struct.unpack("ll", client.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)))
    without_time(client, socket.SO_RCVTIMEO)
    attempt("recv", client.recv, 1)
    accepted.sendall(b"text")
    time.sleep(0.1)
    attempt("recv", client.recv, 10)
    without_time(client, socket.SO_SNDTIMEO)
    try:
        while True:
            client.send(bytes(1 << 16))
    except OSError as error:
        print("send:", errno.errorcode[error.errno])
    server = listener()
    without_time(server, socket.SO_RCVTIMEO)
    attempt("accept", server.accept)
    client = socket.socket()
    without_time(client, socket.SO_SNDTIMEO)
    attempt("connect", client.connect, server.getsockname())
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", 0))
    without_time(datagrams, socket.SO_RCVTIMEO)
    attempt("recv", datagrams.recv, 1)


def disconnect(sock):
    return ctypes.CDLL(None).connect(sock.fileno(), bytes(16), 16)


def state_of(sock):
    poll = select.poll()
    poll.register(sock)
    return [hex(events) for _, events in poll.poll(0)]


@case
def who_disconnects_hears_of_it():
    for what in ("recv", "send", "error"):
        server = listener()
        client = socket.create_connection(server.getsockname(), timeout=10)
        client.settimeout(None)
        accepted, _ = server.accept()
        print("connect:", disconnect(client), state_of(client))
        for _ in range(2):
            if what == "recv":
                attempt("recv", client.recv, 1)
            elif what == "send":
                attempt("send", client.send, b"x", socket.MSG_NOSIGNAL)
            else:
                attempt("error", client.getsockopt, socket.SOL_SOCKET, socket.SO_ERROR)
        print(state_of(client))
        attempt("name of the peer", client.getpeername)
        attempt("recv", accepted.recv, 1)
        attempt("connect", client.connect, server.getsockname())
        attempt("error", client.getsockopt, socket.SOL_SOCKET, socket.SO_ERROR)


@case
def bind_after_a_refusal():
    nobody = socket.socket()
    nobody.bind(("127.0.0.1", 0))
    for blocks in True, False:
        refused = socket.socket()
        refused.setblocking(blocks)
        attempt("connect", refused.connect, nobody.getsockname())
        if not blocks:
            select.select([], [refused], [], 20)
            attempt("error", refused.getsockopt, socket.SOL_SOCKET, socket.SO_ERROR)
        attempt("bind", refused.bind, ("127.0.0.1", 0))
        print("has a port:", refused.getsockname()[1] != 0)
        attempt("bind", refused.bind, ("127.0.0.1", 0))


@case
def a_listener_that_was_shut_down_is_a_fresh_socket():
    for port in None, 0, 7201:
        it = socket.socket()
        it.setblocking(False)
        if port is not None:
            it.bind(("127.0.0.1", port))
        it.listen(8)
        name = it.getsockname()
        attempt("shutdown", it.shutdown, socket.SHUT_RD)
        print("shows its port:", it.getsockname() == name)
        attempt("accept", it.accept)
        attempt("listens", it.getsockopt, socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        attempt("disconnect", disconnect, it)
        attempt("shutdown", it.shutdown, socket.SHUT_RDWR)
        attempt("recv", it.recv, 1)
        attempt("disconnect", disconnect, it)
        attempt("recv", it.recv, 1)
        attempt("bind", it.bind, ("127.0.0.1", 0))
        attempt("listen", it.listen)
        other = socket.socket()
        attempt("connect", other.connect, it.getsockname())


@case
def bind_once_more_after_a_connection():
    for named in False, True:
        server = listener()
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.bind(("127.0.0.1", 7202 if named else 0))
        client.connect(server.getsockname())
        accepted = server.accept()[0]
        attempt("bind", client.bind, ("127.0.0.1", 0))
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()
        attempt("recv", client.recv, 1)
        attempt("bind", client.bind, ("127.0.0.1", 0))
        attempt("bind", client.bind, ("127.0.0.1", 0))
        attempt("listen", client.listen)
        attempt("recv", client.recv, 1)
        attempt("connect", client.connect, server.getsockname())
        attempt("disconnect", disconnect, client)
        print("has a port:", client.getsockname()[1] != 0)
        attempt("connect", client.connect, server.getsockname())
        attempt("send", client.send, b"x")
        attempt("recv", server.accept()[0].recv, 1)


@case
def what_is_shut_before_a_connection_stays_shut():
    server = listener()
    for how in socket.SHUT_RD, socket.SHUT_WR:
        client = socket.socket()
        attempt("shutdown", client.shutdown, how)
        attempt("connect", client.connect, server.getsockname())
        accepted = server.accept()[0]
        attempt("send", client.send, b"x")
        attempt("recv", client.recv, 1, socket.MSG_DONTWAIT)
        accepted.send(b"y")
        accepted.setblocking(False)
        # What is shut for reading is always ready.
        wait_until_received(client)
        attempt("recv", client.recv, 1)
        client.close()


@case
def shutdown_of_a_listener_resets_what_waits_at_once():
    for close in False, True:
        server = listener()
        client = socket.socket()
        client.connect(server.getsockname())
        select.select([server], [], [], 20)
        began = time.monotonic()
        if close:
            server.close()
        else:
            server.shutdown(socket.SHUT_RD)
        select.select([client], [], [], 20)
        print("at once:", time.monotonic() - began < 0.15)
        attempt("recv", client.recv, 1)


@case
def shutdown_while_connecting():
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(0)
    others = []
    for _ in range(8):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(server.getsockname())
        others.append(sock)
        time.sleep(0.05)
    for how in (socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR):
        client = socket.socket()
        client.setblocking(False)
        print("connect:", errno.errorcode[client.connect_ex(server.getsockname())])
        print("has a port:", client.getsockname()[1] != 0)
        attempt("shutdown", client.shutdown, how)
        print(state_of(client))
        attempt("error", client.getsockopt, socket.SOL_SOCKET, socket.SO_ERROR)
        print(state_of(client))
        blocking = socket.socket()
        thread = threading.Thread(target=attempt, args=("blocked connect", blocking.connect, server.getsockname()))
        thread.start()
        time.sleep(0.3)
        blocking.shutdown(how)
        thread.join(5)
        print("is over:", not thread.is_alive())


@case
def a_listener_listens_again():
    for ends in ("shutdown", "disconnect"):
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 7391))
        server.listen()
        server.settimeout(5)
        waits = socket.create_connection(server.getsockname(), timeout=10)
        if ends == "shutdown":
            attempt("shutdown", server.shutdown, socket.SHUT_RD)
        else:
            print("connect:", disconnect(server))
        attempt("recv", waits.recv, 1)
        print("listens:", server.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN), server.getsockname())
        attempt("accept", server.accept)
        attempt("connect", socket.create_connection, server.getsockname(), 5)
        attempt("listen", server.listen)
        print("listens:", server.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN), server.getsockname())
        client = socket.create_connection(server.getsockname(), timeout=10)
        accepted, _ = server.accept()
        client.sendall(b"text")
        attempt("recv", accepted.recv, 10)
        server.close()


@case
def text_after_both_ways_are_shut():
    for how in (socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR):
        client, accepted = pair()
        client.shutdown(how)
        time.sleep(0.1)
        attempt("send", accepted.send, b"late")
        time.sleep(0.1)
        print(state_of(client), state_of(accepted))
        attempt("recv", client.recv, 10)
        client.setblocking(False)
        attempt("recv", client.recv, 10)
        attempt("send", accepted.send, b"later", socket.MSG_NOSIGNAL)


@case
def closing_a_listener_resets_what_waits():
    server = listener()
    client = socket.create_connection(server.getsockname(), timeout=10)
    time.sleep(0.2)
    server.close()
    attempt("recv", client.recv, 1)


@case
def accept_times_out():
    server = listener()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 100_000))
    started = time.monotonic()
    attempt("accept", server.accept)
    print("after:", 0.09 < time.monotonic() - started < 5)


# --- sending and receiving

@case
def messages_arrive():
    client, accepted = pair()
    client.sendall(b"question")
    print("recv:", accepted.recv(100))
    accepted.sendall(b"answer")
    print("recv:", client.recv(100))
    client.close()
    print("recv:", accepted.recv(100))


@case
def megabytes_arrive():
    client, accepted = pair()
    data = bytes(range(256)) * 32768
    sender = threading.Thread(target=lambda: (client.sendall(data), client.close()))
    sender.start()
    got = b"".join(iter(lambda: accepted.recv(100_000), b""))
    sender.join()
    print("equal:", got == data)


@case
def receive_without_blocking():
    client, accepted = pair()
    accepted.setblocking(False)
    attempt("recv", accepted.recv, 10)
    client.send(b"x")
    print("readable:", readable(accepted))
    attempt("recv", accepted.recv, 10)
    attempt("recv", accepted.recv, 10)
    accepted.setblocking(True)
    attempt("recv MSG_DONTWAIT", accepted.recv, 10, socket.MSG_DONTWAIT)


@case
def send_until_full():
    client, accepted = pair()
    client.setblocking(False)
    sent = 0
    try:
        while True:
            sent += client.send(bytes(65536))
    except BlockingIOError as error:
        print("send:", errno.errorcode[error.errno], "after some:", sent > 0)
    print("poll:", poll_of(client))
    got = 0
    while got < sent:
        got += len(accepted.recv(1 << 20))
    print("all arrived:", got == sent)
    print("writable:", bool(select.select([], [client], [], 5)[1]))


@case
def unsent_low_water_mark():
    client, accepted = pair()
    low, mark = 25, 100000  # TCP_NOTSENT_LOWAT
    print("default:", client.getsockopt(socket.IPPROTO_TCP, low))
    client.setsockopt(socket.IPPROTO_TCP, low, mark)
    print("set:", client.getsockopt(socket.IPPROTO_TCP, low))
    # Whoever answers this has heard of the option.
    client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    # The peer's window is soon closed, so that what is written has to wait.
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    client.setblocking(False)
    sent, waits = 0, False
    while not waits:
        try:
            sent += client.send(bytes(65536))
        except BlockingIOError:
            waits = not select.select([], [client], [], 0.5)[1]
    # tcpi_notsent_bytes. Linux takes a whole buffer of up to 64 KiB where an octet fits.
    unsent = int.from_bytes(client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)[144:148], sys.byteorder)
    print("half of it waits:", unsent * 2 >= mark, "not much more:", unsent < mark + 65536)
    got = 0
    while got < sent:
        got += len(accepted.recv(1 << 20))
    print("all arrived:", got == sent)
    print("writable:", bool(select.select([], [client], [], 5)[1]))


@case
def pacing_rate():
    client, accepted = pair()
    sol, rate = socket.SOL_SOCKET, 47  # SO_MAX_PACING_RATE
    none = (1 << 64) - 1
    whole = lambda: struct.unpack("Q", client.getsockopt(sol, rate, 8))[0]
    print("default:", whole() == none)
    client.setsockopt(sol, rate, 10_000_000)
    print("set:", whole(), struct.unpack("I", client.getsockopt(sol, rate, 4))[0])
    # tcpi_max_pacing_rate.
    info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    print("told:", int.from_bytes(info[112:120], sys.byteorder))
    client.sendall(bytes(200_000))
    got = 0
    while got < 200_000:
        got += len(accepted.recv(1 << 20))
    print("all arrived:", got)
    client.setsockopt(sol, rate, struct.pack("Q", none))
    print("none:", whole() == none)


@case
def peek():
    client, accepted = pair()
    client.send(b"abcdef")
    readable(accepted)
    print("peek:", accepted.recv(3, socket.MSG_PEEK), accepted.recv(100, socket.MSG_PEEK))
    print("recv:", accepted.recv(2), accepted.recv(100, socket.MSG_PEEK), accepted.recv(100))


@case
def wait_for_all():
    client, accepted = pair()

    def send():
        for part in (b"ab", b"cd", b"ef"):
            client.send(part)
            time.sleep(0.05)

    threading.Thread(target=send).start()
    print("recv:", accepted.recv(6, socket.MSG_WAITALL))
    client.send(b"gh")
    client.shutdown(socket.SHUT_WR)
    print("recv at the end:", accepted.recv(6, socket.MSG_WAITALL))


@case
def receive_times_out():
    client, _accepted = pair()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 100_000))
    print("option:", struct.unpack("ll", client.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)))
    started = time.monotonic()
    attempt("recv", client.recv, 1)
    print("after:", 0.09 < time.monotonic() - started < 5)


@case
def send_times_out():
    client, _accepted = pair()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 200_000))
    started = time.monotonic()
    try:
        while True:
            client.send(bytes(1 << 20))
            if time.monotonic() - started > 20:
                print("send: never stopped")
                return
    except OSError as error:
        print("send:", errno.errorcode[error.errno])


@case
def bytes_waiting():
    client, accepted = pair()
    client.send(b"x" * 1234)
    readable(accepted)
    time.sleep(0.1)
    count = array.array("i", [0])
    fcntl.ioctl(accepted, termios.FIONREAD, count)
    print("FIONREAD:", count[0])
    accepted.recv(234)
    fcntl.ioctl(accepted, termios.FIONREAD, count)
    print("FIONREAD:", count[0])


@case
def nonblocking_by_ioctl():
    client, _accepted = pair()
    fcntl.ioctl(client, 0x5421, struct.pack("i", 1))  # FIONBIO
    print("O_NONBLOCK:", bool(fcntl.fcntl(client, fcntl.F_GETFL) & os.O_NONBLOCK))
    attempt("recv", os.read, client.fileno(), 1)


@case
def vectors():
    client, accepted = pair()
    print("writev:", os.writev(client.fileno(), [b"one", b"", b"two", b"three"]))
    readable(accepted)
    time.sleep(0.05)
    parts = [bytearray(2), bytearray(4), bytearray(100)]
    print("readv:", os.readv(accepted.fileno(), parts), [bytes(part).rstrip(b"\0") for part in parts])


@case
def peek_for_all_of_less():
    client, accepted = pair()
    client.send(b"abc")
    readable(accepted)
    flags = socket.MSG_PEEK | socket.MSG_WAITALL
    attempt("without waiting", accepted.recv, 10, flags | socket.MSG_DONTWAIT)
    accepted.settimeout(None)
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 200000))
    attempt("with a time", accepted.recv, 10, flags)
    attempt("taken", accepted.recv, 10)
    attempt("nothing there", accepted.recv, 10, flags)
    client.send(b"def")
    client.shutdown(socket.SHUT_WR)
    readable(accepted)
    attempt("at the end", accepted.recv, 10, flags)


@case
def small_calls_that_fail():
    client, accepted = pair()
    client.shutdown(socket.SHUT_WR)
    attempt("nothing after the end", client.send, b"", socket.MSG_NOSIGNAL)
    attempt("nothing", accepted.send, b"")
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asked = select.poll()
    asked.register(datagrams, 0xffff)
    print("poll:", hex(asked.poll(0)[0][1]))
    datagrams.bind((LOOPBACK, 0))
    print("poll:", hex(asked.poll(0)[0][1]))
    attempt("mark", fcntl.ioctl, datagrams, 0x8905, b"1234")
    library = ctypes.CDLL(None, use_errno=True)
    for seconds, nanoseconds in (0, 2000000000), (-1, 0):
        time_of = struct.pack("ll", seconds, nanoseconds)
        result = library.recvmmsg(datagrams.fileno(), ctypes.create_string_buffer(64), 1, socket.MSG_DONTWAIT, time_of)
        print("recvmmsg:", result, errno.errorcode[ctypes.get_errno()])


@case
def octets_from_nowhere():
    client, accepted = pair()
    library = ctypes.CDLL(None, use_errno=True)

    def call(what, function, *arguments):
        result = function(*arguments)
        print(f"{what}:", result if result >= 0 else errno.errorcode[ctypes.get_errno()])

    client.send(b"text")
    readable(accepted)
    call("send", library.send, client.fileno(), None, 4, 0)
    call("write", library.write, client.fileno(), None, 4)
    call("send nothing", library.send, client.fileno(), None, 0, 0)
    call("recv", library.recv, accepted.fileno(), None, 4, 0)
    call("read", library.read, accepted.fileno(), None, 4)
    call("take", library.recv, accepted.fileno(), None, 2, socket.MSG_TRUNC)
    print("recv:", accepted.recv(10))


@case
def message_calls():
    client, accepted = pair()
    print("sendmsg:", client.sendmsg([b"one", b"two"]))
    readable(accepted)
    data, ancillary, flags, address = accepted.recvmsg(100, 100)
    print("recvmsg:", data, ancillary, flags, address)


@case
def send_file():
    client, accepted = pair()
    with tempfile.TemporaryFile() as file:
        file.write(bytes(range(256)) * 1000)
        file.flush()
        offset = 10
        done = threading.Thread(target=lambda: print("equal:", receive_all(accepted) == (bytes(range(256)) * 1000)[10:]))
        done.start()
        while offset < 256_000:
            offset += os.sendfile(client.fileno(), file.fileno(), offset, 256_000 - offset)
        print("offset:", offset, "position:", file.tell())
        client.close()
        done.join()


def receive_all(sock):
    return b"".join(iter(lambda: sock.recv(65536), b""))


@case
def read_and_write():
    client, accepted = pair()
    print("write:", os.write(client.fileno(), b"by descriptor"))
    readable(accepted)
    print("read:", os.read(accepted.fileno(), 100))
    attempt("read nothing", os.read, accepted.fileno(), 0)
    attempt("write nothing", os.write, accepted.fileno(), b"")
    attempt("lseek", os.lseek, accepted.fileno(), 0, os.SEEK_CUR)
    attempt("pread", os.pread, accepted.fileno(), 1, 0)


# --- between sockets, pipes and files

def a_pipe(waits=True):
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, waits)
    return ends


def call(name, *arguments):
    """Calls a function of the C library for which Python has none, or with arguments that Python does not pass."""
    result = getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments)
    return result if result >= 0 else errno.errorcode[ctypes.get_errno()]


@case
def splice_moves_octets():
    for waits in True, False:
        (client, accepted), (out, into) = pair(), a_pipe(waits)
        client.send(b"one two")
        readable(accepted)
        print("from the connection:", os.splice(accepted.fileno(), into, 3))
        print("the rest:", os.splice(accepted.fileno(), into, 1 << 30))
        print("to the connection:", os.splice(out, accepted.fileno(), 4), os.splice(out, accepted.fileno(), 100))
        print("received:", client.recv(7, socket.MSG_WAITALL))
        client.close()
        readable(accepted)
        print("at the end:", os.splice(accepted.fileno(), into, 100))
        os.close(into)
        print("a pipe that nobody writes to:", os.splice(out, accepted.fileno(), 100))


@case
def splice_does_not_wait():
    (client, accepted), (out, into) = pair(), a_pipe()
    os.set_blocking(into, False)
    fill = lambda: os.write(into, bytes(1 << 20))
    for how, flags, waits, socket_waits in ("the call", 2, True, True), ("the pipe", 0, False, True), ("both", 0, False, False):
        client.setblocking(socket_waits)
        os.set_blocking(out, waits)
        attempt(f"{how}: an empty pipe", lambda: os.splice(out, client.fileno(), 10, flags=flags))
        filled = fill()
        os.set_blocking(into, waits)
        attempt(f"{how}: a full pipe", lambda: os.splice(client.fileno(), into, 10, flags=flags))
        accepted.send(b"x")
        readable(client)
        attempt(f"{how}: a full pipe, and octets", lambda: os.splice(client.fileno(), into, 10, flags=flags))
        print("still there:", client.recv(10), len(os.read(out, filled)) == filled)
        os.set_blocking(into, False)
    attempt("a connection without octets", lambda: os.splice(client.fileno(), into, 10))
    os.set_blocking(into, True)
    attempt("and a pipe that waits", lambda: os.splice(client.fileno(), into, 10))


@case
def splice_loses_nothing():
    """Both connections are full again and again, and so is the pipe."""
    for waits in True, False:
        (first, entry), (way_out, last), (out, into) = pair(), pair(), a_pipe(waits)
        octets = os.urandom(3_000_000)
        sender = threading.Thread(target=lambda: (first.sendall(octets), first.shutdown(socket.SHUT_WR)))
        sender.start()
        received = bytearray()

        def receive():
            while text := last.recv(10_000):
                received.extend(text)
                if len(received) % 7 == 0:
                    time.sleep(0.001)

        receiver = threading.Thread(target=receive)
        receiver.start()
        entry.setblocking(waits)
        way_out.setblocking(waits)
        held, ended = 0, False
        sizes = itertools.cycle([1, 4096, 70_000, 1 << 30, 5000])
        while not ended or held:
            if not ended and held < 4096:
                try:
                    now = os.splice(entry.fileno(), into, next(sizes), flags=3)
                    ended, held = now == 0, held + now
                except BlockingIOError:
                    select.select([entry], [], [], 5)
            if held:
                try:
                    held -= os.splice(out, way_out.fileno(), min(held, next(sizes)), flags=7)
                except BlockingIOError:
                    select.select([], [way_out], [], 5)
        way_out.close()
        sender.join()
        receiver.join()
        print("equal:", received == octets, "left in the pipe:", unread_in(out))


def unread_in(fd):
    answer = array.array("i", [-1])
    fcntl.ioctl(fd, termios.FIONREAD, answer)
    return answer[0]


@case
def splice_that_cannot_go_on_leaves_the_pipe():
    (client, accepted), (out, into) = pair(), a_pipe()
    client.setblocking(False)
    sent = 0
    os.write(into, bytes(1000))
    while True:
        try:
            sent += os.splice(out, client.fileno(), 1000)
            os.write(into, bytes(1000 - unread_in(out)))
        except BlockingIOError:
            break
    print("left:", unread_in(out) > 0)
    total = sent
    while total:
        total -= len(accepted.recv(total))
    before = unread_in(out)
    select.select([], [client], [], 5)
    print("sent when there is room:", os.splice(out, client.fileno(), 1000) == before, unread_in(out))
    client.shutdown(socket.SHUT_WR)
    os.write(into, b"more")
    attempt("after shutdown", os.splice, out, client.fileno(), 10)
    print("left:", unread_in(out))


@case
def splice_that_fails():
    (client, accepted), (out, into), server, fresh = pair(), a_pipe(), listener(), socket.socket()
    file = tempfile.TemporaryFile()
    os.write(into, bytes(100))
    fd = client.fileno()
    for what, arguments in {
        "to a new socket": (out, fresh.fileno(), 10), "to a listener": (out, server.fileno(), 10),
        "from a new socket": (fresh.fileno(), into, 10), "from a listener": (server.fileno(), into, 10),
        "between sockets": (fd, accepted.fileno(), 10), "to a file": (fd, file.fileno(), 10),
        "from a file": (file.fileno(), fd, 10),
        "offset from a socket": (fd, into, 10, 0), "offset to a socket": (out, fd, 10, None, 0),
        "offset from a pipe": (out, fd, 10, 0), "offset to a pipe": (fd, into, 10, None, 0),
        "from the wrong end": (into, fd, 10), "to the wrong end": (fd, out, 10),
        "unknown flags": (out, fd, 10, None, None, 16), "nothing": (out, fd, 0, None, None, 16),
        "from no descriptor": (999, fd, 10), "to no descriptor": (fd, 999, 10), "nothing from there": (999, fd, 0),
        "huge": (out, fd, 1 << 62),
    }.items():
        attempt(what, os.splice, *arguments)
    epoll = select.epoll()
    os.write(into, b"octets")
    attempt("to an epoll instance", os.splice, out, epoll.fileno(), 10)
    print("tee:", call("tee", fd, into, 10, 0), call("tee", out, fd, 10, 0))
    octets = ctypes.create_string_buffer(10)
    part = struct.pack("PN", ctypes.addressof(octets), 10)
    print("vmsplice:", call("vmsplice", fd, part, 1, 0))
    offset = ctypes.c_void_p(8)
    print("an offset from nowhere:", call("splice", fd, offset, into, None, 10, 0), call("splice", out, None, fd, offset, 10, 0))
    attempt("copy_file_range", os.copy_file_range, file.fileno(), fd, 10)


@case
def splice_and_ends_of_connections():
    signal.signal(signal.SIGPIPE, lambda *_: print("SIGPIPE"))
    (client, accepted), (out, into) = pair(), a_pipe()
    accepted.send(b"text")
    readable(client)
    client.shutdown(socket.SHUT_RD)
    attempt("received before shutdown", os.splice, client.fileno(), into, 100)
    attempt("after shutdown", os.splice, client.fileno(), into, 100)
    client.shutdown(socket.SHUT_WR)
    attempt("sent after shutdown", os.splice, out, client.fileno(), 100)
    os.close(out)
    accepted.send(b"more")
    attempt("a pipe that nobody reads", os.splice, accepted.fileno(), into, 100)
    (client, accepted), (out, into) = pair(), a_pipe()
    accepted.send(b"unread")
    readable(client)
    client.close()
    readable(accepted)
    attempt("reset", os.splice, accepted.fileno(), into, 100)
    attempt("again", os.splice, accepted.fileno(), into, 100)
    os.write(into, b"x")
    attempt("sent", os.splice, out, accepted.fileno(), 100)
    print("left:", unread_in(out))


@case
def splice_times_out():
    (client, accepted), (out, into) = pair(), a_pipe()
    moment = struct.pack("ll", 0, 100_000)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, moment)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, moment)
    attempt("received", os.splice, client.fileno(), into, 10)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sent = 0
    try:
        while True:
            os.write(into, bytes(4096))
            sent += os.splice(out, client.fileno(), 4096)
    except BlockingIOError:
        print("sent until there was no room:", sent > 0)


@case
def splice_waits():
    (client, accepted), (out, into) = pair(), a_pipe()

    def later(*calls):
        threads = [threading.Timer(0.1 * (at + 1), one) for at, one in enumerate(calls)]
        [thread.start() for thread in threads]
        return threads

    def done(threads):
        [thread.join() for thread in threads]

    threads = later(lambda: accepted.send(b"late"))
    print("for octets:", os.splice(client.fileno(), into, 100), os.read(out, 100))
    done(threads)
    threads = later(lambda: os.write(into, b"later"))
    print("for the pipe:", os.splice(out, client.fileno(), 100), accepted.recv(5, socket.MSG_WAITALL))
    done(threads)
    os.write(into, bytes(65536))
    accepted.send(b"waits")
    threads = later(lambda: os.read(out, 65536))
    print("for room in the pipe:", os.splice(client.fileno(), into, 100), os.read(out, 100))
    done(threads)
    threads = later(lambda: accepted.shutdown(socket.SHUT_WR))
    print("for the end:", os.splice(client.fileno(), into, 100))
    done(threads)
    threads = later(lambda: os.close(into))
    print("for the last writer:", os.splice(out, client.fileno(), 100))
    done(threads)


@case
def splice_stops_at_an_urgent_octet():
    for waits in True, False:
        (client, accepted), (out, into) = pair(), a_pipe()
        client.send(b"ab")
        client.send(b"!", socket.MSG_OOB)
        client.send(b"cd")
        wait_until_sent(client)
        accepted.setblocking(waits)
        attempt("before it", os.splice, accepted.fileno(), into, 100)
        attempt("at it", os.splice, accepted.fileno(), into, 100)
        print("behind it:", accepted.recv(10))


def wait_until_sent(sock):
    answer = array.array("i", [1])
    while answer[0]:
        fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, answer)
        time.sleep(0.01)


def wait_until_received(sock):
    answer, began = array.array("i", [0]), time.monotonic()
    while not answer[0] and time.monotonic() - began < 20:
        fcntl.ioctl(sock.fileno(), termios.FIONREAD, answer)
        time.sleep(0.01)


@case
def splice_of_datagrams():
    (out, into), peers = a_pipe(), [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    one, other = peers
    attempt("from a new one without blocking", lambda: (one.setblocking(False), os.splice(one.fileno(), into, 10)))
    one.bind((LOOPBACK, 0))
    attempt("nothing there", os.splice, one.fileno(), into, 10)
    os.write(into, b"a datagram and more")
    attempt("without a receiver", os.splice, out, other.fileno(), 10)
    other.connect(one.getsockname())
    print("sent:", os.splice(out, other.fileno(), 10), unread_in(out))
    readable(one)
    print("received:", os.splice(one.fileno(), into, 100), os.read(out, 100))
    other.send(b"cut off")
    other.send(b"next")
    readable(one)
    time.sleep(0.1)
    print("in part:", os.splice(one.fileno(), into, 3), os.splice(one.fileno(), into, 100), os.read(out, 100))
    other.send(b"waits")
    one.setblocking(True)
    print("waits:", os.splice(one.fileno(), into, 100))
    os.set_blocking(out, False)
    print("both without blocking:", os.splice(out, other.fileno(), 100), one.recv(100))
    attempt("an empty pipe", os.splice, out, other.fileno(), 100)


@case
def send_file_in_all_forms():
    (client, accepted), (out, into), server, fresh = pair(), a_pipe(), listener(), socket.socket()
    with tempfile.TemporaryFile() as file, tempfile.TemporaryDirectory() as folder:
        octets = os.urandom(200_000)
        file.write(octets)
        file.flush()
        fd, write_only = client.fileno(), os.open(f"{folder}/file", os.O_WRONLY | os.O_CREAT)
        os.write(into, b"some")
        for what, arguments in {
            "from a pipe": (fd, out, None, 10), "from a pipe at an offset": (fd, out, 0, 10),
            "from a socket": (fd, accepted.fileno(), None, 10), "from a socket at an offset": (fd, accepted.fileno(), 0, 10),
            "from a folder": (fd, os.open(folder, os.O_RDONLY), 0, 10), "from what cannot be read": (fd, write_only, 0, 10),
            "nothing": (fd, file.fileno(), 0, 0), "from before the start": (fd, file.fileno(), -1, 5),
            "from the end": (fd, file.fileno(), 200_000, 5), "beyond all offsets": (fd, file.fileno(), (1 << 63) - 1, 5),
            "to a new socket": (fresh.fileno(), file.fileno(), 0, 5), "to a listener": (server.fileno(), file.fileno(), 0, 5),
            "nothing to a new socket": (fresh.fileno(), file.fileno(), 0, 0),
            "the end to a new socket": (fresh.fileno(), file.fileno(), 200_000, 5),
            "from no descriptor": (fd, 999, 0, 5), "to no descriptor": (999, file.fileno(), 0, 5),
        }.items():
            attempt(what, os.sendfile, *arguments)
        os.lseek(file.fileno(), 199_990, os.SEEK_SET)
        print("huge:", os.sendfile(fd, file.fileno(), None, (1 << 63) - 1 - 199_990), os.lseek(file.fileno(), 0, os.SEEK_CUR))
        print("received:", accepted.recv(10, socket.MSG_WAITALL) == octets[-10:])
        accepted.send(b"to a pipe")
        readable(client)
        os.read(out, 4)
        print("from a socket to a pipe:", os.sendfile(into, fd, None, 100), os.read(out, 100))
        attempt("from a socket at an offset to a pipe", os.sendfile, into, fd, 0, 100)
        client.setblocking(False)
        offset = 0
        while True:
            try:
                offset += os.sendfile(fd, file.fileno(), offset % 200_000, 150_000)
            except BlockingIOError:
                break
        client.close()
        received = receive_all(accepted)
        print("until there is no room:", len(received) == offset, received[:100_000] == octets[:100_000])


@case
def send_file_as_a_datagram():
    one, other = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    one.bind((LOOPBACK, 0))
    one.settimeout(5)
    with tempfile.TemporaryFile() as file:
        file.write(os.urandom(100_000))
        file.flush()
        attempt("without a receiver", os.sendfile, other.fileno(), file.fileno(), 0, 10)
        other.connect(one.getsockname())
        for len_ in 1000, 65507:
            attempt("sent", os.sendfile, other.fileno(), file.fileno(), 0, len_)
            print("received:", len(one.recv(100_000)))
        attempt("too long", os.sendfile, other.fileno(), file.fileno(), 0, 65508)
        os.lseek(file.fileno(), 10, os.SEEK_SET)
        attempt("far too long", os.sendfile, other.fileno(), file.fileno(), None, 1 << 40)
        print("position:", os.lseek(file.fileno(), 0, os.SEEK_CUR))
        attempt("the last octets", os.sendfile, other.fileno(), file.fileno(), 99_990, 1 << 40)
        print("received:", len(one.recv(100_000)))
        attempt("from the end", os.sendfile, other.fileno(), file.fileno(), 100_000, 10)
        one.settimeout(0.1)
        attempt("received", one.recv, 10)


# --- completions of sends that need no copy

SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000


def completion(sock, octets=100, control=512):
    """What one read of the error queue says: its range, errno, origin, code, address and flags."""
    try:
        text, messages, flags, address = sock.recvmsg(octets, control, socket.MSG_ERRQUEUE)
    except OSError as error:
        return errno.errorcode[error.errno]
    shown = [(level, kind, len(data), struct.unpack("=I4BII", data[:16]), any(data[16:])) for level, kind, data in messages]
    return text, shown, flags & (socket.MSG_CTRUNC | socket.MSG_ERRQUEUE), address


def settled(sock, seconds=5):
    """Waits until a completion is there."""
    poll = select.poll()
    poll.register(sock, 0)
    return bool(poll.poll(seconds * 1000))


@case
def completions_of_a_connection():
    client, accepted = pair()
    attempt("without the option", client.send, b"x" * 10, MSG_ZEROCOPY)
    print(completion(client), poll_of(client))
    for value in 2, -1, 1:
        attempt(f"set {value}", client.setsockopt, socket.SOL_SOCKET, SO_ZEROCOPY, value)
        print("is", client.getsockopt(socket.SOL_SOCKET, SO_ZEROCOPY))
    attempt("without the flag", client.send, b"x" * 10)
    attempt("nothing", client.send, b"", MSG_ZEROCOPY)
    print(completion(client))
    attempt("sent", client.send, b"y" * 80, MSG_ZEROCOPY)
    print("received:", len(accepted.recv(100, socket.MSG_WAITALL)), settled(client))
    print(poll_of(client), client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    attempt("another", client.send, b"z")
    print(completion(client), completion(client), poll_of(client))
    for _ in range(3):
        client.send(b"in a row", MSG_ZEROCOPY)
    accepted.recv(25, socket.MSG_WAITALL)
    time.sleep(0.1)
    print(completion(client), completion(client))
    for control in 0, 40:
        client.send(b"cut off", MSG_ZEROCOPY)
        accepted.recv(7, socket.MSG_WAITALL)
        settled(client)
        print(completion(client, control=control))
    client.sendmsg([b"a vector", b" of parts"], [], MSG_ZEROCOPY)
    accepted.recv(17, socket.MSG_WAITALL)
    settled(client)
    client.setblocking(False)
    attempt("received", client.recv, 10)
    accepted.close()
    time.sleep(0.2)
    print(poll_of(client), completion(client), poll_of(client))
    client.shutdown(socket.SHUT_WR)
    attempt("after shutdown", client.send, b"x", MSG_ZEROCOPY | socket.MSG_NOSIGNAL)
    print(completion(client))


@case
def completions_of_what_does_not_fit():
    client, accepted = pair()
    client.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    client.setblocking(False)
    sent, calls = 0, 0
    try:
        while True:
            sent += client.send(bytes(65536), MSG_ZEROCOPY)
            calls += 1
    except BlockingIOError:
        pass
    while sent:
        sent -= len(accepted.recv(1 << 20))
    time.sleep(0.1)
    _, messages, _, _ = client.recvmsg(0, 512, socket.MSG_ERRQUEUE)
    print("each is complete:", struct.unpack("=8xII", messages[0][2][:16]) == (0, calls - 1), completion(client))


@case
def completions_wake():
    client, accepted = pair()
    client.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    epoll = select.epoll()
    epoll.register(client, select.EPOLLET)
    print("before:", epoll.poll(0))
    client.send(b"octets", MSG_ZEROCOPY)
    accepted.recv(6)
    print("edge:", [event for _, event in epoll.poll(5)], epoll.poll(0.05))
    print(completion(client))
    thread = threading.Timer(0.1, lambda: (client.send(b"later", MSG_ZEROCOPY), accepted.recv(5)))
    thread.start()
    print("a sleeper:", settled(client), completion(client))
    thread.join()


@case
def completions_of_others():
    server = listener()
    server.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    client = socket.create_connection(server.getsockname())
    print("accepted:", server.accept()[0].getsockopt(socket.SOL_SOCKET, SO_ZEROCOPY))
    fresh = socket.socket()
    fresh.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    attempt("new", fresh.send, b"x", MSG_ZEROCOPY | socket.MSG_NOSIGNAL)
    print(completion(fresh))
    for family, address in (socket.AF_INET, LOOPBACK), (socket.AF_INET6, "::1"):
        one, other = [socket.socket(family, socket.SOCK_DGRAM) for _ in range(2)]
        one.bind((address, 0))
        other.connect(one.getsockname())
        attempt("datagram without the option", other.send, b"x", MSG_ZEROCOPY)
        one.recv(10)
        print(completion(other))
        other.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        for text in b"one", b"two", b"":
            attempt("datagram", other.send, text, MSG_ZEROCOPY)
            one.recv(10)
        time.sleep(0.1)
        print(poll_of(other), completion(other), completion(other), poll_of(other))
        server = socket.socket(family)
        server.bind((address, 0))
        server.listen()
        client = socket.create_connection(server.getsockname()[:2])
        client.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        client.send(b"x", MSG_ZEROCOPY)
        server.accept()[0].recv(1)
        settled(client)
        print(completion(client))


# --- what is queued

def queues(sock):
    """SIOCINQ, SIOCOUTQ, SIOCOUTQNSD, SIOCATMARK."""
    answers = []
    for request in 0x541B, 0x5411, 0x894B, 0x8905:
        answer = array.array("i", [-1])
        try:
            fcntl.ioctl(sock.fileno(), request, answer)
            answers.append(answer[0])
        except OSError as error:
            answers.append(errno.errorcode[error.errno])
    return answers


@case
def queues_in_every_state():
    fresh, server = socket.socket(), listener()
    print("new:", queues(fresh), "listens:", queues(server))
    fresh.bind((LOOPBACK, 0))
    print("bound:", queues(fresh))
    client, accepted = pair()
    print("open:", queues(client))
    client.send(b"12345")
    wait_until_sent(client)
    print("unread:", queues(accepted), queues(client))
    client.shutdown(socket.SHUT_WR)
    time.sleep(0.2)
    print("behind it the end:", queues(accepted), queues(client))
    for len_ in 2, 3, 1:
        print("read:", len(accepted.recv(len_)), queues(accepted))
    accepted.shutdown(socket.SHUT_WR)
    time.sleep(0.2)
    print("both have ended:", queues(accepted), queues(client))
    client, accepted = pair()
    client.setblocking(False)
    sent = 0
    try:
        while True:
            sent += client.send(bytes(65536))
    except BlockingIOError:
        time.sleep(0.5)
    (_, unacknowledged, unsent, _), (waiting, *_) = queues(client), queues(accepted)
    print("full:", waiting > 0, unacknowledged == sent - waiting, 0 < unsent <= unacknowledged)
    client.shutdown(socket.SHUT_WR)
    _, more, unsent_now, _ = queues(client)
    print("a FIN is one:", more - unacknowledged, unsent_now - unsent)
    one, other = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    print("datagrams:", queues(one))
    one.bind((LOOPBACK, 0))
    other.connect(one.getsockname())
    for text in b"abc", b"defgh", b"":
        other.send(text)
    readable(one)
    time.sleep(0.1)
    print("the next:", queues(one), one.recv(10), queues(one), one.recv(10), queues(one), queues(other))


@case
def queue_beside_what_is_received():
    server = listener()
    for value in 2, -1, 1:
        attempt(f"set {value}", server.setsockopt, socket.IPPROTO_TCP, 36, value)
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    print("accepted:", accepted.getsockopt(socket.IPPROTO_TCP, 36), client.getsockopt(socket.IPPROTO_TCP, 36))

    def receive(octets, flags=0, control=100):
        try:
            text, messages, flags, _ = accepted.recvmsg(octets, control, flags)
            return text, [(level, kind, struct.unpack("i", data[:4])) for level, kind, data in messages], flags
        except OSError as error:
            return errno.errorcode[error.errno]

    client.send(b"0123456789")
    wait_until_sent(client)
    print(receive(3), receive(3, socket.MSG_PEEK), receive(3), receive(4), receive(1, socket.MSG_DONTWAIT))
    client.send(b"01234")
    client.shutdown(socket.SHUT_WR)
    time.sleep(0.2)
    print("with the end:", receive(3), receive(2), receive(2), receive(2))
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    client.send(b"abc")
    client.send(b"!", socket.MSG_OOB)
    client.send(b"def")
    wait_until_sent(client)
    print("around an urgent octet:", receive(2), receive(10), receive(1))
    print(receive(1, socket.MSG_OOB), receive(10))
    accepted.setsockopt(socket.IPPROTO_TCP, 36, 0)
    client.send(b"without")
    readable(accepted)
    print(receive(10))
    attempt("datagrams", socket.socket(socket.AF_INET, socket.SOCK_DGRAM).setsockopt, socket.IPPROTO_TCP, 36, 1)


@case
def datagrams_corked():
    one, other, third = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)]
    one.bind((LOOPBACK, 0))
    one.settimeout(0.2)
    cork = lambda sock, value: sock.setsockopt(17, 1, value)
    for name, sock in ("connected", other), ("named", third):
        if sock is other:
            sock.connect(one.getsockname())
        send = sock.send if sock is other else lambda text, flags=0: sock.sendto(text, flags, one.getsockname())
        attempt("set", cork, sock, 5)
        attempt("get", sock.getsockopt, 17, 1)
        attempt("without a receiver", sock.send, b"x") if sock is third else None
        print(name, send(b"ab"), send(b"cd"), poll_of(sock))
        attempt("held", one.recv, 10)
        attempt("off", cork, sock, 0)
        attempt("received", one.recv, 10)
        attempt("off again", cork, sock, 0)
        attempt("once", one.recv, 10)
        cork(sock, 1)
        send(b"also with more", socket.MSG_MORE)
        cork(sock, 0)
        attempt("received", one.recv, 100)
        cork(sock, 1)
        send(bytes(60_000))
        attempt("too long", send, bytes(6000))
        cork(sock, 0)
        attempt("received", one.recv, 70_000)
        cork(sock, 1)
        send(b"")
        cork(sock, 0)
        attempt("received nothing", one.recv, 10)
        send(b"at once")
        attempt("received", one.recv, 10)
    cork(third, 1)
    third.sendto(b"one", one.getsockname())
    attempt("for another", third.sendto, b" two", (LOOPBACK, unused_port()))
    cork(third, 0)
    attempt("received", one.recv, 10)
    cork(third, 1)
    third.sendto(b"never sent", one.getsockname())
    third.close()
    attempt("closed", one.recv, 10)
    attempt("a connection", cork, socket.socket(), 1)


# --- urgent octets

SIOCATMARK = 0x8905


def at_mark(sock):
    answer = array.array("i", [-1])
    fcntl.ioctl(sock.fileno(), SIOCATMARK, answer)
    return answer[0]


def unread(sock):
    answer = array.array("i", [-1])
    fcntl.ioctl(sock.fileno(), termios.FIONREAD, answer)
    return answer[0]


def all_has_come(client, accepted):
    """Text does not wait for its urgent octets, nor they for it: the other direction is the proof that both have come."""
    accepted.setblocking(True)
    queued = array.array("i", [1])
    for _ in range(1000):
        fcntl.ioctl(client.fileno(), termios.TIOCOUTQ, queued)
        if queued[0] == 0:
            break
        time.sleep(0.01)
    time.sleep(0.05)
    accepted.setblocking(False)


def urgent_pair(*pieces, inline=False):
    """A connection on which pieces were sent: bytes, or strings, which are urgent."""
    client, accepted = pair()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, int(inline))
    for piece in pieces:
        client.send(piece.encode() if isinstance(piece, str) else piece, socket.MSG_OOB if isinstance(piece, str) else 0)
    all_has_come(client, accepted)
    return client, accepted


def show_urgent(accepted, size=100):
    """Everything that there is to read, and what is urgent on the way."""
    for _ in range(8):
        print("poll:", poll_of(accepted, select.POLLIN | select.POLLPRI), "mark:", at_mark(accepted), "unread:", unread(accepted))
        if attempt("recv", accepted.recv, size) is None:
            break


@case
def out_of_band_is_urgent():
    client, accepted = pair()
    attempt("recv MSG_OOB", accepted.recv, 1, socket.MSG_OOB)
    attempt("of nothing", socket.socket().recv, 1, socket.MSG_OOB)
    attempt("of a listener", listener().recv, 1, socket.MSG_OOB)
    attempt("send to nobody", socket.socket().send, b"x", socket.MSG_OOB)
    attempt("send nothing", client.send, b"", socket.MSG_OOB)
    print("mark:", at_mark(accepted))


@case
def urgent_octet_is_taken_aside():
    client, accepted = urgent_pair(b"ab", "cX", b"de")
    for flags in (socket.MSG_PEEK, socket.MSG_PEEK, 0, 0):
        attempt("recv MSG_OOB", accepted.recv, 10, socket.MSG_OOB | flags)
    show_urgent(accepted)
    attempt("recv MSG_OOB afterwards", accepted.recv, 10, socket.MSG_OOB)


@case
def urgent_octet_is_passed_over():
    client, accepted = urgent_pair(b"ab", "X", b"de")
    show_urgent(accepted, 2)
    attempt("recv MSG_OOB afterwards", accepted.recv, 10, socket.MSG_OOB)


@case
def urgent_octet_in_line():
    client, accepted = urgent_pair(b"ab", "X", b"de", inline=True)
    attempt("recv MSG_OOB", accepted.recv, 10, socket.MSG_OOB)
    show_urgent(accepted)


@case
def urgent_octet_alone():
    client, accepted = urgent_pair("X")
    print("poll:", poll_of(accepted, select.POLLIN | select.POLLPRI), "mark:", at_mark(accepted), "unread:", unread(accepted))
    attempt("peek", accepted.recv, 10, socket.MSG_PEEK)
    attempt("recv MSG_OOB", accepted.recv, 10, socket.MSG_OOB)
    show_urgent(accepted)


@case
def urgent_octet_alone_in_line():
    client, accepted = urgent_pair("X", inline=True)
    show_urgent(accepted)


@case
def urgent_octet_at_the_end():
    client, accepted = urgent_pair(b"a", "X")
    client.shutdown(socket.SHUT_WR)
    readable(accepted)
    time.sleep(0.05)
    attempt("recv", accepted.recv, 10)
    attempt("recv MSG_OOB", accepted.recv, 10, socket.MSG_OOB)
    attempt("recv at the mark", accepted.recv, 10)
    print("poll:", poll_of(accepted, select.POLLIN | select.POLLPRI), "mark:", at_mark(accepted))
    attempt("recv MSG_OOB at the end", accepted.recv, 10, socket.MSG_OOB)


@case
def urgent_octets_in_a_row():
    client, accepted = pair()
    for octet in (b"X", b"Y", b"Z"):
        client.send(octet, socket.MSG_OOB)
        all_has_come(client, accepted)
        print("mark:", at_mark(accepted))
    client.send(b"ab")
    all_has_come(client, accepted)
    attempt("recv MSG_OOB", accepted.recv, 10, socket.MSG_OOB)
    show_urgent(accepted)


@case
def urgent_octets_that_were_overtaken():
    client, accepted = pair()
    for piece, flags in ((b"ab", 0), (b"X", socket.MSG_OOB), (b"cd", 0), (b"Y", socket.MSG_OOB), (b"e", 0)):
        client.send(piece, flags)
        all_has_come(client, accepted)
    show_urgent(accepted)


@case
def urgent_octet_after_one_that_was_taken():
    client, accepted = urgent_pair(b"a", "X")
    attempt("recv", accepted.recv, 10)
    attempt("recv MSG_OOB", accepted.recv, 10, socket.MSG_OOB)
    client.send(b"bY", socket.MSG_OOB)
    all_has_come(client, accepted)
    attempt("recv MSG_OOB again", accepted.recv, 10, socket.MSG_OOB)
    show_urgent(accepted)


@case
def waiting_for_all_ends_at_the_mark():
    client, accepted = urgent_pair(b"ab", "X", b"cdefgh")
    accepted.setblocking(True)
    attempt("recv", accepted.recv, 4, socket.MSG_WAITALL)
    attempt("recv", accepted.recv, 4, socket.MSG_WAITALL)
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 5)
    client.send(b"Y", socket.MSG_OOB)
    all_has_come(client, accepted)
    attempt("recv below the low water mark", accepted.recv, 100)


@case
def peeking_at_the_mark():
    client, accepted = urgent_pair(b"ab", "X", b"cd")
    attempt("peek", accepted.recv, 10, socket.MSG_PEEK)
    attempt("recv", accepted.recv, 10)
    attempt("peek at the mark", accepted.recv, 10, socket.MSG_PEEK)
    print("mark:", at_mark(accepted))
    show_urgent(accepted)


@case
def urgent_messages():
    client, accepted = urgent_pair(b"ab", "X")
    _, _, flags, _ = accepted.recvmsg(10)
    print("flags:", flags)
    for room in (0, 1):
        data, _, flags, _ = accepted.recvmsg(room, 0, socket.MSG_OOB | socket.MSG_PEEK)
        print("recvmsg:", data, "MSG_OOB:", bool(flags & socket.MSG_OOB), "MSG_TRUNC:", bool(flags & socket.MSG_TRUNC))
    print("sendmsg:", client.sendmsg([b"c", b"dY"], [], socket.MSG_OOB))
    all_has_come(client, accepted)
    attempt("recv MSG_OOB", accepted.recv, 1, socket.MSG_OOB)
    show_urgent(accepted)


@case
def urgency_is_an_exception():
    client, accepted = pair()
    epoll = select.epoll()
    epoll.register(accepted, select.EPOLLPRI | select.EPOLLET)
    print("select:", [len(found) for found in select.select([], [], [accepted], 0)], "epoll:", epoll.poll(0))
    client.send(b"ab")
    readable(accepted)
    print("select:", [len(found) for found in select.select([], [], [accepted], 0)])
    client.send(b"X", socket.MSG_OOB)
    print("select:", [len(found) for found in select.select([], [], [accepted], 10)])
    print("epoll:", names_of(epoll.poll(10), "EPOLL"), names_of(epoll.poll(0), "EPOLL"))
    accepted.setblocking(False)
    attempt("recv MSG_OOB", accepted.recv, 1, socket.MSG_OOB)
    print("select:", [len(found) for found in select.select([accepted], [], [accepted], 0)])


@case
def urgent_signal():
    client, accepted = pair()
    seen = []
    signal.signal(signal.SIGURG, lambda number, frame: seen.append(accepted.recv(1, socket.MSG_OOB | socket.MSG_DONTWAIT)))
    print("owner:", fcntl.fcntl(accepted, fcntl.F_GETOWN))
    fcntl.fcntl(accepted, fcntl.F_SETOWN, os.getpid())
    print("owner is me:", fcntl.fcntl(accepted, fcntl.F_GETOWN) == os.getpid())
    attempt("owner that is nobody", fcntl.fcntl, accepted, fcntl.F_SETOWN, 2**22 + 1)

    def send():
        time.sleep(0.2)
        client.send(b"X", socket.MSG_OOB)
        time.sleep(0.2)
        client.send(b"done")
    sender = threading.Thread(target=send)
    sender.start()
    attempt("recv", accepted.recv, 10)
    print("handled:", seen)
    sender.join()
    signal.signal(signal.SIGURG, signal.SIG_DFL)


@case
def urgent_signal_of_another_socket():
    client, accepted = pair()
    other, waiting = pair()
    seen = []
    signal.signal(signal.SIGURG, lambda number, frame: seen.append(number == signal.SIGURG))
    fcntl.fcntl(accepted, fcntl.F_SETOWN, os.getpid())

    def send():
        time.sleep(0.2)
        client.send(b"X", socket.MSG_OOB)
        time.sleep(0.2)
        other.send(str(len(seen)).encode())
    sender = threading.Thread(target=send)
    sender.start()
    attempt("recv, with as many signals before", waiting.recv, 10)
    sender.join()
    print("poll:", poll_of(accepted, select.POLLPRI), "signals:", seen)
    fcntl.fcntl(accepted, fcntl.F_SETOWN, 0)
    client.send(b"Y", socket.MSG_OOB)
    print("poll:", poll_of(accepted, select.POLLPRI, 5000), "signals:", seen)


@case
def urgent_signal_without_calls():
    client, accepted = pair()
    seen = []
    signal.signal(signal.SIGURG, lambda number, frame: seen.append(accepted.recv(1, socket.MSG_OOB)))
    fcntl.fcntl(accepted, fcntl.F_SETOWN, os.getpid())
    child = os.fork()
    if child == 0:
        time.sleep(0.2)
        client.send(b"X", socket.MSG_OOB)
        time.sleep(0.2)
        client.send(b"Y", socket.MSG_OOB)
        time.sleep(1)
        os._exit(0)
    signal.pause()
    print("after pause:", seen)
    deadline = time.monotonic() + 10
    while len(seen) < 2 and time.monotonic() < deadline:
        pass
    print("after work:", seen)
    os.waitpid(child, 0)


@case
def urgent_octets_among_megabytes():
    client, accepted = pair()
    total, marks = 3_000_000, 30

    def send():
        for n in range(marks):
            client.sendall(b"-" * (total // marks - 1))
            client.sendall(bytes([65 + n]), socket.MSG_OOB)
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    sender = threading.Thread(target=send)
    sender.start()
    received = bytearray()
    wrong = 0
    while len(received) < total:
        if at_mark(accepted):
            wrong += accepted.recv(1, socket.MSG_PEEK) not in (bytes([65 + n]) for n in range(marks))
        received += accepted.recv(100_000)
    sender.join()
    print("octets:", len(received), "urgent:", bytes(received).replace(b"-", b""), "wrong marks:", wrong)


@case
def urgency_does_not_outlive_a_fork():
    client, accepted = urgent_pair(b"ab", "X", b"cd")
    child = os.fork()
    if child == 0:
        attempt("child: recv MSG_OOB", accepted.recv, 1, socket.MSG_OOB)
        attempt("child: recv", accepted.recv, 10)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    attempt("recv MSG_OOB", accepted.recv, 1, socket.MSG_OOB)
    show_urgent(accepted)


# --- TCP Fast Open

TCP_FASTOPEN_CONNECT = 30


@case
def fast_open_options():
    tcp = socket.IPPROTO_TCP
    server, client = socket.socket(), socket.socket()
    print("default:", server.getsockopt(tcp, socket.TCP_FASTOPEN), client.getsockopt(tcp, TCP_FASTOPEN_CONNECT))
    attempt("of a client", client.setsockopt, tcp, TCP_FASTOPEN_CONNECT, 1)
    attempt("of a client, strange", client.setsockopt, tcp, TCP_FASTOPEN_CONNECT, 2)
    print("set:", client.getsockopt(tcp, TCP_FASTOPEN_CONNECT))
    server.bind((LOOPBACK, 0))
    server.listen(5)
    attempt("of a listener", server.setsockopt, tcp, socket.TCP_FASTOPEN, 16)
    attempt("negative", server.setsockopt, tcp, socket.TCP_FASTOPEN, -1)
    print("set:", server.getsockopt(tcp, socket.TCP_FASTOPEN))
    attempt("as a client", server.setsockopt, tcp, TCP_FASTOPEN_CONNECT, 1)
    client.connect(server.getsockname())
    attempt("of a connection", client.setsockopt, tcp, socket.TCP_FASTOPEN, 1)
    attempt("of a connection, as a client", client.setsockopt, tcp, TCP_FASTOPEN_CONNECT, 0)


@case
def fast_open_without_cookie():
    server = listener()
    client = socket.socket()
    attempt("sendto", client.sendto, b"hello", socket.MSG_FASTOPEN, server.getsockname())
    accepted, _ = server.accept()
    attempt("recv", accepted.recv, 100)
    attempt("sendto again", client.sendto, b"more", socket.MSG_FASTOPEN, server.getsockname())
    attempt("send", client.send, b"world")
    attempt("recv", accepted.recv, 100)


@case
def fast_open_without_cookie_or_blocking():
    server = listener()
    client = socket.socket()
    client.setblocking(False)
    attempt("sendto", client.sendto, b"hello", socket.MSG_FASTOPEN, server.getsockname())
    print("writable:", bool(select.select([], [client], [], 5)[1]))
    attempt("send", client.send, b"hello")
    accepted, _ = server.accept()
    attempt("recv", accepted.recv, 100)


@case
def fast_open_by_connect_without_cookie():
    server = listener()
    for blocking in (True, False):
        client = socket.socket()
        client.setblocking(blocking)
        client.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
        attempt("connect", client.connect, server.getsockname())
        print("writable:", bool(select.select([], [client], [], 5)[1]))
        attempt("send", client.send, b"hello")
        accepted, _ = server.accept()
        attempt("recv", accepted.recv, 100)


@case
def fast_open_refused():
    attempt("sendto", socket.socket().sendto, b"hello", socket.MSG_FASTOPEN, (LOOPBACK, unused_port()))
    attempt("to nobody", socket.socket().send, b"hello", socket.MSG_FASTOPEN)
    client, accepted = pair()
    attempt("on a connection", client.sendto, b"hello", socket.MSG_FASTOPEN, accepted.getsockname())
    attempt("on a listener", listener().sendto, b"hello", socket.MSG_FASTOPEN, accepted.getsockname())


# --- ends

@case
def shutdown_for_writing():
    client, accepted = pair()
    client.send(b"last")
    client.shutdown(socket.SHUT_WR)
    print("recv:", accepted.recv(100), accepted.recv(100))
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    attempt("send", client.send, b"x")
    accepted.send(b"still heard")
    print("recv:", client.recv(100))
    accepted.close()
    print("recv:", client.recv(100))


@case
def shutdown_for_reading():
    client, accepted = pair()
    accepted.shutdown(socket.SHUT_RD)
    print("recv:", accepted.recv(100))
    accepted.send(b"x")
    print("recv:", client.recv(100))


@case
def who_reads_and_writes_no_more_resets_who_sends_on():
    for how in (socket.SHUT_RDWR,), (socket.SHUT_WR, socket.SHUT_RD), (socket.SHUT_RD,):
        client, accepted = pair()
        for each in how:
            client.shutdown(each)
        accepted.send(b"text")
        readable(accepted, 0.5)
        print("poll:", poll_of(accepted, select.POLLIN | select.POLLERR))
        attempt("send", accepted.send, b"more")
        if len(how) == 2 or how[0] == socket.SHUT_RDWR:
            attempt("recv", accepted.recv, 1)
        print("SO_ERROR:", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


@case
def shutdown_twice():
    client, accepted = pair()
    attempt("shutdown", client.shutdown, socket.SHUT_WR)
    attempt("shutdown", client.shutdown, socket.SHUT_WR)
    attempt("shutdown", client.shutdown, socket.SHUT_RDWR)
    attempt("shutdown 7", client.shutdown, 7)
    print("recv:", accepted.recv(1))


@case
def write_after_reset():
    client, accepted = pair()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    # The reset may take its time; until then the socket is writable.
    readable(accepted)
    print("poll:", poll_of(accepted, timeout=5000))
    attempt("recv", accepted.recv, 1)
    attempt("recv", accepted.recv, 1)
    attempt("send", accepted.send, b"x")


@case
def error_after_reset():
    client, accepted = pair()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    readable(accepted)
    print("SO_ERROR:", errno.errorcode.get(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)))
    attempt("recv", accepted.recv, 1)


@case
def close_with_unread_data_resets():
    client, accepted = pair()
    client.send(b"unread")
    readable(accepted)
    accepted.close()
    readable(client)
    attempt("recv", client.recv, 1)


@case
def an_answer_leaves_though_the_question_was_not_read():
    def answer(lingers):
        client, accepted = pair()
        client.send(b"question" * 100)
        readable(accepted)
        accepted.recv(1)
        if not lingers:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.send(b"a" * 10000)
        accepted.close()
        client.settimeout(10)
        try:
            return len(client.recv(10000, socket.MSG_WAITALL))
        except OSError as error:
            return errno.errorcode.get(error.errno)

    # The close may come in the same moment as the answer, or later.
    for lingers in True, False:
        print("answers:", {answer(lingers) for _ in range(30)})


@case
def broken_pipe_signal():
    caught = []
    signal.signal(signal.SIGPIPE, lambda *_: caught.append("SIGPIPE"))
    client, _accepted = pair()
    client.shutdown(socket.SHUT_WR)
    attempt("send", client.send, b"x")
    print("signals:", caught)
    attempt("send MSG_NOSIGNAL", client.send, b"x", socket.MSG_NOSIGNAL)
    print("signals:", caught)
    attempt("write", os.write, client.fileno(), b"x")
    print("signals:", caught)


@case
def broken_pipe_kills():
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        client, _accepted = pair()
        client.shutdown(socket.SHUT_WR)
        client.send(b"x")
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print("killed by SIGPIPE:", os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPIPE)


@case
def a_clamp_is_set_again_as_it_is():
    """py-amqp reads all options and sets them as they are."""
    client, accepted = pair()
    for end in client, accepted:
        clamp = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP)
        print("clamp:", clamp > 0)
        attempt("set again", end.setsockopt, socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, clamp)
        attempt("none", end.setsockopt, socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, 0)


@case
def who_closes_first_does_not_linger():
    """Dropbear asks for SO_LINGER, and closes what its child has."""
    client, accepted = pair()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
    begin, closed = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(begin, 1)
        attempt("child sends", accepted.send, b"still here")
        accepted.close()
        sys.stdout.flush()
        os._exit(0)
    accepted.close()
    os.write(closed, b"x")
    os.waitpid(child, 0)
    attempt("client receives", client.recv, 100)
    attempt("client receives", client.recv, 100)


def lingering(seconds, blocking=True):
    """A connection that waits in close(2), and whose peer reads nothing: its octets, and both ends."""
    client, accepted = pair()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
    sent = fill(client)
    client.setblocking(blocking)
    return sent, client, accepted


def fill(sock):
    """Sends until nothing more is taken, also a moment later; how many octets."""
    sock.setblocking(False)
    sent, last = 0, time.monotonic()
    while time.monotonic() < last + 0.2:
        try:
            sent, last = sent + sock.send(bytes(65536)), time.monotonic()
        except BlockingIOError:
            time.sleep(0.01)
    return sent


def arrives(sock, sent):
    """Says how a connection ends, and whether all that was sent has come before."""
    count = 0
    while True:
        try:
            octets = sock.recv(1 << 20)
        except OSError as error:
            return errno.errorcode[error.errno]
        if not octets:
            return "all of it" if count == sent else "not all of it"
        count += len(octets)


def waits(least, function, *arguments):
    """Says whether a call takes `least` seconds, and far less than a minute."""
    begun = time.monotonic()
    function(*arguments)
    return least - 0.1 <= time.monotonic() - begun < 30


def waits_until_all_is_read(function, accepted, sent):
    """Says whether a call waits until the peer has read everything, half a second later."""
    got = []
    reader = threading.Timer(0.5, lambda: got.append(arrives(accepted, sent)))
    reader.start()
    answer = waits(0.5, function)
    reader.join()
    return answer, got


@case
def close_lingers_until_the_time_is_over():
    for blocking in True, False:
        sent, client, accepted = lingering(1, blocking)
        print("close waits:", waits(1, client.close))
        print("the peer gets", arrives(accepted, sent))
    sent, client, accepted = lingering(1)
    client.shutdown(socket.SHUT_WR)
    print("after shutdown close waits:", waits(1, client.close))
    print("the peer gets", arrives(accepted, sent))


@case
def close_lingers_until_everything_is_acknowledged():
    sent, client, accepted = lingering(300)
    print("close waits:", waits_until_all_is_read(client.close, accepted, sent))
    client, accepted = pair()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 300))
    client.send(b"text")
    print("nothing to wait for:", waits(0, client.close), accepted.recv(10), accepted.recv(10))


@case
def close_does_not_linger_where_it_resets():
    sent, client, accepted = lingering(300)
    accepted.send(b"unread")
    readable(client)
    print("with unread text close returns:", waits(0, client.close))
    print("the peer gets", arrives(accepted, sent))
    sent, client, accepted = lingering(300)
    writer = threading.Timer(0.5, accepted.send, (b"late",))
    writer.start()
    print("close waits until text comes:", waits(0.5, client.close))
    writer.join()
    print("the peer gets", arrives(accepted, sent))
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 300))
    print("without a connection close returns:", waits(0, sock.close))


@case
def a_number_is_free_while_its_close_lingers():
    """What closes a number without close(2) waits, too."""
    sent, client, accepted = lingering(300)
    number = client.fileno()
    closer = threading.Thread(target=client.close)
    closer.start()
    while True:
        try:
            os.fstat(number)
        except OSError as error:
            print("meanwhile:", errno.errorcode[error.errno])
            break
    print("it still waits:", closer.is_alive())
    print("the peer gets", arrives(accepted, sent))
    closer.join()
    library = ctypes.CDLL(None)
    ways = {
        "dup2": lambda fd: os.dup2(0, fd),
        "close_range": lambda fd: library.close_range(fd, fd, 0),
    }
    for name, way in ways.items():
        sent, client, accepted = lingering(300)
        number = client.detach()
        print(name, "waits:", waits_until_all_is_read(lambda: way(number), accepted, sent))


@case
def only_the_last_close_lingers():
    sent, client, accepted = lingering(300)
    other = client.dup()
    print("first close returns:", waits(0, client.close))
    print("last waits:", waits_until_all_is_read(other.close, accepted, sent))
    sent, client, accepted = lingering(300)
    begin, closed = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(begin, 1)
        print("child waits:", waits(0.5, client.close), flush=True)
        os._exit(0)
    print("parent returns:", waits(0, client.close), flush=True)
    os.write(closed, b"x")
    time.sleep(0.7)
    got = arrives(accepted, sent)
    os.waitpid(child, 0)
    print("the peer gets", got)


@case
def a_process_that_ends_does_not_linger():
    sent, client, accepted = lingering(300)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    child = os.fork()
    if child == 0:
        accepted.close()
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    client.close()
    os.kill(child, signal.SIGCONT)
    print("the child ends:", waits(0, os.waitpid, child, 0))
    print("the peer gets", arrives(accepted, sent))


@case
def a_signal_ends_the_wait_of_close():
    signal.signal(signal.SIGALRM, lambda *_: print("signal"))
    signal.siginterrupt(signal.SIGALRM, False)
    sent, client, accepted = lingering(300)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    print("close waits:", waits(0.5, client.close))
    print("the peer gets", arrives(accepted, sent))


@case
def close_wakes_nobody_but_the_peer():
    client, accepted = pair()
    got = []
    reader = threading.Thread(target=lambda: got.append(accepted.recv(1)))
    reader.start()
    time.sleep(0.1)
    client.close()
    reader.join(5)
    print("recv:", got)


@case
def shutdown_wakes_a_reader():
    client, accepted = pair()
    got = []
    reader = threading.Thread(target=lambda: got.append(accepted.recv(1)))
    reader.start()
    time.sleep(0.1)
    accepted.shutdown(socket.SHUT_RDWR)
    reader.join(5)
    print("recv:", got, "alive:", reader.is_alive())


@case
def closed_descriptors():
    client, _accepted = pair()
    number = client.fileno()
    client.close()
    attempt("read", os.read, number, 1)
    attempt("write", os.write, number, b"x")
    attempt("fstat", lambda: os.fstat(number).st_mode)
    attempt("close", os.close, number)


# --- options

@case
def options():
    client, accepted = pair()
    tcp, sol = socket.IPPROTO_TCP, socket.SOL_SOCKET
    for name in ("TCP_NODELAY", "TCP_CORK", "TCP_QUICKACK"):
        option = getattr(socket, name)
        default = client.getsockopt(tcp, option)
        client.setsockopt(tcp, option, 1)
        print(name, "default:", default if name != "TCP_QUICKACK" else "-", "set:", client.getsockopt(tcp, option))
    for name in ("SO_REUSEADDR", "SO_KEEPALIVE", "SO_BROADCAST", "SO_REUSEPORT", "SO_OOBINLINE"):
        option = getattr(socket, name)
        default = client.getsockopt(sol, option)
        client.setsockopt(sol, option, 1)
        print(name, "default:", default, "set:", client.getsockopt(sol, option))
    for name, value in (("TCP_KEEPIDLE", 100), ("TCP_KEEPINTVL", 7), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 5000)):
        option = getattr(socket, name)
        client.setsockopt(tcp, option, value)
        print(name, client.getsockopt(tcp, option))
    print("SO_TYPE:", client.getsockopt(sol, socket.SO_TYPE), "SO_PROTOCOL:", client.getsockopt(sol, socket.SO_PROTOCOL),
          "SO_DOMAIN:", client.getsockopt(sol, socket.SO_DOMAIN))
    print("SO_LINGER:", struct.unpack("ii", client.getsockopt(sol, socket.SO_LINGER, 8)))
    client.setsockopt(sol, socket.SO_RCVBUF, 100_000)
    client.setsockopt(sol, socket.SO_SNDBUF, 100_000)
    print("SO_RCVBUF:", client.getsockopt(sol, socket.SO_RCVBUF), "SO_SNDBUF:", client.getsockopt(sol, socket.SO_SNDBUF))
    attempt("unknown option", client.getsockopt, sol, 9999)
    attempt("unknown level", client.getsockopt, 9999, 1)
    attempt("unknown TCP option", client.setsockopt, tcp, 999, 1)
    attempt("short value", client.setsockopt, tcp, socket.TCP_NODELAY, b"x")
    attempt("TCP_KEEPIDLE 0", client.setsockopt, tcp, socket.TCP_KEEPIDLE, 0)
    accepted.close()


@case
def options_are_inherited():
    server = socket.socket()
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
    server.bind((LOOPBACK, 0))
    server.listen()
    client = socket.create_connection(server.getsockname(), timeout=10)
    accepted, _ = server.accept()
    print("TCP_NODELAY:", accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    print("SO_KEEPALIVE:", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
    print("SO_LINGER:", struct.unpack("ii", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)))
    client.close()


@case
def what_comes_from_too_far_away():
    """RFC 5082: segments with less than IP_MINTTL or IPV6_MINHOPCOUNT are dropped, and not answered."""
    v4, v6 = (socket.AF_INET, (0, 21), (0, socket.IP_TTL)), (socket.AF_INET6, (41, 73), (41, socket.IPV6_UNICAST_HOPS))
    values = (0, 1, 255, 256, -1, b"", b"\5", b"\5\0", b"\7\0\0\0\0\0")
    for (family, kind), (_, least, _) in itertools.product(
            itertools.product((socket.AF_INET, socket.AF_INET6), (socket.SOCK_STREAM, socket.SOCK_DGRAM)), (v4, v6)):
        sock = socket.socket(family, kind)
        for value in values:
            attempt(f"{family.name} {kind.name} {least} {value}", sock.setsockopt, *least, value)
            attempt("is", sock.getsockopt, *least)
            attempt("of one octet", sock.getsockopt, *least, 1)
    # The other family's option is of no meaning, unless the socket has both families.
    for at, to, least, hops in (("127.0.0.1", "127.0.0.1", *v4[1:]), ("::1", "::1", *v6[1:]), ("::", "127.0.0.1", *v4[1:])):
        server = socket.socket(socket.AF_INET6 if ":" in at else socket.AF_INET)
        server.setsockopt(*least, 100)
        server.bind((at, 0))
        server.listen()
        there = (to, server.getsockname()[1])

        def connect(far, timeout=10):
            client = socket.socket(socket.AF_INET6 if ":" in to else socket.AF_INET)
            client.setsockopt(*hops, far)
            client.settimeout(timeout)
            attempt(f"from {far} to {at}", client.connect, there)
            return client

        connect(99, 0.3).close()
        client = connect(100)
        accepted, _ = server.accept()
        print("inherited:", accepted.getsockopt(*least))
        client.sendall(b"a")
        print(accepted.recv(10))
        client.setsockopt(*hops, 99)
        client.sendall(b"b")
        accepted.settimeout(0.3)
        attempt("from 99", accepted.recv, 10)
        accepted.setsockopt(*least, 99)
        accepted.settimeout(10)
        attempt("from 99, after all", accepted.recv, 10)
        # The acknowledgement of what this end sends is judged, too.
        accepted.setsockopt(*least, 100)
        accepted.sendall(b"c")
        print("received:", client.recv(10))
        time.sleep(0.3)
        print("not acknowledged:", struct.unpack("i", fcntl.ioctl(accepted, termios.TIOCOUTQ, bytes(4)))[0])
        server.setsockopt(*least, 0)
        connect(1).close()
        # So is the answer to a SYN.
        client = socket.socket(socket.AF_INET6 if ":" in to else socket.AF_INET)
        client.setsockopt(*least, 65)
        client.settimeout(0.3)
        attempt("from 64", client.connect, there)
        client = socket.socket(socket.AF_INET6 if ":" in to else socket.AF_INET)
        client.setsockopt(*least, 64)
        client.settimeout(10)
        attempt("from 64 after all", client.connect, there)


@case
def segments_by_tcp_info():
    """What a connection counts: segments with text in both directions, and those that have arrived."""
    names = {"data_segs_in": 152, "data_segs_out": 156, "delivered": 192}

    def counts(sock):
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
        words = {name: struct.unpack_from("I", info, at)[0] for name, at in names.items()}
        return words, "window bounded:", struct.unpack_from("I", info, 64)[0] > 1000

    client, accepted = pair()
    for end in client, accepted:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print("new:", counts(client), counts(accepted))
    for _ in range(5):
        client.send(b"question")
        accepted.recv(100)
        accepted.send(b"answer")
        client.recv(100)
    for _ in range(3):
        client.send(b"x")
        accepted.recv(1)
    # The last ACK may be late.
    wait_until(time.time_ns() + 300_000_000)
    print("used:", counts(client), counts(accepted))
    client.shutdown(socket.SHUT_WR)
    accepted.recv(1)
    await_state(client, 5)
    print("shut:", counts(client), counts(accepted))


@case
def times_by_tcp_info():
    """How long ago text was sent, and came, by order of size."""
    names = {"last_data_sent": 44, "last_data_recv": 52}

    def ages(what, *socks):
        for sock in socks:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
            times = {name: struct.unpack_from("I", info, at)[0] for name, at in names.items()}
            print(what, {name: "new" if time < 400 else "old" if time < 20_000 else time for name, time in times.items()})

    client, accepted = pair()
    for end in client, accepted:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ages("established", client, accepted)
    client.send(b"question")
    accepted.recv(100)
    time.sleep(0.8)
    ages("later", client, accepted)
    accepted.send(b"answer")
    client.recv(100)
    ages("answered", client, accepted)
    time.sleep(0.8)
    client.send(b"question")
    accepted.recv(100)
    ages("asked", client, accepted)


@case
def connections_to_many():
    """There is no connection to a group or to everybody, and connect(2) says so at once."""
    for family, addr in (
        (socket.AF_INET, "224.0.0.1"), (socket.AF_INET, "239.255.1.2"), (socket.AF_INET, "255.255.255.255"),
        (socket.AF_INET6, "ff02::1"), (socket.AF_INET6, "ff0e::1"), (socket.AF_INET6, "::ffff:224.0.0.1"),
    ):
        for blocks in True, False:
            sock = socket.socket(family)
            sock.setblocking(blocks)
            attempt(addr, sock.connect, (addr, 80))
            print(state_of(sock), sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), sock.getsockname()[1])
            sock.bind(("::" if family == socket.AF_INET6 else "", 0))
            attempt(addr, sock.connect, (addr, 80))
            attempt("listen", sock.listen)


@case
def state_by_tcp_info():
    client, accepted = pair()
    state = lambda sock: sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[0]
    print("established:", state(client), state(accepted))
    client.shutdown(socket.SHUT_WR)
    accepted.recv(1)
    time.sleep(0.1)
    print("half closed:", state(client), state(accepted))
    server = listener()
    print("listening:", state(server), "new:", state(socket.socket()))


@case
def cork_holds_back():
    client, accepted = pair()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    client.send(b"held")
    print("arrived while corked:", readable(accepted, 0.05))
    client.send(b" back")
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    readable(accepted)
    time.sleep(0.05)
    print("recv:", accepted.recv(100))


@case
def nodelay_again_sends_what_is_held_back():
    for held_by in ("TCP_CORK", "MSG_MORE"):
        client, accepted = pair()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if held_by == "TCP_CORK":
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        for _ in range(2):
            client.send(b"held", socket.MSG_MORE if held_by == "MSG_MORE" else 0)
            print(held_by, "arrived:", readable(accepted, 0.05), end=" ")
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            print("after the option:", readable(accepted, 0.1), accepted.recv(100))


@case
def options_before_connect_count_for_the_handshake():
    seen = set()
    server = listener()
    for _ in range(400):
        client = socket.socket()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 600)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.connect(server.getsockname())
        accepted, _ = server.accept()
        seen.add(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG))
        client.close()
        accepted.close()
    print("segments of the server:", seen)


@case
def deferred_accept():
    server = listener()
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 5)
    client = socket.create_connection(server.getsockname(), timeout=10)
    print("before data:", readable(server, 0.2))
    client.send(b"x")
    print("with data:", readable(server, 5))
    print("recv:", server.accept()[0].recv(1))


# --- waiting

@case
def poll_events():
    client, accepted = pair()
    print("idle:", poll_of(client))
    accepted.send(b"x")
    readable(client)
    print("data:", poll_of(client))
    client.recv(1)
    accepted.shutdown(socket.SHUT_WR)
    readable(client)
    print("end of the peer:", poll_of(client, select.POLLIN | select.POLLOUT | select.POLLRDHUP))
    client.shutdown(socket.SHUT_WR)
    time.sleep(0.1)
    print("end of both:", poll_of(client, select.POLLIN | select.POLLOUT | select.POLLRDHUP))
    poll = select.poll()
    number = client.fileno()
    client.close()
    poll.register(number, select.POLLIN)
    print("closed:", names_of(poll.poll(0), "POLL"))


@case
def select_events():
    client, accepted = pair()
    count = lambda sets: [len(each) for each in sets]
    print("idle:", count(select.select([client], [client], [client], 0)))
    accepted.send(b"x")
    readable(client)
    print("data:", count(select.select([client, accepted], [client], [client], 0)))
    started = time.monotonic()
    print("time out:", count(select.select([accepted], [], [], 0.1)), time.monotonic() - started > 0.09)


@case
def epoll_level():
    client, accepted = pair()
    epoll = select.epoll()
    epoll.register(accepted, select.EPOLLIN)
    print("idle:", epoll.poll(0))
    client.send(b"ab")
    print("data:", names_of(epoll.poll(5), "EPOLL"))
    accepted.recv(1)
    print("some left:", names_of(epoll.poll(0), "EPOLL"))
    accepted.recv(1)
    print("none left:", epoll.poll(0))
    epoll.modify(accepted, select.EPOLLIN | select.EPOLLOUT)
    print("writable too:", names_of(epoll.poll(0), "EPOLL"))
    attempt("add twice", epoll.register, accepted, select.EPOLLIN)
    epoll.unregister(accepted)
    attempt("modify what is not in", epoll.modify, accepted, select.EPOLLIN)
    attempt("delete what is not in", epoll.unregister, accepted)


@case
def epoll_edge():
    client, accepted = pair()
    epoll = select.epoll()
    epoll.register(accepted, select.EPOLLIN | select.EPOLLET)
    client.send(b"a")
    print("first:", names_of(epoll.poll(5), "EPOLL"))
    print("again without reading:", epoll.poll(0.05))
    client.send(b"b")
    print("more:", names_of(epoll.poll(5), "EPOLL"))
    print("recv:", accepted.recv(10))
    client.close()
    print("end:", names_of(epoll.poll(5), "EPOLL"))
    print("again:", epoll.poll(0.05))


@case
def epoll_edge_for_writing():
    client, accepted = pair()
    client.setblocking(False)
    epoll = select.epoll()
    epoll.register(client, select.EPOLLOUT | select.EPOLLET)
    print("first:", names_of(epoll.poll(5), "EPOLL"))
    print("again:", epoll.poll(0.05))
    sent = 0
    try:
        while True:
            sent += client.send(bytes(65536))
    except BlockingIOError:
        pass
    print("full:", epoll.poll(0.05))
    got = 0
    while got < sent:
        got += len(accepted.recv(1 << 20))
    print("room again:", names_of(epoll.poll(5), "EPOLL"))


@case
def epoll_one_shot():
    client, accepted = pair()
    epoll = select.epoll()
    epoll.register(accepted, select.EPOLLIN | select.EPOLLONESHOT)
    client.send(b"a")
    print("first:", names_of(epoll.poll(5), "EPOLL"))
    print("again:", epoll.poll(0.05))
    epoll.modify(accepted, select.EPOLLIN | select.EPOLLONESHOT)
    print("armed again:", names_of(epoll.poll(5), "EPOLL"))


@case
def epoll_hang_up():
    client, accepted = pair()
    epoll = select.epoll()
    epoll.register(accepted, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLOUT)
    client.shutdown(socket.SHUT_WR)
    readable(accepted)
    print("half:", names_of(epoll.poll(5), "EPOLL"))
    accepted.shutdown(socket.SHUT_WR)
    time.sleep(0.1)
    print("both:", names_of(epoll.poll(5), "EPOLL"))


@case
def epoll_nested():
    client, accepted = pair()
    inner, outer = select.epoll(), select.epoll()
    inner.register(accepted, select.EPOLLIN)
    outer.register(inner, select.EPOLLIN)
    print("idle:", outer.poll(0))
    client.send(b"x")
    print("outer:", names_of(outer.poll(5), "EPOLL"), "inner:", names_of(inner.poll(0), "EPOLL"))
    accepted.recv(1)
    print("read:", outer.poll(0))
    print("poll of an epoll:", poll_of(inner, select.POLLIN))


@case
def epoll_mixed():
    client, accepted = pair()
    reading, writing = os.pipe()
    epoll = select.epoll()
    epoll.register(accepted, select.EPOLLIN)
    epoll.register(reading, select.EPOLLIN)
    print("idle:", epoll.poll(0))
    os.write(writing, b"x")
    print("pipe:", [number == reading for number, _ in epoll.poll(5)])
    client.send(b"x")
    readable(accepted)
    print("both:", sorted(number == reading for number, _ in epoll.poll(5)))
    os.read(reading, 1)
    print("socket:", [number == reading for number, _ in epoll.poll(5)])
    accepted.recv(1)
    threading.Timer(0.1, os.write, (writing, b"x")).start()
    print("pipe while waiting:", [number == reading for number, _ in epoll.poll(5)])
    os.read(reading, 1)
    threading.Timer(0.1, client.send, (b"x",)).start()
    print("socket while waiting:", [number == reading for number, _ in epoll.poll(5)])


@case
def poll_mixed():
    client, accepted = pair()
    reading, writing = os.pipe()
    poll = select.poll()
    poll.register(accepted, select.POLLIN)
    poll.register(reading, select.POLLIN)
    threading.Timer(0.1, os.write, (writing, b"x")).start()
    print("pipe:", [number == reading for number, _ in poll.poll(5000)])
    os.read(reading, 1)
    threading.Timer(0.1, client.send, (b"x",)).start()
    print("socket:", [number == reading for number, _ in poll.poll(5000)])


@case
def epoll_forgets_what_is_closed():
    client, accepted = pair()
    epoll = select.epoll()
    epoll.register(accepted, select.EPOLLIN)
    client.send(b"x")
    readable(accepted)
    accepted.close()
    print("closed:", epoll.poll(0.05))


@case
def epoll_watches_a_duplicate():
    client, accepted = pair()
    other = os.dup(accepted.fileno())
    epoll = select.epoll()
    epoll.register(other, select.EPOLLIN)
    accepted.close()
    client.send(b"x")
    print("duplicate:", [number == other for number, _ in epoll.poll(5)])
    print("read:", os.read(other, 10))


@case
def many_epolls_see_one_socket():
    client, accepted = pair()
    epolls = [select.epoll() for _ in range(3)]
    for epoll in epolls:
        epoll.register(accepted, select.EPOLLIN)
    client.send(b"x")
    print([names_of(epoll.poll(5), "EPOLL") for epoll in epolls])


@case
def epoll_of_a_listener():
    server = listener()
    epoll = select.epoll()
    epoll.register(server, select.EPOLLIN)
    print("idle:", epoll.poll(0))
    clients = [socket.create_connection(server.getsockname(), timeout=10) for _ in range(3)]
    for _ in clients:
        print("waiting:", names_of(epoll.poll(5), "EPOLL"))
        server.accept()
    print("none:", epoll.poll(0.05))


@case
def epoll_of_thousands():
    """One call tells of all that is ready, if the program has room for it: of sockets, pipes, and both."""
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (10000, 10000))
    client, accepted = pair()
    client.send(b"octet")
    print(select.select([accepted], [], [], 10)[0] == [accepted])
    reader, writer = os.pipe()
    os.write(writer, b"octet")
    sockets, pipes = ([os.dup(number) for _ in range(2000)] for number in (accepted.fileno(), reader))
    for what in (sockets, pipes, sockets + pipes):
        epoll = select.epoll()
        for number in what:
            epoll.register(number, select.EPOLLIN)
        print(len(set(epoll.poll(10, maxevents=len(what) + 1000))))
        for number in what[:-1]:
            epoll.unregister(number)
        print(len(set(epoll.poll(10, maxevents=len(what) + 1000))))


@case
def interrupted_calls_continue():
    caught = []
    signal.signal(signal.SIGALRM, lambda *_: caught.append("SIGALRM"))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    client, accepted = pair()
    threading.Timer(0.3, client.send, (b"late",)).start()
    print("recv:", accepted.recv(10), caught)


@case
def blocked_threads():
    server = listener(64)
    results = []

    def serve():
        accepted, _ = server.accept()
        results.append(accepted.recv(10))
        accepted.close()

    threads = [threading.Thread(target=serve) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    for number in range(8):
        client = socket.create_connection(server.getsockname(), timeout=10)
        client.send(b"%d" % number)
        client.recv(1)
        client.close()
    for thread in threads:
        thread.join(5)
    print(sorted(results))


# --- processes and descriptors

@case
def threads_listen_at_once():
    """More answers are on their way than anybody would expect, and each is somebody's."""
    threads, rounds, errors = 300, 3, []
    together = threading.Barrier(threads)

    def listen():
        for _ in range(rounds):
            together.wait()
            try:
                listener(1).close()
            except OSError as error:
                errors.append(error)

    all_of_them = [threading.Thread(target=listen) for _ in range(threads)]
    for thread in all_of_them:
        thread.start()
    for thread in all_of_them:
        thread.join()
    print("failed:", len(errors), set(map(str, errors)))


@case
def accept_after_fork():
    server = listener()
    child = os.fork()
    if child == 0:
        accepted, _ = server.accept()
        accepted.sendall(b"from the child: " + accepted.recv(100))
        accepted.close()
        os._exit(0)
    client = socket.create_connection(server.getsockname(), timeout=10)
    client.sendall(b"hello")
    print("recv:", receive_all(client))
    print("status:", os.waitpid(child, 0)[1])


@case
def a_fork_beside_a_thread_that_sleeps():
    client, accepted = pair()
    said = []
    thread = threading.Thread(target=lambda: said.append(accepted.recv(10)), daemon=True)
    thread.start()
    time.sleep(0.3)
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    client.send(b"text")
    thread.join(5)
    print("woken:", said)


@case
def who_sends_a_socket_has_a_thread_that_sleeps():
    client, accepted = pair()
    said = []
    thread = threading.Thread(target=lambda: said.append(accepted.recv(10)), daemon=True)
    thread.start()
    time.sleep(0.3)
    near, far = socket.socketpair()
    socket.send_fds(near, [b"x"], [accepted.fileno()])
    _, descriptors, _, _ = socket.recv_fds(far, 1, 1)
    client.send(b"text")
    thread.join(5)
    print("woken:", said, len(descriptors))


@case
def a_fork_while_a_timer_fires():
    # Whatever the library does for a child, its system calls are interrupted all the time.
    signal.signal(signal.SIGALRM, lambda *_: None)
    server = listener(64)
    statuses = set()
    for _ in range(20):
        signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
        child = os.fork()
        if child == 0:
            accepted, _ = server.accept()
            accepted.sendall(b"child")
            accepted.close()
            os._exit(0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        client = socket.create_connection(server.getsockname(), timeout=10)
        print("recv:", receive_all(client))
        statuses.add(os.waitpid(child, 0)[1])
    print("statuses:", statuses)


@case
def prefork_shares_the_work():
    server = listener(64)
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            while True:
                accepted, _ = server.accept()
                word = accepted.recv(10)
                accepted.sendall(word.upper())
                accepted.close()
                if word == b"stop":
                    os._exit(0)
        children.append(child)
    answers = []
    for word in [b"word"] * 40 + [b"stop"] * 4:
        client = socket.create_connection(server.getsockname(), timeout=10)
        client.sendall(word)
        answers.append(receive_all(client))
        client.close()
    print("answers:", answers.count(b"WORD"), answers.count(b"STOP"))
    print("statuses:", [os.waitpid(child, 0)[1] for child in children])


@case
def who_is_busy_gets_no_more_connections():
    server = listener(64)
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            # Nobody waits for these events, as in servers that accept where only one socket listens.
            epoll = select.epoll()
            epoll.register(server, select.EPOLLIN)
            while True:
                accepted, _ = server.accept()
                word = accepted.recv(10)
                accepted.sendall(word.upper())
                if word == b"stay":
                    poll_of(accepted, select.POLLIN, 60_000)
                    os._exit(0)
                accepted.close()
        children.append(child)
    for _ in range(100):
        with socket.create_connection(server.getsockname(), timeout=10) as client:
            client.sendall(b"word")
            receive_all(client)
    busy = []
    for _ in children:
        busy.append(socket.create_connection(server.getsockname(), timeout=20))
        busy[-1].sendall(b"stay")
        print("answer:", busy[-1].recv(10))
    idle = os.fork()
    if idle == 0:
        for _ in range(10):
            accepted, _ = server.accept()
            accepted.sendall(accepted.recv(10).upper())
            accepted.close()
        os._exit(0)
    for _ in range(10):
        with socket.create_connection(server.getsockname(), timeout=20) as client:
            client.sendall(b"word")
            print("answer:", receive_all(client))
    for client in busy:
        client.sendall(b"end")
    print("statuses:", [os.waitpid(child, 0)[1] for child in (*children, idle)])


@case
def connection_after_fork():
    client, accepted = pair()
    child = os.fork()
    if child == 0:
        client.close()
        accepted.sendall(b"child")
        os._exit(0)
    os.waitpid(child, 0)
    print("recv:", client.recv(100))
    accepted.sendall(b"parent")
    print("recv:", client.recv(100))
    accepted.close()
    print("recv:", client.recv(100))


@case
def end_only_when_all_have_closed():
    client, accepted = pair()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    accepted.close()
    print("end while the child lives:", readable(client, 0.2))
    os.close(writing)
    os.waitpid(child, 0)
    print("recv:", client.recv(1))


@case
def exec_with_a_socket():
    client, accepted = pair()
    child = os.fork()
    if child == 0:
        os.set_inheritable(accepted.fileno(), True)
        program = "import os, sys; n = int(sys.argv[1]); os.write(n, b'exec heard ' + os.read(n, 100))"
        os.execv(sys.executable, [sys.executable, "-c", program, str(accepted.fileno())])
    accepted.close()
    client.sendall(b"hello")
    print("recv:", client.recv(100))
    print("status:", os.waitpid(child, 0)[1], "recv:", client.recv(100))


@case
def exec_closes_what_says_so():
    client, accepted = pair()
    child = os.fork()
    if child == 0:
        client.close()
        os.execv("/bin/true", ["true"])
    accepted.close()
    os.waitpid(child, 0)
    print("recv:", client.recv(100))


@case
def exec_with_a_listener():
    server = listener()
    os.set_inheritable(server.fileno(), True)
    child = os.fork()
    if child == 0:
        program = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); c, _ = s.accept(); c.sendall(b'from exec')"
        os.execv(sys.executable, [sys.executable, "-c", program, str(server.fileno())])
    client = socket.create_connection(server.getsockname(), timeout=10)
    print("recv:", receive_all(client))
    os.waitpid(child, 0)


@case
def the_owner_of_a_socket_outlives_exec():
    program = """if True:
        import fcntl, os, signal, socket, sys, time
        client, accepted, got = socket.socket(fileno=int(sys.argv[1])), socket.socket(fileno=int(sys.argv[2])), []
        signal.signal(signal.SIGURG, lambda *_: got.append("SIGURG"))
        print("owner:", fcntl.fcntl(accepted, fcntl.F_GETOWN) == os.getpid(), fcntl.fcntl(client, fcntl.F_GETOWN))
        print("signal:", fcntl.fcntl(accepted, fcntl.F_GETSIG) == signal.SIGUSR1)
        client.send(b"!", socket.MSG_OOB)
        deadline = time.monotonic() + 5
        while not got and time.monotonic() < deadline:
            time.sleep(0.01)
        print(got)
    """
    child = os.fork()
    if child == 0:
        client, accepted = pair()
        fcntl.fcntl(accepted, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(accepted, fcntl.F_SETSIG, signal.SIGUSR1)
        # Urgent octets need no handler yet.
        signal.signal(signal.SIGURG, signal.SIG_IGN)
        for sock in (client, accepted):
            sock.set_inheritable(True)
        os.execv(sys.executable, [sys.executable, "-c", program, str(client.fileno()), str(accepted.fileno())])
    print("ended:", os.waitpid(child, 0)[1])


@case
def exec_that_fails():
    server = listener()
    os.set_inheritable(server.fileno(), True)
    for accepting in (True, False):
        child = os.fork()
        if child == 0:
            try:
                os.execv("/does/not/exist", ["nothing"])
            except FileNotFoundError:
                if accepting:
                    print("accepted:", server.accept()[0].recv(10), flush=True)
                os._exit(0)
        if accepting:
            client = socket.create_connection(server.getsockname(), timeout=10)
            client.sendall(b"for it")
        os.waitpid(child, 0)
    for _ in range(20):
        client = socket.create_connection(server.getsockname(), timeout=10)
        accepted, _ = server.accept()
        client.sendall(b"goes on")
        assert accepted.recv(10) == b"goes on"
    print("the listener goes on")


def through(command, text):
    """Has a program read and write a socket as its standard streams."""
    client, accepted = pair()
    child = os.fork()
    if child == 0:
        client.close()
        os.dup2(accepted.fileno(), 0)
        os.dup2(accepted.fileno(), 1)
        accepted.close()
        os.execv(command[0], command)
    accepted.close()
    client.sendall(text)
    client.shutdown(socket.SHUT_WR)
    print("recv:", receive_all(client))
    print("status:", os.waitpid(child, 0)[1])


@case
def standard_streams():
    through(["/bin/cat"], b"through cat")


@case
def standard_streams_of_stdio():
    # Reads and writes by stdio, unlike cat.
    through(["/bin/sed", "s/in/out/"], b"line one in\nline two in\n")


@case
def duplicates():
    client, accepted = pair()
    second = os.dup(accepted.fileno())
    accepted.close()
    client.send(b"x")
    print("read:", os.read(second, 10))
    target = os.open("/dev/null", os.O_RDONLY)
    os.dup2(second, target)
    os.close(second)
    os.write(target, b"answer")
    print("recv:", client.recv(10))
    os.dup2(os.open("/dev/null", os.O_RDONLY), target)
    print("recv after dup2 over it:", client.recv(10))


@case
def duplicate_shares_flags():
    client, _accepted = pair()
    other = os.dup(client.fileno())
    fcntl.fcntl(other, fcntl.F_SETFL, fcntl.fcntl(other, fcntl.F_GETFL) | os.O_NONBLOCK)
    print("O_NONBLOCK:", bool(fcntl.fcntl(client, fcntl.F_GETFL) & os.O_NONBLOCK))
    copy = fcntl.fcntl(client, fcntl.F_DUPFD_CLOEXEC, 100)
    print("F_DUPFD_CLOEXEC:", copy >= 100, fcntl.fcntl(copy, fcntl.F_GETFD) == fcntl.FD_CLOEXEC)
    print("access mode:", fcntl.fcntl(client, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR)


@case
def lowest_number_is_reused():
    client, accepted = pair()
    number = client.fileno()
    client.close()
    sock = socket.socket()
    print("same number:", sock.fileno() == number)
    accepted.close()


@case
def passing_descriptors():
    client, accepted = pair()
    left, right = socket.socketpair()
    child = os.fork()
    if child == 0:
        _, (number,), _, _ = socket.recv_fds(right, 10, 1)
        os.write(number, b"passed on")
        os._exit(0)
    socket.send_fds(left, [b"x"], [accepted.fileno()])
    accepted.close()
    os.waitpid(child, 0)
    print("recv:", client.recv(100), client.recv(100))


@case
def who_has_sent_a_socket_and_sleeps_keeps_no_connection_open():
    server = listener()
    for linger in (False, True):
        near, far = socket.socketpair()
        child = os.fork()
        if child == 0:
            client = socket.create_connection(server.getsockname(), timeout=5)
            # Its sender has closed it before it is received.
            far.recv(1, socket.MSG_PEEK)
            time.sleep(0.2)
            _, (number,), _, _ = socket.recv_fds(far, 1, 1)
            received = socket.socket(fileno=number)
            if linger:
                received.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 30))
            received.send(b"last words")
            began = time.monotonic()
            received.close()
            print("recv:", receive_all(client), "at once:", time.monotonic() - began < 4, flush=True)
            far.send(b"x")
            os._exit(0)
        accepted, _ = server.accept()
        socket.send_fds(near, [b"x"], [accepted.fileno()])
        accepted.close()
        near.recv(1)
        os.waitpid(child, 0)


@case
def passing_a_listener():
    server = listener()
    near, far = socket.socketpair()
    socket.send_fds(near, [b"x"], [server.fileno()])
    copy = socket.socket(fileno=socket.recv_fds(far, 1, 1)[1][0])
    client = socket.create_connection(server.getsockname())
    print("same:", copy.getsockname() == server.getsockname())
    accepted, _ = copy.accept()
    client.sendall(b"hello")
    print("recv:", accepted.recv(10))
    copy.close()
    client = socket.create_connection(server.getsockname())
    print("the first one:", server.accept()[1] == client.getsockname())


@case
def passing_a_listener_to_another_process():
    code = """if True:
        import os, socket, sys
        channel = socket.socket(fileno=int(sys.argv[1]))
        server = socket.socket(fileno=socket.recv_fds(channel, 1, 1)[1][0])
        channel.send(b"got it")
        for _ in range(3):
            accepted, _ = server.accept()
            accepted.sendall(b"from process " + accepted.recv(10))
            accepted.close()
    """
    server = listener()
    name = server.getsockname()
    near, far = socket.socketpair()
    other = subprocess.Popen([sys.executable, "-c", code, str(far.fileno())], pass_fds=[far.fileno()])
    socket.send_fds(near, [b"x"], [server.fileno()])
    print(near.recv(10))
    server.close()
    for number in range(3):
        client = socket.create_connection(name, timeout=10)
        client.sendall(b"%d" % number)
        print("recv:", receive_all(client))
    print("status:", other.wait(10))
    refused_in_time(name)


def receiver(receives):
    """A process with a socket that this one sends over the channel which is returned: what it prints comes first."""
    near, far = socket.socketpair()
    child = os.fork()
    if child == 0:
        near.close()
        try:
            receives(far, socket.socket(fileno=socket.recv_fds(far, 1, 1)[1][0]))
        finally:
            sys.stdout.flush()
            os._exit(0)
    far.close()
    return near, child


@case
def passing_what_is_bound():
    def listens(channel, bound):
        print("name:", bound.getsockname() == name)
        attempt("listen", bound.listen)
        channel.send(b"listens")
        bound.accept()[0].sendall(b"accepted")

    bound = socket.socket()
    bound.bind((LOOPBACK, 0))
    name = bound.getsockname()
    for _ in range(2):
        near, child = receiver(listens)
        socket.send_fds(near, [b"x"], [bound.fileno()])
        print(near.recv(10))
        print("recv:", receive_all(socket.create_connection(name, timeout=10)))
        os.waitpid(child, 0)
    bound.close()
    refused_in_time(name)


@case
def passing_a_new_socket():
    def serves(channel, new):
        print("unconnected:", new.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), new.gettimeout())
        new.bind((LOOPBACK, 0))
        new.listen()
        channel.send(b"%d" % new.getsockname()[1])
        new.accept()[0].sendall(b"accepted")

    def sends(_channel, new):
        new.sendto(b"a datagram", target.getsockname())

    new = socket.socket()
    new.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    near, child = receiver(serves)
    socket.send_fds(near, [b"x"], [new.fileno()])
    new.close()
    port = int(near.recv(10))
    print("recv:", receive_all(socket.create_connection((LOOPBACK, port), timeout=10)))
    os.waitpid(child, 0)
    target = socket.socket(type=socket.SOCK_DGRAM)
    target.bind((LOOPBACK, 0))
    near, child = receiver(sends)
    new = socket.socket(type=socket.SOCK_DGRAM)
    socket.send_fds(near, [b"x"], [new.fileno()])
    print("recv:", target.recv(100))
    os.waitpid(child, 0)


def bind_when_free(bound, name):
    """Binds to a name whose last holder was a process that has ended: its port is free a moment later."""
    for _ in range(1000):
        try:
            return bound.bind(name)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            time.sleep(0.01)
    raise TimeoutError("the port stays in use")


@case
def passing_datagram_sockets():
    def answers(channel, bound):
        channel.send(b"got it")
        octets, peer = bound.recvfrom(100)
        bound.sendto(b"answer to " + octets, peer)
        channel.recv(1)

    def speaks(_channel, connected):
        print("peer:", connected.getpeername() == bound.getsockname())
        connected.send(b"from the receiver")

    bound = socket.socket(type=socket.SOCK_DGRAM)
    bound.bind((LOOPBACK, 0))
    name = bound.getsockname()
    near, child = receiver(answers)
    socket.send_fds(near, [b"x"], [bound.fileno()])
    print(near.recv(10))
    bound.close()
    attempt("bind", socket.socket(type=socket.SOCK_DGRAM).bind, name)
    client = socket.socket(type=socket.SOCK_DGRAM)
    client.settimeout(10)
    client.sendto(b"a question", name)
    print("recv:", client.recvfrom(100)[0])
    near.send(b"x")
    os.waitpid(child, 0)
    bound = socket.socket(type=socket.SOCK_DGRAM)
    bind_when_free(bound, name)
    connected = socket.socket(type=socket.SOCK_DGRAM)
    connected.connect(name)
    near, child = receiver(speaks)
    socket.send_fds(near, [b"x"], [connected.fileno()])
    print("recv:", bound.recv(100))
    os.waitpid(child, 0)


@case
def who_sends_a_listener_may_end_before_it_is_received():
    near, far = socket.socketpair()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        server = listener()
        socket.send_fds(near, [b"x"], [server.fileno()])
        os.write(writing, b"%d" % server.getsockname()[1])
        os._exit(0)
    port = int(os.read(reading, 10))
    os.waitpid(child, 0)
    near.close()
    client = socket.create_connection((LOOPBACK, port), timeout=10)
    attempt("bind", socket.socket().bind, (LOOPBACK, port))
    server = socket.socket(fileno=socket.recv_fds(far, 1, 1)[1][0])
    accepted, peer = server.accept()
    print("accepted:", peer == client.getsockname())
    accepted.sendall(b"hello")
    print("recv:", client.recv(10))
    server.close()
    refused_in_time((LOOPBACK, port))


def refused_in_time(name):
    """Shows what connect(2) says once nobody listens: on Atoll, what held the port ends a moment later."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection(name, timeout=10).close()
        except ConnectionRefusedError:
            break
        except ConnectionResetError:
            pass  # Its listener went while it was set up.
    attempt("connect", socket.create_connection, name)


@case
def a_listener_that_nobody_receives_ends():
    near, far = socket.socketpair()
    server = listener()
    name = server.getsockname()
    socket.send_fds(near, [b"x"], [server.fileno()])
    server.close()
    socket.create_connection(name, timeout=10).close()
    far.close()
    refused_in_time(name)


@case
def passing_a_low_port_to_another_user():
    def accepts(channel, server):
        print("port:", server.getsockname()[1])
        channel.send(b"got it")
        server.accept()[0].sendall(b"accepted")

    server = socket.socket()
    server.bind((LOOPBACK, 77))
    server.listen()
    near, far = socket.socketpair()
    child = os.fork()
    if child == 0:
        near.close()
        os.setgid(65534)
        os.setuid(65534)
        accepts(far, socket.socket(fileno=socket.recv_fds(far, 1, 1)[1][0]))
        sys.stdout.flush()
        os._exit(0)
    socket.send_fds(near, [b"x"], [server.fileno()])
    print(near.recv(10))
    server.close()
    print("recv:", receive_all(socket.create_connection((LOOPBACK, 77), timeout=10)))
    os.waitpid(child, 0)


@case
def passed_sockets_keep_their_inode():
    def tells(channel, _passed):
        channel.send(b"%d" % os.fstat(_passed.fileno()).st_ino)

    client, accepted = pair()
    bound = socket.socket(type=socket.SOCK_DGRAM)
    bound.bind((LOOPBACK, 0))
    for what, sock in (("listener", listener()), ("client", client), ("accepted", accepted), ("datagrams", bound)):
        before = os.fstat(sock.fileno()).st_ino
        near, child = receiver(tells)
        socket.send_fds(near, [b"x"], [sock.fileno()])
        there = int(near.recv(30))
        os.waitpid(child, 0)
        link = os.readlink(f"/proc/self/fd/{sock.fileno()}")
        print(what, there == before == os.fstat(sock.fileno()).st_ino, link == f"socket:[{before}]")


# --- numbers

def connection_to(server):
    client = socket.socket()
    client.connect(server.getsockname())
    return client, server.accept()[0]


def below(limit):
    """The numbers below the limit that are open."""
    return sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) < limit)


@case
def closed_numbers_are_free():
    server = listener()

    def poll(number):
        poller = select.poll()
        poller.register(number, select.POLLIN)
        return [events for _, events in poller.poll(0)]

    def epoll(number):
        select.epoll().register(number, select.EPOLLIN)

    calls = {
        "read": lambda number: os.read(number, 1),
        "write": lambda number: os.write(number, b"x"),
        "close": os.close,
        "fstat": lambda number: os.fstat(number).st_mode,
        "fcntl": lambda number: fcntl.fcntl(number, fcntl.F_GETFD),
        "dup": os.dup,
        "dup2": lambda number: os.dup2(number, 50),
        "readlink": lambda number: os.readlink(f"/proc/self/fd/{number}"),
        "listdir": lambda number: str(number) in os.listdir("/proc/self/fd"),
        "poll": poll,
        "epoll": epoll,
    }
    for what, call in calls.items():
        _client, accepted = connection_to(server)
        number = accepted.fileno()
        accepted.close()
        attempt(what, call, number)


@case
def the_lowest_number_is_next():
    server = listener()
    pairs = [connection_to(server) for _ in range(6)]
    first = server.fileno()
    print("numbers:", [(client.fileno() - first, accepted.fileno() - first) for client, accepted in pairs])

    def makes(what, make):
        accepted = pairs.pop()[1]
        lower = pairs[0][1].detach()
        accepted.close()
        os.close(lower)
        number = make()
        print(what, number - first, lower - first)
        os.close(number)
        pairs.insert(0, (pairs.pop(0)[0], connection_to(server)[1]))

    makes("open:", lambda: os.open("/dev/null", os.O_RDONLY))
    makes("dup:", lambda: os.dup(0))
    makes("socket:", lambda: socket.socket().detach())
    makes("accept:", lambda: connection_to(server)[1].detach() + 0)
    reading, writing = os.pipe()
    os.close(reading)
    print("beside a pipe:", connection_to(server)[1].fileno() - first, reading - first)
    os.close(writing)


@case
def all_numbers_below_the_limit():
    limit = 60
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    server = listener()
    pairs = [connection_to(server) for _ in range(20)]
    print("accepted:", [accepted.fileno() for _, accepted in pairs])
    for client, accepted in pairs:
        client.close()
        accepted.close()
    waiting = socket.socket()
    waiting.connect(server.getsockname())
    opened = []
    while True:
        try:
            opened.append(os.open("/dev/null", os.O_RDONLY))
        except OSError as error:
            print(errno.errorcode[error.errno], "after", opened[-1])
            break
    print("limit:", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    attempt("socket", socket.socket)
    attempt("dup", os.dup, 0)
    attempt("accept", server.accept)
    os.close(opened.pop())
    accepted, _ = server.accept()
    print("accepted:", accepted.fileno())
    attempt("accept", server.accept)
    waiting.send(b"x")
    print("recv:", accepted.recv(10), "limit:", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    for number in opened:
        os.close(number)
    print("open:", below(limit))


@case
def waiting_without_a_number_left():
    limit = 60
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))

    def fill():
        numbers = []
        while True:
            try:
                numbers.append(os.dup(0))
            except OSError:
                return numbers

    def sends(client):
        threading.Timer(.1, lambda: client.send(b"x")).start()

    def later(what, wait):
        client, accepted = pair()
        epoll = select.epoll()
        epoll.register(accepted, select.EPOLLIN)
        poller = select.poll()
        poller.register(accepted, select.POLLIN)
        numbers = fill()
        sends(client)
        attempt(what, wait, accepted, epoll, poller)
        for number in numbers:
            os.close(number)

    def threads(accepted, epoll, poller):
        found = []
        waiting = [threading.Thread(target=lambda: found.append(len(select.poll().poll(1)))) for _ in range(2)]
        waiting += [threading.Thread(target=lambda: found.append(len(poller.poll(10000))))]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join()
        return sorted(found)

    def all_kinds():
        later("recv", lambda accepted, epoll, poller: accepted.recv(5))
        later("epoll", lambda accepted, epoll, poller: len(epoll.poll(10)))
        later("epoll in vain", lambda accepted, epoll, poller: len(epoll.poll(.01)))
        later("poll", lambda accepted, epoll, poller: len(poller.poll(10000)))
        later("select", lambda accepted, epoll, poller: len(select.select([accepted], [], [], 10)[0]))
        later("threads", threads)

    all_kinds()
    # Without the right to more, the library finds no number either.
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    all_kinds()


@case
def who_closes_all_numbers_goes_on():
    server = listener()
    for what, closes in (("range", lambda: os.closerange(3, 100_000)),
                         ("loop", lambda: [attempt_close(number) for number in range(3, 5000)])):
        client, accepted = connection_to(server)
        child = os.fork()
        if child == 0:
            name = server.getsockname()
            closes()
            print(what, "open:", below(1000)[:3])
            again = socket.create_connection(name, timeout=10)
            print("number:", again.fileno())
            again.sendall(b"from the child")
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        print("recv:", receive_all(server.accept()[0]))
        accepted.close()
        print("recv:", client.recv(1))


def attempt_close(number):
    try:
        os.close(number)
    except OSError:
        pass


@case
def what_the_kernel_says():
    client, _accepted = pair()
    import stat

    print("S_ISSOCK:", stat.S_ISSOCK(os.fstat(client.fileno()).st_mode))
    print("isatty:", os.isatty(client.fileno()))
    print("family:", socket.socket(fileno=os.dup(client.fileno())).family == socket.AF_INET)


@case
def other_families_are_left_alone():
    left, right = socket.socketpair()
    left.send(b"x")
    print("unix:", right.recv(1))
    with tempfile.TemporaryDirectory() as folder:
        server = socket.socket(socket.AF_UNIX)
        server.bind(folder + "/s")
        server.listen()
        client = socket.socket(socket.AF_UNIX)
        client.connect(folder + "/s")
        accepted, _ = server.accept()
        client.send(b"y")
        print("listener:", accepted.recv(1))
    attempt("unknown family", socket.socket, 77)
    attempt("unknown type", socket.socket, socket.AF_INET, 99)
    attempt("wrong protocol", socket.socket, socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_UDP)


@case
def who_comes_first_on_loopback_does_not_matter():
    place = socket.socket()
    place.bind((LOOPBACK, 0))
    address = place.getsockname()
    client = socket.socket()
    attempt("connect", client.connect, address)
    place.listen()
    attempt("connect", client.connect, address)
    place.accept()[0].send(b"x")
    print("recv:", client.recv(1))
    place = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    place.bind((LOOPBACK, 0))
    address = place.getsockname()
    place.close()
    early, connected = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    early.sendto(b"nobody", address)
    connected.connect(address)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(address)
    server.settimeout(10)
    for client, send in ((early, lambda: early.sendto(b"early", address)), (connected, lambda: connected.send(b"connected"))):
        send()
        text, sender = server.recvfrom(20)
        server.sendto(text, sender)
        client.settimeout(10)
        print("echo:", client.recv(20))


@case
def bad_addresses():
    sock = socket.socket()
    libc = ctypes.CDLL(None, use_errno=True)
    address = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(LOOPBACK))
    for what, length, family in (("short", 4, socket.AF_INET), ("family", 16, socket.AF_INET6), ("right", 16, socket.AF_INET)):
        buffer = struct.pack("=H", family) + address[2:]
        result = libc.bind(sock.fileno(), buffer, length)
        print(f"bind {what}:", result, errno.errorcode.get(ctypes.get_errno()) if result else "")
    print("connect null:", libc.connect(sock.fileno(), None, 16), errno.errorcode.get(ctypes.get_errno()))
    print("recv null:", libc.recv(sock.fileno(), None, 1, 0) < 0)


# --- datagrams

@case
def udp_echo():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((LOOPBACK, 0))
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    print("sendto:", client.sendto(b"question", server.getsockname()))
    data, address = server.recvfrom(100)
    print("recvfrom:", data, address == (LOOPBACK, client.getsockname()[1]))
    server.sendto(b"answer", address)
    print("recvfrom:", client.recvfrom(100)[0])


@case
def udp_connected():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((LOOPBACK, 0))
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.connect(server.getsockname())
    print("peer:", client.getpeername() == server.getsockname(), client.getsockname()[0])
    client.send(b"x")
    print("recvfrom:", server.recvfrom(10)[1] == client.getsockname())
    stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stranger.sendto(b"stranger", client.getsockname())
    print("hears strangers:", readable(client, 0.1))
    server.sendto(b"peer", client.getsockname())
    print("recv:", client.recv(10))


@case
def udp_refused():
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.connect((LOOPBACK, unused_port()))
    attempt("send", client.send, b"x")
    readable(client, 2)
    attempt("recv", client.recv, 1)


@case
def udp_errors_are_told_once():
    for family, host in (socket.AF_INET, LOOPBACK), (socket.AF_INET6, "::1"):
        client = socket.socket(family, socket.SOCK_DGRAM)
        client.setblocking(False)
        client.connect((host, unused_port()))
        refused = 0
        for _ in range(50):
            client.send(b"x")
            if poll_of(client, select.POLLIN, 5000) == [["POLLERR"]]:
                try:
                    client.send(b"y")
                except ConnectionRefusedError:
                    refused += 1
        print("refused:", refused, poll_of(client, select.POLLIN))
        client.send(b"x")
        print(poll_of(client, select.POLLIN, 5000), readable(client, 0))
        print("SO_ERROR:", *(error_name(client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) for _ in range(2)))
        attempt("recv", client.recv, 10)
        client.send(b"x")
        poll_of(client, select.POLLIN, 5000)
        attempt("recv", client.recv, 10)
        attempt("recv", client.recv, 10)


def error_name(number):
    return errno.errorcode.get(number, number)


@case
def udp_errors_need_a_peer():
    for family, host, level, option in (
            (socket.AF_INET, LOOPBACK, 0, IP_RECVERR), (socket.AF_INET6, "::1", 41, IPV6_RECVERR)):
        client = socket.socket(family, socket.SOCK_DGRAM)
        client.setblocking(False)
        nobody = (host, unused_port())
        client.sendto(b"x", nobody)
        time.sleep(0.3)
        print(poll_of(client, select.POLLIN), client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        attempt("sendto", client.sendto, b"x", nobody)
        time.sleep(0.3)
        # Who asks for errors gets them without a peer, too.
        client.setsockopt(level, option, 1)
        client.sendto(b"x", nobody)
        print(poll_of(client, select.POLLIN, 5000))
        attempt("sendto another", client.sendto, b"x", nobody)
        print(poll_of(client, select.POLLIN, 5000))
        print(error_of(client))
        print(poll_of(client, select.POLLIN), error_of(client))


def error_of(sock):
    """What the error queue says: the error, who reports it, and of what."""
    try:
        text, control, flags, to = sock.recvmsg(100, 500, socket.MSG_ERRQUEUE)
    except OSError as error:
        return error_name(error.errno)
    for level, kind, value in control:
        number, origin, kind, code = struct.unpack("=IBBB", value[:7])
        return level, error_name(number), origin, kind, code, flags & socket.MSG_ERRQUEUE != 0, to[0]


@case
def udp_errors_in_a_row():
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.setblocking(False)
    client.setsockopt(0, IP_RECVERR, 1)
    nobody = (LOOPBACK, unused_port())

    def errors(count):
        for _ in range(count):
            client.sendto(b"x", nobody)
            time.sleep(0.2)
            print(error_name(client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)), poll_of(client, select.POLLIN))

    errors(3)
    # Each that is taken lets the next one be told.
    for _ in range(4):
        print(error_of(client), poll_of(client, select.POLLIN), end=" ")
        print(error_name(client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)))
    errors(2)
    client.setsockopt(0, IP_RECVERR, 0)
    print(poll_of(client, select.POLLIN), error_of(client))
    errors(1)


@case
def udp_calls_that_tell_an_error():
    nobody = (LOOPBACK, unused_port())

    def waiting():
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        client.setblocking(False)
        client.bind((LOOPBACK, 0))
        client.connect(nobody)
        client.send(b"x")
        poll_of(client, select.POLLIN, 5000)
        return client

    libc = ctypes.CDLL(None, use_errno=True)

    def many(function, client, count, *more):
        room = ctypes.create_string_buffer(2000)
        parts = (ctypes.c_void_p * 2)(ctypes.addressof(room), 10)
        head = struct.pack("=QIxxxxQQQQixxxxIxxxx", 0, 0, ctypes.addressof(parts), 1, 0, 0, 0, 0)
        heads = ctypes.create_string_buffer(head * count)
        result = function(client.fileno(), heads, count, *more)
        return result if result >= 0 else error_name(ctypes.get_errno())

    # What is wrong with the call itself is told first, and the error goes on waiting.
    for what, call in {
        "port 0": lambda client: client.sendto(b"x", (LOOPBACK, 0)),
        "too long": lambda client: client.send(b"x" * 70000),
        "unknown control message": lambda client: client.sendmsg([b"x"], [(0, 77, b"1234")]),
        "other family": lambda client: libc.sendto(client.fileno(), b"x", 1, 0, struct.pack("=HHI16xI", 10, 9, 0, 0), 28),
        "MSG_OOB": lambda client: client.send(b"x", socket.MSG_OOB),
        "nothing": lambda client: client.send(b""),
        "sendto another": lambda client: client.sendto(b"x", (LOOPBACK, 9)),
        "MSG_PEEK": lambda client: client.recv(1, socket.MSG_PEEK),
        "MSG_ERRQUEUE": error_of,
        "getpeername": lambda client: client.getpeername()[0],
        "connect": lambda client: client.connect(nobody),
        "sendmmsg": lambda client: many(libc.sendmmsg, client, 2, 0),
        "recvmmsg": lambda client: many(libc.recvmmsg, client, 2, 0, None),
        "shutdown": lambda client: client.shutdown(socket.SHUT_WR),
        "FIONREAD": lambda client: fcntl.ioctl(client, termios.FIONREAD, b"1234"),
    }.items():
        client = waiting()
        attempt(what, call, client)
        attempt("  then", client.send, b"x")
    # An error comes before datagrams, and out of recvmmsg(2) behind them.
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(nobody)
    client = waiting_beside(server)
    attempt("recv", client.recv, 10)
    attempt("recv", client.recv, 10)


@case
def datagrams_without_a_way_fail_at_once():
    for family, own, there in ((socket.AF_INET, LOOPBACK, "203.0.113.9"), (socket.AF_INET, "0.0.0.0", "203.0.113.9"),
                               (socket.AF_INET6, "::", "2001:db8::1")):
        client = socket.socket(family, socket.SOCK_DGRAM)
        client.bind((own, 0))
        client.settimeout(0.1)
        for _ in range(2):
            attempt("sendto", client.sendto, b"x", (there, 5))
        attempt("connect", client.connect, (there, 5))
        attempt("recv", client.recv, 1)
        print("SO_ERROR:", client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.bind((LOOPBACK, 0))
    attempt("to all", client.sendto, b"x", ("255.255.255.255", 5))


def whole_error_of(sock, room=2000):
    """What recvmsg says of an error, with all of its octets."""
    try:
        text, control, flags, to = sock.recvmsg(room, 500, socket.MSG_ERRQUEUE)
    except OSError as error:
        return error_name(error.errno)
    entries = [(level, kind, len(value), struct.unpack("=IBBBBII", value[:16]), value[16:18])
               for level, kind, value in control]
    return len(text), text[:12], flags & ~socket.MSG_CTRUNC, entries, to[0]


def behind_datagrams(family, asks, connected=False, texts=(b"one", b"two")):
    """A socket at which datagrams wait, and an error behind them; `asks` says whether it asks for errors."""
    host, level, option = (LOOPBACK, 0, IP_RECVERR) if family == socket.AF_INET else ("::1", 41, IPV6_RECVERR)
    server = socket.socket(family, socket.SOCK_DGRAM)
    server.bind((host, 0))
    client = socket.socket(family, socket.SOCK_DGRAM)
    client.setblocking(False)
    client.setsockopt(level, option, asks)
    client.bind((host, 0))
    if connected:
        client.connect(server.getsockname())
    for text in texts:
        server.sendto(text, client.getsockname())
    wait_for_octets(client, texts)
    there = server.getsockname()
    server.close()
    client.sendto(b"nobody", there)
    poll_of(client, 0, 1000 if asks or connected else 150)
    return client, there


def wait_for_octets(client, texts):
    for _ in range(500):
        try:
            if client.recvmsg(100, 0, socket.MSG_PEEK)[0] and len(texts) == 1 or meminfo_of(client)[0] >= 25 * len(texts):
                return
        except BlockingIOError:
            pass
        time.sleep(0.01)


def meminfo_of(sock):
    return struct.unpack("=9I", sock.getsockopt(socket.SOL_SOCKET, 55, 36))


@case
def an_error_behind_datagrams_that_wait_is_there_at_once():
    calls = {
        "recv": lambda sock: sock.recv(10),
        "MSG_PEEK": lambda sock: sock.recv(10, socket.MSG_PEEK),
        "SO_ERROR": lambda sock: error_name(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)),
        "MSG_ERRQUEUE": error_of,
        "poll": poll_of,
        "poll for errors": lambda sock: poll_of(sock, 0),
        "select": lambda sock: [len(ready) for ready in select.select([sock], [], [sock], 0)],
        "FIONREAD": lambda sock: struct.unpack("i", fcntl.ioctl(sock, termios.FIONREAD, b"1234")),
        "recvmmsg": lambda sock: received_in_one_call(sock, 4),
    }
    for family in socket.AF_INET, socket.AF_INET6:
        for asks, connected in (1, False), (1, True), (0, True), (0, False):
            for first, call in calls.items():
                sock, there = behind_datagrams(family, asks, connected)
                print(family == socket.AF_INET6, asks, connected, end=" ")
                attempt(first, call, sock)
                # Each error is told once, and the datagrams come as they did.
                for then in "recv", "FIONREAD", "MSG_ERRQUEUE", "poll", "MSG_PEEK", "recv", "poll", "SO_ERROR", "recv":
                    attempt("  " + then, calls[then], sock)
            sock, there = behind_datagrams(family, asks, connected)
            attempt("send", sock.sendto, b"x", there)


def received_in_one_call(sock, count):
    room = [ctypes.create_string_buffer(100) for _ in range(count)]
    parts = [(ctypes.c_void_p * 2)(ctypes.addressof(one), 100) for one in room]
    heads = b"".join(struct.pack("=QIxxxxQQQQixxxxIxxxx", 0, 0, ctypes.addressof(one), 1, 0, 0, 0, 0) for one in parts)
    heads = ctypes.create_string_buffer(heads)
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.recvmmsg(sock.fileno(), heads, count, socket.MSG_DONTWAIT, None)
    return [one.value for one in room[:result]] if result >= 0 else error_name(ctypes.get_errno())


@case
def errors_between_datagrams():
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.setblocking(False)
    client.setsockopt(0, IP_RECVERR, 1)
    client.bind((LOOPBACK, 0))
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((LOOPBACK, 0))
    nobody = [unused_port() for _ in range(3)]

    def fill():
        for number, port in enumerate(nobody):
            server.sendto(b"text %d" % number, client.getsockname())
            time.sleep(0.05)
            attempt("sendto", client.sendto, b"x", (LOOPBACK, port))
            time.sleep(0.2)

    # A call that sends fails with the error of the one before, and sends nothing then.
    fill()
    for _ in range(3):
        print(error_of(client), error_name(client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)), poll_of(client))
    for _ in range(4):
        attempt("recv", client.recv, 100)
    print(poll_of(client))
    # The option that is switched off forgets them, but for the one that the next call tells.
    fill()
    client.setsockopt(0, IP_RECVERR, 0)
    print(poll_of(client), error_of(client))
    for _ in range(5):
        attempt("recv", client.recv, 100)
        print(poll_of(client), fcntl.ioctl(client, termios.FIONREAD, b"\0" * 4)[0])
    client.setsockopt(0, IP_RECVERR, 1)
    # SO_PEEK_OFF passes datagrams, and no errors.
    fill()
    print(error_of(client), error_of(client), error_of(client))
    client.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 0)
    for _ in range(5):
        attempt("peek", client.recv, 100, socket.MSG_PEEK)


@case
def epoll_sees_an_error_behind_datagrams():
    for events in select.EPOLLIN, select.EPOLLIN | select.EPOLLET, select.EPOLLET, 0, select.EPOLLPRI | select.EPOLLET:
        for priority in 0, 1:
            client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            client.setblocking(False)
            client.setsockopt(0, IP_RECVERR, 1)
            client.setsockopt(socket.SOL_SOCKET, SO_SELECT_ERR_QUEUE, priority)
            client.bind((LOOPBACK, 0))
            server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            server.bind((LOOPBACK, 0))
            epoll = select.epoll()
            epoll.register(client, events)
            server.sendto(b"text", client.getsockname())
            print(names_of(epoll.poll(5 if events & select.EPOLLIN else 0.3), "EPOLL"), end=" ")
            print(names_of(epoll.poll(0), "EPOLL"))
            client.sendto(b"x", (LOOPBACK, unused_port()))
            print(" error:", names_of(epoll.poll(5) if not events & select.EPOLLIN or events & select.EPOLLET
                                      else (time.sleep(0.3), epoll.poll(5))[1], "EPOLL"), end=" ")
            print(names_of(epoll.poll(0), "EPOLL"))
            # A datagram behind an error that waits is no event for a watch that has not asked for any.
            server.sendto(b"more", client.getsockname())
            time.sleep(0.3)
            print(" more:", names_of(epoll.poll(0), "EPOLL"), names_of(epoll.poll(0), "EPOLL"))
            print(" ", error_of(client), names_of(epoll.poll(0), "EPOLL"))
            attempt("  recv", client.recv, 10)


@case
def a_family_hears_an_error_behind_datagrams_once():
    for reader in "child", "parent":
        sock, _ = behind_datagrams(socket.AF_INET, 1)
        go, told = os.pipe(), os.pipe()
        sys.stdout.flush()
        child = os.fork()
        print("each sees it:", poll_of(sock, 0, 5000), flush=True)
        if child == 0:
            os.write(told[1], b"x")
            os.read(go[0], 1)
            if reader == "child":
                print("child:", error_of(sock), poll_of(sock, select.POLLIN))
                attempt("recv", sock.recv, 10)
            else:
                print("child:", error_of(sock), poll_of(sock, select.POLLIN))
                for _ in range(3):
                    attempt("recv", sock.recv, 10)
            sys.stdout.flush()
            os._exit(0)
        os.read(told[0], 1)
        if reader == "parent":
            print("parent:", error_of(sock), poll_of(sock, select.POLLIN), flush=True)
        os.write(go[1], b"x")
        os.waitpid(child, 0)
        print("parent:", error_of(sock), poll_of(sock, select.POLLIN))
        for _ in range(3):
            attempt("recv", sock.recv, 10)
    # The child of before the error.
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.setblocking(False)
    client.setsockopt(0, IP_RECVERR, 1)
    client.bind((LOOPBACK, 0))
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind((LOOPBACK, 0))
        server.sendto(b"text", client.getsockname())
        poll_of(client, select.POLLIN, 5000)
        client.sendto(b"x", (LOOPBACK, unused_port()))
        print("child:", poll_of(client, 0, 5000))
        attempt("child", client.recv, 10)
        print("child:", error_of(client), poll_of(client, select.POLLIN))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    print("parent:", error_of(client), poll_of(client, select.POLLIN))
    attempt("parent", client.recv, 10)
    attempt("parent", client.recv, 10)


@case
def udp_errors_quote_what_was_sent():
    for family, host, level, option in (
            (socket.AF_INET, LOOPBACK, 0, IP_RECVERR), (socket.AF_INET6, "::1", 41, IPV6_RECVERR)):
        client = socket.socket(family, socket.SOCK_DGRAM)
        client.setblocking(False)
        client.setsockopt(level, option, 1)
        nobody = (host, unused_port())
        for length, room in ((5, 2000), (0, 2000), (500, 2000), (5000, 2000), (500, 10), (5, 0)):
            client.sendto(bytes(range(100, 200)) * 50 if length == 5000 else b"y" * length, nobody)
            poll_of(client, select.POLLIN, 5000)
            print(length, whole_error_of(client, room), poll_of(client, select.POLLIN))


@case
def datagrams_that_are_too_long_are_in_the_queue():
    for family, host, level, option, len_max in ((socket.AF_INET, LOOPBACK, 0, IP_RECVERR, 65507),
                                                 (socket.AF_INET6, "::1", 41, IPV6_RECVERR, 65527)):
        server = socket.socket(family, socket.SOCK_DGRAM)
        server.bind((host, 0))
        for connected in (False, True):
            client = socket.socket(family, socket.SOCK_DGRAM)
            client.setblocking(False)
            if connected:
                client.connect(server.getsockname())
            send = (lambda octets: client.send(octets)) if connected else (
                lambda octets: client.sendto(octets, server.getsockname()))
            attempt("not asked for", send, bytes(len_max + 3))
            print(whole_error_of(client))
            client.setsockopt(level, option, 1)
            attempt("asked for", send, bytes(len_max + 3))
            print(poll_of(client, select.POLLIN), client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            attempt("it fits", send, b"x")
            attempt("longer", send, bytes(70000))
            for _ in range(2 if family == socket.AF_INET else 3):
                print(whole_error_of(client), poll_of(client, select.POLLIN))


def waiting_beside(server):
    """A socket at which a datagram of its peer waits, and then an error."""
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.setblocking(False)
    client.bind((LOOPBACK, 0))
    client.connect(server.getsockname())
    server.sendto(b"text", client.getsockname())
    poll_of(client, select.POLLIN, 5000)
    server.close()
    client.send(b"x")
    for _ in range(100):
        if "POLLERR" in poll_of(client, select.POLLIN)[0]:
            break
        time.sleep(0.02)
    return client


@case
def udp_shutdown():
    one, other = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    for sock in one, other:
        sock.bind((LOOPBACK, 0))
    said = []
    thread = threading.Thread(target=lambda: said.append(one.recv(10)), daemon=True)
    thread.start()
    time.sleep(0.2)
    attempt("shutdown", one.shutdown, socket.SHUT_RDWR)
    thread.join(5)
    print("woken:", said)
    attempt("recv", one.recv, 10)
    attempt("recv MSG_DONTWAIT", one.recv, 10, socket.MSG_DONTWAIT)
    other.sendto(b"late", one.getsockname())
    time.sleep(0.2)
    attempt("recv", one.recv, 10)
    other.connect(one.getsockname())
    other.shutdown(socket.SHUT_RD)
    print("poll:", poll_of(other))
    other.setblocking(False)
    attempt("recv without blocking", other.recv, 10)
    attempt("sendto", one.sendto, b"x", other.getsockname())


@case
def udp_in_parts():
    one, other, third = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3))
    for sock in one, other, third:
        sock.bind((LOOPBACK, 0))
        sock.settimeout(5)
    attempt("sendto", one.sendto, b"a", socket.MSG_MORE, other.getsockname())
    attempt("sendto", one.sendto, b"b", socket.MSG_MORE, third.getsockname())
    attempt("recv", other.recv, 10, socket.MSG_DONTWAIT)
    attempt("send", one.send, b"c")
    attempt("recv", other.recv, 10)
    attempt("sendto", one.sendto, b"whole", other.getsockname())
    attempt("recv", other.recv, 10)
    one.connect(third.getsockname())
    attempt("send", one.send, b"x" * 40000, socket.MSG_MORE)
    attempt("send", one.send, b"y" * 40000)
    attempt("send", one.send, b"after")
    attempt("recv", third.recv, 10)


@case
def udp_boundaries():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((LOOPBACK, 0))
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for message in (b"one", b"", b"three" * 100):
        client.sendto(message, server.getsockname())
    readable(server)
    print("recv:", server.recv(100), server.recv(100), server.recv(5))
    client.sendto(b"0123456789", server.getsockname())
    print("MSG_TRUNC:", server.recv_into(bytearray(4), 4, socket.MSG_TRUNC))
    client.sendto(b"0123456789", server.getsockname())
    data, _, flags, _ = server.recvmsg(4)
    print("recvmsg:", data, bool(flags & socket.MSG_TRUNC))
    server.setblocking(False)
    attempt("recv", server.recv, 10)
    attempt("too long", client.sendto, bytes(70_000), server.getsockname())
    attempt("no address", client.send, b"x")


@case
def udp_large():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((LOOPBACK, 0))
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for size in (1400, 1472, 1473, 9000, 65507):
        message = os.urandom(size)
        client.sendto(message, server.getsockname())
        print(size, server.recv(65536) == message)


@case
def udp_mtu_discovery():
    IP_MTU_DISCOVER = 10
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((LOOPBACK, 0))
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    print("default:", client.getsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER))
    for value in range(-1, 7):
        attempt(f"set {value}", client.setsockopt, socket.IPPROTO_IP, IP_MTU_DISCOVER, value)
        print("get:", client.getsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER))
        # The loopback takes datagrams of every size as they are.
        attempt("sendto", client.sendto, bytes(60_000), server.getsockname())
        print("recv:", len(server.recv(65536)))
    attempt("longer than any", client.sendto, bytes(65508), server.getsockname())
    stream = socket.socket()
    print("TCP:", stream.getsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER))


# linux/in.h and linux/in6.h
IP_PKTINFO, IP_RECVERR, IP_RECVTTL, IP_RECVTOS, IP_RECVORIGDSTADDR, IPV6_RECVERR = 8, 11, 12, 13, 20, 25
SOL_UDP, UDP_SEGMENT, UDP_GRO, MSG_ERRQUEUE = 17, 103, 104, 0x2000


def control_of(sock, room=500, flags=0):
    """Receives a datagram, and prints it with its control messages, in which ports are not printed."""
    data, control, got, _ = sock.recvmsg(100000, room, flags)
    port = struct.pack("!H", sock.getsockname()[1])
    control = [(level, kind, value.replace(port, b"P").hex()) for level, kind, value in control]
    print("recvmsg:", len(data), data[:20], control, got & ~socket.MSG_PEEK)


def answered(server, client, control, to=None):
    """Sends with control messages, and prints what came with it."""
    try:
        server.sendmsg([b"answer"], control, 0, to or client.getsockname())
    except OSError as error:
        print(control, errno.errorcode[error.errno])
        return
    client.settimeout(10)
    control_of(client)


def datagram_pair(family, address, options):
    server, client = socket.socket(family, socket.SOCK_DGRAM), socket.socket(family, socket.SOCK_DGRAM)
    for sock in server, client:
        for level, option in options:
            sock.setsockopt(level, option, 1)
        sock.bind((address, 0))
        sock.settimeout(10)
    return server, client


@case
def datagram_details():
    every = [(0, IP_PKTINFO), (0, IP_RECVTTL), (0, IP_RECVTOS), (0, IP_RECVORIGDSTADDR)]
    for address in LOOPBACK, "0.0.0.0":
        server, client = datagram_pair(socket.AF_INET, address, every)
        client.setsockopt(0, socket.IP_TOS, 0x2e)
        client.setsockopt(0, socket.IP_TTL, 9)
        client.sendto(b"question", (LOOPBACK, server.getsockname()[1]))
        control_of(server, flags=socket.MSG_PEEK)
        control_of(server)
    for level, option in every:
        print("on:", server.getsockopt(level, option))
        server.setsockopt(level, option, 0)
        client.sendto(b"question", (LOOPBACK, server.getsockname()[1]))
        control_of(server)
    server.setsockopt(0, IP_PKTINFO, 1)
    for room in 0, 8, 16, 20, 28, 32, 40:
        client.sendto(b"question", (LOOPBACK, server.getsockname()[1]))
        data, control, flags, _ = server.recvmsg(100, room)
        print("room for", room, data, [(level, kind, value.hex()) for level, kind, value in control], flags)
    client.sendto(b"question", (LOOPBACK, server.getsockname()[1]))
    print("recv:", server.recv(100))
    client.sendto(b"question", ("127.0.0.5", server.getsockname()[1]))
    control_of(server)


@case
def datagrams_with_details():
    server, client = datagram_pair(socket.AF_INET, "0.0.0.0", [(0, IP_PKTINFO), (0, IP_RECVTTL), (0, IP_RECVTOS)])
    to = (LOOPBACK, client.getsockname()[1])
    info = lambda index, source: (0, IP_PKTINFO, struct.pack("i4s4s", index, socket.inet_aton(source), bytes(4)))
    integer = lambda level, kind, value: (level, kind, struct.pack("i", value))
    for control in (
        [], [info(0, "127.0.0.9")], [info(1, "0.0.0.0")], [info(1, LOOPBACK)], [info(77, LOOPBACK)], [info(0, "192.0.2.1")],
        [integer(0, socket.IP_TOS, 3)], [(0, socket.IP_TOS, b"\xba")], [integer(0, socket.IP_TOS, 256)],
        [integer(0, socket.IP_TOS, -1)], [(0, socket.IP_TOS, b"\1\0")],
        [integer(0, socket.IP_TTL, 3)], [integer(0, socket.IP_TTL, 0)], [integer(0, socket.IP_TTL, 256)],
        [(0, socket.IP_TTL, b"\7")], [(0, IP_PKTINFO, bytes(11))], [(0, 99, bytes(4))],
        [integer(41, socket.IPV6_TCLASS, 1)], [integer(6, 1, 1)], [(socket.SOL_SOCKET, 99, bytes(4))],
        [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, bytes(12))],
        [integer(0, socket.IP_TOS, 1), info(0, "127.0.0.8"), integer(0, socket.IP_TTL, 77)],
        [(SOL_UDP, 5, bytes(2))], [(SOL_UDP, UDP_SEGMENT, bytes(4))],
    ):
        answered(server, client, control, to)
    server.connect(to)
    print("sendmsg:", server.sendmsg([b"a"], [integer(0, socket.IP_TOS, 8)]))
    control_of(client)
    print("sendmsg:", server.sendmsg([b"in "], [integer(0, socket.IP_TOS, 4)], socket.MSG_MORE), server.send(b"parts"))
    control_of(client)
    ends = pair()
    for level in socket.SOL_SOCKET, 0, 6:
        attempt("on a connection", ends[0].sendmsg, [b"a"], [integer(level, 99, 1)])


@case
def v6_datagram_details():
    every = [(41, socket.IPV6_RECVPKTINFO), (41, socket.IPV6_RECVHOPLIMIT), (41, socket.IPV6_RECVTCLASS),
             (0, IP_RECVTOS), (0, IP_RECVTTL)]
    server, client = datagram_pair(socket.AF_INET6, "::", every)
    info = lambda index, source: (41, socket.IPV6_PKTINFO, socket.inet_pton(socket.AF_INET6, source) + struct.pack("i", index))
    integer = lambda level, kind, value: (level, kind, struct.pack("i", value))
    for address in "::1", "::ffff:127.0.0.1":
        print(address)
        client.sendto(b"question", (address, server.getsockname()[1]))
        control_of(server)
        to = (address, client.getsockname()[1])
        for control in (
            [], [info(0, "::1")], [info(1, "::")], [info(0, "2001:db8::1")], [info(77, "::1")], [info(0, "::ffff:127.0.0.1")],
            [info(0, "::ffff:127.0.0.8")], [(41, socket.IPV6_PKTINFO, bytes(19))],
            [integer(41, socket.IPV6_TCLASS, 3)], [integer(41, socket.IPV6_HOPLIMIT, -1)],
            [integer(41, socket.IPV6_TCLASS, 256)], [(41, socket.IPV6_TCLASS, b"\1")],
            [integer(41, socket.IPV6_HOPLIMIT, 0)], [integer(41, socket.IPV6_HOPLIMIT, 7)],
            [integer(41, socket.IPV6_HOPLIMIT, 256)], [integer(0, socket.IP_TOS, 2)], [integer(0, socket.IP_TTL, 2)],
            [integer(41, 99, 2)],
        ):
            answered(server, client, control, to)


@case
def datagram_segments():
    for address, family in (LOOPBACK, socket.AF_INET), ("::1", socket.AF_INET6):
        server, client = datagram_pair(family, address, [])
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        to = server.getsockname()
        segments = lambda size: [(SOL_UDP, UDP_SEGMENT, struct.pack("H", size))]
        print(attempt("getsockopt", client.getsockopt, SOL_UDP, UDP_SEGMENT))
        text = bytes(range(250))
        for size, length in (100, 250), (100, 200), (100, 100), (100, 99), (0, 250), (1, 128), (1, 129), (125, 0):
            sent = attempt(f"sendmsg {size}", client.sendmsg, [text[:length]], segments(size), 0, to)
            parts = []
            while sent is not None and (not parts or sum(map(len, parts)) < sent):
                parts.append(server.recv(1000))
            print([len(part) for part in parts], sent is None or b"".join(parts) == text[:length])
        for size in 70000, -1, 65000, 100:
            attempt(f"setsockopt {size}", client.setsockopt, SOL_UDP, UDP_SEGMENT, size)
        client.sendto(text, to)
        print([len(server.recv(1000)) for _ in range(3)])
        client.sendmsg([text], segments(0), 0, to)
        print(len(server.recv(1000)))
        attempt("too long", client.sendto, bytes(70000), to)
        print(attempt("in one piece", server.setsockopt, SOL_UDP, UDP_GRO, 1), server.getsockopt(SOL_UDP, UDP_GRO))
        client.sendto(text, to)
        received, sizes = b"", set()
        while len(received) < len(text):
            data, control, _, _ = server.recvmsg(1000, 100)
            received += data
            sizes |= {(level, kind, struct.unpack("i", value)[0]) for level, kind, value in control}
        print(received == text, all(size == (SOL_UDP, UDP_GRO, 100) for size in sizes))
        attempt("on a connection", pair()[0].setsockopt, SOL_UDP, UDP_GRO, 1)


# asm-generic/socket.h: the options, which are the types of the messages, and what these count below a second.
TIMES = {29: 1000, 35: 1, 63: 1000, 64: 1}


def time_of(sock, since, until, flags=0):
    """Receives something, and prints its control messages. Returns its time, if that is between these."""
    data, control, got, _ = sock.recvmsg(100, 500, flags)
    print("recvmsg:", data, [(level, kind, len(value)) for level, kind, value in control], got)
    for level, kind, value in control:
        if level == socket.SOL_SOCKET:
            seconds, below = struct.unpack("qq", value)
            step, moment = TIMES[kind], seconds * 10 ** 9 + below * TIMES[kind]
            return moment if since // step * step <= moment <= until else (since, moment, until)
    return None


def wait_until(nanos):
    while time.time_ns() < nanos:
        pass


def clock_of_arrivals():
    """A socket that lets the kernel note when packets come, which it begins to do some time after the first such socket
    is there (net_enable_timestamp): until then the time is that of the call that reads."""
    server, client = datagram_pair(socket.AF_INET, LOOPBACK, [(socket.SOL_SOCKET, 35)])
    while True:
        client.sendto(b"when", server.getsockname())
        readable(server)
        until = time.time_ns()
        wait_until(until + 1_000_000)
        (_, _, value), = server.recvmsg(100, 500)[1]
        seconds, nanos = struct.unpack("qq", value)
        if seconds * 10 ** 9 + nanos <= until:
            return server


@case
def datagram_times():
    clock = clock_of_arrivals()
    for family, address in (socket.AF_INET, LOOPBACK), (socket.AF_INET6, "::1"):
        for form in TIMES:
            server, client = datagram_pair(family, address, [(socket.SOL_SOCKET, form), (0, IP_RECVTTL)])
            shown = lambda: [server.getsockopt(socket.SOL_SOCKET, other) for other in TIMES]
            print(form, shown())
            since = time.time_ns()
            client.sendto(b"when", server.getsockname())
            readable(server)
            until = time.time_ns()
            wait_until(until + 2_000_000)
            # It is when the datagram came, not when it is read.
            peeked = time_of(server, since, until, socket.MSG_PEEK)
            print(isinstance(peeked, int) or peeked, time_of(server, since, until) == peeked)
            for other in TIMES:
                print("set:", server.setsockopt(socket.SOL_SOCKET, other, 7), shown())
                client.sendto(b"which", server.getsockname())
                moment = time_of(server, until, time.time_ns() + 10 ** 10)
                print(isinstance(moment, int) or moment)
            server.setsockopt(socket.SOL_SOCKET, form, 0)
            client.sendto(b"not asked", server.getsockname())
            print("unset:", shown(), time_of(server, 0, 0))
    attempt("short", server.setsockopt, socket.SOL_SOCKET, 29, b"123")


@case
def datagram_times_everywhere():
    clock = clock_of_arrivals()
    server, client = datagram_pair(socket.AF_INET, LOOPBACK, [(socket.SOL_SOCKET, 35)])
    since = time.time_ns()
    for room in 0, 15, 16, 24, 31, 32, 40:
        client.sendto(b"when", server.getsockname())
        data, control, flags, _ = server.recvmsg(100, room)
        print("room for", room, data, [(level, kind, len(value)) for level, kind, value in control], flags)
    client.sendto(b"to a child", server.getsockname())
    sys.stdout.flush()
    if os.fork() == 0:
        moment = time_of(server, since, time.time_ns() + 10 ** 10)
        print("child:", isinstance(moment, int) or moment, server.getsockopt(socket.SOL_SOCKET, 35))
        sys.stdout.flush()
        os._exit(0)
    os.wait()
    # The time of an error is in front of it.
    client.setsockopt(0, IP_RECVERR, 1)
    since = time.time_ns()
    client.sendto(b"nobody", (LOOPBACK, unused_port()))
    poll = select.poll()
    poll.register(client, 0)
    print("poll:", poll.poll(10000)[0][1])
    until = time.time_ns()
    wait_until(until + 2_000_000)
    attempt("recv", client.recv, 100)
    data, control, flags, _ = client.recvmsg(0, 500, MSG_ERRQUEUE)
    print("error:", [(level, kind, len(value)) for level, kind, value in control])
    seconds, below = struct.unpack("qq", control[0][2])
    print("in time:", since <= seconds * 10 ** 9 + below <= until)


# --- SO_PEEK_OFF

SO_PEEK_OFF, SO_RXQ_OVFL, SO_SELECT_ERR_QUEUE, SO_MEMINFO, SO_BUF_LOCK = 42, 40, 45, 55, 72


def offset_of(sock):
    return sock.getsockopt(socket.SOL_SOCKET, SO_PEEK_OFF)


def set_offset(sock, offset):
    sock.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, offset)


def look(what, sock, room, flags=socket.MSG_PEEK):
    """Prints what recvmsg(2) returns at once, and the offset after it."""
    sock.settimeout(None)
    try:
        data, _, told, _ = sock.recvmsg(room, 0, flags | socket.MSG_DONTWAIT)
        # With MSG_TRUNC a connection's octets are copied nowhere.
        shown = len(data) if flags & socket.MSG_TRUNC else data
        print(what, shown, told, offset_of(sock))
    except OSError as error:
        print(what, errno.errorcode[error.errno], offset_of(sock))


@case
def peek_offset_of_a_connection():
    server = listener()
    print("listener:", offset_of(server), set_offset(server, 3), offset_of(server))
    client = socket.socket()
    print("new:", offset_of(client), set_offset(client, 5), offset_of(client))
    client.connect(server.getsockname())
    accepted, _ = server.accept()
    print("connected:", offset_of(client), "accepted:", offset_of(accepted))
    for value in b"", b"12", b"\1\0\0\0\5\0\0\0":
        attempt("set", accepted.setsockopt, socket.SOL_SOCKET, SO_PEEK_OFF, value)
    client.send(b"abcdefghijklmnopqrstuvwxyz")
    readable(accepted)
    set_offset(accepted, -5)
    look("negative:", accepted, 4)
    set_offset(accepted, 0)
    for _ in range(3):
        look("peek:", accepted, 4)
    look("no room:", accepted, 0)
    look("taken:", accepted, 5, 0)
    look("peek:", accepted, 3)
    look("thrown away:", accepted, 3, socket.MSG_TRUNC)
    look("peek:", accepted, 100)
    look("at the end:", accepted, 4)
    set_offset(accepted, 1000)
    look("beyond:", accepted, 4)
    look("taken:", accepted, 4, 0)
    duplicate = accepted.dup()
    print("duplicate:", offset_of(duplicate), set_offset(duplicate, 2), offset_of(accepted))
    look("all:", accepted, 5, socket.MSG_PEEK | socket.MSG_WAITALL)
    send = threading.Timer(0.1, client.send, (b"12345",))
    set_offset(accepted, 13)
    send.start()
    print("waits for all:", accepted.recv(5, socket.MSG_PEEK | socket.MSG_WAITALL), offset_of(accepted))
    look("the rest:", accepted, 9)
    send = threading.Timer(0.1, client.send, (b"678",))
    send.start()
    print("waits:", accepted.recv(9, socket.MSG_PEEK), offset_of(accepted))
    accepted.settimeout(0.05)
    attempt("times out", accepted.recv, 9, socket.MSG_PEEK)
    out, into = os.pipe()
    print("spliced:", os.splice(accepted.fileno(), into, 2), offset_of(accepted))
    client.close()
    wait_until(time.time_ns() + 50_000_000)
    look("before the FIN:", accepted, 9)
    set_offset(accepted, 1000)
    look("after the FIN:", accepted, 9)
    disconnect = ctypes.CDLL(None).connect(accepted.fileno(), struct.pack("=H26x", socket.AF_UNSPEC), 28)
    print("disconnected:", disconnect, offset_of(accepted))


@case
def peek_offset_at_the_mark():
    for inline in 0, 1:
        client, accepted = pair()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, inline)
        client.send(b"abc")
        client.send(b"X", socket.MSG_OOB)
        client.send(b"def")
        while len(accepted.recv(9, socket.MSG_PEEK)) < 3:
            pass
        wait_until(time.time_ns() + 50_000_000)
        set_offset(accepted, 0)
        for _ in range(5):
            look("peek:", accepted, 2)
        look("taken:", accepted, 9, 0)
        set_offset(accepted, 0)
        for _ in range(4):
            look("peek at the mark:", accepted, 2)


@case
def peek_at_an_urgent_octet_and_read_on():
    client, accepted = pair()
    client.send(b"X", socket.MSG_OOB)
    wait_until(time.time_ns() + 50_000_000)
    look("peek:", accepted, 9)
    client.send(b"abc")
    readable(accepted)
    look("taken:", accepted, 9, 0)


def await_octets(sock, count):
    """Waits until so many octets wait in all datagrams together: they come one after the other."""
    set_offset(sock, count - 1)
    sock.settimeout(20)
    sock.recv(1, socket.MSG_PEEK)
    sock.settimeout(None)
    set_offset(sock, -1)


@case
def peek_offset_of_datagrams():
    for family, address in (socket.AF_INET, LOOPBACK), (socket.AF_INET6, "::1"):
        server, client = datagram_pair(family, address, [])
        client.connect(server.getsockname())
        print("new:", offset_of(server))
        for text in b"abcdef", b"", b"ghi", b"jklmno":
            client.send(text)
        await_octets(server, 15)
        look("no offset:", server, 4)
        set_offset(server, -5)
        look("negative:", server, 4)
        set_offset(server, 0)
        for _ in range(7):
            look("peek:", server, 4)
        set_offset(server, 2)
        look("from 2 on:", server, 2)
        look("all of it:", server, 2, socket.MSG_PEEK | socket.MSG_TRUNC)
        look("no room:", server, 0)
        look("taken:", server, 2, 0)
        for _ in range(3):
            look("peek:", server, 3)
        look("thrown away:", server, 3, socket.MSG_TRUNC)
        look("peek:", server, 20)
        set_offset(server, 1)
        look("peek:", server, 20)
        for _ in range(3):
            look("taken:", server, 20, 0)
        send = threading.Timer(0.1, client.send, (b"pqrs",))
        set_offset(server, 1)
        send.start()
        print("waits:", server.recv(2, socket.MSG_PEEK), offset_of(server))
        duplicate = server.dup()
        print("duplicate:", offset_of(duplicate))
        server.settimeout(0.05)
        set_offset(server, 4)
        attempt("times out", server.recv, 9, socket.MSG_PEEK)
        server.settimeout(20)
        client.send(b"tu")
        print("passed:", server.recv(9, socket.MSG_PEEK), offset_of(server))
        server.connect(client.getsockname())
        print("connected:", offset_of(server))
    for kind in (socket.SOCK_DGRAM, 1), (socket.SOCK_RAW, 1):
        other = socket.socket(socket.AF_INET, *kind)
        attempt("get", offset_of, other)
        attempt("set", set_offset, other, 1)


@case
def peek_offset_and_datagrams_without_octets():
    server, client = datagram_pair(socket.AF_INET, LOOPBACK, [])
    client.connect(server.getsockname())
    for text in b"", b"", b"x", b"":
        client.send(text)
    wait_until(time.time_ns() + 50_000_000)
    look("no offset:", server, 9)
    set_offset(server, 0)
    for _ in range(5):
        look("peek:", server, 9)
    set_offset(server, 0)
    for _ in range(2):
        look("once more:", server, 9)
    for _ in range(4):
        look("taken:", server, 9, 0)


@case
def peek_offset_goes_with_exec():
    if len(sys.argv) > 2:
        sock = socket.socket(fileno=int(sys.argv[2]))
        print("the next program:", offset_of(sock))
        look("peek:", sock, 2)
        return
    client, accepted = pair()
    client.send(b"abcdef")
    readable(accepted)
    set_offset(accepted, 1)
    look("peek:", accepted, 2)
    os.set_inheritable(accepted.fileno(), True)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, sys.argv[0], sys.argv[1], str(accepted.fileno())])


# --- what a socket has

@case
def errors_are_urgent_where_asked_for():
    for option in 0, 1:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        print("set:", sock.setsockopt(socket.SOL_SOCKET, SO_SELECT_ERR_QUEUE, option))
        print("get:", sock.getsockopt(socket.SOL_SOCKET, SO_SELECT_ERR_QUEUE))
        sock.setsockopt(0, IP_RECVERR, 1)
        sock.connect((LOOPBACK, unused_port()))
        sock.send(b"nobody")
        everything = select.POLLIN | select.POLLPRI | select.POLLOUT
        poll_of(sock, 0, 10000)
        print("poll:", poll_of(sock, everything), poll_of(sock, select.POLLPRI))
        print("select:", [len(ready) for ready in select.select([], [], [sock], 0.01)])
        epoll = select.epoll()
        epoll.register(sock, select.EPOLLPRI | select.EPOLLET)
        print("epoll:", names_of(epoll.poll(0), "EPOLL"))
        attempt("send", sock.send, b"nobody")
        sock.recvmsg(0, 500, MSG_ERRQUEUE)
    client, accepted = pair()
    client.setsockopt(socket.SOL_SOCKET, SO_SELECT_ERR_QUEUE, 1)
    client.setsockopt(socket.SOL_SOCKET, 60, 1)
    client.send(b"zero", 0x4000000)
    poll_of(client, 0, 10000)
    print("of a connection:", poll_of(client, select.POLLIN | select.POLLPRI | select.POLLOUT))


@case
def dropped_datagrams_are_counted():
    server, client = datagram_pair(socket.AF_INET, LOOPBACK, [(socket.SOL_SOCKET, SO_RXQ_OVFL)])
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    client.connect(server.getsockname())
    dropped = lambda: struct.unpack("9I", server.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))[8]
    print("none:", dropped())
    client.send(b"first")
    print("first:", server.recvmsg(100, 100)[:3])
    sent, got, counts = 400, 0, []
    for _ in range(sent):
        client.send(bytes(1000))
    wait_until(time.time_ns() + 100_000_000)
    server.setblocking(False)
    while True:
        try:
            counts.append(server.recvmsg(2000, 100)[1])
            got += 1
        except BlockingIOError:
            break
    print("those that came before:", {str(control) for control in counts})
    print("some are missing, and counted:", 0 < got < sent, dropped() == sent - got)
    client.send(b"one more")
    readable(server)
    (level, kind, value), = server.recvmsg(100, 100)[1]
    print("control:", level, kind, struct.unpack("I", value)[0] == sent - got)
    server.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 0)
    client.send(b"not asked")
    readable(server)
    print("switched off:", server.recvmsg(100, 100)[:3])


@case
def memory_of_sockets():
    def shown(what, sock):
        words = struct.unpack("9I", sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))
        received, receive_buffer, sent, send_buffer, _, queued, options, backlog, dropped = words
        sizes = [sock.getsockopt(socket.SOL_SOCKET, name) for name in (socket.SO_RCVBUF, socket.SO_SNDBUF)]
        # A connection's buffers grow by themselves.
        is_fixed = sizes == [receive_buffer, send_buffer]
        # The kernel may drop segments of a connection whose buffer is full.
        print(what, received > 0, is_fixed, queued > 0, options, backlog, dropped if sock.type == 2 else "")

    client, accepted = pair()
    for sock in client, accepted:
        for name in socket.SO_RCVBUF, socket.SO_SNDBUF:
            sock.setsockopt(socket.SOL_SOCKET, name, 100000)
    shown("connection:", accepted)
    client.setblocking(False)
    while True:
        try:
            client.send(bytes(100000))
        except BlockingIOError:
            break
    wait_until(time.time_ns() + 100_000_000)
    shown("who receives:", accepted)
    shown("who sends:", client)
    server, sender = datagram_pair(socket.AF_INET, LOOPBACK, [])
    sender.sendto(b"abc", server.getsockname())
    readable(server)
    shown("datagrams:", server)
    server.recv(100)
    shown("received:", server)
    for what in socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM), listener():
        shown("new:", what)
    for room in 0, 3, 4, 20, 36, 100:
        print("room:", len(accepted.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, room) if room else b""))
    attempt("set", accepted.setsockopt, socket.SOL_SOCKET, SO_MEMINFO, 1)


@case
def locked_buffers():
    lock = lambda sock: sock.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK)
    for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM:
        sock = socket.socket(socket.AF_INET, kind)
        print("new:", lock(sock))
        for value in 0, 1, 2, 3, 4, -1, 7, b"", b"123":
            attempt(f"{value}", sock.setsockopt, socket.SOL_SOCKET, SO_BUF_LOCK, value)
            print("lock:", lock(sock))
        sock.setsockopt(socket.SOL_SOCKET, SO_BUF_LOCK, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 50000)
        print("receive:", lock(sock))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50000)
        print("send:", lock(sock))
        sock.setsockopt(socket.SOL_SOCKET, SO_BUF_LOCK, 1)
        print("unlocked:", lock(sock), sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
    server = listener()
    server.setsockopt(socket.SOL_SOCKET, SO_BUF_LOCK, 2)
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    print("accepted:", lock(accepted), "connected:", lock(client))


def octets_that_a_reader_lets_wait(value):
    """How many octets wait at most for one who has read megabytes, and then reads no more."""
    client, accepted = pair()
    accepted.setsockopt(socket.SOL_SOCKET, SO_BUF_LOCK, value)
    wait_until(time.time_ns() + 50_000_000)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    reader = threading.Thread(target=receive_octets, args=(accepted, 32 << 20))
    reader.start()
    client.sendall(bytes(32 << 20))
    reader.join()
    client.setblocking(False)
    deadline = time.monotonic() + 0.5
    while time.monotonic() < deadline:
        try:
            client.send(bytes(100000))
        except BlockingIOError:
            time.sleep(0.01)
    return struct.unpack("i", fcntl.ioctl(accepted, termios.FIONREAD, bytes(4)))[0]


def receive_octets(sock, count):
    while count > 0:
        count -= len(sock.recv(min(count, 1 << 20)))


@case
def a_locked_buffer_does_not_grow():
    locked, free = octets_that_a_reader_lets_wait(2), octets_that_a_reader_lets_wait(0)
    print("locked:", 0 < locked <= 200000, "else:", free > 300000)


# --- times by ioctl(2)

SIOCGSTAMP, SIOCGSTAMPNS, SIOCGSTAMP_NEW, SIOCGSTAMPNS_NEW = 0x8906, 0x8907, 0x80108906, 0x80108907


def stamp_of(sock, request=SIOCGSTAMPNS):
    """The stamp in nanoseconds, or the name of the error."""
    try:
        seconds, below = struct.unpack("qq", fcntl.ioctl(sock, request, bytes(16)))
    except OSError as error:
        return errno.errorcode[error.errno]
    return seconds * 10 ** 9 + below * (1000 if request in (SIOCGSTAMP, SIOCGSTAMP_NEW) else 1)


@case
def stamps_by_ioctl():
    clock = clock_of_arrivals()
    for family, address in (socket.AF_INET, LOOPBACK), (socket.AF_INET6, "::1"):
        server, client = datagram_pair(family, address, [])
        client.connect(server.getsockname())
        print("before any:", stamp_of(server), stamp_of(server), stamp_of(client))
        since = time.time_ns()
        client.send(b"when")
        readable(server)
        until = time.time_ns()
        print("not received:", stamp_of(server))
        wait_until(until + 2_000_000)
        server.recv(100, socket.MSG_PEEK)
        peeked = stamp_of(server)
        print("in time:", since <= peeked <= until)
        server.recv(100)
        print("the same:", [stamp_of(server, request) // 1000 == peeked // 1000
                            for request in (SIOCGSTAMP, SIOCGSTAMPNS, SIOCGSTAMP_NEW, SIOCGSTAMPNS_NEW)])
        client.send(b"later")
        server.recv(100)
        print("later:", stamp_of(server) > peeked)
        # What came before the first call has the time of that call.
        late, sender = datagram_pair(family, address, [])
        sender.sendto(b"when", late.getsockname())
        late.recv(100)
        since = time.time_ns()
        first = stamp_of(late)
        print("unknown:", since <= first <= time.time_ns(), stamp_of(late) == first)
        # Control messages tell it instead.
        told, sender = datagram_pair(family, address, [(socket.SOL_SOCKET, 29)])
        sender.sendto(b"when", told.getsockname())
        told.recv(100)
        print("told:", stamp_of(told))
        told.setsockopt(socket.SOL_SOCKET, 29, 0)
        print("options:", [told.getsockopt(socket.SOL_SOCKET, other) for other in TIMES])
        since = time.time_ns()
        sender.sendto(b"when", told.getsockname())
        readable(told)
        until = time.time_ns()
        wait_until(until + 2_000_000)
        print("not told:", told.recvmsg(100, 100)[1], since <= stamp_of(told) <= until)
    client, accepted = pair()
    client.send(b"abc")
    accepted.recv(100)
    print("connection:", stamp_of(accepted), "listener:", stamp_of(listener()), "new:", stamp_of(socket.socket()))
    print("new:", stamp_of(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))


@case
def congestion_control_tells_of_itself():
    TCP_CC_INFO = 26
    client, accepted = pair()
    for name in b"reno", b"cubic", b"bbr":
        for sock in socket.socket(), client:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
            print(name, len(sock.getsockopt(socket.IPPROTO_TCP, TCP_CC_INFO, 100)))
    print("new:", socket.socket().getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16) != b"")
    reader = threading.Thread(target=receive_octets, args=(accepted, 32 << 20))
    reader.start()
    client.sendall(bytes(32 << 20))
    reader.join()
    low, high, rtt, pace, window = struct.unpack("5I", client.getsockopt(socket.IPPROTO_TCP, TCP_CC_INFO, 20))
    print("bandwidth:", (high << 32 | low) > 1000000, "round trip:", 0 < rtt < 10 ** 6)
    print("gains:", 0 < pace < 1000, 0 < window < 1000)
    print("short:", client.getsockopt(socket.IPPROTO_TCP, TCP_CC_INFO, 4) != b"")
    attempt("set", client.setsockopt, socket.IPPROTO_TCP, TCP_CC_INFO, 1)
    attempt("of datagrams", socket.socket(socket.AF_INET, socket.SOCK_DGRAM).getsockopt, 6, TCP_CC_INFO, 20)


# --- IP_LOCAL_PORT_RANGE

IP_LOCAL_PORT_RANGE = 51


def with_ports(kind, first, last, family=socket.AF_INET):
    sock = socket.socket(family, kind)
    sock.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("I", last << 16 | first))
    return sock


@case
def ports_of_a_range():
    sock = socket.socket()
    for first, last in (0, 0), (40000, 0), (0, 40000), (40000, 40000), (40001, 40000), (1, 65535):
        value = struct.pack("I", last << 16 | first)
        attempt(f"{first} {last}", sock.setsockopt, socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, value)
        print("get:", sock.getsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, 100) == value)
    for value in b"", b"1", b"123", b"1" * 8:
        attempt(f"{value}", sock.setsockopt, socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, value)
    for family, address in (socket.AF_INET, LOOPBACK), (socket.AF_INET6, "::1"):
        for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM:
            # Each gets one of four, and the fifth none.
            all = [with_ports(kind, 41000, 41003, family) for _ in range(5)]
            for sock in all[:4]:
                sock.bind((address, 0))
            print("bound:", sorted(sock.getsockname()[1] for sock in all[:4]))
            attempt("the fifth", all[4].bind, (address, 0))
            all[1].close()
            attempt("once more", all[4].bind, (address, 0))
            print("in the range:", 41000 <= all[4].getsockname()[1] <= 41003)
            attempt("named", with_ports(kind, 41000, 41003, family).bind, (address, 41010))
            # An end that is no ephemeral port does not count.
            below = with_ports(kind, 1, 32770, family)
            below.bind((address, 0))
            print("below:", 32768 <= below.getsockname()[1] <= 32770)
            above = with_ports(kind, 60998, 65000, family)
            above.bind((address, 0))
            print("above:", 60998 <= above.getsockname()[1] <= 60999)
    unbound = with_ports(socket.SOCK_STREAM, 41100, 41100)
    unbound.listen()
    print("listens:", unbound.getsockname()[1])
    client = socket.create_connection(unbound.getsockname())
    print("inherited:", unbound.accept()[0].getsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE) == 41100 << 16 | 41100)
    attempt("another", with_ports(socket.SOCK_STREAM, 41100, 41100).listen)
    # Without a name a datagram socket has one of its range, too.
    sender = with_ports(socket.SOCK_DGRAM, 41200, 41200)
    sender.sendto(b"abc", (LOOPBACK, 9))
    print("sends:", sender.getsockname()[1])
    other = with_ports(socket.SOCK_DGRAM, 41200, 41200)
    attempt("another sends", other.sendto, b"abc", (LOOPBACK, 9))
    attempt("another connects", other.connect, (LOOPBACK, 9))


@case
def ports_of_a_range_for_connections():
    servers = [listener(), listener()]
    for binds in False, True:
        # One port serves one connection to each destination.
        low, kept = 42000 + 10 * binds, []
        for server in servers:
            for _ in range(3):
                client = with_ports(socket.SOCK_STREAM, low, low)
                if binds:
                    client.setsockopt(socket.IPPROTO_IP, 24, 1)
                    client.bind((LOOPBACK, 0))
                attempt("connect", client.connect, server.getsockname())
                kept.append(client)
                print("from:", client.getsockname()[1] in (0, low))
        kept[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        kept[0].close()
        wait_until(time.time_ns() + 50_000_000)
        client = with_ports(socket.SOCK_STREAM, low, low)
        attempt("once it is free", client.connect, servers[0].getsockname())
        print("from:", client.getsockname()[1])
    v6 = socket.create_server(("::1", 0), family=socket.AF_INET6)
    client = with_ports(socket.SOCK_STREAM, 42020, 42021, socket.AF_INET6)
    client.connect(v6.getsockname())
    print("v6:", client.getsockname()[1] in (42020, 42021))
    client = with_ports(socket.SOCK_STREAM, 42030, 42030)
    client.setblocking(False)
    print("without blocking:", errno.errorcode.get(client.connect_ex(servers[0].getsockname())))
    poll_of(client, select.POLLOUT, 5000)
    print("from:", client.getsockname()[1], client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


GROUP = "239.1.2.3"


def member(port=0, join=True):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("", port))
    if join:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request(GROUP))
    return sock


def request(group, interface=LOOPBACK):
    return socket.inet_aton(group) + socket.inet_aton(interface)


def speaker():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
    return sock


@case
def multicast_options():
    sock = member(join=False)
    for name in ("IP_MULTICAST_TTL", "IP_MULTICAST_LOOP"):
        option = getattr(socket, name)
        print(name, sock.getsockopt(socket.IPPROTO_IP, option))
        for value in (0, 1, 7, 255, 256, -1, -2):
            attempt(f"{name} {value}", sock.setsockopt, socket.IPPROTO_IP, option, value)
            print(name, sock.getsockopt(socket.IPPROTO_IP, option))
        attempt(f"{name} as a char", sock.setsockopt, socket.IPPROTO_IP, option, b"\x03")
        print(name, sock.getsockopt(socket.IPPROTO_IP, option))
    IP_MULTICAST_ALL = 49
    print("all:", sock.getsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL))
    attempt("all", sock.setsockopt, socket.IPPROTO_IP, IP_MULTICAST_ALL, 2)
    print("interface:", socket.inet_ntoa(sock.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, 4)))
    for interface in (LOOPBACK, "0.0.0.0", "203.0.113.7"):
        attempt(interface, sock.setsockopt, socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
        print("interface:", socket.inet_ntoa(sock.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, 4)))
    attempt("short", sock.setsockopt, socket.IPPROTO_IP, socket.IP_MULTICAST_IF, b"abc")
    stream = listener()
    attempt("stream's TTL", stream.setsockopt, socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
    attempt("stream's group", stream.setsockopt, socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request(GROUP))


@case
def multicast_memberships():
    sock = member(join=False)
    add, drop = socket.IP_ADD_MEMBERSHIP, socket.IP_DROP_MEMBERSHIP
    for what, option, value in (
        ("join", add, request(GROUP)),
        ("join again", add, request(GROUP)),
        ("join what is no group", add, request("198.51.100.1")),
        ("join on a stranger's interface", add, request(GROUP, "203.0.113.7")),
        ("join with half a request", add, request(GROUP)[:7]),
        ("leave another", drop, request("239.9.9.9")),
        ("leave", drop, request(GROUP)),
        ("leave again", drop, request(GROUP)),
        ("join by number", add, request(GROUP) + struct.pack("i", 1)),
        ("leave by number", drop, request(GROUP) + struct.pack("i", 1)),
    ):
        attempt(what, sock.setsockopt, socket.IPPROTO_IP, option, value)
    for number in range(21):
        attempt(f"group {number}", sock.setsockopt, socket.IPPROTO_IP, add, request(f"239.1.1.{number}"))


@case
def multicast_reaches_every_member():
    one = member()
    port = one.getsockname()[1]
    members = [one, member(port), member(port)]
    # Of another process, which joins before it binds.
    ready, report = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request(GROUP))
        sock.bind((GROUP, port))
        os.write(ready[1], b"x")
        readable(sock)
        os.write(report[1], sock.recv(100))
        os._exit(0)
    os.read(ready[0], 1)
    print("send:", speaker().sendto(b"hello", (GROUP, port)))
    for sock in members:
        readable(sock)
        data, address = sock.recvfrom(100)
        print("recvfrom:", data, address[0])
    print("child:", os.read(report[0], 100))
    os.waitpid(child, 0)
    members[0].setsockopt(socket.IPPROTO_IP, socket.IP_DROP_MEMBERSHIP, request(GROUP))
    members[0].setsockopt(socket.IPPROTO_IP, 49, 0)
    speaker().sendto(b"again", (GROUP, port))
    print("others:", [sock.recv(100) for sock in members[1:] if readable(sock)])
    print("left:", readable(members[0], 0.2))
    members[0].setsockopt(socket.IPPROTO_IP, 49, 1)
    speaker().sendto(b"to all", (GROUP, port))
    print("hears what others joined:", readable(members[0]))
    for sock in members:
        sock.close()


@case
def multicast_without_members():
    sock = member(join=False)
    port = sock.getsockname()[1]
    print("send:", speaker().sendto(b"hello", (GROUP, port)))
    print("not joined:", readable(sock, 0.2))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request(GROUP))
    speaker().sendto(b"another", ("239.9.9.9", port))
    print("another group:", readable(sock, 0.2))
    talker = speaker()
    talker.connect((GROUP, port))
    print("connected:", talker.getpeername()[0])
    talker.send(b"hello")
    print("recv:", readable(sock) and sock.recv(100))


@case
def udp_address_in_use():
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind((LOOPBACK, 0))
    other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    attempt("bind", other.bind, one.getsockname())
    tcp = socket.socket()
    attempt("bind TCP", tcp.bind, one.getsockname())


# --- IPv6

V6 = socket.AF_INET6
V6_LOOPBACK = "::1"


def v6_socket(kind=socket.SOCK_STREAM, only=None):
    sock = socket.socket(V6, kind)
    if only is not None:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
    return sock


def v6_listener(address="::", only=None, port=0):
    server = v6_socket(only=only)
    server.bind((address, port))
    server.listen(16)
    return server


def without_port(name):
    return (name[0], *name[2:])


@case
def v6_connection_has_names():
    server = v6_listener(V6_LOOPBACK)
    print("listener:", without_port(server.getsockname()))
    client = socket.create_connection(server.getsockname()[:2], timeout=10)
    accepted, peer = server.accept()
    print("client:", without_port(client.getsockname()), client.getpeername() == server.getsockname())
    print("accepted:", accepted.getsockname() == server.getsockname(), peer == client.getsockname())
    client.sendall(b"question")
    print("recv:", accepted.recv(100))
    accepted.sendall(bytes(100_000))
    accepted.close()
    print("length:", len(receive_all(client)))
    print("family:", client.family == V6, client.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN))


@case
def v6_listener_takes_both_families():
    server = v6_listener()
    print("listener:", without_port(server.getsockname()))
    port = server.getsockname()[1]
    for address in (LOOPBACK, V6_LOOPBACK):
        client = socket.create_connection((address, port), timeout=10)
        accepted, peer = server.accept()
        print(address, "peer:", peer[0], peer[2:], "own:", accepted.getsockname()[0])
        accepted.sendall(b"x")
        print("recv:", client.recv(10))
    mapped = v6_socket()
    mapped.connect(("::ffff:127.0.0.1", port))
    print("mapped:", without_port(mapped.getsockname()), without_port(mapped.getpeername()))


@case
def v6_listener_alone():
    server = v6_listener(only=1)
    port = server.getsockname()[1]
    print("IPV6_V6ONLY:", server.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY))
    attempt("IPv4", socket.create_connection, (LOOPBACK, port), 10)
    attempt("IPv6", socket.create_connection, (V6_LOOPBACK, port), 10)
    attempt("too late", server.setsockopt, socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    attempt("both ports", socket.create_server, (LOOPBACK, port))
    only = v6_socket(only=1)
    attempt("bind mapped", only.bind, ("::ffff:127.0.0.1", 0))
    attempt("connect mapped", v6_socket(only=1).connect, ("::ffff:127.0.0.1", port))


@case
def v6_ports_are_shared_as_the_table_says():
    places = [(socket.AF_INET, "0.0.0.0", None), (socket.AF_INET, LOOPBACK, None), (V6, "::", 0), (V6, "::", 1),
              (V6, V6_LOOPBACK, 0), (V6, V6_LOOPBACK, 1), (V6, "::ffff:127.0.0.1", 0)]
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        for first in places:
            for second in places:
                sockets = []
                port = 0
                for family, address, only in (first, second):
                    sock = socket.socket(family, kind)
                    sockets.append(sock)
                    if only is not None:
                        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
                    try:
                        sock.bind((address, port))
                        result = "ok"
                    except OSError as error:
                        result = errno.errorcode[error.errno]
                    port = sock.getsockname()[1]
                print(kind == socket.SOCK_STREAM, first[1:], second[1:], result)
                for sock in sockets:
                    sock.close()


@case
def v6_options():
    sock = v6_socket()
    level = socket.IPPROTO_IPV6
    print("V6ONLY:", sock.getsockopt(level, socket.IPV6_V6ONLY))
    for name in ("IPV6_UNICAST_HOPS", "IPV6_TCLASS"):
        option = getattr(socket, name)
        print(name, sock.getsockopt(level, option))
        for value in (0, 7, 255, 256, -2, -1):
            attempt(f"set {value}", sock.setsockopt, level, option, value)
            print("is:", sock.getsockopt(level, option))
    old = socket.socket()
    attempt("get of IPv4", old.getsockopt, level, socket.IPV6_V6ONLY)
    attempt("set of IPv4", old.setsockopt, level, socket.IPV6_V6ONLY, 1)
    server = v6_socket()
    server.setsockopt(level, socket.IPV6_UNICAST_HOPS, 9)
    server.setsockopt(level, socket.IPV6_TCLASS, 0x20)
    server.bind((V6_LOOPBACK, 0))
    server.listen()
    client = socket.create_connection(server.getsockname()[:2], timeout=10)
    accepted, _ = server.accept()
    print("inherited:", accepted.getsockopt(level, socket.IPV6_UNICAST_HOPS))
    print("client:", client.getsockopt(level, socket.IPV6_UNICAST_HOPS), client.getsockopt(level, socket.IPV6_V6ONLY))


@case
def v6_fragment_options():
    level, server = socket.IPPROTO_IPV6, v6_socket(socket.SOCK_DGRAM)
    server.bind((V6_LOOPBACK, 0))
    sock = v6_socket(socket.SOCK_DGRAM)
    IPV6_MTU_DISCOVER, IPV6_DONTFRAG = 23, 62
    for name, option, values in (
        ("IPV6_MTU_DISCOVER", IPV6_MTU_DISCOVER, range(-1, 7)),
        ("IPV6_DONTFRAG", IPV6_DONTFRAG, (1, 0, 5)),
    ):
        print(name, sock.getsockopt(level, option))
        for value in values:
            attempt(f"{name} {value}", sock.setsockopt, level, option, value)
            print(name, sock.getsockopt(level, option))
            # The loopback takes datagrams of nearly every size as they are.
            attempt("sendto", sock.sendto, bytes(60_000), server.getsockname())
            print("recv:", len(server.recv(65536)))
        attempt(f"{name}, half of it", sock.setsockopt, level, option, b"ab")
    attempt("longer than any", sock.sendto, bytes(65528), server.getsockname())
    for size in (1452, 1453, 30_000):
        message = os.urandom(size)
        sock.sendto(message, server.getsockname())
        print(size, server.recv(65536) == message)
    stream = v6_socket()
    print("TCP:", stream.getsockopt(level, IPV6_MTU_DISCOVER), stream.getsockopt(level, IPV6_DONTFRAG))
    attempt("set of TCP", stream.setsockopt, level, IPV6_MTU_DISCOVER, 2)
    print("TCP:", stream.getsockopt(level, IPV6_MTU_DISCOVER))


V6_GROUP = "ff15::1:2"
V6_MULTICAST_ALL = 29


def v6_request(group=V6_GROUP, interface=1):
    return socket.inet_pton(V6, group) + struct.pack("i", interface)


@case
def v6_multicast_options():
    sock, level = v6_socket(socket.SOCK_DGRAM), socket.IPPROTO_IPV6
    for name, option in (
        ("IPV6_MULTICAST_HOPS", socket.IPV6_MULTICAST_HOPS),
        ("IPV6_MULTICAST_LOOP", socket.IPV6_MULTICAST_LOOP),
        ("IPV6_MULTICAST_ALL", V6_MULTICAST_ALL),
        ("IPV6_MULTICAST_IF", socket.IPV6_MULTICAST_IF),
    ):
        print(name, sock.getsockopt(level, option))
        values = (1, 0, -1) if option == socket.IPV6_MULTICAST_IF else (0, 1, 7, 255, 256, -1, -2)
        for value in values:
            attempt(f"{name} {value}", sock.setsockopt, level, option, value)
            print(name, sock.getsockopt(level, option))
        attempt(f"{name} as a char", sock.setsockopt, level, option, b"\x01")
        stream = v6_socket()
        attempt(f"{name} of a stream", stream.setsockopt, level, option, 1)
        attempt(f"{name} of IPv4", socket.socket(socket.AF_INET, socket.SOCK_DGRAM).setsockopt, level, option, 1)
    # Those of IPv4 are others.
    print("IPv4:", sock.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL))
    bound = v6_socket(socket.SOCK_DGRAM)
    attempt("bind to a group", bound.bind, (V6_GROUP, 0))
    print("bound:", bound.getsockname()[0])
    attempt("bind of a stream", v6_socket().bind, (V6_GROUP, 0))


@case
def v6_multicast_memberships():
    sock, level = v6_socket(socket.SOCK_DGRAM), socket.IPPROTO_IPV6
    join, leave = socket.IPV6_JOIN_GROUP, socket.IPV6_LEAVE_GROUP
    MCAST_JOIN_GROUP, MCAST_LEAVE_GROUP = 42, 45

    def by_address(group, family=V6):
        address = struct.pack("=HHI", family, 0, 0) + socket.inet_pton(V6, group)
        return struct.pack("=II", 1, 0) + address.ljust(128, b"\0")

    for what, option, value in (
        ("join", join, v6_request()),
        ("join again", join, v6_request()),
        ("join again anywhere", join, v6_request(interface=0)),
        ("join what is no group", join, v6_request("2001:db8::1")),
        ("join what is IPv4's", join, v6_request("::ffff:239.1.2.3")),
        ("join with half a request", join, v6_request()[:19]),
        ("leave another", leave, v6_request("ff15::9")),
        ("leave what is no group", leave, v6_request("2001:db8::1")),
        ("leave", leave, v6_request()),
        ("leave again", leave, v6_request()),
        ("join for any interface", join, v6_request()),
        ("leave any", leave, v6_request(interface=0)),
        ("join by address", MCAST_JOIN_GROUP, by_address(V6_GROUP)),
        ("join by address again", MCAST_JOIN_GROUP, by_address(V6_GROUP)),
        ("join by half an address", MCAST_JOIN_GROUP, by_address(V6_GROUP)[:100]),
        ("join by an address of IPv4", MCAST_JOIN_GROUP, by_address(V6_GROUP, socket.AF_INET)),
        ("leave by address", MCAST_LEAVE_GROUP, by_address(V6_GROUP)),
    ):
        attempt(what, sock.setsockopt, level, option, value)
    for number in range(50):
        attempt(f"group {number}", sock.setsockopt, level, join, v6_request(f"ff15::1:{number}"))
    attempt("of a stream", v6_socket().setsockopt, level, join, v6_request())
    attempt("of IPv4", socket.socket(socket.AF_INET, socket.SOCK_DGRAM).setsockopt, level, join, v6_request())


@case
def v6_refused_and_unreachable():
    port = unused_port()
    attempt("refused", v6_socket().connect, (V6_LOOPBACK, port))
    attempt("mapped", v6_socket().connect, ("::ffff:127.0.0.1", port))
    attempt("foreign", v6_socket().bind, ("2001:db8::77", 0))
    attempt("any", v6_socket().connect, ("::", port))
    server = v6_listener()
    client = v6_socket()
    client.connect(("::", server.getsockname()[1]))
    print("any is here:", without_port(client.getpeername()))
    bound = v6_socket()
    bound.bind((V6_LOOPBACK, 0))
    bound.connect(server.getsockname()[:2])
    print("bound:", without_port(bound.getsockname()))
    attempt("twice", bound.connect, server.getsockname()[:2])
    waiting = v6_socket()
    waiting.setblocking(False)
    attempt("without blocking", waiting.connect, server.getsockname()[:2])
    waiting.close()
    fresh = v6_socket()
    attempt("getpeername", fresh.getpeername)
    print("getsockname:", fresh.getsockname())


@case
def v6_datagrams():
    server = v6_socket(socket.SOCK_DGRAM)
    server.bind(("::", 0))
    port = server.getsockname()[1]
    six = v6_socket(socket.SOCK_DGRAM)
    six.sendto(b"six", (V6_LOOPBACK, port))
    data, peer = server.recvfrom(100)
    print(data, without_port(peer), peer[1] == six.getsockname()[1])
    server.sendto(b"back", peer)
    print(six.recvfrom(100)[0])
    four = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    four.sendto(b"four", (LOOPBACK, port))
    data, peer = server.recvfrom(100)
    print(data, without_port(peer))
    server.sendto(b"back", peer)
    print(four.recvfrom(100)[0])
    six.sendto(b"mapped", ("::ffff:127.0.0.1", port))
    print(server.recvfrom(100)[0])
    only = v6_socket(socket.SOCK_DGRAM, only=1)
    attempt("no way to IPv4", only.sendto, b"x", ("::ffff:127.0.0.1", port))
    attempt("too long", six.sendto, bytes(65528), (V6_LOOPBACK, port))
    attempt("to nobody", six.send, b"x")
    data, _, flags, address = (six.sendto(b"0123456789", (V6_LOOPBACK, port)), *server.recvmsg(4)[1:])
    print("recvmsg:", bool(flags & socket.MSG_TRUNC), without_port(address))


@case
def v6_datagrams_connected():
    server = v6_socket(socket.SOCK_DGRAM)
    server.bind((V6_LOOPBACK, 0))
    client = v6_socket(socket.SOCK_DGRAM)
    client.connect(server.getsockname())
    print("names:", without_port(client.getsockname()), client.getpeername() == server.getsockname())
    client.send(b"x")
    print("recvfrom:", server.recvfrom(10)[1] == client.getsockname())
    stranger = v6_socket(socket.SOCK_DGRAM)
    stranger.sendto(b"stranger", client.getsockname())
    print("hears strangers:", readable(client, 0.1))
    server.sendto(b"peer", client.getsockname())
    print("recv:", client.recv(10))
    lonely = v6_socket(socket.SOCK_DGRAM)
    lonely.connect((V6_LOOPBACK, unused_port()))
    attempt("send", lonely.send, b"x")
    readable(lonely, 2)
    attempt("recv", lonely.recv, 1)
    mapped = v6_socket(socket.SOCK_DGRAM)
    mapped.connect(("::ffff:127.0.0.1", unused_port()))
    print("mapped:", without_port(mapped.getsockname()), without_port(mapped.getpeername()))
    libc = ctypes.CDLL(None, use_errno=True)
    for sock in (client, lonely, mapped):
        print("disconnect:", libc.connect(sock.fileno(), struct.pack("=H26x", socket.AF_UNSPEC), 28),
              without_port(sock.getsockname()))
        attempt("getpeername", sock.getpeername)


@case
def v6_datagrams_bound_to_one_family():
    """A socket that is bound to an address of IPv6 does not speak IPv4, and the reverse."""
    for bound in "::1", "::", "::ffff:127.0.0.1":
        for to in "::1", "::ffff:127.0.0.1":
            sock = v6_socket(socket.SOCK_DGRAM, only=0)
            sock.bind((bound, 0))
            print(bound, to, sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY))
            attempt("  sendto", sock.sendto, b"x", (to, 9))
            attempt("  connect", sock.connect, (to, 9))
        libc = ctypes.CDLL(None, use_errno=True)
        sock = v6_socket(socket.SOCK_DGRAM, only=0)
        sock.bind((bound, 0))
        four = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(9), socket.inet_aton(LOOPBACK))
        for name, call in ("sendto", lambda: libc.sendto(sock.fileno(), b"x", 1, 0, four, 16)), (
                "connect", lambda: libc.connect(sock.fileno(), four, 16)):
            result = call()
            print("  ", name, "of AF_INET", result if result >= 0 else error_name(ctypes.get_errno()))


@case
def v6_urgent_datagrams():
    for to in "::1", "::ffff:127.0.0.1":
        sock = v6_socket(socket.SOCK_DGRAM)
        attempt("sendto", sock.sendto, b"x", socket.MSG_OOB, (to, 9))
        time.sleep(0.2)
        sock.connect((to, 9))
        attempt("send", sock.send, b"x", socket.MSG_OOB)


@case
def v6_socket_hears_no_group_of_others():
    one = member()
    port = one.getsockname()[1]
    six = v6_socket(socket.SOCK_DGRAM, only=0)
    mapped = v6_socket(socket.SOCK_DGRAM, only=0)
    for sock, addr in (six, "::"), (mapped, "::ffff:" + GROUP):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        print("IP_MULTICAST_ALL:", sock.getsockopt(socket.IPPROTO_IP, 49))
        sock.bind((addr, port))
    for _ in range(2):
        speaker().sendto(b"hello", (GROUP, port))
        print(readable(one), one.recv(100))
        print([readable(sock, 0.3) and sock.recv(100) for sock in (six, mapped)])
        for sock in six, mapped:
            sock.setsockopt(socket.IPPROTO_IP, 49, 1)
            print("IP_MULTICAST_ALL:", sock.getsockopt(socket.IPPROTO_IP, 49))


@case
def v6_bad_addresses():
    sock = v6_socket()
    libc = ctypes.CDLL(None, use_errno=True)
    def address(family, host, scope=0):
        return struct.pack("=HHI16sI", family, 0, 0, socket.inet_pton(V6, host), scope)
    for what, length, family, host in (("short", 20, V6, V6_LOOPBACK), ("family", 28, socket.AF_INET, V6_LOOPBACK),
                                       ("link-local", 28, V6, "fe80::1"), ("foreign", 28, V6, "2001:db8::1")):
        result = libc.bind(sock.fileno(), address(family, host), length)
        print(f"bind {what}:", result, errno.errorcode.get(ctypes.get_errno()) if result else "")
    for what, length, family, host in (("short", 20, V6, V6_LOOPBACK), ("link-local", 28, V6, "fe80::1")):
        buffer = address(family, host)
        buffer = buffer[:2] + struct.pack("!H", 9) + buffer[4:]
        result = libc.connect(v6_socket().fileno(), buffer, length)
        print(f"connect {what}:", result, errno.errorcode.get(ctypes.get_errno()) if result else "")


@case
def v6_listener_survives_exec():
    server = v6_listener(V6_LOOPBACK)
    server.set_inheritable(True)
    client = socket.create_connection(server.getsockname()[:2], timeout=10)
    child = os.fork()
    if child == 0:
        script = "import socket,sys; s=socket.socket(fileno=%d); c,p=s.accept(); c.sendall(repr(p[0]).encode())"
        os.execv(sys.executable, [sys.executable, "-c", script % server.fileno()])
    print("said:", client.recv(100))
    os.waitpid(child, 0)
    print("own:", server.getsockname()[0])


OTHER = 33
REUSE = {"-": (), "a": (socket.SO_REUSEADDR,), "p": (socket.SO_REUSEPORT,), "ap": (socket.SO_REUSEADDR, socket.SO_REUSEPORT)}
# First and second address; an IPv6 one that ends in ! is for IPv6 alone.
PLACES = (("0.0.0.0", "0.0.0.0"), ("0.0.0.0", LOOPBACK), (LOOPBACK, "0.0.0.0"), (LOOPBACK, LOOPBACK), (LOOPBACK, "127.0.0.2"),
          ("::", "0.0.0.0"), ("0.0.0.0", "::!"))
# Who makes each of the two sockets, and who binds it.
USERS = {"same": ((0, 0), (0, 0)), "different": ((0, 0), (OTHER, OTHER)), "same other": ((OTHER, OTHER), (OTHER, OTHER)),
         "made by the same": ((0, 0), (0, OTHER)), "made by another": ((0, 0), (OTHER, 0))}


def as_user(uid, function, *arguments):
    os.seteuid(uid)
    try:
        return function(*arguments)
    finally:
        os.seteuid(0)


def two_sockets(kind, users, places, reuse, listens, port):
    """Binds two sockets to one port, and has them listen. The first call that fails, and its error."""
    made = []
    try:
        for n, ((maker, binder), place, options) in enumerate(zip(users, places, reuse)):
            v6 = ":" in place
            sock = as_user(maker, socket.socket, socket.AF_INET6 if v6 else socket.AF_INET, kind)
            made.append(sock)
            if v6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, place.endswith("!"))
            for option in REUSE[options]:
                sock.setsockopt(socket.SOL_SOCKET, option, 1)
            for what, wanted, call in (("b", True, lambda: sock.bind((place.rstrip("!"), port))), ("l", listens[n], sock.listen)):
                try:
                    wanted and as_user(binder, call)
                except OSError as error:
                    return f"{what}{n + 1}" if error.errno == errno.EADDRINUSE else f"{what}{n + 1}:{errno.errorcode[error.errno]}"
        return "ok"
    finally:
        for sock in made:
            sock.close()


def table_of_ports(kind, users):
    states = ((False, False), (False, True), (True, False), (True, True)) if kind == socket.SOCK_STREAM else ((False, False),)
    port = 20000
    for places in PLACES:
        for listens in states:
            results = []
            for first in REUSE:
                for second in REUSE:
                    port += 1
                    result = two_sockets(kind, USERS[users], places, (first, second), listens, port)
                    results.append(f"{first}/{second}={result}")
            state = " ".join("listening" if it else "bound" for it in listens)
            print(f"{places[0]} and {places[1]}, {state}: {' '.join(results)}")


@case
def ports_of_one_user():
    table_of_ports(socket.SOCK_STREAM, "same")
    table_of_ports(socket.SOCK_DGRAM, "same")


@case
def ports_of_two_users():
    for users in ("different", "same other"):
        table_of_ports(socket.SOCK_STREAM, users)
        table_of_ports(socket.SOCK_DGRAM, users)


@case
def ports_of_whoever_made_the_socket():
    for users in ("made by the same", "made by another"):
        table_of_ports(socket.SOCK_STREAM, users)
        table_of_ports(socket.SOCK_DGRAM, users)


@case
def low_ports_are_for_who_binds():
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        for maker, binder in ((0, 0), (0, OTHER), (OTHER, 0), (OTHER, OTHER)):
            for port in (1023, 1024):
                sock = as_user(maker, socket.socket, socket.AF_INET, kind)
                attempt(f"{kind} {maker} {binder} {port}", lambda: as_user(binder, sock.bind, (LOOPBACK, port)))
                sock.close()


@case
def ports_after_root_is_given_up():
    """A daemon binds as root, gives root up, and then listens, shares, and asks for more."""
    def sharing():
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return sock
    low, high, early, late = sharing(), sharing(), sharing(), sharing()
    low.bind((LOOPBACK, 80))
    high.bind((LOOPBACK, 8080))
    late.bind((LOOPBACK, 8081))
    os.setresuid(OTHER, OTHER, OTHER)
    attempt("listen", low.listen)
    attempt("listen", high.listen)
    attempt("a share of root's, by a socket of before", early.bind, (LOOPBACK, 8080))
    attempt("a share of root's", sharing().bind, (LOOPBACK, 8080))
    attempt("a low share of root's", sharing().bind, (LOOPBACK, 80))
    attempt("a low port", socket.socket().bind, (LOOPBACK, 82))
    client = socket.socket()
    client.connect((LOOPBACK, 80))
    print("served:", low.accept()[1] == client.getsockname())
    # The port is free, and not this program's any more.
    client.close()
    low.close()
    again = socket.socket()
    again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    attempt("again", again.bind, (LOOPBACK, 80))

ICMP_FILTER, ICMP6_FILTER, IPV6_CHECKSUM, SOL_RAW = 1, 1, 7, 255


def raw_socket(v6=False):
    """A raw socket of ICMP, and how it asks itself: its address and the types of request and reply."""
    kind = (socket.AF_INET6, socket.IPPROTO_ICMPV6) if v6 else (socket.AF_INET, socket.IPPROTO_ICMP)
    it = socket.socket(kind[0], socket.SOCK_RAW, kind[1])
    it.settimeout(10)
    return it, "::1" if v6 else LOOPBACK, (128, 129) if v6 else (8, 0)


def icmp_message(kind, number=0, text=b"text", code=0, v6=False):
    """A message of ICMP with its checksum, which that of ICMPv6 gets when it leaves."""
    head = struct.pack("!BBHHH", kind, code, 0, 4711, number)
    words = head + text + bytes(len(text) % 2)
    total = sum(struct.unpack("!%dH" % (len(words) // 2), words))
    total = (total & 0xffff) + (total >> 16)
    total = ~((total & 0xffff) + (total >> 16)) & 0xffff
    return struct.pack("!BBHHH", kind, code, 0 if v6 else total, 4711, number) + text


def raw_received(it, v6=False, flags=0):
    """What comes next: of the header what does not differ from run to run, and of the message all but its checksum."""
    octets, peer = it.recvfrom(70000, flags)
    head = () if v6 else (octets[0], struct.unpack("!H", octets[2:4])[0] == len(octets), octets[8:10], octets[12:20])
    text = octets if v6 else octets[20:]
    return head, text[:2], text[4:40], len(octets), peer


def is_quiet(*them):
    return not select.select(them, [], [], 0)[0]


@case
def raw_sockets_hear_themselves():
    for v6 in (False, True):
        it, to, kinds = raw_socket(v6)
        print(it.getsockname(), it.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE), it.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL))
        attempt("no peer", it.getpeername)
        attempt("no receiver", it.send, icmp_message(kinds[0], v6=v6))
        for text in (b"", b"text", bytes(1001)):
            attempt("request", it.sendto, icmp_message(kinds[0], 7, text, v6=v6), (to, 0))
            print(raw_received(it, v6))
            print(raw_received(it, v6))
        # A port is none, or the number of the protocol with IPv6.
        attempt("a port", it.sendto, icmp_message(kinds[1], 8, v6=v6), (to, 58 if v6 else 99))
        print(raw_received(it, v6))
        if v6:
            attempt("another port", it.sendto, icmp_message(kinds[1], 8, v6=v6), (to, 99))
        attempt("unknown type", it.sendto, icmp_message(200, 9, v6=v6), (to, 0))
        print(raw_received(it, v6), is_quiet(it))
        it.setblocking(False)
        attempt("nothing", it.recv, 1)
        attempt("out of band", it.recv, 1, socket.MSG_OOB)
        attempt("out of band", it.sendto, icmp_message(kinds[1], v6=v6), socket.MSG_OOB, (to, 0))
        if v6:
            attempt("another family", it.sendto, icmp_message(8), ("::ffff:127.0.0.1", 0))
            attempt("another family", it.bind, ("::ffff:127.0.0.1", 0))
        attempt("listen", it.listen, 1)


@case
def raw_sockets_are_short_or_long():
    it, to, _ = raw_socket()
    # raw_recvmsg: the rest of what is too long is lost.
    it.sendto(icmp_message(0, 1, b"0123456789"), (to, 0))
    print(len(it.recv(24)), is_quiet(it))
    it.sendto(icmp_message(0, 1, b"0123456789"), (to, 0))
    octets, _, flags, _ = it.recvmsg(10)
    print(len(octets), flags == socket.MSG_TRUNC)
    # What is no whole header is sent, and nobody's (icmp_filter). A checksum may be wrong.
    for length in (0, 1, 2, 7, 8, 60000, 65515):
        attempt(length, it.sendto, bytes(length), (to, 0))
    print([len(it.recv(70000)) for _ in range(3)], is_quiet(it))
    attempt("too long", it.sendto, bytes(65516), (to, 0))
    six, to, _ = raw_socket(True)
    for length in (0, 1, 2, 3, 8, 60000):
        attempt(length, six.sendto, b"\x81" * length, (to, 0))
    print([len(six.recv(70000)) for _ in range(2)], is_quiet(six))


@case
def raw_sockets_filter():
    for v6 in (False, True):
        it, to, kinds = raw_socket(v6)
        level, name, words = (socket.IPPROTO_ICMPV6, ICMP6_FILTER, 8) if v6 else (SOL_RAW, ICMP_FILTER, 1)
        print(it.getsockopt(level, name, 64))
        takes = [0xffffffff] * words
        takes[kinds[1] // 32] &= ~(1 << kinds[1] % 32)
        it.setsockopt(level, name, struct.pack("=%dI" % words, *takes))
        print(it.getsockopt(level, name, 64), it.getsockopt(level, name, 3))
        it.sendto(icmp_message(kinds[0], 1, v6=v6), (to, 0))
        print(raw_received(it, v6), is_quiet(it))
        # The first octets are set, and the others stay.
        it.setsockopt(level, name, b"\xff")
        print(it.getsockopt(level, name, 64))
        it.setsockopt(level, name, bytes(64))
        print(it.getsockopt(level, name, 64))
        it.sendto(icmp_message(kinds[0], 2, v6=v6), (to, 0))
        print(raw_received(it, v6), raw_received(it, v6))
        attempt("other", it.getsockopt, level, 77)
        attempt("other", it.setsockopt, level, 77, 1)
    attempt("no filter", socket.socket(socket.AF_INET, socket.SOCK_DGRAM).setsockopt, SOL_RAW, ICMP_FILTER, 1)


@case
def raw_sockets_have_options():
    for v6 in (False, True):
        it, to, kinds = raw_socket(v6)
        print(it.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR))
        attempt("unknown", it.getsockopt, socket.IPPROTO_IP, 77)
        if v6:
            attempt("checksum", it.getsockopt, socket.IPPROTO_IPV6, IPV6_CHECKSUM)
            attempt("checksum", it.setsockopt, socket.IPPROTO_IPV6, IPV6_CHECKSUM, 2)
            attempt("only", it.getsockopt, socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
        else:
            attempt("header", it.getsockopt, socket.IPPROTO_IP, socket.IP_HDRINCL)
            attempt("header", it.setsockopt, socket.IPPROTO_IP, socket.IP_HDRINCL, 0)
            it.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 9)
            it.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x20)
            it.sendto(icmp_message(kinds[1], 3), (to, 0))
            octets = it.recv(100)
            print(octets[1], octets[8])
            it.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
            it.sendto(icmp_message(kinds[1], 3), (to, 0))
            print(it.recvmsg(100, 100)[1])
        # A message in two calls.
        message = icmp_message(kinds[1], 4, v6=v6)
        attempt("begun", it.sendto, message[:6], socket.MSG_MORE, (to, 0))
        print(is_quiet(it))
        attempt("ended", it.sendto, message[6:], (to, 0))
        print(raw_received(it, v6))


@case
def raw_sockets_bind_and_connect():
    for v6 in (False, True):
        it, to, kinds = raw_socket(v6)
        elsewhere = "2001:db8::1234" if v6 else "198.18.7.7"
        attempt("foreign", it.bind, (elsewhere, 0))
        attempt("bind", it.bind, (to, 5))
        print(it.getsockname()[:2])
        attempt("bind again", it.bind, ("::" if v6 else "0.0.0.0", 0))
        attempt("bind again", it.bind, (to, 0))
        it.sendto(icmp_message(kinds[1], 1, v6=v6), (to, 0))
        print(raw_received(it, v6))
        attempt("connect", it.connect, (to, 0))
        attempt("peer", it.getpeername)
        print(it.getsockname()[:2])
        attempt("send", it.send, icmp_message(kinds[1], 2, v6=v6))
        print(raw_received(it, v6))
        attempt("bind", it.bind, (to, 0))
        attempt("peer with port", it.connect, (to, 4))
        attempt("peer", it.getpeername)
        attempt("shutdown", it.shutdown, socket.SHUT_RDWR)
        attempt("send", it.send, icmp_message(kinds[1], 3, v6=v6))
    # On the loopback each packet comes from where it goes to, unless a socket says otherwise.
    one, two = raw_socket()[0], raw_socket()[0]
    one.bind(("127.0.0.2", 0))
    two.connect(("127.0.0.3", 0))
    three = raw_socket()[0]
    three.sendto(icmp_message(0, 1), ("127.0.0.2", 0))
    print(raw_received(one)[3], is_quiet(two))
    four = raw_socket()[0]
    four.bind(("127.0.0.3", 0))
    four.sendto(icmp_message(0, 2), (two.getsockname()[0], 0))
    print(raw_received(two)[4], is_quiet(one))
    print(raw_received(three)[2][3:4], raw_received(three)[2][3:4])


@case
def raw_sockets_each_get_a_copy():
    for v6 in (False, True):
        one, to, kinds = raw_socket(v6)
        two, _, _ = raw_socket(v6)
        level = socket.IPPROTO_ICMPV6 if v6 else socket.IPPROTO_ICMP
        try:
            # Everybody may ping, as on a usual Linux.
            with open("/proc/sys/net/ipv4/ping_group_range", "w") as range_of_groups:
                range_of_groups.write("0 2147483647")
        except OSError:
            pass
        ping = socket.socket(one.family, socket.SOCK_DGRAM, level)
        ping.settimeout(10)
        ping.bind((to, 4711))
        ping.sendto(icmp_message(kinds[0], 5, v6=v6), (to, 0))
        print(len(ping.recv(100)))
        for it in (one, two):
            print(raw_received(it, v6), raw_received(it, v6), is_quiet(it))
        # That of the other family hears nothing.
        other, _, _ = raw_socket(not v6)
        one.sendto(icmp_message(kinds[0], 6, v6=v6), (to, 0))
        print(raw_received(two, v6)[2], raw_received(two, v6)[2], is_quiet(other))
        # One that is closed takes nothing from the others.
        one.close()
        two.sendto(icmp_message(kinds[1], 7, v6=v6), (to, 0))
        print(raw_received(two, v6)[2], is_quiet(two))


@case
def raw_sockets_hear_of_errors():
    it, to, _ = raw_socket()
    # A port of UDP that nobody has: the error is heard as a message.
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((to, 0))
    port = udp.getsockname()[1]
    udp.close()
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", (to, port))
    head, kind, text, length, peer = raw_received(it)
    print(head[0], kind, text[4:5], length, peer)


@case
def raw_sockets_are_inherited():
    it, to, kinds = raw_socket()
    it.set_inheritable(True)
    it.setsockopt(SOL_RAW, ICMP_FILTER, struct.pack("=I", ~1 & 0xffffffff))
    child = os.fork()
    if child == 0:
        it.sendto(icmp_message(8, 1), (to, 0))
        print(raw_received(it)[2][:4], flush=True)
        # A program that gives up its privileges keeps what it has, and gets nothing new.
        os.setuid(65534)
        attempt("new", raw_socket)
        it.sendto(icmp_message(8, 2), (to, 0))
        print(raw_received(it)[2][:4], flush=True)
        source = ("import socket, struct\n"
                  f"it = socket.socket(fileno={it.fileno()})\n"
                  "it.settimeout(10)\n"
                  "print(it.type, it.proto, it.getsockopt(255, 1, 4))\n"
                  f"it.sendto({icmp_message(8, 3)!r}, ('{to}', 0))\n"
                  "print(it.recv(100)[24:28])")
        os.execv("/usr/bin/python3", ["python3", "-c", source])
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    it.sendto(icmp_message(8, 4), (to, 0))
    print(raw_received(it)[2][:4])


@case
def raw_sockets_need_a_capability():
    """CAP_NET_RAW counts when the socket is made: capabilities(7)."""
    libc = ctypes.CDLL(None, use_errno=True)

    def families(what):
        for v6 in (False, True):
            attempt(what, lambda: raw_socket(v6)[0].type)

    families("root")

    def without_capability():
        # PR_CAPBSET_DROP, and the effective set without CAP_NET_RAW.
        head, data = struct.pack("=Ii", 0x20080522, 0), bytearray(24)
        buffer = (ctypes.c_char * 24).from_buffer(data)
        print(libc.capget(head, buffer))
        data[1] &= ~(1 << 13 - 8)
        print(libc.capset(head, buffer), flush=True)
        families("root without it")
        # What is not effective can become so.
        data[1] |= 1 << 13 - 8
        print(libc.capset(head, buffer), flush=True)
        families("root with it again")

    for function, uid in ((lambda: families("nobody"), 65534), (without_capability, 0)):
        child = os.fork()
        if child == 0:
            # A private stack lets in who is there while it is root.
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            os.setuid(uid)
            function()
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
    attempt("datagrams", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).type)


if __name__ == "__main__":
    if sys.argv[1] == "--list":
        print("\n".join(CASES))
    else:
        signal.alarm(30)
        CASES[sys.argv[1]]()
        sys.stdout.flush()
        # Threads that a failed case left waiting must not keep the process.
        os._exit(0)

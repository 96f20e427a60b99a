#!/usr/bin/python3
"""What sockets do that are bound to a network device: SO_BINDTODEVICE, SO_BINDTOIFINDEX.

devices.py --list                      lists the cases
devices.py CASE OWN PEER OWN6          prints what happens; OWN and OWN6 are this machine's on eth0, PEER is a neighbour
devices.py serve                       listens for devices.py outside, and prints what comes
devices.py outside ADDRESS             asks a machine on which devices.py serve runs, from outside
"""
import ctypes
import errno
import os
import select
import socket
import struct
import sys
import time

NAME, INDEX = 25, 62
LO, LINK = b"lo", b"eth0"
LOOPBACK, LOOPBACK6 = "127.0.0.1", "::1"
TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM
DEVICES = (None, LO, LINK)
OWN, PEER, OWN6 = (sys.argv[2:5] + [""] * 3)[:3]
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def on(device, kind=TCP, family=socket.AF_INET, protocol=0, wait=0.4):
    it = socket.socket(family, kind, protocol)
    it.settimeout(wait)
    if device:
        it.setsockopt(socket.SOL_SOCKET, NAME, device)
    return it


def listening(device, address, port=0, family=socket.AF_INET):
    it = on(device, family=family)
    it.bind((address, port))
    it.listen(8)
    return it


def attempt(call):
    """What a call returns, or its errno by name. Whether nobody answers or a neighbour is not found is one thing."""
    try:
        found = call()
        return "ok" if found is None else found
    except TimeoutError:
        return "nothing"
    except OSError as error:
        return "nothing" if error.errno == errno.EHOSTUNREACH else errno.errorcode[error.errno]


def name(it, room=20):
    return attempt(lambda: it.getsockopt(socket.SOL_SOCKET, NAME, room))


def number(it):
    found = it.getsockopt(socket.SOL_SOCKET, INDEX)
    return {0: "none", socket.if_nametoindex("lo"): "lo", socket.if_nametoindex("eth0"): "eth0"}.get(found, found)


def show(*words):
    print(*words, flush=True)


@case
def values_and_errors():
    it = socket.socket()
    show(name(it), name(it, 3), name(it, 0), number(it))
    for value in b"", b"lo", b"lo\0", b"lo\0xx", b"l", b"eth0", b"nope", b"lo" + b"x" * 20, b"lo\0" + b"x" * 600, b"\0", b"x" * 16:
        show(value[:20], attempt(lambda: it.setsockopt(socket.SOL_SOCKET, NAME, value)), name(it), name(it, 16), name(it, 15), number(it))
    for device in "lo", "eth0":
        index = struct.pack("i", socket.if_nametoindex(device))
        show(device, attempt(lambda: it.setsockopt(socket.SOL_SOCKET, INDEX, index)), name(it), number(it))
    for value in struct.pack("i", -1), struct.pack("i", -5), b"\1", struct.pack("ii", 1, 0), struct.pack("i", 0):
        show(value, attempt(lambda: it.setsockopt(socket.SOL_SOCKET, INDEX, value)), name(it))
    libc = ctypes.CDLL(None, use_errno=True)
    for length in 0, 3, 16:
        show(length, libc.setsockopt(it.fileno(), socket.SOL_SOCKET, NAME, None, length), errno.errorcode.get(ctypes.get_errno()))
    for kind, protocol in (UDP, 0), (socket.SOCK_RAW, 1):
        other = on(LINK, kind, protocol=protocol)
        show(name(other), number(other))
    other = on(LO, family=socket.AF_INET6)
    show(name(other), number(other))


@case
def another_device_needs_a_capability():
    it = on(None)
    os.setuid(65534)
    for value in LO, LO, LINK, b"nope", b"":
        show(value, attempt(lambda: it.setsockopt(socket.SOL_SOCKET, NAME, value)), name(it))
    for value in 0, -1:
        show(value, attempt(lambda: it.setsockopt(socket.SOL_SOCKET, INDEX, value)), name(it))


@case
def the_device_is_inherited():
    listener = listening(LO, LOOPBACK)
    client = on(LO)
    client.connect(listener.getsockname())
    accepted, _ = listener.accept()
    show(name(listener), name(client), name(accepted))
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    if os.fork() == 0:
        show("child", name(listener), name(accepted))
        socket.send_fds(left, [b"x"], [listener.fileno()])
        os._exit(0)
    os.wait()
    _, (fd,), *_ = socket.recv_fds(right, 1, 1)
    show("passed", name(socket.socket(fileno=fd)))
    for it in listener, accepted:
        os.set_inheritable(it.fileno(), True)
    numbers = [str(listener.fileno()), str(accepted.fileno())]
    sys.stdout.flush()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, __file__, "after_exec", *numbers])
    os.wait()


def after_exec():
    listener, accepted = (socket.socket(fileno=int(fd)) for fd in sys.argv[2:4])
    listener.settimeout(5)
    show("after exec", name(listener), name(accepted))
    show("connect", attempt(lambda: on(None).connect(listener.getsockname())))
    show("taken", attempt(lambda: listener.accept()[0].getsockopt(socket.SOL_SOCKET, NAME, 20)))


@case
def connections_reach_listeners_on_their_device():
    for device in DEVICES:
        for address in "0.0.0.0", LOOPBACK, OWN:
            listener = listening(device, address)
            for to in LOOPBACK, OWN:
                for own in DEVICES:
                    client = on(own)
                    said = attempt(lambda: client.connect((to, listener.getsockname()[1])))
                    there = client.getsockname()[0] if said == "ok" else ""
                    show(device, address, "from", own, "to", to, said, there)
            listener.close()


@case
def connections_of_ipv6():
    for device in DEVICES:
        listener = listening(device, "::", family=socket.AF_INET6)
        for own in DEVICES:
            for bound in None, LOOPBACK6, OWN6:
                for to in LOOPBACK6, OWN6, "2001:db8:77::1":
                    client = on(own, family=socket.AF_INET6)
                    if bound:
                        said = attempt(lambda: client.bind((bound, 0)))
                        if said != "ok":
                            show(own, "bind", bound, said)
                            continue
                    if own == LO and to == LOOPBACK6 and bound == OWN6:
                        # The answer is for the link, and a listener on the loopback has no way there.
                        continue
                    if own is None and (bound or to.endswith("77::1")):
                        continue
                    said = attempt(lambda: client.connect((to, listener.getsockname()[1])))
                    show(device, "from", own, bound, "to", to, said)
        listener.close()


@case
def connections_that_lead_nowhere():
    for device, to, bound in (
        (LO, PEER, None), (LO, PEER, OWN), (LINK, LOOPBACK, None), (LINK, LOOPBACK, OWN), (LINK, LOOPBACK, LOOPBACK),
    ):
        client = on(device)
        if bound:
            client.bind((bound, 0))
        show(device, to, bound, attempt(lambda: client.connect((to, 9))))


@case
def ports_are_apart_on_each_device():
    pairs = ((None, LO), (LO, LINK), (LO, LO), (LO, None), (LINK, LO))
    for kind in TCP, UDP:
        for first, second in pairs:
            for one, two in (("0.0.0.0", "0.0.0.0"), ("0.0.0.0", LOOPBACK), (LOOPBACK, LOOPBACK)):
                a, b = on(first, kind), on(second, kind)
                a.bind((one, 0))
                said = attempt(lambda: b.bind((two, a.getsockname()[1])))
                if said == "ok" and kind == TCP:
                    said += " " + attempt(lambda: a.listen(1)) + " " + attempt(lambda: b.listen(1))
                show(kind == TCP, first, second, one, two, said)
                a.close()
                b.close()
    # Each gets what comes over its own.
    a = listening(LO, "0.0.0.0")
    port = a.getsockname()[1]
    b = listening(LINK, "0.0.0.0", port)
    for to in LOOPBACK, OWN:
        on(None).connect((to, port))
        show(to, [attempt(lambda: it.accept()[1][0]) for it in (a, b)])
    a, b = on(LO, UDP), on(LINK, UDP)
    a.bind(("0.0.0.0", 0))
    b.bind(("0.0.0.0", a.getsockname()[1]))
    for to in LOOPBACK, OWN:
        on(None, UDP).sendto(b"x", (to, a.getsockname()[1]))
        show(to, [attempt(lambda: it.recvfrom(9)[1][0]) for it in (a, b)])


@case
def a_listener_on_a_device_comes_first():
    listeners = [on(device) for device in DEVICES]
    for it in listeners:
        it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        it.bind(("0.0.0.0", listeners[0].getsockname()[1]))
        it.listen(8)
        it.setblocking(False)
    for to in (LOOPBACK, OWN) * 3:
        on(None).connect((to, listeners[0].getsockname()[1]))
        ready, _, _ = select.select(listeners, [], [], 5)
        show(to, [listeners.index(it) for it in ready])
        for it in ready:
            it.accept()
    sockets = [on(device, UDP) for device in DEVICES]
    for it in sockets:
        it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        it.bind(("0.0.0.0", sockets[0].getsockname()[1]))
    for to in (LOOPBACK, OWN) * 3:
        on(None, UDP).sendto(b"x", (to, sockets[0].getsockname()[1]))
        ready, _, _ = select.select(sockets, [], [], 5)
        show(to, [sockets.index(it) for it in ready])
        for it in ready:
            it.recv(9)


@case
def a_device_that_is_set_later():
    a = on(None)
    a.bind(("0.0.0.0", 0))
    a.setsockopt(socket.SOL_SOCKET, NAME, LO)
    b, c = on(LINK), on(LO)
    show(attempt(lambda: b.bind(("0.0.0.0", a.getsockname()[1]))), attempt(lambda: c.bind(("0.0.0.0", a.getsockname()[1]))))
    a.listen(8)
    b.listen(8)
    for to in LOOPBACK, OWN:
        on(None).connect((to, a.getsockname()[1]))
        show(to, [attempt(lambda: it.accept()[1][0]) for it in (a, b)])
    a = on(None, UDP)
    a.bind(("0.0.0.0", 0))
    port = a.getsockname()[1]
    show([attempt(lambda: on(None, UDP).sendto(b"x", (to, port))) for to in (LOOPBACK, OWN)], a.recv(9), a.recv(9))
    a.setsockopt(socket.SOL_SOCKET, NAME, LINK)
    b = on(LO, UDP)
    show(attempt(lambda: b.bind(("0.0.0.0", port))))
    for to in LOOPBACK, OWN:
        on(None, UDP).sendto(b"x", (to, port))
        show(to, [attempt(lambda: it.recvfrom(9)[1][0]) for it in (a, b)])
    b.close()
    a.setsockopt(socket.SOL_SOCKET, NAME, b"")
    on(None, UDP).sendto(b"y", (LOOPBACK, port))
    show(attempt(lambda: a.recv(9)), name(a))


@case
def a_connection_whose_device_leads_elsewhere():
    listener = listening(None, LOOPBACK)
    client = on(None, wait=1)
    client.connect(listener.getsockname())
    server, _ = listener.accept()
    server.settimeout(5)
    client.sendall(b"before")
    show(server.recv(9))
    client.setsockopt(socket.SOL_SOCKET, NAME, LINK)
    server.sendall(b"after")
    show(attempt(lambda: client.recv(9)), attempt(lambda: server.recv(9)))
    # And back before anything was sent.
    client = on(None, wait=2)
    client.connect(listener.getsockname())
    server, _ = listener.accept()
    client.setsockopt(socket.SOL_SOCKET, NAME, LINK)
    client.setsockopt(socket.SOL_SOCKET, NAME, b"")
    server.sendall(b"after")
    client.sendall(b"too")
    show(client.recv(9), server.recv(9))


@case
def datagrams_reach_sockets_on_their_device():
    for device in DEVICES:
        for address in "0.0.0.0", LOOPBACK, OWN:
            receiver = on(device, UDP, wait=0.2)
            receiver.bind((address, 0))
            to_port = receiver.getsockname()[1]
            for to in LOOPBACK, OWN:
                for own in DEVICES:
                    for connects in False, True:
                        sender = on(own, UDP)

                        def send():
                            if connects:
                                sender.connect((to, to_port))
                                sender.send(b"x")
                                return sender.getsockname()[0]
                            sender.sendto(b"x", (to, to_port))
                            return "sent"

                        said = attempt(send)
                        got = attempt(lambda: receiver.recvfrom(9)[1][0])
                        error = sender.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                        show(device, address, "from", own, "to", to, said, got, errno.errorcode.get(error, error))
                        sender.close()
            receiver.close()


@case
def datagrams_that_lead_nowhere():
    for device in LO, LINK:
        for to in (PEER, LOOPBACK):
            for bound in None, LOOPBACK, OWN:
                sender = on(device, UDP)

                def send():
                    if bound:
                        sender.bind((bound, 0))
                    sender.connect((to, 99))
                    return sender.getsockname()[0], sender.send(b"x")

                show(device, to, bound, attempt(send))
    for device in LO, LINK:
        for bound in None, LOOPBACK6, OWN6:
            for to in LOOPBACK6, OWN6:
                sender = on(device, UDP, socket.AF_INET6)
                said = attempt(lambda: sender.bind((bound, 0))) if bound else "ok"
                if said == "ok":
                    said = attempt(lambda: sender.sendto(b"x", (to, 99)))
                show(device, bound, to, said)


@case
def groups_and_devices():
    group = "239.1.2.3"
    receivers = []
    for device in DEVICES:
        it = on(device, UDP, wait=0.3)
        it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        it.bind(("0.0.0.0", receivers[0].getsockname()[1] if receivers else 0))
        for own in LOOPBACK, OWN:
            it.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + socket.inet_aton(own))
        receivers.append(it)
    for device in LO, LINK:
        sender = on(device, UDP)
        sender.sendto(b"x", (group, receivers[0].getsockname()[1]))
        show(device, [attempt(lambda: it.recv(9)) for it in receivers])
        for own in LOOPBACK, OWN, "0.0.0.0":
            address = socket.inet_aton(own)
            show(own, attempt(lambda: sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, address)))
        sender = on(device, UDP, socket.AF_INET6)
        for own in "lo", "eth0":
            index = socket.if_nametoindex(own)
            show(own, attempt(lambda: sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)))


@case
def echoes_and_devices():
    echo = struct.pack("!BBHHH", 8, 0, 0xf7ff, 0, 0)
    for device in DEVICES:
        for to in LOOPBACK, OWN:
            ping = on(device, UDP, protocol=1)
            ping.sendto(echo, (to, 0))
            show("ping", device, to, attempt(lambda: len(ping.recv(99))))
    for device in DEVICES:
        for to in LOOPBACK, OWN:
            raw = on(device, socket.SOCK_RAW, protocol=1, wait=0.2)
            on(None, socket.SOCK_RAW, protocol=1).sendto(echo, (to, 0))
            show("raw", device, to, attempt(lambda: len(raw.recv(99))))


def serve():
    held = {}
    for port, device in (7001, None), (7002, LO), (7003, LINK):
        held[listening(device, "0.0.0.0", port)] = ("tcp", device)
        it = on(device, UDP)
        it.bind(("0.0.0.0", port))
        held[it] = ("udp", device)
    show("ready")
    while True:
        ready, _, _ = select.select(list(held), [], [])
        for it in ready:
            kind, device = held[it]
            if kind == "tcp":
                it.accept()[0].sendall(b"hello")
            else:
                it.sendto(b"hello", it.recvfrom(9)[1])


def outside():
    for port in 7001, 7002, 7003:
        client = on(None, wait=5)
        show(port, attempt(lambda: client.connect((OWN, port))), attempt(lambda: client.recv(9)))
        client = on(None, UDP, wait=5)
        client.connect((OWN, port))
        client.send(b"x")
        show(port, attempt(lambda: client.recv(9)))


if __name__ == "__main__":
    if sys.argv[1] == "--list":
        print(" ".join(CASES))
    else:
        {**CASES, "serve": serve, "outside": outside, "after_exec": after_exec}[sys.argv[1]]()

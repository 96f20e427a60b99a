"""Programs whose stack goes with all of its processes, and comes back.

    gone.py serve [child]   threads asleep in every call that waits; says what each of them hears. With `child`
                            all of that is done by a child of the process that listens
    gone.py hold            the other end: connections that neither send nor read, and a port that lets nobody in
    gone.py busy            a server that never sleeps
    gone.py user            a server that gives root up
"""
import errno
import os
import select
import socket
import sys
import threading
import time

SERVER, PEER = "198.18.0.2", "198.18.0.1"
CONNECTIONS = 7
lock = threading.Lock()


def say(*words):
    with lock:
        print(*words, flush=True)


def name(error):
    return errno.errorcode[error.errno]


def attempt(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return name(error)


def bits(mask):
    names = {1: "IN", 4: "OUT", 8: "ERR", 16: "HUP", 0x2000: "RDHUP"}
    return "|".join(word for bit, word in names.items() if mask & bit)


def by_send(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return attempt(connection.sendall, bytes(64 << 20))


def by_poll(connection):
    connection.setblocking(False)
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    found = poll.poll()
    return bits(found[0][1]), attempt(connection.recv, 1)


def by_select(connection):
    found = select.select([connection], [], [])
    return len(found[0]), attempt(connection.recv, 1)


def by_epoll(connection, nested=False):
    inner = select.epoll()
    inner.register(connection, select.EPOLLIN | select.EPOLLRDHUP)
    outer = inner
    if nested:
        outer = select.epoll()
        outer.register(inner, select.EPOLLIN)
    found = outer.poll()
    if nested:
        found = inner.poll(0)
    return bits(found[0][1]), attempt(connection.recv, 1)


def by_connect():
    return attempt(socket.socket().connect, (PEER, 7000))


def by_recvfrom(datagrams):
    first = attempt(datagrams.recvfrom, 100)
    say("recvfrom", first)
    # The next call waits for the next stack.
    octets, peer = datagrams.recvfrom(100)
    datagrams.sendto(octets.upper(), peer)
    return "answered"


def by_accept(listener):
    connection, _ = listener.accept()
    connection.sendall(connection.recv(100).upper())
    connection.close()
    return "answered"


def by_listener_poll(listener):
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    found = poll.poll()
    connection, _ = listener.accept()
    connection.sendall(connection.recv(100).upper())
    return bits(found[0][1])


def listening(port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", port))
    listener.listen(20)
    return listener


def serve(in_child):
    listener, polled = listening(8000), listening(8001)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("0.0.0.0", 8000))
    say("listening")
    connections = [listener.accept()[0] for _ in range(CONNECTIONS)]
    if in_child and os.fork():
        os.wait()
        return
    # The peer has sent something over its first connection; replicas do not accept in the order of its calls.
    peeking = select.select(connections, [], [])[0][0]
    connections.remove(peeking)
    connections.insert(0, peeking)
    sleepers = {
        "recv": (lambda c: attempt(c.recv, 1), connections[1]),
        "send": (by_send, connections[2]),
        "poll": (by_poll, connections[3]),
        "select": (by_select, connections[4]),
        "epoll": (by_epoll, connections[5]),
        "nested epoll": (lambda c: by_epoll(c, True), connections[6]),
        "connect": (lambda _: by_connect(), None),
        "datagrams": (by_recvfrom, datagrams),
        "accept": (by_accept, listener),
        "listener": (by_listener_poll, polled),
    }

    def sleep(label, call, argument):
        result = call(argument)
        say(label, *(result if isinstance(result, tuple) else (result,)))

    threads = [threading.Thread(target=sleep, args=(label, *what)) for label, what in sleepers.items()]
    for thread in threads:
        thread.start()
    # What has come before the end is read before the error.
    while len(peeking.recv(100, socket.MSG_PEEK)) < 4:
        time.sleep(0.01)
    time.sleep(0.2)
    say("asleep")
    for label in ("recv", "send", "poll", "select", "epoll", "nested epoll", "connect"):
        threads[list(sleepers).index(label)].join()
    say("text", attempt(peeking.recv, 100), attempt(peeking.recv, 100), attempt(peeking.recv, 100))
    say("new socket", attempt(socket.socket().connect, (PEER, 7001)))
    for thread in threads:
        thread.join()
    new = socket.create_connection((PEER, 7001))
    say("new connection", new.recv(100))


def hold():
    # A port that lets nobody in: its queue is full.
    closed = listening(7000)
    closed.listen(0)
    fillers = [socket.socket() for _ in range(8)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex((PEER, 7000))
    held = [socket.create_connection((SERVER, 8000)) for _ in range(CONNECTIONS)]
    held[0].sendall(b"last")
    greets = listening(7001)
    say("holding")
    while True:
        greeted, _ = greets.accept()
        greeted.sendall(b"hello")


def busy():
    listener = listening(8000)
    listener.setblocking(False)
    say("listening")
    while True:
        connection = attempt(listener.accept)
        if connection != "EAGAIN":
            break
    connection = connection[0]
    connection.setblocking(False)
    say("accepted")
    while True:
        heard = attempt(connection.recv, 1)
        if heard != "EAGAIN":
            break
    say("heard", heard)
    while True:
        connection = attempt(listener.accept)
        if connection != "EAGAIN":
            break
    connection[0].sendall(b"BUSY")
    say("answered")


def user():
    listener = listening(8000)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    say("listening")
    listener.accept()


def main():
    what = sys.argv[1]
    if what == "serve":
        serve("child" in sys.argv)
    else:
        {"hold": hold, "busy": busy, "user": user}[what]()


main()

#!/usr/bin/python3
"""A server stands still while much happens to its connections.

stand_still.py stop PID ADDRESS PORT FILE    The server sends back what comes (echo.py). It is stopped, each of many connections sends single octets
                                             until there is a FILE, and new ones are opened. Then it goes on, and every octet is to come back, on
                                             the old connections and on the new.
stand_still.py fill PID ADDRESS PORT FILE    The server is the next one. While it makes no call, each connection sends single octets until there is a
                                             FILE; then it is woken.
stand_still.py serve PORT FILE               takes its connections, makes no call until SIGUSR1 comes, and then some that the stack has to answer. The
                                             client has written in FILE by then how many octets come on each connection.
"""
import os
import select
import signal
import socket
import sys
import time

OLD, ROUNDS, NEW, PATIENCE = 64, 400, 8, 20.0
# So many fit whatever buffers there are.
ROUNDS_MAX = 20_000


def serve(port, enough):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    listener = socket.create_server(("0.0.0.0", port), backlog=OLD)
    print("listening", flush=True)
    taken = [listener.accept()[0] for _ in range(OLD)]
    for connection in taken:
        connection.send(connection.recv(1))
    print("still", flush=True)
    signal.sigwait([signal.SIGUSR1])
    before = time.monotonic()
    # The first call after so long finds a ring of events that is full.
    other = socket.create_server(("0.0.0.0", port + 1))
    state = taken[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("0.0.0.0", port + 2))
    group = bytes([239, 1, 2, 3]) + socket.inet_aton(taken[0].getsockname()[0])
    datagrams.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
    with open(enough) as told:
        rounds = int(told.read())
    print(f"answered {other.getsockname()[1] - port} {state[0]} after {time.monotonic() - before:.3f} s", flush=True)
    for connection in taken:
        connection.sendall(read(connection, rounds, "a connection that has stood still"))
    signal.pause()


def connect():
    connection = socket.create_connection(address, timeout=PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def read(connection, count, what):
    got = b""
    while len(got) < count:
        try:
            part = connection.recv(count - len(got))
        except TimeoutError:
            sys.exit(f"{what}: {len(got)} of {count} octets in {PATIENCE} s")
        assert part, f"{what} was cut off"
        got += part
    return got


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]), sys.argv[3])
stops, server, address, enough = sys.argv[1] == "stop", int(sys.argv[2]), (sys.argv[3], int(sys.argv[4])), sys.argv[5]
old = [connect() for _ in range(OLD)]
for connection in old:
    connection.send(b"a")
for connection in old:
    read(connection, 1, "an old connection")
if stops:
    os.kill(server, signal.SIGSTOP)
new = []
try:
    rounds = 0
    while rounds < ROUNDS or not os.path.exists(enough):
        assert rounds < ROUNDS_MAX, "it is never enough"
        for connection in old:
            connection.send(b"x")
        # Some time, so that the following events are reported one by one.
        time.sleep(0.001)
        rounds += 1
        if rounds == ROUNDS:
            print("filled", flush=True)
    with open(enough, "w") as told:
        print(rounds, file=told)
    for n in range(NEW if stops else 0):
        new.append(connect())
        new[-1].send(b"newcomer")
    # Longer than an offer stands.
    select.select([], [], [], 0.7)
finally:
    os.kill(server, signal.SIGCONT if stops else signal.SIGUSR1)
for connection in new:
    assert read(connection, 8, "a new connection") == b"newcomer"
for connection in old:
    assert read(connection, rounds, "an old connection") == b"x" * rounds
print("served", flush=True)

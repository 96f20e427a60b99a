"""How do connections end whose program is killed? One line for each state: deaths.py victim PORT PEER PEER_PORT | deaths.py watch ADDRESS PORT PEER_PORT

The victim brings a connection into each state, says so, and is killed by whoever has started it. The watcher is the other end of all of them.
"""
import errno
import select
import socket
import struct
import sys
import time

STATES = [
    "idle", "answered", "unread", "unread after shutdown", "half closed by peer", "half closed", "half closed and unread", "linger 0",
    "linger 0 inherited", "linger 5", "unsent", "unsent and unread",
]
# What fits no buffers.
MUCH = 8 << 20


def say(text):
    print(text, flush=True)


def linger(connection, seconds):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))


def victim(port, peer, peer_port):
    listener = socket.create_server(("0.0.0.0", port), backlog=64)
    resetting = socket.create_server(("0.0.0.0", port + 1), backlog=64)
    linger(resetting, 0)
    say("listening")
    # Made, not accepted. An octet on it for each state that is there: which of two waiting connections is accepted first is the stack's affair.
    made = socket.create_connection((peer, peer_port), timeout=10)
    kept = [made]
    for state in STATES:
        connection, _ = (resetting if state == "linger 0 inherited" else listener).accept()
        kept.append(connection)
        if state == "answered":
            connection.recv(100)
            connection.sendall(b"answer")
        if "unread" in state:
            # It is there, and stays there.
            connection.recv(1, socket.MSG_PEEK)
        if state in ("half closed", "half closed and unread", "unread after shutdown"):
            connection.shutdown(socket.SHUT_WR)
        if state == "half closed by peer":
            while connection.recv(100):
                pass
        if state.startswith("linger") and "inherited" not in state:
            linger(connection, int(state.split()[1]))
        if "unsent" in state:
            connection.setblocking(False)
            try:
                while True:
                    connection.send(bytes(1 << 16))
            except BlockingIOError:
                pass
        made.sendall(b"!")
    # A connection under way, to an address that does not answer.
    connecting = socket.socket()
    connecting.setblocking(False)
    connecting.connect_ex((peer.rsplit(".", 1)[0] + ".77", 9))
    kept.append(connecting)
    say("ready")
    time.sleep(100)


def end_of(connection, patience=20):
    """FIN or RST, and how much came before."""
    connection.settimeout(patience)
    seen = 0
    try:
        while part := connection.recv(1 << 16):
            seen += len(part)
        how = "FIN"
    except ConnectionResetError:
        how = "RST"
    except TimeoutError:
        how = "nothing"
    return how, seen


def watch(address, port, peer_port):
    server = socket.create_server(("0.0.0.0", peer_port))
    say("listening")
    made, _ = server.accept()
    ends = {}
    for state in STATES:
        connection = socket.socket()
        if "unsent" in state:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((address, port + (state == "linger 0 inherited")))
        ends[state] = connection
        if "unread" in state:
            connection.sendall(b"unread by all")
        if state == "answered":
            connection.sendall(b"question")
            connection.recv(100)
        if state == "half closed by peer":
            connection.shutdown(socket.SHUT_WR)
        made.recv(1)
    ends["made"] = made
    # Nobody accepts these.
    ends["in the queue"] = socket.create_connection((address, port))
    ends["in the queue with text"] = socket.create_connection((address, port))
    ends["in the queue with text"].sendall(b"early")
    time.sleep(0.3)
    say("all there")
    # The first end shows that it is dead. What is unsent is not read before.
    select.select([ends["idle"]], [], [], 60)
    time.sleep(0.3)
    for state, connection in ends.items():
        how, seen = end_of(connection)
        # Each stack's buffers hold another amount; the FIN behind it shows whether all of it came.
        say(f"{state}: {how}" + ("" if "unsent" in state else f" after {seen}"))
    for name, number in ("port", port), ("other port", port + 1):
        probe = socket.socket()
        probe.settimeout(10)
        say(f"{name}: {errno.errorcode.get(probe.connect_ex((address, number)), 'open')}")


if sys.argv[1] == "victim":
    victim(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
else:
    watch(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

"""Echoes, and checks every octet of it: echo.py serve PORT | echo.py ADDRESS PORT BUSY IDLE

The client keeps BUSY connections full of octets that depend on their place in the stream, says a word over IDLE others now and then, and opens
short ones all the time. On SIGTERM it ends all streams, waits for what is due, and prints what it has seen. Whatever is wrong ends it with status 1.
"""
import random
import selectors
import signal
import socket
import sys
import time

BLOCK = random.Random(1).randbytes(1 << 20)
TWICE = BLOCK + BLOCK
PART = 1 << 16
# More than this is not under way on a connection.
WINDOW = 1 << 20


def serve(port):
    listener = socket.create_server(("0.0.0.0", port), backlog=1024)
    listener.setblocking(False)
    chosen = selectors.DefaultSelector()
    chosen.register(listener, selectors.EVENT_READ, None)
    print("listening", flush=True)
    while True:
        for key, _ in chosen.select():
            if key.data is None:
                try:
                    connection, _ = listener.accept()
                except BlockingIOError:
                    # The connection was offered, and taken back (accept(2)).
                    continue
                connection.setblocking(False)
                chosen.register(connection, selectors.EVENT_READ, bytearray())
                continue
            connection, kept = key.fileobj, key.data
            try:
                ended = False
                if not kept:
                    part = connection.recv(PART)
                    ended = not part
                    kept += part
                if kept:
                    del kept[: connection.send(kept)]
            except BlockingIOError:
                pass
            except OSError as error:
                print("server:", error, file=sys.stderr, flush=True)
                ended = True
            if ended:
                chosen.unregister(connection)
                connection.close()
            else:
                chosen.modify(connection, selectors.EVENT_WRITE if kept else selectors.EVENT_READ, kept)


class Stream:
    """One connection: what was sent of the block, and what has come back."""

    def __init__(self, address, kind):
        self.kind = kind
        self.sent = self.seen = 0
        self.ended = False
        self.next_at = 0.0
        self.began = time.monotonic()
        self.socket = socket.create_connection(address, timeout=10)
        self.socket.setblocking(False)

    def wants_to_send(self, now, stopping):
        if self.ended or stopping:
            return False
        if self.kind == "busy":
            return self.sent - self.seen < WINDOW
        return now >= self.next_at

    def send(self, now):
        at = self.sent % len(BLOCK)
        length = PART if self.kind == "busy" else 100
        try:
            self.sent += self.socket.send(TWICE[at : at + length])
        except BlockingIOError:
            pass
        self.next_at = now + 0.05

    def receive(self):
        """Returns whether the stream has come to its end."""
        try:
            part = self.socket.recv(PART)
        except BlockingIOError:
            return False
        at = self.seen % len(BLOCK)
        if part != TWICE[at : at + len(part)]:
            raise ValueError(f"octets changed near {self.seen}")
        self.seen += len(part)
        if not part and (not self.ended or self.seen != self.sent):
            raise ValueError(f"ended after {self.seen} of {self.sent}")
        return not part


def check(address, busy, idle):
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    streams = [Stream(address, "busy") for _ in range(busy)] + [Stream(address, "idle") for _ in range(idle)]
    chosen = selectors.DefaultSelector()
    for stream in streams:
        chosen.register(stream.socket, selectors.EVENT_READ, stream)
    print("under way", flush=True)
    opened = octets = 0
    longest = 0.0
    while streams:
        now = time.monotonic()
        if not stopping and sum(stream.kind == "short" for stream in streams) < 4:
            stream = Stream(address, "short")
            longest = max(longest, time.monotonic() - now)
            streams.append(stream)
            chosen.register(stream.socket, selectors.EVENT_READ, stream)
            opened += 1
        for stream in streams:
            if stream.wants_to_send(now, stopping):
                stream.send(now)
            is_over = stream.kind == "short" and stream.sent >= 1000
            if not stream.ended and (stopping or is_over):
                stream.ended = True
                stream.socket.shutdown(socket.SHUT_WR)
        for key, _ in chosen.select(0.005):
            stream = key.data
            if stream.receive():
                octets += stream.seen
                chosen.unregister(stream.socket)
                stream.socket.close()
                streams.remove(stream)
    print(f"{busy + idle} kept, {opened} opened, {octets} octets, longest connect {longest * 1000:.0f} ms", flush=True)


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]))
else:
    check((sys.argv[1], int(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4]))

#!/usr/bin/python3
"""Streams of which every octet is checked, both ways.

streams.py serve PORT WORKERS [shared|reuse|late]   sends back what comes, and after its end how much that was
streams.py steady ADDRESS PORT COUNT AHEAD          keeps COUNT streams busy, each at most AHEAD octets ahead of what has come back
streams.py brief ADDRESS PORT COUNT LENGTH          one stream after another, COUNT at a time, each with up to LENGTH octets
streams.py wait ADDRESS PORT COUNT                  sends over COUNT streams at once, and then waits for all answers

Workers share one listener, or have one each with SO_REUSEPORT. "late" ones accept nothing before SIGUSR1. Clients go on until SIGINT (but
for "wait"), let their streams come to an end, and say what there was: STREAMS OCTETS, and how long a stream has stood still at most. Anything
that is not as it should be ends them with a failure.
"""
import os
import random
import selectors
import signal
import socket
import sys
import time

# A prime number of octets, so that no length of ours divides it.
PATTERN = random.Random(1).randbytes(1048573)
TWICE = PATTERN * 2
PIECE = 65536
# What a server holds for a stream before it reads no more of it.
HELD_MAX = 1 << 20
TRAILER = 8
# Nothing that is being recovered takes so long.
STALL_MAX = 30


def text(key, start, length):
    """`length` octets (at most a pattern's) of the text that belongs to a key, from offset `start` on."""
    at = (start + key * 7919) % len(PATTERN)
    return TWICE[at : at + length]


class Stop:
    asked = False


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


# ---- the server ----


class Echo:
    """One stream of the server's."""

    def __init__(self, connection):
        connection.setblocking(False)
        self.connection = connection
        self.held = bytearray()
        self.count = 0
        self.ended = False

    def wants(self):
        reads = 0 if self.ended or len(self.held) >= HELD_MAX else selectors.EVENT_READ
        return reads | (selectors.EVENT_WRITE if self.held else 0)

    def turn(self, events):
        """Returns whether it is over."""
        if events & selectors.EVENT_READ:
            part = self.connection.recv(PIECE)
            self.count += len(part)
            self.held += part
            if not part:
                self.ended = True
                self.held += self.count.to_bytes(TRAILER, "big")
        if self.held:
            try:
                del self.held[: self.connection.send(self.held)]
            except BlockingIOError:
                pass
        return self.ended and not self.held


def listener_at(port, reuse):
    listener = socket.socket(socket.AF_INET6)
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("::", port))
    listener.listen(1024)
    listener.setblocking(False)
    return listener


def serve(listener):
    chosen = selectors.DefaultSelector()
    chosen.register(listener, selectors.EVENT_READ)
    while True:
        for key, events in chosen.select():
            if key.fileobj is listener:
                try:
                    connection, _ = listener.accept()
                except BlockingIOError:
                    continue
                chosen.register(connection, selectors.EVENT_READ, Echo(connection))
                continue
            stream = key.data
            if stream.turn(events):
                chosen.unregister(stream.connection)
                stream.connection.close()
                continue
            if stream.wants() != key.events:
                chosen.modify(stream.connection, stream.wants(), stream)


def serve_with(port, workers, kind):
    allowed = []
    signal.signal(signal.SIGUSR1, lambda *_: allowed.append(True))
    listener = None if kind == "reuse" else listener_at(port, False)
    if kind == "late":
        print("listening", flush=True)
        while not allowed:
            signal.pause()
    children = []
    for _ in range(workers):
        child = os.fork()
        if child == 0:
            try:
                serve(listener or listener_at(port, True))
            finally:
                # A traceback has been printed, which the test looks for.
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        children.append(child)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        # The first one that ends ends all: it should not.
        os.wait()
    finally:
        for child in children:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
    sys.exit(1)


# ---- the clients ----


class Stream:
    """One stream of a client. `length`: its length; None: it ends on request."""

    def __init__(self, key, address, port, ahead, length):
        self.key, self.ahead, self.length = key, ahead, length
        self.sent = self.got = 0
        self.shut = False
        self.trailer = b""
        self.moved_at = time.monotonic()
        self.stall = 0.0
        self.socket = socket.socket(family(address))
        self.socket.setblocking(False)
        failed = self.socket.connect_ex((address, port))
        assert failed in (0, 115), os.strerror(failed)

    def end(self):
        """Where it ends, as far as that is known."""
        return self.sent if self.length is None and Stop.asked else self.length

    def may_send(self):
        if self.shut:
            return 0
        end = self.end()
        room = self.ahead - (self.sent - self.got)
        return room if end is None else min(room, end - self.sent)

    def wants(self):
        is_at_its_end = not self.shut and self.sent == self.end()
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.may_send() > 0 or is_at_its_end else 0)

    def moved(self):
        now = time.monotonic()
        self.stall = max(self.stall, now - self.moved_at)
        self.moved_at = now

    def turn(self, events):
        """Returns whether it is over."""
        if events & selectors.EVENT_WRITE:
            length = min(self.may_send(), random.choice((1, 100, 1460, 9000, PIECE, 4 * PIECE)))
            if length > 0:
                try:
                    self.sent += self.socket.send(text(self.key, self.sent, length))
                    self.moved()
                except BlockingIOError:
                    pass
            if not self.shut and self.sent == self.end():
                self.socket.shutdown(socket.SHUT_WR)
                self.shut = True
        if events & selectors.EVENT_READ:
            return self.read()
        return False

    def read(self):
        try:
            part = self.socket.recv(PIECE)
        except BlockingIOError:
            return False
        self.moved()
        if not part:
            assert self.shut and self.got == self.sent, f"stream {self.key} was cut off: {self.got} of {self.sent}"
            count = int.from_bytes(self.trailer, "big")
            assert len(self.trailer) == TRAILER and count == self.sent, f"stream {self.key}: {count} of {self.sent}"
            self.socket.close()
            return True
        own = min(len(part), self.sent - self.got)
        assert part[:own] == text(self.key, self.got, own), f"stream {self.key} has changed behind {self.got}"
        self.got += own
        assert self.shut or own == len(part), f"stream {self.key}: more than was sent"
        self.trailer += part[own:]
        return False


def run(start, count):
    """Keeps `count` streams running until it is asked to stop, and ends when all are over. `start`: makes another one, or None."""
    chosen = selectors.DefaultSelector()
    streams, octets, stall = 0, 0, 0.0
    next_look = time.monotonic() + 1

    def add():
        nonlocal streams
        stream = None if Stop.asked else start()
        if stream:
            streams += 1
            chosen.register(stream.socket, stream.wants(), stream)

    for _ in range(count):
        add()
    told = False
    while chosen.get_map():
        for key, events in chosen.select(0.1):
            stream = key.data
            if stream.turn(events):
                chosen.unregister(key.fileobj)
                octets += stream.got
                stall = max(stall, stream.stall)
                add()
            elif stream.wants() != key.events:
                chosen.modify(key.fileobj, stream.wants(), stream)
        now = time.monotonic()
        if (Stop.asked and not told) or now >= next_look:
            told, next_look = Stop.asked, now + 1
            for key in list(chosen.get_map().values()):
                stream = key.data
                standing = now - stream.moved_at
                is_waiting = stream.sent > stream.got or stream.shut or Stop.asked
                assert not is_waiting or standing < STALL_MAX, (
                    f"stream {stream.key} has stood still for {standing:.1f} s: {stream.sent} sent, {stream.got} got, "
                    f"shut {stream.shut}, wants {key.events}"
                )
                if stream.wants() != key.events:
                    chosen.modify(key.fileobj, stream.wants(), stream)
    print(f"{streams} {octets} {stall:.3f}", flush=True)


def main():
    kind = sys.argv[1]
    if kind == "serve":
        serve_with(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else "shared")
    signal.signal(signal.SIGINT, lambda *_: setattr(Stop, "asked", True))
    address, port, count = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    keys = iter(range(1 << 62))
    if kind == "steady":
        ahead = int(sys.argv[5])
        run(lambda: Stream(next(keys), address, port, ahead, None), count)
    elif kind == "brief":
        longest = int(sys.argv[5])
        run(lambda: Stream(next(keys), address, port, 1 << 30, random.choice((0, 1, random.randrange(longest)))), count)
    elif kind == "wait":
        first = (Stream(next(keys), address, port, 1 << 30, 1000 + number) for number in range(count))
        run(lambda: next(first, None), count)


if __name__ == "__main__":
    main()

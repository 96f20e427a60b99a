"""Makes random sequences of socket calls, and prints what each call says: random_calls.py PAUSE SEED...

A seed gives the same calls on every stack, and what they say must be the same. After each call there are PAUSE
milliseconds for its effects. Ports are shown by the order in which they were seen. Sockets that are shut down before
they listen are left out (docs/limits.md), and so are other sequences that differ: with ALL=1 in the environment they
are not.
"""

import ctypes
import errno
import os
import random
import select
import socket
import struct
import sys
import time

LIBC = ctypes.CDLL(None)
CALLS = 25
ALL = bool(os.environ.get("ALL"))


class Sequence:
    def __init__(self, seed, pause):
        self.pause = pause
        self.random = random.Random(seed)
        self.sockets = {}
        self.next = 0
        self.ports = {}
        self.bound = set()
        # Linux shows the port of such a socket still.
        self.refused = set()
        # What is shut down before it listens is a limit.
        self.shut = set()

    def add(self, sock):
        sock.setblocking(False)
        self.sockets[self.next] = sock
        self.next += 1
        return self.next - 1

    def name(self, address):
        return address[0], self.ports.setdefault(address[1], len(self.ports)) if address[1] else None

    def do_socket(self, _sock):
        return self.add(socket.socket())

    def do_bind(self, sock):
        if sock in self.bound and not ALL:
            return "bound before"
        sock.bind(("127.0.0.1", 0))
        self.bound.add(sock)
        return self.name(sock.getsockname())

    def do_listen(self, sock):
        if sock in self.shut and not ALL:
            return "shut before"
        return sock.listen(8)

    def do_connect(self, sock):
        other = self.sockets[self.random.choice(sorted(self.sockets))]
        address = other.getsockname()
        # A connection to itself is a limit of its own.
        if not ALL and (other is sock or other in self.refused) or not address[1]:
            return "nobody"
        # What bind says after a connection is a case of sockets.py, and a limit.
        self.bound.add(sock)
        try:
            return sock.connect(("127.0.0.1", address[1]))
        except ConnectionRefusedError:
            self.refused.add(sock)
            raise

    def do_accept(self, sock):
        return self.add(sock.accept()[0])

    def do_send(self, sock):
        return sock.send(b"x" * self.random.choice((1, 10, 1000)), socket.MSG_NOSIGNAL)

    def do_recv(self, sock):
        return len(sock.recv(self.random.choice((1, 100, 5000))))

    def do_peek(self, sock):
        return len(sock.recv(100, socket.MSG_PEEK))

    def do_shutdown(self, sock):
        self.shut.add(sock)
        return sock.shutdown(self.random.randrange(3))

    def do_error(self, sock):
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self.refused.add(sock)
        return error

    def do_poll(self, sock):
        poll = select.poll()
        poll.register(sock, 0x3FFF)
        return [hex(events) for _, events in poll.poll(0)]

    def do_peer(self, sock):
        return self.name(sock.getpeername())

    def do_disconnect(self, sock):
        return LIBC.connect(sock.fileno(), bytes(16), 16)

    def do_linger(self, sock):
        return sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def do_close(self, sock):
        number = next(number for number, other in self.sockets.items() if other is sock)
        del self.sockets[number]
        return sock.close()

    WEIGHTS = {"socket": 3, "bind": 3, "listen": 3, "connect": 5, "accept": 5, "send": 5, "recv": 5, "peek": 2,
               "error": 2, "poll": 6, "peer": 2, "linger": 1, "shutdown": 2, "disconnect": 1, "close": 2}

    def run(self):
        for _ in range(CALLS):
            names = list(self.WEIGHTS)
            what = self.random.choices(names, [self.WEIGHTS[name] for name in names])[0]
            if not self.sockets:
                what = "socket"
            number = self.random.choice(sorted(self.sockets)) if self.sockets else None
            try:
                said = getattr(self, f"do_{what}")(self.sockets.get(number))
            except OSError as error:
                said = errno.errorcode[error.errno]
            print(f"  {what} {number}: {said}")
            time.sleep(self.pause)
        for sock in self.sockets.values():
            sock.close()


def main():
    for seed in map(int, sys.argv[2:]):
        print(f"seed {seed}", flush=True)
        Sequence(seed, int(sys.argv[1]) / 1000).run()


main()

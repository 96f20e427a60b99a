#!/usr/bin/python3
"""Datagrams that are answered: datagrams.py serve PORT | datagrams.py ask ADDRESS PORT SOCKETS

The server sends back what comes, by a socket that is bound. Each socket of the client is connected, sends numbered datagrams, and repeats what is not
answered, because datagrams may be lost. What comes has to be what was sent. Goes on until SIGINT, then says how many there were and how many had
to be repeated.
"""
import random
import select
import signal
import socket
import sys

PIECE = random.Random(2).randbytes(60000)


class Stop:
    asked = False


def serve(port):
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as own:
        own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        own.bind(("::", port))
        print("listening", flush=True)
        while True:
            data, peer = own.recvfrom(65536)
            own.sendto(data, peer)


def ask(address, port, count):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sockets = [socket.socket(family, socket.SOCK_DGRAM) for _ in range(count)]
    for own in sockets:
        own.connect((address, port))
    answered, repeated = 0, 0
    while not Stop.asked:
        for own in sockets:
            length = random.choice((0, 1, 1000, 1400, 5000, 30000))
            data = b"%012d" % answered + PIECE[:length]
            for attempt in range(100):
                repeated += attempt > 0
                own.send(data)
                if receive(own, data):
                    break
            else:
                sys.exit(f"no answer to {len(data)} octets")
            answered += 1
    print(f"{answered} {repeated}", flush=True)


def receive(own, data):
    """Whether the answer comes in time. Answers to earlier ones, which were late, are passed over."""
    while select.select([own], [], [], 0.3)[0]:
        came = own.recv(65536)
        if came == data:
            return True
        assert int(came[:12]) < int(data[:12]) and came[12:] == PIECE[: len(came) - 12], (
            f"a datagram has changed: {came[:12]} of {len(came)} octets came, {data[:12]} of {len(data)} was sent"
        )
    return False


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]))
signal.signal(signal.SIGINT, lambda *_: setattr(Stop, "asked", True))
ask(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

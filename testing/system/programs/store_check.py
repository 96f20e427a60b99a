#!/usr/bin/python3
"""Uses a Redis server and checks every answer: store_check.py ADDRESS PORT CONNECTIONS

Each connection sets values, gets them back, and counts, in pipelines of any depth. A command that is lost, or carried out twice, shows in what it
has counted. Goes on until SIGINT, and says how many commands there were.
"""
import os
import random
import signal
import socket
import sys
import threading

address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
stop = threading.Event()
signal.signal(signal.SIGINT, lambda *_: stop.set())
commands = [0] * count
failures = []


def command(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def bulk(value):
    return b"$%d\r\n%s\r\n" % (len(value), value)


def use(number):
    draw = random.Random(number)
    connection = socket.create_connection((address, port), timeout=30)
    counted = 0
    # Other programs have other names for theirs.
    own = b"%d:%d" % (os.getpid(), number)
    values = {}
    while not stop.is_set():
        asked, expected = [], []
        for _ in range(draw.choice((1, 1, 16, 100))):
            key = b"%b:%d" % (own, draw.randrange(20))
            what = draw.randrange(3)
            if what == 0:
                values[key] = draw.randbytes(draw.choice((1, 100, 5000, 100_000)))
                asked.append(command(b"SET", key, values[key]))
                expected.append(b"+OK\r\n")
            elif what == 1:
                asked.append(command(b"GET", key))
                expected.append(bulk(values[key]) if key in values else b"$-1\r\n")
            else:
                counted += 1
                asked.append(command(b"INCR", b"count:" + own))
                expected.append(b":%d\r\n" % counted)
        answer = b"".join(expected)
        # Redis takes all commands that wait before it writes, so this cannot lock up as long as it has memory.
        sender = threading.Thread(target=connection.sendall, args=(b"".join(asked),))
        sender.start()
        got = bytearray()
        while len(got) < len(answer):
            part = connection.recv(1 << 20)
            assert part, "the connection has ended"
            got += part
        sender.join()
        assert got == answer, f"connection {number} got something else: {bytes(got[:100])} instead of {answer[:100]}"
        commands[number] += len(asked)
    connection.close()


def guarded(number):
    try:
        use(number)
    except BaseException as failure:
        failures.append(failure)
        stop.set()
        raise


users = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
for user in users:
    user.start()
# A thread that waits in a lock does not get the signal.
while not stop.wait(0.1):
    pass
for user in users:
    user.join()
print(sum(commands), flush=True)
sys.exit(1 if failures else 0)

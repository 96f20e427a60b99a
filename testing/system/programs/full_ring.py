#!/usr/bin/python3
"""A program closes more sockets than its stack takes commands, while the stack stands still.

full_ring.py close COUNT FIRST    binds COUNT datagram sockets from port FIRST on, says "bound", waits for SIGUSR1, and closes
                                  them all, while another thread makes calls that need no answer. Says how long the longest of
                                  those took, executes another program in vain, and sleeps in a call.
full_ring.py bind COUNT FIRST     binds them, or says which ports are in use.
full_ring.py ask PORT FIRST       binds one, says "bound", waits for SIGUSR1, and binds PORT, which the supervisor is asked for, while
                                  another thread makes such calls. Says whether it got PORT, after how long, and how long those took.
"""
import os
import resource
import signal
import socket
import sys
import threading
import time

what, number, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
count = 1 if what == "ask" else number
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def bound(port):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind(("0.0.0.0", port))
    return one


signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
sockets, in_use = [], []
for port in range(first, first + count):
    try:
        sockets.append(bound(port))
    except OSError as error:
        in_use.append((port, error.errno))
if in_use:
    sys.exit(f"{len(in_use)} of {count} ports cannot be bound: {in_use[:3]}")
print("bound", flush=True)
if what == "bind":
    sys.exit()
other, longest, is_over = bound(first + count), 0.0, False


def look():
    global longest
    while not is_over:
        before = time.monotonic()
        try:
            other.recv(1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        longest = max(longest, time.monotonic() - before)
        time.sleep(0.01)


signal.sigwait([signal.SIGUSR1])
looker = threading.Thread(target=look)
looker.start()
begun = time.monotonic()
if what == "ask":
    try:
        bound(number)
        result = "got it"
    except OSError as error:
        result = f"refused: {error}"
else:
    print("closing", flush=True)
    for one in sockets:
        one.close()
    result = "closed"
took = time.monotonic() - begun
is_over = True
looker.join()
print(f"{result} after {took * 1000:.0f} ms, others waited {longest * 1000:.0f} ms", flush=True)
if what == "ask":
    sys.exit()
# What was not taken yet would be lost with this program.
try:
    os.execv("/bin/true", ["true"])
except BlockingIOError:
    print("not executed", flush=True)
# It goes while this sleeps.
other.settimeout(60)
try:
    other.recv(1)
except TimeoutError:
    pass

"""Forks while it listens.

    forks.py count COUNT   forks so many children, which end at once
    forks.py once          forks one when it gets SIGUSR1, and prints the milliseconds that it took: of time, and of the
                           processor for this process
"""
import os
import signal
import socket
import sys
import time

listener = socket.socket()
listener.bind(("0.0.0.0", 7000))
listener.listen()


def fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    return child


if sys.argv[1] == "count":
    for _ in range(int(sys.argv[2])):
        assert os.waitpid(fork(), 0)[1] == 0
    print("done", flush=True)
else:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    print("listening", flush=True)
    signal.sigwait([signal.SIGUSR1])
    begin, used = time.monotonic(), time.process_time()
    forked = fork()
    took, used = time.monotonic() - begin, time.process_time() - used
    assert os.waitpid(forked, 0)[1] == 0
    print(f"took {took * 1000:.0f} {used * 1000:.0f} ms", flush=True)

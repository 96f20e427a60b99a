"""Forks while it listens.

    forks.py count COUNT   asks for its parent by an instruction of its own, and forks so many children, which end at once
    forks.py once          forks one when it gets SIGUSR1, and prints the milliseconds that it took: of time, and of the
                           processor for this process
"""
import ctypes
import mmap
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


def parent_by_an_instruction():
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # mov eax, SYS_getppid; syscall; ret
    code.write(b"\xb8\x6e\x00\x00\x00\x0f\x05\xc3")
    return ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()


if sys.argv[1] == "count":
    assert parent_by_an_instruction() == os.getppid()
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

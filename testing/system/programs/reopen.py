#!/usr/bin/python3
"""A process that wants to write where it may only read: reopen.py LAYOUT SECONDS

Attaches to the stack that ATOLL_SOCKET names, without the library, as the user that runs it. Then a child of that user, and children of other
users, who have the descriptors as nginx's workers do, try to get every memory for writing: by the descriptor, by opening it again, by changing its
mode. Says for each which memories it got, and writes to those that are not the session's own for so long.
"""
import mmap
import os
import random
import socket
import stat
import struct
import sys
import time

MESSAGE_BYTES = 56
OWN = {"atoll-app", "atoll-arena"}


def attach(path, layout):
    """The descriptors of a new session."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.connect(path)
    control.send(struct.pack("<BI", 1, layout).ljust(MESSAGE_BYTES, b"\0"))
    _, fds, _, _ = socket.recv_fds(control, 4096, 253)
    return control, fds


def name(fd):
    return os.readlink(f"/proc/self/fd/{fd}").removeprefix("/memfd:").removeprefix("/").removesuffix(" (deleted)")


def writable(fd):
    """A mapping of the memory for writing, if there is a way to one."""
    ways = [lambda: fd]
    path = f"/proc/self/fd/{fd}"
    for flags in (os.O_RDWR, os.O_RDWR | os.O_NONBLOCK):
        ways.append(lambda flags=flags: os.open(path, flags))

    def with_mode():
        os.fchmod(fd, 0o777)
        return os.open(path, os.O_RDWR)

    ways.append(with_mode)
    for way in ways:
        try:
            return mmap.mmap(way(), os.fstat(fd).st_size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except (OSError, ValueError):
            continue
    return None


def scribble(memory, seconds):
    """Sleep words, heartbeats, addresses: everything becomes something else."""
    end = time.time() + seconds
    while time.time() < end:
        memory[:] = random.randbytes(len(memory))


def attack(who, fds, seconds):
    got = {}
    for fd in fds:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            memory = writable(fd)
            if memory is not None:
                got.setdefault(name(fd), memory)
    print(f"{who}: {' '.join(sorted(got)) or 'nothing'}", flush=True)
    others = [memory for what, memory in got.items() if what not in OWN]
    for memory in others:
        scribble(memory, seconds / len(others))


def main():
    layout, seconds = int(sys.argv[1]), float(sys.argv[2])
    control, fds = attach(os.environ["ATOLL_SOCKET"], layout)
    print(f"attached with {len(fds)} descriptors", flush=True)
    for who, uid in (("itself", None), ("www-data", 33), ("nobody", 65534)):
        child = os.fork()
        if child == 0:
            if uid is not None:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            attack(who, fds, seconds)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"{who} failed")
    print("done", flush=True)
    control.close()


main()

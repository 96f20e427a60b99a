"""Frames that no host should send: noise.py INTERFACE ADDRESS PORT COUNT

Records a little valid traffic of this namespace with the server, and sends COUNT frames: a third of them pure noise, the others
what was recorded, with some bytes changed, cut or added, half of those with right checksums again. Seeded.
"""
import random
import socket
import struct
import sys
import time
import urllib.request

from frames import checksum

interface, address, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
ALL = 3  # ETH_P_ALL
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))
raw.bind((interface, ALL))
raw.settimeout(0.2)


def record():
    """What this side sends in a few connections and pings, frame by frame."""
    frames = []
    for _ in range(5):
        try:
            urllib.request.urlopen(f"http://{address}:{port}/small", timeout=5).read()
        except OSError:
            pass
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.sendto(b"datagram", (address, port))
    try:
        while len(frames) < 200:
            frame, (_, _, kind, _, _) = raw.recvfrom(65536)
            if kind == socket.PACKET_OUTGOING and len(frame) <= 1514:
                frames.append(frame)
    except TimeoutError:
        pass
    return frames


def repaired(frame):
    """The frame with right checksums of IPv4 and of TCP or UDP, as far as its headers can be followed."""
    frame = bytearray(frame)
    if len(frame) < 34 or frame[12:14] != b"\x08\x00":
        return bytes(frame)
    header = (frame[14] & 15) * 4
    if header < 20 or len(frame) < 14 + header:
        return bytes(frame)
    frame[24:26] = b"\0\0"
    frame[24:26] = struct.pack("!H", checksum(bytes(frame[14 : 14 + header])))
    transport = 14 + header
    field = {6: 16, 17: 6}.get(frame[23])
    if field is not None and len(frame) >= transport + field + 2:
        frame[transport + field : transport + field + 2] = b"\0\0"
        body = bytes(frame[transport:])
        pseudo = bytes(frame[26:34]) + struct.pack("!BBH", 0, frame[23], len(body))
        frame[transport + field : transport + field + 2] = struct.pack("!H", checksum(pseudo + body))
    return bytes(frame)


def mutated(frame):
    frame = bytearray(frame)
    for _ in range(random.choice((1, 1, 2, 4, 8))):
        kind = random.randrange(8)
        # Mostly in the headers.
        at = random.randrange(min(len(frame), random.choice((42, 74, 1514))))
        if kind < 5:
            frame[at] = random.choice((0, 1, 127, 128, 255, random.randrange(256)))
        elif kind == 5:
            frame[at] ^= 1 << random.randrange(8)
        elif kind == 6:
            del frame[max(14, at) :]
        else:
            frame[at:at] = random.randbytes(random.randrange(1, 40))
    return bytes(frame[:1514])


random.seed(1)
frames = record()
hardware = frames[0][:12] if frames else b"\xff" * 12
print(f"valid traffic recorded: {len(frames)} frames", flush=True)
sent = 0
started = time.monotonic()
while sent < count:
    if sent % 3 == 0 or not frames:
        kind = random.choice((b"\x08\x00", b"\x08\x00", b"\x08\x06", b"\x86\xdd", random.randbytes(2)))
        frame = hardware + kind + random.randbytes(random.randrange(0, 200))
        if kind == b"\x08\x00" and random.random() < 0.5:
            # Far enough in for TCP, UDP and ICMP to see it.
            target = socket.inet_aton(address)
            protocol = random.choice((1, 6, 6, 17))
            body = random.randbytes(random.randrange(0, 120))
            start = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 0, 0, 64, protocol, 0)
            frame = repaired(hardware + kind + start + random.randbytes(4) + target + body)
    else:
        frame = mutated(random.choice(frames))
        if sent % 2:
            frame = repaired(frame)
    try:
        raw.send(frame)
    except OSError:
        pass  # What the interface itself refuses, such as frames without a whole header, counts as sent.
    sent += 1
    if sent % 1000 == 0:
        # Others share the link; and what waits here unread would only fill memory.
        time.sleep(0.005)
print(f"{sent} frames sent in {time.monotonic() - started:.1f} s", flush=True)

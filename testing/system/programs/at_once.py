"""SYNs at once from an unused address: at_once.py INTERFACE ADDRESS PORT COUNT

Says how many of them were answered, once all are or after some seconds. Answers that are repeated count once.
"""
import socket
import struct
import sys
import time

from frames import checksum, station_of

interface, address, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
socket.create_connection((address, port), timeout=10).close()
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
raw.bind((interface, 0))
raw.settimeout(0.1)
mine = raw.getsockname()[4]
server = socket.inet_aton(address)
source = server[:3] + bytes([77])
ethernet = station_of(address) + mine


def syn(number):
    head = struct.pack("!HHIIBBH", 20000 + number, port, 1000, 0, 6 << 4, 2, 64240)
    tail = b"\0\0" + bytes.fromhex("020405b4")
    pseudo = source + server + struct.pack("!HH", 6, 24)
    tcp = head + struct.pack("!H", checksum(pseudo + head + b"\0\0" + tail)) + tail
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 44, 0, 0x4000, 64, 6, 0) + source + server
    return ethernet + b"\x08\x00" + ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + tcp


for number in range(count):
    raw.send(syn(number))
answered = set()
end = time.monotonic() + 8
while time.monotonic() < end and len(answered) < count:
    try:
        frame, (_, _, direction, _, _) = raw.recvfrom(65536)
    except TimeoutError:
        continue
    if frame[12:14] == b"\x08\x06" and frame[38:42] == source and frame[20:22] == b"\x00\x01":
        raw.send(frame[6:12] + mine + b"\x08\x06" + frame[14:20] + b"\x00\x02" + mine + source + frame[22:32])
    if frame[12:14] == b"\x08\x00" and frame[23] == 6 and frame[30:34] == source and frame[47] & 0x3F == 0x12:
        answered.add(struct.unpack("!H", frame[36:38])[0])
print("answered", len(answered), flush=True)

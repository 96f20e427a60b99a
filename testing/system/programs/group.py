"""A multicast group: group.py listen ADDRESS | say ADDRESS WORD | watch INTERFACE | ask INTERFACE

`listen` says `joined` and then what it hears; `watch` says what hosts report by IGMP version 3; `ask` is a router's query.
"""
import socket
import struct
import sys

GROUP, PORT = "239.1.2.3", 5007
KINDS = {2: "is in", 3: "left", 4: "joined"}


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def listen(address):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("", PORT))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(GROUP) + socket.inet_aton(address))
    print("joined", flush=True)
    while True:
        print(sock.recv(1000).decode(), flush=True)


def say(address, word):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, 0))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
    sock.sendto(word.encode(), (GROUP, PORT))


def watch(interface):
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
    raw.bind((interface, 0x0800))
    print("watching", flush=True)
    while True:
        packet = raw.recv(2000)
        text = packet[(packet[0] & 15) * 4 :]
        if packet[9] != 2 or text[0] != 0x22:
            continue
        if packet[8] != 1 or packet[20:24] != b"\x94\x04\0\0" or checksum(packet[:24]) or checksum(text):
            print("a bad report", packet.hex(), flush=True)
        for record in range(8, len(text), 8):
            kind, group = text[record], socket.inet_ntoa(text[record + 4 : record + 8])
            print(KINDS.get(kind, kind), group, "by", socket.inet_ntoa(packet[12:16]), flush=True)


def ask(interface):
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    raw.bind((interface, 0))
    query = struct.pack("!BBHIBBH", 0x11, 5, 0, 0, 2, 125, 0)
    query = query[:2] + struct.pack("!H", checksum(query)) + query[4:]
    header = struct.pack("!BBHHHBBH", 0x46, 0xC0, 24 + len(query), 0, 0, 1, 2, 0)
    header += socket.inet_aton("198.18.0.1") + socket.inet_aton("224.0.0.1") + b"\x94\x04\0\0"
    header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
    ethernet = bytes.fromhex("01005e000001") + raw.getsockname()[4] + b"\x08\0"
    raw.send(ethernet + header + query)


{"listen": listen, "say": say, "watch": watch, "ask": ask}[sys.argv[1]](*sys.argv[2:])

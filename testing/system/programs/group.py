"""A multicast group: group.py listen ADDRESS | say ADDRESS WORD | watch INTERFACE | ask INTERFACE
The same over IPv6:  group.py listen6 | say6 ADDRESS WORD | watch6 INTERFACE | ask6 INTERFACE VERSION

`listen` says `joined` and then what it hears; `watch` says what hosts report by IGMP version 3, or MLD; `ask` is a router's query.
"""
import socket
import struct
import sys

GROUP, GROUP6, PORT = "239.1.2.3", "ff15::1:2", 5007
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


def listen6():
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("::", PORT))
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.inet_pton(socket.AF_INET6, GROUP6) + bytes(4))
    print("joined", flush=True)
    while True:
        print(sock.recv(9000).decode(), flush=True)


def say6(address, word):
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.bind((address, 0))
    sock.sendto(word.encode(), (GROUP6, PORT))


def watch6(interface):
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x86DD))
    raw.bind((interface, 0x86DD))
    print("watching", flush=True)
    while True:
        packet = raw.recv(2000)
        if packet[6] != 0 or packet[40] != 58:
            continue
        text = packet[48:]
        sum_of = packet[8:40] + struct.pack("!II", len(text), 58) + text
        if packet[7] != 1 or packet[40:48] != b"\x3a\0\5\2\0\0\1\0" or checksum(sum_of):
            print("a bad report", packet.hex(), flush=True)
        by = socket.inet_ntop(socket.AF_INET6, packet[8:24])
        if text[0] in (131, 132):
            group = socket.inet_ntop(socket.AF_INET6, text[8:24])
            print({131: "reported", 132: "done"}[text[0]], group, "by", by, flush=True)
        if text[0] == 143:
            for record in range(8, len(text), 20):
                group = socket.inet_ntop(socket.AF_INET6, text[record + 4 : record + 20])
                print(KINDS.get(text[record], text[record]), group, "by", by, flush=True)


def ask6(interface, version):
    raw = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 1)
    raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, socket.if_nametoindex(interface))
    # The router alert.
    raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_HOPOPTS, b"\0\0\5\2\0\0\1\0")
    query = struct.pack("!BBHHH16s", 130, 0, 0, 500, 0, bytes(16)) + (struct.pack("!BBH", 2, 125, 0) if version == "2" else b"")
    raw.sendto(query, ("ff02::1", 0))


{"listen": listen, "say": say, "watch": watch, "ask": ask, "listen6": listen6, "say6": say6, "watch6": watch6, "ask6": ask6}[sys.argv[1]](*sys.argv[2:])

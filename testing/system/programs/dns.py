"""A name server for tests: dns.py ADDRESS PORT answers what a look-up of a few names in `test` asks, over UDP
and TCP, and prints each question.

here.test has two addresses of IPv4 and one of IPv6; large.test so many that UDP's answer is cut, and the rest
comes over TCP; slow.test is answered at the second question, silent.test at none; other names do not exist.
"""
import socket
import socketserver
import struct
import sys
import threading

A, PTR, AAAA = 1, 12, 28
NAMES = {
    ('here.test', A): ['198.18.0.1', '198.18.0.77'],
    ('here.test', AAAA): ['2001:db8::1'],
    ('slow.test', A): ['198.18.0.1'],
    ('slow.test', AAAA): [],
    ('large.test', A): [f'198.19.{n // 200}.{n % 200 + 1}' for n in range(300)],
    ('large.test', AAAA): [],
    ('1.0.18.198.in-addr.arpa', PTR): ['here.test'],
}
asked = {}


def packed(kind, value):
    if kind == PTR:
        return b''.join(bytes([len(part)]) + part.encode() for part in value.split('.')) + b'\0'
    return socket.inet_pton(socket.AF_INET if kind == A else socket.AF_INET6, value)


def answer(question, most, transport):
    """The answer to a question in at most so many octets; None for none."""
    at, parts = 12, []
    while question[at]:
        parts.append(question[at + 1:at + 1 + question[at]].decode())
        at += 1 + question[at]
    kind = struct.unpack('!H', question[at + 1:at + 3])[0]
    name, head = '.'.join(parts).lower(), question[12:at + 5]
    print(transport, name, kind, flush=True)
    asked[name] = asked.get(name, 0) + 1
    if name == 'silent.test' or name == 'slow.test' and asked[name] == 1:
        return None
    values = NAMES.get((name, kind))
    records = b''
    for value in values or []:
        data = packed(kind, value)
        records += b'\xc0\x0c' + struct.pack('!HHIH', kind, 1, 60, len(data)) + data
    flags = 0x8180 | (3 if values is None else 0)
    count = len(values or [])
    if 12 + len(head) + len(records) > most:
        flags, count, records = flags | 0x200, 0, b''
    return question[:2] + struct.pack('!HHHHH', flags, 1, count, 0, 0) + head + records


class Tcp(socketserver.BaseRequestHandler):
    def handle(self):
        while length := self.request.recv(2, socket.MSG_WAITALL):
            text = self.request.recv(struct.unpack('!H', length)[0], socket.MSG_WAITALL)
            text = answer(text, 65535, 'tcp')
            self.request.sendall(struct.pack('!H', len(text)) + text)


address = (sys.argv[1], int(sys.argv[2]))
socketserver.ThreadingTCPServer.allow_reuse_address = True
tcp = socketserver.ThreadingTCPServer(address, Tcp)
threading.Thread(target=tcp.serve_forever, daemon=True).start()
udp = socket.socket(type=socket.SOCK_DGRAM)
udp.bind(address)
print('answering', flush=True)
while True:
    text, peer = udp.recvfrom(4096)
    text = answer(text, 512, 'udp')
    if text:
        udp.sendto(text, peer)

#!/usr/bin/python3
"""What sockets of ICMP (SOCK_DGRAM) tell a program.

pings.py PEER4 FAR4 PEER6    prints a line for each question. PEER4 and PEER6 answer pings; FAR4 is behind PEER4.
"""
import errno
import os
import select
import socket
import struct
import sys
import time

PEER4, FAR4, PEER6 = sys.argv[1:4]
V4 = (socket.AF_INET, socket.IPPROTO_ICMP, 8)
V6 = (socket.AF_INET6, socket.IPPROTO_ICMPV6, 128)
IP_RECVERR, IPV6_RECVERR, IP_RECVTTL, IPV6_RECVHOPLIMIT, MSG_ERRQUEUE, SO_TIMESTAMPNS = 11, 25, 12, 51, 0x2000, 35


def make(kind):
    it = socket.socket(kind[0], socket.SOCK_DGRAM, kind[1])
    it.settimeout(20)
    return it


def request(kind, number, text=b"text", identifier=0x1234):
    return struct.pack("!BBHHH", kind[2], 0, 0xbeef, identifier, number) + text


def say(what, call):
    try:
        print(what, call())
    except OSError as error:
        print(what, errno.errorcode[error.errno] if error.errno else type(error).__name__)


def fields(message, own):
    kind, code, _, identifier, number = struct.unpack("!BBHHH", message[:8])
    return kind, code, identifier == own, number, len(message), message[8:12]


def checksum_is_right(message):
    words = struct.unpack("!%dH" % (len(message) // 2), message)
    total = sum(words)
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return total == 0xffff


def exchange(kind, to, text=b"text"):
    it = make(kind)
    it.sendto(request(kind, 7, text), (to, 0))
    own = it.getsockname()[1]
    message, peer = it.recvfrom(70000)
    return fields(message, own), peer[:2] == (to, 0), kind is V6 or len(text) % 2 or checksum_is_right(message)


def details(kind, to):
    it = make(kind)
    it.setsockopt(socket.IPPROTO_IP if kind is V4 else socket.IPPROTO_IPV6, IP_RECVTTL if kind is V4 else IPV6_RECVHOPLIMIT, 1)
    it.sendto(request(kind, 1), (to, 0))
    _, control, flags, peer = it.recvmsg(1000, 1000)
    return [(level, number, struct.unpack("i", value)[0]) for level, number, value in control], flags, peer[0]


def is_when_it_came(it, send):
    since = time.time_ns()
    send()
    select.select([it], [], [], 20)
    until = time.time_ns()
    while time.time_ns() < until + 2_000_000:
        pass
    _, control, _, _ = it.recvmsg(1000, 1000)
    (level, number, value), = control
    seconds, nanos = struct.unpack("qq", value)
    return level, number, since <= seconds * 10 ** 9 + nanos <= until


def when(kind, to):
    it = make(kind)
    it.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    # The kernel begins to note times a while after the first socket has asked, and says until then when it was read.
    for _ in range(1000):
        answer = is_when_it_came(it, lambda: it.sendto(request(kind, 1), (to, 0)))
        if answer[2]:
            break
    return answer


def not_connected(kind, to):
    it = make(kind)
    say("send without peer", lambda: it.send(request(kind, 1)))
    say("connect", lambda: it.connect((to, 0)))
    say("peer", it.getpeername)
    say("name", lambda: it.getsockname()[0])
    say("send with peer", lambda: it.send(request(kind, 3, b"abc")))
    own = it.getsockname()[1]
    say("peek", lambda: fields(it.recv(1000, socket.MSG_PEEK), own))
    say("cut", lambda: (it.recv(6, socket.MSG_TRUNC), select.select([it], [], [], 0)[0] == [])[1])
    it.setblocking(False)
    say("urgent", lambda: it.recv(10, socket.MSG_OOB))
    say("urgent send", lambda: it.send(request(kind, 1), socket.MSG_OOB))


def identifiers(kind, own):
    it, other = make(kind), make(kind)
    say("bind", lambda: it.bind((own, 321)))
    say("name", lambda: it.getsockname()[:2])
    say("bind to the same", lambda: other.bind((own, 321)))
    say("bind again", lambda: it.bind((own, 322)))
    for shared in it, other:
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    say("bind to another's", lambda: other.bind((own, 321)))
    say("bind elsewhere", lambda: make(kind).bind(("192.0.2.1" if kind is V4 else "2001:db8:99::1", 0)))
    third = make(kind)
    say("bind to any identifier", lambda: (third.bind((own, 0)), third.getsockname()[1] != 0)[1])
    third.sendto(request(kind, 2, identifier=321), (own, 0))
    say("who hears", lambda: fields(third.recv(1000), third.getsockname()[1]))
    say("who else", lambda: select.select([it], [], [], 0)[0])


def refused(kind, to):
    it = make(kind)
    for what, message in ("short", b"1234567"), ("reply", b"\0" + request(kind, 1)[1:]), \
            ("coded", request(kind, 1)[:1] + b"\1" + request(kind, 1)[2:]), ("long", request(kind, 1, bytes(65508 + 30))):
        say(what, lambda: it.sendto(message, (to, 0)))
    if kind is V6:
        say("mapped", lambda: it.sendto(request(kind, 1), ("::ffff:127.0.0.1", 0)))
    say("listen", lambda: it.listen(1))
    say("type", lambda: [it.getsockopt(socket.SOL_SOCKET, number) for number in (3, 38, 39)])


def queued(it):
    it.setblocking(False)
    try:
        message, control, flags, peer = it.recvmsg(1000, 1000, MSG_ERRQUEUE)
    finally:
        it.settimeout(20)
    for level, number, value in control:
        if number in (IP_RECVERR, IPV6_RECVERR):
            code, origin, kind, number, _, info, _ = struct.unpack("IBBBBII", value[:16])
            who = socket.inet_ntop(*((socket.AF_INET, value[20:24]) if level == 0 else (socket.AF_INET6, value[24:40])))
            return errno.errorcode[code], origin, kind, number, info, who, flags, peer[:2], message[:2], message[6:8]
    return "no error", flags


def errors(kind, to, far):
    it = make(kind)
    it.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    it.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 1)
    say("no error", lambda: queued(it))
    it.sendto(request(kind, 5), (far, 0))
    poll = select.poll()
    poll.register(it, select.POLLIN)
    say("poll", lambda: poll.poll(20000)[0][1])
    say("receive", lambda: it.recv(1000))
    say("queue", lambda: queued(it))
    say("queue again", lambda: queued(it))
    it.sendto(request(kind, 6), (far, 0))
    say("poll", lambda: poll.poll(20000)[0][1])
    say("queue first", lambda: queued(it))
    it.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 64)
    it.sendto(request(kind, 7), (to, 0))
    say("then", lambda: fields(it.recv(1000), it.getsockname()[1]))


def errors_of_udp(to):
    it = socket.socket(type=socket.SOCK_DGRAM)
    it.settimeout(20)
    it.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    it.sendto(b"anybody?", (to, 9))
    poll = select.poll()
    poll.register(it, select.POLLIN)
    say("poll", lambda: poll.poll(20000)[0][1])
    say("receive", lambda: it.recv(1000))
    say("queue", lambda: queued(it)[:8])
    say("error", lambda: it.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))


def passed_on(kind, to):
    it = make(kind)
    it.sendto(request(kind, 8), (to, 0))
    own = it.getsockname()[1]
    sys.stdout.flush()
    if os.fork() == 0:
        say("child", lambda: fields(it.recv(1000), own))
        it.sendto(request(kind, 9), (to, 0))
        sys.stdout.flush()
        os._exit(0)
    os.wait()
    say("parent", lambda: fields(it.recv(1000), own))


for name, kind, to in ("v4", V4, PEER4), ("v4 loopback", V4, "127.0.0.1"), ("v6", V6, PEER6), ("v6 loopback", V6, "::1"):
    print("#", name)
    say("reply", lambda: exchange(kind, to))
    say("long", lambda: exchange(kind, to, b"long" * 5000))
    say("empty", lambda: exchange(kind, to, b""))
    say("details", lambda: details(kind, to))
    say("when", lambda: when(kind, to))
    not_connected(kind, to)
    refused(kind, to)
    passed_on(kind, to)
identifiers(V4, "127.0.0.1")
identifiers(V6, "::1")
errors(V4, PEER4, FAR4)
errors_of_udp(PEER4)
say("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMPV6))

#!/usr/bin/python3
"""Which errors of ICMP and ICMPv6 does a socket hear of, and as what?

icmp_errors.py answer INTERFACE           plays hosts whose every packet draws an error
icmp_errors.py ask udp|mapped|tcp|ping|raw|behind TIMES
                                          prints what sockets hear that send to these hosts, and waits TIMES as long
                                          for it as is enough on a machine with nothing else to do

A packet names the error that it wants: its destination port, or the sequence number of an echo request, is BASE +
256 * type + code.
"""
import errno
import os
import select
import socket
import struct
import sys
import time

BASE = 20000
HOSTS = ("198.18.0.77", "2001:db8::77")
IP_RECVERR, IPV6_RECVERR, IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, MSG_ERRQUEUE = 11, 25, 10, 23, 0x2000
# Errors, and the octets of payload that make the packet long enough for them.
ERRORS = {
    4: [(3, code, 700 if code == 4 else 20) for code in range(17)]
    + [(4, 0, 20), (11, 0, 20), (11, 1, 20), (11, 2, 20), (12, 0, 20), (12, 1, 20), (12, 2, 20)],
    6: [(1, code, 20) for code in range(9)]
    + [(2, 0, 1400), (3, 0, 20), (3, 1, 20), (4, 0, 20), (4, 1, 20), (4, 2, 20), (4, 3, 20), (100, 0, 20)],
}


# --- the hosts

def checksum(octets):
    octets += b"\0" * (len(octets) % 2)
    total = sum(struct.unpack("!%dH" % (len(octets) // 2), octets))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def answer(interface):
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    wire.bind((interface, 0))
    mac = wire.getsockname()[4]
    four, six = socket.inet_aton(HOSTS[0]), socket.inet_pton(socket.AF_INET6, HOSTS[1])
    print("ready", flush=True)
    while True:
        frame = wire.recv(70000)
        kind = frame[12:14]
        said = None
        if kind == b"\x08\x06" and frame[20:22] == b"\0\1" and frame[38:42] == four:
            said = frame[14:20] + b"\0\2" + mac + four + frame[22:32]
        elif kind == b"\x08\0" and frame[30:34] == four:
            said = error4(frame[14:], four)
        elif kind == b"\x86\xdd" and frame[20] == 58 and frame[54] == 135 and frame[62:78] == six:
            said = wrapped6(six, frame[22:38], bytes([136, 0, 0, 0, 0x60, 0, 0, 0]) + six + b"\2\1" + mac, 255)
        elif kind == b"\x86\xdd" and frame[38:54] == six:
            said = error6(frame[14:], six)
        if said:
            wire.send(frame[6:12] + mac + kind + said)


def wanted(protocol, transport, echo):
    """The error that a packet asks for."""
    if protocol in (6, 17):
        number = struct.unpack("!H", transport[2:4])[0]
    elif protocol in (1, 58) and transport[0] == echo:
        number = struct.unpack("!H", transport[6:8])[0]
    else:
        return None
    return divmod(number - BASE, 256) if number >= BASE else None


def error4(packet, own):
    length = (packet[0] & 15) * 4
    error = wanted(packet[9], packet[length:], 8)
    if error is None:
        return None
    rest = {(3, 4): struct.pack("!HH", 0, 600), (12, 0): b"\x07\0\0\0"}.get(error, b"\0\0\0\0")
    # The quotation ends where the packet does: what pads a short frame is not part of it.
    quoted = packet[:min(struct.unpack("!H", packet[2:4])[0], 548)]
    message = bytes(error) + b"\0\0" + rest + quoted
    message = message[:2] + struct.pack("!H", checksum(message)) + message[4:]
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(message), 1, 0, 60, 1, 0, own, packet[12:16])
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + message


def wrapped6(source, target, message, hops):
    pseudo = source + target + struct.pack("!II", len(message), 58)
    message = message[:2] + struct.pack("!H", checksum(pseudo + message)) + message[4:]
    return struct.pack("!IHBB", 6 << 28, len(message), 58, hops) + source + target + message


def error6(packet, own):
    error = wanted(packet[6], packet[40:], 128)
    if error is None:
        return None
    rest = {2: 1280, 4: 6}.get(error[0], 0)
    quoted = packet[:min(40 + struct.unpack("!H", packet[4:6])[0], 1232)]
    return wrapped6(own, packet[8:24], bytes(error) + b"\0\0" + struct.pack("!I", rest) + quoted, 60)


# --- the questions

def name_of(number):
    return errno.errorcode.get(number, number)


def attempt(call, *arguments):
    try:
        result = call(*arguments)
        return len(result) if isinstance(result, bytes) else result
    except OSError as error:
        return name_of(error.errno) if error.errno else type(error).__name__


def ready(it, timeout=0):
    poll = select.poll()
    poll.register(it, select.POLLIN)
    return [event & ~(select.POLLRDHUP) for _, event in poll.poll(timeout)]


def queued(it, keep=0):
    """What the error queue says: the error, who has sent it, and what it quotes."""
    try:
        text, control, flags, to = it.recvmsg(2000, 512, MSG_ERRQUEUE)
    except OSError as error:
        return name_of(error.errno)
    for level, kind, value in control:
        if (level, kind) not in ((0, IP_RECVERR), (41, IPV6_RECVERR)):
            continue
        number, origin, kind, code, _, info, data = struct.unpack("=IBBBBII", value[:16])
        family = struct.unpack("=H", value[16:18])[0]
        offender = {2: lambda: socket.inet_ntoa(value[20:24]), 10: lambda: socket.inet_ntop(10, value[24:40])}
        said = (level, name_of(number), origin, kind, code, info, data, offender.get(family, lambda: family)())
        return said, text[:keep], (to[0], to[1] - BASE if to[1] >= BASE else to[1]), flags & ~socket.MSG_TRUNC
    return "nothing"


def make(family, kind, protocol, recverr, connected, to, options=()):
    it = socket.socket(family, kind, protocol)
    level, number = (0, IP_RECVERR) if family == socket.AF_INET else (41, IPV6_RECVERR)
    it.setsockopt(level, number, recverr)
    for option in options:
        it.setsockopt(*option)
    if connected:
        it.connect(to)
    it.setblocking(False)
    return it


def send(it, octets, to):
    return it.sendto(octets, to) if to else it.send(octets)


def heard(it, keep=0):
    return (ready(it), name_of(it.getsockopt(1, 4)), it.getsockopt(1, 4), queued(it, keep), queued(it), ready(it))


MODES = [(connected, recverr) for connected in (True, False) for recverr in (False, True)]


def udp():
    for version, family, host in (4, socket.AF_INET, HOSTS[0]), (6, socket.AF_INET6, HOSTS[1]):
        sockets = []
        # The path's MTU is learned last: it changes what else is sent.
        for kind, code, length in sorted(ERRORS[version], key=lambda error: error[2]):
            for connected, recverr in MODES:
                to = (host, BASE + 256 * kind + code)
                it = make(family, socket.SOCK_DGRAM, 0, recverr, connected, to)
                name = (version, kind, code, "connected" if connected else "", "RECVERR" if recverr else "")
                if code == 4 and kind == 3 and version == 4 or kind == 2:
                    # Each learns on its own: the first error would let the others send in fragments.
                    it.setsockopt(*((0, IP_MTU_DISCOVER, 3) if version == 4 else (41, IPV6_MTU_DISCOVER, 3)))
                send(it, bytes(length), None if connected else to)
                sockets.append((name, it))
        time.sleep(1 * TIMES)
        for name, it in sockets:
            print("udp", *name, *heard(it))
            it.close()
        # A socket that lets packets be fragmented hears of no MTU, unless it asks for errors.
        kind, code, length = next(error for error in ERRORS[version] if error[:2] in ((3, 4), (2, 0)))
        for connected, recverr in MODES:
            to = (host, BASE + 256 * kind + code)
            option = (0, IP_MTU_DISCOVER, 0) if version == 4 else (41, IPV6_MTU_DISCOVER, 0)
            it = make(family, socket.SOCK_DGRAM, 0, recverr, connected, to, [option])
            send(it, bytes(length), None if connected else to)
            time.sleep(.2 * TIMES)
            print("udp fragments", version, connected, recverr, *heard(it))


def mapped():
    """Each level's option is about its family's errors."""
    to = ("::ffff:" + HOSTS[0], BASE + 256 * 3 + 1)
    six = (HOSTS[1], BASE + 256 + 3)
    for level, number in (0, IP_RECVERR), (41, IPV6_RECVERR):
        for peer in to, six:
            it = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            it.setblocking(False)
            it.setsockopt(level, number, 1)
            it.sendto(b"x", peer)
            time.sleep(.2 * TIMES)
            print("mapped", level, peer[0], *heard(it))


def tcp():
    for version, family, host in (4, socket.AF_INET, HOSTS[0]), (6, socket.AF_INET6, HOSTS[1]):
        sockets = []
        for kind, code, length in ERRORS[version]:
            if length < 100:
                it = socket.socket(family, socket.SOCK_STREAM)
                it.setblocking(False)
                sockets.append(((version, kind, code), it, it.connect_ex((host, BASE + 256 * kind + code))))
        time.sleep(.5 * TIMES)
        for name, it, first in sockets:
            print("tcp", *name, name_of(first), bool(select.select([], [it], [], 0)[1]),
                  name_of(it.getsockopt(1, 4)), it.getsockopt(1, 4))
            it.close()


def echo(what, kind_of_socket):
    for version, family, host in (4, socket.AF_INET, HOSTS[0]), (6, socket.AF_INET6, HOSTS[1]):
        protocol, request = (socket.IPPROTO_ICMP, 8) if version == 4 else (socket.IPPROTO_ICMPV6, 128)
        for kind, code, length in sorted(ERRORS[version], key=lambda error: error[2]):
            for connected, recverr in MODES:
                mtu = (0, IP_MTU_DISCOVER, 3) if version == 4 else (41, IPV6_MTU_DISCOVER, 3)
                options = [mtu] if length > 100 else []
                it = make(family, kind_of_socket, protocol, recverr, connected, (host, 0), options)
                number = BASE + 256 * kind + code
                message = struct.pack("!BBHHH", request, 0, 0, 0x1234, number) + bytes(length)
                if version == 4:
                    message = message[:2] + struct.pack("!H", checksum(message)) + message[4:]
                send(it, message, None if connected else (host, 0))
                time.sleep(.03 * TIMES)
                # A raw socket receives the message itself, too.
                got = attempt(it.recv, 70000) if kind_of_socket == socket.SOCK_RAW else None
                name = (version, kind, code, "connected" if connected else "", "RECVERR" if recverr else "")
                events, error, again, first, second, after = heard(it)
                if kind_of_socket == socket.SOCK_RAW:
                    print(what, *name, "a message" if isinstance(got, int) else got, first, second)
                else:
                    print(what, *name, events, error, again, first, second, after)
                it.close()


def behind():
    """Errors behind a reply that waits, of sockets of ICMP."""
    for version, family, host in (4, socket.AF_INET, HOSTS[0]), (6, socket.AF_INET6, HOSTS[1]):
        own, protocol, request, kind, code = (("127.0.0.1", socket.IPPROTO_ICMP, 8, 3, 1) if version == 4 else
                                              ("::1", socket.IPPROTO_ICMPV6, 128, 1, 3))
        for recverr in False, True:
            for connected in False, True:
                for first in "recv", "error", "queue":
                    it = make(family, socket.SOCK_DGRAM, protocol, recverr, connected, (host, 0))
                    it.sendto(struct.pack("!BBHHH", request, 0, 0, 0, 7) + b"reply", (own, 0))
                    waits = ready(it, 5000)
                    it.sendto(struct.pack("!BBHHH", request, 0, 0, 0, BASE + 256 * kind + code) + b"error", (host, 0))
                    time.sleep(.1 * TIMES)
                    calls = {"recv": lambda: attempt(it.recv, 100), "queue": lambda: queued(it),
                             "error": lambda: name_of(it.getsockopt(1, 4))}
                    print("behind", version, recverr, connected, waits, ready(it), first, calls[first](),
                          *heard(it), attempt(it.recv, 100), attempt(it.recv, 100))
                    it.close()


def ping():
    echo("ping", socket.SOCK_DGRAM)


def raw():
    echo("raw", socket.SOCK_RAW)


if __name__ == "__main__":
    if sys.argv[1] == "answer":
        answer(sys.argv[2])
    else:
        TIMES = int(sys.argv[3])
        {"udp": udp, "mapped": mapped, "tcp": tcp, "ping": ping, "raw": raw, "behind": behind}[sys.argv[2]]()

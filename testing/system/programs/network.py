#!/usr/bin/env python3
"""Asks for the network that a program sees, and prints what is the same on the kernel's stack and on Atoll:
the link is eth0, with 198.18.0.2/24 and 2001:db8::2/64."""

import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import termios
import time

libc = ctypes.CDLL(None, use_errno=True)


class Entry(ctypes.Structure):
    """struct ifaddrs"""


Entry._fields_ = [("next", ctypes.POINTER(Entry)), ("name", ctypes.c_char_p), ("flags", ctypes.c_uint),
                  ("addr", ctypes.c_void_p), ("mask", ctypes.c_void_p), ("other", ctypes.c_void_p),
                  ("data", ctypes.c_void_p)]


def text(address):
    """The address in a sockaddr of either family."""
    family = ctypes.c_ushort.from_address(address).value
    if family == socket.AF_INET:
        return socket.inet_ntop(family, ctypes.string_at(address + 4, 4))
    if family == socket.AF_INET6:
        return socket.inet_ntop(family, ctypes.string_at(address + 8, 16))
    return f"link of {ctypes.c_ubyte.from_address(address + 11).value} octets"


def getifaddrs():
    first = ctypes.POINTER(Entry)()
    assert libc.getifaddrs(ctypes.byref(first)) == 0
    lines, entry = [], first
    while entry:
        it = entry.contents
        if it.name in (b"lo", b"eth0") and it.addr and "fe80" not in text(it.addr):
            mask = text(it.mask) if it.mask else "-"
            lines.append(f"{it.name.decode()} {it.flags & 0x1004b:x} {text(it.addr)} {mask} {bool(it.data)}")
        entry = it.next
    libc.freeifaddrs(first)
    print("\n".join(sorted(lines)))


def names():
    for index, name in socket.if_nameindex():
        if name in ("lo", "eth0"):
            print(name, socket.if_nametoindex(name) == index, socket.if_indextoname(index) == name)
    for wrong in (lambda: socket.if_nametoindex("nix"), lambda: socket.if_indextoname(4711)):
        try:
            wrong()
        except OSError as error:
            print(errno.errorcode.get(error.errno, error))


def ioctls():
    for family, kind in ((socket.AF_INET, socket.SOCK_DGRAM), (socket.AF_UNIX, socket.SOCK_STREAM),
                         (socket.AF_INET6, socket.SOCK_STREAM)):
        with socket.socket(family, kind) as s:
            def ask(name, request, take, s=s):
                try:
                    return take(fcntl.ioctl(s, request, struct.pack("16s24x", name))[16:])
                except OSError as error:
                    return errno.errorcode[error.errno]
            for name in (b"lo", b"eth0", b"nix"):
                print(name.decode(), ask(name, 0x8913, lambda b: hex(struct.unpack("H", b[:2])[0] & 0x4b)),
                      ask(name, 0x8915, lambda b: socket.inet_ntoa(b[4:8])),
                      ask(name, 0x891b, lambda b: socket.inet_ntoa(b[4:8])),
                      ask(name, 0x8927, lambda b: struct.unpack("H", b[:2])[0]),
                      ask(name, 0x8933, lambda b: struct.unpack("i", b[:4])[0] > 0))
            octets = bytearray(400)
            room = (ctypes.c_char * len(octets)).from_buffer(octets)
            answer = fcntl.ioctl(s, 0x8912, struct.pack("iP", len(octets), ctypes.addressof(room)))
            length = struct.unpack_from("i", answer)[0]
            found = [bytes(octets[at:at + 40]) for at in range(0, length, 40)]
            found = [(one[:16].rstrip(b"\0").decode(), socket.inet_ntoa(one[20:24])) for one in found]
            print([one for one in found if one[0] in ("lo", "eth0")])
            need = fcntl.ioctl(s, 0x8912, struct.pack("iP", 0, 0))
            print(struct.unpack_from("i", need)[0] == length)
    with open("/dev/null", encoding="ascii") as other:
        try:
            fcntl.ioctl(other, 0x8913, struct.pack("16s24x", b"lo"))
        except OSError as error:
            print(errno.errorcode[error.errno])


def request(kind, flags, body, sequence=7):
    return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body


def answers(octets):
    """The types of the messages in a datagram."""
    found, at = [], 0
    while at < len(octets):
        length, kind, _, sequence, _ = struct.unpack_from("=IHHII", octets, at)
        assert sequence == 7
        found.append(kind)
        at += (length + 3) & ~3
    return found


def netlink():
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as s:
        print([s.getsockopt(socket.SOL_SOCKET, name) for name in (39, socket.SO_TYPE, 38)])
        s.bind((0, 0))
        print(s.getsockname()[0] == os.getpid(), s.getsockname()[1])
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as other:
            other.bind((0, 0))
            print(other.getsockname()[0] not in (0, os.getpid()))
        print(select.select([s], [], [], 0)[0] == [])
        s.setblocking(False)
        try:
            s.recv(10)
        except BlockingIOError:
            print("nothing yet")
        s.setblocking(True)
        twin = s.dup()
        # A dump of links, by way of the duplicate.
        twin.sendto(request(18, 0x301, bytes(16)), (0, 0))
        twin.close()
        print(select.select([s], [], [], 5)[0] == [s])
        whole = s.recv_into(bytearray(1), 1, socket.MSG_PEEK | socket.MSG_TRUNC)
        octets, _, flags, sender = s.recvmsg(70000)
        kinds = answers(octets)
        print(whole == len(octets), flags & socket.MSG_TRUNC, sender)
        while kinds[-1] != 3:
            kinds += answers(s.recvfrom(70000)[0])
        print(sorted(set(kinds)))
        # What is asked of an interface that is not there.
        s.send(request(18, 1, struct.pack("=BBHiII", 0, 0, 0, 4711, 0, 0)))
        octets = s.recv(70000)
        print(answers(octets), struct.unpack_from("=i", octets, 16)[0])
        # A child has the socket, too.
        child = os.fork()
        if child == 0:
            s.send(request(22, 0x301, b"\x02" + bytes(7)))
            os._exit(0)
        os.waitpid(child, 0)
        kinds = []
        while kinds[-1:] != [3]:
            kinds += answers(s.recv(70000))
        print(sorted(set(kinds)))
        # Acknowledged, and cut short.
        s.send(request(3, 5, b""))
        octets = s.recv(20)
        print(answers(octets), struct.unpack_from("=i", octets, 16)[0])
    # The number is the program's again.
    with socket.socketpair()[0] as pair:
        print(pair.family == socket.AF_UNIX, pair.getsockopt(socket.SOL_SOCKET, 39))


def files():
    for name in ("tcp", "tcp6", "udp", "udp6", "route", "dev"):
        with open(f"/proc/net/{name}", encoding="ascii") as a, open(f"/proc/self/net/{name}", "rb") as b:
            heading = a.readline()
            print(heading.split(), len(heading), b.readline().decode() == heading)
    print([line.split()[5] for line in open("/proc/net/if_inet6", encoding="ascii") if "20010db8" in line])


def sockets():
    """The sockets of this program in the tables, and as netstat and ss print them."""
    with socket.create_server(("198.18.0.2", 8080)) as listener, socket.socket(type=socket.SOCK_DGRAM) as u:
        u.bind(("0.0.0.0", 5353))
        with socket.create_connection(("198.18.0.2", 8080)) as client, socket.socket(socket.AF_INET6) as six:
            six.bind(("::", 8081))
            six.listen()
            server, (_, port) = listener.accept()
            client.send(b"12345")
            while fcntl.ioctl(client, termios.TIOCOUTQ, bytes(4)) != bytes(4):
                time.sleep(0.01)  # Until the text is acknowledged.
            with server:
                lines = {name: [line.split() for line in open(f"/proc/net/{name}", encoding="ascii")][1:]
                         for name in ("tcp", "tcp6", "udp")}
                for name, found in lines.items():
                    for line in sorted(line[1:5] + [line[7]] for line in found):
                        print(name, [word.replace(f"{port:04X}", "PORT") for word in line])
                for command in (["netstat", "-tuln"], ["ss", "-tulnH"]):
                    out = subprocess.run(command, capture_output=True, check=True, encoding="ascii").stdout
                    words = [line.split() for line in out.splitlines()]
                    found = {(line[0], word) for line in words for word in line[3:5] if ":" in word}
                    print(sorted(one for one in found if one[1].rsplit(":", 1)[1] in ("8080", "8081", "5353")))


globals()[sys.argv[1]]()

"""A router that advertises itself (RFC 4861) and a prefix for autoconfiguration (RFC 4862), and that is asked by duplicate address
detection if told so.

    router.py INTERFACE PREFIX [MTU]        advertises PREFIX/64 twice a second
    router.py --claim INTERFACE ADDRESS     says twice a second that ADDRESS is its own
"""

import fcntl
import socket
import struct
import sys
import time

ALL_NODES = "ff02::1"


def icmpv6(interface):
    sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, socket.if_nametoindex(interface))
    return sock


def station_of(interface):
    with socket.socket() as sock:
        return fcntl.ioctl(sock, 0x8927, struct.pack("16s16x", interface.encode()))[18:24]


def advertisement(interface, prefix, mtu):
    message = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)
    message += struct.pack("!BB6s", 1, 1, station_of(interface))
    message += struct.pack("!BBHI", 5, 1, 0, mtu)
    message += struct.pack("!BBBBIII16s", 3, 4, 64, 0xC0, 600, 300, 0, socket.inet_pton(socket.AF_INET6, prefix))
    return message


def claim(interface, address):
    message = struct.pack("!BBHI16s", 136, 0, 0, 0x20000000, socket.inet_pton(socket.AF_INET6, address))
    return message + struct.pack("!BB6s", 2, 1, station_of(interface))


if sys.argv[1] == "--claim":
    interface, message = sys.argv[2], claim(sys.argv[2], sys.argv[3])
else:
    interface = sys.argv[1]
    message = advertisement(interface, sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1500)
sock = icmpv6(interface)
while True:
    try:
        sock.sendto(message, (ALL_NODES, 0, 0, socket.if_nametoindex(interface)))
        print("advertised", flush=True)
    except OSError as error:
        # The kernel tries its own link-local address out first.
        print(error, flush=True)
    time.sleep(0.5)

"""A router that advertises itself (RFC 4861) and a prefix for autoconfiguration (RFC 4862), and that is asked by duplicate address
detection if told so.

    router.py INTERFACE PREFIX [MTU]        advertises PREFIX/64 twice a second
    router.py --claim INTERFACE ADDRESS     says twice a second that ADDRESS is its own
    router.py --redirect INTERFACE HOST DESTINATION TARGET
                                            tells HOST twice a second that DESTINATION is better reached by TARGET, and says when somebody
                                            asks for that
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


def link_local_of(interface):
    with open("/proc/net/if_inet6") as addresses:
        fields = [line.split() for line in addresses]
    octets = next(f[0] for f in fields if f[5] == interface and f[3] == "20")
    return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(octets))


def redirect(interface, host, destination, target):
    wanted = socket.inet_pton(socket.AF_INET6, target)
    message = struct.pack("!BBHI16s16s", 137, 0, 0, 0, wanted, socket.inet_pton(socket.AF_INET6, destination))
    sock = icmpv6(interface)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 255)
    sock.bind((link_local_of(interface), 0, 0, socket.if_nametoindex(interface)))
    link = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x86DD))
    link.bind((interface, 0x86DD))
    link.settimeout(0.5)
    print("ready", flush=True)
    while True:
        sock.sendto(message, (host, 0))
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            try:
                packet = link.recv(2000)
            except TimeoutError:
                break
            if packet[6] == 58 and packet[40] == 135 and packet[48:64] == wanted:
                print("asked for it", flush=True)


if sys.argv[1] == "--redirect":
    redirect(*sys.argv[2:])
elif sys.argv[1] == "--claim":
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

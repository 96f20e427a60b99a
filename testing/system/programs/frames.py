"""What programs that make frames by themselves have in common. Not a program."""
import struct


def checksum(data):
    """The Internet checksum (RFC 1071)."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def station_of(address):
    """The MAC that the kernel has found for an IPv4 address."""
    with open("/proc/net/arp") as table:
        mac = next(line.split()[3] for line in table if line.split()[0] == address)
    return bytes.fromhex(mac.replace(":", ""))

#!/usr/bin/python3
"""Sets and reads every socket option, with usual and odd values, on sockets of each kind and state.

options.py ADDRESS4 ADDRESS6    prints a line for each option and socket: what setsockopt(2) says to each value, and
                                what getsockopt(2) returns afterwards. The addresses are those of this machine.
"""
import errno
import socket
import struct
import sys

SOL_SOCKET, IP, TCP, UDP, IPV6 = socket.SOL_SOCKET, 0, 6, 17, 41
OPTIONS = {
    (SOL_SOCKET, "SO"): dict(
        DEBUG=1, REUSEADDR=2, TYPE=3, ERROR=4, DONTROUTE=5, BROADCAST=6, SNDBUF=7, RCVBUF=8, KEEPALIVE=9, OOBINLINE=10,
        NO_CHECK=11, PRIORITY=12, LINGER=13, REUSEPORT=15, PASSCRED=16, RCVLOWAT=18, SNDLOWAT=19, RCVTIMEO=20, SNDTIMEO=21,
        BINDTODEVICE=25, TIMESTAMP=29, ACCEPTCONN=30, TIMESTAMPNS=35, MARK=36, TIMESTAMPING=37, PROTOCOL=38, DOMAIN=39,
        RXQ_OVFL=40, PEEK_OFF=42, SELECT_ERR_QUEUE=45, BUSY_POLL=46, MAX_PACING_RATE=47, INCOMING_CPU=49, ZEROCOPY=60,
        TXTIME=61, TIMESTAMP_NEW=63, TIMESTAMPNS_NEW=64, BUF_LOCK=72),
    (IP, "IP"): dict(
        TOS=1, TTL=2, HDRINCL=3, OPTIONS=4, RECVOPTS=6, PKTINFO=8, MTU_DISCOVER=10, RECVERR=11, RECVTTL=12, RECVTOS=13,
        MTU=14, FREEBIND=15, TRANSPARENT=19, RECVORIGDSTADDR=20, MINTTL=21, BIND_ADDRESS_NO_PORT=24,
        LOCAL_PORT_RANGE=51),
    (TCP, "TCP"): dict(
        NODELAY=1, MAXSEG=2, CORK=3, KEEPIDLE=4, KEEPINTVL=5, KEEPCNT=6, SYNCNT=7, LINGER2=8, DEFER_ACCEPT=9,
        WINDOW_CLAMP=10, QUICKACK=12, CONGESTION=13, MD5SIG=14, USER_TIMEOUT=18, FASTOPEN=23, NOTSENT_LOWAT=25,
        FASTOPEN_CONNECT=30, ULP=31, INQ=36, TX_DELAY=37),
    (IPV6, "IPV6"): dict(
        UNICAST_HOPS=16, MTU_DISCOVER=23, MTU=24, RECVERR=25, V6ONLY=26, FLOWINFO_SEND=33, RECVPKTINFO=49,
        RECVHOPLIMIT=51, HOPLIMIT=52, RECVRTHDR=56, DONTFRAG=62, RECVTCLASS=66, TCLASS=67, AUTOFLOWLABEL=70,
        ADDR_PREFERENCES=72, MINHOPCOUNT=73, FREEBIND=78),
    (UDP, "UDP"): dict(CORK=1, NO_CHECK6_TX=101, SEGMENT=103, GRO=104),
}
NUMBERS = [-2147483648, -1, 0, 1, 2, 5, 6, 7, 88, 127, 128, 255, 256, 4000, 32768, 70000, 2147483647]
OTHERS = [b"", b"\1", b"\1\0\0", struct.pack("ii", 1, 5), struct.pack("ii", 0, 7), struct.pack("ll", 2, 500000),
          struct.pack("ll", -1, 0), struct.pack("ll", 0, 1000000), struct.pack("Q", 1 << 33), b"reno\0", b"cubic", b"none"]


def sockets(own4, own6):
    """A function for each kind and state, which makes a socket and what it needs."""
    def bound(family, kind):
        it = socket.socket(family, kind)
        it.bind((own4 if family == socket.AF_INET else own6, 0))
        return it, []

    def listening(family):
        it, _ = bound(family, socket.SOCK_STREAM)
        it.listen(5)
        return it, []

    def connected(family, kind):
        other, _ = bound(family, kind)
        if kind == socket.SOCK_STREAM:
            other.listen(5)
        it = socket.socket(family, kind)
        it.connect(other.getsockname())
        return it, [other]

    def ping(family, state, own):
        it = socket.socket(family, socket.SOCK_DGRAM, 1 if family == socket.AF_INET else 58)
        if state:
            getattr(it, state)((own, 0))
        return it, []

    def accepted(family):
        client, (listener,) = connected(family, socket.SOCK_STREAM)
        return listener.accept()[0], [client, listener]

    for name, family in ("4", socket.AF_INET), ("6", socket.AF_INET6):
        for kind, number in ("tcp", socket.SOCK_STREAM), ("udp", socket.SOCK_DGRAM):
            yield f"{kind}{name} fresh", lambda f=family, n=number: (socket.socket(f, n), [])
            yield f"{kind}{name} bound", lambda f=family, n=number: bound(f, n)
            yield f"{kind}{name} connected", lambda f=family, n=number: connected(f, n)
        own = own4 if name == "4" else own6
        for state in None, "bind", "connect":
            yield f"icmp{name} {state}", lambda f=family, s=state, o=own: ping(f, s, o)
        yield f"tcp{name} listening", lambda f=family: listening(f)
        yield f"tcp{name} accepted", lambda f=family: accepted(f)


def attempt(call):
    try:
        found = call()
        return found.hex() if found is not None else "ok"
    except OSError as error:
        return errno.errorcode[error.errno]


for state, make in sockets(*sys.argv[1:3]):
    it, kept = make()
    for (level, prefix), names in OPTIONS.items():
        for name, number in names.items():
            seen = ["first " + attempt(lambda: it.getsockopt(level, number, 24))]
            for value in [struct.pack("i", n) for n in NUMBERS] + OTHERS:
                answer = attempt(lambda: it.setsockopt(level, number, value))
                if answer == "ok":
                    answer = attempt(lambda: it.getsockopt(level, number, 24))
                seen.append(f"{value.hex() or '-'} {answer}")
            print(f"{state} {prefix}_{name}: " + ", ".join(seen))

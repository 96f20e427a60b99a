"""Which two sockets may have one port? Prints the answer for each pair: binds.py tcp|udp

The first one binds, and perhaps listens; then the second one binds the same port, and both listen. Addresses, SO_REUSEADDR and
SO_REUSEPORT are all that there are.
"""
import errno
import itertools
import socket
import sys

NONE, ADDR, PORT, BOTH = "-", "addr", "port", "addr+port"
ADDRESSES = {
    "0.0.0.0": (socket.AF_INET, "0.0.0.0", None),
    "127.0.0.1": (socket.AF_INET, "127.0.0.1", None),
    "127.0.0.2": (socket.AF_INET, "127.0.0.2", None),
    "::": (socket.AF_INET6, "::", 0),
    ":: alone": (socket.AF_INET6, "::", 1),
    "::1": (socket.AF_INET6, "::1", 0),
    "::ffff:127.0.0.1": (socket.AF_INET6, "::ffff:127.0.0.1", 0),
    "::ffff:0.0.0.0": (socket.AF_INET6, "::ffff:0.0.0.0", 0),
}


def make(kind, address, options):
    family, host, alone = ADDRESSES[address]
    sock = socket.socket(family, kind)
    if alone is not None:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, alone)
    if "addr" in options:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if "port" in options:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return sock, host


def outcome(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno].removeprefix("EADDR")
    return "ok"


def pair(kind, first, second, listens):
    one, host = make(kind, *first)
    one.bind((host, 0))
    port = one.getsockname()[1]
    if listens:
        one.listen(1)
    other, host = make(kind, *second)
    said = [outcome(other.bind, (host, port))]
    if kind == socket.SOCK_STREAM and said == ["ok"]:
        said.append(outcome(other.listen, 1))
        if not listens:
            said.append(outcome(one.listen, 1))
    one.close()
    other.close()
    return ", ".join(said)


def main():
    kind = socket.SOCK_STREAM if sys.argv[1] == "tcp" else socket.SOCK_DGRAM
    for listens in (False, True) if kind == socket.SOCK_STREAM else (False,):
        for one, other in itertools.product(ADDRESSES, repeat=2):
            for options in itertools.product((NONE, ADDR, PORT, BOTH), repeat=2):
                said = pair(kind, (one, options[0]), (other, options[1]), listens)
                print(f"{one} {options[0]}{' listens' * listens}; {other} {options[1]}: {said}")


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""Attacks by programs that try to get what is not theirs: intruder.py ATTACK PORT

Each attack runs until it is killed, and prints `attacking` once it has begun; `SUCCEEDED` says that it got what nobody should get. The program
starts as root, as daemons do, and gives that up for another user's rights.
"""
import json
import os
import socket
import sys
import time

NOBODY = 65534


def give_up_root():
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def attacking():
    print("attacking", flush=True)


def succeeded(what):
    print(f"SUCCEEDED: {what}", flush=True)


def admin(_port):
    """A web worker asks for what administrators may ask: over the connection for applications that its master opened as root, and over one
    for administration, which it might have inherited just as well."""
    applications = os.environ["ATOLL_SOCKET"]
    doors = [applications, os.path.splitext(applications)[0] + ".admin"]
    # No request would do harm if it were obeyed: a file that is no build, a move that moves nothing, rules that stay.
    requests = [
        {"cmd": "upgrade", "path": "/etc/hostname"},
        {"cmd": "balance", "tariff": 2},
        {"cmd": "move", "replicas": [0], "to": 0},
        {"cmd": "ss"},
    ]
    open_doors = []
    for door in doors:
        if os.path.exists(door):
            for request in requests:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                connection.connect(door)
                open_doors.append((connection, request))
    give_up_root()
    for connection, request in open_doors:
        try:
            connection.settimeout(5)
            connection.send(json.dumps(request).encode())
            while answer := connection.recv(1 << 17):
                part = json.loads(answer) if answer[:1] == b"{" else {}
                # Only clients that may upgrade get the error that a build is invalid.
                if "hostname" in str(part) or "error" not in part and "refused" not in part and part:
                    succeeded(f"{request['cmd']} was obeyed: {str(part)[:200]}")
                if not part or "error" in part or "done" in part:
                    break
        except OSError:
            pass
    attacking()
    while True:
        time.sleep(1)


def thief(port):
    """Listens on the neighbour's port as another user."""
    # The library joins the stack while the process still has the right.
    socket.socket().close()
    give_up_root()
    attacking()
    while True:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("0.0.0.0", port))
            listener.listen()
            listener.settimeout(0.5)
            listener.accept()
            succeeded("a connection to another user's port")
        except OSError:
            pass
        listener.close()
        time.sleep(0.01)


if __name__ == "__main__":
    attack = {"admin": admin, "thief": thief}[sys.argv[1]]
    attack(int(sys.argv[2]))

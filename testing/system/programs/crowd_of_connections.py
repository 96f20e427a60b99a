#!/usr/bin/python3
"""Connections to the control socket of a stack that ask for nothing.

crowd_of_connections.py SOCKET COUNT   opens COUNT connections, says how many it has got, and keeps them until it is ended
"""
import resource
import socket
import sys
import time

path, count = sys.argv[1], int(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
refused = 0
while len(held) < count:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # A supervisor that takes no more of them must not hold the test up.
    connection.settimeout(0.2)
    try:
        connection.connect(path)
    except OSError:
        refused += 1
        if refused > 50:
            break
        continue
    held.append(connection)
print(f"connected {len(held)} times", flush=True)
while True:
    time.sleep(60)

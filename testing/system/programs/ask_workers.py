#!/usr/bin/python3
"""Asks workers.py: ask_workers.py ADDRESS PORT COUNT AT_ONCE. Prints how many connections each worker has served."""
import collections
import socket
import sys
import threading

address, port, count, at_once = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
served = collections.Counter()
left = [count]
lock = threading.Lock()


def ask():
    while True:
        with lock:
            if left[0] == 0:
                return
            left[0] -= 1
        try:
            with socket.create_connection((address, port), 20) as connection:
                connection.sendall(b"who?\n")
                said = b""
                while chunk := connection.recv(100):
                    said += chunk
            answer = said.decode().strip() or "nothing"
        except OSError as error:
            answer = f"failed ({error})"
        with lock:
            served[answer] += 1


threads = [threading.Thread(target=ask) for _ in range(at_once)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for answer, number in sorted(served.items()):
    print(f"{answer}: {number}")

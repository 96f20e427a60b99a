"""Fetches a page over each of many connections and keeps all of them open until told: fetch_and_keep.py ADDRESS PORT PATH BYTES COUNT"""
import socket
import sys

address, port, path, length, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
request = f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode()


def fetch(connection):
    connection.sendall(request)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += connection.recv(65536)
    left = length - len(answer.split(b"\r\n\r\n", 1)[1])
    while left > 0:
        part = connection.recv(65536)
        assert part, "the connection has ended"
        left -= len(part)


connections = []
for _ in range(count):
    connections.append(socket.create_connection((address, port), timeout=20))
    fetch(connections[-1])
print("all are kept", flush=True)
sys.stdin.readline()
for connection in connections:
    fetch(connection)
print("all were served again", flush=True)

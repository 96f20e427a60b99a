"""Sends a file and receives what comes, at once; prints its SHA-256: exchange.py serve PORT FILE | exchange.py ADDRESS PORT FILE"""
import hashlib
import socket
import sys
import threading

address, port, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if address == "serve":
    server = socket.create_server(("0.0.0.0", port))
    print("listening", flush=True)
    connection, _ = server.accept()
else:
    connection = socket.create_connection((address, port), timeout=10)
    connection.settimeout(None)


def send():
    with open(path, "rb") as file:
        while part := file.read(1 << 16):
            connection.sendall(part)
    connection.shutdown(socket.SHUT_WR)


sender = threading.Thread(target=send)
sender.start()
digest = hashlib.sha256()
while part := connection.recv(1 << 16):
    digest.update(part)
sender.join()
print(digest.hexdigest(), flush=True)

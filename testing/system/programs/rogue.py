"""A program of which servers die: rogue.py PORT PEER PEERS_PORT serves one connection, keeps replicas busy with sockets that it opens and closes, and
says what becomes of all that: of the connection, of the next socket, and of the next connection, and how long it has waited."""
import errno
import socket
import sys
import time

port, peer, peers_port = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
server = socket.create_server(("0.0.0.0", port))
print("serving", flush=True)
connection, _ = server.accept()
connection.setblocking(False)
print("busy", flush=True)


def outcome(what, attempt):
    begin = time.monotonic()
    try:
        attempt()
        said = "fine"
    except OSError as error:
        said = errno.errorcode.get(error.errno, str(error))
    waited = "at once" if time.monotonic() - begin < 2 else "late"
    print(what, said, waited, flush=True)
    return said


def busy():
    datagrams = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(16)]
    for one in datagrams:
        one.bind(("0.0.0.0", 0))
    for one in datagrams:
        one.close()


while True:
    try:
        busy()
        connection.recv(16)
    except BlockingIOError:
        continue
    except OSError:
        break
outcome("received", lambda: connection.recv(16))
outcome("bound", lambda: socket.create_server(("0.0.0.0", port + 1)))
outcome("connected", lambda: socket.create_connection((peer, peers_port), timeout=30))
print("over", flush=True)
time.sleep(60)

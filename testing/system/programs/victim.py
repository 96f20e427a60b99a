"""Three parts of a small drama: one program has connections that it made and that it accepted, and is killed.

victim.py peer ADDRESS PORT         accepts, and says when its connection ends
victim.py victim ADDRESS PORT OWN   connects to the peer, accepts on OWN, and waits
victim.py client ADDRESS PORT       connects, and says when its connection ends
"""
import socket
import sys


def say(text):
    print(text, flush=True)


def until_the_end(connection):
    try:
        while connection.recv(1000):
            pass
        say("ended by FIN")
    except ConnectionError:
        say("ended by RST")


role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if role == "peer":
    server = socket.create_server((address, port))
    say("listening")
    connection, _ = server.accept()
    until_the_end(connection)
elif role == "client":
    connection = socket.create_connection((address, port), timeout=10)
    connection.settimeout(None)
    say("connected")
    until_the_end(connection)
else:
    # The second victim finds the peer gone; it only has to get the port.
    try:
        outgoing = socket.create_connection((address, port), timeout=5)
        say("connected")
    except OSError:
        outgoing = None
    server = socket.create_server(("0.0.0.0", int(sys.argv[4])))
    say("listening again" if outgoing is None else "listening")
    connection, _ = server.accept()
    connection.sendall(b"unread by nobody")
    say("accepted")
    connection.recv(1)

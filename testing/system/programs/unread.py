#!/usr/bin/python3
"""Text that is never read, as much as a stack takes.

unread.py hoard PORT FIRST              accepts whatever comes, reads FIRST octets of each connection, and nothing more
unread.py pour ADDRESS PORT COUNT       opens COUNT connections and sends over all of them whatever is taken, until it is ended
"""
import errno
import selectors
import socket
import sys
import time

if sys.argv[1] == "hoard":
    first = int(sys.argv[3])
    listener = socket.create_server(("0.0.0.0", int(sys.argv[2])), backlog=1024)
    listener.setblocking(False)
    waits = selectors.DefaultSelector()
    waits.register(listener, selectors.EVENT_READ)
    print("listening", flush=True)
    read = {}
    while True:
        for key, _ in waits.select():
            try:
                if key.fileobj is listener:
                    connection = listener.accept()[0]
                    connection.setblocking(False)
                    read[connection] = 0
                    waits.register(connection, selectors.EVENT_READ)
                    continue
                octets = len(key.fileobj.recv(1 << 20))
            except BlockingIOError:
                continue
            except OSError:
                octets = 0
            if key.fileobj is listener:
                continue
            read[key.fileobj] += octets
            if octets == 0 or read[key.fileobj] >= first:
                # It stays open, with a window that has grown, and is not read any more.
                waits.unregister(key.fileobj)

address, port, count = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
text = bytes(65536)
sent, refused, without_buffers, open_ones = 0, 0, 0, []
chosen = selectors.DefaultSelector()


def reopen():
    """One more, as far as the stack lets us."""
    global refused, without_buffers
    connection = socket.socket()
    connection.setblocking(False)
    error = connection.connect_ex((address, port))
    if error not in (0, errno.EINPROGRESS):
        refused += 1
        without_buffers += error == errno.ENOBUFS
        connection.close()
        return
    chosen.register(connection, selectors.EVENT_WRITE)
    open_ones.append(connection)


said = 0
while True:
    if len(open_ones) < count:
        reopen()
    for key, _ in chosen.select(0.01):
        try:
            sent += key.fileobj.send(text)
        except BlockingIOError:
            pass
        except OSError as error:
            refused += 1
            without_buffers += error.errno == errno.ENOBUFS
            chosen.unregister(key.fileobj)
            open_ones.remove(key.fileobj)
            key.fileobj.close()
    if time.monotonic() > said + 1:
        said = time.monotonic()
        print(f"open {len(open_ones)} sent {sent} refused {refused} for want of buffers {without_buffers}", flush=True)

#!/usr/bin/python3
"""A program that comes late to its listener, whose connections have long waited, and looks only once.

late.py accept|poll|epoll    says "waits", looks at SIGUSR1, and prints what each look finds
"""
import select
import signal
import socket
import sys
import time

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
server = socket.create_server(("127.0.0.1", 0))
server.setblocking(False)
poll, events = select.poll(), select.epoll()
poll.register(server, select.POLLIN)
events.register(server, select.EPOLLIN)
clients = [socket.create_connection(server.getsockname(), timeout=10) for _ in range(3)]
# So long that the stack offers them to nobody any more.
time.sleep(1)
print("waits", flush=True)
for number, _ in enumerate(clients):
    signal.sigwait({signal.SIGUSR1})
    look = {"accept": lambda: True, "poll": lambda: poll.poll(0), "epoll": lambda: events.poll(0)}[sys.argv[1]]
    if look():
        try:
            server.accept()
            print("accepted", number, flush=True)
        except BlockingIOError:
            print("nothing to accept", flush=True)
    else:
        print("not readable", flush=True)

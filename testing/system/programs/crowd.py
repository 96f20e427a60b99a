"""Many connections of one process to itself, each with a stream to deliver, driven by one epoll instance; all must arrive whole."""
import hashlib
import select
import socket
import threading

COUNT, LENGTH = 40, 300_000

server = socket.create_server(("127.0.0.1", 0), backlog=COUNT)
epoll = select.epoll()
senders, receivers = {}, {}
for number in range(COUNT):
    text = hashlib.sha256(str(number).encode()).digest() * (LENGTH // 32)
    sender = socket.create_connection(server.getsockname(), timeout=10)
    receiver, _ = server.accept()
    for sock in (sender, receiver):
        sock.setblocking(False)
    senders[sender.fileno()] = [sender, text, 0]
    receivers[receiver.fileno()] = [receiver, text, b""]
    epoll.register(sender, select.EPOLLOUT | select.EPOLLET)
    epoll.register(receiver, select.EPOLLIN)
whole = 0
while whole < COUNT:
    events = epoll.poll(10)
    assert events, f"silence with {whole} of {COUNT} streams delivered"
    for number, _ in events:
        if number in senders:
            sock, text, sent = senders[number]
            try:
                while sent < len(text):
                    sent += sock.send(text[sent:])
                sock.close()
                del senders[number]
            except BlockingIOError:
                senders[number][2] = sent
        else:
            sock, text, got = receivers[number]
            part = sock.recv(65536)
            if part:
                receivers[number][2] = got + part
            else:
                assert got == text, "the stream has changed"
                sock.close()
                del receivers[number]
                whole += 1
print("all are whole")

# The same with ends that block, each a thread.
server.setblocking(True)
whole = []


def receive(sock, expected):
    got = b""
    while part := sock.recv(65536):
        got += part
    whole.append(got == expected)


threads = []
for number in range(COUNT):
    sender = socket.create_connection(server.getsockname(), timeout=10)
    receiver, _ = server.accept()
    for sock in (sender, receiver):
        sock.settimeout(None)
    text = bytes([number]) * LENGTH
    threads.append(threading.Thread(target=lambda sock=sender, text=text: (sock.sendall(text), sock.close())))
    threads.append(threading.Thread(target=receive, args=(receiver, text)))
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(20)
assert whole == [True] * COUNT, f"{whole}"
print("all are whole again")

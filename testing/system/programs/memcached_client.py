"""Twenty connections, open at once, that store and read 50 values each: memcached_client.py ADDRESS PORT"""
import socket
import sys

address = (sys.argv[1], int(sys.argv[2]))
clients = [socket.create_connection(address, timeout=10) for _ in range(20)]
files = [client.makefile("rwb") for client in clients]
right = 0
for number in range(50):
    for index, file in enumerate(files):
        value = (f"{index}-{number}-" * 100).encode()
        file.write(b"set k%d.%d 0 0 %d\r\n%s\r\n" % (index, number, len(value), value))
        file.flush()
    for index, file in enumerate(files):
        assert file.readline() == b"STORED\r\n"
        file.write(b"get k%d.%d\r\n" % (index, number))
        file.flush()
    for index, file in enumerate(files):
        value = (f"{index}-{number}-" * 100).encode()
        lines = [file.readline() for _ in range(3)]
        right += lines == [b"VALUE k%d.%d 0 %d\r\n" % (index, number, len(value)), value + b"\r\n", b"END\r\n"]
print(f"{right} values of {len(clients)} clients are right")

"""The other end of hunt.c, all of whose octets it checks: hunted.py ADDRESS PORT CONNECTIONS

It opens that many connections, on which the elder and its victims write rows of octets, and short ones all the time, each of which is served,
or ended with its server.
"""
import re
import selectors
import socket
import sys
import threading

address, count = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3])
QUESTION = bytes(n % 251 for n in range(3000))
ROWS = [bytes(n % 127 | bit for n in range(127 + (1 << 16))) for bit in (0, 128)]
RUNS = re.compile(rb"[\x00-\x7f]+|[\x80-\xff]+")
over = threading.Event()
wrong = []
# Answers that are not what was asked for: docs/limits.md.
mixed = []
served, ended = [0], [0]


def ask():
    """Short connections, one after another."""
    while not over.is_set():
        got = b""
        try:
            connection = socket.create_connection(address, timeout=30)
        except OSError as error:
            if not over.is_set():
                wrong.append(f"cannot connect: {error}")
            return
        try:
            connection.sendall(QUESTION)
            while part := connection.recv(4096):
                got += part
        except ConnectionError:
            pass
        except TimeoutError:
            wrong.append("neither served nor ended")
        connection.close()
        if got != QUESTION[: len(got)]:
            same = next(i for i in range(len(got)) if got[i : i + 1] != QUESTION[i : i + 1])
            mixed.append(f"an answer of {len(got)} octets has changed from {same} on: {got[same : same + 300]}")
        served[0] += got == QUESTION
        ended[0] += got != QUESTION


class Row:
    """What the elder and the victims of one connection have written."""

    def __init__(self, connection):
        self.connection = connection
        self.elder = self.victim = 0
        self.victims = 0

    def check(self, part):
        for run in RUNS.findall(part):
            is_victims = run[0] >= 128
            at = self.victim if is_victims else self.elder
            due = ROWS[is_victims][at % 127 : at % 127 + len(run)]
            if run != due:
                same = next(i for i in range(len(run)) if run[i] != due[i])
                if run[same] != 128:
                    return f"octet {run[same]} where {due[same]} is due"
                # Another victim.
                self.victims += same
                self.victim = 0
                if error := self.check(run[same:]):
                    return error
            elif is_victims:
                self.victim += len(run)
                self.victims += len(run)
            else:
                self.elder += len(run)
        return None


rows = [Row(socket.create_connection(address, timeout=30)) for _ in range(count)]
# All of them are accepted: which of two waiting connections is the first is the stack's affair.
for row in rows:
    row.connection.recv(1, socket.MSG_PEEK)
askers = [threading.Thread(target=ask) for _ in range(2)]
print("connected", flush=True)
for asker in askers:
    asker.start()
chosen = selectors.DefaultSelector()
for row in rows:
    row.connection.setblocking(False)
    chosen.register(row.connection, selectors.EVENT_READ | selectors.EVENT_WRITE, row)
while chosen.get_map() and not wrong:
    found = chosen.select(60)
    if not found:
        wrong.append("nothing happens any more")
    for key, events in found:
        row = key.data
        if events & selectors.EVENT_WRITE:
            try:
                row.connection.send(QUESTION)
            except BlockingIOError:
                pass
        if events & selectors.EVENT_READ:
            try:
                part = row.connection.recv(1 << 16)
            except BlockingIOError:
                continue
            except ConnectionError as error:
                wrong.append(str(error))
                break
            if not part:
                over.set()
                chosen.unregister(row.connection)
                row.connection.shutdown(socket.SHUT_WR)
            elif error := row.check(part):
                wrong.append(error)
over.set()
for asker in askers:
    asker.join()
if wrong:
    sys.exit("\n".join(wrong))
print("elder", sum(row.elder for row in rows))
print("victims", sum(row.victims for row in rows))
print("served", served[0])
print("ended", ended[0])
print("mixed", len(mixed))
print("\n".join(mixed[:3]))

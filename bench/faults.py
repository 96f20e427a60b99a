#!/usr/bin/python3
"""Measures what is lost when a process of the stack dies, by what it holds: NEaT's question (N4, Fig. 6.13), asked of real stacks.

    faults.py [--connections N] [--kills N] [--case CONFIGURATION:KIND] [--recovery MODE]

Processes of one kind are killed by SIGKILL, one after another, under connections that are all busy: each sends a numbered line, waits for its echo,
compares it and rests 10 ms. A connection is kept if it goes on, octet for octet; lost if it is reset, ends, says something else or is silent for 10 s;
then its client opens another. Meanwhile short connections are made all the time. Which connections a process serves `atoll ss` says just before: a replica its
own, other servers those of the replicas that they serve. Kinds are named by what dies together: `TS2CM2+IP2LS2:TSCM` is a replica of that stack.

Times: how long a connection waited for the echo that was under way, or asked for next, when the process died. The client's kernel sends again after 200 ms
what was lost with the process. Standard library only.
"""
import argparse
import collections
import json
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lab as place
from lab import ATOLL, NO_BATCH, SERVER, Atoll, Lab, end, log_of, say, sh, wait_for

# Every kind of process, in NEaT's two forms (one component, several) and with everything apart.
CASES = ["TS2LS2CM2:TSIPLSCM", "TS2CM2+IP2LS2:TSCM", "TS2CM2+IP2LS2:IPLS", *(f"TS2+IP2+LS2+CM2:{kind}" for kind in ("TS", "IP", "LS", "CM"))]
RECOVERIES = ["stateful", "stateless"]

ECHO = """
import select, socket
server = socket.create_server(("0.0.0.0", 7), backlog=1000)
server.setblocking(False)
poll = select.epoll()
poll.register(server, select.EPOLLIN)
peers = {}
while True:
    for fd, _ in poll.poll():
        if fd == server.fileno():
            try:
                peer, _ = server.accept()
            except OSError:
                continue
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peers[peer.fileno()] = peer
            poll.register(peer, select.EPOLLIN)
            continue
        try:
            part = peers[fd].recv(4096)
            if part:
                peers[fd].sendall(part)
                continue
        except BlockingIOError:
            continue
        except OSError:
            pass
        poll.unregister(fd)
        peers.pop(fd).close()
"""

# Says, with the time: `open PORT`, `wait PORT BEGAN SECONDS` (echoes that took more than a millisecond), `lost PORT WHY`, and, when it gets SIGUSR1,
# `late COUNT`: connections that have waited for more than a second.
LOAD = """
import errno, selectors, signal, socket, sys, time
address, count = (sys.argv[1], 7), int(sys.argv[2])
PAUSE, SILENCE = 0.01, 10
now = time.monotonic
poll = selectors.DefaultSelector()

def say(*what):
    print(f"{now():.6f}", *what, flush=True)

class Peer:
    def __init__(self):
        self.socket = socket.create_connection(address, timeout=SILENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.port, self.number, self.got, self.next = self.socket.getsockname()[1], 0, b"", now()
        self.asked = None
        poll.register(self.socket, selectors.EVENT_READ, self)

    def ask(self):
        self.number += 1
        self.line = b"%d of %d\\n" % (self.number, self.port)
        self.asked, self.got = now(), b""
        self.socket.send(self.line)

    def read(self):
        part = self.socket.recv(4096)
        self.got += part
        if not part or self.asked is None or not self.line.startswith(self.got):
            raise OSError(0, "it ended" if not part else "a wrong octet")
        if self.got == self.line:
            took = now() - self.asked
            if took > 0.001:
                say("wait", self.port, f"{self.asked:.6f}", f"{took:.6f}")
            self.asked, self.next = None, now() + PAUSE

peers, asks = [], []
signal.signal(signal.SIGUSR1, lambda *_: asks.append(True))

def enter():
    try:
        peer = Peer()
        peers.append(peer)
        say("open", peer.port)
    except OSError as error:
        say("refused", error)

for _ in range(count):
    enter()
while True:
    for key, _ in poll.select(0.002):
        peer = key.data
        try:
            peer.read()
        except BlockingIOError:
            pass
        except OSError as error:
            peer.failed = errno.errorcode.get(error.errno, error.strerror)
    for peer in list(peers):
        why = getattr(peer, "failed", None)
        try:
            if why is None and peer.asked is None and peer.next <= now():
                peer.ask()
        except OSError as error:
            why = errno.errorcode.get(error.errno, error.strerror)
        if why is None and peer.asked is not None and now() - peer.asked > SILENCE:
            why = "silence"
        if why is not None:
            say("lost", peer.port, why.replace(" ", "-"))
            poll.unregister(peer.socket)
            peer.socket.close()
            peers.remove(peer)
    if len(peers) < count:
        enter()
    while asks:
        asks.pop()
        say("late", sum(peer.asked is not None and now() - peer.asked > 1 for peer in peers))
"""

SHORT = """
import errno, socket, sys, time
while True:
    began = time.monotonic()
    try:
        with socket.create_connection((sys.argv[1], 7), timeout=10) as peer:
            peer.sendall(b"short")
            why = "ok" if peer.recv(100) == b"short" else "wrong"
    except OSError as error:
        why = errno.errorcode.get(error.errno, "silence")
    print(f"{began:.6f} {why} {time.monotonic() - began:.6f}", flush=True)
    time.sleep(0.01)
"""

LISTS = {"TS": "replicas", "IP": "ip_servers", "LS": "link_servers", "CM": "connection_managers"}
# What became of one death: connections that the process served, those of them lost, the others, those of them lost, waits of both in
# milliseconds, short connections and those of them that failed, from the notice until it served again in milliseconds.
Death = collections.namedtuple("Death", "served served_lost others others_lost served_ms others_ms short short_failed ready_ms")


def stack_of(lab, configuration, options=()):
    """Makes a stack. Its servers inherit the scheduling of this program if that is not the usual one (chrt -r 1, where others use the CPUs)."""
    usual = os.sched_getscheduler(0) == os.SCHED_OTHER
    return Atoll(lab, configuration, settings="" if usual else NO_BATCH, options=options)


def whole_lines(process):
    """Returns what a client has printed, without a line that is not complete."""
    return log_of(process).rpartition("\n")[0].splitlines()


def list_of(kind):
    """Returns the list of `atoll status` in which processes with these components are."""
    return LISTS[next(part for part in LISTS if part in kind)]


def by_replica(stack):
    """Returns which replica has the connection from which port."""
    rows = json.loads(sh(ATOLL, "ss", stack.stack, "-t", "-a", "--json"))
    ports = {}
    for row in rows:
        if row["state"] == "ESTAB" and row["peer"].startswith(place.CLIENT + ":"):
            ports[int(row["peer"].rsplit(":", 1)[1])] = row["replica"]
    return ports


def back(stack, name, index, epoch, deadline):
    """Waits until the successor of the process of that epoch serves. Returns the time that the supervisor reports, in milliseconds."""
    while True:
        server = next(server for server in stack.status()[name] if server["index"] == index)
        if server["epoch"] > epoch and server["recovery"]["state"] == "serving":
            return server["recovery"]["last"]["total_us"] / 1000
        if time.monotonic() > deadline:
            raise place.Failure(f"{name} {index} does not come back")
        time.sleep(0.02)


def measure(lab, configuration, kind, recovery, options):
    """Kills processes of `kind`; yields a `Death` for each."""
    stack = stack_of(lab, configuration, ("--recovery", recovery))
    cpus = sorted(os.sched_getaffinity(0))
    try:
        echo = lab.start(stack.on_server(cpus[0], sys.executable, "-c", ECHO))
        wait_for(stack, cpus[-1], echo, 7)
        load = lab.start(stack.on_client(cpus[-1], sys.executable, "-c", LOAD, SERVER, str(options.connections)))
        short = lab.start(stack.on_client(cpus[-1], sys.executable, "-c", SHORT, SERVER))
        name, kills = list_of(kind), []
        for number in range(options.kills):
            ports = settled(stack, load, options.connections)
            servers = stack.status()[name]
            server = servers[number % len(servers)]
            served = server.get("serves", [server["index"]])
            killed = time.monotonic()
            os.kill(server["pid"], signal.SIGKILL)
            ready = back(stack, name, server["index"], server["epoch"], killed + 10)
            kills.append((killed, ports, served, ready))
            # A life of this length is not short, so that the next start is not delayed; and a client that waits 200 ms, and again 400, is done.
            time.sleep(1.2 + number % 7 * 0.013)
        settled(stack, load, options.connections)
        yield from judge(whole_lines(load), whole_lines(short), kills)
        for process in (load, short, echo):
            end(process)
    finally:
        stack.close()


def settled(stack, load, wanted):
    """Waits until all connections are open, have a replica, and are not silent; returns the
    replica of each. A connection that is silent for ten seconds counts as lost."""
    deadline = time.monotonic() + 30
    asked = None
    while True:
        ports, open_now, answers = by_replica(stack), set(), []
        for _, what, number, *_ in map(str.split, whole_lines(load)):
            if what == "open":
                open_now.add(int(number))
            elif what == "lost":
                open_now.discard(int(number))
            elif what == "late":
                answers.append(int(number))
        if len(open_now) == wanted and open_now <= set(ports):
            if asked is not None and len(answers) > asked and answers[-1] == 0:
                return {port: ports[port] for port in open_now}
            # It may be the answer to this question, or to a later one.
            asked = len(answers)
            os.kill(load.pid, signal.SIGUSR1)
        if load.poll() is not None or time.monotonic() > deadline:
            raise place.Failure(f"not all are open: {log_of(load)[-500:]}")
        time.sleep(0.05)


def judge(log, shorts, kills):
    """Returns what became of each death, from what the clients have printed."""
    lines = [line.split() for line in log]
    lost = [(float(line[0]), int(line[2])) for line in lines if line[1] == "lost"]
    waits = collections.defaultdict(list)
    for line in lines:
        if line[1] == "wait":
            waits[int(line[2])].append((float(line[3]), float(line[4])))
    made = [(float(began), why, float(took)) for began, why, took in map(str.split, shorts)]
    for number, (killed, ports, served, ready) in enumerate(kills):
        until = kills[number + 1][0] if number + 1 < len(kills) else float("inf")
        gone = {port for at, port in lost if killed <= at < until} & set(ports)
        own = {port for port, replica in ports.items() if replica in served}

        def waited(some):
            return [
                1000 * max((began + took - killed for began, took in waits[port] if began <= killed + 0.012 and began + took > killed), default=0.0)
                for port in some - gone
            ]

        near = [why for began, why, took in made if killed - 10 <= began < until and began + took > killed]
        others = set(ports) - own
        yield Death(
            len(own), len(own & gone), len(others), len(others & gone), waited(own), waited(others), len(near), sum(why != "ok" for why in near), ready
        )


def quantile(values, percent):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=60)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--case", action="append")
    parser.add_argument("--recovery", action="append", choices=RECOVERIES)
    options = parser.parse_args()
    print("case, recovery: connections of the dead process kept of all (least to greatest share), others kept of all; waits of both, median p99 max ms; short failed; ready ms")
    for case in options.case or CASES:
        configuration, kind = case.split(":")
        for recovery in options.recovery or RECOVERIES:
            with Lab() as lab:
                deaths = list(measure(lab, configuration, kind, recovery, options))
            own, lost = sum(death.served for death in deaths), sum(death.served_lost for death in deaths)
            others, others_lost = sum(death.others for death in deaths), sum(death.others_lost for death in deaths)
            shares = [1 - death.served_lost / death.served for death in deaths if death.served]
            text = [
                f"{case} {recovery}: {own - lost} of {own} ({min(shares, default=1):.3f} to {max(shares, default=1):.3f})",
                f"{others - others_lost} of {others}",
            ]
            for waits in ([ms for death in deaths for ms in death.served_ms], [ms for death in deaths for ms in death.others_ms]):
                text.append(f"{quantile(waits, 50):.1f} {quantile(waits, 99):.1f} {max(waits, default=0):.1f} ms")
            text.append(f"short {sum(death.short_failed for death in deaths)} of {sum(death.short for death in deaths)} failed")
            text.append(f"ready {quantile([death.ready_ms for death in deaths], 50):.1f} ms")
            print("; ".join(text), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (place.Failure, subprocess.TimeoutExpired) as failure:
        sys.exit(f"faults.py: {failure}")

#!/usr/bin/python3
"""Measures what the death of a replica costs, and what it costs to be prepared for one.

    recovery.py deaths [--connections N] [--busy] [--kills N] [--no-standby] [--no-batch]   a replica with N open connections is killed again and again
    recovery.py chaos [--connections N] [--kills N]             servers of all kinds and supervisors are killed; nothing may show it
    recovery.py sessions [--sessions N] [--marked M] [--bound B] [--kills N] [--no-standby]   the same with N sessions of which nobody does anything, in M
                                                                of them all slots marked as used once, and B programs with a bound socket each
    recovery.py cost [--seconds S] [--rounds N] [--one-cpu] [--other PROGRAM]   requests per second, and processor time for each, with
                                                                connections that survive (stateful), and without a guarantee (stateless), by turns

`deaths`: from the moment of the kill until another connection gets an answer, as its client sees it, and what the supervisor measured. Its client
asks all the time, one octet at a time; with --busy all connections are busy with requests meanwhile. The client's kernel notices a lost segment
by its own timers (200 ms for a single one), so a question that died with the replica takes that long: the median shows the others.
`chaos`: N connections whose every octet is checked, both ways and in turn, and short ones to nginx, while `atoll chaos` kills one or two servers
at once. What is lost, changed, refused or late is told, and fails.
`cost`: wrk on kept connections and ab on short ones, one replica, pinned. Where others use the machine, its processor time says more than rates. Standard library only, and wrk, ab, nginx.
"""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lab as place
from lab import SERVER, Atoll, Lab, log_of, say, sh, start_nginx, wait_for

PROBE = """
import socket, sys, time
c = socket.create_connection((sys.argv[1], 7))
c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
last = time.monotonic()
while True:
    c.send(b"x")
    if not c.recv(1):
        sys.exit("the connection has ended")
    now = time.monotonic()
    if now - last > 0.001:
        # When it began to wait, and for how long.
        print(f"{last:.6f} {now - last:.6f}", flush=True)
    last = now
"""

ECHO = """
import socket
server = socket.create_server(("0.0.0.0", 7))
while True:
    c, _ = server.accept()
    while part := c.recv(4096):
        c.sendall(part)
"""


# So many processes, each with a socket of each kind that a successor needs before it serves.
BOUND = """
import os, signal, socket, sys
for number in range(int(sys.argv[1])):
    if os.fork() == 0:
        listener = socket.create_server(("0.0.0.0", 10000 + number))
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(("0.0.0.0", 10000 + number))
        os.write(1, b"bound\\n")
        signal.pause()
signal.pause()
"""


# Asks each of its connections again and again, 256 at a time, and checks the answers. Ends on SIGINT.
CROWD = r"""
import collections, json, random, selectors, signal, socket, sys, time
address, count = sys.argv[1], int(sys.argv[2])
stop = []
signal.signal(signal.SIGINT, lambda *_: stop.append(1))
pattern = random.Random(1).randbytes(1 << 16)
twice = pattern * 2
chosen = selectors.DefaultSelector()
said = dict(connections=0, resets=0, wrong=0, octets=0, answers=0, longest=0.0, at=0.0)
class One:
    def __init__(self, number):
        self.number, self.sent, self.got = number, 0, 0
        self.c = socket.create_connection((address, 7000), 60)
        self.c.setblocking(False)
    def text(self, at, length):
        at = (at + self.number * 7919) % len(pattern)
        return twice[at:at + length]
    def ask(self):
        length = random.choice((1, 100, 1460, 9000))
        self.asked = time.monotonic()
        self.c.send(self.text(self.sent, length))
        self.sent += length
waiting = collections.deque()
for number in range(count):
    waiting.append(One(number))
said["connections"] = count
print("all are open", flush=True)
busy = {}
def end(one):
    chosen.unregister(one.c)
    busy.pop(one, None)
    said["resets"] += 1
while not stop or busy:
    while not stop and len(busy) < min(256, count) and waiting:
        one = waiting.popleft()
        busy[one] = True
        chosen.register(one.c, selectors.EVENT_READ, one)
        try:
            one.ask()
        except OSError as error:
            print(one.number, error, file=sys.stderr)
            end(one)
    for key, _ in chosen.select(1):
        one = key.data
        try:
            part = one.c.recv(1 << 16)
        except OSError as error:
            print(one.number, error, file=sys.stderr)
            part = b""
        if not part:
            end(one)
            continue
        expected = one.text(one.got, len(part))
        said["wrong"] += sum(a != b for a, b in zip(part, expected)) if part != expected else 0
        one.got += len(part)
        said["wrong"] += max(0, one.got - one.sent)
        said["octets"] += len(part)
        if one.got >= one.sent:
            chosen.unregister(one.c)
            del busy[one]
            waiting.append(one)
            said["answers"] += 1
            took = time.monotonic() - one.asked
            if took > said["longest"]:
                said["longest"], said["at"] = took, one.asked
    if stop and busy and time.monotonic() - max(one.asked for one in busy) > 60:
        break
said["unanswered"] = len(busy)
print(json.dumps(said), flush=True)
"""


def spread(values):
    """Returns median, 99th percentile and the largest value."""
    ordered = sorted(values)
    if not ordered:
        return "none"
    at = min(len(ordered) * 99 // 100, len(ordered) - 1)
    return f"median {statistics.median(ordered):.1f} ms, p99 {ordered[at]:.1f} ms, max {ordered[-1]:.1f} ms ({len(ordered)})"


def deaths(options):
    with Lab() as lab:
        settings = (place.NO_BATCH if options.no_batch else "") + ("[recovery]\nstandby = false\n" if options.no_standby else "")
        stack = Atoll(lab, "TS1LS1CM1", options=("--recovery", "stateful"), settings=settings)
        cpus = sorted(os.sched_getaffinity(0))
        server_cpu, client_cpu = cpus[0], cpus[-1]
        idle = lab.compile("idle")
        echo = lab.start(stack.on_server(server_cpu, sys.executable, "-c", ECHO))
        wait_for(stack, client_cpu, echo, 7)
        if options.busy:
            nginx = start_nginx(lab, stack, server_cpu)
            wait_for(stack, client_cpu, nginx, 80)
            command = ["wrk", "-t", "2", "-c", str(options.connections), "-d", "1h", "--timeout", "60s", f"http://{SERVER}/4"]
            load = lab.start(stack.on_client(client_cpu, "sh", "-c", 'ulimit -n 65536; exec "$@"', "sh", *command))
        else:
            waiter = lab.start(stack.on_server(server_cpu, idle, "serve", "9"))
            wait_for(stack, client_cpu, waiter, 9)
            load = lab.start(stack.on_client(client_cpu, idle, SERVER, "9", str(options.connections), place.CLIENT))
        wanted = options.connections
        deadline = time.monotonic() + 120
        while stack.status()["replicas"][0]["stats"]["connections"] < wanted:
            if load.poll() is not None or time.monotonic() > deadline:
                raise place.Failure(f"not all are open: {log_of(load)[-500:]}")
            time.sleep(0.2)
        before = stack.status()["replicas"][0]["stats"]["connections_kept"]
        probe = lab.start(stack.on_client(client_cpu, sys.executable, "-c", PROBE, SERVER))
        time.sleep(1)
        kills = []
        for number in range(options.kills):
            server = stack.status()["replicas"][0]
            kills.append(time.monotonic())
            os.kill(server["pid"], signal.SIGKILL)
            # A life of this length is not short, so that the next start is not delayed.
            time.sleep(0.7 + number % 7 * 0.013)
        status = stack.status()["replicas"][0]
        waits = waits_after(kills, probe)
        own = [event["fields"]["ms"] for event in stack.events("server_back")]
        kept = status["stats"]["connections_kept"] - before
        print(f"{options.connections} {'busy' if options.busy else 'idle'} connections, {len(kills)} deaths, epoch {status['epoch']}")
        print(f"  served again, seen by a client   {spread(waits)}")
        print(f"  ready again, by the supervisor   {spread(own)}")
        print(f"  connections kept {kept}, lost {status['stats']['connections_lost']}", flush=True)
        if load.poll() is not None or probe.poll() is not None:
            raise place.Failure(f"a client has ended: {log_of(load)[-500:]} {log_of(probe)[-500:]}")


def waits_after(kills, probe):
    """Returns until when, in milliseconds after each kill, the probe had no answer."""
    gaps = [tuple(map(float, line.split())) for line in log_of(probe).splitlines() if re.match(r"^[\d.]+ [\d.]+$", line)]
    waits = []
    for kill in kills:
        after = [start + length - kill for start, length in gaps if start <= kill + 0.01 and start + length > kill]
        waits.append(1000 * max(after, default=0.0))
    return waits


def sessions(options):
    with Lab() as lab:
        settings = "[recovery]\nstandby = false\n" if options.no_standby else ""
        stack = Atoll(lab, "TS1LS1CM1", options=("--recovery", "stateful"), settings=settings)
        cpus = sorted(os.sched_getaffinity(0))
        echo = lab.start(stack.on_server(cpus[0], sys.executable, "-c", ECHO))
        wait_for(stack, cpus[-1], echo, 7)
        program = os.path.join(place.ROOT, "testing/system/programs/idle_sessions.py")
        idle = lab.start([sys.executable, program, f"/run/atoll/{stack.stack}.sock", str(options.sessions), str(options.marked)])
        deadline = time.monotonic() + 300
        while "attached" not in log_of(idle):
            if idle.poll() is not None or time.monotonic() > deadline:
                raise place.Failure(f"not all are open: {log_of(idle)[-500:]}")
            time.sleep(0.1)
        bound = lab.start(stack.on_server(cpus[0], sys.executable, "-c", BOUND, str(options.bound)))
        while log_of(bound).count("bound") < options.bound:
            if bound.poll() is not None or time.monotonic() > deadline:
                raise place.Failure(f"not all are bound: {log_of(bound)[-500:]}")
            time.sleep(0.1)
        probe = lab.start(stack.on_client(cpus[-1], sys.executable, "-c", PROBE, SERVER))
        time.sleep(2)
        kills = []
        for number in range(options.kills):
            server = stack.status()["replicas"][0]
            kills.append(time.monotonic())
            os.kill(server["pid"], signal.SIGKILL)
            time.sleep(2.2 + number % 7 * 0.013)
        waits = waits_after(kills, probe)
        own = [event["fields"]["ms"] for event in stack.events("server_back")]
        print(f"{options.sessions} sessions, {options.marked} with all slots marked, {options.bound} programs with bound sockets, {len(kills)} deaths{', no standby' if options.no_standby else ''}")
        print(f"  served again, seen by a client   {spread(waits)}")
        print(f"  ready again, by the supervisor   {spread(own)}", flush=True)
        if probe.poll() is not None:
            raise place.Failure(f"a client has ended: {log_of(probe)[-500:]}")


def busy_ns(pid):
    """Returns the processor time that a process has used (proc(5), schedstat)."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0])
def chaos(options):
    with Lab() as lab:
        stack = Atoll(lab, options.configuration, options=("--recovery", "stateful"))
        cpus = sorted(os.sched_getaffinity(0))
        server_cpu, client_cpu = cpus[0], cpus[-1]
        streams = os.path.join(place.ROOT, "testing/system/programs/streams.py")
        limited = ("sh", "-c", 'ulimit -n $(ulimit -Hn); exec "$@"', "sh", sys.executable)
        echo = lab.start(stack.on_server(server_cpu, *limited, streams, "serve", "7000", "2"))
        wait_for(stack, client_cpu, echo, 7000)
        nginx = start_nginx(lab, stack, server_cpu)
        wait_for(stack, client_cpu, nginx, 80)
        crowd = lab.start(stack.on_client(client_cpu, *limited, "-c", CROWD, SERVER, str(options.connections)))
        deadline = time.monotonic() + 300
        while "all are open" not in log_of(crowd):
            if crowd.poll() is not None or time.monotonic() > deadline:
                raise place.Failure(f"not all are open: {log_of(crowd)[-500:]}")
            time.sleep(0.2)
        short = lab.start(
            stack.on_client(client_cpu, "ab", "-q", "-s", "60", "-t", "36000", "-n", "100000000", "-c", "4", f"http://{SERVER}/4")
        )
        seconds = max(1, int(options.kills * options.every / 1000))
        command = [place.ATOLL, "chaos", stack.stack, "--json", "--kill", "--for", f"{seconds}s", "--every", f"{options.every}ms"]
        if options.supervisor:
            command.append("--supervisor")
        if options.seed is not None:
            command += ["--seed", str(options.seed)]
        report = json.loads(sh(*command, deadline=2 * seconds + 120))
        if short.poll() is not None:
            raise place.Failure(f"ab has ended: {log_of(short)[-1000:]}")
        for process in (crowd, short):
            os.kill(process.pid, signal.SIGINT)
        crowd.wait(120)
        short.wait(120)
        said = json.loads(log_of(crowd).strip().splitlines()[-1])
        ab = {name: int(number) for name, number in re.findall(r"(Complete|Failed) requests:\s+(\d+)", log_of(short))}
        print(f"{options.configuration}: {report['kills']} servers and {report['takeovers']} supervisors killed in {report['seconds']:.0f} s, "
              f"{report['pairs']} times two at once; seed {report['seed']}")
        print(f"  started again: {', '.join(f'{name} {count}' for name, count in report['restarts'].items())}; missing {report['missing']}")
        print(f"  back after: median {report['recovery_median_ms']:.1f} ms, p99 {report['recovery_p99_ms']:.1f} ms, max {report['recovery_max_ms']:.1f} ms")
        print(f"  {said['connections']} connections: {said['resets']} ended, {said['unanswered']} without an answer, {said['wrong']} octets wrong of "
              f"{said['octets']} in {said['answers']} answers; longest wait for one {said['longest']:.3f} s")
        print(f"  connections of replicas that died: {report['connections_kept']} kept, {report['connections_lost']} lost")
        print(f"  requests over short connections: {ab.get('Complete')}, failed {ab.get('Failed')}", flush=True)
        faults = said["resets"] + said["unanswered"] + said["wrong"] + report["connections_lost"] + ab.get("Failed", 1) + len(report["missing"])
        if faults:
            with open(f"/run/atoll/{stack.stack}.log") as log:
                print(log.read()[-3000:], file=sys.stderr)
            raise place.Failure(f"it showed: {log_of(crowd)[-1000:]}")


def rate(stack, cpu, kept, seconds):
    """Returns the requests per second, and the nanoseconds of the replica's processor time for each."""
    url = f"http://{SERVER}/4"
    replica = stack.status()["replicas"][0]["pid"]
    before = busy_ns(replica)
    if kept:
        said = sh(*stack.on_client(cpu, "wrk", "-t", "1", "-c", "32", "-d", f"{seconds}s", url), deadline=seconds + 30)
        count = int(re.search(r"(\d+) requests in", said)[1])
    else:
        said = sh(*stack.on_client(cpu, "ab", "-q", "-t", str(seconds), "-n", "100000000", "-c", "32", url), deadline=seconds + 30)
        assert re.search(r"Failed requests:\s+0\b", said), said
        count = int(re.search(r"Complete requests:\s+(\d+)", said)[1])
    return count / seconds, (busy_ns(replica) - before) / count


def cost(options):
    cpus = sorted(os.sched_getaffinity(0))
    replica_cpu, other_cpu = (cpus[0], cpus[0]) if options.one_cpu else (cpus[0], cpus[-1])
    # Each entry is a program and its options. The others are compared with the last one.
    kinds = {"stateful": (place.ATOLL, "stateful"), "stateless": (place.ATOLL, "stateless")}
    if options.other:
        kinds = {"other stateful": (options.other, "stateful"), **kinds}
    names = list(kinds)
    found = {(name, kept): [] for name in names for kept in (True, False)}
    for number in range(options.rounds):
        # The first one changes with each round.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            place.ATOLL, recovery = kinds[name]
            with Lab() as lab:
                stack = Atoll(lab, "TS1LS1CM1", replica_cpu, options=("--recovery", recovery))
                stack.place(replica_cpu)
                nginx = start_nginx(lab, stack, other_cpu, workers=1)
                wait_for(stack, other_cpu, nginx, 80)
                for kept in (True, False):
                    rate(stack, other_cpu, kept, 1)
                    per_second, ns = rate(stack, other_cpu, kept, options.seconds)
                    found[name, kept].append((per_second, ns))
                    say(f"{name} {'kept' if kept else 'short'}: {per_second:.0f}/s, {ns:.0f} ns of the replica's processor each")
    print("one CPU" if options.one_cpu else "the replica on a CPU of its own")
    for kept in (True, False):
        for at, unit in ((0, "/s"), (1, " ns of the replica's processor each")):
            base = [sample[at] for sample in found["stateless", kept]]
            for name in names:
                values = [sample[at] for sample in found[name, kept]]
                ratios = sorted(value / other for value, other in zip(values, base))
                print(
                    f"  {'kept' if kept else 'short'} connections   {name:14} {statistics.median(values):.0f}{unit}, "
                    f"{statistics.median(ratios):.3f} of stateless ({ratios[0]:.3f} to {ratios[-1]:.3f}, {len(ratios)} rounds)",
                    flush=True,
                )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("deaths")
    one.add_argument("--connections", type=int, default=10000)
    one.add_argument("--kills", type=int, default=100)
    one.add_argument("--busy", action="store_true")
    one.add_argument("--no-standby", action="store_true", help="no process stands by")
    one.add_argument("--no-batch", action="store_true", help="replicas that preempt who runs (needed under chrt)")
    four = kinds.add_parser("sessions")
    four.add_argument("--sessions", type=int, default=1000)
    four.add_argument("--marked", type=int, default=0)
    four.add_argument("--bound", type=int, default=0)
    four.add_argument("--kills", type=int, default=20)
    four.add_argument("--no-standby", action="store_true", help="no process stands by")
    three = kinds.add_parser("chaos")
    three.add_argument("--connections", type=int, default=10000)
    three.add_argument("--kills", type=int, default=1000, help="about so many")
    three.add_argument("--every", type=int, default=300, help="milliseconds between two of them, in the mean")
    three.add_argument("--configuration", default="TS2+IP1+LS1+CM1")
    three.add_argument("--supervisor", action="store_true", help="supervisors, too")
    three.add_argument("--seed", type=int)
    two = kinds.add_parser("cost")
    two.add_argument("--seconds", type=int, default=5)
    two.add_argument("--rounds", type=int, default=7)
    two.add_argument("--one-cpu", action="store_true")
    two.add_argument("--other", metavar="PROGRAM", help="an `atoll` of another build (its library beside it), measured in the same rounds")
    options = parser.parse_args()
    {"deaths": deaths, "chaos": chaos, "cost": cost, "sessions": sessions}[options.kind](options)


if __name__ == "__main__":
    try:
        main()
    except (place.Failure, subprocess.TimeoutExpired) as failure:
        sys.exit(f"recovery.py: {failure}")

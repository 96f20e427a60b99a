#!/usr/bin/python3
"""What does the death of a replica cost, and what does it cost to be prepared for it?

    recovery.py deaths [--connections N] [--busy] [--kills N]   a replica with N open connections is killed again and again
    recovery.py cost [--seconds S] [--rounds N] [--one-cpu] [--other PROGRAM]   requests per second, and processor time for each, with
                                                                connections that survive (stateful), and without a guarantee (stateless), by turns

`deaths`: from the moment of the kill until another connection gets an answer, as its client sees it, and what the supervisor measured. Its client
asks all the time, one octet at a time; with --busy all connections are busy with requests meanwhile. The client's kernel notices a lost segment
by its own timers (200 ms for a single one), so a question that died with the replica takes that long: the median shows the others.
`cost`: wrk on kept connections and ab on short ones, one replica, pinned. Where others use the machine, its processor time says more than rates. Standard library only, and wrk, ab, nginx.
"""
import argparse
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


def spread(values):
    """Median, 99th percentile and the largest."""
    ordered = sorted(values)
    if not ordered:
        return "none"
    at = min(len(ordered) * 99 // 100, len(ordered) - 1)
    return f"median {statistics.median(ordered):.1f} ms, p99 {ordered[at]:.1f} ms, max {ordered[-1]:.1f} ms ({len(ordered)})"


def deaths(options):
    with Lab() as lab:
        stack = Atoll(lab, "TS1LS1CM1", options=("--recovery", "stateful"))
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
            # Longer than a life may be short, so that the next start is not delayed.
            time.sleep(0.7 + number % 7 * 0.013)
        status = stack.status()["replicas"][0]
        gaps = [tuple(map(float, line.split())) for line in log_of(probe).splitlines() if re.match(r"^[\d.]+ [\d.]+$", line)]
        waits = []
        for kill in kills:
            after = [start + length - kill for start, length in gaps if start <= kill + 0.01 and start + length > kill]
            waits.append(1000 * max(after, default=0.0))
        with open(f"/run/atoll/{stack.stack}.log") as log:
            own = [float(ms) for ms in re.findall(r"is back .* after ([\d.]+) ms", log.read())]
        kept = status["stats"]["connections_kept"] - before
        print(f"{options.connections} {'busy' if options.busy else 'idle'} connections, {len(kills)} deaths, epoch {status['epoch']}")
        print(f"  served again, seen by a client   {spread(waits)}")
        print(f"  ready again, by the supervisor   {spread(own)}")
        print(f"  connections kept {kept}, lost {status['stats']['connections_lost']}", flush=True)
        if load.poll() is not None or probe.poll() is not None:
            raise place.Failure(f"a client has ended: {log_of(load)[-500:]} {log_of(probe)[-500:]}")


def busy_ns(pid):
    """Processor time that a process has used: proc(5), schedstat."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0])


def rate(stack, cpu, kept, seconds):
    """Requests per second, and nanoseconds of the replica's processor time for each."""
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
    # Which program, and what it is told. The last is what the others are compared with.
    kinds = {"stateful": (place.ATOLL, "stateful"), "stateless": (place.ATOLL, "stateless")}
    if options.other:
        kinds = {"other stateful": (options.other, "stateful"), **kinds}
    names = list(kinds)
    found = {(name, kept): [] for name in names for kept in (True, False)}
    for number in range(options.rounds):
        # Each is first every now and then.
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
    two = kinds.add_parser("cost")
    two.add_argument("--seconds", type=int, default=5)
    two.add_argument("--rounds", type=int, default=7)
    two.add_argument("--one-cpu", action="store_true")
    two.add_argument("--other", metavar="PROGRAM", help="an `atoll` of another build (its library beside it), measured in the same rounds")
    options = parser.parse_args()
    {"deaths": deaths, "cost": cost}[options.kind](options)


if __name__ == "__main__":
    try:
        main()
    except (place.Failure, subprocess.TimeoutExpired) as failure:
        sys.exit(f"recovery.py: {failure}")

"""Runs those of NEaT's experiments for real that the machine at hand can; for `papers.py`, as rows of series, x and y.

    neat-fig6      lighttpd, 100 requests of 20 bytes on each connection, clients and servers together on 1 and on 2 CPUs: requests a second on
                   the kernel, on one component for each CPU, and on several
    neat-calls     lighttpd with ever more connections: the share of its socket calls that need no system call, in percent
    neat-faults    processes are killed (faults.py): connections that each served, and those of them that went on
    neat-fig13     the same, for the state that is kept
    neat-recovery  the same deaths: how long connections waited, in milliseconds, by percentile
    neat-scaling   lighttpd under load while the replicas go from one process to two, to four and back to one: requests a second in each tenth of
                   a second, when a number was asked for and when it was reached, and what failed
    neat-layout    where each replica and its successor lie in memory, and which replica got which of many connections
"""
import os
import re
import signal
import sys
import time

import faults
from faults import stack_of
from lab import ATOLL, NO_BATCH, SERVER, Atoll, Failure, Kernel, end, log_of, say, sh, wait_for

# The numbers of processes for the replicas, one after another; they begin in one.
PROCESSES = (2, 4, 1)
PERCENTILES = [n / 2 for n in range(200)] + [99.9, 100]
# Opens connections one after another, each with an octet there and back, says from which ports, and keeps them.
VISIT = """
import socket, sys, time
peers = []
for _ in range(int(sys.argv[2])):
    peer = socket.create_connection((sys.argv[1], 7), timeout=10)
    peer.sendall(b"x")
    assert peer.recv(1) == b"x"
    peers.append(peer)
print("ports", *(peer.getsockname()[1] for peer in peers), flush=True)
time.sleep(600)
"""


def start_lighttpd(lab, stack, cpu, workers):
    """Starts lighttpd, which serves a file of 20 bytes (/20), 100 times on each connection at most."""
    folder = os.path.join(lab.folder, f"lighttpd{next(lab.numbers)}")
    os.mkdir(folder)
    os.chmod(folder, 0o777)
    with open(os.path.join(folder, "20"), "w") as file:
        file.write("atoll" * 4)
    config = os.path.join(folder, "config")
    with open(config, "w") as file:
        file.write(
            f"""server.document-root = "{folder}"\nserver.port = 80\nserver.max-worker = {workers if workers > 1 else 0}
server.errorlog = "{folder}/error"\nserver.listen-backlog = 4096\nserver.max-fds = 4096\nserver.max-keep-alive-requests = 100\n"""
        )
    # The program ends its process group when it ends.
    return lab.start(stack.on_server(cpu, "setsid", "lighttpd", "-D", "-f", config))


def load(stack, cpu, connections, seconds):
    """Returns the requests a second."""
    said = sh(*stack.on_client(cpu, "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", f"http://{SERVER}/20"), deadline=seconds + 60)
    if "Socket errors" in said or "Non-2xx" in said:
        raise Failure(said)
    return float(re.search(r"Requests/sec:\s+([\d.]+)", said)[1])


def scaling(lab, options):
    """Returns the requests a second, by web servers (one for each CPU)."""
    for cpus in range(1, min(2, os.cpu_count() or 1) + 1):
        where = f"0-{cpus - 1}"
        makers = {
            "Linux": lambda: Kernel(lab),
            "NEaT": lambda: stack_of(lab, f"TS{cpus}LS{cpus}CM{cpus}"),
            "Multi": lambda: stack_of(lab, f"TS{cpus}CM{cpus}+IP{cpus}LS{cpus}"),
        }
        for name, make in makers.items():
            stack = make()
            stack.place(where)
            server = start_lighttpd(lab, stack, where, cpus)
            try:
                wait_for(stack, where, server, 80)
                rates = sorted(load(stack, where, 64, options.load_seconds) for _ in range(options.runs))
            finally:
                end(server)
                stack.close()
            rate = rates[len(rates) // 2]
            say(f"  {name}, {cpus} CPUs: {rate:,.0f}/s of {', '.join(f'{rate:,.0f}' for rate in rates)}")
            yield name, cpus, rate


def calls(lab, options):
    """Returns the share of socket calls without a system call, by connections at a time."""
    for connections in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        stack = stack_of(lab, "TS1LS1CM1")
        server = start_lighttpd(lab, stack, "0-1", 1)
        try:
            wait_for(stack, "0-1", server, 80)
            counted = [stack.status()["stack"]]
            rate = load(stack, "0-1", connections, options.load_seconds)
            counted.append(stack.status()["stack"])
        finally:
            end(server)
            stack.close()
        made, slow = (counted[1][name] - counted[0][name] for name in ("library_calls", "library_calls_with_syscall"))
        say(f"  {connections} connections, {rate:,.0f} requests/s: {slow:,} of {made:,} calls needed a system call")
        yield "without a system call", connections, 100 - 100 * slow / made
        yield "thousand requests a second", connections, rate / 1000


def elastic(lab, options):
    """Returns the requests a second, by seconds; the numbers of processes, when they were asked for and when they were reached; and what became of connections."""
    usual = os.sched_getscheduler(0) == os.SCHED_OTHER
    stack = Atoll(lab, "TS4LS4CM4", settings="[scaling]\nstart = 1\n" + ("" if usual else NO_BATCH))
    server = start_lighttpd(lab, stack, "0-1", 2)
    try:
        wait_for(stack, "0-1", server, 80)
        seconds = options.phase_seconds * (1 + len(PROCESSES))
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "timeline.lua")
        command = ["wrk", "-t1", "-c64", f"-d{seconds}s", "--timeout", "10s", "-s", script, f"http://{SERVER}/20"]
        began = time.monotonic()
        client = lab.start(stack.on_client("0-1", *command))
        changes = [("reached", 0, 1)]
        for number, processes in enumerate(PROCESSES, 1):
            time.sleep(max(0, began + number * options.phase_seconds - time.monotonic()))
            changes.append(("asked", f"{time.monotonic() - began:.3f}", processes))
            sh(ATOLL, "scale", stack.stack, str(processes))
            changes.append(("reached", f"{time.monotonic() - began:.3f}", processes))
        client.wait(seconds + 60)
        status, said = stack.status(), log_of(client)
    finally:
        end(server)
        stack.close()
    if "slowest" not in said:
        raise Failure(said[-2000:])
    counts = {int(tenth): int(count) for tenth, count in re.findall(r"tenth (\d+) (\d+)", said)}
    # The first and the last second are not whole.
    for tenth in range(min(counts) + 1, max(counts)):
        yield "requests", f"{tenth / 10 - began:.3f}", 10 * counts.get(tenth, 0)
    yield from changes
    replicas = status["replicas"]
    found = {
        "failed": int(re.search(r"failed (\d+)", said)[1]),
        "slowest ms": int(re.search(r"slowest (\d+)", said)[1]) / 1000,
        "moves": sum(replica["recovery"]["moves"] for replica in replicas),
        "deaths": sum(replica["recovery"]["crashes"] for replica in replicas),
        "lost": sum(replica["stats"]["connections_lost"] for replica in replicas),
        "away ms": max(replica["recovery"].get("last_move_us") or 0 for replica in replicas) / 1000,
    }
    say(f"  {sum(counts.values()):,} requests; {', '.join(f'{name} {value}' for name, value in found.items())}")
    for name, value in found.items():
        yield name, 0, value


class Deaths:
    """Deaths of every kind, for the three experiments that ask about them; they are measured once."""

    def __init__(self):
        self.found = None

    def of(self, lab, options):
        if self.found is None:
            self.found = {}
            for case in faults.CASES:
                configuration, kind = case.split(":")
                for recovery in faults.RECOVERIES:
                    deaths = list(faults.measure(lab, configuration, kind, recovery, options))
                    self.found[case, recovery] = deaths
                    served, lost = sum(death.served for death in deaths), sum(death.served_lost for death in deaths)
                    say(f"  {case} {recovery}: {served - lost} of {served} connections kept, in {len(deaths)} deaths")
        return self.found

    def kept(self, lab, options):
        """Returns for each death the connections that the process served, and those of them that went on; then those of other processes."""
        for (case, recovery), deaths in self.of(lab, options).items():
            for death in deaths:
                yield f"{case} {recovery}", death.served, death.served - death.served_lost
                yield f"{case} {recovery} others", death.others, death.others - death.others_lost

    def waits(self, lab, options):
        """Returns how long connections waited where state is kept."""
        for (case, recovery), deaths in self.of(lab, options).items():
            if recovery != "stateful" or "+CM2:" not in case:
                continue
            for name, some in (("", "served_ms"), (" (others)", "others_ms")):
                waits = [ms for death in deaths for ms in getattr(death, some)]
                for percent in PERCENTILES if waits else []:
                    yield case.split(":")[1] + name, faults.quantile(waits, percent), percent


def mappings(pid):
    """Returns where a process has its text, heap, stack and C library."""
    found = {}
    program = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    with open(f"/proc/{pid}/maps") as file:
        for line in file:
            fields = line.split()
            name = fields[-1]
            kind = {program: "text", "[heap]": "heap", "[stack]": "stack"}.get(name) or ("libraries" if "/libc" in name else None)
            if kind is not None:
                found.setdefault(kind, int(fields[0].split("-")[0], 16))
    return found


def layouts(lab, options):
    """Returns the page numbers of each process that was a replica, and the replica of each connection, in their order."""
    stack = stack_of(lab, "TS4LS4CM4")
    try:
        echo = lab.start(stack.on_server("0-1", sys.executable, "-c", faults.ECHO))
        wait_for(stack, "0-1", echo, 7)
        count, seen = 0, set()
        for number in range(options.layout_rounds):
            for server in stack.status()["replicas"]:
                if server["pid"] not in seen:
                    seen.add(server["pid"])
                    for kind, address in mappings(server["pid"]).items():
                        yield kind, count, address >> 12
                    count += 1
            victim = stack.status()["replicas"][number % 4]
            os.kill(victim["pid"], signal.SIGKILL)
            faults.back(stack, "replicas", victim["index"], victim["epoch"], time.monotonic() + 10)
            # A life of this length is not short.
            time.sleep(0.7)
        visitor = lab.start(stack.on_client("0-1", sys.executable, "-c", VISIT, SERVER, "1000"))
        deadline = time.monotonic() + 60
        while not log_of(visitor).startswith("ports"):
            if visitor.poll() is not None or time.monotonic() > deadline:
                raise Failure(f"not all are open: {log_of(visitor)[-500:]}")
            time.sleep(0.1)
        replicas = faults.by_replica(stack)
        for number, port in enumerate(log_of(visitor).split()[1:]):
            yield "connection", number, replicas[int(port)]
        end(visitor)
        end(echo)
    finally:
        stack.close()


def experiments(options):
    """Returns the experiments by name; each takes a lab."""
    quick = options.quick
    options.load_seconds, options.layout_rounds = (1 if quick else 3), (4 if quick else 32)
    options.phase_seconds = 2 if quick else 8
    options.connections, options.kills = (40, 2) if quick else (60, 20)
    deaths = Deaths()
    return {
        "neat-fig6": lambda lab: scaling(lab, options),
        "neat-calls": lambda lab: calls(lab, options),
        "neat-faults": lambda lab: deaths.kept(lab, options),
        "neat-fig13": lambda lab: deaths.kept(lab, options),
        "neat-recovery": lambda lab: deaths.waits(lab, options),
        "neat-scaling": lambda lab: elastic(lab, options),
        "neat-layout": lambda lab: layouts(lab, options),
    }

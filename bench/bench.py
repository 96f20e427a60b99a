"""Compares the kernel's stack with Atoll in paired, interleaved runs, with the same client on the same CPUs.

    make bench                          everything; hours on a busy machine
    make bench BENCH=--quick            a subset, about two minutes
    make bench BENCH="--case short-16 --case keep-64 --place same --idle untouched"
    make bench BENCH=--list             the names of all cases

A run counts unless others used the CPUs meanwhile (--foreign); its result never decides. What is printed: median, spread
(greatest over least), ratio to the kernel with CUBIC as median of the pairs, CPU time of both sides together per operation, runs
kept and made. A ratio below 1.4 in a single line proves nothing on a virtual machine. JSON goes to bench/results/.
"""
import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lab import CLIENT, NAIVE, NO_BATCH, ROOT, SERVER, Atoll, AtollInternal, Failure, Kernel, KernelLoopback, Lab, Measured, children_of, end
from lab import log_of, say, sh, start_nginx, wait_for
from split import Split


class Case:
    """A server, a client, and what to read from the client's report."""

    port = 80
    unit = "1/s"
    # Whether a greater value is better.
    more = True
    # The links over which the case makes sense: the link, or inside one machine.
    over = ("link", "internal")

    def __init__(self, name, **parameters):
        self.name = name
        self.__dict__.update(parameters)

    def address(self, stack):
        return "127.0.0.1" if isinstance(stack, (KernelLoopback, AtollInternal)) else SERVER

    def serve(self, lab, stack, cpu):
        """Starts the server."""
        return start_nginx(lab, stack, cpu, workers=1)

    def client(self, lab, stack):
        """Returns the client's command."""
        raise NotImplementedError

    def read(self, report):
        """Returns the value, and how many operations were done."""
        raise NotImplementedError

    def operations(self, value, seconds):
        return value * seconds


class Short(Case):
    def client(self, lab, stack):
        return ["ab", "-q", "-n", str(self.requests), "-c", str(self.clients), f"http://{self.address(stack)}/4"]

    def read(self, report):
        failed = int(re.search(r"Failed requests:\s+(\d+)", report)[1])
        done = int(re.search(r"Complete requests:\s+(\d+)", report)[1])
        if failed or done != self.requests:
            raise Failure(f"ab: {failed} failed, {done} of {self.requests} done")
        return float(re.search(r"Requests per second:\s+([\d.]+)", report)[1]), done


class Keep(Case):
    def client(self, lab, stack):
        return ["wrk", "-t1", f"-c{self.clients}", f"-d{self.seconds}s", f"http://{self.address(stack)}/20"]

    def read(self, report):
        if "Socket errors" in report or "Non-2xx" in report:
            raise Failure(report)
        requests = int(re.search(r"(\d+) requests in", report)[1])
        return float(re.search(r"Requests/sec:\s+([\d.]+)", report)[1]), requests


def serve_http(case, lab, stack, cpu):
    """Starts a small HTTP server: of C, linked statically (`static`), of Go (`go`), or of Go with cgo (`cgo`)."""
    program = lab.compile("http", "-static") if case.program == "static" else lab.compile_go("http", case.program == "cgo")
    return lab.start(stack.on_server(cpu, program, "80"))


class ShortOf(Short):
    def serve(self, lab, stack, cpu):
        return serve_http(self, lab, stack, cpu)


class KeepOf(Keep):
    def serve(self, lab, stack, cpu):
        return serve_http(self, lab, stack, cpu)


class Redis(Case):
    port = 6379

    def serve(self, lab, stack, cpu):
        options = ["--port", "6379", "--save", "", "--protected-mode", "no", "--bind", "0.0.0.0", "--dir", lab.folder]
        return lab.start(stack.on_server(cpu, "redis-server", *options))

    def client(self, lab, stack):
        options = ["-n", str(self.requests), "-c", str(self.clients), "-P", str(self.pipeline), "-t", self.test, "--csv"]
        return ["redis-benchmark", "-h", self.address(stack), *options]

    def read(self, report):
        match = re.search(rf'"{self.test.upper()}","([\d.]+)"', report)
        if not match:
            raise Failure(f"redis-benchmark: {report[-500:]}")
        return float(match[1]), self.requests


class Bulk(Case):
    port = 5201
    unit = "Gb/s"
    over = ("link",)
    options = ()

    def serve(self, lab, stack, cpu):
        return lab.start(stack.on_server(cpu, "iperf3", "-s"))

    def client(self, lab, stack):
        return ["iperf3", "-c", self.address(stack), "-t", str(self.seconds), "-J", *self.options]

    def read(self, report):
        result = json.loads(report)
        if "error" in result:
            raise Failure(f"iperf3: {result['error']}")
        total = result["end"]["sum_received"]
        return total["bits_per_second"] / 1e9, total["bytes"] / 1e6


class PingPong(Case):
    port = 7777
    unit = "us"
    more = False

    def serve(self, lab, stack, cpu):
        return lab.start(stack.on_server(cpu, lab.compile("pingpong"), "serve", "7777", "14", self.protocol))

    def client(self, lab, stack):
        return [lab.compile("pingpong"), self.address(stack), "7777", "14", self.protocol, str(self.requests)]

    def read(self, report):
        return int(re.search(r"p50_ns (\d+)", report)[1]) / 1000, self.requests


class Memory(Case):
    """The cost of an idle connection on the stack's side, in bytes."""

    port = 7000
    unit = "B"
    more = False
    over = ("link",)

    def serve(self, lab, stack, cpu):
        return lab.start(stack.on_server(cpu, lab.compile("idle"), "serve", "7000"))


def kept_memory(stack, server):
    """Returns the bytes that the stack holds: proportional share of its processes and the application, or the kernel's slabs."""
    if not isinstance(stack, Atoll):
        # Objects in use count, not pages: an emptied slab keeps its pages for a while.
        rows = re.findall(r"^\S+\s+(\d+)\s+\d+\s+(\d+)", open("/proc/slabinfo").read(), re.M)
        return sum(int(active) * int(size) for active, size in rows)
    total = 0
    for pid in stack.servers() + [server.pid, *children_of(server.pid)]:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            total += int(re.search(r"^Pss:\s+(\d+)", file.read(), re.M)[1]) * 1024
    return total


def cases():
    """Returns all cases, by name."""
    found = [Short(f"short-{c}", clients=c, requests=40_000, quick=c == 16) for c in (4, 16, 64, 200)]
    found += [Keep(f"keep-{c}", clients=c, seconds=3, quick=c == 64) for c in (8, 64)]
    for program in ("static", "go", "cgo"):
        found.append(ShortOf(f"short-16-{program}", program=program, clients=16, requests=20_000, quick=False))
        found.append(KeepOf(f"keep-64-{program}", program=program, clients=64, seconds=3, quick=False))
    for test in ("get", "set"):
        for pipeline, requests in ((1, 200_000), (16, 2_000_000)):
            name = f"redis-{test}-{pipeline}"
            found.append(Redis(name, test=test, pipeline=pipeline, requests=requests, clients=50, quick=name == "redis-get-1"))
    found.append(Bulk("bulk-in", seconds=3, quick=False))
    found.append(Bulk("bulk-out", seconds=3, options=("-R",), quick=True))
    found.append(Bulk("small-writes-in", seconds=3, options=("-l", "1448"), quick=False))
    found.append(Bulk("small-writes-out", seconds=3, options=("-l", "1448", "-R"), quick=False))
    found += [PingPong(f"ping-{p}", protocol=p, requests=20_000, quick=p == "tcp") for p in ("tcp", "udp")]
    found += [Memory(f"memory-{n}", count=n, quick=False) for n in (1_000, 10_000, 100_000)]
    return found


class IdlePolls:
    """Makes idle CPUs poll instead of halting, as long as the object lives."""

    def __enter__(self):
        self.file = open("/dev/cpu_dma_latency", "wb", buffering=0)
        self.file.write(b"\0\0\0\0")

    def __exit__(self, *_):
        self.file.close()


class Untouched:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


IDLE = {"untouched": Untouched, "polling": IdlePolls}


class Session:
    """All results, by case, place, idle mode and stack."""

    def __init__(self, arguments, lab):
        self.arguments = arguments
        self.lab = lab
        self.rows = []

    def stacks(self, link, cpu):
        lab, configuration = self.lab, self.arguments.configuration
        settings = NO_BATCH if self.arguments.no_batch else ""
        if link == "internal":
            kinds = {"kernel": lambda: KernelLoopback(lab), "atoll": lambda: AtollInternal(lab, configuration, cpu)}
        else:
            kinds = {
                "kernel": lambda: Kernel(lab),
                "bbr": lambda: Kernel(lab, "bbr"),
                "atoll": lambda: Atoll(lab, configuration, cpu, settings),
                "atoll-naive": lambda: Atoll(lab, configuration, cpu, NAIVE + settings, "atoll-naive"),
            }
        made = []
        for name in self.arguments.stack:
            if name in kinds:
                stack = kinds[name]()
                stack.place(cpu)
                made.append(stack)
        return made

    def measure(self, case, link, place):
        """Does all runs of one case in one place."""
        server_cpu, client_cpu = (0, 0) if place == "same" else (0, 1)
        stacks = self.stacks(link, server_cpu)
        cells = {}
        servers = []
        try:
            for stack in stacks:
                try:
                    server = case.serve(self.lab, stack, server_cpu)
                    servers.append(server)
                    if not (isinstance(case, PingPong) and case.protocol == "udp"):
                        wait_for(stack, client_cpu, server, case.port)
                except Failure as failure:
                    say(f"  {case.name}, {stack.name}: {failure}")
                    continue
                for idle in self.arguments.idle:
                    cells[idle, stack.name] = {"case": case.name, "link": link, "place": place, "idle": idle,
                                               "stack": stack.name, "unit": case.unit, "runs": []}
            time.sleep(0.3)
            for repetition in range(self.arguments.runs):
                # The first one changes with each run, so that a drift of the machine favours none.
                order = stacks[repetition % len(stacks) :] + stacks[: repetition % len(stacks)]
                for idle in self.arguments.idle:
                    for stack in order:
                        if (idle, stack.name) in cells:
                            run = self.run(case, stack, client_cpu, idle, repetition)
                            cells[idle, stack.name]["runs"].append(run)
            if self.arguments.profile and Split.available():
                for stack in stacks:
                    idle = self.arguments.idle[0]
                    if (idle, stack.name) in cells:
                        cells[idle, stack.name]["split"] = self.profile(case, stack, client_cpu, idle)
        finally:
            for server in servers:
                end(server)
            for stack in stacks:
                stack.close()
        self.finish(case, cells)

    def run(self, case, stack, cpu, idle, repetition):
        """Does one run. Returns the value, CPU per operation, and the load of others."""
        command = stack.on_client(cpu, *case.client(self.lab, stack))
        with IDLE[idle]():
            time.sleep(0.05)
            with Measured(self.lab) as measured:
                result = {"repetition": repetition}
                try:
                    report = sh(*command, deadline=120)
                except (Failure, subprocess.TimeoutExpired) as failure:
                    result["failure"] = str(failure)
        result["foreign"] = round(measured.foreign, 3)
        result["kept"] = measured.foreign <= self.arguments.foreign
        if "failure" not in result:
            try:
                value, operations = case.read(report)
                result.update(value=value, cpu_us_per_op=measured.cpu * 1e6 / operations)
            except (Failure, TypeError, KeyError, ValueError) as failure:
                result["failure"] = f"{failure}: {report[-500:]}"
        shown = result.get("failure", f"{result.get('value', 0):,.2f} {case.unit}")
        say(f"  {case.name}, {stack.name}, {idle}: {shown}{'' if result['kept'] else '  (others ran; dropped)'}")
        return result

    def profile(self, case, stack, cpu, idle):
        """Returns the CPU per operation by call stacks. That costs some of the rate, so it is a run of its own."""
        command = stack.on_client(cpu, *case.client(self.lab, stack))
        with IDLE[idle]():
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            pids = {process.pid}
            with Split(self.lab, lambda: pids) as split:
                time.sleep(0.1)
                pids.update(children_of(process.pid))
                report = process.communicate(timeout=120)[0]
        try:
            return split.per_op(case.read(report)[1])
        except (Failure, TypeError, ValueError) as failure:
            return {"failure": str(failure)}

    def memory(self, case):
        """Measures idle connections: no rate, one number per stack."""
        cells = {}
        for stack in self.stacks("link", 0):
            row = {"case": case.name, "link": "link", "place": "two", "idle": "untouched", "stack": stack.name, "unit": "B", "runs": []}
            cells["untouched", stack.name] = row
            addresses = [CLIENT]
            for number in range(max(0, case.count - 1) // 40_000):
                addresses.append(f"198.18.0.{100 + number}")
                interface = sh("ip", "-n", stack.client_namespace, "-o", "route", "get", SERVER).split(" dev ")[1].split()[0]
                sh("ip", "-n", stack.client_namespace, "addr", "add", f"{addresses[-1]}/24", "dev", interface)
            server = client = None
            result = {"repetition": 0, "kept": True, "foreign": 0}
            try:
                server = case.serve(self.lab, stack, 0)
                wait_for(stack, 1, server, case.port)
                time.sleep(0.5)
                before = kept_memory(stack, server)
                idle = [self.lab.compile("idle"), SERVER, "7000", str(case.count)]
                client = self.lab.start(stack.on_client(1, *idle, *addresses))
                deadline = time.monotonic() + 60 + case.count / 1000
                while "all are open" not in log_of(client):
                    if client.poll() is not None or time.monotonic() > deadline:
                        raise Failure(f"the connections do not open: {log_of(client)[-300:]}{log_of(server)[-300:]}")
                    time.sleep(0.1)
                time.sleep(1)
                grown = kept_memory(stack, server) - before
                # The kernel holds both ends.
                ends = 1 if isinstance(stack, Atoll) else 2
                result["value"] = grown / ends / case.count
                say(f"  {case.name}, {stack.name}: {result['value']:.0f} B")
            except (Failure, OSError, subprocess.TimeoutExpired) as failure:
                result["failure"] = str(failure)
                say(f"  {case.name}, {stack.name}: {failure}")
            row["runs"].append(result)
            for process in (client, server):
                if process:
                    end(process)
            stack.close()
        self.finish(case, cells)

    def finish(self, case, cells):
        """Returns median, spread and ratio of each cell, and its line."""
        good = lambda row: {run["repetition"]: run for run in row["runs"] if run["kept"] and "value" in run}
        for (idle, _), row in cells.items():
            runs = good(row)
            values = [run["value"] for run in runs.values()]
            row["made"], row["kept"] = len(row["runs"]), len(values)
            row["failed"] = sum("failure" in run for run in row["runs"])
            if values:
                row["median"] = statistics.median(values)
                row["spread"] = max(values) / min(values) if min(values) > 0 else None
                cpu = [run["cpu_us_per_op"] for run in runs.values() if "cpu_us_per_op" in run]
                row["cpu_us_per_op"] = statistics.median(cpu) if cpu else None
            base = next((cells[key] for key in cells if key[0] == idle and key[1] in ("kernel", "kernel-loopback")), None)
            if base is not None and base is not row:
                pairs = [(runs[r], good(base)[r]) for r in runs if r in good(base)]
                if pairs:
                    ratios = [ours["value"] / theirs["value"] if case.more else theirs["value"] / max(ours["value"], 1e-9) for ours, theirs in pairs]
                    row["ratio"] = statistics.median(ratios)
                    costs = [a["cpu_us_per_op"] / b["cpu_us_per_op"] for a, b in pairs if b.get("cpu_us_per_op")]
                    row["cpu_ratio"] = statistics.median(costs) if costs else None
            self.rows.append(row)


def table(rows):
    """Returns the rows as text."""
    head = f"{'case':18}{'link':9}{'place':6}{'idle':10}{'stack':16}{'median':>14} {'':5}{'spread':>7}{'ratio':>7}{'CPU us/op':>10}{'ratio':>7}{'kept':>8}"
    lines = [head, "-" * len(head)]
    number = lambda value, form: format(value, form) if value is not None else "-"
    for row in rows:
        median = number(row.get("median"), ",.0f" if row.get("median", 0) >= 1000 else ",.2f")
        lines.append(
            f"{row['case']:18}{row['link']:9}{row['place']:6}{row['idle']:10}{row['stack']:16}{median:>14} {row['unit']:5}"
            f"{number(row.get('spread'), '.2f'):>7}{number(row.get('ratio'), '.2f'):>7}{number(row.get('cpu_us_per_op'), '.2f'):>10}"
            f"{number(row.get('cpu_ratio'), '.2f'):>7}{row['kept']:>4}/{row['made']:<3}" + (f" {row['failed']} failed" if row["failed"] else "")
        )
        for part, cost in row.get("split", {}).items():
            lines.append(f"{'':30}{part:45}{cost!s:>10} us/op")
    return "\n".join(lines)


def machine():
    model = re.search(r"model name\s*:\s*(.*)", open("/proc/cpuinfo").read())
    return {"kernel": platform.release(), "cpus": os.cpu_count(), "model": model[1] if model else platform.machine()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a subset, in about two minutes")
    parser.add_argument("--list", action="store_true", help="the names of the cases")
    parser.add_argument("--case", action="append", help="only this case; may be repeated")
    parser.add_argument("--link", action="append", choices=("link", "internal"), help="veth or TAP; or loopback and internal link")
    parser.add_argument("--place", action="append", choices=("two", "same"), help="two CPUs, or everything on one")
    parser.add_argument("--idle", action="append", choices=tuple(IDLE), help="whether idle CPUs halt")
    parser.add_argument("--stack", action="append", choices=("kernel", "bbr", "atoll", "atoll-naive"), help="atoll-naive: applications ask for each connection")
    parser.add_argument("--runs", type=int, default=None, help="runs per cell (5; 1 if quick)")
    parser.add_argument("--foreign", type=float, default=0.15, help="CPUs that others may use during a run that counts (0.15; sampling by ticks alone makes 0.1)")
    parser.add_argument("--configuration", default="TS1LS1CM1", help="Atoll's (TS1LS1CM1: there is one CPU for the server's side)")
    parser.add_argument("--no-batch", action="store_true", help="replicas of Atoll that preempt who runs (needed under chrt)")
    parser.add_argument("--profile", action="store_true", help="split the CPU time by call stacks (needs perf)")
    arguments = parser.parse_args()
    everything = cases()
    if arguments.list:
        print("\n".join(case.name for case in everything))
        return
    unknown = set(arguments.case or []) - {case.name for case in everything}
    if unknown:
        sys.exit(f"no such case: {', '.join(sorted(unknown))}")
    chosen = [c for c in everything if (c.name in arguments.case if arguments.case else c.quick or not arguments.quick)]
    arguments.link = arguments.link or (["link"] if arguments.quick else ["link", "internal"])
    arguments.idle = arguments.idle or (["untouched"] if arguments.quick else list(IDLE))
    places = arguments.place or (["two", "same"] if (os.cpu_count() or 1) > 1 else ["same"])
    arguments.stack = arguments.stack or (["kernel", "atoll"] if arguments.quick else ["kernel", "bbr", "atoll"])
    arguments.runs = arguments.runs or (1 if arguments.quick else 5)
    if os.geteuid() != 0:
        sys.exit("the benchmarks make network namespaces and TAPs: run them as root")
    with Lab() as lab:
        session = Session(arguments, lab)
        started = time.strftime("%Y%m%d-%H%M%S")
        try:
            for link in arguments.link:
                for place in places:
                    for case in chosen:
                        if link not in case.over:
                            continue
                        say(f"{case.name}, {link}, {place} ...")
                        if isinstance(case, Memory):
                            if place == places[0]:
                                session.memory(case)
                        else:
                            session.measure(case, link, place)
        finally:
            # Results are kept when a later case fails.
            print(table(session.rows))
            folder = os.path.join(ROOT, "bench/results")
            os.makedirs(folder, exist_ok=True)
            commit = sh("git", "-C", ROOT, "rev-parse", "--short", "HEAD", check=False).strip()
            path = os.path.join(folder, f"{started}.json")
            with open(path, "w") as file:
                json.dump({"commit": commit, "machine": machine(), "arguments": vars(arguments), "rows": session.rows}, file, indent=1)
            say(f"written to {os.path.relpath(path)}")


if __name__ == "__main__":
    try:
        main()
    except (Failure, subprocess.TimeoutExpired) as failure:
        sys.exit(f"the benchmarks failed: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)

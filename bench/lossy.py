"""Bulk transfers over a path that loses: the kernel's stack and Atoll, real frames, the same client on the kernel's TCP.

    stack 198.18.0.2 --TAP or veth-- middle namespace --line (rate, queue, delay, loss)-- 198.18.0.130 client namespace

    python3 bench/lossy.py                           the grid of loss and round-trip time, and small queues; 45 minutes
    python3 bench/lossy.py --only down-1%-20ms --runs 1 --sample 100 --capture DIR

The line (testing/system/src/bin/line.rs) loses packets of at most the MTU, in both directions, behind a bounded queue. `down`: the
stack sends; `up`: it receives, and the client, the kernel's CUBIC, sends. Each run lasts for --seconds from the established
connection on, and what has arrived in order counts. The stacks alternate, run n of every stack with seed n. A run is dropped when the
line was late (--late) or, at short round trips, others used the CPUs (--foreign): that is load and no result. Printed: medians in Mb/s, spread (greatest over least), ratio as median of the
pairs. CSV and JSON go to bench/results/.
"""
import argparse
import csv
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from bench import machine
from lab import ROOT, SERVER, Atoll, Failure, Kernel, Lab, Measured, end, say, sh, wait_for

LINE = os.environ.get("ATOLL_LINE", os.path.join(ROOT, "target/release/atoll-line"))
CLIENT = "198.18.0.130"
PORT = 7001
# The stack and its client share a CPU, because the line needs one for itself.
STACK_CPU, LINE_CPU = 0, 1
SETTINGS = {
    # What one connection learnt must not decide the next one's start.
    "ipv4/tcp_no_metrics_save": "1",
    # Buffers are so large that they do not limit.
    "ipv4/tcp_rmem": "4096 131072 67108864",
    "ipv4/tcp_wmem": "4096 131072 67108864",
    "ipv6/conf/all/disable_ipv6": "1",
}


class Cell:
    """One row of the table: a path and a direction."""

    def __init__(self, direction, loss, rtt_ms, queue, words="", name=None):
        self.direction, self.loss, self.rtt_ms, self.queue = direction, loss, rtt_ms, queue
        self.words = words
        self.name = name or f"{direction}-{loss}%-{rtt_ms}ms"

    def orders(self, rate, seed):
        """Returns the line's settings."""
        loss = f"loss={self.loss}%" if self.loss else ""
        return f"set rate={rate} queue={self.queue} delay={self.rtt_ms / 2}ms {loss} {self.words} seed={seed}"


def cells(rate):
    """Returns the cells of the grid, and those beside it."""
    found = []
    for direction, loss, rtt in itertools.product(("down", "up"), (0.1, 1, 3), (1, 20, 100)):
        found.append(Cell(direction, loss, rtt, queue_for(rate, rtt, 1.0, 150_000)))
    for direction, rtt in itertools.product(("down", "up"), (1, 20, 100)):
        found.append(Cell(direction, 0, rtt, queue_for(rate, rtt, 0.1, 30_000), name=f"{direction}-small-queue-{rtt}ms"))
    for direction, rtt in itertools.product(("down", "up"), (20, 100)):
        queue = queue_for(rate, rtt, 1.0, 150_000)
        # One packet in 500 begins a burst of five on average.
        found.append(Cell(direction, 0, rtt, queue, "burst=0.2%,5,100%", f"{direction}-burst-1%-{rtt}ms"))
        found.append(Cell(direction, 0, rtt, queue, f"reorder=1%,{rtt / 4}ms", f"{direction}-reorder-1%-{rtt}ms"))
    return found


def queue_for(rate, rtt_ms, share, least):
    """Returns a share of the product of rate and round-trip time, in octets."""
    return int(max(least, share * rate * rtt_ms / 8000))


class Lined:
    """A stack, and a line between it and its client."""

    def __init__(self, lab, stack, sample_ms):
        self.stack, self.name = stack, stack.name
        middle = stack.client_namespace
        client = stack.client_namespace = lab.namespace()
        command = ["taskset", "-c", str(LINE_CPU), LINE, f"{middle}:wire0", f"{client}:wire0"]
        self.line = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        prefer(self.line.pid)
        lab.processes.append(self.line)
        self.expect("ready")
        sh("ip", "-n", client, "addr", "add", f"{CLIENT}/24", "dev", "wire0")
        sh("ip", "-n", middle, "route", "add", f"{CLIENT}/32", "dev", "wire0")
        for namespace in {stack.server_namespace, middle, client}:
            settings = dict(SETTINGS)
            if namespace == middle:
                # The namespace in the middle answers ARP for both sides, so that neither needs a route.
                settings |= {"ipv4/ip_forward": "1", "ipv4/conf/all/proxy_arp": "1", "ipv4/conf/all/send_redirects": "0"}
            script = "&&".join(f"echo {value} >/proc/sys/net/{key}" for key, value in settings.items())
            script += "&& for f in /proc/sys/net/ipv4/neigh/*/proxy_delay; do echo 0 >$f; done"
            sh("nsenter", f"--net=/run/netns/{namespace}", "sh", "-c", script)
        self.order("set")
        serve = [lab.compile("bulk"), "serve", str(PORT), *([str(sample_ms)] if sample_ms else [])]
        self.server = lab.start(["nice", "-n", "-15", *stack.on_server(STACK_CPU, *serve)])
        wait_for(stack, STACK_CPU, self.server, PORT)

    def expect(self, word):
        said = self.line.stdout.readline().strip()
        if said != word:
            raise Failure(f"the line says {said!r}")

    def order(self, text):
        """Sends settings to the line, and waits until they are in force."""
        self.line.stdin.write(text + "\n")
        self.line.stdin.flush()
        self.expect("done")

    def report(self):
        """Returns what the line has done since the last report."""
        self.line.stdin.write("report\n")
        self.line.stdin.flush()
        return json.loads(self.line.stdout.readline())


def own_session():
    """Continues in a session of its own. Where the scheduler groups processes by session (autogroup), niceness counts only
    within one, and a group's share is what decides between this benchmark and others' compilers."""
    child = os.fork()
    if child == 0:
        os.setsid()
        prefer(os.getpid())
        return
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    signal.signal(signal.SIGINT, lambda *_: os.kill(child, signal.SIGTERM))
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def prefer(pid):
    """Gives the session of a process the greatest share of the CPU, sched(7)."""
    try:
        with open(f"/proc/{pid}/autogroup", "w") as file:
            file.write("-20")
    except OSError:
        pass


class Session:
    """Does all runs."""

    def __init__(self, arguments, lab):
        self.arguments, self.lab = arguments, lab
        kinds = {
            "kernel": lambda: Kernel(lab),
            "bbr": lambda: Kernel(lab, "bbr"),
            "atoll": lambda: Atoll(lab, arguments.configuration, STACK_CPU),
        }
        self.stacks = []
        for name in arguments.stack:
            stack = kinds[name]()
            stack.place(STACK_CPU)
            if isinstance(stack, Atoll):
                for pid in stack.servers():
                    sh("renice", "-n", "-15", "-p", str(pid))
                    prefer(pid)
            self.stacks.append(Lined(lab, stack, arguments.sample))
        self.runs = []

    def run(self, cell, lined, repetition):
        """Does one transfer."""
        arguments = self.arguments
        lined.order(cell.orders(arguments.rate, repetition + 1))
        time.sleep(0.05)
        lined.report()
        command = [self.lab.compile("bulk"), SERVER, str(PORT), cell.direction, str(arguments.seconds)]
        command += [str(arguments.sample)] if arguments.sample else []
        command = ["nice", "-n", "-15", *lined.stack.on_client(STACK_CPU, *command)]
        result = {"cell": cell.name, "stack": lined.name, "repetition": repetition}
        capture = self.capture(cell, lined, repetition)
        with Measured(self.lab) as measured:
            try:
                said = sh(*command, deadline=arguments.seconds + 60).splitlines()
                result.update(json.loads(said[-1]), samples=said[:-1])
                result["mbps"] = result["octets"] * 8 / result["seconds"] / 1e6
                if not result["complete"]:
                    result["failure"] = "the connection ended early"
            except (Failure, subprocess.TimeoutExpired, ValueError, IndexError) as failure:
                result["failure"] = str(failure)[-300:]
        if capture:
            end(capture)
        result["line"] = lined.report()
        result["foreign"] = round(measured.foreign, 2)
        late = result["line"]["late"]
        # The line is late by little compared with the round trip; short round trips suffer from other users of the stack's CPU.
        on_time = late["mean_us"] <= arguments.late * cell.rtt_ms * 1000
        alone = cell.rtt_ms >= 10 or measured.foreign <= arguments.foreign
        result["kept"] = "failure" not in result and on_time and alone
        # The server may still wait for the reset, which may be lost; an empty path brings it the next one.
        lined.order("set")
        time.sleep(0.3)
        shown = result.get("failure") or f"{result['mbps']:.2f} Mb/s"
        note = "" if result["kept"] else "  (dropped)"
        lost = result["line"]["there" if cell.direction == "down" else "back"]["lost"]
        say(f"  {cell.name}, {lined.name}, {repetition}: {shown}, {lost} lost, late by {late['mean_us']} us, others {result['foreign']}{note}")
        self.runs.append(result)

    def capture(self, cell, lined, repetition):
        """Starts tcpdump at the client's end, headers only."""
        if not self.arguments.capture:
            return None
        os.makedirs(self.arguments.capture, exist_ok=True)
        path = os.path.join(self.arguments.capture, f"{cell.name}-{lined.name}-{repetition}.pcap")
        # Beside the line: that one is nicer to itself.
        dump = ["tcpdump", "-i", "wire0", "-s", "120", "-B", "16384", "-w", path, "-U", "tcp", "port", str(PORT)]
        process = self.lab.start(lined.stack.on_client(LINE_CPU, *dump))
        time.sleep(0.5)
        return process

    def rows(self):
        """Returns the table: one row per cell."""
        rows = []
        for name in dict.fromkeys(run["cell"] for run in self.runs):
            row = {"cell": name}
            values = {}
            for lined in self.stacks:
                all_of_it = [run for run in self.runs if run["cell"] == name and run["stack"] == lined.name]
                kept = {run["repetition"]: run["mbps"] for run in all_of_it if run["kept"]}
                values[lined.name] = kept
                row[f"{lined.name} Mb/s"] = round(statistics.median(kept.values()), 2) if kept else None
                row[f"{lined.name} spread"] = round(max(kept.values()) / max(min(kept.values()), 1e-9), 2) if kept else None
                row[f"{lined.name} kept/made"] = f"{len(kept)}/{len(all_of_it)}"
            for other in values:
                if other != "kernel" and "kernel" in values:
                    ratios = [values[other][r] / values["kernel"][r] for r in values[other] if values["kernel"].get(r)]
                    row[f"{other} ratio"] = round(statistics.median(ratios), 2) if ratios else None
            rows.append(row)
        return rows


def table(rows):
    """Returns the table as Markdown."""
    if not rows:
        return ""
    heads = list(rows[0])
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join("-" if row.get(head) is None else str(row[head]) for head in heads) + " |" for row in rows]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=200e6, help="bits per second of the line (200e6)")
    parser.add_argument("--seconds", type=float, default=8, help="of each run (8)")
    parser.add_argument("--runs", type=int, default=5, help="per cell and stack (5)")
    parser.add_argument("--first", type=int, default=0, help="number of the first run, which decides its seed (0)")
    parser.add_argument("--only", action="append", default=[], help="cells whose names contain this; may be repeated")
    parser.add_argument("--stack", action="append", choices=("kernel", "bbr", "atoll"))
    parser.add_argument("--late", type=float, default=0.02, help="how late the line may be on average, as a share of the round-trip time (0.02)")
    parser.add_argument("--foreign", type=float, default=0.25, help="CPUs that others may use during a run of less than 10 ms round-trip time (0.25)")
    parser.add_argument("--configuration", default="TS1LS1CM1", help="Atoll's (TS1LS1CM1)")
    parser.add_argument("--sample", type=int, default=0, help="report TCP_INFO every so many milliseconds; into the JSON, and the server's log")
    parser.add_argument("--capture", help="folder for packet captures of the runs")
    parser.add_argument("--list", action="store_true", help="the names of the cells")
    arguments = parser.parse_args()
    arguments.rate = int(arguments.rate)
    arguments.stack = arguments.stack or ["kernel", "atoll"]
    chosen = [cell for cell in cells(arguments.rate) if not arguments.only or any(part in cell.name for part in arguments.only)]
    if arguments.list:
        print("\n".join(cell.name for cell in chosen))
        return
    if os.geteuid() != 0:
        sys.exit("network namespaces and TAPs are needed: run it as root")
    if not os.path.exists(LINE):
        sys.exit("cargo build --release -p atoll -p atoll-preload -p atoll-system-tests")
    own_session()
    folder = os.path.join(ROOT, "bench/results")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, time.strftime("lossy-%Y%m%d-%H%M%S"))
    with Lab() as lab:
        session = Session(arguments, lab)
        try:
            for repetition in range(arguments.first, arguments.first + arguments.runs):
                for number, cell in enumerate(chosen):
                    # The first one changes with each run, so that a drift of the machine favours none.
                    turn = (repetition + number) % len(session.stacks)
                    for lined in session.stacks[turn:] + session.stacks[:turn]:
                        session.run(cell, lined, repetition)
                save(path, arguments, session)
        finally:
            save(path, arguments, session)
            for lined in session.stacks:
                if arguments.sample:
                    name = f"{path}-{lined.name}.log"
                    sh("cp", lined.server.log.name, name)
                    say(f"samples of the server: {os.path.relpath(name)}")
                end(lined.server)
                end(lined.line)
                lined.stack.close()
            print(table(session.rows()))
            say(f"written to {os.path.relpath(path)}.json, .csv")


def save(path, arguments, session):
    """Writes the results, so that they are kept when a later run fails."""
    rows = session.rows()
    commit = sh("git", "-C", ROOT, "rev-parse", "--short", "HEAD", check=False).strip()
    with open(path + ".json", "w") as file:
        json.dump({"commit": commit, "machine": machine(), "arguments": vars(arguments), "rows": rows, "runs": session.runs}, file, indent=1)
    with open(path + ".csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0] if rows else [])
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    try:
        main()
    except (Failure, subprocess.TimeoutExpired) as failure:
        sys.exit(f"the benchmark failed: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)

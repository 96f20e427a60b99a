"""How does the rate grow with CPUs? nginx with 1, 2, 4 ... workers, as many replicas, and wrk with as many threads, for the kernel and Atoll.

    python3 bench/scaling.py --sizes 1 2 4 8 --runs 3 --seconds 3

Needs CPUs: twice as many as workers, so that the client has CPUs of its own. A replica has a CPU of its own; the other half of the CPUs are
the client's, whose end is the kernel's stack in both columns. Where the workers are (--place): `free`, on the replicas' CPUs as the kernel
likes; `aligned`, one on each, with the replica that is its home (docs/decisions/balancing.md); `apart`, one on each, with another replica.
Runs alternate; medians, least and greatest. Two loads: `keep`, 32 connections for each thread that stay open, and `short`, a connection for
each request. --profile adds what the CPUs did, by perf. JSON goes to the file of --out.
"""
import argparse
import json
import os
import re
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lab import SERVER, Atoll, Failure, Kernel, Lab, Measured, children_of, end, say, sh, start_nginx, wait_for

LOADS = {"keep": [], "short": ["-H", "Connection: close"]}


def pin(pid, cpu):
    sh("taskset", "-a", "-c", "-p", str(cpu), str(pid))


def place_workers(stack, server, size, place):
    """Places the workers of an nginx. Session 1 is its master's, and the workers' follow; replica N is the home of session N, modulo."""
    if place == "free":
        return
    for number, pid in enumerate(sorted(children_of(server.pid))[-size:]):
        home = (number + 2) % size
        pin(pid, (home + (size // 2 if place == "apart" else 0)) % size)


def seconds_of(pids):
    """Returns the seconds of CPU that processes have used so far, in hundredths."""
    found = {}
    for pid in pids:
        with open(f"/proc/{pid}/stat") as file:
            found[pid] = sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))
    return found


def run(lab, stack, size, load, arguments, server):
    """Returns the requests per second of one run, the CPUs that both sides used, and the share of each process of the server's side."""
    seconds = arguments.seconds
    pids = [*children_of(server.pid), *(stack.servers() if isinstance(stack, Atoll) else ())]
    before = seconds_of(pids)
    clients = ",".join(str(size + n) for n in range(size))
    command = ["wrk", f"-t{size}", f"-c{32 * size}", f"-d{seconds}s", *LOADS[load], f"http://{SERVER}/20"]
    began = time.monotonic()
    with Measured(lab) as measured:
        report = sh(*stack.on_client(clients, *command), deadline=seconds + 60)
    if "Non-2xx" in report or "Socket errors" in report:
        say(f"  {report}")
    shares = [round((now - before[pid]) / seconds / 100, 2) for pid, now in seconds_of(pids).items()]
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", report)[1])
    return {"rate": rate, "cpus": round(measured.cpu / (time.monotonic() - began), 2), "foreign": round(measured.foreign, 2), "shares": shares}


def measure(lab, size, arguments):
    """Returns the rows of one size."""
    cpus = list(range(size))
    kernel, atoll = Kernel(lab), Atoll(lab, f"TS{size}LS{size}CM{size}", settings=arguments.settings)
    for replica in atoll.status()["replicas"]:
        pin(replica["pid"], cpus[replica["index"]])
    servers, rows = {}, []
    try:
        for stack in (kernel, atoll):
            server = start_nginx(lab, stack, ",".join(map(str, cpus)), workers=size)
            servers[stack] = server
            wait_for(stack, size, server, 80)
            place_workers(stack, server, size, arguments.place)
        for load in arguments.load or LOADS:
            runs = {"kernel": [], "atoll": []}
            for number in range(arguments.runs):
                for stack in (kernel, atoll)[:: 1 if number % 2 else -1]:
                    try:
                        runs[stack.name].append(run(lab, stack, size, load, arguments, servers[stack]))
                    except Failure as failure:
                        say(f"  {size} {load} {stack.name}: {failure}")
            rows.append({"size": size, "place": arguments.place, "load": load, "runs": runs})
            if arguments.profile:
                for stack in (kernel, atoll):
                    profile(lab, stack, size, load, arguments, servers[stack])
    finally:
        for server in servers.values():
            end(server)
        atoll.close()
    return rows


def profile(lab, stack, size, load, arguments, server):
    """Prints what the CPUs of the server's side did."""
    data = os.path.join(lab.folder, "perf.data")
    cpus = f"0-{size - 1}"
    record = lab.start(["perf", "record", "-q", "-e", "cpu-clock", "-F", "997", "-C", cpus, "-o", data, "--", "sleep", str(arguments.seconds - 1)])
    one = run(lab, stack, size, load, arguments, server)
    record.wait(20)
    report = sh("perf", "report", "-i", data, "--no-children", "--sort", "comm,symbol", "--stdio", "-q", "--percent-limit", "0.7", deadline=60)
    print(f"== {stack.name} {size} {load} {one}")
    print("\n".join(line.rstrip() for line in report.splitlines() if line.strip())[:6000])


def show(rows):
    """Prints the rows."""
    print(f"{'workers':>8} {'load':6} {'stack':8} {'requests/s':>11} {'least':>9} {'greatest':>9} {'CPUs':>6} {'us/op':>6} {'ratio':>6}")
    for row in rows:
        rates = {name: [one["rate"] for one in runs] for name, runs in row["runs"].items()}
        for name, runs in row["runs"].items():
            if not runs:
                continue
            rate, cpus = statistics.median(rates[name]), statistics.median(one["cpus"] for one in runs)
            ratio = rate / statistics.median(rates["kernel"]) if rates["kernel"] else 0
            line = f"{row['size']:8} {row['load']:6} {name:8} {rate:11,.0f} {min(rates[name]):9,.0f} {max(rates[name]):9,.0f}"
            print(f"{line} {cpus:6.2f} {cpus * 1e6 / rate:6.1f} {ratio:6.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1], help="how many workers and replicas, at most eight")
    parser.add_argument("--runs", type=int, default=3, help="runs of each cell")
    parser.add_argument("--seconds", type=int, default=3, help="the time of a run")
    parser.add_argument("--load", action="append", choices=LOADS, help="only this load; may be repeated")
    parser.add_argument("--place", choices=("free", "aligned", "apart"), default="free", help="where the workers are")
    parser.add_argument("--profile", action="store_true", help="one more run of each cell under perf")
    parser.add_argument("--settings", default="", help="more of Atoll's configuration, as TOML")
    parser.add_argument("--out", help="a file for all results")
    arguments = parser.parse_args()
    if max(arguments.sizes) * 2 > (os.cpu_count() or 1):
        parser.error(f"{max(arguments.sizes)} workers need {max(arguments.sizes) * 2} CPUs, and there are {os.cpu_count()}")
    rows = []
    with Lab() as lab:
        for size in arguments.sizes:
            rows += measure(lab, size, arguments)
            if arguments.out:
                with open(arguments.out, "w") as file:
                    json.dump(rows, file, indent=1)
    show(rows)


if __name__ == "__main__":
    main()

"""Few connections beside programs that compute: requests per second and 99th percentile, the kernel and Atoll by turns.

    busy.py [--loops N] [--rounds N] [--connections C,...] [--seconds S] [--other PROGRAM] [--settings FILE]

Nothing is pinned. N loops (default: two for each CPU) compute; redis-benchmark asks redis over a veth (kernel) or a TAP
(Atoll), with C connections at a time. --other names another build of `atoll`, which takes turns with this one;
--settings a configuration for a further stack of this build. Printed are the medians, least and greatest of each, and the
ratio to the kernel's median. Standard library only, and redis.
"""
import argparse
import os
import re
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lab as labs
from lab import SERVER, Atoll, Failure, Kernel, Lab, say, wait_for

ANYWHERE = f"0-{os.cpu_count() - 1}"


def measure(lab, stack, connections, seconds):
    """Returns requests per second and the 99th percentile in microseconds."""
    server = lab.start(stack.on_server(ANYWHERE, "redis-server", "--port", "6379", "--bind", "0.0.0.0", "--save", "", "--protected-mode", "no"))
    try:
        wait_for(stack, ANYWHERE, server, 6379, 30)
        # As many requests as take about the time that is asked for: a short run says how many those are.
        rate, _ = ask(stack, connections, 300 * connections)
        return ask(stack, connections, max(300 * connections, int(rate * seconds)))
    finally:
        labs.end(server)


def ask(stack, connections, requests):
    command = ["redis-benchmark", "-h", SERVER, "-c", str(connections), "-n", str(requests), "-t", "get", "--precision", "3"]
    report = subprocess.run(stack.on_client(ANYWHERE, *command), capture_output=True, text=True, timeout=120).stdout
    rate = re.search(r"throughput summary: ([\d.]+) requests per second", report)
    latency = re.search(r"avg +min +p50 +p95 +p99 +max\n((?: +[\d.]+){6})", report)
    if not rate or not latency:
        raise Failure(report[-2000:])
    return float(rate[1]), float(latency[1].split()[4]) * 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", type=int, default=2 * os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", default="1,8,50")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--other")
    parser.add_argument("--settings")
    options = parser.parse_args()
    with Lab() as lab:
        loops = [lab.start([sys.executable, "-c", "while True: pass"]) for _ in range(options.loops)]
        found = {}
        kinds = [("kernel", None, ""), ("atoll", labs.ATOLL, "")]
        if options.settings:
            with open(options.settings) as file:
                kinds.append((os.path.basename(options.settings), labs.ATOLL, file.read()))
        if options.other:
            kinds.append(("other", options.other, ""))
        for turn in range(options.rounds):
            for name, program, settings in kinds:
                labs.ATOLL = program or labs.ATOLL
                stack = Kernel(lab) if program is None else Atoll(lab, settings=settings)
                for connections in map(int, options.connections.split(",")):
                    rate, late = measure(lab, stack, connections, options.seconds)
                    found.setdefault((connections, name), []).append((rate, late))
                    say(f"{turn + 1}/{options.rounds} {connections:4} {name:10} {rate:10,.0f} 1/s {late:10,.0f} us")
                stack.close()
        for loop in loops:
            labs.end(loop)
        print(f"{options.loops} loops on {os.cpu_count()} CPUs, {options.rounds} rounds")
        print(f"{'connections':>11} {'stack':10} {'1/s':>10} {'least':>10} {'most':>10} {'ratio':>6} {'p99 us':>10} {'ratio':>6}")
        for (connections, name), runs in sorted(found.items()):
            rates, late = [rate for rate, _ in runs], statistics.median(late for _, late in runs)
            kernel = found[connections, "kernel"]
            ratio = statistics.median(rates) / statistics.median(rate for rate, _ in kernel)
            later = late / statistics.median(late for _, late in kernel)
            print(f"{connections:11} {name:10} {statistics.median(rates):10,.0f} {min(rates):10,.0f} {max(rates):10,.0f} "
                  f"{ratio:6.2f} {late:10,.0f} {later:6.2f}")


main()

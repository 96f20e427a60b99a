"""How long do connections wait when some of the processes that serve are slow? Pika's experiment (P8, Figures 5 to 10), in small.

Eight workers, one connection after another each. One is always slow; three become slow for a while, one after another. A client opens
connections at a constant rate, whatever becomes of those before, and measures each from connect to close.

    time        0 ........ 1/8 ...... 2/8 ...... 3/8 ........................ 1
    worker 0    slow (10 x) all the time
    worker 1               slow (20 x)
    worker 2                          slow (10 x) until 3/4 of the time
    worker 3                                     somewhat slow (2 x) until 3/4 of the time

Columns: Atoll under each scheme, the kernel with one accept queue for all, and the kernel with SO_REUSEPORT (a queue each, by hash). The
client runs on the kernel. `--workers N`, `--rate N` (connections a second), `--seconds N`, `--service US`, `--column NAME`.

The workers sleep instead of computing, so that eight of them fit two CPUs: it is the waiting that is compared, not throughput.
"""
import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lab import ATOLL, SERVER, Atoll, Failure, Kernel, Lab, end, say, sh, wait_for

SCHEMES = {
    "naive": ["--scheme", "naive"],
    "unfiltered-2": ["--scheme", "unfiltered", "--tariff", "2"],
    "unfiltered-100": ["--scheme", "unfiltered", "--tariff", "100"],
    "filtered-2": ["--scheme", "filtered", "--tariff", "2"],
    "tournament-2": ["--scheme", "tournament", "--tariff", "2"],
}
KERNEL = {"kernel-shared": [], "kernel-reuseport": ["reuseport"]}
PERCENTILES = (50, 80, 90, 95, 99, 99.9, 100)


def measure(lab, stack, column, options):
    """Workers and a client on a stack. Returns what the client has measured, and the share of each worker."""
    if column in SCHEMES:
        sh(ATOLL, "balance", stack.stack, *SCHEMES[column])
    workers = lab.compile("workers")
    cpus = os.cpu_count() or 1
    every_cpu = f"0-{cpus - 1}"
    command = [workers, "8080", str(options.workers), str(options.service), str(options.seconds), *KERNEL.get(column, [])]
    server = lab.start(stack.on_server(every_cpu, *command))
    wait_for(stack, every_cpu, server, 8080)
    client = [lab.compile("arrivals"), SERVER, "8080", str(options.rate), str(options.seconds)]
    report = json.loads(sh(*stack.on_client(every_cpu, *client), deadline=options.seconds + 60))
    end(server)
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--service", type=int, default=1000, help="microseconds that a connection takes a worker that is not slow")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--column", action="append", choices=[*SCHEMES, *KERNEL])
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("the comparison makes network namespaces and a TAP: run it as root")
    columns = options.column or [*SCHEMES, *KERNEL]
    rows = {}
    with Lab() as lab:
        for column in columns:
            n = options.replicas
            stack = Kernel(lab) if column in KERNEL else Atoll(lab, f"TS{n}LS{n}CM{n}")
            say(f"{column} ...")
            rows[column] = measure(lab, stack, column, options)
            stack.close()
    print("milliseconds from connect to close, and the share of each worker in percent\n")
    print("| | " + " | ".join(f"p{p:g}" for p in PERCENTILES[:-1]) + " | longest | failed | shares |")
    print("|---|" + "---|" * (len(PERCENTILES) + 2))
    for column, report in rows.items():
        times = sorted(report["micros"])
        at = lambda percent: times[min(len(times) - 1, int(len(times) * percent / 100))] / 1000
        cells = [f"{at(percent):.1f}" for percent in PERCENTILES] if times else ["-"] * len(PERCENTILES)
        served = report["served"] or [0]
        shares = " ".join(f"{100 * count / max(1, sum(served)):.0f}" for count in served)
        print(f"| {column} | " + " | ".join(cells) + f" | {report['failed']} | {shares} |")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"balance: {failure}")

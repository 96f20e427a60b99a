"""Runs those of the papers' experiments for real that the machine at hand can, and writes files that `atoll paper` draws beside its simulation.

    make papers                                  everything: this, then the simulation
    python3 bench/papers.py --out papers         this alone; --quick for shorter runs, --only NAME

    pika-fig4a   nginx, short connections, clients and servers together on 1 and on 2 CPUs: the kernel's stack and Atoll's
    pika-fig4b   the same with connections that stay open
    pika-fig7    connect to close under imbalance, by scheme, and on the kernel (bench/balance.py)
    pika-fig5    the same, of Tournament 2 and the kernel
    neat-...     see neat.py

CSV: series, x, y. Run it on a quiet machine.
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import balance
import neat
from bench import Keep, Short
from lab import Atoll, Failure, Kernel, Lab, end, say, sh, start_nginx, wait_for

PERCENTILES = [60 + n / 4 for n in range(160)] + [99.9]


def throughput(lab, case, options):
    """Returns rows of stack, CPUs and rate: client and server share as many CPUs as there are replicas and workers."""
    for cpus in range(1, min(2, os.cpu_count() or 1) + 1):
        where = f"0-{cpus - 1}"
        for name, make in (("kernel", lambda: Kernel(lab)), ("Atoll", lambda: Atoll(lab, f"TS{cpus}LS{cpus}CM{cpus}"))):
            stack = make()
            stack.place(where)
            server = start_nginx(lab, stack, where, workers=cpus)
            try:
                wait_for(stack, where, server, 80)
                rates = []
                for _ in range(options.runs):
                    report = sh(*stack.on_client(where, *case.client(lab, stack)), deadline=120)
                    rates.append(case.read(report)[0])
            finally:
                end(server)
                stack.close()
            rate = sorted(rates)[len(rates) // 2]
            say(f"  {name}, {cpus} CPUs: {rate:,.0f}/s of {', '.join(f'{rate:,.0f}' for rate in rates)}")
            yield name, cpus, rate


def imbalance(lab, columns, options):
    """Returns rows of column, microseconds and percentile."""
    for column in columns:
        n = options.replicas
        stack = Kernel(lab) if column in balance.KERNEL else Atoll(lab, f"TS{n}LS{n}CM{n}")
        say(f"  {column}")
        try:
            report = balance.measure(lab, stack, column, options)
        finally:
            stack.close()
        times = sorted(report["micros"])
        for percent in PERCENTILES if times else []:
            yield column, times[min(len(times) - 1, int(len(times) * percent / 100))], percent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="papers")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", action="append")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("the comparison makes network namespaces and a TAP: run it as root")
    quick = options.quick
    options.runs, options.workers, options.replicas = (1 if quick else 3), 8, 2
    options.rate, options.seconds, options.service = 1000, (4 if quick else 8), 1000
    short = Short("short", clients=64, requests=20_000 if quick else 60_000)
    keep = Keep("keep", clients=64, seconds=1 if quick else 3)
    kernel = list(balance.KERNEL)
    experiments = {
        "pika-fig4a": lambda lab: throughput(lab, short, options),
        "pika-fig4b": lambda lab: throughput(lab, keep, options),
        "pika-fig5": lambda lab: imbalance(lab, ["tournament-2", *kernel], options),
        "pika-fig7": lambda lab: imbalance(lab, [*balance.SCHEMES, *kernel], options),
        **neat.experiments(options),
    }
    folder = os.path.join(options.out, "real")
    os.makedirs(folder, exist_ok=True)
    chosen = options.only or list(experiments)
    for number, name in enumerate(chosen):
        say(f"[{number + 1}/{len(chosen)}] {name}, for real")
        with Lab() as lab:
            rows = list(experiments[name](lab))
        with open(os.path.join(folder, f"{name}.csv"), "w") as file:
            file.write("series,x,y\n")
            file.writelines(f"{series},{x},{y}\n" for series, x, y in rows)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"papers: {failure}")

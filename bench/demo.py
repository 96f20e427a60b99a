"""Shows what Atoll does: nginx with two workers, unmodified, on Atoll and on the kernel, on one page.

Takes about a minute, needs root, leaves nothing behind.
"""
import collections
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lab import SERVER, Atoll, Failure, Kernel, Lab, end, say, sh, start_nginx, wait_for

SERVER_CPU, CLIENT_CPU = 0, (os.cpu_count() or 1) - 1
ROUNDS = int(os.environ.get("ATOLL_DEMO_ROUNDS", "3"))
URL = f"http://{SERVER}"


def client(stack, *command, deadline=60):
    return sh(*stack.on_client(CLIENT_CPU, *command), deadline=deadline)


def short(stack, count):
    """Runs `ab`: a connection for each request."""
    report = client(stack, "ab", "-q", "-n", str(count), "-c", "16", f"{URL}/4")
    rate = float(re.search(r"Requests per second:\s+([\d.]+)", report)[1])
    failed = int(re.search(r"Failed requests:\s+(\d+)", report)[1])
    percentiles = dict(re.findall(r"^\s+(\d+)%\s+(\d+)", report, re.M))
    return {"rate": rate, "failed": failed, "p50": percentiles["50"] + " ms", "p99": percentiles["99"] + " ms"}


def kept(stack, seconds):
    """Runs `wrk`: many requests over 64 connections."""
    report = client(stack, "wrk", "-t1", "-c64", f"-d{seconds}s", "--latency", f"{URL}/20")
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", report)[1])
    errors = re.search(r"(Socket errors:.*|Non-2xx.*)", report)
    percentiles = dict(re.findall(r"^\s+(\d+)%\s+([\d.]+\w+)", report, re.M))
    return {"rate": rate, "failed": errors[1] if errors else 0, "p50": percentiles["50"], "p99": percentiles["99"]}


def median(rows):
    return sorted(rows, key=lambda row: row["rate"])[len(rows) // 2]


def shares(counts):
    total = sum(counts) or 1
    return "  ".join(f"{100 * count / total:.0f} %" for count in counts)


def per_worker(lab, atoll):
    """Returns which worker answered how many of 4000 requests, by nginx's own log."""
    nginx = start_nginx(lab, atoll, SERVER_CPU, port=81, log_workers=True)
    wait_for(atoll, CLIENT_CPU, nginx, 81)
    client(atoll, "ab", "-q", "-n", "4000", "-c", "16", f"{URL}:81/4")
    end(nginx)
    with open(os.path.join(nginx.folder, "access")) as log:
        return sorted(collections.Counter(log.read().split()).values(), reverse=True)


def accepted(status):
    """Returns how many connections each replica has got from clients."""
    return [replica["stats"]["passive_opens"] for replica in status["replicas"]]


def calls(status):
    """Returns the number of calls of the socket API, and of those that needed the kernel, by all programs of the stack so far."""
    stack = status["stack"]
    return stack["library_calls"], stack["library_calls_with_syscall"]


def main():
    if os.geteuid() != 0:
        sys.exit("the demonstration makes network namespaces and a TAP: run it as root")
    with Lab() as lab:
        say("making two networks: one with the kernel at its server's end, one with Atoll (TS2LS2CM2) ...")
        stacks = [Kernel(lab)]
        # This is for trying the demonstration itself.
        if "--kernel-only" not in sys.argv:
            stacks.append(Atoll(lab, cpu=SERVER_CPU))
        for stack in stacks:
            say(f"starting nginx on {stack.name} ...")
            nginx = start_nginx(lab, stack, SERVER_CPU)
            wait_for(stack, CLIENT_CPU, nginx, 80)
            say(f"  curl {URL}/4 -> {client(stack, 'curl', '-sS', '--max-time', '5', f'{URL}/4')!r}")
        atoll = stacks[-1]
        nothing = {"replicas": [], "stack": {"library_calls": 0, "library_calls_with_syscall": 0}}
        status = getattr(atoll, "status", lambda: nothing)
        before = status()
        results = collections.defaultdict(list)
        for number in range(ROUNDS):
            for stack in stacks:
                say(f"round {number + 1} of {ROUNDS}, {stack.name}: ab, then wrk ...")
                results["short", stack.name].append(short(stack, 20_000))
                results["kept", stack.name].append(kept(stack, 3))
        after = status()
        workers = per_worker(lab, atoll)

        print(f"\nnginx, two workers, unmodified, on CPU {SERVER_CPU}; clients on the kernel's TCP, on CPU {CLIENT_CPU};")
        print(f"median of {ROUNDS} interleaved rounds\n")
        print(f"{'':34}{'kernel':>12}{'Atoll':>12}{'ratio':>8}")
        for case, title in (("short", "connections/s (ab -c 16, 4 B)"), ("kept", "requests/s (wrk -c 64, 20 B)")):
            rows = [median(results[case, stack.name]) for stack in stacks]
            ratio = rows[-1]["rate"] / rows[0]["rate"]
            print(f"{title:34}{rows[0]['rate']:12,.0f}{rows[-1]['rate']:12,.0f}{ratio:8.2f}")
            for name in ("p50", "p99", "failed"):
                title = {"p50": "latency, median", "p99": "latency, 99 %", "failed": "failed"}[name]
                print(f"  {title:32}{rows[0][name]!s:>12}{rows[-1][name]!s:>12}")
        print()
        print(f"{'requests per worker (Atoll)':34}{shares(workers)}")
        connections = [late - early for early, late in zip(accepted(before), accepted(after))]
        print(f"{'connections per replica':34}{shares(connections)}")
        (calls_before, kernel_before), (calls_after, kernel_after) = calls(before), calls(after)
        made, with_kernel = calls_after - calls_before, kernel_after - kernel_before
        if made:
            print(f"{'calls without system call':34}{100 * (1 - with_kernel / made):.1f} % of {made:,}")
        print("\nA difference below 1.4 in so short a run proves nothing; `make bench` measures with care.")


if __name__ == "__main__":
    try:
        main()
    except (Failure, subprocess.TimeoutExpired) as failure:
        sys.exit(f"the demonstration failed: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)

"""How long do connections wait when some of the processes that serve are slow? Pika's experiment (P8, Figures 5 to 10), in small.

Eight processes. One is always slow; three become slow for a while, one after another. A client opens connections at a constant rate,
whatever becomes of those before, and measures each from connect to close.

    time        0 ........ 1/8 ...... 2/8 ...... 3/8 ........................ 1
    worker 0    slow (10 x) all the time
    worker 1               slow (20 x)
    worker 2                          slow (10 x) until 3/4 of the time
    worker 3                                     somewhat slow (2 x) until 3/4 of the time

`--server workers`: workers.c, one connection after another each. Others are real and unmodified: nginx, lighttpd, apache-prefork, and apache-event
with two threads in each process. What they take for a page, and what makes some slow, is a wait when they open the file of the page (lighttpd: read it), by a preloaded library
(delays.c): it blocks the process, or the thread, as computing would, the server knows nothing of it, and it is the same on the kernel and on
Atoll. (Stopping processes by signals was rejected: whoever stands still takes no connection either, and it is over at once for all that wait. A
competitor for the CPU slows down whatever else is there, on two CPUs a quarter of everything.)

Columns: Atoll under each scheme, Atoll with the naive accept, the kernel with one accept queue for all, and the kernel with SO_REUSEPORT (a
queue each, by hash; Apache has one for each CPU at most, lighttpd none). The client runs on the kernel. `--runs N` takes all columns in turn, N times.

The workers sleep instead of computing, so that eight of them fit two CPUs: it is the waiting that is compared, not throughput.
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lab import ATOLL, NAIVE, NO_BATCH, SERVER, Atoll, Failure, Kernel, Lab, Measured, children_of, end, say, sh, wait_for

SCHEMES = {
    "naive": ["--scheme", "naive"],
    "unfiltered-2": ["--scheme", "unfiltered", "--tariff", "2"],
    "unfiltered-100": ["--scheme", "unfiltered", "--tariff", "100"],
    "filtered-2": ["--scheme", "filtered", "--tariff", "2"],
    "tournament-2": ["--scheme", "tournament", "--tariff", "2"],
}
ASKING = {"naive-accept": NAIVE}
KERNEL = {"kernel-shared": [], "kernel-reuseport": ["reuseport"]}
COLUMNS = [*SCHEMES, *ASKING, *KERNEL]
PERCENTILES = (50, 80, 90, 95, 99, 99.9, 100)


def slowness(worker, part):
    """Returns how many times as slow a worker is at a share of the whole time, as in workers.c."""
    if worker == 0:
        return 10
    if worker == 1:
        return 20 if 0.125 <= part < 0.25 else 1
    if worker == 2:
        return 10 if 0.25 <= part < 0.75 else 1
    return 2 if worker == 3 and 0.375 <= part < 0.75 else 1


class Delays:
    """The table of delays.c, and the process that writes it while a server runs."""

    ENTRY = struct.Struct("<iIQ")

    def __init__(self, lab):
        self.path = lab.file("delays.table", bytes(64 * self.ENTRY.size))
        os.chmod(self.path, 0o666)
        self.workers = []

    def begin(self, workers, micros, seconds):
        """Names the processes, in the order of their numbers, and lets them be slow in turn."""
        self.workers = workers
        self.file = open(self.path, "r+b", buffering=0)
        self.ended = threading.Event()
        began = time.monotonic()

        def write():
            while True:
                part = (time.monotonic() - began) / seconds
                for number, pid in enumerate(self.workers):
                    entry = struct.pack("<iI", pid, int(micros * slowness(number, part)))
                    os.pwrite(self.file.fileno(), entry, number * self.ENTRY.size)
                if self.ended.wait(0.005):
                    return

        self.thread = threading.Thread(target=write)
        self.thread.start()

    def served(self):
        """Ends the writing process, and returns how many pages each worker has opened."""
        self.ended.set()
        self.thread.join()
        data = os.pread(self.file.fileno(), 64 * self.ENTRY.size, 0)
        self.file.close()
        return [self.ENTRY.unpack_from(data, number * self.ENTRY.size)[2] for number in range(len(self.workers))]


def nginx(folder, count, reuseport):
    temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("fastcgi", "uwsgi", "scgi", "proxy"))
    config = f"""daemon off; worker_processes {count}; pid {folder}/pid; error_log {folder}/error warn; user root;
        events {{ worker_connections 4096; }}
        http {{ access_log off; client_body_temp_path {folder}/body; {temporary}
            server {{ listen 80 backlog=4096{" reuseport" if reuseport else ""}; root {folder}; }} }}"""
    return config, ["nginx", "-p", folder, "-c"]


def lighttpd(folder, count, reuseport):
    config = f"""server.document-root = "{folder}"\nserver.port = 80\nserver.max-worker = {count}\nserver.errorlog = "{folder}/error"
        server.listen-backlog = 4096\nserver.max-fds = 4096\nserver.stat-cache-engine = "disable"\n"""
    # The program ends its process group when it ends.
    return config, ["setsid", "lighttpd", "-D", "-f"]


def apache(module, limits):
    def configure(folder, count, reuseport):
        modules = "/usr/lib/apache2/modules"
        config = f"""ServerRoot {folder}\nServerName stack\nPidFile {folder}/apache.pid\nErrorLog {folder}/error
            Mutex default:{folder}\nLoadModule mpm_{module}_module {modules}/mod_mpm_{module}.so
            LoadModule authz_core_module {modules}/mod_authz_core.so\nStartServers {count}\nServerLimit {count}
            {limits}\nListenBacklog 4096\n{"ListenCoresBucketsRatio 1" if reuseport else ""}\nListen 0.0.0.0:80\nMaxConnectionsPerChild 0
            DocumentRoot {folder}\n<Directory {folder}>\nRequire all granted\nAllowOverride None\n</Directory>
            User www-data\nGroup www-data\n"""
        return "\n".join(map(str.strip, config.splitlines())) + "\n", ["setsid", "apache2", "-DFOREGROUND", "-f"]

    return configure


SERVERS = {
    "nginx": nginx,
    "lighttpd": lighttpd,
    "apache-prefork": apache("prefork", "MinSpareServers 8\nMaxSpareServers 8\nMaxRequestWorkers 8"),
    "apache-event": apache("event", "ThreadsPerChild 2\nMinSpareThreads 16\nMaxSpareThreads 16\nMaxRequestWorkers 16"),
}
# Columns that lighttpd cannot do, or in which results could not be told apart.
WITHOUT_REUSEPORT = ("lighttpd",)


def serve(lab, stack, column, options):
    """Starts a real server. Returns the server, its delays, and the client's command."""
    folder = os.path.join(lab.folder, f"{options.server}{next(lab.numbers)}")
    os.mkdir(folder)
    os.chmod(folder, 0o777)
    with open(os.path.join(folder, "page"), "w") as file:
        file.write("page")
    config, command = SERVERS[options.server](folder, options.workers, column == "kernel-reuseport")
    name = os.path.join(folder, "config")
    with open(name, "w") as file:
        file.write(config)
    delays = Delays(lab)
    library = lab.compile("delays", "-shared", "-fPIC")
    command = stack.on_server(every_cpu(), *command, name)
    moment = "read" if options.server == "lighttpd" else "open"
    server = lab.start(command, LD_PRELOAD=library, DELAYS=delays.path, DELAYS_AT=moment)
    wait_for(stack, every_cpu(), server, 80)
    return server, delays, [SERVER, "80", str(options.rate), str(options.seconds), "/page"]


def workers_of(server, count):
    """Returns the processes that serve, in the order in which they were started."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = children_of(server.pid)
        names = {}
        for pid in found:
            try:
                with open(f"/proc/{pid}/stat") as file:
                    names[pid] = int(file.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass
        # Processes without children are workers; a master has children.
        leaves = sorted(pid for pid in names if pid not in names.values())
        if len(leaves) == count:
            return leaves
        time.sleep(0.05)
    raise Failure(f"{count} workers were expected, and there are {len(leaves)}")


def every_cpu():
    return f"0-{(os.cpu_count() or 1) - 1}"


def make(lab, column, options):
    """Returns the stack of a column."""
    if column in KERNEL:
        return Kernel(lab)
    n = options.replicas
    settings = ASKING.get(column, "") + (NO_BATCH if getattr(options, "no_batch", False) else "")
    stack = Atoll(lab, f"TS{n}LS{n}CM{n}", settings=settings)
    if column in SCHEMES:
        sh(ATOLL, "balance", stack.stack, *SCHEMES[column])
    return stack


def measure(lab, stack, column, options):
    """Runs processes that serve and a client on a stack. Returns what the client has measured, and the share of each worker."""
    arrivals, deadline = lab.compile("arrivals"), options.seconds + 60
    if getattr(options, "server", "workers") == "workers":
        workers = lab.compile("workers")
        command = [workers, "8080", str(options.workers), str(options.service), str(options.seconds), *KERNEL.get(column, [])]
        server = lab.start(stack.on_server(every_cpu(), *command))
        wait_for(stack, every_cpu(), server, 8080)
        client = [arrivals, SERVER, "8080", str(options.rate), str(options.seconds)]
        report = json.loads(sh(*stack.on_client(every_cpu(), *client), deadline=deadline))
        end(server)
        return report
    server, delays, client = serve(lab, stack, column, options)
    try:
        delays.begin(workers_of(server, options.workers), options.service, options.seconds)
        try:
            report = json.loads(sh(*stack.on_client(every_cpu(), arrivals, *client), deadline=deadline))
        finally:
            report_served = delays.served()
        return {**report, "served": report_served}
    finally:
        end(server)


def measure_calmly(lab, column, options):
    """Runs a column on a stack of its own, again and again until others leave the CPUs alone. Their load decides, never the result."""
    for attempt in range(options.attempts):
        stack = make(lab, column, options)
        with Measured(lab) as measured:
            report = measure(lab, stack, column, options)
        stack.close()
        report["foreign"] = measured.foreign
        if measured.foreign <= options.foreign:
            return report
        say(f"  others used {measured.foreign:.2f} CPUs")
        time.sleep(min(10, 2 * attempt))
    return None


def at(times, percent):
    """Formats a time in milliseconds."""
    return times[min(len(times) - 1, int(len(times) * percent / 100))] / 1000


def show(rows, options):
    """Returns a line for each column: of all runs the median, and in brackets the least and the greatest."""
    counted = " or ".join(str(count) for count in sorted(set(map(len, rows.values()))))
    print(f"{options.server}: milliseconds from connect to close, {counted} runs, and the share of each worker in percent\n")
    print("| | " + " | ".join(f"p{p:g}" for p in PERCENTILES[:-1]) + " | longest | failed | shares |")
    print("|---|" + "---|" * (len(PERCENTILES) + 2))
    for column, reports in rows.items():
        reports = [report for report in reports if report["micros"]]
        cells = []
        for percent in PERCENTILES if reports else []:
            values = sorted(at(sorted(report["micros"]), percent) for report in reports)
            middle = f"{values[len(values) // 2]:.1f}"
            cells.append(middle if len(values) == 1 else f"{middle} ({values[0]:.1f}-{values[-1]:.1f})")
        served = [sum(counts) for counts in zip(*(report["served"] or [0] for report in reports))]
        shares = " ".join(f"{100 * count / max(1, sum(served)):.0f}" for count in served)
        failed = sum(report["failed"] for report in rows[column])
        print(f"| {column} | " + " | ".join(cells or ["-"] * len(PERCENTILES)) + f" | {failed} | {shares} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=["workers", *SERVERS], default="workers")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rate", type=int, default=1000, help="connections a second")
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--service", type=int, default=1000, help="microseconds that a connection takes a worker that is not slow")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--no-batch", action="store_true", help="replicas of Atoll that preempt who runs (needed under chrt)")
    parser.add_argument("--foreign", type=float, default=9, help="CPUs that others may use during a run that counts")
    parser.add_argument("--attempts", type=int, default=3, help="how often a run that does not count is made again")
    parser.add_argument("--column", action="append", choices=COLUMNS)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("the comparison makes network namespaces and a TAP: run it as root")
    columns = options.column or COLUMNS
    if options.server in WITHOUT_REUSEPORT:
        columns = [column for column in columns if column != "kernel-reuseport"]
    rows = {column: [] for column in columns}
    for run in range(options.runs):
        say(f"run {run + 1} of {options.runs}")
        with Lab() as lab:
            # The first one changes with each run, so that a drift of the machine favours none.
            for column in columns[run % len(columns) :] + columns[: run % len(columns)]:
                say(f"{options.server}, {column} ...")
                report = measure_calmly(lab, column, options)
                if report:
                    rows[column].append(report)
    show(rows, options)


if __name__ == "__main__":
    try:
        main()
    except (Failure, subprocess.TimeoutExpired) as failure:
        sys.exit(f"balance: {failure}")

"""The place where Atoll and the kernel's stack are compared: namespaces, pinned processes, CPU time.

    kernel:  server namespace 198.18.0.2 --veth-- 198.18.0.1 client namespace
    atoll:   stack            198.18.0.2 --TAP--- 198.18.0.1 client namespace

The client always runs on the kernel's TCP, so that it is the same for both. Standard library only.
"""
import atexit
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ATOLL = os.environ.get("ATOLL", os.path.join(ROOT, "target/release/atoll"))
SERVER, CLIENT = "198.18.0.2", "198.18.0.1"


class Failure(Exception):
    """Something failed that has to work; the text says what."""


def say(text):
    """Prints progress, beside the results."""
    print(text, file=sys.stderr, flush=True)


def sh(*command, deadline=30, check=True):
    """Runs a command to its end and returns what it wrote."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=deadline)
    if check and done.returncode != 0:
        raise Failure(f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


ALLOWED = "/proc/sys/net/ipv4/tcp_allowed_congestion_control"


def write(path, text):
    """Writes a setting of the kernel."""
    with open(path, "w") as file:
        file.write(text)


def allow_congestion_controls():
    """Lets namespaces choose any congestion control, not only the default and reno. Returns what was allowed before."""
    with open(ALLOWED) as file:
        before = file.read()
    with open(ALLOWED.replace("allowed", "available")) as file:
        write(ALLOWED, file.read())
    return before


class Lab:
    """Everything that has to be removed again. Use as a context."""

    def __init__(self):
        self.name = f"ab{os.getpid()}"
        self.folder = tempfile.mkdtemp(prefix="atoll-bench-")
        os.chmod(self.folder, 0o755)
        self.processes = []
        self.namespaces = []
        self.stacks = []
        self.numbers = itertools.count()
        self.account = Account(self.name)
        self.allowed = allow_congestion_controls()
        # Neither compiled programs nor results are kept.
        atexit.register(self.close)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends what was started, by process number, and removes what was made. Repeating this is harmless."""
        for process in self.processes:
            end(process)
        self.processes = []
        for name in self.stacks:
            down(name)
        self.stacks = []
        for name in self.namespaces:
            sh("ip", "netns", "del", name, check=False)
        self.namespaces = []
        shutil.rmtree(self.folder, ignore_errors=True)
        self.account.close()
        if self.allowed:
            write(ALLOWED, self.allowed)
            self.allowed = None

    def namespace(self, congestion="cubic"):
        """Makes a network namespace, tuned for many connections."""
        name = f"{self.name}-{next(self.numbers)}"
        sh("ip", "netns", "add", name)
        self.namespaces.append(name)
        sh("ip", "-n", name, "link", "set", "lo", "up")
        settings = {
            "core/somaxconn": "65535",
            "ipv4/tcp_max_syn_backlog": "65535",
            "ipv4/ip_local_port_range": "1024 65535",
            "ipv4/tcp_congestion_control": congestion,
            # A client that closes first must not run out of ports: its connections in TIME-WAIT give way. Otherwise those ports are left in
            # the end that lead to the server's busiest processor, which closes first.
            "ipv4/tcp_tw_reuse": "1",
            "ipv4/tcp_tw_reuse_delay": "1",
        }
        settings = {key: value for key, value in settings.items() if os.path.exists(f"/proc/sys/net/{key}")}
        script = "&&".join(f"echo {value} >/proc/sys/net/{key}" for key, value in settings.items())
        sh("nsenter", f"--net=/run/netns/{name}", "sh", "-c", script)
        return name

    def file(self, name, content):
        """Writes a file into the lab's folder and returns its full name."""
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return path

    def start(self, command, output=None, **environment):
        """Starts a process that runs until `end`, or until the lab closes."""
        log = open(output or os.path.join(self.folder, f"log{next(self.numbers)}"), "wb+")
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **environment})
        process.log = log
        self.processes.append(process)
        return process

    def compile(self, name, *flags):
        """Compiles bench/NAME.c and returns the program."""
        target = os.path.join(self.folder, name + "".join(flags))
        if not os.path.exists(target):
            source = os.path.join(ROOT, "bench", name + ".c")
            sh("cc", "-O2", "-Wall", "-pthread", *flags, "-o", target, source, deadline=60)
        return target


    def compile_go(self, name, cgo):
        """Compiles bench/NAME.go, statically or (`cgo`) with the C library, and returns the program."""
        target = os.path.join(self.folder, f"{name}-{'cgo' if cgo else 'go'}")
        if not os.path.exists(target):
            source = os.path.join(ROOT, "bench", name + ".go")
            # net alone takes the C library only where it is asked to.
            tags = ["-tags", "netcgo"] if cgo else []
            sh("env", f"CGO_ENABLED={int(cgo)}", "GOTOOLCHAIN=local", "go", "build", *tags, "-o", target, source, deadline=300)
        return target


def down(name):
    """Takes a stack down. Its log stays, so that a reason can be found."""
    sh(ATOLL, "down", name, check=False)
    try:
        os.remove(f"/run/atoll/{name}.log")
    except OSError:
        pass


def log_of(process):
    """Returns what a process has written so far."""
    process.log.flush()
    with open(process.log.name, "rb") as file:
        return file.read().decode(errors="replace")


def children_of(pid):
    """Returns the descendants of a process."""
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                for child in map(int, file.read().split()):
                    found += [child, *children_of(child)]
    except OSError:
        pass
    return found


def end(process):
    """Asks a process to end, waits, and insists."""
    family = children_of(process.pid)
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pid in family:
        # Children of a master that ended cleanly are gone; those of one that was killed are not.
        try:
            with open(f"/proc/{pid}/stat") as file:
                if int(file.read().rsplit(")", 1)[1].split()[1]) == 1:
                    os.kill(pid, signal.SIGKILL)
        except OSError:
            pass


class Kernel:
    """The kernel's stack on both sides of a veth."""

    def __init__(self, lab, congestion="cubic"):
        self.lab = lab
        self.name = "kernel" if congestion == "cubic" else f"kernel-{congestion}"
        self.server_namespace = lab.namespace(congestion)
        self.client_namespace = lab.namespace(congestion)
        server, client = self.server_namespace, self.client_namespace
        sh("ip", "-n", server, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", client)
        for namespace, address in ((server, SERVER), (client, CLIENT)):
            sh("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
            sh("ip", "-n", namespace, "link", "set", "eth0", "up")

    def on_server(self, cpu, *command):
        """Returns a command at the server's end, pinned to a CPU."""
        return ["nsenter", f"--net=/run/netns/{self.server_namespace}", "taskset", "-c", str(cpu), *command]

    def on_client(self, cpu, *command):
        """Returns a command at the client's end."""
        return ["nsenter", f"--net=/run/netns/{self.client_namespace}", "taskset", "-c", str(cpu), *command]

    def place(self, cpu):
        """Does nothing: the kernel's stack runs where its processes do."""

    def close(self):
        """Does nothing: the lab removes everything."""


class Atoll(Kernel):
    """Atoll at the server's end of a TAP, the kernel at the client's."""

    def __init__(self, lab, configuration="TS2LS2CM2", cpu=None, settings="", name="atoll", options=()):
        self.lab = lab
        self.name = name
        self.configuration = configuration
        self.server_namespace = lab.namespace()
        self.client_namespace = lab.namespace()
        self.stack = f"{lab.name}x{next(lab.numbers)}"
        command = [ATOLL, "up", "--daemon", "--name", self.stack, "--configuration", configuration]
        command += ["--netns", self.client_namespace, "--address", f"{SERVER}/24", "--peer-address", f"{CLIENT}/24", "--log-format", "json", *options]
        if settings:
            command += ["--config", lab.file(f"{self.stack}.toml", settings)]
        if cpu is not None:
            command = ["taskset", "-c", str(cpu), *command]
        sh(*command)
        lab.stacks.append(self.stack)

    def on_server(self, cpu, *command):
        run = [ATOLL, "run", "--name", self.stack, "--"]
        return super().on_server(cpu, *run, *command)

    def place(self, cpu):
        for pid in self.servers():
            sh("taskset", "-a", "-c", "-p", str(cpu), str(pid))

    def servers(self):
        """Returns the processes of its servers."""
        status = self.status()
        kinds = ("replicas", "link_servers", "ip_servers", "connection_managers")
        return [server["pid"] for kind in kinds for server in status[kind]]

    def status(self):
        """Returns what `atoll status` reports."""
        import json

        return json.loads(sh(ATOLL, "status", self.stack, "--json"))

    def events(self, name):
        """The events of this name in its log (docs/events.md)."""
        import json

        with open(f"/run/atoll/{self.stack}.log") as log:
            return [event for event in map(json.loads, log) if event["event"] == name]

    def close(self):
        down(self.stack)
        if self.stack in self.lab.stacks:
            self.lab.stacks.remove(self.stack)


# Settings with which applications ask for each connection: the naive accept against which Pika measures.
NAIVE = '[accept]\nhandshake = "naive"\n'
# Replicas keep the scheduling policy of the program that starts them, which may be a real-time one where others use the CPUs.
NO_BATCH = "[scheduling]\nbatch = false\n"


class KernelLoopback(Kernel):
    """Both ends on the kernel's loopback."""

    def __init__(self, lab):
        self.lab = lab
        self.name = "kernel-loopback"
        self.server_namespace = self.client_namespace = lab.namespace()


class AtollInternal(Atoll):
    """Both ends on one Atoll, over its internal link."""

    def __init__(self, lab, configuration="TS1LS1CM1", cpu=None):
        super().__init__(lab, configuration, cpu)
        self.name = "atoll-internal"

    def on_client(self, cpu, *command):
        return self.on_server(cpu, *command)


def wait_for(stack, cpu, server, port, seconds=10, address=None):
    """Waits until a server listens: at the server's end of the network, unless another address is given."""
    if address is None:
        address = "127.0.0.1" if isinstance(stack, (KernelLoopback, AtollInternal)) else SERVER
    deadline = time.monotonic() + seconds
    while True:
        probe = stack.on_client(cpu, "nc.openbsd", "-z", "-w", "1", address, str(port))
        if subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0:
            return
        if server.poll() is not None or time.monotonic() > deadline:
            raise Failure(f"{stack.name}: no listener on port {port}\n{log_of(server)[-2000:]}")
        time.sleep(0.05)


def start_nginx(lab, stack, cpu, workers=2, port=80, log_workers=False):
    """Starts nginx, which serves a page of 4 bytes (/4) and a file of 20 (/20), on all addresses."""
    folder = os.path.join(lab.folder, f"nginx{next(lab.numbers)}")
    os.mkdir(folder)
    os.chmod(folder, 0o755)
    for size in (4, 20):
        with open(os.path.join(folder, str(size)), "w") as file:
            file.write("atollatollatollatoll"[:size])
    log = f"log_format worker '$pid'; access_log {folder}/access worker;" if log_workers else "access_log off;"
    temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("fastcgi", "uwsgi", "scgi", "proxy"))
    config = f"""
        daemon off; worker_processes {workers}; pid {folder}/pid; error_log {folder}/error warn; user root;
        worker_rlimit_nofile 200000; events {{ worker_connections 100000; }}
        http {{ {log} keepalive_requests 100000000; keepalive_timeout 600; client_body_temp_path {folder}/body; {temporary}
            default_type text/plain; server {{ listen {port} backlog=65535; root {folder}; }} }}"""
    with open(os.path.join(folder, "nginx.conf"), "w") as file:
        file.write(config)
    process = lab.start(stack.on_server(cpu, "nginx", "-p", folder, "-c", os.path.join(folder, "nginx.conf")))
    process.folder = folder
    return process


class Account:
    """CPU time of everything the lab starts, and of all other processes.

    A control group, because daemons leave the process tree; both versions of control groups count CPU time exactly.
    Without either, the sampled time of all CPUs is all there is.
    """

    def __init__(self, name):
        self.group = None
        self.softirqs = list(softirq_threads())
        for base, file, scale in (
            ("/sys/fs/cgroup/cpuacct", "cpuacct.usage", 1e-9),
            ("/sys/fs/cgroup", "cpu.stat", 1e-6),
            ("/sys/fs/cgroup/unified", "cpu.stat", 1e-6),
        ):
            path = os.path.join(base, f"atoll-{name}")
            try:
                os.mkdir(path)
                with open(os.path.join(path, file)) as usage:
                    usage.read()
                with open(os.path.join(path, "cgroup.procs"), "w") as procs:
                    procs.write(str(os.getpid()))
            except OSError:
                try:
                    os.rmdir(path)
                except OSError:
                    pass
                continue
            self.base, self.group, self.file, self.scale = base, path, os.path.join(path, file), scale
            break

    def ours(self):
        """Returns the seconds of CPU that this lab's processes have used; `None` without control groups."""
        if self.group is None:
            return None
        with open(self.file) as file:
            text = file.read()
        used = text.split("usage_usec")[1].split()[0] if "usage_usec" in text else text
        return int(used) * self.scale + sum(map(running_seconds, self.softirqs))

    @staticmethod
    def busy():
        """Returns the seconds of CPU that all processes and interrupts have used on all CPUs, sampled by the kernel's tick."""
        with open("/proc/stat") as file:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")

    def close(self):
        """Leaves the group and removes it."""
        if self.group is None:
            return
        try:
            with open(os.path.join(self.base, "cgroup.procs"), "w") as procs:
                procs.write(str(os.getpid()))
        except OSError:
            pass
        # Grandchildren may still be ending.
        deadline = time.monotonic() + 3
        while True:
            try:
                os.rmdir(self.group)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    say(f"{self.group}: {error}")
                    break
                time.sleep(0.05)
        self.group = None


def softirq_threads():
    """Returns the kernel's threads that continue network work when a CPU has too much of it; their time is the traffic's, on any stack."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/comm") as file:
                if file.read().startswith("ksoftirqd/"):
                    yield pid
        except OSError:
            pass


def running_seconds(pid):
    """Returns the CPU time of a thread in nanoseconds (Documentation/scheduler/sched-stats.rst)."""
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) * 1e-9


class Measured:
    """A stretch of time: its length, the CPU time of this lab, and the load of others (in CPUs)."""

    def __init__(self, lab):
        self.account = lab.account

    def __enter__(self):
        self.started, self.ours, self.busy = time.monotonic(), self.account.ours(), self.account.busy()
        return self

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self.started
        busy = self.account.busy() - self.busy
        self.cpu = busy if self.ours is None else self.account.ours() - self.ours
        self.foreign = max(0.0, (busy - self.cpu) / self.seconds)

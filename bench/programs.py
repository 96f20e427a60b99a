"""How fast are real programs on Atoll beside the kernel? Those of docs/programs.md that have a load generator.

    bench/programs.py --list                the names
    bench/programs.py                       all of them, three pairs each; about half an hour
    bench/programs.py --pairs 1 nginx       those whose names begin with nginx, one pair

The server runs on the kernel or on Atoll, alternately, the load generator on the kernel at the other end of the veth or TAP, as
in bench.py: each on a CPU of its own, the server's stack on that of the server. What is printed: the medians, the median ratio of
the pairs, the spread of each (greatest over least), the CPU time of both sides for each operation (Atoll's to the kernel's), and by
which way the server's calls reach Atoll. Others may use the CPUs meanwhile; how much they did is printed, and decides nothing
unless --foreign says so. A program that is not installed is named as skipped (`testing/install-deps --soak` installs them). The
exit status is 1 if something that is installed failed. JSON goes to bench/results/.
"""
import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import balance
from bench import Bulk, Case, Keep, Redis, Session, Short, machine, serve_http
from lab import ATOLL, CLIENT, ROOT, SERVER, Atoll, Failure, Kernel, Lab, say, sh, start_nginx, wait_for

os.environ["PATH"] += ":/usr/local/sbin:/usr/sbin:/sbin:/usr/local/go/bin"
PYTHON = "/usr/bin/python3"
SECONDS = 2
MEGABYTES = 200
CLIENT_CPU = 1


# What generates load, and how its report is read.


class Requests(Short):
    """ab, with a connection for each request, for a time instead of a number of requests."""

    generator = "ab"
    clients = 16
    needs = ("ab",)

    def client(self, lab, stack):
        url = f"http://{SERVER}:{self.port}/4"
        return ["ab", "-q", "-t", str(SECONDS), "-n", "1000000", "-c", str(self.clients), url]

    def read(self, report):
        self.requests = int(re.search(r"Complete requests:\s+(\d+)", report)[1])
        if self.requests == 0:
            raise Failure(f"ab: nothing was done: {report}")
        return super().read(report)


class Kept(Keep):
    """wrk, over connections that are kept."""

    generator = "wrk"
    clients = 32
    seconds = SECONDS
    needs = ("wrk",)


class Posted(Kept):
    """wrk, which sends a body with each request."""

    def client(self, lab, stack):
        script = lab.file("post.lua", f"wrk.method = 'POST'\nwrk.body = '{self.body}'\n")
        url = f"http://{SERVER}:{self.port}{self.path}"
        return ["wrk", "-t1", f"-c{self.clients}", f"-d{SECONDS}s", "-s", script, url]


class Stored(Redis):
    """redis-benchmark."""

    generator = "redis-benchmark"
    needs = ("redis-server", "redis-benchmark")
    clients = 50


class Streams(Bulk):
    """iperf3, whose server is the one that is measured; of datagrams those count that arrive."""

    generator = "iperf3"
    needs = ("iperf3",)
    seconds = SECONDS


class Rate(Case):
    """A generator that reports a rate itself. `command` is what it is called with, and `pattern` finds the rate."""

    def client(self, lab, stack):
        return [word.format(server=SERVER, folder=lab.folder, seconds=SECONDS) for word in self.command]

    def read(self, report):
        found = re.search(self.pattern, report)
        if not found or "FATAL" in report:
            raise Failure(f"{self.generator} reports no rate: {report[-500:]}")
        return float(found[1]), float(found[1]) * SECONDS


class Cached(Rate):
    """memcslap, which reports how long a number of requests took."""

    needs = ("memcached", "memcslap")
    port = 11211
    generator = "memcslap"

    def client(self, lab, stack):
        count = str(self.requests // 8)
        return ["memcslap", "-s", f"{SERVER}:{self.port}", "-c", "8", "-e", count, "-t", self.test]

    def read(self, report):
        found = re.search(rf"Time to {self.test}\s+(\d+) keys by\s+8 threads:\s+([\d.]+) seconds", report)
        if not found:
            raise Failure(f"memcslap: {report[-500:]}")
        return int(found[1]) / float(found[2]), int(found[1])


class Repeated(Case):
    """A command that is run again and again (repeat.py); each run counts as `amount` units."""

    amount = 1

    def client(self, lab, stack):
        words = [word.format(server=SERVER, folder=lab.folder) for word in self.command]
        return [PYTHON, os.path.join(ROOT, "bench/repeat.py"), str(SECONDS), *words]

    def read(self, report):
        count, seconds = re.search(r"(\d+) runs in ([\d.]+) s", report).groups()
        return int(count) * self.amount / float(seconds), int(count) * self.amount


# What serves. Each starts a server on a stack, and returns its process.


class ClientSide:
    """The client's end of a network, as a place for a server behind the one that is measured."""

    def __init__(self, stack):
        self.on_server = stack.on_client


def folder_of(lab, name, user=None):
    """Makes a new folder, with a page of 4 bytes and one of 20 in it, as `start_nginx` does."""
    folder = os.path.join(lab.folder, f"{name}{next(lab.numbers)}")
    os.mkdir(folder)
    os.chmod(folder, 0o755)
    for size in (4, 20):
        write(os.path.join(folder, str(size)), "atollatollatollatoll"[:size])
    if user:
        sh("chown", "-R", user, folder)
    return folder


def write(path, text):
    """Writes a file and returns its name."""
    with open(path, "w") as file:
        file.write(text)
    return path


def zeros(folder):
    """Makes the file that is transferred."""
    with open(os.path.join(folder, "zeros"), "wb") as file:
        file.truncate(MEGABYTES << 20)


def nginx(lab, stack, cpu):
    return start_nginx(lab, stack, cpu, workers=1)


def behind(lab, stack):
    """Starts nginx at the client's end."""
    server = start_nginx(lab, ClientSide(stack), CLIENT_CPU, workers=1)
    wait_for(stack, CLIENT_CPU, server, 80, address=CLIENT)


def of_balance(configure, count=1):
    """Starts a server that balance.py can configure."""

    def serve(lab, stack, cpu):
        folder = folder_of(lab, "web")
        os.chmod(folder, 0o777)
        config, command = configure(folder, count, False)
        return lab.start(stack.on_server(cpu, *command, write(os.path.join(folder, "config"), config)))

    return serve


def apache(module, limits, count=1):
    return of_balance(balance.apache(module, f"{limits}\nMaxKeepAliveRequests 0"), count)


def haproxy(lab, stack, cpu):
    behind(lab, stack)
    config = f"""
defaults
 mode http
 timeout connect 5s
 timeout client 10s
 timeout server 10s
frontend in
 bind 0.0.0.0:80
 default_backend out
backend out
 server one {CLIENT}:80
"""
    return lab.start(stack.on_server(cpu, "haproxy", "-db", "-f", lab.file("haproxy.cfg", config)))


def squid(lab, stack, cpu):
    behind(lab, stack)
    folder = folder_of(lab, "squid", "proxy")
    config = f"""
http_port 80 accel defaultsite={CLIENT}
cache_peer {CLIENT} parent 80 0 no-query originserver
http_access allow all
refresh_pattern . 60 100% 60
pid_filename none
cache_log {folder}/log
access_log none
coredump_dir {folder}
cache_mem 16 MB
visible_hostname atoll.test
shutdown_lifetime 1 seconds
pinger_enable off
"""
    return lab.start(stack.on_server(cpu, "squid", "-N", "-f", lab.file("squid.conf", config)))


def varnish(lab, stack, cpu):
    behind(lab, stack)
    folder = folder_of(lab, "varnish")
    options = ["-a", ":80", "-b", f"{CLIENT}:80", "-n", folder, "-s", "malloc,16m", "-T", "none"]
    return lab.start(stack.on_server(cpu, "varnishd", "-F", *options))


def caddy(lab, stack, cpu):
    folder = folder_of(lab, "caddy")
    config = lab.file("Caddyfile", f"{{\n admin off\n}}\n:80 {{\n root * {folder}\n file_server\n}}\n")
    words = ["caddy", "run", "--config", config, "--adapter", "caddyfile"]
    return lab.start(stack.on_server(cpu, *words), HOME=folder)


def go(kind):
    """Starts bench/http.go, linked statically (`go`) or with the C library (`cgo`)."""

    class Chosen:
        program = kind

    return lambda lab, stack, cpu: serve_http(Chosen, lab, stack, cpu)


def node(lab, stack, cpu):
    program = os.path.join(ROOT, "testing/system/programs/http_server.js")
    return lab.start(stack.on_server(cpu, "node", program, "80", folder_of(lab, "node")))


WSGI = """
def app(environ, start_response):
    data = open(environ['PATH_INFO'].lstrip('/'), 'rb').read()
    start_response('200 OK', [('Content-Length', str(len(data)))])
    return [data]
"""
ASGI = """
async def app(scope, receive, send):
    if scope['type'] != 'http':
        return
    data = open(scope['path'].lstrip('/'), 'rb').read()
    head = [(b'content-length', str(len(data)).encode())]
    await send({'type': 'http.response.start', 'status': 200, 'headers': head})
    await send({'type': 'http.response.body', 'body': data})
"""
JAVA = """
import com.sun.net.httpserver.HttpServer;
import java.net.*;
import java.nio.file.*;
import java.util.concurrent.*;

public class Serve {
    public static void main(String[] words) throws Exception {
        HttpServer http = HttpServer.create(new InetSocketAddress("0.0.0.0", 80), 100);
        http.setExecutor(Executors.newFixedThreadPool(8));
        http.createContext("/", exchange -> {
            byte[] data = Files.readAllBytes(Path.of(words[0], exchange.getRequestURI().getPath()));
            exchange.sendResponseHeaders(200, data.length);
            exchange.getResponseBody().write(data);
            exchange.close();
        });
        http.start();
    }
}
"""


def in_folder(folder, *command):
    """Returns a command that runs in a folder."""
    return ["env", "-C", folder, *command]


def gunicorn(lab, stack, cpu):
    folder = folder_of(lab, "gunicorn")
    write(os.path.join(folder, "app.py"), WSGI)
    words = in_folder(folder, PYTHON, "/usr/bin/gunicorn", "-w", "2", "-b", "0.0.0.0:80", "app:app")
    return lab.start(stack.on_server(cpu, *words))


def uvicorn(lab, stack, cpu):
    folder = folder_of(lab, "uvicorn")
    write(os.path.join(folder, "app.py"), ASGI)
    options = ["--loop", "uvloop", "--host", "0.0.0.0", "--port", "80", "--log-level", "warning"]
    words = in_folder(folder, PYTHON, "-m", "uvicorn", *options, "app:app")
    return lab.start(stack.on_server(cpu, *words))


def java(lab, stack, cpu):
    folder = folder_of(lab, "java")
    program = write(os.path.join(folder, "Serve.java"), JAVA)
    server = lab.start(stack.on_server(cpu, "java", program, folder))
    # It is compiled first.
    wait_for(stack, CLIENT_CPU, server, 80, 60)
    return server


def memcached(lab, stack, cpu):
    options = ["-u", "root", "-p", "11211", "-U", "0", "-t", "1", "-l", "0.0.0.0"]
    return lab.start(stack.on_server(cpu, "memcached", *options))


def of_postgresql(program):
    """Returns the newest installed one of PostgreSQL's programs, which are not in PATH."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{program}"))
    return found[-1] if found else program


def postgresql(lab, stack, cpu):
    data = folder_of(lab, "postgresql")
    shutil.rmtree(data)
    os.mkdir(data, 0o700)
    sh("chown", "www-data", data)
    user = ["setpriv", "--reuid", "www-data", "--regid", "www-data", "--clear-groups", "--"]
    init = ["--auth=trust", "--no-sync", "--username=postgres", "-D", data]
    sh(*user, of_postgresql("initdb"), *init, deadline=60)
    write(os.path.join(data, "pg_hba.conf"), "host all all all trust\n")
    words = [of_postgresql("postgres"), "-D", data]
    for setting in ("listen_addresses=*", "unix_socket_directories=", "fsync=off", "autovacuum=off"):
        words += ["-c", setting]
    server = lab.start(stack.on_server(cpu, *user, *words))
    wait_for(stack, CLIENT_CPU, server, 5432, 60)
    # It listens before it has read what its last start has left.
    ready = ["timeout", "60", "sh", "-c", 'until "$0" -q -h "$1"; do sleep 0.1; done', of_postgresql("pg_isready"), SERVER]
    sh(*stack.on_client(CLIENT_CPU, *ready), deadline=70)
    fill = [of_postgresql("pgbench"), "-h", SERVER, "-U", "postgres", "-i", "-q", "postgres"]
    sh(*stack.on_client(CLIENT_CPU, *fill), deadline=60)
    return server


SYSBENCH = "--mysql-host={server} --mysql-user=you --mysql-password=secret --mysql-db=test --tables=1".split()


def mariadb(lab, stack, cpu):
    data = folder_of(lab, "mariadb", "mysql")
    common = ["--no-defaults", f"--datadir={data}", "--user=mysql", "--innodb-log-file-size=4M"]
    common.append("--innodb-flush-log-at-trx-commit=0")
    install = ["--auth-root-authentication-method=normal", "--skip-test-db"]
    sh("mariadb-install-db", *common, *install, deadline=120)
    orders = ("CREATE USER you@'%' IDENTIFIED BY 'secret'", "GRANT ALL ON *.* TO you@'%'", "CREATE DATABASE test")
    start = lab.file("start.sql", "".join(f"{order};\n" for order in orders))
    options = ["--bind-address=0.0.0.0", "--skip-name-resolve", "--innodb-buffer-pool-size=64M"]
    options += [f"--socket={data}/sock", f"--pid-file={data}/pid", f"--init-file={start}"]
    server = lab.start(stack.on_server(cpu, "mariadbd", *common, *options))
    wait_for(stack, CLIENT_CPU, server, 3306, 60)
    fill = ["sysbench", "oltp_point_select", *[word.format(server=SERVER) for word in SYSBENCH]]
    sh(*stack.on_client(CLIENT_CPU, *fill, "--table-size=10000", "prepare"), deadline=60)
    return server


def iperf3(lab, stack, cpu):
    return lab.start(stack.on_server(cpu, "iperf3", "-s"))


def redis(lab, stack, cpu):
    options = ["--port", "6379", "--save", "", "--protected-mode", "no", "--bind", "0.0.0.0"]
    return lab.start(stack.on_server(cpu, "redis-server", *options, "--dir", lab.folder))


def unbound(lab, stack, cpu):
    folder = folder_of(lab, "unbound", "unbound")
    config = f"""
server:
 interface: 0.0.0.0
 access-control: 0.0.0.0/0 allow
 num-threads: 1
 chroot: ""
 username: unbound
 directory: {folder}
 pidfile: {folder}/pid
 use-syslog: no
 do-daemonize: no
 module-config: iterator
 local-zone: test. static
 local-data: "www.example.test. A 192.0.2.7"
 local-data: "ns.example.test. A 198.18.0.2"
remote-control:
 control-enable: no
"""
    questions(lab)
    return lab.start(stack.on_server(cpu, "unbound", "-d", "-c", lab.file("unbound.conf", config)))


ZONE = """$ORIGIN example.test.
$TTL 60
@ IN SOA ns.example.test. me.example.test. 1 3600 600 86400 60
@ IN NS ns
ns IN A 198.18.0.2
www IN A 192.0.2.7
"""


def nsd(lab, stack, cpu):
    folder = folder_of(lab, "nsd")
    write(os.path.join(folder, "zone"), ZONE)
    sh("chown", "-R", "nsd", folder)
    config = f"""
server:
 ip-address: 0.0.0.0
 server-count: 1
 rrl-ratelimit: 0
 username: nsd
 database: ""
 pidfile: ""
 zonesdir: {folder}
 xfrdir: {folder}
 zonelistfile: {folder}/list
 xfrdfile: {folder}/xfrd
 cookie-secret-file: {folder}/cookies
remote-control:
 control-enable: no
zone:
 name: example.test
 zonefile: zone
"""
    questions(lab)
    return lab.start(stack.on_server(cpu, "nsd", "-d", "-c", lab.file("nsd.conf", config)))


def questions(lab):
    """Writes what dnsperf asks."""
    lab.file("questions", "www.example.test A\nns.example.test A\n")


def mosquitto(lab, stack, cpu):
    config = "listener 1883 0.0.0.0\nallow_anonymous true\npersistence false\nuser mosquitto\nlog_dest none\n"
    config += "max_queued_messages 0\n"
    return lab.start(stack.on_server(cpu, "mosquitto", "-c", lab.file("mosquitto.conf", config)))


# A subscriber is known to the server before anything is published, so that nothing is lost whichever begins.
PUBLISH = """
options="-h {server} -q 1 -t here" subscriber="-c -i subscriber"
mosquitto_sub $options $subscriber -E
mosquitto_sub $options $subscriber -C 10000 >{folder}/got & subscriber=$!
seq 10000 | mosquitto_pub $options -l && wait $subscriber
"""


def openssh(lab, stack, cpu):
    zeros(lab.folder)
    for name in ("host", "key"):
        path = os.path.join(lab.folder, name)
        if not os.path.exists(path):
            sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path)
    config = f"""Port 22
HostKey {lab.folder}/host
AuthorizedKeysFile {lab.folder}/key.pub
StrictModes no
PidFile none
UsePAM no
PermitRootLogin yes
Subsystem sftp internal-sftp
"""
    os.makedirs("/run/sshd", exist_ok=True)
    return lab.start(stack.on_server(cpu, shutil.which("sshd"), "-D", "-e", "-f", lab.file("sshd_config", config)))


SSH = "-q -i {folder}/key -F none -oStrictHostKeyChecking=no -oUserKnownHostsFile=/dev/null -oBatchMode=yes".split()


def rsync(lab, stack, cpu):
    folder = folder_of(lab, "rsync")
    zeros(folder)
    config = f"use chroot = yes\nuid = nobody\ngid = nogroup\n[files]\npath = {folder}\n"
    config = lab.file("rsyncd.conf", config)
    words = ["rsync", "--daemon", "--no-detach", "--port=873", f"--config={config}"]
    return lab.start(stack.on_server(cpu, *words, "--log-file=/dev/stderr"))


def vsftpd(lab, stack, cpu):
    folder = folder_of(lab, "vsftpd")
    zeros(folder)
    config = f"""listen=YES
background=NO
anonymous_enable=YES
local_enable=NO
anon_root={folder}
no_anon_password=YES
ftp_username=ftp
nopriv_user=nobody
secure_chroot_dir={folder_of(lab, "empty")}
xferlog_enable=NO
"""
    return lab.start(stack.on_server(cpu, shutil.which("vsftpd"), lab.file("vsftpd.conf", config)))


GIT = ["git", "-c", "user.email=a@example.test", "-c", "user.name=a", "-c", "init.defaultBranch=main"]
BACKEND = "/usr/lib/git-core/git-http-backend"


def git(lab, stack, cpu):
    """lighttpd, which starts git's own program for each request; a repository of 4 MiB in 200 files."""
    folder = folder_of(lab, "git")
    work, bare = os.path.join(folder, "work"), os.path.join(folder, "repository.git")
    sh(*GIT, "init", "-q", work)
    for number in range(200):
        with open(os.path.join(work, str(number)), "wb") as file:
            file.write(os.urandom(20 << 10))
    sh(*GIT, "-C", work, "add", ".")
    sh(*GIT, "-C", work, "commit", "-q", "-m", "random octets")
    sh(*GIT, "clone", "-q", "--bare", work, bare)
    config = f"""server.document-root = "{folder}"
server.port = 80
server.errorlog = "{folder}/error"
server.modules = ("mod_alias", "mod_cgi", "mod_setenv")
alias.url = ("/git" => "{BACKEND}")
$HTTP["url"] =~ "^/git" {{
 cgi.assign = ("" => "")
 setenv.add-environment = ("GIT_PROJECT_ROOT" => "{folder}", "GIT_HTTP_EXPORT_ALL" => "1")
}}
"""
    return lab.start(stack.on_server(cpu, "setsid", "lighttpd", "-D", "-f", lab.file("git.conf", config)))


CLONE = "git clone -q http://{server}/git/repository.git {folder}/clone && rm -r {folder}/clone"


def etcd(lab, stack, cpu):
    peer, url = "http://127.0.0.1:2380", f"http://{SERVER}:2379"
    words = ["etcd", "--name", "m0", "--initial-cluster", f"m0={peer}", "--data-dir", folder_of(lab, "etcd")]
    words += ["--listen-client-urls", url, "--advertise-client-urls", url, "--unsafe-no-fsync"]
    words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    server = lab.start(stack.on_server(cpu, *words))
    wait_for(stack, CLIENT_CPU, server, 2379, 60)
    return server


def programs():
    """Returns all that is compared."""
    kept = lambda name, serve, *needs, **more: Kept(name, serve=serve, needs=("wrk", *needs), **more)
    short = lambda name, serve, *needs, **more: Requests(name, serve=serve, needs=("ab", *needs), **more)
    event = apache("event", "ThreadsPerChild 64\nMinSpareThreads 64\nMaxSpareThreads 64\nMaxRequestWorkers 64")
    prefork = apache("prefork", "MinSpareServers 32\nMaxSpareServers 32\nMaxRequestWorkers 32", 32)
    pgbench = [of_postgresql("pgbench"), "-h", "{server}", "-U", "postgres", "-n", "-S", "-c", "8", "-T", "{seconds}"]
    database = {"serve": postgresql, "port": 5432, "users": ("www-data",), "generator": "pgbench",
                "needs": (of_postgresql("pgbench"), of_postgresql("postgres")), "pattern": r"tps = ([\d.]+)"}
    select = ["sysbench", "oltp_point_select", *SYSBENCH, "--table-size=10000", "--threads=8", "--time={seconds}"]
    ask = ["dnsperf", "-s", "{server}", "-d", "{folder}/questions", "-l", "{seconds}", "-c", "8", "-q", "64", "-m"]
    names = {"port": 53, "generator": "dnsperf", "pattern": r"Queries per second:\s+([\d.]+)"}
    megabytes = {"unit": "MB/s", "amount": MEGABYTES * 1.048576}
    return [
        kept("nginx-kept", nginx, "nginx"),
        short("nginx-short", nginx, "nginx"),
        kept("apache-event-kept", event, "apache2"),
        short("apache-event-short", event, "apache2"),
        kept("apache-prefork-kept", prefork, "apache2"),
        short("apache-prefork-short", prefork, "apache2"),
        kept("lighttpd-kept", of_balance(balance.lighttpd, 0), "lighttpd"),
        short("lighttpd-short", of_balance(balance.lighttpd, 0), "lighttpd"),
        kept("caddy-kept", caddy, "caddy"),
        short("caddy-short", caddy, "caddy"),
        kept("go-static-kept", go("go"), "go"),
        short("go-static-short", go("go"), "go"),
        kept("go-cgo-kept", go("cgo"), "go", "cc"),
        short("go-cgo-short", go("cgo"), "go", "cc"),
        kept("node-kept", node, "node", warm=True),
        short("node-short", node, "node", warm=True),
        short("gunicorn-short", gunicorn, "gunicorn"),
        kept("uvicorn-kept", uvicorn, "/usr/share/doc/python3-uvicorn", "/usr/share/doc/python3-uvloop"),
        kept("java-kept", java, "javac", warm=True),
        short("java-short", java, "javac", warm=True),
        kept("haproxy-kept", haproxy, "haproxy", "nginx"),
        short("haproxy-short", haproxy, "haproxy", "nginx"),
        kept("squid-kept", squid, "squid", "nginx", users=("proxy",)),
        kept("varnish-kept", varnish, "varnishd", "nginx", users=("vcache", "varnish")),
        Stored("redis-get", serve=redis, test="get", pipeline=1, requests=150_000),
        Stored("redis-set-pipelined", serve=redis, test="set", pipeline=16, requests=1_500_000),
        Cached("memcached-get", serve=memcached, test="get", requests=80_000),
        Cached("memcached-set", serve=memcached, test="set", requests=80_000),
        Rate("postgresql-select", command=[*pgbench, "postgres"], **database),
        Rate("postgresql-connect", command=[*pgbench, "-C", "postgres"], **database),
        Rate("mariadb-select", serve=mariadb, port=3306, users=("mysql",), needs=("mariadbd", "sysbench"),
             generator="sysbench", command=[*select, "run"], pattern=r"queries:\s+\d+\s+\(([\d.]+) per sec"),
        Posted("etcd-put", serve=etcd, port=2379, needs=("etcd", "wrk"), path="/v3/kv/put",
               body='{"key":"YQ==","value":"YQ=="}'),
        Streams("iperf3-tcp-in", serve=iperf3),
        Streams("iperf3-tcp-out", serve=iperf3, options=("-R",)),
        Streams("iperf3-udp-in", serve=iperf3, options=("-u", "-b", "0", "-l", "1400")),
        Streams("iperf3-udp-out", serve=iperf3, options=("-u", "-b", "0", "-l", "1400", "-R")),
        Rate("unbound-udp", serve=unbound, users=("unbound",), needs=("unbound", "dnsperf"), command=[*ask, "udp"], **names),
        Rate("nsd-udp", serve=nsd, users=("nsd",), needs=("nsd", "dnsperf"), command=[*ask, "udp"], **names),
        Rate("nsd-tcp", serve=nsd, users=("nsd",), needs=("nsd", "dnsperf"), command=[*ask, "tcp"], **names),
        Repeated("mosquitto", serve=mosquitto, port=1883, users=("mosquitto",), amount=10_000,
                 needs=("mosquitto", "mosquitto_pub"), generator="mosquitto_pub, _sub", command=["sh", "-c", PUBLISH]),
        Repeated("openssh-scp", serve=openssh, port=22, needs=("sshd", "scp"), generator="scp",
                 command=["scp", *SSH, "root@{server}:{folder}/zeros", "/dev/null"], **megabytes),
        Repeated("rsync", serve=rsync, port=873, needs=("rsync",), generator="rsync",
                 command=["rsync", "-W", "--ignore-times", "rsync://{server}/files/zeros", "{folder}/fetched"], **megabytes),
        Repeated("vsftpd", serve=vsftpd, port=21, needs=("vsftpd", "curl"), generator="curl",
                 command=["curl", "-sS", "--fail", "-o", "/dev/null", "ftp://{server}/zeros"], **megabytes),
        Repeated("git-clone", serve=git, needs=("git", "lighttpd", BACKEND), generator="git", command=["sh", "-c", CLONE]),
    ]


def missing(case):
    """Returns which of the programs a case needs are not there."""
    there = lambda need: os.path.exists(need) if need.startswith("/") else shutil.which(need)
    return [need for need in case.needs if not there(need)]


class Comparison(Session):
    """The session of bench.py for one program, with a stack that its users may use."""

    def __init__(self, arguments, lab, case):
        super().__init__(arguments, lab)
        self.case = case
        self.warmed = set()
        # By which ways calls of the server have reached the library.
        self.served_by = set()

    def stacks(self, link, cpu):
        users = ", ".join(f'"{user}"' for user in getattr(self.case, "users", ()))
        settings = f"[users]\nallow = [{users}]\n" if users else ""
        made = [Kernel(self.lab), Atoll(self.lab, self.arguments.configuration, cpu, settings)]
        for stack in made:
            stack.place(cpu)
        return made

    def run(self, case, stack, cpu, idle, repetition):
        # Programs that are compiled while they run are given time for that, on both stacks.
        if getattr(case, "warm", False) and stack.name not in self.warmed:
            self.warmed.add(stack.name)
            super().run(case, stack, cpu, idle, repetition)
        result = super().run(case, stack, cpu, idle, repetition)
        if isinstance(stack, Atoll):
            self.served_by |= {way_of(session) for session in stack.status()["sessions"]}
        return result


def way_of(session):
    """Returns by which way the calls of a program reach Atoll, and whether it is a static program, which `atoll` hosts."""
    try:
        hosted = os.path.samefile(f"/proc/{session['pid']}/exe", ATOLL)
    except OSError:
        hosted = False
    return session["interception"] + (", static" if hosted else "")


def compare(case, arguments):
    """Measures a program in a lab of its own. Returns its result, with `failure` if it has none."""
    result = {"program": case.name, "generator": case.generator, "unit": case.unit, "load": os.getloadavg()[0]}
    with Lab() as lab:
        session = Comparison(arguments, lab, case)
        try:
            session.measure(case, "link", "two")
        except (Failure, OSError, subprocess.SubprocessError) as failure:
            result["failure"] = str(failure)
        rows = {row["stack"]: row for row in session.rows}
        result["served_by"] = sorted(session.served_by)
    result["rows"] = rows
    for name in ("kernel", "atoll"):
        row = rows.get(name, {"failed": 1, "runs": []})
        if row["failed"] or "median" not in row:
            said = [run["failure"] for run in row["runs"] if "failure" in run]
            result.setdefault("failure", f"{name}: {said[0] if said else 'it did not start, or no run counts'}")
    return result


def table(results):
    """Returns the results as a table of a document."""
    lines = ["| program | load | kernel | Atoll | ratio | spread | CPU | served by |", "|---|---|---|---|---|---|---|---|"]
    for result in results:
        head = f"| {result['program']} | {result['generator']} |"
        if "failure" in result:
            lines.append(f"{head} failed | | | | | |")
            continue
        kernel, atoll = result["rows"]["kernel"], result["rows"]["atoll"]
        form = lambda value: format(value, ",.0f" if value >= 1000 else ",.2f" if value < 100 else ",.1f")
        unit = "" if result["unit"] == "1/s" else f" {result['unit']}"
        spread = f"{kernel['spread'] or 0:.2f}, {atoll['spread'] or 0:.2f}"
        lines.append(
            f"{head} {form(kernel['median'])}{unit} | {form(atoll['median'])}{unit} | {atoll['ratio']:.2f} | {spread} "
            f"| {atoll.get('cpu_ratio') or 0:.2f} | {'; '.join(result['served_by'])} |"
        )
        for name in ("kernel", "atoll"):
            for part, cost in result["rows"][name].get("split", {}).items():
                lines.append(f"    {name}, {part}: {cost} us for each")
    return "\n".join(lines)


def parsed():
    """Returns the arguments, as `Session` wants them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the beginning of a program's name")
    parser.add_argument("--pairs", type=int, default=3, dest="runs", help="runs on each stack (3)")
    parser.add_argument("--list", action="store_true", help="the names of all programs")
    parser.add_argument("--configuration", default="TS1LS1CM1", help="Atoll's (TS1LS1CM1)")
    parser.add_argument("--foreign", type=float, default=9, help="CPUs that others may use during a run that counts (any)")
    parser.add_argument("--profile", action="store_true", help="split the CPU time by call stacks (needs perf)")
    parser.set_defaults(idle=["untouched"])
    return parser.parse_args()


def main():
    arguments = parsed()
    everything = programs()
    if arguments.list:
        print("\n".join(case.name for case in everything))
        return
    for name in arguments.names:
        if not any(case.name.startswith(name) for case in everything):
            sys.exit(f"no program's name begins with {name}")
    chosen = [case for case in everything if not arguments.names or case.name.startswith(tuple(arguments.names))]
    if os.geteuid() != 0:
        sys.exit("the comparison makes network namespaces and TAPs: run it as root")
    if (os.cpu_count() or 1) <= CLIENT_CPU:
        sys.exit("the server's side and the client's need a CPU each")
    results, skipped = [], []
    started = time.strftime("%Y%m%d-%H%M%S")
    try:
        for case in chosen:
            if missing(case):
                skipped.append(f"{case.name} ({', '.join(missing(case))})")
                continue
            say(f"{case.name} ...")
            results.append(compare(case, arguments))
    finally:
        # Results are kept when a later program fails.
        report(results, skipped, started, arguments)
    if any("failure" in result for result in results):
        sys.exit(1)


def report(results, skipped, started, arguments):
    """Prints the results and writes them."""
    print(table(results))
    foreign = [run["foreign"] for result in results for row in result["rows"].values() for run in row["runs"]]
    if foreign:
        print(f"\nOthers used {min(foreign):.2f} to {max(foreign):.2f} CPUs, {sum(foreign) / len(foreign):.2f} in the mean.")
    for result in results:
        if "failure" in result:
            print(f"failed: {result['program']}: {result['failure']}")
    if skipped:
        print(f"skipped, because not installed: {'; '.join(skipped)}")
    folder = os.path.join(ROOT, "bench/results")
    os.makedirs(folder, exist_ok=True)
    commit = sh("git", "-C", ROOT, "rev-parse", "--short", "HEAD", check=False).strip()
    path = os.path.join(folder, f"{started}.json")
    with open(path, "w") as file:
        kept = {"commit": commit, "machine": machine(), "arguments": vars(arguments), "skipped": skipped, "results": results}
        json.dump(kept, file, indent=1)
    say(f"written to {os.path.relpath(path)}")


if __name__ == "__main__":
    try:
        main()
    except (Failure, subprocess.SubprocessError) as failure:
        sys.exit(f"programs: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)

//! Do unmodified servers work on the stack?

use std::path::Path;
use std::process::Command;

use atoll_system_tests::{Net, Proc, Stack, program, until};

on_both_stacks![
    nginx,
    lighttpd,
    lighttpd_with_workers,
    apache_prefork,
    apache_worker,
    apache_event,
    redis,
    memcached,
    exim,
    ngircd,
    xinetd,
    postgresql,
    openssh,
    haproxy,
    haproxy_splices,
    python_http_server,
    python_asyncio,
    node,
    nginx_upgrades_itself
];

/// Returns one megabyte that compresses badly and has no repetition.
pub fn megabyte() -> Vec<u8> {
    let mut rng = atoll_base::Rng::new(1);
    (0..131_072).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

/// Fetches `path` from the stack, and returns it.
pub fn fetch(net: &Net, port: u16, path: &str) -> Vec<u8> {
    let target = net.scratch.path().join("fetched");
    let mut curl = net.on_client("curl");
    curl.args(["-sS", "--fail", "--max-time", "20", "-o"]).arg(&target);
    curl.arg(format!("http://{}:{port}{path}", Net::SERVER));
    Proc::start(&mut curl, None).success(25);
    std::fs::read(&target).expect("curl has written it")
}

/// Fetches a small file, a megabyte, and twenty small files at once, over a connection for each and over kept
/// ones.
fn serves_files(net: &Net, server: &mut Proc, port: u16) {
    net.listens(server, port);
    assert_eq!(fetch(net, port, "/small"), b"tiny");
    assert!(fetch(net, port, "/big") == megabyte(), "the megabyte arrived changed");
    let mut ab = net.on_client("ab");
    ab.args(["-q", "-s", "10", "-n", "200", "-c", "20", &format!("http://{}:{port}/small", Net::SERVER)]);
    let report = Proc::start(&mut ab, None).success(60);
    assert!(report.contains("Complete requests:      200"), "{report}\n{}", server.report());
    assert!(report.contains("Failed requests:        0"), "{report}");
    assert!(server.runs(), "{}", server.report());
}

fn files(net: &Net) -> String {
    net.scratch.file("small", "tiny");
    net.scratch.file("big", megabyte());
    net.scratch.path().to_string_lossy().into_owned()
}

/// Starts nginx with two workers that serve the scratch folder on port 80.
pub fn start_nginx(net: &Net) -> Proc {
    nginx_with(net, "daemon off;")
}

/// Starts nginx as [`start_nginx`] does, with parameters of `listen`.
pub fn nginx_that_listens(net: &Net, parameters: &str) -> Proc {
    start_nginx_as(net, "daemon off;", parameters)
}

fn nginx_with(net: &Net, settings: &str) -> Proc {
    start_nginx_as(net, settings, "")
}

fn start_nginx_as(net: &Net, settings: &str, listen: &str) -> Proc {
    let folder = files(net);
    let config = net.scratch.file(
        "nginx.conf",
        format!(
            "{settings} worker_processes 2; pid {folder}/nginx.pid; error_log stderr warn; user root;
             events {{ worker_connections 20000; }} worker_rlimit_nofile 50000;
             http {{ access_log off; keepalive_requests 1000000; client_max_body_size 0;
                     client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path \
                     {folder}/f;
                     uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
                     server {{ listen 80 backlog=4096 {listen}; root {folder}; }} }}"
        ),
    );
    net.serve("/usr/sbin/nginx", &["-p", &folder, "-c", &config])
}

fn nginx(stack: Stack) {
    let net = Net::new(stack);
    let mut server = start_nginx(&net);
    serves_files(&net, &mut server, 80);
}

/// The new program inherits the listener over exec(2) while the old one serves
/// (<https://nginx.org/en/docs/control.html>).
fn nginx_upgrades_itself(stack: Stack) {
    let net = Net::new(stack);
    // Only a daemon can be upgraded; the program that starts it exits at once.
    let started = nginx_with(&net, "daemon on;").success(20);
    assert_eq!(started, "");
    let pid_file = net.scratch.path().join("nginx.pid");
    let running = |other: &str| {
        until("an nginx", 30, || {
            let pid = std::fs::read_to_string(&pid_file).ok()?.trim().to_owned();
            (!pid.is_empty() && pid != other).then(|| Daemon(pid))
        })
    };
    let old = running("");
    // A signal between the file's creation and the first worker is looked at only at the next signal.
    assert_eq!(fetch(&net, 80, "/small"), b"tiny");
    let url = format!("http://{}/small", Net::SERVER);
    let mut load = net.client("ab", &["-q", "-r", "-t", "4", "-n", "1000000", "-c", "8", &url]);
    old.signal("USR2");
    let new = running(&old.0);
    assert_eq!(fetch(&net, 80, "/small"), b"tiny");
    old.signal("QUIT");
    until("the old nginx to end", 20, || (!old.runs()).then_some(()));
    assert!(load.runs(), "it went under load: {}", load.report());
    let said = load.success(20);
    // On any stack, workers that quit close connections whose request has not arrived yet; at most as many as
    // are open at a time.
    let broken = said
        .split_once("(Connect: 0, Receive: ")
        .and_then(|(_, rest)| rest.split(',').next()?.parse::<u32>().ok());
    assert!(said.contains("Failed requests:        0") || broken.is_some_and(|count| count <= 8), "{said}");
    assert_eq!(fetch(&net, 80, "/small"), b"tiny");
    new.signal("QUIT");
    until("the new nginx to end", 20, || (!new.runs()).then_some(()));
}

/// A process that is not a child of the test. Dropping it ends the process.
struct Daemon(String);

impl Daemon {
    fn runs(&self) -> bool {
        Path::new(&format!("/proc/{}", self.0)).exists()
    }

    fn signal(&self, name: &str) {
        assert!(
            Command::new("kill").args(["-s", name, &self.0]).status().is_ok_and(|status| status.success()),
            "{name}"
        );
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.runs() {
            self.signal("TERM");
        }
    }
}

fn lighttpd(stack: Stack) {
    let net = Net::new(stack);
    let folder = files(&net);
    let config = net.scratch.file(
        "lighttpd.conf",
        format!("server.document-root = \"{folder}\"\nserver.port = 8080\nserver.bind = \"0.0.0.0\"\n"),
    );
    let mut server = net.serve("lighttpd", &["-D", "-f", &config]);
    serves_files(&net, &mut server, 8080);
}

fn lighttpd_with_workers(stack: Stack) {
    let net = Net::new(stack);
    let folder = files(&net);
    let config = net.scratch.file(
        "lighttpd.conf",
        format!(
            "server.document-root = \"{folder}\"\nserver.port = 8080\nserver.bind = \"0.0.0.0\"\n\
             server.max-worker = 4\n"
        ),
    );
    // lighttpd signals its process group at its end, so it gets a session of its own.
    let mut server = net.serve("setsid", &["lighttpd", "-D", "-f", &config]);
    serves_files(&net, &mut server, 8080);
}

/// Each process waits in accept() or poll() for one connection.
fn apache_prefork(stack: Stack) {
    let limits = "StartServers 8\nMinSpareServers 8\nMaxSpareServers 8\nMaxRequestWorkers 8\n\
                  MaxConnectionsPerChild 100";
    apache(stack, "prefork", limits);
}

/// Processes have several threads, of which one waits for connections.
fn apache_worker(stack: Stack) {
    let limits =
        "StartServers 2\nThreadsPerChild 8\nMinSpareThreads 8\nMaxSpareThreads 16\nMaxRequestWorkers 16";
    apache(stack, "worker", limits);
}

/// Processes have several threads, and an epoll instance for the connections that are kept.
fn apache_event(stack: Stack) {
    // A child ends kept connections when its threads are busy or it is one too many, so neither happens here.
    let limits =
        "StartServers 2\nThreadsPerChild 16\nMinSpareThreads 16\nMaxSpareThreads 64\nMaxRequestWorkers 32";
    apache(stack, "event", limits);
}

fn apache(stack: Stack, module: &str, limits: &str) {
    let net = Net::new(stack);
    let folder = files(&net);
    let modules = "/usr/lib/apache2/modules";
    // Children that have served their share end, and others are forked in their place.
    let config = net.scratch.file(
        "apache.conf",
        format!(
            "ServerRoot {folder}\nServerName stack\nPidFile {folder}/apache.pid\nErrorLog /dev/stderr\n\
             Mutex default:{folder}\n
             LoadModule mpm_{module}_module {modules}/mod_mpm_{module}.so
             LoadModule authz_core_module {modules}/mod_authz_core.so\n{limits}\n
             Listen 0.0.0.0:80\nMaxKeepAliveRequests 0\nDocumentRoot {folder}\n<Directory {folder}>\n\
             Require all granted\n</Directory>\n
             User www-data\nGroup www-data\n"
        ),
    );
    // Apache signals its process group at its end, so it gets a session of its own.
    let mut server = net.serve("setsid", &["/usr/sbin/apache2", "-DFOREGROUND", "-f", &config]);
    serves_files(&net, &mut server, 80);
    for kept in [false, true] {
        let mut ab = net.on_client("ab");
        ab.args(kept.then_some("-k"));
        ab.args(["-q", "-s", "10", "-n", "2000", "-c", "8", &format!("http://{}/small", Net::SERVER)]);
        let report = Proc::start(&mut ab, None).success(60);
        assert!(report.contains("Failed requests:        0"), "{report}\n{}", server.report());
    }
    server.terminate();
    assert!(server.end(20).success(), "{}", server.report());
}

fn redis(stack: Stack) {
    let net = Net::new(stack);
    let arguments = ["--port", "6379", "--save", "", "--protected-mode", "no", "--bind", "0.0.0.0"];
    let mut server = net.serve("redis-server", &arguments);
    net.listens(&mut server, 6379);
    let value: String = megabyte().iter().map(|byte| char::from(b'a' + byte % 26)).collect();
    let value_file = std::fs::File::open(net.scratch.file("value", &value)).expect("just written");
    let mut set = net.on_client("redis-cli");
    set.args(["-h", Net::SERVER, "-x", "set", "key"]);
    assert_eq!(Proc::start(&mut set, Some(value_file)).success(20), "OK\n");
    let got = net.client("redis-cli", &["-h", Net::SERVER, "get", "key"]).success(20);
    assert!(got.trim_end() == value, "the value came back changed");
    for pipelined in ["1", "16"] {
        let arguments =
            ["-h", Net::SERVER, "-n", "5000", "-c", "20", "-P", pipelined, "-t", "set,get,incr", "--csv"];
        let report = net.client("redis-benchmark", &arguments).success(60);
        for test in ["SET", "GET", "INCR"] {
            assert!(report.contains(test), "{report}");
        }
    }
    // Each of the two runs of the benchmark adds 5000; it rounds up to whole pipelines.
    let counter = net.client("redis-cli", &["-h", Net::SERVER, "get", "counter:__rand_int__"]).success(20);
    assert!((10_000..10_500).contains(&counter.trim_end().parse().unwrap_or(0)), "{counter}");
}

/// PostgreSQL's postmaster forks in signal handlers, and starts a process for each connection
/// (<https://www.postgresql.org/docs/current/pgbench.html>).
fn postgresql(stack: Stack) {
    const USER: [&str; 4] = ["--reuid", "www-data", "--regid", "www-data"];
    let net = Net::configured(stack, "[users]\nallow = [\"www-data\"]\n");
    let data = net.scratch.path().join("data");
    std::fs::create_dir(&data).expect("the folder is new");
    let mut chown = Command::new("chown");
    assert!(chown.arg("www-data:www-data").arg(&data).status().is_ok_and(|status| status.success()));
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is installed").flatten();
    let programs = versions.map(|version| version.path().join("bin")).max().expect("a version is installed");
    let [initdb, postgres, pgbench] =
        ["initdb", "postgres", "pgbench"].map(|name| programs.join(name).to_string_lossy().into_owned());
    let as_user = |mut command: Command| {
        command.args(USER).args(["--clear-groups", "--"]);
        command
    };
    let mut init = as_user(net.on_server("setpriv"));
    init.args([&initdb, "--auth=trust", "--no-sync", "--username=postgres", "-D"]).arg(&data);
    Proc::start(&mut init, None).success(60);
    std::fs::write(data.join("pg_hba.conf"), "host all all all trust\n").expect("initdb has made it");
    let bench = |arguments: &[&str]| {
        let common = ["-h", Net::SERVER, "-U", "postgres"];
        net.client(&pgbench, &[&common, arguments, &["postgres"]].concat()).success(60)
    };
    for start in 0..4 {
        let mut server = as_user(net.on_stack("setpriv"));
        server.args([&postgres, "-D"]).arg(&data);
        for setting in ["listen_addresses=*", "unix_socket_directories=", "fsync=off"] {
            server.args(["-c", setting]);
        }
        let mut server = Proc::start(&mut server, None);
        server.says("ready to accept connections", 30);
        if start == 0 {
            bench(&["-i", "-q"]);
        }
        for connections in [&["-C"][..], &[]] {
            let report = bench(&[connections, &["-S", "-c", "4", "-t", "50"]].concat());
            assert!(report.contains("processed: 200/200"), "{report}");
        }
        // SIGINT asks for a "fast shutdown": sessions are ended, and the postmaster waits for its children.
        crate::recovery::signal("INT", server.pid().into());
        assert!(server.end(30).success(), "{}", server.report());
    }
}

/// sshd handles each connection in a child that a system call filter confines
/// (<https://man.openbsd.org/sshd_config>). ssh, at the other end and on the stack itself, logs in and copies
/// files by scp and sftp.
fn openssh(stack: Stack) {
    let net = Net::new(stack);
    files(&net);
    let path = |name: &str| net.scratch.path().join(name).to_string_lossy().into_owned();
    for name in ["host", "key"] {
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-f", &path(name)]);
        Proc::start(&mut keygen, None).success(20);
    }
    let settings = [
        "Port 22".to_owned(),
        format!("HostKey {}", path("host")),
        format!("AuthorizedKeysFile {}", path("key.pub")),
        "StrictModes no\nPidFile none\nUsePAM no\nPermitRootLogin yes".to_owned(),
        "Subsystem sftp internal-sftp\n".to_owned(),
    ];
    let file = net.scratch.file("sshd_config", settings.join("\n"));
    // sshd confines its children to this folder.
    std::fs::create_dir_all("/run/sshd").expect("a folder of the system");
    let mut server = net.serve("/usr/sbin/sshd", &["-D", "-e", "-f", &file]);
    net.listens(&mut server, 22);
    let key = path("key");
    let options = [
        "-i",
        &key,
        "-F",
        "none",
        "-oStrictHostKeyChecking=no",
        "-oUserKnownHostsFile=/dev/null",
        "-oBatchMode=yes",
    ];
    let remote = format!("root@{}", Net::SERVER);
    for mut ssh in [net.on_client("ssh"), net.on_stack("ssh")] {
        ssh.args(options).args(["-q", &remote, "tr a-z A-Z <<<hello"]);
        assert_eq!(Proc::start(&mut ssh, None).success(30), "HELLO\n", "{}", server.report());
    }
    // scp uses its old protocol, and then sftp's.
    for protocol in ["-O", "-s"] {
        let mut scp = net.on_client("scp");
        let from = format!("{remote}:{}", path("big"));
        scp.args(options).args(["-q", protocol, &from, &path("copied")]);
        Proc::start(&mut scp, None).success(30);
        assert!(std::fs::read(path("copied")).expect("scp has written it") == megabyte(), "{protocol}");
        std::fs::remove_file(path("copied")).expect("it is there");
    }
}

fn memcached(stack: Stack) {
    let net = Net::new(stack);
    let mut server =
        net.serve("memcached", &["-u", "root", "-p", "11211", "-U", "0", "-t", "2", "-l", "0.0.0.0"]);
    net.listens(&mut server, 11211);
    let report =
        net.client("/usr/bin/python3", &[&program("memcached_client.py"), Net::SERVER, "11211"]).success(30);
    assert_eq!(report, "1000 values of 20 clients are right\n");
}

/// Exim binds as root, becomes `Debian-exim`, which is not admitted, and forks for each connection and
/// message.
fn exim(stack: Stack) {
    let net = Net::new(stack);
    let spool = net.scratch.path().join("spool");
    std::fs::create_dir(&spool).expect("the scratch folder is ours");
    let chown = Command::new("chown").args(["Debian-exim:Debian-exim"]).arg(&spool).status();
    assert!(chown.expect("it is there").success());
    let spool = spool.to_string_lossy().into_owned();
    let config = net.scratch.file(
        "exim.conf",
        format!(
            "primary_hostname = mail.atoll.example\nspool_directory = {spool}\nlog_file_path = \
             {spool}/%slog\nexim_user = Debian-exim\nexim_group = Debian-exim\ndaemon_smtp_ports = 25\n\
             local_interfaces = 0.0.0.0\nhost_lookup =\nrfc1413_query_timeout = 0s\nkeep_environment =\n\
             tls_advertise_hosts =\nacl_smtp_rcpt = accept\nbegin acl\nbegin routers\naway:\n driver = \
             redirect\n data = :blackhole:\n"
        ),
    );
    let mut server = net.serve("/usr/sbin/exim4", &["-bdf", "-C", &config]);
    net.listens(&mut server, 25);
    // It listens first.
    until("exim to be another user", 10, || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
        (!status.contains("Uid:\t0")).then_some(())
    });
    let talk = "import smtplib, sys
for turn in range(2):
    server = smtplib.SMTP(sys.argv[1], 25, timeout=30)
    text = b'Subject: x\\r\\n\\r\\n' + b'hello\\r\\n' * 20000
    server.sendmail('me@test.example', ['you@atoll.example'], text)
    print(server.quit()[0])";
    let said = net.client("/usr/bin/python3", &["-c", talk, Net::SERVER]).success(90);
    assert_eq!(said, "221\n".repeat(2), "{}", server.report());
    assert!(server.runs() && !server.errors().contains("libatoll"), "{}", server.report());
}

/// ngIRCd becomes `irc` before it has a socket, so that user is admitted. It forks to look up names.
fn ngircd(stack: Stack) {
    let net = Net::configured(stack, "[users]\nallow = [\"irc\"]\n");
    let config = net.scratch.file(
        "ngircd.conf",
        "[Global]\nName = irc.atoll.example\nInfo = a test\nListen = 0.0.0.0\nPorts = 6667\n\
         ServerUID = irc\nServerGID = irc\n[Options]\nDNS = yes\nIdent = no\nPAM = no\n",
    );
    let mut server = net.serve("/usr/sbin/ngircd", &["-n", "-f", &config]);
    net.listens(&mut server, 6667);
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
    assert!(!status.contains("Uid:\t0"), "{status}");
    let talk = "import socket, sys
def join(name):
    peer = socket.create_connection((sys.argv[1], 6667), 20)
    peer.sendall(b'NICK %s\\r\\nUSER %s 0 * :%s\\r\\nJOIN #here\\r\\n' % (name, name, name))
    return peer
def until(peer, what):
    said = b''
    while what not in said:
        more = peer.recv(4096)
        assert more, said
        said += more
one = join(b'one'); until(one, b' 366 ')
two = join(b'two'); until(two, b' 366 ')
two.sendall(b'PRIVMSG #here :hello\\r\\n')
until(one, b'PRIVMSG #here :hello')
print('heard')";
    let said = net.client("/usr/bin/python3", &["-c", talk, Net::SERVER]).success(60);
    assert_eq!(said, "heard\n", "{}", server.report());
    assert!(server.runs() && !server.errors().contains("libatoll"), "{}", server.report());
}

/// xinetd forks for each connection, becomes `nobody`, which is not admitted, and executes the service, which
/// forks and executes further programs.
fn xinetd(stack: Stack) {
    let net = Net::new(stack);
    let service = net.scratch.file("back", "#!/bin/sh\nid -u\nsed -u s/^/said:/\n");
    std::fs::set_permissions(&service, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("it is ours");
    let config = net.scratch.file(
        "xinetd.conf",
        format!(
            "service back\n{{\n type = UNLISTED\n socket_type = stream\n protocol = tcp\n port = 7007\n \
             wait = no\n user = nobody\n server = {service}\n}}\n"
        ),
    );
    let mut server = net.serve("/usr/sbin/xinetd", &["-dontfork", "-f", &config]);
    net.listens(&mut server, 7007);
    let talk = "import socket, sys
for turn in range(5):
    peer = socket.create_connection((sys.argv[1], 7007), 20)
    peer.sendall(b'hello\\n'); peer.shutdown(socket.SHUT_WR)
    print(*peer.makefile().read().split())";
    let said = net.client("/usr/bin/python3", &["-c", talk, Net::SERVER]).success(60);
    assert_eq!(said, "65534 said:hello\n".repeat(5), "{}", server.report());
    assert!(server.runs() && !server.errors().contains("libatoll"), "{}", server.report());
}

fn haproxy(stack: Stack) {
    let net = Net::new(stack);
    let folder = files(&net);
    // The proxy accepts and connects on the stack under test; the server behind it is on the client
    // namespace's kernel.
    let serve = ["-m", "http.server", "8000", "--bind", "198.18.0.1", "--directory", &folder];
    let mut behind = net.client("/usr/bin/python3", &serve);
    behind.says("Serving HTTP", 10);
    let config = net.scratch.file(
        "haproxy.cfg",
        "defaults\n mode http\n timeout connect 5s\n timeout client 10s\n timeout server 10s\n
         frontend in\n bind 0.0.0.0:8081\n default_backend out\nbackend out\n server one 198.18.0.1:8000\n",
    );
    let mut server = net.serve("haproxy", &["-db", "-f", &config]);
    serves_files(&net, &mut server, 8081);
}

/// Octets go from connection to pipe to connection, in both modes of the proxy: splice(2).
fn haproxy_splices(stack: Stack) {
    let net = Net::new(stack);
    let folder = files(&net);
    let serve = ["-m", "http.server", "8000", "--bind", "198.18.0.1", "--directory", &folder];
    let mut behind = net.client("/usr/bin/python3", &serve);
    behind.says("Serving HTTP", 10);
    let socket = net.scratch.path().join("admin").to_string_lossy().into_owned();
    let config = net.scratch.file(
        "haproxy.cfg",
        format!(
            "global\n stats socket {socket}\ndefaults\n option splice-auto\n option splice-response\n \
             timeout connect 5s\n timeout client 10s\n timeout server 10s\nlisten web\n mode http\n \
             bind 0.0.0.0:8081\n server one 198.18.0.1:8000\nlisten octets\n mode tcp\n \
             bind 0.0.0.0:8082\n server one 198.18.0.1:8000\n"
        ),
    );
    let mut server = net.serve("haproxy", &["-db", "-f", &config]);
    for port in [8081, 8082] {
        serves_files(&net, &mut server, port);
    }
    let ask = "import socket, sys
admin = socket.socket(socket.AF_UNIX)
admin.connect(sys.argv[1])
admin.sendall(b'show info\\n')
facts = dict(line.split(': ', 1) for line in admin.makefile().read().splitlines() if ': ' in line)
print('pipes:', int(facts['PipesUsed']) + int(facts['PipesFree']) > 0)";
    let said = net.client("/usr/bin/python3", &["-c", ask, &socket]).success(20);
    assert_eq!(said, "pipes: True\n", "{}", server.report());
}

fn python_http_server(stack: Stack) {
    let net = Net::new(stack);
    let folder = files(&net);
    let mut server = net.serve("/usr/bin/python3", &["-m", "http.server", "8000", "--directory", &folder]);
    serves_files(&net, &mut server, 8000);
}

fn python_asyncio(stack: Stack) {
    let net = Net::new(stack);
    let folder = files(&net);
    let mut server = net.serve("/usr/bin/python3", &[&program("asyncio_server.py"), "8000", &folder]);
    serves_files(&net, &mut server, 8000);
}

fn node(stack: Stack) {
    let net = Net::new(stack);
    let folder = files(&net);
    let mut server = net.serve("node", &[&program("http_server.js"), "8000", &folder]);
    serves_files(&net, &mut server, 8000);
}

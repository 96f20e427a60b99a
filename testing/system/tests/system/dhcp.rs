//! Does a stack get its address from existing DHCP servers, and what happens when it loses the address?
//!
//! ```text
//!   stack 1 --TAP--+
//!   stack 2 --TAP--br0 198.18.0.1: the server, clients      all in one namespace
//! ```

use std::process::Command;

use atoll_system_tests::{NoNet, Proc, Scratch, atoll, fresh_name, program, until};
use serde_json::Value;

use crate::recovery::signal;

/// A link with a bridge, on which stacks get their addresses only by DHCP.
struct Lan {
    scratch: Scratch,
    /// The configuration of its stacks.
    configuration: String,
    name: String,
    stacks: Vec<String>,
    /// The namespaces of other hosts.
    hosts: Vec<String>,
    _turn: NoNet,
}

impl Lan {
    fn new(configuration: &str) -> Lan {
        let no_net = NoNet::new();
        let lan = Lan {
            scratch: Scratch::new(),
            configuration: configuration.into(),
            name: fresh_name("dhcp"),
            stacks: Vec::new(),
            hosts: Vec::new(),
            _turn: no_net,
        };
        ip(&format!("netns add {}", lan.name));
        for arguments in [
            "link set lo up",
            "link add br0 type bridge",
            "addr add 198.18.0.1/24 dev br0",
            "link set br0 up",
        ] {
            lan.ip(arguments);
        }
        lan
    }

    fn ip(&self, arguments: &str) {
        ip(&format!("-n {} {arguments}", self.name));
    }

    /// Starts a stack on the bridge that asks for an address, and returns its name.
    fn stack(&mut self) -> String {
        let name = format!("{}-{}", self.name, self.stacks.len());
        let mut up = Command::new(atoll());
        up.args([
            "up",
            "--daemon",
            "--name",
            &name,
            "--netns",
            &self.name,
            "--configuration",
            &self.configuration,
        ]);
        up.args(["--address", "dhcp", "--dhcp-wait", "0", "--peer-address", "none"]);
        self.stacks.push(name.clone());
        Proc::start(&mut up, None).success(20);
        let device = link(&name)["device"].as_str().expect("a TAP has a name").to_owned();
        self.ip(&format!("link set {device} master br0"));
        self.ip(&format!("link set {device} up"));
        name
    }

    /// Adds a host with this address.
    fn host(&mut self, address: &str) {
        let name = format!("{}-h{}", self.name, self.hosts.len());
        self.hosts.push(name.clone());
        ip(&format!("netns add {name}"));
        self.ip(&format!("link add {name} type veth peer name eth0 netns {name}"));
        self.ip(&format!("link set {name} master br0"));
        self.ip(&format!("link set {name} up"));
        ip(&format!("-n {name} addr add {address}/24 dev eth0"));
        ip(&format!("-n {name} link set eth0 up"));
    }

    /// Starts a program at the kernel's end.
    fn run(&self, program: &str, arguments: &[&str]) -> Proc {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name)).args(["--", program]).args(arguments);
        Proc::start(command.current_dir(self.scratch.path()), None)
    }

    /// Starts a program on a stack, in a namespace where the kernel has no network.
    fn on(&self, stack: &str, program: &str, arguments: &[&str]) -> Proc {
        let mut run = Command::new("unshare");
        run.args(["-n", "--", "sh", "-c", "ip link set lo up; exec \"$@\"", "sh"]).arg(atoll());
        run.args(["run", "--name", stack, "--", program]).args(arguments).current_dir(self.scratch.path());
        Proc::start(&mut run, None)
    }

    /// Starts dnsmasq, which leases addresses of this range.
    fn dnsmasq(&self, range: &str) -> Proc {
        let leases = self.scratch.file("leases", "");
        let range = format!("--dhcp-range={range},255.255.255.0,2m");
        let arguments =
            ["-k", "-p", "0", "-C", "/dev/null", "-u", "root", "-x", "", "-i", "br0", "--bind-interfaces"];
        let more = [
            "--log-facility=-",
            "--no-ping",
            "--dhcp-authoritative",
            "--domain=example.org",
            &range,
            "-l",
            &leases,
        ];
        let options =
            ["--dhcp-option=option:mtu,1400", "--dhcp-option=option:dns-server,198.18.0.1,198.18.0.53"];
        let mut server = self.run("dnsmasq", &[&arguments[..], &more, &options].concat());
        server.says("sockets bound", 10);
        server
    }

    /// Starts udhcpd with leases so short that they have to be renewed all the time.
    fn udhcpd(&self) -> Proc {
        let leases = self.scratch.file("leases", "");
        let settings = format!(
            "start 198.18.0.60\nend 198.18.0.60\ninterface br0\nlease_file {leases}\npidfile {leases}.pid\n\
             opt lease 4\n\
             opt subnet 255.255.255.0\nopt router 198.18.0.1\n"
        );
        let settings = self.scratch.file("udhcpd.conf", settings);
        let mut server = self.run("udhcpd", &["-f", &settings]);
        server.says("started", 10);
        server
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        for stack in &self.stacks {
            let _ = Command::new(atoll()).args(["down", stack]).status();
            let log = std::path::Path::new("/run/atoll").join(format!("{stack}.log"));
            if std::thread::panicking() {
                eprintln!("--- log of {stack}:\n{}", std::fs::read_to_string(&log).unwrap_or_default());
            }
            let _ = std::fs::remove_file(log);
        }
        for namespace in self.hosts.iter().chain([&self.name]) {
            let _ = Command::new("ip").args(["netns", "del", namespace]).status();
        }
    }
}

fn ip(arguments: &str) {
    let output =
        Command::new("ip").args(arguments.split_whitespace()).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {} (root?)", String::from_utf8_lossy(&output.stderr));
}

/// Makes two tests of each function: one where each replica has IP, and one where IP is another process.
macro_rules! with_ip_inside_and_apart {
    ($($name:ident),*) => {
        mod inside { $(#[test] fn $name() { super::$name("TS2LS2CM2"); })* }
        mod apart { $(#[test] fn $name() { super::$name("TS2CM2+IP2LS2"); })* }
    };
}

with_ip_inside_and_apart![
    stacks_get_addresses_and_give_them_back,
    a_lease_is_renewed_and_lost_and_connections_wait_for_it,
    an_address_that_another_host_has_is_not_used
];

/// Returns what `atoll status` reports of a stack's link.
fn link(stack: &str) -> Value {
    status(stack)["stack"]["link"].clone()
}

fn status(stack: &str) -> Value {
    let mut ask = Command::new(atoll());
    let text = Proc::start(ask.args(["status", stack, "--json", "--interval", "0"]), None).success(10);
    serde_json::from_str(&text).expect("it prints JSON")
}

fn address(stack: &str) -> Option<String> {
    link(stack)["address"].as_str().map(str::to_owned)
}

fn stacks_get_addresses_and_give_them_back(configuration: &str) {
    let mut lan = Lan::new(configuration);
    let (first, second) = (lan.stack(), lan.stack());
    assert_eq!((address(&first), link(&first)["dhcp"]["server"].is_null()), (None, true));
    let server = lan.dnsmasq("198.18.0.50,198.18.0.59");
    let given = [&first, &second].map(|stack| until("an address", 40, || address(stack)));
    assert!(given.iter().all(|given| given.starts_with("198.18.0.5")) && given[0] != given[1], "{given:?}");
    let link_of_first = link(&first);
    let dhcp = &link_of_first["dhcp"];
    assert_eq!((&dhcp["state"], &dhcp["server"]), (&Value::from("bound"), &Value::from("198.18.0.1")));
    assert_eq!(
        (&dhcp["dns"], &dhcp["domain"]),
        (&serde_json::json!(["198.18.0.1", "198.18.0.53"]), &Value::from("example.org"))
    );
    assert!(dhcp["valid_s"].as_u64().is_some_and(|seconds| seconds <= 120), "{dhcp}");
    let facts = ["prefix", "mtu", "gateway"].map(|key| link_of_first[key].clone());
    assert_eq!(facts, [Value::from(24), 1400.into(), "198.18.0.1".into()]);

    // nginx runs on the first stack; clients run on the kernel, on the other stack, and on the first one.
    let folder = lan.scratch.path().to_string_lossy().into_owned();
    lan.scratch.file("page", "a".repeat(300_000));
    let settings = format!(
        "daemon off; worker_processes 2; pid {folder}/nginx.pid; error_log stderr warn; user root; events \
         {{ }}
         http {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
                 fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
                 server {{ listen {}:80; root {folder}; }} }}",
        given[0]
    );
    let config = lan.scratch.file("nginx.conf", settings);
    let mut nginx = lan.on(&first, "/usr/sbin/nginx", &["-p", &folder, "-c", &config]);
    let url = format!("http://{}/page", given[0]);
    let fetch =
        ["-sS", "--fail", "--max-time", "10", "-o", "/dev/null", "-w", "%{size_download} %{local_ip}", &url];
    until("nginx", 20, || {
        assert!(nginx.runs(), "{}", nginx.report());
        lan.run("curl", &fetch).end(15).success().then_some(())
    });
    assert_eq!(lan.run("curl", &fetch).success(15), "300000 198.18.0.1");
    assert_eq!(lan.on(&second, "curl", &fetch).success(15), format!("300000 {}", given[1]));
    assert_eq!(lan.on(&first, "curl", &fetch).success(15), format!("300000 {}", given[0]));

    let mut down = Command::new(atoll());
    Proc::start(down.args(["down", &second]), None).success(10);
    lan.stacks.pop();
    let released = format!("DHCPRELEASE(br0) {}", given[1]);
    until("the release", 10, || (server.errors() + &server.output()).contains(&released).then_some(()));
}

fn a_lease_is_renewed_and_lost_and_connections_wait_for_it(configuration: &str) {
    let mut lan = Lan::new(configuration);
    let stack = lan.stack();
    let mut server = lan.udhcpd();
    let given = until("an address", 40, || address(&stack));
    let echo =
        "import socket; s = socket.create_server(('', 7)); print('ready', flush=True); c, _ = s.accept()
while data := c.recv(9999): c.sendall(data)";
    let mut echo = lan.on(&stack, "/usr/bin/python3", &["-u", "-c", echo]);
    echo.says("ready", 10);
    // The client prints the answer to each line that is appended to the file.
    let client = "import socket, sys, time; s = socket.create_connection((sys.argv[1], 7), 90); seen = b''
while seen != b'end':
    time.sleep(0.05); now = open('question', 'rb').read()
    if now != seen: seen = now; s.sendall(now); print('echo', s.recv(9999).decode(), flush=True)";
    lan.scratch.file("question", "one");
    let mut client = lan.run("/usr/bin/python3", &["-u", "-c", client, &given]);
    client.says("echo one", 20);
    let acknowledged = |server: &Proc| (server.errors() + &server.output()).matches("sending ACK to").count();
    until("two renewals", 30, || (acknowledged(&server) >= 3).then_some(()));
    assert_eq!(address(&stack).as_deref(), Some(&*given));
    lan.scratch.file("question", "two");
    client.says("echo two", 20);

    server.terminate();
    server.end(10);
    until("the end of the lease", 20, || address(&stack).is_none().then_some(()));
    lan.scratch.file("question", "end");
    let script = "import errno, socket
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    s = socket.socket(socket.AF_INET, kind)
    try: s.connect(('198.18.0.1', 9))
    except OSError as e: print(errno.errorcode[e.errno])
try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('198.18.0.1', 9))
except OSError as e: print(errno.errorcode[e.errno])
try: socket.socket().bind(('198.18.0.60', 0))
except OSError as e: print(errno.errorcode[e.errno])
s = socket.create_server(('127.0.0.1', 8)); socket.create_connection(('127.0.0.1', 8)); print('loopback')";
    let said = lan.on(&stack, "/usr/bin/python3", &["-c", script]).success(20);
    assert_eq!(said, "ENETUNREACH\nENETUNREACH\nENETUNREACH\nEADDRNOTAVAIL\nloopback\n");

    let _server = lan.udhcpd();
    assert_eq!(until("the address again", 60, || address(&stack)), given);
    client.says("echo end", 60);
    client.success(10);
}

fn an_address_that_another_host_has_is_not_used(configuration: &str) {
    let mut lan = Lan::new(configuration);
    let stack = lan.stack();
    lan.host("198.18.0.55");
    let server = lan.dnsmasq("198.18.0.55,198.18.0.55");
    until("the host is reached, and its address declined", 40, || {
        assert_eq!(address(&stack), None);
        (server.errors() + &server.output()).contains("DHCPDECLINE(br0) 198.18.0.55").then_some(())
    });
}

/// Replicas die, also the one that has asked for the address. The address is there again at once, no new
/// request is sent, and streams continue.
#[test]
fn a_lease_outlives_replicas() {
    let mut lan = Lan::new("TS2LS2CM2");
    let server = lan.dnsmasq("198.18.0.50,198.18.0.59");
    let stack = lan.stack();
    let given = until("an address", 40, || address(&stack));
    let streams = program("streams.py");
    let mut echo = lan.on(&stack, "/usr/bin/python3", &[&streams, "serve", "7000", "2"]);
    let connects = || lan.run("nc.openbsd", &["-z", "-w", "1", &given, "7000"]).end(5).success();
    until("the listener", 20, || connects().then_some(()));
    let mut client = lan.run("/usr/bin/python3", &[&streams, "steady", &given, "7000", "6", "10000"]);
    let said = |server: &Proc| server.errors() + &server.output();
    let discovered = said(&server).matches("DHCPDISCOVER").count();
    assert!(discovered > 0, "{}", said(&server));
    for index in [0, 1, 0, 0, 1] {
        let replica = || status(&stack)["replicas"][index].clone();
        let before = replica();
        signal("KILL", before["pid"].as_u64().expect("it runs"));
        until("the next one", 20, || {
            let now = replica();
            (now["epoch"].as_u64() > before["epoch"].as_u64() && now["recovery"]["state"] == "serving")
                .then_some(())
        });
        let link = link(&stack);
        assert_eq!(
            (link["address"].as_str(), &link["dhcp"]["state"]),
            (Some(&*given), &Value::from("bound"))
        );
        assert_eq!(link["dhcp"]["dns"], serde_json::json!(["198.18.0.1", "198.18.0.53"]));
        std::thread::sleep(std::time::Duration::from_millis(600));
        assert!(client.runs(), "{}", client.report());
    }
    signal("INT", client.pid().into());
    client.success(60);
    assert!(echo.runs(), "{}", echo.report());
    assert_eq!(said(&server).matches("DHCPDISCOVER").count(), discovered, "nobody has asked anew");
}

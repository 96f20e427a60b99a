//! What network does a test run in?
//!
//! ```text
//!   Kernel:            server namespace  198.18.0.2 --veth-- 198.18.0.1  client namespace
//!   Atoll:             stack             198.18.0.2 --TAP--- 198.18.0.1  client namespace
//!   impaired, both:    server or stack   198.18.0.2 -------- 198.18.0.1  middle namespace
//!                                                               relay (two TAPs, in user space)
//!                                                    198.18.0.130        client namespace
//! ```
//! The middle answers ARP for both sides (proxy ARP) and forwards, so that neither end needs a route.
//!
//! With a black hole the middle is two bridges with a cable between them, whose far end takes shorter packets
//! than the near one. A longer packet is lost on the way to the client, without an ICMP message.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde_json::Value;

use crate::kernel_use::kernel_use;
use crate::turn::{self, Turn};
use crate::{Events, Proc, Scratch};

/// The TCP that serves in a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// The kernel's TCP, which shows that the test itself is right.
    Kernel,
    /// Atoll's TCP.
    Atoll,
}

/// The impairments that the relay makes, each as frames per million.
#[derive(Clone, Copy, Debug)]
pub struct Impairments {
    /// Frames that never arrive.
    pub drop: u32,
    /// Frames that arrive twice.
    pub duplicate: u32,
    /// Frames that arrive behind later ones.
    pub reorder: u32,
    /// Frames that arrive with a changed byte.
    pub corrupt: u32,
    /// Frames that arrive with a congestion mark, out of those whose sender supports ECN.
    pub mark: u32,
    /// The seed that decides which frames are impaired.
    pub seed: u64,
}

impl Impairments {
    /// The usual impairments: 1 % dropped, 1 % duplicated, 1 % reordered, 0.1 % corrupted.
    pub const USUAL: Impairments =
        Impairments { drop: 10_000, duplicate: 10_000, reorder: 10_000, corrupt: 1_000, mark: 0, seed: 1 };

    /// The impairments of a congested path: 1 % marked, and nothing else.
    pub const MARKS: Impairments =
        Impairments { drop: 0, duplicate: 0, reorder: 0, corrupt: 0, mark: 10_000, seed: 2 };
}

/// Returns whether the tests should transfer the amounts that take long (`make soak`).
pub fn soak() -> bool {
    std::env::var_os("ATOLL_SOAK").is_some()
}

/// Returns the configuration for tests that do not ask for one.
pub fn usual_configuration() -> String {
    std::env::var("ATOLL_CONFIGURATION").unwrap_or_else(|_| "TS2LS2CM2".into())
}

/// A network of one test, with a stack at its server's end. Dropping it removes the network.
#[derive(Debug)]
pub struct Net {
    /// The TCP that serves.
    pub stack: Stack,
    /// The folder for the files of this test.
    pub scratch: Scratch,
    name: String,
    relay: Option<Proc>,
    /// Whether the test itself runs programs on the kernel's network of the server's namespace.
    uses_kernel: AtomicBool,
    // The turn is the last field, so the next test starts when the rest of the network is gone.
    _turn: Option<Turn>,
}

impl Net {
    /// The address of the stack under test.
    pub const SERVER: &str = "198.18.0.2";
    /// The IPv6 address of the stack under test, in networks that were made without impairments.
    pub const SERVER6: &str = "2001:db8::2";
    /// The IPv6 address of the host that [`Net::add_far_host`] makes.
    pub const FAR6: &str = "2001:db8:f::2";

    /// Creates a network whose stack has two replicas, or the configuration that `ATOLL_CONFIGURATION` names.
    pub fn new(stack: Stack) -> Net {
        Net::with(stack, &usual_configuration(), None)
    }

    /// Creates a network with a relay in between that impairs frames.
    pub fn impaired(stack: Stack, impairments: Impairments) -> Net {
        Net::with(stack, &usual_configuration(), Some(impairments))
    }

    /// Creates a network whose stack has this configuration.
    pub fn with(stack: Stack, configuration: &str, impairments: Option<Impairments>) -> Net {
        Net::set(stack, configuration, impairments, "")
    }

    /// Creates a network whose stack has this configuration and more settings, as TOML.
    pub fn with_settings(stack: Stack, configuration: &str, settings: &str) -> Net {
        Net::set(stack, configuration, None, settings)
    }

    /// Creates a network whose stack has two replicas and these settings, as TOML.
    pub fn configured(stack: Stack, settings: &str) -> Net {
        Net::set(stack, "TS2LS2CM2", None, settings)
    }

    /// Creates a network with TCP Fast Open at both ends, as client and as server.
    pub fn fast_open(stack: Stack) -> Net {
        let net = Net::set(stack, &usual_configuration(), None, "[tcp]\nfast_open = \"both\"\n");
        let Names { server, client, .. } = net.names();
        for namespace in [server, client] {
            let mut set = net.in_namespace(&namespace, "sh");
            set.args(["-c", "echo 3 >/proc/sys/net/ipv4/tcp_fastopen"]).status().expect("there is a shell");
        }
        net
    }

    /// Creates a network that silently drops packets of more than `mtu` octets on the way to the client.
    pub fn with_black_hole(stack: Stack, mtu: u32) -> Net {
        let mut net = Net::bare(stack);
        net.set_up_black_hole(mtu);
        net
    }

    fn set_up_black_hole(&mut self, mtu: u32) {
        let Names { server, middle, client } = self.names();
        for name in [&server, &middle, &client] {
            ip(&format!("netns add {name}"));
            ip(&format!("-n {name} link set lo up"));
        }
        let port = match self.stack {
            Stack::Kernel => {
                ip(&format!("-n {server} link add eth0 type veth peer name port netns {middle}"));
                ip(&format!("-n {server} addr add 198.18.0.2/24 dev eth0"));
                ip(&format!("-n {server} link set eth0 up"));
                "port".to_owned()
            }
            Stack::Atoll => {
                let mut up = Command::new(atoll());
                up.args([
                    "up",
                    "--daemon",
                    "--name",
                    &self.name,
                    "--configuration",
                    "TS2LS2CM2",
                    "--netns",
                    &middle,
                ]);
                up.args(["--address", "198.18.0.2/24", "--log-format", "json"]);
                Proc::start(&mut up, None).success(20);
                let device = self.atoll_says("status")["stack"]["link"]["device"].clone();
                device.as_str().expect("a TAP has a name").to_owned()
            }
        };
        ip(&format!("-n {middle} link add near type veth peer name far"));
        ip(&format!("-n {middle} link add out type veth peer name eth0 netns {client}"));
        ip(&format!("-n {client} addr add 198.18.0.1/24 dev eth0"));
        ip(&format!("-n {client} link set eth0 up"));
        for (bridge, ports) in [("br0", [&*port, "near"]), ("br1", ["far", "out"])] {
            ip(&format!("-n {middle} link add {bridge} type bridge"));
            ip(&format!("-n {middle} link set {bridge} up"));
            for port in ports {
                ip(&format!("-n {middle} link set {port} master {bridge}"));
                ip(&format!("-n {middle} link set {port} up"));
            }
        }
        // A packet that is still to be segmented would not be measured.
        for device in ["near", "far"] {
            let arguments = ["-K", device, "tso", "off", "gso", "off", "gro", "off"];
            Proc::start(self.in_namespace(&middle, "ethtool").args(arguments), None).success(10);
        }
        ip(&format!("-n {middle} link set far mtu {mtu}"));
        if self.stack == Stack::Kernel {
            // By default the kernel does not probe the path's MTU.
            let mut probing = self.in_namespace(&server, "sh");
            probing.args(["-c", "echo 1 >/proc/sys/net/ipv4/tcp_mtu_probing"]);
            Proc::start(&mut probing, None).success(10);
        }
    }

    /// Makes the client a router of IPv6 and puts a host behind it, over a link that takes packets of `mtu`
    /// octets.
    pub fn add_far_host(&self, mtu: u32) {
        let Names { middle: far, client, .. } = self.names();
        ip(&format!("netns add {far}"));
        ip(&format!("-n {far} link set lo up"));
        ip(&format!("-n {client} link add far0 mtu {mtu} type veth peer name eth0 mtu {mtu} netns {far}"));
        ip(&format!("-n {client} addr add 2001:db8:f::1/64 dev far0 nodad"));
        ip(&format!("-n {far} addr add {}/64 dev eth0 nodad", Net::FAR6));
        ip(&format!("-n {client} link set far0 up"));
        ip(&format!("-n {far} link set eth0 up"));
        // The far host announces its usual MSS, so its peers do not learn of the narrow link from it.
        ip(&format!("-n {far} route add default via 2001:db8:f::1 advmss 1440"));
        let mut forward = self.in_namespace(&client, "sh");
        forward.args(["-c", "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"]);
        Proc::start(&mut forward, None).success(10);
    }

    /// Returns a command for `program` on the host behind the client.
    pub fn on_far_host(&self, program: &str) -> Command {
        self.in_namespace(&self.names().middle, program)
    }

    /// Waits for a turn, and creates a network without namespaces or stack.
    fn bare(stack: Stack) -> Net {
        let turn = turn::beside();
        Net {
            stack,
            scratch: Scratch::new(),
            name: fresh_name("at"),
            relay: None,
            uses_kernel: AtomicBool::new(false),
            _turn: turn,
        }
    }

    fn set(stack: Stack, configuration: &str, impairments: Option<Impairments>, settings: &str) -> Net {
        let mut net = Net::bare(stack);
        let settings = net.scratch.file("atoll.toml", settings);
        net.set_up(configuration, &settings, impairments);
        net
    }

    fn set_up(&mut self, configuration: &str, settings: &str, impairments: Option<Impairments>) {
        let Names { server, middle, client } = self.names();
        for name in [&server, &client] {
            ip(&format!("netns add {name}"));
            ip(&format!("-n {name} link set lo up"));
        }
        // The stack's peer is the client, or the middle if there is one.
        let peer = if impairments.is_some() { &middle } else { &client };
        if impairments.is_some() {
            ip(&format!("netns add {middle}"));
        }
        match self.stack {
            Stack::Kernel => {
                ip(&format!("-n {server} link add eth0 type veth peer name eth0 netns {peer}"));
                ip(&format!("-n {server} addr add 198.18.0.2/24 dev eth0"));
                ip(&format!("-n {peer} addr add 198.18.0.1/24 dev eth0"));
                ip(&format!("-n {server} addr add 2001:db8::2/64 dev eth0 nodad"));
                ip(&format!("-n {peer} addr add 2001:db8::1/64 dev eth0 nodad"));
                ip(&format!("-n {server} link set eth0 up"));
                ip(&format!("-n {peer} link set eth0 up"));
            }
            Stack::Atoll => self.bring_up(configuration, settings, peer),
        }
        let Some(impairments) = impairments else { return };
        let mut relay = Command::new(relay_program());
        relay.args([&middle, &client].map(|name| format!("{name}:wire0")));
        let Impairments { drop, duplicate, reorder, corrupt, mark, seed } = impairments;
        relay
            .args([drop, duplicate, reorder, corrupt, mark].map(|per_million| per_million.to_string()))
            .arg(seed.to_string());
        let mut relay = Proc::start(&mut relay, None);
        relay.says("ready", 10);
        self.relay = Some(relay);
        ip(&format!("-n {client} addr add 198.18.0.130/24 dev wire0"));
        ip(&format!("-n {middle} route add 198.18.0.130/32 dev wire0"));
        let settings =
            "ip_forward=1 conf/all/proxy_arp=1 neigh/wire0/proxy_delay=0 conf/all/send_redirects=0";
        for setting in settings.split_whitespace() {
            let (key, value) = setting.split_once('=').expect("written so");
            self.in_namespace(&middle, "sh")
                .args(["-c", &format!("echo {value} >/proc/sys/net/ipv4/{key}")])
                .status()
                .expect("there is a shell");
        }
        self.in_namespace(&middle, "sh")
            .args(["-c", "for f in /proc/sys/net/ipv4/neigh/*/proxy_delay; do echo 0 >$f; done"])
            .status()
            .expect("there is a shell");
    }

    fn bring_up(&self, configuration: &str, settings: &str, peer: &str) {
        let mut up = Command::new(atoll());
        up.args(["up", "--daemon", "--name", &self.name, "--configuration", configuration, "--netns", peer]);
        up.args(["--config", settings, "--log-format", "json"]);
        up.args(["--address", "198.18.0.2/24", "--peer-address", "198.18.0.1/24"]);
        up.args(["--address6", "2001:db8::2/64", "--peer-address6", "2001:db8::1/64"]);
        Proc::start(&mut up, None).success(20);
    }

    /// Kills every process of the stack at once: nobody is left who could tell its programs.
    pub fn kill_all(&self) {
        let status = self.atoll_says("status");
        let mut pids = vec![status["stack"]["guardian"].as_u64().expect("it has a guardian")];
        pids.extend(status["stack"]["pid"].as_u64());
        for kind in ["replicas", "link_servers", "ip_servers", "connection_managers"] {
            pids.extend(status[kind].as_array().into_iter().flatten().filter_map(|it| it["pid"].as_u64()));
        }
        pids.dedup();
        // Guardian and supervisor would start each other anew in between.
        for (signal, pids) in [("STOP", &pids[..2]), ("KILL", &pids[..])] {
            let mut kill = Command::new("kill");
            kill.args(["-s", signal]).args(pids.iter().map(u64::to_string));
            Proc::start(&mut kill, None).success(10);
        }
    }

    /// Ends the stack by `atoll down`.
    pub fn down(&self) {
        Proc::start(Command::new(atoll()).args(["down", &self.name]), None).success(20);
    }

    /// Brings a stack that is gone up again, under its name and with its addresses. The network was made by
    /// [`Net::new`].
    pub fn up_again(&self) {
        let settings = self.scratch.path().join("atoll.toml");
        self.bring_up(&usual_configuration(), &settings.to_string_lossy(), &self.names().client);
    }

    fn names(&self) -> Names {
        let name = |part| format!("{}-{part}", self.name);
        Names { server: name("s"), middle: name("m"), client: name("c") }
    }

    fn in_namespace(&self, namespace: &str, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{namespace}"))
            .args(["--", program])
            .current_dir(self.scratch.path());
        command
    }

    /// Returns the name of the stack, or of the network where the kernel serves.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the namespace in which clients run, on the kernel's TCP.
    pub fn client_namespace(&self) -> String {
        self.names().client
    }

    /// Returns the network interface that leads from the client's namespace to the stack.
    pub fn client_interface(&self) -> String {
        let output =
            Command::new("ip").args(["-n", &self.names().client, "-o", "route", "get", Net::SERVER]).output();
        let output = String::from_utf8(output.expect("ip is installed").stdout).expect("it prints text");
        let mut words = output.split_whitespace().skip_while(|&word| word != "dev");
        words.nth(1).expect("there is a route to the stack").into()
    }

    /// Returns the IPv6 addresses that the stack under test has on its link now, without tentative ones.
    pub fn own_v6(&self) -> Vec<String> {
        let of = |own: &Value, key: &str| own[key].as_str().unwrap_or_default().to_owned();
        match self.stack {
            Stack::Atoll => {
                let status = self.atoll_says("status");
                let all = status["stack"]["link"]["addresses6"].as_array().cloned().unwrap_or_default();
                let is = |own: &Value, flag: &str| {
                    own["flags"].as_array().is_some_and(|f| f.contains(&flag.into()))
                };
                let usable = |own: &&Value| !is(own, "tentative") && !is(own, "dadfailed");
                all.iter().filter(usable).map(|own| of(own, "address")).collect()
            }
            Stack::Kernel => {
                let arguments = ["-n", &self.names().server, "-6", "-j", "addr", "show", "dev", "eth0"];
                let said = Command::new("ip").args(arguments).output().expect("ip is installed").stdout;
                let links: Value = serde_json::from_slice(&said).unwrap_or_default();
                let all = links[0]["addr_info"].as_array().cloned().unwrap_or_default();
                let usable = |own: &&Value| own["tentative"] != true && own["dadfailed"] != true;
                all.iter().filter(usable).map(|own| of(own, "local")).collect()
            }
        }
    }

    /// Returns a command for `program` on the stack under test.
    ///
    /// Under Atoll, too, it runs in a namespace that has nothing else: a socket that leaks into the kernel's
    /// stack finds no peer there.
    pub fn on_stack(&self, program: &str) -> Command {
        let namespace = self.names().server;
        match self.stack {
            Stack::Kernel => self.in_namespace(&namespace, program),
            Stack::Atoll => {
                let mut command = self.in_namespace(&namespace, &atoll().to_string_lossy());
                command.args(["run", "--name", &self.name, "--", program]);
                command
            }
        }
    }

    /// Returns a command for `program` in the server's namespace, on the kernel's stack unless the program
    /// chooses otherwise itself. After this, uses of the kernel's network of that namespace are not counted.
    pub fn on_server(&self, program: &str) -> Command {
        self.uses_kernel.store(true, Ordering::Relaxed);
        self.in_namespace(&self.names().server, program)
    }

    /// Returns a command for `program` on the kernel's stack, at the client's end.
    pub fn on_client(&self, program: &str) -> Command {
        self.in_namespace(&self.names().client, program)
    }

    /// Starts a program on the stack under test.
    pub fn serve(&self, program: &str, arguments: &[&str]) -> Proc {
        Proc::start(self.on_stack(program).args(arguments), None)
    }

    /// Starts a program at the client's end.
    pub fn client(&self, program: &str, arguments: &[&str]) -> Proc {
        Proc::start(self.on_client(program).args(arguments), None)
    }

    /// Pings from the client's end until `count` requests are answered. `arguments` are options and the host.
    ///
    /// # Panics
    /// If so many are not answered in 20 s. How long an answer takes does not matter: ping without a deadline
    /// does not wait for one that is later than twice the slowest before.
    pub fn pings(&self, count: u32, arguments: &[&str]) {
        let count = count.to_string();
        let options = ["-q", "-n", "-c", &count, "-i", "0.02", "-w", "20"];
        self.client("ping", &[&options[..], arguments].concat()).success(30);
    }

    /// Waits until a socket listens on a port of the stack.
    ///
    /// # Panics
    /// If `server` ends before, or after ten seconds.
    pub fn listens(&self, server: &mut Proc, port: u16) {
        crate::until(&format!("a listener on port {port}"), 10, || {
            assert!(server.runs(), "the server has ended: {}", server.report());
            let port = port.to_string();
            let mut nc = self.on_client("nc.openbsd");
            nc.args(["-z", "-w", "1", Net::SERVER, &port]).stderr(std::process::Stdio::null());
            nc.status().expect("nc is installed").success().then_some(())
        });
        if self.stack == Stack::Atoll {
            // listen(2) takes effect at one replica after the other.
            crate::until(&format!("all replicas to listen on port {port}"), 10, || {
                let (rows, port) = (self.atoll_says("ss"), format!(":{port}"));
                let listens = |row: &&Value| {
                    row["state"] == "LISTEN" && row["local"].as_str().is_some_and(|own| own.ends_with(&port))
                };
                let rows = rows.as_array().expect("ss lists sockets").iter().filter(listens);
                let replicas: BTreeSet<u64> = rows.filter_map(|row| row["replica"].as_u64()).collect();
                (replicas.len() == self.replicas().len()).then_some(())
            });
            assert_eq!(self.kernel_use(), [""; 0], "by {}", server.report());
        }
    }

    /// Returns the uses of the kernel's network by programs on Atoll in their namespace, where no other
    /// program is: none, unless the test has asked for it with [`Net::on_server`].
    fn kernel_use(&self) -> Vec<String> {
        let namespace = self.names().server;
        let is_counted = self.stack == Stack::Atoll
            && !self.uses_kernel.load(Ordering::Relaxed)
            && Path::new("/run/netns").join(&namespace).exists();
        if is_counted { kernel_use(&namespace) } else { Vec::new() }
    }

    /// Runs `atoll COMMAND NAME --json` on the stack, and returns its output.
    pub fn atoll_says(&self, command: &str) -> Value {
        assert_eq!(self.stack, Stack::Atoll, "the kernel has nothing to say here");
        let mut ask = Command::new(atoll());
        ask.args([command, &self.name, "--json"]);
        if command == "ss" {
            // Without `--all`, listeners are not listed.
            ask.arg("--all");
        }
        let text = Proc::start(&mut ask, None).success(10);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("atoll {command} --json: {error}: {text}"))
    }

    /// Returns the process numbers of the stack's replicas. They stay unless a replica dies.
    pub fn replicas(&self) -> Vec<u64> {
        match self.stack {
            Stack::Kernel => Vec::new(),
            Stack::Atoll => {
                let status = self.atoll_says("status");
                let replicas = status["replicas"].as_array().expect("status lists the replicas").clone();
                replicas.iter().map(|replica| replica["pid"].as_u64().expect("a replica has a pid")).collect()
            }
        }
    }

    /// Returns the resident memory of the stack's replicas, in KiB.
    pub fn replica_memory(&self) -> u64 {
        let memory = |pid: &u64| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        self.replicas().iter().filter_map(memory).sum()
    }

    /// Returns the events of the stack's log so far.
    pub fn events(&self) -> Events {
        Events::read(&self.log_path())
    }

    fn log_path(&self) -> PathBuf {
        Path::new("/run/atoll").join(format!("{}.log", self.name))
    }
}

impl Drop for Net {
    /// Takes everything apart.
    ///
    /// # Panics
    /// If a program on Atoll has used the kernel's network.
    fn drop(&mut self) {
        let used = self.kernel_use();
        if self.stack == Stack::Atoll {
            let mut down = Command::new(atoll());
            let status = down.args(["down", &self.name]).status();
            if !status.as_ref().is_ok_and(|status| status.success()) {
                eprintln!("atoll down {}: {status:?}", self.name);
            }
            // A failed test prints the log of its stack.
            let log = self.log_path();
            let text = fs::read_to_string(&log).unwrap_or_default();
            if std::thread::panicking() && !text.is_empty() {
                eprintln!("--- log of the stack:\n{text}");
            }
            let _ = fs::remove_file(log);
        }
        self.relay = None;
        let Names { server, middle, client } = self.names();
        for name in [server, middle, client] {
            if Path::new("/run/netns").join(&name).exists() {
                let _ = Command::new("ip").args(["netns", "del", &name]).status();
            }
        }
        if !std::thread::panicking() {
            assert_eq!(used, [""; 0], "a program on the stack has used the kernel's network");
        }
    }
}

/// A place without a network, for programs whose both ends are one stack, on its loopback.
#[derive(Debug)]
pub struct NoNet {
    _turn: Option<Turn>,
}

impl Default for NoNet {
    fn default() -> NoNet {
        NoNet::new()
    }
}

impl NoNet {
    /// Waits for a turn, and creates the place.
    pub fn new() -> NoNet {
        NoNet { _turn: turn::beside() }
    }

    /// Returns `command` on a stack of its own.
    ///
    /// Under Atoll, too, it runs in a namespace that has nothing but a loopback.
    pub fn on(&self, stack: Stack, command: &Command) -> Command {
        if stack == Stack::Kernel {
            return self.without_network(command);
        }
        let mut run = Command::new(atoll());
        run.args(["run", "--private", "--"]).arg(command.get_program()).args(command.get_args());
        self.without_network(&run)
    }

    /// Returns `command` in a namespace where the kernel has nothing but a loopback.
    pub fn without_network(&self, command: &Command) -> Command {
        let mut wrapped = Command::new("unshare");
        wrapped.args([
            "-n",
            "--",
            "sh",
            "-c",
            "ip link set lo up; echo 0 2147483647 >/proc/sys/net/ipv4/ping_group_range; exec \"$@\"",
            "sh",
        ]);
        wrapped.arg(command.get_program()).args(command.get_args());
        wrapped
    }
}

/// Returns a name that no other network, stack or group of processes has.
pub fn fresh_name(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{what}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

struct Names {
    server: String,
    middle: String,
    client: String,
}

fn ip(arguments: &str) {
    let output =
        Command::new("ip").args(arguments.split_whitespace()).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {} (root?)", String::from_utf8_lossy(&output.stderr));
}

/// Returns the folder into which cargo builds.
pub(crate) fn target_folder() -> PathBuf {
    // target/PROFILE/deps/TEST
    let test = std::env::current_exe().expect("a program knows its name");
    test.ancestors().nth(3).expect("cargo puts tests into target/PROFILE/deps").to_path_buf()
}

/// Returns the program under test: the one that `ATOLL` names, or a release build made here, once.
pub fn atoll() -> PathBuf {
    if let Some(path) = std::env::var_os("ATOLL") {
        return path.into();
    }
    static BUILD: Once = Once::new();
    BUILD.call_once(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build
            .args(["build", "--release", "-p", "atoll", "-p", "atoll-preload", "--target-dir"])
            .arg(target_folder());
        let status = build.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        assert!(status.is_ok_and(|status| status.success()), "cannot build Atoll");
    });
    target_folder().join("release/atoll")
}

fn relay_program() -> PathBuf {
    let test = std::env::current_exe().expect("a program knows its name");
    test.ancestors().nth(2).expect("cargo puts tests into target/PROFILE/deps").join("atoll-relay")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_uses_the_kernels_network_is_noticed() {
        let net = Net::new(Stack::Atoll);
        assert_eq!(net.kernel_use(), [""; 0]);
        let program = |text: &str| {
            let mut python = net.in_namespace(&net.names().server, "/usr/bin/python3");
            let mut program = Proc::start(python.args(["-c", text]), None);
            program.says("ready", 20);
            program
        };
        let listen = "import socket; it = socket.create_server(('127.0.0.1', 7007))\n\
                      print('ready', flush=True); it.accept()";
        let mut listener = program(listen);
        assert_eq!(net.kernel_use(), ["TCP: inuse 1"]);
        let mut client =
            program("import socket; socket.create_connection(('127.0.0.1', 7007)); print('ready')");
        assert!(client.end(20).success() && listener.end(20).success());
        let used = net.kernel_use();
        assert!(used.contains(&"Tcp: ActiveOpens 1".to_owned()), "{used:?}");
        let send = "import socket; it = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\n\
                    it.sendto(b'x', ('::1', 9)); print('ready')";
        program(send).success(20);
        let used = net.kernel_use();
        assert!(used.iter().any(|line| line.starts_with("Ip6OutRequests ")), "{used:?}");
        net.uses_kernel.store(true, Ordering::Relaxed);
        assert_eq!(net.kernel_use(), [""; 0]);
    }
}

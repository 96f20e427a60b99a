//! What happens when descriptors or memory run out? The stack stays, and well-behaved programs are not
//! affected.

use std::path::PathBuf;
use std::process::Command;

use atoll_system_tests::{Events, Proc, Scratch, alone, atoll, beside, fresh_name, program, until};
use serde_json::Value;

use crate::recovery::signal;

const PYTHON: &str = "/usr/bin/python3";

/// A stack without a link, in a runtime directory of its own, which is started by `wrapper`.
struct Lone {
    scratch: Scratch,
    wrapper: Vec<String>,
}

impl Lone {
    fn start(wrapper: &[&str], options: &[&str]) -> Lone {
        let lone = Lone {
            scratch: Scratch::new(),
            wrapper: wrapper.iter().map(|word| (*word).to_owned()).collect(),
        };
        let mut up = lone.wrapped();
        up.args(["up", "--daemon", "--name", "lone", "--link", "none", "--log-format", "json"]).args(options);
        Proc::start(&mut up, None).success(30);
        lone
    }

    fn runtime(&self) -> PathBuf {
        self.scratch.path().join("run")
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("ATOLL_RUNTIME_DIR", self.runtime());
        command
    }

    /// Returns a command for `atoll` in the stack's runtime directory, under the wrapper.
    fn wrapped(&self) -> Command {
        match self.wrapper.split_first() {
            Some((first, rest)) => {
                let mut command = self.command(first);
                command.args(rest).arg(atoll());
                command
            }
            None => self.command(atoll()),
        }
    }

    /// Starts a program on the stack, outside of the wrapper.
    fn run(&self, name: &str, arguments: &[&str]) -> Proc {
        let mut command = self.command(atoll());
        command.args(["run", "--name", "lone", "--", PYTHON, &program(name)]).args(arguments);
        Proc::start(&mut command, None)
    }

    /// Starts a program beside the stack.
    fn beside(&self, name: &str, arguments: &[&str]) -> Proc {
        Proc::start(self.command(PYTHON).arg(program(name)).args(arguments), None)
    }

    fn status(&self) -> Value {
        until("`atoll status` to answer", 30, || {
            let output = self.command(atoll()).args(["status", "lone", "--json"]).output().ok()?;
            serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())
        })
    }

    /// Waits until a socket listens on `port`, as `ss -ltn` shows.
    fn listens(&self, server: &mut Proc, port: u16) {
        let ending = format!(":{port}");
        until(&format!("a listener on port {port}"), 30, || {
            assert!(server.runs(), "the server has ended: {}", server.report());
            let output = self.command(atoll()).args(["ss", "lone", "--all"]).output().ok()?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let is_it = |line: &str| {
                line.contains("LISTEN") && line.split_whitespace().any(|word| word.ends_with(&ending))
            };
            text.lines().any(is_it).then_some(())
        });
    }

    fn events(&self) -> Events {
        Events::read(&self.runtime().join("lone.log"))
    }
}

impl Drop for Lone {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log:\n{}", self.events());
        }
        let _ = Proc::start(self.command(atoll()).args(["down", "lone"]), None).end(20);
    }
}

/// Four processes hold all the connections to the control socket that they can get, and servers die
/// meanwhile.
#[test]
fn connections_that_ask_for_nothing_keep_no_server_from_being_started_again() {
    let _turn = beside();
    let few = ["setpriv", "--bounding-set=-sys_resource", "prlimit", "--nofile=600:600"];
    let lone = Lone::start(&few, &["--configuration", "TS2LS2CM2"]);
    let mut server = lone.run("streams.py", &["serve", "7000", "1"]);
    lone.listens(&mut server, 7000);
    let socket = lone.runtime().join("lone.sock");
    let crowd: Vec<Proc> = (0..4)
        .map(|_| {
            let mut crowd = lone.beside("crowd_of_connections.py", &[&socket.to_string_lossy(), "700"]);
            crowd.says("connected", 60);
            crowd
        })
        .collect();
    // A client that arrives now is admitted.
    let mut client = lone.run("streams.py", &["steady", "127.0.0.1", "7000", "1", "70000"]);
    for death in 0..4usize {
        let replica = &lone.status()["replicas"][death % 2];
        signal("KILL", replica["pid"].as_u64().expect("a number"));
        until("the replica to be back", 30, || {
            let after = &lone.status()["replicas"][death % 2];
            (after["epoch"].as_u64() > replica["epoch"].as_u64() && after["recovery"]["state"] == "serving")
                .then_some(())
        });
        assert!(client.runs() && server.runs(), "{}\n{}", client.report(), server.report());
    }
    signal("INT", client.pid().into());
    client.success(60);
    drop(crowd);
    let log = lone.events();
    let is_short =
        |event: &&Value| event["fields"]["errno"] == "EMFILE" || event["fields"]["shortage"] == true;
    assert!(!log.all().iter().any(|event| is_short(&event)), "{log}");
}

/// A memory cgroup, of the cgroup version that has the controller on this machine. Dropping it removes the
/// cgroup.
struct Cgroup {
    folder: PathBuf,
    is_v2: bool,
}

impl Cgroup {
    fn create(limit: u64) -> Cgroup {
        let name = fresh_name("atoll-test-");
        let v1 = PathBuf::from("/sys/fs/cgroup/memory");
        let is_v2 = !v1.join("memory.limit_in_bytes").exists();
        let folder = if is_v2 { PathBuf::from("/sys/fs/cgroup").join(name) } else { v1.join(name) };
        std::fs::create_dir(&folder).expect("a memory cgroup can be made");
        let cgroup = Cgroup { folder, is_v2 };
        std::fs::write(cgroup.file("memory.max", "memory.limit_in_bytes"), limit.to_string())
            .expect("a limit");
        cgroup
    }

    fn file(&self, v2: &str, v1: &str) -> PathBuf {
        self.folder.join(if self.is_v2 { v2 } else { v1 })
    }

    /// Returns the number of its processes that the kernel has killed.
    fn kills(&self) -> u64 {
        let text =
            std::fs::read_to_string(self.file("memory.events", "memory.oom_control")).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        count.expect("it is counted")
    }

    fn processes(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Processes that have just ended remain in it for a moment.
        for _ in 0..200 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

/// Programs that read nothing, others that pour text over connections to them, and a stream beside them.
struct Crowd {
    server: Proc,
    client: Proc,
    hoards: Vec<Proc>,
    pours: Vec<Proc>,
}

impl Crowd {
    fn start(lone: &Lone) -> Crowd {
        let mut server = lone.run("streams.py", &["serve", "7000", "1"]);
        lone.listens(&mut server, 7000);
        let ports = ["7001", "7002"];
        let mut hoards: Vec<Proc> =
            ports.map(|port| lone.run("unread.py", &["hoard", port, "30000000"])).into();
        hoards.iter_mut().for_each(|hoard| hoard.says("listening", 30));
        let client = lone.run("streams.py", &["steady", "127.0.0.1", "7000", "1", "70000"]);
        // A reader that has not begun looks like one that does not read.
        until("the stream to flow", 30, || (sum(&lone.status(), "segments_in") > 100).then_some(()));
        let pours = ports.map(|port| lone.run("unread.py", &["pour", "127.0.0.1", port, "60"])).into();
        Crowd { server, client, hoards, pours }
    }

    /// Runs for this many seconds, calls `look` now and then, and checks that the stream continues.
    fn goes_on(&mut self, seconds: u64, mut look: impl FnMut()) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
        while std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(500));
            look();
            let (client, server) = (&mut self.client, &mut self.server);
            assert!(client.runs() && server.runs(), "{}\n{}", client.report(), server.report());
        }
    }

    /// Ends the programs. Returns the errors that they met, and checks that no octet of the stream is
    /// missing.
    fn end(self) -> String {
        let said = self.pours.iter().map(|pour| pour.output().lines().last().unwrap_or_default().to_owned());
        let said: Vec<String> = said.collect();
        signal("INT", self.client.pid().into());
        println!("{}", self.client.success(60));
        drop((self.pours, self.hoards, self.server));
        said.join("\n")
    }
}

fn sum(status: &Value, name: &str) -> u64 {
    status["replicas"].as_array().expect("replicas").iter().filter_map(|it| it["stats"][name].as_u64()).sum()
}

/// The stack has a limit of its own, without a cgroup.
#[test]
fn a_stack_keeps_to_the_limit_that_it_was_given() {
    // The stack measures its memory about ten times a second, and programs go on writing meanwhile, so the
    // test runs alone.
    let _alone = alone();
    let lone = Lone::start(&[], &["--configuration", "TS2LS2CM2", "--memory", "100M"]);
    let before = pids(&lone);
    let memory = |lone: &Lone| lone.status()["stack"]["memory"].clone();
    let number = |memory: &Value, name: &str| memory[name].as_u64().expect("a number");
    let idle = memory(&lone);
    assert_eq!((&idle["level"], &idle["bound"]), (&"plenty".into(), &"memory.limit".into()), "{idle}");
    assert_eq!((number(&idle, "limit"), number(&idle, "receive_max")), (100 << 20, 25 << 20));
    let text = Proc::start(lone.command(atoll()).args(["status", "lone"]), None).success(20);
    assert!(text.contains("MiB of 100.0 MiB (memory.limit)"), "{text}");

    let mut crowd = Crowd::start(&lone);
    let (mut most, mut levels) = (0, std::collections::BTreeSet::new());
    crowd.goes_on(20, || {
        let memory = memory(&lone);
        most = most.max(number(&memory, "used"));
        levels.insert(memory["level"].as_str().expect("a word").to_owned());
    });
    println!("idle {} most {most} {levels:?}", number(&idle, "used"));
    assert!(most > number(&idle, "used") + (20 << 20), "nothing was used: {most}");
    // The use may exceed the limit for moments: the stack measures about ten times a second, and meanwhile
    // each fast program writes tens of MiB (101 to 173 MB were measured). Without a limit the crowd uses
    // three times as much.
    assert!(most <= 200 << 20, "{most}");
    assert!(levels.contains("pressure") || levels.contains("high"), "{levels:?}");
    assert_eq!(pids(&lone), before, "a server has died");
    println!("{}", crowd.end());
    until("memory to be given back", 60, || (memory(&lone)["level"] == "plenty").then_some(()));
}

/// Programs that read nothing, on connections whose windows have grown, hold three times as much as the
/// stack's cgroup allows. The kernel kills no server, and a stream beside them continues.
#[test]
fn readers_that_do_not_read_cost_no_server_its_life() {
    // The stack measures its memory about ten times a second, and programs go on writing meanwhile, so the
    // test runs alone.
    let _alone = alone();
    let cgroup = Cgroup::create(100 << 20);
    let enter = format!("echo $$ >{} && exec \"$@\"", cgroup.processes().display());
    let lone = Lone::start(&["sh", "-c", &enter, "sh"], &["--configuration", "TS2LS2CM2"]);
    let before = pids(&lone);
    assert_eq!(lone.status()["stack"]["memory"]["bound"], "cgroup");
    let mut crowd = Crowd::start(&lone);
    crowd.goes_on(25, || assert_eq!(cgroup.kills(), 0, "the kernel had to end somebody"));
    let status = lone.status();
    let [pressured, shed] = ["pressured", "connections_shed"].map(|name| sum(&status, name));
    println!("pressured {pressured} shed {shed} buffers {}", sum(&status, "buffer_bytes"));
    assert!(pressured > 0 || shed > 0, "memory was not short: {status}");
    assert_eq!(pids(&lone), before, "a server has died");
    println!("{}", crowd.end());
}

fn pids(lone: &Lone) -> Vec<u64> {
    let status = lone.status();
    let replicas = status["replicas"].as_array().expect("replicas").iter();
    replicas
        .map(|replica| &replica["pid"])
        .chain([&status["stack"]["pid"]])
        .filter_map(Value::as_u64)
        .collect()
}

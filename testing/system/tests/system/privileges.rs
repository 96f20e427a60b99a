//! What can an attacker do that controls a server? Compute, and communicate with the server's own peers, but
//! nothing else.

use std::path::Path;
use std::process::Command;

use atoll_system_tests::{Net, NoNet, Proc, Scratch, Stack, atoll, compiled, fresh_name, until};
use serde_json::Value;

use crate::recovery::{Victim, signal};
use crate::rootless::as_nobody;
use crate::servers::{fetch, megabyte, start_nginx};
use crate::takeover::kill_supervisor;

/// The configurations, each of which combines components differently.
const CONFIGURATIONS: &[&str] = &[
    "TS1LS1CM1",
    "TS2LS2CM2",
    "TS2CM2+LS1",
    "TS2CM2+LS2",
    "TS4LS1CM4",
    "TS1LS2CM1",
    "TS2LS2CM1",
    "TS2LS2+CM1",
    "TS2+LS2+CM2",
];

/// Returns name and process number of each server of a stack.
fn servers(status: &Value) -> Vec<(String, u64)> {
    let kinds = [
        ("replicas", "replica"),
        ("link_servers", "link server"),
        ("connection_managers", "connection manager"),
    ];
    let of = |(key, name): (&str, &'static str)| {
        let list = status[key].as_array().cloned().unwrap_or_default();
        list.into_iter().map(move |server| {
            (format!("{name} {}", server["index"]), server["pid"].as_u64().expect("a pid"))
        })
    };
    kinds.into_iter().flat_map(of).collect()
}

/// Returns a line of /proc/PID/status.
fn field<'a>(status: &'a str, key: &str) -> &'a str {
    let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("{key} is not in {status}")).trim()
}

/// Checks that the kernel reports a process without privileges. With `bounding` the bounding set is empty,
/// too.
fn is_confined(name: &str, status: &str, bounding: bool) {
    let none = "0000000000000000";
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(field(status, set), none, "{name}: {set}");
    }
    assert!(!bounding || field(status, "CapBnd") == none, "{name}: CapBnd");
    assert_eq!((field(status, "NoNewPrivs"), field(status, "Seccomp")), ("1", "2"), "{name}");
}

#[test]
fn servers_have_no_privilege_in_any_configuration_and_under_load() {
    for configuration in CONFIGURATIONS {
        let net = Net::with_settings(Stack::Atoll, configuration, "[servers]\nuser = \"root\"\n");
        let mut server = start_nginx(&net);
        net.listens(&mut server, 80);
        let url = format!("http://{}/big", Net::SERVER);
        let mut load = net.client("ab", &["-q", "-r", "-t", "20", "-n", "1000000", "-c", "8", &url]);
        assert!(fetch(&net, 80, "/big") == megabyte(), "{configuration}");
        let status = net.atoll_says("status");
        let expected = serde_json::json!({
            "capabilities": true, "file_system": "landlock", "seccomp": true, "user": "root"
        });
        assert_eq!(status["stack"]["confinement"], expected, "{configuration}");
        let servers = servers(&status);
        assert!(servers.len() > configuration.matches('+').count());
        for (name, pid) in servers {
            let name = format!("{configuration}: {name}");
            let proc = Path::new("/proc").join(pid.to_string());
            is_confined(&name, &std::fs::read_to_string(proc.join("status")).expect("it runs"), true);
            let limits = std::fs::read_to_string(proc.join("limits")).expect("it runs");
            for limit in ["Max core file size", "Max processes"] {
                let line =
                    limits.lines().find_map(|line| line.strip_prefix(limit)).expect("the kernel says it");
                assert_eq!(
                    line.split_whitespace().take(2).collect::<Vec<_>>(),
                    ["0", "0"],
                    "{name}: {limit}"
                );
            }
            for stream in ["fd/0", "fd/1"] {
                assert_eq!(
                    std::fs::read_link(proc.join(stream)).expect("it runs"),
                    Path::new("/dev/null"),
                    "{name}"
                );
            }
        }
        assert!(load.runs(), "{}", load.report());
        load.kill();
        let supervisor = status["stack"]["pid"].as_u64().expect("it has a pid");
        let status = std::fs::read_to_string(format!("/proc/{supervisor}/status")).expect("it runs");
        // The process has setpcap (8) and sys_chroot (18). It has no capability to change links or BPF
        // programs; only the process that made the device could, and that has ended.
        assert_eq!(field(&status, "CapEff"), "0000000000040100", "the supervisor");
    }
}

/// No server has root's privileges, and other processes of the user only see that the servers exist. (This
/// does not hold with --rootless: the creator of a user namespace may inspect every process in it.)
#[test]
fn servers_of_ordinary_users_have_no_privilege_either() {
    let look = "for pid in $(./atoll status own --json | /usr/bin/python3 -c 'import json, sys; all = \
         json.load(sys.stdin)
for kind in [\"replicas\", \"link_servers\", \"connection_managers\"]:
    for server in all[kind]: print(server[\"pid\"])'); do
            cat /proc/$pid/status; cat /proc/$pid/environ >/dev/null 2>&1 && echo memory is open; echo end
        done";
    let rootless =
        "--rootless --configuration TS2+LS1+CM1 --address 198.18.0.2/24 --peer-address 198.18.0.1/24";
    for (options, count, is_rootless) in [(rootless, 4, true), ("--link none --replicas 2", 2, false)] {
        let up = format!(
            "./atoll up --daemon -n own {options} >up; trap './atoll down own >/dev/null' EXIT; {look}"
        );
        let said = as_nobody(&up);
        let (all, rest) = said.rsplit_once("end\n").expect("there are servers");
        let all: Vec<&str> = all.split("end\n").collect();
        assert_eq!((all.len(), rest), (count, ""), "{said}");
        for status in all {
            is_confined(field(status, "Name"), status, is_rootless);
            assert!(is_rootless || !status.contains("memory is open"), "{status}");
        }
    }
}

/// Returns the user and group numbers of a process (real, effective, saved and of the file system), and its
/// groups, from proc_pid_status(5).
fn user_of(pid: u64) -> [String; 3] {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    ["Uid", "Gid", "Groups"].map(|key| field(&status, key).split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Returns every server and the standby; `None` while one of them is missing.
fn all_servers(net: &Net) -> Option<Vec<(String, u64)>> {
    let status = net.atoll_says("status");
    let mut all = servers(&status);
    let ip_servers = status["ip_servers"].as_array().cloned().unwrap_or_default();
    all.extend(ip_servers.iter().map(|server| ("IP server".into(), server["pid"].as_u64().expect("a pid"))));
    all.push(("standby".into(), status["stack"]["standby"].as_u64()?));
    all.iter().all(|(_, pid)| *pid != 0).then_some(all)
}

/// Servers have a user that has no other rights on the machine, whatever happens to the stack.
#[test]
fn servers_run_as_a_user_of_their_own() {
    let settings = "[servers]\nuser = \"64321\"\n";
    for configuration in ["TS2LS2CM2", "TS2+IP1+LS1+CM1"] {
        let net = Net::with_settings(Stack::Atoll, configuration, settings);
        let mut server = start_nginx(&net);
        net.listens(&mut server, 80);
        let look = |after: &str| {
            for (name, pid) in until("all servers and one that stands by", 20, || all_servers(&net)) {
                let expected = ["64321 64321 64321 64321", "64321 64321 64321 64321", ""].map(String::from);
                assert_eq!(user_of(pid), expected, "{configuration}: {name} after {after}");
                is_confined(
                    &name,
                    &std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs"),
                    true,
                );
            }
            assert_eq!(
                net.atoll_says("status")["stack"]["confinement"]["user"],
                "own",
                "{configuration} after {after}"
            );
            assert!(fetch(&net, 80, "/big") == megabyte(), "{configuration} after {after}");
        };
        let kill_all = || {
            for kind in ["replicas", "link_servers", "ip_servers", "connection_managers"] {
                let count = net.atoll_says("status")[kind].as_array().map_or(0, Vec::len);
                (0..count).for_each(|index| Victim { net: &net, kind, index }.kill());
            }
        };
        look("the start");
        kill_all();
        look("the death of each");
        kill_supervisor(&net);
        look("a takeover");
        // The guardian starts the next supervisor and its servers.
        kill_all();
        look("the death of each under the next supervisor");
        let supervisor = net.atoll_says("status")["stack"]["pid"].as_u64().expect("it has a pid");
        let status = std::fs::read_to_string(format!("/proc/{supervisor}/status")).expect("it runs");
        // Besides setpcap (8) and sys_chroot (18): setgid (6) and setuid (7) are for starting servers, kill
        // (5) and sys_nice (23) for signalling and moving them.
        assert_eq!(field(&status, "CapEff"), "00000000008401e0", "the supervisor");
        // A server that hangs is killed although it belongs to another user.
        let [(_, pid), ..] = &servers(&net.atoll_says("status"))[..] else { panic!("there are servers") };
        signal("STOP", *pid);
        until("another process", 20, || {
            let now = servers(&net.atoll_says("status"));
            now.iter().all(|(_, other)| other != pid && *other != 0).then_some(())
        });
        look("one that was stopped");
    }
}

/// The kernel ends the servers with the last supervisor, even a stopped server, and although they belong to
/// another user.
#[test]
fn servers_of_another_user_end_with_a_supervisor_that_nobody_succeeds() {
    let _turn = NoNet::new();
    let name = fresh_name("end");
    let mut up = Command::new(atoll());
    up.args(["up", "--name", &name, "--link", "none", "--replicas", "2", "--servers-user", "64321"]);
    let mut supervisor = Proc::start(&mut up, None);
    supervisor.says("is up", 20);
    let mut ask = Command::new(atoll());
    let status = Proc::start(ask.args(["status", &name, "--json"]), None).success(20);
    let status: Value = serde_json::from_str(&status).expect("JSON");
    let all: Vec<u64> = servers(&status).into_iter().map(|(_, pid)| pid).collect();
    assert!(all.len() == 2 && all.iter().all(|pid| user_of(*pid)[0].starts_with("64321 ")), "{status}");
    // The supervisor would kill a stopped server, so it is stopped first.
    signal("STOP", supervisor.pid().into());
    all.iter().for_each(|pid| signal("STOP", *pid));
    supervisor.kill();
    for pid in all {
        until("its end", 20, || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.map_or(true, |stat| stat.contains(") Z ")).then_some(())
        });
    }
}

/// A user that does not exist, or that servers cannot become, is reported. The stack does not start as
/// another user.
#[test]
fn a_user_that_servers_cannot_become_is_refused() {
    let no_net = NoNet::new();
    let mut up = Command::new(atoll());
    let mut up =
        Proc::start(up.args(["up", "--link", "none", "--servers-user", "nobody-of-this-name"]), None);
    assert!(!up.end(20).success());
    drop(no_net);
    assert!(up.errors().contains("there is no user \"nobody-of-this-name\""), "{}", up.report());
    for options in ["--link none", "--rootless"] {
        let said =
            as_nobody(&format!("./atoll up --daemon -n own {options} --servers-user 64321 2>&1 || true"));
        assert!(said.contains("only servers of a stack of root"), "{options}: {said}");
    }
}

/// The system calls that a server is forced to make, and the names under which the supervisor reports them.
const ATTEMPTS: &[(&str, u32, &str)] = &[
    // openat(AT_FDCWD, ...) is the first step of most attacks.
    ("openat", 257, "-100"),
    ("execve", 59, ""),
    // socket(AF_INET, SOCK_STREAM, 0)
    ("socket", 41, "2 1 0"),
    // ptrace(PTRACE_ATTACH, 1)
    ("ptrace", 101, "16 1"),
    // kill(1, SIGKILL)
    ("kill", 62, "1 9"),
    // tgkill(1, 1, SIGABRT): abort(3) may do that to oneself only
    ("tgkill", 234, "1 1 6"),
    // mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    ("mmap", 9, "0 4096 5 34 -1 0"),
    ("mprotect", 10, "0 4096 7"),
    // fcntl(0, F_SETFL, 0) would affect other processes.
    ("fcntl", 72, "0 4 0"),
    // rt_sigaction(SIGSYS, ...)
    ("rt_sigaction", 13, "31"),
    ("clone", 56, "17"),
    ("process_vm_readv", 310, "1"),
    ("io_uring_setup", 425, "1"),
    ("pidfd_getfd", 438, "3 3"),
];

#[test]
fn a_forbidden_call_ends_a_server_and_is_reported() {
    let compel = compiled("compel");
    // Each server of a stack makes one attempt.
    for attempts in ATTEMPTS.chunks(3) {
        let net = Net::with(Stack::Atoll, "TS1+LS1+CM1", None);
        let servers = servers(&net.atoll_says("status"));
        for ((name, number, arguments), (server, pid)) in attempts.iter().zip(&servers) {
            let mut force = Command::new(&compel);
            force.args([pid.to_string(), number.to_string()]).args(arguments.split_whitespace());
            assert_eq!(Proc::start(&mut force, None).success(20), "died of signal 31\n", "{server}: {name}");
            until(&format!("the log to say that {server} made the call {name}"), 20, || {
                let is_it = |fields: &&Value| fields["pid"] == *pid && fields["call"] == *name;
                net.events().of("server_ended").iter().any(is_it).then_some(())
            });
        }
    }
}

/// The program runs through calls that are on the list, so it is the list that kills it otherwise.
#[test]
fn an_allowed_call_changes_nothing() {
    let compel = compiled("compel");
    let net = Net::with(Stack::Atoll, "TS1+LS1+CM1", None);
    let mut server = start_nginx(&net);
    net.listens(&mut server, 80);
    for (name, pid) in servers(&net.atoll_says("status")) {
        // getpid(), and tgkill(self, 0, SIGABRT), which the kernel refuses.
        for (call, expected) in
            [("39", format!("returned {pid}\n")), (&format!("234 {pid} 0 6"), "returned -22\n".into())]
        {
            let mut force = Command::new(&compel);
            force.arg(pid.to_string()).args(call.split_whitespace());
            assert_eq!(Proc::start(&mut force, None).success(20), expected, "{name}: {call}");
        }
    }
    assert!(fetch(&net, 80, "/big") == megabyte());
}

/// Any user may create a folder in /tmp. A socket there is not trusted because of its name.
#[test]
fn nobody_is_lured_onto_the_stack_of_another_user() {
    let _turn = NoNet::new();
    let scratch = Scratch::new();
    let folder = scratch.path();
    let built = atoll();
    for name in ["atoll", "libatoll.so"] {
        atoll_system_tests::copy_program(built.with_file_name(name), folder.join(name));
    }
    let trap = "import os, select, socket, sys
os.umask(0)
servers = []
for name in ['sock', 'admin']:
    servers.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    servers[-1].bind(sys.argv[1] + '/default.' + name)
    servers[-1].listen()
print('listening', flush=True)
while True:
    for server in select.select(servers, [], [])[0]:
        client, _ = server.accept()
        said = client.recv(4096)
        if said: print('heard', said, flush=True)";
    let run = folder.join("run");
    std::fs::create_dir(&run).expect("the folder is new");
    std::os::unix::fs::chown(&run, Some(65533), Some(65533)).expect("this is root");
    let as_user = |uid: &str, command: &[&str]| {
        let mut user = Command::new("setpriv");
        user.args([
            &format!("--reuid={uid}"),
            &format!("--regid={uid}"),
            "--clear-groups",
            "--",
            "env",
            "-i",
        ]);
        user.arg(format!("ATOLL_RUNTIME_DIR={}", run.display())).args(command).current_dir(folder);
        Proc::start(&mut user, None)
    };
    let mut stranger = as_user("65533", &["/usr/bin/python3", "-c", trap, &run.to_string_lossy()]);
    stranger.says("listening", 10);
    for command in
        [["./atoll", "status"].as_slice(), &["./atoll", "run", "--", "/bin/true"], &["./atoll", "down"]]
    {
        let mut lured = as_user("65534", command);
        assert!(!lured.end(20).success(), "{command:?}: {}", lured.report());
        assert!(lured.errors().contains("belongs to another user"), "{}", lured.report());
    }
    // The library checks the folder as well.
    let preload = format!("LD_PRELOAD={}", folder.join("libatoll.so").display());
    let socket = format!("ATOLL_SOCKET={}", run.join("default.sock").display());
    let connect = "import socket; socket.create_server(('127.0.0.1', 0))";
    let _ = as_user("65534", &[&preload, &socket, "/usr/bin/python3", "-c", connect]).end(20);
    assert!(!stranger.output().contains("heard"), "{}", stranger.report());
}

//! What happens if a process writes arbitrary octets to the log, or no process reads it? Its lines stay
//! lines, and neither a server nor a supervisor waits or dies.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use atoll_system_tests::{Events, Proc, Scratch, atoll, program, until};
use serde_json::{Value, json};

use crate::recovery::signal;

const UP: [&str; 7] = ["up", "--name", "lone", "--link", "none", "--configuration", "TS2LS2CM2"];

/// A stack of two replicas without a link, in a runtime directory of its own.
struct Logging {
    scratch: Scratch,
    /// The supervisor, if it runs in the foreground.
    foreground: Option<Child>,
}

impl Logging {
    fn daemon(options: &[&str]) -> Logging {
        let stack = Logging { scratch: Scratch::new(), foreground: None };
        Proc::start(stack.up().arg("--daemon").args(options), None).success(30);
        stack
    }

    /// Starts a supervisor in the foreground with this standard error.
    fn with_errors(errors: impl Into<Stdio>) -> Logging {
        let mut stack = Logging { scratch: Scratch::new(), foreground: None };
        let mut up = stack.up();
        up.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        stack.foreground = Some(up.spawn().expect("atoll can be started"));
        until("the stack to be up", 30, || stack.status());
        stack
    }

    fn command(&self) -> Command {
        self.command_of(atoll())
    }

    fn command_of(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("ATOLL_RUNTIME_DIR", self.scratch.path().join("run"));
        command
    }

    fn up(&self) -> Command {
        let mut up = self.command();
        up.args(UP);
        up
    }

    fn status(&self) -> Option<Value> {
        let output = self.command().args(["status", "lone", "--json"]).output().ok()?;
        serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())
    }

    fn replica(&self, index: usize) -> Value {
        until("`atoll status` to answer", 30, || self.status())["replicas"][index].clone()
    }

    fn pid(&self, index: usize) -> u64 {
        self.replica(index)["pid"].as_u64().expect("a number")
    }

    /// Kills a replica, and waits until its successor serves.
    fn kill(&self, index: usize) {
        let before = self.replica(index);
        signal("KILL", before["pid"].as_u64().expect("a number"));
        until("the replica to be back", 30, || {
            let after = self.replica(index);
            (after["epoch"].as_u64() > before["epoch"].as_u64() && after["recovery"]["state"] == "serving")
                .then_some(())
        });
    }

    /// Opens the standard error of a replica, as the replica has it.
    fn errors_of(&self, index: usize) -> File {
        let path = format!("/proc/{}/fd/2", self.pid(index));
        // O_NONBLOCK concerns this test's own writes.
        OpenOptions::new().write(true).custom_flags(0o4000).open(path).expect("root may")
    }

    fn log_path(&self) -> PathBuf {
        self.scratch.path().join("run/lone.log")
    }

    /// Returns the events so far of a log in JSON.
    fn events(&self) -> Events {
        Events::read(&self.log_path())
    }

    fn log(&self) -> Vec<u8> {
        std::fs::read(self.log_path()).unwrap_or_default()
    }

    fn says(&self, text: &str) {
        until(&format!("the log to say {text}"), 20, || {
            String::from_utf8_lossy(&self.log()).contains(text).then_some(())
        });
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            eprintln!("--- log:\n{}", String::from_utf8_lossy(&log[..log.len().min(5000)]));
        }
        let _ = Proc::start(self.command().args(["down", "lone"]), None).end(20);
        if let Some(mut supervisor) = self.foreground.take() {
            // A supervisor that hangs fails the test, which has to end nevertheless.
            let ends = (0..200).any(|_| {
                std::thread::sleep(Duration::from_millis(100));
                supervisor.try_wait().is_ok_and(|ended| ended.is_some())
            });
            if !ends {
                let _ = supervisor.kill();
                let _ = supervisor.wait();
            }
        }
    }
}

/// A replica under an attacker's control may write anything to its standard error. The test writes to that
/// descriptor.
#[test]
fn a_server_that_writes_anything_writes_lines_with_its_number() {
    let stack = Logging::daemon(&[]);
    let (pid, mut errors) = (stack.pid(0), stack.errors_of(0));
    assert!(!std::fs::read_link(format!("/proc/{pid}/fd/2")).unwrap().ends_with("lone.log"));
    errors.write_all(b"atoll: replica 0: \x1b[2J\x1b]0;title\x07\rsay\nforged\x9b1m \xe2\x80\xae\n").unwrap();
    errors.write_all(&[b'l'; 30_000]).unwrap();
    errors.write_all(b"\nafter it\n").unwrap();
    stack.says("after it\n");
    let log = stack.log();
    assert!(
        log.iter().all(|byte| *byte == b'\n' || (b' '..=b'~').contains(byte)),
        "{}",
        String::from_utf8_lossy(&log)
    );
    let text = String::from_utf8(log).unwrap();
    assert!(
        text.lines().all(|line| line.starts_with("atoll: ") || line.starts_with(&format!("atoll[{pid}]: "))),
        "{text}"
    );
    assert!(text.lines().all(|line| line.len() < 1100), "{text}");
    assert!(
        text.contains("]: replica 0: \\u{1b}[2J") && text.contains("]: forged\\x9b1m \\u{202e}\n"),
        "{text}"
    );

    // The next supervisor reads what is written while there is none, and later.
    let status = stack.status().unwrap();
    let supervisor = status["stack"]["pid"].as_u64().unwrap();
    signal("STOP", supervisor);
    errors.write_all(b"said while nobody listened\n").unwrap();
    signal("KILL", supervisor);
    stack.says("said while nobody listened\n");
    errors.write_all(b"said afterwards\n").unwrap();
    stack.says("said afterwards\n");
    assert_eq!(stack.pid(0), pid, "the replica has noticed");
}

#[test]
fn a_server_that_never_stops_writing_fills_no_log_and_keeps_nobody_busy() {
    let stack = Logging::daemon(&[]);
    let mut errors = stack.errors_of(0);
    let started = Instant::now();
    let mut refused = 0u64;
    while started.elapsed() < Duration::from_secs(3) {
        if errors.write_all(b"the same, again and again\n").is_err() {
            refused += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(refused > 0, "everything was taken");
    let log = stack.log();
    let lines = log.split(|byte| *byte == b'\n').count();
    assert!((50..150).contains(&lines), "{lines}");
    // The lines of other replicas, and of the supervisor itself, are still logged.
    stack.errors_of(1).write_all(b"the other one\n").unwrap();
    stack.says("the other one\n");
    // A server that has written too much is read no longer than it lives. This is the last descriptor of its
    // pipe.
    drop(errors);
    stack.kill(0);
    stack.says("its last words were too many");
    // The supervisor sees the death or finds the server dead, so the line says "was killed" or names the
    // signal.
    stack.says("; it is started again");
    let supervisor = stack.status().unwrap()["stack"]["pid"].as_u64().unwrap();
    let pipes = |pid: u64| {
        let all = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        all.filter(|fd| {
            std::fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().starts_with("pipe:"))
        })
        .count()
    };
    let before = pipes(supervisor);
    (0..4).for_each(|_| stack.kill(0));
    // There is one pipe for each process, and there may be a standby more or less.
    until("the pipes of those that are gone to be closed", 20, || {
        (pipes(supervisor) <= before + 1).then_some(())
    });
}

/// A line of a server becomes an event of that server, or its text, but never an event of another server.
#[test]
fn events_of_a_server_are_its_own() {
    let stack = Logging::daemon(&["--log-format", "json"]);
    let (pid, mut errors) = (stack.pid(0), stack.errors_of(0));
    let forged = [
        // Servers may report this event.
        &br#"{"event":"connections_lost","fields":{"replica":0,"kept":7,"lost":1},"message":"so\nit is"}"#[..],
        // These are events of other servers, in the form of servers and in that of the log.
        br#"{"event":"server_back","fields":{"role":"replica"},"message":"replica 1 is back"}"#,
        br#"{"event":"connections_lost","pid":1,"fields":{},"message":"of another"}"#,
        br#"{"timestamp":"x","level":"INFO","event":"server_back","pid":1,"fields":{},"message":"of the log"}"#,
        br#"{"event":"connections_lost","fields":{"role":"replica"},"message":"with another field"}"#,
        b"atoll: replica 1 is back (pid 1, epoch 2)\x1b[2J",
        &[b'{'; 20_000],
        b"the last",
    ];
    forged.iter().for_each(|line| errors.write_all(&[line, &b"\n"[..]].concat()).unwrap());
    let last = |events: &Events| events.all().iter().any(|event| event["message"] == "the last");
    until("the last line", 20, || last(&stack.events()).then_some(()));
    let events = stack.events();
    let its: Vec<&Value> = events.all().iter().filter(|event| event["pid"] == pid).collect();
    let names: Vec<&str> = its.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(names[0], "connections_lost", "{events}");
    assert_eq!(names[1..], ["server_said"; 7], "{events}");
    assert_eq!((&its[0]["level"], &its[0]["message"]), (&json!("WARN"), &json!("so\\nit is")), "{events}");
    assert_eq!(its[0]["fields"], json!({"replica": 0, "kept": 7, "lost": 1}), "{events}");
    assert!(its[1..].iter().all(|event| event["fields"] == json!({})), "{events}");
    assert!(events.of("server_back").is_empty(), "{events}");
    let log = String::from_utf8(stack.log()).unwrap();
    assert!(
        log.lines().all(|line| line.len() < 4096 && line.bytes().all(|byte| (b' '..=b'~').contains(&byte)))
    );
}

/// Checks the fields of a death in JSON.
#[test]
fn a_death_is_told_in_fields() {
    let stack = Logging::daemon(&["--log-format", "json"]);
    let before = stack.replica(1);
    stack.kill(1);
    let after = stack.replica(1);
    until("the events", 20, || (stack.events().of("server_back").len() == 1).then_some(()));
    let events = stack.events();
    let supervisor = &stack.status().unwrap()["stack"]["pid"];
    let ended = events.of("server_ended");
    assert!(ended.len() == 1 && ended[0]["pid"] == before["pid"], "{events}");
    assert!(ended[0]["role"] == "replica" && ended[0]["index"] == 1, "{events}");
    assert!(ended[0]["signal"] == "SIGKILL" || ended[0]["exit"] == "killed", "{events}");
    let back = events.of("server_back")[0];
    assert!(back["pid"] == after["pid"] && back["epoch"] == after["epoch"], "{events}");
    assert!(back["index"] == 1 && back["ms"].as_f64() > Some(0.0), "{events}");
    for event in events.all() {
        assert_eq!((&event["pid"], &event["level"].is_string()), (supervisor, &true), "{event}");
        let time = event["timestamp"].as_str().expect("a time").as_bytes();
        assert_eq!((time.len(), time[10], time[19], time[26]), (27, b'T', b'.', b'Z'), "{event}");
    }
    // The next supervisor and the guardian log in JSON, too.
    signal("KILL", supervisor.as_u64().unwrap());
    until("the next supervisor", 20, || {
        let events = stack.events();
        let took_over = events.of("supervisor_took_over");
        (took_over.len() == 1
            && events.of("supervisor_ended").len() == 1
            && took_over[0]["pid"] == stack.status()?["stack"]["pid"])
            .then_some(())
    });
}

#[test]
fn a_level_leaves_out_what_is_less_grave() {
    for (level, expected) in
        [("error", [0, 0, 0]), ("warn", [1, 0, 0]), ("info", [1, 1, 0]), ("debug", [1, 1, 1])]
    {
        let stack = Logging::daemon(&["--log-format", "json", "--log-level", level]);
        stack.kill(0);
        let counts = || {
            let events = stack.events();
            ["server_ended", "server_back", "server_started"].map(|name| events.of(name).len())
        };
        until(&format!("the events of {level}"), 20, || (counts() == expected).then_some(()));
        assert_eq!(stack.events().of("stack_ready").len(), usize::from(level == "debug"));
        // The level limits servers, too.
        let mut errors = stack.errors_of(1);
        let event = br#"{"event":"server_failed","message":"the last"}"#;
        errors.write_all(&[&b"a warning\n"[..], event, b"\n"].concat()).unwrap();
        until("the error", 20, || (stack.events().of("server_failed").len() == 1).then_some(()));
        assert_eq!(stack.events().of("server_said").len(), usize::from(level != "error"));
    }
}

#[test]
fn a_log_that_cannot_be_is_refused() {
    let stack = Logging { scratch: Scratch::new(), foreground: None };
    let journal = std::path::Path::new("/run/systemd/journal/socket").exists();
    for (options, said) in [
        (["--log-format", "xml"], "the log is text, json or journal"),
        (["--log-level", "loud"], "levels are error, warn, info and debug"),
        (["--log-format", "journal"], "there is no journal at /run/systemd/journal/socket"),
    ] {
        if options[1] == "journal" && journal {
            continue;
        }
        for daemon in [&["--daemon"][..], &[]] {
            let mut up = Proc::start(stack.up().args(options).args(daemon), None);
            assert!(!up.end(20).success() && up.errors().contains(said), "{}", up.report());
        }
    }
}

#[test]
fn events_are_entries_of_the_journal() {
    let stack = Logging { scratch: Scratch::new(), foreground: None };
    let mut unshare = stack.command_of("unshare");
    unshare.args(["--mount", "/usr/bin/python3", &program("journal.py")]).arg(atoll()).args(UP);
    let mut journal = Proc::start(unshare.args(["--log-format", "journal"]), None);
    let pid = until("the stack to be up", 30, || stack.status())["stack"]["pid"].clone();
    let before = stack.replica(1);
    stack.kill(1);
    journal.says("server_back", 20);
    Proc::start(stack.command().args(["down", "lone"]), None).success(20);
    assert!(journal.end(20).success(), "{}", journal.report());
    let entries = Events::parse(&journal.output());
    let is = |name: &str| {
        let of = entries.all().iter().filter(|entry| entry["ATOLL_EVENT"] == name);
        of.cloned().collect::<Vec<Value>>()
    };
    let (ended, back) = (is("server_ended"), is("server_back"));
    assert_eq!((ended.len(), back.len()), (1, 1), "{entries}");
    assert!(ended[0]["PRIORITY"] == "4" && back[0]["PRIORITY"] == "6", "{entries}");
    assert_eq!(ended[0]["ATOLL_PID"], before["pid"].to_string(), "{entries}");
    assert!(back[0]["ATOLL_INDEX"] == "1" && back[0]["ATOLL_ROLE"] == "replica", "{entries}");
    assert!(
        back[0]["MESSAGE"].as_str().is_some_and(|text| text.starts_with("replica 1 is back")),
        "{entries}"
    );
    for entry in entries.all() {
        assert_eq!((&entry["ATOLL_STACK"], &entry["SYSLOG_IDENTIFIER"]), (&json!("lone"), &json!("atoll")));
        assert_eq!(entry["ATOLL_REPORTER"], pid.to_string(), "{entry}");
    }
}

/// The log is as in `atoll up 2>/dev/full`, or as in `atoll up 2>&1 | PROGRAM` whose program does not read.
#[test]
fn a_log_that_takes_nothing_costs_nobody_his_life() {
    let stack = Logging::with_errors(OpenOptions::new().write(true).open("/dev/full").unwrap());
    (0..3).for_each(|death| stack.kill(death % 2));
    drop(stack);

    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let full = std::thread::spawn({
        let mut writer = writer.try_clone().unwrap();
        // This is as much as a pipe holds: 16 pages.
        move || writer.write_all(&[b'.'; 64 << 10])
    });
    full.join().unwrap().unwrap();
    let stack = Logging::with_errors(writer.try_clone().unwrap());
    (0..3).for_each(|death| stack.kill(death % 2));
    // The pipe is read again: the log says how much is missing.
    reader.read_exact(&mut [0; 64 << 10]).unwrap();
    stack.kill(0);
    let mut said = vec![0; 4096];
    let len = reader.read(&mut said).unwrap();
    let said = String::from_utf8_lossy(&said[..len]).into_owned();
    assert!(said.starts_with("atoll: ") && said.contains(" lines were left out\natoll: "), "{said}");
    // From now on no process can read the pipe, once what other tests are about to execute has closed it.
    drop(reader);
    until("a pipe without a reader", 20, || writer.write_all(b"x").is_err().then_some(()));
    (0..3).for_each(|death| stack.kill(death % 2));
}

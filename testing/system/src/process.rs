//! How does a test start processes, and how does it get rid of them?

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Tries `attempt` again and again until it returns something.
///
/// # Panics
/// After `seconds`, naming `what` it waited for.
pub fn until<T>(what: &str, seconds: u64, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(Instant::now() < end, "{seconds} seconds have passed without {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A folder for the files of one test. Dropping it removes the folder.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates an empty folder that is readable by programs that give up root.
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("atoll-test-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("the temporary folder is writable");
        Scratch(path)
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file, and returns its full name.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::write(&path, content).expect("the temporary folder is writable");
        path.to_string_lossy().into_owned()
    }
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running process. Dropping it ends the process and everything that it has started, by process number.
#[derive(Debug)]
pub struct Proc {
    child: Child,
    name: String,
    _scratch: Scratch,
    output: PathBuf,
    errors: PathBuf,
}

impl Proc {
    /// Starts `command` with its outputs in files. Its input is empty, unless `input` has another.
    pub fn start(command: &mut Command, input: Option<File>) -> Proc {
        let name = format!("{command:?}");
        let scratch = Scratch::new();
        let (output, errors) = (scratch.path().join("output"), scratch.path().join("errors"));
        let create = |path: &Path| File::create(path).expect("the temporary folder is writable");
        command.stdin(input.map_or_else(Stdio::null, Stdio::from));
        command.stdout(create(&output)).stderr(create(&errors));
        let child = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        Proc { child, name, _scratch: scratch, output, errors }
    }

    /// Returns the process number. Wrappers execute the program in their place, so it is the program's own.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns what the process has written to its standard output so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    /// Returns what the process has written to its standard error so far.
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.errors).unwrap_or_default()).into_owned()
    }

    /// Returns whether the process still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the process ends, and returns its status.
    ///
    /// # Panics Panics if it has not ended after `seconds`.
    pub fn end(&mut self, seconds: u64) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(seconds);
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                return status;
            }
            if Instant::now() > deadline {
                panic!("still running after {seconds} s: {}", self.report());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the process ends, which must be with success, and returns what it wrote.
    pub fn success(mut self, seconds: u64) -> String {
        let status = self.end(seconds);
        assert!(status.success(), "{status}: {}", self.report());
        self.output()
    }

    /// Waits until the process has written `text`. Fails at once if the process ends before.
    pub fn says(&mut self, text: &str, seconds: u64) {
        until(&format!("`{text}` from {}", self.name), seconds, || {
            if self.output().contains(text) || self.errors().contains(text) {
                return Some(());
            }
            assert!(self.runs(), "ended without saying `{text}`: {}", self.report());
            None
        });
    }

    /// Kills the process by SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks the process to end, by SIGTERM.
    pub fn terminate(&self) {
        signal(self.pid(), Signal::TERM);
    }

    /// Returns the text about the process for the report of a failed test.
    pub fn report(&self) -> String {
        let tail = |text: String| {
            text.chars().rev().take(3000).collect::<Vec<_>>().into_iter().rev().collect::<String>()
        };
        format!("{}\n--- output:\n{}\n--- errors:\n{}", self.name, tail(self.output()), tail(self.errors()))
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let family = descendants(self.pid());
        if self.runs() {
            self.terminate();
            let deadline = Instant::now() + Duration::from_secs(1);
            while self.runs() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            self.kill();
        }
        for (pid, started) in family {
            // The number may belong to another process by now, which would have started at another time.
            if start_and_parent(pid).is_some_and(|(start, _)| start == started) {
                signal(pid, Signal::KILL);
            }
        }
        if std::thread::panicking() {
            eprintln!("{}", self.report());
        }
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Returns all descendants of `root`, each with the moment of its start.
fn descendants(root: u32) -> Vec<(u32, u64)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let all: Vec<(u32, (u64, u32))> = numbers.filter_map(|pid| Some((pid, start_and_parent(pid)?))).collect();
    let mut found: Vec<(u32, u64)> = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for &(pid, (start, its_parent)) in &all {
            if its_parent == parent {
                found.push((pid, start));
                parents.push(pid);
            }
        }
    }
    found
}

/// Returns the start time and the parent from /proc/PID/stat. Fields are counted from behind the name, which
/// may hold any octets.
fn start_and_parent(pid: u32) -> Option<(u64, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some((fields.get(19)?.parse().ok()?, fields.get(1)?.parse().ok()?))
}

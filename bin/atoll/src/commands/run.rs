//! `atoll run`: runs an unmodified program on a stack.
//!
//! The program is started with `LD_PRELOAD` naming libatoll.so and `ATOLL_SOCKET` naming the stack's control
//! socket. On a stack that is up, `atoll run` becomes the program. For a stack made for the program alone,
//! `atoll run` stays as its parent: it passes signals on, returns the program's status, and lets the stack
//! end when everything the program sent has arrived.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};

use atoll_base::{Duration, KernelNetwork};
use atoll_supervisor::{LinkType, StackName, StatusReport};
use atoll_sys::internet;
use atoll_sys::process;
use atoll_sys::program::{self, Judged, Unserved};
use atoll_sys::signal::{Signal, Signals};
use atoll_sys::unix::Channel;
use rustix::event::{PollFd, PollFlags, poll};

use super::options::StackOptions;
use super::up::{Job, Mode, start_supervisor};
use crate::client::{self, Entrance, SupervisorClient};
use crate::failure::{Failure, OrFail};
use crate::runtime;
use crate::supervise::{SESSIONS_REMAIN, private_name};

/// Run a program on a stack.
///
/// On the stack called --name, of this user or, if that has let this user in (`atoll up --allow-user`), of
/// root; otherwise on the one called "default", if it is up; otherwise, or if options describe a stack, on
/// one made for this program alone: without a link to the world unless --link or --address asks for one, and
/// without any privilege. That stack ends with the program, or with the last of its children that use
/// sockets.
#[derive(clap::Args)]
#[command(trailing_var_arg = true, after_help = EXAMPLES)]
pub struct Run {
    /// The stack, which must be up.
    #[arg(long, short = 'n', value_name = "NAME")]
    name: Option<StackName>,
    /// Make a stack for this program alone, even if "default" is up.
    #[arg(long, short = 'p', conflicts_with = "name")]
    private: bool,
    /// Let the kernel's network serve what the stack does not: addresses that it does not have or reach,
    /// kinds of sockets that it does not know, programs that it cannot serve.
    ///
    /// Without it, sockets of the Internet families fail with EACCES in set-user-ID programs that the program
    /// starts, and in others that the library cannot serve.
    ///
    /// With a list of addresses, each perhaps with a prefix and a port (10.0.0.0/8,127.0.0.1:5432), it serves
    /// these alone, also where the stack reaches them.
    #[arg(long, value_name = "LIST", num_args = 0..=1, require_equals = true,
          default_missing_value = KernelNetwork::REST)]
    kernel_network: Option<KernelNetwork>,
    /// Say of each program that is started, on standard error, by which way its calls reach the stack.
    #[arg(long, short = 'v')]
    verbose: bool,
    /// Print what the stack did to standard error when the program has ended.
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    options: StackOptions,
    /// The program and its arguments.
    #[arg(required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl Run {
    /// Runs the command. Returns its exit status.
    pub fn run(&self) -> Result<ExitCode, Failure> {
        let library = library()?;
        let program = judged(&self.program[0]);
        let hosted = program.as_ref().and_then(Hosted::of);
        if let Some(reason) = program.and_then(|(_, judged)| judged.reason).filter(|_| hosted.is_none()) {
            let program = self.program[0].display();
            if !self.kernel_network.as_ref().is_some_and(KernelNetwork::has_rest) {
                return Err(Failure::new(format!(
                    "{program} {reason}, so it cannot be put on a stack (--kernel-network lets it use the \
                     kernel's network)"
                )));
            }
            complain!("atoll: {program} {reason}: it uses the kernel's network");
        }
        if self.private || self.options.any() {
            if self.name.is_some() {
                return Err(Failure::new(
                    "--name is a stack that is up already; the other options describe a new one for this \
                     program alone: give one or the other",
                ));
            }
            return self.run_privately(&library, hosted.as_ref());
        }
        let name = self.name.clone().unwrap_or_default();
        match client::for_applications(&name)? {
            Entrance::Open(socket) => self.join(&name, self.command(&library, socket, hosted.as_ref())?),
            Entrance::Closed(reason) if self.name.is_some() => Err(Failure::new(reason)),
            Entrance::Closed(reason) => {
                complain!("atoll: {reason}; the program gets a stack of its own");
                self.run_privately(&library, hosted.as_ref())
            }
            Entrance::Nowhere if self.name.is_some() => {
                SupervisorClient::connect(&name)?;
                Err(Failure::new(format!("stack \"{name}\" came up this moment: try again")))
            }
            Entrance::Nowhere => {
                complain!(
                    "atoll: stack \"{name}\" is not up: the program gets one of its own, which nobody else \
                     reaches (--name says which is meant, --private that this is)"
                );
                self.run_privately(&library, hosted.as_ref())
            }
        }
    }

    fn join(&self, name: &StackName, mut command: Command) -> Result<ExitCode, Failure> {
        if !self.stats {
            return Ok(cannot_run(&self.program[0], &command.exec()));
        }
        let before = SupervisorClient::connect(name)?.status()?;
        let signals = Signals::catch(PASSED_ON).or_fail("catching signals")?;
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return Ok(cannot_run(&self.program[0], &error)),
        };
        let status = wait(child, &signals)?;
        let after = SupervisorClient::connect(name)?.status()?;
        print_stats(&format!("stack {name} (all its programs)"), Some(&before), &after);
        Ok(exit_code(status))
    }

    fn run_privately(&self, library: &OsStr, hosted: Option<&Hosted>) -> Result<ExitCode, Failure> {
        let options = &self.options;
        let mut file = options.load()?;
        // A stack without options for a link has none, which works without privileges.
        if options.config.is_none()
            && options.link.is_none()
            && options.peer.is_none()
            && !describes_tap(options)
        {
            file.link.kind = LinkType::None;
        }
        let name = private_name(std::process::id());
        file.name = name.to_string();
        options.validate(&file)?;
        let signals = Signals::catch(PASSED_ON).or_fail("catching signals")?;
        let stack = start_supervisor(&Job { file, mode: Mode::Private, rootless: false })?;
        let mut command = self.command(library, runtime::paths(&name).socket, hosted)?;
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return Ok(cannot_run(&self.program[0], &error)),
        };
        let status = wait(child, &signals)?;
        match wait_for_end(&stack.channel) {
            Some(report) if self.stats => print_stats("its stack", None, &report),
            None if self.stats => {
                complain!(
                    "atoll: processes of the program go on, and so does their stack: see `atoll status \
                     {name}`"
                )
            }
            _ => {}
        }
        Ok(exit_code(status))
    }

    fn command(&self, library: &OsStr, socket: PathBuf, hosted: Option<&Hosted>) -> Result<Command, Failure> {
        let host = std::env::current_exe().or_fail("finding this program's file")?;
        let mut command = match hosted {
            Some(hosted) => hosted.command(&host, &self.program[0]),
            None => Command::new(&self.program[0]),
        };
        command.args(&self.program[1..]).env("ATOLL_HOST", host);
        let mut preload = library.to_owned();
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        command.env("LD_PRELOAD", preload);
        command.env("ATOLL_SOCKET", socket);
        // What does not pass through the library must not reach the kernel's network either.
        if !self.kernel_network.as_ref().is_some_and(KernelNetwork::has_rest) {
            internet::refuse_sockets_of(&mut command);
        }
        match self.verbose {
            true => command.env("ATOLL_VERBOSE", "1"),
            false => command.env_remove("ATOLL_VERBOSE"),
        };
        match &self.kernel_network {
            Some(network) => command.env("ATOLL_KERNEL_NETWORK", network.to_string()),
            None => command.env_remove("ATOLL_KERNEL_NETWORK"),
        };
        Ok(command)
    }
}

/// A static program. The library makes it of this program, with which it is loaded: `ATOLL_PROGRAM` says of
/// which file.
struct Hosted {
    path: CString,
    /// The first arguments, if the program is an interpreter of a script.
    arguments: Vec<CString>,
}

impl Hosted {
    /// Returns how a program is served that is static; `None` for others, and where that is impossible.
    fn of((path, judged): &(CString, Judged)) -> Option<Hosted> {
        let path = judged.interpreter.as_ref().unwrap_or(path);
        (judged.reason == Some(Unserved::Static) && program::can_host())
            .then(|| Hosted { path: path.clone(), arguments: judged.arguments.clone() })
    }

    /// Returns the command that becomes the program, which is called `name`, up to its second argument.
    fn command(&self, host: &Path, name: &OsStr) -> Command {
        let text = |text: &CString| OsStr::from_bytes(text.as_bytes()).to_owned();
        let mut command = Command::new(host);
        command.arg0(self.arguments.first().map_or_else(|| name.to_owned(), text));
        command.args(self.arguments.iter().skip(1).map(text));
        let mut value = OsString::from("=");
        value.push(text(&self.path));
        command.env(PROGRAM, value);
        command
    }
}

/// The variable by which the library finds a static program.
const PROGRAM: &str = "ATOLL_PROGRAM";

/// Fails if this process is to become a static program: the library has not been loaded, which does that.
pub fn check_hosting() -> Result<(), Failure> {
    match std::env::var_os(PROGRAM) {
        None => Ok(()),
        Some(_) => Err(Failure::new(
            "libatoll.so, which would execute a static program here, is not loaded: see LD_PRELOAD",
        )),
    }
}

/// Returns the path of a program and what is known of it; `None` if there is no such program.
fn judged(program: &OsStr) -> Option<(CString, Judged)> {
    let name = CString::new(program.as_bytes()).ok()?;
    let path = program::find(program::HERE, &name, std::env::var_os("PATH").as_deref())?;
    let judged = program::judge(program::File::at(&path), &program::Identity::own())?;
    Some((path, judged))
}

/// Returns whether an option was given that makes sense for a TAP device only.
fn describes_tap(options: &StackOptions) -> bool {
    options.address.is_some()
        || options.peer_address.is_some()
        || options.netns.is_some()
        || options.device.is_some()
        || options.gateway.is_some()
        || options.address6.is_some()
        || options.peer_address6.is_some()
        || options.gateway6.is_some()
}

/// Finds libatoll.so: named by `ATOLL_LIB`, beside this binary, or in ../lib or ../lib/atoll. The error says
/// where it was looked for.
fn library() -> Result<OsString, Failure> {
    if let Some(path) = std::env::var_os("ATOLL_LIB").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        let absolute = path.canonicalize().or_fail(format!("ATOLL_LIB={}", path.display()))?;
        return preloadable(absolute);
    }
    let binary = std::env::current_exe().or_fail("finding this program's file")?;
    let folder = binary.parent().unwrap_or(&binary);
    let places =
        ["libatoll.so", "../lib/libatoll.so", "../lib/atoll/libatoll.so"].map(|place| folder.join(place));
    match places.iter().find_map(|place| place.canonicalize().ok()) {
        Some(found) => preloadable(found),
        None => Err(Failure::new(format!(
            "libatoll.so is neither in {} nor in {}: build it (`cargo build --release -p atoll-preload`), or \
             name it in ATOLL_LIB",
            folder.display(),
            folder.join("../lib").display()
        ))),
    }
}

/// Checks that LD_PRELOAD can name the file: ld.so separates names by colons and blanks, and knows no quotes.
fn preloadable(path: PathBuf) -> Result<OsString, Failure> {
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.iter().any(|byte| matches!(byte, b':' | b' ' | b'\t' | b'\n')) {
        return Err(Failure::new(format!(
            "LD_PRELOAD cannot name {}: move it to a path without colons and blanks",
            path.display()
        )));
    }
    Ok(path.into_os_string())
}

/// Prints why the program cannot be run, and returns the status that a shell would return.
fn cannot_run(program: &OsStr, error: &std::io::Error) -> ExitCode {
    complain!("atoll: running {}: {error}", program.display());
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Waits for the program, and passes signals on to it meanwhile. Returns its status.
fn wait(mut child: Child, signals: &Signals) -> Result<ExitStatus, Failure> {
    let what = "waiting for the program";
    let pidfd = process::pidfd_open(child.id()).or_fail(what)?;
    let mut set = [PollFd::new(&pidfd, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
    loop {
        match poll(&mut set, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).or_fail(what),
        }
        while let Some(caught) = signals.next().or_fail(what)? {
            // A signal that a key of the terminal caused has reached the program already.
            if let (false, Some(signal)) = (caught.by_kernel, Signal::from_named_raw(caught.signal)) {
                let _ = rustix::process::pidfd_send_signal(&pidfd, signal);
            }
        }
        if set[0].revents().contains(PollFlags::IN) {
            return child.wait().or_fail(what);
        }
    }
}

/// Notifies the private stack that the program has ended, and waits until the stack has ended, too. Returns
/// its last report, or `None` if children of the program still use it.
fn wait_for_end(channel: &Channel) -> Option<StatusReport> {
    channel.set_timeouts(END_TIME).ok()?;
    channel.send(br#"{"program_ended":true}"#, &[]).ok()?;
    let mut buffer = vec![0; 512 << 10];
    let mut report = None;
    loop {
        match channel.receive(&mut buffer, &mut Vec::new()) {
            Ok(0) | Err(_) => return report,
            Ok(len) if &buffer[..len] == SESSIONS_REMAIN => return None,
            Ok(len) => report = serde_json::from_slice(&buffer[..len]).unwrap_or(report),
        }
    }
}

fn exit_code(status: ExitStatus) -> ExitCode {
    // The status is 128 + n for signal n, as in a shell.
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code & 0xff).expect("masked"))
}

fn print_stats(what: &str, before: Option<&StatusReport>, after: &StatusReport) {
    let counter = |report: &StatusReport, name: &str| -> u64 {
        report.replicas.iter().filter_map(|replica| replica.stats.get(name)).sum()
    };
    let since = |name: &str| counter(after, name) - before.map_or(0, |before| counter(before, name));
    let calls = after.stack.library_calls - before.map_or(0, |before| before.stack.library_calls);
    let with_system_call = after.stack.library_calls_with_syscall
        - before.map_or(0, |before| before.stack.library_calls_with_syscall);
    let share =
        if calls == 0 { 0.0 } else { 100.0 * (calls - with_system_call.min(calls)) as f64 / calls as f64 };
    complain!("atoll: {what}: {calls} socket calls, {share:.2} % without a system call");
    complain!(
        "atoll: connections {} in, {} out; frames {} in, {} out, {} internal; segments {} in, {} out, {} \
         again",
        since("passive_opens"),
        since("active_opens"),
        since("frames_in"),
        since("frames_out"),
        since("frames_internal"),
        since("segments_in"),
        since("segments_out"),
        since("retransmits"),
    );
}

/// The signals that people and service managers send to a program.
const PASSED_ON: &[Signal] =
    &[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::WINCH];
/// How long to wait for the end of a private stack, which ends earlier unless peers never stop sending.
const END_TIME: Duration = Duration::from_secs(30);

const EXAMPLES: &str = "\
Environment:
  ATOLL_LIB           the library, if it is neither beside the binary nor in ../lib
  ATOLL_RUNTIME_DIR   where stacks have their control sockets

Examples:
  atoll run -- python3 -m http.server 80
  atoll run --name web -- nginx -g 'daemon off;'
  atoll run --stats --replicas 2 -- redis-server
  sudo atoll run --address 198.18.0.2/24 -- nc -l 7        on a TAP device of its own";

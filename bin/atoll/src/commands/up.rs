//! `atoll up`: starts a stack, in the foreground or in the background.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use atoll_base::Duration;
use atoll_supervisor::{Config, ConfigFile, LinkType, StackName};
use atoll_sys::netlink::Netlink;
use atoll_sys::process::{self, Child, Spawn};
use atoll_sys::unix::{Blocking, Channel};
use atoll_sys::{netns, process::Signal};
use serde::{Deserialize, Serialize};

use super::options::StackOptions;
use crate::failure::{self, Failure, OrFail};
use crate::supervise::{self, Ending, Guardian, Running};
use crate::{client, guardian, log, privileges, runtime};

/// Start a stack.
///
/// Stays in the foreground until it is ended by ^C, SIGTERM or `atoll down`, unless --daemon is given. A
/// stack on a TAP device needs root (or CAP_NET_ADMIN), or --rootless.
#[derive(clap::Args)]
pub struct Up {
    /// The name of the stack.
    #[arg(long, short = 'n', value_name = "NAME")]
    name: Option<StackName>,
    /// Go into the background as soon as the stack is ready.
    #[arg(long, short = 'd')]
    daemon: bool,
    /// Make the TAP device in a network namespace of its own, which needs no privilege (but /dev/net/tun must
    /// be open to all). Prints the command that enters the namespace.
    #[arg(long)]
    rootless: bool,
    #[command(flatten)]
    options: StackOptions,
}

impl Up {
    /// Runs the command. Returns its exit status.
    pub fn run(&self) -> Result<ExitCode, Failure> {
        let mut file = self.options.load()?;
        if let Some(name) = &self.name {
            file.name = name.to_string();
        }
        let config = self.options.validate(&file)?;
        let is_tap = config.link.kind == LinkType::Tap;
        if self.rootless && (!is_tap || config.link.netns.is_some()) {
            return Err(Failure::new(
                "--rootless makes a namespace for a TAP device: it needs link.type = \"tap\", and no \
                 link.netns",
            ));
        }
        if self.rootless && !(config.users.allow.is_empty() && config.users.groups.is_empty()) {
            return Err(Failure::new(supervise::ROOT_ONLY));
        }
        if self.daemon {
            let started = start_supervisor(&Job { file, mode: Mode::Daemon, rootless: self.rootless })?;
            // The stack is up even if no process reads this.
            let _ = writeln!(std::io::stdout(), "{}", started.described);
            return Ok(ExitCode::SUCCESS);
        }
        if self.rootless {
            enter_namespaces()?;
        }
        log::check(config.log.format).or_fail("configuration")?;
        log::open(settings(&config, None));
        let stack = supervise::start(config, None)?;
        stack.confine(self.rootless)?;
        stack.report_ready();
        let _ = writeln!(std::io::stdout(), "{}", describe(&stack, self.rootless));
        let _ = std::io::stdout().flush();
        stack.serve(|served| finish(&file.name, served?))
    }
}

/// Returns the exit status after the end of a stack; an end that was not asked for is a failure.
fn finish(name: &str, ending: Ending) -> Result<ExitCode, Failure> {
    match ending {
        Ending::ServerGone { .. } => Err(Failure::new(format!(
            "{ending}; stack \"{name}\" is taken down, and its connections are lost"
        ))),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn describe(stack: &Running, rootless: bool) -> String {
    let mut text = stack.describe();
    if rootless {
        let pid = stack.namespace_holder();
        text += &format!(
            "\nthe kernel's end is in a namespace; to run programs there: nsenter --preserve-credentials -U \
             -n -t {pid} \
             PROGRAM"
        );
    }
    text
}

/// Enters a user namespace in which this process is root, and a network namespace of its own, and switches on
/// the loopback device there.
fn enter_namespaces() -> Result<(), Failure> {
    process::become_root_in_user_namespace().map_err(|error| {
        Failure::new(format!(
            "making a user namespace: {error}; the system may forbid it (sysctl user.max_user_namespaces, \
             kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns); without a \
             device, programs \
             on the stack still reach each other (--link none)"
        ))
    })?;
    netns::unshare().or_fail("making a network namespace")?;
    let what = "switching on the loopback device of the namespace";
    let mut netlink = Netlink::open().or_fail(what)?;
    let lo = netlink.link("lo").or_fail(what)?.index;
    netlink.set_up(lo).or_fail(what)
}

/// The task of a supervisor in a process of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The configuration of the stack.
    pub file: ConfigFile,
    /// The users of the stack.
    pub mode: Mode,
    /// Whether the stack is in namespaces of its own.
    pub rootless: bool,
}

/// The users of a supervisor's stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Any program, until the stack is stopped.
    Daemon,
    /// Only the program of one `atoll run`.
    Private,
}

/// A supervisor that is ready.
pub struct Started {
    /// The description of the stack, for people.
    pub described: String,
    /// The connection to the supervisor; a private stack stays up until it closes.
    pub channel: Channel,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Readiness {
    Ready(String),
    Failed(String),
}

/// Starts a supervisor in a process of its own and waits until its stack is ready. The error is the
/// supervisor's, or says how it ended.
pub fn start_supervisor(job: &Job) -> Result<Started, Failure> {
    let what = "starting the supervisor";
    let (channel, theirs) = Channel::pair(Blocking::Yes).or_fail(what)?;
    let by_dhcp = job.file.validate().is_ok_and(|config| config.link.address.is_none());
    let for_address = Duration::from_secs(if by_dhcp { job.file.link.dhcp_wait_s.into() } else { 0 });
    channel.set_timeouts(READY_TIME + for_address).or_fail(what)?;
    let mut spawn = Spawn::this_binary("atoll").or_fail(what)?;
    // This process may itself run under `atoll run`, but supervisors use the kernel's sockets.
    spawn.env("LD_PRELOAD", "").or_fail(what)?;
    spawn.arg("supervise").or_fail(what)?;
    spawn.arg(serde_json::to_string(job).or_fail(what)?).or_fail(what)?;
    spawn.inherit(theirs.as_fd());
    let child = spawn.start().or_fail(what)?;
    drop(theirs);
    let mut buffer = vec![0; 16 << 10];
    let received = channel.receive(&mut buffer, &mut Vec::new());
    let answer = received.as_ref().ok().and_then(|&len| serde_json::from_slice(&buffer[..len]).ok());
    match answer {
        Some(Readiness::Ready(described)) => Ok(Started { described, channel }),
        Some(Readiness::Failed(reason)) => {
            let _ = child.wait();
            Err(Failure::new(reason))
        }
        None => {
            let _ = child.kill(Signal::KILL);
            let log = match job.mode {
                Mode::Daemon => {
                    let name: Option<StackName> = job.file.name.parse().ok();
                    name.map(|name| format!("; see {}", runtime::paths(&name).log.display()))
                        .unwrap_or_default()
                }
                Mode::Private => String::new(),
            };
            Err(Failure::new(match child.wait() {
                Ok(exit) => format!("the supervisor ended before the stack was ready ({exit:?}){log}"),
                Err(error) => format!("the supervisor ended before the stack was ready ({error}){log}"),
            }))
        }
    }
}

/// Run the supervisor in a process of its own.
#[derive(clap::Args)]
pub struct Supervise {
    /// A [`Job`] as JSON.
    job: String,
    /// A guardian watches this supervisor; the last descriptor is the socket for notes.
    #[arg(long)]
    guarded: bool,
    /// Take over a running stack from a dead supervisor; the last descriptor is the socket for notes.
    #[arg(long)]
    takeover: bool,
    /// Be the guardian of the supervisor with this number, which has started this process; the descriptors
    /// are the supervisor's pidfd, and the socket for notes.
    #[arg(long, value_name = "PID")]
    guardian_of: Option<u32>,
}

impl Supervise {
    /// Reports to the process that started this one whether the stack is ready, then serves. Returns the exit
    /// status.
    pub fn run(&self) -> ExitCode {
        let Ok(job) = serde_json::from_str::<Job>(&self.job) else { return ExitCode::FAILURE };
        privileges::protect_from_oom();
        let count = 1 + usize::from(self.guarded || self.guardian_of.is_some());
        let is_first = !(self.guarded || self.takeover || self.guardian_of.is_some());
        if !is_first {
            open_log(&job);
        }
        let Ok(mut descriptors) = process::take_inherited(count) else { return ExitCode::FAILURE };
        if let Some(pid) = self.guardian_of {
            let (Some(channel), Some(pidfd)) = (descriptors.pop(), descriptors.pop()) else {
                return ExitCode::FAILURE;
            };
            let supervisor = Child::foster(pid, pidfd);
            return guardian::succeed(&self.job, job.rootless, supervisor, channel.into())
                .unwrap_or_else(report);
        }
        let pid = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().cast_unsigned());
        let guardian = (self.guarded || self.takeover).then(|| descriptors.pop()).flatten();
        let guardian =
            guardian.map(|channel| Guardian { pid, channel: channel.into(), job: self.job.clone() });
        if self.takeover {
            return guardian.map_or(ExitCode::FAILURE, |guardian| take_over(guardian, &job));
        }
        let Some(channel) = descriptors.pop() else { return ExitCode::FAILURE };
        // A stack that joins another one's link ends with its supervisor, and so does one that is made for a
        // program.
        let wants_guardian =
            guardian.is_none() && job.mode == Mode::Daemon && job.file.link.kind != LinkType::Shm;
        let prepared =
            if self.guarded { job.file.validate().or_fail("configuration") } else { prepare(&job) };
        if is_first {
            open_log(&job);
        }
        if wants_guardian && prepared.is_ok() {
            return guardian::guard(&self.job, job.rootless, channel).unwrap_or_else(report);
        }
        let channel = Channel::from(channel);
        let tell = |readiness: &Readiness| {
            let _ = channel.send(&serde_json::to_vec(readiness).unwrap_or_default(), &[]);
        };
        let started = prepared.and_then(|config| supervise::start(config, guardian)).and_then(|stack| {
            stack.confine(job.rootless)?;
            Ok(stack)
        });
        let mut stack = match started {
            Ok(stack) => stack,
            Err(failure) => {
                tell(&Readiness::Failed(failure.to_string()));
                return ExitCode::FAILURE;
            }
        };
        tell(&Readiness::Ready(describe(&stack, job.rootless)));
        stack.report_ready();
        match job.mode {
            Mode::Daemon => drop(channel),
            Mode::Private => {
                if let Err(failure) = stack.set_owner(channel) {
                    return report(failure);
                }
            }
        }
        serve(stack, &job)
    }
}

/// Reports why the process ends, and returns its exit status.
fn report(failure: Failure) -> ExitCode {
    let shortage = failure.is_shortage();
    event!(supervisor_failed, { error = failure.to_string(), shortage }, "{failure}");
    failure::exit_code(shortage)
}

/// Continues the stack of a supervisor that has ended, and serves it.
fn take_over(guardian: Guardian, job: &Job) -> ExitCode {
    let Ok(config) = job.file.validate() else { return ExitCode::FAILURE };
    let stack = supervise::take_over(config, guardian).and_then(|stack| {
        stack.confine(job.rootless)?;
        Ok(stack)
    });
    match stack {
        Ok(stack) => serve(stack, job),
        Err(failure) => report(failure),
    }
}

fn serve(stack: Running, job: &Job) -> ExitCode {
    stack.serve(|served| {
        served.and_then(|ending| finish(&job.file.name, ending)).unwrap_or_else(|failure| {
            report(failure);
            ExitCode::FAILURE
        })
    })
}

/// Prepares this process to log to the stack's log from now on, without waiting for a reader.
fn open_log(job: &Job) {
    if let Ok(config) = job.file.validate() {
        let file = (job.mode == Mode::Daemon).then(|| runtime::paths(&config.name).log);
        log::open(settings(&config, file));
    }
}

/// Returns what the log of this stack is like; `file` is its path if its size is to be bounded.
fn settings(config: &Config, file: Option<PathBuf>) -> log::Settings {
    log::Settings { stack: config.name.clone(), format: config.log.format, level: config.log.level, file }
}

/// Leaves the terminal and the working directory of the command. Returns the checked configuration.
fn prepare(job: &Job) -> Result<Config, Failure> {
    let config = job.file.validate().or_fail("configuration")?;
    log::check(config.log.format).or_fail("configuration")?;
    let what = "going into the background";
    // Keys of the terminal reach the program, but not its stack, which ends after it.
    rustix::process::setsid().or_fail(what)?;
    let nothing = OpenOptions::new().read(true).write(true).open("/dev/null").or_fail("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing).or_fail(what)?;
    if job.mode == Mode::Daemon {
        runtime::prepare_directory()?;
        if client::SupervisorClient::find(&config.name)?.is_none() {
            let path = runtime::paths(&config.name).log;
            // Appending leaves no hole at the beginning if the log is truncated later.
            let log = OpenOptions::new().create(true).append(true).open(&path).or_fail(path.display())?;
            log.set_len(0).or_fail(path.display())?;
            rustix::stdio::dup2_stdout(&log).or_fail(what)?;
            rustix::stdio::dup2_stderr(&log).or_fail(what)?;
        }
        std::env::set_current_dir("/").or_fail(what)?;
    } else {
        rustix::stdio::dup2_stdout(std::io::stderr()).or_fail(what)?;
    }
    if job.rootless {
        enter_namespaces()?;
    }
    Ok(config)
}

/// How long a stack may take until it is ready: longer than a supervisor gives its replicas, so that it can
/// report which of them was late.
const READY_TIME: Duration = Duration::from_secs(30);

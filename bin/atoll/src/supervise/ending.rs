//! The reasons why a stack ends and how a server has ended, for people and for the code that starts the next
//! one.

use atoll_supervisor::{Component, Fault, Plan};
use atoll_sys::process::Exit;

use crate::failure::EXIT_OF_SHORTAGE;
use crate::privileges;

/// The reason why the stack ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// This signal ended it.
    Signal(i32),
    /// `atoll down` ended it.
    Asked,
    /// The program that it was made for has ended.
    ProgramEnded,
    /// The stack does not end: a supervisor of another build takes over.
    MadeWay,
    /// A server ended before the stack was ready.
    ServerGone {
        /// The server.
        server: Role,
        /// The pid of its process.
        pid: Option<u32>,
        /// The status with which it ended, if known.
        exit: Option<Exit>,
        /// The system call that is not on its list, if it died of one.
        forbidden: Option<u32>,
    },
}

/// The kind and number of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The replica with this number.
    Replica(usize),
    /// The link server, in a process of its own, with this number.
    LinkServer(usize),
    /// The IP server, in a process of its own, with this number.
    IpServer(usize),
    /// The connection manager, in a process of its own, with this number.
    Manager(usize),
}

impl Role {
    /// Returns the role of the server with this number.
    pub fn of(plan: &Plan, index: usize) -> Role {
        if plan.servers_of(Component::Ts).any(|replica| replica == index) {
            return Role::Replica(index);
        }
        match (plan.ip_of(index), plan.manager_of(index)) {
            (Some(number), _) => Role::IpServer(number),
            (None, Some(number)) => Role::Manager(number),
            // Queues are numbered consecutively, and some may belong to replicas.
            (None, None) => Role::LinkServer(plan.queue_of(index).unwrap_or(index)),
        }
    }

    /// Returns the kind of the server, as a field of an event.
    pub fn kind(self) -> &'static str {
        match self {
            Role::Replica(_) => "replica",
            Role::LinkServer(_) => "link_server",
            Role::IpServer(_) => "ip_server",
            Role::Manager(_) => "connection_manager",
        }
    }

    /// Returns the number of the server among those of its kind.
    pub fn number(self) -> usize {
        let (Role::Replica(index) | Role::LinkServer(index) | Role::IpServer(index) | Role::Manager(index)) =
            self;
        index
    }
}

/// How a process has ended, as fields of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HowEnded {
    /// `signal`, `status`, `forbidden_call`, `killed` or `gone`.
    pub exit: &'static str,
    /// The signal that ended it, such as `SIGSEGV`.
    pub signal: Option<String>,
    /// The process's exit status.
    pub status: Option<i32>,
    /// The system call that is not on its list.
    pub call: Option<String>,
}

impl HowEnded {
    /// Describes an end. `forbidden` is the system call that is not on the process's list, if it died of one.
    pub fn of(exit: Option<Exit>, forbidden: Option<u32>) -> HowEnded {
        let how = |exit| HowEnded { exit, signal: None, status: None, call: None };
        match exit {
            Some(Exit::Signal(libc::SIGSYS)) if let Some(call) = forbidden => {
                HowEnded { call: Some(privileges::name_of(call)), ..how("forbidden_call") }
            }
            Some(Exit::Signal(signal)) => {
                let name = signal_name(signal).split(" (").next().map(str::to_owned);
                HowEnded { signal: name, ..how("signal") }
            }
            Some(Exit::Killed) => how("killed"),
            Some(Exit::Code(code)) => HowEnded { status: Some(code), ..how("status") },
            Some(Exit::Unknown) | None => how("gone"),
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Role::Replica(index) => write!(f, "replica {index}"),
            Role::LinkServer(index) => write!(f, "link server {index}"),
            Role::IpServer(index) => write!(f, "IP server {index}"),
            Role::Manager(index) => write!(f, "connection manager {index}"),
        }
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ending::Signal(signal) => write!(f, "ended by {}", signal_name(*signal)),
            Ending::Asked => f.write_str("ended by `atoll down`"),
            Ending::ProgramEnded => f.write_str("ended with its program"),
            Ending::MadeWay => f.write_str("goes on under another supervisor"),
            Ending::ServerGone { server, pid, exit, forbidden } => {
                f.write_str(&death(*server, *pid, *exit, *forbidden))
            }
        }
    }
}

/// Describes for people how a server has ended.
pub fn death(server: Role, pid: Option<u32>, exit: Option<Exit>, forbidden: Option<u32>) -> String {
    ending_of(&server.to_string(), pid, exit, forbidden)
}

/// Describes for people how a process has ended; `server` is its name.
pub fn ending_of(server: &str, pid: Option<u32>, exit: Option<Exit>, forbidden: Option<u32>) -> String {
    let pid = pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    match exit {
        Some(Exit::Signal(libc::SIGSYS)) if let Some(call) = forbidden => {
            format!("{server}{pid} made the forbidden system call {}", privileges::name_of(call))
        }
        Some(Exit::Signal(signal)) => format!("{server}{pid} was ended by {}", signal_name(signal)),
        Some(Exit::Killed) => format!("{server}{pid} was killed"),
        Some(Exit::Code(code)) => format!("{server}{pid} ended with status {code}"),
        Some(Exit::Unknown) | None => format!("{server}{pid} is gone"),
    }
}

/// Returns a signal's name, such as `SIGSEGV`, or its number if it has no usual name.
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT (a bug: see the message above)",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL (by someone, or because memory ran out: see dmesg)",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGTERM => "SIGTERM",
        libc::SIGSYS => "SIGSYS (a forbidden system call)",
        other => return format!("signal {other}"),
    };
    name.into()
}

/// Returns the cause of a process's end, as far as the supervisor can see.
pub fn fault_of(exit: Option<Exit>) -> Fault {
    match exit {
        None | Some(Exit::Signal(libc::SIGKILL | libc::SIGTERM) | Exit::Killed | Exit::Unknown) => {
            Fault::Other
        }
        Some(Exit::Code(EXIT_OF_SHORTAGE)) => Fault::Other,
        Some(_) => Fault::Own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_has_its_fields() {
        let of = |exit, forbidden| {
            let HowEnded { exit, signal, status, call } = HowEnded::of(exit, forbidden);
            (exit, signal.or(call).or(status.map(|status| status.to_string())).unwrap_or_default())
        };
        assert_eq!(of(Some(Exit::Signal(libc::SIGKILL)), None), ("signal", "SIGKILL".into()));
        assert_eq!(of(Some(Exit::Signal(libc::SIGABRT)), Some(2)), ("signal", "SIGABRT".into()));
        assert_eq!(of(Some(Exit::Signal(64)), None), ("signal", "signal 64".into()));
        assert_eq!(of(Some(Exit::Signal(libc::SIGSYS)), None), ("signal", "SIGSYS".into()));
        let call = libc::SYS_openat as u32;
        assert_eq!(of(Some(Exit::Signal(libc::SIGSYS)), Some(call)), ("forbidden_call", "openat".into()));
        assert_eq!(of(Some(Exit::Code(75)), None), ("status", "75".into()));
        assert_eq!(of(Some(Exit::Killed), None), ("killed", String::new()));
        assert_eq!(of(None, None), ("gone", String::new()));
    }
}

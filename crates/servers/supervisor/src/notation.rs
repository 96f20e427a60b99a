//! The notation for the servers that make up a stack. It is Pika's (P2): `TS2LS2CM2` is two processes, each
//! with a transport server, a link server and a connection manager; `TS2CM2+LS1` puts the link server into a
//! process of its own.
//!
//! ```text
//!   configuration  =  kind { "+" kind }          each kind of process is apart from the others
//!   kind           =  part { part }              XnYm, m < n: n processes with X; the first m also have Y
//!   part           =  ("TS" | "IP" | "LS" | "CM") number
//! ```
//!
//! IP may be left out: then it is in the processes of the transport servers. If IP is not with transport
//! servers, it may be with link servers, or in processes of its own. [`Plan`](crate::Plan) lists the
//! processes that result.

use std::fmt;
use std::str::FromStr;

use atoll_ipc::page::REPLICAS_MAX;
use thiserror::Error;

/// The largest number of servers of one component.
pub const COMPONENT_MAX: u8 = REPLICAS_MAX as u8;

/// A component that a process of a stack may contain (P1, and IP of N6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// Transport server: connections and datagram sockets.
    Ts,
    /// Internet protocol: addresses, neighbours, paths, fragments.
    Ip,
    /// Link server: a queue of the device, and steering.
    Ls,
    /// Connection manager: listeners, acceptors, ports.
    Cm,
}

impl Component {
    /// All components, in the order of the normal form.
    pub const ALL: [Component; 4] = [Component::Ts, Component::Ip, Component::Ls, Component::Cm];

    /// Returns the component's name in the notation.
    pub const fn name(self) -> &'static str {
        match self {
            Component::Ts => "TS",
            Component::Ip => "IP",
            Component::Ls => "LS",
            Component::Cm => "CM",
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Component::Ts => "transport servers",
            Component::Ip => "IP components",
            Component::Ls => "link servers",
            Component::Cm => "connection managers",
        }
    }
}

/// A configuration that this version can run, as the number and placement of each component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notation {
    parts: [Part; 4],
}

/// The number of servers of a component, and the kind of process in which they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The number of servers, from 1 to [`COMPONENT_MAX`].
    pub(crate) count: u8,
    /// The first component of this kind of process, in the order of [`Component::ALL`]. Kinds therefore
    /// compare equal in whatever order they were written.
    pub(crate) kind: Component,
}

impl Notation {
    /// Returns `TSnLSnCMn`, or `None` unless n is 1 to [`REPLICAS_MAX`].
    pub fn symmetric(replicas: u8) -> Option<Notation> {
        let part = Part { count: replicas, kind: Component::Ts };
        (1..=COMPONENT_MAX).contains(&replicas).then_some(Notation { parts: [part; 4] })
    }

    /// Returns the number of replicas, which is that of transport servers.
    pub fn replicas(self) -> u8 {
        self.part(Component::Ts).count
    }

    pub(crate) fn part(self, component: Component) -> Part {
        self.parts[component as usize]
    }

    /// Returns whether IP is where it would be if the text left it out: with every transport server.
    fn has_usual_ip(self) -> bool {
        self.part(Component::Ip) == self.part(Component::Ts)
    }

    /// Rejects configurations that make no sense in any version.
    fn check(self) -> Result<(), NotationError> {
        let [ts, ip, ls, cm] = self.parts;
        if ip.count > ts.count {
            return Err(NotationError::IdleIp { ip: ip.count, ts: ts.count });
        }
        if ip.kind != ts.kind && ls.kind == ts.kind {
            return Err(NotationError::LinksAwayFromIp);
        }
        if cm.count > ts.count {
            return Err(NotationError::IdleManagers { cm: cm.count, ts: ts.count });
        }
        Ok(())
    }

    /// Rejects configurations that this version cannot run.
    fn check_version(self) -> Result<(), NotationError> {
        let [ts, ip, ls, cm] = self.parts;
        if ip.kind == ts.kind && ip.count != ts.count {
            return Err(NotationError::IpOfOthers);
        }
        if cm.kind != ts.kind && (cm.kind == ls.kind || cm.kind == ip.kind) {
            return Err(NotationError::ManagersWithLinks);
        }
        Ok(())
    }
}

/// Writes the normal form: components and kinds in the order of [`Component::ALL`], and IP only where it is
/// not with every transport server.
impl fmt::Display for Notation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for kind in Component::ALL {
            let is_of_kind = |component: &Component| self.part(*component).kind == kind;
            let is_written = |component: &Component| *component != Component::Ip || !self.has_usual_ip();
            let mut parts = Component::ALL.into_iter().filter(is_of_kind).filter(is_written).peekable();
            if parts.peek().is_none() {
                continue;
            }
            f.write_str(between)?;
            between = "+";
            for component in parts {
                write!(f, "{}{}", component.name(), self.part(component).count)?;
            }
        }
        Ok(())
    }
}

impl FromStr for Notation {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Notation, NotationError> {
        let mut found: [Option<Part>; 4] = [None; 4];
        for kind in text.split('+') {
            let parts = parse_kind(kind)?;
            let first = parts.iter().map(|(component, _)| *component).min().ok_or(NotationError::Syntax)?;
            for (component, count) in parts {
                if found[component as usize].replace(Part { count, kind: first }).is_some() {
                    return Err(NotationError::Twice(component));
                }
            }
        }
        let needed =
            |component: Component| found[component as usize].ok_or(NotationError::Missing(component));
        let (ts, ls, cm) = (needed(Component::Ts)?, needed(Component::Ls)?, needed(Component::Cm)?);
        let notation = Notation { parts: [ts, found[Component::Ip as usize].unwrap_or(ts), ls, cm] };
        notation.check()?;
        notation.check_version()?;
        Ok(notation)
    }
}

/// Returns the components of one kind of process, in the order written: `TS2LS2` gives `[(TS, 2), (LS, 2)]`.
fn parse_kind(text: &str) -> Result<Vec<(Component, u8)>, NotationError> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let name = rest.get(..2).ok_or(NotationError::Syntax)?;
        let component = Component::ALL.into_iter().find(|component| component.name() == name);
        let component = component.ok_or(NotationError::Syntax)?;
        let digits = rest[2..].bytes().take_while(u8::is_ascii_digit).count();
        let number = &rest[2..2 + digits];
        if number.is_empty() {
            return Err(NotationError::Syntax);
        }
        // A number that does not fit is too many as well.
        match number.parse().unwrap_or(u8::MAX) {
            0 => return Err(NotationError::Zero(component)),
            count @ 1..=COMPONENT_MAX => parts.push((component, count)),
            _ => return Err(NotationError::TooMany(component)),
        }
        rest = &rest[2 + digits..];
    }
    Ok(parts)
}

/// The reason why a configuration cannot be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotationError {
    /// The text does not follow the notation.
    #[error(
        "not a configuration: write the numbers of transport servers (TS), link servers (LS) and connection \
         managers (CM), such as TS2LS2CM2, with a + between those in different processes, such as TS2CM2+LS1"
    )]
    Syntax,
    /// The text asks for 0 servers of a component.
    #[error("{}0: a stack cannot do without {}", .0.name(), .0.words())]
    Zero(Component),
    /// The text asks for more than [`COMPONENT_MAX`] servers of a component.
    #[error("a stack has 1 to {COMPONENT_MAX} {} ({})", .0.words(), .0.name())]
    TooMany(Component),
    /// A component appears twice.
    #[error("{} is there twice: all {} are of one kind", .0.name(), .0.words())]
    Twice(Component),
    /// A component that every stack needs is missing.
    #[error("{} is missing: a stack cannot do without {}", .0.name(), .0.words())]
    Missing(Component),
    /// There are more IP servers than transport servers, so some would have nothing to do.
    #[error(
        "IP{ip} with TS{ts}: an IP component serves transport servers, so more of them than of these have \
         nothing to do"
    )]
    IdleIp {
        /// The number of IP servers.
        ip: u8,
        /// The number of transport servers.
        ts: u8,
    },
    /// Packets would go from the process of a transport server to that of an IP server and back.
    #[error(
        "packets would go from the process of a transport server to that of its IP server and back: write LS \
         with IP, as in TS2CM2+IP2LS2, or behind a + of its own"
    )]
    LinksAwayFromIp,
    /// There are more connection managers than transport servers, so some would have nothing to do.
    #[error(
        "CM{cm} with TS{ts}: a connection manager serves transport servers, so more of them than of these \
         have \
         nothing to do"
    )]
    IdleManagers {
        /// The number of connection managers.
        cm: u8,
        /// The number of transport servers.
        ts: u8,
    },
    /// IP is in the processes of some transport servers, but not of all; this version cannot run that.
    #[error(
        "this version runs IP in the process of every transport server, or in processes without any: leave \
         IP \
         out, write as many of it as TS, or write it behind a +, as in TS4CM4+IP1LS1"
    )]
    IpOfOthers,
    /// The connection managers are in processes with link servers or IP servers, but without transport
    /// servers; this version cannot run that.
    #[error(
        "this version runs connection managers in the processes of transport servers or in processes of \
         their \
         own: write CM behind TS, or behind a + of its own"
    )]
    ManagersWithLinks,
    /// The given number of replicas is not from 1 to [`REPLICAS_MAX`].
    #[error("a stack has 1 to {REPLICAS_MAX} replicas, not {0}")]
    Replicas(u8),
}

#[cfg(test)]
mod tests;

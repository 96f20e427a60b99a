//! What does a supervisor tell about its stack? The JSON of `atoll status --json`, documented in `docs/cli.md`.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::config::{BalanceRules, LinkType, Steering};

/// One packet of an answer. A report may be longer than a packet, so it travels in parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportPart {
    /// Of the status.
    Stack(Box<StackReport>),
    /// Of the status.
    Replica(Box<ReplicaReport>),
    /// Of the status.
    Session(SessionReport),
    /// The rules of balancing.
    Balance(BalanceRules),
    /// The answer is complete.
    Done(bool),
    /// There is no answer, for this reason.
    Error(String),
}

/// All of `atoll status --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The stack as a whole.
    pub stack: StackReport,
    /// By index.
    pub replicas: Vec<ReplicaReport>,
    /// Oldest first.
    pub sessions: Vec<SessionReport>,
}

/// The stack as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StackReport {
    /// Its name.
    pub name: String,
    /// The supervisor's process.
    pub pid: u32,
    /// Pika's notation.
    pub configuration: String,
    /// Version of the program.
    pub version: String,
    /// How long it has been up.
    pub uptime_s: f64,
    /// The control socket.
    pub socket: String,
    /// The link.
    pub link: LinkReport,
    /// Sessions opened since the start.
    pub sessions_opened: u64,
    /// Socket calls of all programs, those that ended included.
    pub library_calls: u64,
    /// Those of them that needed a system call.
    pub library_calls_with_syscall: u64,
}

/// The link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// What it is made of.
    #[serde(rename = "type")]
    pub kind: LinkType,
    /// Name of the TAP device.
    pub device: Option<String>,
    /// Network namespace of the device.
    pub netns: Option<String>,
    /// Own address.
    pub address: Ipv4Addr,
    /// Length of its prefix.
    pub prefix: u8,
    /// Address that the kernel's end was given.
    pub peer_address: Option<String>,
    /// Gateway.
    pub gateway: Option<Ipv4Addr>,
    /// Own IPv6 addresses, the link-local one first.
    #[serde(default)]
    pub addresses6: Vec<AddressReport>,
    /// Gateway of the configuration.
    #[serde(default)]
    pub gateway6: Option<Ipv6Addr>,
    /// Own hardware address.
    pub mac: String,
    /// Largest packet.
    pub mtu: u16,
    /// Whether the kernel segments and reassembles.
    pub offload: bool,
    /// Who steers: never `auto`.
    pub steering: Steering,
    /// The stack at the other end of a shared-memory link.
    pub peer: Option<String>,
    /// Whether that stack is there.
    pub peer_present: Option<bool>,
}

/// One own IPv6 address, in the words of `ip addr`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressReport {
    /// The address.
    pub address: Ipv6Addr,
    /// Length of its prefix.
    pub prefix: u8,
    /// `link` or `global`.
    pub scope: String,
    /// `tentative`, `deprecated`, `dadfailed`, `dynamic`.
    pub flags: Vec<String>,
    /// Seconds for which it stays valid; absent: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_s: Option<u64>,
    /// Seconds for which it stays preferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_s: Option<u64>,
}

/// One replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplicaReport {
    /// Its number; also that of its queue.
    pub index: u8,
    /// Its process.
    pub pid: u32,
    /// Its incarnation.
    pub epoch: u32,
    /// The processor it was last seen on.
    pub cpu: Option<u32>,
    /// Processor time it has used, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// Flow groups that it owns, of 4096.
    pub flow_groups: u32,
    /// Its counters by name.
    pub stats: BTreeMap<String, u64>,
    /// What happened lately; added by `atoll status`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<Rates>,
}

/// Per second, between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Frames from the link.
    pub frames_in: f64,
    /// Frames to the link.
    pub frames_out: f64,
    /// Bits from the link.
    pub bits_in: f64,
    /// Bits to the link.
    pub bits_out: f64,
    /// Connections opened by peers and by applications.
    pub connections: f64,
    /// Share of the time with something to do, 0..=1.
    pub busy: f64,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionReport {
    /// Its number.
    pub id: u32,
    /// The process that opened it.
    pub pid: u32,
    /// What that process is called.
    pub comm: String,
    /// The processes that can use its sockets.
    pub members: Vec<u32>,
    /// Socket calls of its processes.
    pub calls: u64,
    /// Those of them that needed a system call.
    pub calls_with_syscall: u64,
}

impl StatusReport {
    /// Puts the parts of an answer together; `None` if the stack itself is missing.
    pub fn assemble(parts: impl IntoIterator<Item = ReportPart>) -> Option<StatusReport> {
        let (mut stack, mut replicas, mut sessions) = (None, Vec::new(), Vec::new());
        for part in parts {
            match part {
                ReportPart::Stack(report) => stack = Some(*report),
                ReportPart::Replica(report) => replicas.push(*report),
                ReportPart::Session(report) => sessions.push(report),
                ReportPart::Balance(_) | ReportPart::Done(_) | ReportPart::Error(_) => {}
            }
        }
        Some(StatusReport { stack: stack?, replicas, sessions })
    }
}

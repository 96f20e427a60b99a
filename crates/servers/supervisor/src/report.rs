//! What does a supervisor tell about its stack? The JSON of `atoll status --json`, documented in
//! `docs/cli.md`.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use atoll_ipc::page::{LAYER_CAPABILITIES, LAYER_EMPTY_ROOT, LAYER_LANDLOCK, LAYER_OWN_USER, LAYER_SECCOMP, Stat};
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
    LinkServer(Box<ServerReport>),
    /// Of the status.
    IpServer(Box<ServerReport>),
    /// Of the status.
    Manager(Box<ServerReport>),
    /// Of the status.
    Session(SessionReport),
    /// The rules of balancing.
    Balance(BalanceRules),
    /// Of an upgrade: what has been done.
    Progress(String),
    /// In how many processes the replicas are.
    Scaling(ScalingReport),
    /// Of the sockets: this server is being restarted, and has not told its own.
    Restarting(String),
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
    /// Link servers in processes of their own, by index.
    #[serde(default)]
    pub link_servers: Vec<ServerReport>,
    /// IP servers in processes of their own, by index.
    #[serde(default)]
    pub ip_servers: Vec<ServerReport>,
    /// Connection managers in processes of their own, by index.
    #[serde(default)]
    pub connection_managers: Vec<ServerReport>,
    /// Oldest first.
    pub sessions: Vec<SessionReport>,
}

/// What is told of every server, whatever its kind.
#[derive(Clone, Copy, Debug)]
pub struct ServerView<'a> {
    /// Its kind, in words.
    pub kind: &'static str,
    /// Its number among those.
    pub index: u8,
    /// Its process.
    pub pid: u32,
    /// Its incarnation.
    pub epoch: u32,
    /// Processor time that its process has used, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// Its lives.
    pub recovery: &'a RecoveryReport,
    /// Its counters by name.
    pub stats: &'a BTreeMap<String, u64>,
}

impl StatusReport {
    /// Every server: replicas, link servers, IP servers, connection managers, each by index.
    pub fn servers(&self) -> impl Iterator<Item = ServerView<'_>> {
        let replicas = self.replicas.iter().map(|it| ServerView {
            kind: "replica",
            index: it.index,
            pid: it.pid,
            epoch: it.epoch,
            cpu_ms: it.cpu_ms,
            recovery: &it.recovery,
            stats: &it.stats,
        });
        let others = [
            ("link server", &self.link_servers),
            ("IP server", &self.ip_servers),
            ("connection manager", &self.connection_managers),
        ];
        let others = others.into_iter().flat_map(|(kind, list)| list.iter().map(move |it| it.view(kind)));
        replicas.chain(others)
    }
}

impl ServerReport {
    fn view(&self, kind: &'static str) -> ServerView<'_> {
        let ServerReport { index, pid, epoch, cpu_ms, ref recovery, ref stats, .. } = *self;
        ServerView { kind, index, pid, epoch, cpu_ms, recovery, stats }
    }
}

/// How it stands with memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// `plenty`; `pressure`: buffers are small; `high`: nothing new begins, and who stands still is reset.
    pub level: String,
    /// What there is least left of: `memory.limit`, `cgroup` or `machine`.
    pub bound: String,
    /// How many bytes that allows.
    pub limit: u64,
    /// How many of them are left.
    pub left: u64,
    /// How many bytes the stack itself takes: buffers, ledgers, rings, and what its processes have for
    /// themselves.
    pub used: u64,
    /// How many bytes all receive buffers together may take.
    pub receive_max: u64,
    /// Whether the kernel says that processes wait for memory (PSI).
    pub stalls: bool,
}

/// The stack as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StackReport {
    /// Its name.
    pub name: String,
    /// The supervisor's process.
    pub pid: u32,
    /// The process that starts the next supervisor if this one dies; absent: nobody does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guardian: Option<u32>,
    /// How it stands with memory; absent: its supervisor is of a build that does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryReport>,
    /// The process that goes on with the replicas of one that dies; absent: there is none now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby: Option<u32>,
    /// How many supervisors have died.
    #[serde(default)]
    pub takeovers: u32,
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
    /// In how many processes its replicas are.
    #[serde(default)]
    pub scaling: ScalingReport,
    /// Sessions opened since the start.
    pub sessions_opened: u64,
    /// Socket calls of all programs, those that ended included.
    pub library_calls: u64,
    /// Those of them that needed a system call.
    pub library_calls_with_syscall: u64,
    /// What keeps its servers from what is none of their business.
    #[serde(default)]
    pub confinement: ConfinementReport,
}

/// What all servers of a stack do without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfinementReport {
    /// They have no capabilities.
    pub capabilities: bool,
    /// What keeps them from files.
    pub file_system: FileSystem,
    /// They have lists of system calls.
    pub seccomp: bool,
    /// Which user they run as.
    #[serde(default)]
    pub user: RunAs,
}

/// Which user servers run as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunAs {
    /// One of their own, that is neither root nor the supervisor's.
    Own,
    /// The one that runs the stack, who is not root.
    #[default]
    Stack,
    /// Root, though without its capabilities: there is no user for them.
    Root,
}

impl ConfinementReport {
    /// What all servers have, of which each says `LAYER_*` of itself. `is_root`: whether the supervisor is
    /// root.
    pub fn of(servers: impl IntoIterator<Item = u32>, is_root: bool) -> ConfinementReport {
        let all = servers.into_iter().collect::<Vec<_>>();
        let have = |layers: u32| all.iter().all(|own| own & layers != 0);
        ConfinementReport {
            capabilities: have(LAYER_CAPABILITIES),
            file_system: match (have(LAYER_LANDLOCK), have(LAYER_LANDLOCK | LAYER_EMPTY_ROOT)) {
                (true, _) => FileSystem::Landlock,
                (false, true) => FileSystem::EmptyRoot,
                (false, false) => FileSystem::Open,
            },
            seccomp: have(LAYER_SECCOMP),
            user: match (have(LAYER_OWN_USER), is_root) {
                (true, _) => RunAs::Own,
                (false, true) => RunAs::Root,
                (false, false) => RunAs::Stack,
            },
        }
    }
}

/// What keeps servers from files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSystem {
    /// Landlock.
    Landlock,
    /// An empty root.
    EmptyRoot,
    /// Nothing: the kernel has no Landlock, and allows no other root.
    #[default]
    Open,
}

/// In how many processes the replicas are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalingReport {
    /// Now.
    pub processes: u8,
    /// How many there are to be.
    pub wanted: u8,
    /// Whether that follows from how busy they are.
    pub auto: bool,
    /// How few there may be then.
    pub min: u8,
    /// How many there may be then.
    pub max: u8,
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
    /// Own address; absent as long as no DHCP server has given one.
    pub address: Option<Ipv4Addr>,
    /// Length of its prefix.
    pub prefix: Option<u8>,
    /// Where the address comes from, if not from the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp: Option<DhcpReport>,
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

/// What is known of DHCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DhcpReport {
    /// What the client is about: `init`, `selecting`, `requesting`, `probing`, `bound`, `renewing` or
    /// `rebinding` (RFC 2131).
    pub state: String,
    /// The server that gave the address.
    pub server: Option<Ipv4Addr>,
    /// Seconds for which the address stays valid unless it is renewed; absent: for ever, or there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_s: Option<u64>,
    /// Resolvers that the server named.
    pub dns: Vec<Ipv4Addr>,
    /// The domain that it named.
    pub domain: Option<String>,
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
    /// The number of its process among those for replicas.
    #[serde(default)]
    pub process: u8,
    /// Its process, which may have other replicas, too.
    pub pid: u32,
    /// Its incarnation.
    pub epoch: u32,
    /// What it is a process of.
    #[serde(default)]
    pub build: BuildReport,
    /// Its lives.
    #[serde(default)]
    pub recovery: RecoveryReport,
    /// The processor that its process was last seen on.
    pub cpu: Option<u32>,
    /// Processor time that its process has used, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// Version of what it writes for its successor; absent: nothing yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger: Option<u32>,
    /// Flow groups that it owns, of 4096.
    pub flow_groups: u32,
    /// Its counters by name.
    pub stats: BTreeMap<String, u64>,
    /// What incoming connections have cost; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshakes: Option<HandshakeReport>,
    /// What happened lately; added by `atoll status`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<Rates>,
}

/// Where the time of incoming connections went (Pika's tables 4 and 5): means in microseconds, of those that
/// were timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HandshakeReport {
    /// How many were timed.
    pub timed: u64,
    /// In the connection manager.
    pub t_cm_us: f64,
    /// In the transport server, handling the segments of the handshake.
    pub t_tcp_us: f64,
    /// Waiting between servers.
    pub t_msg_us: f64,
    /// From the offer to an application until its claim.
    pub t_accept_us: f64,
    /// From the SYN until the claim; the peer's round trip lies in it.
    pub t_total_us: f64,
}

impl HandshakeReport {
    /// The means of the sums in `stats`; `None` if nothing was timed.
    pub fn of(stats: &BTreeMap<String, u64>) -> Option<HandshakeReport> {
        let sum = |stat: Stat| stats.get(stat.name()).copied().unwrap_or(0);
        let timed = sum(Stat::HandshakesTimed);
        let mean = |stat: Stat| sum(stat) as f64 / timed as f64 / 1000.0;
        (timed > 0).then(|| HandshakeReport {
            timed,
            t_cm_us: mean(Stat::TimeCm),
            t_tcp_us: mean(Stat::TimeTcp),
            t_msg_us: mean(Stat::TimeMsg),
            t_accept_us: mean(Stat::TimeAccept),
            t_total_us: mean(Stat::TimeTotal),
        })
    }
}

/// A build of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildReport {
    /// Its version.
    pub version: String,
    /// What the linker has made of its contents; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// The lives of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryReport {
    /// What it is doing.
    pub state: ServerState,
    /// Ends of its processes that nobody asked for.
    pub crashes: u64,
    /// The last time that it was started again; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<RecoveryTimes>,
    /// Times that it went on in another process.
    #[serde(default)]
    pub moves: u64,
    /// For how many microseconds nobody served at the last of them; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_move_us: Option<u64>,
    /// What the system is short of, so that it cannot be started for now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
}

/// Whether a server serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerState {
    /// It does.
    #[default]
    Serving,
    /// Its process was started, and is not ready yet.
    Starting,
    /// It has died, and is to be started again.
    Down,
}

/// How long it took until a server was there again, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryTimes {
    /// From the moment that its death was noticed until the next process was started.
    pub start_us: u64,
    /// From then until it served.
    pub ready_us: u64,
    /// Both.
    pub total_us: u64,
}

/// One server that is no replica, in a process of its own: a link server, an IP server, perhaps with a link
/// server, or a connection manager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerReport {
    /// Its number among those of its kind; of a link server that of its queue.
    pub index: u8,
    /// Its process.
    pub pid: u32,
    /// Its incarnation.
    pub epoch: u32,
    /// What it is a process of.
    #[serde(default)]
    pub build: BuildReport,
    /// Its lives.
    #[serde(default)]
    pub recovery: RecoveryReport,
    /// The processor it was last seen on.
    pub cpu: Option<u32>,
    /// Processor time it has used, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// The number of an IP server's queue, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u8>,
    /// The replicas that it works for: whose frames or packets it sends, or, if there are more link servers
    /// than replicas, brings; for which it chooses.
    pub serves: Vec<u8>,
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
        let (mut link_servers, mut ip_servers, mut connection_managers) = (Vec::new(), Vec::new(), Vec::new());
        for part in parts {
            match part {
                ReportPart::Stack(report) => stack = Some(*report),
                ReportPart::Replica(report) => replicas.push(*report),
                ReportPart::LinkServer(report) => link_servers.push(*report),
                ReportPart::IpServer(report) => ip_servers.push(*report),
                ReportPart::Manager(report) => connection_managers.push(*report),
                ReportPart::Session(report) => sessions.push(report),
                ReportPart::Balance(_)
                | ReportPart::Progress(_)
                | ReportPart::Scaling(_)
                | ReportPart::Restarting(_)
                | ReportPart::Done(_)
                | ReportPart::Error(_) => {}
            }
        }
        Some(StatusReport { stack: stack?, replicas, link_servers, ip_servers, connection_managers, sessions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_means_of_what_was_timed() {
        let stats = |timed: u64| -> BTreeMap<String, u64> {
            let sums = [(Stat::HandshakesTimed, timed), (Stat::TimeCm, 2_000), (Stat::TimeTotal, 300_000)];
            sums.into_iter().map(|(stat, value)| (stat.name().to_owned(), value)).collect()
        };
        assert_eq!(HandshakeReport::of(&stats(0)), None);
        let means = HandshakeReport::of(&stats(4)).unwrap();
        assert_eq!((means.timed, means.t_cm_us, means.t_tcp_us, means.t_total_us), (4, 0.5, 0.0, 75.0));
    }
}

//! The reports of a supervisor about its stack: the JSON of `atoll status --json`, documented in
//! `docs/cli.md`.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use atoll_ipc::page::{
    LAYER_CAPABILITIES, LAYER_EMPTY_ROOT, LAYER_LANDLOCK, LAYER_OWN_USER, LAYER_SECCOMP, Stat,
};
use serde::{Deserialize, Serialize};

use crate::config::{BalanceRules, LinkType, Steering};

/// One packet of an answer. A report may be longer than a packet, so it travels in parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportPart {
    /// A part of the status: the stack as a whole.
    Stack(Box<StackReport>),
    /// A part of the status: one replica.
    Replica(Box<ReplicaReport>),
    /// A part of the status: one link server.
    LinkServer(Box<ServerReport>),
    /// A part of the status: one IP server.
    IpServer(Box<ServerReport>),
    /// A part of the status: one connection manager.
    Manager(Box<ServerReport>),
    /// A part of the status: one session.
    Session(SessionReport),
    /// The rules of balancing.
    Balance(BalanceRules),
    /// A part of an upgrade's answer: what has been done.
    Progress(String),
    /// The number of processes that host the replicas.
    Scaling(ScalingReport),
    /// A part of a listing of sockets: this server is being restarted, and has not listed its own.
    Restarting(String),
    /// The end of the answer, which is complete.
    Done(bool),
    /// The reason why there is no answer.
    Error(String),
}

/// The content of `atoll status --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The stack as a whole.
    pub stack: StackReport,
    /// The replicas, by index.
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
    /// The open sessions, the oldest first.
    pub sessions: Vec<SessionReport>,
}

/// The part of the report that every kind of server has.
#[derive(Clone, Copy, Debug)]
pub struct ServerView<'a> {
    /// The server's kind, in words.
    pub kind: &'static str,
    /// The server's number among those of its kind.
    pub index: u8,
    /// The pid of the server's process.
    pub pid: u32,
    /// The server's incarnation.
    pub epoch: u32,
    /// Processor time that the server's process has used, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// The state and history of the server's lives.
    pub recovery: &'a RecoveryReport,
    /// The server's counters, by name.
    pub stats: &'a BTreeMap<String, u64>,
}

impl StatusReport {
    /// Returns every server: replicas, link servers, IP servers, connection managers, each by index.
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

/// The state of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// The level: `plenty`; `pressure`, in which buffers are small; or `high`, in which nothing new begins
    /// and connections without progress are reset.
    pub level: String,
    /// The bound that is tightest: `memory.limit`, `cgroup` or `machine`.
    pub bound: String,
    /// The size of that bound, in bytes.
    pub limit: u64,
    /// The bytes that are left of it.
    pub left: u64,
    /// The bytes that the stack itself uses: buffers, ledgers, rings, and the private memory of its
    /// processes.
    pub used: u64,
    /// The bytes that all receive buffers together may take.
    pub receive_max: u64,
    /// Whether the kernel reports that processes wait for memory (PSI).
    pub stalls: bool,
}

/// The stack as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StackReport {
    /// The stack's name.
    pub name: String,
    /// The pid of the supervisor.
    pub pid: u32,
    /// The pid of the process that starts the next supervisor if this one dies, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guardian: Option<u32>,
    /// The state of memory; absent if the supervisor's build does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryReport>,
    /// The pid of the standby process, if there is one now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby: Option<u32>,
    /// How many supervisors have died.
    #[serde(default)]
    pub takeovers: u32,
    /// The configuration of servers, in Pika's notation.
    pub configuration: String,
    /// The version of the program.
    pub version: String,
    /// How long the stack has been up, in seconds.
    pub uptime_s: f64,
    /// The path of the control socket.
    pub socket: String,
    /// The stack's link.
    pub link: LinkReport,
    /// The number of processes that host the replicas.
    #[serde(default)]
    pub scaling: ScalingReport,
    /// The number of sessions opened since the start.
    pub sessions_opened: u64,
    /// The number of socket calls of all programs, including those that ended.
    pub library_calls: u64,
    /// The number of those calls that needed a system call.
    pub library_calls_with_syscall: u64,
    /// How the stack's servers are confined.
    #[serde(default)]
    pub confinement: ConfinementReport,
}

/// The confinement that all servers of a stack have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfinementReport {
    /// Whether the servers have no capabilities.
    pub capabilities: bool,
    /// How the servers are kept from files.
    pub file_system: FileSystem,
    /// Whether the servers' system calls are filtered by lists (seccomp).
    pub seccomp: bool,
    /// The user that the servers run as.
    #[serde(default)]
    pub user: RunAs,
}

/// The user that servers run as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunAs {
    /// A user of their own, which is neither root nor the supervisor's.
    Own,
    /// The user that runs the stack, which is not root.
    #[default]
    Stack,
    /// Root, though without its capabilities: there is no user for the servers.
    Root,
}

impl ConfinementReport {
    /// Returns the confinement that all servers have; each server reports its own as `LAYER_*`. `is_root`
    /// says whether the supervisor is root.
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

/// How servers are kept from files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileSystem {
    /// Landlock keeps files out of reach.
    Landlock,
    /// An empty root directory keeps files out of reach.
    EmptyRoot,
    /// Files are not out of reach: the kernel has no Landlock, and does not permit another root directory.
    #[default]
    Open,
}

/// The number of processes that host the replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalingReport {
    /// The number of processes at present.
    pub processes: u8,
    /// The number of processes that there are to be.
    pub wanted: u8,
    /// Whether the number follows the load.
    pub auto: bool,
    /// The fewest processes with `auto`.
    pub min: u8,
    /// The most processes with `auto`.
    pub max: u8,
}

/// The stack's link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// The kind of the link.
    #[serde(rename = "type")]
    pub kind: LinkType,
    /// The name of the TAP device.
    pub device: Option<String>,
    /// The network namespace of the device.
    pub netns: Option<String>,
    /// The stack's own address; absent until a DHCP server has assigned one.
    pub address: Option<Ipv4Addr>,
    /// The length of the address's prefix.
    pub prefix: Option<u8>,
    /// The state of DHCP, if the address does not come from the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp: Option<DhcpReport>,
    /// The address that the kernel's end was given.
    pub peer_address: Option<String>,
    /// The IPv4 default gateway.
    pub gateway: Option<Ipv4Addr>,
    /// The stack's own IPv6 addresses, the link-local one first.
    #[serde(default)]
    pub addresses6: Vec<AddressReport>,
    /// The IPv6 gateway of the configuration.
    #[serde(default)]
    pub gateway6: Option<Ipv6Addr>,
    /// The stack's own hardware address.
    pub mac: String,
    /// The MTU in bytes.
    pub mtu: u16,
    /// Whether the kernel segments and reassembles.
    pub offload: bool,
    /// The component that steers: never `auto`.
    pub steering: Steering,
    /// The stack at the other end of a shared-memory link.
    pub peer: Option<String>,
    /// Whether that stack is present.
    pub peer_present: Option<bool>,
}

/// The state of the DHCP client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DhcpReport {
    /// The client's state: `init`, `selecting`, `requesting`, `probing`, `bound`, `renewing` or `rebinding`
    /// (RFC 2131).
    pub state: String,
    /// The server that assigned the address.
    pub server: Option<Ipv4Addr>,
    /// Seconds for which the address stays valid unless it is renewed; absent for ever, or if there is no
    /// address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_s: Option<u64>,
    /// The resolvers that the server named.
    pub dns: Vec<Ipv4Addr>,
    /// The domain that the server named.
    pub domain: Option<String>,
}

/// One of the stack's own IPv6 addresses, in the words of `ip addr`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressReport {
    /// The address.
    pub address: Ipv6Addr,
    /// The length of the address's prefix.
    pub prefix: u8,
    /// The scope: `link` or `global`.
    pub scope: String,
    /// The flags: `tentative`, `deprecated`, `dadfailed`, `dynamic`.
    pub flags: Vec<String>,
    /// Seconds for which the address stays valid; absent for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_s: Option<u64>,
    /// Seconds for which the address stays preferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_s: Option<u64>,
}

/// One replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplicaReport {
    /// The number of the replica, and of its queue.
    pub index: u8,
    /// The number of its process among those for replicas.
    #[serde(default)]
    pub process: u8,
    /// The pid of its process, which may have other replicas, too.
    pub pid: u32,
    /// The replica's incarnation.
    pub epoch: u32,
    /// The build that its process runs.
    #[serde(default)]
    pub build: BuildReport,
    /// The state and history of the replica's lives.
    #[serde(default)]
    pub recovery: RecoveryReport,
    /// The processor that its process was last seen on.
    pub cpu: Option<u32>,
    /// Processor time that its process has used, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// The scheduling policy of its process: `other` while it has few conversations, `batch` while it has
    /// many, or what it was started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The version of the ledger that the replica writes for its successor; absent before the first write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger: Option<u32>,
    /// The number of flow groups that the replica owns, of 4096.
    pub flow_groups: u32,
    /// The replica's counters, by name.
    pub stats: BTreeMap<String, u64>,
    /// The cost of incoming connections; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handshakes: Option<HandshakeReport>,
    /// Recent rates, added by `atoll status`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<Rates>,
}

/// The times of the parts of incoming connections (Pika's tables 4 and 5): means in microseconds over the
/// connections that were timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HandshakeReport {
    /// The number of connections that were timed.
    pub timed: u64,
    /// The time in the connection manager.
    pub t_cm_us: f64,
    /// The time in the transport server, handling the segments of the handshake.
    pub t_tcp_us: f64,
    /// The time that messages waited between servers.
    pub t_msg_us: f64,
    /// The time from the offer to an application until its claim.
    pub t_accept_us: f64,
    /// The time from the SYN until the claim, which includes the peer's round trip.
    pub t_total_us: f64,
}

impl HandshakeReport {
    /// Returns the means of the sums in `stats`, or `None` if nothing was timed.
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
    /// The version of the program.
    pub version: String,
    /// The build id that the linker derived from the program's contents, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// The state and history of a server's lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryReport {
    /// The server's state.
    pub state: ServerState,
    /// The number of ends of its processes that were not requested.
    pub crashes: u64,
    /// The times of the last recovery; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<RecoveryTimes>,
    /// The number of times that the server moved to another process.
    #[serde(default)]
    pub moves: u64,
    /// For how many microseconds nothing served during the last move; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_move_us: Option<u64>,
    /// The resource that the system lacks, so that the server cannot be started for now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
}

/// Whether a server serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerState {
    /// The server serves.
    #[default]
    Serving,
    /// The server's process was started, and is not ready yet.
    Starting,
    /// The server has died, and is to be started again.
    Down,
}

/// How long it took to recover a server, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryTimes {
    /// The time from when the death was noticed until the next process was started.
    pub start_us: u64,
    /// The time from the start of that process until it served.
    pub ready_us: u64,
    /// The sum of both.
    pub total_us: u64,
}

/// A server other than a replica, in a process of its own: a link server, an IP server (perhaps with a link
/// server), or a connection manager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerReport {
    /// The server's number among those of its kind; that of a link server is the number of its queue.
    pub index: u8,
    /// The pid of the server's process.
    pub pid: u32,
    /// The server's incarnation.
    pub epoch: u32,
    /// The build that its process runs.
    #[serde(default)]
    pub build: BuildReport,
    /// The state and history of the server's lives.
    #[serde(default)]
    pub recovery: RecoveryReport,
    /// The processor that its process was last seen on.
    pub cpu: Option<u32>,
    /// Processor time that its process has used, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// The scheduling policy of its process: `other` while it has few conversations, `batch` while it has
    /// many, or what it was started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The number of an IP server's queue, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u8>,
    /// The replicas that the server works for: those whose frames or packets it sends, or for which it
    /// chooses acceptors. If there are more link servers than replicas, it is the replica that it brings
    /// frames to.
    pub serves: Vec<u8>,
    /// The server's counters, by name.
    pub stats: BTreeMap<String, u64>,
    /// Recent rates, added by `atoll status`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<Rates>,
}

/// Rates per second, between two samples.
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
    /// The share of the time with something to do, from 0 to 1.
    pub busy: f64,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionReport {
    /// The session's number.
    pub id: u32,
    /// The pid of the process that opened the session.
    pub pid: u32,
    /// The name of that process.
    pub comm: String,
    /// The pids of the processes that can use the session's sockets.
    pub members: Vec<u32>,
    /// The number of socket calls of these processes.
    pub calls: u64,
    /// The number of those calls that needed a system call.
    pub calls_with_syscall: u64,
    /// The number of those calls that came past the C library's functions, by an instruction.
    #[serde(default)]
    pub calls_by_instruction: u64,
    /// The number of those calls by an instruction that cost a trap.
    #[serde(default)]
    pub calls_by_trap: u64,
    /// The way by which the calls of the process that opened the session reach the library: the names of
    /// `atoll_sys::interception::Interception`.
    #[serde(default)]
    pub interception: String,
}

impl StatusReport {
    /// Assembles the parts of an answer; returns `None` if the stack itself is missing.
    pub fn assemble(parts: impl IntoIterator<Item = ReportPart>) -> Option<StatusReport> {
        let (mut stack, mut replicas, mut sessions) = (None, Vec::new(), Vec::new());
        let (mut link_servers, mut ip_servers, mut connection_managers) =
            (Vec::new(), Vec::new(), Vec::new());
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
        Some(StatusReport {
            stack: stack?,
            replicas,
            link_servers,
            ip_servers,
            connection_managers,
            sessions,
        })
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

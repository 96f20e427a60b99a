//! The configuration of a transport server.

use atoll_base::{Duration, Epoch, FlowKey, ReplicaId};
use atoll_ipc::page::StackFacts;
use atoll_tcp::EcnMode;

use crate::fast_open::FastOpenSides;

// structure: Config: a field for each setting
/// The sizes, times and identity of one replica's transport server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The number of this replica.
    pub replica: ReplicaId,
    /// The number of replicas, 1 to 8.
    pub replicas: u8,
    /// The number of connection managers, 1 to `replicas`. CM n chooses for the replicas whose number modulo
    /// this is n.
    pub managers: u8,
    /// Whether the connection managers are processes of their own; otherwise they are in the replicas of the
    /// same numbers.
    pub managers_apart: bool,
    /// The incarnation of this server, which goes with every event.
    pub epoch: Epoch,
    /// The key of the flow hash.
    pub key: FlowKey,
    /// The ports for connections that name none: first and last.
    pub ephemeral: (u16, u16),
    /// The time that an acceptor has to claim a connection (P4).
    pub claim_timeout: Duration,
    /// The upper bound of every backlog (Linux: `net.core.somaxconn`).
    pub backlog_max: u32,
    /// The most connections in any state but TIME-WAIT; further SYNs are dropped, and further connects
    /// refused.
    pub connections_max: usize,
    /// The most connections that their application has closed and that are not over. Beyond that, closed
    /// connections are reset (Linux: `net.ipv4.tcp_max_orphans`).
    pub orphans_max: usize,
    /// The average number of challenge ACKs in a second (Linux before 6.0:
    /// `net.ipv4.tcp_challenge_ack_limit`).
    pub challenges_per_second: u32,
    /// The most records of TIME-WAIT; beyond that the oldest goes.
    pub time_waits_max: usize,
    /// The most datagram sockets.
    pub datagram_sockets_max: usize,
    /// The octets that an application may have in its send buffer, at first and at most.
    pub send_limit: (u32, u32),
    /// The octets of a receive buffer, at first and at most.
    pub receive_capacity: (u32, u32),
    /// The octets of datagrams that may wait for an application.
    pub datagram_capacity: u32,
    /// The segment size on the internal link, in octets.
    pub internal_mss: u16,
    /// The end that may begin with explicit congestion notification.
    pub ecn: EcnMode,
    /// The time that the connections of an ended process have to deliver what it wrote.
    pub orphan_timeout: Duration,
    /// The enabled sides of TCP Fast Open.
    pub fast_open: FastOpenSides,
    /// The most servers whose Fast Open cookies are remembered; beyond that the oldest is forgotten.
    pub cookies_max: usize,
    /// The interval in which buffers that their application has drained are searched for.
    pub sweep_interval: Duration,
    /// How many connections of a predecessor are continued in one round although nothing arrives for them, at
    /// least 1.
    pub adopt_batch: usize,
    /// The time between two such rounds; with zero, every round is one.
    pub adopt_every: Duration,
    /// The limits of one session.
    pub quota: Quota,
    /// The limits of all sessions of one user together; root and the user that runs the stack have none.
    pub user_quota: Quota,
}

/// The limits of one session, or one user, in one replica, so that none can use up what all share. Memory for
/// text is bounded by a session's arena, and for a user by a part of the replica's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The most requests in force: leases, listeners, acceptors, datagram sockets, memberships, and each of
    /// their options. Beyond that, requests fail with ENOBUFS.
    pub requests: u32,
    /// The most leases of ports. Beyond that, requests fail with ENOBUFS.
    pub leases: u32,
    /// The most listening sockets. Beyond that, requests fail with ENOBUFS.
    pub listeners: u32,
    /// The most datagram sockets. Beyond that, requests fail with ENOBUFS.
    pub datagram_sockets: u32,
    /// The most memberships in multicast groups of all sockets. Beyond that, requests fail with ENOBUFS.
    pub groups: u32,
    /// The most sockets of all kinds; those of a session are bounded by the slots of its arena. Beyond that,
    /// requests fail with ENOBUFS, and what a peer opens waits in the backlog.
    pub sockets: u32,
}

impl Quota {
    /// The limits of a session: a quarter of what a replica has, or less, so that one session leaves room for
    /// others.
    pub const STACK: Quota = Quota {
        requests: 1 << 16,
        leases: 1 << 15,
        listeners: 1 << 14,
        datagram_sockets: 1 << 14,
        groups: 256,
        sockets: u32::MAX,
    };
    /// The limits of a user: half of what a replica has.
    pub const USER: Quota = Quota {
        requests: 1 << 17,
        leases: 1 << 16,
        listeners: 1 << 15,
        datagram_sockets: 1 << 15,
        groups: 512,
        sockets: 1 << 19,
    };
}

/// The secrets of one replica, from the operating system's entropy.
#[derive(Clone, Copy)]
pub struct Secrets {
    /// The key of initial sequence numbers and timestamp offsets (RFC 6528). All incarnations have the same,
    /// so that the numbers keep rising.
    pub sequence: [u8; 16],
    /// The key of Fast Open cookies. All replicas have the same, because a client comes back to any of them.
    pub fast_open: [u8; 16],
    /// The key of the seals of grants ([`atoll_ipc::lease`]), common to all replicas and their successors.
    pub leases: [u8; 16],
    /// The seed of hash tables.
    pub table: u64,
    /// The seed of port choices.
    pub ports: u64,
}

impl core::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secrets")
    }
}

impl Config {
    /// Creates a configuration with the usual limits.
    pub const fn new(replica: ReplicaId, replicas: u8, epoch: Epoch, key: FlowKey) -> Config {
        let replicas = if replicas == 0 { 1 } else { replicas };
        Config {
            replica,
            replicas,
            managers: replicas,
            managers_apart: false,
            epoch,
            key,
            ephemeral: (32768, 60999),
            claim_timeout: Duration::from_millis(200),
            backlog_max: 4096,
            connections_max: 1 << 20,
            orphans_max: 1 << 16,
            challenges_per_second: 1000,
            time_waits_max: 1 << 16,
            datagram_sockets_max: 1 << 16,
            send_limit: (256 << 10, 4 << 20),
            receive_capacity: (64 << 10, 4 << 20),
            datagram_capacity: 212_992,
            internal_mss: 16 << 10,
            ecn: EcnMode::Accept,
            orphan_timeout: Duration::from_secs(60),
            fast_open: FastOpenSides { client: true, server: false },
            cookies_max: 4096,
            sweep_interval: Duration::from_millis(250),
            adopt_batch: 64,
            adopt_every: Duration::ZERO,
            quota: Quota::STACK,
            user_quota: Quota::USER,
        }
    }

    /// Creates a configuration with the usual limits and the settings of the stack page. A claim time-out of
    /// 0 there means the usual one.
    pub const fn from_facts(facts: &StackFacts, replica: ReplicaId, epoch: Epoch) -> Config {
        let mut config = Config::new(replica, facts.replicas, epoch, facts.key);
        config.ephemeral = facts.ephemeral;
        config.ecn = match facts.ecn {
            0 => EcnMode::Off,
            1 => EcnMode::Request,
            3 => EcnMode::RequestAccurate,
            _ => EcnMode::Accept,
        };
        if facts.claim_timeout_us != 0 {
            config.claim_timeout = Duration::from_micros(facts.claim_timeout_us as u64);
        }
        config.fast_open = FastOpenSides::from_bits(facts.fast_open);
        config
    }
}

//! What must a transport server know?

use atoll_base::{Duration, Epoch, FlowKey, ReplicaId};
use atoll_ipc::page::StackFacts;
use atoll_tcp::EcnMode;

use crate::fast_open::FastOpenSides;

// structure: Config: a field for each setting
/// Sizes, times and identity of one replica's transport server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which replica of the stack this is.
    pub replica: ReplicaId,
    /// Number of replicas, 1 to 8.
    pub replicas: u8,
    /// Number of connection managers, 1 to `replicas`: CM n chooses for the replicas whose number modulo this
    /// is n.
    pub managers: u8,
    /// Whether they are in processes of their own, and not in the replicas of the same numbers.
    pub managers_apart: bool,
    /// Incarnation; goes with every event.
    pub epoch: Epoch,
    /// Key of the flow hash.
    pub key: FlowKey,
    /// Ports for connections that name none: first and last.
    pub ephemeral: (u16, u16),
    /// How long an acceptor may take to claim a connection (P4).
    pub claim_timeout: Duration,
    /// Upper bound of every backlog (Linux: `net.core.somaxconn`).
    pub backlog_max: u32,
    /// Connections at most, in any state but TIME-WAIT; further SYNs are dropped, further connects refused.
    pub connections_max: usize,
    /// Connections at most that their application has closed and that are not over; what is closed beyond
    /// that is reset (Linux: `net.ipv4.tcp_max_orphans`).
    pub orphans_max: usize,
    /// Challenge ACKs in a second, on average (Linux before 6.0: `net.ipv4.tcp_challenge_ack_limit`).
    pub challenges_per_second: u32,
    /// Records of TIME-WAIT at most; beyond it the oldest goes.
    pub time_waits_max: usize,
    /// Datagram sockets at most.
    pub datagram_sockets_max: usize,
    /// Octets that an application may have in its send buffer, at first and at most.
    pub send_limit: (u32, u32),
    /// Octets of receive buffer, at first and at most.
    pub receive_capacity: (u32, u32),
    /// Octets of datagrams that may wait for an application.
    pub datagram_capacity: u32,
    /// Segment size on the internal link.
    pub internal_mss: u16,
    /// Who may begin with explicit congestion notification.
    pub ecn: EcnMode,
    /// How long the connections of a process that has ended may take to deliver what it wrote.
    pub orphan_timeout: Duration,
    /// Which sides of TCP Fast Open there are.
    pub fast_open: FastOpenSides,
    /// Servers whose Fast Open cookies are remembered at most; then the oldest is forgotten.
    pub cookies_max: usize,
    /// How often buffers that their application has drained are looked for.
    pub sweep_interval: Duration,
    /// Connections of a predecessor that go on in one round although nothing is there for them; at least 1.
    pub adopt_batch: usize,
    /// Time between two such rounds; zero: all are.
    pub adopt_every: Duration,
    /// What one session may have.
    pub quota: Quota,
    /// What all sessions of one user may have together, but of root and of who runs the stack.
    pub user_quota: Quota,
}

/// What one session, or one user, may have in one replica, so that none can use up what all share. Memory for
/// text is bounded by a session's arena, and for a user by a part of what the replica may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Requests in force: leases, listeners, acceptors, datagram sockets, memberships, and each of their
    /// options. ENOBUFS.
    pub requests: u32,
    /// Leases of ports. ENOBUFS.
    pub leases: u32,
    /// Sockets that listen. ENOBUFS.
    pub listeners: u32,
    /// Datagram sockets. ENOBUFS.
    pub datagram_sockets: u32,
    /// Memberships in multicast groups, of all its sockets. ENOBUFS.
    pub groups: u32,
    /// Sockets of all kinds. Of a session the slots of its arena bound them. ENOBUFS; what a peer opens waits
    /// in the backlog.
    pub sockets: u32,
}

impl Quota {
    /// A quarter of what a replica has, or less: a program that needs all it may have leaves room for others.
    pub const STACK: Quota = Quota {
        requests: 1 << 16,
        leases: 1 << 15,
        listeners: 1 << 14,
        datagram_sockets: 1 << 14,
        groups: 256,
        sockets: u32::MAX,
    };
    /// A user's: half of what a replica has.
    pub const USER: Quota = Quota {
        requests: 1 << 17,
        leases: 1 << 16,
        listeners: 1 << 15,
        datagram_sockets: 1 << 15,
        groups: 512,
        sockets: 1 << 19,
    };
}

/// Secrets of one replica, from the operating system's entropy.
#[derive(Clone, Copy)]
pub struct Secrets {
    /// Key of initial sequence numbers and timestamp offsets (RFC 6528). The same for all incarnations, so
    /// that they keep rising.
    pub sequence: [u8; 16],
    /// Key of Fast Open cookies: the same for all replicas, because a client comes back to any.
    pub fast_open: [u8; 16],
    /// Key of the seals of grants ([`atoll_ipc::lease`]): the same for all replicas, and for their
    /// successors.
    pub leases: [u8; 16],
    /// Seed of hash tables.
    pub table: u64,
    /// Seed of port choices.
    pub ports: u64,
}

impl core::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secrets")
    }
}

impl Config {
    /// The usual limits.
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

    /// The usual limits, with what the stack page says. A claim time-out of 0 there means the usual one.
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

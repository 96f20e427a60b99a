//! Pages with one writer each: facts about the stack, its replicas and its applications for every process.

use core::mem::offset_of;

use atoll_base::{Addr, Epoch, FLOW_GROUPS, FlowGroup, FlowKey, FourTuple, ReplicaId};

use crate::layout::{Field, load, record, words};
use crate::memory::Memory;
use crate::network::{Network, V4Facts};

/// Bytes of a stack page.
pub const STACK_PAGE_BYTES: usize = 8192;
/// Bytes of a replica page.
pub const REPLICA_PAGE_BYTES: usize = size_of::<ReplicaWords>();
/// Bytes of an application page.
pub const APP_PAGE_BYTES: usize = 4096;
/// The number of doorbells of one application process: threads or epoll instances that sleep separately.
pub const BELLS: usize = 16;
/// The maximum number of replicas of a stack.
pub const REPLICAS_MAX: usize = 8;

const MAGIC: u32 = 0x4c4f_5441; // "ATOL"
const PORT_MAP_BYTES: usize = 65536 / 8;
/// The offset of the steering table on a stack page: an octet for each flow group.
const OWNERS: usize = 4096;
const V6_ON: u32 = 1;
const V6_AUTOCONF: u32 = 2;

/// The configuration that every process of a stack shares. Only the supervisor writes it (the steering table
/// also while traffic flows); all others map it read-only.
#[derive(Clone, Copy, Debug)]
pub struct StackPage<M: Memory>(pub M);

/// Facts on a stack page that do not change while the stack lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackFacts {
    /// Number of replicas, 1..=8.
    pub replicas: u8,
    /// IPv4 address of the configuration in host order; 0 if DHCP gives one. The address that the stack has
    /// now is on the replicas' pages: see [`Network`].
    pub addr: u32,
    /// The length of the address's prefix in bits.
    pub prefix_len: u8,
    /// The gateway's IPv4 address, 0 for none.
    pub gateway: u32,
    /// MTU of the link.
    pub mtu: u16,
    /// MAC address of the link.
    pub mac: [u8; 6],
    /// Key of the flow hash.
    pub key: FlowKey,
    /// Conversion of the cycle counter: see `atoll_sys::clock` (four words, opaque here).
    pub calibration: [u64; 4],
    /// The first and the last port that connections may take for themselves.
    pub ephemeral: (u16, u16),
    /// The time for which the library and the replicas spin before they sleep, in microseconds.
    pub spin_us: u32,
    /// The time in which an acceptor may claim a connection, in microseconds (P4).
    pub claim_timeout_us: u32,
    /// Whether applications ask for each connection (P4's naive accept), rather than being offered
    /// connections.
    pub naive_accept: bool,
    /// Explicit congestion notification, as Linux's `tcp_ecn`: 0 never, 1 asked for, 2 if the peer asks, 3
    /// asked for, accurate ECN first.
    pub ecn: u8,
    /// The `FAST_OPEN_*` flags.
    pub fast_open: u32,
    /// IPv6 on the link; if `None`, IPv6 is spoken inside the stack only (`::1`).
    pub v6: Option<V6Facts>,
}

/// The way in which a stack speaks IPv6 on its link. The addresses that it has now are on the replicas'
/// pages: see [`Network`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct V6Facts {
    /// The configured address and the length of its prefix, if there is one. A link-local address comes on
    /// top.
    pub address: Option<(Addr, u8)>,
    /// Gateway, if one was configured.
    pub gateway: Option<Addr>,
    /// Whether router advertisements are obeyed.
    pub autoconf: bool,
}

record! {
    /// The facts as they are written down.
    struct StackRecord {
        magic: u32,
        version: u32,
        replicas: u32,
        addr: u32,
        prefix_len: u32,
        gateway: u32,
        mtu: u32,
        mac: [u8; 6]; 2 unused,
        key: [u32; 2],
        ephemeral_last: u16,
        ephemeral_first: u16,
        calibration: [u64; 4],
        spin_us: u32,
        claim_timeout_us: u32,
        ecn: u32,
        fast_open: u32,
        naive_accept: u32; 28 unused,
        /// [`V6_ON`] and [`V6_AUTOCONF`].
        v6_flags: u32,
        v6_prefix_len: u32,
        v6_addr: Addr,
        v6_gateway: Addr,
    }
}

type StackOctets = <StackRecord as Field>::Octets;

/// Flag: programs may open connections by TCP Fast Open.
pub const FAST_OPEN_CLIENT: u32 = 1;
/// Flag: listeners may use TCP Fast Open.
pub const FAST_OPEN_SERVER: u32 = 2;

impl<M: Memory> StackPage<M> {
    /// Writes the facts; magic and version are written last.
    pub fn write_facts(&self, facts: &StackFacts) {
        let m = &self.0;
        let v6 = facts.v6.unwrap_or_default();
        let (v6_addr, v6_prefix_len) = v6.address.unwrap_or_default();
        let written = StackRecord {
            magic: 0,
            version: 0,
            replicas: facts.replicas.into(),
            addr: facts.addr,
            prefix_len: facts.prefix_len.into(),
            gateway: facts.gateway,
            mtu: facts.mtu.into(),
            mac: facts.mac,
            key: [facts.key.k0, facts.key.k1],
            ephemeral_last: facts.ephemeral.1,
            ephemeral_first: facts.ephemeral.0,
            calibration: facts.calibration,
            spin_us: facts.spin_us,
            claim_timeout_us: facts.claim_timeout_us,
            ecn: facts.ecn.into(),
            fast_open: facts.fast_open,
            naive_accept: facts.naive_accept.into(),
            v6_flags: (u32::from(facts.v6.is_some()) * V6_ON) | (u32::from(v6.autoconf) * V6_AUTOCONF),
            v6_prefix_len: v6_prefix_len.into(),
            v6_addr,
            v6_gateway: v6.gateway.unwrap_or_default(),
        };
        let octets: [u8; size_of::<StackOctets>()] = zerocopy::transmute!(written.write());
        let start = offset_of!(StackOctets, replicas);
        m.write(start, &octets[start..]);
        m.store32(offset_of!(StackOctets, version), crate::LAYOUT_VERSION);
        m.store32_release(offset_of!(StackOctets, magic), MAGIC);
    }

    /// Returns the facts; `None` if the page is of another version or not written yet.
    pub fn facts(&self) -> Option<StackFacts> {
        let m = &self.0;
        if m.load32_acquire(offset_of!(StackOctets, magic)) != MAGIC
            || m.load32(offset_of!(StackOctets, version)) != crate::LAYOUT_VERSION
        {
            return None;
        }
        let written: StackRecord = load(m, 0).ok()?;
        let byte_up_to = |word: u32, max: u8| u8::try_from(word).ok().filter(|n| *n <= max);
        let [k0, k1] = written.key;
        Some(StackFacts {
            replicas: byte_up_to(written.replicas, REPLICAS_MAX as u8).filter(|n| *n > 0)?,
            addr: written.addr,
            prefix_len: byte_up_to(written.prefix_len, 32)?,
            gateway: written.gateway,
            mtu: u16::try_from(written.mtu).ok()?,
            mac: written.mac,
            key: FlowKey { k0, k1 },
            calibration: written.calibration,
            ephemeral: (written.ephemeral_first, written.ephemeral_last),
            spin_us: written.spin_us,
            claim_timeout_us: written.claim_timeout_us,
            naive_accept: written.naive_accept != 0,
            ecn: byte_up_to(written.ecn, 3)?,
            fast_open: written.fast_open,
            v6: byte_up_to(written.v6_prefix_len, 128).filter(|_| written.v6_flags & V6_ON != 0).map(|len| {
                let some = |addr: Addr| Some(addr).filter(|addr| *addr != Addr::ANY);
                V6Facts {
                    address: some(written.v6_addr).map(|addr| (addr, len)),
                    gateway: some(written.v6_gateway),
                    autoconf: written.v6_flags & V6_AUTOCONF != 0,
                }
            }),
        })
    }

    /// Returns the replica that owns a flow group.
    pub fn owner(&self, group: FlowGroup) -> ReplicaId {
        let mut byte = [0];
        self.0.read(OWNERS + usize::from(group.0) % FLOW_GROUPS, &mut byte);
        ReplicaId(byte[0] % REPLICAS_MAX as u8)
    }

    /// Returns the replica that owns the connection.
    pub fn owner_of(&self, key: FlowKey, tuple: &FourTuple) -> ReplicaId {
        self.owner(key.group(tuple))
    }

    /// Gives a flow group to a replica. Only the supervisor may call this.
    pub fn set_owner(&self, group: FlowGroup, replica: ReplicaId) {
        self.0.write(OWNERS + usize::from(group.0) % FLOW_GROUPS, &[replica.0]);
    }
}

words! {
    /// The memory with the keys of a stack, which no server can write.
    struct Keys {
        fast_open: [u8; KEY_BYTES],
        grants: [u8; KEY_BYTES],
    }
}

/// The size of a key in octets.
pub const KEY_BYTES: usize = 16;
/// The offset of the key of Fast Open cookies in the memory of the keys.
pub const COOKIE_KEY: usize = offset_of!(Keys, fast_open);
/// The offset of the key that seals grants in the memory of the keys.
pub const LEASE_KEY: usize = offset_of!(Keys, grants);

/// Layer of confinement: the server has no capabilities.
pub const LAYER_CAPABILITIES: u32 = 1;
/// Layer of confinement: Landlock keeps the server from files.
pub const LAYER_LANDLOCK: u32 = 2;
/// Layer of confinement: an empty root keeps the server from files, on a kernel without Landlock.
pub const LAYER_EMPTY_ROOT: u32 = 4;
/// Layer of confinement: the server has a list of system calls (seccomp).
pub const LAYER_SECCOMP: u32 = 8;
/// Layer of confinement: the server runs as a user of its own, where the stack is root's.
pub const LAYER_OWN_USER: u32 = 16;

/// The page of one replica about itself, for all other processes. Only the replica writes it; the others map
/// it read-only.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaPage<M: Memory>(pub M);

words! {
    /// The words on the page of a replica.
    struct ReplicaWords {
        magic: u32,
        version: u32,
        replica: u32,
        epoch: u32; 48 unused,
        sleep: u32; 60 unused,
        heartbeat: u64; 88 unused,
        layers: u32,
        forbidden_call: u32,
        end: u32,
        fault: u32; 16 unused,
        stats: [u64; 224],
        network: [u8; 4096],
        tcp_map: [u8; PORT_MAP_BYTES],
        udp_map: [u8; PORT_MAP_BYTES],
    }
}

const SLEEP: usize = offset_of!(ReplicaWords, sleep);
const HEARTBEAT: usize = offset_of!(ReplicaWords, heartbeat);
const LAYERS: usize = offset_of!(ReplicaWords, layers);
const FORBIDDEN_CALL: usize = offset_of!(ReplicaWords, forbidden_call);
const END: usize = offset_of!(ReplicaWords, end);
const FAULT: usize = offset_of!(ReplicaWords, fault);
const STATS: usize = offset_of!(ReplicaWords, stats);
const NETWORK: usize = offset_of!(ReplicaWords, network);
const TCP_MAP: usize = offset_of!(ReplicaWords, tcp_map);
const UDP_MAP: usize = offset_of!(ReplicaWords, udp_map);
const EPOCH: usize = offset_of!(ReplicaWords, epoch);

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident => $text:literal,)*) => {
        /// Counters of a replica, each a double word on its page.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Stat { $($(#[$doc])* $name,)* }

        impl Stat {
            /// All counters, in page order.
            pub const ALL: &[Stat] = &[$(Stat::$name,)*];

            /// Returns the name of the counter as in `atoll status --json` and the metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Stat::$name => $text,)* }
            }
        }
    };
}

stats! {
    /// Frames taken from the link.
    FramesIn => "frames_in",
    /// Frames given to the link.
    FramesOut => "frames_out",
    /// Octets of frames taken from the link.
    BytesIn => "bytes_in",
    /// Octets of frames given to the link.
    BytesOut => "bytes_out",
    /// Frames dropped on the way in, for any reason.
    FramesDropped => "frames_dropped",
    /// Fragments received.
    FragmentsIn => "fragments_in",
    /// Fragments sent.
    FragmentsOut => "fragments_out",
    /// Packets put together from fragments.
    Reassembled => "reassembled",
    /// Packets given up because their fragments did not all arrive in time.
    ReassemblyTimeouts => "reassembly_timeouts",
    /// Packets given up in favour of others, because too many were incomplete.
    ReassemblyEvictions => "reassembly_evictions",
    /// Fragments dropped because they fit no packet, or not together with earlier ones.
    FragmentsMalformed => "fragments_malformed",
    /// Fragments dropped because they tear a TCP header apart.
    FragmentsTiny => "fragments_tiny",
    /// Fragments dropped, with their packets, because they overlap others.
    FragmentsOverlapping => "fragments_overlapping",
    /// Fragments dropped because they were there already.
    FragmentsDuplicate => "fragments_duplicate",
    /// Times that ICMP made the segments of a connection smaller.
    PathMtuLowered => "path_mtu_lowered",
    /// Times that time-outs made the segments of a connection smaller: a hop loses large packets without
    /// ICMP.
    MtuBlackHoles => "mtu_black_holes",
    /// Frames passed on to the replica that owns their flow group.
    FramesForwarded => "frames_forwarded",
    /// Frames lost because the replica that owns them did not take them.
    ForwardDrops => "forward_drops",
    /// Frames that came over the internal link (loopback, other replicas, joined stacks).
    FramesInternal => "frames_internal",
    /// Frames that the link did not take.
    SendFailures => "send_failures",
    /// TCP segments received for a connection or listener.
    SegmentsIn => "segments_in",
    /// TCP segments sent (a super-segment counts once).
    SegmentsOut => "segments_out",
    /// Segments sent again.
    Retransmits => "retransmits",
    /// TCP segments dropped, for any reason.
    SegmentsDropped => "segments_dropped",
    /// RSTs sent for segments without a connection.
    ResetsOut => "resets_out",
    /// Connections opened by peers and established.
    PassiveOpens => "passive_opens",
    /// Connections opened by applications.
    ActiveOpens => "active_opens",
    /// Connections that exist now, in any state but TIME-WAIT.
    Connections => "connections",
    /// Connections in TIME-WAIT now.
    TimeWaits => "time_waits",
    /// SYNs dropped because a backlog was full.
    SynDrops => "syn_drops",
    /// SYNs answered by a cookie, because a SYN queue was full and stayed so.
    SynCookiesSent => "syn_cookies_sent",
    /// Handshakes completed by a cookie.
    SynCookiesReceived => "syn_cookies_received",
    /// Connections whose SYN brought data that was taken, by either end.
    FastOpens => "fast_opens",
    /// SYNs whose data was not taken: the cookie was wrong, or there were too many such connections.
    FastOpenRefused => "fast_open_refused",
    /// Connections dropped because the accept queue was full.
    AcceptDrops => "accept_drops",
    /// Offers made to acceptors (CONNECTION-AVAILABLE).
    Offers => "offers",
    /// Claims that held (CLAIM-CONNECTION).
    Claims => "claims",
    /// Offers taken back because no acceptor claimed them in time.
    ClaimTimeouts => "claim_timeouts",
    /// Incoming connections whose handshake was timed: a sample. The five sums that follow are of these, in
    /// nanoseconds.
    HandshakesTimed => "handshakes_timed",
    /// T_CM: the time of the calls of the connection manager, in nanoseconds.
    TimeCm => "t_cm_nanos",
    /// T_tcp: the time of handling the handshake's segments, without the connection manager's part, in
    /// nanoseconds.
    TimeTcp => "t_tcp_nanos",
    /// T_msg: the time that these segments wait between servers, in nanoseconds.
    TimeMsg => "t_msg_nanos",
    /// The time from the offer to an application until its claim, in nanoseconds.
    TimeAccept => "t_accept_nanos",
    /// T_total: the time from the SYN's arrival at the link server until the claim, in nanoseconds.
    TimeTotal => "t_total_nanos",
    /// UDP datagrams delivered to sockets.
    DatagramsIn => "datagrams_in",
    /// UDP datagrams sent.
    DatagramsOut => "datagrams_out",
    /// UDP datagrams dropped.
    DatagramsDropped => "datagrams_dropped",
    /// Commands taken from applications.
    Commands => "commands",
    /// Commands that were malformed (hostile or broken application).
    BadCommands => "bad_commands",
    /// Events sent to applications.
    Events => "events",
    /// Events that did not fit a ring.
    EventOverflows => "event_overflows",
    /// Doorbells rung (each a system call).
    BellsRung => "bells_rung",
    /// Times the replica went to sleep.
    Sleeps => "sleeps",
    /// Rounds of the main loop.
    Rounds => "rounds",
    /// Nanoseconds of rounds that had something to do.
    BusyNanos => "busy_nanos",
    /// Sessions attached now.
    Sessions => "sessions",
    /// Bytes of receive buffers in use.
    BufferBytes => "buffer_bytes",
    /// Segments dropped because they lie outside the window.
    DroppedOutsideWindow => "dropped_outside_window",
    /// Segments dropped because their timestamp is old or missing.
    DroppedTimestamp => "dropped_timestamp",
    /// RSTs ignored because they are not exactly where the window begins (RFC 5961 §3).
    DroppedResets => "dropped_resets",
    /// SYNs on open connections (RFC 5961 §4).
    DroppedSyns => "dropped_syns",
    /// Segments dropped because of an acknowledgement that cannot be true (RFC 5961 §5).
    DroppedAcks => "dropped_acks",
    /// Challenge ACKs sent (RFC 5961 §7).
    ChallengesSent => "challenges_sent",
    /// Challenge ACKs not sent, because there were too many in this second.
    ChallengesWithheld => "challenges_withheld",
    /// Segments with SACK blocks that cannot be true.
    SackIgnored => "sack_ignored",
    /// Connections whose peer has dropped what it had selectively acknowledged, or seems to.
    SackReneged => "sack_reneged",
    /// Segments whose data was not taken because there were too many holes before it.
    TextRefused => "text_refused",
    /// Octets out of order that were thrown away because memory was short.
    TextPruned => "text_pruned",
    /// Connections that exist now although their application has closed them.
    Orphans => "orphans",
    /// Connections reset when they were closed, because there were too many orphans already.
    OrphansReset => "orphans_reset",
    /// Connections reset because buffers were used up and these held most of them without progress.
    ConnectionsShed => "connections_shed",
    /// Sessions whose buffers are nearly used up now.
    Pressured => "pressured",
    /// Records of TIME-WAIT given up early, because there were too many.
    TimeWaitsDropped => "time_waits_dropped",
    /// Replicas of the stack that answered this one's greeting.
    Siblings => "siblings",
    /// Messages received from other replicas.
    MessagesIn => "messages_in",
    /// Messages sent to other replicas.
    MessagesOut => "messages_out",
    /// Messages given up: a replica did not keep up, or there were too many to handle.
    MessagesDropped => "messages_dropped",
    /// Messages from other replicas that were malformed, or not awaited.
    MessagesBad => "messages_bad",
    /// Messages from replicas that have been replaced since.
    MessagesStale => "messages_stale",
    /// Answers of DHCP servers that were for others, or not believed.
    DhcpIgnored => "dhcp_ignored",
    /// ARP packets of stations that have, or want, an address of this stack.
    ArpConflicts => "arp_conflicts",
    /// Offers of the best acceptor sent to other connection managers (P5).
    PeerOffersOut => "peer_offers_out",
    /// Offers received from other connection managers (P5).
    PeerOffersIn => "peer_offers_in",
    /// Connections given to an acceptor that another connection manager has offered.
    PeerOffersTaken => "peer_offers_taken",
    /// Messages of other connection managers that were ignored: of a dead epoch, or about what is gone.
    PeerMessagesDropped => "peer_messages_dropped",
    /// Reports of service times sent to the homes of acceptors.
    ServiceReportsOut => "service_reports_out",
    /// Reports of service times received.
    ServiceReportsIn => "service_reports_in",
    /// Connections that incarnations have taken over from their predecessors.
    ConnectionsKept => "connections_kept",
    /// Connections that have ended with their incarnation.
    ConnectionsLost => "connections_lost",
    /// Lost connections whose record was invalid, or whose adoption killed a successor.
    ConnectionsQuarantined => "connections_quarantined",
    /// Packets that an IP server gave up because their neighbour was not found, or too many waited for it.
    Unresolved => "unresolved",
    /// Frames of transport servers that an IP server did not send: they are no packets, or not from an
    /// address of the stack.
    Refused => "refused",
    /// Segments, and errors about segments, dropped because they came from too far away (`IP_MINTTL`,
    /// `IPV6_MINHOPCOUNT`).
    DroppedTtl => "dropped_ttl",
}

impl Stat {
    /// Returns whether the counter is a gauge, which describes the present. All others only grow, even over
    /// the deaths of their server.
    pub const fn is_gauge(self) -> bool {
        matches!(
            self,
            Stat::Connections
                | Stat::TimeWaits
                | Stat::Sessions
                | Stat::BufferBytes
                | Stat::Orphans
                | Stat::Pressured
                | Stat::Siblings
        )
    }
}

impl<M: Memory> ReplicaPage<M> {
    /// Announces a new incarnation of the replica.
    pub fn announce(&self, replica: ReplicaId, epoch: Epoch) {
        self.0.store32(offset_of!(ReplicaWords, replica), u32::from(replica.0));
        self.0.store32(EPOCH, epoch.0);
        self.0.store32(offset_of!(ReplicaWords, version), crate::LAYOUT_VERSION);
        self.0.store32_release(offset_of!(ReplicaWords, magic), MAGIC);
    }

    /// Returns the epoch of the incarnation; 0 before the first.
    pub fn epoch(&self) -> Epoch {
        let is_there = self.0.load32_acquire(offset_of!(ReplicaWords, magic)) == MAGIC;
        if is_there { Epoch(self.0.load32_acquire(EPOCH)) } else { Epoch(0) }
    }

    /// Returns the sleep word: odd while the replica sleeps and wants its doorbell to be rung; it grows by
    /// one at each change. A ringer remembers the value for which it has rung.
    pub fn sleep_word(&self) -> u32 {
        self.0.load32(SLEEP)
    }

    /// Sets the sleep word. The replica fences and checks its rings once more before it blocks.
    pub fn set_sleep_word(&self, word: u32) {
        self.0.store32(SLEEP, word);
    }

    /// Returns the time of the last sign of life, in nanoseconds of the machine's clock.
    pub fn heartbeat(&self) -> u64 {
        self.0.load64(HEARTBEAT)
    }

    /// Gives a sign of life.
    pub fn set_heartbeat(&self, nanos: u64) {
        self.0.store64(HEARTBEAT, nanos);
    }

    /// Returns the layers that confine the server: `LAYER_*`.
    pub fn layers(&self) -> u32 {
        self.0.load32_acquire(LAYERS)
    }

    /// Publishes the layers that confine the server.
    pub fn set_layers(&self, layers: u32) {
        self.0.store32_release(LAYERS, layers);
    }

    /// Offset of the word that the kernel marks when the process of the page ends (`atoll_sys::ending`).
    pub const END_AT: usize = END;

    /// Offset of the word in which a handler leaves the signal by which the process of the page dies through
    /// its own fault.
    pub const FAULT_AT: usize = FAULT;

    /// Returns whether the process of this page reports that it dies through its own fault. Ask when the
    /// process does nothing more.
    pub fn is_at_fault(&self) -> bool {
        self.0.load32_acquire(FAULT) != 0 || self.forbidden_call().is_some()
    }

    /// Offset of the word in which a server's signal handler leaves the number of the system call by which
    /// the server died, plus one.
    pub const FORBIDDEN_CALL_AT: usize = FORBIDDEN_CALL;

    /// Returns the system call by which the last server of this page died because the call is not on its
    /// list, if it did. Ask when the server is gone: until then it can write anything, and even afterwards
    /// the number is only its word.
    pub fn forbidden_call(&self) -> Option<u32> {
        self.0.load32_acquire(FORBIDDEN_CALL).checked_sub(1)
    }

    /// Clears the forbidden call for a new server.
    pub fn clear_forbidden_call(&self) {
        self.0.store32(FORBIDDEN_CALL, 0);
    }

    /// Reads a counter.
    pub fn stat(&self, stat: Stat) -> u64 {
        self.0.load64(STATS + stat as usize * 8)
    }

    /// Publishes a counter.
    pub fn set_stat(&self, stat: Stat, value: u64) {
        self.0.store64(STATS + stat as usize * 8, value);
    }

    /// Returns the addresses that the stack has now, as this replica knows them.
    pub fn network(&self) -> Network {
        Network::load(&self.0, NETWORK)
    }

    /// Returns the IPv4 address that the stack has now, as this replica knows it.
    pub fn v4(&self) -> Option<V4Facts> {
        Network::load_v4(&self.0, NETWORK)
    }

    /// Publishes the addresses that the stack has now.
    pub fn set_network(&self, network: &Network) {
        network.store(&self.0, NETWORK);
    }

    /// Returns whether a listener (TCP) or a bound socket (UDP) exists at `port` in this replica, for the
    /// library's choice between stack and kernel for loopback addresses.
    pub fn has_port(&self, udp: bool, port: u16) -> bool {
        let at = if udp { UDP_MAP } else { TCP_MAP } + usize::from(port / 64) * 8;
        self.0.load64_acquire(at) & (1 << (port % 64)) != 0
    }

    /// Publishes whether the port is taken.
    pub fn set_port(&self, udp: bool, port: u16, taken: bool) {
        let at = if udp { UDP_MAP } else { TCP_MAP } + usize::from(port / 64) * 8;
        let bit = 1u64 << (port % 64);
        let old = self.0.load64(at);
        self.0.store64_release(at, if taken { old | bit } else { old & !bit });
    }

    /// Returns the ports that are taken.
    pub fn ports(&self, udp: bool) -> impl Iterator<Item = u16> + '_ {
        let words = (0..=u16::MAX / 64).map(move |word| {
            let at = if udp { UDP_MAP } else { TCP_MAP } + usize::from(word) * 8;
            (word * 64, self.0.load64(at))
        });
        words.filter(|(_, bits)| *bits != 0).flat_map(|(first, bits)| {
            (0..64).filter(move |bit| bits & (1 << bit) != 0).map(move |bit| first + bit)
        })
    }
}

const _: () = assert!(STATS + Stat::ALL.len() * 8 <= NETWORK);
const _: () = assert!(NETWORK + crate::network::PUBLISHED_BYTES <= TCP_MAP);

/// The page of an application's sleep words, one for each doorbell. The application (and the children that
/// share its sockets) writes it, and replicas read it.
#[derive(Clone, Copy, Debug)]
pub struct AppPage<M: Memory>(pub M);

impl<M: Memory> AppPage<M> {
    /// Returns the sleep word of a doorbell: odd while a thread sleeps on it. The protocol is that of
    /// [`ReplicaPage::sleep_word`].
    pub fn sleep_word(&self, bell: u32) -> u32 {
        self.0.load32(sleep_word_at(bell))
    }

    /// Announces that a thread sleeps on a doorbell. Rings from before this call do not count for it. Several
    /// processes may call this at once.
    pub fn set_asleep(&self, bell: u32) {
        self.0.next_odd32(sleep_word_at(bell));
    }

    /// Announces that no thread sleeps on a doorbell any more. Where several processes sleep on it, none of
    /// them knows that.
    pub fn set_awake(&self, bell: u32) {
        let word = self.sleep_word(bell);
        if word & 1 == 1 {
            self.set_sleep_word(bell, word.wrapping_add(1));
        }
    }

    /// Sets the sleep word of a doorbell.
    pub fn set_sleep_word(&self, bell: u32, word: u32) {
        self.0.store32(sleep_word_at(bell), word);
    }
}

/// Returns the place of a doorbell's sleep word, which has a cache line for itself.
const fn sleep_word_at(bell: u32) -> usize {
    64 + (bell as usize % BELLS) * 64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HeapMemory;

    #[test]
    fn facts_survive_the_page() {
        let page = StackPage(HeapMemory::new(STACK_PAGE_BYTES));
        assert_eq!(page.facts(), None);
        let facts = StackFacts {
            replicas: 3,
            addr: 0xc612_0001,
            prefix_len: 24,
            gateway: 7,
            mtu: 1500,
            mac: [2, 0, 0, 0, 0, 1],
            key: FlowKey { k0: 1, k1: 2 },
            calibration: [1, 2, 3, 4],
            ephemeral: (32768, 60999),
            spin_us: 5,
            claim_timeout_us: 1000,
            naive_accept: true,
            ecn: 2,
            v6: Some(V6Facts {
                address: Some((Addr::from_octets([0x20; 16]), 64)),
                gateway: Some(Addr::from_octets([0xfe; 16])),
                autoconf: true,
            }),
            fast_open: 3,
        };
        page.write_facts(&facts);
        assert_eq!(page.facts(), Some(facts));
        page.set_owner(FlowGroup(4095), ReplicaId(2));
        assert_eq!(page.owner(FlowGroup(4095)), ReplicaId(2));
    }

    #[test]
    fn ports_are_independent_bits() {
        let page = ReplicaPage(HeapMemory::new(REPLICA_PAGE_BYTES));
        page.set_port(false, 80, true);
        page.set_port(true, 65535, true);
        assert!(page.has_port(false, 80) && !page.has_port(true, 80) && page.has_port(true, 65535));
        assert!(page.ports(false).eq([80]) && page.ports(true).eq([65535]));
        page.set_port(false, 80, false);
        assert!(!page.has_port(false, 80));
    }
}

//! [`Ip`]: the state that one replica keeps about its network, and its queues of outputs.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use atoll_base::{Addr, Duration, Instant, Rng};
use atoll_wire::Mac;

use crate::addresses::Addresses;
use crate::common::Common;
use crate::config::{BadConfig, Config, V4Address};
use crate::counters::Counters;
use crate::dhcp::Client;
use crate::fragments::PacketKey;
use crate::half::Half;
use crate::link::{Cast, Frame};
use crate::membership::Groups;
use crate::neighbours::{Basis, Claim, Due, NeighbourUpdate, Neighbours};
use crate::paths::{PathMtu, PathUpdate, Paths};
use crate::rate::TokenBucket;
use crate::reassembly::Reassembly;
use crate::v4::V4;
use crate::v6::V6;

// structure: Ip: the two families are not parts of their own yet
/// The IP layer of one replica: IPv4 with ARP and ICMP, and IPv6 with neighbour discovery.
///
/// Only what others have given for a time survives a crash ([`Ip::resume`]). A new incarnation starts with an
/// empty neighbour cache and refills it by asking and from other replicas. Frames, updates and failures not
/// yet polled are lost; peers and other replicas ask again.
///
/// After any `handle_*`, [`Ip::route`] or [`Ip::unreachable`], poll until empty: [`Ip::poll_frame`],
/// [`Ip::poll_neighbour`], [`Ip::poll_unreachable`], [`Ip::poll_path`], [`Ip::poll_whole`]; then set a timer
/// for [`Ip::next_timeout`].
#[derive(Debug)]
pub struct Ip {
    pub(crate) common: Common,
    pub(crate) addresses: Addresses,
    pub(crate) neighbours: Neighbours,
    pub(crate) reassembly: Reassembly<PacketKey>,
    pub(crate) groups: Groups<u32>,
    /// Reassembled packets that wait for [`Ip::poll_whole`].
    pub(crate) wholes: VecDeque<Frame>,
    paths: Paths,
    path_updates: VecDeque<PathUpdate>,
    pub(crate) echo_limit: TokenBucket,
    pub(crate) error_limit: TokenBucket,
    pub(crate) announcements: Announcements,
    pub(crate) v4: V4,
    /// The DHCP client, in the replica that asks for an address; boxed, to keep it away from what packets
    /// need.
    pub(crate) dhcp: Option<Box<Client>>,
    pub(crate) v6: V6,
    /// The additional state of a transport server's part; `None` in a full IP layer.
    pub(crate) half: Option<Box<Half>>,
    updates: VecDeque<NeighbourUpdate>,
    failed: VecDeque<u32>,
}

/// When our own address is announced (RFC 5227 §2.3, §2.4).
#[derive(Debug)]
pub(crate) struct Announcements {
    /// When the next announcement is sent.
    pub(crate) due: Option<Instant>,
    /// When we last defended our address against a station that claimed it.
    pub(crate) defended_at: Option<Instant>,
}

impl Ip {
    /// Creates a replica's IP layer for `config`; fails if [`Config::check`] does. `seed` must be
    /// unpredictable from outside, because hash keys and identifications depend on it.
    pub fn new(config: Config, seed: u64, now: Instant) -> Result<Ip, BadConfig> {
        config.check()?;
        let mut rng = Rng::new(seed);
        let key = [rng.next_u64(), rng.next_u64()];
        let v6_key = [rng.next_u64(), rng.next_u64()];
        let fragments_key = [rng.next_u64(), rng.next_u64()];
        let address = config.address();
        let leads = config.sibling.0 == 0 && !config.apart;
        let asks = config.dhcp && leads;
        let mut ip = Ip {
            v6: V6::new(&config, v6_key, now),
            addresses: address.as_ref().map_or(Addresses::none(), V4Address::classes),
            v4: V4::new(address),
            dhcp: asks.then(|| Box::new(Client::new(config.mac, config.mtu))),
            neighbours: Neighbours::new(
                config.neighbours_max,
                address.and_then(|address| address.gateway),
                key,
            ),
            reassembly: Reassembly::new(config.reassembly, fragments_key),
            groups: Groups::new(leads),
            wholes: VecDeque::new(),
            paths: Paths::default(),
            path_updates: VecDeque::new(),
            echo_limit: TokenBucket::new(ECHO_PER_SECOND, ECHO_BURST, now),
            error_limit: TokenBucket::new(ERRORS_PER_SECOND, ERRORS_BURST, now),
            announcements: Announcements { due: None, defended_at: None },
            half: config.apart.then(Box::default),
            updates: VecDeque::new(),
            failed: VecDeque::new(),
            common: Common::new(config, rng),
        };
        if ip.half.is_none() {
            ip.listen_to_own(now);
        }
        Ok(ip)
    }

    /// Returns the next frame to send, if any.
    pub fn poll_frame(&mut self) -> Option<Frame> {
        self.common.poll_frame()
    }

    /// Returns the next neighbour update for the other replicas, if any. A stack of one replica may discard
    /// it.
    pub fn poll_neighbour(&mut self) -> Option<NeighbourUpdate> {
        self.updates.pop_front()
    }

    /// Returns the next neighbour that did not answer, if any. No destination whose [`Ip::next_hop`] it is
    /// can be reached for now: drop the packets kept for it, and report EHOSTUNREACH to sockets where the
    /// protocol wants it.
    pub fn poll_unreachable(&mut self) -> Option<u32> {
        self.failed.pop_front()
    }

    /// Applies a neighbour update from another replica, after checking it. Updates about addresses that are
    /// no neighbours of ours are ignored.
    pub fn handle_neighbour(&mut self, now: Instant, update: NeighbourUpdate) {
        let NeighbourUpdate { addr, mac, basis } = update;
        if self.half.is_some()
            || !mac.is_station()
            || mac == self.common.mac()
            || !self.addresses.is_neighbour(addr)
        {
            return;
        }
        let claim = match basis {
            Basis::Learned => self.learn(now, addr, mac),
            Basis::Overheard => self.neighbours.answer(now, addr, mac),
        };
        if let Claim::Ask { of } = claim {
            self.ask(addr, of);
        }
        self.check_invariants();
    }

    /// Notes that packets to `dst` arrive, as the progress of a transport shows (RFC 4861 §7.3.1). This
    /// confirms the neighbour that they go through. The call is cheap, but not cheap enough for every
    /// segment.
    pub fn note_progress(&mut self, now: Instant, dst: Addr) {
        let Some(hop) = self.next_hop(dst) else { return };
        if self.half.is_some() {
            self.request_progress(now, hop);
        } else {
            self.confirm_neighbour(now, hop, true);
        }
    }

    /// Notes, on behalf of a transport server in another process, that packets arrive through the neighbour
    /// `hop`. This is not believed where two stations claim the address, because that concerns other servers
    /// as well.
    pub fn handle_progress(&mut self, now: Instant, hop: Addr) {
        self.confirm_neighbour(now, hop, false);
        self.check_invariants();
    }

    fn confirm_neighbour(&mut self, now: Instant, hop: Addr, settles: bool) {
        match hop.to_v4() {
            Some(v4) => self.neighbours.progress(now, v4, settles),
            None => self.v6.neighbours.progress(now, hop, settles),
        }
    }

    /// Does what is due at `now`; does nothing if nothing is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        let mut due = Vec::new();
        self.neighbours.expire(now, |what| due.push(what));
        for what in due {
            match what {
                Due::Ask { addr, of } => self.ask(addr, of),
                Due::Failed { addr } => {
                    self.common.count().neighbours_failed += 1;
                    let max = self.common.config().neighbours_max;
                    self.common.count().push(&mut self.failed, addr, max);
                }
            }
        }
        self.handle_timeout_v6(now);
        self.handle_timeout_dhcp(now);
        if self.announcements.due.is_some_and(|due| due <= now) {
            self.announcements.due = None;
            self.send_announcement();
        }
        self.expire_fragments(now);
        self.expire_groups(now);
        self.check_invariants();
    }

    /// Returns when to call [`Ip::handle_timeout`]; `None` if nothing is pending.
    pub fn next_timeout(&self) -> Option<Instant> {
        let all = [
            self.neighbours.next_due(),
            self.announcements.due,
            self.reassembly.next_timeout(),
            self.groups.next_timeout(),
            self.v6.next_timeout(),
            self.dhcp.as_deref().and_then(Client::next_timeout),
        ];
        all.into_iter().flatten().min()
    }

    /// Returns a number that grows whenever [`Ip::route`] may answer differently: a neighbour was resolved,
    /// moved to another station or failed, or own addresses have changed. It also grows when there is
    /// something new to report about these.
    pub fn neighbour_generation(&self) -> u64 {
        self.neighbours.generation() + self.v6.generation() + self.v4.news()
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        self.common.counters()
    }

    /// Returns the hardware address of the stack, which is also the destination of every frame on the inside
    /// link.
    pub fn mac(&self) -> Mac {
        self.common.mac()
    }

    /// Returns the IPv4 address of the stack, if it has one.
    pub fn addr(&self) -> Option<u32> {
        self.addresses.own()
    }

    /// Returns the size in octets of the largest IPv4 packet that the outside link carries.
    #[inline]
    pub fn mtu(&self) -> u16 {
        self.v4.mtu(self.common.config().mtu)
    }

    /// Returns the size in octets of the largest packet that the outside link carries, for the family of
    /// `dst`.
    pub fn mtu_for(&self, dst: Addr) -> u16 {
        if dst.is_v4() { self.mtu() } else { self.mtu_v6() }
    }

    /// Returns the packet size that the path to `dst` takes, if that is known to be less than
    /// [`Ip::mtu_for`].
    #[inline]
    pub fn path_mtu(&self, now: Instant, dst: impl Into<Addr>) -> Option<PathMtu> {
        self.paths.get(now, dst.into())
    }

    /// Notes that the path to `dst` only takes packets of `mtu` octets, and informs the other replicas. The
    /// caller has checked that the ICMP error was about a packet of ours.
    pub fn learn_path_mtu(&mut self, now: Instant, dst: impl Into<Addr>, mtu: u16) {
        let dst = dst.into();
        if self.paths.learn(now, dst, mtu, self.mtu_for(dst)) {
            let update = PathUpdate { dst, mtu };
            let max = self.common.config().frames_max;
            self.common.count().push(&mut self.path_updates, update, max);
            self.request_path(update);
        }
    }

    /// Returns the next path update for the other replicas, if any.
    pub fn poll_path(&mut self) -> Option<PathUpdate> {
        self.path_updates.pop_front()
    }

    /// Applies a path update from another replica.
    pub fn handle_path(&mut self, now: Instant, update: PathUpdate) {
        self.paths.learn(now, update.dst, update.mtu, self.mtu_for(update.dst));
    }

    /// Returns the number of incomplete packets that were evicted to make room for others.
    pub fn reassembly_evictions(&self) -> u64 {
        self.reassembly.evicted()
    }

    /// Returns what `addr` means as a destination; `None` if packets cannot be sent to it over the outside
    /// link.
    pub fn cast(&self, addr: impl Into<Addr>) -> Option<Cast> {
        let addr = addr.into();
        match addr.to_v4() {
            Some(v4) => self.addresses.cast(v4),
            None => self.cast_v6(addr),
        }
    }

    /// Queues a packet for [`Ip::poll_whole`], or drops it if too many wait.
    pub(crate) fn queue_whole(&mut self, frame: Frame) {
        let max = self.common.config().frames_max;
        self.common.count().push(&mut self.wholes, frame, max);
    }

    /// Queues a neighbour update for the other replicas.
    pub(crate) fn tell(&mut self, addr: u32, mac: Mac, basis: Basis) {
        let update = NeighbourUpdate { addr, mac, basis };
        let max = self.common.config().frames_max;
        self.common.count().push(&mut self.updates, update, max);
    }

    /// Learns `mac` for `addr` from a source that needs no confirmation. Returns what became of the claim.
    pub(crate) fn learn(&mut self, now: Instant, addr: u32, mac: Mac) -> Claim {
        let (claim, evicted) = self.neighbours.learn(now, addr, mac);
        self.common.count().neighbours_evicted += u64::from(evicted);
        claim
    }

    /// Checks the invariants between the parts in debug builds; panics if one is broken, which is a bug of
    /// the stack.
    pub(crate) fn check_invariants(&self) {
        if cfg!(debug_assertions) {
            assert_eq!(self.addresses.own(), self.v4.address().map(|address| address.addr));
            self.neighbours.check_invariants();
            self.reassembly.check_invariants();
            self.groups.check_invariants();
            assert!(self.wholes.len() <= self.common.config().frames_max);
            assert!(self.path_updates.len() <= self.common.config().frames_max);
            self.v6.neighbours.check_invariants();
            self.v6.groups.check_invariants();
            self.common.check_invariants();
            assert!(self.updates.len() <= self.common.config().frames_max);
            assert!(self.failed.len() <= self.common.config().neighbours_max);
        }
    }
}

/// Echo requests answered per second: far more than any operator sends, far fewer than a flood.
pub(crate) const ECHO_PER_SECOND: u32 = 10_000;
const ECHO_BURST: u32 = 1_000;

/// Tokens for ICMP errors per second. Each error costs 1 to 3, so there are about 500 errors. Linux has
/// icmp_msgs_per_sec 1000 and icmp_msgs_burst 50.
const ERRORS_PER_SECOND: u32 = 1_000;
const ERRORS_BURST: u32 = 100;

/// The time between two announcements (ANNOUNCE_INTERVAL, RFC 5227 §1.1).
pub(crate) const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// The shortest time between two defences of our address (DEFEND_INTERVAL, RFC 5227 §1.1).
pub(crate) const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
pub(crate) mod tests;

//! The part of IP that stays with a transport server whose IP server is another process (N6): what a
//! transport needs for every packet. The IP server sends the rest in [`Told`].
//!
//! ```text
//!   here    own addresses, what a destination means, headers and fragments of own packets, checksums,       <--Told, unreachable--
//!           whose error it is, the groups of sockets, paths, and all of the inside link                     --Request-->
//!   there   ARP and neighbour discovery, routers, DHCP, IGMP and MLD, echo, packets in fragments
//! ```
//! Frames leave without a hardware destination, which the IP server fills in. Packets from outside arrive
//! whole and already checked once. This part checks them again, except for the checksum.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use atoll_base::{Addr, Instant};
use atoll_wire::Mac;

use crate::config::V4Address;
use crate::dhcp;
use crate::ip::Ip;
use crate::link::Cast;
use crate::link::Link;
use crate::neighbours::RETRY;
use crate::output::Route;
use crate::paths::PathUpdate;
use crate::v6::OwnAddress;

/// What an IP server knows of the network that transport servers have to know. Each one replaces the one
/// before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The IPv4 address of the stack, if there is one.
    pub v4: Option<V4Address>,
    /// What is known of DHCP, if the IPv4 address comes by DHCP.
    pub dhcp: Option<dhcp::News>,
    /// The IPv6 addresses, the link-local one first.
    pub addresses: Vec<OwnAddress>,
    /// The prefixes that are reached without a router, with their lengths in bits.
    pub on_link: Vec<(Addr, u8)>,
    /// The IPv6 routers.
    pub routers: Vec<Addr>,
    /// The largest IPv6 packet that the link carries, in octets.
    pub mtu_v6: u16,
    /// The hop limit of packets whose socket asks for no other.
    pub hop_limit: u8,
}

/// What the part in a transport server asks of its IP server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Accept packets to this group.
    Join(Addr),
    /// Stop accepting packets to this group.
    Leave(Addr),
    /// The path to a destination only takes packets of this size.
    Path(PathUpdate),
    /// Packets arrive through this neighbour. Sent at most once a second for each neighbour; it may get lost.
    Progress(Addr),
}

/// What the part in a transport server keeps besides the state of a full [`Ip`]. It does not survive a crash,
/// as that state does not either.
#[derive(Debug, Default)]
pub(crate) struct Half {
    /// The groups that the IP server was asked to join.
    asked: BTreeSet<Addr>,
    /// Whether `asked` may differ from the groups that sockets are in.
    is_behind: bool,
    paths: VecDeque<PathUpdate>,
    /// The neighbours through which packets arrive, and when the IP server was last told.
    progress: BTreeMap<Addr, Instant>,
    /// The neighbours in `progress` that the IP server is still to be told of.
    progress_due: VecDeque<Addr>,
    /// Destinations that cannot be reached, and until when that is believed.
    unreachable: BTreeMap<Addr, Instant>,
    pub(crate) dhcp: Option<dhcp::News>,
}

/// The most unreachable destinations that are remembered; packets to further ones are sent in vain.
const UNREACHABLE_MAX: usize = 256;
/// The most neighbours whose progress is passed on in a second; the IP server finds out about the others
/// itself, by asking them.
const PROGRESS_MAX: usize = 64;

impl Ip {
    /// Returns what the transport servers of this IP server have to know.
    pub fn told(&self) -> Told {
        Told {
            v4: self.v4_address().copied(),
            dhcp: self.dhcp_news(),
            addresses: self.v6_addresses().to_vec(),
            on_link: self.v6_on_link().map(|(prefix, len, _)| (prefix, len)).collect(),
            routers: self.v6_routers().map(|(addr, _)| addr).collect(),
            mtu_v6: self.mtu_v6(),
            hop_limit: self.hop_limit(),
        }
    }

    /// Applies what the IP server has told, after checking it. Does nothing if this is not the part in a
    /// transport server.
    pub fn handle_told(&mut self, told: Told) {
        let Some(half) = &mut self.half else { return };
        if half.dhcp != told.dhcp {
            half.dhcp = told.dhcp.clone();
            self.v4.note();
        }
        let v4 = told.v4.filter(|address| address.check().is_ok());
        if self.v4_address() != v4.as_ref() {
            self.set_v4_address(v4);
        }
        self.take_v6(&told);
        self.check_invariants();
    }

    /// Notes that the IP server cannot deliver packets to `dst`. That is believed for a second, as for a
    /// neighbour that does not answer.
    pub fn handle_unreachable(&mut self, now: Instant, dst: Addr) {
        let Some(half) = &mut self.half else { return };
        half.unreachable.retain(|_, until| *until > now);
        if half.unreachable.len() < UNREACHABLE_MAX {
            half.unreachable.insert(dst, now + RETRY);
            self.change_routes();
        }
    }

    /// Forgets what was asked of the IP server, because a new one has taken over that knows of no group.
    pub fn forget_requests(&mut self) {
        if let Some(half) = &mut self.half {
            half.asked.clear();
            half.is_behind = true;
        }
    }

    /// Returns whether there is something to ask of the IP server.
    pub fn has_requests(&self) -> bool {
        self.half
            .as_ref()
            .is_some_and(|half| half.is_behind || !half.paths.is_empty() || !half.progress_due.is_empty())
    }

    /// Passes each pending request to `send`, which returns whether it was accepted. A request that was not
    /// is offered again by the next call.
    pub fn send_requests(&mut self, mut send: impl FnMut(Request) -> bool) {
        let Some(half) = &mut self.half else { return };
        if half.is_behind {
            let v4 = self.groups.members().map(Addr::v4);
            let wanted: BTreeSet<Addr> = v4.chain(self.v6.groups.members()).collect();
            let left: Vec<Addr> = half.asked.difference(&wanted).copied().collect();
            // Groups that were left go first, so that the IP server never has more than the limit.
            for group in left {
                if !send(Request::Leave(group)) {
                    return;
                }
                half.asked.remove(&group);
            }
            for group in wanted {
                if !half.asked.contains(&group) {
                    if !send(Request::Join(group)) {
                        return;
                    }
                    half.asked.insert(group);
                }
            }
            half.is_behind = false;
        }
        while let Some(update) = half.paths.front() {
            if !send(Request::Path(*update)) {
                return;
            }
            half.paths.pop_front();
        }
        while let Some(hop) = half.progress_due.front() {
            if !send(Request::Progress(*hop)) {
                return;
            }
            half.progress_due.pop_front();
        }
    }

    /// Notes that a socket has joined or left a group.
    pub(crate) fn note_membership(&mut self, link: Link) {
        if let Some(half) = self.half.as_mut().filter(|_| link == Link::Outside) {
            half.is_behind = true;
        }
    }

    /// Notes that packets arrive through `hop`, for [`Request::Progress`].
    pub(crate) fn request_progress(&mut self, now: Instant, hop: Addr) {
        let Some(half) = &mut self.half else { return };
        if half.progress.get(&hop).is_some_and(|at| now.since(*at) < RETRY) {
            return;
        }
        if half.progress.len() >= PROGRESS_MAX {
            half.progress.retain(|_, at| now.since(*at) < RETRY);
        }
        if half.progress.len() < PROGRESS_MAX && half.progress_due.len() < PROGRESS_MAX {
            half.progress.insert(hop, now);
            half.progress_due.push_back(hop);
        }
    }

    pub(crate) fn request_path(&mut self, update: PathUpdate) {
        if let Some(half) = &mut self.half {
            let max = self.common.config().frames_max;
            self.common.count().push(&mut half.paths, update, max);
        }
    }

    /// Returns the route to `dst`: packets that are not local leave without a hardware destination.
    pub(crate) fn route_half(&self, now: Instant, dst: Addr) -> Route {
        if self.is_own(dst) {
            return if self.common.config().loopback { Route::Local } else { Route::Unreachable };
        }
        let is_unreachable = || {
            self.half
                .as_ref()
                .is_some_and(|half| half.unreachable.get(&dst).is_some_and(|until| *until > now))
        };
        let has_way = match self.cast(dst) {
            Some(Cast::Unicast) => self.next_hop(dst).is_some() && !is_unreachable(),
            Some(Cast::Broadcast) => true,
            Some(Cast::Multicast) => dst.is_v4() || !self.v6_addresses().is_empty(),
            None => false,
        };
        if has_way { Route::Via { mac: Mac::ZERO } } else { Route::Unreachable }
    }
}

#[cfg(test)]
mod tests;

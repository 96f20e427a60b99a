//! What of IP stays with a transport server whose IP server is another process (N6)? What a transport asks
//! for every packet; the rest it is told.
//!
//! ```text
//!   here    own addresses, what a destination means, headers and fragments of own packets, checksums,       <--Told, unreachable--
//!           whose error it is, the groups of sockets, paths, and all of the inside link                     --Request-->
//!   there   ARP and neighbour discovery, routers, DHCP, IGMP and MLD, echo, packets in fragments
//! ```
//! Frames leave without a hardware destination, which the IP server fills in. What comes from outside is
//! whole and was checked once; it is judged here as if it had not been, but for its checksum.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use atoll_base::{Addr, Instant};
use atoll_wire::Mac;

use crate::addresses::Cast;
use crate::dhcp;
use crate::ip::{Ip, Link, push};
use crate::neighbours::RETRY;
use crate::output::Route;
use crate::paths::PathUpdate;
use crate::v4::V4Address;
use crate::v6::OwnAddress;

/// What an IP server knows of the network that transport servers have to know. Only the last one counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The IPv4 address, if there is one.
    pub v4: Option<V4Address>,
    /// Where it comes from, if not from the configuration.
    pub dhcp: Option<dhcp::News>,
    /// The IPv6 addresses, the link-local one first.
    pub addresses: Vec<OwnAddress>,
    /// Prefixes that are reached without a router, with their lengths.
    pub on_link: Vec<(Addr, u8)>,
    /// Routers of IPv6.
    pub routers: Vec<Addr>,
    /// The largest IPv6 packet.
    pub mtu_v6: u16,
    /// The hop limit of packets whose socket asks for no other.
    pub hop_limit: u8,
}

/// What the half of a transport server asks of its IP server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Packets to this group are wanted.
    Join(Addr),
    /// They are not wanted any more.
    Leave(Addr),
    /// The way to a destination takes packets of this size only.
    Path(PathUpdate),
    /// Packets arrive through this neighbour. At most once a second for each; may get lost.
    Progress(Addr),
}

/// What the half keeps beside what the whole keeps as well. Survives no crash, as that.
#[derive(Debug, Default)]
pub(crate) struct Half {
    /// Groups that the IP server knows to be wanted.
    asked: BTreeSet<Addr>,
    /// They may differ from those that are.
    is_behind: bool,
    paths: VecDeque<PathUpdate>,
    /// Neighbours through which packets arrive, and since when the IP server knows.
    progress: BTreeMap<Addr, Instant>,
    /// Those of them that it is still to be told of.
    progress_due: VecDeque<Addr>,
    /// Destinations that cannot be reached, and until when that is believed.
    unreachable: BTreeMap<Addr, Instant>,
    pub(crate) dhcp: Option<dhcp::News>,
}

/// Unreachable destinations that are remembered at most: beyond it packets to some leave in vain.
const UNREACHABLE_MAX: usize = 256;
/// Neighbours whose progress is passed on in a second at most; of the others the IP server finds out itself,
/// by asking.
const PROGRESS_MAX: usize = 64;

impl Ip {
    /// What the halves of this IP are to be told.
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

    /// Takes what the IP server has told. It is hostile until proven plausible; ignored where there is no IP
    /// server.
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

    /// Takes from the IP server that packets to `dst` have nobody who takes them. That is believed for a
    /// second, as of a neighbour that does not answer.
    pub fn handle_unreachable(&mut self, now: Instant, dst: Addr) {
        let Some(half) = &mut self.half else { return };
        half.unreachable.retain(|_, until| *until > now);
        if half.unreachable.len() < UNREACHABLE_MAX {
            half.unreachable.insert(dst, now + RETRY);
            self.change_routes();
        }
    }

    /// The IP server is another one, and knows of no group.
    pub fn forget_requests(&mut self) {
        if let Some(half) = &mut self.half {
            half.asked.clear();
            half.is_behind = true;
        }
    }

    /// Whether there is something to ask of the IP server.
    pub fn has_requests(&self) -> bool {
        self.half.as_ref().is_some_and(|half| half.is_behind || !half.paths.is_empty() || !half.progress_due.is_empty())
    }

    /// Passes what there is to ask to `send`, which says whether it was taken; what was not is offered again
    /// next time.
    pub fn send_requests(&mut self, mut send: impl FnMut(Request) -> bool) {
        let Some(half) = &mut self.half else { return };
        if half.is_behind {
            let v4 = self.groups.members().map(Addr::v4);
            let wanted: BTreeSet<Addr> = v4.chain(self.v6.groups.members()).collect();
            let left: Vec<Addr> = half.asked.difference(&wanted).copied().collect();
            // Those that are left first: so there are never more than there may be.
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

    /// A socket has joined or left a group.
    pub(crate) fn note_membership(&mut self, link: Link) {
        if let Some(half) = self.half.as_mut().filter(|_| link == Link::Outside) {
            half.is_behind = true;
        }
    }

    /// Packets arrive through `hop`: see [`Request::Progress`].
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
            push(&mut half.paths, update, self.config.frames_max, &mut self.counters);
        }
    }

    /// The way to `dst`: whatever has one leaves without a hardware destination.
    pub(crate) fn route_half(&self, now: Instant, dst: Addr) -> Route {
        if self.is_own(dst) {
            return if self.config.loopback { Route::Local } else { Route::Unreachable };
        }
        let is_unreachable =
            || self.half.as_ref().is_some_and(|half| half.unreachable.get(&dst).is_some_and(|until| *until > now));
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

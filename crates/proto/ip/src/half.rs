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

use crate::common::Common;
use crate::config::V4Address;
use crate::dhcp;
use crate::link::Link;
use crate::neighbours::RETRY;
use crate::paths::PathUpdate;
use crate::v6::OwnAddress;

/// The state of the network that an IP server sends to transport servers. Each one replaces the one before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The IPv4 address of the stack, if there is one.
    pub v4: Option<V4Address>,
    /// The state of DHCP, if the IPv4 address comes by DHCP.
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

/// The requests of the part in a transport server to its IP server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Accept packets to this group. The unspecified address of a family stands for all messages of its ICMP
    /// that the IP server handles itself.
    Join(Addr),
    /// Stop accepting packets to this group.
    Leave(Addr),
    /// The path to a destination only takes packets of this size.
    Path(PathUpdate),
    /// Packets arrive through this neighbour. Sent at most once a second for each neighbour; it may get lost.
    Progress(Addr),
}

/// The state of the part in a transport server besides that of a full [`Ip`](crate::Ip). Neither survives a
/// crash.
#[derive(Debug, Default)]
pub(crate) struct Half {
    /// The groups that the IP server was asked to join.
    asked: BTreeSet<Addr>,
    /// Whether `asked` may differ from the groups that sockets are in.
    is_behind: bool,
    /// Whether there are raw sockets of ICMP, and of ICMPv6.
    wants_messages: [bool; 2],
    paths: VecDeque<PathUpdate>,
    /// The neighbours through which packets arrive, and when that was last reported to the IP server.
    progress: BTreeMap<Addr, Instant>,
    /// The neighbours in `progress` that are still to be reported to the IP server.
    progress_due: VecDeque<Addr>,
    /// Destinations that cannot be reached, and until when that is believed.
    unreachable: BTreeMap<Addr, Instant>,
    dhcp: Option<dhcp::News>,
}

/// The most unreachable destinations that are remembered; packets to further ones are sent in vain.
const UNREACHABLE_MAX: usize = 256;
/// The most neighbours whose progress is passed on in a second; the IP server finds out about the others
/// itself, by asking them.
const PROGRESS_MAX: usize = 64;

impl Half {
    /// Returns the state of DHCP that the IP server has sent.
    pub(crate) const fn dhcp(&self) -> Option<&dhcp::News> {
        self.dhcp.as_ref()
    }

    /// Stores the state of DHCP that the IP server has sent. Returns whether it is new.
    pub(crate) fn set_dhcp(&mut self, news: Option<dhcp::News>) -> bool {
        core::mem::replace(&mut self.dhcp, news) != self.dhcp
    }

    /// Notes that the IP server cannot deliver packets to `dst`. That is believed for a second, as for a
    /// neighbour that does not answer. Returns whether it was noted.
    pub(crate) fn note_unreachable(&mut self, now: Instant, dst: Addr) -> bool {
        self.unreachable.retain(|_, until| *until > now);
        let has_room = self.unreachable.len() < UNREACHABLE_MAX;
        if has_room {
            self.unreachable.insert(dst, now + RETRY);
        }
        has_room
    }

    pub(crate) fn is_unreachable(&self, now: Instant, dst: Addr) -> bool {
        self.unreachable.get(&dst).is_some_and(|until| *until > now)
    }

    /// Forgets what was asked of the IP server.
    pub(crate) fn forget_requests(&mut self) {
        self.asked.clear();
        self.is_behind = true;
    }

    /// Returns whether there is something to ask of the IP server.
    pub(crate) fn has_requests(&self) -> bool {
        self.is_behind || !self.paths.is_empty() || !self.progress_due.is_empty()
    }

    /// Passes each pending request to `send`, which returns whether it was accepted. A request that was not
    /// is offered again by the next call. `wanted` are the groups that sockets are in.
    pub(crate) fn send_requests(
        &mut self,
        wanted: impl Iterator<Item = Addr>,
        mut send: impl FnMut(Request) -> bool,
    ) {
        if self.is_behind {
            let messages = [Addr::V4_ANY, Addr::ANY].into_iter().zip(self.wants_messages);
            let messages = messages.filter_map(|(any, wants)| wants.then_some(any));
            let wanted: BTreeSet<Addr> = wanted.chain(messages).collect();
            let left: Vec<Addr> = self.asked.difference(&wanted).copied().collect();
            // Groups that were left go first, so that the IP server never has more than the limit.
            for group in left {
                if !send(Request::Leave(group)) {
                    return;
                }
                self.asked.remove(&group);
            }
            for group in wanted {
                if !self.asked.contains(&group) {
                    if !send(Request::Join(group)) {
                        return;
                    }
                    self.asked.insert(group);
                }
            }
            self.is_behind = false;
        }
        while let Some(update) = self.paths.front() {
            if !send(Request::Path(*update)) {
                return;
            }
            self.paths.pop_front();
        }
        while let Some(hop) = self.progress_due.front() {
            if !send(Request::Progress(*hop)) {
                return;
            }
            self.progress_due.pop_front();
        }
    }

    /// Notes whether there are raw sockets of ICMP, or of ICMPv6.
    pub(crate) fn want_messages(&mut self, v6: bool, wants: bool) {
        let before = core::mem::replace(&mut self.wants_messages[usize::from(v6)], wants);
        self.is_behind |= before != wants;
    }

    /// Notes that a socket has joined or left a group.
    pub(crate) fn note_membership(&mut self, link: Link) {
        self.is_behind |= link == Link::Outside;
    }

    /// Notes that packets arrive through `hop`, for [`Request::Progress`].
    pub(crate) fn note_progress(&mut self, now: Instant, hop: Addr) {
        if self.progress.get(&hop).is_some_and(|at| now.since(*at) < RETRY) {
            return;
        }
        if self.progress.len() >= PROGRESS_MAX {
            self.progress.retain(|_, at| now.since(*at) < RETRY);
        }
        if self.progress.len() < PROGRESS_MAX && self.progress_due.len() < PROGRESS_MAX {
            self.progress.insert(hop, now);
            self.progress_due.push_back(hop);
        }
    }

    /// Notes what a path takes, for [`Request::Path`].
    pub(crate) fn note_path(&mut self, common: &mut Common, update: PathUpdate) {
        common.push(&mut self.paths, update);
    }
}

#[cfg(test)]
mod tests;

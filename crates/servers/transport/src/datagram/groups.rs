//! Which groups is a datagram socket in, and how do datagrams get to all members? ip(7), ipv6(7), RFC 1112.

use alloc::vec::Vec;

use atoll_base::{Addr, FourTuple, Instant, SlotId};
use atoll_ip::{Cast, Ip, Link};
use atoll_ipc::Memory;
use atoll_ipc::page::Stat;

use super::Datagrams;
use crate::session::Occupant;
use crate::transport::Transport;

/// What a socket wants of groups.
#[derive(Debug)]
pub(super) struct Multicast {
    joined: Vec<(Link, Addr)>,
    pub(super) v4: Wishes,
    pub(super) v6: Wishes,
}

/// What it wants of those of one family: the options whose names begin with `IP_MULTICAST`, or `IPV6_MULTICAST`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wishes {
    /// `..._ALL`: datagrams to groups that others of this machine have joined are wanted as well.
    pub(super) all: bool,
    /// `..._LOOP`: members on this machine hear what the socket sends.
    pub(super) is_looped: bool,
    /// `..._TTL`, `..._HOPS`.
    pub(super) ttl: u8,
    /// `..._IF`: datagrams leave over the inside link.
    pub(super) inside: bool,
}

impl Multicast {
    /// As ip(7) and ipv6(7) say of a new socket.
    pub(super) const fn new() -> Multicast {
        let usual = Wishes { all: true, is_looped: true, ttl: 1, inside: false };
        Multicast { joined: Vec::new(), v4: usual, v6: usual }
    }

    /// What is wanted of groups like `group`.
    pub(super) const fn of(&self, group: Addr) -> &Wishes {
        if group.is_v4() { &self.v4 } else { &self.v6 }
    }

    /// Whether a datagram to `group` is for this socket, if its address and port are.
    fn wants(&self, group: Addr) -> bool {
        self.of(group).all || self.joined.iter().any(|(_, joined)| *joined == group)
    }

    /// The socket goes.
    pub(super) fn leave_all(&mut self, now: Instant, ip: &mut Ip) {
        for (link, group) in self.joined.drain(..) {
            ip.leave_group(now, link, group);
        }
    }
}

impl Datagrams {
    /// The sockets for a datagram that is not for one host only: all whose address, port and peer are right (ip(7), RFC 1122 §4.1.3.6).
    pub(super) fn find_all(&self, tuple: &FourTuple, cast: Cast) -> Vec<u32> {
        let is_for = |index: &u32| {
            let socket = self.sockets.get(*index);
            socket
                .is_some_and(|s| s.score(tuple) > 0 && (cast != Cast::Multicast || s.multicast.wants(tuple.local.addr)))
        };
        self.by_port.get(&tuple.local.port).into_iter().flatten().copied().filter(is_for).collect()
    }
}

impl<M: Memory> Transport<M> {
    /// [`atoll_ipc::Command::Group`]. The library has checked what an application is to be told of.
    pub(crate) fn change_membership(
        &mut self,
        now: Instant,
        session: u32,
        slot: SlotId,
        generation: u32,
        group: (Link, Addr),
        joins: bool,
    ) {
        let occupant = self.session(session).map_or(Occupant::Nobody, |session| session.occupant(slot, generation));
        let done = if let Occupant::Datagram(index) = occupant
            && let Some(socket) = self.datagrams.sockets.get_mut(index)
            && !socket.is_closing
        {
            let joined = &mut socket.multicast.joined;
            let at = joined.iter().position(|other| *other == group);
            match at {
                Some(at) if !joins => {
                    joined.swap_remove(at);
                    self.ip.leave_group(now, group.0, group.1);
                    true
                }
                None if joins && joined.len() < MEMBERSHIPS_MAX && self.ip.join_group(now, group.0, group.1) => {
                    joined.push(group);
                    true
                }
                _ => false,
            }
        } else {
            false
        };
        if !done {
            self.stats.count(Stat::BadCommands);
        }
    }
}

/// Memberships of one socket at most, of both families: Linux's `igmp_max_memberships`, and what the library allows of IPv6.
const MEMBERSHIPS_MAX: usize = 20 + 64;

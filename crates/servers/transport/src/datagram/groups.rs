//! Which groups is a datagram socket in, and how do datagrams get to all members? ip(7), RFC 1112.

use alloc::vec::Vec;

use atoll_base::{FourTuple, Instant, SlotId};
use atoll_ip::{Cast, Ip, Link};
use atoll_ipc::Memory;
use atoll_ipc::page::Stat;

use super::Datagrams;
use crate::session::Occupant;
use crate::transport::Transport;

/// What a socket wants of groups.
#[derive(Debug)]
pub(super) struct Multicast {
    joined: Vec<(Link, u32)>,
    /// `IP_MULTICAST_ALL`: datagrams to groups that others of this machine have joined are wanted as well.
    pub(super) all: bool,
    /// `IP_MULTICAST_LOOP`: members on this machine hear what the socket sends.
    pub(super) is_looped: bool,
    /// `IP_MULTICAST_TTL`.
    pub(super) ttl: u8,
    /// `IP_MULTICAST_IF`: datagrams leave over the inside link.
    pub(super) inside: bool,
}

impl Multicast {
    /// As ip(7) says of a new socket.
    pub(super) const fn new() -> Multicast {
        Multicast { joined: Vec::new(), all: true, is_looped: true, ttl: 1, inside: false }
    }

    /// Whether a datagram to `group` is for this socket, if its address and port are.
    fn wants(&self, group: u32) -> bool {
        self.all || self.joined.iter().any(|(_, joined)| *joined == group)
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
        let group = tuple.local.addr.to_v4();
        let is_for = |index: &u32| {
            let socket = self.sockets.get(*index);
            socket.is_some_and(|s| {
                s.score(tuple) > 0 && (cast != Cast::Multicast || group.is_some_and(|group| s.multicast.wants(group)))
            })
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
        group: (Link, u32),
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

/// Memberships of one socket at most: Linux's `igmp_max_memberships`.
const MEMBERSHIPS_MAX: usize = 20;

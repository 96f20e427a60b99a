//! The groups of datagram sockets, and the datagrams for all members: ip(7), ipv6(7), RFC 1112.

use alloc::vec::Vec;

use atoll_base::{Addr, FourTuple, Instant};
use atoll_ip::{Cast, Ip, Link};
use atoll_ipc::command::Protocol;
use atoll_ipc::{Cause, Device, Memory, SocketOption};

use super::Datagrams;
use crate::session::Session;

/// The settings of a socket about groups.
#[derive(Debug)]
pub(crate) struct Multicast {
    joined: Vec<(Link, Addr)>,
    v4: Wishes,
    v6: Wishes,
}

/// The settings about groups of one family: the options whose names begin with `IP_MULTICAST`, or
/// `IPV6_MULTICAST`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wishes {
    /// `..._ALL`: whether datagrams to groups that others of this machine have joined are wanted as well.
    pub(crate) all: bool,
    /// `..._LOOP`: whether members on this machine get what the socket sends.
    pub(crate) is_looped: bool,
    /// `..._TTL` or `..._HOPS`.
    pub(crate) ttl: u8,
    /// `..._IF`: whether datagrams are sent over the inside link.
    pub(crate) inside: bool,
}

impl Multicast {
    /// Returns the settings of a new socket by ip(7) and ipv6(7). `all_v4` is those of a socket of AF_INET.
    pub(super) const fn new(all_v4: bool) -> Multicast {
        let usual = Wishes { all: true, is_looped: true, ttl: 1, inside: false };
        Multicast { joined: Vec::new(), v4: Wishes { all: all_v4, ..usual }, v6: usual }
    }

    /// Returns the settings about groups of the family of `group`.
    pub(crate) const fn of(&self, group: Addr) -> &Wishes {
        if group.is_v4() { &self.v4 } else { &self.v6 }
    }

    /// Returns whether a datagram to `group` is for this socket, if its address and port are.
    fn wants(&self, group: Addr) -> bool {
        self.of(group).all || self.joined.iter().any(|(_, joined)| *joined == group)
    }

    /// Sets an option about groups. Returns `false` if it is another option.
    pub(super) const fn set_option(&mut self, option: SocketOption, value: u32) -> bool {
        match option {
            SocketOption::MulticastTtl => self.v4.ttl = value as u8,
            SocketOption::MulticastLoop => self.v4.is_looped = value != 0,
            SocketOption::MulticastAll => self.v4.all = value != 0,
            SocketOption::MulticastInside => self.v4.inside = value != 0,
            SocketOption::MulticastHops => self.v6.ttl = value as u8,
            SocketOption::MulticastLoopV6 => self.v6.is_looped = value != 0,
            SocketOption::MulticastAllV6 => self.v6.all = value != 0,
            SocketOption::MulticastInsideV6 => self.v6.inside = value != 0,
            _ => return false,
        }
        true
    }

    /// Leaves all groups, because the socket is removed. Returns how many groups it was in.
    pub(super) fn leave_all(&mut self, now: Instant, ip: &mut Ip) -> u32 {
        // Cannot truncate: see MEMBERSHIPS_MAX.
        let count = self.joined.len() as u32;
        for (link, group) in self.joined.drain(..) {
            ip.leave_group(now, link, group);
        }
        count
    }
}

impl Datagrams {
    /// Returns the sockets for a datagram that is not for one host only: all of UDP whose address, port, peer
    /// and device match (ip(7), RFC 1122 §4.1.3.6).
    pub(crate) fn find_all(&self, tuple: &FourTuple, device: Device, cast: Cast) -> Vec<u32> {
        let is_for = |index: &u32| {
            let socket = self.sockets.get(*index);
            socket.is_some_and(|s| {
                s.score(tuple, device) > 0
                    && (cast != Cast::Multicast || s.options().multicast().wants(tuple.local.addr))
            })
        };
        self.by_port
            .get(&(Protocol::Udp, tuple.local.port))
            .into_iter()
            .flatten()
            .copied()
            .filter(is_for)
            .collect()
    }
}

impl Datagrams {
    /// Lets the socket join a group, or leave it. `groups_max` is the limit of its session. Only
    /// [`Cause::NoBuffers`] reports what the application could not know before.
    pub(crate) fn change_membership<M: Memory>(
        &mut self,
        now: Instant,
        index: u32,
        (session, groups_max): (&mut Session<M>, u32),
        ip: &mut Ip,
        (group, joins): ((Link, Addr), bool),
    ) -> Result<(), Cause> {
        let socket = self.sockets.get_mut(index).filter(|socket| !socket.is_closing());
        let joined = &mut socket.ok_or(Cause::Invalid)?.multicast_mut().joined;
        match joined.iter().position(|other| *other == group) {
            Some(_) if joins => return Err(Cause::AddressInUse),
            None if !joins => return Err(Cause::AddressNotAvailable),
            Some(at) => {
                joined.swap_remove(at);
                session.groups = session.groups.saturating_sub(1);
                ip.leave_group(now, group.0, group.1);
            }
            None => {
                let of_family = joined.iter().filter(|(_, other)| other.is_v4() == group.1.is_v4()).count();
                let max = if group.1.is_v4() { MEMBERSHIPS_MAX_V4 } else { MEMBERSHIPS_MAX_V6 };
                if of_family >= max || session.groups >= groups_max {
                    return Err(Cause::NoBuffers);
                }
                if !ip.join_group(now, group.0, group.1) {
                    let is_group = ip.cast(group.1) == Some(Cast::Multicast);
                    return Err(if is_group { Cause::NoBuffers } else { Cause::Invalid });
                }
                session.groups += 1;
                joined.push(group);
            }
        }
        Ok(())
    }

    /// Returns whether the socket is in the group.
    pub(crate) fn is_joined(&self, index: u32, group: (Link, Addr)) -> bool {
        self.sockets.get(index).is_some_and(|socket| socket.options().multicast().joined.contains(&group))
    }
}

/// The most memberships of one socket: Linux's `igmp_max_memberships`, and what the library allows with IPv6.
const MEMBERSHIPS_MAX_V4: usize = 20;
const MEMBERSHIPS_MAX_V6: usize = 64;

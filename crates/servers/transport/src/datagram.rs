//! How do datagrams get from the wire to sockets and back? RFC 768, udp(7).

use alloc::vec::Vec;

use atoll_base::{Addr, Endpoint, FourTuple, Instant};
use atoll_connmgr::{are_rivals, covers};
use atoll_ip::{Cast, ErrorKind, NetworkError, TTL};
use atoll_ipc::buffer::Extents;
use atoll_ipc::command::Protocol;
use atoll_ipc::lease::Grant;
use atoll_ipc::ledger::Work;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{REPLICA_CLOSED, Slot, SlotState};
use atoll_ipc::{Cause, Event, Memory, Ready, SocketOption};
use atoll_udp::{DATAGRAM_MAX, Flags as RecordFlags, RECORD_LEN, Record, padded_len};
use atoll_wire::icmp::code;
use core::hash::{BuildHasher, Hasher};
use foldhash::quality::FixedState;
use hashbrown::HashMap;

use crate::fragment::{MtuDiscovery, Progress};
use crate::records::Subject;
use crate::session::{Occupant, Place};
use crate::sink::FrameSink;
use crate::slab::Slab;
use crate::transport::Transport;

mod groups;
mod send;

use groups::Multicast;

/// All datagram sockets of this replica.
#[derive(Debug)]
pub(crate) struct Datagrams {
    sockets: Slab<Datagram>,
    /// Sockets by local port, in order of opening.
    by_port: HashMap<u16, Vec<u32>, FixedState>,
    /// Sockets with a peer and a definite own address.
    connected: HashMap<FourTuple, u32, FixedState>,
    /// Sockets with something to send or to publish.
    pub(crate) dirty: Vec<u32>,
    unresolved: Vec<u32>,
    state: FixedState,
}

// structure: Datagram: a socket with its options, which are no part of their own yet
/// One datagram socket. Its records lie in the arena, so nothing is lost with a crash but this.
#[derive(Debug)]
pub(crate) struct Datagram {
    place: Place,
    /// By what right it has its port.
    grant: Grant,
    local: Endpoint,
    remote: Option<Endpoint>,
    receive: Extents,
    receive_tail: u64,
    receive_head: u64,
    published_tail: u64,
    send: Extents,
    send_head: u64,
    send_tail: u64,
    published_head: u64,
    capacity: u32,
    send_limit: u32,
    ttl: u8,
    tos: u8,
    /// `IP_MTU_DISCOVER` and `IPV6_MTU_DISCOVER`.
    discovery: MtuDiscovery,
    discovery_v6: MtuDiscovery,
    /// `IPV6_DONTFRAG`.
    whole_v6: bool,
    multicast: Multicast,
    /// How far the first datagram of the send buffer has left, if the link took a part of it.
    progress: Option<Progress>,
    /// The first datagram of the send buffer was looped back to members on this machine.
    has_looped: bool,
    /// `IPV6_UNICAST_HOPS`, if set.
    hops: Option<u8>,
    class: u8,
    ready: Ready,
    cause: Cause,
    is_dirty: bool,
    /// It waits for its session's share of a later flush.
    is_later: bool,
    /// Closed by the application, with something left to send.
    is_closing: bool,
    wants_room: bool,
}

/// Datagram sockets of one session at one port: each gets a copy of what is for all, and is looked at for what is for one.
const AT_PORT_MAX: usize = 256;
/// So many sockets at a port are looked at in the time of a unit of [`crate::commands::cost`].
const LOOKS: usize = 2;
/// What it costs to give a datagram to one more socket.
const COPY_COST: usize = 4;

/// More than this is never in a send buffer.
const SEND_MAX: u64 = 16 << 20;
/// Nor this in a receive buffer.
const AREA_MAX: u64 = 16 << 20;

impl Datagrams {
    pub(crate) fn new(seed: u64) -> Datagrams {
        let state = FixedState::with_seed(seed);
        Datagrams {
            sockets: Slab::new(),
            by_port: HashMap::with_hasher(state.clone()),
            connected: HashMap::with_hasher(state.clone()),
            dirty: Vec::new(),
            unresolved: Vec::new(),
            state,
        }
    }

    /// The socket for a datagram: the one with this peer, else one bound to this address, else one bound to any; among equals
    /// that share the port, by hash.
    fn find(&self, tuple: &FourTuple) -> Option<u32> {
        if let Some(index) = self.connected.get(tuple) {
            return Some(*index);
        }
        let sockets = self.by_port.get(&tuple.local.port)?;
        let mut best = (0, 0);
        let mut candidates = 0u32;
        for &index in sockets {
            let score = self.sockets.get(index).map_or(0, |socket| socket.score(tuple));
            match score.cmp(&best.0) {
                core::cmp::Ordering::Greater => (best, candidates) = ((score, index), 1),
                core::cmp::Ordering::Equal if score > 0 => candidates += 1,
                _ => {}
            }
        }
        if best.0 == 0 {
            return None;
        }
        if candidates < 2 {
            return Some(best.1);
        }
        let is_best = |index: u32| self.sockets.get(index).is_some_and(|socket| socket.score(tuple) == best.0);
        let last = sockets.iter().rev().copied().find(|index| is_best(*index))?;
        // Without SO_REUSEPORT the socket bound last gets it, as on Linux.
        let grant = self.sockets.get(last)?.grant;
        if !grant.reuse_port {
            return Some(last);
        }
        // Only with those of the same user it is shared.
        let shares = |index: u32| {
            let other = self.sockets.get(index).map(|socket| &socket.grant);
            is_best(index) && other.is_some_and(|other| other.reuse_port && other.is_of(grant.uid))
        };
        let candidates = sockets.iter().filter(|index| shares(**index)).count();
        let mut hasher = self.state.build_hasher();
        tuple.remote.addr.to_u64s().into_iter().for_each(|word| hasher.write_u64(word));
        hasher.write_u16(tuple.remote.port);
        let chosen = (hasher.finish() % candidates.max(1) as u64) as usize;
        sockets.iter().copied().filter(|index| shares(*index)).nth(chosen)
    }

    /// Blocks of the receive area of a session that sockets hold: first unit and log2 of the size.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (u32, (u32, u8))> + '_ {
        self.sockets.iter().flat_map(|(_, socket)| {
            let rings = [socket.receive.current, socket.receive.old].into_iter().flatten();
            rings.map(|ring| (socket.place.session, (ring.unit, ring.log2)))
        })
    }

    /// Enters the socket into the tables.
    fn index(&mut self, index: u32) {
        let Some(socket) = self.sockets.get(index) else { return };
        self.by_port.entry(socket.local.port).or_default().push(index);
        if let Some(tuple) = socket.tuple() {
            self.connected.entry(tuple).or_insert(index);
        }
    }

    /// Takes the socket out of the tables. Returns whether it was the last of its port.
    fn unindex(&mut self, index: u32) -> bool {
        let Some(socket) = self.sockets.get(index) else { return false };
        if let Some(tuple) = socket.tuple()
            && self.connected.get(&tuple) == Some(&index)
        {
            self.connected.remove(&tuple);
        }
        let Some(sockets) = self.by_port.get_mut(&socket.local.port) else { return false };
        sockets.retain(|other| *other != index);
        let last = sockets.is_empty();
        if last {
            self.by_port.remove(&socket.local.port);
        }
        last
    }

    /// Sockets at the port that cannot have it if `grant` is in force. `None`: one of them has it by a later grant.
    fn rivals(&self, grant: &Grant) -> Option<Vec<u32>> {
        let mut rivals = Vec::new();
        for &index in self.by_port.get(&grant.local.port).into_iter().flatten() {
            match self.sockets.get(index).map(|socket| &socket.grant).filter(|other| are_rivals(grant, other)) {
                Some(other) if other.granted >= grant.granted => return None,
                Some(_) => rivals.push(index),
                None => {}
            }
        }
        Some(rivals)
    }

    /// The sockets at a port.
    fn at_port(&self, port: u16) -> &[u32] {
        self.by_port.get(&port).map_or(&[], Vec::as_slice)
    }

    /// How many sockets of a session are at a port.
    fn count_at_port(&self, port: u16, session: u32) -> usize {
        let sockets = self.at_port(port).iter().filter_map(|index| self.sockets.get(*index));
        sockets.filter(|socket| socket.place.session == session).count()
    }

    /// Whether a socket has the port by this lease.
    pub(crate) fn has_lease(&self, port: u16, lease: u64) -> bool {
        let sockets = self.by_port.get(&port).into_iter().flatten();
        sockets.filter_map(|index| self.sockets.get(*index)).any(|socket| socket.grant.lease == lease)
    }

    /// Whether a socket is bound to the port.
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.by_port.contains_key(&port)
    }

    /// All of them from this index on.
    pub(crate) fn iter_from(&self, index: u32) -> impl Iterator<Item = (u32, &Datagram)> {
        self.sockets.iter_from(index)
    }

    /// It has waited for this flush.
    pub(crate) fn take_up(&mut self, index: u32) {
        if self.sockets.get_mut(index).is_some_and(|socket| core::mem::take(&mut socket.is_later)) {
            self.touch(index);
        }
    }

    fn touch(&mut self, index: u32) {
        if let Some(socket) = self.sockets.get_mut(index)
            && !socket.is_dirty
        {
            socket.is_dirty = true;
            self.dirty.push(index);
        }
    }

    /// The next call on the socket fails.
    pub(crate) fn fail(&mut self, index: u32, cause: Cause) {
        if let Some(socket) = self.sockets.get_mut(index) {
            socket.cause = cause;
            socket.ready |= Ready::ERR;
        }
        self.touch(index);
    }

    /// See `Entry::set_option`.
    pub(crate) fn set_option(&mut self, index: u32, option: SocketOption, value: u32) -> bool {
        let Some(socket) = self.sockets.get_mut(index) else { return false };
        match option {
            SocketOption::TimeToLive if (1..=255).contains(&value) => socket.ttl = value as u8,
            SocketOption::TypeOfService => socket.tos = value as u8,
            SocketOption::UnicastHops => socket.hops = u8::try_from(value).ok(),
            SocketOption::TrafficClass => socket.class = value as u8,
            SocketOption::ReceiveBuffer => socket.capacity = value.clamp(4096, 4 << 20),
            SocketOption::SendBuffer => socket.send_limit = value.clamp(4096, 4 << 20),
            SocketOption::MulticastTtl => socket.multicast.v4.ttl = value as u8,
            SocketOption::MulticastLoop => socket.multicast.v4.is_looped = value != 0,
            SocketOption::MulticastAll => socket.multicast.v4.all = value != 0,
            SocketOption::MulticastInside => socket.multicast.v4.inside = value != 0,
            SocketOption::MulticastHops => socket.multicast.v6.ttl = value as u8,
            SocketOption::MulticastLoopV6 => socket.multicast.v6.is_looped = value != 0,
            SocketOption::MulticastAllV6 => socket.multicast.v6.all = value != 0,
            SocketOption::MulticastInsideV6 => socket.multicast.v6.inside = value != 0,
            SocketOption::MtuDiscover => match MtuDiscovery::from_value(value) {
                Some(discovery) => socket.discovery = discovery,
                None => return false,
            },
            SocketOption::MtuDiscoverV6 => match MtuDiscovery::from_value(value) {
                Some(discovery) => socket.discovery_v6 = discovery,
                None => return false,
            },
            SocketOption::DontFragmentV6 => socket.whole_v6 = value != 0,
            // Each record says whether it may go to a broadcast address.
            SocketOption::Broadcast => {}
            _ => return false,
        }
        true
    }
}

impl Datagram {
    /// One that has not received or sent anything.
    fn new(place: Place, grant: Grant, local: Endpoint, remote: Option<Endpoint>, capacity: u32) -> Datagram {
        Datagram {
            place,
            grant,
            local,
            remote,
            receive: Extents::default(),
            receive_tail: 0,
            receive_head: 0,
            published_tail: 0,
            send: Extents::default(),
            send_head: 0,
            send_tail: 0,
            published_head: 0,
            capacity,
            send_limit: capacity,
            ttl: TTL,
            tos: 0,
            discovery: MtuDiscovery::default(),
            discovery_v6: MtuDiscovery::default(),
            whole_v6: false,
            multicast: Multicast::new(),
            progress: None,
            has_looped: false,
            hops: None,
            class: 0,
            ready: Ready::OUT,
            cause: Cause::None,
            is_dirty: false,
            is_later: false,
            is_closing: false,
            wants_room: false,
        }
    }

    pub(crate) const fn session(&self) -> u32 {
        self.place.session
    }

    pub(crate) const fn local(&self) -> Endpoint {
        self.local
    }

    pub(crate) const fn remote(&self) -> Option<Endpoint> {
        self.remote
    }

    pub(crate) fn v6_only(&self) -> bool {
        self.grant.v6_only && self.local.addr == Addr::ANY
    }

    /// Octets that wait for the application.
    pub(crate) const fn received(&self) -> u64 {
        self.receive_tail - self.receive_head
    }

    /// Octets that wait for the link.
    pub(crate) const fn unsent(&self) -> u64 {
        self.send_tail - self.send_head
    }

    fn tuple(&self) -> Option<FourTuple> {
        let remote = self.remote?;
        (!self.local.addr.is_unspecified()).then_some(FourTuple { local: self.local, remote })
    }

    /// Whether, and by what, datagrams to `peer` are fragmented.
    fn discovery_to(&self, peer: Addr) -> MtuDiscovery {
        if peer.is_v4() { self.discovery } else { self.discovery_v6 }
    }

    /// How well the socket fits, 0: not at all (Linux's `compute_score`).
    fn score(&self, tuple: &FourTuple) -> u32 {
        let is_v4 = tuple.local.addr.is_v4();
        let by_addr = match self.local.addr {
            addr if addr == tuple.local.addr => 3,
            Addr::V4_ANY if is_v4 => 2,
            Addr::ANY if !(is_v4 && self.grant.v6_only) => 1,
            _ => return 0,
        };
        match self.remote {
            None => by_addr,
            Some(remote) if remote == tuple.remote => by_addr + 4,
            Some(_) => 0,
        }
    }
}

impl<M: Memory> Transport<M> {
    /// [`atoll_ipc::Command::UdpOpen`]. Returns whether a socket of that name is in the slot now.
    pub(crate) fn open_datagram(
        &mut self,
        now: Instant,
        place: Place,
        lease: u64,
        local: Endpoint,
        remote: Endpoint,
    ) -> Result<(), Cause> {
        let Place { session: session_index, slot, generation } = place;
        let remote = (remote.port != 0).then_some(remote);
        let is_own = local.addr.is_unspecified() || self.ip.is_own(local.addr) || self.is_many(local);
        let is_leased = |grant: &Grant| local.port != 0 && grant.lease == lease && covers(grant, local);
        if let Occupant::Datagram(index) = self.occupant(session_index, slot, generation) {
            // connect() to another peer, or bind() to an address. Whoever of a family has the port, the socket is the same.
            let socket = self.datagrams.sockets.get(index).filter(|socket| !socket.is_closing);
            if !socket.is_some_and(|socket| is_own && is_leased(&socket.grant)) {
                return Err(Cause::Invalid);
            }
            self.rename_datagram(now, index, local, remote);
            return Ok(());
        }
        let session = self.session(session_index).ok_or(Cause::Invalid)?;
        if !session.is_vacant(slot) || !session.layout.application_slots().contains(&slot.0) {
            return Err(Cause::Invalid);
        }
        let has_room = self.datagrams.sockets.len() < self.config.datagram_sockets_max
            && self.datagrams.count_at_port(local.port, session_index) < AT_PORT_MAX
            && session.has_room_for_socket()
            && session.datagram_sockets < self.config.quota.datagram_sockets;
        let grant = self.grant(session_index, lease, Protocol::Udp, local).filter(is_leased);
        let rivals = grant.and_then(|grant| Some((grant, self.datagrams.rivals(&grant)?)));
        let (grant, rivals) = rivals.ok_or(Cause::Invalid)?;
        if !is_own {
            return Err(Cause::AddressNotAvailable);
        }
        if !has_room {
            return Err(Cause::NoBuffers);
        }
        // All at the port were looked at twice.
        self.extra_cost = self.extra_cost.saturating_add((2 * self.datagrams.at_port(local.port).len() / LOOKS) as u32);
        // They have left the port where it is granted, and what they say here is still under way, or never comes.
        rivals.into_iter().for_each(|rival| self.close_datagram(now, rival));
        let session = self.sessions.get_mut(session_index as usize).and_then(Option::as_mut).ok_or(Cause::Invalid)?;
        let capacity = self.config.datagram_capacity;
        let socket = Datagram::new(place, grant, local, remote, capacity);
        let index = self.datagrams.sockets.insert(socket);
        if !session.occupy(slot, generation, Occupant::Datagram(index)) {
            self.datagrams.sockets.remove(index);
            return Err(Cause::Invalid);
        }
        self.datagrams.index(index);
        // Who sees the socket open may send to it at once, and looks at the page to see whose port it is.
        self.page.set_port(true, local.port, true);
        if let Some(view) = session.slot(slot) {
            view.set_local(local);
            view.replica_reset(generation, SlotState::Open, capacity);
        }
        self.kick_datagram(now, index);
        self.datagrams.touch(index);
        Ok(())
    }

    /// A datagram socket is not opened: the application hears why by its slot, which it still has to close.
    pub(crate) fn refuse_datagram(&mut self, place: Place, cause: Cause) {
        self.stats.count(Stat::BadCommands);
        let Place { slot, generation, .. } = place;
        let Some(session) = self.sessions.get_mut(place.session as usize).and_then(Option::as_mut) else { return };
        if !session.layout.application_slots().contains(&slot.0) || !session.is_vacant(slot) {
            return;
        }
        let Some(view) = session.slot(slot) else { return };
        view.replica_reset(generation, SlotState::Closing, 0);
        view.set_error(cause);
        view.set_replica_flags(REPLICA_CLOSED);
        let (bell, ready) = (view.bell(), Ready::ERR | Ready::HUP | Ready::IN | Ready::OUT);
        session.push(&mut self.stats, &Event::Ready { slot, generation, ready }, Some(bell));
    }

    /// A datagram socket of a predecessor. What it has received, and is to send, lies in the arena; where, the slot says, which only its
    /// own application can falsify. Nothing in the slot is changed: its application may be looking at it.
    pub(crate) fn reopen_datagram(
        &mut self,
        now: Instant,
        place: Place,
        grant: Grant,
        local: Endpoint,
        remote: Endpoint,
    ) {
        let Some(session) = self.session(place.session) else { return };
        let Some(view) = session.slot(place.slot) else { return };
        if view.replica_generation() != place.generation || view.state() == SlotState::Free {
            return;
        }
        let (head, tail, sent) = (view.receive_head(), view.receive_tail(), view.acknowledged());
        let is_plausible = head <= tail && tail - head <= AREA_MAX;
        let receive = view.receive_extents(&session.layout).filter(|_| is_plausible).unwrap_or_default();
        let remote = (remote.port != 0).then_some(remote);
        let socket = Datagram {
            receive,
            receive_head: if is_plausible { head } else { tail },
            receive_tail: tail,
            published_tail: tail,
            send: view.send_extents(&session.layout).unwrap_or_default(),
            send_head: sent,
            send_tail: sent,
            published_head: sent,
            ready: Ready::IN | Ready::OUT,
            ..Datagram::new(place, grant, local, remote, self.config.datagram_capacity)
        };
        let index = self.datagrams.sockets.insert(socket);
        let Some(session) = self.session_mut(place.session) else { return };
        if !session.occupy_again(place.slot, place.generation, Occupant::Datagram(index)) {
            self.datagrams.sockets.remove(index);
            return;
        }
        self.datagrams.index(index);
        self.page.set_port(true, local.port, true);
        self.kick_datagram(now, index);
        self.datagrams.touch(index);
    }

    fn rename_datagram(&mut self, now: Instant, index: u32, local: Endpoint, remote: Option<Endpoint>) {
        let Some(old) = self.datagrams.sockets.get(index).map(|socket| socket.local.port) else { return };
        let was_last = self.datagrams.unindex(index);
        self.page.set_port(true, local.port, true);
        if was_last && old != local.port {
            self.page.set_port(true, old, false);
        }
        if let Some(socket) = self.datagrams.sockets.get_mut(index) {
            socket.local = local;
            socket.remote = remote;
            let place = socket.place;
            if let Some(view) = self.session(place.session).and_then(|session| session.slot(place.slot)) {
                view.set_local(local);
            }
        }
        self.datagrams.index(index);
        self.kick_datagram(now, index);
    }

    fn is_many(&self, local: Endpoint) -> bool {
        matches!(self.ip.cast(local.addr), Some(Cast::Broadcast | Cast::Multicast))
    }

    /// The application has closed the socket, or has ended: nothing more comes in, and what it wrote before leaves with the
    /// next flush.
    pub(crate) fn close_datagram(&mut self, now: Instant, index: u32) {
        self.kick_datagram(now, index);
        let Some(port) = self.datagrams.sockets.get(index).map(|socket| socket.local.port) else { return };
        if self.datagrams.unindex(index) {
            self.page.set_port(true, port, false);
        }
        if let Some(socket) = self.datagrams.sockets.get_mut(index) {
            socket.is_closing = true;
        }
        self.datagrams.touch(index);
    }

    /// Forgets a socket.
    pub(crate) fn remove_datagram(&mut self, now: Instant, index: u32) {
        let Some(port) = self.datagrams.sockets.get(index).map(|socket| socket.local.port) else { return };
        if self.datagrams.unindex(index) {
            self.page.set_port(true, port, false);
        }
        let Some(mut socket) = self.datagrams.sockets.remove(index) else { return };
        let left = socket.multicast.leave_all(now, &mut self.ip);
        let place = socket.place;
        let Some(session) = self.sessions.get_mut(place.session as usize).and_then(Option::as_mut) else { return };
        socket.receive.release_all(&session.pool, &session.links);
        session.vacate(place.slot, false);
        session.groups = session.groups.saturating_sub(left);
        let event = Event::SlotDone { slot: place.slot, generation: place.generation };
        session.push(&mut self.stats, &event, Some(0));
        let id = session.id;
        self.drop_requests(id, Subject::Slot(place.slot));
        if !self.cm.is_authority(socket.grant.local.port) {
            // What was shown for it.
            self.drop_requests(id, Subject::Lease(socket.grant.lease));
        }
    }

    /// A datagram for us, or for all or a group. `false`: nobody has the port.
    pub(crate) fn handle_datagram(&mut self, tuple: &FourTuple, cast: Cast, payload: &[u8]) -> bool {
        let looks = self.datagrams.at_port(tuple.local.port).len() / LOOKS;
        self.frames_cost = self.frames_cost.saturating_add(looks as u32);
        if cast != Cast::Unicast {
            let all = self.datagrams.find_all(tuple, cast);
            if all.is_empty() {
                self.stats.count(Stat::DatagramsDropped);
            }
            self.frames_cost = self.frames_cost.saturating_add((all.len() * COPY_COST) as u32);
            for index in all {
                self.store_datagram(index, tuple.remote, cast, payload);
            }
            return true;
        }
        let Some(index) = self.datagrams.find(tuple) else {
            self.stats.count(Stat::DatagramsDropped);
            return false;
        };
        self.store_datagram(index, tuple.remote, cast, payload);
        true
    }

    /// A datagram is for this socket: the work is its session's.
    fn store_datagram(&mut self, index: u32, peer: Endpoint, cast: Cast, payload: &[u8]) {
        let session = self.datagrams.sockets.get(index).and_then(|socket| self.session(socket.place.session));
        let Some(id) = session.map(|session| session.id) else { return };
        let before = self.work();
        self.mark(Work::Datagrams(id));
        self.put_datagram(index, peer, cast, payload);
        self.mark(before);
    }

    fn put_datagram(&mut self, index: u32, peer: Endpoint, cast: Cast, payload: &[u8]) {
        let Some(socket) = self.datagrams.sockets.get_mut(index) else { return };
        let session = self.sessions.get(socket.place.session as usize).and_then(Option::as_ref);
        let Some(session) = session else { return };
        let flags = if cast == Cast::Broadcast { RecordFlags::BROADCAST } else { RecordFlags::NONE };
        let stored = u32::try_from(payload.len()).ok().filter(|len| *len <= DATAGRAM_MAX).and_then(|len| {
            let end = socket.receive_tail + padded_len(len);
            socket.make_room(session, end)?;
            let head = atoll_udp::encode(&Record { len, peer, flags });
            let area = session.layout.receive_area;
            socket.receive.pieces(socket.receive_tail, RECORD_LEN)?.write(&session.arena, area, &head);
            let at = socket.receive_tail + RECORD_LEN as u64;
            socket.receive.pieces(at, payload.len())?.write(&session.arena, area, payload);
            socket.receive_tail = end;
            socket.ready |= Ready::IN;
            Some(())
        });
        let stat = if stored.is_some() { Stat::DatagramsIn } else { Stat::DatagramsDropped };
        self.stats.count(stat);
        self.datagrams.touch(index);
    }

    /// The application's lines have changed.
    pub(crate) fn kick_datagram(&mut self, now: Instant, index: u32) {
        // Who has closed it, or has lost the port, sends nothing more.
        let Some(socket) = self.datagrams.sockets.get_mut(index).filter(|socket| !socket.is_closing) else { return };
        let place = socket.place;
        let Some(session) = self.sessions.get(place.session as usize).and_then(Option::as_ref) else { return };
        let Some(slot) = session.slot(place.slot) else { return };
        if slot.app_generation() != place.generation {
            self.stats.count(Stat::BadCommands);
            return;
        }
        let tail = slot.send_tail();
        if tail < socket.send_tail || tail - socket.send_head > SEND_MAX {
            self.stats.count(Stat::BadCommands);
            self.remove_datagram(now, index);
            return;
        }
        if tail > socket.send_tail {
            socket.send = slot.send_extents(&session.layout).unwrap_or_default();
            socket.send_tail = tail;
            socket.wants_room |= (tail - socket.published_head) * 3 >= u64::from(socket.send_limit) * 2;
        }
        socket.take_head(&slot);
        if socket.receive.release(&session.pool, &session.links, socket.receive_head, socket.receive_tail) {
            slot.set_receive_extents(&socket.receive);
        }
        self.datagrams.touch(index);
    }

    /// ICMP says that nobody is there: the next call on a connected socket fails (udp(7)).
    pub(crate) fn network_error_of_datagram(&mut self, now: Instant, error: &NetworkError) {
        let Some(index) = self.datagrams.find(&error.tuple) else { return };
        let Some(socket) = self.datagrams.sockets.get_mut(index) else { return };
        if let ErrorKind::FragNeeded { mtu } = error.kind {
            // Nothing proves that the socket has sent it; who lies makes datagrams leave in fragments of 552 octets, or 1280 of IPv6.
            self.ip.learn_path_mtu(now, error.tuple.remote.addr, mtu);
            if socket.discovery_to(error.tuple.remote.addr) == MtuDiscovery::Dont {
                return;
            }
        }
        if socket.remote != Some(error.tuple.remote) {
            return;
        }
        socket.cause = match error.kind {
            ErrorKind::Unreachable { code: code::PORT } => Cause::ConnectionRefused,
            ErrorKind::FragNeeded { .. } => Cause::MessageTooLong,
            _ => return,
        };
        socket.ready |= Ready::ERR | Ready::IN | Ready::OUT;
        self.datagrams.touch(index);
    }

    pub(crate) fn touch_unresolved_datagrams(&mut self) {
        let mut unresolved = core::mem::take(&mut self.datagrams.unresolved);
        for index in unresolved.drain(..) {
            self.datagrams.touch(index);
        }
        self.datagrams.unresolved = unresolved;
    }

    /// Sends and publishes for every socket that has something to.
    pub(crate) fn flush_datagrams(&mut self, now: Instant, out: &mut impl FrameSink<M>) {
        let mut dirty = core::mem::take(&mut self.datagrams.dirty);
        for index in dirty.drain(..) {
            let Some(socket) = self.datagrams.sockets.get_mut(index) else { continue };
            socket.is_dirty = false;
            let place = socket.place;
            if let Some(session) = self.session(place.session) {
                self.mark(Work::Datagrams(session.id));
            }
            self.send_datagrams(now, index, out);
            let Some(socket) = self.datagrams.sockets.get_mut(index) else { continue };
            if socket.is_closing {
                if socket.send_head >= socket.send_tail {
                    self.remove_datagram(now, index);
                }
                continue;
            }
            let place = socket.place;
            if let Some(session) = self.sessions.get_mut(place.session as usize).and_then(Option::as_mut)
                && let Some(slot) = Slot::new(&session.arena, &session.layout, place.slot)
            {
                let ready = socket.publish(&slot);
                let bell = slot.bell();
                if !ready.is_empty() {
                    let event = Event::Ready { slot: place.slot, generation: place.generation, ready };
                    session.push(&mut self.stats, &event, Some(bell));
                }
            }
        }
        dirty.append(&mut self.datagrams.dirty);
        self.datagrams.dirty = dirty;
        self.mark(Work::Nothing);
    }
}

impl Datagram {
    /// Takes the application's reading position, if it is one.
    fn take_head<M: Memory>(&mut self, slot: &Slot<'_, M>) {
        let head = slot.receive_head();
        if (self.receive_head..=self.published_tail).contains(&head) {
            self.receive_head = head;
        }
    }

    /// Room up to `end`, or nothing: a datagram is stored whole or not at all.
    fn make_room<M: Memory>(&mut self, session: &crate::session::Session<M>, end: u64) -> Option<()> {
        let slot = session.slot(self.place.slot)?;
        if slot.app_generation() == self.place.generation {
            self.take_head(&slot);
        }
        // As on Linux, one datagram always fits into an empty buffer.
        if end - self.receive_head > u64::from(self.capacity) && self.receive_tail > self.receive_head {
            return None;
        }
        let before = self.receive;
        let size_max = (self.capacity.max(DATAGRAM_MAX + 64) as usize).next_power_of_two();
        let (head, tail) = (self.receive_head, self.receive_tail);
        let links = &session.links;
        self.receive.release(&session.pool, links, head, tail);
        let pool = &session.receive_pool();
        // As for connections: the second ring takes the whole capacity, because there is no third.
        let end_wanted = match self.receive.current {
            None => end,
            Some(current) => {
                let room = current.base.max(head) + current.size() as u64;
                if end <= room { end } else { end.max(tail + u64::from(self.capacity)) }
            }
        };
        let room = self.receive.reserve(pool, links, head, tail, end_wanted, size_max);
        session.note_touched();
        if self.receive != before {
            slot.set_receive_extents(&self.receive);
        }
        (room >= end).then_some(())
    }

    fn publish<M: Memory>(&mut self, slot: &Slot<'_, M>) -> Ready {
        if self.receive_tail != self.published_tail {
            self.published_tail = self.receive_tail;
            slot.set_receive_tail(self.receive_tail);
        }
        if self.send_head != self.published_head {
            self.published_head = self.send_head;
            slot.set_acknowledged(self.send_head);
            if self.wants_room && (self.send_tail - self.send_head) * 3 < u64::from(self.send_limit) * 2 {
                self.wants_room = false;
                self.ready |= Ready::OUT;
            }
        }
        if self.ready.contains(Ready::ERR) {
            slot.set_error(core::mem::take(&mut self.cause));
        }
        core::mem::take(&mut self.ready)
    }
}

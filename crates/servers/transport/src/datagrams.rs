//! The datagram sockets, and the search for the one that gets a datagram: udp(7).

use alloc::vec::Vec;

use atoll_base::{Endpoint, FourTuple, Slab};
use atoll_connmgr::are_rivals;
use atoll_ip::Cast;
use atoll_ipc::command::Protocol;
use atoll_ipc::datagram::Fault;
use atoll_ipc::lease::Grant;
use atoll_ipc::page::Stat;
use atoll_ipc::{Cause, Details, Device, Memory, Ready, SocketOption};
use core::hash::{BuildHasher, Hasher};
use foldhash::quality::FixedState;
use hashbrown::HashMap;

use crate::applications::Applications;
use crate::session::Place;
use crate::stats::Stats;

mod groups;
mod socket;

use socket::Kicked;

pub(crate) use socket::Datagram;

/// A datagram that has arrived.
pub(crate) struct Arrived<'a> {
    pub(crate) protocol: Protocol,
    pub(crate) tuple: FourTuple,
    /// The device over which it counts as having come.
    pub(crate) device: Device,
    pub(crate) cast: Cast,
    pub(crate) details: Details,
    pub(crate) payload: &'a [u8],
}

/// What datagrams name a socket by: its protocol, and its port or identifier.
pub(crate) type Name = (Protocol, u16);

/// All datagram sockets of this replica.
#[derive(Debug)]
pub(crate) struct Datagrams {
    sockets: Slab<Datagram>,
    /// The sockets by protocol and local port, in order of opening.
    by_port: HashMap<Name, Vec<u32>, FixedState>,
    /// The sockets of UDP with a peer and a definite own address.
    connected: HashMap<FourTuple, u32, FixedState>,
    /// The sockets with something to send or to publish.
    dirty: Vec<u32>,
    /// The sockets whose link is full, or whose neighbour is being resolved.
    unresolved: Vec<u32>,
    state: FixedState,
}

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

    /// Returns the socket for a datagram that has come over `device`: the one with this peer, else one bound
    /// to this address, else one bound to the unspecified address; of two at one address, the one that is
    /// bound to the device. Among equals that share the port, a hash decides.
    pub(crate) fn find(&self, protocol: Protocol, tuple: &FourTuple, device: Device) -> Option<u32> {
        if protocol == Protocol::Udp
            && let Some(index) = self.connected.get(tuple)
            && self.sockets.get(*index).is_some_and(|socket| socket.grant().device.takes(device))
        {
            return Some(*index);
        }
        let sockets = self.by_port.get(&(protocol, tuple.local.port))?;
        let mut best = (0, 0);
        let mut candidates = 0u32;
        for &index in sockets {
            let score = self.sockets.get(index).map_or(0, |socket| socket.score(tuple, device));
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
        let is_best =
            |index: u32| self.sockets.get(index).is_some_and(|socket| socket.score(tuple, device) == best.0);
        let last = sockets.iter().rev().copied().find(|index| is_best(*index))?;
        // Without SO_REUSEPORT the socket bound last gets it, as on Linux.
        let grant = *self.sockets.get(last)?.grant();
        if !grant.reuse_port {
            return Some(last);
        }
        // The port is shared only with sockets of the same user.
        let shares = |index: u32| {
            let other = self.sockets.get(index).map(|socket| socket.grant());
            is_best(index) && other.is_some_and(|other| other.reuse_port && other.is_of(grant.uid))
        };
        let candidates = sockets.iter().filter(|index| shares(**index)).count();
        let mut hasher = self.state.build_hasher();
        tuple.remote.addr.to_u64s().into_iter().for_each(|word| hasher.write_u64(word));
        hasher.write_u16(tuple.remote.port);
        let chosen = (hasher.finish() % candidates.max(1) as u64) as usize;
        sockets.iter().copied().filter(|index| shares(*index)).nth(chosen)
    }

    /// Returns the raw sockets that get an ICMP message of type `kind` that has come over `device`.
    pub(crate) fn find_raw(&self, tuple: &FourTuple, device: Device, kind: u8) -> Vec<u32> {
        let takes = |index: &u32| {
            let socket = self.sockets.get(*index);
            socket.is_some_and(|socket| socket.score(tuple, device) > 0 && socket.options().takes(kind))
        };
        self.at_port((Protocol::Raw, tuple.local.port)).iter().copied().filter(takes).collect()
    }

    /// Returns the blocks of the receive area of a session that sockets hold: first unit and log2 of the
    /// size.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (u32, (u32, u8))> + '_ {
        self.sockets
            .iter()
            .flat_map(|(_, socket)| socket.blocks().map(|block| (socket.place().session, block)))
    }

    /// Adds the socket to the tables.
    pub(crate) fn index(&mut self, index: u32) {
        let Some(socket) = self.sockets.get(index) else { return };
        self.by_port.entry(socket.name()).or_default().push(index);
        if let Some(tuple) = socket.tuple() {
            self.connected.entry(tuple).or_insert(index);
        }
    }

    /// Takes the socket out of the tables. Returns whether it was the last one of its port.
    pub(crate) fn unindex(&mut self, index: u32) -> bool {
        let Some(socket) = self.sockets.get(index) else { return false };
        if let Some(tuple) = socket.tuple()
            && self.connected.get(&tuple) == Some(&index)
        {
            self.connected.remove(&tuple);
        }
        let Some(sockets) = self.by_port.get_mut(&socket.name()) else { return false };
        sockets.retain(|other| *other != index);
        let last = sockets.is_empty();
        if last {
            self.by_port.remove(&socket.name());
        }
        last
    }

    /// Returns the sockets at the port that cannot have it beside `grant`; `None` if one of them has a later
    /// grant.
    pub(crate) fn rivals(&self, grant: &Grant) -> Option<Vec<u32>> {
        let mut rivals = Vec::new();
        for &index in self.by_port.get(&(grant.protocol, grant.local.port)).into_iter().flatten() {
            match self
                .sockets
                .get(index)
                .map(|socket| socket.grant())
                .filter(|other| are_rivals(grant, other))
            {
                Some(other) if other.granted >= grant.granted => return None,
                Some(_) => rivals.push(index),
                None => {}
            }
        }
        Some(rivals)
    }

    /// Returns the sockets at a port.
    pub(crate) fn at_port(&self, name: Name) -> &[u32] {
        self.by_port.get(&name).map_or(&[], Vec::as_slice)
    }

    /// Returns how many sockets of a session are at a port.
    pub(crate) fn count_at_port(&self, name: Name, session: u32) -> usize {
        let sockets = self.at_port(name).iter().filter_map(|index| self.sockets.get(*index));
        sockets.filter(|socket| socket.place().session == session).count()
    }

    /// Returns whether a socket has the port by this lease.
    pub(crate) fn has_lease(&self, grant: &Grant) -> bool {
        let lease = grant.lease;
        let sockets = self.at_port((grant.protocol, grant.local.port)).iter();
        sockets.filter_map(|index| self.sockets.get(*index)).any(|socket| socket.grant().lease == lease)
    }

    /// Returns whether a socket of UDP is bound to the port.
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.by_port.contains_key(&(Protocol::Udp, port))
    }

    /// Returns all sockets from this index on.
    pub(crate) fn iter_from(&self, index: u32) -> impl Iterator<Item = (u32, &Datagram)> {
        self.sockets.iter_from(index)
    }

    /// Continues a socket that has waited for this flush.
    pub(crate) fn take_up(&mut self, index: u32) {
        if self.sockets.get_mut(index).is_some_and(Datagram::take_up) {
            self.touch(index);
        }
    }

    /// Puts the socket on the list for the next flush.
    pub(crate) fn touch(&mut self, index: u32) {
        if self.sockets.get_mut(index).is_some_and(Datagram::mark_dirty) {
            self.dirty.push(index);
        }
    }

    /// Takes the list of the sockets that this flush is about. The caller gives it back by
    /// [`Datagrams::put_back_dirty`] when it is empty.
    pub(crate) fn take_dirty(&mut self) -> Vec<u32> {
        core::mem::take(&mut self.dirty)
    }

    /// Keeps what became dirty meanwhile for the next flush. `list` is kept for its memory.
    pub(crate) fn put_back_dirty(&mut self, mut list: Vec<u32>) {
        list.append(&mut self.dirty);
        self.dirty = list;
    }

    /// Begins the socket's turn in this flush. Returns the place of its slot.
    pub(crate) fn begin_turn(&mut self, index: u32) -> Option<Place> {
        let socket = self.sockets.get_mut(index)?;
        socket.clear_dirty();
        Some(socket.place())
    }

    /// Keeps a socket whose link is full, or whose neighbour is being resolved, for another try.
    pub(crate) fn wait(&mut self, index: u32) {
        self.unresolved.push(index);
    }

    /// Returns whether any socket has something to send or to publish.
    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Lets sockets try again whose link was full, or whose neighbour was being resolved.
    pub(crate) fn touch_unresolved(&mut self) {
        let mut unresolved = core::mem::take(&mut self.unresolved);
        for index in unresolved.drain(..) {
            self.touch(index);
        }
        self.unresolved = unresolved;
    }

    /// Makes the next call on the socket fail. `ready` is what the socket is ready for besides.
    pub(crate) fn fail(&mut self, index: u32, cause: Cause, ready: Ready) {
        if let Some(socket) = self.sockets.get_mut(index) {
            socket.fail(cause, ready);
        }
        self.touch(index);
    }

    /// Sets an option, as `Entry::set_option`.
    pub(crate) fn set_option(&mut self, index: u32, option: SocketOption, value: u32) -> bool {
        self.sockets.get_mut(index).is_some_and(|socket| socket.set_option(option, value))
    }

    // ---- sockets ----

    /// Returns a socket.
    pub(crate) fn get(&self, index: u32) -> Option<&Datagram> {
        self.sockets.get(index)
    }

    /// Returns a socket, mutably. Its names are changed by [`Datagrams::rename`].
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut Datagram> {
        self.sockets.get_mut(index)
    }

    /// Returns the number of sockets.
    pub(crate) fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Adds a socket that no datagram finds yet: see [`Datagrams::index`].
    pub(crate) fn insert(&mut self, socket: Datagram) -> u32 {
        self.sockets.insert(socket)
    }

    /// Removes a socket that is in no table.
    pub(crate) fn withdraw(&mut self, index: u32) -> Option<Datagram> {
        self.sockets.remove(index)
    }

    /// Gives the socket other ends. Returns the port that no socket has any more, if there is one.
    pub(crate) fn rename(&mut self, index: u32, local: Endpoint, remote: Option<Endpoint>) -> Option<u16> {
        let old = self.sockets.get(index)?.local().port;
        let was_last = self.unindex(index);
        if let Some(socket) = self.sockets.get_mut(index) {
            socket.rename(local, remote);
        }
        self.index(index);
        (was_last && old != local.port).then_some(old)
    }

    /// Closes a socket: no datagram finds it any more. Returns whether it was the last one of its port.
    pub(crate) fn close(&mut self, index: u32) -> bool {
        let was_last = self.unindex(index);
        if let Some(socket) = self.sockets.get_mut(index) {
            socket.close();
        }
        self.touch(index);
        was_last
    }

    /// Stores a datagram for a socket, or drops it if there is no room.
    pub(crate) fn put<M: Memory>(
        &mut self,
        index: u32,
        (applications, stats): (&Applications<M>, &mut Stats),
        arrived: &Arrived<'_>,
    ) {
        let Some(socket) = self.sockets.get_mut(index) else { return };
        let Some(session) = applications.get(socket.place().session) else { return };
        let is_stored = socket.put(session, arrived);
        stats.count(if is_stored { Stat::DatagramsIn } else { Stat::DatagramsDropped });
        self.touch(index);
    }

    /// Stores a network error about what a socket has sent to `peer`, or drops it if there is no room.
    pub(crate) fn put_fault<M: Memory>(
        &mut self,
        index: u32,
        applications: &Applications<M>,
        fault: (&Fault, &[u8]),
        peer: Endpoint,
    ) {
        let Some(socket) = self.sockets.get_mut(index) else { return };
        let Some(session) = applications.get(socket.place().session) else { return };
        socket.put_fault(session, fault, peer);
        self.touch(index);
    }

    /// Reads the positions that the application has changed. Returns `false` if the socket is to be removed,
    /// because they cannot be true.
    pub(crate) fn kick<M: Memory>(
        &mut self,
        index: u32,
        applications: &Applications<M>,
        stats: &mut Stats,
    ) -> bool {
        // A socket that was closed, or has lost the port, sends nothing more.
        let Some(socket) = self.sockets.get_mut(index).filter(|socket| !socket.is_closing()) else {
            return true;
        };
        let place = socket.place();
        let Some(session) = applications.get(place.session) else { return true };
        let Some(slot) = session.slot(place.slot) else { return true };
        let kicked = socket.kick(session, &slot);
        match kicked {
            Kicked::Taken => self.touch(index),
            Kicked::Stale | Kicked::Implausible => stats.count(Stat::BadCommands),
        }
        kicked != Kicked::Implausible
    }
}

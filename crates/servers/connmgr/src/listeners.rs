//! Keeps the listeners and their addresses: the part of the CM that is in every transport server, because a
//! SYN is answered at once. Which acceptor gets a connection is decided in another part, which may be in
//! another process (`place`).

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use atoll_base::{Addr, Endpoint, Instant, SessionId};
use atoll_ipc::lease::Grant;
use atoll_ipc::{Cause, Device};

use crate::messages::{ConnectionId, Directive, Listen, ListenerId, Stage, Syn, SynVerdict};
use crate::place::Place;
use crate::ports::{Held, are_rivals};

/// All listeners of this replica.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// The listeners. Places are dense; a closed listener leaves a hole that the next one fills under another
    /// serial number.
    table: Vec<Option<Listener>>,
    /// The place of each listener by port, address, whether `::` means IPv6 alone, which is false for other
    /// addresses, and device.
    by_address: BTreeMap<Key, u32>,
    by_lease: BTreeMap<u64, u32>,
    /// The leases with which each session listens.
    by_session: Held,
    /// The places of closed listeners.
    holes: Vec<u32>,
    /// The number of listeners that are bound to a device. Mostly there is none.
    on_devices: usize,
    serial: u32,
    backlog_max: u32,
    /// The greatest number of listening sockets of one session.
    sockets_max: usize,
    pub(crate) place: Place,
}

/// Port, address, whether `::` means IPv6 alone, and device of a listener.
pub(crate) type Key = (u16, Addr, bool, Device);

/// One address and port, on one device or on all, with all sockets that listen there: one, or several that
/// share the port (`SO_REUSEPORT`).
#[derive(Debug)]
struct Listener {
    serial: u32,
    local: Endpoint,
    v6_only: bool,
    device: Device,
    sockets: Vec<Socket>,
    /// The listener's place in the chooser's table, if that is in this process.
    choice: u32,
    /// The number of connections in the SYN queue.
    embryonic: u32,
    /// The number of connections in the accept queue, waiting or offered.
    unclaimed: u32,
    /// The sum of the sockets' backlogs. A backlog of 0 still lets one connection wait.
    backlog: u32,
    defer_accept: u16,
}

#[derive(Debug)]
struct Socket {
    lease: u64,
    grant: Grant,
    backlog: u32,
    holders: BTreeSet<SessionId>,
}

/// One listener, for a list of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerView {
    /// The address, which may be the unspecified one, and the port.
    pub local: Endpoint,
    /// Whether a listener at `::` takes only IPv6.
    pub v6_only: bool,
    /// The number of connections in the SYN queue.
    pub embryonic: u32,
    /// The number of connections in the accept queue.
    pub unclaimed: u32,
    /// The bound of the accept queue.
    pub backlog: u32,
    /// The session that opened the listener first and still holds it.
    pub session: Option<SessionId>,
}

/// The number of half-open connections that a listener may have whatever its backlog is: the smallest default
/// of Linux's `tcp_max_syn_backlog`. The SYN-ACK of these is repeated, and that of a cookie is not.
const SYN_QUEUE_MIN: u32 = 128;
/// The most sockets that share one address and port (`SO_REUSEPORT`).
const SHARERS_MAX: usize = 4096;

impl Listeners {
    pub(crate) fn new(backlog_max: u32, sockets_max: usize, place: Place) -> Listeners {
        Listeners {
            table: Vec::new(),
            by_address: BTreeMap::new(),
            by_lease: BTreeMap::new(),
            by_session: Held::default(),
            holes: Vec::new(),
            on_devices: 0,
            serial: 0,
            backlog_max,
            sockets_max,
            place,
        }
    }

    pub(crate) fn listen(
        &mut self,
        listen: &Listen,
        grant: &Grant,
        is_authority: bool,
        directives: &mut VecDeque<Directive>,
    ) -> Result<ListenerId, Cause> {
        let backlog = listen.backlog.min(self.backlog_max);
        let is_known = self.find(listen.session, listen.lease).is_some();
        if !is_known && self.by_session.count(listen.session) >= self.sockets_max {
            return Err(Cause::NoBuffers);
        }
        if let Some(&index) = self.by_lease.get(&listen.lease) {
            let listener = self.at_mut(index).ok_or(Cause::Invalid)?;
            if listener.local != listen.local {
                return Err(Cause::Invalid);
            }
            if let Some(socket) = listener.sockets.iter_mut().find(|socket| socket.lease == listen.lease) {
                socket.holders.insert(listen.session);
                (socket.backlog, socket.grant) = (backlog, *grant);
            }
            listener.defer_accept = listen.defer_accept;
            listener.sum_backlogs();
            let id = ListenerId { index, serial: listener.serial };
            self.by_session.insert(listen.session, listen.lease);
            return Ok(id);
        }
        // Linux checks again at `listen()`, because `SO_REUSEADDR` lets two sockets bind. Where this replica
        // is not the authority of the port, a socket with an earlier grant has only not left yet.
        let rivals: Vec<(u32, Grant)> = self.rivals(grant).collect();
        if rivals.iter().any(|(_, other)| is_authority || other.granted >= grant.granted) {
            return Err(Cause::AddressInUse);
        }
        for (index, other) in rivals {
            self.expel(index, other.lease, directives);
        }
        let socket =
            Socket { lease: listen.lease, grant: *grant, backlog, holders: BTreeSet::from([listen.session]) };
        // The grant decides, not the request: a `::` without IPv4 leaves that to others.
        let key = key(listen.local, grant.v6_only, grant.device);
        let index = match self.by_address.get(&key) {
            Some(&index) if self.at(index).is_some_and(|other| other.sockets.len() >= SHARERS_MAX) => {
                return Err(Cause::NoBuffers);
            }
            Some(&index) => index,
            None => self.open(listen.local, (grant.v6_only, grant.device), directives),
        };
        self.by_lease.insert(listen.lease, index);
        self.by_session.insert(listen.session, listen.lease);
        let listener = self.table.get_mut(index as usize).and_then(Option::as_mut).ok_or(Cause::Invalid)?;
        listener.sockets.push(socket);
        listener.defer_accept = listen.defer_accept;
        listener.sum_backlogs();
        let id = ListenerId { index, serial: listener.serial };
        let at = (listener.local, listener.v6_only, listener.device);
        listener.choice = self.place.opened(id, listen.lease, at);
        Ok(id)
    }

    fn open(
        &mut self,
        local: Endpoint,
        (v6_only, device): (bool, Device),
        directives: &mut VecDeque<Directive>,
    ) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        let listener = Listener {
            serial: self.serial,
            local,
            v6_only,
            device,
            sockets: Vec::new(),
            choice: 0,
            embryonic: 0,
            unclaimed: 0,
            backlog: 0,
            defer_accept: 0,
        };
        if !self.has_port(local.port) {
            directives.push_back(Directive::PortTaken { port: local.port, taken: true });
        }
        let index = self.holes.pop().map_or(self.table.len(), |hole| hole as usize);
        if index == self.table.len() {
            self.table.push(None);
        }
        self.table[index] = Some(listener);
        // Cannot truncate: there is one listener per address, port and device.
        let index = index as u32;
        self.by_address.insert(key(local, v6_only, device), index);
        self.on_devices += usize::from(device != Device::None);
        index
    }

    /// Returns the sockets that listen at the port and cannot do so beside `grant`, with the listener's
    /// place.
    fn rivals<'a>(&'a self, grant: &'a Grant) -> impl Iterator<Item = (u32, Grant)> + 'a {
        let listeners = self.by_address.range(all_at(grant.local.port)).map(|(_, &index)| index);
        let sockets = listeners.filter_map(|index| Some((index, self.at(index)?)));
        let grants =
            sockets.flat_map(|(index, listener)| listener.sockets.iter().map(move |s| (index, s.grant)));
        grants.filter(|(_, other)| are_rivals(grant, other))
    }

    pub(crate) fn is_overtaken(&self, grant: &Grant) -> bool {
        self.rivals(grant).any(|(_, other)| other.granted > grant.granted)
    }

    /// Returns the grant by which the session listens.
    pub(crate) fn grant(&self, session: SessionId, lease: u64) -> Option<Grant> {
        let listener = self.at(*self.by_lease.get(&lease)?)?;
        let socket = listener.sockets.iter().find(|socket| socket.lease == lease)?;
        socket.holders.contains(&session).then_some(socket.grant)
    }

    /// Removes the socket from all sessions that hold it.
    fn expel(&mut self, index: u32, lease: u64, directives: &mut VecDeque<Directive>) {
        let socket =
            self.at(index).and_then(|listener| listener.sockets.iter().find(|socket| socket.lease == lease));
        let holders = socket.map(|socket| socket.holders.clone()).unwrap_or_default();
        holders.into_iter().for_each(|session| self.leave(index, session, lease, directives));
    }

    pub(crate) fn release(&mut self, session: SessionId, lease: u64, directives: &mut VecDeque<Directive>) {
        let Some(&index) = self.by_lease.get(&lease) else {
            self.by_session.remove(session, lease);
            return;
        };
        self.leave(index, session, lease, directives);
    }

    /// Returns one of the leases with which the session listens.
    pub(crate) fn held(&self, session: SessionId) -> Option<u64> {
        self.by_session.first(session)
    }

    /// Removes `session` from the holders of a listener's socket.
    fn leave(&mut self, index: u32, session: SessionId, lease: u64, directives: &mut VecDeque<Directive>) {
        self.by_session.remove(session, lease);
        let Some(listener) = self.table.get_mut(index as usize).and_then(Option::as_mut) else { return };
        let (id, choice) = (ListenerId { index, serial: listener.serial }, listener.choice);
        for socket in listener.sockets.iter_mut().filter(|socket| socket.lease == lease) {
            if socket.holders.remove(&session) {
                self.place.forget(id, choice, session, socket.lease);
            }
        }
        for socket in listener.sockets.extract_if(.., |socket| socket.holders.is_empty()) {
            self.by_lease.remove(&socket.lease);
            self.place.left(id, choice, socket.lease);
        }
        listener.sum_backlogs();
        if listener.sockets.is_empty() {
            self.close(index, directives);
        }
    }

    /// Closes a listener. As on Linux, connections that no application has accepted end with it.
    fn close(&mut self, index: u32, directives: &mut VecDeque<Directive>) {
        let Some(listener) = self.table.get_mut(index as usize).and_then(Option::take) else { return };
        self.holes.push(index);
        self.place.closed(ListenerId { index, serial: listener.serial }, listener.choice);
        self.by_address.remove(&key(listener.local, listener.v6_only, listener.device));
        self.on_devices -= usize::from(listener.device != Device::None);
        if !self.has_port(listener.local.port) {
            directives.push_back(Directive::PortTaken { port: listener.local.port, taken: false });
        }
    }

    pub(crate) fn add_acceptor(&mut self, now: Instant, session: SessionId, lease: u64) -> bool {
        let Some((id, choice)) = self.find(session, lease).and_then(|id| self.with_choice(id)) else {
            return false;
        };
        self.place.register(now, id, choice, session, lease);
        true
    }

    pub(crate) fn remove_acceptor(&mut self, now: Instant, session: SessionId, lease: u64) -> bool {
        let Some((id, choice)) = self.find(session, lease).and_then(|id| self.with_choice(id)) else {
            return false;
        };
        self.place.deregister(now, id, choice, session, lease)
    }

    /// Handles a question of the naive accept: see [`crate::ConnMgr::handle_ask`].
    pub(crate) fn ask(&mut self, now: Instant, session: SessionId, lease: u64, takes: bool) -> bool {
        let known = self.find(session, lease).and_then(|id| self.with_choice(id));
        known.is_some_and(|(_, choice)| self.place.asked(now, choice, session, lease, takes))
    }

    pub(crate) fn waits_long(&mut self, id: ListenerId) {
        if let Some((_, choice)) = self.with_choice(id) {
            self.place.waits_long(choice);
        }
    }

    #[inline]
    pub(crate) fn handle_syn(&mut self, syn: &Syn) -> SynVerdict {
        let Some(index) = self.index_at(syn.local, syn.device) else { return SynVerdict::Refused };
        let is_crowded = self.place.is_crowded();
        let Some(listener) = self.at_mut(index) else { return SynVerdict::Refused };
        let id = ListenerId { index, serial: listener.serial };
        // The CM cannot be notified of a new connection now, so none is begun.
        if is_crowded {
            return SynVerdict::Full;
        }
        let has_place = listener.embryonic < listener.backlog.max(SYN_QUEUE_MIN);
        if syn.by_cookie {
            // Nobody repeats the SYN-ACK of a cookie, and a client that waits for the server to speak sends
            // nothing more. So a connection that finds the accept queue full waits in the SYN queue, as if
            // its SYN had been remembered.
            if listener.is_accept_queue_full() && !has_place {
                return SynVerdict::Full;
            }
            listener.embryonic += 1;
            return SynVerdict::Accept { listener: id, defer_accept: 0 };
        }
        if listener.is_accept_queue_full() {
            return SynVerdict::Full;
        }
        if !has_place {
            // As on Linux, a cookie is sent at once, so that every SYN of a burst is answered.
            return SynVerdict::Cookie { listener: id };
        }
        listener.embryonic += 1;
        SynVerdict::Accept { listener: id, defer_accept: listener.defer_accept }
    }

    /// Returns the place of the listener for an address of this stack and what has come over `device`. A
    /// listener at that very address comes first, then one at the unspecified address of its family, then one
    /// at that of both families. Of two at one address, one that is bound to the device comes first
    /// (inet_lookup_listener, compute_score).
    #[inline]
    pub(crate) fn index_at(&self, local: Endpoint, device: Device) -> Option<u32> {
        let (port, addr) = (local.port, local.addr);
        let of_family = if addr.is_v4() { (port, Addr::V4_ANY, false) } else { (port, Addr::ANY, true) };
        let at = [(port, addr, false), of_family, (port, Addr::ANY, false)];
        if self.on_devices == 0 {
            return at.iter().find_map(|key| self.on_device(*key, Device::None));
        }
        let devices: &[Device] = match device {
            // Nobody knows over which device it has come.
            Device::None => &[Device::Loopback, Device::Link, Device::None],
            Device::Loopback => &[Device::Loopback, Device::None],
            Device::Link => &[Device::Link, Device::None],
        };
        at.iter().find_map(|key| devices.iter().find_map(|device| self.on_device(*key, *device)))
    }

    /// Returns the listener that takes what is for an address.
    pub(crate) fn id_at(&self, local: Endpoint, device: Device) -> Option<ListenerId> {
        let index = self.index_at(local, device)?;
        Some(ListenerId { index, serial: self.at(index)?.serial })
    }

    #[inline]
    fn on_device(&self, (port, addr, v6_only): (u16, Addr, bool), device: Device) -> Option<u32> {
        self.by_address.get(&(port, addr, v6_only, device)).copied()
    }

    /// Returns the device that a listener's sockets are bound to.
    pub(crate) fn device_of(&self, id: ListenerId) -> Device {
        self.get(id).map_or(Device::None, |listener| listener.device)
    }

    #[inline]
    pub(crate) fn may_establish(&self, id: ListenerId) -> bool {
        // If the listener is gone, `handle_established` resets the connection.
        self.get(id).is_none_or(|listener| !listener.is_accept_queue_full() && !self.place.is_crowded())
    }

    pub(crate) fn handle_established(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        id: ListenerId,
        directives: &mut VecDeque<Directive>,
    ) {
        let Some(listener) = self.get_mut(id) else {
            directives.push_back(Directive::Reset { connection });
            return;
        };
        listener.embryonic = listener.embryonic.saturating_sub(1);
        listener.unclaimed += 1;
        let choice = listener.choice;
        self.place.established(now, id, choice, connection);
    }

    /// Reports everything that is known here to a new CM in another process.
    pub(crate) fn tell_again(&mut self, now: Instant) {
        for (index, listener) in (0..).zip(&self.table) {
            let Some(listener) = listener else { continue };
            let id = ListenerId { index, serial: listener.serial };
            for socket in &listener.sockets {
                let at = (listener.local, listener.v6_only, listener.device);
                self.place.opened(id, socket.lease, at);
            }
        }
        if let Place::Apart(remote) = &mut self.place {
            remote.tell_again(now);
        }
    }

    pub(crate) fn is_open(&self, id: ListenerId) -> bool {
        self.get(id).is_some()
    }

    /// Notes that a connection belongs to an application now.
    pub(crate) fn count_claimed(&mut self, id: ListenerId) {
        if let Some(listener) = self.get_mut(id) {
            listener.unclaimed = listener.unclaimed.saturating_sub(1);
        }
    }

    /// Handles the end of an offer without a claim, by the claim time-out or because the session has ended.
    pub(crate) fn handle_returned(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        id: ListenerId,
        (session, lease): (SessionId, u64),
        timed_out: bool,
        directives: &mut VecDeque<Directive>,
    ) {
        if let Some((id, choice)) = self.with_choice(id) {
            self.place.returned(now, id, choice, connection, (session, lease), timed_out);
        } else {
            self.place.gone(0, connection, Stage::Offered { session, lease });
            directives.push_back(Directive::Reset { connection });
        }
    }

    pub(crate) fn handle_gone(&mut self, connection: ConnectionId, id: ListenerId, stage: Stage) {
        let choice = match self.get_mut(id) {
            Some(listener) => {
                match stage {
                    Stage::Embryonic => listener.embryonic = listener.embryonic.saturating_sub(1),
                    Stage::Waiting | Stage::Offered { .. } => {
                        listener.unclaimed = listener.unclaimed.saturating_sub(1);
                    }
                }
                Some(listener.choice)
            }
            None => None,
        };
        self.place.gone(choice.unwrap_or(u32::MAX), connection, stage);
    }

    pub(crate) fn find(&self, session: SessionId, lease: u64) -> Option<ListenerId> {
        let &index = self.by_lease.get(&lease)?;
        let listener = self.at(index)?;
        let holds = |socket: &Socket| socket.lease == lease && socket.holders.contains(&session);
        listener.sockets.iter().any(holds).then_some(ListenerId { index, serial: listener.serial })
    }

    pub(crate) fn has(&self, id: ListenerId) -> bool {
        self.get(id).is_some()
    }

    pub(crate) fn set_defer_accept(&mut self, id: ListenerId, seconds: u16) {
        if let Some(listener) = self.get_mut(id) {
            listener.defer_accept = seconds;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = ListenerView> + '_ {
        self.by_address.values().filter_map(|&index| self.at(index)).map(|listener| ListenerView {
            local: listener.local,
            v6_only: listener.v6_only && listener.local.addr == Addr::ANY,
            embryonic: listener.embryonic,
            unclaimed: listener.unclaimed,
            backlog: listener.backlog,
            session: listener.sockets.first().and_then(|socket| socket.holders.first().copied()),
        })
    }

    #[cfg(test)]
    pub(crate) fn by_address(&self, local: Endpoint) -> Option<ListenerId> {
        let &index = self.by_address.get(&key(local, false, Device::None))?;
        self.at(index).map(|listener| ListenerId { index, serial: listener.serial })
    }

    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.by_address.range(all_at(port)).next().is_some()
    }

    fn at(&self, index: u32) -> Option<&Listener> {
        self.table.get(index as usize)?.as_ref()
    }

    fn at_mut(&mut self, index: u32) -> Option<&mut Listener> {
        self.table.get_mut(index as usize)?.as_mut()
    }

    /// Returns a listener that still exists, and its place in the chooser's table.
    fn with_choice(&self, id: ListenerId) -> Option<(ListenerId, u32)> {
        self.get(id).map(|listener| (id, listener.choice))
    }

    /// Returns the sessions that hold the listener's sockets; a session that holds two comes twice.
    pub(crate) fn holders(&self, id: ListenerId) -> impl Iterator<Item = SessionId> + '_ {
        let sockets = self.get(id).into_iter().flat_map(|listener| &listener.sockets);
        sockets.flat_map(|socket| socket.holders.iter().copied())
    }

    fn get(&self, id: ListenerId) -> Option<&Listener> {
        self.at(id.index).filter(|listener| listener.serial == id.serial)
    }

    fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.at_mut(id.index).filter(|listener| listener.serial == id.serial)
    }
}

/// Returns the key of a listener in the table by address.
pub(crate) fn key(local: Endpoint, v6_only: bool, device: Device) -> Key {
    (local.port, local.addr, v6_only && local.addr == Addr::ANY, device)
}

/// Returns the range of all keys of a port.
fn all_at(port: u16) -> core::ops::RangeInclusive<Key> {
    (port, Addr::from_octets([0; 16]), false, Device::None)
        ..=(port, Addr::from_octets([0xff; 16]), true, Device::Link)
}

impl Listener {
    /// Returns whether the accept queue is full. As in Linux's `sk_acceptq_is_full`, a backlog of n holds n +
    /// 1 connections.
    fn is_accept_queue_full(&self) -> bool {
        self.unclaimed > self.backlog
    }

    fn sum_backlogs(&mut self) {
        self.backlog = self.sockets.iter().map(|socket| socket.backlog).fold(0, u32::saturating_add);
    }
}

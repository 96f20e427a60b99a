//! Who listens, who accepts, and who gets the next connection?

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use atoll_base::{Addr, Endpoint, Instant, SessionId};
use atoll_ipc::Cause;
use atoll_ipc::balance::{PeerBody, PeerMessage};

use crate::balance::{AcceptorView, Acceptors, Balancer, PeerOutput, Reach, Reported};
use crate::messages::{ConnectionId, Directive, Listen, ListenerId, Offer, Stage, Syn, SynVerdict};
use crate::ports::overlap;

/// All listeners of this replica.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// Dense; a closed listener leaves a hole that the next one fills under another serial number.
    table: Vec<Option<Listener>>,
    /// Port, address, and whether `::` means IPv6 alone (elsewhere always false).
    by_address: BTreeMap<(u16, Addr, bool), u32>,
    by_lease: BTreeMap<u64, u32>,
    serial: u32,
    backlog_max: u32,
    pub(crate) balancer: Balancer,
}

/// One address and port with everybody who listens there: one socket, or several that share the port (`SO_REUSEPORT`).
#[derive(Debug)]
struct Listener {
    serial: u32,
    local: Endpoint,
    v6_only: bool,
    sockets: Vec<Socket>,
    acceptors: Acceptors,
    /// Established connections that are offered to nobody, oldest first.
    waiting: VecDeque<ConnectionId>,
    /// Connections in the SYN queue.
    embryonic: u32,
    /// SYNs that found the SYN queue full since it was half empty.
    overflows: u32,
    /// Connections in the accept queue: waiting or offered.
    unclaimed: u32,
    /// Sum of the sockets' backlogs.
    backlog: u32,
    defer_accept: u16,
}

#[derive(Debug)]
struct Socket {
    lease: u64,
    reuse_port: bool,
    backlog: u32,
    holders: BTreeSet<SessionId>,
}

/// One listener, for a list of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerView {
    /// Address (perhaps any) and port.
    pub local: Endpoint,
    /// At `::`: for IPv6 alone.
    pub v6_only: bool,
    /// Connections in the SYN queue.
    pub embryonic: u32,
    /// Connections in the accept queue.
    pub unclaimed: u32,
    /// Bound of the accept queue.
    pub backlog: u32,
    /// Acceptors registered now.
    pub acceptors: u32,
    /// The session that opened it first and still holds it.
    pub session: Option<SessionId>,
}

/// So many SYNs beyond the SYN queue are forgotten before cookies are given out.
const OVERFLOWS_MAX: u32 = 64;

impl Listeners {
    pub(crate) fn new(backlog_max: u32, balancer: Balancer) -> Listeners {
        Listeners {
            table: Vec::new(),
            by_address: BTreeMap::new(),
            by_lease: BTreeMap::new(),
            serial: 0,
            backlog_max,
            balancer,
        }
    }

    pub(crate) fn listen(
        &mut self,
        listen: &Listen,
        directives: &mut VecDeque<Directive>,
    ) -> Result<ListenerId, Cause> {
        let backlog = listen.backlog.clamp(1, self.backlog_max);
        if let Some(&index) = self.by_lease.get(&listen.lease) {
            let listener = self.at_mut(index).ok_or(Cause::Invalid)?;
            if listener.local != listen.local {
                return Err(Cause::Invalid);
            }
            if let Some(socket) = listener.sockets.iter_mut().find(|socket| socket.lease == listen.lease) {
                socket.holders.insert(listen.session);
                socket.backlog = backlog;
            }
            listener.defer_accept = listen.defer_accept;
            listener.sum_backlogs();
            return Ok(ListenerId { index, serial: listener.serial });
        }
        if self.is_taken(listen) {
            return Err(Cause::AddressInUse);
        }
        let socket = Socket {
            lease: listen.lease,
            reuse_port: listen.reuse_port,
            backlog,
            holders: BTreeSet::from([listen.session]),
        };
        let key = key(listen.local, listen.v6_only);
        let index = match self.by_address.get(&key) {
            Some(&index) => index,
            None => self.open(listen.local, listen.v6_only, directives),
        };
        self.by_lease.insert(listen.lease, index);
        let listener = self.at_mut(index).ok_or(Cause::Invalid)?;
        listener.sockets.push(socket);
        listener.defer_accept = listen.defer_accept;
        listener.sum_backlogs();
        Ok(ListenerId { index, serial: listener.serial })
    }

    fn open(&mut self, local: Endpoint, v6_only: bool, directives: &mut VecDeque<Directive>) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        let listener = Listener {
            serial: self.serial,
            local,
            v6_only,
            sockets: Vec::new(),
            acceptors: Acceptors::default(),
            waiting: VecDeque::new(),
            embryonic: 0,
            overflows: 0,
            unclaimed: 0,
            backlog: 1,
            defer_accept: 0,
        };
        if !self.has_port(local.port) {
            directives.push_back(Directive::PortTaken { port: local.port, taken: true });
        }
        let index = match self.table.iter().position(Option::is_none) {
            Some(hole) => hole,
            None => {
                self.table.push(None);
                self.table.len() - 1
            }
        };
        self.table[index] = Some(listener);
        // Cannot truncate: one listener per address and port.
        let index = index as u32;
        self.by_address.insert(key(local, v6_only), index);
        index
    }

    /// Whether another socket listens on an overlapping address and does not share the port. (Linux checks again at `listen()`,
    /// because `SO_REUSEADDR` lets two sockets bind.)
    fn is_taken(&self, listen: &Listen) -> bool {
        let port = listen.local.port;
        self.by_address.range(all_at(port)).filter_map(|(_, &index)| self.at(index)).any(|other| {
            let overlap = overlap((other.local.addr, other.v6_only), (listen.local.addr, listen.v6_only));
            overlap && !(listen.reuse_port && other.sockets.iter().all(|socket| socket.reuse_port))
        })
    }

    pub(crate) fn release(&mut self, session: SessionId, lease: u64, directives: &mut VecDeque<Directive>) {
        let Some(&index) = self.by_lease.get(&lease) else { return };
        self.leave(index, session, Some(lease), directives);
    }

    pub(crate) fn session_gone(&mut self, session: SessionId, directives: &mut VecDeque<Directive>) {
        for index in 0..self.table.len() as u32 {
            self.leave(index, session, None, directives);
        }
    }

    /// `session` leaves the socket `lease`, or all sockets, of a listener.
    fn leave(&mut self, index: u32, session: SessionId, lease: Option<u64>, directives: &mut VecDeque<Directive>) {
        let Some(listener) = self.table.get_mut(index as usize).and_then(Option::as_mut) else { return };
        let is_meant = |number: u64| lease.is_none_or(|lease| lease == number);
        listener.acceptors.forget(|of, lease| of == session && is_meant(lease));
        for socket in listener.sockets.iter_mut().filter(|socket| is_meant(socket.lease)) {
            socket.holders.remove(&session);
        }
        for socket in listener.sockets.extract_if(.., |socket| socket.holders.is_empty()) {
            self.by_lease.remove(&socket.lease);
            listener.acceptors.forget(|_, lease| lease == socket.lease);
        }
        listener.sum_backlogs();
        if listener.sockets.is_empty() {
            self.close(index, directives);
        }
    }

    /// As on Linux, connections that nobody has accepted end with the listener.
    fn close(&mut self, index: u32, directives: &mut VecDeque<Directive>) {
        let Some(listener) = self.table.get_mut(index as usize).and_then(Option::take) else { return };
        directives.extend(listener.waiting.iter().map(|&connection| Directive::Reset { connection }));
        self.by_address.remove(&key(listener.local, listener.v6_only));
        if !self.has_port(listener.local.port) {
            directives.push_back(Directive::PortTaken { port: listener.local.port, taken: false });
        }
    }

    pub(crate) fn add_acceptor(
        &mut self,
        now: Instant,
        session: SessionId,
        lease: u64,
        directives: &mut VecDeque<Directive>,
    ) -> bool {
        let Some(id) = self.find(session, lease) else { return false };
        let Some((listener, balancer)) = self.with_balancer(id) else { return false };
        listener.acceptors.register(now, session, lease, id.index, balancer);
        for _ in 0..listener.waiting.len() {
            let Some(connection) = listener.waiting.pop_front() else { break };
            listener.assign(now, id, connection, balancer, directives);
        }
        true
    }

    pub(crate) fn remove_acceptor(&mut self, now: Instant, session: SessionId, lease: u64) -> bool {
        let Some((index, listener, balancer)) = self.of_lease(lease) else { return false };
        listener.acceptors.deregister(now, session, lease, index, balancer)
    }

    /// The acceptor did not claim in time. Returns whether it was registered.
    pub(crate) fn time_out_acceptor(&mut self, now: Instant, session: SessionId, lease: u64) -> bool {
        let Some((index, listener, balancer)) = self.of_lease(lease) else { return false };
        listener.acceptors.timed_out(session, lease);
        listener.acceptors.deregister(now, session, lease, index, balancer)
    }

    #[inline]
    pub(crate) fn handle_syn(&mut self, syn: &Syn) -> SynVerdict {
        let Some(index) = self.index_at(syn.local) else { return SynVerdict::Refused };
        let Some(listener) = self.at_mut(index) else { return SynVerdict::Refused };
        let id = ListenerId { index, serial: listener.serial };
        if listener.is_accept_queue_full() {
            return SynVerdict::Full;
        }
        if syn.by_cookie {
            listener.embryonic += 1;
            return SynVerdict::Accept { listener: id, defer_accept: 0 };
        }
        if listener.embryonic >= listener.backlog {
            listener.overflows = listener.overflows.saturating_add(1);
            // A crowd that comes at once is told to come again, because what a cookie opens has no SYN-ACK that is repeated.
            return if listener.overflows > OVERFLOWS_MAX {
                SynVerdict::Cookie { listener: id }
            } else {
                SynVerdict::Full
            };
        }
        if listener.embryonic <= listener.backlog / 2 {
            listener.overflows = 0;
        }
        listener.embryonic += 1;
        SynVerdict::Accept { listener: id, defer_accept: listener.defer_accept }
    }

    /// The listener at an address of this stack, by index: one at that very address goes before one at any of its family, and that
    /// one before one at any of both.
    #[inline]
    pub(crate) fn index_at(&self, local: Endpoint) -> Option<u32> {
        let (port, addr) = (local.port, local.addr);
        let of_family = if addr.is_v4() { (port, Addr::V4_ANY, false) } else { (port, Addr::ANY, true) };
        [(port, addr, false), of_family, (port, Addr::ANY, false)]
            .iter()
            .find_map(|key| self.by_address.get(key))
            .copied()
    }

    #[inline]
    pub(crate) fn may_establish(&self, id: ListenerId) -> bool {
        // If the listener is gone, the established connection will be told.
        self.get(id).is_none_or(|listener| !listener.is_accept_queue_full())
    }

    pub(crate) fn handle_established(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        id: ListenerId,
        directives: &mut VecDeque<Directive>,
    ) {
        let Some((listener, balancer)) = self.with_balancer(id) else {
            directives.push_back(Directive::Reset { connection });
            return;
        };
        listener.embryonic = listener.embryonic.saturating_sub(1);
        listener.unclaimed += 1;
        listener.assign(now, id, connection, balancer, directives);
    }

    pub(crate) fn handle_claimed(
        &mut self,
        now: Instant,
        id: ListenerId,
        session: SessionId,
        lease: u64,
        offered_at: Instant,
    ) -> bool {
        let Some((listener, balancer)) = self.with_balancer(id) else { return false };
        listener.unclaimed = listener.unclaimed.saturating_sub(1);
        let is_measured = listener.acceptors.has_choice();
        let Some(acceptor) = listener.acceptors.get_mut(session, lease) else { return false };
        acceptor.claimed(now, offered_at, is_measured);
        if is_measured {
            listener.acceptors.stir(now, id.index, balancer);
        }
        is_measured
    }

    pub(crate) fn handle_closed(&mut self, now: Instant, session: SessionId, lease: u64, offered_at: Instant) {
        let Some((index, listener, balancer)) = self.of_lease(lease) else { return };
        let Some(acceptor) = listener.acceptors.get_mut(session, lease) else { return };
        acceptor.closed(now, offered_at, balancer.rules());
        listener.acceptors.stir(now, index, balancer);
    }

    pub(crate) fn handle_returned(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        id: ListenerId,
        session: SessionId,
        lease: u64,
        directives: &mut VecDeque<Directive>,
    ) {
        let Some((listener, balancer)) = self.with_balancer(id) else {
            directives.push_back(Directive::Reset { connection });
            return;
        };
        listener.settle(session, lease);
        listener.assign(now, id, connection, balancer, directives);
    }

    pub(crate) fn handle_gone(&mut self, connection: ConnectionId, id: ListenerId, stage: Stage) {
        let Some(listener) = self.get_mut(id) else { return };
        match stage {
            Stage::Embryonic => listener.embryonic = listener.embryonic.saturating_sub(1),
            Stage::Waiting => {
                listener.unclaimed = listener.unclaimed.saturating_sub(1);
                listener.waiting.retain(|&waiting| waiting != connection);
            }
            Stage::Offered { session, lease } => {
                listener.unclaimed = listener.unclaimed.saturating_sub(1);
                listener.settle(session, lease);
            }
        }
    }

    pub(crate) fn find(&self, session: SessionId, lease: u64) -> Option<ListenerId> {
        let &index = self.by_lease.get(&lease)?;
        let listener = self.at(index)?;
        let holds = |socket: &Socket| socket.lease == lease && socket.holders.contains(&session);
        listener.sockets.iter().any(holds).then_some(ListenerId { index, serial: listener.serial })
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
            acceptors: u32::try_from(listener.acceptors.registered()).unwrap_or(u32::MAX),
            session: listener.sockets.first().and_then(|socket| socket.holders.first().copied()),
        })
    }

    /// The acceptors of all listeners, each with its listener's address.
    pub(crate) fn acceptors(&mut self, now: Instant) -> Vec<(Endpoint, AcceptorView)> {
        let balancer = &self.balancer;
        let views = |listener: &mut Listener| {
            let local = listener.local;
            listener.acceptors.views(now, balancer).into_iter().map(move |view| (local, view))
        };
        self.table.iter_mut().flatten().flat_map(views).collect()
    }

    /// Another CM speaks.
    pub(crate) fn handle_peer(&mut self, now: Instant, message: &PeerMessage, directives: &mut VecDeque<Directive>) {
        let Some(is_new) = self.balancer.admit(message) else { return };
        if is_new {
            self.table.iter_mut().flatten().for_each(|listener| listener.acceptors.forget_peer(message.from));
        }
        let lease = match &message.body {
            PeerBody::Offer(offer) => offer.lease,
            PeerBody::Report(report) => report.lease,
        };
        let Some((index, listener, balancer)) = self.of_lease(lease) else {
            self.balancer.count_dropped();
            return;
        };
        match &message.body {
            PeerBody::Offer(offer) => listener.acceptors.handle_offer(now.min(message.sent_at), message.from, offer),
            PeerBody::Report(report) => {
                match listener.acceptors.handle_report(now, message.from, report, index, balancer) {
                    Reported::Unknown => balancer.count_dropped(),
                    Reported::Noted => {}
                    Reported::Removed => {
                        let (session, lease) = (report.session, report.lease);
                        directives.push_back(Directive::AcceptorRemoved { session, lease });
                    }
                }
            }
        }
    }

    /// The next message to other CMs: see [`crate::ConnMgr::poll_peer`].
    pub(crate) fn poll_peer(&mut self, now: Instant, reach: Reach, last: bool) -> Option<PeerOutput> {
        if self.balancer.is_due(now, last) {
            for index in self.balancer.take_active() {
                let listener = self.table.get_mut(index as usize).and_then(Option::as_mut);
                if let Some(listener) = listener {
                    listener.acceptors.tell(now, index, reach, last, &mut self.balancer);
                }
            }
        }
        self.balancer.poll()
    }

    #[cfg(test)]
    pub(crate) fn by_address(&self, local: Endpoint) -> Option<ListenerId> {
        let &index = self.by_address.get(&key(local, false))?;
        self.at(index).map(|listener| ListenerId { index, serial: listener.serial })
    }

    fn has_port(&self, port: u16) -> bool {
        self.by_address.range(all_at(port)).next().is_some()
    }

    fn at(&self, index: u32) -> Option<&Listener> {
        self.table.get(index as usize)?.as_ref()
    }

    fn at_mut(&mut self, index: u32) -> Option<&mut Listener> {
        self.table.get_mut(index as usize)?.as_mut()
    }

    fn with_balancer(&mut self, id: ListenerId) -> Option<(&mut Listener, &mut Balancer)> {
        let listener = self.table.get_mut(id.index as usize)?.as_mut();
        Some((listener.filter(|listener| listener.serial == id.serial)?, &mut self.balancer))
    }

    fn of_lease(&mut self, lease: u64) -> Option<(u32, &mut Listener, &mut Balancer)> {
        let &index = self.by_lease.get(&lease)?;
        Some((index, self.table.get_mut(index as usize)?.as_mut()?, &mut self.balancer))
    }

    fn get(&self, id: ListenerId) -> Option<&Listener> {
        self.at(id.index).filter(|listener| listener.serial == id.serial)
    }

    fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.at_mut(id.index).filter(|listener| listener.serial == id.serial)
    }
}

/// Where a listener stands in the table.
fn key(local: Endpoint, v6_only: bool) -> (u16, Addr, bool) {
    (local.port, local.addr, v6_only && local.addr == Addr::ANY)
}

/// Every key of a port.
fn all_at(port: u16) -> core::ops::RangeInclusive<(u16, Addr, bool)> {
    (port, Addr::from_octets([0; 16]), false)..=(port, Addr::from_octets([0xff; 16]), true)
}

impl Listener {
    /// As Linux's `sk_acceptq_is_full`: a backlog of n holds n + 1 connections.
    fn is_accept_queue_full(&self) -> bool {
        self.unclaimed > self.backlog
    }

    fn sum_backlogs(&mut self) {
        self.backlog = self.sockets.iter().map(|socket| socket.backlog).fold(0, u32::saturating_add).max(1);
    }

    /// To an acceptor, or to those who wait for one.
    fn assign(
        &mut self,
        now: Instant,
        listener: ListenerId,
        connection: ConnectionId,
        balancer: &mut Balancer,
        directives: &mut VecDeque<Directive>,
    ) {
        match self.acceptors.assign(now, listener.index, balancer) {
            Some((session, lease)) => {
                directives.push_back(Directive::Offer(Offer { connection, listener, session, lease }));
            }
            None => self.waiting.push_back(connection),
        }
    }

    /// An offer to this acceptor has come to an end without a claim.
    fn settle(&mut self, session: SessionId, lease: u64) {
        if let Some(acceptor) = self.acceptors.get_mut(session, lease) {
            acceptor.returned();
        }
    }
}

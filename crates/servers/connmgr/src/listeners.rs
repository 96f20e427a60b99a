//! Which listener gets a SYN, and which acceptor gets the connection? Pika's acceptors (P4) with local round robin, bounded by
//! the backlog. listen(2).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use atoll_base::{Endpoint, SessionId};
use atoll_ipc::command::SocketOption;

/// Linux's default `net.core.somaxconn`: a larger backlog is cut to it. listen(2).
const BACKLOG_MAX: u32 = 4096;

/// The listeners of one replica.
#[derive(Debug, Default)]
pub struct Listeners {
    listeners: BTreeMap<u64, Listener>,
    /// Leases that listen on a port.
    ports: BTreeMap<u16, Vec<u64>>,
}

/// One listening socket, as replicated to this replica (N2).
#[derive(Debug)]
pub struct Listener {
    /// Where it listens; address 0: everywhere.
    pub local: Endpoint,
    /// Connections that may wait, established or not.
    pub backlog: u32,
    /// Seconds that a connection may wait for its first octets before it is offered (`TCP_DEFER_ACCEPT`); 0: none.
    pub defer_accept: u16,
    /// Options that its connections inherit.
    pub options: Vec<(SocketOption, u32)>,
    holders: Vec<SessionId>,
    acceptors: Vec<SessionId>,
    next: usize,
    /// Handshakes that are not complete.
    half_open: u32,
    /// Established connections without acceptor.
    waiting: VecDeque<u32>,
    /// Connections offered, not yet claimed.
    offered: u32,
}

/// What a socket that begins to listen says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenRequest {
    /// Identity of the socket.
    pub lease: u64,
    /// Where it listens.
    pub local: Endpoint,
    /// As given to listen(2).
    pub backlog: u32,
    /// `TCP_DEFER_ACCEPT`.
    pub defer_accept: u16,
}

/// Why a SYN gets no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Nobody listens: RST.
    NoListener,
    /// The backlog is full: dropped, the peer tries again.
    Full,
}

/// What becomes of an established connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Established {
    /// Offer it to this session.
    Offer(SessionId),
    /// It waits for an acceptor.
    Wait,
    /// The listener is gone: reset it.
    Reset,
}

impl Listeners {
    /// Adds a listener, or a holder of it; a repeated request changes the backlog. Returns whether the port had no listener.
    pub fn listen(&mut self, session: SessionId, request: ListenRequest) -> bool {
        let backlog = request.backlog.clamp(1, BACKLOG_MAX);
        let listener = self.listeners.entry(request.lease).or_insert_with(|| Listener {
            local: request.local,
            backlog,
            defer_accept: request.defer_accept,
            options: Vec::new(),
            holders: Vec::new(),
            acceptors: Vec::new(),
            next: 0,
            half_open: 0,
            waiting: VecDeque::new(),
            offered: 0,
        });
        listener.backlog = backlog;
        if !listener.holders.contains(&session) {
            listener.holders.push(session);
        }
        let port = self.ports.entry(listener.local.port).or_default();
        if !port.contains(&request.lease) {
            port.push(request.lease);
        }
        port.len() == 1
    }

    /// The listener of a lease.
    pub fn get(&self, lease: u64) -> Option<&Listener> {
        self.listeners.get(&lease)
    }

    /// Sets an option that later connections inherit.
    pub fn set_option(&mut self, session: SessionId, lease: u64, option: SocketOption, value: u32) {
        let Some(listener) = self.held(session, lease) else { return };
        if option == SocketOption::DeferAccept {
            listener.defer_accept = u16::try_from(value).unwrap_or(u16::MAX);
        }
        listener.options.retain(|(known, _)| *known != option);
        listener.options.push((option, value));
    }

    /// Which listener gets a SYN to `local` from `remote`; the handshake counts against its backlog from now on.
    ///
    /// The most specific address wins; listeners that share a port (`SO_REUSEPORT`) are chosen by the peer's port, as long as they
    /// have acceptors at all.
    pub fn handle_syn(&mut self, local: Endpoint, remote: Endpoint) -> Result<u64, Refused> {
        let leases = self.ports.get(&local.port).ok_or(Refused::NoListener)?;
        let listeners = &self.listeners;
        let of = |wanted: u32, with_acceptors: bool| {
            let fits = move |l: &Listener| l.local.addr == wanted && !(with_acceptors && l.acceptors.is_empty());
            leases.iter().copied().filter(move |lease| listeners.get(lease).is_some_and(fits))
        };
        let addr = if of(local.addr, false).next().is_some() { local.addr } else { 0 };
        let spread = |count: usize| (usize::from(remote.port) ^ (remote.addr as usize)).checked_rem(count);
        let chosen = match spread(of(addr, true).count()) {
            Some(n) => of(addr, true).nth(n),
            None => spread(of(addr, false).count()).and_then(|n| of(addr, false).nth(n)),
        };
        let lease = chosen.ok_or(Refused::NoListener)?;
        let listener = self.listeners.get_mut(&lease).ok_or(Refused::NoListener)?;
        let waiting = listener.waiting.len() as u32 + listener.offered;
        if listener.half_open >= listener.backlog || waiting > listener.backlog {
            return Err(Refused::Full);
        }
        listener.half_open += 1;
        Ok(lease)
    }

    /// A handshake came to nothing.
    pub fn handshake_failed(&mut self, lease: u64) {
        if let Some(listener) = self.listeners.get_mut(&lease) {
            listener.half_open = listener.half_open.saturating_sub(1);
        }
    }

    /// A handshake is complete: who gets `connection`?
    pub fn handle_established(&mut self, lease: u64, connection: u32) -> Established {
        let Some(listener) = self.listeners.get_mut(&lease) else { return Established::Reset };
        listener.half_open = listener.half_open.saturating_sub(1);
        listener.assign(connection)
    }

    /// An offer was not claimed in time (P4): the acceptor is removed until it asks again. Who gets the connection now?
    pub fn handle_claim_timeout(&mut self, lease: u64, session: SessionId, connection: u32) -> Established {
        let Some(listener) = self.listeners.get_mut(&lease) else { return Established::Reset };
        listener.remove_acceptor(session);
        listener.offered = listener.offered.saturating_sub(1);
        listener.assign(connection)
    }

    /// An offer was claimed, or the offered connection ended.
    pub fn offer_ended(&mut self, lease: u64) {
        if let Some(listener) = self.listeners.get_mut(&lease) {
            listener.offered = listener.offered.saturating_sub(1);
        }
    }

    /// An offer could not be made (the session has no free slot): the connection waits, first in line.
    pub fn offer_failed(&mut self, lease: u64, connection: u32) {
        if let Some(listener) = self.listeners.get_mut(&lease) {
            listener.offered = listener.offered.saturating_sub(1);
            listener.waiting.push_front(connection);
        }
    }

    /// A waiting connection ended.
    pub fn waiting_ended(&mut self, lease: u64, connection: u32) {
        if let Some(listener) = self.listeners.get_mut(&lease) {
            listener.waiting.retain(|waiting| *waiting != connection);
        }
    }

    /// ACCEPT-CONNECTION (P4). Returns the waiting connections that are offered to the session now.
    pub fn accept_connection(&mut self, session: SessionId, lease: u64) -> Vec<u32> {
        let Some(listener) = self.held(session, lease) else { return Vec::new() };
        if !listener.acceptors.contains(&session) {
            listener.acceptors.push(session);
        }
        let offered: Vec<u32> = listener.waiting.drain(..).collect();
        listener.offered += offered.len() as u32;
        offered
    }

    /// The session wants no more connections of the listener.
    pub fn stop_accepting(&mut self, session: SessionId, lease: u64) {
        if let Some(listener) = self.listeners.get_mut(&lease) {
            listener.remove_acceptor(session);
        }
    }

    /// The session closed the listener. Returns the connections to reset, if nobody else holds it, and the port if it has no
    /// listener any more.
    pub fn release(&mut self, session: SessionId, lease: u64) -> (Vec<u32>, Option<u16>) {
        let Some(listener) = self.listeners.get_mut(&lease) else { return (Vec::new(), None) };
        listener.holders.retain(|holder| *holder != session);
        listener.remove_acceptor(session);
        if !listener.holders.is_empty() {
            return (Vec::new(), None);
        }
        let port = listener.local.port;
        let waiting = self.listeners.remove(&lease).map_or_else(Vec::new, |listener| listener.waiting.into());
        let mut free = None;
        if let Some(leases) = self.ports.get_mut(&port) {
            leases.retain(|id| *id != lease);
            if leases.is_empty() {
                self.ports.remove(&port);
                free = Some(port);
            }
        }
        (waiting, free)
    }

    /// The leases that `session` listens with.
    pub fn held_by(&self, session: SessionId) -> Vec<u64> {
        self.listeners.iter().filter(|(_, l)| l.holders.contains(&session)).map(|(lease, _)| *lease).collect()
    }

    /// All listeners.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Listener)> {
        self.listeners.iter().map(|(lease, listener)| (*lease, listener))
    }

    fn held(&mut self, session: SessionId, lease: u64) -> Option<&mut Listener> {
        self.listeners.get_mut(&lease).filter(|listener| listener.holders.contains(&session))
    }
}

impl Listener {
    /// Connections that are established and not claimed.
    pub fn queue_len(&self) -> u32 {
        self.waiting.len() as u32 + self.offered
    }

    /// One of the sessions that hold it.
    pub fn holder(&self) -> Option<SessionId> {
        self.holders.first().copied()
    }

    fn assign(&mut self, connection: u32) -> Established {
        if self.acceptors.is_empty() {
            self.waiting.push_back(connection);
            return Established::Wait;
        }
        self.next = (self.next + 1) % self.acceptors.len();
        self.offered += 1;
        Established::Offer(self.acceptors[self.next])
    }

    fn remove_acceptor(&mut self, session: SessionId) {
        self.acceptors.retain(|acceptor| *acceptor != session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    fn request(lease: u64, addr: u32, backlog: u32) -> ListenRequest {
        ListenRequest { lease, local: Endpoint::new(addr, 80), backlog, defer_accept: 0 }
    }

    fn peer(port: u16) -> Endpoint {
        Endpoint::new(9, port)
    }

    #[test]
    fn acceptors_take_turns() {
        let mut cm = Listeners::default();
        cm.listen(A, request(1, 0, 10));
        cm.listen(B, request(1, 0, 10));
        assert!(cm.accept_connection(A, 1).is_empty() && cm.accept_connection(B, 1).is_empty());
        let got: Vec<_> = (0..4)
            .map(|n| {
                assert_eq!(cm.handle_syn(Endpoint::new(5, 80), peer(n)), Ok(1));
                cm.handle_established(1, n.into())
            })
            .collect();
        use Established::Offer;
        assert_eq!(got, [Offer(B), Offer(A), Offer(B), Offer(A)]);
    }

    #[test]
    fn without_acceptors_connections_wait_for_the_first() {
        let mut cm = Listeners::default();
        cm.listen(A, request(1, 0, 10));
        assert_eq!(cm.handle_syn(Endpoint::new(5, 80), peer(1)), Ok(1));
        assert_eq!(cm.handle_established(1, 42), Established::Wait);
        assert_eq!(cm.accept_connection(A, 1), [42]);
        assert_eq!(cm.accept_connection(A, 1), []);
    }

    #[test]
    fn an_acceptor_that_lets_a_connection_time_out_is_passed_over() {
        let mut cm = Listeners::default();
        cm.listen(A, request(1, 0, 10));
        cm.listen(B, request(1, 0, 10));
        cm.accept_connection(A, 1);
        cm.accept_connection(B, 1);
        assert_eq!(cm.handle_established(1, 7), Established::Offer(B));
        assert_eq!(cm.handle_claim_timeout(1, B, 7), Established::Offer(A));
        assert_eq!(cm.handle_claim_timeout(1, A, 7), Established::Wait);
        assert_eq!(cm.accept_connection(B, 1), [7]);
    }

    #[test]
    fn the_backlog_bounds_handshakes_and_waiting_connections() {
        let mut cm = Listeners::default();
        cm.listen(A, request(1, 0, 2));
        let local = Endpoint::new(5, 80);
        assert!(cm.handle_syn(local, peer(1)).is_ok() && cm.handle_syn(local, peer(2)).is_ok());
        assert_eq!(cm.handle_syn(local, peer(3)), Err(Refused::Full));
        cm.handle_established(1, 1);
        cm.handle_established(1, 2);
        assert!(cm.handle_syn(local, peer(3)).is_ok());
        cm.handle_established(1, 3);
        assert_eq!(cm.handle_syn(local, peer(4)), Err(Refused::Full), "three wait, as with Linux' backlog of two");
    }

    #[test]
    fn the_specific_address_wins_and_the_last_holder_ends_the_listener() {
        let mut cm = Listeners::default();
        assert!(cm.listen(A, request(1, 0, 2)));
        assert!(!cm.listen(A, request(2, 5, 2)));
        cm.listen(B, request(2, 5, 2));
        assert_eq!(cm.handle_syn(Endpoint::new(5, 80), peer(1)), Ok(2));
        assert_eq!(cm.handle_syn(Endpoint::new(6, 80), peer(1)), Ok(1));
        assert_eq!(cm.handle_syn(Endpoint::new(6, 81), peer(1)), Err(Refused::NoListener));
        assert_eq!(cm.release(A, 2), (Vec::new(), None));
        assert_eq!(cm.release(A, 1), (Vec::new(), None));
        assert_eq!(cm.release(B, 2), (Vec::new(), Some(80)));
        assert_eq!(cm.handle_syn(Endpoint::new(5, 80), peer(1)), Err(Refused::NoListener));
    }
}

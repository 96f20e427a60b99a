//! The beginning and the end of a connection: connect(2), shutdown(2), getpeername(2), `SO_ERROR`.

use atoll_base::{Addr, Endpoint};
use atoll_ipc::{Command, Device, Ready};

use super::object::{Kind, Place, Socket};
use super::platform::Platform;
use super::session::Session;
use super::{Client, multicast};
use crate::stream::{Local, Stream};
use crate::{Errno, Failure};

/// What shutdown(2) may change.
const CHANGED: Ready = Ready::IN.union(Ready::OUT).union(Ready::HUP).union(Ready::RDHUP);

/// The port of a peer of an ICMP socket for which the program has named none.
pub(super) const NO_PORT: u16 = 1;

/// The result of connect(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connecting {
    /// The connection is open, and this call reports it.
    Open,
    /// The SYN is sent now.
    Begun,
    /// An earlier call has sent the SYN, and the peer has not answered yet.
    GoesOn,
}

/// Returns whether a socket that is bound to `local` connects to itself. It needs a port for that: a port
/// that is chosen for connect(2) is never that of the peer.
fn is_own_peer(local: Endpoint, remote: Endpoint) -> bool {
    // connect(2) to the unspecified address means the loopback, as on Linux.
    let here = remote.addr.is_unspecified();
    let addr = if here { remote.addr.loopback_of_family() } else { remote.addr };
    local.port != 0 && local == Endpoint::at(addr, remote.port)
}

/// Refuses a peer that is a group, or everybody on a link: there is no way to a single one (tcp_v4_connect,
/// tcp_v6_connect).
fn check_peer<P: Platform>(session: &Session<P>, remote: Endpoint) -> Result<(), Errno> {
    let addr = remote.addr;
    let is_group = addr.is_v6_multicast() || addr.to_v4().is_some_and(multicast::is_group);
    if is_group || session.is_broadcast(addr) { Err(Errno::ENETUNREACH) } else { Ok(()) }
}

impl<P: Platform> Client<P> {
    /// Implements connect(2) of a stream socket to an address that the stack reaches.
    pub fn connect(&mut self, object: u32, remote: Endpoint) -> Result<Connecting, Errno> {
        let socket = self.socket(object).ok_or(Errno::ENOTSOCK)?;
        match &socket.kind {
            Kind::Listening(_) => return Err(Errno::EISCONN),
            Kind::Stream(..) => {}
            _ => return self.start_connecting(object, remote, false).map(|()| Connecting::Begun),
        }
        let was_reported = socket.connect_reported;
        let is_disconnecting = socket.standing.is_disconnecting;
        let Some((stream, local, _)) = self.stream(object) else { return Err(Errno::EBADF) };
        if stream.is_connecting() || !was_reported && stream.is_about_to_end() {
            return Ok(Connecting::GoesOn);
        }
        if stream.is_closed() && !was_reported {
            if is_disconnecting {
                return Err(Errno::EINVAL);
            }
            let errno = stream.take_error(local).unwrap_or(Errno::ECONNABORTED);
            self.start_over(object);
            return Err(errno);
        }
        if was_reported {
            return Err(Errno::EISCONN);
        }
        self.report_connected(object);
        Ok(Connecting::Open)
    }

    /// Returns whether a connection that was begun is open. An error is reported once, and the socket may
    /// then try again.
    pub fn poll_connected(&mut self, object: u32) -> Result<(), Failure> {
        let was_reported = self.socket(object).is_some_and(|socket| socket.connect_reported);
        let Some((stream, local, _)) = self.stream(object) else {
            // Another thread has shut it down.
            return Err(self.take_error(object).unwrap_or(Errno::EBADF).into());
        };
        if stream.is_connecting() {
            return Err(Failure::WouldBlock);
        }
        if !was_reported && stream.is_about_to_end() {
            // As its FIN crosses itself, it is over before connect(2) returns.
            return Err(Failure::WouldBlock);
        }
        let ends_at_once = !was_reported && stream.is_shut_send();
        if let Some(errno) = stream.is_closed().then(|| stream.take_error(local)).flatten() {
            self.start_over(object);
            return Err(errno.into());
        }
        if ends_at_once {
            // __inet_stream_connect: there is neither a connection nor an error.
            self.start_over(object);
            return Err(Errno::ECONNABORTED.into());
        }
        self.report_connected(object);
        Ok(())
    }

    /// Notes that the program knows that the connection is open.
    pub fn report_connected(&mut self, object: u32) {
        if let Some(socket) = self.socket_mut(object) {
            socket.connect_reported = true;
        }
    }

    /// Asks a replica to open a connection. With `fast` the SYN may wait for data (RFC 7413).
    pub fn start_connecting(&mut self, object: u32, remote: Endpoint, fast: bool) -> Result<(), Errno> {
        let socket = self.socket(object).ok_or(Errno::ENOTSOCK)?;
        let (local, lease, lasting) = (socket.local, socket.lease, socket.lasting);
        self.check_device(socket, remote.addr)?;
        let draw = self.rng.next_u32();
        let socket = self.socket(object).ok_or(Errno::ENOTSOCK)?;
        let session = self.own().filter(|session| session.is_heard()).ok_or(Errno::ENETDOWN)?;
        check_peer(session, remote)?;
        let replicas = session.count();
        let within = socket.options.local_ports(session.facts.ephemeral).filter(|_| lease == 0);
        let local = Endpoint::at(source_on_device(session, socket, remote.addr), local.port);
        let (local, replica) = if let Some((first, last)) = within {
            // A port of the range that leads to the replica is there.
            let addr = or_else_source(session, local.addr, remote.addr);
            let nth = draw % (u32::from(last.saturating_sub(first)) + 1);
            // Cannot overflow: the range ends with a port.
            let owner = session.owner(Endpoint::at(addr, first + nth as u16), remote);
            (Endpoint::at(local.addr, 0), owner)
        } else if lease != 0 {
            // The address decides the replica, so the address is chosen here.
            let local = Endpoint::at(or_else_source(session, local.addr, remote.addr), local.port);
            (local, session.owner(local, remote))
        } else {
            // A port that was given back is only shown.
            (Endpoint::at(local.addr, 0), self.rng.below(replicas as u32) as usize)
        };
        if let Some(socket) = self.socket_mut(object) {
            // tcp_connect_init: what was before does not count.
            socket.standing.error = None;
        }
        let show = self.socket(object).and_then(|socket| socket.show(replica, replicas));
        let place = self.new_place(object, replica).ok_or(Errno::ENOBUFS)?;
        let Place { slot, generation, .. } = place;
        let linger = self.socket(object).and_then(|socket| socket.options.linger());
        // The replica may look between two commands, and would send the SYN without what follows.
        let held = self.socket(object).is_some_and(|socket| socket.options.count_for_syn());
        if let Some(stream) = self.sessions[0]
            .replicas()
            .get(replica)
            .and_then(|replica| Stream::new(replica.port(), slot, generation))
        {
            stream.set_reset_on_close(linger == Some(0));
            stream.begin(fast, lasting.shut_receive, lasting.shut_send && is_own_peer(local, remote));
            if held {
                stream.begin_options();
            }
        }
        if let Some(show) = show {
            self.push(0, replica, &show);
        }
        let command = match within {
            Some((first, last)) => Command::ConnectWithin { slot, generation, local, remote, first, last },
            None => Command::Connect { slot, generation, lease, local, remote },
        };
        self.push(0, replica, &command);
        let socket = self.socket_mut(object).ok_or(Errno::ENOTSOCK)?;
        socket.remote = remote;
        socket.connect_reported = false;
        socket.kind = Kind::Stream(place, Local { shut_send: lasting.shut_send, ..socket.options.local() });
        self.send_options(object);
        if held && let Some((stream, ..)) = self.stream(object) {
            stream.end_options();
            self.kick(place);
        }
        Ok(())
    }

    /// Prepares for sleeping until a replica has taken up the connection of a socket.
    /// [`Failure::WouldBlock`] means that there was no turn ([`Client::turn`]).
    pub fn await_answer(&mut self, object: u32) -> Result<(), Failure> {
        let _turn = self.turn(object)?;
        if let Some((stream, ..)) = self.stream(object) {
            stream.set_awaits_answer();
        }
        Ok(())
    }

    /// Sends a SYN that waits for text without any. Returns whether there was one: then connect(2) is under
    /// way. [`Failure::WouldBlock`] means that there was no turn ([`Client::turn`]).
    pub fn send_waiting_syn(&mut self, object: u32) -> Result<bool, Failure> {
        if !self.stream(object).is_some_and(|(stream, ..)| stream.waits_for_text()) {
            return Ok(false);
        }
        self.send_syn(object)?;
        self.note_under_way(object);
        Ok(true)
    }

    /// Lets a SYN leave without text that may wait for some: the replica has not said whether it does.
    /// [`Failure::WouldBlock`] means that there was no turn ([`Client::turn`]).
    pub fn send_syn(&mut self, object: u32) -> Result<(), Failure> {
        let turn = self.turn(object)?;
        let Some((stream, _, place)) = self.stream(object) else { return Ok(()) };
        stream.send_waiting_syn();
        drop(turn);
        self.kick(place);
        Ok(())
    }

    /// Notes that the SYN of a socket leaves that has waited for text: connect(2) has said that there is a
    /// connection, and says once more how it goes (`__inet_stream_connect`, SS_CONNECTING).
    pub fn note_under_way(&mut self, object: u32) {
        if let Some(socket) = self.socket_mut(object) {
            socket.connect_reported = false;
        }
    }

    /// Returns the local address and port of a socket, as getsockname(2) does.
    pub fn local_of(&self, object: u32) -> Endpoint {
        let Some(socket) = self.socket(object) else { return Endpoint::default() };
        match &socket.kind {
            Kind::Stream(place, _) if socket.local.port == 0 || socket.local.addr.is_unspecified() => {
                let Some(slot) = self.slot_of(*place) else { return socket.local };
                // Until the replica has chosen an address, the bound one counts.
                if slot.replica_generation() == place.generation { slot.local() } else { socket.local }
            }
            _ => socket.local,
        }
    }

    /// Returns the address and port of a socket's peer, as getpeername(2) does.
    pub fn peer_of(&mut self, object: u32) -> Result<Endpoint, Errno> {
        let Some(socket) = self.socket(object) else { return Err(Errno::ENOTSOCK) };
        let remote = socket.remote;
        match &socket.kind {
            Kind::Stream(..) => {
                let Some((stream, ..)) = self.stream(object) else { return Err(Errno::ENOTCONN) };
                // inet_getname: what has ended, however it did, has no peer.
                if stream.is_connecting() || stream.is_closed() {
                    return Err(Errno::ENOTCONN);
                }
                Ok(remote)
            }
            // inet_getname: a peer without a port is none.
            Kind::Datagram(datagram) if datagram.connected && self.peer_has_port(object) => Ok(remote),
            _ => Err(Errno::ENOTCONN),
        }
    }

    /// Returns the peer that connect(2) gives a datagram socket: for replicas a peer has a port, and programs
    /// name none for sockets of ICMP.
    pub fn peer_to_connect(&self, object: u32, remote: Endpoint) -> Endpoint {
        match self.socket(object) {
            Some(socket) if socket.protocol.is_icmp() && remote.port == 0 => {
                Endpoint::at(remote.addr, NO_PORT)
            }
            _ => remote,
        }
    }

    fn peer_has_port(&self, object: u32) -> bool {
        let socket = self.socket(object);
        !socket.is_some_and(|it| it.protocol.is_icmp() && it.remote.port == NO_PORT)
    }

    /// Implements shutdown(2). [`Failure::WouldBlock`] means that there was no turn ([`Client::turn`]).
    /// Returns the address to which a socket that was a listener is to be bound again.
    pub fn shutdown(&mut self, object: u32, receive: bool, send: bool) -> Result<Option<Endpoint>, Failure> {
        let Some(socket) = self.socket_mut(object) else { return Err(Errno::ENOTSOCK.into()) };
        match &mut socket.kind {
            Kind::Datagram(datagram) => {
                // inet_shutdown: without a peer it fails, but wakes the readers.
                let result = if datagram.connected { Ok(None) } else { Err(Errno::ENOTCONN.into()) };
                datagram.shut_receive |= receive;
                datagram.shut_send |= send;
                self.announce(object, CHANGED);
                return result;
            }
            Kind::Listening(_) => {
                // inet_shutdown: with SHUT_RD it is a socket without a connection from now on.
                let named = if receive { self.stop_listening(object) } else { None };
                self.announce(object, CHANGED);
                return Ok(named);
            }
            _ => {}
        }
        let turn = self.turn(object)?;
        let Some((stream, _, place)) = self.stream(object) else {
            // inet_shutdown: it fails, but what was shut stays so.
            if let Some(socket) = self.socket_mut(object) {
                socket.lasting.shut_receive |= receive;
                socket.lasting.shut_send |= send;
            }
            return Err(Errno::ENOTCONN.into());
        };
        if stream.is_connecting() {
            // inet_shutdown: it is no connection yet, and will be none.
            drop(turn);
            return self.disconnect(object);
        }
        let result = stream.shutdown(receive, send);
        drop(turn);
        if let Some(socket) = self.socket_mut(object) {
            // inet_shutdown: the next connect(2) says nothing more of one that has failed, and of any other
            // that there is a connection.
            socket.standing.is_disconnecting |= result.is_err() && !socket.connect_reported;
            socket.connect_reported |= result.is_ok();
        }
        result?;
        self.kick(place);
        self.announce(object, CHANGED);
        Ok(None)
    }

    /// Lets the next call on a datagram socket fail.
    pub fn put_error_back(&mut self, object: u32, errno: Errno) {
        if let Some(socket) = self.socket_mut(object)
            && matches!(socket.kind, Kind::Datagram(_))
        {
            socket.standing.error = Some(errno);
        }
    }

    /// Takes the error of a socket that was not reported yet: socket(7), `SO_ERROR`.
    pub fn take_error(&mut self, object: u32) -> Option<Errno> {
        if let Some((stream, local, _)) = self.stream(object) {
            return stream.take_error(local);
        }
        if let Some(errno) = self.socket_mut(object).and_then(|socket| socket.standing.error.take()) {
            return Some(errno);
        }
        // Without a turn the errors stay where they are, and are announced later.
        self.take_faults(object).ok();
        if let Some(Socket { kind: Kind::Datagram(datagram), .. }) = self.socket_mut(object)
            && let Some(errno) = datagram.faults.take_error()
        {
            return Some(errno);
        }
        let places = self.socket(object).map(Socket::places).unwrap_or_default();
        places.iter().find_map(|place| self.datagrams(*place)?.take_error())
    }
}

/// Returns the address that a socket is bound to, or that which its device has for `to`, if the replica would
/// choose one that the device has not: an address of the loopback.
fn source_on_device<P: Platform>(session: &Session<P>, socket: &Socket, to: Addr) -> Addr {
    let (own, device) = (socket.local.addr, socket.options.device());
    let is_lost = device == Device::Link && (to.is_loopback() || to.is_unspecified());
    if is_lost && own.is_unspecified() { session.source_on(to.loopback_of_family(), device) } else { own }
}

/// Returns `own`, or the address that packets to `to` leave from if it is unspecified.
fn or_else_source<P: Platform>(session: &Session<P>, own: Addr, to: Addr) -> Addr {
    if own.is_unspecified() { session.source_for(to) } else { own }
}

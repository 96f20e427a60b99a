//! What is written down of sockets for the next program image (execve(2), posix_spawn(3)), and for a process
//! that is sent a socket over a unix socket (SCM_RIGHTS)?
//!
//! ```text
//!   "atollin" VERSION  ExecState      for the next program
//!   "atollfd" VERSION  PassedSocket   for the receiver of one socket
//! ```
//! The values are in the format of postcard. Whoever reads them takes them for hostile: an environment
//! variable or a message of another process names the memory that they are in. So decoding is bounded, judges
//! every index and count, and allocates no more than a multiple of the octets that are there.
//!
//! A library reads what its own version has written and nothing else, because the two programs are nearly
//! always of one build. Change [`VERSION`] with anything that changes the form.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use atoll_base::Endpoint;
use atoll_ipc::command::Protocol;
use atoll_ipc::control::Reply;
use atoll_ipc::lease::Voucher;
use atoll_ipc::page::{BELLS, REPLICAS_MAX};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::fault_queue::Faults;
use super::groups::Multicast;
use super::multicast::{MEMBERSHIPS_MAX, MEMBERSHIPS_MAX_V6};
use super::object::{Body, Corked, Datagram, Kind, Lasting, Object, Owner, Place, Socket};
use super::platform::Platform;
use super::written::{EndpointForm, ProtocolForm, VoucherForm, reply};
use crate::listener::Listener;
use crate::options::Options;
use crate::stamps::Stamp;
use crate::stream::Local;

/// The version of both forms. Builds before November 2026 wrote the digit 2 here, and something else behind
/// it.
pub const VERSION: u8 = 12;
/// The octets that a written [`ExecState`] begins with, before the version.
const INHERITED: [u8; 7] = *b"atollin";
/// The octets that a written [`PassedSocket`] begins with, before the version.
const PASSED: [u8; 7] = *b"atollfd";
/// The number of octets before the value.
pub const HEADER_LEN: usize = 8;
/// The most octets of a written [`ExecState`]: enough for 200,000 connections.
pub const INHERITED_MAX: usize = 32 << 20;
/// The most octets of a written [`PassedSocket`].
pub const PASSED_MAX: usize = 16 << 10;
/// The most octets of a datagram that `MSG_MORE` holds back.
const CORKED_MAX: usize = 64 << 10;

/// The state that a program image needs to continue with the sockets of the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecState {
    /// The descriptor of the next program's connection to the supervisor.
    pub control: i32,
    /// The next program's own session, then those that its sockets are in.
    pub sessions: Vec<SessionState>,
    /// The sockets.
    pub sockets: Vec<Inherited>,
}

/// The facts that a program image needs to map a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionState {
    /// The supervisor's answer, a [`Reply::Joined`].
    #[serde(with = "reply")]
    pub reply: Reply,
    /// The descriptors that came with the answer, in its order.
    pub descriptors: Vec<i32>,
}

/// A socket, and the descriptors of the next program that name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inherited {
    /// The socket. Its places are in sessions of [`ExecState::sessions`].
    pub socket: SocketState,
    /// The numbers of the descriptors, at least one.
    pub descriptors: Vec<i32>,
}

/// The state that a process needs to continue with a socket that another process has sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedSocket {
    /// The supervisor's number for the session that the socket is in.
    pub session: u32,
    /// The proof that a process may join that session.
    pub key: u64,
    /// The socket. All its places are in that session, whose index is 0 here.
    pub socket: SocketState,
}

/// Everything that another process has to know of a socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketState {
    /// The state by kind of socket.
    pub kind: KindState,
    #[serde(with = "ProtocolForm")]
    protocol: Protocol,
    v6: bool,
    nonblocking: bool,
    owner: Owner,
    connect_reported: bool,
    lasting: Lasting,
    more: bool,
    lease: u64,
    #[serde(with = "VoucherForm")]
    voucher: Voucher,
    #[serde(with = "EndpointForm")]
    local: Endpoint,
    #[serde(with = "EndpointForm")]
    remote: Endpoint,
    options: Options,
    multicast: Option<Box<Multicast>>,
}

/// The state of a socket by its kind, in the form for other processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KindState {
    /// The socket is new, and belongs to no stack yet.
    Fresh,
    /// The socket is bound to a port of the stack.
    Bound,
    /// The socket listens.
    Listening {
        /// The backlog given to listen(2).
        backlog: u32,
    },
    /// The socket is a connection.
    Stream {
        /// The slot of the connection.
        place: Place,
        /// Whether the error of the connection was reported to the program.
        error_taken: bool,
    },
    /// The socket is a datagram socket with a port.
    Datagram(DatagramState),
}

/// The state of a datagram socket, in the form for other processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatagramState {
    /// The slots of the socket: at least one, all in one session, each on another replica.
    pub places: Vec<Place>,
    connected: bool,
    local_chosen: bool,
    sender: usize,
    shut_receive: bool,
    shut_send: bool,
    corked: Option<Corked>,
    filter: [u32; 8],
}

/// Why octets are not what a library of this version has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadState {
    /// The octets are something else altogether.
    #[error("it had another build of this library")]
    Foreign,
    /// A library of another version has written them.
    #[error("it had another build of this library")]
    Version(u8),
    /// The octets are too many, or would be.
    #[error("they are too many")]
    TooLong,
    /// The octets are cut off, or no values of these types.
    #[error("what it has left is damaged")]
    Malformed,
    /// A session lacks descriptors, or there is none.
    #[error("it has left a session that is not whole")]
    Session,
    /// A socket is of a kind that its protocol does not have, has too many groups, or holds back too much.
    #[error("it has left a socket that cannot be")]
    Socket,
    /// A socket is in a session, at a replica or in a slot that does not exist, or has too many slots.
    #[error("it has left a socket whose place does not exist")]
    Place,
    /// A descriptor has no number, or two things have the same one.
    #[error("it has left descriptors that cannot be")]
    Descriptor,
}

impl ExecState {
    /// Writes everything down. Fails with [`BadState::TooLong`] beyond [`INHERITED_MAX`] octets.
    pub fn encode(&self) -> Result<Vec<u8>, BadState> {
        write(INHERITED, self, INHERITED_MAX)
    }

    /// Reads what [`ExecState::encode`] of the same version has written. After that every place is in a
    /// session of the list, at a replica and in a slot that this has, and no descriptor is named twice.
    pub fn decode(octets: &[u8]) -> Result<ExecState, BadState> {
        let state: ExecState = read(INHERITED, octets, INHERITED_MAX)?;
        let mut numbers = Vec::from([state.control]);
        if state.sessions.is_empty() {
            return Err(BadState::Session);
        }
        for session in &state.sessions {
            let Reply::Joined { replicas, .. } = session.reply else { return Err(BadState::Session) };
            let replicas = usize::from(replicas);
            if !(1..=REPLICAS_MAX).contains(&replicas)
                || session.descriptors.len() != 2 + BELLS + 3 * replicas
            {
                return Err(BadState::Session);
            }
            numbers.extend(&session.descriptors);
        }
        for inherited in &state.sockets {
            inherited.socket.judge(|place| state.has(place))?;
            if inherited.descriptors.is_empty() {
                return Err(BadState::Descriptor);
            }
            numbers.extend(&inherited.descriptors);
        }
        numbers.sort_unstable();
        let is_double = numbers.windows(2).any(|pair| pair[0] == pair[1]);
        if is_double || numbers.first().is_some_and(|least| *least < 0) {
            return Err(BadState::Descriptor);
        }
        Ok(state)
    }

    /// Returns whether a place exists, as far as the sessions are described.
    fn has(&self, place: &Place) -> bool {
        let reply = self.sessions.get(place.session).map(|session| &session.reply);
        matches!(reply, Some(Reply::Joined { replicas, config, .. })
            if place.replica < usize::from(*replicas) && place.slot.0 < config.slots)
    }
}

impl PassedSocket {
    /// Writes the socket down. Fails with [`BadState::TooLong`] beyond [`PASSED_MAX`] octets.
    pub fn encode(&self) -> Result<Vec<u8>, BadState> {
        write(PASSED, self, PASSED_MAX)
    }

    /// Reads what [`PassedSocket::encode`] of the same version has written. Replicas and slots are judged
    /// when the session is known: [`Session::has`](super::session::Session::has).
    pub fn decode(octets: &[u8]) -> Result<PassedSocket, BadState> {
        let passed: PassedSocket = read(PASSED, octets, PASSED_MAX)?;
        passed.socket.judge(|place| place.session == 0)?;
        Ok(passed)
    }

    /// Returns whether memory that begins with `octets` may be a passed socket of some version.
    pub fn is_begun_by(octets: &[u8]) -> bool {
        octets.starts_with(&PASSED)
    }
}

impl SocketState {
    /// Returns the state of a socket for another process, with what is known of its open file description:
    /// whether calls wait, and who gets SIGURG. `there` has each of its places as the other process
    /// is to see it.
    pub fn of(
        socket: &Socket,
        (nonblocking, owner): (bool, Owner),
        there: impl Fn(Place) -> Place,
    ) -> SocketState {
        // Every field is named, so that a new one needs a decision here. A pass is needed before there is a
        // port, and the others that are left out concern this process alone.
        let Socket {
            protocol,
            v6,
            ref kind,
            lease,
            voucher,
            pass: _,
            local,
            remote,
            ref options,
            ref multicast,
            bell: _,
            pooled: _,
            connect_reported,
            lasting,
            passed: _,
            more,
            buffered: _,
            sent_in: _,
            seen: _,
            standing: _,
        } = *socket;
        let mut options = options.clone();
        if let Kind::Stream(_, Local { peek: Some(offset), .. }) = kind {
            options.set_peek_offset(*offset);
        }
        let kind = match kind {
            Kind::Fresh => KindState::Fresh,
            Kind::Bound => KindState::Bound,
            Kind::Listening(listener) => KindState::Listening { backlog: listener.backlog },
            Kind::Stream(place, local) => {
                KindState::Stream { place: there(*place), error_taken: local.error_taken }
            }
            Kind::Datagram(datagram) => KindState::Datagram(DatagramState {
                places: datagram.places.iter().map(|place| there(*place)).collect(),
                connected: datagram.connected,
                local_chosen: datagram.local_chosen,
                sender: datagram.sender % datagram.places.len().max(1),
                shut_receive: datagram.shut_receive,
                shut_send: datagram.shut_send,
                corked: datagram.corked.clone(),
                filter: datagram.filter,
            }),
        };
        SocketState {
            kind,
            protocol,
            v6,
            nonblocking,
            owner,
            connect_reported,
            lasting,
            more,
            lease,
            voucher,
            local,
            remote,
            options,
            multicast: multicast.clone(),
        }
    }

    /// Creates an object with the socket, which `descriptors` descriptors name.
    pub fn into_object<P: Platform>(self, descriptors: u32) -> Object<P> {
        let mut object = Object::socket(self.protocol, self.v6, self.nonblocking);
        (object.descriptors, object.owner) = (descriptors, self.owner);
        let Body::Socket(socket) = &mut object.body else { return object };
        socket.kind = match self.kind {
            KindState::Fresh => Kind::Fresh,
            KindState::Bound => Kind::Bound,
            KindState::Listening { backlog } => {
                Kind::Listening(Box::new(Listener { backlog, ..Listener::default() }))
            }
            KindState::Stream { place, error_taken } => {
                Kind::Stream(place, Local { error_taken, ..self.options.local() })
            }
            KindState::Datagram(datagram) => Kind::Datagram(Box::new(Datagram {
                places: datagram.places,
                connected: datagram.connected,
                local_chosen: datagram.local_chosen,
                sender: datagram.sender,
                next: 0,
                shut_receive: datagram.shut_receive,
                shut_send: datagram.shut_send,
                corked: datagram.corked,
                faults: Faults::default(),
                filter: datagram.filter,
                peeked: BTreeSet::new(),
                stamp: Stamp::Never,
            })),
        };
        (socket.connect_reported, socket.lasting, socket.more) =
            (self.connect_reported, self.lasting, self.more);
        (socket.lease, socket.voucher) = (self.lease, self.voucher);
        (socket.local, socket.remote) = (self.local, self.remote);
        (socket.options, socket.multicast) = (self.options, self.multicast);
        object
    }

    /// Returns the slots of the socket.
    pub fn places(&self) -> &[Place] {
        match &self.kind {
            KindState::Stream { place, .. } => core::slice::from_ref(place),
            KindState::Datagram(datagram) => &datagram.places,
            KindState::Fresh | KindState::Bound | KindState::Listening { .. } => &[],
        }
    }

    /// Moves the socket, which holds no port in the receiver, to another session.
    pub(super) fn move_to(&mut self, session: usize) {
        self.lease = 0;
        match &mut self.kind {
            KindState::Stream { place, .. } => place.session = session,
            KindState::Datagram(datagram) => {
                datagram.places.iter_mut().for_each(|place| place.session = session);
            }
            KindState::Fresh | KindState::Bound | KindState::Listening { .. } => {}
        }
    }

    /// Removes what only the sender keeps: the datagram that it has begun.
    pub(super) fn without_corked(mut self) -> SocketState {
        if let KindState::Datagram(datagram) = &mut self.kind {
            datagram.corked = None;
        }
        self
    }

    /// Returns whether the socket listens.
    pub fn is_listening(&self) -> bool {
        matches!(self.kind, KindState::Listening { .. })
    }

    /// Returns the identity of the port that the socket holds; 0 for none.
    pub const fn lease(&self) -> u64 {
        self.lease
    }

    /// Fails unless a socket can be like this; `has` says which places exist.
    fn judge(&self, has: impl Fn(&Place) -> bool) -> Result<(), BadState> {
        let is_of_its_protocol = match &self.kind {
            KindState::Fresh | KindState::Bound => true,
            KindState::Listening { .. } | KindState::Stream { .. } => self.protocol == Protocol::Tcp,
            KindState::Datagram(_) => self.protocol.is_datagram(),
        };
        let groups = self.multicast.as_ref().map_or(&[][..], |multicast| &multicast.joined);
        let of_v4 = groups.iter().filter(|(group, _)| group.is_v4()).count();
        if !is_of_its_protocol || of_v4 > MEMBERSHIPS_MAX || groups.len() - of_v4 > MEMBERSHIPS_MAX_V6 {
            return Err(BadState::Socket);
        }
        if !self.places().iter().all(has) {
            return Err(BadState::Place);
        }
        let KindState::Datagram(datagram) = &self.kind else { return Ok(()) };
        if datagram.corked.as_ref().is_some_and(|corked| corked.octets.len() > CORKED_MAX) {
            return Err(BadState::Socket);
        }
        let is_orderly = |(at, place): (usize, &Place)| {
            let before = &datagram.places[..at];
            before.iter().all(|other| other.session == place.session && other.replica != place.replica)
        };
        let count = datagram.places.len();
        let is_whole = (1..=REPLICAS_MAX).contains(&count) && datagram.sender < count;
        if is_whole && datagram.places.iter().enumerate().all(is_orderly) {
            Ok(())
        } else {
            Err(BadState::Place)
        }
    }
}

fn write(magic: [u8; 7], value: &impl Serialize, max: usize) -> Result<Vec<u8>, BadState> {
    let mut octets = Vec::from(magic);
    octets.push(VERSION);
    let octets = postcard::to_extend(value, octets).map_err(|_| BadState::TooLong)?;
    if octets.len() > max { Err(BadState::TooLong) } else { Ok(octets) }
}

fn read<T: DeserializeOwned>(magic: [u8; 7], octets: &[u8], max: usize) -> Result<T, BadState> {
    let value = match octets.strip_prefix(&magic).and_then(<[u8]>::split_first) {
        Some((&VERSION, value)) => value,
        Some((version, _)) => return Err(BadState::Version(*version)),
        None => return Err(BadState::Foreign),
    };
    if octets.len() > max {
        return Err(BadState::TooLong);
    }
    match postcard::take_from_bytes(value) {
        Ok((value, [])) => Ok(value),
        _ => Err(BadState::Malformed),
    }
}

#[cfg(test)]
mod tests;

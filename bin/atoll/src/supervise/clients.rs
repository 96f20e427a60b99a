//! The connections to the supervisor: applications, the command line, other stacks.
//!
//! Every socket is nonblocking; what a socket does not take waits in its outbox. A client whose outbox is not
//! empty is not read from, so what it can make the supervisor hold is bounded. A client whose connection
//! breaks while a packet is sent to it is removed from the list at once; the supervisor handles the
//! consequences soon after ([`Clients::take_broken`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use atoll_base::Instant;
use atoll_ipc::control::{Refusal, Reply, Request, set_token, token};
use atoll_supervisor::{
    ATTACH_COST, Admission, ClientId, Crowds, Door, JOIN_COST, Pace, Questions, ReportPart,
};
use atoll_sys::epoll::{Epoll, EventFlags};
use atoll_sys::unix::{Channel, Peer};

use super::doors::caller;
use super::outbox::Outbox;
use super::servers::RETRY_EVERY;
use super::tokens::FIRST_CLIENT;
use crate::clock;

/// The clients, by number.
pub struct Clients {
    all: BTreeMap<ClientId, Client>,
    /// Clients whose connections broke while packets were sent to them.
    broken: VecDeque<(ClientId, Client)>,
    epoll: Rc<Epoll>,
    next: u64,
    /// The connected processes, and the bounds of their numbers.
    crowds: Crowds,
    /// The rate at which processes and users begin sessions.
    pace: Pace,
    /// Clients whose request waits because they are too fast, and until when.
    slowed: BTreeSet<(Instant, ClientId)>,
    /// Requests of the command line for listings and reports.
    questions: Questions,
    /// When to retry sending what could not be sent because the system was short of something.
    retry_at: Option<Instant>,
}

/// A connection of an application, of the command line, or of another stack.
pub struct Client {
    channel: Channel,
    /// The requests that the connection permits as long as it exists.
    door: Door,
    /// The process that made the connection.
    peer: Peer,
    /// Whether an admitted user has begun a session over this connection, or over the one that it was made
    /// from. The process that has the connection then remains admitted, whatever user it becomes.
    is_let_in: bool,
    /// The process that sent the request under way, if the kernel reported it.
    asks: Option<Peer>,
    outbox: Outbox,
    watched: EventFlags,
    /// Whether the client is the supervisor of a joined stack.
    is_guest: bool,
    /// The number of the request under way, which its answer carries, too.
    token: u64,
    /// The time until which its request stays in the socket.
    slowed: Option<Instant>,
}

/// A packet or event that was received from a client.
pub enum Heard {
    /// There is nothing now, or the client is not read from now.
    Nothing,
    /// The connection is closed.
    Gone,
    /// The packet is not a request.
    Malformed,
    /// A request was read into the buffer. Call [`Clients::handled`] when it is done.
    Request {
        /// The length of the request in bytes.
        len: usize,
        /// The process that sent it, if the kernel reported it.
        asks: Option<Peer>,
        /// The number of descriptors that came with it.
        descriptors: usize,
    },
}

impl Client {
    fn new(channel: Channel, door: Door, peer: Peer) -> Client {
        let outbox = Outbox::default();
        Client {
            channel,
            door,
            peer,
            is_let_in: false,
            asks: None,
            outbox,
            watched: READING,
            is_guest: false,
            token: 0,
            slowed: None,
        }
    }

    /// Returns what can be asked over the connection as long as it exists.
    pub fn door(&self) -> Door {
        self.door
    }

    /// Returns the process that made the connection.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Returns whether a user that the stack serves has begun a session over the connection, or over the one
    /// that it was made from.
    pub fn is_let_in(&self) -> bool {
        self.is_let_in
    }

    /// Returns the process that asks now, which need not be the one that connected.
    pub fn asks(&self) -> Peer {
        self.asks.unwrap_or(self.peer)
    }

    /// Returns how many octets wait to be sent to the client.
    pub fn waiting_bytes(&self) -> usize {
        self.outbox.bytes()
    }

    /// Returns whether the client is the supervisor of a joined stack.
    pub fn is_guest(&self) -> bool {
        self.is_guest
    }

    /// Returns the connection's descriptor.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Returns whether the client waits for something here.
    fn is_busy(&self) -> bool {
        self.is_guest || self.slowed.is_some() || !self.outbox.is_empty()
    }

    /// Returns whether requests stay in the socket until they are answered, so that the next supervisor finds
    /// them if this one dies. Those of applications do.
    fn requests_stay(&self) -> bool {
        self.door == Door::Applications
    }

    fn drop_request(&self) {
        let _ = self.channel.receive_from(&mut [0; REQUEST_MAX], &mut Vec::new());
    }
}

impl Clients {
    /// Creates an empty list for at most `clients_max` clients.
    pub fn new(epoll: Rc<Epoll>, clients_max: usize) -> Clients {
        Clients {
            all: BTreeMap::new(),
            broken: VecDeque::new(),
            epoll,
            next: FIRST_CLIENT,
            crowds: Crowds::new(clients_max),
            pace: Pace::default(),
            slowed: BTreeSet::new(),
            questions: Questions::new(clock::now()),
            retry_at: None,
        }
    }

    /// Returns the number of clients.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the number of the next client.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Makes the number of the next client no lower than `next`.
    pub fn skip_to(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    /// Returns the numbers of all clients.
    pub fn ids(&self) -> Vec<ClientId> {
        self.all.keys().copied().collect()
    }

    /// Returns the client with this number.
    pub fn get(&self, id: ClientId) -> Option<&Client> {
        self.all.get(&id)
    }

    /// Returns the requests of the command line for listings and reports.
    pub fn questions(&self) -> &Questions {
        &self.questions
    }

    /// Returns the requests of the command line for listings and reports, to change them.
    pub fn questions_mut(&mut self) -> &mut Questions {
        &mut self.questions
    }

    /// Decides whether a new connection of this peer is accepted. `waits` returns true for clients that wait
    /// for something that this list does not know of.
    pub fn judge(&self, peer: Peer, waits: impl Fn(ClientId) -> bool) -> Admission {
        self.crowds.judge(&caller(peer), |id| self.is_awaiting(id) || waits(id))
    }

    /// Returns the oldest connection without a session that may be closed. `waits` returns true for clients
    /// that wait for something that this list does not know of.
    pub fn oldest_stranger(&self, waits: impl Fn(ClientId) -> bool) -> Option<ClientId> {
        self.crowds.oldest_stranger(|id| self.is_awaiting(id) || waits(id))
    }

    /// Returns whether a connection without a session must stay, because it waits for an answer or is that of
    /// another stack.
    fn is_awaiting(&self, id: ClientId) -> bool {
        self.questions.has(id) || self.all.get(&id).is_some_and(Client::is_busy)
    }

    /// Adds a client and watches its connection. Returns the connection if that is impossible.
    pub fn admit(&mut self, channel: Channel, door: Door, peer: Peer) -> Result<ClientId, Channel> {
        let id = ClientId(self.next);
        self.next += 1;
        if self.epoll.add(&channel, id.0, READING).is_err() {
            return Err(channel);
        }
        self.enter(id, Client::new(channel, door, peer));
        Ok(id)
    }

    /// Adds a client whose connection another supervisor has accepted. Returns whether that was possible.
    pub fn restore(&mut self, id: ClientId, door: Door, peer: Option<Peer>, channel: Channel) -> bool {
        let Ok(peer) = peer.map_or_else(|| channel.peer(), Ok) else { return false };
        let ready = Channel::ask_for_senders(&channel).and_then(|()| self.epoll.add(&channel, id.0, READING));
        if ready.is_ok() {
            self.enter(id, Client::new(channel, door, peer));
        }
        ready.is_ok()
    }

    fn enter(&mut self, id: ClientId, client: Client) {
        self.crowds.entered(id, caller(client.peer));
        self.all.insert(id, client);
    }

    /// Notes that a session has begun or ended for this client. `is_in_one` says whether it is in a session
    /// now.
    pub fn note_standing(&mut self, id: ClientId, is_in_one: bool) {
        // A client at the door for administration has no session, and is no stranger.
        let is_application = self.all.get(&id).is_some_and(|client| client.door == Door::Applications);
        self.crowds.set_stranger(id, is_application && !is_in_one);
    }

    /// Notes that a user that the stack serves has begun a session over this connection, or over the one that
    /// it was made from. Returns whether that is new.
    pub fn let_in(&mut self, id: ClientId) -> bool {
        self.all.get_mut(&id).is_some_and(|client| !std::mem::replace(&mut client.is_let_in, true))
    }

    /// Notes that the client is the supervisor of a joined stack.
    pub fn set_guest(&mut self, id: ClientId) {
        if let Some(client) = self.all.get_mut(&id) {
            client.is_guest = true;
        }
    }

    /// Removes a client from all lists.
    pub fn remove(&mut self, id: ClientId) -> Option<Client> {
        let client = self.all.remove(&id)?;
        // Closing removes it from the epoll set only if no other process has the descriptor.
        let _ = self.epoll.delete(&client.channel);
        if let Some(due) = client.slowed {
            self.slowed.remove(&(due, id));
        }
        self.crowds.left(id);
        self.questions.forget(id);
        Some(client)
    }

    /// Returns the next client whose connection broke while a packet was sent to it.
    pub fn take_broken(&mut self) -> Option<(ClientId, Client)> {
        self.broken.pop_front()
    }

    /// Returns whether there are such clients.
    pub fn has_broken(&self) -> bool {
        !self.broken.is_empty()
    }

    /// Reads the next request of a client. `is_gone` says that the other end is closed.
    pub fn hear(&mut self, id: ClientId, is_gone: bool, buffer: &mut [u8]) -> Heard {
        let Some(client) = self.all.get(&id) else { return Heard::Nothing };
        let waits = client.slowed.is_some() || self.questions.has(id);
        if waits && is_gone {
            // The answer that the client waits for can no longer be delivered. Its further requests are not
            // read, because they could be as many again for each connection.
            return Heard::Gone;
        }
        let is_busy = waits || !client.outbox.is_empty();
        if is_busy && !is_gone {
            return Heard::Nothing;
        }
        let mut descriptors = Vec::new();
        let received = match client.requests_stay() {
            true => client.channel.look_from(buffer, &mut descriptors),
            false => client.channel.receive_from(buffer, &mut descriptors),
        };
        match received {
            Ok((0, _)) => Heard::Gone,
            Ok((len, asks)) => Heard::Request { len, asks, descriptors: descriptors.len() },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Heard::Nothing,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.handled(id);
                Heard::Malformed
            }
            Err(_) => Heard::Gone,
        }
    }

    /// Removes the request of a client from the socket, because it is answered or will be.
    pub fn handled(&self, id: ClientId) {
        if let Some(client) = self.all.get(&id).filter(|client| client.requests_stay()) {
            client.drop_request();
        }
    }

    /// Returns whether an application begins so many sessions that this request has to wait. It stays in the
    /// socket then.
    pub fn is_too_fast(&mut self, id: ClientId, asks: Option<Peer>, packet: &[u8]) -> bool {
        let Some(client) = self.all.get_mut(&id).filter(|client| client.door == Door::Applications) else {
            return false;
        };
        let cost = match Request::decode(packet) {
            Ok(Request::Attach { .. }) => ATTACH_COST,
            Ok(Request::Join { .. }) => JOIN_COST,
            _ => return false,
        };
        // The process that asks now need not be the one that connected.
        let due = self.pace.ask(&caller(asks.unwrap_or(client.peer)), clock::now(), cost).err();
        client.slowed = due;
        self.slowed.extend(due.map(|due| (due, id)));
        due.is_some()
    }

    /// Returns when the next client that was too fast has waited long enough.
    pub fn slowed_until(&self) -> Option<Instant> {
        self.slowed.first().map(|(due, _)| *due)
    }

    /// Reads again from clients that have waited long enough.
    pub fn let_slowed_go_on(&mut self, now: Instant) -> io::Result<()> {
        while let Some(&(due, id)) = self.slowed.first().filter(|(due, _)| *due <= now) {
            self.slowed.remove(&(due, id));
            if let Some(client) = self.all.get_mut(&id) {
                client.slowed = None;
                self.flush(id)?;
            }
        }
        Ok(())
    }

    /// Notes that this request of a client is under way. Returns the door of its connection, and the process
    /// that made the connection.
    pub fn begin_request(&mut self, id: ClientId, asks: Option<Peer>, packet: &[u8]) -> Option<(Door, Peer)> {
        let client = self.all.get_mut(&id)?;
        client.token = token(packet);
        client.asks = asks;
        Some((client.door, client.peer))
    }

    /// Refuses the request of an application.
    pub fn refuse(&mut self, id: ClientId, reason: Refusal) -> io::Result<()> {
        self.reply(id, &Reply::Refused { reason }, Vec::new())
    }

    /// Answers the request of an application.
    pub fn reply(&mut self, id: ClientId, reply: &Reply, descriptors: Vec<Rc<OwnedFd>>) -> io::Result<()> {
        let mut packet = reply.encode();
        set_token(&mut packet, self.all.get(&id).map_or(0, |client| client.token));
        self.send(id, packet.to_vec(), descriptors)
    }

    /// Sends a part of an answer to the command line.
    pub fn answer(&mut self, id: ClientId, part: &ReportPart) -> io::Result<()> {
        self.send(id, serde_json::to_vec(part).map_err(io::Error::from)?, Vec::new())
    }

    /// Sends a packet to a client.
    pub fn send(&mut self, id: ClientId, packet: Vec<u8>, descriptors: Vec<Rc<OwnedFd>>) -> io::Result<()> {
        let Some(client) = self.all.get_mut(&id) else { return Ok(()) };
        client.outbox.push(packet, descriptors);
        self.flush(id)
    }

    /// Sends the packets that wait for a client, as far as its socket takes them, and watches the connection
    /// again when it is to be read from.
    pub fn flush(&mut self, id: ClientId) -> io::Result<()> {
        let Some(client) = self.all.get_mut(&id) else { return Ok(()) };
        if client.outbox.flush(&client.channel).is_err() {
            let broken = self.remove(id).map(|client| (id, client));
            self.broken.extend(broken);
            return Ok(());
        }
        let wanted = match (client.outbox.is_empty(), client.outbox.is_starved()) {
            // The client's next request waits in its socket.
            (true, _) if self.questions.has(id) || client.slowed.is_some() => EventFlags::empty(),
            (true, _) => READING,
            (false, false) => EventFlags::OUT,
            // The socket has room, so it would report that all the time.
            (false, true) => EventFlags::empty(),
        };
        if client.outbox.is_starved() {
            self.retry_at.get_or_insert(clock::now() + RETRY_EVERY);
        }
        if wanted != client.watched {
            client.watched = wanted;
            self.epoll.modify(&client.channel, id.0, wanted)?;
        }
        Ok(())
    }

    /// Retries, if it is time, to send what could not be sent because the system was short of something.
    pub fn retry(&mut self, now: Instant) -> io::Result<()> {
        if self.retry_at.take_if(|at| now >= *at).is_none() {
            return Ok(());
        }
        let starved = self.all.iter().filter(|(_, client)| client.outbox.is_starved()).map(|(id, _)| *id);
        let starved: Vec<ClientId> = starved.collect();
        starved.into_iter().try_for_each(|id| self.flush(id))
    }

    /// Returns when [`Clients::retry`] is due.
    pub fn retry_due(&self) -> Option<Instant> {
        self.retry_at
    }
}

#[cfg(test)]
impl Clients {
    /// Returns how many clients wait because they are too fast.
    pub fn slowed(&self) -> usize {
        self.slowed.len()
    }

    /// Returns whether anything waits to be sent to a client.
    pub fn have_waiting(&self) -> bool {
        self.all.iter().any(|(id, client)| !client.outbox.is_empty() || self.questions.has(*id))
    }

    /// Sets the pace at which sessions may begin.
    pub fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// Sets how many clients may be connected.
    pub fn set_max(&mut self, clients_max: usize) {
        self.crowds = Crowds::new(clients_max);
    }
}

const READING: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);
/// The longest request of a client, in bytes.
pub const REQUEST_MAX: usize = 4096;

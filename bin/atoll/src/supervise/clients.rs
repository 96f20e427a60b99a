//! Who is connected to the supervisor, and what are they told? Applications, the command line, other stacks.
//!
//! Every socket is nonblocking; what a socket does not take waits in its outbox. A client with a full outbox
//! is not read from until it has read, so what it can make the supervisor hold is bounded. One whose
//! connection breaks while it is told something is out of the list at once; what follows from that, the
//! supervisor does soon after ([`Clients::take_broken`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use atoll_base::Instant;
use atoll_ipc::control::{Refusal, Reply, Request, set_token, token};
use atoll_supervisor::{ATTACH_COST, Admission, ClientId, Crowds, Door, JOIN_COST, Pace, Questions, ReportPart};
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
    /// Those whose connections broke while they were told something.
    broken: VecDeque<(ClientId, Client)>,
    epoll: Rc<Epoll>,
    next: u64,
    /// Who is connected, and how many may be.
    crowds: Crowds,
    /// How fast who begins sessions.
    pace: Pace,
    /// Clients whose request waits because they are too fast, and until when.
    slowed: BTreeSet<(Instant, ClientId)>,
    /// Questions of the command line.
    questions: Questions,
    /// When it is tried again to send what the system was short of something for.
    retry_at: Option<Instant>,
}

/// A connection of an application, of the command line, or of another stack.
pub struct Client {
    channel: Channel,
    /// What can be asked over it, for ever.
    door: Door,
    /// Who has made it.
    peer: Peer,
    /// Who has sent the request under way, if the kernel said it.
    asks: Option<Peer>,
    outbox: Outbox,
    watched: EventFlags,
    /// Whether it is the supervisor of a joined stack.
    is_guest: bool,
    /// The number of the request under way, which its answer has, too.
    token: u64,
    /// Its request stays in the socket until then.
    slowed: Option<Instant>,
}

/// What a client says.
pub enum Heard {
    /// Nothing now, or nothing that is listened to now.
    Nothing,
    /// It is gone.
    Gone,
    /// Something that no request is.
    Malformed,
    /// A request, which lies in the buffer. [`Clients::handled`] is to be told when that is done.
    Request {
        /// So many octets.
        len: usize,
        /// Who has sent it, if the kernel said it.
        asks: Option<Peer>,
        /// How many descriptors came with it.
        descriptors: usize,
    },
}

impl Client {
    fn new(channel: Channel, door: Door, peer: Peer) -> Client {
        let outbox = Outbox::default();
        Client { channel, door, peer, asks: None, outbox, watched: READING, is_guest: false, token: 0, slowed: None }
    }

    /// What can be asked over it, for ever.
    pub fn door(&self) -> Door {
        self.door
    }

    /// Who has made the connection.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Whoever asks now, which need not be whoever has connected.
    pub fn asks(&self) -> Peer {
        self.asks.unwrap_or(self.peer)
    }

    /// Whether it is the supervisor of a joined stack.
    pub fn is_guest(&self) -> bool {
        self.is_guest
    }

    /// The connection.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Whether it waits for something here.
    fn is_busy(&self) -> bool {
        self.is_guest || self.slowed.is_some() || !self.outbox.is_empty()
    }

    /// A request of an application stays in the socket until it is answered, so that the next supervisor
    /// finds it if this one dies.
    fn requests_stay(&self) -> bool {
        self.door == Door::Applications
    }

    fn drop_request(&self) {
        let _ = self.channel.receive_from(&mut [0; REQUEST_MAX], &mut Vec::new());
    }
}

impl Clients {
    /// Nobody, where so many may be.
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

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// The number of the next one.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The next one's number is not lower than this.
    pub fn skip_to(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    /// The numbers of all.
    pub fn ids(&self) -> Vec<ClientId> {
        self.all.keys().copied().collect()
    }

    /// The client with this number.
    pub fn get(&self, id: ClientId) -> Option<&Client> {
        self.all.get(&id)
    }

    /// Questions of the command line.
    pub fn questions(&self) -> &Questions {
        &self.questions
    }

    /// The same, to be told what has happened.
    pub fn questions_mut(&mut self) -> &mut Questions {
        &mut self.questions
    }

    /// Whether a new connection of this peer is taken. `waits`: clients that wait for something else than
    /// what is here.
    pub fn judge(&self, peer: Peer, waits: impl Fn(ClientId) -> bool) -> Admission {
        self.crowds.judge(&caller(peer), |id| self.is_awaiting(id) || waits(id))
    }

    /// The oldest connection without a session that may go. `waits`: as above.
    pub fn oldest_stranger(&self, waits: impl Fn(ClientId) -> bool) -> Option<ClientId> {
        self.crowds.oldest_stranger(|id| self.is_awaiting(id) || waits(id))
    }

    /// Whether a connection without a session stays: it waits for an answer, or is that of another stack.
    fn is_awaiting(&self, id: ClientId) -> bool {
        self.questions.has(id) || self.all.get(&id).is_some_and(Client::is_busy)
    }

    /// Listens to a client from now on. Gives the connection back if that is impossible.
    pub fn admit(&mut self, channel: Channel, door: Door, peer: Peer) -> Result<ClientId, Channel> {
        let id = ClientId(self.next);
        self.next += 1;
        if self.epoll.add(&channel, id.0, READING).is_err() {
            return Err(channel);
        }
        self.enter(id, Client::new(channel, door, peer));
        Ok(id)
    }

    /// Listens to a client whose connection another supervisor has accepted. Returns whether that is
    /// possible.
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

    /// Whether a session has just begun, or ended, for this connection. `is_in_one`: it is in one.
    pub fn note_standing(&mut self, id: ClientId, is_in_one: bool) {
        // Who is at the door for administration has no session, and is no stranger.
        let is_application = self.all.get(&id).is_some_and(|client| client.door == Door::Applications);
        self.crowds.set_stranger(id, is_application && !is_in_one);
    }

    /// It is the supervisor of a joined stack.
    pub fn set_guest(&mut self, id: ClientId) {
        if let Some(client) = self.all.get_mut(&id) {
            client.is_guest = true;
        }
    }

    /// Whoever is gone is not in any list any more.
    pub fn remove(&mut self, id: ClientId) -> Option<Client> {
        let client = self.all.remove(&id)?;
        // Out of the set: closing does that only if nobody else has it.
        let _ = self.epoll.delete(&client.channel);
        if let Some(due) = client.slowed {
            self.slowed.remove(&(due, id));
        }
        self.crowds.left(id);
        self.questions.forget(id);
        Some(client)
    }

    /// The next one whose connection broke while it was told something.
    pub fn take_broken(&mut self) -> Option<(ClientId, Client)> {
        self.broken.pop_front()
    }

    /// Whether there are such.
    pub fn has_broken(&self) -> bool {
        !self.broken.is_empty()
    }

    /// The next request of a client. `is_gone`: the other end is closed.
    pub fn hear(&mut self, id: ClientId, is_gone: bool, buffer: &mut [u8]) -> Heard {
        let Some(client) = self.all.get(&id) else { return Heard::Nothing };
        let waits = client.slowed.is_some() || self.questions.has(id);
        if waits && is_gone {
            // What it has asked for nobody would get. What it has asked behind that is not read: that could
            // be as much again for each connection.
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

    /// The request of a client is answered, or will be, and need not stay in the socket.
    pub fn handled(&self, id: ClientId) {
        if let Some(client) = self.all.get(&id).filter(|client| client.requests_stay()) {
            client.drop_request();
        }
    }

    /// Whether an application begins so much that this request has to wait. It stays where it is then.
    pub fn is_too_fast(&mut self, id: ClientId, asks: Option<Peer>, packet: &[u8]) -> bool {
        let Some(client) = self.all.get_mut(&id).filter(|client| client.door == Door::Applications) else {
            return false;
        };
        let cost = match Request::decode(packet) {
            Ok(Request::Attach { .. }) => ATTACH_COST,
            Ok(Request::Join { .. }) => JOIN_COST,
            _ => return false,
        };
        // Whoever asks now, which need not be whoever connected.
        let due = self.pace.ask(&caller(asks.unwrap_or(client.peer)), clock::now(), cost).err();
        client.slowed = due;
        self.slowed.extend(due.map(|due| (due, id)));
        due.is_some()
    }

    /// When a client that was too fast has waited long enough.
    pub fn slowed_until(&self) -> Option<Instant> {
        self.slowed.first().map(|(due, _)| *due)
    }

    /// Those go on that have waited long enough.
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

    /// This request of a client is under way from now on. Returns what can be asked over its connection, and
    /// who has made that.
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

    /// Answers the command line.
    pub fn answer(&mut self, id: ClientId, part: &ReportPart) -> io::Result<()> {
        self.send(id, serde_json::to_vec(part).map_err(io::Error::from)?, Vec::new())
    }

    /// Sends a packet to a client.
    pub fn send(&mut self, id: ClientId, packet: Vec<u8>, descriptors: Vec<Rc<OwnedFd>>) -> io::Result<()> {
        let Some(client) = self.all.get_mut(&id) else { return Ok(()) };
        client.outbox.push(packet, descriptors);
        self.flush(id)
    }

    /// Sends what waits for a client, as far as its socket takes it, and listens to it again when it is to be
    /// listened to.
    pub fn flush(&mut self, id: ClientId) -> io::Result<()> {
        let Some(client) = self.all.get_mut(&id) else { return Ok(()) };
        if client.outbox.flush(&client.channel).is_err() {
            let broken = self.remove(id).map(|client| (id, client));
            self.broken.extend(broken);
            return Ok(());
        }
        let wanted = match (client.outbox.is_empty(), client.outbox.is_starved()) {
            // What it asks next waits in its socket.
            (true, _) if self.questions.has(id) || client.slowed.is_some() => EventFlags::empty(),
            (true, _) => READING,
            (false, false) => EventFlags::OUT,
            // There is room in the socket, so that would be said all the time.
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

    /// Sends what the system was short of something for, if it is time.
    pub fn retry(&mut self, now: Instant) -> io::Result<()> {
        if self.retry_at.take_if(|at| now >= *at).is_none() {
            return Ok(());
        }
        let starved = self.all.iter().filter(|(_, client)| client.outbox.is_starved()).map(|(id, _)| *id);
        let starved: Vec<ClientId> = starved.collect();
        starved.into_iter().try_for_each(|id| self.flush(id))
    }

    /// When [`Clients::retry`] is due.
    pub fn retry_due(&self) -> Option<Instant> {
        self.retry_at
    }
}

#[cfg(test)]
impl Clients {
    /// How many wait because they are too fast.
    pub fn slowed(&self) -> usize {
        self.slowed.len()
    }

    /// Whether what somebody is told waits here.
    pub fn have_waiting(&self) -> bool {
        self.all.iter().any(|(id, client)| !client.outbox.is_empty() || self.questions.has(*id))
    }

    /// So many may be connected.
    pub fn set_max(&mut self, clients_max: usize) {
        self.crowds = Crowds::new(clients_max);
    }
}

const READING: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);
/// Longest request of a client.
pub const REQUEST_MAX: usize = 4096;

//! What the library knows in one process, and what events do to it: everything that it decides without a
//! system call.
//!
//! A [`Client`] has sessions (what it shares with replicas), objects (sockets and epoll instances, by number)
//! and the threads that sleep on them. Its owner provides descriptors, system calls, waiting and the lock
//! around it: `bin/preload` for programs, the simulator for its processes.
//!
//! ```text
//!   program    calls ---> Client ---> commands, doorbells ---> replica
//!              sleeps <-- readiness, doorbells <-- events <---
//! ```
//! * [`platform`]: what the process around it provides; [`simulated`]: such a process on the heap
//! * [`session`]: pages, rings and doorbells; [`object`]: sockets and epoll instances; [`groups`]: what a
//!   socket wants of multicast
//! * `sleepers`, `questions`, `buffers`: which threads sleep where, which answers are awaited, which process
//!   owns send buffers
//! * `binding`, `connecting`: how a socket gets a port, listens, connects; [`options`]: which options are
//!   sent to replicas
//! * [`transfer`]: send and receive; `splicing`: from a connection to a pipe
//! * `raw`: what raw sockets of ICMP have besides
//! * `notify`: readiness, and which threads wake up; `events`: what replicas have sent; `listening`: accept
//! * `gone`: what becomes of sockets when their stack goes, and comes back
//! * `interest`: epoll's lists; `closing`: close and what follows; `inheriting`: after fork, exec and passing
//! * [`exec_state`]: what is written down for the next program, and beside a socket that is passed;
//!   `written`: how types of other crates are

mod binding;
mod buffers;
mod closing;
mod connecting;
mod events;
pub mod exec_state;
mod fault_queue;
mod faults;
mod gone;
pub mod groups;
mod inheriting;
mod interest;
mod listening;
pub mod multicast;
mod notify;
pub mod object;
pub mod options;
pub mod platform;
mod questions;
mod raw;
pub mod session;
pub mod simulated;
mod sleepers;
mod splicing;
pub mod transfer;
mod written;

#[cfg(test)]
mod tests;

use alloc::vec::Vec;
use core::cell::Cell;

use atoll_base::{Instant, Rng, Slab};
use atoll_ipc::Command;
use atoll_ipc::command::SocketOption;
use atoll_ipc::details::TimeOfDay;
use atoll_ipc::slot::Slot;

use self::buffers::Buffers;
use self::object::{Body, Kind, Object, Owner, Place, Set, Socket};
use self::platform::{Clock, Platform};
use self::questions::Questions;
use self::session::{Session, Turn};
use self::sleepers::Sleepers;
use crate::Failure;
use crate::datagram::Datagrams;
use crate::listener::Listener;
use crate::stream::{Local, Stream};
use crate::watch::{Head, Watches};

pub use self::binding::{Binding, Registration};
pub use self::closing::Lingering;
pub use self::connecting::Connecting;
pub use self::gone::Losses;
pub use self::inheriting::PassedPort;
pub use self::interest::Change;
pub use self::questions::Answer;

/// The state of all Atoll sockets of one process.
#[derive(Debug)]
pub struct Client<P: Platform> {
    /// The process's own session first, then the inherited ones.
    sessions: Vec<Session<P>>,
    objects: Slab<Object<P>>,
    watches: Watches,
    sleepers: Sleepers,
    questions: Questions,
    /// The listening sockets, by lease.
    listeners: Vec<(u64, u32)>,
    /// Whether there may be listeners that are watched and do not accept: inherited ones, and those whose
    /// process was busy.
    listeners_idle: bool,
    /// Objects whose slots are in inherited sessions. No events come for them, so they are polled.
    inherited: Vec<u32>,
    /// The slots of sockets that were passed on and closed, which are held until the receiver has them or the
    /// time is over.
    passed: Vec<(Place, Instant)>,
    /// Whether a call for a socket had no turn in its arena since the last [`Client::drain`].
    missed: Cell<bool>,
    /// The connections that own send buffers.
    buffers: Buffers,
    /// The objects whose owner gets SIGURG.
    owned: Vec<u32>,
    /// The owners that are to get SIGURG now.
    signals: Vec<Owner>,
    /// The doorbell of the thread that watches for urgent octets; 0 if there is none.
    urgent_bell: u32,
    clock: Option<P::Clock>,
    rng: Rng,
}

impl<P: Platform> Client<P> {
    /// Creates a client without sessions or objects.
    pub const fn new() -> Client<P> {
        Client {
            sessions: Vec::new(),
            objects: Slab::new(),
            watches: Watches::new(),
            sleepers: Sleepers::new(),
            questions: Questions::new(),
            listeners: Vec::new(),
            listeners_idle: false,
            inherited: Vec::new(),
            passed: Vec::new(),
            missed: Cell::new(false),
            buffers: Buffers::new(),
            owned: Vec::new(),
            signals: Vec::new(),
            urgent_bell: 0,
            clock: None,
            rng: Rng::new(0),
        }
    }

    /// Makes a session this process's own, with the stack's clock. `seed` decides everything that is random.
    pub fn adopt(&mut self, session: Session<P>, clock: P::Clock, seed: u64) {
        self.clock = Some(clock);
        self.rng = Rng::new(seed);
        self.sessions.insert(0, session);
    }

    /// Returns the time of day; `None` before a stack is joined.
    pub(crate) fn time_of_day(&self) -> Option<TimeOfDay> {
        self.clock.as_ref().and_then(|clock| TimeOfDay::from_nanos(clock.time_of_day()))
    }

    /// Returns the current time of the stack's clock; zero before a stack is joined.
    #[inline]
    pub fn now(&self) -> Instant {
        self.clock.as_ref().map_or(Instant::ZERO, Clock::now)
    }

    /// Returns the generator of random numbers.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    // ---- sessions ----

    /// Returns the process's own session, if it has joined a stack.
    #[inline]
    pub fn own(&self) -> Option<&Session<P>> {
        self.sessions.first()
    }

    /// Returns the process's own session for writing, if it has joined a stack.
    #[inline]
    pub fn own_mut(&mut self) -> Option<&mut Session<P>> {
        self.sessions.first_mut()
    }

    /// Returns all sessions: the process's own first, then the inherited ones.
    #[inline]
    pub fn sessions(&self) -> &[Session<P>] {
        &self.sessions
    }

    /// Adds a session that this process is a member of, and returns its index.
    pub fn add_session(&mut self, session: Session<P>) -> usize {
        self.sessions.push(session);
        self.sessions.len() - 1
    }

    /// Returns the number of replicas of the process's own session; 0 without one.
    #[inline]
    pub fn replicas(&self) -> usize {
        self.own().map_or(0, Session::count)
    }

    /// Sends a command to a replica of a session.
    #[inline]
    pub fn push(&mut self, session: usize, replica: usize, command: &Command) {
        if let Some(session) = self.sessions.get_mut(session) {
            session.push(replica, command);
        }
    }

    /// Asks the replica of a place to read its slot.
    #[inline]
    pub fn kick(&mut self, place: Place) {
        let Place { session, replica, slot, generation } = place;
        self.push(session, replica, &Command::Kick { slot, generation });
    }

    /// Sends waiting commands as far as there is room. Returns whether some still wait for a replica that is
    /// worth waiting for.
    pub fn send_waiting(&mut self) -> bool {
        let now = self.now();
        self.sessions.iter_mut().fold(false, |hopes, session| session.send_waiting(now) | hopes)
    }

    /// Returns whether commands wait for room in a ring.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        self.sessions.iter().any(Session::has_waiting)
    }

    /// Returns whether a command was sent since the last call that has to wait for room: the thread that sent
    /// it is to be slowed down.
    #[inline]
    pub fn take_owed(&mut self) -> bool {
        self.sessions.iter().any(Session::owes) && self.take_owed_of_all()
    }

    #[cold]
    fn take_owed_of_all(&mut self) -> bool {
        self.sessions.iter_mut().fold(false, |owes, session| session.take_owed() | owes)
    }

    // ---- objects ----

    /// Stores an object and returns its number.
    pub fn insert(&mut self, object: Object<P>) -> u32 {
        self.objects.insert(object)
    }

    /// Removes an object to which nothing refers yet.
    pub fn remove(&mut self, object: u32) {
        self.objects.remove(object);
    }

    /// Returns the numbers of all objects.
    pub fn indices(&self) -> Vec<u32> {
        self.objects.indices()
    }

    /// Returns an object.
    #[inline]
    pub fn object(&self, object: u32) -> Option<&Object<P>> {
        self.objects.get(object)
    }

    /// Returns an object for writing.
    #[inline]
    pub fn object_mut(&mut self, object: u32) -> Option<&mut Object<P>> {
        self.objects.get_mut(object)
    }

    /// Returns an object that is a socket; `None` for others.
    #[inline]
    pub fn socket(&self, object: u32) -> Option<&Socket> {
        match &self.objects.get(object)?.body {
            Body::Socket(socket) => Some(socket),
            Body::Epoll(_) => None,
        }
    }

    /// Returns an object that is a socket, for writing; `None` for others.
    #[inline]
    pub fn socket_mut(&mut self, object: u32) -> Option<&mut Socket> {
        match &mut self.objects.get_mut(object)?.body {
            Body::Socket(socket) => Some(socket),
            Body::Epoll(_) => None,
        }
    }

    /// Returns an object that is an epoll instance; `None` for others.
    pub fn set(&self, object: u32) -> Option<&Set<P>> {
        match &self.objects.get(object)?.body {
            Body::Epoll(set) => Some(set),
            Body::Socket(_) => None,
        }
    }

    /// Returns an object that is an epoll instance, for writing; `None` for others.
    #[inline]
    pub fn set_mut(&mut self, object: u32) -> Option<&mut Set<P>> {
        match &mut self.objects.get_mut(object)?.body {
            Body::Epoll(set) => Some(set),
            Body::Socket(_) => None,
        }
    }

    /// Returns an object that is a listening socket; `None` for others.
    pub fn listener(&self, object: u32) -> Option<&Listener> {
        match &self.socket(object)?.kind {
            Kind::Listening(listener) => Some(listener),
            _ => None,
        }
    }

    /// Returns an object that is a listening socket, for writing; `None` for others.
    pub fn listener_mut(&mut self, object: u32) -> Option<&mut Listener> {
        match &mut self.socket_mut(object)?.kind {
            Kind::Listening(listener) => Some(listener),
            _ => None,
        }
    }

    /// Returns whether calls on the object do not wait.
    pub fn is_nonblocking(&self, object: u32) -> bool {
        self.objects.get(object).is_some_and(|object| object.nonblocking)
    }

    /// Returns the connection of a socket, with the facts that only this process has. For a shared session
    /// it is the caller's turn ([`Client::turn`]).
    #[inline]
    pub fn stream(&mut self, object: u32) -> Option<(Stream<'_, P::Memory>, &mut Local, Place)> {
        let Body::Socket(socket) = &mut self.objects.get_mut(object)?.body else { return None };
        let Kind::Stream(place, local) = &mut socket.kind else { return None };
        let place = *place;
        let port = self.sessions.get(place.session)?.replicas().get(place.replica)?.port();
        Some((Stream::new(port, place.slot, place.generation)?, local, place))
    }

    /// Returns the connection in a slot, for a look at it.
    #[inline]
    pub(super) fn stream_at(&self, place: Place) -> Option<Stream<'_, P::Memory>> {
        let port = self.sessions.get(place.session)?.replicas().get(place.replica)?.port();
        Stream::new(port, place.slot, place.generation)
    }

    /// Returns a view of one slot of a datagram socket.
    pub fn datagrams(&self, place: Place) -> Option<Datagrams<'_, P::Memory>> {
        let port = self.sessions.get(place.session)?.replicas().get(place.replica)?.port();
        Some(Datagrams::new(port, place.slot, place.generation))
    }

    /// Returns the slot of a place.
    pub fn slot_of(&self, place: Place) -> Option<Slot<'_, P::Memory>> {
        self.sessions.get(place.session)?.replicas().get(place.replica)?.port().slot(place.slot)
    }

    /// Begins a turn of this process in the arena of a socket, which ends when the value is dropped. Fails
    /// with [`Failure::WouldBlock`] if another process of the family has its turn, which may be stopped in
    /// it: nothing has been done then, and the call can be repeated. [`Client::drain`] announces the socket.
    // On the fast path: most processes share no session.
    #[inline(always)]
    pub fn turn(&self, object: u32) -> Result<Turn<P>, Failure> {
        let has_family = self.sessions.iter().any(|session| session.shared);
        if has_family { self.turn_in_family(object) } else { Ok(Turn::of_nobody()) }
    }

    #[inline(never)]
    fn turn_in_family(&self, object: u32) -> Result<Turn<P>, Failure> {
        let place = self.socket(object).and_then(|socket| socket.places().first());
        let Some(place) = place else { return Ok(Turn::of_nobody()) };
        let Some(session) = self.sessions.get(place.session) else { return Ok(Turn::of_nobody()) };
        let Some(replica) = session.replicas().get(place.replica) else { return Ok(Turn::of_nobody()) };
        replica.turn(session.shared).ok_or_else(|| {
            self.missed.set(true);
            Failure::WouldBlock
        })
    }

    /// Takes a slot of the process's own session for a socket.
    pub fn new_place(&mut self, object: u32, replica: usize) -> Option<Place> {
        let bell = self.socket(object).map_or(0, |socket| socket.bell);
        let (slot, generation) = self.sessions.first_mut()?.allocate(replica, object, bell)?;
        Some(Place { session: 0, replica, slot, generation })
    }

    /// Records which object uses a slot.
    pub fn set_user(&mut self, place: Place, object: u32) {
        let session = self.sessions.get_mut(place.session);
        if let Some(replica) = session.and_then(|session| session.replicas_mut().get_mut(place.replica)) {
            replica.set_user(place.slot, object);
        }
    }

    /// Returns the list of watches on an object.
    pub fn watchers(&self, object: u32) -> Head {
        self.objects.get(object).map(|object| object.watchers).unwrap_or_default()
    }

    // ---- options ----

    /// Sends the value of an option to the replicas that have the socket.
    pub fn send_option(&mut self, object: u32, option: SocketOption, value: u32) {
        let Some(Object { body: Body::Socket(socket), .. }) = self.objects.get(object) else { return };
        for Place { session, replica, slot, generation } in socket.places() {
            let (slot, generation) = (*slot, *generation);
            let command = Command::SetOption { slot, generation, option, value };
            if let Some(session) = self.sessions.get_mut(*session) {
                session.push(*replica, &command);
            }
        }
        if let Kind::Listening(_) = socket.kind {
            let lease = socket.lease;
            let Some(session) = self.sessions.first_mut() else { return };
            for replica in 0..session.count() {
                session.push(replica, &Command::SetListenerOption { lease, option, value });
            }
        }
    }

    // ---- SIGURG ----

    /// Sets the process, thread or group that gets SIGURG of a socket; the id 0 means none. Implements
    /// fcntl(2), `F_SETOWN`.
    pub fn set_owner(&mut self, object: u32, owner: Owner) -> bool {
        let Some(entry) = self.objects.get_mut(object) else { return false };
        entry.owner = owner;
        self.owned.retain(|owned| *owned != object);
        if owner.id != 0 {
            self.owned.push(object);
        }
        self.restore_bell(object);
        true
    }

    /// Sets the doorbell of the thread that urgent octets wake from now on, for sockets with an owner; 0 if
    /// there is no such thread any more. Events that have rung its doorbell before are still to be taken.
    pub fn set_urgent_bell(&mut self, bell: u32) {
        self.urgent_bell = bell;
        for at in 0..self.owned.len() {
            self.restore_bell(self.owned[at]);
        }
    }

    /// Returns whether owners are to get SIGURG.
    #[inline]
    pub fn has_signals(&self) -> bool {
        !self.signals.is_empty()
    }

    /// Takes the owners that are to get SIGURG now.
    pub fn take_signals(&mut self) -> Vec<Owner> {
        core::mem::take(&mut self.signals)
    }

    /// Notes that the owner of a connection gets SIGURG, once, if the urgent mark has moved.
    pub fn notify_owner(&mut self, object: u32) {
        if !self.owned.contains(&object) {
            return;
        }
        let Some(owner) = self.objects.get(object).map(|entry| entry.owner) else { return };
        let mark = self.stream(object).and_then(|(stream, ..)| stream.slot().mark());
        let Some(Object { marked, .. }) = self.objects.get_mut(object) else { return };
        if mark.is_some() && *marked != mark {
            *marked = mark;
            self.signals.push(owner);
        }
    }
}

impl<P: Platform> Default for Client<P> {
    fn default() -> Client<P> {
        Client::new()
    }
}

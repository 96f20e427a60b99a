//! What does the library know in this process? Sessions, objects, descriptors, sleepers.

use std::sync::atomic::{AtomicU32, Ordering};

use atoll_base::{Endpoint, Rng, SlotId};
use atoll_ipc::command::{CloseMode, Protocol, SocketOption};
use atoll_ipc::page::BELLS;
use atoll_ipc::{Cause, Command, Event};
use atoll_sockets::datagram::Datagrams;
use atoll_sockets::listener::{Listener, Offer};
use atoll_sockets::slab::Slab;
use atoll_sockets::stream::{Local, Stream};
use atoll_sockets::watch::{Head, Watches};
use atoll_sys::Clock;
use atoll_sys::unix::Channel;

use crate::lock::Locked;
use crate::session::{NOBODY, Session};

/// Descriptors that can be Atoll's.
const FDS_MAX: usize = 1 << 20;
/// In the table: an internal descriptor that programs must not touch.
const HIDDEN: u32 = u32::MAX;

/// Object number + 1 by descriptor; 0: the kernel's.
static FDS: [AtomicU32; FDS_MAX] = [const { AtomicU32::new(0) }; FDS_MAX];

/// The state of this process.
pub static STATE: Locked<State> = Locked::new(State::new());

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fd {
    Kernel,
    Hidden,
    Object(u32),
}

/// Looks a descriptor up. A few instructions for the kernel's.
#[inline]
pub fn lookup(fd: i32) -> Fd {
    match FDS.get(fd as usize).map_or(0, |entry| entry.load(Ordering::Relaxed)) {
        0 => Fd::Kernel,
        HIDDEN => Fd::Hidden,
        n => Fd::Object(n - 1),
    }
}

/// Ties a descriptor to an object, or to the kernel.
pub fn set_fd(fd: i32, object: Option<u32>) {
    if let Some(entry) = FDS.get(fd as usize) {
        entry.store(object.map_or(0, |object| object + 1), Ordering::Relaxed);
    }
}

/// Keeps an internal descriptor from the program.
pub fn hide(fd: i32) {
    if let Some(entry) = FDS.get(fd as usize) {
        entry.store(HIDDEN, Ordering::Relaxed);
    }
}

/// All descriptors from `first` to `last` that are objects.
pub fn objects_between(first: u32, last: u32) -> Vec<(i32, u32)> {
    let last = (last as usize).min(FDS_MAX - 1);
    (first as usize..=last)
        .filter_map(|fd| match lookup(fd as i32) {
            Fd::Object(object) => Some((fd as i32, object)),
            _ => None,
        })
        .collect()
}

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub session: usize,
    pub replica: usize,
    pub slot: SlotId,
    pub generation: u32,
}

/// What a socket has become.
#[derive(Debug)]
pub enum Kind {
    /// Nothing yet: the kernel's placeholder answers for it.
    Fresh,
    /// Bound to a port of the stack.
    Bound,
    Listening(Box<Listener>),
    Stream(Place, Local),
    /// One slot on each replica of the own session.
    Datagram {
        places: Vec<Place>,
        connected: bool,
        next: usize,
    },
}

/// Options that live here; the numbers are those of the socket API.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub nodelay: bool,
    pub cork: bool,
    pub quickack: bool,
    pub keepalive: bool,
    pub keep_idle: u32,
    pub keep_interval: u32,
    pub keep_count: u32,
    pub user_timeout: u32,
    pub reuse_addr: bool,
    pub reuse_port: bool,
    pub broadcast: bool,
    pub v6_only: bool,
    pub oob_inline: bool,
    pub linger: Option<u32>,
    pub receive_timeout_us: u64,
    pub send_timeout_us: u64,
    pub receive_buffer: u32,
    pub send_buffer: u32,
    pub defer_accept: u32,
    pub max_segment: u32,
    pub ttl: u32,
    pub tos: u32,
    pub linger2: u32,
    pub reno: bool,
}

/// A socket or an epoll instance.
#[derive(Debug)]
pub struct Object {
    /// Descriptors of this process that name it.
    pub descriptors: u32,
    pub nonblocking: bool,
    pub body: Body,
    /// Watches of epoll instances on it.
    pub watchers: Head,
}

#[derive(Debug)]
pub enum Body {
    Socket(Socket),
    Epoll(Set),
}

#[derive(Debug)]
pub struct Socket {
    pub protocol: Protocol,
    /// An AF_INET6 socket that speaks IPv4 (RFC 3493 §3.7).
    pub v6: bool,
    pub kind: Kind,
    pub lease: u64,
    pub local: Endpoint,
    pub remote: Endpoint,
    pub options: Options,
    /// Bell that its events ring.
    pub bell: u32,
    /// The descriptor came from the pool of placeholders.
    pub pooled: bool,
    /// connect(2) has reported success or failure already.
    pub connect_reported: bool,
}

#[derive(Debug)]
pub struct Set {
    pub fd: i32,
    pub members: Head,
    pub ready: Head,
    pub bell: u32,
    /// Kernel descriptors in the real instance.
    pub kernel_members: u32,
    /// Cycle-counter time of the last look at the kernel's, and calls since.
    pub kernel_looked: u64,
    pub calls_since: u32,
}

/// A thread that sleeps in a call on one object.
#[derive(Clone, Copy, Debug)]
pub struct Sleeper {
    pub object: u32,
    pub bell: u32,
}

pub struct State {
    pub channel: Option<Channel>,
    /// The own session first; inherited ones after it.
    pub sessions: Vec<Session>,
    pub objects: Slab<Object>,
    pub watches: Watches,
    pub sleepers: Vec<Sleeper>,
    /// Threads that sleep on each bell.
    pub bell_users: [u32; BELLS],
    pub next_bell: u32,
    pub rng: Rng,
    pub clock: Option<Clock>,
    /// Answers to commands, by token.
    pub replies: Vec<(u32, Cause, u16)>,
    pub next_token: u32,
    /// Listening sockets, by lease.
    pub listeners: Vec<(u64, u32)>,
    /// Descriptor numbers kept for accepted connections.
    pub pool: Vec<i32>,
    /// The stack could not be joined: everything is the kernel's.
    pub refused: bool,
    pub calls: u64,
    pub system_calls: u64,
}

impl State {
    pub const fn new() -> State {
        State {
            channel: None,
            sessions: Vec::new(),
            objects: Slab::new(),
            watches: Watches::new(),
            sleepers: Vec::new(),
            bell_users: [0; BELLS],
            next_bell: 0,
            rng: Rng::new(0),
            clock: None,
            replies: Vec::new(),
            next_token: 1,
            listeners: Vec::new(),
            pool: Vec::new(),
            refused: false,
            calls: 0,
            system_calls: 0,
        }
    }

    /// Joins the stack that `ATOLL_SOCKET` names, once. Returns whether there is one.
    pub fn join(&mut self) -> bool {
        if !self.sessions.is_empty() {
            return true;
        }
        if self.refused {
            return false;
        }
        let Some(path) = std::env::var_os("ATOLL_SOCKET") else {
            self.refused = true;
            return false;
        };
        let channel = crate::session::connect(std::path::Path::new(&path));
        let session = channel.as_ref().and_then(Session::attach);
        let (Some(channel), Some(session)) = (channel, session) else {
            self.refused = true;
            eprintln!(
                "libatoll: the stack at {} cannot be joined; this program uses the kernel's sockets",
                path.display()
            );
            return false;
        };
        self.clock = Some(session.clock());
        let mut seed = [0; 8];
        let _ = atoll_sys::process::random(&mut seed);
        self.rng = Rng::new(u64::from_ne_bytes(seed));
        self.channel = Some(channel);
        self.sessions.push(session);
        true
    }

    /// A bell for a new thread or epoll instance; they share when there are more than bells.
    pub fn new_bell(&mut self) -> u32 {
        self.next_bell = self.next_bell.wrapping_add(1);
        self.next_bell % BELLS as u32
    }

    pub fn socket(&self, object: u32) -> Option<&Socket> {
        match &self.objects.get(object)?.body {
            Body::Socket(socket) => Some(socket),
            Body::Epoll(_) => None,
        }
    }

    pub fn socket_mut(&mut self, object: u32) -> Option<&mut Socket> {
        match &mut self.objects.get_mut(object)?.body {
            Body::Socket(socket) => Some(socket),
            Body::Epoll(_) => None,
        }
    }

    pub fn set_mut(&mut self, object: u32) -> Option<&mut Set> {
        match &mut self.objects.get_mut(object)?.body {
            Body::Epoll(set) => Some(set),
            Body::Socket(_) => None,
        }
    }

    /// The connection of a socket, with the facts that only this process knows.
    #[inline]
    pub fn stream(&mut self, object: u32) -> Option<(Stream<'_, atoll_shm::ShmMemory>, &mut Local, Place)> {
        let Object { body: Body::Socket(socket), .. } = self.objects.get_mut(object)? else { return None };
        let Kind::Stream(place, local) = &mut socket.kind else { return None };
        let place = *place;
        let port = &self.sessions.get(place.session)?.replicas.get(place.replica)?.port;
        Some((Stream::new(port, place.slot, place.generation)?, local, place))
    }

    /// The family's lock for the arena of a connection, if other processes share it.
    pub fn guard(&self, object: u32) -> Option<crate::session::Guard> {
        let Kind::Stream(place, _) = &self.socket(object)?.kind else { return None };
        self.sessions.get(place.session)?.guard(place.replica)
    }

    /// One slot of a datagram socket.
    pub fn datagrams(&self, place: Place) -> Option<Datagrams<'_, atoll_shm::ShmMemory>> {
        let port = &self.sessions.get(place.session)?.replicas.get(place.replica)?.port;
        Some(Datagrams::new(port, place.slot, place.generation))
    }

    /// Tells a replica to look at a slot.
    #[inline]
    pub fn kick(&mut self, place: Place) {
        let Place { session, replica, slot, generation } = place;
        if let Some(session) = self.sessions.get_mut(session) {
            session.push(replica, &Command::Kick { slot, generation });
        }
    }

    /// Takes what the replicas have sent, and wakes those of this process whom it concerns.
    pub fn drain(&mut self) {
        for session in 0..self.sessions.len() {
            let mut family = false;
            for replica in 0..self.sessions[session].replicas.len() {
                let mut any = false;
                let guard = self.sessions[session].guard(replica);
                if guard.is_some() {
                    self.sessions[session].replicas[replica].port.reload();
                }
                loop {
                    let port = &mut self.sessions[session].replicas[replica].port;
                    let Some(event) = port.next_event() else { break };
                    any = true;
                    self.handle_event(session, replica, event);
                }
                let from = &mut self.sessions[session].replicas[replica];
                if any {
                    from.port.publish();
                    family |= guard.is_some();
                }
                let overflow = from.port.overflow();
                if overflow != from.overflow_seen {
                    from.overflow_seen = overflow;
                    from.port.sweep();
                    self.rescan();
                }
            }
            if self.sessions[session].shared {
                // Whichever process takes an event, the others look for themselves.
                if family {
                    for bell in 0..BELLS as u32 {
                        self.sessions[session].wake(bell);
                    }
                }
                self.rescan_session(session);
            }
        }
    }

    /// Looks at every socket in a session: other processes may have taken its events.
    fn rescan_session(&mut self, session: usize) {
        for object in self.objects.indices() {
            let here = match self.socket(object).map(|s| &s.kind) {
                Some(Kind::Stream(place, _)) => place.session == session,
                Some(Kind::Datagram { places, .. }) => places.first().is_some_and(|place| place.session == session),
                _ => false,
            };
            if here {
                let ready = self.readiness(object);
                self.announce_quietly(object, ready);
            }
        }
    }

    fn handle_event(&mut self, session: usize, replica: usize, event: Event) {
        match event {
            Event::Ready { slot, generation, ready } => {
                let object = self.sessions[session].replicas[replica].user(slot);
                if object != NOBODY && self.is_at(object, session, replica, slot, generation) {
                    self.announce(object, ready.0);
                }
            }
            Event::ConnectionAvailable { listener, slot, generation, local, remote } => {
                let offer = Offer { replica: replica as u8, slot, generation, local, remote };
                if let Some(object) = self.listener_with(listener)
                    && let Some(Socket { kind: Kind::Listening(listener), .. }) = self.socket_mut(object)
                {
                    listener.offer(offer);
                    self.announce(object, 1);
                }
            }
            Event::ClaimVerdict { slot, generation, confirmed } => {
                for object in self.objects.indices() {
                    if let Some(Socket { kind: Kind::Listening(listener), .. }) = self.socket_mut(object)
                        && listener.claimed.is_some_and(|c| {
                            c.slot == slot && c.generation == generation && usize::from(c.replica) == replica
                        })
                    {
                        listener.verdict = Some(confirmed);
                        self.announce(object, 1);
                    }
                }
            }
            Event::AcceptorRemoved { listener } => {
                if let Some(object) = self.listener_with(listener)
                    && let Some(Socket { kind: Kind::Listening(listening), .. }) = self.socket_mut(object)
                {
                    listening.accepting &= !(1 << replica);
                    self.accept_connections(object);
                }
            }
            Event::SlotDone { slot, generation } => {
                self.sessions[session].replicas[replica].port.slot_done(slot, generation);
            }
            Event::BindReply { token, cause, port } => self.reply(token, cause, port),
            Event::ListenReply { token, cause } | Event::InfoReply { token, cause } => self.reply(token, cause, 0),
        }
    }

    fn reply(&mut self, token: u32, cause: Cause, port: u16) {
        self.replies.push((token, cause, port));
        // Whoever waits for it looks after every wake-up.
        for bell in 0..BELLS as u32 {
            if self.bell_users[bell as usize] > 0 {
                self.sessions[0].wake(bell);
            }
        }
    }

    fn is_at(&self, object: u32, session: usize, replica: usize, slot: SlotId, generation: u32) -> bool {
        let wanted = Place { session, replica, slot, generation };
        match self.socket(object).map(|socket| &socket.kind) {
            Some(Kind::Stream(place, _)) => *place == wanted,
            Some(Kind::Datagram { places, .. }) => places.contains(&wanted),
            _ => false,
        }
    }

    fn listener_with(&self, lease: u64) -> Option<u32> {
        self.listeners.iter().find(|(known, _)| *known == lease).map(|(_, object)| *object)
    }

    /// Something of `ready` may hold for an object now: queues it for its epoll instances, and wakes sleepers.
    pub fn announce(&mut self, object: u32, ready: u32) {
        let ready = ready | (ready & 1) << 6 | (ready & 4) << 6;
        let Some(head) = self.objects.get(object).map(|o| o.watchers) else { return };
        let mut watch = self.watches.first(&head);
        while let Some(set) = self.watches.get(watch).map(|w| w.set) {
            if let Some(Object { body: Body::Epoll(in_set), .. }) = self.objects.get_mut(set)
                && self.watches.queue(watch, ready, &mut in_set.ready)
            {
                let bell = in_set.bell;
                if self.bell_users[bell as usize] > 0 {
                    self.sessions[0].wake(bell);
                }
            }
            watch = self.watches.next_of_target(watch);
        }
        for sleeper in &self.sleepers {
            if sleeper.object == object {
                self.sessions[0].wake(sleeper.bell);
            }
        }
    }

    /// Queues an object for its epoll instances without waking anybody.
    fn announce_quietly(&mut self, object: u32, ready: u32) {
        let Some(head) = self.objects.get(object).map(|o| o.watchers) else { return };
        let mut watch = self.watches.first(&head);
        while let Some(set) = self.watches.get(watch).map(|w| w.set) {
            if let Some(Object { body: Body::Epoll(in_set), .. }) = self.objects.get_mut(set) {
                self.watches.queue(watch, ready, &mut in_set.ready);
            }
            watch = self.watches.next_of_target(watch);
        }
    }

    /// Events were lost: every socket may be ready.
    fn rescan(&mut self) {
        for object in self.objects.indices() {
            self.announce(object, u32::MAX >> 1);
        }
    }

    /// The bits of poll(2) that hold for an object now.
    pub fn readiness(&mut self, object: u32) -> u32 {
        let Some(Object { body, .. }) = self.objects.get(object) else { return 0x20 };
        match body {
            Body::Epoll(_) => self.set_readiness(object),
            Body::Socket(socket) => match &socket.kind {
                Kind::Fresh | Kind::Bound => 0x14,
                Kind::Listening(listener) => {
                    if listener.offers.is_empty() && listener.verdict.is_none() {
                        0
                    } else {
                        0x41
                    }
                }
                Kind::Stream(..) => self.stream(object).map_or(0x18, |(stream, local, _)| stream.readiness(local)),
                Kind::Datagram { places, .. } => {
                    let mut bits = 0;
                    for place in places {
                        let Some(one) = self.datagrams(*place) else { continue };
                        bits |= if one.has_waiting() { 0x41 } else { 0 };
                        bits |= if one.is_writable() { 0x104 } else { 0 };
                    }
                    bits
                }
            },
        }
    }

    fn set_readiness(&mut self, object: u32) -> u32 {
        let Some(mut ready) = self.set_mut(object).map(|set| std::mem::take(&mut set.ready)) else { return 0 };
        let mut watches = std::mem::take(&mut self.watches);
        let is_ready = watches.is_ready(&mut ready, |target| self.readiness(target));
        self.watches = watches;
        if let Some(set) = self.set_mut(object) {
            set.ready = ready;
        }
        u32::from(is_ready) * 0x41
    }

    /// ACCEPT-CONNECTION to every replica that does not know yet.
    pub fn accept_connections(&mut self, object: u32) {
        let Some(Socket { kind: Kind::Listening(listener), lease, .. }) = self.socket_mut(object) else { return };
        let (accepting, lease) = (listener.accepting, *lease);
        let Some(session) = self.sessions.first_mut() else { return };
        let mut now = accepting;
        for replica in 0..session.replicas.len() {
            if accepting & (1 << replica) == 0 {
                session.push(replica, &Command::AcceptConnection { lease });
                now |= 1 << replica;
            }
        }
        if let Some(Socket { kind: Kind::Listening(listener), .. }) = self.socket_mut(object) {
            listener.accepting = now;
        }
    }

    /// Nobody of this process waits for connections of the listener any more.
    pub fn stop_accepting(&mut self, object: u32) {
        let Some(Socket { kind: Kind::Listening(listener), lease, .. }) = self.socket_mut(object) else { return };
        let (accepting, lease) = (std::mem::take(&mut listener.accepting), *lease);
        let Some(session) = self.sessions.first_mut() else { return };
        for replica in (0..session.replicas.len()).filter(|replica| accepting & (1 << replica) != 0) {
            session.push(replica, &Command::StopAccepting { lease });
        }
    }

    /// Sets the bell that events of the object ring.
    pub fn set_bell(&mut self, object: u32, bell: u32) {
        let Some(socket) = self.socket_mut(object) else { return };
        let places: Vec<Place> = match &socket.kind {
            Kind::Stream(place, _) => vec![*place],
            Kind::Datagram { places, .. } => places.clone(),
            _ => return,
        };
        for place in places {
            if let Some(slot) = self.sessions[place.session].replicas[place.replica].port.slot(place.slot) {
                slot.set_bell(bell);
            }
        }
    }

    /// One descriptor of the object is gone. The last one closes it.
    pub fn release(&mut self, object: u32) {
        let Some(entry) = self.objects.get_mut(object) else { return };
        entry.descriptors = entry.descriptors.saturating_sub(1);
        if entry.descriptors > 0 {
            return;
        }
        self.unwatch_all(object);
        let Some(entry) = self.objects.remove(object) else { return };
        let Body::Socket(socket) = entry.body else { return };
        let mode = if socket.options.linger == Some(0) { CloseMode::Abort } else { CloseMode::Graceful };
        match socket.kind {
            Kind::Fresh => {}
            Kind::Bound => self.release_lease(socket.lease, socket.local.port),
            Kind::Listening(_) => {
                self.listeners.retain(|(_, listening)| *listening != object);
                self.release_listener(socket.lease);
            }
            Kind::Stream(place, _) => {
                self.close_place(place, mode);
                if socket.lease != 0 {
                    self.release_lease(socket.lease, socket.local.port);
                }
            }
            Kind::Datagram { places, .. } => {
                for place in places {
                    self.close_place(place, CloseMode::Graceful);
                }
                self.release_lease(socket.lease, socket.local.port);
            }
        }
    }

    fn close_place(&mut self, place: Place, mode: CloseMode) {
        let Some(session) = self.sessions.get_mut(place.session) else { return };
        let member = session.member;
        let guard = session.guard(place.replica);
        let replica = &mut session.replicas[place.replica];
        replica.set_user(place.slot, NOBODY);
        if replica.port.slot(place.slot).is_none_or(|slot| slot.remove_holder(member) != 0) {
            return;
        }
        replica.port.mark_closing(place.slot, place.generation);
        drop(guard);
        let (slot, generation) = (place.slot, place.generation);
        session.push(place.replica, &Command::Close { slot, generation, mode });
    }

    fn release_listener(&mut self, lease: u64) {
        let Some(session) = self.sessions.first_mut() else { return };
        for replica in 0..session.replicas.len() {
            session.push(replica, &Command::Release { lease });
        }
    }

    /// shutdown(2) of a listener.
    pub fn stop_listening(&mut self, object: u32) {
        self.listeners.retain(|(_, listening)| *listening != object);
        if let Some(socket) = self.socket_mut(object) {
            socket.kind = Kind::Fresh;
            let lease = std::mem::take(&mut socket.lease);
            self.release_listener(lease);
        }
    }

    fn release_lease(&mut self, lease: u64, port: u16) {
        if lease == 0 {
            return;
        }
        let Some(session) = self.sessions.first_mut() else { return };
        let authority = usize::from(port) % session.replicas.len();
        session.push(authority, &Command::Release { lease });
    }

    /// Takes an object out of all interest lists, and an epoll instance's members out of it.
    fn unwatch_all(&mut self, object: u32) {
        while let Some(head) = self.objects.get(object).map(|o| o.watchers) {
            let watch = self.watches.first(&head);
            if self.watches.get(watch).is_none() {
                break;
            }
            self.unwatch(watch);
        }
        while let Some(Object { body: Body::Epoll(set), .. }) = self.objects.get(object) {
            let watch = self.watches.first_member(&set.members);
            if self.watches.get(watch).is_none() {
                break;
            }
            self.unwatch(watch);
        }
    }

    /// Removes one watch.
    pub fn unwatch(&mut self, watch: u32) {
        let Some((set, target)) = self.watches.get(watch).map(|w| (w.set, w.target)) else { return };
        let Some(mut of_target) = self.objects.get(target).map(|o| o.watchers) else { return };
        if let Some(Object { body: Body::Epoll(in_set), .. }) = self.objects.get_mut(set) {
            self.watches.remove(watch, &mut in_set.members, &mut in_set.ready, &mut of_target);
        }
        if let Some(entry) = self.objects.get_mut(target) {
            entry.watchers = of_target;
        }
    }

    /// Sends an option to the replicas that have the socket.
    pub fn send_option(&mut self, object: u32, option: SocketOption, value: u32) {
        let Some(socket) = self.socket(object) else { return };
        match &socket.kind {
            Kind::Stream(place, _) => {
                let Place { session, replica, slot, generation } = *place;
                self.sessions[session].push(replica, &Command::SetOption { slot, generation, option, value });
            }
            Kind::Listening(_) => {
                let lease = socket.lease;
                for replica in 0..self.sessions[0].replicas.len() {
                    self.sessions[0].push(replica, &Command::SetListenerOption { lease, option, value });
                }
            }
            Kind::Datagram { places, .. } => {
                for Place { session, replica, slot, generation } in places.clone() {
                    self.sessions[session].push(replica, &Command::SetOption { slot, generation, option, value });
                }
            }
            Kind::Fresh | Kind::Bound => {}
        }
    }

    /// Puts the call counters where `atoll status` finds them.
    pub fn publish_counters(&mut self) {
        if let Some(replica) = self.sessions.first().and_then(|session| session.replicas.first()) {
            replica.port.set_counters(self.calls, self.system_calls);
        }
    }
}

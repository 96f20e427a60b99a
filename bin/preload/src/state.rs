//! What does the library know in this process? Sessions, objects, sleepers; and what events do to them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_base::{Instant, Rng};
use atoll_ipc::command::{CloseMode, SocketOption};
use atoll_ipc::lease::Voucher;
use atoll_ipc::page::BELLS;
use atoll_ipc::{Cause, Command, Event, Memory, Ready};
use atoll_shm::ShmMemory;
use atoll_sockets::asking::Asking;
use atoll_sockets::datagram::Datagrams;
use atoll_sockets::listener::{Listener, Offer};
use atoll_sockets::slab::Slab;
use atoll_sockets::stream::{Local, Stream};
use atoll_sockets::watch::{Head, Watches};
use atoll_sys::Clock;

use crate::asking;
use crate::buffers::Buffers;
use crate::family::FamilyLock;
use crate::lock::Locked;
use crate::object::{Body, Kind, Object, Place, Set, Socket};
use crate::session::{Control, NOBODY, Reason, Session};
use crate::settings::settings;
use crate::table::{self, Internal};
use crate::urgent::Owner;
use crate::wait::{Waiter, bits};

/// The state of this process.
pub static STATE: Locked<State> = Locked::new(State::new());

/// How long a socket that was passed on is held for its receiver.
const PASSING_MAX: atoll_base::Duration = atoll_base::Duration::from_secs(10);
/// How deep epoll instances nest: epoll(7). The kernel's instance behind each refuses loops.
pub const NESTING_MAX: u32 = 5;

// structure: State: all that the lock of a process protects; objects, watches and sessions are not parts of their own yet
/// Everything; one lock.
pub struct State {
    pub control: Option<Control>,
    /// A connection that stands for nothing yet: for the time when the socket's path is not to be seen any more.
    pub kept: Option<Control>,
    /// The own session first; inherited ones after it.
    pub sessions: Vec<Session>,
    pub objects: Slab<Object>,
    pub watches: Watches,
    /// Threads that sleep in a call on one object: object and bell.
    sleepers: Vec<(u32, u32)>,
    /// Threads that sleep on each bell.
    asleep: [u32; BELLS],
    /// Bells that the running thread is about to sleep on: it need not be rung.
    dozing: u16,
    pub free_waiters: Vec<(Waiter, u32)>,
    next_bell: u32,
    pub rng: Rng,
    clock: Option<Clock>,
    /// Commands whose answers are awaited.
    questions: Vec<Question>,
    next_token: u32,
    /// Listening sockets, by lease.
    pub listeners: Vec<(u64, u32)>,
    /// Objects whose slots are in inherited sessions: no events come for them, they are looked at.
    pub inherited: Vec<u32>,
    /// Numbers kept for accepted connections, the lowest first.
    pub spare: BinaryHeap<Reverse<i32>>,
    /// What the kernel has behind them.
    pub placeholder: Option<Internal>,
    /// How many numbers are taken at once.
    pub spare_batch: usize,
    /// Sockets that were passed on and closed: held until their receiver has them, or the time is over.
    passed: Vec<(Place, Instant)>,
    /// There may be listeners that are watched and do not accept: inherited ones, and those whose process was busy.
    pub listeners_idle: bool,
    /// The connections that own send buffers.
    pub buffers: Buffers,
    /// Objects whose owner gets SIGURG, and those who are to get it now.
    pub owned: Vec<u32>,
    pub signals: Vec<Owner>,
    /// Bell of the thread that watches for urgent octets; 0: there is none.
    pub urgent_bell: u32,
    /// The stack could not be joined: everything is the kernel's.
    pub refused: Option<Reason>,
}

/// Commands to a replica of the own session, the last of which is answered under `token`. They are sent again when events of the replica were
/// lost, the answer perhaps among them: commands may be repeated.
#[derive(Debug)]
struct Question {
    token: u32,
    replica: usize,
    commands: Vec<Command>,
    answer: Option<Answer>,
}

/// What a replica has answered: the port and what it is granted by, where it is about one.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub cause: Cause,
    pub port: u16,
    pub voucher: Voucher,
}

/// The process, or one before it, has changed what it sees of the file system.
pub static SHUT_IN: AtomicBool = AtomicBool::new(false);

/// Whether the next program or a child may not be able to connect by itself. Asked without the state's lock, because most programs never need more.
pub fn is_away() -> bool {
    SHUT_IN.load(Ordering::Relaxed) || !settings().sees_socket()
}

impl State {
    const fn new() -> State {
        State {
            control: None,
            kept: None,
            sessions: Vec::new(),
            objects: Slab::new(),
            watches: Watches::new(),
            sleepers: Vec::new(),
            asleep: [0; BELLS],
            dozing: 0,
            free_waiters: Vec::new(),
            next_bell: 0,
            rng: Rng::new(0),
            clock: None,
            questions: Vec::new(),
            next_token: 1,
            listeners: Vec::new(),
            inherited: Vec::new(),
            spare: BinaryHeap::new(),
            placeholder: None,
            spare_batch: 4,
            passed: Vec::new(),
            listeners_idle: false,
            buffers: Buffers::new(),
            owned: Vec::new(),
            signals: Vec::new(),
            urgent_bell: 0,
            refused: None,
        }
    }

    /// Joins the stack that `ATOLL_SOCKET` names, once. Returns whether there is one.
    pub fn join(&mut self) -> bool {
        if !self.sessions.is_empty() {
            return true;
        }
        if self.refused.is_some() {
            return false;
        }
        let Some(path) = settings().socket.as_deref() else {
            self.refused = Some(Reason::Unreachable(libc::ENOENT));
            return false;
        };
        let attach = |control: Control| Ok((control.attach()?, control));
        let joined = Control::connect().and_then(attach).or_else(|reason| match self.kept.take() {
            Some(kept) => attach(kept),
            None => Err(reason),
        });
        let (session, control) = match joined {
            Ok(joined) => joined,
            Err(reason) => {
                self.refused = Some(reason);
                let instead = if settings().required { "its sockets fail" } else { "it uses the kernel's sockets" };
                let path = path.display();
                crate::complain(format_args!(
                    "libatoll: this program cannot join the stack at {path}: {reason}; {instead}\n"
                ));
                return false;
            }
        };
        self.control = Some(control);
        self.kept = None;
        self.adopt(session);
        true
    }

    /// A connection for somebody else: by the socket's path or, where that is not to be seen, by a connection that there is.
    pub fn connect_another(&self) -> Result<Control, Reason> {
        Control::connect().or_else(|reason| match self.control.as_ref().or(self.kept.as_ref()) {
            Some(control) => control.another(),
            None => Err(reason),
        })
    }

    /// The process is about to become another user: has the supervisor say whose the sockets are that it has made and that have no port yet.
    pub fn before_user_changes(&mut self) {
        for object in self.objects.indices() {
            let lease = self.rng.next_u64() | 1;
            let (Some(socket), Some(control)) = (self.socket(object), &self.control) else { continue };
            if matches!(socket.kind, Kind::Fresh) && socket.pass.is_none() {
                // If the supervisor is not there, they become those of whoever binds them.
                let pass = control.vouch(lease, socket.protocol, 0).ok();
                if let Some(socket) = self.socket_mut(object) {
                    socket.pass = pass;
                }
            }
        }
    }

    /// A connection for a child or the next program that cannot connect by itself; `None`: it can, or there is none to be had.
    pub fn connection_for_next(&self) -> Option<Control> {
        if is_away() { self.kept.as_ref().or(self.control.as_ref())?.another().ok() } else { None }
    }

    /// Connects while the socket can be seen: the process is about to change what it sees.
    pub fn keep_connection(&mut self) {
        if self.control.is_none() && self.kept.is_none() && self.refused.is_none() {
            self.kept = Control::connect().ok();
            SHUT_IN.store(self.kept.is_some(), Ordering::Relaxed);
        }
    }

    /// Makes a session this process' own.
    pub fn adopt(&mut self, session: Session) {
        asking::set(session.facts.naive_accept);
        self.clock = Some(session.clock());
        let mut seed = [0; 8];
        let _ = atoll_sys::process::random(&mut seed);
        self.rng = Rng::new(u64::from_ne_bytes(seed));
        self.sessions.insert(0, session);
    }

    /// The current time of the stack's clock.
    #[inline]
    pub fn now(&self) -> Instant {
        self.clock.as_ref().map_or_else(|| Clock::kernel().now(), Clock::now)
    }

    /// A number for a command that is answered.
    pub fn new_token(&mut self) -> u32 {
        self.next_token = self.next_token.wrapping_add(1);
        self.next_token
    }

    /// Sends commands to a replica of the own session. The last one is answered under `token`: [`State::answered`] is to be called when the answer
    /// is awaited no more.
    pub fn ask(&mut self, replica: usize, token: u32, commands: Vec<Command>) {
        if let Some(session) = self.sessions.first_mut() {
            commands.iter().for_each(|command| session.push(replica, command));
            self.questions.push(Question { token, replica, commands, answer: None });
        }
    }

    /// The answer under `token`, once it is there.
    pub fn answer(&self, token: u32) -> Option<Answer> {
        self.questions.iter().find(|question| question.token == token)?.answer
    }

    /// Nobody waits for this answer any more.
    pub fn answered(&mut self, token: u32) {
        self.questions.retain(|question| question.token != token);
    }

    /// A bell for a new sleeper; they share when there are more than bells. Bell 0 is the family's.
    pub fn new_bell(&mut self) -> u32 {
        self.next_bell = self.next_bell.wrapping_add(1);
        1 + self.next_bell % (BELLS as u32 - 1)
    }

    // ---- objects ----

    #[inline]
    pub fn socket(&self, object: u32) -> Option<&Socket> {
        match &self.objects.get(object)?.body {
            Body::Socket(socket) => Some(socket),
            Body::Epoll(_) => None,
        }
    }

    #[inline]
    pub fn socket_mut(&mut self, object: u32) -> Option<&mut Socket> {
        match &mut self.objects.get_mut(object)?.body {
            Body::Socket(socket) => Some(socket),
            Body::Epoll(_) => None,
        }
    }

    pub fn set(&self, object: u32) -> Option<&Set> {
        match &self.objects.get(object)?.body {
            Body::Epoll(set) => Some(set),
            Body::Socket(_) => None,
        }
    }

    #[inline]
    pub fn set_mut(&mut self, object: u32) -> Option<&mut Set> {
        match &mut self.objects.get_mut(object)?.body {
            Body::Epoll(set) => Some(set),
            Body::Socket(_) => None,
        }
    }

    pub fn listener_mut(&mut self, object: u32) -> Option<&mut Listener> {
        match &mut self.socket_mut(object)?.kind {
            Kind::Listening(listener) => Some(listener),
            _ => None,
        }
    }

    /// Whether calls on the object do not wait.
    pub fn is_nonblocking(&self, object: u32) -> bool {
        self.objects.get(object).is_some_and(|object| object.nonblocking)
    }

    /// The connection of a socket, with the facts that only this process knows. Of a shared session: under [`State::family`].
    #[inline]
    pub fn stream(&mut self, object: u32) -> Option<(Stream<'_, ShmMemory>, &mut Local, Place)> {
        let Body::Socket(socket) = &mut self.objects.get_mut(object)?.body else { return None };
        let Kind::Stream(place, local) = &mut socket.kind else { return None };
        let place = *place;
        let port = &self.sessions.get(place.session)?.replicas.get(place.replica)?.port;
        Some((Stream::new(port, place.slot, place.generation)?, local, place))
    }

    /// One slot of a datagram socket.
    pub fn datagrams(&self, place: Place) -> Option<Datagrams<'_, ShmMemory>> {
        let port = &self.sessions.get(place.session)?.replicas.get(place.replica)?.port;
        Some(Datagrams::new(port, place.slot, place.generation))
    }

    /// The family's lock on the arena of a socket, if others use the session too.
    #[inline]
    pub fn family(&self, object: u32) -> Option<FamilyLock> {
        let place = self.socket(object)?.places().first()?;
        let session = self.sessions.get(place.session).filter(|session| session.shared)?;
        Some(session.replicas.get(place.replica)?.family_lock())
    }

    /// Tells a replica to look at a slot.
    #[inline]
    pub fn kick(&mut self, place: Place) {
        let Place { session, replica, slot, generation } = place;
        if let Some(session) = self.sessions.get_mut(session) {
            session.push(replica, &Command::Kick { slot, generation });
        }
    }

    // ---- events ----

    /// Whether a replica has sent something.
    #[inline]
    pub fn has_event(&self) -> bool {
        self.sessions.first().is_some_and(Session::has_event) || !self.inherited.is_empty()
    }

    /// Takes what the replicas have sent, and wakes those of this process whom it concerns.
    ///
    /// Events of inherited sessions are their owner's: here the slots are looked at instead.
    pub fn drain(&mut self) {
        let replicas = self.sessions.first().map_or(0, |session| session.replicas.len());
        for replica in 0..replicas {
            let mut any = false;
            loop {
                let port = &mut self.sessions[0].replicas[replica].port;
                let Some(event) = port.next_event() else { break };
                any = true;
                self.handle_event(replica, event);
            }
            let from = &mut self.sessions[0].replicas[replica];
            if any {
                from.port.publish();
            }
            let (overflow, epoch) = (from.port.overflow(), from.page.epoch().0);
            if overflow != from.overflow_seen || epoch != from.epoch_seen {
                let is_new = epoch != from.epoch_seen;
                (from.overflow_seen, from.epoch_seen) = (overflow, epoch);
                self.rescan(replica, is_new);
            }
        }
        if !self.inherited.is_empty() {
            self.look_at_inherited();
        }
        if !self.passed.is_empty() {
            self.let_go_of_passed();
        }
    }

    /// What this process' parent has passed on is the parent's business.
    pub fn forget_passed(&mut self) {
        self.passed.clear();
    }

    fn let_go_of_passed(&mut self) {
        let now = self.now();
        for (place, until) in std::mem::take(&mut self.passed) {
            if crate::symbols::was_received(self, place) || now >= until {
                self.close_place(place);
            } else {
                self.passed.push((place, until));
            }
        }
    }

    // structure: handle_event: an arm for each event
    fn handle_event(&mut self, replica: usize, event: Event) {
        match event {
            Event::Ready { slot, generation, ready } => {
                let object = self.sessions[0].replicas[replica].user(slot);
                let place = Place { session: 0, replica, slot, generation };
                if object != NOBODY && self.socket(object).is_some_and(|socket| socket.places().contains(&place)) {
                    if ready.contains(Ready::ERR)
                        && let Some(datagrams) = self.datagrams(place)
                        && matches!(self.socket(object), Some(Socket { kind: Kind::Datagram(_), .. }))
                    {
                        datagrams.error_arrived();
                    }
                    if ready.contains(Ready::PRI) {
                        self.tell_owner(object);
                    }
                    self.announce(object, ready.0);
                }
            }
            Event::ConnectionAvailable { listener, slot, generation, local, remote } => {
                let offer = Offer { replica: replica as u8, slot, generation, local, remote };
                if let Some(object) = self.listener_with(listener)
                    && let Some(listener) = self.listener_mut(object)
                {
                    listener.asking.given(offer.replica);
                    if listener.offer(offer) {
                        self.announce(object, 1);
                    }
                }
            }
            Event::ConnectionsWait { listener, waiting, answers } => {
                if let Some(object) = self.listener_with(listener)
                    && let Some(listener) = self.listener_mut(object)
                {
                    listener.asking.told(replica as u8, waiting, answers);
                    // The answer concerns whoever sleeps on it, and that there is one everybody.
                    self.announce(object, u32::from(waiting));
                }
            }
            Event::ClaimVerdict { slot, generation, confirmed } => {
                for at in 0..self.listeners.len() {
                    let object = self.listeners[at].1;
                    if let Some(listener) = self.listener_mut(object)
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
                    && let Some(listener) = self.listener_mut(object)
                {
                    listener.accepting &= !(1 << replica);
                    self.accept_if_awaited(object);
                }
            }
            Event::SlotDone { slot, generation } => {
                let session = &mut self.sessions[0];
                let from = &mut session.replicas[replica];
                let family = session.shared.then(|| from.family_lock());
                from.port.slot_done(slot, generation);
                drop(family);
            }
            Event::BindReply { token, cause, port, voucher } => self.reply(token, cause, port, voucher),
            Event::ListenReply { token, cause, voucher } => self.reply(token, cause, 0, voucher),
            Event::InfoReply { token, cause } | Event::GroupReply { token, cause } => {
                self.reply(token, cause, 0, Voucher::default());
            }
        }
    }

    fn reply(&mut self, token: u32, cause: Cause, port: u16, voucher: Voucher) {
        // Nobody may wait for it any more, and it may come twice.
        let Some(question) = self.questions.iter_mut().find(|question| question.token == token) else { return };
        question.answer = Some(Answer { cause, port, voucher });
        let asleep = (0..BELLS).filter(|bell| self.asleep[*bell] > 0).fold(0, |mask, bell| mask | 1 << bell);
        self.ring(asleep);
    }

    fn listener_with(&self, lease: u64) -> Option<u32> {
        self.listeners.iter().find(|(known, _)| *known == lease).map(|(_, object)| *object)
    }

    /// Something of `ready` may hold for an object now: queues it for its epoll instances, and wakes sleepers.
    pub fn announce(&mut self, object: u32, ready: u32) {
        self.announce_at(object, ready, 0);
    }

    fn announce_at(&mut self, object: u32, ready: u32, depth: u32) {
        let ready = ready | (ready & 1) << 6 | (ready & 4) << 6;
        let Some(head) = self.objects.get(object).map(|o| o.watchers) else { return };
        let mut bells = 0;
        let mut watch = self.watches.first(&head);
        let mut exclusive_served = false;
        while let Some((set, is_exclusive)) =
            self.watches.get(watch).map(|w| (w.set, w.events & atoll_sockets::watch::EXCLUSIVE != 0))
        {
            let next = self.watches.next_of_target(watch);
            if !(is_exclusive && exclusive_served)
                && let Some(Object { body: Body::Epoll(in_set), watchers, .. }) = self.objects.get_mut(set)
                && self.watches.queue(watch, ready, &mut in_set.ready)
            {
                let (is_nested, asleep) = (!watchers.is_empty(), in_set.sleepers > 0);
                if asleep {
                    bells |= 1 << in_set.bell;
                    exclusive_served |= is_exclusive;
                }
                if is_nested && depth < NESTING_MAX {
                    self.announce_at(set, 1, depth + 1);
                }
                for (sleeping, bell) in &self.sleepers {
                    bells |= u16::from(*sleeping == set) << bell;
                }
            }
            watch = next;
        }
        for (sleeping, bell) in &self.sleepers {
            bells |= u16::from(*sleeping == object) << bell;
        }
        self.ring(bells);
    }

    /// Wakes whoever sleeps in an epoll instance.
    pub fn wake_set(&self, epoll: u32) {
        if let Some(set) = self.set(epoll) {
            self.ring(1 << set.bell);
        }
    }

    /// Wakes those of this process who sleep on one of `bells`, other than the thread that runs here.
    fn ring(&self, bells: u16) {
        for bell in bits(bells) {
            let others = self.asleep[bell as usize] - u32::from(self.dozing & 1 << bell != 0);
            if others > 0
                && let Some(session) = self.sessions.first()
            {
                crate::wait::count_system_call();
                session.ring(bell);
            }
        }
    }

    /// Events of a replica were lost, or it is a new incarnation: every socket may be ready.
    fn rescan(&mut self, replica: usize, is_new: bool) {
        let session = &mut self.sessions[0];
        let family = session.shared.then(|| session.replicas[replica].family_lock());
        session.replicas[replica].port.sweep();
        drop(family);
        for object in self.objects.indices() {
            if is_new {
                self.register_again(object, replica);
            } else {
                self.accept_again(object, replica);
            }
            self.claim_again(object, replica);
            if let Some(listener) = self.listener_mut(object) {
                listener.asking.forget(replica as u8);
            }
            self.tell_owner(object);
            self.announce(object, u32::MAX >> 1);
        }
        for question in self.questions.iter().filter(|question| question.replica == replica) {
            question.commands.iter().for_each(|command| self.sessions[0].push(replica, command));
        }
    }

    /// Events of a replica were lost, and it may have removed a listener's acceptor: offers that were lost, too, were not claimed in time. To
    /// register once more does no harm.
    fn accept_again(&mut self, object: u32, replica: usize) {
        if let Some(listener) = self.listener_mut(object)
            && listener.accepting & 1 << replica != 0
        {
            listener.accepting &= !(1 << replica);
            self.accept_if_awaited(object);
        }
    }

    /// The verdict on a claim may be among what was lost: who claims again is told again.
    fn claim_again(&mut self, object: u32, replica: usize) {
        let Some(listener) = self.listener_mut(object).filter(|listener| listener.verdict.is_none()) else { return };
        if let Some(Offer { slot, generation, .. }) =
            listener.claimed.filter(|offer| usize::from(offer.replica) == replica)
        {
            self.sessions[0].push(replica, &Command::Claim { slot, generation });
        }
    }

    /// A new incarnation of a replica learns of ports and listeners from those who hold them.
    fn register_again(&mut self, object: u32, replica: usize) {
        let (token, replicas) = (self.new_token(), self.sessions[0].replicas.len());
        let Some(socket) = self.socket_mut(object).filter(|socket| socket.lease != 0) else { return };
        let (lease, local, protocol, options) = (socket.lease, socket.local, socket.protocol, socket.options);
        let show = socket.show_again();
        let (reuse_addr, reuse_port, v6_only) = (options.reuse_addr, options.reuse_port, options.v6_only);
        let mut backlog = None;
        if let Kind::Listening(listener) = &mut socket.kind {
            listener.accepting &= !(1 << replica);
            backlog = Some(listener.backlog);
        }
        if usize::from(local.port) % replicas == replica {
            let bind = Command::Bind { token, lease, protocol, local, reuse_addr, reuse_port, v6_only };
            show.iter().for_each(|show| self.sessions[0].push(replica, show));
            self.sessions[0].push(replica, &bind);
        }
        if let Some(backlog) = backlog {
            show.iter().for_each(|show| self.sessions[0].push(replica, show));
            let defer_accept = u16::try_from(options.defer_accept).unwrap_or(u16::MAX);
            let listen = Command::Listen { token, lease, local, backlog, reuse_port, defer_accept, v6_only };
            self.sessions[0].push(replica, &listen);
            self.accept_if_awaited(object);
        }
    }

    fn look_at_inherited(&mut self) {
        for at in 0..self.inherited.len() {
            let object = self.inherited[at];
            let family = self.family(object);
            let seen = self.socket(object).map_or(0, |socket| {
                socket.places().iter().fold(1u64, |seen, place| {
                    let port = &self.sessions[place.session].replicas[place.replica].port;
                    port.slot(place.slot).map_or(seen, |slot| {
                        let mark = slot.mark().map_or(0, |mark| mark.wrapping_add(1).rotate_left(40));
                        let now = slot.receive_tail() ^ slot.acknowledged().rotate_left(24) ^ mark;
                        let state = u64::from(slot.replica_flags()) << 56 | (slot.state() as u64) << 48;
                        seen.wrapping_mul(31).wrapping_add(now ^ state)
                    })
                })
            });
            drop(family);
            let Some(socket) = self.socket_mut(object) else { continue };
            if std::mem::replace(&mut socket.seen, seen) != seen {
                let ready = self.readiness(object);
                self.tell_owner(object);
                self.announce(object, ready);
            }
        }
    }

    /// The bits of poll(2) that hold for an object now.
    pub fn readiness(&mut self, object: u32) -> u32 {
        let Some(Object { body, .. }) = self.objects.get(object) else { return 0x20 };
        match body {
            Body::Epoll(_) => self.set_readiness(object),
            Body::Socket(socket) => match &socket.kind {
                // tcp_poll: a socket that is not connected has hung up.
                Kind::Fresh | Kind::Bound => 0x114 | (u32::from(socket.shut_early) * 0x2041),
                Kind::Listening(listener) => {
                    let offered = !listener.offers.is_empty() || listener.asking.has_waiting();
                    let ready = offered || listener.verdict.is_some() || listener.is_shut;
                    (u32::from(ready) * 0x41) | (u32::from(listener.is_shut) * 0x2010)
                }
                Kind::Stream(..) => self.stream(object).map_or(0x18, |(stream, local, _)| stream.readiness(local)),
                Kind::Datagram(datagram) => {
                    let mut bits = 0;
                    for place in &datagram.places {
                        let Some(one) = self.datagrams(*place) else { continue };
                        bits |= if one.has_waiting() { 0x41 } else { 0 };
                        bits |= if one.has_error() { 0x8 } else { 0 };
                    }
                    let sender = datagram.places.get(datagram.sender % datagram.places.len().max(1));
                    if sender.and_then(|place| self.datagrams(*place)).is_none_or(|one| one.is_writable()) {
                        bits |= 0x104;
                    }
                    if datagram.shut_receive {
                        bits |= 0x2041 | if datagram.shut_send { 0x10 } else { 0 };
                    }
                    bits
                }
            },
        }
    }

    /// Whether an epoll instance can be read: something is in its ready list. See [`State::prune`].
    fn set_readiness(&self, object: u32) -> u32 {
        self.set(object).map_or(0, |set| u32::from(!set.ready.is_empty()) * 0x41)
    }

    /// Drops from an epoll instance's ready list what is not ready any more, and from those of the instances in it.
    pub fn prune(&mut self, object: u32, depth: u32) {
        let Some(set) = self.set(object) else { return };
        let (mut ready, members, has_sets) = (set.ready, set.members, set.has_sets);
        if has_sets && depth < NESTING_MAX {
            let mut watch = self.watches.first_member(&members);
            while let Some(target) = self.watches.get(watch).map(|w| w.target) {
                self.prune(target, depth + 1);
                watch = self.watches.next_member(watch);
            }
        }
        let mut watches = std::mem::take(&mut self.watches);
        watches.is_ready(&mut ready, |target| self.readiness(target));
        self.watches = watches;
        if let Some(set) = self.set_mut(object) {
            set.ready = ready;
        }
    }

    // ---- sleeping ----

    /// A place to sleep for the length of a call, with its bell.
    pub fn take_waiter(&mut self) -> Option<(Waiter, u32)> {
        match self.free_waiters.pop() {
            Some(waiter) => Some(waiter),
            None => {
                let bell = self.new_bell();
                Some((Waiter::new()?, bell))
            }
        }
    }

    /// A call on the object may sleep: it is not closed meanwhile.
    pub fn pin(&mut self, object: u32) {
        if let Some(object) = self.objects.get_mut(object) {
            object.pins += 1;
        }
    }

    /// The call is over. If the last descriptor is gone, so is the object now.
    pub fn unpin(&mut self, object: u32) {
        if let Some(entry) = self.objects.get_mut(object) {
            entry.pins = entry.pins.saturating_sub(1);
            if entry.pins == 0 && entry.descriptors == 0 {
                self.close_object(object);
            }
        }
    }

    /// The running thread will sleep on `bell` until something happens to the object.
    pub fn sleep_on(&mut self, object: u32, bell: u32) {
        self.set_bell(object, bell);
        self.sleepers.push((object, bell));
    }

    /// It sleeps no more. Events ring the bell of the epoll instance that watches the object again; what came meanwhile is
    /// drained next.
    pub fn sleep_no_more(&mut self, object: u32, bell: u32) {
        if let Some(at) = self.sleepers.iter().position(|s| *s == (object, bell)) {
            self.sleepers.swap_remove(at);
        }
        self.restore_bell(object);
        self.drain();
    }

    /// Events ring whoever sleeps on the object, or else the epoll instance that watches it.
    pub fn restore_bell(&mut self, object: u32) {
        let other = self.sleepers.iter().find(|(sleeping, _)| *sleeping == object).map(|(_, bell)| *bell);
        let own = other.or_else(|| self.socket(object).map(|socket| socket.bell)).unwrap_or(0);
        self.set_bell(object, own);
    }

    /// Announces to all replicas that `bells` are to be rung from now on.
    pub fn fall_asleep(&mut self, bells: u16) {
        self.dozing = bells;
        for bell in bits(bells) {
            self.asleep[bell as usize] += 1;
            for session in &self.sessions {
                session.fall_asleep(bell);
            }
        }
        for session in self.sessions.iter().filter(|session| session.shared && bells & 1 == 0) {
            session.fall_asleep(0);
        }
        if let Some(session) = self.sessions.first() {
            session.replicas[0].port.memory().fence();
        }
    }

    /// The thread blocks now, or has found something: from here on others ring it.
    pub fn doze_off(&mut self) {
        self.dozing = 0;
    }

    /// Takes back [`State::fall_asleep`].
    pub fn wake_up(&mut self, bells: u16) {
        self.dozing = 0;
        for bell in bits(bells) {
            self.asleep[bell as usize] = self.asleep[bell as usize].saturating_sub(1);
            for session in &self.sessions {
                if self.asleep[bell as usize] == 0 {
                    session.wake_up(bell);
                } else {
                    // Ringers remember the word for which they rang: a new one lets them ring again for the others.
                    session.fall_asleep(bell);
                }
            }
        }
    }

    /// Sets the bell that events of the object ring.
    pub fn set_bell(&mut self, object: u32, bell: u32) {
        let Some(Object { body: Body::Socket(socket), owner, .. }) = self.objects.get(object) else { return };
        // Whoever watches for urgent octets takes all events, and wakes the others.
        let bell = if owner.id != 0 && self.urgent_bell != 0 { self.urgent_bell } else { bell };
        for place in socket.places() {
            let session = &self.sessions[place.session];
            if let Some(slot) = session.replicas[place.replica].port.slot(place.slot) {
                // Sockets of a family ring the bell that all of it hears.
                slot.set_bell(if session.shared { 0 } else { bell });
            }
        }
    }

    // ---- listeners ----

    /// ACCEPT-CONNECTION to every replica that does not know yet.
    #[inline]
    pub fn accept_connections(&mut self, object: u32) {
        if asking::is_on() {
            return asking::before_sleep(self, object);
        }
        let Some(Socket { kind: Kind::Listening(listener), lease, .. }) = self.socket_mut(object) else { return };
        let (accepting, lease) = (listener.accepting, *lease);
        let Some(session) = self.sessions.first_mut() else { return };
        let all = (1 << session.replicas.len()) - 1;
        if accepting == all {
            return;
        }
        for replica in (0..session.replicas.len()).filter(|replica| accepting & (1 << replica) == 0) {
            session.push(replica, &Command::AcceptConnection { lease });
        }
        if let Some(listener) = self.listener_mut(object) {
            listener.accepting = all;
        }
    }

    /// ACCEPT-CONNECTION for a listener that does not accept, if somebody waits for it at this moment. Who watches it and does something else is
    /// busy, though its other calls take events: it accepts when it waits the next time.
    fn accept_if_awaited(&mut self, object: u32) {
        if self.is_awaited(object) {
            self.accept_connections(object);
        } else {
            self.listeners_idle = true;
        }
    }

    /// Whether a thread sleeps until something happens to the object, itself or as a member of sets.
    pub fn is_awaited(&self, object: u32) -> bool {
        self.is_awaited_at(object, 0)
    }

    fn is_awaited_at(&self, object: u32, depth: u32) -> bool {
        self.sleepers.iter().any(|(sleeping, _)| *sleeping == object)
            || self.sets_of(object).any(|set| {
                self.set(set).is_some_and(|set| set.sleepers > 0)
                    || depth < NESTING_MAX && self.is_awaited_at(set, depth + 1)
            })
    }

    /// ACCEPT-CONNECTION for listeners that are watched in a set and do not accept, because somebody waits in the set now.
    #[inline]
    pub fn accept_watched(&mut self, set: u32) {
        if self.listeners_idle {
            self.accept_idle(set);
        }
    }

    fn accept_idle(&mut self, set: u32) {
        self.listeners_idle = false;
        for at in 0..self.listeners.len() {
            let object = self.listeners[at].1;
            if self.is_member(object, set, 0) {
                self.accept_connections(object);
            } else if !self.watchers(object).is_empty() {
                self.listeners_idle = true;
            }
        }
    }

    /// Whether the object is in the set, or in one that is.
    fn is_member(&self, object: u32, set: u32, depth: u32) -> bool {
        self.sets_of(object).any(|of| of == set || depth < NESTING_MAX && self.is_member(of, set, depth + 1))
    }

    /// The sets that watch an object.
    fn sets_of(&self, object: u32) -> impl Iterator<Item = u32> + '_ {
        let first = self.watches.first(&self.watchers(object));
        let all = std::iter::successors(Some(first), |watch| Some(self.watches.next_of_target(*watch)));
        all.map_while(|watch| self.watches.get(watch)).map(|watch| watch.set)
    }

    /// Nobody of this process waits for connections of the listener any more.
    pub fn stop_accepting(&mut self, object: u32) {
        let Some(Socket { kind: Kind::Listening(listener), lease, .. }) = self.socket_mut(object) else { return };
        let (mut accepting, lease) = (std::mem::take(&mut listener.accepting), *lease);
        if asking::is_on() {
            (accepting, listener.asking) = (u32::MAX, Asking::default());
        }
        let Some(session) = self.sessions.first_mut() else { return };
        for replica in (0..session.replicas.len()).filter(|replica| accepting & (1 << replica) != 0) {
            session.push(replica, &Command::StopAccepting { lease });
        }
    }

    // ---- closing ----

    /// One descriptor of the object is gone. The last one closes it, unless a call sleeps on it.
    pub fn release(&mut self, object: u32) {
        let Some(entry) = self.objects.get_mut(object) else { return };
        entry.descriptors = entry.descriptors.saturating_sub(1);
        if entry.descriptors == 0 && entry.pins == 0 {
            self.close_object(object);
        }
    }

    fn close_object(&mut self, object: u32) {
        self.unwatch_all(object);
        self.sleepers.retain(|(sleeping, _)| *sleeping != object);
        self.owned.retain(|owned| *owned != object);
        let Some(entry) = self.objects.remove(object) else { return };
        let Body::Socket(socket) = entry.body else { return };
        if !self.inherited.is_empty() {
            self.inherited.retain(|inherited| *inherited != object);
        }
        for place in socket.places() {
            if socket.passed && !crate::symbols::was_received(self, *place) {
                // Its events are nobody's until then.
                self.set_user(*place, NOBODY);
                self.passed.push((*place, self.now() + PASSING_MAX));
            } else {
                self.close_place(*place);
            }
        }
        if let Kind::Listening(_) = socket.kind {
            self.listeners.retain(|(_, listening)| *listening != object);
            if socket.lease != 0 {
                self.release_everywhere(socket.lease);
            }
        } else if socket.lease != 0 {
            self.release_lease(socket.lease, socket.local.port);
        }
    }

    /// The socket no longer uses a slot; the last holder closes it. By reset, if the slot says so.
    pub fn close_place(&mut self, place: Place) {
        let Some(session) = self.sessions.get_mut(place.session) else { return };
        let (member, shared) = (session.member, session.shared);
        let replica = &mut session.replicas[place.replica];
        replica.set_user(place.slot, NOBODY);
        // The replica may close what nobody holds, and the owner then gives the slot to another, in between.
        let family = shared.then(|| replica.family_lock());
        if !replica.port.close_slot(place.slot, place.generation, member) {
            return;
        }
        drop(family);
        let (slot, generation, mode) = (place.slot, place.generation, CloseMode::Graceful);
        session.push(place.replica, &Command::Close { slot, generation, mode });
    }

    /// shutdown(2) of a listener: its port is free again.
    pub fn stop_listening(&mut self, object: u32) {
        self.listeners.retain(|(_, listening)| *listening != object);
        if let Some(socket) = self.socket_mut(object) {
            let lease = std::mem::take(&mut socket.lease);
            self.release_everywhere(lease);
        }
    }

    fn release_everywhere(&mut self, lease: u64) {
        let Some(session) = self.sessions.first_mut() else { return };
        for replica in 0..session.replicas.len() {
            session.push(replica, &Command::Release { lease });
        }
    }

    fn release_lease(&mut self, lease: u64, port: u16) {
        let Some(session) = self.sessions.first_mut() else { return };
        let authority = usize::from(port) % session.replicas.len();
        session.push(authority, &Command::Release { lease });
    }

    /// Takes an object out of all interest lists, and an epoll instance's members out of it.
    pub fn unwatch_all(&mut self, object: u32) {
        while let Some(head) = self.objects.get(object).map(|o| o.watchers) {
            let watch = self.watches.first(&head);
            if self.watches.get(watch).is_none() {
                break;
            }
            self.unwatch(watch);
        }
        while let Some(set) = self.set(object) {
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

    // ---- options ----

    /// Sends an option to the replicas that have the socket.
    pub fn send_option(&mut self, object: u32, option: SocketOption, value: u32) {
        let Some(Object { body: Body::Socket(socket), .. }) = self.objects.get(object) else { return };
        for Place { session, replica, slot, generation } in socket.places() {
            let (slot, generation) = (*slot, *generation);
            self.sessions[*session].push(*replica, &Command::SetOption { slot, generation, option, value });
        }
        if let Kind::Listening(_) = socket.kind {
            let lease = socket.lease;
            let session = &mut self.sessions[0];
            for replica in 0..session.replicas.len() {
                session.push(replica, &Command::SetListenerOption { lease, option, value });
            }
        }
    }

    /// Takes a slot of the own session for a socket.
    pub fn new_place(&mut self, object: u32, replica: usize) -> Option<Place> {
        let bell = self.socket(object).map_or(0, |socket| socket.bell);
        let session = self.sessions.first_mut()?;
        let (member, shared) = (session.member, session.shared);
        let to = session.replicas.get_mut(replica)?;
        let family = shared.then(|| to.family_lock());
        let (slot, generation) = to.port.allocate_slot()?;
        drop(family);
        to.set_user(slot, object);
        if let Some(lines) = to.port.slot(slot) {
            lines.set_holders(1 << (member & 63));
            lines.set_bell(if shared { 0 } else { bell });
        }
        Some(Place { session: 0, replica, slot, generation })
    }

    /// Threads of this process are gone: the child of a fork has one.
    pub fn forget_threads(&mut self) {
        self.forget_owners();
        self.sleepers.clear();
        self.asleep = [0; BELLS];
        self.dozing = 0;
        self.free_waiters.clear();
        self.questions.clear();
        for object in self.objects.indices() {
            let Some(entry) = self.objects.get_mut(object) else { continue };
            entry.pins = 0;
            if let Body::Epoll(set) = &mut entry.body {
                set.waiter = None;
                (set.sleepers, set.kernel_sleepers, set.interrupt) = (0, 0, None);
            }
            if entry.descriptors == 0 {
                self.close_object(object);
            }
        }
    }

    /// A slot that a session lists, for who must hold it.
    pub fn slot_of(&self, place: Place) -> Option<atoll_ipc::slot::Slot<'_, ShmMemory>> {
        self.sessions.get(place.session)?.replicas.get(place.replica)?.port.slot(place.slot)
    }

    /// Everything that is Atoll's here is gone: the stack cannot be joined any more.
    pub fn drop_all(&mut self) {
        for (fd, _) in table::objects_between(0, u32::MAX).collect::<Vec<_>>() {
            table::set_kernel(fd);
        }
        self.passed.clear();
        self.objects = Slab::new();
        self.watches = Watches::new();
        self.listeners.clear();
        self.inherited.clear();
        self.sessions.clear();
        self.control = None;
    }

    /// A head of a list, for tests of emptiness.
    pub fn watchers(&self, object: u32) -> Head {
        self.objects.get(object).map(|o| o.watchers).unwrap_or_default()
    }

    /// Who uses a slot in a session.
    pub fn set_user(&mut self, place: Place, object: u32) {
        if let Some(replica) = self.sessions.get_mut(place.session).and_then(|s| s.replicas.get_mut(place.replica)) {
            replica.set_user(place.slot, object);
        }
    }
}

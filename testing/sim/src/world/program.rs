//! The honest programs. Servers accept, read, and send back what they got; clients connect, send, and check
//! what comes back. They use the client that ships ([`atoll_sockets::client`]) as programs do: with
//! non-blocking sockets in an epoll instance, or (P4's naive accept) with a call of accept that waits.

use std::collections::{BTreeMap, VecDeque};

use atoll_base::{Addr, Duration, Endpoint, Instant, Rng, SessionId};
use atoll_ipc::command::Protocol;
use atoll_ipc::lease::Pass;
use atoll_sockets::client::object::{Body, Object, Set, any};
use atoll_sockets::client::session::Session;
use atoll_sockets::client::simulated::{Moment, Opening, Simulated};
use atoll_sockets::client::transfer::{Receiving, Sending};
use atoll_sockets::client::{Change, Client, Connecting};
use atoll_sockets::options::Name;
use atoll_sockets::{Errno, Failure};

use super::hoarding::{TRIED_AGAIN, earlier};
use super::{ATTACKER, POISON, PORT, Process, SERVER, address, address_v6, octet, text_octet};

/// The lease of the server's port.
const LEASE: u64 = 77;
/// The events `EPOLLIN` and `EPOLLOUT` (epoll(7)).
const IN: u32 = 1;
const OUT: u32 = 4;
/// The events `POLLERR` and `POLLHUP`, which poll(2) reports in any case.
const ERROR_AND_HANG_UP: u32 = 0x18;
/// The most octets that a program reads or writes with one call.
const AT_ONCE: u32 = 100_000;
/// The most events that a program takes with one call of epoll_wait.
const EVENTS: usize = 64;

/// A connection of a program.
pub(super) struct Socket {
    /// The number of the connection, which determines what a client sends; a server sends back what it gets.
    number: u64,
    pub(super) sent: usize,
    pub(super) got: usize,
    /// The octets that a server has read and not yet sent back.
    pub(super) held: VecDeque<u8>,
    pub(super) ended: bool,
    pub(super) shut: bool,
    /// Whether the connection has been open.
    was_open: bool,
    /// When the program is done with the connection.
    done_at: Option<Instant>,
    /// Until when nothing is sent on the connection.
    rests_until: Option<Instant>,
    /// Whether the peer is the third machine, so that whatever happens to the connection is right.
    pub(super) is_hostile: bool,
    /// The events that the epoll instance watches; `None` if the socket is not in it.
    interest: Option<u32>,
}

/// The state of a program besides its sockets.
pub(super) struct Program {
    pub(super) client: Client<Simulated>,
    clock: Moment,
    /// The program's epoll instance.
    epoll: u32,
    /// The program's listening socket, if it is a server.
    listener: Option<u32>,
    /// The progress of opening the listener; `None` once it listens.
    opening: Option<Opening>,
    /// The replicas that this call of accept has asked, as bits.
    tried: u32,
    is_asleep: bool,
    /// The objects that the program polls, with the events it wants, if it uses poll(2) in place of epoll.
    polled: Option<BTreeMap<u32, u32>>,
}

impl Program {
    /// Creates a program with a session of its own. `seed` decides where its connections begin; `polls` says
    /// whether it uses poll(2).
    pub(super) fn new(session: Session<Simulated>, seed: u64, polls: bool) -> Program {
        let (mut client, clock) = (Client::new(), Moment::default());
        client.adopt(session, clock.clone(), seed);
        Program::around(client, clock, None, polls)
    }

    /// Creates a program that continues with a client, and with a listener if there is one.
    pub(super) fn around(
        mut client: Client<Simulated>,
        clock: Moment,
        listener: Option<u32>,
        polls: bool,
    ) -> Program {
        let set = Set::new(client.new_bell(), ());
        let epoll = client.insert(Object::new(Body::Epoll(Box::new(set)), false));
        let polled = polls.then(BTreeMap::new);
        let mut program =
            Program { client, clock, epoll, listener, opening: None, tried: 0, is_asleep: false, polled };
        if let Some(object) = listener {
            program.watch(object, Change::Add(IN, object.into()));
        }
        program
    }

    /// Returns the program's clock.
    pub(super) fn clock(&self) -> Moment {
        self.clock.clone()
    }

    /// Goes on with an opening of the listener.
    pub(super) fn begin_opening(&mut self, opening: Opening) {
        self.opening = Some(opening);
    }

    /// Returns whether the program uses poll(2).
    pub(super) fn polls(&self) -> bool {
        self.polled.is_some()
    }

    /// Returns the program's listener.
    pub(super) fn listener(&self) -> Option<u32> {
        self.listener
    }

    /// Runs on at `now`, after a sleep if it slept.
    pub(super) fn resume(&mut self, now: Instant) {
        self.clock.set(now);
        if self.is_asleep {
            self.wake_up();
            if let Some(set) = self.client.set_mut(self.epoll) {
                set.sleepers -= 1;
            }
        }
    }

    /// Watches a socket that came from another process.
    pub(super) fn watch_again(&mut self, object: u32, socket: &mut Socket) {
        socket.interest = None;
        let wanted = if socket.ended { OUT } else { IN | OUT };
        self.set_interest(object, socket, Some(wanted));
    }

    /// Calls close(2).
    pub(super) fn close(&mut self, object: u32) {
        if let Some(polled) = &mut self.polled {
            polled.remove(&object);
        }
        self.client.release(object);
    }

    /// Returns the doorbells of the program, as bits.
    fn bells(&self) -> u16 {
        self.client.set(self.epoll).map_or(0, |set| set.bells)
    }

    /// Returns whether the program sleeps on a doorbell of a session. Programs that share a session sleep on
    /// its first.
    pub(super) fn hears(&self, session: SessionId, bell: u32) -> bool {
        let is_shared = || self.client.sessions().iter().any(|other| other.id == session.0 && other.shared);
        self.is_asleep && (self.bells() >> bell & 1 == 1 || bell == 0 && is_shared())
    }

    /// Returns whether the program has claimed a connection and was not answered yet.
    pub(super) fn is_claiming(&self) -> bool {
        let listener = self.listener.and_then(|object| self.client.listener(object));
        listener.is_some_and(|listener| listener.claimed.is_some())
    }

    /// Returns whether all replicas have said that they listen.
    pub(super) fn is_listening(&self) -> bool {
        self.listener.is_some() && self.opening.is_none()
    }

    /// Returns a description of the listener: its offers, a claim that is not answered, and accepts at
    /// replicas (as bits).
    pub(super) fn state(&self) -> String {
        match self.listener.and_then(|object| self.client.listener(object)) {
            Some(listener) => format!(
                "{} offers, claimed {:?}, accepting {:b}",
                listener.offers.len(),
                listener.claimed,
                listener.accepting
            ),
            None => "no listener".into(),
        }
    }

    /// Opens a listening socket: bind(2), and listen(2) when the port is granted.
    pub(super) fn listen(&mut self) {
        let object = self.client.insert(Object::socket(Protocol::Tcp, true, true));
        let socket = self.client.socket_mut(object).expect("a socket");
        socket.options.set(Name::ReuseAddr, 1);
        // All workers have the same listener, as forked processes do; they know it by its lease.
        let pass = Pass { lease: LEASE, uid: 0, protocol: Protocol::Tcp, port: PORT };
        socket.pass = Some((pass, 0));
        let local = Endpoint { port: PORT, ..any(true) };
        // The supervisor, which vouches for users, is not simulated here: every session is that of a
        // privileged user.
        self.opening = Some(Opening::listen_at(&mut self.client, object, local, 64).expect("it is fresh"));
        self.listener = Some(object);
    }

    /// Takes the next step towards listening. Returns whether there was anything to do.
    fn set_up(&mut self) -> bool {
        let (Some(object), Some(opening)) = (self.listener, &mut self.opening) else { return false };
        match opening.poll(&mut self.client) {
            Err(Failure::WouldBlock) => return false,
            done => done.expect("the port is free, or shared with the family"),
        }
        self.opening = None;
        if self.client.waiting_for_stack().contains(&object) {
            // It is watched already.
            self.client.registered_again(object, Ok(()));
            return true;
        }
        if !self.client.asks() {
            self.watch(object, Change::Add(IN, object.into()));
        }
        true
    }

    fn watch(&mut self, object: u32, change: Change) {
        let Some(polled) = &mut self.polled else {
            let done = self.client.control(self.epoll, object, object as i32, change);
            return done.expect("as epoll_ctl(2) wants it");
        };
        match change {
            Change::Add(events, _) | Change::Modify(events, _) => polled.insert(object, events),
            Change::Delete => polled.remove(&object),
        };
    }

    /// Sets the events of a socket that the epoll instance watches.
    fn set_interest(&mut self, object: u32, socket: &mut Socket, wanted: Option<u32>) {
        if socket.interest == wanted {
            return;
        }
        self.watch(
            object,
            match (socket.interest, wanted) {
                (None, Some(events)) => Change::Add(events, object.into()),
                (_, Some(events)) => Change::Modify(events, object.into()),
                (_, None) => Change::Delete,
            },
        );
        socket.interest = wanted;
    }

    /// Returns the objects that are ready: epoll_wait(2) without waiting.
    fn events(&mut self) -> Vec<u32> {
        if let Some(polled) = &self.polled {
            if let Some(listener) = self.listener {
                self.client.accept_connections(listener);
            }
            let is_ready = |(object, events): &(&u32, &u32)| {
                self.client.readiness(**object) & (**events | ERROR_AND_HANG_UP) != 0
            };
            return polled.iter().filter(is_ready).map(|(object, _)| *object).collect();
        }
        let mut events = Vec::new();
        self.client.accept_watched(self.epoll);
        self.client.collect(self.epoll, EVENTS, |fired| events.push(fired.data as u32));
        events
    }

    /// Prepares to sleep, unless something comes up. Call [`Program::fall_asleep`] if nothing has.
    fn before_sleep(&mut self) {
        let bells = self.bells();
        if let Some(listener) = self.listener.filter(|_| self.client.asks() && self.is_listening()) {
            self.client.sleep_on(listener, bells.trailing_zeros());
        }
        for object in self.polled.iter().flat_map(BTreeMap::keys) {
            self.client.sleep_on(*object, bells.trailing_zeros());
        }
        self.client.before_sleep(bells);
        self.is_asleep = true;
    }

    fn fall_asleep(&mut self) {
        self.client.doze_off();
        if let Some(set) = self.client.set_mut(self.epoll) {
            set.sleepers += 1;
        }
    }

    /// Undoes [`Program::before_sleep`].
    fn wake_up(&mut self) {
        let bells = self.bells();
        self.client.after_sleep(bells);
        if let Some(listener) = self.listener {
            self.client.sleep_no_more(listener, bells.trailing_zeros());
        }
        for object in self.polled.iter().flat_map(BTreeMap::keys) {
            self.client.sleep_no_more(*object, bells.trailing_zeros());
        }
        self.is_asleep = false;
    }
}

impl Process {
    /// Runs the program between two sleeps.
    pub(super) fn run(&mut self, now: Instant, rng: &mut Rng) {
        if self.run_greedy(now, rng) || self.run_role(now, rng) {
            return;
        }
        let Some(mut program) = self.program.take() else { return };
        program.resume(now);
        while self.work(&mut program, now, rng) {}
        program.before_sleep();
        // The program checks once more, because everything published after this rings its doorbell.
        if self.work(&mut program, now, rng) {
            program.wake_up();
            self.wakes_at = Some(now);
        } else {
            program.fall_asleep();
            let due = |socket: &Socket| earlier(socket.done_at, socket.rests_until);
            let done_at = self.sockets.values().filter_map(due).min();
            let nap = program.client.nap(None).map(|nap| now + nap);
            self.wakes_at = earlier(done_at, nap);
        }
        let opens_at = self.waits_until.filter(|_| !self.to_open.is_empty());
        self.wakes_at = earlier(self.wakes_at, opens_at);
        self.program = Some(program);
    }

    /// Handles everything that is ready. Returns whether there was anything to do.
    fn work(&mut self, program: &mut Program, now: Instant, rng: &mut Rng) -> bool {
        program.client.drain();
        program.client.poll_due();
        let mut any = program.set_up();
        any |= if self.is_server { self.accept_by_asking(program) } else { self.connect(program, now) };
        let mut ready = program.events();
        let is_due =
            |socket: &Socket| earlier(socket.done_at, socket.rests_until).is_some_and(|at| at <= now);
        ready.extend(self.sockets.iter().filter(|(_, socket)| is_due(socket)).map(|(object, _)| *object));
        for object in ready {
            any |= if program.listener == Some(object) {
                self.accept(program, object)
            } else {
                self.serve(program, now, object, rng)
            };
        }
        any
    }

    /// Calls accept(2) until there is no connection left. Returns whether there was one.
    fn accept(&mut self, program: &mut Program, listener: u32) -> bool {
        let mut any = false;
        loop {
            program.client.accept_connections(listener);
            match program.client.accept(listener, true) {
                Ok(object) => self.insert(program, object, 0),
                Err(Failure::WouldBlock) => return any,
                Err(Failure::Error(errno)) => panic!("accept: {errno:?}"),
            }
            any = true;
        }
    }

    /// Runs the naive accept (P4), in a thread that waits for a connection.
    fn accept_by_asking(&mut self, program: &mut Program) -> bool {
        let asks = program.client.asks() && program.is_listening();
        let Some(listener) = program.listener.filter(|_| asks) else { return false };
        let mut any = false;
        loop {
            match program.client.accept(listener, true) {
                Ok(object) => {
                    program.tried = 0;
                    self.insert(program, object, 0);
                    any = true;
                }
                Err(Failure::Error(errno)) => panic!("accept: {errno:?}"),
                Err(Failure::WouldBlock) => {
                    if program.client.ask_for_connection(listener, &mut program.tried).is_ok() {
                        program.client.ask_before_sleep(listener);
                    }
                    return any;
                }
            }
        }
    }

    fn insert(&mut self, program: &mut Program, object: u32, number: u64) {
        let remote = program.client.socket(object).map_or(Endpoint::default(), |socket| socket.remote);
        let is_expendable = !self.is_server && (self.hoards || self.is_poisoned && number == 0);
        let mut socket = Socket {
            number,
            sent: 0,
            got: 0,
            held: VecDeque::new(),
            ended: false,
            shut: false,
            was_open: self.is_server,
            done_at: None,
            rests_until: None,
            is_hostile: is_expendable || remote.addr == Addr::v4(address(ATTACKER)),
            interest: None,
        };
        let wanted = if self.is_server { IN } else { OUT };
        program.set_interest(object, &mut socket, Some(wanted));
        self.sockets.insert(object, socket);
    }

    fn connect(&mut self, program: &mut Program, now: Instant) -> bool {
        let mut any = false;
        self.waits_until.take_if(|until| *until <= now);
        if self.waits_until.is_some() {
            return false;
        }
        while self.sockets.len() < self.at_once
            && let Some(number) = self.to_open.pop_front()
        {
            any = true;
            let addr = if self.v6 { address_v6(SERVER) } else { Addr::v4(address(SERVER)) };
            let object = program.client.insert(Object::socket(Protocol::Tcp, self.v6, true));
            if self.loses_stack {
                keep_alive(&mut program.client, object);
            }
            let began = program.client.connect(object, Endpoint::at(addr, PORT));
            assert_eq!(began, Ok(Connecting::Begun), "there are slots");
            self.insert(program, object, number);
        }
        any
    }

    /// Releases a connection that was refused memory. One that is wanted is tried again later.
    fn give_up(&mut self, program: &mut Program, now: Instant, object: u32) -> bool {
        let Some(socket) = self.sockets.remove(&object) else { return false };
        program.close(object);
        self.to_open.push_back(socket.number);
        self.refused += 1;
        self.waits_until = Some(now + TRIED_AGAIN);
        true
    }

    /// Reads and writes what one connection allows. Returns whether there was anything to do.
    fn serve(&mut self, program: &mut Program, now: Instant, object: u32, rng: &mut Rng) -> bool {
        let Some(mut socket) = self.sockets.remove(&object) else { return false };
        if self.hoards && socket.ended {
            self.sockets.insert(object, socket);
            return false;
        }
        let mut any = false;
        if !socket.was_open {
            match program.client.poll_connected(object) {
                Ok(()) => (any, socket.was_open) = (true, true),
                Err(Failure::WouldBlock) => {}
                // The connection could not be opened.
                Err(Failure::Error(Errno::ENOBUFS)) if self.is_forgiving => {
                    self.sockets.insert(object, socket);
                    return self.give_up(program, now, object);
                }
                Err(Failure::Error(errno)) => any |= self.fail(&mut socket, errno, now),
            }
        }
        if socket.was_open && !socket.ended {
            any |= self.read(program, now, object, &mut socket, rng);
        }
        any |= socket.rests_until.take_if(|until| *until <= now).is_some();
        if socket.was_open && socket.rests_until.is_none() {
            any |= self.write(program, now, object, &mut socket, rng);
        }
        let is_done =
            if self.is_server { socket.ended && socket.held.is_empty() } else { socket.sent == self.length };
        if is_done && !socket.shut && !self.is_server && socket.was_open && !socket.ended {
            any = true;
            match program.client.shutdown(object, false, true) {
                Ok(_) => socket.shut = true,
                Err(failure) => any |= self.fail(&mut socket, failure.errno(), now),
            }
        }
        let close = if self.is_server {
            is_done && now >= *socket.done_at.get_or_insert(now + self.service)
        } else {
            // The poisoned connection is over when its client has seen its end. The program that does not
            // read does not close its connections either.
            socket.ended && (socket.shut || socket.is_hostile) && !self.hoards
        };
        if close {
            let is_whole = self.is_server || socket.is_hostile || socket.got == self.length;
            assert!(is_whole, "the stream is cut off at {}", socket.got);
            self.has_failed |= !self.is_server && socket.is_hostile;
            program.close(object);
            if self.loses_stack && !self.is_server && socket.is_hostile {
                self.to_open.push_back(socket.number);
                self.waits_until = Some(now + TRIED_AGAIN);
            }
            self.finished += u64::from(!socket.is_hostile);
            return true;
        }
        let left = if self.is_server { socket.held.len() } else { self.length - socket.sent };
        let reads = socket.was_open && !socket.ended && !self.hoards;
        let writes = !socket.was_open || left > 0 && socket.rests_until.is_none();
        // A connection that has ended is always ready, because EPOLLHUP cannot be switched off.
        let wanted = (!socket.ended).then_some((u32::from(reads) * IN) | (u32::from(writes) * OUT));
        let wanted = wanted.or((!socket.held.is_empty()).then_some(OUT));
        program.set_interest(object, &mut socket, wanted);
        self.sockets.insert(object, socket);
        any
    }

    fn read(
        &mut self,
        program: &mut Program,
        now: Instant,
        object: u32,
        socket: &mut Socket,
        rng: &mut Rng,
    ) -> bool {
        let mut bytes = vec![0; 1 + rng.below(AT_ONCE) as usize];
        let (want, how, mut done) = (bytes.len(), Receiving { peek: self.hoards, ..Receiving::default() }, 0);
        let target = &mut bytes[..];
        match program.client.receive_octets(object, move || std::iter::once(target), want, how, &mut done) {
            Ok(0) => {
                let is_whole = !self.loses_stack || socket.is_hostile || socket.got == self.length;
                assert!(is_whole, "a clean end at {} of {}", socket.got, socket.number);
                socket.ended = true;
            }
            Ok(_) if self.hoards => return false,
            Ok(len) => {
                bytes.truncate(len);
                if self.is_server {
                    socket.held.extend(&bytes);
                } else {
                    let start = socket.got;
                    assert!(
                        bytes.iter().zip(start..).all(|(byte, at)| *byte == octet(socket.number, at)),
                        "connection {} has changed behind {start}",
                        socket.number
                    );
                }
                socket.got += len;
            }
            Err(Failure::WouldBlock) => return false,
            Err(Failure::Error(errno)) => return self.fail(socket, errno, now),
        }
        true
    }

    fn write(
        &mut self,
        program: &mut Program,
        now: Instant,
        object: u32,
        socket: &mut Socket,
        rng: &mut Rng,
    ) -> bool {
        let left = if self.is_server { socket.held.len() } else { self.length - socket.sent };
        let want = left.min(POISON.len() + rng.below(AT_ONCE) as usize);
        if want == 0 || program.client.readiness(object) & OUT == 0 {
            return false;
        }
        let text: Vec<u8> = if self.is_server {
            socket.held.range(..want).copied().collect()
        } else {
            (socket.sent..socket.sent + want)
                .map(|at| text_octet(self.is_poisoned, socket.number, at))
                .collect()
        };
        let mut done = 0;
        let source = || std::iter::once(&text[..]);
        let sent = program.client.send_octets(object, source, want, Sending::default(), &mut done);
        socket.held.drain(..done.min(socket.held.len()));
        socket.sent += done;
        if done > 0 && rng.chance_per_million(self.rests) {
            socket.rests_until = Some(now + Duration::from_millis(1000 + u64::from(rng.below(2000))));
        }
        match sent {
            Err(Failure::Error(errno)) => self.fail(socket, errno, now),
            Ok(_) | Err(Failure::WouldBlock) => done > 0,
        }
    }

    /// Handles a connection that has ended with an error. That is a fault of the stack unless something in
    /// the story explains it.
    fn fail(&mut self, socket: &mut Socket, errno: Errno, now: Instant) -> bool {
        let is_explained = self.loses_stack
            || self.hoards
            || socket.is_hostile
            || self.is_server && (self.is_forgiving || self.is_poisoned);
        assert!(
            is_explained,
            "{errno:?} at {now:?}, connection {}, got {}, sent {}, server {}",
            socket.number, socket.got, socket.sent, self.is_server
        );
        let any = !socket.ended;
        self.refused += u64::from(self.hoards && any);
        socket.held.clear();
        (socket.ended, socket.is_hostile, socket.was_open) = (true, true, true);
        any
    }

    /// Sets how long connections are kept when everything has been sent.
    pub(super) fn set_service(&mut self, service: Duration) {
        self.service = service;
    }
}

/// Has a connection notice within seconds that its peer's stack is gone.
fn keep_alive(client: &mut Client<Simulated>, object: u32) {
    let Some(socket) = client.socket_mut(object) else { return };
    let options = [(Name::KeepAlive, 1), (Name::KeepIdle, 2), (Name::KeepInterval, 1), (Name::KeepCount, 3)];
    options.into_iter().for_each(|(name, value)| socket.options.set(name, value));
}

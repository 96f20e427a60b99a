//! Processes of the server that fork, execute another program, send connections to each other, and end. What
//! they hand over is written down and read as in a real process ([`atoll_sockets::client::exec_state`]), and
//! the next process has a session of its own beside those that its connections are in.
//!
//! ```text
//!   prepares   a session of the next process; its listeners are registered there, one answer after another
//!   hands over exec: the next program has all;   fork: each connection is closed by one of the two
//!   sends      a connection travels for a while; its sender has closed it
//!   ends       replicas hear that a member is gone, each when it reads its control socket
//! ```

use std::collections::{BTreeMap, VecDeque};

use atoll_base::{Duration, Instant, SessionId};
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::control::Reply;
use atoll_ipc::page::{AppPage, BELLS, StackPage};
use atoll_ipc::{Cause, Command, Event};
use atoll_sockets::client::Client;
use atoll_sockets::client::exec_state::{ExecState, Inherited, PassedSocket, SessionState};
use atoll_sockets::client::session::Session;
use atoll_sockets::client::simulated::{Moment, Simulated, shared};

use super::departing::{Departure, delay};
use super::program::{Program, Socket};
use super::violation::WorldViolation;
use super::{Process, World};

/// The most times that something is handed over in a story.
const HANDED_MAX: u32 = 24;
/// The longest time in microseconds that a connection is on its way to another process.
const ON_ITS_WAY_MAX: u32 = 5000;
/// How long a session is open that no process has ended yet.
const UNTIL_ENDED: Duration = Duration::from_secs(1_000_000);

/// The action that a process prepares, and the next process.
pub(super) struct Handing {
    how: How,
    /// The index of the next process.
    child: usize,
    /// The next process's own session.
    session: Session<Simulated>,
    /// The commands that register listeners in it, and the answers that are awaited: replica and token.
    commands: VecDeque<(usize, Command)>,
    awaited: Vec<(usize, u32)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Exec,
    Fork,
}

/// A connection on its way to another process.
pub(super) struct Letter {
    from: usize,
    to: usize,
    arrives_at: Instant,
    octets: Vec<u8>,
    socket: Socket,
}

/// The members of sessions that are gone: when a replica learns it, and the number of the message, with the
/// replica, the session and the member.
pub(super) type Farewells = BTreeMap<(Instant, u32), (usize, SessionId, u8)>;

impl Process {
    /// Returns whether the process is a member of a session.
    pub(super) fn is_member(&self, session: SessionId) -> bool {
        self.session == session || self.memberships.iter().any(|(other, _)| *other == session)
    }

    /// Returns whether the process has connections that ended with their stack.
    fn has_lost(&self) -> bool {
        let Some(program) = &self.program else { return false };
        self.sockets.keys().any(|object| !program.client.is_held(*object))
    }

    /// Returns whether the process runs an honest server that listens.
    fn is_listening(&self) -> bool {
        self.is_server
            && self.departure.is_none()
            && self.program.as_ref().is_some_and(|program| program.is_listening() && !program.is_claiming())
    }
}

impl World {
    /// Continues what processes hand over, and lets them begin. Returns whether there was anything to do.
    pub(super) fn run_families(&mut self) -> bool {
        if !self.has_begun {
            return false;
        }
        let mut any = self.deliver_letters() | self.hear_farewells();
        for at in 0..self.processes.len() {
            if let Some(handing) = self.processes[at].handing.take() {
                any |= self.go_on_with(at, handing);
                continue;
            }
            let is_due = self.processes[at].wakes_at.is_some_and(|at| at <= self.now);
            let handed: u32 = self.handed.iter().sum();
            // What a stack that is gone has left to a process is passed on by nobody.
            let is_whole = !self.machines[0].is_away && !self.processes[at].has_lost();
            let may_begin = self.story.hands_over > 0 && handed < HANDED_MAX && is_whole;
            if !may_begin || !is_due || !self.processes[at].is_listening() {
                continue;
            }
            if self.rng.chance_per_million(self.story.hands_over) {
                any = true;
                // What is on its way ends with its sender.
                let has_sent = self.letters.iter().any(|letter| letter.from == at);
                match self.rng.below(4) {
                    0 if !has_sent => self.prepare(at, How::Exec),
                    1 => self.prepare(at, How::Fork),
                    2 if !has_sent => self.exit(at),
                    _ => self.send_one(at),
                }
            }
        }
        any
    }

    /// Returns when something of families happens next.
    pub(super) fn next_of_families(&self) -> Option<Instant> {
        let farewell = self.farewells.keys().next().map(|(at, _)| *at);
        self.letters.iter().map(|letter| letter.arrives_at).chain(farewell).min()
    }

    /// Returns how often processes have executed another program, forked, sent a connection, and ended.
    pub fn handed(&self) -> [u32; 4] {
        self.handed
    }

    /// Finishes what is being handed over, and ends all processes that have inherited or received anything,
    /// so that the sessions of those that ended before are over.
    pub(super) fn dismiss_families(&mut self, limit: Instant) -> Result<(), WorldViolation> {
        self.story.hands_over = 0;
        while !self.letters.is_empty() || self.processes.iter().any(|process| process.handing.is_some()) {
            if !self.turn()? && !self.go_on(limit) {
                return Err(WorldViolation::NeverHandedOver(self.report()));
            }
        }
        for at in 0..self.processes.len() {
            if !self.processes[at].memberships.is_empty() && self.processes[at].departure.is_none() {
                self.end(at);
            }
        }
        Ok(())
    }

    /// Returns a member's view of a session, with what describes it.
    pub(super) fn view(&self, session: SessionId, member: u8) -> (Reply, Session<Simulated>) {
        let process = &self.processes[session.0 as usize - 1];
        let machine = &self.machines[process.machine];
        let log2 = self.story.memory_log2;
        let config = ArenaConfig { slots: 128, send_log2: log2, receive_log2: log2 };
        let replicas = process.arenas.len() as u8;
        let reply = Reply::Joined { session: session.0, key: 0, member, replicas, config };
        let pages = machine.legacies.iter().map(|(page, _)| page.clone());
        let (stack, page) = (StackPage(machine.stack.0.clone()), AppPage(process.page.0.clone()));
        let parts = shared(stack, page, pages.zip(process.arenas.iter().cloned()));
        (reply, Session::new(&reply, parts).expect("a whole session"))
    }

    /// Makes a process the next member of a session, and returns its view of that.
    fn join(&mut self, at: usize, session: SessionId) -> (Reply, Session<Simulated>) {
        let owner = &mut self.processes[session.0 as usize - 1];
        let member = owner.next_member;
        owner.next_member += 1;
        self.processes[at].memberships.push((session, member));
        let (reply, mut view) = self.view(session, member);
        view.shared = true;
        (reply, view)
    }

    /// Prepares for the next process: it gets a session of its own, in which listeners are registered.
    fn prepare(&mut self, at: usize, how: How) {
        let child = self.processes.len();
        self.attach(0);
        let service = self.processes[at].service;
        self.processes[child].program = None;
        self.processes[child].wakes_at = None;
        self.processes[child].set_service(service);
        let session = self.view(self.processes[child].session, 0).1;
        let now = self.now;
        let process = &mut self.processes[at];
        let Some(program) = &mut process.program else { return };
        program.resume(now);
        let replicas = program.client.replicas();
        let held = program.client.held();
        let mut commands = VecDeque::new();
        for object in held {
            let token = program.client.new_token();
            commands.extend(program.client.registration(object, replicas, token));
        }
        process.handing = Some(Handing { how, child, session, commands, awaited: Vec::new() });
    }

    /// Sends the next command, takes an answer, or hands over when all are answered. Returns whether there
    /// was anything to do.
    fn go_on_with(&mut self, at: usize, mut handing: Handing) -> bool {
        if let Some((replica, command)) = handing.commands.pop_front() {
            handing.session.push(replica, &command);
            if let Command::Bind { token, .. } | Command::Listen { token, .. } = command {
                handing.awaited.push((replica, token));
            }
        } else if handing.awaited.is_empty() {
            self.hand_over(at, handing);
            return true;
        } else {
            let replicas = handing.session.replicas_mut().iter_mut().enumerate();
            let answer =
                replicas.map(|(replica, from)| (replica, from.port_mut())).find_map(|(replica, port)| {
                    let event = port.next_event()?;
                    port.publish();
                    Some((replica, event))
                });
            let Some((replica, event)) = answer else {
                self.processes[at].handing = Some(handing);
                return false;
            };
            if let Event::BindReply { token, cause, .. } | Event::ListenReply { token, cause, .. } = event
                && let Some(found) = handing.awaited.iter().position(|awaited| *awaited == (replica, token))
            {
                assert_eq!(cause, Cause::None, "the family has the port");
                handing.awaited.swap_remove(found);
            }
        }
        self.processes[at].handing = Some(handing);
        true
    }

    /// Runs execve(2), or fork(2) up to the moment at which each of the two has its connections.
    fn hand_over(&mut self, at: usize, handing: Handing) {
        let Handing { how, child, session, .. } = handing;
        let (now, seed) = (self.now, self.rng.next_u64());
        let mut program = self.processes[at].program.take().expect("it runs");
        let held = program.client.held();
        let mut in_use: Vec<usize> = held
            .iter()
            .filter_map(|object| program.client.socket(*object))
            .flat_map(|socket| socket.places().iter().map(|place| place.session))
            .collect();
        in_use.sort_unstable();
        in_use.dedup();
        let mut joined = Vec::new();
        for index in &in_use {
            let id = SessionId(program.client.sessions()[*index].id);
            joined.push(self.join(child, id));
        }
        // The next process is a holder before anything else happens.
        for object in &held {
            let places = program.client.socket(*object).map(|socket| socket.places().to_vec());
            for place in places.unwrap_or_default() {
                let index = in_use.iter().position(|index| *index == place.session).expect("it is in use");
                assert!(program.client.add_holder(place, joined[index].1.member));
            }
        }
        let own = (session, Moment::default(), seed);
        own.1.set(now);
        let clock = own.1.clone();
        let (client, numbers) = match how {
            How::Exec => executed(&program.client, &held, own, &in_use, joined),
            How::Fork => self.forked(&program.client, &held, own, &in_use, joined),
        };
        self.handed[how as usize] += 1;
        let listener = program.listener().map(|object| numbers[&object]);
        let mut next = Program::around(client, clock, listener, program.polls());
        let all = std::mem::take(&mut self.processes[at].sockets);
        for (object, mut socket) in all {
            if how == How::Exec || self.rng.below(2) == 0 {
                if how == How::Fork {
                    program.close(object);
                }
                next.watch_again(numbers[&object], &mut socket);
                self.processes[child].sockets.insert(numbers[&object], socket);
            } else {
                next.close(numbers[&object]);
                self.processes[at].sockets.insert(object, socket);
            }
        }
        self.processes[child].program = Some(next);
        self.processes[child].wakes_at = Some(now);
        if how == How::Exec {
            // It is the same process, with the same unix sockets.
            self.letters.iter_mut().filter(|letter| letter.to == at).for_each(|letter| letter.to = child);
            self.end(at);
        } else {
            self.processes[at].program = Some(program);
            self.processes[at].wakes_at = Some(now);
        }
    }

    /// Makes the client of a forked child. A copy of the parent's client is made by writing it down; what
    /// follows is what the library does in a child.
    fn forked(
        &self,
        parent: &Client<Simulated>,
        held: &[u32],
        own: (Session<Simulated>, Moment, u64),
        in_use: &[usize],
        joined: Vec<(Reply, Session<Simulated>)>,
    ) -> (Client<Simulated>, BTreeMap<u32, u32>) {
        let all: Vec<usize> = (0..parent.sessions().len()).collect();
        let views = parent.sessions().iter().map(|session| {
            let (reply, mut view) = self.view(SessionId(session.id), session.member);
            view.shared = session.shared;
            (reply, view)
        });
        let dummy = self.view(SessionId(own.0.id), 0).1;
        let (mut copy, numbers) =
            executed(parent, held, (dummy, Moment::default(), 0), &all, views.collect());
        copy.forget_threads();
        // The copy has a session before the parent's.
        let joined = in_use.iter().zip(joined).map(|(index, (_, view))| (index + 1, view)).collect();
        copy.become_child(own, joined);
        (copy, numbers)
    }

    /// Sends one connection to another process, and closes it.
    fn send_one(&mut self, at: usize) {
        let takes = |to: &usize| *to != at && self.processes[*to].is_listening();
        let others: Vec<usize> = (0..self.processes.len()).filter(takes).collect();
        let sockets: Vec<u32> = self.processes[at].sockets.keys().copied().collect();
        if others.is_empty() || sockets.is_empty() {
            return;
        }
        let to = others[self.rng.below(others.len() as u32) as usize];
        let object = sockets[self.rng.below(sockets.len() as u32) as usize];
        let arrives_at = self.now + Duration::from_micros(self.rng.below(ON_ITS_WAY_MAX).into());
        let now = self.now;
        let process = &mut self.processes[at];
        let (Some(program), Some(socket)) = (&mut process.program, process.sockets.remove(&object)) else {
            return;
        };
        program.resume(now);
        let octets = program.client.pass(object).expect("a connection").encode().expect("short");
        program.close(object);
        self.handed[2] += 1;
        self.letters.push(Letter { from: at, to, arrives_at, octets, socket });
    }

    /// Delivers the connections that have arrived. Returns whether there were any.
    fn deliver_letters(&mut self) -> bool {
        let now = self.now;
        let (due, rest): (Vec<Letter>, Vec<Letter>) = std::mem::take(&mut self.letters)
            .into_iter()
            .partition(|letter| letter.arrives_at <= now && self.processes[letter.to].handing.is_none());
        self.letters = rest;
        let any = !due.is_empty();
        for Letter { to, octets, mut socket, .. } in due {
            let passed = PassedSocket::decode(&octets).expect("sound");
            let id = passed.session;
            let mut program = self.processes[to].program.take().expect("who gets something lives");
            program.resume(now);
            if program.client.session_of(id).is_none() {
                let view = self.join(to, SessionId(id)).1;
                program.client.add_session(view);
            }
            let object = program.client.take_passed(passed).expect("its place exists");
            program.watch_again(object, &mut socket);
            let process = &mut self.processes[to];
            (process.program, process.wakes_at) = (Some(program), Some(now));
            process.sockets.insert(object, socket);
        }
        any
    }

    /// Ends a process that has no connection, if others listen: _exit(2).
    fn exit(&mut self, at: usize) {
        let listening = self.processes.iter().filter(|process| process.is_listening()).count();
        let is_awaited = self.letters.iter().any(|letter| letter.to == at);
        if listening > 1 && !is_awaited && self.processes[at].sockets.is_empty() {
            self.handed[3] += 1;
            self.end(at);
        }
    }

    /// Ends a process without a close. Replicas learn of it, and the sessions of which it was the last member
    /// are over.
    fn end(&mut self, at: usize) {
        let now = self.now;
        let replicas = self.machines[0].replicas.len();
        let departure = Departure::new(now, UNTIL_ENDED, replicas, &mut self.rng);
        let process = &mut self.processes[at];
        (process.program, process.departure) = (None, Some(departure));
        let (own, left) = (process.session, std::mem::take(&mut process.memberships));
        for (session, member) in &left {
            for replica in 0..replicas {
                let number = self.farewells.len() as u32;
                let hears_at = now + delay(&mut self.rng);
                let mut key = (hears_at, number);
                while self.farewells.contains_key(&key) {
                    key.1 += 1;
                }
                self.farewells.insert(key, (replica, *session, *member));
            }
        }
        for session in left.into_iter().map(|(session, _)| session).chain([own]) {
            let is_over = !self
                .processes
                .iter()
                .any(|process| process.memberships.iter().any(|(other, _)| *other == session));
            let owner = &mut self.processes[session.0 as usize - 1];
            if let Some(departure) = owner.departure.as_mut().filter(|_| is_over) {
                departure.end(now);
            }
        }
    }

    /// Sends replicas the members that are gone. Returns whether there was anything to send.
    fn hear_farewells(&mut self) -> bool {
        let mut any = false;
        while let Some(first) = self.farewells.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (replica, session, member) = first.remove();
            self.machines[0].replicas[replica].member_gone(self.now, session, member);
            any = true;
        }
        any
    }
}

/// Makes the client of the next program from what the one before has left, and returns the number there of
/// each object here.
fn executed(
    before: &Client<Simulated>,
    held: &[u32],
    own: (Session<Simulated>, Moment, u64),
    in_use: &[usize],
    joined: Vec<(Reply, Session<Simulated>)>,
) -> (Client<Simulated>, BTreeMap<u32, u32>) {
    let (replies, joined): (Vec<Reply>, Vec<Session<Simulated>>) = joined.into_iter().unzip();
    let descriptors = 2 + BELLS as i32 + 3 * own.0.count() as i32;
    // Sockets have low numbers, and everything else higher ones.
    let session = |(n, reply)| {
        let first = (1 << 20) + n * descriptors;
        SessionState { reply, descriptors: (first..first + descriptors).collect() }
    };
    let sessions = (0..).zip(std::iter::once(own.0.reply).chain(replies)).map(session).collect();
    let sockets: Vec<(i32, u32)> = held.iter().map(|object| (*object as i32, *object)).collect();
    let state = before.exec_state((1 << 20) - 1, sessions, in_use, &sockets);
    let octets = state.encode().expect("short");
    let ExecState { sockets, .. } = ExecState::decode(&octets).expect("sound");
    assert!(sockets.iter().all(|Inherited { descriptors, .. }| descriptors.len() == 1));
    let mut client = Client::new();
    let numbers = client.take_exec_state(own, joined, sockets);
    (client, numbers.into_iter().map(|(descriptor, object)| (descriptor as u32, object)).collect())
}

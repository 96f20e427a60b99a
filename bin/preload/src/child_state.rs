//! Prepares what a process leaves to its child, or to the program that takes its place.
//!
//! Before fork(2) or execve(2) the process prepares everything for the next one, while it still holds the
//! sockets itself: a connection to the supervisor that will stand for the next process; a session of the next
//! process's own, in which all bound ports and listeners are registered; and membership in each session that
//! has open connections, as a holder of each. So nothing can end in between, whatever the process closes
//! afterwards.
//!
//! The supervisor and the replicas are asked without the lock of the state ([`crate::supervisor`]), so what
//! is asked may be out of date when the answer comes. [`Preparation`] therefore looks at the sockets again,
//! under the lock, and asks once more for what is missing. What the next process shall not have after all is
//! released for it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use atoll_base::Duration;
use atoll_ipc::control::Request;
use atoll_ipc::{Command, Event};
use atoll_sockets::client::object::Place;
use atoll_sockets::client::platform::Clock;

use crate::control::{Control, Joined, Reason, attach};
use crate::hang_up;
use crate::lock::STATE;
use crate::platform::{Session, StackClock};
use crate::space;
use crate::state::{State, is_away, own};
use crate::supervisor::Connections;
use crate::table::Internal;
use crate::waiter::Waiter;

/// The time that replicas have to register ports and listeners of the next process.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a process looks for answers, and lets others run, before it sleeps: about as long as a replica
/// takes that is awake, or shares the processor.
const LOOKS_BEFORE_SLEEP: u32 = 32;

/// The doorbell of the next process's session on which this process sleeps meanwhile. The family's: the next
/// process has no thread yet that sleeps on any.
const BELL: u32 = 0;

/// The longest sleep before this process looks again: commands may wait for room in a ring, for which nobody
/// rings.
const LONGEST_SLEEP: Duration = Duration::from_millis(10);

/// How often ports that were bound meanwhile are registered without the lock of the state. A program that
/// binds ports all the time would not get to fork otherwise; the replicas, not the supervisor, are asked
/// under the lock then.
const ROUNDS: u32 = 3;

/// Writes once to standard error why sockets cannot be inherited: the process may have changed to a user
/// without access.
fn say_why(reason: Reason) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        crate::complain(format_args!(
            "libatoll: children and the next program cannot have this program's sockets, nor the stack: \
             {reason}\n"
        ));
    }
}

/// Brings the kernel's limit of address space in line with the arenas that are mapped now. The caller holds
/// no lock.
pub fn refit_limit() {
    space::refit(|| STATE.with(|state| state.mapped()));
}

/// Sleeps until the doorbell in `waiter` is rung, or for `time`. A process that may not open an epoll
/// instance sleeps a while.
fn sleep(waiter: &Waiter, time: Duration) {
    if waiter.number() < 0 {
        let nobody = AtomicU32::new(0);
        crate::instruction::futex_wait(&nobody, 0, Some(Duration::from_millis(1)));
        return;
    }
    // Signals are put off as long as a lock is held, but end the sleep.
    let _ = Waiter::sleep(waiter.number(), Some(time), std::ptr::null());
}

/// Unmaps a session, and closes its descriptors.
fn let_go(mut session: Session) {
    Internal::close_all(session.take_bells());
}

// ---- the preparation ----

/// The preparation for a next process, until nothing is missing for it.
#[derive(Debug, Default)]
pub struct Preparation {
    /// What is prepared for the sockets that the next process gets.
    pub child_state: Option<ChildState>,
    /// A connection for a next process that gets no sockets, if it could not connect by itself.
    pub kept: Option<Control>,
    /// Whether `kept` was asked for.
    is_kept_asked: bool,
    /// Whether the sockets cannot be passed on.
    is_refused: bool,
    rounds: u32,
}

/// What the next process gets, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextProcess {
    /// It is a child that begins with a copy of this process's state.
    Child,
    /// It is another program: descriptors are kept, to be passed on over exec.
    Program,
}

/// What is missing before the next process can have certain sockets.
#[derive(Debug, Default)]
struct Missing {
    /// Whether it gets no sockets, and a connection of its own is missing.
    kept: bool,
    /// The sessions that it has to join: the index of each here, and the request.
    sessions: Vec<(usize, Request)>,
    /// The ports and listeners that are to be registered, each with the token of the answers.
    registrations: Vec<(u32, Registration)>,
}

impl Preparation {
    /// Prepares for a next process that gets the objects that `objects` returns. The caller holds
    /// [`crate::supervisor::SUPERVISOR`]. On return it holds the lock of the state as well, under which
    /// `objects` was called last.
    pub fn prepare(
        connections: &Connections,
        next: NextProcess,
        mut objects: impl FnMut(&State) -> Vec<u32>,
    ) -> Preparation {
        let mut preparation = Preparation::default();
        loop {
            STATE.0.acquire();
            // SAFETY: the lock is held, and this reference ends before it is released.
            let state = unsafe { STATE.0.held() };
            let objects = objects(state);
            let Some(missing) = preparation.finish(state, &objects, next) else { return preparation };
            STATE.0.release();
            preparation.ask(connections, missing, next);
        }
    }

    /// Completes the preparation for `objects`, or returns what is missing.
    fn finish(&mut self, state: &mut State, objects: &[u32], next: NextProcess) -> Option<Missing> {
        let is_gone = state.client.is_stack_gone();
        if is_gone && next == NextProcess::Program && !objects.is_empty() {
            say_why(Reason::Unreachable(libc::ENOENT));
        }
        if !objects.is_empty() && !self.is_refused && !is_gone {
            let missing = Missing::of(state, objects, self.child_state.as_ref());
            let Some(child_state) = &mut self.child_state else { return Some(missing) };
            let is_late = self.rounds >= ROUNDS;
            if !missing.sessions.is_empty() || !missing.registrations.is_empty() && !is_late {
                return Some(missing);
            }
            child_state.register(missing.registrations);
            child_state.release_others(state, objects);
            if child_state.hold(state, objects) {
                return None;
            }
            self.is_refused = true;
        }
        if let Some(child_state) = self.child_state.take() {
            child_state.disown(state);
        }
        let is_connection_missing = next == NextProcess::Child && is_away() && !self.is_kept_asked;
        is_connection_missing.then(|| Missing { kept: true, ..Missing::default() })
    }

    /// Asks for what is missing. The caller does not hold the lock of the state.
    fn ask(&mut self, connections: &Connections, missing: Missing, next: NextProcess) {
        if missing.kept {
            (self.kept, self.is_kept_asked) = (connections.for_next(), true);
            return;
        }
        self.rounds += 1;
        let keep = next == NextProcess::Program;
        let begun = match self.child_state.take() {
            Some(child_state) => Ok(child_state),
            None => ChildState::begin(connections, keep),
        };
        let asked = begun.and_then(|mut child_state| {
            child_state.join(missing.sessions, keep)?;
            child_state.register(missing.registrations);
            Ok(child_state)
        });
        match asked {
            Ok(child_state) => self.child_state = Some(child_state),
            Err(reason) => {
                say_why(reason);
                self.is_refused = true;
            }
        }
    }
}

impl Missing {
    /// Returns what `child_state` lacks of what `objects` need.
    fn of(state: &mut State, objects: &[u32], child_state: Option<&ChildState>) -> Missing {
        let mut missing = Missing::default();
        for object in objects {
            let Some(socket) = state.client.socket(*object) else { continue };
            for place in socket.places() {
                let is_joined = child_state.is_some_and(|it| it.member_of(place.session).is_some())
                    || missing.sessions.iter().any(|(index, _)| *index == place.session);
                if !is_joined && let Some(session) = state.client.sessions().get(place.session) {
                    let request = Request::Join { session: session.id, key: session.key };
                    missing.sessions.push((place.session, request));
                }
            }
            let is_registered = |it: &Registration| child_state.is_some_and(|of| of.registered.contains(it));
            if let Some(registration) = Registration::of(state, *object).filter(|it| !is_registered(it)) {
                missing.registrations.push((state.client.new_token(), registration));
            }
        }
        missing
    }
}

// ---- what is prepared ----

/// What is prepared for the next process.
#[derive(Debug)]
pub struct ChildState {
    pub control: Control,
    /// The next process's own session.
    pub own: Joined,
    clock: StackClock,
    /// The sessions that the next process joins: the index of each here, and the next process's view of it.
    pub joined: Vec<(usize, Joined)>,
    /// What is registered in its own session.
    registered: Vec<Registration>,
    /// The slots that the next process holds.
    places: Vec<Place>,
}

/// A bound port and perhaps a listener, as the replicas know them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Registration {
    lease: u64,
    /// The commands that say so, each with its replica; their tokens are 0.
    commands: Vec<(usize, Command)>,
}

impl Registration {
    /// Returns what is to be registered for an object; `None` if it has no port.
    fn of(state: &State, object: u32) -> Option<Registration> {
        let lease = state.client.socket(object).map(|socket| socket.lease).filter(|lease| *lease != 0)?;
        let commands = state.client.registration(object, state.client.replicas(), 0);
        Some(Registration { lease, commands })
    }
}

/// How many commands with each token each replica has still to answer.
#[derive(Debug, Default)]
struct Unanswered(BTreeMap<(usize, u32), u32>);

impl Unanswered {
    fn add(&mut self, replica: usize, token: u32) {
        *self.0.entry((replica, token)).or_default() += 1;
    }

    /// Removes one command that a replica has answered. An answer to none of them is left alone.
    fn remove(&mut self, replica: usize, token: u32) {
        if let Entry::Occupied(mut left) = self.0.entry((replica, token)) {
            *left.get_mut() -= 1;
            if *left.get() == 0 {
                left.remove();
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl ChildState {
    /// Opens the connection and the session of a next process. `keep` keeps descriptors, to pass them on over
    /// exec.
    fn begin(connections: &Connections, keep: bool) -> Result<ChildState, Reason> {
        let (control, own) = connections.another(|control| control.ask(&attach(), keep))?;
        let clock = StackClock::of(&own.session);
        let (joined, registered, places) = (Vec::new(), Vec::new(), Vec::new());
        Ok(ChildState { control, own, clock, joined, registered, places })
    }

    /// Joins sessions of this process.
    fn join(&mut self, sessions: Vec<(usize, Request)>, keep: bool) -> Result<(), Reason> {
        for (index, request) in sessions {
            let mut joined = self.control.ask(&request, keep)?;
            joined.session.shared = true;
            self.joined.push((index, joined));
        }
        Ok(())
    }

    /// Returns the next process's number in a session of this process; `None` if it has not joined that.
    fn member_of(&self, session: usize) -> Option<u8> {
        self.joined.iter().find(|(index, _)| *index == session).map(|(_, joined)| joined.session.member)
    }

    /// Makes the next process a holder of the slots of `objects`. Returns whether that succeeded.
    fn hold(&mut self, state: &mut State, objects: &[u32]) -> bool {
        for object in objects {
            let places =
                state.client.socket(*object).map(|socket| socket.places().to_vec()).unwrap_or_default();
            for place in places {
                let Some(member) = self.member_of(place.session) else { return false };
                if !state.client.add_holder(place, member) {
                    return false;
                }
                self.places.push(place);
            }
        }
        true
    }

    /// Registers bound ports, and listeners, in the next process's own session, and waits until all replicas
    /// have answered.
    fn register(&mut self, registrations: Vec<(u32, Registration)>) {
        let mut unanswered = Unanswered::default();
        for (token, registration) in registrations {
            for (replica, mut command) in registration.commands.iter().copied() {
                if let Command::Bind { token: own, .. } | Command::Listen { token: own, .. } = &mut command {
                    *own = token;
                    unanswered.add(replica, token);
                }
                // Each replica takes its commands in their order, and none waits for what another answers.
                self.own.session.push(replica, &command);
            }
            // What it says of a port that was registered before counts from now on.
            self.registered.retain(|before| before.lease != registration.lease);
            self.registered.push(registration);
        }
        self.await_answers(unanswered);
    }

    /// Waits for the answers to commands of the next process's session: for a moment by letting others run
    /// first, and then asleep on a doorbell of that session, because a replica that shares its processor with
    /// others may answer late.
    fn await_answers(&mut self, mut unanswered: Unanswered) {
        let deadline = self.clock.now() + ANSWER_TIMEOUT;
        let (mut looks, mut waiter) = (0, None);
        loop {
            self.take_answers(&mut unanswered);
            let left = deadline.since(self.clock.now());
            if unanswered.is_empty() || left == Duration::ZERO {
                return;
            }
            // The ring may have been full.
            self.own.session.send_waiting(self.clock.now());
            looks += 1;
            if looks <= LOOKS_BEFORE_SLEEP {
                crate::instruction::yield_now();
                continue;
            }
            let session = &self.own.session;
            let waiter = waiter.get_or_insert_with(|| {
                let mut waiter = Waiter::new();
                waiter.watch(std::slice::from_ref(session), 1 << BELL);
                waiter
            });
            session.set_asleep(BELL);
            session.fence();
            self.take_answers(&mut unanswered);
            if !unanswered.is_empty() {
                sleep(waiter, left.min(LONGEST_SLEEP));
            }
            self.own.session.set_awake(BELL);
        }
    }

    /// Removes from `unanswered` what replicas have answered.
    fn take_answers(&mut self, unanswered: &mut Unanswered) {
        for (replica, from) in self.own.session.replicas_mut().iter_mut().enumerate() {
            let port = from.port_mut();
            while let Some(event) = port.next_event() {
                port.publish();
                if let Event::BindReply { token, .. } | Event::ListenReply { token, .. } = event {
                    unanswered.remove(replica, token);
                }
            }
        }
    }

    /// Releases the ports that were registered for sockets that this process has closed meanwhile.
    fn release_others(&mut self, state: &State, objects: &[u32]) {
        let lease_of = |object: &u32| state.client.socket(*object).map(|socket| socket.lease);
        let leases: Vec<u64> = objects.iter().filter_map(lease_of).collect();
        for registration in self.registered.extract_if(.., |of| !leases.contains(&of.lease)) {
            for replica in 0..self.own.session.count() {
                self.own.session.push(replica, &Command::Release { lease: registration.lease });
            }
        }
    }

    /// Removes the next process as a holder, because there will be none.
    pub fn disown(self, state: &State) {
        for place in &self.places {
            let joined = self.joined.iter().find(|(index, _)| *index == place.session);
            if let Some((_, joined)) = joined {
                state.client.remove_holder(*place, joined.session.member);
            }
        }
    }

    /// Returns the sessions of the next process: its own, then those that it joins.
    pub fn sessions(&self) -> impl Iterator<Item = &Joined> {
        std::iter::once(&self.own).chain(self.joined.iter().map(|(_, joined)| joined))
    }

    /// Makes the child of a fork the prepared process: everything of the parent that it does not share is
    /// dropped.
    pub fn take_over(self, state: &mut State, connections: &mut Connections) {
        hang_up::watch(self.control.descriptor().number());
        connections.own = Some(self.control);
        let joined = self.joined.into_iter().map(|(index, joined)| (index, joined.session)).collect();
        // Arenas and doorbells of the parent are unmapped and closed here; the child has its own views of
        // them.
        state.client.become_child(own(self.own.session), joined).into_iter().for_each(let_go);
    }

    /// Lets go of the next process's sessions, which has its own views of them.
    pub fn given(self) {
        let_go(self.own.session);
        self.joined.into_iter().for_each(|(_, joined)| let_go(joined.session));
    }
}

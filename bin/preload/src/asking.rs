//! How do calls wait for the answers of the naive accept? P4's baseline: see [`atoll_sockets::asking`].

use std::sync::atomic::{AtomicBool, Ordering};

use atoll_base::Duration;
use atoll_ipc::Command;
use atoll_sockets::asking::Next;
use atoll_sockets::{Errno, Failure};

use crate::object::{Kind, Socket};
use crate::state::{STATE, State};
use crate::wait::block;

/// How long an answer may take. One that never comes is taken for "none".
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The stack wants to be asked for each connection.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// Whether this process asks. Relaxed: it is set when the process joins its stack, before there is any listener.
#[inline]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// The process has joined a stack.
pub fn set(asks: bool) {
    IS_ON.store(asks, Ordering::Relaxed);
}

/// Asks for a connection, unless an answer is under way. Ok: there is none. `tried`: who was asked by this call of accept.
pub fn take(state: &mut State, object: u32, tried: &mut u32) -> Result<(), Failure> {
    let replicas = replicas(state);
    let Some(listener) = state.listener_mut(object) else { return Err(Errno::EINVAL.into()) };
    if listener.claimed.is_some() {
        return Err(Failure::WouldBlock);
    }
    match listener.asking.take(replicas, tried) {
        Next::Ask(replica) => {
            push(state, object, 1 << replica, true);
            Err(Failure::WouldBlock)
        }
        Next::Wait => Err(Failure::WouldBlock),
        Next::Nobody => Ok(()),
    }
}

/// The process will wait for connections of a listener: makes sure that it is told of the next one.
pub fn before_sleep(state: &mut State, object: u32) {
    let replicas = replicas(state);
    if let Some(listener) = state.listener_mut(object) {
        let whom = listener.asking.before_sleep(replicas);
        push(state, object, whom, false);
    }
}

/// The same for all listeners that epoll instances of this process watch.
pub fn before_sleep_in_set(state: &mut State) {
    for object in watched(state) {
        before_sleep(state, object);
    }
}

/// Poll, select or epoll: asks whether connections wait for the listeners among `objects` and those that epoll instances watch,
/// and waits for the answers.
pub fn look(objects: &[u32]) -> Result<(), Errno> {
    let listeners = STATE.with(|state| {
        let mut listeners = watched(state);
        let is_new = |object: &u32| !listeners.contains(object) && state.socket(*object).is_some_and(is_listening);
        let polled: Vec<u32> = objects.iter().copied().filter(is_new).collect();
        listeners.extend(polled);
        let replicas = replicas(state);
        for object in &listeners {
            if let Some(listener) = state.listener_mut(*object) {
                let whom = listener.asking.look(replicas);
                push(state, *object, whom, false);
            }
        }
        listeners
    });
    for object in listeners {
        let answered = block(Some(object), Some(ANSWER_TIMEOUT), |state| {
            let is_answered = |state: &mut State| state.listener_mut(object).is_none_or(|l| l.asking.is_answered());
            if is_answered(state) { Ok(()) } else { Err(Failure::WouldBlock) }
        });
        match answered {
            Err(Errno::EAGAIN) => give_up_unanswered(object),
            answered => answered?,
        }
    }
    Ok(())
}

/// A call does not wait any longer: what it has asked may be asked again.
pub fn give_up_unanswered(object: u32) {
    STATE.with(|state| {
        if let Some(listener) = state.listener_mut(object)
            && !listener.asking.is_answered()
        {
            listener.asking.give_up();
        }
    });
}

/// The listeners that epoll instances watch.
fn watched(state: &State) -> Vec<u32> {
    let all = state.listeners.iter().map(|(_, object)| *object);
    all.filter(|object| !state.watchers(*object).is_empty()).collect()
}

fn is_listening(socket: &Socket) -> bool {
    matches!(socket.kind, Kind::Listening(_))
}

fn replicas(state: &State) -> u8 {
    // Cannot truncate: REPLICAS_MAX.
    state.sessions.first().map_or(0, |session| session.replicas.len() as u8)
}

fn push(state: &mut State, object: u32, whom: u32, takes: bool) {
    let Some(lease) = state.socket(object).map(|socket| socket.lease) else { return };
    let Some(session) = state.sessions.first_mut() else { return };
    for replica in (0..session.replicas.len()).filter(|replica| whom & 1 << replica != 0) {
        session.push(replica, &Command::AskConnection { lease, takes });
    }
}

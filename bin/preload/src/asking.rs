//! Waits for the answers of replicas that are asked for connections: see [`atoll_sockets::asking`]. The naive
//! accept, P4's baseline, asks for each; otherwise who comes late to a listener asks once.

use atoll_base::Duration;
use atoll_sockets::{Errno, Failure};

use crate::lock::STATE;
use crate::wait::block;

/// The time that an answer may take. One that never comes counts as "none".
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The time that a call which is not to block waits for replicas that have no processor.
const OFFERS_TIMEOUT: Duration = Duration::from_secs(1);

/// Asks whether connections wait for the listeners among `objects` and those that epoll instances watch, and
/// waits for the answers. It is called by poll, select and epoll.
pub fn look(objects: &[u32]) -> Result<(), Errno> {
    let listeners = STATE.with(|state| state.client.ask_whether_waiting(objects));
    for object in listeners {
        match await_answers(object, ANSWER_TIMEOUT) {
            Err(Errno::EAGAIN) => give_up_unanswered(object),
            answered => answered?,
        }
    }
    Ok(())
}

/// Waits until the replicas have offered what waits for listeners at which this process accepts only since
/// this call. On a machine with much to do that takes them longer than [`crate::wait::OFFERED_AGAIN`], and
/// the program must not be told that nothing waits.
pub fn hear_offers() {
    let deadline = STATE.with(|state| state.now() + OFFERS_TIMEOUT);
    loop {
        let (object, left) = STATE.with(|state| (state.client.ask_for_offers(), deadline.since(state.now())));
        let Some(object) = object else { return };
        if await_answers(object, left).is_err() {
            return give_up_unanswered(object);
        }
    }
}

/// Waits until every replica that was asked about a listener has answered. Fails with EAGAIN when `timeout`
/// has passed, and with EINTR.
fn await_answers(object: u32, timeout: Duration) -> Result<(), Errno> {
    block(Some(object), Some(timeout), |state| {
        let is_answered = state.client.listener_mut(object).is_none_or(|l| l.asking.is_answered());
        if is_answered { Ok(()) } else { Err(Failure::WouldBlock) }
    })
}

/// Lets a listener be asked about again, because no call waits for its answer any longer.
pub fn give_up_unanswered(object: u32) {
    STATE.with(|state| {
        if let Some(listener) = state.client.listener_mut(object)
            && !listener.asking.is_answered()
        {
            listener.asking.give_up();
        }
    });
}

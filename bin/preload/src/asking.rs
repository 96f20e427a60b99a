//! Waits for the answers of the naive accept, P4's baseline: see [`atoll_sockets::asking`].

use atoll_base::Duration;
use atoll_sockets::{Errno, Failure};

use crate::lock::STATE;
use crate::state::State;
use crate::wait::block;

/// The time that an answer may take. One that never comes counts as "none".
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks whether connections wait for the listeners among `objects` and those that epoll instances watch, and
/// waits for the answers. It is called by poll, select and epoll.
pub fn look(objects: &[u32]) -> Result<(), Errno> {
    let listeners = STATE.with(|state| state.client.ask_whether_waiting(objects));
    for object in listeners {
        let answered = block(Some(object), Some(ANSWER_TIMEOUT), |state| {
            let is_answered =
                |state: &mut State| state.client.listener_mut(object).is_none_or(|l| l.asking.is_answered());
            if is_answered(state) { Ok(()) } else { Err(Failure::WouldBlock) }
        });
        match answered {
            Err(Errno::EAGAIN) => give_up_unanswered(object),
            answered => answered?,
        }
    }
    Ok(())
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

//! The calls that wait for an answer, with their peers and deadlines.

use alloc::vec::Vec;

use atoll_base::{Instant, TimerId, Wheel};
use atoll_ipc::Message;

use crate::line::PeerId;
use crate::threads::ThreadId;

/// The reason why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The deadline passed. The peer may have done what it was asked to, or may do it yet.
    TimedOut,
    /// The peer is gone. It may have done what it was asked to.
    PeerGone,
    /// Too many calls wait, or too many messages for this peer. Nothing was sent.
    Busy,
}

/// The calls of one server, at most `max` at a time. A slot is used again after its call has ended.
#[derive(Debug)]
pub(crate) struct Calls {
    slots: Vec<Slot>,
    free: Vec<u32>,
    deadlines: Wheel,
    max: usize,
}

#[derive(Debug)]
struct Slot {
    /// The number of the call: the slot's index, and in the upper bits how often the slot was used.
    number: u32,
    peer: PeerId,
    thread: ThreadId,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Free,
    Waits,
    Ended(Result<Message, CallError>),
}

/// The number of bits of a call's number that are the index of its slot.
const INDEX_BITS: u32 = 12;
/// The largest number of calls that can wait at a time, whatever limit is asked for.
pub(crate) const CALLS_MAX: usize = 1 << INDEX_BITS;
/// Deadlines are met within 2^16 ns.
const TICK_SHIFT: u32 = 16;

impl Calls {
    pub(crate) fn new(max: usize, now: Instant) -> Calls {
        let max = max.min(CALLS_MAX);
        Calls { slots: Vec::new(), free: Vec::new(), deadlines: Wheel::new(TICK_SHIFT, now), max }
    }

    /// Opens a call, and returns its number.
    #[inline]
    pub(crate) fn open(
        &mut self,
        peer: PeerId,
        thread: ThreadId,
        deadline: Instant,
    ) -> Result<u32, CallError> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow()?,
        };
        let slot = &mut self.slots[index as usize];
        slot.number = slot.number.wrapping_add(1 << INDEX_BITS);
        (slot.peer, slot.thread, slot.state) = (peer, thread, State::Waits);
        self.deadlines.arm(TimerId(index), deadline);
        Ok(slot.number)
    }

    /// Stores the peer's answer to a call. Returns the microthread that waits for it, or `None` if none does,
    /// or not for this peer.
    #[inline]
    pub(crate) fn answer(&mut self, peer: PeerId, number: u32, message: Message) -> Option<ThreadId> {
        let slot = self.waiting(number).filter(|slot| slot.peer == peer)?;
        slot.state = State::Ended(Ok(message));
        let thread = slot.thread;
        self.deadlines.cancel(TimerId(index_of(number) as u32));
        Some(thread)
    }

    /// Returns how the call ended, or `None` while it waits. The caller closes it afterwards.
    #[inline]
    pub(crate) fn outcome(&self, number: u32) -> Option<Result<Message, CallError>> {
        match self.slots.get(index_of(number)).filter(|slot| slot.number == number)?.state {
            State::Ended(result) => Some(result),
            State::Free | State::Waits => None,
        }
    }

    /// Closes a call that has ended, or whose answer is no longer wanted.
    #[inline]
    pub(crate) fn close(&mut self, number: u32) {
        let index = index_of(number);
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.number == number) else { return };
        if matches!(slot.state, State::Free) {
            return;
        }
        slot.state = State::Free;
        self.deadlines.cancel(TimerId(index as u32));
        self.free.push(index as u32);
    }

    /// Ends the calls whose deadline has passed. Returns how many there were.
    #[inline]
    pub(crate) fn expire(&mut self, now: Instant, woken: &mut Vec<ThreadId>) -> u64 {
        let (slots, mut count) = (&mut self.slots, 0);
        self.deadlines.expire(now, |timer| {
            let slot = &mut slots[timer.0 as usize];
            slot.state = State::Ended(Err(CallError::TimedOut));
            woken.push(slot.thread);
            count += 1;
        });
        count
    }

    /// Ends the calls that wait for the peer. Returns how many there were.
    pub(crate) fn fail(&mut self, peer: PeerId, woken: &mut Vec<ThreadId>) -> u64 {
        let mut count = 0;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if slot.peer == peer && matches!(slot.state, State::Waits) {
                slot.state = State::Ended(Err(CallError::PeerGone));
                self.deadlines.cancel(TimerId(index as u32));
                woken.push(slot.thread);
                count += 1;
            }
        }
        count
    }

    /// Returns when the next deadline may have passed.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.deadlines.next_expiry()
    }

    /// Returns how many calls have not been closed.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn waiting(&mut self, number: u32) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(index_of(number))?;
        (slot.number == number && matches!(slot.state, State::Waits)).then_some(slot)
    }

    #[cold]
    fn grow(&mut self) -> Result<u32, CallError> {
        if self.slots.len() >= self.max {
            return Err(CallError::Busy);
        }
        let index = self.slots.len() as u32;
        self.slots.push(Slot { number: index, peer: PeerId(0), thread: ThreadId::NONE, state: State::Free });
        self.free.reserve(self.slots.len());
        Ok(index)
    }
}

const fn index_of(number: u32) -> usize {
    number as usize & (CALLS_MAX - 1)
}

#[cfg(test)]
mod tests {
    use atoll_base::{Addr, Duration};

    use super::*;

    const PEER: PeerId = PeerId(3);
    const ANSWER: Message = Message::Path { dst: Addr::ANY, mtu: 1 };

    fn later(millis: u64) -> Instant {
        Instant::from_millis(1000) + Duration::from_millis(millis)
    }

    fn calls(max: usize) -> Calls {
        Calls::new(max, later(0))
    }

    #[test]
    fn a_call_is_answered_once_by_its_peer_and_under_its_number() {
        let mut calls = calls(4);
        let first = calls.open(PEER, ThreadId::NONE, later(10)).unwrap();
        let second = calls.open(PEER, ThreadId::NONE, later(10)).unwrap();
        assert_ne!(first, second);
        assert_eq!(calls.answer(PeerId(1), first, ANSWER), None, "another peer");
        assert_eq!(
            calls.answer(PEER, first ^ (1 << INDEX_BITS), ANSWER),
            None,
            "another call in the same slot"
        );
        assert_eq!(calls.answer(PEER, 77, ANSWER), None, "no such slot");
        assert_eq!(calls.answer(PEER, second, ANSWER), Some(ThreadId::NONE));
        assert_eq!(calls.answer(PEER, second, ANSWER), None, "a second time");
        assert_eq!((calls.outcome(first), calls.outcome(second)), (None, Some(Ok(ANSWER))));
    }

    #[test]
    fn a_late_answer_is_not_taken_for_that_of_the_next_call() {
        let (mut calls, mut woken) = (calls(1), Vec::new());
        let first = calls.open(PEER, ThreadId::NONE, later(10)).unwrap();
        assert_eq!(calls.open(PEER, ThreadId::NONE, later(10)), Err(CallError::Busy));
        assert_eq!(calls.expire(later(9), &mut woken), 0);
        assert_eq!((calls.expire(later(11), &mut woken), woken.len()), (1, 1));
        assert_eq!(calls.outcome(first), Some(Err(CallError::TimedOut)));
        calls.close(first);
        let second = calls.open(PEER, ThreadId::NONE, later(20)).unwrap();
        assert_eq!(calls.answer(PEER, first, ANSWER), None);
        assert_eq!(calls.outcome(second), None);
    }

    #[test]
    fn the_death_of_a_peer_ends_the_calls_to_it_and_no_others() {
        let (mut calls, mut woken) = (calls(4), Vec::new());
        let theirs = calls.open(PEER, ThreadId::NONE, later(10)).unwrap();
        let others = calls.open(PeerId(1), ThreadId::NONE, later(10)).unwrap();
        assert_eq!((calls.fail(PEER, &mut woken), woken.len()), (1, 1));
        assert_eq!(calls.outcome(theirs), Some(Err(CallError::PeerGone)));
        assert_eq!(calls.outcome(others), None);
        assert_eq!(calls.expire(later(11), &mut woken), 1, "only the other one had a deadline still");
    }

    #[test]
    fn a_closed_call_has_no_deadline() {
        let mut calls = calls(4);
        let call = calls.open(PEER, ThreadId::NONE, later(10)).unwrap();
        assert!(calls.next_timeout().is_some());
        calls.close(call);
        calls.close(call);
        assert_eq!((calls.next_timeout(), calls.len()), (None, 0));
    }
}

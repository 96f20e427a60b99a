//! Microthreads: futures in slots, and a queue of those that are to run. They let thousands of conversations
//! take turns in one thread.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

/// The identity of one microthread, which is not used again after the microthread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId {
    index: u32,
    generation: u32,
}

impl ThreadId {
    /// The identity of no microthread.
    pub const NONE: ThreadId = ThreadId { index: u32::MAX, generation: 0 };
}

/// The error if there are as many microthreads as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// Microthreads of one type, which are cooperative: each runs until it waits.
///
/// They are woken not by `Waker`s (theirs does nothing) but by [`Threads::wake`], so a microthread may only
/// await what knows its [`ThreadId`]: [`crate::Call`] and [`crate::Yield`]. Slots are kept for the next
/// microthread, with their memory.
#[derive(Debug)]
pub struct Threads<F> {
    slots: Vec<Slot<F>>,
    /// Slots without a microthread.
    free: Vec<u32>,
    /// Slots of the microthreads that are to run, in order.
    ready: VecDeque<u32>,
    max: usize,
}

#[derive(Debug)]
struct Slot<F> {
    future: Pin<Box<Option<F>>>,
    generation: u32,
    is_ready: bool,
}

impl<F: Future<Output = ()>> Threads<F> {
    /// Creates room for `max` microthreads at a time.
    pub const fn new(max: usize) -> Threads<F> {
        Threads { slots: Vec::new(), free: Vec::new(), ready: VecDeque::new(), max }
    }

    /// Starts a microthread; it runs in the next [`Threads::run`].
    #[inline]
    pub fn spawn(&mut self, future: F) -> Result<ThreadId, TooMany> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.grow()?,
        };
        let slot = &mut self.slots[index as usize];
        slot.future.set(Some(future));
        slot.is_ready = true;
        self.ready.push_back(index);
        Ok(ThreadId { index, generation: slot.generation })
    }

    /// Lets the microthread run in the next [`Threads::run`]. Nothing happens if it has ended, or is to run
    /// already.
    #[inline]
    pub fn wake(&mut self, thread: ThreadId) {
        let Some(slot) = self.slots.get_mut(thread.index as usize) else { return };
        if slot.generation == thread.generation && !slot.is_ready && slot.future.is_some() {
            slot.is_ready = true;
            self.ready.push_back(thread.index);
        }
    }

    /// Runs the microthreads that are to run now, each until it waits or ends, and calls `turn` with the
    /// identity of each before. Returns how many ran. Those that are started or woken meanwhile run the next
    /// time.
    #[inline]
    pub fn run(&mut self, mut turn: impl FnMut(ThreadId)) -> usize {
        let count = self.ready.len();
        for _ in 0..count {
            let Some(index) = self.ready.pop_front() else { break };
            let slot = &mut self.slots[index as usize];
            slot.is_ready = false;
            let Some(future) = slot.future.as_mut().as_pin_mut() else { continue };
            turn(ThreadId { index, generation: slot.generation });
            if future.poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(()) {
                slot.future.set(None);
                slot.generation = slot.generation.wrapping_add(1);
                self.free.push(index);
            }
        }
        count
    }

    /// Returns whether any microthread is to run.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the number of microthreads.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns whether there is no microthread.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a slot. The lists grow with it, so that they never have to at another time.
    #[cold]
    fn grow(&mut self) -> Result<u32, TooMany> {
        if self.slots.len() >= self.max {
            return Err(TooMany);
        }
        let index = self.slots.len() as u32;
        self.slots.push(Slot { future: Box::pin(None), generation: 0, is_ready: false });
        self.free.reserve(self.slots.len());
        self.ready.reserve(self.slots.len() - self.ready.len());
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use alloc::rc::Rc;
    use core::cell::{Cell, RefCell};
    use core::future::poll_fn;

    use super::*;

    /// Waits until it was woken `times` times.
    async fn waits(times: u32, ended: Rc<Cell<u32>>) {
        let mut left = times;
        poll_fn(|_| match left {
            0 => Poll::Ready(()),
            _ => {
                left -= 1;
                Poll::Pending
            }
        })
        .await;
        ended.set(ended.get() + 1);
    }

    #[test]
    fn a_microthread_goes_on_when_it_is_woken_and_only_then() {
        let ended = Rc::new(Cell::new(0));
        let mut threads = Threads::new(4);
        let thread = threads.spawn(waits(2, ended.clone())).expect("room");
        assert_eq!(threads.run(|_| {}), 1);
        assert_eq!(threads.run(|_| {}), 0, "nobody woke it");
        threads.wake(thread);
        threads.wake(thread);
        assert_eq!(threads.run(|id| assert_eq!(id, thread)), 1, "woken twice, it runs once");
        threads.wake(thread);
        assert_eq!((threads.run(|_| {}), ended.get(), threads.len()), (1, 1, 0));
    }

    #[test]
    fn the_name_of_one_that_has_ended_wakes_no_other() {
        let ended = Rc::new(Cell::new(0));
        let mut threads = Threads::new(1);
        let first = threads.spawn(waits(0, ended.clone())).expect("room");
        assert_eq!(threads.spawn(waits(0, ended.clone())), Err(TooMany));
        threads.run(|_| {});
        let second = threads.spawn(waits(1, ended.clone())).expect("the slot is free again");
        threads.run(|_| {});
        threads.wake(first);
        threads.wake(ThreadId::NONE);
        assert!(!threads.is_ready());
        threads.wake(second);
        assert!(threads.is_ready());
    }

    #[test]
    fn they_run_in_the_order_in_which_they_were_started_or_woken() {
        let order = Rc::new(RefCell::new(Vec::new()));
        let mut threads = Threads::new(8);
        let ids: Vec<_> = (0..4)
            .map(|n| {
                let (order, mut first) = (order.clone(), true);
                let future = poll_fn(move |_| {
                    order.borrow_mut().push(n);
                    if core::mem::take(&mut first) { Poll::Pending } else { Poll::Ready(()) }
                });
                threads.spawn(future).expect("room")
            })
            .collect();
        threads.run(|_| {});
        for n in [2, 0, 3, 1] {
            threads.wake(ids[n]);
        }
        threads.run(|_| {});
        assert_eq!(*order.borrow(), [0, 1, 2, 3, 2, 0, 3, 1]);
        assert!(threads.is_empty());
    }
}

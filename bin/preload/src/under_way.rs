//! The calls of this process that wait, and what each of them holds: pins, a place to sleep, a number for a
//! connection, and where it is noted as asleep. [`crate::call_state`] begins and ends them.
//!
//! A call may never come to its end. A signal handler that interrupts its sleep may leave by siglongjmp(3),
//! end its thread, or fork: then the call goes on in the child, too, which has none of what it holds. So that
//! is written down here, under the lock of the state, and not in the call's own frame:
//!
//! ```text
//!   begin         the call pins its sockets; calls that this thread has left are ended first
//!   place         a place to sleep, which the call keeps
//!   sleep, wake   the call is noted as asleep, and is not any more
//!   end           all of it is given back; nothing, if the call is not known any more
//! ```
//! A call has been left if a later one of its thread begins where the frame of the earlier one was, or above:
//! a handler that was still to return to it would be below, with the frame of its signal in between.

use std::ffi::c_int;

use libc::pthread_t;

use crate::real::sys;
use crate::signals::FRAME_OF_SIGNAL;
use crate::waiter::Waiter;

/// The calls that wait.
#[derive(Debug)]
pub struct UnderWay {
    calls: Vec<Call>,
    /// The number of the last call.
    last: u64,
}

/// A call that waits.
#[derive(Debug)]
pub struct Call {
    ticket: Ticket,
    thread: pthread_t,
    /// The objects that it keeps from being closed.
    pub pinned: Pinned,
    /// Where it sleeps, with its doorbell.
    pub place: Option<(Waiter, u32)>,
    /// The number that it has for the connection for which it waits. Nobody else can use that.
    pub number: Option<c_int>,
    /// How it sleeps now.
    pub sleep: Option<Sleep>,
}

/// The call of this thread that begins, before it has a number.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    /// The number of the call; 0 before it has begun.
    number: u64,
    /// An address in its frame.
    at: usize,
    /// Whether it makes other calls that wait, from frames below.
    has_inner: bool,
}

/// What a call keeps from being closed.
#[derive(Clone, Debug)]
pub enum Pinned {
    One(Option<u32>),
    Many(Vec<u32>),
}

impl Pinned {
    /// Returns the objects.
    pub fn objects(&self) -> &[u32] {
        match self {
            Pinned::One(one) => one.as_slice(),
            Pinned::Many(many) => many,
        }
    }
}

/// How a call sleeps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sleep {
    /// The doorbells that wake it, a bit each.
    pub bells: u16,
    /// The doorbell that is noted with the objects; `None` if none is.
    pub bell: Option<u32>,
    /// The descriptor of the epoll instance in which requests to cancel the thread find it.
    pub noted: Option<c_int>,
    /// The epoll instance of the program in which it sleeps, as one of the threads on its doorbell.
    pub set: Option<u32>,
    /// The epoll instance of the program in whose kernel's instance it sleeps.
    pub kernel_set: Option<u32>,
}

impl Ticket {
    /// Creates the ticket of a call whose frame `frame` is in.
    pub fn new<T>(frame: &T) -> Ticket {
        Ticket { number: 0, at: std::ptr::from_ref(frame) as usize, has_inner: false }
    }

    /// Returns an address in the frame of the call.
    pub fn at(self) -> usize {
        self.at
    }

    /// Creates the ticket of a call that makes other calls which wait.
    pub fn outer<T>(frame: &T) -> Ticket {
        Ticket { has_inner: true, ..Ticket::new(frame) }
    }
}

impl UnderWay {
    /// Creates the calls of a process in which none waits.
    pub const fn new() -> UnderWay {
        UnderWay { calls: Vec::new(), last: 0 }
    }

    /// Forgets all calls: in the child of a fork, what they hold was given back with everything else, but for
    /// their numbers, which are returned.
    pub fn take_numbers(&mut self) -> impl Iterator<Item = c_int> + use<> {
        std::mem::take(&mut self.calls).into_iter().filter_map(|call| call.number)
    }

    /// Notes a call of this thread, and gives it a number.
    pub fn begin(&mut self, ticket: &mut Ticket, pinned: Pinned) {
        self.last += 1;
        ticket.number = self.last;
        let (ticket, thread) = (*ticket, this_thread());
        self.calls.push(Call { ticket, thread, pinned, place: None, number: None, sleep: None });
    }

    /// Returns a call; `None` if it is not known, or not any more.
    pub fn call_mut(&mut self, ticket: Ticket) -> Option<&mut Call> {
        self.calls.iter_mut().rev().find(|call| call.ticket.number == ticket.number)
    }

    /// Removes a call, and returns it.
    pub fn remove(&mut self, ticket: Ticket) -> Option<Call> {
        let at = self.calls.iter().rposition(|call| call.ticket.number == ticket.number)?;
        Some(self.calls.swap_remove(at))
    }

    /// Returns whether no call is under way.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns a call of this thread.
    pub fn any_of_thread(&self) -> Option<Ticket> {
        let this = this_thread();
        self.calls.iter().find(|call| call.thread == this).map(|call| call.ticket)
    }

    /// Returns a call that this thread has left: it is at the address `at` of its stack now.
    pub fn any_left(&self, at: usize) -> Option<Ticket> {
        self.any_of_thread()?;
        let (this, stack) = (this_thread(), AlternateStack::ask());
        let is_left = |call: &&Call| call.thread == this && stack.is_left(call.ticket, at);
        self.calls.iter().find(is_left).map(|call| call.ticket)
    }
}

/// The alternate signal stack of this thread: sigaltstack(2).
struct AlternateStack(std::ops::Range<usize>);

impl AlternateStack {
    fn ask() -> AlternateStack {
        // SAFETY: all-zero is a valid value.
        let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
        // SAFETY: a valid place.
        let asked = unsafe { sys!(libc::SYS_sigaltstack, 0, &raw mut stack) };
        let is_on = asked == 0 && stack.ss_flags & libc::SS_DISABLE == 0;
        let first = stack.ss_sp as usize;
        AlternateStack(first..first + if is_on { stack.ss_size } else { 0 })
    }

    /// Returns whether a thread that is at `now` has left a call.
    fn is_left(&self, call: Ticket, now: usize) -> bool {
        let room = if call.has_inner { 0 } else { FRAME_OF_SIGNAL };
        match (self.0.contains(&call.at), self.0.contains(&now)) {
            // A handler interrupts the call.
            (false, true) => false,
            (true, false) => true,
            _ => now.saturating_add(room) >= call.at,
        }
    }
}

fn this_thread() -> pthread_t {
    // SAFETY: no arguments.
    unsafe { libc::pthread_self() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BELOW: usize = FRAME_OF_SIGNAL + 64;

    fn call_at(at: usize) -> Ticket {
        Ticket { number: 1, at, has_inner: false }
    }

    #[test]
    fn a_call_is_left_if_no_handler_fits_below_its_frame() {
        let none = AlternateStack(0..0);
        let frame = 0x7000_0000_2000;
        let call = call_at(frame);
        assert!(!none.is_left(call, frame - BELOW), "a handler interrupts it");
        assert!(none.is_left(call, frame), "the program calls again, from where it was");
        assert!(none.is_left(call, frame - 200), "another function of the library, from there");
        assert!(none.is_left(call, frame + 4096));
    }

    #[test]
    fn a_call_that_makes_another_has_not_been_left_by_that() {
        let none = AlternateStack(0..0);
        let frame = 0x7000_0000_2000;
        let call = Ticket { has_inner: true, ..call_at(frame) };
        assert!(!none.is_left(call, frame - 200));
        assert!(none.is_left(call, frame) && none.is_left(call, frame + 8));
    }

    #[test]
    fn a_handler_on_the_alternate_stack_has_left_nothing() {
        let stack = AlternateStack(0x1000..0x9000);
        let frame = 0x7000_0000_2000;
        assert!(!stack.is_left(call_at(frame), 0x8000));
        assert!(stack.is_left(call_at(0x8000), frame), "nobody is on it any more");
        assert!(!stack.is_left(call_at(0x8000), 0x8000 - BELOW), "a handler interrupts that handler");
        assert!(stack.is_left(call_at(frame), frame + 64));
    }
}

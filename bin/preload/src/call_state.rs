//! Begins and ends calls that wait, and keeps account of what they hold ([`crate::under_way`]).

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use atoll_sockets::Errno;

use crate::lock::STATE;
use crate::state::{State, put_number};
use crate::table;
use crate::under_way::{Call, Pinned, Sleep, Ticket};

/// The key whose destructor ends the calls that a thread leaves behind, plus 1; 0 if there is none.
static KEY: AtomicU32 = AtomicU32::new(0);
/// Below this number setting a key's value allocates no memory: glibc's PTHREAD_KEY_2NDLEVEL_SIZE.
const KEYS_WITH_ROOM: u32 = 32;

thread_local! {
    /// Whether this thread's end is noticed.
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// Makes what ends calls of threads that have ended. Called once, by the constructor.
pub fn install() {
    let mut key = 0;
    // SAFETY: a valid place, and a function that may be called with any value.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } == 0 && key < KEYS_WITH_ROOM {
        KEY.store(key + 1, Ordering::Relaxed);
    }
}

unsafe extern "C" fn thread_ends(_value: *mut c_void) {
    IS_WATCHED.set(false);
    STATE.with(State::end_calls_of_thread);
}

/// Lets the end of this thread be noticed.
fn watch_thread() {
    if !IS_WATCHED.replace(true)
        && let Some(key) = KEY.load(Ordering::Relaxed).checked_sub(1)
    {
        // SAFETY: a valid key; the value is only seen as not null.
        unsafe { libc::pthread_setspecific(key, KEY.as_ptr().cast()) };
    }
}

impl State {
    /// Begins a call that waits, unless it is under way: it is to be called again before each sleep, because
    /// the child of a fork does not know the call.
    pub fn begin_call(&mut self, ticket: &mut Ticket, pinned: impl FnOnce() -> Pinned) {
        if self.under_way.call_mut(*ticket).is_some() {
            return;
        }
        self.end_left_calls(ticket.at());
        watch_thread();
        let pinned = pinned();
        pinned.objects().iter().for_each(|object| self.client.pin(*object));
        self.under_way.begin(ticket, pinned);
    }

    /// Returns the descriptor and the doorbell of a call's place to sleep, in which the doorbells of all
    /// sessions are that `bells` says, and its own; `None` if the call is not under way.
    pub fn place_of_call(&mut self, ticket: Ticket, bells: u16) -> Option<(c_int, u32)> {
        if self.under_way.call_mut(ticket)?.place.is_none() {
            let place = self.take_waiter();
            self.under_way.call_mut(ticket)?.place = Some(place);
        }
        let State { under_way, client, .. } = self;
        let (waiter, bell) = under_way.call_mut(ticket)?.place.as_mut()?;
        waiter.watch(client.sessions(), bells | 1 << *bell);
        Some((waiter.number(), *bell))
    }

    /// Returns the number that a call has for a connection of the listener with the descriptor `listener`:
    /// the lowest that was free when it was first asked for.
    pub fn number_of_call(&mut self, ticket: Ticket, listener: c_int) -> Result<c_int, Errno> {
        if let Some(number) = self.under_way.call_mut(ticket).and_then(|call| call.number) {
            return Ok(number);
        }
        let number = self.take_number(listener)?;
        table::set_hidden(number);
        match self.under_way.call_mut(ticket) {
            Some(call) => call.number = Some(number),
            None => put_number(number),
        }
        Ok(number)
    }

    /// Notes that a connection has the number of a call.
    pub fn number_is_used(&mut self, ticket: Ticket) {
        if let Some(call) = self.under_way.call_mut(ticket) {
            call.number = None;
        }
    }

    /// Notes that a call is about to sleep. The caller looks once more afterwards, and then either calls
    /// [`State::doze_off`] and sleeps, or [`State::wake`].
    pub fn sleep(&mut self, ticket: Ticket, sleep: Sleep) {
        let Some(call) = self.under_way.call_mut(ticket) else { return };
        call.sleep = Some(sleep);
        if let Some(bell) = sleep.bell {
            call.pinned.objects().iter().for_each(|object| self.client.sleep_on(*object, bell));
        }
        self.client.before_sleep(sleep.bells);
    }

    /// Notes that a call that is about to sleep does so in an epoll instance of the program.
    pub fn sleep_in_set(&mut self, ticket: Ticket, epoll: u32) {
        let Some(sleep) = self.under_way.call_mut(ticket).and_then(|call| call.sleep.as_mut()) else {
            return;
        };
        if let Some(set) = self.client.set_mut(epoll) {
            set.sleepers += 1;
            sleep.set = Some(epoll);
        }
    }

    /// Notes that a call sleeps from now on, where `noted` says.
    pub fn doze_off(&mut self, ticket: Ticket, noted: Option<c_int>) {
        self.client.doze_off();
        if let Some(sleep) = self.under_way.call_mut(ticket).and_then(|call| call.sleep.as_mut()) {
            sleep.noted = noted;
            if let Some(noted) = noted {
                self.sleepers.enter(noted);
            }
        }
    }

    /// Notes that a call does not sleep any more.
    pub fn wake(&mut self, ticket: Ticket) {
        let Some(call) = self.under_way.call_mut(ticket) else { return };
        let Some(sleep) = call.sleep.take() else { return };
        self.client.after_sleep(sleep.bells);
        if let Some(noted) = sleep.noted {
            self.sleepers.leave(noted);
        }
        if let Some(bell) = sleep.bell {
            call.pinned.objects().iter().for_each(|object| self.client.sleep_no_more(*object, bell));
            self.client.drain();
        }
        if let Some(set) = sleep.set.and_then(|set| self.client.set_mut(set)) {
            set.sleepers = set.sleepers.saturating_sub(1);
        }
        if let Some(set) = sleep.kernel_set.and_then(|set| self.client.set_mut(set)) {
            set.kernel.leave();
        }
    }

    /// Ends a call: all that it holds is given back.
    pub fn end_call(&mut self, ticket: Ticket) {
        self.wake(ticket);
        let Some(Call { pinned, place, number, .. }) = self.under_way.remove(ticket) else { return };
        number.into_iter().for_each(put_number);
        place.into_iter().for_each(|place| self.put_waiter(place));
        pinned.objects().iter().for_each(|object| self.client.unpin(*object));
    }

    /// Ends the calls that this thread has left: it is at the address `at` of its stack now.
    #[inline]
    pub fn end_left_calls(&mut self, at: usize) {
        if !self.under_way.is_empty() {
            self.end_those_left(at);
        }
    }

    #[cold]
    fn end_those_left(&mut self, at: usize) {
        while let Some(ticket) = self.under_way.any_left(at) {
            self.end_call(ticket);
        }
    }

    /// Ends all calls of this thread.
    fn end_calls_of_thread(&mut self) {
        while let Some(ticket) = self.under_way.any_of_thread() {
            self.end_call(ticket);
        }
    }
}

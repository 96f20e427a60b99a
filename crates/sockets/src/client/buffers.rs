//! Decides when a connection gives its send buffer back: when all of it is acknowledged and nothing was sent
//! for a while. So idle connections own no buffer, and busy ones keep theirs.
//!
//! Replicas do not report that everything is acknowledged, so the client checks: whenever the number of
//! owners has doubled, each second while the process sleeps, and when there is no memory left. A connection
//! that found none is tried again every 10 ms, because replicas report room below a connection's limit, but
//! know nothing of memory.

use alloc::vec::Vec;

use atoll_base::{Duration, Instant};
use atoll_ipc::Ready;

use super::Client;
use super::object::Body;
use super::platform::Platform;

/// The time between two looks of a process that sleeps.
const EVERY: Duration = Duration::from_secs(1);
/// The time between two looks while a connection has found no memory.
const EVERY_STARVED: Duration = Duration::from_millis(10);
/// The number of owners below which their number causes no look.
const FEW: usize = 64;
/// The time between two attempts to send commands that wait.
pub(super) const RETRY: Duration = Duration::from_millis(1);

/// The connections that own send buffers.
#[derive(Debug)]
pub(super) struct Buffers {
    owners: Vec<u32>,
    /// Objects that found no memory to send.
    starved: Vec<u32>,
    /// The number of looks so far.
    look: u32,
    /// The number of owners at which the next look is due.
    limit: usize,
    due: Instant,
}

impl Buffers {
    pub(super) const fn new() -> Buffers {
        Buffers { owners: Vec::new(), starved: Vec::new(), look: 1, limit: FEW, due: Instant::ZERO }
    }

    /// Returns whether there is nothing to look for.
    fn is_idle(&self) -> bool {
        self.owners.is_empty() && self.starved.is_empty()
    }
}

impl<P: Platform> Client<P> {
    /// Notes that something was sent on a connection. The caller does not hold a family's lock.
    #[inline]
    pub fn note_sent(&mut self, object: u32) {
        let look = self.buffers.look;
        let Some(socket) = self.socket_mut(object) else { return };
        socket.sent_in = look;
        if !core::mem::replace(&mut socket.buffered, true) {
            self.buffers.owners.push(object);
            if self.buffers.owners.len() >= self.buffers.limit {
                self.look_for_buffers(false);
            }
        }
    }

    /// Looks for memory after a connection found none; returns whether there is some now. The caller does not
    /// hold a family's lock.
    pub fn find_memory(&mut self, object: u32) -> bool {
        if self.look_for_buffers(true) {
            return true;
        }
        if !self.buffers.starved.contains(&object) {
            self.buffers.starved.push(object);
            self.buffers.due = self.buffers.due.min(self.now() + EVERY_STARVED);
        }
        false
    }

    /// Sends commands that wait, and looks for buffers if a look is due. Call before the last check of a
    /// call's condition, which this may make true.
    pub fn poll_due(&mut self) {
        if self.has_waiting() {
            self.send_waiting();
        }
        if self.buffers.is_idle() {
            return;
        }
        let now = self.now();
        if now >= self.buffers.due {
            self.look_for_buffers(!self.buffers.starved.is_empty());
            self.feed_starved();
            self.buffers.due = now + EVERY;
        }
    }

    /// Returns how long a thread that has `left` (`None`: for ever) may sleep before [`Client::poll_due`] or
    /// [`Client::drain`] has work that no doorbell announces.
    pub fn nap(&self, left: Option<Duration>) -> Option<Duration> {
        let at_most = |left: Option<Duration>, most: Duration| Some(left.map_or(most, |left| left.min(most)));
        let left = if self.has_waiting() || self.missed.get() { at_most(left, RETRY) } else { left };
        // The receiver of a socket does not ring its sender, which would hold the socket for ever.
        let left = if self.passed.is_empty() { left } else { at_most(left, RETRY) };
        if self.buffers.is_idle() { left } else { at_most(left, self.buffers.due.since(self.now())) }
    }

    /// Gives back the buffers of idle connections or, with `all`, of every connection that needs none now.
    /// Returns whether there were any.
    fn look_for_buffers(&mut self, all: bool) -> bool {
        let look = self.buffers.look;
        let mut owners = core::mem::take(&mut self.buffers.owners);
        let before = owners.len();
        owners.retain(|object| {
            let Some(Body::Socket(socket)) = self.objects.get(*object).map(|object| &object.body) else {
                return false;
            };
            if !socket.buffered {
                // The number belongs to another socket by now.
                return false;
            }
            if socket.sent_in == look && !all {
                return true;
            }
            let Ok(turn) = self.turn(*object) else { return true };
            let owns = self.stream(*object).is_some_and(|(stream, ..)| {
                stream.release();
                stream.owns_buffer()
            });
            drop(turn);
            if let Some(socket) = self.socket_mut(*object) {
                socket.buffered = owns;
            }
            owns
        });
        let freed = owners.len() < before;
        self.buffers.limit = FEW.max(2 * owners.len());
        self.buffers.owners = owners;
        self.buffers.look = look.wrapping_add(1);
        if freed {
            self.feed_starved();
        }
        freed
    }

    fn feed_starved(&mut self) {
        for object in core::mem::take(&mut self.buffers.starved) {
            self.announce(object, Ready::OUT);
        }
    }
}

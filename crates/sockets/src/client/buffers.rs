//! When does a connection give its send buffer back? When all of it is acknowledged and nothing was sent for
//! a while, so that connections that rest own no buffer and those at work keep theirs.
//!
//! Replicas do not say when everything is acknowledged, so the client looks: whenever the number of owners
//! has doubled, each second while the process sleeps, and when there is no memory left. A connection that
//! found none is tried again every 10 ms: replicas tell of room below the limit of a connection, and know
//! nothing of memory.

use alloc::vec::Vec;

use atoll_base::{Duration, Instant};
use atoll_ipc::Ready;

use super::Client;
use super::object::Body;
use super::platform::Platform;

/// Time between two looks of a process that sleeps.
const EVERY: Duration = Duration::from_secs(1);
/// Time between two looks while a connection has found no memory.
const EVERY_STARVED: Duration = Duration::from_millis(10);
/// Below this number of owners their number is no reason to look.
const FEW: usize = 64;
/// How often commands that wait are tried again.
pub(super) const RETRY: Duration = Duration::from_millis(1);

/// The connections that own send buffers.
#[derive(Debug)]
pub(super) struct Buffers {
    owners: Vec<u32>,
    /// Objects that found no memory to send.
    starved: Vec<u32>,
    /// Counts the looks.
    look: u32,
    /// The number of owners at which the next look is due.
    limit: usize,
    due: Instant,
}

impl Buffers {
    pub(super) const fn new() -> Buffers {
        Buffers { owners: Vec::new(), starved: Vec::new(), look: 1, limit: FEW, due: Instant::ZERO }
    }

    /// Whether there is nothing to look for.
    fn is_idle(&self) -> bool {
        self.owners.is_empty() && self.starved.is_empty()
    }
}

impl<P: Platform> Client<P> {
    /// Something was sent on a connection. Not under a family's lock.
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

    /// A connection found no memory. Returns whether there is some now. Not under a family's lock.
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

    /// Sends commands that wait, and looks for buffers if it is time to. Call before the last look at what a
    /// call waits for: it may have become true.
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

    /// How long a thread may sleep of `left` (`None`: for ever) until [`Client::poll_due`] has something to
    /// do.
    pub fn nap(&self, left: Option<Duration>) -> Option<Duration> {
        let at_most = |left: Option<Duration>, most: Duration| Some(left.map_or(most, |left| left.min(most)));
        let left = if self.has_waiting() { at_most(left, RETRY) } else { left };
        if self.buffers.is_idle() { left } else { at_most(left, self.buffers.due.since(self.now())) }
    }

    /// Gives back the buffers of connections that rest, or of all that need none now. Returns whether there
    /// were any.
    fn look_for_buffers(&mut self, all: bool) -> bool {
        let look = self.buffers.look;
        let mut owners = core::mem::take(&mut self.buffers.owners);
        let before = owners.len();
        owners.retain(|object| {
            let Some(Body::Socket(socket)) = self.objects.get(*object).map(|object| &object.body) else { return false };
            if !socket.buffered {
                // The number is another socket's by now.
                return false;
            }
            if socket.sent_in == look && !all {
                return true;
            }
            let family = self.family(*object);
            let owns = self.stream(*object).is_some_and(|(stream, ..)| {
                stream.release();
                stream.owns_buffer()
            });
            drop(family);
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
            self.announce(object, Ready::OUT.0);
        }
    }
}

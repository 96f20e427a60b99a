//! The messages that wait to be sent to one peer, and the counters of a server's messages.

use alloc::collections::VecDeque;

use atoll_base::{Duration, Epoch, Instant};
use atoll_ipc::Memory;
use atoll_ipc::channel::{Bell, Channel, MESSAGE_BYTES};
use atoll_ipc::message::{Message, Role};

/// One of the servers that this one has a channel to, numbered in the order of
/// [`crate::Dispatcher::add_peer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);

/// A message of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// The peer that sent the message.
    pub peer: PeerId,
    /// The epoch of the peer that sent it.
    pub epoch: Epoch,
    /// The role of the message: a notice or a request.
    pub role: Role,
    /// The content of the message.
    pub message: Message,
}

/// The reason why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// There is no such peer, or it is gone.
    PeerGone,
    /// Too many messages wait for the peer already. The message counts as dropped.
    Full,
    /// The message to be answered is no request.
    NoCall,
}

/// The counters of a server's messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Valid messages received.
    pub received: u64,
    /// Messages sent.
    pub sent: u64,
    /// Invalid messages: unknown kind, role or value.
    pub bad: u64,
    /// Messages without a handler, or with one for another role.
    pub unexpected: u64,
    /// Answers to calls that have ended, or never existed.
    pub unmatched: u64,
    /// Messages not sent, because their receiver does not keep up or is gone.
    pub dropped: u64,
    /// Messages not handled, because there were too many microthreads.
    pub refused: u64,
    /// Messages of dead epochs.
    pub stale: u64,
    /// Times that a peer claimed to have taken messages that were never sent.
    pub lies: u64,
    /// Calls that were answered.
    pub answered: u64,
    /// Calls whose deadline passed.
    pub timed_out: u64,
    /// Calls whose peer died.
    pub abandoned: u64,
}

/// The channel to one peer, and the messages that did not fit into it yet.
#[derive(Debug)]
pub(crate) struct Line<M: Memory> {
    pub(crate) channel: Channel<M>,
    /// The epoch of the peer; `None` if the peer is gone.
    pub(crate) peer: Option<Epoch>,
    backlog: VecDeque<[u8; MESSAGE_BYTES]>,
    backlog_max: usize,
    /// The time since when the peer has taken nothing although messages wait.
    stalled: Option<Instant>,
    tried: Instant,
}

/// A peer that takes nothing for this long loses the messages that wait for it: callers have given up by
/// then.
const STALL_MAX: Duration = Duration::from_secs(1);
/// The time until a full ring is tried again.
const RETRY: Duration = Duration::from_millis(1);

impl<M: Memory> Line<M> {
    /// Creates a line, in which `backlog_max` messages may wait for room in the ring.
    pub(crate) fn new(channel: Channel<M>, peer: Epoch, backlog_max: usize) -> Line<M> {
        let backlog = VecDeque::with_capacity(backlog_max);
        Line { channel, peer: Some(peer), backlog, backlog_max, stalled: None, tried: Instant::ZERO }
    }

    /// Sends a message after all that wait.
    #[inline]
    pub(crate) fn send(&mut self, payload: &[u8; MESSAGE_BYTES]) -> Result<(), SendError> {
        if self.peer.is_none() {
            return Err(SendError::PeerGone);
        }
        if self.backlog.is_empty() && self.channel.push(payload).is_ok() {
            return Ok(());
        }
        if self.backlog.len() >= self.backlog_max {
            return Err(SendError::Full);
        }
        self.backlog.push_back(*payload);
        Ok(())
    }

    /// Publishes what was sent, and as many waiting messages as fit. Returns whether to ring, and how many
    /// messages were given up.
    #[inline]
    pub(crate) fn publish(&mut self, now: Instant) -> (Bell, u64) {
        let dropped = if self.backlog.is_empty() { 0 } else { self.catch_up(now) };
        (self.channel.publish(), dropped)
    }

    /// Returns when to publish again, if messages wait.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        (!self.backlog.is_empty()).then(|| self.tried + RETRY)
    }

    /// Gives up all waiting messages; returns how many there were.
    pub(crate) fn give_up(&mut self) -> u64 {
        let dropped = self.backlog.len() as u64;
        self.backlog.clear();
        self.stalled = None;
        dropped
    }

    #[cold]
    fn catch_up(&mut self, now: Instant) -> u64 {
        self.tried = now;
        let before = self.backlog.len();
        while let Some(payload) = self.backlog.front() {
            if self.channel.push(payload).is_err() {
                break;
            }
            self.backlog.pop_front();
        }
        if self.backlog.len() < before {
            self.stalled = None;
        }
        if self.backlog.is_empty() {
            return 0;
        }
        let since = *self.stalled.get_or_insert(now);
        if now.since(since) < STALL_MAX { 0 } else { self.give_up() }
    }
}

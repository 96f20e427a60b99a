//! Dispatches the messages of a server's peers: each to the handler of its kind, and each answer to the
//! microthread that waits for it.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::future::Future;

use atoll_base::{Epoch, Instant};
use atoll_ipc::channel::{Bell, Channel};
use atoll_ipc::message::{Kind, Role};
use atoll_ipc::{Memory, Message};

use crate::calls::Calls;
use crate::line::{Counts, Incoming, Line, PeerId, SendError};
use crate::router::{CallRouter, Switchboard};
use crate::threads::{ThreadId, Threads, TooMany};

/// The handling of messages of one kind. `S` is the state of the server, `F` the type of its microthreads.
#[derive(Debug)]
pub enum Handler<M: Memory, S, F> {
    /// Counts the messages as unexpected.
    None,
    /// Handles notices.
    Notice(fn(&mut S, Instant, Incoming)),
    /// Handles requests that can be answered at once: returns the answer.
    Answer(fn(&mut S, Instant, Incoming) -> Message),
    /// Handles notices or requests for which others have to be asked first: makes a microthread, which
    /// answers by [`CallRouter::reply`].
    Thread(fn(&mut S, &CallRouter<M>, Incoming) -> F),
}

impl<M: Memory, S, F> Clone for Handler<M, S, F> {
    fn clone(&self) -> Handler<M, S, F> {
        *self
    }
}

impl<M: Memory, S, F> Copy for Handler<M, S, F> {}

/// The limits of a dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest number of microthreads.
    pub threads_max: usize,
    /// The largest number of calls that wait for an answer; more than 4096 are never possible.
    pub calls_max: usize,
    /// The largest number of messages that wait for room in the ring to one peer.
    pub backlog_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { threads_max: 1024, calls_max: 1024, backlog_max: 256 }
    }
}

/// The messages, calls and microthreads of one server.
///
/// ```text
///   loop   turn(now, state, batch)       deadlines, messages, microthreads
///          ... what the server does besides
///          publish(ring)                 what was sent; bells of sleeping peers
///          nothing to do: fall_asleep(), fence, is_ready() again, sleep until next_timeout(), wake_up()
/// ```
#[derive(Debug)]
pub struct Dispatcher<M: Memory, S, F> {
    router: CallRouter<M>,
    handlers: [Handler<M, S, F>; Kind::COUNT],
    threads: Threads<F>,
    /// Room for the microthreads that are woken while others are being woken.
    waking: Vec<ThreadId>,
    limits: Limits,
}

impl<M: Memory, S, F: Future<Output = ()>> Dispatcher<M, S, F> {
    /// Creates a dispatcher without peers and handlers, for a server in epoch `own`.
    pub fn new(own: Epoch, limits: Limits, now: Instant) -> Dispatcher<M, S, F> {
        let board = Switchboard {
            own,
            now,
            current: ThreadId::NONE,
            lines: Vec::new(),
            calls: Calls::new(limits.calls_max, now),
            woken: Vec::new(),
            counts: Counts::default(),
        };
        Dispatcher {
            router: CallRouter(Rc::new(RefCell::new(board))),
            handlers: [Handler::None; Kind::COUNT],
            threads: Threads::new(limits.threads_max),
            waking: Vec::new(),
            limits,
        }
    }

    /// Sets the handler for messages of a kind.
    pub fn on(&mut self, kind: Kind, handler: Handler<M, S, F>) {
        self.handlers[kind as usize] = handler;
    }

    /// Adds a peer in epoch `peer`, reached over `channel`. Peers are numbered from 0.
    pub fn add_peer(&mut self, mut channel: Channel<M>, peer: Epoch) -> PeerId {
        channel.set_peer(peer);
        let lines = &mut self.router.0.borrow_mut().lines;
        lines.push(Line::new(channel, peer, self.limits.backlog_max));
        PeerId(lines.len() as u32 - 1)
    }

    /// Returns a handle for handlers and microthreads.
    pub fn router(&self) -> &CallRouter<M> {
        &self.router
    }

    /// Starts a microthread of the server's own; it first runs in the next turn.
    pub fn spawn(&mut self, thread: F) -> Result<ThreadId, TooMany> {
        self.threads.spawn(thread)
    }

    /// Runs one turn: ends calls whose deadline has passed, handles up to `batch` messages of each peer, and
    /// runs the microthreads that are ready. Returns whether there was anything to do.
    #[inline]
    pub fn turn(&mut self, now: Instant, state: &mut S, batch: usize) -> bool {
        let peers = {
            let board = &mut *self.router.0.borrow_mut();
            board.now = now;
            board.counts.timed_out += board.calls.expire(now, &mut board.woken);
            board.lines.len()
        };
        let mut handled = 0;
        for peer in 0..peers {
            handled += self.receive(peer, now, state, batch);
        }
        self.wake();
        handled + self.run() > 0
    }

    /// Publishes what was sent, and calls `ring` for each peer that sleeps. Returns how many there were.
    #[inline]
    pub fn publish(&mut self, mut ring: impl FnMut(PeerId)) -> u64 {
        let board = &mut *self.router.0.borrow_mut();
        let mut rung = 0;
        for (peer, line) in (0..).zip(&mut board.lines) {
            let (bell, dropped) = line.publish(board.now);
            board.counts.dropped += dropped;
            if bell == Bell::Ring {
                ring(PeerId(peer));
                rung += 1;
            }
        }
        rung
    }

    /// Sends a notice to a peer.
    pub fn notify(&mut self, peer: PeerId, message: Message) -> Result<(), SendError> {
        self.router.notify(peer, message)
    }

    /// Handles the death of a peer: calls to it end, what it sent is not read, and messages that wait for it
    /// are given up.
    pub fn peer_gone(&mut self, peer: PeerId) {
        let board = &mut *self.router.0.borrow_mut();
        let Some(line) = board.lines.get_mut(peer.0 as usize) else { return };
        line.peer = None;
        board.counts.dropped += line.give_up();
        board.counts.abandoned += board.calls.fail(peer, &mut board.woken);
    }

    /// Handles the return of a peer in this epoch. Unread messages of its predecessor are dropped; calls to
    /// the predecessor end.
    pub fn peer_back(&mut self, peer: PeerId, epoch: Epoch) {
        self.peer_gone(peer);
        if let Some(line) = self.router.0.borrow_mut().lines.get_mut(peer.0 as usize) {
            line.channel.set_peer(epoch);
            line.peer = Some(epoch);
        }
    }

    /// Announces to all peers that this server sleeps and wants the doorbell.
    pub fn fall_asleep(&mut self) {
        for line in &mut self.router.0.borrow_mut().lines {
            line.channel.fall_asleep();
        }
    }

    /// Announces to all peers that this server is awake and wants no doorbell.
    pub fn wake_up(&mut self) {
        for line in &mut self.router.0.borrow_mut().lines {
            line.channel.wake_up();
        }
    }

    /// Returns whether a turn would find something to do. Before sleeping, call it after
    /// [`Dispatcher::fall_asleep`] and a fence.
    pub fn is_ready(&self) -> bool {
        let board = self.router.0.borrow();
        let waiting = |line: &Line<M>| line.peer.is_some() && line.channel.is_ready();
        self.threads.is_ready() || !board.woken.is_empty() || board.lines.iter().any(waiting)
    }

    /// Returns when the next turn is due even if no peer rings.
    pub fn next_timeout(&self) -> Option<Instant> {
        let board = self.router.0.borrow();
        board.lines.iter().filter_map(Line::retry_at).chain(board.calls.next_timeout()).min()
    }

    /// Returns the counters so far.
    pub fn counts(&self) -> Counts {
        let board = self.router.0.borrow();
        let mut counts = board.counts;
        for line in &board.lines {
            counts.stale += line.channel.stale();
            counts.lies += line.channel.lies();
        }
        counts
    }

    /// Returns the number of microthreads that have not ended, and that of calls that were not closed.
    pub fn load(&self) -> (usize, usize) {
        (self.threads.len(), self.router.0.borrow().calls.len())
    }

    /// Handles up to `batch` messages of a peer; returns how many it handled.
    #[inline]
    fn receive(&mut self, peer: usize, now: Instant, state: &mut S, batch: usize) -> usize {
        let id = PeerId(peer as u32);
        for taken in 0..batch {
            let incoming = {
                let board = &mut *self.router.0.borrow_mut();
                let Some((envelope, epoch)) = board.receive(peer) else {
                    board.lines[peer].channel.release();
                    return taken;
                };
                if let Role::Reply(call, to) = envelope.role {
                    board.answer(id, call, to, envelope.message);
                    continue;
                }
                Incoming { peer: id, epoch, role: envelope.role, message: envelope.message }
            };
            self.handle(now, state, incoming);
        }
        self.router.0.borrow_mut().lines[peer].channel.release();
        batch
    }

    #[inline]
    fn handle(&mut self, now: Instant, state: &mut S, incoming: Incoming) {
        match (self.handlers[incoming.message.kind() as usize], incoming.role) {
            (Handler::Notice(note), Role::Notice) => note(state, now, incoming),
            (Handler::Answer(answer), Role::Request(_)) => {
                let message = answer(state, now, incoming);
                // An answer that cannot be sent is counted, and the caller has a deadline.
                let _ = self.router.reply(&incoming, message);
            }
            (Handler::Thread(start), _) => {
                let thread = start(state, &self.router, incoming);
                if self.threads.spawn(thread).is_err() {
                    self.router.0.borrow_mut().counts.refused += 1;
                }
            }
            _ => self.router.0.borrow_mut().counts.unexpected += 1,
        }
    }

    /// Lets the microthreads run whose answer has come, or whose call has ended.
    #[inline]
    fn wake(&mut self) {
        core::mem::swap(&mut self.waking, &mut self.router.0.borrow_mut().woken);
        for thread in self.waking.drain(..) {
            self.threads.wake(thread);
        }
    }

    #[inline]
    fn run(&mut self) -> usize {
        let board = &self.router.0;
        let count = self.threads.run(|thread| board.borrow_mut().current = thread);
        if count > 0 {
            board.borrow_mut().current = ThreadId::NONE;
        }
        count
    }
}

#[cfg(test)]
mod tests;

//! What does a server do with the messages of its peers? Hands each to the handler of its kind, and each
//! answer to who waits for it.

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

/// What a server does with messages of one kind. `S`: the state of the server; `F`: its microthreads.
#[derive(Debug)]
pub enum Handler<M: Memory, S, F> {
    /// Nothing: they are counted as unexpected.
    None,
    /// For notices: takes note.
    Notice(fn(&mut S, Instant, Incoming)),
    /// For requests that can be answered at once: returns the answer.
    Answer(fn(&mut S, Instant, Incoming) -> Message),
    /// For either, where others have to be asked first: makes a microthread, which answers by
    /// [`CallRouter::reply`].
    Thread(fn(&mut S, &CallRouter<M>, Incoming) -> F),
}

impl<M: Memory, S, F> Clone for Handler<M, S, F> {
    fn clone(&self) -> Handler<M, S, F> {
        *self
    }
}

impl<M: Memory, S, F> Copy for Handler<M, S, F> {}

/// How much there may be at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Microthreads.
    pub threads_max: usize,
    /// Calls that wait for an answer; 4096 whatever is asked for.
    pub calls_max: usize,
    /// Messages that wait for room in the ring to one peer.
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
    /// Room for those that are woken while others are being woken.
    waking: Vec<ThreadId>,
    limits: Limits,
}

impl<M: Memory, S, F: Future<Output = ()>> Dispatcher<M, S, F> {
    /// A server without peers and handlers, in this epoch of its own.
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

    /// Registers what is done with messages of a kind.
    pub fn on(&mut self, kind: Kind, handler: Handler<M, S, F>) {
        self.handlers[kind as usize] = handler;
    }

    /// A peer, reached over `channel`, whose epoch is `peer`. Peers are numbered from 0 on.
    pub fn add_peer(&mut self, mut channel: Channel<M>, peer: Epoch) -> PeerId {
        channel.set_peer(peer);
        let lines = &mut self.router.0.borrow_mut().lines;
        lines.push(Line::new(channel, peer, self.limits.backlog_max));
        PeerId(lines.len() as u32 - 1)
    }

    /// A handle for handlers and microthreads.
    pub fn router(&self) -> &CallRouter<M> {
        &self.router
    }

    /// Starts a microthread of the server's own; it first runs in the next turn.
    pub fn spawn(&mut self, thread: F) -> Result<ThreadId, TooMany> {
        self.threads.spawn(thread)
    }

    /// One turn: ends calls whose deadline has passed, handles up to `batch` messages of each peer, and runs
    /// the microthreads that go on. Returns whether there was anything to do.
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

    /// Makes visible what was sent, and calls `ring` for each peer that sleeps. Returns how many there were.
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

    /// Tells a peer something.
    pub fn notify(&mut self, peer: PeerId, message: Message) -> Result<(), SendError> {
        self.router.notify(peer, message)
    }

    /// The peer is gone: calls to it end, what it sent is not read, what waits for it is given up.
    pub fn peer_gone(&mut self, peer: PeerId) {
        let board = &mut *self.router.0.borrow_mut();
        let Some(line) = board.lines.get_mut(peer.0 as usize) else { return };
        line.peer = None;
        board.counts.dropped += line.give_up();
        board.counts.abandoned += board.calls.fail(peer, &mut board.woken);
    }

    /// The peer lives, in this epoch. What its predecessor had sent and was not read is dropped; calls to the
    /// predecessor end.
    pub fn peer_back(&mut self, peer: PeerId, epoch: Epoch) {
        self.peer_gone(peer);
        if let Some(line) = self.router.0.borrow_mut().lines.get_mut(peer.0 as usize) {
            line.channel.set_peer(epoch);
            line.peer = Some(epoch);
        }
    }

    /// Tells all peers that the bell is wanted.
    pub fn fall_asleep(&mut self) {
        for line in &mut self.router.0.borrow_mut().lines {
            line.channel.fall_asleep();
        }
    }

    /// Tells all peers that it is not.
    pub fn wake_up(&mut self) {
        for line in &mut self.router.0.borrow_mut().lines {
            line.channel.wake_up();
        }
    }

    /// Whether a turn would find something to do. Before sleeping: after [`Dispatcher::fall_asleep`] and a
    /// fence.
    pub fn is_ready(&self) -> bool {
        let board = self.router.0.borrow();
        let waiting = |line: &Line<M>| line.peer.is_some() && line.channel.is_ready();
        self.threads.is_ready() || !board.woken.is_empty() || board.lines.iter().any(waiting)
    }

    /// When the next turn is due even if nobody rings.
    pub fn next_timeout(&self) -> Option<Instant> {
        let board = self.router.0.borrow();
        board.lines.iter().filter_map(Line::retry_at).chain(board.calls.next_timeout()).min()
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        let board = self.router.0.borrow();
        let mut counts = board.counts;
        for line in &board.lines {
            counts.stale += line.channel.stale();
            counts.lies += line.channel.lies();
        }
        counts
    }

    /// Microthreads that have not ended, and calls that wait.
    pub fn load(&self) -> (usize, usize) {
        (self.threads.len(), self.router.0.borrow().calls.len())
    }

    /// Handles up to `batch` messages of a peer; returns how many.
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
                // What cannot be sent is counted, and the caller has a deadline.
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

    /// Those whose answer has come, or whose call has ended, go on.
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

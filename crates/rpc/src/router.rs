//! The handle by which microthreads and handlers send messages to other servers.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use atoll_base::{Epoch, Instant};
use atoll_ipc::message::{Envelope, Role};
use atoll_ipc::{Memory, Message};

use crate::calls::{CallError, Calls};
use crate::line::{Counts, Incoming, Line, PeerId, SendError};
use crate::threads::ThreadId;

/// A handle to the channels and calls of one server. Its clones refer to the same channels and calls.
///
/// Messages become visible to their receivers with the next [`crate::Dispatcher::publish`].
#[derive(Debug)]
pub struct CallRouter<M: Memory>(pub(crate) Rc<RefCell<Switchboard<M>>>);

/// The state that handlers, microthreads and the dispatcher share. It is borrowed for moments, never while
/// one of them runs.
#[derive(Debug)]
pub(crate) struct Switchboard<M: Memory> {
    /// The epoch of this server.
    pub(crate) own: Epoch,
    pub(crate) now: Instant,
    /// The microthread that runs now.
    pub(crate) current: ThreadId,
    pub(crate) lines: Vec<Line<M>>,
    pub(crate) calls: Calls,
    /// Microthreads that are to run again.
    pub(crate) woken: Vec<ThreadId>,
    pub(crate) counts: Counts,
}

impl<M: Memory> Clone for CallRouter<M> {
    fn clone(&self) -> CallRouter<M> {
        CallRouter(self.0.clone())
    }
}

impl<M: Memory> CallRouter<M> {
    /// Returns the time of this turn of the dispatcher.
    pub fn now(&self) -> Instant {
        self.0.borrow().now
    }

    /// Sends a notice to a peer.
    #[inline]
    pub fn notify(&self, peer: PeerId, message: Message) -> Result<(), SendError> {
        self.0.borrow_mut().send(peer, Role::Notice, message)
    }

    /// Answers a request. If the peer died meanwhile, its successor drops the answer.
    #[inline]
    pub fn reply(&self, request: &Incoming, message: Message) -> Result<(), SendError> {
        let Role::Request(call) = request.role else { return Err(SendError::NoCall) };
        self.0.borrow_mut().send(request.peer, Role::Reply(call, request.epoch), message)
    }

    /// Sends a request to a peer, and waits until the answer comes, the peer is gone or `deadline` passes.
    /// Only a microthread of this dispatcher may await the result. The request is sent when it is first
    /// awaited.
    #[inline]
    pub fn call(&self, peer: PeerId, message: Message, deadline: Instant) -> Call<M> {
        Call { router: self.clone(), stage: Stage::Unsent(peer, message, deadline) }
    }

    /// Lets the other microthreads, and messages, go first. Only a microthread of this dispatcher may await
    /// the result.
    pub fn yield_now(&self) -> Yield<M> {
        Yield { router: self.clone(), done: false }
    }
}

impl<M: Memory> Switchboard<M> {
    #[inline]
    pub(crate) fn send(&mut self, peer: PeerId, role: Role, message: Message) -> Result<(), SendError> {
        let Some(line) = self.lines.get_mut(peer.0 as usize) else { return Err(SendError::PeerGone) };
        let result = line.send(&Envelope { role, message }.encode());
        match result {
            Ok(()) => self.counts.sent += 1,
            Err(_) => self.counts.dropped += 1,
        }
        result
    }

    /// Takes the next message of a peer. Invalid ones are counted and skipped, at most [`BAD_MAX`] at a time.
    #[inline]
    pub(crate) fn receive(&mut self, peer: usize) -> Option<(Envelope, Epoch)> {
        let line = &mut self.lines[peer];
        let epoch = line.peer?;
        for _ in 0..BAD_MAX {
            match Envelope::decode(&line.channel.pop()?) {
                Ok(envelope) => {
                    self.counts.received += 1;
                    return Some((envelope, epoch));
                }
                Err(_) => self.counts.bad += 1,
            }
        }
        None
    }

    /// Handles an answer: the microthread that waits for it is to run again. An answer to a predecessor of
    /// this server counts as unmatched.
    #[inline]
    pub(crate) fn answer(&mut self, peer: PeerId, call: u32, to: Epoch, message: Message) {
        let waiting = if to == self.own { self.calls.answer(peer, call, message) } else { None };
        match waiting {
            Some(thread) => {
                self.counts.answered += 1;
                self.woken.push(thread);
            }
            None => self.counts.unmatched += 1,
        }
    }
}

/// The largest number of invalid messages that are skipped at a time.
const BAD_MAX: u32 = 64;

/// A call under way; see [`CallRouter::call`]. A call that is dropped is given up, and its answer counts as
/// unmatched.
#[derive(Debug)]
#[must_use = "a call is sent when it is awaited"]
pub struct Call<M: Memory> {
    router: CallRouter<M>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Unsent(PeerId, Message, Instant),
    Waits(u32),
    Ended,
}

impl<M: Memory> Future for Call<M> {
    type Output = Result<Message, CallError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let Call { router, stage } = self.get_mut();
        let mut board = router.0.borrow_mut();
        match *stage {
            Stage::Unsent(peer, message, deadline) => {
                *stage = Stage::Ended;
                let current = board.current;
                let number = match board.calls.open(peer, current, deadline) {
                    Ok(number) => number,
                    Err(error) => return Poll::Ready(Err(error)),
                };
                if let Err(error) = board.send(peer, Role::Request(number), message) {
                    board.calls.close(number);
                    let gone = matches!(error, SendError::PeerGone);
                    return Poll::Ready(Err(if gone { CallError::PeerGone } else { CallError::Busy }));
                }
                *stage = Stage::Waits(number);
                Poll::Pending
            }
            Stage::Waits(number) => match board.calls.outcome(number) {
                Some(result) => {
                    board.calls.close(number);
                    *stage = Stage::Ended;
                    Poll::Ready(result)
                }
                None => Poll::Pending,
            },
            Stage::Ended => Poll::Pending,
        }
    }
}

impl<M: Memory> Drop for Call<M> {
    fn drop(&mut self) {
        if let Stage::Waits(number) = self.stage {
            self.router.0.borrow_mut().calls.close(number);
        }
    }
}

/// One turn of the others; see [`CallRouter::yield_now`].
#[derive(Debug)]
#[must_use = "others go first when it is awaited"]
pub struct Yield<M: Memory> {
    router: CallRouter<M>,
    done: bool,
}

impl<M: Memory> Future for Yield<M> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        let Yield { router, done } = self.get_mut();
        if core::mem::replace(done, true) {
            return Poll::Ready(());
        }
        let mut board = router.0.borrow_mut();
        let current = board.current;
        board.woken.push(current);
        Poll::Pending
    }
}

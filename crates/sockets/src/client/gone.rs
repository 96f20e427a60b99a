//! What becomes of sockets when their stack goes with all of its processes, and when one of its name is up
//! again (`docs/decisions/gone.md`).
//!
//! ```text
//!   the stack is gone     connections end as by a reset; what was received stays readable
//!                         listeners and sockets with a port keep it, and wait; datagram sockets fail once
//!   it is up again        the process has a session there: what waits is bound and listens again
//! ```
//! Sessions that are over stay in the list behind the process's own, as long as a connection has its slot
//! there.

use alloc::vec::Vec;
use core::mem;

use atoll_ipc::Ready;
use atoll_ipc::lease::Voucher;

use super::Client;
use super::object::{Kind, Socket, Standing};
use super::platform::Platform;
use super::session::Session;
use crate::Errno;
use crate::asking::Asking;

/// What is lost when a stack goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The number of connections, open or being opened.
    pub connections: usize,
    /// The number of listeners and other sockets with a port, which wait for the stack.
    pub waiting: usize,
}

impl<P: Platform> Client<P> {
    /// Notes that the stack is gone with all of its processes. Every socket is announced, and threads that
    /// sleep are woken.
    pub fn stack_gone(&mut self) -> Losses {
        // What came before the end is not lost.
        self.drain();
        let mut slots = alloc::vec![0; self.sessions.len()];
        let indices = self.objects.indices();
        let sockets = indices.iter().filter_map(|object| self.socket(*object));
        for place in sockets.flat_map(Socket::places) {
            if let Some(slots) = slots.get_mut(place.session) {
                *slots += 1;
            }
        }
        for (session, slots) in self.sessions.iter_mut().zip(slots) {
            session.end(slots);
        }
        self.questions.clear();
        self.inherited.clear();
        self.passed.clear();
        let mut losses = Losses::default();
        for object in self.objects.indices() {
            let Some(socket) = self.socket_mut(object) else { continue };
            match socket.end() {
                Some(Ended::Connection) => losses.connections += 1,
                Some(Ended::Waits) => losses.waiting += 1,
                None => {}
            }
            self.announce(object, Ready::all());
        }
        self.ring(self.sleepers.all());
        losses
    }

    /// Returns whether the process's stack is gone, and no other has taken its place.
    #[inline]
    pub fn is_stack_gone(&self) -> bool {
        self.own().is_some_and(Session::is_over)
    }

    /// Returns the sockets that are to be registered again ([`Client::start_binding_again`]), listeners
    /// first.
    pub fn waiting_for_stack(&self) -> Vec<u32> {
        let waits = |object: &u32| self.socket(*object).is_some_and(|socket| socket.standing.waits);
        let mut waiting: Vec<u32> = self.objects.indices().into_iter().filter(waits).collect();
        waiting.sort_by_key(|object| self.listener(*object).is_none());
        waiting
    }

    /// Goes on with a session at a stack that is up again. Datagram sockets have no slots until they are
    /// registered again.
    pub fn stack_is_back(&mut self, session: Session<P>, clock: P::Clock, seed: u64) {
        // Threads that sleep do not know the doorbells of the new session.
        self.ring(self.sleepers.all());
        self.adopt(session, clock, seed);
        for object in self.objects.indices() {
            let Some(socket) = self.socket_mut(object) else { continue };
            socket.places_mut().iter_mut().for_each(|place| place.session += 1);
            let mut given_up = Vec::new();
            if let (Kind::Datagram(datagram), true) = (&mut socket.kind, socket.standing.waits) {
                given_up = mem::take(&mut datagram.places);
            }
            for place in given_up {
                self.sessions.get_mut(place.session).map(Session::leave);
            }
        }
        self.drop_ended_sessions();
    }

    /// Notes that a socket is registered again, or why not. It goes on waiting if it is not, because what is
    /// in the way may go: the process that has the privilege for a port may not have asked yet. So only a
    /// refusal that was met twice is the error of the next call. Returns whether it is that now.
    pub fn registered_again(&mut self, object: u32, result: Result<(), Errno>) -> bool {
        let Some(socket) = self.socket_mut(object) else { return false };
        let before = socket.standing;
        let mut is_news = false;
        match result {
            Ok(()) => socket.standing = Standing { error: before.error, ..Standing::default() },
            Err(errno) if before.refusal == Some(errno) => {
                is_news = !before.is_told;
                let error = if is_news { Some(errno) } else { before.error };
                socket.standing = Standing { error, is_told: true, ..before };
            }
            Err(errno) => {
                socket.standing = Standing { refusal: Some(errno), is_told: false, ..before };
            }
        }
        if let Kind::Listening(listener) = &mut socket.kind {
            listener.accepting = 0;
        }
        if result.is_ok() {
            self.accept_if_awaited(object);
        }
        if result.is_ok() || is_news {
            self.announce(object, Ready::all());
        }
        is_news
    }

    /// Drops sessions that are over and in which no socket has a slot any more, with their memory. The
    /// process's own stays until there is another.
    pub(super) fn drop_ended_sessions(&mut self) {
        while let Some(at) = (1..self.sessions.len()).find(|at| self.sessions[*at].is_left()) {
            self.sessions.remove(at);
            for object in self.objects.indices() {
                let places = self.socket_mut(object).map(Socket::places_mut).unwrap_or_default();
                places.iter_mut().filter(|place| place.session > at).for_each(|place| place.session -= 1);
            }
        }
    }

    /// Returns whether a socket has its slots in a session that is over.
    pub(super) fn is_of_gone_stack(&self, socket: &Socket) -> bool {
        let session = socket.places().first().and_then(|place| self.sessions.get(place.session));
        session.is_some_and(Session::is_over)
    }
}

/// What the end of a stack does to a socket.
enum Ended {
    /// It is a connection, which has ended.
    Connection,
    /// It waits for the stack.
    Waits,
}

impl Socket {
    /// Notes that the stack is gone; returns `None` if that is nothing to the socket.
    fn end(&mut self) -> Option<Ended> {
        self.voucher = Voucher::default();
        // The supervisor that has sealed it is gone.
        self.pass = None;
        match &mut self.kind {
            Kind::Stream(..) => {
                self.lease = 0;
                return Some(Ended::Connection);
            }
            Kind::Listening(listener) => {
                listener.offers.clear();
                (listener.claimed, listener.verdict, listener.accepting) = (None, None, 0);
                listener.asking = Asking::default();
            }
            // netdevice(7): the network is down.
            Kind::Datagram(_) => self.standing.error = Some(Errno::ENETDOWN),
            Kind::Bound | Kind::Fresh => {}
        }
        self.standing.waits = self.lease != 0;
        self.standing.waits.then_some(Ended::Waits)
    }
}

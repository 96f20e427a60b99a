//! What events of replicas do to sockets, and what is done when some were lost.

use alloc::vec::Vec;
use core::mem;

use atoll_ipc::lease::Voucher;
use atoll_ipc::{Cause, Command, Event, Ready};

use super::Client;
use super::notify::when;
use super::object::{Kind, Place, Socket};
use super::platform::Platform;
use super::questions::Answer;
use super::session::{NOBODY, News, Session};
use crate::listener::Offer;

impl<P: Platform> Client<P> {
    /// Returns whether a replica has sent something, or may have.
    #[inline]
    pub fn has_event(&self) -> bool {
        self.sessions.first().is_some_and(Session::has_event) || !self.inherited.is_empty()
    }

    /// Takes what the replicas have sent, and wakes threads of this process that wait for it. Returns whether
    /// there was anything, or may have been.
    ///
    /// Events of inherited sessions go to their owner, so their slots are polled instead.
    pub fn drain(&mut self) -> bool {
        let mut any_of_all = !self.inherited.is_empty();
        for replica in 0..self.replicas() {
            let mut any = false;
            while let Some(event) = self.sessions[0].replicas_mut()[replica].port_mut().next_event() {
                any = true;
                self.handle_event(replica, event);
            }
            let from = &mut self.sessions[0].replicas_mut()[replica];
            if any {
                from.port_mut().publish();
            }
            any_of_all |= any;
            let news = from.take_news();
            any_of_all |= !matches!(news, News::None);
            match news {
                News::None => {}
                News::EventsLost => self.rescan(replica, false),
                News::Successor => self.rescan(replica, true),
            }
        }
        if !self.inherited.is_empty() {
            self.poll_inherited();
        }
        if self.missed.take() {
            any_of_all = true;
            self.announce_shared();
        }
        if !self.passed.is_empty() {
            self.let_go_of_passed();
        }
        any_of_all
    }

    // Most calls find no event, and are not to prepare for one.
    #[inline(never)]
    fn handle_event(&mut self, replica: usize, event: Event) {
        match event {
            Event::Ready { slot, generation, ready } => {
                let object = self.sessions[0].replicas()[replica].user(slot);
                self.handle_ready(object, Place { session: 0, replica, slot, generation }, ready);
            }
            Event::ConnectionAvailable { listener, slot, generation, local, remote } => {
                let offer = Offer { replica: replica as u8, slot, generation, local, remote };
                if let Some(object) = self.listener_with(listener)
                    && let Some(listener) = self.listener_mut(object)
                {
                    listener.asking.given(offer.replica);
                    if listener.offer(offer) {
                        self.announce(object, Ready::IN);
                    }
                } else {
                    // The listener was closed while this was under way.
                    self.decline(&offer);
                }
            }
            Event::ConnectionsWait { listener, waiting, answers } => {
                if let Some(object) = self.listener_with(listener)
                    && let Some(listener) = self.listener_mut(object)
                {
                    listener.asking.told(replica as u8, waiting, answers);
                    // Wakes the caller that asked; a waiting connection also wakes every poller.
                    self.announce(object, if waiting { Ready::IN } else { Ready::empty() });
                }
            }
            Event::ClaimVerdict { slot, generation, confirmed } => {
                self.handle_verdict(replica, (slot, generation), confirmed);
            }
            Event::AcceptorRemoved { listener } => {
                if let Some(object) = self.listener_with(listener)
                    && let Some(listener) = self.listener_mut(object)
                {
                    listener.accepting &= !(1 << replica);
                    listener.on_trial = true;
                    self.accept_if_awaited(object);
                }
            }
            Event::SlotDone { slot, generation } => self.sessions[0].slot_done(replica, slot, generation),
            Event::BindReply { token, cause, port, voucher } => {
                self.handle_answer(token, cause, port, voucher)
            }
            Event::ListenReply { token, cause, voucher } => self.handle_answer(token, cause, 0, voucher),
            Event::InfoReply { token, cause } | Event::GroupReply { token, cause } => {
                self.handle_answer(token, cause, 0, Voucher::default());
            }
        }
    }

    fn handle_ready(&mut self, object: u32, place: Place, ready: Ready) {
        if object == NOBODY || !self.socket(object).is_some_and(|socket| socket.places().contains(&place)) {
            return;
        }
        let mut also = Ready::empty();
        if let Some(datagrams) = self.datagrams(place)
            && matches!(self.socket(object), Some(Socket { kind: Kind::Datagram(_), .. }))
        {
            if ready.contains(Ready::ERR) {
                datagrams.error_arrived();
            }
            // sock_def_readable: a datagram is an event for those that watch for POLLPRI, too.
            also = when(ready.contains(Ready::IN), Ready::PRI);
        }
        if ready.contains(Ready::PRI) {
            self.notify_owner(object);
        }
        self.announce(object, ready | also);
    }

    fn handle_verdict(&mut self, replica: usize, of: (atoll_base::SlotId, u32), confirmed: bool) {
        for at in 0..self.listeners.len() {
            let object = self.listeners[at].1;
            if let Some(listener) = self.listener_mut(object)
                && listener
                    .claimed
                    .is_some_and(|c| (c.slot, c.generation) == of && usize::from(c.replica) == replica)
            {
                listener.verdict = Some(confirmed);
                self.announce(object, Ready::IN);
            }
        }
    }

    /// Stores an answer, which may be awaited no more, and may come twice.
    fn handle_answer(&mut self, token: u32, cause: Cause, port: u16, voucher: Voucher) {
        if self.questions.set_answer(token, Answer { cause, port, voucher }) {
            self.ring(self.sleepers.all());
        }
    }

    fn listener_with(&self, lease: u64) -> Option<u32> {
        self.listeners.iter().find(|(known, _)| *known == lease).map(|(_, object)| *object)
    }

    /// Announces every socket as perhaps ready, because events of a replica were lost or it is a new
    /// incarnation.
    fn rescan(&mut self, replica: usize, is_new: bool) {
        self.sessions[0].sweep(replica);
        for object in self.objects.indices() {
            if is_new {
                self.register_again(object, replica);
            } else {
                self.accept_again(object, replica);
            }
            self.claim_again(object, replica);
            if let Some(listener) = self.listener_mut(object) {
                listener.is_late |= !listener.asking.is_answered();
                listener.asking.forget(replica as u8);
            }
            self.notify_owner(object);
            self.announce(object, Ready::all());
        }
        for command in self.questions.commands_to(replica) {
            self.sessions[0].push(replica, command);
        }
    }

    /// Registers a listener's acceptor again: events of a replica were lost, and it may have removed the
    /// acceptor because lost offers were not claimed in time. Registering once more does no harm.
    fn accept_again(&mut self, object: u32, replica: usize) {
        if let Some(listener) = self.listener_mut(object)
            && listener.accepting & 1 << replica != 0
        {
            listener.accepting &= !(1 << replica);
            self.accept_if_awaited(object);
        }
    }

    /// Sends a claim again whose verdict may be among the lost events. A claim that is sent again is answered
    /// again.
    fn claim_again(&mut self, object: u32, replica: usize) {
        let Some(listener) = self.listener_mut(object).filter(|listener| listener.verdict.is_none()) else {
            return;
        };
        if let Some(Offer { slot, generation, .. }) =
            listener.claimed.filter(|offer| usize::from(offer.replica) == replica)
        {
            self.push(0, replica, &Command::Claim { slot, generation });
        }
    }

    /// Registers ports and listeners at a new incarnation of a replica, which learns them from the processes
    /// that hold them.
    fn register_again(&mut self, object: u32, replica: usize) {
        let (token, replicas) = (self.new_token(), self.replicas());
        let Some(socket) = self.socket_mut(object).filter(|socket| socket.lease != 0) else { return };
        let mut commands = Vec::new();
        let show = socket.show_again();
        let mut listens = false;
        if usize::from(socket.local.port) % replicas == replica {
            commands.extend(show);
            commands.push(socket.bind_again(token));
        }
        if let Kind::Listening(listener) = &mut socket.kind {
            listener.accepting &= !(1 << replica);
            let backlog = listener.backlog;
            commands.extend(show);
            commands.push(socket.listen((socket.lease, socket.local), backlog)(token));
            listens = true;
        }
        commands.iter().for_each(|command| self.push(0, replica, command));
        if listens {
            self.accept_if_awaited(object);
        }
    }

    /// Announces every socket of a shared session as perhaps ready: a call for one of them had no turn, and
    /// may have said that it would block.
    #[cold]
    fn announce_shared(&mut self) {
        for object in self.objects.indices() {
            let place = self.socket(object).and_then(|socket| socket.places().first().copied());
            if place.and_then(|place| self.sessions.get(place.session)).is_some_and(|it| it.shared) {
                self.announce(object, Ready::all());
            }
        }
    }

    fn poll_inherited(&mut self) {
        for at in 0..self.inherited.len() {
            let object = self.inherited[at];
            // Without a turn it may be seen in the midst of a change, and then again after it.
            let seen = self.socket(object).map_or(0, |socket| self.digest(socket));
            let Some(socket) = self.socket_mut(object) else { continue };
            if mem::replace(&mut socket.seen, seen) != seen {
                let ready = Ready::from_bits_retain(self.readiness(object));
                self.notify_owner(object);
                self.announce(object, ready);
            }
        }
    }

    /// Returns a number that differs if anything has happened to a socket on which its readiness depends.
    fn digest(&self, socket: &Socket) -> u64 {
        socket.places().iter().fold(1u64, |seen, place| {
            self.slot_of(*place).map_or(seen, |slot| {
                let mark = slot.mark().map_or(0, |mark| mark.wrapping_add(1).rotate_left(40));
                let now = slot.receive_tail() ^ slot.acknowledged().rotate_left(24) ^ mark;
                let state = u64::from(slot.replica_flags()) << 56 | (slot.state() as u64) << 48;
                seen.wrapping_mul(31).wrapping_add(now ^ state)
            })
        })
    }

    // ---- questions ----

    /// Returns a new token for a command that is answered.
    pub fn new_token(&mut self) -> u32 {
        self.questions.new_token()
    }

    /// Sends commands to a replica of the process's own session; the last one is answered under `token`. Call
    /// [`Client::answered`] when the answer is awaited no more.
    pub fn ask(&mut self, replica: usize, token: u32, commands: Vec<Command>) {
        if let Some(session) = self.sessions.first_mut() {
            commands.iter().for_each(|command| session.push(replica, command));
            self.questions.add(token, replica, commands);
        }
    }

    /// Returns the answer under `token`, once it has come.
    pub fn answer(&self, token: u32) -> Option<Answer> {
        self.questions.answer(token)
    }

    /// Forgets an answer that is awaited no more.
    pub fn answered(&mut self, token: u32) {
        self.questions.forget(token);
    }
}

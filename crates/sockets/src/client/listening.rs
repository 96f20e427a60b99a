//! How a process gets connections: ACCEPT-CONNECTION, the claim, and the naive accept (P4).

use alloc::vec::Vec;

use atoll_ipc::Command;
use atoll_ipc::command::Protocol;

use super::Client;
use super::notify::NESTING_MAX;
use super::object::{Body, Kind, Object, Place, Socket};
use super::platform::Platform;
use crate::asking::{Asking, Next};
use crate::listener::{Claim, Offer, claim};
use crate::{Errno, Failure};

impl<P: Platform> Client<P> {
    /// Returns whether the stack wants to be asked for each connection: P4's naive accept.
    #[inline]
    pub fn asks(&self) -> bool {
        self.own().is_some_and(|session| session.facts.naive_accept)
    }

    /// Sends ACCEPT-CONNECTION to every replica that does not know yet that this process accepts. Returns
    /// whether there is any: then connections may wait that will be on offer in a moment.
    #[inline]
    pub fn accept_connections(&mut self, object: u32) -> bool {
        if self.asks() {
            self.ask_before_sleep(object);
            return false;
        }
        let Some(Socket { kind: Kind::Listening(listener), lease, .. }) = self.socket_mut(object) else {
            return false;
        };
        let (accepting, lease) = (listener.accepting, *lease);
        let more_soon = core::mem::take(&mut listener.more_soon);
        listener.is_late |= more_soon;
        let all = (1 << self.replicas()) - 1;
        if accepting == all {
            return more_soon;
        }
        for replica in (0..self.replicas()).filter(|replica| accepting & (1 << replica) == 0) {
            self.push(0, replica, &Command::AcceptConnection { lease });
        }
        if let Some(listener) = self.listener_mut(object) {
            listener.accepting = all;
            listener.is_late = true;
        }
        true
    }

    /// Asks the replicas whether connections wait for listeners at which this process accepts only since a
    /// moment ago. They answer when they have offered it what they can. Returns a listener that awaits
    /// answers.
    pub fn ask_for_offers(&mut self) -> Option<u32> {
        let replicas = self.replicas() as u8;
        let mut awaits = None;
        for at in 0..self.listeners.len() {
            let object = self.listeners[at].1;
            let Some(listener) = self.listener_mut(object) else { continue };
            let whom =
                if core::mem::take(&mut listener.is_late) { listener.asking.look(replicas) } else { 0 };
            if !listener.asking.is_answered() {
                awaits = Some(object);
            }
            self.push_question(object, whom, false);
        }
        awaits
    }

    /// Registers this process as an acceptor for a listener, or for those that a set watches. Returns whether
    /// there is any for which it was none.
    pub fn accepts_late(&mut self, object: u32) -> bool {
        match self.object(object).map(|object| &object.body) {
            Some(Body::Socket(Socket { kind: Kind::Listening(_), .. })) => self.accept_connections(object),
            Some(Body::Epoll(_)) => self.accept_watched(object),
            _ => false,
        }
    }

    /// Registers this process as an acceptor for a listener if a thread waits for the listener now. A process
    /// that watches the listener and does something else is busy, though its other calls take events: it
    /// registers when it waits next.
    pub(super) fn accept_if_awaited(&mut self, object: u32) {
        if self.is_awaited(object) {
            self.accept_connections(object);
        } else {
            self.listeners_idle = true;
        }
    }

    /// Returns whether a thread sleeps until something happens to the object, itself or as a member of sets.
    pub fn is_awaited(&self, object: u32) -> bool {
        self.is_awaited_at(object, 0)
    }

    fn is_awaited_at(&self, object: u32, depth: u32) -> bool {
        self.sleepers.bell_of(object).is_some()
            || self.sets_of(object).any(|set| {
                self.set(set).is_some_and(|set| set.sleepers > 0)
                    || depth < NESTING_MAX && self.is_awaited_at(set, depth + 1)
            })
    }

    /// Registers acceptors for listeners that are watched in a set and do not accept, because a thread waits
    /// in the set now. Returns whether there is any.
    #[inline]
    pub fn accept_watched(&mut self, set: u32) -> bool {
        self.listeners_idle && self.accept_idle(set)
    }

    fn accept_idle(&mut self, set: u32) -> bool {
        let mut any = false;
        self.listeners_idle = false;
        for at in 0..self.listeners.len() {
            let object = self.listeners[at].1;
            if self.is_member(object, set, 0) {
                any |= self.accept_connections(object);
            } else if !self.watchers(object).is_empty() {
                self.listeners_idle = true;
            }
        }
        any
    }

    /// Returns whether the object is in the set, or in a set that is.
    fn is_member(&self, object: u32, set: u32, depth: u32) -> bool {
        self.sets_of(object).any(|of| of == set || depth < NESTING_MAX && self.is_member(of, set, depth + 1))
    }

    /// Returns the sets that watch an object.
    fn sets_of(&self, object: u32) -> impl Iterator<Item = u32> + '_ {
        let first = self.watches.first(&self.watchers(object));
        let all = core::iter::successors(Some(first), |watch| Some(self.watches.next_of_target(*watch)));
        all.map_while(|watch| self.watches.get(watch)).map(|watch| watch.set)
    }

    /// Stops accepting connections of a listener for which no thread of this process waits any more.
    pub fn stop_accepting(&mut self, object: u32) {
        let asks = self.asks();
        let Some(Socket { kind: Kind::Listening(listener), lease, .. }) = self.socket_mut(object) else {
            return;
        };
        let (mut accepting, lease) = (core::mem::take(&mut listener.accepting), *lease);
        if asks {
            (accepting, listener.asking) = (u32::MAX, Asking::default());
        }
        for replica in (0..self.replicas()).filter(|replica| accepting & (1 << replica) != 0) {
            self.push(0, replica, &Command::StopAccepting { lease });
        }
    }

    /// Notes that an object has begun to listen on a port.
    pub fn add_listener(&mut self, lease: u64, object: u32) {
        self.listeners.push((lease, object));
    }

    /// Returns whether connections may be accepted on an object; fails with the errno of accept(2) otherwise.
    pub fn check_listening(&self, object: u32) -> Result<(), Errno> {
        match self.socket(object) {
            Some(Socket { kind: Kind::Listening(_), .. }) => Ok(()),
            Some(Socket { protocol: Protocol::Icmp | Protocol::Raw | Protocol::Udp, .. }) => {
                Err(Errno::EOPNOTSUPP)
            }
            Some(_) => Err(Errno::EINVAL),
            None => Err(Errno::ENOTSOCK),
        }
    }

    /// Returns whether [`Client::accept`] may find a connection: one is on offer, or the verdict on a claim
    /// has come.
    pub fn may_accept(&self, object: u32) -> bool {
        self.listener(object).is_some_and(|listener| match listener.claimed {
            Some(_) => listener.verdict.is_some(),
            None => !listener.offers.is_empty(),
        })
    }

    /// Takes a connection of a listener, and makes it an object. The caller needs a descriptor for it.
    pub fn accept(&mut self, object: u32, nonblocking: bool) -> Result<u32, Failure> {
        self.check_listening(object)?;
        if let Some(errno) = self.socket_mut(object).and_then(|socket| socket.standing.error.take()) {
            return Err(errno.into());
        }
        let offer = self.claim_offer(object)?;
        if let Some(listener) = self.listener_mut(object).filter(|listener| listener.on_trial) {
            (listener.on_trial, listener.more_soon) = (false, true);
            self.listeners_idle = true;
        }
        let Some(parent) = self.socket(object) else { return Err(Errno::EINVAL.into()) };
        let (v6, inherited) = (parent.v6, parent.options.clone());
        let replica = usize::from(offer.replica);
        let place = Place { session: 0, replica, slot: offer.slot, generation: offer.generation };
        let mut socket = Socket::new(Protocol::Tcp, v6);
        socket.kind = Kind::Stream(place, inherited.local());
        socket.local = offer.local;
        socket.remote = offer.remote;
        let resets = inherited.linger() == Some(0);
        socket.options = inherited;
        socket.pooled = true;
        socket.connect_reported = true;
        let number = self.objects.insert(Object::new(Body::Socket(socket), nonblocking));
        self.set_user(place, number);
        if resets && let Some((stream, ..)) = self.stream(number) {
            stream.set_reset_on_close(true);
        }
        Ok(number)
    }

    /// Sends CLAIM-CONNECTION for the first offer that still stands.
    fn claim_offer(&mut self, object: u32) -> Result<Offer, Failure> {
        loop {
            let Some(listener) = self.listener_mut(object) else { return Err(Errno::EINVAL.into()) };
            if let Some(offer) = listener.claimed {
                match listener.verdict.take() {
                    Some(true) => {
                        listener.claimed = None;
                        return Ok(offer);
                    }
                    Some(false) => listener.claimed = None,
                    None => return Err(Failure::WouldBlock),
                }
                continue;
            }
            let Some(offer) = listener.offers.pop_front() else { return Err(Failure::WouldBlock) };
            let Some(session) = self.sessions.first_mut() else { return Err(Errno::ENETDOWN.into()) };
            let (member, replica) = (session.member, usize::from(offer.replica));
            let Some(from) = session.replicas().get(replica) else { continue };
            let held = claim(from.port(), &offer, member, 0);
            if held == Claim::Gone {
                continue;
            }
            let (slot, generation) = (offer.slot, offer.generation);
            session.push(replica, &Command::Claim { slot, generation });
            if held == Claim::Held {
                return Ok(offer);
            }
            if let Some(listener) = self.listener_mut(object) {
                listener.claimed = Some(offer);
                listener.verdict = None;
            }
        }
    }

    // ---- the naive accept (P4): see `crate::asking` ----

    /// Asks for a connection, unless an answer is under way. Returns Ok if no replica has one. `tried` has
    /// the replicas that this call of accept has asked, as bits.
    pub fn ask_for_connection(&mut self, object: u32, tried: &mut u32) -> Result<(), Failure> {
        let replicas = self.replicas() as u8;
        let Some(listener) = self.listener_mut(object) else { return Err(Errno::EINVAL.into()) };
        if listener.claimed.is_some() {
            return Err(Failure::WouldBlock);
        }
        match listener.asking.take(replicas, tried) {
            Next::Ask(replica) => {
                self.push_question(object, 1 << replica, true);
                Err(Failure::WouldBlock)
            }
            Next::Wait => Err(Failure::WouldBlock),
            Next::Nobody => Ok(()),
        }
    }

    /// Makes sure that the process is woken for the next connection of a listener for which it is about to
    /// wait.
    pub fn ask_before_sleep(&mut self, object: u32) {
        let replicas = self.replicas() as u8;
        if let Some(listener) = self.listener_mut(object) {
            let whom = listener.asking.before_sleep(replicas);
            self.push_question(object, whom, false);
        }
    }

    /// Calls [`Client::ask_before_sleep`] for all watched listeners, because the process is about to wait in
    /// an epoll instance.
    pub fn ask_before_sleep_in_set(&mut self) {
        for object in self.watched_listeners() {
            self.ask_before_sleep(object);
        }
    }

    /// Asks whether connections wait for the listeners among `objects` and for those that epoll instances
    /// watch. Returns these listeners: each is answered when its `asking` says so.
    pub fn ask_whether_waiting(&mut self, objects: &[u32]) -> Vec<u32> {
        let mut listeners = self.watched_listeners();
        let is_listening = |socket: &Socket| matches!(socket.kind, Kind::Listening(_));
        let is_new =
            |object: &u32| !listeners.contains(object) && self.socket(*object).is_some_and(is_listening);
        let polled: Vec<u32> = objects.iter().copied().filter(is_new).collect();
        listeners.extend(polled);
        let replicas = self.replicas() as u8;
        for object in &listeners {
            if let Some(listener) = self.listener_mut(*object) {
                let whom = listener.asking.look(replicas);
                self.push_question(*object, whom, false);
            }
        }
        listeners
    }

    /// Returns the listeners that epoll instances watch.
    fn watched_listeners(&self) -> Vec<u32> {
        let all = self.listeners.iter().map(|(_, object)| *object);
        all.filter(|object| !self.watchers(*object).is_empty()).collect()
    }

    fn push_question(&mut self, object: u32, whom: u32, takes: bool) {
        let Some(lease) = self.socket(object).map(|socket| socket.lease) else { return };
        for replica in (0..self.replicas()).filter(|replica| whom & 1 << replica != 0) {
            self.push(0, replica, &Command::AskConnection { lease, takes });
        }
    }
}

//! The readiness of an object, and the threads and epoll instances that it wakes: poll(2), epoll(7).

use core::mem;

use atoll_ipc::Ready;

use super::Client;
use super::object::{Body, Kind, Object};
use super::platform::Platform;
use super::sleepers::bits;
use crate::options::Name;
use crate::watch;

/// The maximum depth of nested epoll instances: epoll(7). The kernel's instance behind each refuses loops.
pub const NESTING_MAX: u32 = 5;

impl<P: Platform> Client<P> {
    /// Notes that something of `ready` may hold for an object now: queues the object for its epoll instances,
    /// and wakes threads that sleep.
    pub fn announce(&mut self, object: u32, ready: Ready) {
        self.announce_at(object, ready, 0);
    }

    fn announce_at(&mut self, object: u32, ready: Ready, depth: u32) {
        let ready = ready.with_normal();
        let Some(head) = self.objects.get(object).map(|o| o.watchers) else { return };
        let mut bells = 0;
        let mut watch = self.watches.first(&head);
        let mut exclusive_served = false;
        while let Some((set, is_exclusive)) =
            self.watches.get(watch).map(|w| (w.set, w.events & watch::EXCLUSIVE != 0))
        {
            let next = self.watches.next_of_target(watch);
            if !(is_exclusive && exclusive_served)
                && let Some(Object { body: Body::Epoll(in_set), watchers, .. }) = self.objects.get_mut(set)
                && self.watches.queue(watch, ready.bits(), &mut in_set.ready)
            {
                let (is_nested, asleep) = (!watchers.is_empty(), in_set.sleepers > 0);
                if asleep {
                    bells |= 1 << in_set.bell;
                    exclusive_served |= is_exclusive;
                }
                if is_nested && depth < NESTING_MAX {
                    self.announce_at(set, Ready::IN, depth + 1);
                }
                bells |= self.sleepers.bells_of(set);
            }
            watch = next;
        }
        bells |= self.sleepers.bells_of(object);
        self.ring(bells);
    }

    /// Wakes threads that sleep in an epoll instance.
    pub fn wake_set(&self, epoll: u32) {
        if let Some(set) = self.set(epoll) {
            self.ring(1 << set.bell);
        }
    }

    /// Wakes threads of this process that sleep on one of `bells`, other than the one that runs here.
    pub(super) fn ring(&self, bells: u16) {
        for bell in bits(bells) {
            if self.sleepers.has_others(bell)
                && let Some(session) = self.sessions.first()
            {
                session.ring(bell);
            }
        }
    }

    /// Returns the bits of poll(2) that hold for an object now.
    pub fn readiness(&mut self, object: u32) -> u32 {
        let Some(Object { body, .. }) = self.objects.get(object) else { return Ready::NVAL.bits() };
        let socket = match body {
            Body::Epoll(set) => return when(!set.ready.is_empty(), Ready::READABLE).bits(),
            Body::Socket(socket) => socket,
        };
        let ready = match &socket.kind {
            // udp_poll: a datagram socket can be written before it has a port.
            Kind::Fresh | Kind::Bound if socket.protocol.is_datagram() => Ready::SENDABLE,
            // tcp_poll: a socket that is not connected has hung up.
            Kind::Fresh | Kind::Bound => {
                let failed = socket.standing.error.is_some();
                let ended = when(socket.lasting.shut_receive, Ready::ENDED) | when(failed, Ready::ERR);
                Ready::WRITABLE | Ready::HUP | ended
            }
            Kind::Listening(listener) => {
                let offered = !listener.offers.is_empty() || self.asks() && listener.asking.has_waiting();
                let ready = offered || listener.verdict.is_some();
                let failed = socket.standing.error.is_some();
                when(ready || failed, Ready::READABLE) | when(failed, Ready::ERR)
            }
            Kind::Stream(place, local) => {
                self.stream_at(*place).map_or(Ready::ERR | Ready::HUP, |stream| stream.readiness(local))
            }
            Kind::Datagram(_) => self.datagram_readiness(object),
        };
        ready.bits()
    }

    // Apart, so that streams do not look whether errors have come.
    #[inline(never)]
    fn datagram_readiness(&mut self, object: u32) -> Ready {
        let mut ready = self.waiting_in_slots(object);
        let Some(socket) = self.socket(object) else { return Ready::NVAL };
        let Kind::Datagram(datagram) = &socket.kind else { return Ready::NVAL };
        let failed = socket.standing.error.is_some() || datagram.faults.is_pending();
        ready |= when(failed, Ready::ERR);
        for place in &datagram.places {
            let Some(one) = self.datagrams(*place) else { continue };
            ready |= when(one.has_error(), Ready::ERR);
        }
        // datagram_poll
        let is_urgent = ready.contains(Ready::ERR) && socket.options.is_on(Name::ErrorsArePriority);
        ready |= when(is_urgent, Ready::PRI);
        let sender = datagram.places.get(datagram.sender % datagram.places.len().max(1));
        if sender.and_then(|place| self.datagrams(*place)).is_none_or(|one| one.is_writable()) {
            ready |= Ready::SENDABLE;
        }
        if datagram.shut_receive {
            ready |= Ready::ENDED | when(datagram.shut_send, Ready::HUP);
        }
        ready
    }

    /// Removes entries that are not ready any more from the ready lists of an epoll instance and of the
    /// instances in it.
    pub fn prune(&mut self, object: u32) {
        self.prune_at(object, 0);
    }

    fn prune_at(&mut self, object: u32, depth: u32) {
        let Some(set) = self.set(object) else { return };
        let (mut ready, members, has_sets) = (set.ready, set.members, set.has_sets);
        if has_sets && depth < NESTING_MAX {
            let mut watch = self.watches.first_member(&members);
            while let Some(target) = self.watches.get(watch).map(|w| w.target) {
                self.prune_at(target, depth + 1);
                watch = self.watches.next_member(watch);
            }
        }
        let mut watches = mem::take(&mut self.watches);
        watches.is_ready(&mut ready, |target| self.readiness(target));
        self.watches = watches;
        if let Some(set) = self.set_mut(object) {
            set.ready = ready;
        }
    }

    // ---- sleeping ----

    /// Returns a doorbell for a new sleeper.
    pub fn new_bell(&mut self) -> u32 {
        self.sleepers.new_bell()
    }

    /// Notes that the running thread will sleep on `bell` until something happens to the object.
    pub fn sleep_on(&mut self, object: u32, bell: u32) {
        self.set_bell(object, bell);
        self.sleepers.add(object, bell);
    }

    /// Notes that the running thread does not sleep on the object any more: events ring the doorbell of the
    /// epoll instance that watches it again. The caller has to take what came meanwhile ([`Client::drain`]).
    pub fn sleep_no_more(&mut self, object: u32, bell: u32) {
        self.sleepers.remove(object, bell);
        self.restore_bell(object);
    }

    /// Makes events ring a thread that sleeps on the object, or else the epoll instance that watches it.
    pub fn restore_bell(&mut self, object: u32) {
        let other = self.sleepers.bell_of(object);
        let own = other.or_else(|| self.socket(object).map(|socket| socket.bell)).unwrap_or(0);
        self.set_bell(object, own);
    }

    /// Announces to all replicas that `bells` are to be rung from now on. The caller then checks its
    /// condition once more, and sleeps: whatever is published after this call rings.
    pub fn before_sleep(&mut self, bells: u16) {
        self.sleepers.begin(bells);
        for bell in bits(bells) {
            for session in &self.sessions {
                session.set_asleep(bell);
            }
        }
        for session in self.sessions.iter().filter(|session| session.shared && bells & 1 == 0) {
            session.set_asleep(0);
        }
        if let Some(session) = self.sessions.first() {
            session.fence();
        }
    }

    /// Notes that the thread blocks now, or has found something: from here on others ring it.
    pub fn doze_off(&mut self) {
        self.sleepers.doze_off();
    }

    /// Undoes [`Client::before_sleep`].
    pub fn after_sleep(&mut self, bells: u16) {
        self.sleepers.end(bells);
        for bell in bits(bells) {
            for session in &self.sessions {
                if self.sleepers.is_asleep(bell) {
                    // Ringers remember the word for which they rang: a new one lets them ring again for the
                    // others.
                    session.set_asleep(bell);
                } else {
                    session.set_awake(bell);
                }
            }
        }
    }

    /// Sets the doorbell that events of the object ring.
    pub fn set_bell(&mut self, object: u32, bell: u32) {
        let Some(Object { body: Body::Socket(socket), owner, .. }) = self.objects.get(object) else { return };
        // The thread that watches for urgent octets takes all events, and wakes the others.
        let bell = if owner.id != 0 && self.urgent_bell != 0 { self.urgent_bell } else { bell };
        for place in socket.places() {
            let Some(session) = self.sessions.get(place.session) else { continue };
            let Some(replica) = session.replicas().get(place.replica) else { continue };
            if let Some(slot) = replica.port().slot(place.slot) {
                // Sockets of a family ring the doorbell on which all of it sleeps.
                slot.set_bell(if session.shared { 0 } else { bell });
            }
        }
    }
}

/// Returns the bits if they hold, else none.
pub(super) fn when(holds: bool, ready: Ready) -> Ready {
    if holds { ready } else { Ready::empty() }
}

//! How objects go: close(2), shutdown(2) of listeners, and slots that others may still hold.

use atoll_base::{Duration, Endpoint, SlotId};
use atoll_ipc::command::{CloseMode, Protocol};
use atoll_ipc::slot::SlotState;
use atoll_ipc::{Command, Ready};

use super::Client;
use crate::listener::{Listener, Offer};
use crate::{Errno, Failure};

use super::object::{Body, Kind, Lasting, Object, Place, any};
use super::platform::Platform;
use super::session::{NOBODY, Session};

/// The time for which a socket that was passed on is held for its receiver.
const PASSING_MAX: Duration = Duration::from_secs(10);
/// The library word of a slot in which a receiver notes that it has the socket, and a sender that has closed
/// it before, with its number in the session, that the receiver is to end its hold.
const RECEIVED_WORD: usize = 1;
const RECEIVED: u64 = 1 << 63;
const LEFT: u64 = 1 << 62;
const LEFT_BY: u64 = 63;

/// A connection that close(2) waits for, because `SO_LINGER` says so.
#[derive(Clone, Copy, Debug)]
pub struct Lingering {
    /// The supervisor's number for the session: its place may change when another one ends.
    session: u32,
    replica: usize,
    slot: SlotId,
    generation: u32,
    /// The time for which the call waits.
    pub time: Duration,
}

impl<P: Platform> Client<P> {
    /// Keeps an object from being closed while a call on it may sleep.
    pub fn pin(&mut self, object: u32) {
        if let Some(object) = self.objects.get_mut(object) {
            object.pins += 1;
        }
    }

    /// Ends what [`Client::pin`] began; if the last descriptor is gone, the object is closed now.
    pub fn unpin(&mut self, object: u32) {
        if let Some(entry) = self.objects.get_mut(object) {
            entry.pins = entry.pins.saturating_sub(1);
            if entry.pins == 0 && entry.descriptors == 0 {
                self.close_object(object);
            }
        }
    }

    /// Removes one descriptor of the object. The last one closes the object, unless a call sleeps on it.
    pub fn release(&mut self, object: u32) {
        let Some(entry) = self.objects.get_mut(object) else { return };
        entry.descriptors = entry.descriptors.saturating_sub(1);
        if entry.descriptors == 0 && entry.pins == 0 {
            self.close_object(object);
        }
    }

    pub(super) fn close_object(&mut self, object: u32) {
        if self.listener(object).is_some() {
            // Offers that have come are declined.
            self.drain();
        }
        self.unwatch_all(object);
        self.sleepers.forget(object);
        self.owned.retain(|owned| *owned != object);
        let Some(Object { body: Body::Socket(socket), .. }) = self.objects.remove(object) else { return };
        if !self.inherited.is_empty() {
            self.inherited.retain(|inherited| *inherited != object);
        }
        for place in socket.places() {
            if socket.passed && self.leave_to_receiver(*place) {
                // No object takes its events until then.
                self.set_user(*place, NOBODY);
                self.passed.push((*place, self.now() + PASSING_MAX));
            } else {
                self.close_place(*place);
            }
        }
        if let Kind::Listening(listener) = socket.kind {
            self.listeners.retain(|(_, listening)| *listening != object);
            if socket.lease != 0 {
                self.release_everywhere(socket.lease);
            }
            self.decline_offers(*listener);
        } else if socket.lease != 0 {
            self.release_lease((socket.lease, socket.local.port));
        }
    }

    /// Ends this process's use of a slot; the last holder closes it, by a reset if the slot says so.
    pub fn close_place(&mut self, place: Place) {
        let Some(session) = self.sessions.get_mut(place.session) else { return };
        if session.close_slot(place) {
            let (slot, generation, mode) = (place.slot, place.generation, CloseMode::Graceful);
            session.push(place.replica, &Command::Close { slot, generation, mode });
        }
        self.leave_session(place.session);
    }

    fn leave_session(&mut self, session: usize) {
        if self.sessions.get_mut(session).is_some_and(Session::leave) {
            self.drop_ended_sessions();
        }
    }

    /// Makes a listener a socket without a port: shutdown(2), and connect(2) with AF_UNSPEC. As after
    /// tcp_disconnect, it keeps its address, and getsockname(2) shows the port that it had. Returns the
    /// address if the program had named that port: then the socket is to be bound to it again.
    pub(super) fn stop_listening(&mut self, object: u32) -> Option<Endpoint> {
        self.drain();
        self.listeners.retain(|(_, listening)| *listening != object);
        let socket = self.socket_mut(object)?;
        let kind = if socket.pooled { Kind::Bound } else { Kind::Fresh };
        let Kind::Listening(listener) = core::mem::replace(&mut socket.kind, kind) else { return None };
        let lease = core::mem::take(&mut socket.lease);
        let named = (!socket.lasting.port_found).then_some(socket.local);
        socket.lasting = Lasting::default();
        if lease != 0 {
            self.release_everywhere(lease);
        }
        self.decline_offers(*listener);
        named.filter(|_| lease != 0)
    }

    /// Tells the replicas that nobody here takes the connections on offer: another process of the family gets
    /// them, or they are reset with the listener (inet_csk_listen_stop).
    fn decline_offers(&mut self, listener: Listener) {
        for offer in listener.offers.into_iter().chain(listener.claimed) {
            self.decline(&offer);
        }
    }

    /// Tells a replica that nobody here takes a connection.
    pub(super) fn decline(&mut self, offer: &Offer) {
        let (slot, generation, mode) = (offer.slot, offer.generation, CloseMode::Abort);
        self.push(0, usize::from(offer.replica), &Command::Close { slot, generation, mode });
    }

    fn release_everywhere(&mut self, lease: u64) {
        for replica in 0..self.replicas() {
            self.push(0, replica, &Command::Release { lease });
        }
    }

    /// Gives back a lease of a port that nobody listens on.
    pub(super) fn release_lease(&mut self, (lease, port): (u64, u16)) {
        let authority = usize::from(port) % self.replicas().max(1);
        self.push(0, authority, &Command::Release { lease });
    }

    /// Makes a socket whose connection was refused or has ended one without a connection, as tcp_disconnect
    /// does: it may try again. It keeps a port that the program has named, or that it was bound to since.
    pub fn start_over(&mut self, object: u32) {
        let shown = self.local_of(object).port;
        let Some(socket) = self.socket_mut(object) else { return };
        let lasting = core::mem::take(&mut socket.lasting);
        if lasting.port_found && !lasting.bound_since {
            let lease = core::mem::take(&mut socket.lease);
            let port = socket.local.port;
            if lease != 0 {
                self.release_lease((lease, port));
            }
        }
        let Some(socket) = self.socket_mut(object) else { return };
        // getsockname(2) shows the port still.
        socket.local.port = shown;
        socket.lasting.port_found = lasting.port_found;
        let is_bound = socket.lease != 0 || socket.is_bound_without_port();
        let kind = if is_bound { Kind::Bound } else { Kind::Fresh };
        if let Kind::Stream(place, _) = core::mem::replace(&mut socket.kind, kind) {
            let v6 = socket.v6;
            if self.sessions.get(place.session).is_some_and(Session::is_over)
                && let Some(socket) = self.socket_mut(object)
            {
                // The address was one of a stack that is gone.
                socket.local = any(v6);
            }
            self.close_place(place);
        }
    }

    /// Ends a connection by a reset, after which the socket may open another one: connect(2), `AF_UNSPEC`.
    /// [`Failure::WouldBlock`] means that there was no turn ([`Client::turn`]). Returns what [`Client::shutdown`]
    /// does.
    pub fn disconnect(&mut self, object: u32) -> Result<Option<Endpoint>, Failure> {
        if let Some(socket) = self.socket_mut(object).filter(|socket| socket.protocol == Protocol::Tcp) {
            socket.options.forget_peek_offset();
        }
        match self.socket(object).map(|socket| &socket.kind) {
            Some(Kind::Stream(..)) => {}
            Some(Kind::Listening(_)) => return self.shutdown(object, true, true),
            _ => {
                // tcp_disconnect: what was shut down is not any more.
                if let Some(socket) = self.socket_mut(object) {
                    (socket.lasting.shut_receive, socket.lasting.shut_send) = (false, false);
                }
                return Ok(None);
            }
        }
        let turn = self.turn(object)?;
        // tcp_disconnect: who cuts a connection short hears of it.
        let mut error = None;
        if let Some((stream, local, _)) = self.stream(object) {
            error = stream.take_error(local).or((!stream.is_closed()).then_some(Errno::ECONNRESET));
            stream.set_reset_on_close(true);
        }
        drop(turn);
        self.start_over(object);
        if let Some(socket) = self.socket_mut(object) {
            (socket.remote, socket.connect_reported) = (Endpoint::default(), false);
            socket.standing.error = error;
            socket.standing.is_disconnecting = false;
            if socket.pooled {
                // No kernel socket is behind it, which it could become.
                socket.kind = Kind::Bound;
            }
        }
        self.announce(object, Ready::all());
        Ok(None)
    }

    /// Returns whether the next close of a socket waits: it ends a connection, and `SO_LINGER` has a time.
    /// As on Linux, O_NONBLOCK does not matter (inet_release).
    pub fn lingers(&self, object: u32) -> bool {
        let Some(entry) = self.objects.get(object).filter(|it| it.descriptors == 1 && it.pins == 0) else {
            return false;
        };
        let Body::Socket(socket) = &entry.body else { return false };
        matches!(socket.kind, Kind::Stream(..))
            && socket.options.linger().is_some_and(|seconds| seconds > 0)
            && self.closes_for_all(object)
    }

    /// Prepares a connection for a close that waits; the caller closes it next. `None` means that there is
    /// nothing to wait for, and [`Failure::WouldBlock`] that there was no turn ([`Client::turn`]).
    pub fn start_lingering(&self, object: u32) -> Result<Option<Lingering>, Failure> {
        if !self.lingers(object) {
            return Ok(None);
        }
        let seconds = self.socket(object).and_then(|socket| socket.options.linger()).unwrap_or(0);
        let _turn = self.turn(object)?;
        let Some(place) = self.socket(object).and_then(|socket| socket.places().first().copied()) else {
            return Ok(None);
        };
        let (stream, session) = (self.stream_at(place), self.sessions.get(place.session));
        let (Some(stream), Some(session)) = (stream, session) else { return Ok(None) };
        stream.set_lingers();
        let Place { replica, slot, generation, .. } = place;
        let time = Duration::from_secs(seconds.into());
        Ok(Some(Lingering { session: session.id, replica, slot, generation, time }))
    }

    /// Returns whether the peer has not acknowledged everything yet, FIN included, of a connection that was
    /// closed after [`Client::start_lingering`], and has not ended otherwise.
    pub fn is_lingering(&self, one: &Lingering) -> bool {
        let session = self.sessions.iter().find(|session| session.id == one.session && !session.is_over());
        let replica = session.and_then(|session| session.replicas().get(one.replica));
        replica.and_then(|replica| replica.port().slot(one.slot)).is_some_and(|slot| {
            slot.app_generation() == one.generation
                && slot.replica_generation() == one.generation
                && slot.state() != SlotState::Free
        })
    }

    /// Returns whether the connection of a socket ends when this process closes it: no other process has it,
    /// and none is about to receive it.
    pub fn closes_for_all(&self, object: u32) -> bool {
        let Some(socket) = self.socket(object) else { return true };
        socket.places().iter().all(|place| {
            let member = self.sessions.get(place.session).map_or(0, |session| session.member);
            let holders = self.slot_of(*place).map_or(0, |slot| slot.holders());
            holders & !(1 << (member & 63)) == 0 && (!socket.passed || self.was_received(*place))
        })
    }

    // ---- sockets that are passed over a unix socket ----

    /// Prepares a socket for being sent to another process. This process holds it, even after closing it,
    /// until the receiver has it. The session is shared from now on.
    pub(super) fn before_passing(&mut self, object: u32) -> Option<()> {
        let place = *self.socket(object)?.places().first()?;
        self.share(place.session)?;
        let socket = self.socket_mut(object)?;
        socket.passed = true;
        for place in socket.places().to_vec() {
            if let Some(slot) = self.slot_of(place) {
                slot.set_bell(0);
                slot.set_library_word(RECEIVED_WORD, 0);
            }
        }
        Some(())
    }

    /// Makes this process a holder of a received socket's slot, and notes the receipt in the slot. A sender
    /// that has closed it is none any more: it may sleep until long after this process has closed it.
    pub(super) fn receive_passed(&self, place: Place) {
        let member = self.sessions.get(place.session).map(|session| session.member);
        if let (Some(slot), Some(member)) = (self.slot_of(place), member) {
            slot.add_holder(member);
            let before = slot.add_to_library_word(RECEIVED_WORD, RECEIVED);
            let left_by = (before & LEFT_BY) as u8;
            if before & (LEFT | RECEIVED) == LEFT && left_by != member {
                slot.remove_holder(left_by);
            }
        }
    }

    /// Returns whether the receiver of a socket has got it.
    fn was_received(&self, place: Place) -> bool {
        self.slot_of(place).is_none_or(|slot| slot.library_word(RECEIVED_WORD) & RECEIVED != 0)
    }

    /// Leaves the hold of a socket that was sent, and is closed now, to its receiver. Returns whether that
    /// has not got it yet.
    fn leave_to_receiver(&self, place: Place) -> bool {
        let Some(session) = self.sessions.get(place.session) else { return false };
        // Of several senders one leaves its hold, and the others let go of theirs when they are awake.
        let turn = session.replicas().get(place.replica).and_then(|replica| replica.turn(session.shared));
        let Some(slot) = self.slot_of(place) else { return false };
        let before = match turn {
            Some(_turn) if slot.library_word(RECEIVED_WORD) == 0 => {
                slot.add_to_library_word(RECEIVED_WORD, LEFT | u64::from(session.member) & LEFT_BY)
            }
            _ => slot.library_word(RECEIVED_WORD),
        };
        before & RECEIVED == 0
    }

    pub(super) fn let_go_of_passed(&mut self) {
        let now = self.now();
        for (place, until) in core::mem::take(&mut self.passed) {
            if !self.holds(place) {
                self.leave_session(place.session);
            } else if self.was_received(place) || now >= until {
                self.close_place(place);
            } else {
                self.passed.push((place, until));
            }
        }
    }

    /// Returns whether this process is a holder of a slot still, which may have gone to another connection.
    fn holds(&self, place: Place) -> bool {
        let member = self.sessions.get(place.session).map_or(0, |session| session.member);
        self.slot_of(place).is_some_and(|slot| {
            slot.app_generation() == place.generation && slot.holders() & 1 << (member & 63) != 0
        })
    }
}

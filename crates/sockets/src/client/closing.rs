//! How objects go: close(2), shutdown(2) of listeners, and slots that others may still hold.

use atoll_base::{Duration, Endpoint};
use atoll_ipc::command::CloseMode;
use atoll_ipc::{Command, Ready};

use super::Client;
use crate::{Errno, Failure};

use super::object::{Body, Kind, Object, Place, Socket, any};
use super::platform::Platform;
use super::session::{NOBODY, Session};

/// The time for which a socket that was passed on is held for its receiver.
const PASSING_MAX: Duration = Duration::from_secs(10);
/// The library word of a slot in which a receiver notes that it has the socket.
const RECEIVED_WORD: usize = 1;
const RECEIVED: u64 = 1 << 63;

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
        self.unwatch_all(object);
        self.sleepers.forget(object);
        self.owned.retain(|owned| *owned != object);
        let Some(Object { body: Body::Socket(socket), .. }) = self.objects.remove(object) else { return };
        if !self.inherited.is_empty() {
            self.inherited.retain(|inherited| *inherited != object);
        }
        for place in socket.places() {
            if socket.passed && !self.was_received(*place) {
                // No object takes its events until then.
                self.set_user(*place, NOBODY);
                self.passed.push((*place, self.now() + PASSING_MAX));
            } else {
                self.close_place(*place);
            }
        }
        if let Kind::Listening(_) = socket.kind {
            self.listeners.retain(|(_, listening)| *listening != object);
            if socket.lease != 0 {
                self.release_everywhere(socket.lease);
            }
        } else if socket.lease != 0 {
            self.release_lease(&socket);
        }
    }

    /// Ends this process's use of a slot; the last holder closes it, by a reset if the slot says so.
    pub fn close_place(&mut self, place: Place) {
        let Some(session) = self.sessions.get_mut(place.session) else { return };
        if session.close_slot(place) {
            let (slot, generation, mode) = (place.slot, place.generation, CloseMode::Graceful);
            session.push(place.replica, &Command::Close { slot, generation, mode });
        }
        if self.sessions.get_mut(place.session).is_some_and(Session::leave) {
            self.drop_ended_sessions();
        }
    }

    /// Implements shutdown(2) of a listener: its port is free again, and accept fails.
    pub fn stop_listening(&mut self, object: u32) {
        self.listeners.retain(|(_, listening)| *listening != object);
        if let Some(socket) = self.socket_mut(object) {
            let lease = core::mem::take(&mut socket.lease);
            self.release_everywhere(lease);
        }
    }

    fn release_everywhere(&mut self, lease: u64) {
        for replica in 0..self.replicas() {
            self.push(0, replica, &Command::Release { lease });
        }
    }

    fn release_lease(&mut self, socket: &Socket) {
        let authority = usize::from(socket.local.port) % self.replicas().max(1);
        self.push(0, authority, &Command::Release { lease: socket.lease });
    }

    /// Resets a socket whose connection was refused: as on Linux, it may try again.
    pub fn start_over(&mut self, object: u32) {
        let Some(socket) = self.socket_mut(object) else { return };
        let kind = if socket.lease == 0 { Kind::Fresh } else { Kind::Bound };
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
    /// [`Failure::WouldBlock`] means that there was no turn ([`Client::turn`]).
    pub fn disconnect(&mut self, object: u32) -> Result<(), Failure> {
        match self.socket(object).map(|socket| &socket.kind) {
            Some(Kind::Stream(..)) => {}
            // inet_csk_listen_stop: the port stays.
            Some(Kind::Listening(_)) => return self.shutdown(object, true, true),
            _ => {
                // tcp_disconnect: what was shut down is not any more.
                if let Some(socket) = self.socket_mut(object) {
                    socket.shut_early = false;
                }
                return Ok(());
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
            if socket.lease == 0 {
                socket.local = Endpoint::default();
            }
            if socket.pooled {
                // No kernel socket is behind it, which it could become.
                socket.kind = Kind::Bound;
            }
        }
        self.announce(object, Ready::all());
        Ok(())
    }

    /// Returns whether the connection of a socket ends when this process closes it: no other process has it,
    /// and none is about to receive it. One that a process has received from another counts as its alone.
    pub fn closes_for_all(&self, object: u32) -> bool {
        let Some(socket) = self.socket(object) else { return true };
        socket.places().iter().all(|place| {
            let member = self.sessions.get(place.session).map_or(0, |session| session.member);
            let holders = self.slot_of(*place).map_or(0, |slot| slot.holders());
            let is_alone = holders & !(1 << (member & 63)) == 0;
            // One that has sent a connection, and sleeps, holds it although it has closed it.
            if self.was_received(*place) { is_alone || !socket.passed } else { is_alone && !socket.passed }
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

    /// Makes this process a holder of a received socket's slot, and notes the receipt in the slot.
    pub(super) fn receive_passed(&self, place: Place) {
        let member = self.sessions.get(place.session).map(|session| session.member);
        if let (Some(slot), Some(member)) = (self.slot_of(place), member) {
            slot.add_holder(member);
            slot.set_library_word(RECEIVED_WORD, RECEIVED);
        }
    }

    /// Returns whether the receiver of a socket has got it.
    fn was_received(&self, place: Place) -> bool {
        self.slot_of(place).is_none_or(|slot| slot.library_word(RECEIVED_WORD) & RECEIVED != 0)
    }

    pub(super) fn let_go_of_passed(&mut self) {
        let now = self.now();
        for (place, until) in core::mem::take(&mut self.passed) {
            if self.was_received(place) || now >= until {
                self.close_place(place);
            } else {
                self.passed.push((place, until));
            }
        }
    }
}

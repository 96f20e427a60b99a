//! The state that is kept of one connection beside its TCB.

use alloc::boxed::Box;
use alloc::vec::Vec;

use atoll_base::Instant;
use atoll_connmgr::ListenerId;
use atoll_ipc::{Cause, Device};
use atoll_tcp::Connection;
use bitflags::bitflags;

use crate::keep::Keep;
use crate::names::Name;
use crate::next_hop::NextHop;
use crate::rings::Rings;
use crate::session::Place;
use crate::view::View;

// structure: Entry: a field of one octet takes what was padding here; in a struct of its own it would add some
/// One connection.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) connection: Connection,
    pub(crate) name: Name,
    pub(crate) stage: Stage,
    /// The place of the slot, while there is one.
    pub(crate) place: Option<Place>,
    /// The rings of the receive buffer, which this server allocates.
    pub(crate) receive: Rings,
    /// The rings of the send buffer, as last read from the slot.
    pub(crate) send: Rings,
    /// The text that was received while there is no slot. It is boxed because nearly no connection has any.
    #[allow(clippy::box_collection)]
    pub(crate) parked: Option<Box<Vec<u8>>>,
    /// When the present stage ends by itself (claim time-out, TCP_DEFER_ACCEPT), or a drained buffer is
    /// searched for. [`Instant::FAR_FUTURE`] means never.
    pub(crate) deadline: Instant,
    /// When the timer wheel will call; it is moved lazily.
    pub(crate) armed: Instant,
    /// The contents of the slot, and the next event for the application.
    pub(crate) view: View,
    /// The start of the present measurement of the receive buffer's growth.
    pub(crate) tuned_at: u64,
    pub(crate) next_hop: NextHop,
    pub(crate) send_limit: u32,
    /// TCP_NOTSENT_LOWAT: the octets that may wait to be sent for the first time; 0 means any number.
    pub(crate) unsent_low: u32,
    pub(crate) receive_capacity: u32,
    /// When text in order arrived last, or when the connection was established or adopted: a
    /// [tick](text_tick).
    pub(crate) text_at: u32,
    pub(crate) keep: Keep,
    pub(crate) flags: Flags,
    /// Why the connection has failed.
    pub(crate) cause: Cause,
    /// The device that the socket is bound to.
    pub(crate) device: Device,
    /// The least TTL or hop limit of segments that are taken (`IP_MINTTL`, `IPV6_MINHOPCOUNT`).
    pub(crate) hops_min: u8,
    /// The contents of the record in the ledger, in short; 0 if there is none.
    pub(crate) recorded: u8,
    /// The [tick](progress_tick) in which IP last learned that packets of the peer arrive.
    pub(crate) progress_tick: u8,
}

/// Returns the number of the present quarter of a second, modulo a minute: the interval at which IP learns of
/// a connection's progress.
pub(crate) const fn progress_tick(now: Instant) -> u8 {
    (now.as_nanos() >> 28) as u8
}

/// Returns a moment in units of 2^20 ns, modulo 2^32, which is enough for seven weeks.
#[inline]
pub(crate) const fn text_tick(now: Instant) -> u32 {
    (now.as_nanos() >> 20) as u32
}

/// The stage of a connection, which says whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// A peer's connection in the handshake. `defer` is the time in seconds to wait for text afterwards.
    Embryonic { listener: ListenerId, defer: u16 },
    /// The connection is established, and waits for text (TCP_DEFER_ACCEPT).
    Deferred { listener: ListenerId },
    /// The connection is established, and in the accept queue.
    Waiting { listener: ListenerId },
    /// The connection is offered to the acceptor `lease` of the session in which it has a slot.
    Offered { listener: ListenerId, lease: u64, at: Stamp },
    /// The connection belongs to an application.
    Open(Service),
    /// The connection is over, but the application has not closed it yet.
    Ended(Service),
    /// The application has closed the connection. It has a slot as long as text in the arena may have to be
    /// sent again.
    Closing,
}

/// The acceptor whose service of the connection is measured, and since when (P5): the acceptor `lease` of the
/// session in which the connection has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Service {
    /// The lease of the acceptor; 0 if the service is not measured.
    pub(crate) lease: u64,
    pub(crate) offered_at: Instant,
}

impl Service {
    /// The connection was not offered, or there was only one acceptor.
    pub(crate) const UNMEASURED: Service = Service { lease: 0, offered_at: Instant::ZERO };
}

/// A moment in units of 1024 ns, modulo 2^32, which is enough for an hour and leaves [`Stage`] at 24 octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(u32);

impl Stamp {
    pub(crate) const fn new(now: Instant) -> Stamp {
        Stamp((now.as_nanos() >> 10) as u32)
    }

    /// Returns the moment, which was less than an hour before `now`.
    pub(crate) const fn instant(self, now: Instant) -> Instant {
        let ago = Stamp::new(now).0.wrapping_sub(self.0);
        Instant::from_nanos(now.as_nanos().saturating_sub((ago as u64) << 10))
    }
}

const _: () = assert!(size_of::<Stage>() == 24);

bitflags! {
    /// What is to be done for a connection, and what is known of it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Flags: u16 {
        /// The connection is in the list of connections to flush.
        const DIRTY = 1;
        /// The connection is in the list of connections that wait for a neighbour.
        const UNRESOLVED = 2;
        /// The application may be waiting for room in the send buffer.
        const WANTS_ROOM = 4;
        /// CONNECTION-AVAILABLE is to be sent.
        const OFFER = 8;
        /// The receive extents are to be published.
        const EXTENTS = 16;
        /// Flags, error or state are to be published.
        const STATE = 32;
        /// The application has set the size of its send buffer.
        const FIXED_SEND = 64;
        /// The application has set the size of its receive buffer.
        const FIXED_RECEIVE = 128;
        /// The connection uses the internal link.
        const INTERNAL = 256;
        /// The send limit is to be published.
        const LIMIT = 512;
        /// The application has the connection, but the handshake is not complete.
        const FAST_OPEN = 2048;
        /// The record in the ledger is to be written anew.
        const RECORD = 4096;
        /// The mark of urgent octets is to be published.
        const MARK = 1024;
        /// The connection waits for its session's share of a later flush.
        const LATER = 8192;
        /// A process waits in close(2) until the FIN is acknowledged (SO_LINGER).
        const LINGERS = 16384;
        /// The SYN waits for options that the application has set before connect(2).
        const HELD = 32768;
    }
}

impl Flags {
    /// Clears `flags`, and returns whether any was set.
    #[inline]
    pub(crate) fn take(&mut self, flags: Flags) -> bool {
        let had = self.intersects(flags);
        self.remove(flags);
        had
    }
}

impl Stage {
    /// Returns whether an application has the connection, and it is not over.
    pub(crate) const fn is_open(self) -> bool {
        matches!(self, Stage::Open(_))
    }

    /// Returns whether the connection is over, and the application has not closed it yet.
    pub(crate) const fn is_ended(self) -> bool {
        matches!(self, Stage::Ended(_))
    }

    /// Returns the listener of a connection that no application has yet.
    pub(crate) const fn listener(self) -> Option<ListenerId> {
        match self {
            Stage::Embryonic { listener, .. }
            | Stage::Deferred { listener }
            | Stage::Waiting { listener }
            | Stage::Offered { listener, .. } => Some(listener),
            _ => None,
        }
    }
}

impl Entry {
    pub(crate) fn new(connection: Connection, name: Name, stage: Stage) -> Entry {
        Entry {
            connection,
            name,
            stage,
            place: None,
            receive: Rings::NONE,
            send: Rings::NONE,
            parked: None,
            deadline: Instant::FAR_FUTURE,
            armed: Instant::FAR_FUTURE,
            view: View::new(),
            tuned_at: 0,
            next_hop: NextHop::new(),
            send_limit: 0,
            unsent_low: 0,
            receive_capacity: 0,
            text_at: 0,
            keep: Keep::default(),
            flags: Flags::default(),
            cause: Cause::None,
            device: Device::None,
            hops_min: 0,
            recorded: 0,
            progress_tick: 0,
        }
    }

    /// Binds the socket to a device, or to none. The next segment asks for its way again.
    pub(crate) fn set_device(&mut self, device: Device) {
        self.device = device;
        self.next_hop.forget();
    }

    /// Returns when the timer wheel has to call for this connection.
    #[inline]
    pub(crate) fn next_timeout(&self) -> Instant {
        self.connection.next_timeout().map_or(self.deadline, |due| due.min(self.deadline))
    }

    /// Returns when the timer is to be armed, if it is to fire earlier than it would. Timers are moved
    /// lazily: one that fires too early is armed again.
    #[inline]
    pub(crate) fn move_timer(&mut self) -> Option<Instant> {
        let due = self.next_timeout();
        let is_earlier = due < self.armed;
        if is_earlier {
            self.armed = due;
        }
        is_earlier.then_some(due)
    }

    /// Returns the octets of text that wait for a slot.
    pub(crate) fn parked_len(&self) -> usize {
        self.parked.as_ref().map_or(0, |text| text.len())
    }
}

/// An idle connection may take 1 KiB in all, besides its record in the ledger: slot 256, timer 24 (twice that
/// while the table of timers grows), flow table 10 at half load, occupants of the slots 16, list of free and
/// dirty connections 8.
const _: () = assert!(size_of::<Option<Entry>>() + 256 + 48 + 10 + 16 + 8 <= 1024);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_the_moment_to_a_microsecond_even_when_the_count_begins_anew() {
        let lap = 1u64 << 42;
        for (then, now) in
            [(5_000, 9_000), (lap - 1, lap + 1_000_000), (lap * 3 + 77, lap * 3 + 3_600_000_000_000)]
        {
            let (then, now) = (Instant::from_nanos(then), Instant::from_nanos(now));
            let found = Stamp::new(then).instant(now);
            assert!(found.as_nanos().abs_diff(then.as_nanos()) <= 1024, "{then:?} {found:?}");
        }
    }
}

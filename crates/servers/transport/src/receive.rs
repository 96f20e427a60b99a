//! Stores received text in the session's arena at its stream offset, in whatever order it arrives.

use atoll_base::Instant;
use atoll_ipc::Memory;

use crate::entry::{Entry, Flags};
use crate::session::Session;

/// The octets of text that are kept for a connection without acceptor: a request usually fits.
pub(crate) const PARKED_MAX: usize = 4096;
/// The largest part of the receive area that a window grows to.
const AREA_SHARE: usize = 16;
/// The factor by which a receive buffer grows at a time. It is that of Linux, which takes twice what arrives
/// in a round trip that doubles.
const GROWTH: u32 = 4;

impl Entry {
    /// Makes room in the arena for `[offset, end)`, and returns the offset up to which there is some.
    #[inline]
    pub(crate) fn reserve<M: Memory>(
        &mut self,
        now: Instant,
        session: &Session<M>,
        offset: u64,
        end: u64,
    ) -> u64 {
        let head = self.connection.receive_head();
        if let Some(current) = self.receive.current()
            && offset >= current.base
            && end <= current.base.max(head) + current.size() as u64
        {
            return end;
        }
        self.reserve_more(now, session, end)
    }

    /// Allocates more rings. As far as is known they are full, so this reads first what the application has
    /// read.
    fn reserve_more<M: Memory>(&mut self, now: Instant, session: &Session<M>, end: u64) -> u64 {
        let nxt = self.connection.receive_nxt();
        let published = self.view.tail();
        let head = self
            .place
            .filter(|_| self.stage.is_open())
            .and_then(|place| session.slot(place.slot))
            // A head beyond what was published is false, which the next kick will punish.
            .map_or(0, |slot| slot.receive_head())
            .min(published)
            .max(self.connection.receive_head());
        self.connection.handle_read_head(now, head);
        let high = self.connection.receive_max().max(nxt);
        let size_max = (self.receive_capacity as usize).next_power_of_two();
        self.flags.insert(Flags::EXTENTS);
        let blocks = session.memory();
        self.receive.release(blocks, head, high);
        // The first ring is as large as what there is: a request needs no more. The second holds all that the
        // window promises, because there is no third before the first is drained.
        let end_wanted = match self.receive.current() {
            None => end,
            Some(current) if end <= current.base.max(head) + current.size() as u64 => return end,
            Some(_) => end.max(high + u64::from(self.receive_capacity)),
        };
        let mut room = self.receive.reserve(blocks, head, high, end_wanted, size_max);
        if room < end && end < end_wanted {
            // The area is too full for that; a smaller ring is better than none.
            let smaller = self.receive.current().map_or(0, |current| current.size() * 4).min(size_max);
            room = self.receive.reserve(blocks, head, high, end, smaller);
        }
        room.min(end)
    }

    /// Gives drained rings back. Returns whether a ring is still held.
    pub(crate) fn release_drained<M: Memory>(&mut self, session: &Session<M>, head: u64) -> bool {
        let high = self.connection.receive_max().max(self.connection.receive_nxt());
        if self.receive.release(session.memory(), head, high) {
            self.flags.insert(Flags::EXTENTS);
        }
        self.receive.current().is_some()
    }
}

impl Entry {
    /// Adapts the buffer to what the application has read: gives a drained ring back, and lets the window
    /// grow, but not beyond `capacity_max` octets. Call when the position up to which it has read is known.
    pub(crate) fn follow_reader<M: Memory>(&mut self, session: &Session<M>, capacity_max: u32) {
        let head = self.connection.receive_head();
        self.forget_passed_marks(head);
        // A ring that was drained is kept for the next request; the sweep finds it if there is none.
        if self.receive.old().is_some() {
            self.release_drained(session, head);
        }
        if !session.pressure.receive {
            self.tune(capacity_max, session.layout.receive_bytes);
        }
    }

    /// Lets the receive buffer grow while the application keeps up: after each half of a buffer received, as
    /// soon as it has read most of what there is. A sender in slow start doubles its flight every round trip,
    /// and the window has to be ahead of it. `area` is the size of the receive area in octets, of which one
    /// connection must not claim too much.
    fn tune(&mut self, capacity_max: u32, area: usize) {
        let capacity_max = capacity_max.min(u32::try_from(area / AREA_SHARE).unwrap_or(u32::MAX));
        let nxt = self.connection.receive_nxt();
        let capacity = u64::from(self.receive_capacity);
        let fixed = self.flags.intersects(Flags::FIXED_RECEIVE);
        // While two rings are in use there is no room for what a larger window would promise.
        if nxt - self.tuned_at < capacity / 2 || fixed || self.receive.old().is_some() {
            return;
        }
        // Over a long path a whole window comes as one burst, of which little may have been read when its end
        // arrives. That says nothing about the reader: the next look is when more has been read, not after
        // another buffer.
        if (nxt - self.connection.receive_head()) * 2 > capacity {
            return;
        }
        self.tuned_at = nxt;
        if self.receive_capacity < capacity_max {
            self.receive_capacity = self.receive_capacity.saturating_mul(GROWTH).min(capacity_max);
            self.connection.set_receive_capacity(self.receive_capacity);
            self.flags.insert(Flags::RECORD);
        }
    }
}

//! Limits how much may wait to be sent for the first time: `TCP_NOTSENT_LOWAT`, as Linux's
//! `tcp_stream_memory_free`.
//!
//! The slot says how much the application may keep in its send buffer in all, so the limit moves with what is
//! in flight. poll(2) reports room when less than half of the limit waits; two flags of the slot carry that.

use atoll_ipc::Ready;
use atoll_ipc::slot::{REPLICA_UNSENT, REPLICA_UNSENT_FULL};

use crate::entry::{Entry, Flags};

impl Entry {
    /// Sets `TCP_NOTSENT_LOWAT` in octets; 0 means none.
    pub(crate) fn set_unsent_low(&mut self, low: u32) {
        self.unsent_low = low;
        self.flags.insert(Flags::LIMIT);
        if low == 0 && self.view.flags() & REPLICA_UNSENT != 0 {
            self.view.replace_flags(self.view.flags() & !(REPLICA_UNSENT | REPLICA_UNSENT_FULL));
            self.flags.insert(Flags::STATE);
            self.view.tell(Ready::OUT);
        }
    }

    /// Returns how many octets the application may keep in its send buffer now.
    pub(crate) fn send_limit_now(&self) -> u32 {
        if self.unsent_low == 0 {
            return self.send_limit;
        }
        let flight = self.connection.send_nxt().saturating_sub(self.connection.send_una());
        let all = flight + u64::from(self.unsent_low.max(UNSENT_MIN));
        u32::try_from(all).unwrap_or(u32::MAX).min(self.send_limit)
    }

    /// Returns whether so much text waits that poll(2) reports no room.
    pub(crate) fn is_unsent_full(&self) -> bool {
        let unsent = self.connection.send_tail().saturating_sub(self.connection.send_nxt());
        self.unsent_low != 0 && unsent * 2 >= u64::from(self.unsent_low)
    }

    /// Updates limit and flags after something was written, sent or acknowledged. `published` is the limit
    /// that the slot has.
    pub(crate) fn limit_unsent(&mut self, published: u32) {
        if self.send_limit_now() != published {
            self.flags.insert(Flags::LIMIT);
        }
        let is_full = self.is_unsent_full();
        let full = if is_full { REPLICA_UNSENT_FULL } else { 0 };
        let flags = self.view.flags() & !REPLICA_UNSENT_FULL | REPLICA_UNSENT | full;
        if flags != self.view.flags() {
            if self.view.flags() & REPLICA_UNSENT_FULL != 0 {
                self.flags.insert(Flags::WANTS_ROOM);
            }
            self.view.replace_flags(flags);
            self.flags.insert(Flags::STATE);
        }
        let queued = self.connection.send_tail() - self.connection.send_una();
        if self.flags.intersects(Flags::WANTS_ROOM) && !is_full && queued * 3 < u64::from(self.send_limit) * 2
        {
            self.flags.remove(Flags::WANTS_ROOM);
            self.view.tell(Ready::OUT);
        }
    }
}

/// The octets that may wait whatever the limit is. Linux takes a whole buffer of up to 64 KiB where one octet
/// fits, and a program that writes octets one by one would make no progress.
const UNSENT_MIN: u32 = 16 << 10;

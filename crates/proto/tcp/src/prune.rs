//! How much memory a connection holds, and what it gives up when memory is short. RFC 2018 §8 allows to throw
//! away text out of order, although it was reported.

use crate::connection::Connection;
use crate::rcv::NO_FIN;

impl Connection {
    /// Returns how many octets of heap the connection holds beside itself: records of what is in flight, and
    /// of what is out of order.
    pub fn heap_bytes(&self) -> usize {
        let reassembly = self
            .rcv
            .reassembly
            .as_ref()
            .map_or(0, |reassembly| size_of_val(&**reassembly) + reassembly.ranges.heap_bytes());
        self.recovery.flight.as_ref().map_or(0, |flight| flight.heap_bytes()) + reassembly
    }

    /// Forgets all text out of order, and a FIN behind it, as if they had never come: the peer sends them
    /// again. Text in order stays. Returns the octets forgotten.
    pub fn drop_out_of_order(&mut self) -> u64 {
        let Some(reassembly) = self.rcv.reassembly.take() else { return 0 };
        if self.rcv.fin > self.rcv.nxt {
            self.rcv.fin = NO_FIN;
        }
        // The duplicate that is to be reported may lie in what is forgotten.
        self.rcv.duplicate.1 = 0;
        u64::try_from(reassembly.ranges.total()).unwrap_or(0)
    }
}

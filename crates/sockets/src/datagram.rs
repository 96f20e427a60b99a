//! Receive and send on a datagram socket: udp(7), recv(2), send(2).
//!
//! A datagram socket has one slot in each replica's arena. Datagrams leave through one of the slots, and
//! arrive in any.

use atoll_base::{Addr, Endpoint, SlotId};
use atoll_ipc::buffer::Extents;
use atoll_ipc::datagram::{
    DATAGRAM_MAX, DATAGRAM_MAX_V4, Flags, RECORD_LEN, Record, decode, encode, padded_len,
};
use atoll_ipc::slot::SlotState;
use atoll_ipc::{Cause, Memory};

use crate::errno::{Errno, Failure};
use crate::port::Port;

/// The library word of a slot that holds the error that was reported last.
const TOLD: usize = 2;

/// A datagram at the head of a receive buffer.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// The sender of the datagram.
    pub peer: Endpoint,
    /// The length of the payload in octets.
    pub len: usize,
    head: u64,
    extents: Extents,
}

/// A view of one slot of a datagram socket, for the length of one call.
#[derive(Debug)]
pub struct Datagrams<'a, M: Memory> {
    port: &'a Port<M>,
    slot: SlotId,
    generation: u32,
}

/// Returns the largest payload in octets of a datagram to this address.
pub const fn len_max(to: Addr) -> usize {
    // Cannot truncate: both are below 2^16.
    (if to.is_v4() { DATAGRAM_MAX_V4 } else { DATAGRAM_MAX }) as usize
}

impl<'a, M: Memory> Datagrams<'a, M> {
    /// Creates a view of the socket's slot on one replica.
    pub fn new(port: &'a Port<M>, slot: SlotId, generation: u32) -> Datagrams<'a, M> {
        Datagrams { port, slot, generation }
    }

    /// Returns whether the replica has opened the socket.
    pub fn is_open(&self) -> bool {
        self.port.slot(self.slot).is_some_and(|slot| {
            slot.replica_generation() == self.generation && slot.state() == SlotState::Open
        })
    }

    /// Returns why the replica has not opened the socket; `None` if it has, or has not answered yet.
    pub fn refusal(&self) -> Option<Errno> {
        let slot = self.port.slot(self.slot)?;
        let is_refused = slot.replica_generation() == self.generation && slot.state() == SlotState::Closing;
        if is_refused { Errno::of(slot.error()) } else { None }
    }

    /// Returns whether a datagram waits, without reading its record.
    pub fn has_waiting(&self) -> bool {
        let Some(slot) = self.port.slot(self.slot) else { return false };
        slot.replica_generation() == self.generation && slot.receive_tail() != slot.receive_head()
    }

    /// Returns the datagram at the head; `None` when none waits. A buffer with invalid content is skipped to
    /// its end: its writer is broken, and the datagrams are lost, as datagrams may be.
    pub fn waiting(&self) -> Option<Waiting> {
        let slot = self.port.slot(self.slot)?;
        if slot.replica_generation() != self.generation {
            return None;
        }
        let (head, tail) = (slot.receive_head(), slot.receive_tail());
        let available = tail.wrapping_sub(head);
        if available == 0 {
            return None;
        }
        let record = slot.receive_extents(self.port.layout()).and_then(|extents| {
            if available > self.port.layout().receive_bytes as u64 {
                return None;
            }
            let mut bytes = [0; RECORD_LEN];
            let area = self.port.layout().receive_area;
            extents.pieces(head, RECORD_LEN)?.read(self.port.memory(), area, &mut bytes);
            let Record { len, peer, .. } = decode(&bytes, available).ok()?;
            Some(Waiting { peer, len: len as usize, head, extents })
        });
        if record.is_none() {
            slot.set_receive_head(tail);
        }
        record
    }

    /// Copies payload from octet `skip` of the datagram on, as much as fits `out`; returns the number of
    /// octets.
    pub fn copy_out(&self, waiting: &Waiting, skip: usize, out: &mut [u8]) -> usize {
        let n = out.len().min(waiting.len.saturating_sub(skip));
        let at = waiting.head + (RECORD_LEN + skip) as u64;
        match waiting.extents.pieces(at, n) {
            Some(pieces) => pieces.read(self.port.memory(), self.port.layout().receive_area, &mut out[..n]),
            None => out[..n].fill(0),
        }
        n
    }

    /// Removes a datagram that was read from the buffer. Returns whether the replica is to be kicked.
    pub fn consume(&self, waiting: &Waiting) -> bool {
        let Some(slot) = self.port.slot(self.slot) else { return false };
        let to = waiting.head + padded_len(waiting.len as u32);
        slot.set_receive_head(to);
        self.port.memory().fence();
        let mark = slot.read_mark();
        waiting.head < mark && mark <= to
    }

    /// Takes the pending error (from an ICMP message, for example): each is reported once.
    pub fn take_error(&self) -> Option<Errno> {
        let slot = self.port.slot(self.slot)?;
        if !self.has_error() {
            return None;
        }
        let cause = slot.error();
        slot.set_library_word(TOLD, u64::from(cause as u8));
        Errno::of(cause)
    }

    /// Notes that the replica has reported an error: it is pending, even if it equals the last one.
    pub fn error_arrived(&self) {
        if let Some(slot) = self.port.slot(self.slot) {
            slot.set_library_word(TOLD, 0);
        }
    }

    /// Returns whether an error is pending.
    pub fn has_error(&self) -> bool {
        let Some(slot) = self.port.slot(self.slot) else { return false };
        let cause = slot.error();
        slot.replica_generation() == self.generation
            && cause != Cause::None
            && slot.library_word(TOLD) != u64::from(cause as u8)
    }

    /// Returns whether at most half of the send limit is queued, as poll(2) reports it.
    pub fn is_writable(&self) -> bool {
        let Some(slot) = self.port.slot(self.slot) else { return false };
        if slot.replica_generation() != self.generation {
            return true; // Nothing was sent yet.
        }
        let queued = slot.send_tail().wrapping_sub(slot.acknowledged());
        queued.saturating_mul(2) <= u64::from(slot.send_limit())
    }

    /// Appends a datagram to the send buffer. Fails with EMSGSIZE if it is too large, and would block without
    /// room.
    pub fn send<'b>(
        &self,
        peer: Endpoint,
        broadcast: bool,
        len: usize,
        parts: impl Iterator<Item = &'b [u8]>,
    ) -> Result<(), Failure> {
        if len > len_max(peer.addr) {
            return Err(Errno::EMSGSIZE.into());
        }
        // Cannot truncate: it is the length of a datagram.
        let record = Record {
            len: len as u32,
            peer,
            flags: if broadcast { Flags::BROADCAST } else { Flags::empty() },
        };
        let Some(slot) = self.port.slot(self.slot) else { return Err(Errno::EIO.into()) };
        if slot.replica_generation() != self.generation {
            return Err(Failure::WouldBlock);
        }
        let layout = self.port.layout();
        let memory = self.port.memory();
        let tail = slot.send_tail();
        let acknowledged = slot.acknowledged().min(tail);
        let end = tail + padded_len(record.len);
        let limit = u64::from(slot.send_limit()).max(padded_len(DATAGRAM_MAX));
        if end - acknowledged > limit {
            return Err(Failure::WouldBlock);
        }
        let mut extents = slot.send_extents(layout).unwrap_or_default();
        let size_max = (limit as usize).next_power_of_two();
        let room = extents.reserve(&layout.send_pool.state_in(memory), acknowledged, tail, end, size_max);
        slot.set_send_extents(&extents);
        let (Some(head), true) = (extents.pieces(tail, RECORD_LEN), room >= end) else {
            return Err(Failure::WouldBlock);
        };
        head.write(memory, layout.send_area, &encode(&record));
        let mut at = tail + RECORD_LEN as u64;
        let mut left = len;
        for part in parts {
            let part = &part[..part.len().min(left)];
            if let Some(pieces) = extents.pieces(at, part.len()) {
                pieces.write(memory, layout.send_area, part);
            }
            at += part.len() as u64;
            left -= part.len();
        }
        slot.set_send_tail(end);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_ipc::HeapMemory;
    use atoll_ipc::arena::ArenaConfig;

    #[test]
    fn a_datagram_keeps_its_boundaries_and_its_peer() {
        let layout = ArenaConfig { slots: 16, send_log2: 18, receive_log2: 18 }.layout();
        let mut port = Port::new(HeapMemory::new(layout.total), layout);
        let (slot, generation) = port.allocate_slot().expect("free");
        port.slot(slot).expect("in range").replica_reset(generation, SlotState::Open, 65536);
        let peer = Endpoint::at(Addr::from_octets([0x20; 16]), 6);
        let socket = Datagrams::new(&port, slot, generation);
        let parts: [&[u8]; 2] = [b"ab", b"cde"];
        assert_eq!(socket.send(peer, false, 5, parts.into_iter()), Ok(()));
        assert_eq!(socket.send(peer, false, 0, [].into_iter()), Ok(()));
        assert_eq!(
            socket.send(peer, false, len_max(peer.addr) + 1, [].into_iter()),
            Err(Errno::EMSGSIZE.into())
        );

        // The replica plays the send buffer back as a receive buffer.
        let view = port.slot(slot).expect("in range");
        let sent = view.send_extents(port.layout()).expect("valid");
        let len = view.send_tail() as usize;
        let mut bytes = alloc::vec![0; len];
        sent.pieces(0, len).expect("written").read(port.memory(), port.layout().send_area, &mut bytes);
        let extents =
            Extents { current: Some(atoll_ipc::buffer::Extent { base: 0, unit: 0, log2: 12 }), old: None };
        extents.pieces(0, len).expect("fits").write(port.memory(), port.layout().receive_area, &bytes);
        view.set_receive_extents(&extents);
        view.set_receive_tail(len as u64);

        let waiting = socket.waiting().expect("first");
        let mut out = [0; 16];
        assert_eq!((waiting.len, waiting.peer, socket.copy_out(&waiting, 0, &mut out)), (5, peer, 5));
        assert_eq!(&out[..5], b"abcde");
        socket.consume(&waiting);
        let waiting = socket.waiting().expect("second");
        assert_eq!(waiting.len, 0);
        socket.consume(&waiting);
        assert!(socket.waiting().is_none());
    }
}

//! A datagram in a socket buffer is a record: 24 bytes of head, 24 bytes of details if it has some, the
//! payload, and padding to 8 bytes.
//!
//! ```text
//!   0        4      6       8                       24
//!   | len    | port | flags | addr                  | details ? | payload (len bytes) ... | padding |
//! ```
//! All fields are in the byte order of the machine, which both sides share. The process that writes the
//! buffer may be hostile: the head is copied out and decoded, and only the copy is used.

use atoll_base::{Addr, Endpoint};

/// The length of a record's head in bytes.
pub const RECORD_LEN: usize = 24;

/// The length in bytes of what a record with [`Flags::DETAILED`] has between its head and its payload:
/// `atoll_ipc::Details`.
pub const DETAILS_LEN: usize = 24;

/// The alignment of records: they start at multiples of this offset in the stream, in bytes.
pub const RECORD_ALIGN: u64 = 8;

/// The largest payload in bytes, which is that over IPv6: 65535 less the header of UDP.
pub const DATAGRAM_MAX: u32 = 65_527;

/// The largest payload over IPv4 in bytes.
pub const DATAGRAM_MAX_V4: u32 = 65_507;

/// The head of one datagram in a socket buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Bytes of payload, at most [`DATAGRAM_MAX`]. A datagram may be empty.
    pub len: u32,
    /// The other end: the sender in a receive buffer, the receiver in a send buffer.
    pub peer: Endpoint,
    /// Further properties of the datagram.
    pub flags: Flags,
}

/// The flags of a [`Record`]: a set of bits in which every bit is defined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u16);

/// Why a head is not valid. The writer of the buffer is at fault, and loses this socket only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BadRecord {
    /// The payload is longer than any datagram.
    #[error("longer than any datagram")]
    TooLong,
    /// Head, payload and padding are not (yet) in the buffer as a whole.
    #[error("not in the buffer as a whole")]
    Incomplete,
    /// A flag is set that does not exist.
    #[error("has unknown flags")]
    Reserved,
}

/// Encodes the head of `record`. A `len` beyond [`DATAGRAM_MAX`] is a bug of the caller, and makes the reader
/// refuse the record.
pub fn encode(record: &Record) -> [u8; RECORD_LEN] {
    debug_assert!(record.len <= DATAGRAM_MAX);
    let mut bytes = [0; RECORD_LEN];
    let (head, addr) = bytes.split_at_mut(8);
    let [a, b, c, d] = record.len.to_ne_bytes();
    let [e, f] = record.peer.port.to_ne_bytes();
    let [g, h] = record.flags.0.to_ne_bytes();
    head.copy_from_slice(&[a, b, c, d, e, f, g, h]);
    addr.copy_from_slice(&record.peer.addr.octets());
    bytes
}

/// Decodes and validates a head. `available` is the number of bytes in the stream from the head on, head
/// included. If the head is valid, `record.padded_len() <= available`.
pub const fn decode(bytes: &[u8; RECORD_LEN], available: u64) -> Result<Record, BadRecord> {
    let [a, b, c, d, e, f, g, h, addr @ ..] = *bytes;
    let len = u32::from_ne_bytes([a, b, c, d]);
    let peer = Endpoint::at(Addr::from_octets(addr), u16::from_ne_bytes([e, f]));
    let flags = u16::from_ne_bytes([g, h]);
    if len > DATAGRAM_MAX {
        return Err(BadRecord::TooLong);
    }
    if flags & !Flags::ALL.0 != 0 {
        return Err(BadRecord::Reserved);
    }
    let record = Record { len, peer, flags: Flags(flags) };
    if record.padded_len() > available {
        return Err(BadRecord::Incomplete);
    }
    Ok(record)
}

impl Record {
    /// Returns the bytes before the payload: head and details.
    pub const fn payload_at(&self) -> usize {
        RECORD_LEN + if self.flags.contains(Flags::DETAILED) { DETAILS_LEN } else { 0 }
    }

    /// Returns the bytes of the stream that the record takes: head, details, payload and padding.
    pub const fn padded_len(&self) -> u64 {
        (self.payload_at() as u64 + self.len as u64).next_multiple_of(RECORD_ALIGN)
    }
}

/// Returns the bytes of the stream that a record without details and with `len` bytes of payload takes: head,
/// payload and padding.
pub const fn padded_len(len: u32) -> u64 {
    (RECORD_LEN as u64 + len as u64).next_multiple_of(RECORD_ALIGN)
}

impl Flags {
    /// The empty set.
    pub const NONE: Flags = Flags(0);
    /// In a receive buffer, the datagram was sent to a broadcast address. In a send buffer, broadcast is
    /// allowed (`SO_BROADCAST`).
    pub const BROADCAST: Flags = Flags(1);
    /// Details follow the head.
    pub const DETAILED: Flags = Flags(2);
    /// All flags that are defined.
    pub const ALL: Flags = Flags(3);

    /// Returns whether all of `flags` are set.
    pub const fn contains(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Returns the flags as they are written.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Returns the union of these flags and `flags`.
    #[must_use]
    pub const fn with(self, flags: Flags) -> Flags {
        Flags(self.0 | flags.0)
    }
}

const _: () = assert!((RECORD_LEN as u64).is_multiple_of(RECORD_ALIGN));
const _: () = assert!(DATAGRAM_MAX as usize == atoll_wire::udp::PAYLOAD_MAX);

#[cfg(test)]
mod tests;

//! How does a datagram lie in a socket buffer? A record: 24 bytes of head, the payload, padding to 8 bytes.
//!
//! ```text
//!   0        4      6       8                       24
//!   | len    | port | flags | addr                  | payload (len bytes) ... | padding |
//! ```
//! All fields are in the byte order of the machine, which both sides share. Whoever writes the buffer may be
//! hostile: the head is copied out and decoded, and only the copy is used.

use atoll_base::{Addr, Endpoint};

/// Bytes of a record's head.
pub const RECORD_LEN: usize = 24;

/// Records start at multiples of this offset in the stream.
pub const RECORD_ALIGN: u64 = 8;

/// The largest payload, that of IPv6: 65535 bytes less the header of UDP.
pub const DATAGRAM_MAX: u32 = 65_527;

/// The largest over IPv4.
pub const DATAGRAM_MAX_V4: u32 = 65_507;

/// The head of one datagram in a socket buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Bytes of payload, at most [`DATAGRAM_MAX`]. Zero is a datagram too.
    pub len: u32,
    /// The other end: the sender in a receive buffer, the receiver in a send buffer.
    pub peer: Endpoint,
    /// What else is to be known.
    pub flags: Flags,
}

/// Flags of a [`Record`]; a set of bits of which none is undefined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u16);

/// Why a head is none. The writer of the buffer is at fault, and loses this socket only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BadRecord {
    /// The payload is longer than any datagram.
    TooLong,
    /// Head, payload and padding are not (yet) in the buffer as a whole.
    Incomplete,
    /// A flag that does not exist.
    Reserved,
}

/// The head of `record`. `len` beyond [`DATAGRAM_MAX`] is a bug of the caller; the reader will refuse it.
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

/// Validates a head. `available`: bytes of the stream from the head on, head included. On success
/// `padded_len(record.len) <= available`.
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
    if padded_len(len) > available {
        return Err(BadRecord::Incomplete);
    }
    Ok(Record { len, peer, flags: Flags(flags) })
}

/// Bytes of the stream that a record with `len` bytes of payload takes: head, payload and padding.
pub const fn padded_len(len: u32) -> u64 {
    (RECORD_LEN as u64 + len as u64).next_multiple_of(RECORD_ALIGN)
}

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);
    /// Receive: the datagram was sent to a broadcast address. Send: broadcast is allowed (`SO_BROADCAST`).
    pub const BROADCAST: Flags = Flags(1);
    /// Every flag there is.
    pub const ALL: Flags = Flags(1);

    /// Whether all of `flags` are set.
    pub const fn contains(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// These flags and `flags`.
    #[must_use]
    pub const fn with(self, flags: Flags) -> Flags {
        Flags(self.0 | flags.0)
    }
}

impl core::fmt::Display for BadRecord {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            BadRecord::TooLong => "longer than any datagram",
            BadRecord::Incomplete => "not in the buffer as a whole",
            BadRecord::Reserved => "has unknown flags",
        })
    }
}

impl core::error::Error for BadRecord {}

const _: () = assert!((RECORD_LEN as u64).is_multiple_of(RECORD_ALIGN));
const _: () = assert!(DATAGRAM_MAX as usize == atoll_wire::udp::PAYLOAD_MAX);

#[cfg(test)]
mod tests;

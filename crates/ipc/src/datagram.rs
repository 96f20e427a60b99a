//! A datagram in a socket buffer is a record: 24 bytes of head, 32 bytes of details if it has some, the
//! payload, and padding to 8 bytes.
//!
//! The process that writes the buffer may be hostile: the head is copied out and decoded, and only the copy
//! is used.

use atoll_base::{Addr, Endpoint};
use bitflags::bitflags;

use crate::details::{DETAILS_BYTES, TimeOfDay};
use crate::layout::{BadMessage, Field, part, put, record};

record! {
    /// The octets of a head.
    struct Head {
        len: u32,
        port: u16,
        flags: u16,
        addr: Addr,
    }
}

/// The length of a record's head in bytes.
pub const RECORD_LEN: usize = size_of::<<Head as Field>::Octets>();

/// The alignment of records: they start at multiples of this offset in the stream, in bytes.
pub const RECORD_ALIGN: u64 = 8;

/// The largest payload in bytes, which is that over IPv6: 65535 less the header of UDP.
pub const DATAGRAM_MAX: u32 = 65_527;

/// The largest payload of a record in bytes: a whole packet of IPv4, as raw sockets receive it.
pub const RECORD_MAX: u32 = 65_535;

/// The octets of the header of an ICMP echo request, with which the payload of its record begins.
pub const ECHO_HEADER: u32 = 8;

/// The largest payload over IPv4 in bytes.
pub const DATAGRAM_MAX_V4: u32 = 65_507;

/// The head of one datagram in a socket buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Bytes of payload, at most [`RECORD_MAX`]. A datagram may be empty.
    pub len: u32,
    /// The other end: the sender in a receive buffer, the receiver in a send buffer.
    pub peer: Endpoint,
    /// Further properties of the datagram.
    pub flags: Flags,
}

bitflags! {
    /// The flags of a [`Record`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags: u16 {
        /// In a receive buffer, the datagram was sent to a broadcast address. In a send buffer, broadcast is
        /// allowed (`SO_BROADCAST`).
        const BROADCAST = 1;
        /// [`crate::Details`] follow the head.
        const DETAILED = 2;
        /// In a receive buffer, the payload is a [`Fault`] about something that was sent to the peer, and
        /// with [`ErrorWishes::TEXT`] up to [`QUOTED_TEXT_MAX`] octets of that behind it. Only
        /// sockets that have asked for such records ([`crate::SocketOption::Errors`]) get them.
        const ERROR = 4;
    }
}

bitflags! {
    /// The families whose network errors a socket asks for ([`crate::SocketOption::Errors`]).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ErrorWishes: u32 {
        /// Errors about packets of IPv4 (`IP_RECVERR`).
        const V4 = 2;
        /// Errors about packets of IPv6 (`IPV6_RECVERR`).
        const V6 = 4;
        /// The library reads what stands behind a [`Fault`], too.
        const TEXT = 8;
    }
}

impl ErrorWishes {
    /// Returns the wishes that a command expresses. The library of an earlier build says 1 for both families.
    pub const fn from_value(value: u32) -> ErrorWishes {
        if value & 1 != 0 {
            ErrorWishes::V4.union(ErrorWishes::V6)
        } else {
            ErrorWishes::from_bits_truncate(value)
        }
    }
}

record! {
    /// A network error about a packet of a socket: what recvmsg(2) with MSG_ERRQUEUE tells.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Fault {
        /// The host that reports the error.
        pub reporter: Addr,
        /// The MTU of the next link if the packet was too large; 0 otherwise.
        pub info: u32,
        /// The type and the code of the ICMP message, or of the ICMPv6 message if the packet was one of IPv6.
        pub kind: u8,
        /// The code of the message.
        pub code: u8; 2 unused,
        /// The first octets of the packet's transport header, in their order.
        pub quoted: Quotation,
        /// When the message came, in nanoseconds since 1970, if the socket has asked for that
        /// ([`crate::SocketOption::Times`]); otherwise 0.
        pub came: u64,
    }
}

/// The first octets of a transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotation(pub [u8; 8]);

impl Field for Quotation {
    type Octets = [u8; 8];

    fn write(&self) -> [u8; 8] {
        self.0
    }

    fn read(octets: &[u8; 8]) -> Result<Quotation, BadMessage> {
        Ok(Quotation(*octets))
    }
}

/// The most octets that an error quotes of a packet, behind the first ones of its transport header: what fits
/// an error of ICMPv6 (RFC 4443 §2.4 (c)), which is longer than one of ICMP (RFC 1812 §4.3.2.3).
pub const QUOTED_TEXT_MAX: usize = 1280;

/// The length of an encoded [`Fault`] in octets.
pub const FAULT_BYTES: usize = size_of::<<Fault as Field>::Octets>();

impl Fault {
    /// Encodes the fault.
    pub fn encode(&self) -> [u8; FAULT_BYTES] {
        let mut octets = [0; FAULT_BYTES];
        put(&mut octets, 0, &self.write());
        octets
    }

    /// Returns when the message came, if that is known.
    pub fn came(&self) -> Option<TimeOfDay> {
        TimeOfDay::from_nanos(self.came)
    }

    /// Decodes a fault, for which all octets stand for one.
    pub fn decode(octets: &[u8; FAULT_BYTES]) -> Result<Fault, BadMessage> {
        Fault::read(part(octets, 0)?)
    }
}

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

/// Encodes the head of `record`. A `len` beyond [`RECORD_MAX`] is a bug of the caller, and makes the reader
/// refuse the record.
pub fn encode(record: &Record) -> [u8; RECORD_LEN] {
    debug_assert!(record.len <= RECORD_MAX);
    let Endpoint { addr, port } = record.peer;
    let head = Head { len: record.len, port, flags: record.flags.bits(), addr };
    let mut bytes = [0; RECORD_LEN];
    put(&mut bytes, 0, &head.write());
    bytes
}

/// Decodes and validates a head. `available` is the number of bytes in the stream from the head on, head
/// included. If the head is valid, `record.padded_len() <= available`.
pub fn decode(bytes: &[u8; RECORD_LEN], available: u64) -> Result<Record, BadRecord> {
    let head = part(bytes, 0).and_then(Head::read).map_err(|_| BadRecord::Incomplete)?;
    let flags = Flags::from_bits(head.flags).ok_or(BadRecord::Reserved)?;
    if head.len > RECORD_MAX {
        return Err(BadRecord::TooLong);
    }
    let record = Record { len: head.len, peer: Endpoint::at(head.addr, head.port), flags };
    if record.padded_len() > available {
        return Err(BadRecord::Incomplete);
    }
    Ok(record)
}

impl Record {
    /// Returns the bytes before the payload: head and details.
    pub const fn payload_at(&self) -> usize {
        RECORD_LEN + if self.flags.contains(Flags::DETAILED) { DETAILS_BYTES } else { 0 }
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

const _: () = assert!((RECORD_LEN as u64).is_multiple_of(RECORD_ALIGN));

#[cfg(test)]
mod tests;

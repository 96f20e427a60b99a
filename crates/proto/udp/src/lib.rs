//! Datagrams: how they lie in a socket buffer. Headers and checksums are `atoll_wire::udp`; the port table is
//! the transport server's.
//!
//! Storey 2: `no_std`.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod record;

pub use record::{
    BadRecord, DATAGRAM_MAX, DATAGRAM_MAX_V4, Flags, RECORD_ALIGN, RECORD_LEN, Record, decode, encode, padded_len,
};

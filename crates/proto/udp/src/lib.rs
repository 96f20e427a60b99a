//! How datagrams lie in a socket buffer. Headers and checksums are in `atoll_wire::udp`; the transport server
//! has the table of ports.
//!
//! Storey 2: `no_std`.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod record;

pub use record::{
    BadRecord, DATAGRAM_MAX, DATAGRAM_MAX_V4, DETAILS_LEN, Flags, RECORD_ALIGN, RECORD_LEN, Record, decode,
    encode, padded_len,
};

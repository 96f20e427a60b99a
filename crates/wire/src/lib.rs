//! Header formats: plain structs, `parse` and `emit`, one module per protocol. Nothing here keeps state.
//!
//! This crate belongs to storey 1: `no_std`, no allocation. Every module follows one pattern:
//!
//! - `parse(&[u8]) -> Result<(X, header_len), ParseError>` judges hostile bytes once; the value it returns
//!   is always valid.
//! - `emit(&X, &mut [u8]) -> header_len` writes a valid value; it panics only if the buffer is too short,
//!   which is the caller's mistake and never the network's.
//! - `parse(emit(x)) == x`.
//!
//! IPv4 addresses are `u32` in host byte order, IPv6 addresses [`atoll_base::Addr`], ports `u16` in host byte
//! order. Layouts are private `zerocopy` structs.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod arp;
pub mod checksum;
pub mod dhcp;
pub mod ethernet;
pub mod fast_open;
pub mod icmp;
pub mod icmpv6;
pub mod icmpv6_code;
pub mod igmp;
pub mod ipv4;
pub mod ipv6;
pub mod mld;
pub mod nd;
pub mod tcp;
pub mod udp;
pub mod vnet;

pub use ethernet::Mac;

/// The reason why bytes are not what they claim to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ParseError {
    /// There are fewer bytes than the header has, or than a length in the header promises.
    #[error("truncated")]
    Truncated,
    /// A length or offset within the header contradicts itself.
    #[error("inconsistent length")]
    BadLength,
    /// The checksum does not match.
    #[error("bad checksum")]
    BadChecksum,
    /// The version, address family or type is not supported by this module.
    #[error("unsupported")]
    Unsupported,
}

extern crate alloc;

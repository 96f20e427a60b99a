//! ARP (RFC 826), which finds the station that has an IPv4 address on this Ethernet.

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ParseError;
use crate::ethernet::{EtherType, Mac};

/// Bytes of an ARP packet for IPv4 over Ethernet.
pub const PACKET_LEN: usize = 28;

/// The operation of an ARP packet (`ar$op`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// The sender asks: "Who has `target_addr`?"
    Request,
    /// The sender says: "`sender_addr` is at `sender_mac`."
    Reply,
}

/// An ARP packet for IPv4 over Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The operation: request or reply.
    pub operation: Operation,
    /// Hardware address of the sender.
    pub sender_mac: Mac,
    /// IPv4 address of the sender; 0 in a probe (RFC 5227).
    pub sender_addr: u32,
    /// Hardware address of the target; without meaning in a request.
    pub target_mac: Mac,
    /// IPv4 address that is asked for, or that the answer goes to.
    pub target_addr: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    hardware: U16,
    protocol: U16,
    hardware_len: u8,
    protocol_len: u8,
    operation: U16,
    sender_mac: Mac,
    sender_addr: U32,
    target_mac: Mac,
    target_addr: U32,
}

const _: () = assert!(size_of::<Layout>() == PACKET_LEN);

/// Reads an ARP packet; `bytes` starts after the Ethernet header. Trailing bytes are padding.
///
/// Fails with [`ParseError::Unsupported`] when the packet is not about IPv4 over Ethernet or is neither
/// request nor reply.
pub fn parse(bytes: &[u8]) -> Result<(Packet, usize), ParseError> {
    let (raw, _) = Layout::ref_from_prefix(bytes).map_err(|_| ParseError::Truncated)?;
    if raw.hardware.get() != HARDWARE_ETHERNET || raw.protocol.get() != EtherType::IPV4.0 {
        return Err(ParseError::Unsupported);
    }
    if raw.hardware_len != 6 || raw.protocol_len != 4 {
        return Err(ParseError::BadLength);
    }
    let operation = match raw.operation.get() {
        REQUEST => Operation::Request,
        REPLY => Operation::Reply,
        _ => return Err(ParseError::Unsupported),
    };
    let packet = Packet {
        operation,
        sender_mac: raw.sender_mac,
        sender_addr: raw.sender_addr.get(),
        target_mac: raw.target_mac,
        target_addr: raw.target_addr.get(),
    };
    Ok((packet, PACKET_LEN))
}

/// Writes `packet` at the start of `out`. Panics if `out` is shorter than [`PACKET_LEN`].
pub fn emit(packet: &Packet, out: &mut [u8]) -> usize {
    let raw = Layout {
        hardware: U16::new(HARDWARE_ETHERNET),
        protocol: U16::new(EtherType::IPV4.0),
        hardware_len: 6,
        protocol_len: 4,
        operation: U16::new(match packet.operation {
            Operation::Request => REQUEST,
            Operation::Reply => REPLY,
        }),
        sender_mac: packet.sender_mac,
        sender_addr: U32::new(packet.sender_addr),
        target_mac: packet.target_mac,
        target_addr: U32::new(packet.target_addr),
    };
    out[..PACKET_LEN].copy_from_slice(raw.as_bytes());
    PACKET_LEN
}

const HARDWARE_ETHERNET: u16 = 1;
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request() -> [u8; PACKET_LEN] {
        let mut out = [0; PACKET_LEN];
        let packet = Packet {
            operation: Operation::Request,
            sender_mac: Mac([2, 0, 0, 0, 0, 1]),
            sender_addr: 0x0a00_0001,
            target_mac: Mac::ZERO,
            target_addr: 0x0a00_0002,
        };
        emit(&packet, &mut out);
        out
    }

    #[test]
    fn a_request_is_laid_out_as_rfc_826_draws_it() {
        let expected = [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];
        assert_eq!(request(), expected);
    }

    #[test]
    fn other_hardware_protocols_lengths_and_operations_are_refused() {
        for (at, error) in [
            (1, ParseError::Unsupported),
            (3, ParseError::Unsupported),
            (4, ParseError::BadLength),
            (5, ParseError::BadLength),
            (7, ParseError::Unsupported),
        ] {
            let mut bytes = request();
            bytes[at] ^= 0x10;
            assert_eq!(parse(&bytes), Err(error), "byte {at}");
        }
        assert_eq!(parse(&request()[..27]), Err(ParseError::Truncated));
    }

    proptest! {
        #[test]
        fn parse_undoes_emit(reply: bool, a: [u8; 6], b: u32, c: [u8; 6], d: u32) {
            let operation = if reply { Operation::Reply } else { Operation::Request };
            let packet =
                Packet { operation, sender_mac: Mac(a), sender_addr: b, target_mac: Mac(c), target_addr: d };
            let mut out = [0; PACKET_LEN];
            emit(&packet, &mut out);
            prop_assert_eq!(parse(&out), Ok((packet, PACKET_LEN)));
        }

        #[test]
        fn junk_is_judged_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(&bytes);
        }
    }
}

//! How does one replica tell the others what a path takes (N8)? Eighteen bytes in a mesh record.
//!
//! Sent by the replica that ICMP told, received by all others of the stack. Lost: the receiver is told by ICMP itself when it sends
//! packets that are too large. Repeated or late: harmless. The receiver's `Ip` judges whether it is plausible.

use atoll_base::Addr;
use atoll_ip::PathUpdate;

/// Bytes of the record.
pub const BYTES: usize = 18;

/// The record's payload.
pub fn encode(update: &PathUpdate) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..16].copy_from_slice(&update.dst.octets());
    bytes[16..].copy_from_slice(&update.mtu.to_be_bytes());
    bytes
}

/// The update in a payload; `None` if it is none.
pub fn decode(bytes: &[u8]) -> Option<PathUpdate> {
    let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
    let [dst @ .., a, b] = *bytes;
    Some(PathUpdate { dst: Addr::from_octets(dst), mtu: u16::from_be_bytes([a, b]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_survives_the_ring() {
        for dst in [Addr::v4(0xc612_0001), Addr::from_octets([0x20; 16])] {
            let update = PathUpdate { dst, mtu: 1400 };
            assert_eq!(decode(&encode(&update)), Some(update));
        }
        assert_eq!(decode(&[1; BYTES - 1]), None);
    }
}

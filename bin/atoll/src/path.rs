//! How does one replica tell the others what a path takes (N8)? Six bytes in a mesh record.
//!
//! Sent by the replica that ICMP told, received by all others of the stack. Lost: the receiver is told by ICMP itself when it sends
//! packets that are too large. Repeated or late: harmless. The receiver's `Ip` judges whether it is plausible.

use atoll_ip::PathUpdate;

/// Bytes of the record.
pub const BYTES: usize = 6;

/// The record's payload.
pub fn encode(update: &PathUpdate) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(&update.dst.to_be_bytes());
    bytes[4..].copy_from_slice(&update.mtu.to_be_bytes());
    bytes
}

/// The update in a payload; `None` if it is none.
pub fn decode(bytes: &[u8]) -> Option<PathUpdate> {
    let [a, b, c, d, e, f] = *<&[u8; BYTES]>::try_from(bytes).ok()?;
    Some(PathUpdate { dst: u32::from_be_bytes([a, b, c, d]), mtu: u16::from_be_bytes([e, f]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_survives_the_ring() {
        let update = PathUpdate { dst: 0xc612_0001, mtu: 1400 };
        assert_eq!(decode(&encode(&update)), Some(update));
        assert_eq!(decode(&[1; 5]), None);
    }
}

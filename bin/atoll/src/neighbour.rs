//! How does one replica tell the others what it learned about a neighbour (N8)? Twelve bytes in a mesh record.
//!
//! Sent by the replica that heard, received by all others of the stack. Lost: the receiver asks by itself when it needs to.
//! Repeated or late: harmless. The receiver's `Ip` judges whether it is plausible.

use atoll_ip::{Basis, NeighbourUpdate};
use atoll_wire::Mac;

/// Bytes of the record.
pub const BYTES: usize = 12;

/// The record's payload.
pub fn encode(update: &NeighbourUpdate) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(&update.addr.to_be_bytes());
    bytes[4..10].copy_from_slice(&update.mac.0);
    bytes[10] = match update.basis {
        Basis::Learned => 1,
        Basis::Overheard => 2,
    };
    bytes
}

/// The update in a payload; `None` if it is none.
pub fn decode(bytes: &[u8]) -> Option<NeighbourUpdate> {
    let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
    let basis = match bytes[10] {
        1 => Basis::Learned,
        2 => Basis::Overheard,
        _ => return None,
    };
    let mut mac = [0; 6];
    mac.copy_from_slice(&bytes[4..10]);
    Some(NeighbourUpdate { addr: u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]), mac: Mac(mac), basis })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_survives_the_ring() {
        for basis in [Basis::Learned, Basis::Overheard] {
            let update = NeighbourUpdate { addr: 0xc612_0001, mac: Mac([2, 1, 2, 3, 4, 5]), basis };
            assert_eq!(decode(&encode(&update)), Some(update));
        }
        assert_eq!(decode(&[0; BYTES]), None);
        assert_eq!(decode(&[1; 11]), None);
    }
}

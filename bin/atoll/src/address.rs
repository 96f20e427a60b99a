//! Tells the other replicas which IPv4 address the stack has, in a mesh record of twenty bytes.
//!
//! Replica 0, which asks DHCP servers, sends the record to all other replicas after every change. It cannot
//! be lost: a full ring is offered the record again, and only the last one counts. A repeated or late record
//! is harmless, because rings keep the order. The receiver's `Ip` judges whether the address is plausible.

use atoll_base::Instant;
use atoll_ip::V4Address;

/// Bytes of the record: the address, its gateway (0 for none), its MTU, the length of its prefix, whether
/// there is an address, and when it expires.
pub const BYTES: usize = 20;

/// Encodes the payload of a record; `None` means that the stack has no address.
pub fn encode(address: Option<&V4Address>) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    if let Some(own) = address {
        bytes[..4].copy_from_slice(&own.addr.to_be_bytes());
        bytes[4..8].copy_from_slice(&own.gateway.unwrap_or(0).to_be_bytes());
        bytes[8..10].copy_from_slice(&own.mtu.to_be_bytes());
        bytes[10..12].copy_from_slice(&[own.prefix_len, 1]);
        bytes[12..].copy_from_slice(&own.valid_until.as_nanos().to_be_bytes());
    }
    bytes
}

/// Decodes a payload. Returns `Some(None)` if it says that there is no address, and `None` if it is not a
/// valid record.
pub fn decode(bytes: &[u8]) -> Option<Option<V4Address>> {
    let bytes = <&[u8; BYTES]>::try_from(bytes).ok()?;
    let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
    let address = V4Address {
        addr: word(0),
        prefix_len: bytes[10],
        gateway: Some(word(4)).filter(|gateway| *gateway != 0),
        mtu: u16::from_be_bytes([bytes[8], bytes[9]]),
        valid_until: Instant::from_nanos(u64::from(word(12)) << 32 | u64::from(word(16))),
    };
    match bytes[11] {
        0 => Some(None),
        1 => Some(Some(address)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_the_ring() {
        let address = V4Address {
            gateway: Some(0xc612_00fe),
            mtu: 1400,
            valid_until: Instant::from_millis(123_456_789),
            ..V4Address::new(0xc612_0001, 24)
        };
        for address in [address, V4Address { gateway: None, valid_until: Instant::FAR_FUTURE, ..address }] {
            assert_eq!(decode(&encode(Some(&address))), Some(Some(address)));
        }
        assert_eq!((decode(&encode(None)), decode(&[1; 19]), decode(&[2; 20])), (Some(None), None, None));
    }
}

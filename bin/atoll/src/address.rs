//! Tells the other replicas which IPv4 address the stack has, in a mesh record of twenty bytes.
//!
//! Replica 0, which asks DHCP servers, sends the record to all other replicas after every change. It cannot
//! be lost: a full ring is offered the record again, and only the last one counts. A repeated or late record
//! is harmless, because rings keep the order. The receiver's `Ip` judges whether the address is plausible.

use atoll_ip::V4Address;
use atoll_ip_server::{v4_address, v4_facts};
use atoll_ipc::network::{ADDRESS_BYTES, decode_address, encode_address};

/// Encodes the payload of a record; `None` means that the stack has no address.
pub fn encode(address: Option<&V4Address>) -> [u8; ADDRESS_BYTES] {
    encode_address(address.map(v4_facts).as_ref())
}

/// Decodes a payload. Returns `Some(None)` if it says that there is no address, and `None` if it is not a
/// valid record.
pub fn decode(bytes: &[u8]) -> Option<Option<V4Address>> {
    decode_address(bytes).map(|address| address.map(v4_address))
}

#[cfg(test)]
mod tests {
    use atoll_base::Instant;

    use super::*;

    #[test]
    fn an_address_survives_the_ring() {
        let address = V4Address {
            gateway: Some(0xc612_00fe),
            mtu: 1400,
            valid_until: Instant::from_nanos(0x0102_0304_0506_0708),
            ..V4Address::new(0xc612_0001, 24)
        };
        let octets = [0xc6, 0x12, 0, 1, 0xc6, 0x12, 0, 0xfe, 0x05, 0x78, 24, 1, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(encode(Some(&address)), octets);
        for address in [address, V4Address { gateway: None, valid_until: Instant::FAR_FUTURE, ..address }] {
            assert_eq!(decode(&encode(Some(&address))), Some(Some(address)));
        }
        assert_eq!((decode(&encode(None)), decode(&[1; 19]), decode(&[2; 20])), (Some(None), None, None));
        assert_eq!(decode(&[&encode(None)[..], &[0]].concat()), None, "too long");
    }
}

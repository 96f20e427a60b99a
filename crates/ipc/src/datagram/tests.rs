use proptest::prelude::*;

use super::*;

const PEER: Endpoint = Endpoint::new(0x0a00_0001, 53);

fn head(len: u32) -> [u8; RECORD_LEN] {
    encode(&Record { len, peer: PEER, flags: Flags::empty() })
}

#[test]
fn a_head_has_the_same_octets_as_ever() {
    let addr = Addr::from_octets(core::array::from_fn(|at| 0x10 + at as u8));
    let record = Record { len: 0x0403, peer: Endpoint::at(addr, 0x0605), flags: Flags::BROADCAST };
    let octets = [
        3, 4, 0, 0, 5, 6, 1, 0, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c,
        0x1d, 0x1e, 0x1f,
    ];
    assert_eq!(encode(&record), octets);
}

#[test]
fn an_empty_datagram_is_a_datagram() {
    assert_eq!(decode(&head(0), 24), Ok(Record { len: 0, peer: PEER, flags: Flags::empty() }));
}

#[test]
fn a_record_takes_head_payload_and_padding() {
    assert_eq!([0, 1, 8, 9].map(padded_len), [24, 32, 32, 40]);
    assert_eq!(padded_len(u32::MAX), 0x1_0000_0018);
    let detailed = |len| Record { len, peer: PEER, flags: Flags::DETAILED }.padded_len();
    assert_eq!([0, 1, 8, 9].map(detailed), [56, 64, 64, 72]);
}

#[test]
fn a_record_that_is_not_there_as_a_whole_is_refused() {
    assert_eq!(decode(&head(9), 39), Err(BadRecord::Incomplete));
    assert!(decode(&head(9), 40).is_ok());
    let detailed = encode(&Record { len: 9, peer: PEER, flags: Flags::DETAILED });
    assert_eq!(decode(&detailed, 71), Err(BadRecord::Incomplete));
    assert!(decode(&detailed, 72).is_ok());
}

#[test]
fn a_length_beyond_any_datagram_is_refused() {
    let mut bytes = head(RECORD_MAX);
    assert!(decode(&bytes, u64::MAX).is_ok());
    bytes[..4].copy_from_slice(&(RECORD_MAX + 1).to_ne_bytes());
    assert_eq!(decode(&bytes, u64::MAX), Err(BadRecord::TooLong));
}

#[test]
fn unknown_flags_are_refused() {
    for at in 6..8 {
        let mut bytes = head(1);
        bytes[at] = 0x80;
        assert_eq!(decode(&bytes, 100), Err(BadRecord::Reserved), "byte {at}");
    }
}

proptest! {
    #[test]
    fn decode_undoes_encode(len in 0..=RECORD_MAX, addr: [u8; 16], port: u16, flags in 0..=3u16) {
        let flags = Flags::from_bits(flags).expect("both flags");
        let record = Record { len, peer: Endpoint::at(Addr::from_octets(addr), port), flags };
        prop_assert_eq!(decode(&encode(&record), record.padded_len()), Ok(record));
    }

    #[test]
    fn what_is_accepted_fits(bytes: [u8; RECORD_LEN], available: u64) {
        if let Ok(record) = decode(&bytes, available) {
            prop_assert!(record.padded_len() <= available);
            prop_assert_eq!(encode(&record), bytes);
        }
    }
}

#[test]
fn a_fault_has_these_octets_and_survives_the_buffer() {
    let reporter = Addr::from_octets(core::array::from_fn(|at| 0x10 + at as u8));
    let quoted = Quotation([21, 22, 23, 24, 25, 26, 27, 28]);
    let fault = Fault { reporter, info: 0x0403_0201, kind: 5, code: 6, quoted, came: 0x0807_0605_0403_0201 };
    let octets = [
        0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f, 1, 2,
        3, 4, 5, 6, 0, 0, 21, 22, 23, 24, 25, 26, 27, 28, 1, 2, 3, 4, 5, 6, 7, 8,
    ];
    assert_eq!((fault.encode(), Fault::decode(&octets)), (octets, Ok(fault)));
}

use proptest::prelude::*;

use super::*;

/// Computes the checksum as RFC 1071 §4.1 does, word by word: the oracle.
fn oracle(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn the_example_of_rfc_1071() {
    assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]).fold(), 0xddf2);
}

#[test]
fn all_ones_of_every_length_fold_like_the_oracle() {
    let bytes = [0xff; 300];
    for len in 0..bytes.len() {
        assert_eq!(sum(&bytes[..len]).fold(), oracle(&bytes[..len]), "{len}");
    }
}

#[test]
fn the_largest_accumulator_folds_without_losing_a_carry() {
    for x in [u64::MAX, 0xffff_ffff_0000_0001, 0xffff_0000_ffff_0001, 0x1_ffff_ffff, 0xffff_ffff_ffff_0000] {
        assert_eq!(Sum(x).folded() % 0xffff, (x % 0xffff) as u16 % 0xffff, "{x:x}");
        assert_ne!(Sum(x).folded(), 0, "only a sum of zeros is zero");
    }
}

proptest! {
    #[test]
    fn agrees_with_the_oracle(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        prop_assert_eq!(sum(&bytes).fold(), oracle(&bytes));
    }

    #[test]
    fn parts_join_to_the_whole(
        bytes in prop::collection::vec(any::<u8>(), 0..400), a in 0usize..400, b in 0usize..400,
    ) {
        let (a, b) = (a.min(b).min(bytes.len()), a.max(b).min(bytes.len()));
        let joined = sum(&bytes[..a]).join(a, sum(&bytes[a..b])).join(b, sum(&bytes[b..]));
        prop_assert_eq!(joined.fold(), oracle(&bytes));
    }

    #[test]
    fn data_with_its_checksum_is_valid(mut bytes in prop::collection::vec(any::<u8>(), 2..200)) {
        bytes[0] = 0;
        bytes[1] = 0;
        let checksum = sum(&bytes).finish();
        bytes[..2].copy_from_slice(&checksum.to_be_bytes());
        prop_assert!(sum(&bytes).is_valid());
        bytes[0] ^= 1;
        prop_assert!(!sum(&bytes).is_valid());
    }

    #[test]
    fn pseudo_header_is_the_sum_of_its_bytes(src: u32, dst: u32, protocol: u8, len in 0usize..65536) {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&src.to_be_bytes());
        bytes[4..8].copy_from_slice(&dst.to_be_bytes());
        bytes[9] = protocol;
        bytes[10..].copy_from_slice(&(len as u16).to_be_bytes());
        prop_assert_eq!(pseudo_header(src, dst, protocol, len).fold(), oracle(&bytes));
    }
}

//! Checks that the header of a datagram record from a hostile buffer promises only what is there.

use atoll_ipc::datagram::{RECORD_LEN, decode, encode};

/// Reads a record: the first 8 bytes say how much is available, the next 16 are its header.
pub fn udp_record(data: &[u8]) {
    let Some((available, rest)) = data.split_first_chunk::<8>() else { return };
    let Some(head) = rest.first_chunk::<RECORD_LEN>() else { return };
    let available = u64::from_le_bytes(*available);
    if let Ok(record) = decode(head, available) {
        assert!(record.padded_len() <= available);
        assert_eq!(encode(&record), *head);
    }
}

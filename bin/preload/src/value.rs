//! What does getsockopt(2) return? Up to 232 bytes, as many as `struct tcp_info` has.

/// The value of an option.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    bytes: [u8; 232],
    len: usize,
}

impl Value {
    /// A value of these bytes, of which there are at most 232.
    pub fn of(bytes: &[u8]) -> Value {
        let mut value = Value { bytes: [0; 232], len: bytes.len().min(232) };
        value.bytes[..value.len].copy_from_slice(&bytes[..value.len]);
        value
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

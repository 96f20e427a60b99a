//! What does a replica leave to the next one of its kind? A memory that it alone maps, and that outlives its process.

/// Bytes of the memory of a ledger. Only what is used is taken.
pub const LEDGER_BYTES: usize = 1 << 30;

//! The atoll command.
#![forbid(unsafe_code)]
fn main() {}

//! The atoll command.
fn main() {}

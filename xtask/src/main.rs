//! Structure checks and CI steps.
fn main() {}

//! Helpers for tests.
#![forbid(unsafe_code)]

mod impair;

pub use impair::{Impairer, Rules};

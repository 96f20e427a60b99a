//! Helpers for tests.
#![forbid(unsafe_code)]

mod impair;
mod line;

pub use impair::{Impairer, Rules};
pub use line::{Arrival, Ecn, Line, LineCounts, LineSettings, Loss, Marking};

//! Helpers for tests.
#![forbid(unsafe_code)]

mod front;
mod impair;
mod line;

pub use front::Front;
pub use impair::{Impairer, Rules};
pub use line::{Arrival, Ecn, Line, LineCounts, LineSettings, Loss, Marking};

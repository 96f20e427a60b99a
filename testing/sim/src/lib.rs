//! Deterministic simulation: two TCP endpoints ([`Pair`]), or whole stacks with their applications ([`World`]), over a link that
//! loses, repeats, reorders and delays.
//!
//! One seed decides everything: a failing seed prints itself and replays exactly.
#![forbid(unsafe_code)]

mod host;
mod link;
mod pair;
mod world;

pub use host::{Host, Plan};
pub use link::{Link, LinkSettings};
pub use pair::{Failure, Pair, Report, Scenario};
pub use world::{Story, World};

//! Scripted applications on the heap, frames in vectors, time by hand.

mod abuse;
mod accept;
mod basic;
mod flood;
pub(crate) mod kit;
mod limits;
mod loss;

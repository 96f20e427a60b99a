//! Scripted applications on the heap, frames in vectors, time by hand.

mod abuse;
mod accept;
mod address;
mod basic;
mod flood;
mod fragments;
mod front;
mod groups;
pub(crate) mod kit;
mod limits;
mod loss;
mod postponed;
mod recovery;
mod urgent;
mod v6;

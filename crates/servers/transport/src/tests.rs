//! Tests with programs on the heap, frames in vectors, and time set by hand.

mod abuse;
mod accept;
mod address;
pub(crate) mod app;
mod basic;
mod batches;
mod blame;
mod details;
mod echo;
mod flood;
mod fragments;
mod front;
mod groups;
pub(crate) mod kit;
mod lazily;
mod leases;
mod limits;
mod loss;
mod ports;
mod postponed;
mod quota;
pub(crate) mod raw;
mod raw_sockets;
mod recovery;
mod rounds;
mod urgent;
mod v6;

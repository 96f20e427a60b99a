//! The decisions of the link server (LS, P1): which replica gets a frame.
//!
//! Steering normally happens before the frame reaches a queue (the TAP's steering program, a NIC's flow
//! table). It is repeated here for frames that arrive at the wrong queue. They do so after a table change, on
//! links that cannot steer, for ICMP errors (which belong to the flow that they quote), and for the internal
//! link, which has no queues.
//!
//! Storey 3: there are no system calls here; devices and rings live in `bin/atoll`.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod classify;
mod steering;

pub use classify::{Class, classify};
pub use steering::{Destination, Steering};

//! Time, sequence numbers, identities, flow groups, randomness, tables and timers: the words every other
//! crate uses.
//!
//! This crate belongs to storey 0: `no_std`, no clock, no entropy, no system call. Time and seeds are
//! arguments.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod addr;
mod bits;
mod flow;
mod ids;
mod kernel_network;
mod rng;
mod seq;
mod slab;
mod spin_policy;
mod time;
mod wheel;

pub use addr::Addr;
pub use bits::BitSet;
pub use flow::{Endpoint, FLOW_GROUPS, FlowGroup, FlowKey, FourTuple};
pub use ids::{Epoch, ReplicaId, SessionId, SlotId};
pub use kernel_network::{KernelNetwork, NoPlace};
pub use rng::Rng;
pub use seq::SeqNum;
pub use slab::Slab;
pub use spin_policy::SpinPolicy;
pub use time::{Duration, Instant};
pub use wheel::{TimerId, Wheel};

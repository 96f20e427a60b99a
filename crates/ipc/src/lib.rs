//! Every message and every memory layout that crosses a process boundary: fixed layout, version, decode =
//! validate.
//!
//! This crate belongs to storey 1. All code here is safe, and knows memory only through [`Memory`]. So these
//! rings, slots and pools run on shared mappings in servers and libraries, and on the heap in tests and in
//! the simulator. Everything read from memory that another process writes is copied first and judged
//! afterwards; a wrong value is a counted misbehaviour of that peer, never a panic.
//!
//! The processes share memory in this way:
//!
//! ```text
//!   StackPage      supervisor writes         all processes read (read-only mapping)
//!   ReplicaPage    one replica writes        applications and supervisor read (read-only mapping)
//!   AppPage        one application writes    replicas read
//!   session arena  one application <-> one replica: command ring, event ring, socket slots, socket buffers
//!   mesh ring      one replica  -> one replica (of the same or of another stack): frames, balancing,
//!                                who gets a connection, the network
//!   channel        one server  <-> one server: messages of one line, notices and calls
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod arena;
pub mod balance;
pub mod buffer;
pub mod channel;
pub mod command;
pub mod control;
pub mod datagram;
pub mod details;
mod device;
pub mod event;
pub mod info;
pub mod ip;
mod layout;
pub mod lease;
pub mod ledger;
pub mod listing;
pub mod manager;
pub mod memory;
pub mod mesh;
pub mod message;
pub mod network;
pub mod network_error;
pub mod page;
pub mod pool;
pub mod protocol;
pub mod ring;
pub mod slot;
mod tally;
pub mod tcp_state;

pub use command::{CONGESTION_NAMES, Command, SocketOption};
pub use details::Details;
pub use device::Device;
pub use event::{Cause, Event, Ready};
pub use memory::{HeapMemory, Memory};
pub use message::Message;
pub use network_error::NetworkCause;
pub use tally::Tally;

/// The version of every layout in this crate. A process that meets another version refuses to attach.
pub const LAYOUT_VERSION: u32 = 7;

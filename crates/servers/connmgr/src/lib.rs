//! The connection manager (CM, P1): which socket owns a port, and which application gets a new connection.
//!
//! It has no connections of its own: the transport server (TS) tells it what happens to them ([`ConnMgr`]'s
//! `handle_*`) and carries out its [`Directive`]s. What must answer a SYN at once - ports, listeners,
//! queues - is with every TS. Who gets a connection is decided by a [`Manager`], in the same process or in
//! another, for one TS or for several (P2): in the same process a message is a function call, and otherwise
//! a value of [`atoll_ipc::manager`].
//!
//! ```text
//!   application --Bind, Listen, AcceptConnection-->  CM  <--Syn, established, claimed, timed out, gone--  TS
//!                                                    CM  --Offer, Reset, AcceptorRemoved, PortTaken--->   TS
//!                                                    CM  <--PeerMessage: offers, reports-->               other CMs
//! ```
//! CMs tell each other how long their acceptors take, and choose by that (`balance`).
//!
//! Lost in a crash, as the listeners and acceptors register again by themselves (design 8).
//!
//! Storey 3: `no_std` + alloc.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

// structure: cycle of chooser, clients, listeners, manager, place, ports: who listens and who chooses speak to each other in one process or in two

mod askers;
mod balance;
mod chooser;
mod clients;
mod listeners;
mod manager;
mod messages;
mod place;
mod ports;
mod remote;

pub use balance::{AcceptorView, BalanceCounts, PeerOutput, Reach};
pub use clients::{Manager, ManagerConfig};
pub use listeners::ListenerView;
pub use manager::{Config, ConnMgr};
pub use messages::{Bind, ConnectionId, Directive, Listen, ListenerId, Offer, Stage, Syn, SynVerdict};
pub use ports::{are_rivals, covers};

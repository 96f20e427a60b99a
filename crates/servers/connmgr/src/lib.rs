//! The connection manager (CM, P1): which socket owns a port, and which application gets a new connection.
//!
//! The CM has no connections of its own: the transport server (TS) reports what happens to them (the
//! `handle_*` functions of [`ConnMgr`]) and carries out its [`Directive`]s. What must answer a SYN at once
//! (ports, listeners, queues) is in every TS. A [`Manager`] decides which acceptor gets a connection, in the
//! same process or in another, for one TS or for several (P2). In the same process a message is a function
//! call, otherwise it is a value of [`atoll_ipc::manager`].
//!
//! ```text
//!   application --Bind, Listen, AcceptConnection--> CM <--Syn, established, claimed, timed out, gone-- TS
//!                                                   CM --Offer, Reset, AcceptorRemoved, PortTaken--->  TS
//!                                                   CM <--PeerMessage: offers, reports-->        other CMs
//! ```
//! CMs report to each other how long their acceptors take, and choose by that (`balance`).
//!
//! The state of a CM is lost in a crash. The TS reports to the next CM which sockets listen and accept; the
//! successor of a TS carries out the requests in its ledger again (decisions 24 and 28).
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

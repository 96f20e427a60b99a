//! TCP as a sans-IO state machine: one [`Connection`] per TCB, laid out as RFC 9293 reads.
//!
//! Segments, the application's positions and time-outs go in through `handle_*`;
//! [`Connection::poll_transmit`] says what to send; [`Connection::next_timeout`] when to come back. Nothing
//! here reads a clock, draws randomness, logs or calls back, and no connection owns a byte of text. The send
//! buffer of the application is the retransmission queue, and received text is placed at its stream offset by
//! the caller, in whatever order it arrives.
//!
//! ```text
//!  segment_arrives:  sequence > reset > syn > ack > text > fin          (input/, RFC 9293 §3.10.7.4)
//!  poll_transmit:    reset > syn > retransmission > new text > probe > ack   (output/)
//! ```
//!
//! The contract with the caller: after any `handle_*` or application call, poll until `None`, then ask
//! `next_timeout`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

// structure: cycle of connection, ecn, fast_open, mtu_probe, options, rare, record, time_wait, urgent: each file has a part of a connection

mod application;
mod closed;
mod congestion;
mod connection;
mod cookie;
mod ecn;
mod fast_open;
mod icmp;
mod info;
mod input;
mod isn;
mod mtu_probe;
mod open;
mod options;
mod outcome;
mod output;
mod pending;
mod prune;
mod ranges;
mod rare;
mod rcv;
mod reassembly;
mod record;
mod recovery;
mod settings;
mod snd;
mod state;
mod time_wait;
mod timers;
mod urgent;

pub use closed::answer_for_closed;
pub use congestion::BbrInfo;
pub use connection::Connection;
pub use cookie::{COOKIE_LIFETIME, check_syn_cookie, simplify_for_cookie, stamp_cookie, syn_cookie};
pub use fast_open::{CookieVerdict, check_fast_open, fast_open_cookie};
pub use info::Info;
pub use isn::{initial_sequence, timestamp_offset};
pub use outcome::{Events, Input, Reason, Text, Transmit, Verdict};
pub use record::{BEYOND_MAX, Record};
pub use recovery::Phase;
pub use settings::{Algorithm, EcnMode, KeepAlive, Path, Settings};
pub use state::State;
pub use time_wait::{TimeWait, TimeWaitAnswer, TimeWaitFacts};

#[cfg(test)]
mod attacks;
#[cfg(test)]
mod testing;

//! Checks that the stack behaves as scripts in packetdrill's language say. They run in virtual time, which
//! takes milliseconds here for minutes of a script.
//!
//! A script is a list of times and of what happens then: segments that arrive (`<`), segments that have to be
//! sent (`>`), calls of a program, and assertions about `struct tcp_info` (`%{ }%`). README.md of this crate
//! says which parts of the language are supported. The others are reported as such and never pass.
#![forbid(unsafe_code)]

mod calls;
mod code;
mod compare;
mod configure;
mod flow;
mod host;
mod parse;
mod run;
mod script;
mod wire;

pub use run::{Report, run, run_with};

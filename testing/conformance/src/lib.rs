//! Does the stack behave as scripts say? They are written in packetdrill's language, and run in virtual time:
//! what one of them takes minutes for takes milliseconds here.
//!
//! A script is a list of times and of what happens then: segments that arrive (`<`), segments that have to be
//! sent (`>`), calls of a program, and assertions about `struct tcp_info` (`%{ }%`). README.md beside this
//! crate says what of the language is there. What is not there is reported as such and never passes.
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

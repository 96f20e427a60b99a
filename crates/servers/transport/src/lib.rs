//! Transport server: connections, sessions, timers.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

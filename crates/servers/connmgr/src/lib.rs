//! Connection manager: ports, listeners, acceptors, claims.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

//! Every message and memory layout that crosses a process boundary.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

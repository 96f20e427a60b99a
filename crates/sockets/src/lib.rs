//! POSIX socket semantics without system calls.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

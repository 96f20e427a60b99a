//! Link server: frames in, steering, frames out.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

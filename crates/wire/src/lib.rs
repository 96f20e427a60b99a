//! Header views and builders of the wire formats.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
pub mod tcp;

//! UDP: datagram records and port demultiplexing.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

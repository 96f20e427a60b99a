//! IPv4, ARP and ICMP as sans-IO state machines.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

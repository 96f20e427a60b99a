//! Supervisor: configuration, stack layout, control protocol.
#![forbid(unsafe_code)]

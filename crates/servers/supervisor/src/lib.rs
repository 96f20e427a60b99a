//! Supervisor: configuration, stack layout, control protocol.

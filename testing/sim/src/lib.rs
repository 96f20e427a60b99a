//! Deterministic simulation.
#![forbid(unsafe_code)]

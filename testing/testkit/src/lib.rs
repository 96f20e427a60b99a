//! Helpers for tests.
#![forbid(unsafe_code)]

//! The streams of stdio on Atoll's sockets.

use std::ffi::c_int;

use crate::futex_lock::FutexLock;

/// The addresses of the streams on sockets, with their descriptors.
pub static STREAMS: FutexLock<Vec<(usize, c_int)>> = FutexLock::new(Vec::new());

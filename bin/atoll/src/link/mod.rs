//! The links of a server: outside (a TAP queue, the rings of a joined stack, a link server that has a queue,
//! or an IP server) and inside (the other servers and itself).

mod internal;
mod links;
mod retry_queue;
mod rings;

pub use internal::InternalLink;
pub use links::{Device, Joined, Links};
pub use retry_queue::RetryQueue;
pub use rings::{Outgoing, Received, Rings, forwarded_prefix, prefix_of, waited};

pub use crate::mesh::Way;

/// Returns a number that distinguishes the conversations of frames, well enough for `SpinPolicy`: the octets
/// that are the ports if there are no IP options.
pub(crate) fn partner_of(frame: &[u8]) -> u32 {
    let at = if frame.get(12) == Some(&0x86) { 54 } else { 34 };
    frame.get(at..at + 4).map_or(0, |ports| ports.iter().fold(0, |all, byte| all << 8 | u32::from(*byte)))
}

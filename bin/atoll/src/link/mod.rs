//! The links of a replica: outside (a TAP queue, or the rings of a joined stack) and inside (the other replicas and itself).

mod internal;
mod links;
mod rings;

pub use internal::InternalLink;
pub use links::{Device, Joined, Links};
pub use rings::{FORWARDED, FRAME_PREFIX, Rings};

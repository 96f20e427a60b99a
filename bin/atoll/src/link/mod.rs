//! The links of a server: outside (a TAP queue, the rings of a joined stack, a link server that has a queue, or an IP server) and inside
//! (the other servers and itself).

mod courier;
mod internal;
mod links;
mod rings;

pub use courier::Courier;
pub use internal::InternalLink;
pub use links::{Device, Joined, Links};
pub use rings::{FORWARDED, FRAME_PREFIX, OUTBOUND, Outgoing, Received, Rings, Way, forwarded_prefix, waited};

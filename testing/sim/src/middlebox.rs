//! Middleboxes, which change headers on the way.

use atoll_wire::tcp::{Flags, SackBlocks, Segment};

/// The options that are removed, and values that are rewritten. The default changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Middlebox {
    /// Removes "SACK permitted" from SYNs.
    pub strip_sack: bool,
    /// Removes timestamps from SYNs.
    pub strip_timestamps: bool,
    /// Removes window scaling from SYNs.
    pub strip_window_scale: bool,
    /// Removes SACK blocks, although they were negotiated. (Removing timestamps would end the connection:
    /// RFC 7323 §3.2.)
    pub strip_blocks: bool,
    /// The largest segment size that a SYN may announce.
    pub mss_max: Option<u16>,
}

impl Middlebox {
    /// Changes a segment that passes.
    pub fn alter(&self, segment: &mut Segment) {
        let options = &mut segment.options;
        if segment.flags.contains(Flags::SYN) {
            options.sack_permitted &= !self.strip_sack;
            options.timestamps = options.timestamps.filter(|_| !self.strip_timestamps);
            options.window_scale = options.window_scale.filter(|_| !self.strip_window_scale);
            options.mss = options.mss.map(|mss| mss.min(self.mss_max.unwrap_or(mss)));
        } else if self.strip_blocks {
            options.sack = SackBlocks::new();
        }
    }
}

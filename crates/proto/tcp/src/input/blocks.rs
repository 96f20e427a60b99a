//! Which selective acknowledgements cannot be true (RFC 2018 §3, RFC 2883 §4).

use atoll_wire::tcp::{SackBlocks, Segment};

use crate::connection::Connection;
use crate::outcome::Events;

impl Connection {
    /// Removes the blocks that report what was never sent, what lies back more than a window, or nothing. A
    /// block that is left may still be a lie, which harms only the peer itself. Text that it claims to have
    /// is not sent again before it says so, or a time-out passes.
    pub(super) fn pass_over_impossible_blocks(&self, segment: &mut Segment) -> Events {
        if segment.options.sack.is_empty() {
            return Events::empty();
        }
        let mut blocks = SackBlocks::new();
        for (left, right) in segment.options.sack.iter() {
            let (from, to) = (self.snd.offset_of(left), self.snd.offset_of(right));
            let oldest = (self.snd.una - i64::from(self.snd.window_max)).max(0);
            if from < to && oldest <= from && to <= self.snd.nxt {
                blocks.push(left, right);
            }
        }
        let ignored = blocks.len() < segment.options.sack.len();
        segment.options.sack = blocks;
        if ignored { Events::SACK_IGNORED } else { Events::empty() }
    }
}

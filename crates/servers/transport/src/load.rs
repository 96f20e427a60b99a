//! The cost of this round's frames and commands beyond what is usual. If it is high, others wait for the next
//! round.

/// The cost of frames beyond what is usual from which the others of their batch wait for the next round, in
/// the units of [`crate::commands::cost`].
const FRAMES_COST_MAX: u32 = 1024;

/// The cost of this round so far.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Whether a connection has received much that is not acknowledged.
    ack_is_overdue: bool,
    /// The cost of the frames since the last flush.
    frames: u32,
    /// The cost of the command that is being carried out.
    command: u32,
}

impl Load {
    /// Adds the cost of a frame beyond what is usual.
    pub(crate) const fn charge_frame(&mut self, cost: u32) {
        self.frames = self.frames.saturating_add(cost);
    }

    /// Adds the cost of the command that is being carried out beyond what is usual.
    pub(crate) const fn charge_command(&mut self, cost: u32) {
        self.command = self.command.saturating_add(cost);
    }

    /// Returns the cost of the last command beyond what is usual.
    pub(crate) const fn take_command(&mut self) -> u32 {
        core::mem::replace(&mut self.command, 0)
    }

    /// Notes whether a peer waits for an acknowledgement.
    #[inline]
    pub(crate) const fn note_ack(&mut self, is_overdue: bool) {
        self.ack_is_overdue |= is_overdue;
    }

    /// Returns whether no more frames should be taken before the flush.
    pub(crate) const fn is_flush_due(&self) -> bool {
        self.ack_is_overdue || self.frames >= FRAMES_COST_MAX
    }

    /// Begins a flush.
    pub(crate) const fn begin_flush(&mut self) {
        (self.ack_is_overdue, self.frames) = (false, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_due_when_a_peer_waits_or_frames_were_dear() {
        let mut load = Load::default();
        load.note_ack(false);
        load.charge_frame(FRAMES_COST_MAX - 1);
        assert!(!load.is_flush_due());
        load.charge_frame(1);
        assert!(load.is_flush_due());
        load.begin_flush();
        load.note_ack(true);
        load.note_ack(false);
        assert!(load.is_flush_due());
        load.charge_command(u32::MAX);
        load.charge_command(1);
        assert_eq!((load.take_command(), load.take_command()), (u32::MAX, 0));
    }
}

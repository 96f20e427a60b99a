//! Has the network marked something instead of dropping it? RFC 3168.
//!
//! ```text
//!   sender --ECT--> [queue: CE] --CE--> receiver --ECE on every ACK--> sender --CWR on the next new text--> receiver
//! ```

use atoll_base::Instant;
use atoll_wire::ipv4::Ecn;
use atoll_wire::tcp::{Flags, Segment};

use crate::connection::Connection;
use crate::recovery::Phase;
use crate::settings::EcnMode;

/// What both ends have agreed, and what is owed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EcnState(u8);

impl EcnState {
    /// Our SYN asks for it.
    const OFFERED: u8 = 1;
    /// Both ends know it.
    const AGREED: u8 = 2;
    /// A mark has arrived: the peer is told until it says that it has heard.
    const ECHO: u8 = 4;
    /// The window was reduced: the peer is to be told.
    const REDUCED: u8 = 8;

    const fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    const fn set(&mut self, bit: u8, on: bool) {
        self.0 = if on { self.0 | bit } else { self.0 & !bit };
    }

    /// Whether the connection uses it.
    pub(crate) const fn is_agreed(self) -> bool {
        self.has(EcnState::AGREED)
    }

    /// Whether the next new text tells that the window was reduced: one segment does.
    pub(crate) const fn tells_reduction(self) -> bool {
        self.has(EcnState::REDUCED)
    }

    /// What a bare acknowledgement, or one that rides on text, says.
    pub(crate) const fn echo(self) -> Flags {
        if self.has(EcnState::ECHO) { Flags::ECE } else { Flags(0) }
    }
}

impl Connection {
    /// The flags of our SYN. One that is sent again does not ask any more: something on the way may not like it (§6.1.1.1).
    pub(crate) fn ecn_of_syn(&mut self, retransmit: bool) -> Flags {
        let asks = self.config.ecn == EcnMode::Request && !retransmit;
        self.ecn.set(EcnState::OFFERED, asks);
        if asks { Flags::ECE | Flags::CWR } else { Flags(0) }
    }

    /// The flags of our SYN-ACK.
    pub(crate) fn ecn_of_syn_ack(&self) -> Flags {
        if self.ecn.is_agreed() { Flags::ECE } else { Flags(0) }
    }

    /// The peer's SYN or SYN-ACK has arrived (§6.1.1).
    pub(crate) fn agree_ecn(&mut self, syn: &Segment) {
        let both = Flags::ECE | Flags::CWR;
        let agreed = if syn.has(Flags::ACK) {
            // Both bits may be an echo of ours by somebody who does not know them.
            self.ecn.has(EcnState::OFFERED) && syn.has(Flags::ECE) && !syn.has(Flags::CWR)
        } else {
            self.config.ecn != EcnMode::Off && syn.has(both)
        };
        self.ecn.set(EcnState::AGREED, agreed);
    }

    /// Whether the network has marked the segment, and whether the peer has heard of marks before. Returns whether it should
    /// hear at once.
    pub(crate) fn take_mark(&mut self, segment: &Segment) -> bool {
        if !self.ecn.is_agreed() || segment.has(Flags::SYN) {
            return false;
        }
        if segment.has(Flags::CWR) {
            self.ecn.set(EcnState::ECHO, false);
        }
        let news = segment.ecn == Ecn::Ce && !self.ecn.has(EcnState::ECHO);
        if segment.ecn == Ecn::Ce {
            self.ecn.set(EcnState::ECHO, true);
        }
        news
    }

    /// An acknowledgement may echo a mark that ours got (§6.1.2): as if a segment had been lost, once for what is in flight.
    pub(crate) fn take_echo(&mut self, now: Instant, segment: &Segment) {
        if !self.ecn.is_agreed() || !segment.has(Flags::ECE) || segment.has(Flags::SYN) {
            return;
        }
        let busy = self.snd.flight() > 0 && self.recovery.phase == Phase::Open;
        if !busy || self.snd.una <= self.recovery.recover {
            return;
        }
        self.recovery.recover = self.snd.nxt;
        let flight = u32::try_from(self.snd.flight()).unwrap_or(u32::MAX);
        self.congestion.handle_mark(now, flight, self.snd.mss);
        self.ecn.set(EcnState::REDUCED, true);
    }

    /// Marks new text that leaves: the network may mark it, and the peer hears that the window was reduced.
    pub(crate) fn mark_new_text(&mut self, segment: &mut Segment) {
        if !self.ecn.is_agreed() || segment.len == 0 {
            return;
        }
        segment.ecn = Ecn::Ect0;
        if self.ecn.has(EcnState::REDUCED) {
            self.ecn.set(EcnState::REDUCED, false);
            segment.flags |= Flags::CWR;
        }
    }
}

#[cfg(test)]
mod tests;

//! Has the network marked something instead of dropping it? RFC 3168, and RFC 9768, which counts the marks.
//!
//! ```text
//!   RFC 3168   sender --ECT--> [queue: CE] --CE--> receiver --ECE on every ACK--> sender --CWR on the next new text--> receiver
//!   RFC 9768   sender --ECT--> [queue: CE] --CE--> receiver --how many, modulo 8, in AE CWR ECE--> sender
//! ```
//! Of RFC 9768 the counter of packets is here, and no TCP option.

use atoll_base::Instant;
use atoll_wire::ipv4::Ecn;
use atoll_wire::tcp::{Flags, Segment};

use crate::connection::Connection;
use crate::recovery::Phase;
use crate::settings::EcnMode;

/// What both ends have agreed, and what is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EcnState {
    kind: Kind,
    /// Kind RFC 3168: a mark has arrived; the peer is told until it says that it has heard.
    echo: bool,
    /// Kind RFC 3168: the window was reduced; the peer is to be told.
    reduced: bool,
    /// Kind RFC 9768: the counters are not in use yet. Our next acknowledgement says how the peer's SYN came, or the
    /// peer's does.
    handshake: bool,
    /// The mark of the peer's SYN or SYN-ACK.
    syn_mark: Ecn,
    /// Marked packets received, and those that the peer has told of (r.cep and s.cep), modulo 8.
    received: u8,
    told: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// None, or not yet.
    None,
    /// Our SYN asks for RFC 3168, or for RFC 9768.
    Offered,
    OfferedAccurate,
    Classic,
    Accurate,
}

impl EcnState {
    pub(crate) const fn new() -> EcnState {
        EcnState {
            kind: Kind::None,
            echo: false,
            reduced: false,
            handshake: false,
            syn_mark: Ecn::NotEct,
            // RFC 9768 §3.2.1.
            received: COUNT_START,
            told: COUNT_START,
        }
    }

    /// Whether the connection uses it.
    pub(crate) const fn is_agreed(self) -> bool {
        matches!(self.kind, Kind::Classic | Kind::Accurate)
    }

    /// Whether text has to leave in single segments: where a link cuts a larger one, the CWR bit stays on the first piece.
    pub(crate) fn needs_single_segments(self) -> bool {
        self.reduced || self.kind == Kind::Accurate && self.echo().contains(Flags::CWR)
    }

    /// What an acknowledgement says.
    pub(crate) fn echo(self) -> Flags {
        match self.kind {
            Kind::Classic if self.echo => Flags::ECE,
            Kind::Accurate if self.handshake => with_ace(handshake_code(self.syn_mark)),
            Kind::Accurate => with_ace(self.received),
            _ => Flags(0),
        }
    }

    /// An acknowledgement has left.
    pub(crate) const fn note_acknowledged(&mut self) {
        self.handshake = false;
    }
}

impl Connection {
    /// The flags of our SYN. One that is sent again does not ask any more: something on the way may not like it (RFC 3168
    /// §6.1.1.1).
    pub(crate) fn ecn_of_syn(&mut self, retransmit: bool) -> Flags {
        self.ecn.kind = match self.config.ecn {
            EcnMode::Request if !retransmit => Kind::Offered,
            EcnMode::RequestAccurate if !retransmit => Kind::OfferedAccurate,
            _ => Kind::None,
        };
        match self.ecn.kind {
            Kind::Offered => Flags::ECE | Flags::CWR,
            Kind::OfferedAccurate => Flags::AE | Flags::ECE | Flags::CWR,
            _ => Flags(0),
        }
    }

    /// The flags of our SYN-ACK.
    pub(crate) fn ecn_of_syn_ack(&self) -> Flags {
        match self.ecn.kind {
            Kind::Classic => Flags::ECE,
            Kind::Accurate => with_ace(handshake_code(self.ecn.syn_mark)),
            _ => Flags(0),
        }
    }

    /// The peer's SYN or SYN-ACK has arrived (RFC 3168 §6.1.1, RFC 9768 §3.1).
    pub(crate) fn agree_ecn(&mut self, syn: &Segment) {
        let code = ace(syn.flags);
        self.ecn.kind = if !syn.has(Flags::ACK) {
            match code {
                _ if self.config.ecn == EcnMode::Off => Kind::None,
                0b011 => Kind::Classic,
                0b111 => Kind::Accurate,
                _ => Kind::None,
            }
        } else {
            match (self.ecn.kind, code) {
                // All bits, or both, may be an echo of ours by somebody who does not know them.
                (Kind::Offered | Kind::OfferedAccurate, 0b001 | 0b101) => Kind::Classic,
                (Kind::OfferedAccurate, 0b010 | 0b011 | 0b100 | 0b110) => Kind::Accurate,
                _ => Kind::None,
            }
        };
        self.ecn.syn_mark = syn.ecn;
        self.ecn.handshake = self.ecn.kind == Kind::Accurate;
        if self.ecn.kind == Kind::Accurate && syn.has(Flags::ACK) && syn.ecn == Ecn::Ce {
            self.ecn.received += 1;
        }
    }

    /// The peer's SYN has come again. If it does not ask any more the first was lost for asking, perhaps: RFC 3168 §6.1.1 wants no
    /// ECT then. RFC 9768 §3.1.5 would go on counting marks; as none can come there are none to count.
    pub(crate) fn hear_syn_again(&mut self, syn: &Segment) {
        if ace(syn.flags) == 0 {
            self.ecn.kind = Kind::None;
        }
    }

    /// Whether the network has marked the segment, and whether the peer has heard of marks before. Returns whether it should
    /// hear at once.
    pub(crate) fn take_mark(&mut self, segment: &Segment) -> bool {
        if segment.has(Flags::SYN) {
            return false;
        }
        let marked = segment.ecn == Ecn::Ce;
        match self.ecn.kind {
            Kind::Classic => {
                if segment.has(Flags::CWR) {
                    self.ecn.echo = false;
                }
                let news = marked && !self.ecn.echo;
                self.ecn.echo |= marked;
                news
            }
            Kind::Accurate => {
                if marked {
                    self.ecn.received = (self.ecn.received + 1) & COUNT_MASK;
                }
                marked
            }
            _ => false,
        }
    }

    /// An acknowledgement of something may tell of marks that ours got (RFC 3168 §6.1.2, RFC 9768 §3.2.2): as if a segment had been
    /// lost, once for what is in flight. `advances`: it is not one that was overtaken.
    pub(crate) fn take_echo(&mut self, now: Instant, segment: &Segment, advances: bool) {
        if segment.has(Flags::SYN) {
            return;
        }
        let told = match self.ecn.kind {
            Kind::Classic => segment.has(Flags::ECE),
            Kind::Accurate if self.ecn.handshake && self.passive => {
                self.ecn.handshake = false;
                // Somebody on the way clears the bits: then nothing would be heard of marks (RFC 9768 §3.2.2.4).
                if ace(segment.flags) == 0 {
                    self.ecn.kind = Kind::None;
                }
                ace(segment.flags) == CODE_CE
            }
            Kind::Accurate if advances => {
                let count = ace(segment.flags);
                let more = count != self.ecn.told;
                self.ecn.told = count;
                more
            }
            _ => false,
        };
        let busy = self.snd.flight() > 0 && self.recovery.phase == Phase::Open;
        if !told || !busy || self.snd.una <= self.recovery.recover {
            return;
        }
        self.recovery.recover = self.snd.nxt;
        let flight = u32::try_from(self.snd.flight()).unwrap_or(u32::MAX);
        self.congestion.handle_mark(now, flight, self.snd.mss);
        self.ecn.reduced = self.ecn.kind == Kind::Classic;
    }

    /// Marks new text that leaves: the network may mark it, and the peer hears that the window was reduced.
    pub(crate) fn mark_new_text(&mut self, segment: &mut Segment) {
        if !self.ecn.is_agreed() || segment.len == 0 {
            return;
        }
        segment.ecn = Ecn::Ect0;
        if self.ecn.reduced {
            self.ecn.reduced = false;
            segment.flags |= Flags::CWR;
        }
    }
}

/// The three bits as a number, AE first.
const fn ace(flags: Flags) -> u8 {
    (flags.0 >> 6 & 7) as u8
}

const fn with_ace(value: u8) -> Flags {
    Flags((value as u16 & 7) << 6)
}

/// How a SYN or SYN-ACK came, for the other end (RFC 9768 §3.1.1, table 2).
const fn handshake_code(mark: Ecn) -> u8 {
    match mark {
        Ecn::NotEct => 0b010,
        Ecn::Ect1 => 0b011,
        Ecn::Ect0 => 0b100,
        Ecn::Ce => CODE_CE,
    }
}

const CODE_CE: u8 = 0b110;
const COUNT_START: u8 = 5;
const COUNT_MASK: u8 = 7;

#[cfg(test)]
mod tests;

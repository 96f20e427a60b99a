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
    /// Kind RFC 3168: a mark has arrived; the peer is told until it says that it has heard. Kind RFC 9768:
    /// the counters are not in use yet; our next acknowledgement says how the peer's SYN came, or the peer's
    /// does.
    owed: bool,
    /// Kind RFC 3168: the window was reduced; the peer is to be told.
    reduced: bool,
    /// Whether our text is marked.
    ect: Ect,
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

/// Whether text of ours may be marked by the network, if ECN is agreed upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ect {
    Sent,
    /// No: a SYN has not asked, of ours or of the peer's, because something on the way may not like it.
    Withheld,
    /// No, and what the peer tells of marks means nothing: somebody clears the bits.
    Deaf,
}

impl EcnState {
    pub(crate) const fn new() -> EcnState {
        EcnState {
            kind: Kind::None,
            owed: false,
            reduced: false,
            ect: Ect::Sent,
            syn_mark: Ecn::NotEct,
            // RFC 9768 §3.2.1.
            received: COUNT_START,
            told: COUNT_START,
        }
    }

    /// What a successor has to know: the kind, whether text is marked, and the count of the marks received
    /// (RFC 9768), which may be an old one: then the peer hears of marks that were none, and slows down once.
    pub(crate) fn to_bits(self) -> u8 {
        let kind = match self.kind {
            Kind::None | Kind::Offered | Kind::OfferedAccurate => 0,
            Kind::Classic => 1,
            Kind::Accurate => 2,
        };
        kind | u8::from(self.ect != Ect::Sent) << 2 | (self.received & 7) << 3
    }

    /// The other direction. Accurate ECN goes on as an echo only.
    pub(crate) fn from_bits(bits: u8) -> EcnState {
        let kind = match bits & 3 {
            1 => Kind::Classic,
            2 => Kind::Accurate,
            _ => Kind::None,
        };
        // Without the peer's last count its next one means nothing.
        let ect = if bits & 4 != 0 || kind == Kind::Accurate { Ect::Deaf } else { Ect::Sent };
        EcnState { kind, ect, received: bits >> 3 & 7, ..EcnState::new() }
    }

    /// Whether the connection uses it.
    pub(crate) const fn is_agreed(self) -> bool {
        matches!(self.kind, Kind::Classic | Kind::Accurate)
    }

    /// Whether text has to leave in single segments: where a link cuts a larger one, the CWR bit stays on the
    /// first piece.
    pub(crate) fn needs_single_segments(self) -> bool {
        self.reduced || self.kind == Kind::Accurate && self.echo().contains(Flags::CWR)
    }

    /// What an acknowledgement says.
    pub(crate) fn echo(self) -> Flags {
        match self.kind {
            Kind::Classic if self.owed => Flags::ECE,
            Kind::Accurate => with_ace(self.received),
            _ => Flags(0),
        }
    }
}

impl Connection {
    /// The flags of our SYN. One that is sent again does not ask any more (RFC 3168 §6.1.1.1), or asks once
    /// more (RFC 9768 §3.1.4.1).
    pub(crate) fn ecn_of_syn(&mut self, retransmit: bool) -> Flags {
        self.ecn.kind = match self.config.ecn {
            EcnMode::Request => Kind::Offered,
            EcnMode::RequestAccurate => Kind::OfferedAccurate,
            _ => Kind::None,
        };
        match self.ecn.kind {
            Kind::Offered if !retransmit => Flags::ECE | Flags::CWR,
            Kind::OfferedAccurate if self.recovery.retransmits <= 1 => Flags::AE | Flags::ECE | Flags::CWR,
            _ => {
                self.ecn.ect = Ect::Withheld;
                Flags(0)
            }
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
                0b000 => Kind::None,
                0b011 => Kind::Classic,
                // RFC 9768 §3.1.3: whatever else a later standard may mean by the bits.
                _ => Kind::Accurate,
            }
        } else {
            match (self.ecn.kind, code) {
                // All bits, or both, may be an echo of ours by somebody who does not know them.
                (Kind::Offered, 0b001 | 0b101) | (Kind::OfferedAccurate, 0b001) => Kind::Classic,
                (Kind::OfferedAccurate, 0b010..=0b110) => Kind::Accurate,
                _ => Kind::None,
            }
        };
        // RFC 9768 §3.1.5: a client that hears of the accurate kind knows that the way lets it pass.
        if self.ecn.kind == Kind::Accurate {
            self.ecn.ect = Ect::Sent;
        }
        self.ecn.syn_mark = syn.ecn;
        self.ecn.owed = self.ecn.kind == Kind::Accurate;
        if self.ecn.kind == Kind::Accurate && syn.has(Flags::ACK) && syn.ecn == Ecn::Ce {
            self.ecn.received += 1;
        }
    }

    /// Whether the peer is to hear how its SYN-ACK came, by an ACK without text before there is any (RFC 9768
    /// §3.2.2.1).
    pub(crate) fn owes_syn_mark(&self) -> bool {
        self.ecn.kind == Kind::Accurate && self.ecn.owed && !self.passive
    }

    /// Says so on `segment`, if it is due.
    pub(crate) fn tell_syn_mark(&mut self, segment: &mut Segment) {
        if self.owes_syn_mark() {
            self.ecn.owed = false;
            segment.flags = segment.flags.without(with_ace(7)) | with_ace(handshake_code(self.ecn.syn_mark));
        }
    }

    /// The peer's SYN has come again. What was agreed stays agreed, but if it does not ask any more the first
    /// was lost for asking, perhaps: then we send no ECT (RFC 3168 §6.1.1, RFC 9768 §3.1.5).
    pub(crate) fn hear_syn_again(&mut self, syn: &Segment) {
        if ace(syn.flags) == 0 {
            self.ecn.ect = Ect::Withheld;
        }
        self.ecn.syn_mark = syn.ecn;
    }

    /// Whether the network has marked the segment, and whether the peer has heard of marks before. Returns
    /// whether it should hear at once.
    pub(crate) fn take_mark(&mut self, segment: &Segment) -> bool {
        if segment.has(Flags::SYN) {
            return false;
        }
        let marked = segment.ecn == Ecn::Ce;
        match self.ecn.kind {
            Kind::Classic => {
                if segment.has(Flags::CWR) {
                    self.ecn.owed = false;
                }
                let news = marked && !self.ecn.owed;
                self.ecn.owed |= marked;
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

    /// An acknowledgement of something may tell of marks that ours got (RFC 3168 §6.1.2, RFC 9768 §3.2.2): as
    /// if a segment had been lost, once for what is in flight. `advances`: it is not one that was overtaken.
    pub(crate) fn take_echo(&mut self, now: Instant, segment: &Segment, advances: bool) {
        if segment.has(Flags::SYN) {
            return;
        }
        let told = match self.ecn.kind {
            Kind::Classic => segment.has(Flags::ECE),
            Kind::Accurate if self.ecn.owed && self.passive => {
                self.ecn.owed = false;
                // Somebody on the way clears the bits: then nothing would be heard of marks (RFC 9768
                // §3.2.2.1, note 1). What comes to us is told all the same.
                if ace(segment.flags) == 0 {
                    self.ecn.ect = Ect::Deaf;
                }
                // RFC 9768 §3.2.2.1: an ACK alone says how the SYN-ACK came, anything else counts. Both call
                // one mark 6.
                let marked = ace(segment.flags) == CODE_CE;
                self.ecn.told += u8::from(marked);
                marked
            }
            Kind::Accurate if advances && self.ecn.ect != Ect::Deaf => {
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
        if !self.ecn.is_agreed() || self.ecn.ect != Ect::Sent || segment.len == 0 {
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

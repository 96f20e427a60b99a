//! Explicit congestion notification: the network marks a packet instead of dropping it. RFC 3168 is the
//! classic kind, and RFC 9768 the accurate kind, which counts the marks.
//!
//! ```text
//!   RFC 3168   sender --ECT--> [queue: CE] --CE--> receiver
//!              receiver --ECE on every ACK--> sender --CWR on the next new text--> receiver
//!   RFC 9768   sender --ECT--> [queue: CE] --CE--> receiver
//!              receiver --how many, modulo 8, in AE CWR ECE--> sender
//! ```
//!
//! Of RFC 9768 only the counter of packets is implemented, and no TCP option.

use atoll_base::Instant;
use atoll_wire::ipv4::Ecn;
use atoll_wire::tcp::{Flags, Segment};

use crate::connection::Connection;
use crate::recovery::Phase;
use crate::settings::EcnMode;

/// The kind of ECN that both ends have agreed upon, and the marks that are still to be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EcnState {
    kind: Kind,
    /// Classic kind: a mark has arrived, and acknowledgements report it until the peer answers with CWR.
    /// Accurate kind: the counters are not in use yet; our next acknowledgement, or the peer's, says how the
    /// other end's SYN came.
    owed: bool,
    /// Classic kind: the window was reduced, and the next new text has to carry CWR.
    reduced: bool,
    /// Whether the text that we send may be marked.
    ect: Ect,
    /// The mark of the peer's SYN or SYN-ACK.
    syn_mark: Ecn,
    /// The number of marked packets received (r.cep), modulo 8; `told` is the number that the peer has
    /// reported (s.cep).
    received: u8,
    told: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// ECN is not agreed upon, or not yet.
    None,
    /// Our SYN asks for RFC 3168; `OfferedAccurate` means that it asks for RFC 9768.
    Offered,
    OfferedAccurate,
    Classic,
    Accurate,
}

/// Whether the network may mark text that we send, if ECN is agreed upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ect {
    Sent,
    /// Text is not marked: a SYN of either end came without asking, so something on the path may not like
    /// ECN.
    Withheld,
    /// Text is not marked, and the marks that the peer reports mean nothing: something on the path clears the
    /// bits.
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
            // RFC 9768 §3.2.1 sets this initial value.
            received: COUNT_START,
            told: COUNT_START,
        }
    }

    /// Encodes what a successor has to know: the kind, whether text is marked, and the count of the marks
    /// received (RFC 9768). The count may be an old one. Then the peer sees marks that did not happen, and
    /// slows down once.
    pub(crate) fn to_bits(self) -> u8 {
        let kind = match self.kind {
            Kind::None | Kind::Offered | Kind::OfferedAccurate => 0,
            Kind::Classic => 1,
            Kind::Accurate => 2,
        };
        kind | u8::from(self.ect != Ect::Sent) << 2 | (self.received & 7) << 3
    }

    /// Decodes what [`EcnState::to_bits`] has encoded. Accurate ECN continues as an echo only.
    pub(crate) fn from_bits(bits: u8) -> EcnState {
        let kind = match bits & 3 {
            1 => Kind::Classic,
            2 => Kind::Accurate,
            _ => Kind::None,
        };
        // Without the peer's last count, its next one means nothing.
        let ect = if bits & 4 != 0 || kind == Kind::Accurate { Ect::Deaf } else { Ect::Sent };
        EcnState { kind, ect, received: bits >> 3 & 7, ..EcnState::new() }
    }

    /// Returns whether ECN is agreed upon.
    pub(crate) const fn is_agreed(self) -> bool {
        matches!(self.kind, Kind::Classic | Kind::Accurate)
    }

    /// Returns whether text has to leave in single segments: when a link cuts a larger one, the CWR bit stays
    /// on the first piece.
    pub(crate) fn needs_single_segments(self) -> bool {
        self.reduced || self.kind == Kind::Accurate && self.echo().contains(Flags::CWR)
    }

    /// Returns the flags with which an acknowledgement reports marks.
    pub(crate) fn echo(self) -> Flags {
        match self.kind {
            Kind::Classic if self.owed => Flags::ECE,
            Kind::Accurate => with_ace(self.received),
            _ => Flags::empty(),
        }
    }
}

impl Connection {
    /// Returns the ECN flags of our SYN. A SYN that is sent again does not ask for ECN any more (RFC 3168
    /// §6.1.1.1), or asks once more (RFC 9768 §3.1.4.1).
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
                Flags::empty()
            }
        }
    }

    /// Returns the ECN flags of our SYN-ACK.
    pub(crate) fn ecn_of_syn_ack(&self) -> Flags {
        match self.ecn.kind {
            Kind::Classic => Flags::ECE,
            Kind::Accurate => with_ace(handshake_code(self.ecn.syn_mark)),
            _ => Flags::empty(),
        }
    }

    /// Settles the kind of ECN when the peer's SYN or SYN-ACK has arrived (RFC 3168 §6.1.1, RFC 9768 §3.1).
    pub(crate) fn agree_ecn(&mut self, syn: &Segment) {
        let code = ace(syn.flags);
        self.ecn.kind = if !syn.has(Flags::ACK) {
            match code {
                _ if self.config.ecn == EcnMode::Off => Kind::None,
                0b000 => Kind::None,
                0b011 => Kind::Classic,
                // RFC 9768 §3.1.3: other codes count as accurate, whatever a later standard may mean by them.
                _ => Kind::Accurate,
            }
        } else {
            match (self.ecn.kind, code) {
                // If all the bits that we sent come back, a host that does not know ECN may just echo them.
                (Kind::Offered, 0b001 | 0b101) | (Kind::OfferedAccurate, 0b001) => Kind::Classic,
                (Kind::OfferedAccurate, 0b010..=0b110) => Kind::Accurate,
                _ => Kind::None,
            }
        };
        // RFC 9768 §3.1.5: a SYN-ACK of the accurate kind shows the client that the path lets ECN pass.
        if self.ecn.kind == Kind::Accurate {
            self.ecn.ect = Ect::Sent;
        }
        self.ecn.syn_mark = syn.ecn;
        self.ecn.owed = self.ecn.kind == Kind::Accurate;
        if self.ecn.kind == Kind::Accurate && syn.has(Flags::ACK) && syn.ecn == Ecn::Ce {
            self.ecn.received += 1;
        }
    }

    /// Returns whether the peer does not know yet how its SYN-ACK came. An ACK without text reports that
    /// before there is any text (RFC 9768 §3.2.2.1).
    pub(crate) fn owes_syn_mark(&self) -> bool {
        self.ecn.kind == Kind::Accurate && self.ecn.owed && !self.passive
    }

    /// Reports on `segment` how the peer's SYN-ACK came, if that is due.
    pub(crate) fn tell_syn_mark(&mut self, segment: &mut Segment) {
        if self.owes_syn_mark() {
            self.ecn.owed = false;
            segment.flags =
                segment.flags.difference(with_ace(7)) | with_ace(handshake_code(self.ecn.syn_mark));
        }
    }

    /// Handles a SYN of the peer that has come again. What was agreed stays agreed. If this SYN does not ask
    /// for ECN, the first one may have been lost because it asked: then we send no ECT (RFC 3168 §6.1.1, RFC
    /// 9768 §3.1.5).
    pub(crate) fn hear_syn_again(&mut self, syn: &Segment) {
        if ace(syn.flags) == 0 {
            self.ecn.ect = Ect::Withheld;
        }
        self.ecn.syn_mark = syn.ecn;
    }

    /// Notes whether the network has marked the segment, and whether the peer has reacted to earlier marks.
    /// Returns whether to acknowledge at once.
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

    /// Handles the marks that an acknowledgement reports on our segments (RFC 3168 §6.1.2, RFC 9768 §3.2.2).
    /// Congestion control reacts as if a segment had been lost, once for what is in flight. `advances` says
    /// that the acknowledgement was not overtaken by a newer one.
    pub(crate) fn take_echo(&mut self, now: Instant, segment: &Segment, advances: bool) {
        if segment.has(Flags::SYN) {
            return;
        }
        let told = match self.ecn.kind {
            Kind::Classic => segment.has(Flags::ECE),
            Kind::Accurate if self.ecn.owed && self.passive => {
                self.ecn.owed = false;
                // Something on the path clears the bits, so that no marks would be reported to us (RFC 9768
                // §3.2.2.1, note 1). We still report the marks that arrive here.
                if ace(segment.flags) == 0 {
                    self.ecn.ect = Ect::Deaf;
                }
                // RFC 9768 §3.2.2.1: a bare ACK says how the SYN-ACK came, any other segment has the count.
                // In both, 6 means one mark.
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

    /// Puts ECT on new text that leaves, so that the network may mark it, and CWR if the peer does not know
    /// yet that the window was reduced.
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

/// Returns AE, CWR and ECE as a number, AE being the highest bit.
const fn ace(flags: Flags) -> u8 {
    (flags.bits() >> 6 & 7) as u8
}

const fn with_ace(value: u8) -> Flags {
    Flags::from_bits_retain((value as u16 & 7) << 6)
}

/// Returns the code for how the SYN or SYN-ACK of the other end came (RFC 9768 §3.1.1, table 2).
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

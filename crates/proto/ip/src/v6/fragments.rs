//! What differs for fragments of IPv6: only the sender makes them, and the first one holds all headers (RFC
//! 8200 §4.5, RFC 7112).

use atoll_base::Instant;
use atoll_wire::ethernet;
use atoll_wire::icmpv6::{Message, code};
use atoll_wire::ipv4::Protocol;
use atoll_wire::ipv6::{self, FRAGMENT_LEN, FirstError, HEADER_LEN, HOP_BY_HOP, PAYLOAD_LEN_AT, Upper};

use super::is_discovery;
use crate::counters::Reason;
use crate::fragments::{PacketKey, reason};
use crate::input::Received;
use crate::ip::Ip;
use crate::link::{Frame, Link};
use crate::reassembly::{Fragment, Outcome};

impl Ip {
    /// Keeps a fragment until its packet is complete. `upper` describes the headers found in `payload`.
    #[cold]
    pub(super) fn handle_fragment_v6<'a>(
        &mut self,
        now: Instant,
        link: Link,
        frame: &[u8],
        header: &ipv6::Header,
        payload: &[u8],
        upper: &Upper,
    ) -> Result<Received<'a>, Reason> {
        let fragment = upper.fragment.ok_or(Reason::Malformed)?;
        self.common.count().fragments_in += 1;
        let offset = u32::from(fragment.offset) * 8;
        let text = payload.get(upper.at..).ok_or(Reason::Malformed)?;
        // These headers are repeated by every fragment; the fragment header is not part of the whole packet.
        let before = upper.at.saturating_sub(FRAGMENT_LEN);
        let payload_max = (usize::from(u16::MAX)).saturating_sub(before) as u32;
        let mut problem = |code: u8, pointer: usize| {
            self.error_v6(now, link, frame, Message::ParameterProblem { code, pointer: pointer as u32 });
        };
        if fragment.more && !text.len().is_multiple_of(8) {
            problem(code::ERRONEOUS_HEADER, PAYLOAD_LEN_AT);
            return Err(Reason::FragmentMalformed);
        }
        if offset as usize + text.len() > payload_max as usize {
            problem(code::ERRONEOUS_HEADER, HEADER_LEN + before + 2);
            return Err(Reason::FragmentMalformed);
        }
        // RFC 8200 §4.3: hop-by-hop options stand behind the first header of a packet. Here they would get
        // there when the packet is reassembled.
        if offset == 0 && upper.protocol == Protocol(HOP_BY_HOP) {
            problem(code::UNRECOGNIZED_NEXT_HEADER, upper.named_at);
            return Err(Reason::Extension);
        }
        if offset == 0
            && let Err(reason) = check_first(upper.protocol, text)
        {
            if reason == Reason::FragmentTiny {
                problem(code::INCOMPLETE_CHAIN, 0);
            }
            return Err(reason);
        }
        let head = frame.get(..ethernet::HEADER_LEN + HEADER_LEN + upper.at).ok_or(Reason::Malformed)?;
        let key = PacketKey {
            src: header.src,
            dst: header.dst,
            id: fragment.id,
            protocol: 0,
            inside: link == Link::Inside,
        };
        let ecn = header.ecn() as u8;
        let fragment = Fragment { offset, more: fragment.more, head, payload: text, payload_max, ecn };
        match self.reassembly.insert(now, key, &fragment) {
            Outcome::Kept => Ok(Received::Consumed),
            Outcome::Complete(mut whole) => {
                let packet = whole.bytes.get_mut(ethernet::HEADER_LEN..).ok_or(Reason::FragmentMalformed)?;
                let hole =
                    ipv6::make_whole(packet, whole.congested).map_err(|_| Reason::FragmentMalformed)?;
                whole.bytes.drain(ethernet::HEADER_LEN + hole.start..ethernet::HEADER_LEN + hole.end);
                self.common.count().reassembled += 1;
                self.queue_whole(Frame { link, bytes: whole.bytes });
                Ok(Received::Consumed)
            }
            Outcome::Dropped(refusal) => Err(reason(refusal)),
        }
    }
}

/// Checks the headers in the first fragment of a packet. `Reason::FragmentTiny`: the chain of headers goes on
/// behind the fragment.
fn check_first(protocol: Protocol, text: &[u8]) -> Result<(), Reason> {
    match ipv6::first_fragment(protocol, text) {
        // RFC 6980 §5: neighbour discovery is not fragmented. Later fragments do not show their type, and
        // never become a whole packet.
        Ok(first) if first.protocol == Protocol::ICMPV6 && is_discovery(text.get(first.at..)) => {
            Err(Reason::NdIgnored)
        }
        Ok(_) => Ok(()),
        Err(FirstError::Incomplete) => Err(Reason::FragmentTiny),
        Err(FirstError::Malformed) => Err(Reason::FragmentMalformed),
    }
}

#[cfg(test)]
mod tests;

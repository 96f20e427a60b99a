//! What is a fragment of an IPv6 packet, and what is the packet that they make? Only the sender makes
//! fragments, and the first one holds all headers (RFC 8200 §4.5, RFC 7112).

use atoll_wire::ethernet;
use atoll_wire::icmpv6::{Message, code};
use atoll_wire::ipv4::Protocol;
use atoll_wire::ipv6::{self, FRAGMENT_LEN, FirstError, HEADER_LEN, HOP_BY_HOP, PAYLOAD_LEN_AT};

use super::icmp::error_about;
use super::input::{Packet, is_discovery};
use super::network::Network;
use crate::common::Common;
use crate::counters::Reason;
use crate::fragments::{Fragments, PacketKey};
use crate::icmp::Icmp;
use crate::input::Received;
use crate::link::Link;
use crate::reassembly::Fragment;

/// Keeps a fragment until its packet is complete.
#[cold]
pub(super) fn receive<'a>(
    packet: &Packet<'_, 'a>,
    network: &Network,
    common: &mut Common,
    icmp: &mut Icmp,
    fragments: &mut Fragments,
) -> Result<Received<'a>, Reason> {
    let Packet { arrival, header, payload, upper } = *packet;
    let fragment = upper.fragment.ok_or(Reason::Malformed)?;
    common.count().fragments_in += 1;
    let offset = u32::from(fragment.offset) * 8;
    let text = payload.get(upper.at..).ok_or(Reason::Malformed)?;
    // These headers are repeated by every fragment; the fragment header is not part of the whole packet.
    let before = upper.at.saturating_sub(FRAGMENT_LEN);
    let payload_max = (usize::from(u16::MAX)).saturating_sub(before) as u32;
    let mut problem = |code: u8, pointer: usize| {
        let message = Message::ParameterProblem { code, pointer: pointer as u32 };
        icmp.report(arrival.now, common, error_about(arrival.frame, arrival.link, message, network));
    };
    if fragment.more && !text.len().is_multiple_of(8) {
        problem(code::ERRONEOUS_HEADER, PAYLOAD_LEN_AT);
        return Err(Reason::FragmentMalformed);
    }
    if offset as usize + text.len() > payload_max as usize {
        problem(code::ERRONEOUS_HEADER, HEADER_LEN + before + 2);
        return Err(Reason::FragmentMalformed);
    }
    // RFC 8200 §4.3: hop-by-hop options directly follow the first header of a packet. Here they would get
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
    let head_len = ethernet::HEADER_LEN + HEADER_LEN + upper.at;
    let key = PacketKey {
        src: header.src,
        dst: header.dst,
        id: fragment.id,
        protocol: 0,
        inside: arrival.link == Link::Inside,
    };
    let fragment = Fragment {
        offset,
        more: fragment.more,
        head: arrival.frame.get(..head_len).ok_or(Reason::Malformed)?,
        payload: text,
        payload_max,
        ecn: header.ecn() as u8,
    };
    fragments.insert(arrival.now, common, key, &fragment, |bytes, congested| {
        let hole = ipv6::make_whole(bytes.get_mut(ethernet::HEADER_LEN..)?, congested).ok()?;
        bytes.drain(ethernet::HEADER_LEN + hole.start..ethernet::HEADER_LEN + hole.end);
        Some(())
    })
}

/// Checks the headers in the first fragment of a packet. Fails with `Reason::FragmentTiny` if the chain of
/// headers continues behind the fragment.
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

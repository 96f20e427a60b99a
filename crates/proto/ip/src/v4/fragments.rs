//! What is a fragment of an IPv4 packet, and what is the packet that they make? RFC 791 §3.2, RFC 1858, RFC
//! 3128.

use atoll_base::Addr;
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::{ethernet, tcp};

use crate::common::Common;
use crate::counters::Reason;
use crate::fragments::{Fragments, PacketKey};
use crate::input::{Arrival, Received};
use crate::link::Link;
use crate::reassembly::Fragment;

/// Keeps the fragment `payload` until its packet is complete.
#[cold]
pub(super) fn receive<'a>(
    arrival: &Arrival<'a>,
    header: &ipv4::Header,
    header_len: usize,
    payload: &[u8],
    fragments: &mut Fragments,
    common: &mut Common,
) -> Result<Received<'a>, Reason> {
    common.count().fragments_in += 1;
    if is_tiny(header, payload) {
        return Err(Reason::FragmentTiny);
    }
    let head_len = ethernet::HEADER_LEN + header_len;
    let key = PacketKey {
        src: Addr::v4(header.src),
        dst: Addr::v4(header.dst),
        id: header.id.into(),
        protocol: header.protocol.0,
        inside: arrival.link == Link::Inside,
    };
    let fragment = Fragment {
        offset: u32::from(header.fragment_offset) * 8,
        more: header.more_fragments,
        head: arrival.frame.get(..head_len).ok_or(Reason::Malformed)?,
        payload,
        payload_max: (usize::from(u16::MAX) + ethernet::HEADER_LEN).saturating_sub(head_len) as u32,
        ecn: header.ecn() as u8,
    };
    fragments.insert(arrival.now, common, key, &fragment, |bytes, congested| {
        ipv4::make_whole(bytes.get_mut(ethernet::HEADER_LEN..)?, congested).ok()
    })
}

/// Returns whether a fragment splits a TCP header; that only serves to get past a filter (RFC 1858 §3, RFC
/// 3128).
fn is_tiny(header: &ipv4::Header, payload: &[u8]) -> bool {
    header.protocol == Protocol::TCP
        && match header.fragment_offset {
            0 => payload.len() < tcp::HEADER_MIN,
            offset => usize::from(offset) * 8 < tcp::HEADER_MIN,
        }
}

#[cfg(test)]
mod tests;

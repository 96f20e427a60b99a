//! What is at the end of an emulated wire? A TAP in a network namespace, whose frames look as they would on a
//! wire.

use atoll_sys::netlink::Netlink;
use atoll_sys::netns;
use atoll_tap::{Existing, Offloads, Queue, Tap, TapOptions, VNET_HEADER_LEN};
use atoll_wire::checksum;

/// Makes a TAP, up and without addresses, as `end` says: NAMESPACE:TAP. Leaves the calling thread in the
/// namespace.
///
/// It takes no large segments, so what is lost or delayed is a packet of at most the MTU, as on a wire.
pub fn open_end(end: &str) -> Result<Queue, Box<dyn std::error::Error>> {
    let (namespace, name) = end.split_once(':').ok_or("an end is NAMESPACE:TAP")?;
    netns::enter_named(namespace)?;
    let offloads = Offloads { tso: false, uso: false };
    let tap = Tap::open(&TapOptions { name: Some(name), queues: 1, offloads, existing: Existing::Refuse })?;
    let mut netlink = Netlink::open()?;
    let link = netlink.link(name)?;
    netlink.set_up(link.index)?;
    Ok(tap.into_queues().remove(0))
}

/// Completes the checksum of a frame if its vnet header asks for that, and clears the request.
pub fn complete_checksum(frame: &mut [u8]) {
    let Some((header, packet)) = frame.split_at_mut_checked(VNET_HEADER_LEN) else { return };
    let needed = header[0] & 1 != 0;
    let start = usize::from(u16::from_le_bytes([header[6], header[7]]));
    let field = start + usize::from(u16::from_le_bytes([header[8], header[9]]));
    header.fill(0);
    if needed && field + 2 <= packet.len() {
        // The field holds the pseudo header's sum, so summing over it takes that in.
        let sum = !checksum::sum(&packet[start..]).fold();
        packet[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Returns whether a frame has an IPv4 packet whose sender supports ECN (RFC 3168 §5).
pub fn is_ecn_capable(frame: &[u8]) -> bool {
    frame.get(VNET_HEADER_LEN + 12..VNET_HEADER_LEN + 14) == Some(&[8, 0])
        && frame.get(VNET_HEADER_LEN + 15).is_some_and(|tos| tos & 3 != 0)
}

/// Sets the ECN field of an IPv4 packet to CE (RFC 3168 §5), and its checksum accordingly.
pub fn mark_congestion(frame: &mut [u8]) {
    let Some(packet) = frame.get_mut(VNET_HEADER_LEN + 14..) else { return };
    let Some(header) = packet.get_mut(..20) else { return };
    header[1] |= 3;
    header[10..12].fill(0);
    let sum = !checksum::sum(header).fold();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

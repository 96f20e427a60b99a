//! The host's part of IGMP (RFC 3376, RFC 2236, RFC 1112), which reports wanted groups to IPv4 routers.
//! [`crate::membership`] decides what is sent when.

use alloc::vec;

use atoll_base::{Duration, Instant};
use atoll_wire::ethernet;
use atoll_wire::igmp::{self, Kind, Message, Record};
use atoll_wire::ipv4::{self, Protocol};

use crate::addresses::{Addresses, multicast_mac};
use crate::common::Common;
use crate::counters::Reason;
use crate::input::{Arrival, Received};
use crate::link::{Cast, Link};
use crate::membership::{Change, Group, Groups, Heard, Say};

impl Group for u32 {
    const RECORDS_MAX: usize = (576 - igmp::IP_HEADER_LEN - igmp::HEADER_LEN) / igmp::RECORD_LEN;

    fn is_everybodys(self) -> bool {
        self == igmp::ALL_SYSTEMS
    }

    /// Returns whether the group is reported: the group of all systems never is (RFC 3376 §5).
    fn is_told(self) -> bool {
        !self.is_everybodys()
    }
}

/// Judges the IGMP message `bytes`. Only the replica that speaks for the stack answers the queries of
/// routers.
#[inline(never)]
pub(super) fn receive<'a>(
    arrival: &Arrival<'a>,
    header: &ipv4::Header,
    bytes: &[u8],
    addresses: &Addresses,
    groups: &mut Groups<u32>,
    common: &mut Common,
) -> Result<Received<'a>, Reason> {
    // Every version of IGMP sends with TTL 1 (RFC 3376 §4); a message with any other TTL is not from this
    // link.
    if arrival.link != Link::Outside || header.ttl != 1 || !groups.speaks() {
        return Err(Reason::IgmpIgnored);
    }
    let message = igmp::parse(bytes)?;
    // A query about all groups goes to all hosts (RFC 3376 §9.1) or to one host (§4.1.12); otherwise it is
    // forged.
    let is_misplaced = matches!(message, Message::Query { group: 0, .. })
        && header.dst != igmp::ALL_SYSTEMS
        && addresses.cast(header.dst) != Some(Cast::Unicast);
    if is_misplaced {
        return Err(Reason::IgmpIgnored);
    }
    let heard = match message {
        Message::Query { version, group, max_response } => {
            // The value is at most 31744 tenths of a second.
            let window = Duration::from_millis(u64::from(max_response) * 100);
            Heard::Query { version, group: Some(group).filter(|group| *group != 0), window }
        }
        Message::Report { group, .. } => Heard::Report { group },
        Message::Leave { .. } => return Ok(Received::Consumed),
        Message::Other => return Err(Reason::IgmpIgnored),
    };
    groups.handle(arrival.now, common.rng(), heard);
    Ok(Received::Consumed)
}

/// Sends the messages to routers that are due at `now`. Without an address, their source is 0.0.0.0 (RFC 3376
/// §4.2.13).
pub(super) fn expire(now: Instant, groups: &mut Groups<u32>, own: Option<u32>, common: &mut Common) {
    let src = own.unwrap_or(0);
    for say in groups.expire(now, common.rng()) {
        match say {
            Say::Report(records) => {
                let mut message = vec![0; igmp::HEADER_LEN + records.len() * igmp::RECORD_LEN];
                let record = |(group, change)| {
                    let kind = match change {
                        Change::Joined => Kind::ToExclude,
                        Change::Left => Kind::ToInclude,
                        Change::Listening => Kind::IsExclude,
                    };
                    Record { kind, group }
                };
                igmp::emit_report(records.into_iter().map(record), &mut message);
                send(common, src, igmp::REPORTS, &message);
            }
            Say::OlderReport { version, group } => {
                send_older(common, src, group, &Message::Report { version, group });
            }
            Say::OlderLeave { group } => {
                send_older(common, src, igmp::ALL_ROUTERS, &Message::Leave { group });
            }
        }
    }
}

fn send_older(common: &mut Common, src: u32, dst: u32, message: &Message) {
    let mut bytes = [0; igmp::HEADER_LEN];
    if igmp::emit(message, &mut bytes).is_some() {
        send(common, src, dst, &bytes);
    }
}

fn send(common: &mut Common, src: u32, dst: u32, message: &[u8]) {
    let mut bytes = vec![0; ethernet::HEADER_LEN + igmp::IP_HEADER_LEN];
    let ethertype = ethernet::EtherType::IPV4;
    let header = ethernet::Header { dst: multicast_mac(dst), src: common.mac(), ethertype };
    let at = ethernet::emit(&header, &mut bytes);
    let id = common.identify(dst.into(), Protocol::IGMP) as u16;
    igmp::emit_ip_header(src, dst, id, message.len(), &mut bytes[at..]);
    bytes.extend_from_slice(message);
    if common.queue(Link::Outside, bytes) {
        common.count().igmp_out += 1;
    }
}

#[cfg(test)]
mod tests;

//! IGMP as a host speaks it (RFC 3376, RFC 2236, RFC 1112): tells IPv4 routers which groups are wanted.
//! [`crate::membership`] decides what is said when.

use alloc::vec;

use atoll_base::{Addr, Duration, Instant};
use atoll_wire::igmp::{self, Kind, Message, Record};
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::{ParseError, ethernet};

use crate::addresses::multicast_mac;
use crate::counters::Reason;
use crate::ip::Ip;
use crate::link::Cast;
use crate::link::Link;
use crate::membership::{Change, Group, Heard, Say};
use crate::output::HEADERS_LEN;

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

impl Ip {
    /// Joins a socket to `group`: packets to the group are accepted, and routers are told if the socket is
    /// its first member. Returns `false` if `group` is no multicast address, or there are too many groups.
    pub fn join_group(&mut self, now: Instant, link: Link, group: impl Into<Addr>) -> bool {
        let group = group.into();
        let joined = self.cast(group) == Some(Cast::Multicast)
            && match group.to_v4() {
                Some(group) => self.groups.join(now, link, group),
                None => self.join_group_v6(now, link, group),
            };
        if joined {
            self.note_membership(link);
        }
        self.check_invariants();
        joined
    }

    /// Removes a socket from a group that it had joined.
    pub fn leave_group(&mut self, now: Instant, link: Link, group: impl Into<Addr>) {
        let group = group.into();
        match group.to_v4() {
            Some(group) => self.groups.leave(now, link, group),
            None => self.leave_group_v6(now, link, group),
        }
        self.note_membership(link);
        self.check_invariants();
    }

    /// Returns whether a socket is in `group`.
    pub fn is_member(&self, link: Link, group: impl Into<Addr>) -> bool {
        let group = group.into();
        match group.to_v4() {
            Some(group) => self.groups.has(link, group),
            None => self.is_member_v6(link, group),
        }
    }

    /// Judges an IGMP message. Only the replica that speaks for the stack answers the queries of routers.
    #[inline(never)]
    pub(crate) fn handle_igmp(
        &mut self,
        now: Instant,
        link: Link,
        header: &ipv4::Header,
        bytes: &[u8],
    ) -> Result<(), Reason> {
        // Every version of IGMP sends with TTL 1 (RFC 3376 §4); a message with any other TTL is not from this
        // link.
        if link != Link::Outside || header.ttl != 1 || !self.groups.speaks {
            return Err(Reason::IgmpIgnored);
        }
        let message = igmp::parse(bytes).map_err(|error| match error {
            ParseError::BadChecksum => Reason::BadChecksum,
            _ => Reason::Malformed,
        })?;
        // A query about all groups goes to all hosts (RFC 3376 §9.1) or to one host (§4.1.12); otherwise it
        // is forged.
        let is_misplaced = matches!(message, Message::Query { group: 0, .. })
            && header.dst != igmp::ALL_SYSTEMS
            && self.addresses.cast(header.dst) != Some(Cast::Unicast);
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
            Message::Leave { .. } => return Ok(()),
            Message::Other => return Err(Reason::IgmpIgnored),
        };
        self.groups.handle(now, self.common.rng(), heard);
        Ok(())
    }

    pub(crate) fn expire_groups(&mut self, now: Instant) {
        for say in self.groups.expire(now, self.common.rng()) {
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
                    self.send_igmp(igmp::REPORTS, &message);
                }
                Say::OlderReport { version, group } => {
                    self.send_older(&Message::Report { version, group }, group)
                }
                Say::OlderLeave { group } => self.send_older(&Message::Leave { group }, igmp::ALL_ROUTERS),
            }
        }
    }

    fn send_older(&mut self, message: &Message, dst: u32) {
        let mut bytes = [0; igmp::HEADER_LEN];
        if igmp::emit(message, &mut bytes).is_some() {
            self.send_igmp(dst, &bytes);
        }
    }

    fn send_igmp(&mut self, dst: u32, message: &[u8]) {
        let mut bytes = vec![0; ethernet::HEADER_LEN + igmp::IP_HEADER_LEN];
        let header = ethernet::Header {
            dst: multicast_mac(dst),
            src: self.common.mac(),
            ethertype: ethernet::EtherType::IPV4,
        };
        let at = ethernet::emit(&header, &mut bytes);
        let id = self.identify(dst, Protocol::IGMP) as u16;
        // RFC 3376 §4.2.13: the source is 0.0.0.0 as long as we have no address.
        igmp::emit_ip_header(self.addr().unwrap_or(0), dst, id, message.len(), &mut bytes[at..]);
        bytes.extend_from_slice(message);
        if self.common.queue(Link::Outside, bytes) {
            self.common.count().igmp_out += 1;
        }
    }
}

const _: () = assert!(HEADERS_LEN < ethernet::HEADER_LEN + igmp::IP_HEADER_LEN);

#[cfg(test)]
mod tests;

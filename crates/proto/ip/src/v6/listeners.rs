//! The host's part of MLD (RFC 3810, RFC 2710), which reports wanted groups to IPv6 routers.
//! [`crate::membership`] decides what is sent when.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use atoll_base::{Addr, Duration, Instant};
use atoll_wire::ipv4::Protocol;
use atoll_wire::ipv6::{self, multicast_mac};
use atoll_wire::mld::{self, Message, Record};
use atoll_wire::nd::solicited_node;

use super::addresses::{ALL_NODES, OwnAddress, State};
use super::input::Packet;
use crate::common::Common;
use crate::counters::Reason;
use crate::link::Link;
use crate::membership::{Change, Group, Groups, Heard, Say};
use crate::output::Outgoing;

impl Group for Addr {
    const RECORDS_MAX: usize = mld::GROUPS_MAX;

    fn is_everybodys(self) -> bool {
        self == ALL_NODES
    }

    /// Returns whether the group is reported: neither the group of all nodes is, nor one that stays on this
    /// machine (RFC 3810 §6).
    fn is_told(self) -> bool {
        !self.is_everybodys() && !self.is_interface_local()
    }
}

/// The groups of sockets and of neighbour discovery.
#[derive(Debug)]
pub(super) struct Listeners {
    groups: Groups<Addr>,
    /// The groups that neighbour discovery needs, which are also in `groups`.
    solicited: BTreeSet<Addr>,
}

impl Listeners {
    pub(super) fn new() -> Listeners {
        Listeners { groups: Groups::new(false), solicited: BTreeSet::new() }
    }

    pub(super) const fn groups(&self) -> &Groups<Addr> {
        &self.groups
    }

    pub(super) const fn groups_mut(&mut self) -> &mut Groups<Addr> {
        &mut self.groups
    }

    /// Joins and leaves solicited-node groups, because the own addresses have changed.
    pub(super) fn listen_to(&mut self, now: Instant, own: &[OwnAddress]) {
        let groups: BTreeSet<Addr> = own.iter().map(|own| solicited_node(own.addr)).collect();
        let before = core::mem::replace(&mut self.solicited, groups);
        for group in self.solicited.difference(&before) {
            self.groups.join_for_itself(now, *group);
        }
        for group in before.difference(&self.solicited) {
            self.groups.leave(now, Link::Outside, *group);
        }
    }

    /// Judges a message of listener discovery whose checksum was verified. Only the leader answers the
    /// queries of routers.
    pub(super) fn receive(
        &mut self,
        packet: &Packet<'_, '_>,
        common: &mut Common,
        text: &[u8],
    ) -> Result<(), Reason> {
        let message = mld::parse(text).map_err(|_| Reason::Malformed)?;
        // RFC 3810 §5.1.14, RFC 2710 §5: only messages from the link itself count.
        let is_near = packet.header.src.is_link_local() && packet.header.hop_limit == 1;
        if !is_near || !self.groups.speaks() {
            return Err(Reason::NdIgnored);
        }
        let heard = match message {
            Message::Query { version, group, max_response_ms } => {
                let window = Duration::from_millis(max_response_ms.into());
                let group = Some(group).filter(|group| *group != Addr::ANY);
                Heard::Query { version: version + 1, group, window }
            }
            Message::Report { group } => Heard::Report { group },
            Message::Done { .. } => return Ok(()),
        };
        self.groups.handle(packet.arrival.now, common.rng(), heard);
        Ok(())
    }

    /// Sends the messages to routers that are due at `now`.
    pub(super) fn expire(&mut self, now: Instant, own: &[OwnAddress], common: &mut Common) {
        for say in self.groups.expire(now, common.rng()) {
            match say {
                Say::Report(records) => send_report(common, source(own), &records),
                Say::OlderReport { group, .. } => {
                    send_older(common, source(own), &Message::Report { group });
                }
                Say::OlderLeave { group } => send_older(common, source(own), &Message::Done { group }),
            }
        }
    }
}

/// Returns the source of reports: the unspecified address until the link-local address is sure (RFC 3590 §4).
fn source(own: &[OwnAddress]) -> Addr {
    let own = own.first().filter(|own| matches!(own.state, State::Preferred | State::Deprecated));
    own.map_or(Addr::ANY, |own| own.addr)
}

fn send_report(common: &mut Common, src: Addr, records: &[(Addr, Change)]) {
    let record = |(group, change): &(Addr, Change)| {
        let record = match change {
            Change::Joined => Record::Joined,
            Change::Left => Record::Left,
            Change::Listening => Record::Listening,
        };
        (*group, record)
    };
    let records: Vec<(Addr, Record)> = records.iter().map(record).collect();
    let mut text = alloc::vec![0; mld::report_len(records.len())];
    mld::emit_report(src, &records, &mut text);
    send(common, src, mld::ROUTERS, &text);
}

fn send_older(common: &mut Common, src: Addr, message: &Message) {
    let mut text = [0; mld::LEN_V1];
    if let Some(dst) = mld::emit_v1(src, message, &mut text) {
        send(common, src, dst, &text);
    }
}

fn send(common: &mut Common, src: Addr, dst: Addr, text: &[u8]) {
    let payload = [&mld::ROUTER_ALERT[..], text].concat();
    let packet = Outgoing {
        dst_mac: multicast_mac(dst),
        src,
        dst,
        protocol: Protocol(ipv6::HOP_BY_HOP),
        payload_len: payload.len(),
        tos: 0,
        ttl: 1,
        dont_fragment: true,
    };
    if common.send_small(&packet, &payload) {
        common.count().listener_reports += 1;
    }
}

#[cfg(test)]
mod tests;

//! MLD as a host speaks it (RFC 3810, RFC 2710): tells IPv6 routers which groups are wanted.
//! [`crate::membership`] decides what is said when.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use atoll_base::{Addr, Duration, Instant};
use atoll_wire::ipv4::Protocol;
use atoll_wire::ipv6::{self, multicast_mac};
use atoll_wire::mld::{self, Message, Record};
use atoll_wire::nd::solicited_node;

use super::addresses::{ALL_NODES, State};
use crate::counters::Reason;
use crate::ip::Ip;
use crate::link::Link;
use crate::membership::{Change, Group, Heard, Say};

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

impl Ip {
    pub(crate) fn join_group_v6(&mut self, now: Instant, link: Link, group: Addr) -> bool {
        (link == Link::Inside || !self.v6.own.is_empty()) && self.v6.groups.join(now, link, group)
    }

    pub(crate) fn leave_group_v6(&mut self, now: Instant, link: Link, group: Addr) {
        self.v6.groups.leave(now, link, group);
    }

    pub(crate) fn is_member_v6(&self, link: Link, group: Addr) -> bool {
        self.v6.groups.has(link, group)
    }

    /// Joins and leaves solicited-node groups, because the own addresses have changed.
    pub(crate) fn listen_to_own(&mut self, now: Instant) {
        let groups: BTreeSet<Addr> = self.v6.own.iter().map(|own| solicited_node(own.addr)).collect();
        let before = core::mem::replace(&mut self.v6.solicited, groups);
        for group in self.v6.solicited.difference(&before) {
            self.v6.groups.join_for_itself(now, *group);
        }
        for group in before.difference(&self.v6.solicited) {
            self.v6.groups.leave(now, Link::Outside, *group);
        }
    }

    /// Sends the messages to routers that are due at `now`.
    pub(super) fn expire_listeners(&mut self, now: Instant) {
        for say in self.v6.groups.expire(now, self.common.rng()) {
            match say {
                Say::Report(records) => self.send_report(&records),
                Say::OlderReport { group, .. } => self.send_older_v6(&Message::Report { group }),
                Say::OlderLeave { group } => self.send_older_v6(&Message::Done { group }),
            }
        }
    }

    /// Judges a message of listener discovery whose checksum was verified. Only the leader answers the
    /// queries of routers.
    pub(super) fn handle_listeners(
        &mut self,
        now: Instant,
        header: &ipv6::Header,
        bytes: &[u8],
    ) -> Result<(), Reason> {
        let message = mld::parse(bytes).map_err(|_| Reason::Malformed)?;
        // RFC 3810 §5.1.14, RFC 2710 §5: only messages from the link itself count.
        if !header.src.is_link_local() || header.hop_limit != 1 || !self.v6.leader {
            return Err(Reason::NdIgnored);
        }
        let heard = match message {
            Message::Query { version, group, max_response_ms } => {
                let window = Duration::from_millis(max_response_ms.into());
                Heard::Query {
                    version: version + 1,
                    group: Some(group).filter(|group| *group != Addr::ANY),
                    window,
                }
            }
            Message::Report { group } => Heard::Report { group },
            Message::Done { .. } => return Ok(()),
        };
        self.v6.groups.handle(now, self.common.rng(), heard);
        Ok(())
    }

    fn send_report(&mut self, records: &[(Addr, Change)]) {
        let records: Vec<(Addr, Record)> = records
            .iter()
            .map(|(group, change)| {
                let record = match change {
                    Change::Joined => Record::Joined,
                    Change::Left => Record::Left,
                    Change::Listening => Record::Listening,
                };
                (*group, record)
            })
            .collect();
        let src = self.listener_source();
        let mut text = alloc::vec![0; mld::report_len(records.len())];
        mld::emit_report(src, &records, &mut text);
        self.send_mld(src, mld::ROUTERS, &text);
    }

    fn send_older_v6(&mut self, message: &Message) {
        let (src, mut text) = (self.listener_source(), [0; mld::LEN_V1]);
        if let Some(dst) = mld::emit_v1(src, message, &mut text) {
            self.send_mld(src, dst, &text);
        }
    }

    /// Returns the source of reports: the unspecified address until the link-local address is sure (RFC 3590
    /// §4).
    fn listener_source(&self) -> Addr {
        let own = self.v6.own.first().filter(|own| matches!(own.state, State::Preferred | State::Deprecated));
        own.map_or(Addr::ANY, |own| own.addr)
    }

    fn send_mld(&mut self, src: Addr, dst: Addr, text: &[u8]) {
        let payload = [&mld::ROUTER_ALERT[..], text].concat();
        if self.send_v6(src, dst, multicast_mac(dst), 1, Protocol(ipv6::HOP_BY_HOP), &payload) {
            self.common.count().listener_reports += 1;
        }
    }
}

#[cfg(test)]
mod tests;

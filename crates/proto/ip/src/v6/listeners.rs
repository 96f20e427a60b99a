//! Which groups do we listen to, and who is told? RFC 3810, the host's part, for the groups that neighbour discovery needs.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use atoll_base::{Addr, Duration, Instant};
use atoll_wire::ipv4::Protocol;
use atoll_wire::ipv6::{self, multicast_mac};
use atoll_wire::mld::{self, Record};
use atoll_wire::nd::solicited_node;

use super::addresses::State;
use crate::counters::Reason;
use crate::ip::Ip;

/// Groups, and what is to be reported about them.
#[derive(Debug)]
pub(super) struct Listeners {
    groups: BTreeSet<Addr>,
    /// Changes that are told once more, because the first report may have been lost.
    changes: Vec<(Addr, Record)>,
    repeat_at: Instant,
    /// When a router's question is answered.
    answer_at: Instant,
}

impl Listeners {
    pub(super) fn new() -> Listeners {
        Listeners {
            groups: BTreeSet::new(),
            changes: Vec::new(),
            repeat_at: Instant::FAR_FUTURE,
            answer_at: Instant::FAR_FUTURE,
        }
    }

    pub(super) fn due(&self) -> Instant {
        self.repeat_at.min(self.answer_at)
    }
}

impl Ip {
    /// The own addresses have changed: joins and leaves solicited-node groups, and tells so twice (RFC 3810 §6.1).
    pub(super) fn listen_to_own(&mut self, now: Instant) {
        let groups: BTreeSet<Addr> = self.v6.own.iter().map(|own| solicited_node(own.addr)).collect();
        let listeners = &mut self.v6.listeners;
        let joined = groups.difference(&listeners.groups).map(|group| (*group, Record::Joined));
        let left = listeners.groups.difference(&groups).map(|group| (*group, Record::Left));
        let changes: Vec<(Addr, Record)> = joined.chain(left).collect();
        listeners.groups = groups;
        if changes.is_empty() || !self.v6.leader {
            return;
        }
        listeners.changes = changes.clone();
        listeners.repeat_at = now + REPEAT_AFTER;
        self.send_report(&changes);
    }

    /// Sends the reports that are due.
    pub(super) fn report_groups(&mut self, now: Instant) {
        let listeners = &mut self.v6.listeners;
        let mut records = Vec::new();
        if listeners.repeat_at <= now {
            listeners.repeat_at = Instant::FAR_FUTURE;
            records.append(&mut listeners.changes);
        }
        if listeners.answer_at <= now {
            listeners.answer_at = Instant::FAR_FUTURE;
            records.extend(listeners.groups.iter().map(|group| (*group, Record::Listening)));
        }
        self.send_report(&records);
    }

    /// A router asks who listens to what: the leader answers, within the time that it gives (RFC 3810 §6.2).
    pub(super) fn handle_query(&mut self, now: Instant, header: &ipv6::Header, bytes: &[u8]) -> Result<(), Reason> {
        let query = mld::parse_query(bytes).map_err(|_| Reason::Malformed)?;
        // RFC 3810 §5.1.14: only what comes from the link itself counts.
        let is_local = header.src.is_link_local() && header.hop_limit == 1;
        let concerns_us = query.group == Addr::ANY || self.v6.listeners.groups.contains(&query.group);
        if !is_local || !concerns_us || !self.v6.leader {
            return Err(Reason::NdIgnored);
        }
        let delay = Duration::from_millis(self.rng.below(query.max_response_ms.max(1)).into());
        let listeners = &mut self.v6.listeners;
        listeners.answer_at = listeners.answer_at.min(now + delay);
        self.v6.rearm();
        Ok(())
    }

    fn send_report(&mut self, records: &[(Addr, Record)]) {
        // RFC 3590 §4: before the link-local address is sure, reports come from nobody.
        let own = self.v6.own.first().filter(|own| matches!(own.state, State::Preferred | State::Deprecated));
        let src = own.map_or(Addr::ANY, |own| own.addr);
        for records in records.chunks(mld::GROUPS_MAX) {
            let mut payload = alloc::vec![0; mld::ROUTER_ALERT.len() + mld::report_len(records.len())];
            let (options, text) = payload.split_at_mut(mld::ROUTER_ALERT.len());
            options.copy_from_slice(&mld::ROUTER_ALERT);
            mld::emit_report(src, records, text);
            let mac = multicast_mac(mld::ROUTERS);
            if self.send_v6(src, mld::ROUTERS, mac, 1, Protocol(ipv6::HOP_BY_HOP), &payload) {
                self.counters.listener_reports += 1;
            }
        }
    }
}

/// RFC 3810 §9.11: the unsolicited report interval is one second.
const REPEAT_AFTER: Duration = Duration::from_millis(1100);

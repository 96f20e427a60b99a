//! Which multicast groups are listened to, and who is told? IGMP as a host speaks it: RFC 3376, and RFC 2236 and RFC 1112 while a router
//! is heard that knows no better.
//!
//! Every replica knows all groups, because every socket is known to every replica. One of them speaks for the stack; the others only
//! listen. Sources are not filtered: to routers a group is wanted from everybody, or not at all.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use atoll_base::{Duration, Instant, Rng};
use atoll_wire::igmp::{self, Kind, Message, Record};
use atoll_wire::ipv4::{self, Protocol};
use atoll_wire::{ParseError, ethernet};

use crate::addresses::{Cast, multicast_mac};
use crate::counters::Reason;
use crate::ip::{Frame, Ip, Link};
use crate::output::HEADERS_LEN;

/// The groups of one replica.
#[derive(Debug)]
pub(crate) struct Groups {
    outside: BTreeMap<u32, Group>,
    /// How many users each group has on the inside link, where there is no router.
    inside: BTreeMap<u32, u32>,
    /// Whether this replica tells routers.
    speaks: bool,
    /// Until when a router of version 1 or 2 may be there (RFC 3376 §7.2.1).
    older: [Option<Instant>; 2],
    /// When a query for all groups is answered.
    answer_at: Option<Instant>,
    due: Option<Instant>,
}

/// A group on the outside link.
#[derive(Debug, Default)]
struct Group {
    /// Memberships of sockets; at 0 it is only still to be said that the group was left.
    users: u32,
    /// How often the news of joining or leaving is still to be told: it may get lost (RFC 3376 §8.1).
    news_left: u8,
    news_at: Option<Instant>,
    /// When a query for this group is answered.
    answer_at: Option<Instant>,
}

/// What is to be said to routers.
#[derive(Debug, PartialEq, Eq)]
enum Say {
    /// A report of version 3.
    Report(Vec<Record>),
    /// A message of an older version, and where it goes.
    Older(Message, u32),
}

impl Groups {
    pub(crate) fn new(speaks: bool) -> Groups {
        let (outside, inside) = (BTreeMap::new(), BTreeMap::new());
        Groups { outside, inside, speaks, older: [None; 2], answer_at: None, due: None }
    }

    /// Whether packets to `group` are wanted. Loop copies of what leaves over the outside link arrive over the inside link.
    pub(crate) fn has(&self, link: Link, group: u32) -> bool {
        let outside = group == igmp::ALL_SYSTEMS || self.outside.get(&group).is_some_and(|group| group.users > 0);
        outside || (link == Link::Inside && self.inside.contains_key(&group))
    }

    fn join(&mut self, now: Instant, link: Link, group: u32) -> bool {
        let has_room = self.inside.len() + self.outside.len() < GROUPS_MAX;
        match link {
            Link::Inside if has_room || self.inside.contains_key(&group) => {
                *self.inside.entry(group).or_default() += 1;
            }
            Link::Outside if has_room || self.outside.contains_key(&group) => {
                let entry = self.outside.entry(group).or_default();
                entry.users += 1;
                if entry.users == 1 && self.speaks && group != igmp::ALL_SYSTEMS {
                    (entry.news_left, entry.news_at) = (ROBUSTNESS, Some(now));
                }
            }
            Link::Inside | Link::Outside => return false,
        }
        self.find_due();
        true
    }

    fn leave(&mut self, now: Instant, link: Link, group: u32) {
        match link {
            Link::Inside => {
                if let Some(users) = self.inside.get_mut(&group) {
                    *users -= 1;
                    if *users == 0 {
                        self.inside.remove(&group);
                    }
                }
            }
            Link::Outside => {
                let Some(entry) = self.outside.get_mut(&group).filter(|entry| entry.users > 0) else { return };
                entry.users -= 1;
                if entry.users == 0 {
                    entry.answer_at = None;
                    if !self.speaks || group == igmp::ALL_SYSTEMS {
                        self.outside.remove(&group);
                    } else {
                        (entry.news_left, entry.news_at) = (ROBUSTNESS, Some(now));
                    }
                }
            }
        }
        self.find_due();
    }

    /// The version that is spoken: that of the oldest router heard of late.
    fn version(&self, now: Instant) -> u8 {
        let is_there = |until: Option<Instant>| until.is_some_and(|until| now < until);
        match self.older {
            [v1, _] if is_there(v1) => 1,
            [_, v2] if is_there(v2) => 2,
            _ => 3,
        }
    }

    fn handle(&mut self, now: Instant, rng: &mut Rng, message: &Message) {
        match *message {
            Message::Query { version, group, max_response } => {
                if let Some(older) = self.older.get_mut(usize::from(version.wrapping_sub(1))) {
                    *older = Some(now + OLDER_QUERIER);
                }
                // At most 31744 tenths of a second.
                let window = Duration::from_millis(u64::from(max_response) * 100);
                let mut answer = |at: &mut Option<Instant>| {
                    let then = now + random(rng, window);
                    *at = Some(at.map_or(then, |at| at.min(then)));
                };
                if group != 0 {
                    if let Some(entry) = self.outside.get_mut(&group).filter(|entry| entry.users > 0) {
                        answer(&mut entry.answer_at);
                    }
                } else if version == 3 {
                    answer(&mut self.answer_at);
                } else {
                    let wanted = self.outside.iter_mut().filter(|(group, entry)| is_told(**group) && entry.users > 0);
                    wanted.for_each(|(_, entry)| answer(&mut entry.answer_at));
                }
            }
            // RFC 2236 §3: one member is enough for a router.
            Message::Report { group, .. } if self.version(now) < 3 => {
                if let Some(entry) = self.outside.get_mut(&group) {
                    entry.answer_at = None;
                }
            }
            Message::Report { .. } | Message::Leave { .. } | Message::Other => {}
        }
        self.find_due();
    }

    /// What is to be said at `now`.
    fn expire(&mut self, now: Instant, rng: &mut Rng) -> Vec<Say> {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        let version = self.version(now);
        let (mut news, mut answers, mut older) = (Vec::new(), Vec::new(), Vec::new());
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let all = is_due(self.answer_at);
        if all {
            self.answer_at = None;
        }
        for (&group, entry) in self.outside.iter_mut().filter(|(group, _)| is_told(**group)) {
            let is_member = entry.users > 0;
            if is_due(entry.news_at) {
                entry.news_left -= 1;
                let interval = if version == 3 { REPORT_INTERVAL_V3 } else { REPORT_INTERVAL_V2 };
                entry.news_at = (entry.news_left > 0).then(|| now + random(rng, interval));
                match (version, is_member) {
                    (3, true) => news.push(Record { kind: Kind::ToExclude, group }),
                    (3, false) => news.push(Record { kind: Kind::ToInclude, group }),
                    (_, true) => older.push(Say::Older(Message::Report { version, group }, group)),
                    (2, false) => older.push(Say::Older(Message::Leave { group }, igmp::ALL_ROUTERS)),
                    _ => {}
                }
            }
            if is_due(entry.answer_at) || (all && is_member) {
                entry.answer_at = None;
                match version {
                    3 => answers.push(Record { kind: Kind::IsExclude, group }),
                    _ => older.push(Say::Older(Message::Report { version, group }, group)),
                }
            }
        }
        self.outside.retain(|_, entry| entry.users > 0 || entry.news_left > 0);
        self.find_due();
        let reports = [news, answers];
        let reports = reports.iter().flat_map(|records| records.chunks(RECORDS_MAX)).map(<[Record]>::to_vec);
        reports.map(Say::Report).chain(older).collect()
    }

    pub(crate) const fn next_timeout(&self) -> Option<Instant> {
        self.due
    }

    fn find_due(&mut self) {
        let groups = self.outside.values().flat_map(|entry| [entry.news_at, entry.answer_at]);
        self.due = groups.chain([self.answer_at]).flatten().min();
    }

    pub(crate) fn check_invariants(&self) {
        assert!(self.outside.len() + self.inside.len() <= GROUPS_MAX);
        assert!(self.speaks || self.due.is_none());
        assert!(self.outside.values().all(|entry| entry.users > 0 || entry.news_left > 0));
        assert!(self.outside.values().all(|entry| entry.news_at.is_some() == (entry.news_left > 0)));
    }
}

impl Ip {
    /// A socket joins `group`: packets to it are taken, and routers are told, if it is the first. `false`: no group, or too many.
    pub fn join_group(&mut self, now: Instant, link: Link, group: u32) -> bool {
        let joined = self.addresses.cast(group) == Some(Cast::Multicast) && self.groups.join(now, link, group);
        self.check_invariants();
        joined
    }

    /// A socket leaves a group that it had joined.
    pub fn leave_group(&mut self, now: Instant, link: Link, group: u32) {
        self.groups.leave(now, link, group);
        self.check_invariants();
    }

    /// Whether a socket is in `group`.
    pub fn is_member(&self, link: Link, group: u32) -> bool {
        self.groups.has(link, group)
    }

    /// Judges an IGMP message. What a router asks is answered by the replica that speaks.
    #[inline(never)]
    pub(crate) fn handle_igmp(
        &mut self,
        now: Instant,
        link: Link,
        header: &ipv4::Header,
        bytes: &[u8],
    ) -> Result<(), Reason> {
        // Every version sends with TTL 1 (RFC 3376 §4); anything else comes from far away.
        if link != Link::Outside || header.ttl != 1 || !self.groups.speaks {
            return Err(Reason::IgmpIgnored);
        }
        let message = igmp::parse(bytes).map_err(|error| match error {
            ParseError::BadChecksum => Reason::BadChecksum,
            _ => Reason::Malformed,
        })?;
        if message == Message::Other {
            return Err(Reason::IgmpIgnored);
        }
        self.groups.handle(now, &mut self.rng, &message);
        Ok(())
    }

    pub(crate) fn expire_groups(&mut self, now: Instant) {
        for say in self.groups.expire(now, &mut self.rng) {
            match say {
                Say::Report(records) => {
                    let mut message = vec![0; igmp::HEADER_LEN + records.len() * igmp::RECORD_LEN];
                    igmp::emit_report(records.into_iter(), &mut message);
                    self.send_igmp(igmp::REPORTS, &message);
                }
                Say::Older(message, dst) => {
                    let mut bytes = [0; igmp::HEADER_LEN];
                    if igmp::emit(&message, &mut bytes).is_some() {
                        self.send_igmp(dst, &bytes);
                    }
                }
            }
        }
    }

    fn send_igmp(&mut self, dst: u32, message: &[u8]) {
        let mut bytes = vec![0; ethernet::HEADER_LEN + igmp::IP_HEADER_LEN];
        let header =
            ethernet::Header { dst: multicast_mac(dst), src: self.config.mac, ethertype: ethernet::EtherType::IPV4 };
        let at = ethernet::emit(&header, &mut bytes);
        let id = self.identify(dst, Protocol::IGMP);
        // RFC 3376 §4.2.13: who has no address yet says so.
        igmp::emit_ip_header(self.addr().unwrap_or(0), dst, id, message.len(), &mut bytes[at..]);
        bytes.extend_from_slice(message);
        if self.queue(Frame { link: Link::Outside, bytes }) {
            self.counters.igmp_out += 1;
        }
    }
}

/// RFC 3376 §5: the group of all systems is never reported.
const fn is_told(group: u32) -> bool {
    group != igmp::ALL_SYSTEMS
}

/// A random part of `window`, down to the millisecond, but not nothing.
fn random(rng: &mut Rng, window: Duration) -> Duration {
    let millis = u32::try_from(window.as_millis()).unwrap_or(u32::MAX).max(1);
    Duration::from_millis(u64::from(1 + rng.below(millis)))
}

/// Groups of one replica at most.
const GROUPS_MAX: usize = 1024;
/// RFC 3376 §8.1.
const ROBUSTNESS: u8 = 2;
/// RFC 3376 §8.11, RFC 2236 §8.10: how long after the first time news is told again, at most.
const REPORT_INTERVAL_V3: Duration = Duration::from_secs(1);
const REPORT_INTERVAL_V2: Duration = Duration::from_secs(10);
/// RFC 3376 §8.12: twice the interval of queries (125 s) and the time to answer (10 s).
const OLDER_QUERIER: Duration = Duration::from_secs(2 * 125 + 10);
/// Groups in one report: what fits into the smallest MTU.
const RECORDS_MAX: usize = (576 - igmp::IP_HEADER_LEN - igmp::HEADER_LEN) / igmp::RECORD_LEN;

const _: () = assert!(HEADERS_LEN < ethernet::HEADER_LEN + igmp::IP_HEADER_LEN);

#[cfg(test)]
mod tests;

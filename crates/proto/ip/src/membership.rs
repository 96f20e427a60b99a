//! Multicast groups: which ones of a family are listened to, and when they are reported to routers (RFC 3376,
//! RFC 3810). An older version is used while queries of a router arrive that has no newer one.
//!
//! IGMP and MLD are one protocol in two formats, which `v4/igmp.rs` and `v6/listeners.rs` read and write.
//! Every replica knows all groups, because every socket is known to every replica. One of them speaks for the
//! stack; the others only listen. Sources are not filtered: reports say that a group is wanted from all
//! sources, or not at all.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use atoll_base::{Duration, Instant, Rng};

use crate::link::Link;

/// The address of a multicast group in one family.
pub(crate) trait Group: Copy + Ord {
    /// The most groups in one report: as many as fit into the smallest MTU.
    const RECORDS_MAX: usize;

    /// Returns whether this is the group that all hosts are in.
    fn is_everybodys(self) -> bool;

    /// Returns whether this group is reported to routers.
    fn is_told(self) -> bool;
}

/// A message of another host. Versions are those of IGMP; those of MLD are one less.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard<A> {
    /// A router asks which hosts are in one group, or in any.
    Query {
        /// The version that the router speaks: 1, 2 or 3.
        version: u8,
        group: Option<A>,
        /// The time within which to answer.
        window: Duration,
    },
    /// Another member has reported the group, with a message of version 1 or 2.
    Report { group: A },
}

/// The statement of a report of version 3 about a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A change: all packets to the group are wanted.
    Joined,
    /// A change: packets to the group are no longer wanted.
    Left,
    /// The answer to a query: all packets to the group are wanted.
    Listening,
}

/// A message to routers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Say<A> {
    /// A report of version 3.
    Report(Vec<(A, Change)>),
    /// A report of version 1 or 2.
    OlderReport { version: u8, group: A },
    /// A message of version 2 that a group was left.
    OlderLeave { group: A },
}

/// The groups of one family of one replica.
#[derive(Debug)]
pub(crate) struct Groups<A> {
    outside: BTreeMap<A, Membership>,
    /// The number of users of each group on the inside link, where there is no router.
    inside: BTreeMap<A, u32>,
    /// Whether this replica reports to routers.
    speaks: bool,
    /// Until when a router of version 1 or 2 may be there (RFC 3376 §7.2.1).
    older: [Option<Instant>; 2],
    /// When to answer a query for all groups.
    answer_at: Option<Instant>,
    /// The earliest time at which something may have to be said.
    due: Option<Instant>,
    /// The number of groups on the outside link that were left and still have to be reported so.
    left: usize,
}

/// The state of a group on the outside link.
#[derive(Debug, Default)]
struct Membership {
    /// The number of users; at 0 the entry only remains to report that the group was left.
    users: u32,
    /// How often joining or leaving is still to be reported; reports may get lost (RFC 3376 §8.1).
    news_left: u8,
    news_at: Option<Instant>,
    /// When to answer a query for this group.
    answer_at: Option<Instant>,
}

impl<A: Group> Groups<A> {
    pub(crate) fn new(speaks: bool) -> Groups<A> {
        let (outside, inside) = (BTreeMap::new(), BTreeMap::new());
        Groups { outside, inside, speaks, older: [None; 2], answer_at: None, due: None, left: 0 }
    }

    /// Returns whether this replica reports to routers.
    pub(crate) const fn speaks(&self) -> bool {
        self.speaks
    }

    /// Makes this replica report to routers from now on; it reports the groups that it is in at once.
    pub(crate) fn speak(&mut self, now: Instant) {
        self.speaks = true;
        for (_, entry) in self.outside.iter_mut().filter(|(group, entry)| group.is_told() && entry.users > 0)
        {
            (entry.news_left, entry.news_at) = (ROBUSTNESS, Some(now));
        }
        self.find_due();
    }

    /// Returns whether packets to `group` are wanted. Loop copies of what leaves over the outside link arrive
    /// over the inside link.
    pub(crate) fn has(&self, link: Link, group: A) -> bool {
        let outside = group.is_everybodys() || self.outside.get(&group).is_some_and(|group| group.users > 0);
        outside || (link == Link::Inside && self.inside.contains_key(&group))
    }

    /// Adds a user of `group`. Returns `false` if there are too many groups.
    pub(crate) fn join(&mut self, now: Instant, link: Link, group: A) -> bool {
        self.join_within(now, link, group, GROUPS_MAX)
    }

    /// Adds the stack itself as a user of `group`; groups of sockets cannot use up its room.
    pub(crate) fn join_for_itself(&mut self, now: Instant, group: A) {
        self.join_within(now, Link::Outside, group, GROUPS_MAX + OWN_GROUPS_MAX);
    }

    fn join_within(&mut self, now: Instant, link: Link, group: A, max: usize) -> bool {
        // A group that was left and only has to be reported does not use up room.
        let has_room = self.inside.len() + self.outside.len() - self.left < max;
        match link {
            Link::Inside if has_room || self.inside.contains_key(&group) => {
                *self.inside.entry(group).or_default() += 1;
            }
            Link::Outside if has_room || self.outside.contains_key(&group) => {
                let entry = self.outside.entry(group).or_default();
                // The group was left just before.
                self.left -= usize::from(entry.users == 0 && entry.news_left > 0);
                entry.users += 1;
                if entry.users == 1 && self.speaks && group.is_told() {
                    (entry.news_left, entry.news_at) = (ROBUSTNESS, Some(now));
                    self.is_due_at(now);
                }
            }
            Link::Inside | Link::Outside => return false,
        }
        true
    }

    /// Notes that something is to be said at `at`. (Without `due`, sockets that join and leave again and
    /// again would have all groups scanned each time.)
    fn is_due_at(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    pub(crate) fn leave(&mut self, now: Instant, link: Link, group: A) {
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
                let Some(entry) = self.outside.get_mut(&group).filter(|entry| entry.users > 0) else {
                    return;
                };
                entry.users -= 1;
                if entry.users == 0 {
                    entry.answer_at = None;
                    // Beyond that limit, routers find out by themselves.
                    if !self.speaks || !group.is_told() || self.left >= LEFT_MAX {
                        self.outside.remove(&group);
                    } else {
                        (entry.news_left, entry.news_at) = (ROBUSTNESS, Some(now));
                        self.left += 1;
                        self.is_due_at(now);
                    }
                }
            }
        }
    }

    /// Returns the groups of sockets on the outside link.
    pub(crate) fn members(&self) -> impl Iterator<Item = A> + '_ {
        self.outside.iter().filter(|(_, entry)| entry.users > 0).map(|(group, _)| *group)
    }

    /// Returns the version to use: that of the oldest router whose query arrived recently.
    fn version(&self, now: Instant) -> u8 {
        let is_there = |until: Option<Instant>| until.is_some_and(|until| now < until);
        match self.older {
            [v1, _] if is_there(v1) => 1,
            [_, v2] if is_there(v2) => 2,
            _ => 3,
        }
    }

    /// Handles a message of another host; only the replica that speaks calls this.
    pub(crate) fn handle(&mut self, now: Instant, rng: &mut Rng, heard: Heard<A>) {
        match heard {
            Heard::Query { version, group, window } => {
                if let Some(older) = self.older.get_mut(usize::from(version.wrapping_sub(1))) {
                    *older = Some(now + OLDER_QUERIER);
                }
                let mut answer = |at: &mut Option<Instant>| {
                    let then = now + random(rng, window);
                    *at = Some(at.map_or(then, |at| at.min(then)));
                };
                if let Some(group) = group {
                    if let Some(entry) = self.outside.get_mut(&group).filter(|entry| entry.users > 0) {
                        answer(&mut entry.answer_at);
                    }
                } else if version == 3 {
                    answer(&mut self.answer_at);
                } else {
                    let wanted =
                        self.outside.iter_mut().filter(|(group, entry)| group.is_told() && entry.users > 0);
                    wanted.for_each(|(_, entry)| answer(&mut entry.answer_at));
                }
            }
            // RFC 2236 §3: one member is enough for a router.
            Heard::Report { group } if self.version(now) < 3 => {
                if let Some(entry) = self.outside.get_mut(&group) {
                    entry.answer_at = None;
                }
            }
            Heard::Report { .. } => {}
        }
        self.find_due();
    }

    /// Returns what is to be said at `now`.
    pub(crate) fn expire(&mut self, now: Instant, rng: &mut Rng) -> Vec<Say<A>> {
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
        for (&group, entry) in self.outside.iter_mut().filter(|(group, _)| group.is_told()) {
            let is_member = entry.users > 0;
            if is_due(entry.news_at) {
                entry.news_left -= 1;
                let interval = if version == 3 { REPORT_INTERVAL_V3 } else { REPORT_INTERVAL_V2 };
                entry.news_at = (entry.news_left > 0).then(|| now + random(rng, interval));
                match (version, is_member) {
                    (3, true) => news.push((group, Change::Joined)),
                    (3, false) => news.push((group, Change::Left)),
                    (_, true) => older.push(Say::OlderReport { version, group }),
                    (2, false) => older.push(Say::OlderLeave { group }),
                    _ => {}
                }
            }
            if is_due(entry.answer_at) || (all && is_member) {
                entry.answer_at = None;
                match version {
                    3 => answers.push((group, Change::Listening)),
                    _ => older.push(Say::OlderReport { version, group }),
                }
            }
        }
        self.outside.retain(|_, entry| entry.users > 0 || entry.news_left > 0);
        self.left = self.outside.values().filter(|entry| entry.users == 0).count();
        self.find_due();
        let reports = [news, answers];
        let reports = reports.iter().flat_map(|records| records.chunks(A::RECORDS_MAX)).map(<[_]>::to_vec);
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
        assert!(self.outside.len() + self.inside.len() - self.left <= GROUPS_MAX + OWN_GROUPS_MAX);
        assert!(self.left <= LEFT_MAX + OWN_GROUPS_MAX);
        assert_eq!(self.left, self.outside.values().filter(|entry| entry.users == 0).count());
        assert!(self.speaks || self.due.is_none());
        assert!(self.outside.values().all(|entry| entry.users > 0 || entry.news_left > 0));
        assert!(self.outside.values().all(|entry| entry.news_at.is_some() == (entry.news_left > 0)));
    }
}

/// Returns a random part of `window`, at least a millisecond.
fn random(rng: &mut Rng, window: Duration) -> Duration {
    let millis = u32::try_from(window.as_millis()).unwrap_or(u32::MAX).max(1);
    Duration::from_millis(u64::from(1 + rng.below(millis)))
}

/// The most groups of one family.
pub(crate) const GROUPS_MAX: usize = 1024;
/// The most groups of the stack itself, in addition to [`GROUPS_MAX`].
const OWN_GROUPS_MAX: usize = 32;
/// The most groups that were left and still have to be reported so. Of further ones, routers find out when no
/// host answers their query.
const LEFT_MAX: usize = 256;
/// How often a change is reported (RFC 3376 §8.1, RFC 3810 §9.1).
const ROBUSTNESS: u8 = 2;
/// The longest time until a change is reported again (RFC 3376 §8.11, RFC 2236 §8.10, RFC 3810 §9.11, RFC
/// 2710 §7.10).
const REPORT_INTERVAL_V3: Duration = Duration::from_secs(1);
const REPORT_INTERVAL_V2: Duration = Duration::from_secs(10);
/// How long an older router is believed to be there: twice the interval of queries (125 s) and the time to
/// answer (10 s) (RFC 3376 §8.12, RFC 3810 §9.12).
const OLDER_QUERIER: Duration = Duration::from_secs(2 * 125 + 10);

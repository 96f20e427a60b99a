//! Which multicast groups of a family are listened to, and when is what said about them? RFC 3376, RFC 3810,
//! and the older versions while a router is heard that knows no better.
//!
//! IGMP and MLD are one protocol in two alphabets: [`crate::groups`] and `v6/listeners.rs` read and write
//! them. Every replica knows all groups, because every socket is known to every replica. One of them speaks
//! for the stack; the others only listen. Sources are not filtered: to routers a group is wanted from
//! everybody, or not at all.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use atoll_base::{Duration, Instant, Rng};

use crate::ip::Link;

/// The address of a group, as one family has it.
pub(crate) trait Group: Copy + Ord {
    /// Groups in one report: what fits into the smallest MTU.
    const RECORDS_MAX: usize;

    /// Whether it is the one that everybody is in.
    fn is_everybodys(self) -> bool;

    /// Whether routers are told of it.
    fn is_told(self) -> bool;
}

/// What somebody else says. Versions are those of IGMP; those of MLD are one less.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard<A> {
    /// A router asks who is in a group, or in any.
    Query {
        /// Of the router: 1, 2 or 3.
        version: u8,
        group: Option<A>,
        /// For how long answers may take.
        window: Duration,
    },
    /// A member has said so, in the words of version 1 or 2.
    Report { group: A },
}

/// What is said of a group in a report of version 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// News: everything to it is wanted.
    Joined,
    /// News: nothing to it is wanted any more.
    Left,
    /// The answer to a query: everything to it is wanted.
    Listening,
}

/// What is to be said to routers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Say<A> {
    /// A report of version 3.
    Report(Vec<(A, Change)>),
    /// One of version 1 or 2.
    OlderReport { version: u8, group: A },
    /// That a group was left, in the words of version 2.
    OlderLeave { group: A },
}

/// The groups of one family of one replica.
#[derive(Debug)]
pub(crate) struct Groups<A> {
    outside: BTreeMap<A, Membership>,
    /// How many users each group has on the inside link, where there is no router.
    inside: BTreeMap<A, u32>,
    /// Whether this replica tells routers.
    pub(crate) speaks: bool,
    /// Until when a router of version 1 or 2 may be there (RFC 3376 §7.2.1).
    older: [Option<Instant>; 2],
    /// When a query for all groups is answered.
    answer_at: Option<Instant>,
    /// When something may be to be said: not later than that.
    due: Option<Instant>,
    /// Groups on the outside link that were left, which is still to be said.
    left: usize,
}

/// A group on the outside link.
#[derive(Debug, Default)]
struct Membership {
    /// Those who want it; at 0 it is only still to be said that the group was left.
    users: u32,
    /// How often the news of joining or leaving is still to be told: it may get lost (RFC 3376 §8.1).
    news_left: u8,
    news_at: Option<Instant>,
    /// When a query for this group is answered.
    answer_at: Option<Instant>,
}

impl<A: Group> Groups<A> {
    pub(crate) fn new(speaks: bool) -> Groups<A> {
        let (outside, inside) = (BTreeMap::new(), BTreeMap::new());
        Groups { outside, inside, speaks, older: [None; 2], answer_at: None, due: None, left: 0 }
    }

    /// From now on this replica tells routers; of what it is in it tells them at once.
    pub(crate) fn speak(&mut self, now: Instant) {
        self.speaks = true;
        for (_, entry) in self.outside.iter_mut().filter(|(group, entry)| group.is_told() && entry.users > 0) {
            (entry.news_left, entry.news_at) = (ROBUSTNESS, Some(now));
        }
        self.find_due();
    }

    /// Whether packets to `group` are wanted. Loop copies of what leaves over the outside link arrive over
    /// the inside link.
    pub(crate) fn has(&self, link: Link, group: A) -> bool {
        let outside = group.is_everybodys() || self.outside.get(&group).is_some_and(|group| group.users > 0);
        outside || (link == Link::Inside && self.inside.contains_key(&group))
    }

    /// A socket joins. `false`: there are too many groups.
    pub(crate) fn join(&mut self, now: Instant, link: Link, group: A) -> bool {
        self.join_within(now, link, group, GROUPS_MAX)
    }

    /// The stack itself joins, which sockets cannot keep it from.
    pub(crate) fn join_for_itself(&mut self, now: Instant, group: A) {
        self.join_within(now, Link::Outside, group, GROUPS_MAX + OWN_GROUPS_MAX);
    }

    fn join_within(&mut self, now: Instant, link: Link, group: A, max: usize) -> bool {
        // What was left, and is still to be said, takes nobody's place.
        let has_room = self.inside.len() + self.outside.len() - self.left < max;
        match link {
            Link::Inside if has_room || self.inside.contains_key(&group) => {
                *self.inside.entry(group).or_default() += 1;
            }
            Link::Outside if has_room || self.outside.contains_key(&group) => {
                let entry = self.outside.entry(group).or_default();
                // It was left just before.
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

    /// Something is to be said at `at`. (Whoever joins and leaves again and again would otherwise have all
    /// groups looked at each time.)
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
                let Some(entry) = self.outside.get_mut(&group).filter(|entry| entry.users > 0) else { return };
                entry.users -= 1;
                if entry.users == 0 {
                    entry.answer_at = None;
                    // Beyond that, routers find out by themselves.
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

    /// The groups of sockets on the outside link.
    pub(crate) fn members(&self) -> impl Iterator<Item = A> + '_ {
        self.outside.iter().filter(|(_, entry)| entry.users > 0).map(|(group, _)| *group)
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

    /// What a replica that speaks hears.
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
                    let wanted = self.outside.iter_mut().filter(|(group, entry)| group.is_told() && entry.users > 0);
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

    /// What is to be said at `now`.
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

/// A random part of `window`, down to the millisecond, but not nothing.
fn random(rng: &mut Rng, window: Duration) -> Duration {
    let millis = u32::try_from(window.as_millis()).unwrap_or(u32::MAX).max(1);
    Duration::from_millis(u64::from(1 + rng.below(millis)))
}

/// Groups of one family at most.
pub(crate) const GROUPS_MAX: usize = 1024;
/// Those of the stack itself, beside them.
const OWN_GROUPS_MAX: usize = 32;
/// Groups that were left and of which routers are still to be told. What is left beyond that they find out
/// when nobody answers their query.
const LEFT_MAX: usize = 256;
/// RFC 3376 §8.1, RFC 3810 §9.1.
const ROBUSTNESS: u8 = 2;
/// RFC 3376 §8.11, RFC 2236 §8.10, RFC 3810 §9.11, RFC 2710 §7.10: how long after the first time news is told
/// again, at most.
const REPORT_INTERVAL_V3: Duration = Duration::from_secs(1);
const REPORT_INTERVAL_V2: Duration = Duration::from_secs(10);
/// RFC 3376 §8.12, RFC 3810 §9.12: twice the interval of queries (125 s) and the time to answer (10 s).
const OLDER_QUERIER: Duration = Duration::from_secs(2 * 125 + 10);

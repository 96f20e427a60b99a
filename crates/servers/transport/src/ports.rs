//! Chooses the local port of a connection, which is nearly always a random one that is free. If most ports
//! towards a destination are in use, examining all of them takes longer than a round may: they are examined
//! in slices, and the results are kept.
//!
//! ```text
//!   some ports from a random one on     one is free: it is taken; or else one in TIME-WAIT that may be
//!                                       used again
//!   none: a search over several rounds  each port in use is taken out of those that are still to be tried
//!   a connection ends                   its port is put back
//!   none is left to be tried            none is free: EADDRNOTAVAIL, and the next connect(2) fails at once
//! ```
//! The command stays on its ring until the result is known. Linux examines all ports at once
//! (`__inet_hash_connect`).

use alloc::collections::{BTreeMap, BTreeSet};

use atoll_base::{BitSet, Endpoint, Instant};
use atoll_ipc::Cause;

use crate::names::Name;

/// The number of ports found in TIME-WAIT before one of them is taken.
const REUSE_TRIES: u32 = 64;
/// The number of ports that one command examines in one round.
const LOOKS: u32 = 128;
/// The number of destinations whose searches are kept. Each search takes as many bits as there are ports.
const SEARCHES_MAX: usize = 64;

/// The reason for which there is no port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPort {
    /// The result is not known yet. The command is carried out again in the next round.
    Unknown,
    /// The command fails with this cause.
    Refused(Cause),
}

impl NoPort {
    /// Returns the reason that no port is free.
    pub(crate) const fn none() -> NoPort {
        NoPort::Refused(Cause::AddressNotAvailable)
    }
}

impl From<Cause> for NoPort {
    fn from(cause: Cause) -> NoPort {
        NoPort::Refused(cause)
    }
}

/// The ends of a connection as an application asks for them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The lease of the local port, if that is not 0.
    pub(crate) lease: u64,
    pub(crate) local: Endpoint,
    pub(crate) remote: Endpoint,
    /// The first and the last port of which one is chosen if the local port is 0.
    pub(crate) range: (u16, u16),
}

/// Returns the part of the ephemeral ports that an application asks for. As on Linux, an end that is outside
/// of them does not count (inet_sk_get_local_port_range).
pub(crate) fn within((first, last): (u16, u16), asked: (u16, u16)) -> (u16, u16) {
    let is_inside = |port: u16| (first..=last).contains(&port);
    (if is_inside(asked.0) { asked.0 } else { first }, if is_inside(asked.1) { asked.1 } else { last })
}

/// The state of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The port is free.
    Free,
    /// The port is in TIME-WAIT, and may be used again.
    Reusable,
    /// The port is in TIME-WAIT, and may be used again from this moment on.
    ReusableAt(Instant),
    /// The port is used, until its user ends.
    Used,
    /// Packets to the port reach another replica.
    Elsewhere,
}

/// The searches for ports, by destination and range of ports.
#[derive(Debug, Default)]
pub(crate) struct Searches {
    searches: BTreeMap<(Name, Range), Search>,
    /// A counter that grows with each use.
    uses: u64,
}

/// The first and the last port that may be chosen.
type Range = (u16, u16);

/// The results of the search for a port towards one destination.
#[derive(Debug)]
pub(crate) struct Search {
    /// The first port of the range, and how many ports it has.
    first: u16,
    ports: u32,
    /// The ports, counted from the first one, that may be free. The others are not, unless they are among
    /// `later`.
    untried: BitSet,
    /// The ports that may be used again later, and when.
    later: BTreeSet<(Instant, u32)>,
    /// The number of its last use.
    used: u64,
}

impl Search {
    /// Moves ports whose time has come back to those to be tried, some of them at once. Returns whether that
    /// was all.
    fn wake(&mut self, now: Instant) -> bool {
        for _ in 0..LOOKS {
            match self.later.first() {
                Some(&(due, port)) if due <= now => {
                    self.later.pop_first();
                    self.untried.insert(port);
                }
                _ => return true,
            }
        }
        false
    }

    /// Examines some of the ports that may be free, from the `start`th of the range on. Returns one that can
    /// be used.
    pub(crate) fn go_on(
        &mut self,
        now: Instant,
        start: u32,
        mut look: impl FnMut(u16) -> Found,
    ) -> Result<u16, NoPort> {
        let is_awake = self.wake(now);
        let (mut next, mut in_time_wait, mut reusable) = (start, None, 0);
        for _ in 0..LOOKS {
            let Some(nth) = self.untried.next(next).filter(|_| reusable < REUSE_TRIES) else {
                return in_time_wait.ok_or(if is_awake { NoPort::none() } else { NoPort::Unknown });
            };
            // Cannot truncate: the range ends with a port.
            let port = self.first + nth as u16;
            match look(port) {
                // It stays in the set, in case the connection does not come into being.
                Found::Free => return Ok(port),
                Found::Reusable => {
                    in_time_wait = in_time_wait.or(Some(port));
                    reusable += 1;
                    self.later.insert((now, nth));
                }
                Found::ReusableAt(due) => {
                    self.later.insert((due, nth));
                }
                Found::Used | Found::Elsewhere => {}
            }
            self.untried.remove(nth);
            next = nth + 1;
        }
        in_time_wait.ok_or(NoPort::Unknown)
    }
}

/// Examines some ports of a range (first one, and count) from the `start`th on, around its end. Most are
/// free, and one of every few steers replies here.
pub(crate) fn choose_at_random(
    (first, count): (u16, u32),
    start: u32,
    mut look: impl FnMut(u16) -> Found,
) -> Option<u16> {
    let mut in_time_wait = None;
    for nth in 0..count.min(LOOKS) {
        // Cannot truncate: the range ends with a port.
        let port = first + ((start + nth) % count) as u16;
        match look(port) {
            Found::Free => return Some(port),
            Found::Reusable => in_time_wait = in_time_wait.or(Some(port)),
            Found::ReusableAt(_) | Found::Used | Found::Elsewhere => {}
        }
    }
    in_time_wait
}

impl Searches {
    /// Takes out the search for this destination among these ports, or begins one. If there are too many
    /// then, the one that was not used for longest is forgotten.
    pub(crate) fn take(&mut self, destination: &Name, range: Range) -> Search {
        self.uses += 1;
        let used = self.uses;
        match self.searches.remove(&(*destination, range)) {
            Some(search) => Search { used, ..search },
            None => {
                if self.searches.len() >= SEARCHES_MAX {
                    let oldest =
                        self.searches.iter().min_by_key(|(_, search)| search.used).map(|(key, _)| *key);
                    oldest.map(|oldest| self.searches.remove(&oldest));
                }
                let (first, ports) = (range.0, u32::from(range.1.saturating_sub(range.0)) + 1);
                let untried = BitSet::full(ports);
                Search { first, ports, untried, later: BTreeSet::new(), used }
            }
        }
    }

    /// Keeps the state of a search.
    pub(crate) fn put(&mut self, destination: Name, search: Search) {
        // Cannot truncate: the range ends with a port.
        let range = (search.first, search.first + (search.ports - 1) as u16);
        self.searches.insert((destination, range), search);
    }

    /// Returns whether there is a search for this destination among these ports.
    pub(crate) fn has(&self, destination: &Name, range: Range) -> bool {
        self.searches.contains_key(&(*destination, range))
    }

    /// Notes that the connection, or the record of TIME-WAIT, with this name is gone.
    #[inline]
    pub(crate) fn give_back(&mut self, name: &Name) {
        if self.searches.is_empty() {
            return;
        }
        let destination = name.destination();
        let all = (destination, (0, 0))..=(destination, (u16::MAX, u16::MAX));
        for search in self.searches.range_mut(all).map(|(_, search)| search) {
            let nth = name.local_port().checked_sub(search.first).map(u32::from);
            if let Some(nth) = nth.filter(|nth| *nth < search.ports) {
                search.untried.insert(nth);
            }
        }
    }

    /// Returns the number of searches.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.searches.len()
    }

    /// Forgets all searches.
    pub(crate) fn forget_all(&mut self) {
        self.searches.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn a_search_tries_each_port_once_and_those_that_come_back_again() {
        let mut searches = Searches::default();
        let destination = Name::default();
        let mut search = searches.take(&destination, (1000, 1199));
        let mut tried = Vec::new();
        let all_used = |port: u16, tried: &mut Vec<u16>| {
            tried.push(port);
            Found::Used
        };
        assert_eq!(search.go_on(Instant::ZERO, 50, |port| all_used(port, &mut tried)), Err(NoPort::Unknown));
        assert_eq!(search.go_on(Instant::ZERO, 50, |port| all_used(port, &mut tried)), Err(NoPort::none()));
        tried.sort_unstable();
        assert!(tried.iter().copied().eq(1000..1200), "each port once");
        searches.put(destination, search);
        assert!(searches.has(&destination, (1000, 1199)) && !searches.has(&destination, (1000, 1198)));
        let mut search = searches.take(&destination, (1000, 1199));
        assert_eq!(search.go_on(Instant::ZERO, 0, |_| Found::Free), Err(NoPort::none()), "nothing came back");
        search.untried.insert(7);
        assert_eq!(search.go_on(Instant::ZERO, 0, |_| Found::Free), Ok(1007));
    }
}

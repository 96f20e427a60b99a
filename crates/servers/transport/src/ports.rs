//! Which local port does a connection get? Nearly always a random one that is free. Where most ports towards a destination are in use, looking at all
//! of them takes longer than a round may: they are looked at in slices, and what was found is kept.
//!
//! ```text
//!   some ports from a random one on          one is free: that is it; or else one in TIME-WAIT that may be used again
//!   none: a search, over several rounds      each port that is in use is taken out of those that are still to be tried
//!   a connection ends                        its port is put back
//!   none is left to be tried                 none is free: EADDRNOTAVAIL, and the next connect(2) is told so at once
//! ```
//! The command stays on its ring until it is known. Linux looks at all ports in one go (`__inet_hash_connect`).

use alloc::collections::{BTreeMap, BTreeSet};

use atoll_base::{Addr, BitSet, Duration, Endpoint, FourTuple, Instant};
use atoll_ipc::{Cause, Memory};

use crate::flows::Name;
use crate::transport::Transport;

/// A port in TIME-WAIT is taken again after this time, if few others are free: timestamps tell the connections apart (RFC 6191;
/// Linux's `tcp_tw_reuse`).
const REUSE_AFTER: Duration = Duration::from_secs(1);
/// Ports found in TIME-WAIT before one of them is taken.
const REUSE_TRIES: u32 = 64;
/// Ports that one command looks at in one round.
const LOOKS: u32 = 128;
/// What a look at one of our own costs, in the units of [`crate::commands::cost`]: some cache misses.
const LOOK_COST: u32 = 4;
/// Destinations of which searches are kept. Each takes as many bits as there are ports.
const SEARCHES_MAX: usize = 64;

/// Why there is no port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPort {
    /// It is not known yet. The command is carried out again in the next round.
    Unknown,
    /// It will not get one.
    Refused(Cause),
}

impl From<Cause> for NoPort {
    fn from(cause: Cause) -> NoPort {
        NoPort::Refused(cause)
    }
}

/// What a look at a port has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Free,
    /// In TIME-WAIT, and may be used again.
    Reusable,
    /// In TIME-WAIT, and may be used again from then on.
    ReusableAt(Instant),
    /// Until whatever uses it ends.
    Used,
    /// Packets to it reach another replica.
    Elsewhere,
}

/// Searches for ports, by destination.
#[derive(Debug, Default)]
pub(crate) struct Searches {
    searches: BTreeMap<Name, Search>,
    /// Grows with each use.
    uses: u64,
}

/// What is known of the ports towards one destination.
#[derive(Debug)]
struct Search {
    /// The first port of the range.
    first: u16,
    /// Ports, counted from the first one, that may be free. The others are not, unless they are among `later`.
    untried: BitSet,
    /// When which of them may be used again.
    later: BTreeSet<(Instant, u32)>,
    /// The number of its last use.
    used: u64,
}

impl Search {
    /// Ports whose time has come are to be tried again: some of them in one go. `true`: that was all.
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
}

impl Searches {
    /// The search for this destination goes on, or begins: then the one that was not needed for longest is forgotten, should there be too many.
    fn take(&mut self, destination: &Name, first: u16, ports: u32) -> Search {
        self.uses += 1;
        let used = self.uses;
        match self.searches.remove(destination) {
            Some(search) => Search { used, ..search },
            None => {
                if self.searches.len() >= SEARCHES_MAX {
                    let oldest = self.searches.iter().min_by_key(|(_, search)| search.used).map(|(name, _)| *name);
                    oldest.map(|oldest| self.searches.remove(&oldest));
                }
                Search { first, untried: BitSet::full(ports), later: BTreeSet::new(), used }
            }
        }
    }

    /// What had this name - a connection, or a record of TIME-WAIT - is gone.
    #[inline]
    pub(crate) fn give_back(&mut self, name: &Name) {
        if !self.searches.is_empty()
            && let Some(search) = self.searches.get_mut(&name.destination())
            && let Some(port) = name.local_port().checked_sub(search.first)
        {
            search.untried.insert(port.into());
        }
    }

    /// How many there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.searches.len()
    }

    /// Nothing is known any more.
    pub(crate) fn forget_all(&mut self) {
        self.searches.clear();
    }
}

impl<M: Memory> Transport<M> {
    /// A port for a connection between two addresses.
    pub(crate) fn choose_port(&mut self, now: Instant, local: Addr, remote: Endpoint) -> Result<FourTuple, NoPort> {
        let (first, last) = self.config.ephemeral;
        let count = last.checked_sub(first).map_or(0, |range| u32::from(range) + 1);
        if count == 0 {
            return Err(Cause::AddressNotAvailable.into());
        }
        // Cannot truncate: at most `last`.
        let at = |port: u32| FourTuple { local: Endpoint::at(local, first + port as u16), remote };
        let start = self.rng.below(count);
        let destination = self.locals.find(&at(0)).map(|name| name.destination());
        let is_sought = destination.is_some_and(|name| self.searches.searches.contains_key(&name));
        if !is_sought
            && let Some(tuple) = self.choose_at_random(now, (0..count.min(LOOKS)).map(|i| at((start + i) % count)))
        {
            return Ok(tuple);
        }
        let destination = self.name(&at(0)).destination();
        let mut search = self.searches.take(&destination, first, count);
        let chosen = self.search(now, &mut search, start, at);
        self.searches.searches.insert(destination, search);
        chosen
    }

    /// Most are free, and one of every few replies steers here.
    fn choose_at_random(&mut self, now: Instant, tuples: impl Iterator<Item = FourTuple>) -> Option<FourTuple> {
        let mut in_time_wait = None;
        for tuple in tuples {
            match self.look_at_port(now, &tuple) {
                Found::Free => return Some(tuple),
                Found::Reusable => in_time_wait = in_time_wait.or(Some(tuple)),
                Found::ReusableAt(_) | Found::Used | Found::Elsewhere => {}
            }
        }
        in_time_wait
    }

    /// Some of those that may be free are looked at.
    fn search(
        &mut self,
        now: Instant,
        search: &mut Search,
        start: u32,
        at: impl Fn(u32) -> FourTuple,
    ) -> Result<FourTuple, NoPort> {
        let is_awake = search.wake(now);
        let (mut next, mut in_time_wait, mut reusable) = (start, None, 0);
        for _ in 0..LOOKS {
            let Some(port) = search.untried.next(next).filter(|_| reusable < REUSE_TRIES) else {
                let none = if is_awake { NoPort::Refused(Cause::AddressNotAvailable) } else { NoPort::Unknown };
                return in_time_wait.ok_or(none);
            };
            let tuple = at(port);
            match self.look_at_port(now, &tuple) {
                // It may still be, should the connection not come to be.
                Found::Free => return Ok(tuple),
                Found::Reusable => {
                    in_time_wait = in_time_wait.or(Some(tuple));
                    reusable += 1;
                    search.later.insert((now, port));
                }
                Found::ReusableAt(due) => {
                    search.later.insert((due, port));
                }
                Found::Used | Found::Elsewhere => {}
            }
            search.untried.remove(port);
            next = port + 1;
        }
        in_time_wait.ok_or(NoPort::Unknown)
    }

    /// Whether a connection may be opened under this name.
    fn look_at_port(&mut self, now: Instant, tuple: &FourTuple) -> Found {
        if tuple.local.port == 0 || self.owner(tuple) != self.config.replica || tuple.local == tuple.remote {
            return Found::Elsewhere;
        }
        self.extra_cost = self.extra_cost.saturating_add(LOOK_COST);
        if self.find(tuple).is_some() || self.is_postponed(tuple) {
            return Found::Used;
        }
        // What has no name has no record.
        let name = self.locals.find(tuple);
        match name.and_then(|name| self.time_waits.reusable_at(&name, REUSE_AFTER)) {
            None => Found::Free,
            Some(at) if at <= now => Found::Reusable,
            Some(Instant::FAR_FUTURE) => Found::Used,
            Some(at) => Found::ReusableAt(at),
        }
    }

    /// Whether a connection may be opened under a name that its application has chosen.
    pub(crate) fn may_open(&mut self, now: Instant, tuple: &FourTuple) -> bool {
        matches!(self.look_at_port(now, tuple), Found::Free | Found::Reusable)
    }
}

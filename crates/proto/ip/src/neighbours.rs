//! The bounded neighbour cache, which maps addresses to stations, behind ARP (RFC 826, RFC 1122 §2.3.2) and
//! neighbour discovery (RFC 4861 §7.3).
//!
//! ```text
//!                            question or claim of its own
//!       +-----------------------------------------------------------> Stale --------- 1 s in use -------+
//!       |                                                               | progress of TCP, answer       |
//!       |        ask                 answer                             v                               v
//!   (absent) -------> Resolving ----------------------------------> Reachable -- lifetime over,  --> Probing
//!       ^                | 3 tries                                    | ^        in use, or a rival     |  | 3 tries
//!       |                v                     lifetime over, unused  v |     answer, progress of TCP   |  |
//!       +----------- Failed                                       (absent)  +---------------------------+  |
//!                       ^----------------------------------------------------------------------------------+
//! ```
//! A claim that contradicts what is known is not believed at once, because ARP and neighbour discovery prove
//! nothing. The known station is asked first. Only if it does not answer, twice, the *rival* takes its place,
//! and is asked in turn. The known station is used meanwhile. Any sign that our packets arrive counts as an
//! answer (RFC 4861 §7.3.1).

use alloc::vec::Vec;

use atoll_base::{Addr, Duration, Instant};
use atoll_wire::Mac;
use hashbrown::HashTable;

/// An update about a neighbour, from one replica to all others of its stack (N8).
///
/// The replica that saw an ARP packet sends it: a queue of the device delivers each ARP packet to one replica
/// only, which need not be the one that asked. If an update is lost, the others ask for themselves. One that
/// is late or repeated confirms what is known, or is corrected by the next packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourUpdate {
    /// IPv4 address of the neighbour.
    pub addr: u32,
    /// The station of the neighbour.
    pub mac: Mac,
    /// Why the sender believes it.
    pub basis: Basis,
}

/// The reason why a replica passes on what it has learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Basis {
    /// The replica asked for the address, or was asked by the neighbour: all replicas may believe it.
    Learned,
    /// The replica did not ask: only a replica that did may believe it. Otherwise any host could claim
    /// anything, because ARP proves nothing.
    Overheard,
}

/// The neighbour cache. Lookup, insertion and eviction cost O(1) (amortised). Expiry is a scan, at most one
/// per `COALESCE`.
#[derive(Debug)]
pub(crate) struct Neighbours<A = u32> {
    /// The entries, densely packed, in a repeatable but otherwise meaningless order.
    entries: Vec<Entry<A>>,
    /// Positions in `entries`, by keyed hash of the address.
    index: HashTable<u16>,
    key: [u64; 2],
    max: usize,
    /// The neighbour that is never evicted as long as there is another: the gateway.
    keep: Option<A>,
    /// The place where the search for a victim continues (second chance, "clock").
    hand: usize,
    /// The earliest time at which an entry may be due.
    next_due: Instant,
    generation: u64,
}

#[derive(Clone, Debug)]
struct Entry<A> {
    due: Instant,
    /// When `mac` last changed.
    changed_at: Instant,
    /// When the known station was last asked because of a rival.
    contested_at: Instant,
    addr: A,
    mac: Mac,
    /// Another station that claims the address while the known one is asked; [`Mac::ZERO`] if none.
    rival: Mac,
    state: State,
    tries: u8,
    /// Whether the entry was looked up since the hand last passed.
    recently_used: bool,
    /// Whether the entry was looked up since an answer last confirmed it.
    in_use: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// All stations were asked; `mac` has no meaning.
    Resolving,
    /// The neighbour itself has claimed `mac`, and nothing has confirmed it (RFC 4861 §7.3.2: STALE and, in
    /// use, DELAY).
    Stale,
    /// `mac` was confirmed within the lifetime.
    Reachable,
    /// The neighbour is being asked again; `mac` is used meanwhile.
    Probing,
    /// The neighbour did not answer; `mac` has no meaning.
    Failed,
}

/// The result of looking up an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    Known(Mac),
    Resolving,
    Failed,
    Absent,
}

/// The actions that [`Neighbours::expire`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due<A = u32> {
    /// Ask for `addr`: all stations, or only the one that had it.
    Ask { addr: A, of: Mac },
    /// `addr` does not answer.
    Failed { addr: A },
}

/// The result of a claim that `addr` is at `mac`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The claim was believed.
    Learned,
    /// The claim agrees with what is known, and confirms it.
    Confirmed,
    /// The claim contradicts what is known: ask `of`, the known station.
    Ask { of: Mac },
    /// The claim was not believed.
    Ignored,
}

/// An address of either family, as a key of the cache.
pub(crate) trait Key: Copy + Eq {
    /// Returns a hash that spreads addresses well enough and cannot be predicted from outside.
    fn hash(self, key: [u64; 2]) -> u64;
}

impl<A: Key> Neighbours<A> {
    /// Creates an empty cache for `max` neighbours, 1 to 65,535. `keep` is never evicted as long as there is
    /// another. `key` must be secret, so that no host can choose addresses that collide.
    pub(crate) fn new(max: usize, keep: Option<A>, key: [u64; 2]) -> Neighbours<A> {
        Neighbours {
            entries: Vec::new(),
            index: HashTable::new(),
            key,
            max,
            keep,
            hand: 0,
            next_due: Instant::FAR_FUTURE,
            generation: 0,
        }
    }

    /// Forgets all neighbours, because the network has changed.
    pub(crate) fn clear(&mut self, keep: Option<A>) {
        self.entries.clear();
        self.index.clear();
        self.keep = keep;
        self.hand = 0;
        self.next_due = Instant::FAR_FUTURE;
        self.generation += 1;
    }

    /// Returns a number that grows whenever a route may have changed: a neighbour was resolved, moved to
    /// another station, or failed.
    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns when to call [`Neighbours::expire`], if anything is pending.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        (self.next_due != Instant::FAR_FUTURE).then_some(self.next_due)
    }

    /// Returns what is known of `addr`, and marks it as used.
    #[inline]
    pub(crate) fn lookup(&mut self, now: Instant, addr: A) -> Lookup {
        let Some(at) = self.find(addr) else { return Lookup::Absent };
        let Some(entry) = self.entries.get_mut(at) else { return Lookup::Absent };
        entry.recently_used = true;
        if !core::mem::replace(&mut entry.in_use, true) && entry.state == State::Stale {
            entry.due = deadline(now, DELAY);
            self.next_due = self.next_due.min(entry.due);
        }
        match entry.state {
            State::Stale | State::Reachable | State::Probing => Lookup::Known(entry.mac),
            State::Resolving => Lookup::Resolving,
            State::Failed => Lookup::Failed,
        }
    }

    /// Returns the station that is used for `addr` now.
    pub(crate) fn station(&self, addr: A) -> Option<Mac> {
        let entry = self.entries.get(self.find(addr)?)?;
        entry.is_known().then_some(entry.mac)
    }

    /// Returns whether `addr` is known not to answer.
    pub(crate) fn has_failed(&self, addr: A) -> bool {
        self.find(addr).and_then(|at| self.entries.get(at)).is_some_and(|entry| entry.state == State::Failed)
    }

    /// Starts the resolution of an absent `addr`; the caller broadcasts the question. Returns whether another
    /// neighbour was evicted.
    pub(crate) fn resolve(&mut self, now: Instant, addr: A) -> bool {
        let due = deadline(now, RETRY);
        self.insert(Entry {
            due,
            changed_at: now,
            contested_at: Instant::ZERO,
            addr,
            mac: Mac::ZERO,
            rival: Mac::ZERO,
            state: State::Resolving,
            tries: 1,
            recently_used: true,
            in_use: true,
        })
    }

    /// Learns that `addr` itself spoke to this replica or another: takes `mac` if nothing else is known.
    /// Returns what became of the claim, and whether another neighbour was evicted.
    pub(crate) fn learn(&mut self, now: Instant, addr: A, mac: Mac) -> (Claim, bool) {
        if let Some(at) = self.find(addr) {
            return (self.judge(now, at, mac, Asked::No), false);
        }
        let due = deadline(now, LIFETIME);
        let evicted = self.insert(Entry {
            due,
            changed_at: now,
            contested_at: Instant::ZERO,
            addr,
            mac,
            rival: Mac::ZERO,
            state: State::Stale,
            tries: 0,
            recently_used: false,
            in_use: false,
        });
        (Claim::Learned, evicted)
    }

    /// Handles an answer that this replica may never have asked for: it is believed only if this replica
    /// asked.
    pub(crate) fn answer(&mut self, now: Instant, addr: A, mac: Mac) -> Claim {
        self.find(addr).map_or(Claim::Ignored, |at| self.judge(now, at, mac, Asked::Perhaps))
    }

    /// Handles an announcement to all that `addr` is at `mac` (a gratuitous ARP, as after a failover). It
    /// proves nothing, but where it contradicts what is used, the known station is asked.
    pub(crate) fn doubt(&mut self, now: Instant, addr: A, mac: Mac) -> Claim {
        let known = self.find(addr).filter(|at| self.entries.get(*at).is_some_and(Entry::is_known));
        known.map_or(Claim::Ignored, |at| self.judge(now, at, mac, Asked::No))
    }

    /// Notes that packets to `addr` have arrived, as answers on a higher layer show (RFC 4861 §7.3.1). If
    /// `settles`, this also decides against a rival.
    pub(crate) fn progress(&mut self, now: Instant, addr: A, settles: bool) {
        let Some(entry) = self.find(addr).and_then(|at| self.entries.get_mut(at)) else { return };
        entry.recently_used = true;
        let contested = entry.rival != Mac::ZERO;
        // Within a second of a change, the sign may be due to a packet that went to the previous station.
        if entry.is_known() && now.since(entry.changed_at) >= RETRY && (settles || !contested) {
            entry.confirm(now, entry.mac);
            // Unlike an answer, it only comes because the neighbour is in use.
            entry.in_use = true;
            self.next_due = self.next_due.min(entry.due);
        }
    }

    /// Does what is due at `now`: asks again, gives up, forgets. Passes what the caller has to do to `act`.
    pub(crate) fn expire(&mut self, now: Instant, mut act: impl FnMut(Due<A>)) {
        if self.next_due > now {
            return;
        }
        let mut next = Instant::FAR_FUTURE;
        let mut at = 0;
        while let Some(entry) = self.entries.get_mut(at) {
            if entry.due <= now && !entry.renew(now, &mut act, &mut self.generation) {
                // The last entry takes its place, and is checked next.
                self.remove(at);
                continue;
            }
            next = next.min(entry.due);
            at += 1;
        }
        self.next_due = next;
    }

    /// Checks the invariants of the cache; panics if one is broken, which is a bug of the cache.
    pub(crate) fn check_invariants(&self) {
        assert!(self.entries.len() <= self.max);
        assert_eq!(self.entries.len(), self.index.len());
        assert!(self.entries.iter().all(|entry| entry.due >= self.next_due));
    }

    #[inline]
    fn find(&self, addr: A) -> Option<usize> {
        let is_it = |at: &u16| self.entries.get(usize::from(*at)).is_some_and(|entry| entry.addr == addr);
        self.index.find(addr.hash(self.key), is_it).map(|at| usize::from(*at))
    }

    /// Applies a claim about a neighbour that is in the cache. Returns what became of it.
    fn judge(&mut self, now: Instant, at: usize, mac: Mac, asked: Asked) -> Claim {
        let Some(entry) = self.entries.get_mut(at) else { return Claim::Ignored };
        let claim = match entry.state {
            State::Resolving | State::Failed => {
                match asked {
                    Asked::Perhaps => entry.confirm(now, mac),
                    Asked::No => entry.believe(now, mac),
                }
                Claim::Learned
            }
            State::Stale | State::Reachable | State::Probing if entry.mac == mac => {
                // A question or an announcement shows that the station is there, but not that our packets
                // reach it.
                if asked == Asked::Perhaps {
                    entry.confirm(now, mac);
                }
                Claim::Confirmed
            }
            // All stations were asked, because the known one is silent.
            State::Probing if asked == Asked::Perhaps && entry.tries >= TRIES => {
                entry.confirm(now, mac);
                Claim::Learned
            }
            State::Probing => {
                entry.rival = mac;
                Claim::Ignored
            }
            // No host can make us ask more than once a second.
            _ if entry.contested_at != Instant::ZERO && now.since(entry.contested_at) < RETRY => {
                Claim::Ignored
            }
            State::Stale | State::Reachable => {
                entry.state = State::Probing;
                entry.contested_at = now;
                entry.rival = mac;
                entry.tries = 1;
                entry.due = deadline(now, CONTEST_RETRY);
                Claim::Ask { of: entry.mac }
            }
        };
        self.next_due = self.next_due.min(entry.due);
        self.generation += u64::from(claim == Claim::Learned);
        claim
    }

    fn insert(&mut self, entry: Entry<A>) -> bool {
        let evict = self.entries.len() >= self.max;
        if evict {
            self.evict();
        }
        self.next_due = self.next_due.min(entry.due);
        if entry.is_known() {
            self.generation += 1;
        }
        let (key, addr) = (self.key, entry.addr);
        // `max` is at most 65,535, so every position fits.
        let at = self.entries.len() as u16;
        self.entries.push(entry);
        let entries = &self.entries;
        self.index.insert_unique(addr.hash(key), at, |at| entries[usize::from(*at)].addr.hash(key));
        evict
    }

    /// Removes one entry: the first, from the hand on, that was not used since the hand last passed.
    fn evict(&mut self) {
        for _ in 0..2 * self.entries.len() {
            self.hand = (self.hand + 1) % self.entries.len();
            let entry = &mut self.entries[self.hand];
            if !core::mem::take(&mut entry.recently_used) && Some(entry.addr) != self.keep {
                break;
            }
        }
        self.remove(self.hand);
    }

    /// Removes the entry at `at`; the last one takes its place.
    fn remove(&mut self, at: usize) {
        let removed = self.entries.swap_remove(at);
        if let Ok(slot) = self.index.find_entry(removed.addr.hash(self.key), |slot| usize::from(*slot) == at)
        {
            slot.remove();
        }
        if let Some(moved) = self.entries.get(at) {
            let was = self.entries.len();
            if let Some(slot) =
                self.index.find_mut(moved.addr.hash(self.key), |slot| usize::from(*slot) == was)
            {
                *slot = at as u16;
            }
        }
    }
}

impl<A: Copy> Entry<A> {
    /// Returns whether `mac` is used.
    fn is_known(&self) -> bool {
        matches!(self.state, State::Stale | State::Reachable | State::Probing)
    }

    /// Confirms the entry: `mac` has answered.
    fn confirm(&mut self, now: Instant, mac: Mac) {
        if !self.is_known() || self.mac != mac {
            self.changed_at = now;
        }
        (self.mac, self.rival) = (mac, Mac::ZERO);
        self.state = State::Reachable;
        self.tries = 0;
        self.in_use = false;
        self.due = deadline(now, LIFETIME);
    }

    /// Believes `mac`, which has spoken for itself while no other was known and a packet waits for it.
    fn believe(&mut self, now: Instant, mac: Mac) {
        self.confirm(now, mac);
        self.state = State::Stale;
        self.in_use = true;
        self.due = deadline(now, DELAY);
    }

    /// Does what is to be done when the entry is due. Returns whether the entry stays.
    fn renew(&mut self, now: Instant, act: &mut impl FnMut(Due<A>), generation: &mut u64) -> bool {
        match self.state {
            State::Failed => return false,
            State::Stale | State::Reachable if !self.in_use => return false,
            State::Stale | State::Reachable => {
                self.state = State::Probing;
                self.tries = 1;
                act(Due::Ask { addr: self.addr, of: self.mac });
            }
            // The known station is silent: the rival that claims its address is used now, and asked.
            State::Probing if self.rival != Mac::ZERO && self.tries >= CONTEST_TRIES => {
                self.mac = core::mem::replace(&mut self.rival, Mac::ZERO);
                self.tries = 1;
                self.changed_at = now;
                *generation += 1;
                act(Due::Ask { addr: self.addr, of: self.mac });
            }
            State::Resolving | State::Probing if self.tries >= TRIES => {
                self.state = State::Failed;
                *generation += 1;
                act(Due::Failed { addr: self.addr });
            }
            State::Resolving => {
                self.tries += 1;
                act(Due::Ask { addr: self.addr, of: Mac::BROADCAST });
            }
            State::Probing => {
                // RFC 1122 §2.3.2.1 (2) asks the known station; the last try asks all hosts, one of which may
                // know a new station.
                self.tries += 1;
                let of = if self.tries == TRIES { Mac::BROADCAST } else { self.mac };
                act(Due::Ask { addr: self.addr, of });
            }
        }
        let contested = self.state == State::Probing && self.rival != Mac::ZERO;
        self.due = deadline(now, if contested { CONTEST_RETRY } else { RETRY });
        true
    }
}

/// Whether a claim may be the answer to a question of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Perhaps,
    No,
}

/// The time between two questions (RFC 1122 §2.3.2.1: at most one a second), and how long a failure is
/// remembered.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// The number of questions before a neighbour counts as unreachable.
pub(crate) const TRIES: u8 = 3;

/// The number of questions to the known station before a rival takes its place. Times `CONTEST_RETRY`, this
/// is how long packets go to a dead station after a failover that was announced.
const CONTEST_TRIES: u8 = 2;
const CONTEST_RETRY: Duration = Duration::from_millis(300);

/// How long a station that has only spoken for itself is used before it is asked, unless something confirms
/// it meanwhile. DEVIATION: RFC 4861 §10 has 5 s (DELAY_FIRST_PROBE_TIME), for which a lie would be believed.
const DELAY: Duration = Duration::from_secs(1);

/// How long an answer is believed (RFC 1122 §2.3.2.1 suggests a minute).
pub(crate) const LIFETIME: Duration = Duration::from_secs(60);

/// Deadlines are rounded up to this many nanoseconds (about 67 ms), which bounds the number of scans.
const COALESCE: u64 = 1 << 26;

fn deadline(now: Instant, after: Duration) -> Instant {
    Instant::from_nanos((now + after).as_nanos().checked_next_multiple_of(COALESCE).unwrap_or(u64::MAX - 1))
}

impl Key for u32 {
    /// Hashes by multiply-shift with a secret multiplier.
    #[inline]
    fn hash(self, key: [u64; 2]) -> u64 {
        let product = (u64::from(self) ^ key[0]).wrapping_mul(key[1] | 1);
        product ^ (product >> 32)
    }
}

impl Key for Addr {
    /// Hashes each half by multiply-shift; the hash of the first half enters that of the second.
    #[inline]
    fn hash(self, key: [u64; 2]) -> u64 {
        let [high, low] = self.to_u64s();
        let product = (high ^ key[0]).wrapping_mul(key[1] | 1);
        let product = (low ^ product ^ (product >> 32)).wrapping_mul(key[0] | 1);
        product ^ (product >> 32)
    }
}

#[cfg(test)]
mod tests;

//! Limits an application's buffers when they are nearly used up. Peers that read slowly, or send what cannot
//! be put in order, hold memory.
//!
//! The send and receive areas of a session bound what all its connections together may hold. Long before they
//! are full, every connection gets less; when they are full, connections that hold much without progress go
//! first (Linux: `tcp_mem`, `tcp_prune_ofo_queue`, `tcp_max_orphans`).
//!
//! ```text
//!   0 ------------------------- 3/4 -------------------- 15/16 ------ full
//!     buffers grow as they like  |  buffers are small and |  text out of order is dropped;
//!                                |  do not grow           |  after 10 s the largest idle ones are reset
//! ```
//! The same holds for the memory of the stack as a whole. The supervisor reports its level (`MemoryLevel`),
//! and how much all receive buffers of a replica together may take. Memory that was touched counts until it
//! is given back, which happens while it is short. The supervisor's levels and the replica's own accounts
//! mean the same: at `Pressure` every session is treated as one that is nearly full, at `High` as one that is
//! full. At `High` nothing is opened or accepted, and after a second the largest connections without progress
//! are reset, orphans first, until there is room.
//!
//! A session that holds less than a sixteenth of everything, or of what may be held (a *modest* one), is not
//! the cause of the shortage, and its end would be no help. So it may open and accept some connections, and
//! keeps those that make no progress for want of a processor, as long as another session has something to
//! give.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::sync::atomic::Ordering;

use atoll_base::{Duration, Instant, SessionId};
use atoll_connmgr::{ConnMgr, ListenerId};
use atoll_ipc::control::MemoryLevel;
use atoll_ipc::page::Stat;
use atoll_ipc::{Cause, Memory};

use crate::applications::Applications;
use crate::connections::Connections;
use crate::entry::{Entry, Flags, Stage};
use crate::holding::{Area, Fill, Holding, Pressure};
use crate::rings::Rings;
use crate::session::{Books, Occupant, Session};
use crate::stats::Stats;

/// The memory pressure of all sessions together.
#[derive(Debug)]
pub(crate) struct Shortage {
    /// When buffers are examined next.
    look_at: Instant,
    /// The level that the supervisor has reported.
    told: MemoryLevel,
    /// The level at the last look, the own accounts included.
    level: MemoryLevel,
    books: Arc<Books>,
    /// Since when the level is `High`, and what each connection held then.
    high: Option<(Instant, Vec<Holding>)>,
    /// Whether memory is to be given back after the next commit: until then a successor may need what it
    /// contains.
    discards: bool,
    /// The connections of modest sessions that have begun since the last look although the level is `High`.
    begun: u32,
}

impl Shortage {
    /// Creates the state of a stack that has plenty of memory.
    pub(crate) fn new() -> Shortage {
        Shortage {
            look_at: Instant::ZERO,
            told: MemoryLevel::default(),
            level: MemoryLevel::default(),
            books: Arc::default(),
            high: None,
            discards: false,
            begun: 0,
        }
    }

    /// Returns the accounts of all sessions, for a new one.
    pub(crate) fn books(&self) -> Arc<Books> {
        self.books.clone()
    }

    /// Returns the level by the accounts, or that of the supervisor, if it is worse.
    fn now(&self) -> MemoryLevel {
        let (held, max) = (self.books.held.load(Ordering::Relaxed), self.books.max.load(Ordering::Relaxed));
        let own = match () {
            () if held >= max / 16 * 15 => MemoryLevel::High,
            () if held >= max / 4 * 3 => MemoryLevel::Pressure,
            () => MemoryLevel::Plenty,
        };
        own.max(self.told)
    }

    /// Returns the octets below which a session is no cause of a shortage.
    fn share(&self) -> u64 {
        let (held, max) = (self.books.held.load(Ordering::Relaxed), self.books.max.load(Ordering::Relaxed));
        let may_be_held = if max == u64::MAX { 0 } else { max };
        (held.max(may_be_held) / MODEST_PART).max(MODEST)
    }

    /// Returns whether sessions are to be examined.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.look_at
    }

    /// Examines all sessions, from time to time. This is cheap without a shortage: two words of each.
    pub(crate) fn look_after<M: Memory>(&mut self, now: Instant, mut holders: Holders<'_, M>) {
        self.look_at = now + LOOK_INTERVAL;
        let level = self.now();
        (self.level, self.begun) = (level, 0);
        self.discards |= level > MemoryLevel::Plenty;
        let mut pressed = 0;
        for place in holders.applications.places() {
            let Some(session) = holders.applications.get_mut(place) else { continue };
            let (send, receive) = (session.send_fill(), session.receive_fill());
            let is_short = level > MemoryLevel::Plenty;
            session.pressure.send = send.is_high() || is_short;
            session.pressure.receive = receive.is_high() || is_short;
            let is_full = send.is_full() || receive.is_full();
            if !is_full {
                session.pressure.full = None;
            }
            if send.is_high() || receive.is_high() || is_short {
                pressed += 1;
                holders.shrink_buffers(place);
                holders.release_shed(place);
            }
            if receive.is_full() || level == MemoryLevel::High {
                holders.prune(now, place);
            }
            if is_full {
                holders.shed(now, place);
            }
        }
        holders.stats.set(Stat::Pressured, pressed);
        self.shed_from_all(now, &mut holders);
    }

    /// Sets the level of the stack's memory that the supervisor reports, and how many octets all receive
    /// buffers here may take.
    pub(crate) fn set_memory(&mut self, now: Instant, level: MemoryLevel, buffers_max: u64) {
        self.told = level;
        self.books.max.store(buffers_max, Ordering::Relaxed);
        if self.now() != self.level {
            self.look_at = now;
        }
    }

    /// Returns how many octets of receive buffers the kernel has given memory for.
    pub(crate) fn receive_buffers(&self) -> u64 {
        self.books.held.load(Ordering::Relaxed)
    }

    /// Returns whether a session may begin something new, which then counts as begun.
    pub(crate) fn may_connect<M: Memory>(&mut self, applications: &Applications<M>, place: u32) -> bool {
        self.may_begin(|shortage| shortage.is_modest(applications, place))
    }

    /// Returns whether a connection may begin for a listener: one of the sessions that hold it has to be
    /// allowed to.
    pub(crate) fn may_accept<M: Memory>(
        &mut self,
        applications: &Applications<M>,
        cm: &ConnMgr,
        listener: ListenerId,
    ) -> bool {
        self.may_begin(|shortage| {
            let place = |session: SessionId| applications.place_of(session);
            let mut listening = cm.holders(listener).take(HOLDERS_LOOKED_AT).filter_map(place);
            listening.any(|place| shortage.is_modest(applications, place))
        })
    }

    fn may_begin(&mut self, is_modest: impl Fn(&Shortage) -> bool) -> bool {
        if self.level < MemoryLevel::High {
            return true;
        }
        let may = self.begun < BEGINNERS_MAX && is_modest(self);
        self.begun += u32::from(may);
        may
    }

    /// Returns whether a session holds little of what is held, or may be held, in all.
    fn is_modest<M: Memory>(&self, applications: &Applications<M>, place: u32) -> bool {
        applications.get(place).is_some_and(|session| session.memory().held() < self.share())
    }

    /// Gives free memory back to the kernel, once no record names it any more.
    #[inline]
    pub(crate) fn discard_if_due<M: Memory>(&mut self, applications: &Applications<M>) {
        if core::mem::take(&mut self.discards) {
            applications.iter().for_each(Session::discard_free);
        }
    }

    /// Resets connections without progress, of any session, while the memory of all is used up.
    fn shed_from_all<M: Memory>(&mut self, now: Instant, holders: &mut Holders<'_, M>) {
        if self.level < MemoryLevel::High {
            self.high = None;
            return;
        }
        let Some((since, before)) = self.high.take() else {
            self.high = Some((now, holders.all_holdings()));
            return;
        };
        if now.since(since) < SHED_FROM_ALL_AFTER {
            self.high = Some((since, before));
            return;
        }
        let held: u64 = before.iter().map(|held| held.octets).sum();
        // The memory that was held is being given back, or has another owner: no connection's end would help.
        if held < self.share() {
            self.discards = true;
            self.high = Some((now, holders.all_holdings()));
            return;
        }
        let (modest, others): (Vec<_>, Vec<_>) = before.into_iter().partition(|held| {
            let place = holders.entry_of(held).and_then(|entry| entry.place);
            place.is_some_and(|place| self.is_modest(holders.applications, place.session))
        });
        // If all are modest, the largest one goes.
        holders.shed_idle(if others.is_empty() { modest } else { others }, held / SHED_PART);
        self.discards = true;
        self.high = Some((now, holders.all_holdings()));
    }

    /// Schedules a check at once, unless there was one just now, because there was no room for text that has
    /// arrived.
    pub(crate) fn look_soon(&mut self, now: Instant) {
        if self.look_at.since(now) < LOOK_INTERVAL - LOOK_AGAIN {
            self.look_at = now;
        }
    }

    /// Returns when [`Shortage::look_after`] is wanted although nothing happens.
    pub(crate) fn next_look<M: Memory>(&self, applications: &Applications<M>) -> Option<Instant> {
        let is_pressed = |session: &Session<M>| session.pressure.send || session.pressure.receive;
        let is_due = self.level > MemoryLevel::Plenty || self.now() != self.level;
        (is_due || applications.iter().any(is_pressed)).then_some(self.look_at)
    }
}

/// The parts that hold memory, and can be made to give some of it back.
pub(crate) struct Holders<'a, M: Memory> {
    pub(crate) connections: &'a mut Connections,
    pub(crate) applications: &'a mut Applications<M>,
    pub(crate) stats: &'a mut Stats,
}

impl<M: Memory> Holders<'_, M> {
    /// Returns the connection that held it, unless another one has its place by now. A new one between the
    /// same ends is not recognised as another: its positions are lower.
    fn entry_of(&self, held: &Holding) -> Option<&Entry> {
        self.connections.get(held.index).filter(|entry| entry.name == held.name)
    }

    /// Returns how far the peer has acknowledged the text, or the application has read it; `None` if that is
    /// all text there is.
    fn position_in_text(&self, entry: &Entry, area: Area) -> Option<u64> {
        let connection = &entry.connection;
        let (position, end) = match area {
            Area::Send => (connection.send_una(), connection.send_tail()),
            Area::Receive => {
                // The library reports only what opens the window; what it has read since then is in the slot.
                let place = entry.place.filter(|_| entry.stage.is_open());
                let slot = place.and_then(|place| self.applications.get(place.session)?.slot(place.slot));
                let known = connection.receive_head();
                let head = slot.map_or(known, |slot| slot.receive_head());
                let is_possible = entry.view.may_have_read(known, head);
                (if is_possible { head } else { known }, connection.receive_nxt())
            }
        };
        (position < end).then_some(position)
    }

    fn all_holdings(&self) -> Vec<Holding> {
        self.applications.places().flat_map(|session| self.holdings(session)).collect()
    }

    /// Gives every connection of a session the smallest buffers, except those whose application has set a
    /// size. Memory in use stays.
    fn shrink_buffers(&mut self, session: u32) {
        let Some(Pressure { send, receive, .. }) =
            self.applications.get(session).map(|session| &session.pressure)
        else {
            return;
        };
        let (send, receive) = (*send, *receive);
        for index in self.connections_of(session) {
            let Some(entry) = self.connections.get_mut(index) else { continue };
            let changed = (receive && entry.limit_receive_buffer()) | (send && entry.limit_send_buffer());
            if changed {
                self.connections.touch(index);
            }
        }
    }

    /// Gives back what connections hold that were reset and that their application has not closed. A commit
    /// before this has notified the application that their text is void.
    fn release_shed(&mut self, session: u32) {
        for index in self.connections_of(session) {
            let Some(session) = self.applications.get(session) else { return };
            let Some(entry) = self.connections.get_mut(index) else { continue };
            if !entry.stage.is_ended() || entry.cause != Cause::NoBuffers || entry.receive.current().is_none()
            {
                continue;
            }
            entry.receive.release_all(session.memory());
            // The record no longer names it.
            entry.flags.insert(Flags::RECORD | Flags::EXTENTS);
            self.connections.touch(index);
        }
    }

    /// Drops text out of order, and the rings that held nothing else: peers send it again. It also takes back
    /// what was read and not reported.
    fn prune(&mut self, now: Instant, session: u32) {
        for index in self.connections_of(session) {
            let Some(session) = self.applications.get(session) else { return };
            let Some(entry) = self.connections.get_mut(index) else { continue };
            let dropped = entry.connection.drop_out_of_order();
            let read =
                entry.place.filter(|_| entry.stage.is_open()).and_then(|place| session.slot(place.slot));
            let head = read.map_or(0, |slot| slot.receive_head());
            if dropped == 0 && head <= entry.connection.receive_head() {
                continue;
            }
            self.stats.add(Stat::TextPruned, dropped);
            // The record no longer names it.
            entry.flags.insert(Flags::RECORD);
            if entry.view.may_have_read(entry.connection.receive_head(), head) {
                entry.connection.handle_read_head(now, head);
                entry.release_drained(session, head);
            }
            self.connections.touch(index);
        }
    }

    /// Resets connections without progress of a session whose area stays full for a while: orphans first,
    /// then the largest, until there is room.
    fn shed(&mut self, now: Instant, index: u32) {
        let holdings = self.holdings(index);
        let Some(session) = self.applications.get_mut(index) else { return };
        let Some((since, before)) = session.pressure.full.take() else {
            session.pressure.full = Some((now, holdings));
            return;
        };
        if now.since(since) < SHED_AFTER {
            session.pressure.full = Some((since, before));
            return;
        }
        for (area, fill) in [(Area::Send, session.send_fill()), (Area::Receive, session.receive_fill())] {
            if fill.is_full() {
                self.shed_from(area, fill, &before);
            }
        }
        let holdings = self.holdings(index);
        if let Some(session) = self.applications.get_mut(index) {
            session.pressure.full = Some((now, holdings));
        }
    }

    fn shed_from(&mut self, area: Area, fill: Fill, before: &[Holding]) {
        let idle = before.iter().filter(|held| held.area == area).copied().collect();
        let too_many = (fill.used as u64).saturating_sub(fill.all as u64 / 4 * 3);
        self.shed_idle(idle, too_many);
    }

    /// Resets connections without progress since then, until this number of octets is free.
    fn shed_idle(&mut self, mut idle: Vec<Holding>, octets: u64) {
        idle.retain(|held| {
            // A connection that its peer has reset meanwhile keeps what can still be read.
            let entry = self.entry_of(held).filter(|entry| !entry.stage.is_ended());
            // Losses do not show that a peer does not read. A peer that acknowledges next to nothing is not
            // in this state all the time.
            if held.area == Area::Send && entry.is_some_and(|entry| entry.connection.is_trying_again()) {
                return false;
            }
            let position = entry.and_then(|entry| self.position_in_text(entry, held.area));
            let progress = position.and_then(|position| position.checked_sub(held.position));
            progress.is_some_and(|progress| progress * PROGRESS_SHARE < held.octets)
        });
        let is_orphan = |held: &Holding| {
            self.connections.get(held.index).is_some_and(|entry| entry.stage == Stage::Closing)
        };
        // One connection of a session that holds little may be larger than each of the many that hold
        // everything together.
        let session =
            |held: &Holding| self.entry_of(held).and_then(|entry| entry.place).map(|place| place.session);
        let mut of_session: BTreeMap<Option<u32>, u64> = BTreeMap::new();
        for held in &idle {
            *of_session.entry(session(held)).or_default() += held.octets;
        }
        let together = |held: &Holding| of_session.get(&session(held)).copied().unwrap_or(0);
        idle.sort_by_cached_key(|held| {
            (!is_orphan(held), Reverse(together(held)), Reverse(held.octets), held.index)
        });
        let mut freed = 0;
        for held in idle {
            if freed > octets {
                break;
            }
            freed += held.octets;
            // It may have held something of both areas.
            let Some(entry) =
                self.connections.get_mut(held.index).filter(|entry| entry.cause != Cause::NoBuffers)
            else {
                continue;
            };
            entry.cause = Cause::NoBuffers;
            entry.connection.abort();
            self.stats.count(Stat::ConnectionsShed);
            self.connections.touch(held.index);
        }
    }

    /// Returns what the connections of a session hold now.
    fn holdings(&self, session: u32) -> Vec<Holding> {
        let mut holdings = Vec::new();
        for index in self.connections_of(session) {
            let Some(entry) = self.connections.get(index) else { continue };
            // It may have been reset a moment ago, and holds its memory until the next commit.
            if entry.stage.is_ended() || entry.cause == Cause::NoBuffers {
                continue;
            }
            for (area, rings) in [(Area::Send, &entry.send), (Area::Receive, &entry.receive)] {
                let octets = size(rings);
                // A connection that has sent, or read, everything waits for others. (The library takes a
                // drained send buffer back without a report.)
                if octets > 0
                    && let Some(position) = self.position_in_text(entry, area)
                {
                    holdings.push(Holding { index, name: entry.name, area, position, octets });
                }
            }
        }
        holdings
    }

    fn connections_of(&self, session: u32) -> Vec<u32> {
        let Some(session) = self.applications.get(session) else { return Vec::new() };
        let all = session.occupants().into_iter();
        all.filter_map(|(_, _, occupant)| match occupant {
            Occupant::Connection(index) => Some(index),
            _ => None,
        })
        .collect()
    }
}

impl<M: Memory> Session<M> {
    /// Returns the fill of the send area, of which the library keeps the accounts: what a hostile one writes
    /// there concerns its own connections only.
    fn send_fill(&self) -> Fill {
        let all = self.layout.send_bytes;
        Fill { used: self.layout.send_pool.used_bytes(&self.arena).min(all), all }
    }

    fn receive_fill(&self) -> Fill {
        Fill { used: self.memory().used_bytes(), all: self.layout.receive_bytes }
    }
}

impl Entry {
    /// Makes the send buffer small, unless the application has set its size. Returns whether it was larger.
    pub(crate) fn limit_send_buffer(&mut self) -> bool {
        let is_large = self.send_limit > SMALL_BUFFER && !self.flags.intersects(Flags::FIXED_SEND);
        if is_large {
            self.send_limit = SMALL_BUFFER;
            // A program that has found room before may find none now, and waits for a notification.
            self.flags.insert(Flags::LIMIT | Flags::WANTS_ROOM);
        }
        is_large
    }

    /// Makes the window small, once what it has promised is used up. Returns whether it was larger.
    fn limit_receive_buffer(&mut self) -> bool {
        let is_large = self.receive_capacity > SMALL_BUFFER && !self.flags.intersects(Flags::FIXED_RECEIVE);
        if is_large {
            self.receive_capacity = SMALL_BUFFER;
            self.connection.set_receive_capacity(SMALL_BUFFER);
        }
        is_large
    }
}

fn size(rings: &Rings) -> u64 {
    [rings.current(), rings.old()].into_iter().flatten().map(|ring| ring.size() as u64).sum()
}

/// The interval in which memory is examined.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time between two looks, however many segments find no room.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The size of buffers while memory is short, in octets.
const SMALL_BUFFER: u32 = 16 << 10;
/// The time that an area may be full before a connection is reset.
const SHED_AFTER: Duration = Duration::from_secs(10);
/// The time that the memory of all may be used up before a connection is reset.
const SHED_FROM_ALL_AFTER: Duration = Duration::from_secs(1);
/// The part of what is held that is reset then, if as much makes no progress.
const SHED_PART: u64 = 4;
/// A session is modest if it holds less than this part of all, or less than this number of octets.
const MODEST_PART: u64 = 16;
const MODEST: u64 = 64 << 10;
/// The number of connections of modest sessions that may begin between two looks: with small buffers they
/// take half a megabyte.
const BEGINNERS_MAX: u32 = 32;
/// The number of sessions with a listener that are examined.
const HOLDERS_LOOKED_AT: usize = 16;
/// A connection that has made progress by this part of what it holds stays.
const PROGRESS_SHARE: u64 = 16;

#[cfg(test)]
mod tests;

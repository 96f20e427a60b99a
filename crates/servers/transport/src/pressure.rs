//! What if an application's buffers are nearly used up? Peers that read slowly, or send what cannot be put in
//! order, hold memory.
//!
//! The send and receive areas of a session bound what all its connections together may hold. Long before they
//! are full, everybody gets less; when they are full, who holds much without getting on goes first (Linux:
//! `tcp_mem`, `tcp_prune_ofo_queue`, `tcp_max_orphans`).
//!
//! ```text
//!   0 ------------------------- 3/4 -------------------- 15/16 ------ full
//!     buffers grow as they like  |  buffers are small and |  text out of order is dropped;
//!                                |  do not grow           |  after 10 s the largest that stand still are reset
//! ```
//! The same holds for the memory of the stack as a whole, whose supervisor says how it stands (`MemoryLevel`)
//! and what all receive buffers of a replica together may take. Memory that was touched counts until it is
//! given back, which happens while it is short. The supervisor's levels and the replica's own books mean the
//! same: at `Pressure` every session is as one that is nearly full, at `High` as one that is full; then
//! nothing is opened or accepted, and after a second the largest that stand still are reset, orphans first,
//! until there is room.
//!
//! A session that holds less than a sixteenth of everything, or of what may be held (a *modest* one), is not
//! the cause of the want, and its going would be no help. So it may open and accept some, and keeps what
//! stands still because somebody has no processor, as long as another session has something to give.

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

/// How it stands with the memory of all sessions.
#[derive(Debug)]
pub(crate) struct Shortage {
    /// When buffers are looked at next.
    look_at: Instant,
    /// As the supervisor says.
    told: MemoryLevel,
    /// As it was at the last look, the own books included.
    level: MemoryLevel,
    books: Arc<Books>,
    /// Since when it is `High`, and what everybody held then.
    high: Option<(Instant, Vec<Holding>)>,
    /// Memory is to be given back after the next commit: until then a successor may need what lies there.
    discards: bool,
    /// So many connections of modest sessions have begun since the last look although it is `High`.
    begun: u32,
}

impl Shortage {
    /// Creates it for a stack that has plenty.
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

    /// Returns the books of all sessions, for a new one.
    pub(crate) fn books(&self) -> Arc<Books> {
        self.books.clone()
    }

    /// As the books say, or the supervisor, if that is worse.
    fn now(&self) -> MemoryLevel {
        let (held, max) = (self.books.held.load(Ordering::Relaxed), self.books.max.load(Ordering::Relaxed));
        let own = match () {
            () if held >= max / 16 * 15 => MemoryLevel::High,
            () if held >= max / 4 * 3 => MemoryLevel::Pressure,
            () => MemoryLevel::Plenty,
        };
        own.max(self.told)
    }

    /// Less than this is no cause of a want.
    fn share(&self) -> u64 {
        let (held, max) = (self.books.held.load(Ordering::Relaxed), self.books.max.load(Ordering::Relaxed));
        let may_be_held = if max == u64::MAX { 0 } else { max };
        (held.max(may_be_held) / MODEST_PART).max(MODEST)
    }

    /// Whether sessions are to be looked after.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.look_at
    }

    /// Looks after all sessions, now and then. Cheap where there is no want: two words of each.
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

    /// The supervisor says how it stands with the memory of the stack, and how much all receive buffers here
    /// may take.
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

    /// Whether a session may begin something new: it counts as begun.
    pub(crate) fn may_connect<M: Memory>(&mut self, applications: &Applications<M>, place: u32) -> bool {
        self.may_begin(|shortage| shortage.is_modest(applications, place))
    }

    /// Whether anything new may begin for those who listen: it is enough if one of them may.
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

    /// Whether a session holds little of what is held in all, or may be.
    fn is_modest<M: Memory>(&self, applications: &Applications<M>, place: u32) -> bool {
        applications.get(place).is_some_and(|session| session.memory().held() < self.share())
    }

    /// The records that named what was given back are gone, or name it no more: the kernel may have its
    /// memory.
    #[inline]
    pub(crate) fn discard_if_due<M: Memory>(&mut self, applications: &Applications<M>) {
        if core::mem::take(&mut self.discards) {
            applications.iter().for_each(Session::discard_free);
        }
    }

    /// While the memory of all is used up, some go that have not got on, of whichever session.
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
        // What was held has gone, and its memory is on its way back, or it is somebody else's: nobody's going
        // would help.
        if held < self.share() {
            self.discards = true;
            self.high = Some((now, holders.all_holdings()));
            return;
        }
        let (modest, others): (Vec<_>, Vec<_>) = before.into_iter().partition(|held| {
            let place = holders.entry_of(held).and_then(|entry| entry.place);
            place.is_some_and(|place| self.is_modest(holders.applications, place.session))
        });
        // Where all are, it is the largest's turn.
        holders.shed_idle(if others.is_empty() { modest } else { others }, held / SHED_PART);
        self.discards = true;
        self.high = Some((now, holders.all_holdings()));
    }

    /// No room was found for text that has arrived: look at once, unless somebody has just looked.
    pub(crate) fn look_soon(&mut self, now: Instant) {
        if self.look_at.since(now) < LOOK_INTERVAL - LOOK_AGAIN {
            self.look_at = now;
        }
    }

    /// When [`Shortage::look_after`] is wanted although nothing happens.
    pub(crate) fn next_look<M: Memory>(&self, applications: &Applications<M>) -> Option<Instant> {
        let is_pressed = |session: &Session<M>| session.pressure.send || session.pressure.receive;
        let is_due = self.level > MemoryLevel::Plenty || self.now() != self.level;
        (is_due || applications.iter().any(is_pressed)).then_some(self.look_at)
    }
}

/// Who holds memory, and can be made to give some of it back.
pub(crate) struct Holders<'a, M: Memory> {
    pub(crate) connections: &'a mut Connections,
    pub(crate) applications: &'a mut Applications<M>,
    pub(crate) stats: &'a mut Stats,
}

impl<M: Memory> Holders<'_, M> {
    /// The connection that held it, unless another one has its place by now. One between the same ends is not
    /// told apart: its positions are lower.
    fn entry_of(&self, held: &Holding) -> Option<&Entry> {
        self.connections.get(held.index).filter(|entry| entry.name == held.name)
    }

    /// How far the peer has acknowledged the text, or the application has read it; `None`: that is all there
    /// is.
    fn position_in_text(&self, entry: &Entry, area: Area) -> Option<u64> {
        let connection = &entry.connection;
        let (position, end) = match area {
            Area::Send => (connection.send_una(), connection.send_tail()),
            Area::Receive => {
                // The library tells only of what opens the window: what it has read lately is in the slot.
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

    /// Everybody gets the smallest buffers, except who has asked for a size. What is in use stays.
    fn shrink_buffers(&mut self, session: u32) {
        let Some(Pressure { send, receive, .. }) = self.applications.get(session).map(|session| &session.pressure)
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

    /// Gives back what connections hold that had to go and that their application has not closed: it was
    /// told, by a commit before this, that their text is void.
    fn release_shed(&mut self, session: u32) {
        for index in self.connections_of(session) {
            let Some(session) = self.applications.get(session) else { return };
            let Some(entry) = self.connections.get_mut(index) else { continue };
            if !entry.stage.is_ended() || entry.cause != Cause::NoBuffers || entry.receive.current().is_none() {
                continue;
            }
            entry.receive.release_all(session.memory());
            // The record names it no more.
            entry.flags.set(Flags::RECORD.with(Flags::EXTENTS));
            self.connections.touch(index);
        }
    }

    /// Drops text out of order, and the rings that held nothing else: peers send it again. And takes back
    /// what was read and not told of.
    fn prune(&mut self, now: Instant, session: u32) {
        for index in self.connections_of(session) {
            let Some(session) = self.applications.get(session) else { return };
            let Some(entry) = self.connections.get_mut(index) else { continue };
            let dropped = entry.connection.drop_out_of_order();
            let read = entry.place.filter(|_| entry.stage.is_open()).and_then(|place| session.slot(place.slot));
            let head = read.map_or(0, |slot| slot.receive_head());
            if dropped == 0 && head <= entry.connection.receive_head() {
                continue;
            }
            self.stats.add(Stat::TextPruned, dropped);
            // The record names it no more.
            entry.flags.set(Flags::RECORD);
            if entry.view.may_have_read(entry.connection.receive_head(), head) {
                entry.connection.handle_read_head(now, head);
                entry.release_drained(session, head);
            }
            self.connections.touch(index);
        }
    }

    /// An area stays full: after a while those who have not got on are reset, orphans first, then the
    /// largest, until there is room.
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

    /// Resets those that have not got on since then, until so many octets are free.
    fn shed_idle(&mut self, mut idle: Vec<Holding>, octets: u64) {
        idle.retain(|held| {
            // One that its peer has reset meanwhile keeps what can still be read.
            let entry = self.entry_of(held).filter(|entry| !entry.stage.is_ended());
            // Losses are no sign of a peer that does not read. One that acknowledges next to nothing is not
            // in this state all the time.
            if held.area == Area::Send && entry.is_some_and(|entry| entry.connection.is_trying_again()) {
                return false;
            }
            let position = entry.and_then(|entry| self.position_in_text(entry, held.area));
            let progress = position.and_then(|position| position.checked_sub(held.position));
            progress.is_some_and(|progress| progress * PROGRESS_SHARE < held.octets)
        });
        let is_orphan =
            |held: &Holding| self.connections.get(held.index).is_some_and(|entry| entry.stage == Stage::Closing);
        // One connection of a session that holds little may be larger than each of the many that hold
        // everything together.
        let session = |held: &Holding| self.entry_of(held).and_then(|entry| entry.place).map(|place| place.session);
        let mut of_session: BTreeMap<Option<u32>, u64> = BTreeMap::new();
        for held in &idle {
            *of_session.entry(session(held)).or_default() += held.octets;
        }
        let together = |held: &Holding| of_session.get(&session(held)).copied().unwrap_or(0);
        idle.sort_by_cached_key(|held| (!is_orphan(held), Reverse(together(held)), Reverse(held.octets), held.index));
        let mut freed = 0;
        for held in idle {
            if freed > octets {
                break;
            }
            freed += held.octets;
            // It may have held something of both areas.
            let Some(entry) = self.connections.get_mut(held.index).filter(|entry| entry.cause != Cause::NoBuffers)
            else {
                continue;
            };
            entry.cause = Cause::NoBuffers;
            entry.connection.abort();
            self.stats.count(Stat::ConnectionsShed);
            self.connections.touch(held.index);
        }
    }

    /// What the connections of a session hold now.
    fn holdings(&self, session: u32) -> Vec<Holding> {
        let mut holdings = Vec::new();
        for index in self.connections_of(session) {
            let Some(entry) = self.connections.get(index) else { continue };
            // It had to go a moment ago, perhaps, and holds its memory until the next commit.
            if entry.stage.is_ended() || entry.cause == Cause::NoBuffers {
                continue;
            }
            for (area, rings) in [(Area::Send, &entry.send), (Area::Receive, &entry.receive)] {
                let octets = size(rings);
                // Who has sent, or read, all that there is waits for others. (The library takes a drained
                // send buffer back without telling.)
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
    /// The library keeps the books of the send area: what a hostile one writes there concerns its own
    /// connections only.
    fn send_fill(&self) -> Fill {
        let all = self.layout.send_bytes;
        Fill { used: self.layout.send_pool.used_bytes(&self.arena).min(all), all }
    }

    fn receive_fill(&self) -> Fill {
        Fill { used: self.memory().used_bytes(), all: self.layout.receive_bytes }
    }
}

impl Entry {
    /// The send buffer gets small, unless the application has set its size. Returns whether it was larger.
    pub(crate) fn limit_send_buffer(&mut self) -> bool {
        let is_large = self.send_limit > SMALL_BUFFER && !self.flags.has(Flags::FIXED_SEND);
        if is_large {
            self.send_limit = SMALL_BUFFER;
            // Who has found room before may find none now, and waits to be told.
            self.flags.set(Flags::LIMIT.with(Flags::WANTS_ROOM));
        }
        is_large
    }

    /// The window gets small, once what it has promised is used up.
    fn limit_receive_buffer(&mut self) -> bool {
        let is_large = self.receive_capacity > SMALL_BUFFER && !self.flags.has(Flags::FIXED_RECEIVE);
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

/// How often memory is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// And how often at most, however many segments find no room.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Buffers while memory is short.
const SMALL_BUFFER: u32 = 16 << 10;
/// An area may be full for so long before somebody has to go.
const SHED_AFTER: Duration = Duration::from_secs(10);
/// The memory of all may be used up for so long.
const SHED_FROM_ALL_AFTER: Duration = Duration::from_secs(1);
/// This part of what is held goes then, if as much stands still.
const SHED_PART: u64 = 4;
/// A session is modest that holds less than this part of all, or less than so many octets.
const MODEST_PART: u64 = 16;
const MODEST: u64 = 64 << 10;
/// So many connections of modest sessions may begin between two looks: with small buffers they take half a
/// megabyte.
const BEGINNERS_MAX: u32 = 32;
/// So many of those who listen at an address are looked at.
const HOLDERS_LOOKED_AT: usize = 16;
/// Who has got on by this part of what it holds stays.
const PROGRESS_SHARE: u64 = 16;

#[cfg(test)]
mod tests;

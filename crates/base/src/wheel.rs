//! Timers whose arming, cancelling and firing cost no more with 100,000 timers than with ten. They are a
//! hierarchical wheel (Varghese and Lauck 1987) of index-linked lists, with no allocation per timer and no
//! clock of its own.

use alloc::vec::Vec;

use crate::time::Instant;

/// The name of a timer, chosen by the caller, small and dense (an index into the caller's slab).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId(pub u32);

/// A hierarchical timer wheel: 5 levels of 64 buckets.
///
/// A timer fires at the first [`Wheel::expire`] whose `now` is at or past its deadline rounded *up* to the
/// tick, never before. Deadlines beyond the horizon (tick x 2^30) are clamped to it. Cost of arm, cancel and
/// fire: O(1).
///
/// ```text
///   level 0: 64 ticks        [ ][ ][x] ...   each bucket a doubly linked list of TimerIds
///   level 1: 64 x 64 ticks   [ ][x][ ] ...   moved down when level 0 wraps
/// ```
#[derive(Debug)]
pub struct Wheel {
    tick_shift: u32,
    /// Ticks already expired; buckets at or before it are empty.
    current: u64,
    heads: [[u32; BUCKETS]; LEVELS],
    /// One bit per bucket that is not empty.
    occupied: [u64; LEVELS],
    nodes: Vec<Node>,
    armed: usize,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    next: u32,
    /// Previous node, or `NONE` when first in its bucket.
    prev: u32,
    /// Deadline in ticks.
    tick: u64,
    /// `level * BUCKETS + bucket`, or `IDLE`.
    place: u16,
}

const LEVELS: usize = 5;
const BUCKET_BITS: u32 = 6;
const BUCKETS: usize = 1 << BUCKET_BITS;
const NONE: u32 = u32::MAX;
const IDLE: u16 = u16::MAX;
const HORIZON_TICKS: u64 = (1 << (BUCKET_BITS * LEVELS as u32)) - BUCKETS as u64;

impl Wheel {
    /// Creates a wheel whose tick is 2^`tick_shift` nanoseconds (20 gives about 1 ms), starting at `now`.
    pub fn new(tick_shift: u32, now: Instant) -> Wheel {
        Wheel {
            tick_shift,
            current: now.as_nanos() >> tick_shift,
            heads: [[NONE; BUCKETS]; LEVELS],
            occupied: [0; LEVELS],
            nodes: Vec::new(),
            armed: 0,
        }
    }

    /// Returns the number of armed timers.
    pub fn len(&self) -> usize {
        self.armed
    }

    /// Returns whether no timer is armed.
    pub fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// Arms `id` for `deadline`, replacing an earlier deadline of the same timer.
    pub fn arm(&mut self, id: TimerId, deadline: Instant) {
        self.cancel(id);
        let index = id.0 as usize;
        if index >= self.nodes.len() {
            self.nodes.resize(index + 1, Node { next: NONE, prev: NONE, tick: 0, place: IDLE });
        }
        let round_up = (1u64 << self.tick_shift) - 1;
        let tick = deadline.as_nanos().saturating_add(round_up) >> self.tick_shift;
        self.nodes[index].tick = tick.clamp(self.current + 1, self.current + HORIZON_TICKS);
        self.link(id.0);
        self.armed += 1;
    }

    /// Cancels `id`; nothing happens if it is not armed.
    pub fn cancel(&mut self, id: TimerId) {
        let Some(node) = self.nodes.get(id.0 as usize) else { return };
        if node.place != IDLE {
            self.unlink(id.0);
            self.armed -= 1;
        }
    }

    /// Returns whether `id` is armed.
    pub fn is_armed(&self, id: TimerId) -> bool {
        self.nodes.get(id.0 as usize).is_some_and(|node| node.place != IDLE)
    }

    /// Disarms every timer that is due at `now` and passes it to `fire`, in order of their ticks.
    ///
    /// The caller may arm the same timer again afterwards, not from within `fire`.
    pub fn expire(&mut self, now: Instant, mut fire: impl FnMut(TimerId)) {
        let target = now.as_nanos() >> self.tick_shift;
        while self.current < target {
            if self.armed == 0 {
                self.current = target;
                return;
            }
            self.advance_to_next_tick(target);
            let bucket = (self.current & (BUCKETS as u64 - 1)) as usize;
            while self.heads[0][bucket] != NONE {
                let id = self.heads[0][bucket];
                self.unlink(id);
                self.armed -= 1;
                fire(TimerId(id));
            }
        }
    }

    /// Returns a moment at or before the next deadline, at which [`Wheel::expire`] has something to do;
    /// `None` when the wheel is empty.
    ///
    /// The moment is exact within level 0 (64 ticks); further away it is the moment at which an upper bucket
    /// moves down.
    pub fn next_expiry(&self) -> Option<Instant> {
        if self.armed == 0 {
            return None;
        }
        let mut best = u64::MAX;
        for level in 0..LEVELS {
            let shift = BUCKET_BITS * level as u32;
            let position = (self.current >> shift) & (BUCKETS as u64 - 1);
            // Buckets after the current one, in the order in which they come up.
            let rotated = self.occupied[level].rotate_right(position as u32 + 1);
            if rotated != 0 {
                let ahead = u64::from(rotated.trailing_zeros()) + 1;
                best = best.min(((self.current >> shift) + ahead) << shift);
            }
        }
        Some(Instant::from_nanos(best.saturating_mul(1 << self.tick_shift)))
    }

    /// Moves `current` forward by at least one tick, skipping empty stretches of level 0 but never past
    /// `target`.
    fn advance_to_next_tick(&mut self, target: u64) {
        let within = self.current & (BUCKETS as u64 - 1);
        let ahead = if within == BUCKETS as u64 - 1 { 0 } else { self.occupied[0] >> (within + 1) };
        let next = if ahead != 0 {
            self.current + 1 + u64::from(ahead.trailing_zeros())
        } else {
            (self.current | (BUCKETS as u64 - 1)) + 1
        };
        self.current = next.min(target);
        if self.current & (BUCKETS as u64 - 1) == 0 {
            self.cascade();
        }
    }

    /// Spreads the upper buckets that come up now over the levels below, because level 0 has wrapped.
    fn cascade(&mut self) {
        for level in 1..LEVELS {
            let shift = BUCKET_BITS * level as u32;
            let bucket = ((self.current >> shift) & (BUCKETS as u64 - 1)) as usize;
            while self.heads[level][bucket] != NONE {
                let id = self.heads[level][bucket];
                self.unlink(id);
                self.link(id);
            }
            if bucket != 0 {
                break;
            }
        }
    }

    fn link(&mut self, id: u32) {
        let tick = self.nodes[id as usize].tick;
        let distance = tick.saturating_sub(self.current);
        let level = match distance {
            0..=1 => 0,
            d => ((63 - d.leading_zeros()) / BUCKET_BITS) as usize,
        };
        let level = level.min(LEVELS - 1);
        let bucket = ((tick >> (BUCKET_BITS * level as u32)) & (BUCKETS as u64 - 1)) as usize;
        let head = self.heads[level][bucket];
        let node = &mut self.nodes[id as usize];
        node.next = head;
        node.prev = NONE;
        node.place = (level * BUCKETS + bucket) as u16;
        if head != NONE {
            self.nodes[head as usize].prev = id;
        }
        self.heads[level][bucket] = id;
        self.occupied[level] |= 1 << bucket;
    }

    fn unlink(&mut self, id: u32) {
        let Node { next, prev, place, .. } = self.nodes[id as usize];
        let (level, bucket) = (usize::from(place) / BUCKETS, usize::from(place) % BUCKETS);
        if prev == NONE {
            self.heads[level][bucket] = next;
            if next == NONE {
                self.occupied[level] &= !(1 << bucket);
            }
        } else {
            self.nodes[prev as usize].next = next;
        }
        if next != NONE {
            self.nodes[next as usize].prev = prev;
        }
        self.nodes[id as usize].place = IDLE;
    }
}

#[cfg(test)]
mod tests;

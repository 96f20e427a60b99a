//! One direction of a network path, which queues, delays, loses, reorders and marks what is sent over it.
//!
//! ```text
//!   handle -> [ queue: so many octets, tail drop ] -> rate -> loss -> [ in flight: delay, jitter, reordering ] -> poll
//! ```
//! The model is a sans-IO machine: the simulator runs it in virtual time, the emulator (`atoll-line`) in real
//! time over real frames. Calling it late does no harm: departures and arrivals are computed from the times
//! at which packets entered.

use std::collections::{BTreeMap, VecDeque};

use atoll_base::{Duration, Instant, Rng};

/// The losses behind the queue. Probabilities are per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loss {
    /// No packet is lost.
    #[default]
    None,
    /// Each packet is lost with the same probability.
    Random(u32),
    /// Packets are lost in bursts (Gilbert 1960, Elliott 1963): a good state that loses nothing, and a bad
    /// one.
    Burst {
        /// The probability, at each packet, of entering the bad state.
        enter: u32,
        /// The probability, at each packet, of leaving the bad state; a burst is a million divided by it
        /// packets long, on average.
        leave: u32,
        /// The probability of a loss in the bad state.
        bad: u32,
    },
}

/// The packets that are marked, of those whose senders support marks (ECN, RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Marking {
    /// No packet is marked.
    #[default]
    None,
    /// A packet is marked if it makes the queue longer than this many octets when it enters (as in RFC 8257).
    Above(u64),
    /// A packet is marked if it leaves after a wait of more than `target`, once all packets have waited so
    /// long for `interval`. From then on, packets are marked more and more often (CoDel, RFC 8289, without
    /// its drops).
    CoDel {
        /// The wait that is acceptable.
        target: Duration,
        /// How long a longer wait is tolerated.
        interval: Duration,
    },
}

/// The settings of one direction of a path. The default is a perfect path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineSettings {
    /// The rate in bits per second; 0 means no limit, and then no queue.
    pub rate: u64,
    /// The most octets that may wait, including the packet that is being sent.
    pub queue: u64,
    /// The one-way delay.
    pub delay: Duration,
    /// The most that is added to the delay, drawn for each packet. Jitter keeps the order, as a queue does.
    pub jitter: Duration,
    /// The losses behind the queue.
    pub loss: Loss,
    /// Packets per million that are held back by `held_for`, so that later ones overtake.
    pub reorder: u32,
    /// How long a packet that `reorder` selects is held back.
    pub held_for: Duration,
    /// Packets per million that arrive twice.
    pub duplicate: u32,
    /// The rule by which packets are marked.
    pub marking: Marking,
}

impl Default for LineSettings {
    fn default() -> LineSettings {
        LineSettings {
            rate: 0,
            queue: u64::MAX,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: Loss::None,
            reorder: 0,
            held_for: Duration::ZERO,
            duplicate: 0,
            marking: Marking::None,
        }
    }
}

/// Whether the sender of a packet supports marks (its ECN field is ECT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// The sender does not support marks; its packets are never marked.
    Incapable,
    /// The sender supports marks.
    Capable,
}

/// The counts since they were last taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// Packets that have entered the queue.
    pub queued: u64,
    /// Packets that found no room in the queue.
    pub overflowed: u64,
    /// Packets lost behind the queue.
    pub lost: u64,
    /// Packets held back.
    pub reordered: u64,
    /// Packets marked.
    pub marked: u64,
    /// Packets that have arrived.
    pub delivered: u64,
    /// The octets of the packets that have arrived.
    pub octets: u64,
    /// The most octets that ever waited.
    pub queue_peak: u64,
}

/// A packet that comes out of the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival<T> {
    /// When the packet was due.
    pub at: Instant,
    /// Whether the packet was marked on the way.
    pub marked: bool,
    /// The item that had entered.
    pub item: T,
}

/// One direction of a path, with the packets that are under way.
#[derive(Debug)]
pub struct Line<T> {
    settings: LineSettings,
    rng: Rng,
    waiting: VecDeque<Waiting<T>>,
    octets_waiting: u64,
    /// When the first waiting packet has been sent.
    head_leaves: Instant,
    /// The packets in flight, by time of arrival, then in the order of departure.
    in_flight: BTreeMap<(Instant, u64), (bool, u32, T)>,
    departures: u64,
    last_arrival: Instant,
    is_bad: bool,
    codel: CoDel,
    counts: LineCounts,
}

#[derive(Debug)]
struct Waiting<T> {
    entered: Instant,
    octets: u32,
    ecn: Ecn,
    marked: bool,
    item: T,
}

impl<T: Clone> Line<T> {
    /// Creates an empty line, whose random choices are decided by `seed` and the order of packets.
    pub fn new(settings: LineSettings, seed: u64) -> Line<T> {
        Line {
            settings,
            rng: Rng::new(seed),
            waiting: VecDeque::new(),
            octets_waiting: 0,
            head_leaves: Instant::ZERO,
            in_flight: BTreeMap::new(),
            departures: 0,
            last_arrival: Instant::ZERO,
            is_bad: false,
            codel: CoDel::default(),
            counts: LineCounts::default(),
        }
    }

    /// Returns the current settings.
    pub fn settings(&self) -> &LineSettings {
        &self.settings
    }

    /// Changes the settings from now on. A packet that is being sent is sent at the old rate. Packets in
    /// flight arrive when they would have, so that a shorter delay lets later packets overtake, as a change
    /// of route does.
    pub fn change(&mut self, now: Instant, settings: LineSettings) {
        self.advance(now);
        self.settings = settings;
        self.last_arrival = Instant::ZERO;
    }

    /// Takes a packet of `octets` octets into the queue, or drops it if there is no room.
    pub fn handle(&mut self, now: Instant, octets: u32, ecn: Ecn, item: T) {
        self.advance(now);
        let length = self.octets_waiting.saturating_add(u64::from(octets));
        if length > self.settings.queue && !self.waiting.is_empty() {
            self.counts.overflowed += 1;
            return;
        }
        self.counts.queued += 1;
        self.counts.queue_peak = self.counts.queue_peak.max(length);
        let full = matches!(self.settings.marking, Marking::Above(octets) if self.octets_waiting > octets);
        let marked = full && ecn == Ecn::Capable;
        if self.waiting.is_empty() {
            self.head_leaves = now + self.time_to_send(octets);
        }
        self.octets_waiting = length;
        self.waiting.push_back(Waiting { entered: now, octets, ecn, marked, item });
        self.advance(now);
    }

    /// Returns a time at or before the next arrival at which to call `poll`; `None` while nothing is under
    /// way.
    pub fn next_due(&self) -> Option<Instant> {
        let in_flight = self.in_flight.first_key_value().map(|((at, _), _)| *at);
        // Jitter and reordering only add.
        let waiting = (!self.waiting.is_empty()).then(|| self.head_leaves + self.settings.delay);
        in_flight.into_iter().chain(waiting).min()
    }

    /// Returns the next packet that has arrived by `now`.
    pub fn poll(&mut self, now: Instant) -> Option<Arrival<T>> {
        self.advance(now);
        let first = self.in_flight.first_entry().filter(|entry| entry.key().0 <= now)?;
        let ((at, _), (marked, octets, item)) = first.remove_entry();
        self.counts.delivered += 1;
        self.counts.octets += u64::from(octets);
        Some(Arrival { at, marked, item })
    }

    /// Returns the number of octets that wait to be sent.
    pub fn octets_waiting(&self) -> u64 {
        self.octets_waiting
    }

    /// Returns the number of packets that wait or are in flight.
    pub fn under_way(&self) -> usize {
        self.waiting.len() + self.in_flight.len()
    }

    /// Returns the counts since the last call.
    pub fn take_counts(&mut self) -> LineCounts {
        std::mem::take(&mut self.counts)
    }

    fn time_to_send(&self, octets: u32) -> Duration {
        match self.settings.rate {
            0 => Duration::ZERO,
            rate => Duration::from_nanos(u64::from(octets) * 8_000_000_000 / rate),
        }
    }

    /// Sends the packets that have left the queue by `now`.
    fn advance(&mut self, now: Instant) {
        while self.head_leaves <= now
            && let Some(head) = self.waiting.pop_front()
        {
            let left = self.head_leaves;
            self.octets_waiting -= u64::from(head.octets);
            if let Some(next) = self.waiting.front() {
                self.head_leaves = left + self.time_to_send(next.octets);
            }
            self.depart(left, head);
        }
    }

    /// Handles a packet that leaves the queue at `now`.
    fn depart(&mut self, now: Instant, packet: Waiting<T>) {
        let mut marked = packet.marked;
        if let Marking::CoDel { target, interval } = self.settings.marking {
            let due = self.codel.handle_departure(now, now.since(packet.entered), target, interval);
            marked |= due && packet.ecn == Ecn::Capable;
        }
        if self.loses() {
            self.counts.lost += 1;
            return;
        }
        self.counts.marked += u64::from(marked);
        let copies = 1 + u32::from(self.rng.chance_per_million(self.settings.duplicate));
        for _ in 1..copies {
            self.fly(now, marked, packet.octets, packet.item.clone());
        }
        self.fly(now, marked, packet.octets, packet.item);
    }

    fn fly(&mut self, now: Instant, marked: bool, octets: u32, item: T) {
        let mut at = now + self.settings.delay;
        let jitter = u32::try_from(self.settings.jitter.as_nanos()).unwrap_or(u32::MAX);
        if jitter > 0 {
            at += Duration::from_nanos(u64::from(self.rng.below(jitter)));
        }
        at = at.max(self.last_arrival);
        self.last_arrival = at;
        if self.rng.chance_per_million(self.settings.reorder) {
            self.counts.reordered += 1;
            at += self.settings.held_for;
        }
        self.departures += 1;
        self.in_flight.insert((at, self.departures), (marked, octets, item));
    }

    fn loses(&mut self) -> bool {
        match self.settings.loss {
            Loss::None => false,
            Loss::Random(chance) => self.rng.chance_per_million(chance),
            Loss::Burst { enter, leave, bad } => {
                self.is_bad ^= self.rng.chance_per_million(if self.is_bad { leave } else { enter });
                self.is_bad && self.rng.chance_per_million(bad)
            }
        }
    }
}

/// The control law of CoDel (RFC 8289 §5), which here marks where the original drops.
#[derive(Debug, Default)]
struct CoDel {
    /// When the wait will have been too long for an interval.
    patience_ends: Option<Instant>,
    /// The time of the next mark, while marking.
    next_mark: Option<Instant>,
    marks: u32,
}

impl CoDel {
    /// Handles a packet that leaves after having waited for `wait`. Returns whether to mark it.
    fn handle_departure(
        &mut self,
        now: Instant,
        wait: Duration,
        target: Duration,
        interval: Duration,
    ) -> bool {
        if wait < target {
            self.patience_ends = None;
            self.next_mark = None;
            return false;
        }
        let patience_ends = *self.patience_ends.get_or_insert(now + interval);
        if now < patience_ends || self.next_mark.is_some_and(|at| now < at) {
            return false;
        }
        // RFC 8289 §5.3 restarts the count unless the last episode was recent; here it is always restarted.
        self.marks = if self.next_mark.is_some() { self.marks + 1 } else { 1 };
        self.next_mark = Some(now + interval.div_f64(f64::from(self.marks).sqrt()));
        true
    }
}

#[cfg(test)]
mod tests;

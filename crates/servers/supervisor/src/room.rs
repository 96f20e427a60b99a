//! Judges whether memory is short. `bin/atoll` measures how much room there is.
//!
//! There are several bounds: the stack's own limit, its memory cgroups, and the machine. The tightest counts.
//! While the kernel reports that processes wait for memory, the thresholds are higher (PSI,
//! <https://docs.kernel.org/accounting/psi.html>).

use atoll_base::{Duration, Instant};
use atoll_ipc::control::MemoryLevel;

/// How short memory is, and when to measure again. This state is lost with the supervisor.
#[derive(Clone, Debug)]
pub struct Shortness {
    level: MemoryLevel,
    look_at: Instant,
}

/// The room for more memory within one bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The bound itself, in bytes.
    pub all: u64,
    /// The part of it that is left, in bytes.
    pub left: u64,
    /// The kind of the bound.
    pub of: RoomOf,
    /// Whether processes wait for memory of this bound.
    pub is_stalled: bool,
}

/// The kinds of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomOf {
    /// The stack's own limit.
    Limit,
    /// The limit of a memory cgroup.
    Cgroup,
    /// The machine's memory.
    Machine,
}

/// How long processes have waited for memory.
#[derive(Clone, Debug)]
pub struct Stalls {
    /// The total so far, in microseconds.
    total: u64,
    at: Instant,
    /// Whether processes waited for a considerable part of the time between the last two measurements.
    are_many: bool,
}

impl Shortness {
    /// Starts with plenty of memory; the first measurement is due at once.
    pub fn new(now: Instant) -> Shortness {
        Shortness { level: MemoryLevel::Plenty, look_at: now }
    }

    /// Returns the level that was judged last.
    pub fn level(&self) -> MemoryLevel {
        self.level
    }

    /// Returns when the next measurement is due.
    pub fn next_timeout(&self) -> Instant {
        self.look_at
    }

    /// Returns whether the stack's own use matters for the judgement of `rooms`. Measuring it takes time.
    pub fn wants_usage(&self, rooms: &[Room]) -> bool {
        rooms.iter().any(|room| room.of == RoomOf::Limit || room.level(self.level) == MemoryLevel::High)
    }

    /// Judges what was measured at `now`, and returns whether the level changed. The measurement took `took`;
    /// `used` is the stack's own use in bytes, if it matters.
    pub fn judge(&mut self, now: Instant, rooms: &[Room], used: u64, took: Duration) -> bool {
        let level = rooms.iter().map(|room| room.level_for(used, self.level)).max().unwrap_or_default();
        let every =
            if rooms.iter().any(|room| room.is_nearly_short()) { LOOK_EVERY_WHEN_SHORT } else { LOOK_EVERY };
        // Measuring thousands of arenas must not take all of the supervisor's time.
        self.look_at = now + every.max(took * LOOK_SHARE);
        std::mem::replace(&mut self.level, level) != level
    }
}

impl Stalls {
    /// Starts to count; `total` is how long some process has ever waited, in microseconds.
    pub fn new(total: u64, now: Instant) -> Stalls {
        Stalls { total, at: now, are_many: false }
    }

    /// Returns whether processes waited for a considerable part of the time between the last two
    /// measurements.
    pub fn are_many(&self) -> bool {
        self.are_many
    }

    /// Takes the kernel's total at `now`, in microseconds.
    pub fn look(&mut self, total: u64, now: Instant) {
        let (waited, time) = (total.saturating_sub(self.total), now.since(self.at));
        self.are_many = u128::from(waited) * STALLED_PART >= time.as_micros().max(1);
        (self.total, self.at) = (total, now);
    }
}

impl Room {
    /// Returns how many bytes buffers may take. Of the machine it is three sixteenths, as the upper threshold
    /// of Linux's `tcp_mem`. Of a cgroup or the stack's own limit it is a quarter: segments on their way
    /// inside of the stack, ledgers and the servers themselves need the rest.
    pub const fn for_buffers(self) -> u64 {
        if matches!(self.of, RoomOf::Machine) { self.all / 16 * 3 } else { self.all / 4 }
    }

    /// Returns the bytes left below which there is pressure, and those below which memory is short. The
    /// thresholds are smaller parts of the machine, which others use too. They are larger parts of the
    /// stack's own limit, which is only measured now and then and which nothing else enforces. They double
    /// while processes wait for memory.
    const fn thresholds(self) -> (u64, u64) {
        let times = if self.is_stalled { 2 } else { 1 };
        let (pressure, high) = match self.of {
            RoomOf::Limit => (4, 8),
            RoomOf::Cgroup => (8, 16),
            RoomOf::Machine => (32, 64),
        };
        (self.all / pressure * times, self.all / high * times)
    }

    /// Returns whether memory is under pressure, or soon may be.
    const fn is_nearly_short(self) -> bool {
        self.left < self.thresholds().0 * 2
    }

    /// Returns what is left in thousandths of the pressure threshold; the room with the lowest value is the
    /// tightest.
    pub fn tightness(self) -> u128 {
        u128::from(self.left) * 1000 / u128::from(self.thresholds().0.max(1))
    }

    /// Returns the name of the bound in `atoll status`.
    pub const fn name(self) -> &'static str {
        match self.of {
            RoomOf::Limit => "memory.limit",
            RoomOf::Cgroup => "cgroup",
            RoomOf::Machine => "machine",
        }
    }

    /// Returns the level for a stack that uses `used` bytes. If others have used up the memory and the stack
    /// has little itself, closing its connections would not help: the level is at most pressure, and the
    /// stack serves on.
    fn level_for(self, used: u64, before: MemoryLevel) -> MemoryLevel {
        let is_others = self.of != RoomOf::Limit && used < self.all / 16;
        let level = self.level(before);
        if is_others { level.min(MemoryLevel::Pressure) } else { level }
    }

    /// Returns the level, given the one `before`: leaving a level takes a quarter more room than entering it.
    fn level(self, before: MemoryLevel) -> MemoryLevel {
        let (pressure, high) = self.thresholds();
        let is_below = |threshold: u64, level: MemoryLevel| {
            self.left < if before >= level { threshold + threshold / 4 } else { threshold }
        };
        match () {
            () if is_below(high, MemoryLevel::High) => MemoryLevel::High,
            () if is_below(pressure, MemoryLevel::Pressure) => MemoryLevel::Pressure,
            () => MemoryLevel::Plenty,
        }
    }
}

/// The time between two measurements. What can be taken meanwhile is bounded by [`Room::for_buffers`].
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The time between two measurements when little is left: a program fills some megabytes meanwhile.
const LOOK_EVERY_WHEN_SHORT: Duration = Duration::from_millis(30);
/// Measuring takes at most one part in this many of the time.
const LOOK_SHARE: u32 = 50;
/// Memory counts as stalled if processes wait for one part in this many of the time.
const STALLED_PART: u128 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_entered_and_left_at_different_places() {
        let room = |left| Room { all: 1600, left, of: RoomOf::Cgroup, is_stalled: false };
        use MemoryLevel::{High, Plenty, Pressure};
        for (left, before, level) in [
            (1600, Plenty, Plenty),
            (200, Plenty, Plenty),
            (199, Plenty, Pressure),
            (249, Pressure, Pressure),
            (250, Pressure, Plenty),
            (99, Plenty, High),
            (124, High, High),
            (125, High, Pressure),
            (300, High, Plenty),
        ] {
            assert_eq!(room(left).level(before), level, "{left} after {before:?}");
        }
        assert_eq!(
            Room { all: 1600, left: 50, of: RoomOf::Machine, is_stalled: false }.level(Plenty),
            Plenty
        );
        assert_eq!(
            Room { all: 1600, left: 49, of: RoomOf::Machine, is_stalled: false }.level(Plenty),
            Pressure
        );
    }

    #[test]
    fn what_others_use_up_costs_a_small_stack_no_connection() {
        use MemoryLevel::{High, Plenty, Pressure};
        let room = |of, left| Room { all: 1600, left, of, is_stalled: false };
        for of in [RoomOf::Cgroup, RoomOf::Machine] {
            assert_eq!(room(of, 0).level_for(99, Plenty), Pressure);
            assert_eq!(room(of, 0).level_for(100, Plenty), High);
            assert_eq!(room(of, 1600).level_for(0, Plenty), Plenty);
        }
        assert_eq!(room(RoomOf::Limit, 0).level_for(99, Plenty), High);
    }

    #[test]
    fn the_level_is_raised_earlier_while_processes_wait() {
        use MemoryLevel::{High, Plenty, Pressure};
        for (left, level) in [(400, Plenty), (399, Pressure), (200, Pressure), (199, High)] {
            let room = Room { all: 1600, left, of: RoomOf::Cgroup, is_stalled: true };
            assert_eq!(room.level(Plenty), level, "{left}");
        }
    }

    #[test]
    fn processes_that_wait_for_a_good_part_of_the_time_are_many() {
        let start = Instant::from_millis(100_000);
        let mut stalls = Stalls::new(1_000_000, start);
        let mut after = |millis: u64, total: u64| {
            stalls.look(total, start + Duration::from_millis(millis));
            stalls.are_many()
        };
        assert!(!after(250, 1_024_999));
        assert!(after(500, 1_050_000));
        assert!(!after(750, 1_050_000));
    }

    #[test]
    fn it_is_looked_more_often_where_little_is_left_and_less_often_where_looking_takes_long() {
        let now = Instant::from_millis(100_000);
        let room = |left| Room { all: 1600, left, of: RoomOf::Cgroup, is_stalled: false };
        let mut shortness = Shortness::new(now);
        let mut judge = |left, took| {
            let has_changed =
                shortness.judge(now, &[room(1600), room(left)], 1600, Duration::from_millis(took));
            (has_changed, shortness.level(), shortness.next_timeout().since(now).as_millis())
        };
        assert_eq!(judge(1600, 0), (false, MemoryLevel::Plenty, 250));
        assert_eq!(judge(300, 0), (false, MemoryLevel::Plenty, 30));
        assert_eq!(judge(100, 1), (true, MemoryLevel::Pressure, 50));
        assert_eq!(judge(10, 20), (true, MemoryLevel::High, 1000));
        assert!(shortness.wants_usage(&[room(10)]) && !shortness.wants_usage(&[room(1600)]));
        assert!(shortness.wants_usage(&[Room { of: RoomOf::Limit, ..room(1600) }]));
    }
}

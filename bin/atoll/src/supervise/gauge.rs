//! How much memory is there for the stack, and how much is left of it? As much as `[memory] limit` says, as its memory cgroup and those above it
//! have (cgroups(7), both versions), and the machine; whichever has least left.
//!
//! What a page of shared memory costs is charged to the cgroup of whoever touches it first: receive buffers to the replicas', which is the
//! supervisor's, send buffers to the application's. So the bound on receive buffers is taken from what is read here; send buffers of a program count
//! where it is in the same cgroup, and in `[memory] limit` in any case (`usage.rs`). While the kernel says that processes wait for memory, less of it
//! is short already (PSI, <https://docs.kernel.org/accounting/psi.html>).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_ipc::control::MemoryLevel;

/// Looks at it now and then.
#[derive(Debug)]
pub(super) struct Gauge {
    sources: Vec<Source>,
    /// What all receive buffers may take.
    pub buffers_max: u64,
    pub level: MemoryLevel,
    pub look_at: Instant,
}

/// Where it says how much there is, how much is used, and who waits for it. Open since the start: files are out of reach later.
#[derive(Debug)]
struct Source {
    what: What,
    stalls: Option<Stalls>,
}

#[derive(Debug)]
enum What {
    /// What the stack itself may take.
    Limit(u64),
    Cgroup {
        limit: File,
        usage: File,
        stat: File,
        keys: [&'static str; 2],
    },
    Machine(File),
}

/// In octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub all: u64,
    pub left: u64,
    of: Of,
    /// Processes wait for it.
    is_stalled: bool,
}

/// Whose room it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Limit,
    Cgroup,
    Machine,
}

/// For how long processes have waited for memory.
#[derive(Debug)]
struct Stalls {
    file: File,
    /// In microseconds.
    total: u64,
    at: Instant,
    /// They have waited for a good part of the time between the last two looks.
    are_many: bool,
}

impl Gauge {
    /// `limit`: what the stack may take.
    pub fn open(now: Instant, limit: Option<u64>) -> Gauge {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let mut sources: Vec<Source> = folders(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
            .iter()
            .filter_map(|(folder, is_v2)| Source::cgroup(folder, *is_v2, now))
            .take(LEVELS_MAX)
            .collect();
        sources.extend(limit.map(|limit| Source { what: What::Limit(limit), stalls: None }));
        let machine = File::open("/proc/meminfo").ok();
        sources.extend(machine.map(|file| Source { what: What::Machine(file), stalls: Stalls::of_machine(now) }));
        let rooms = sources.iter().filter_map(|source| source.room(0));
        let buffers_max = rooms.map(Room::for_buffers).min().unwrap_or(u64::MAX);
        Gauge { sources, buffers_max, level: MemoryLevel::Plenty, look_at: now }
    }

    /// Looks. `used`: what the stack takes, if somebody wants to know. Returns whether the level has changed.
    pub fn look(&mut self, now: Instant, used: impl Fn() -> u64) -> bool {
        let started = Instant::now();
        let has_limit = self.sources.iter().any(|source| matches!(source.what, What::Limit(_)));
        self.sources.iter_mut().filter_map(|source| source.stalls.as_mut()).for_each(|stalls| stalls.look(now));
        // What the stack takes is asked only where it matters: it takes time.
        let known = if has_limit { used() } else { 0 };
        let rooms: Vec<Room> = self.sources.iter().filter_map(|source| source.room(known)).collect();
        let is_high = |room: &Room| room.level(self.level) == MemoryLevel::High;
        let used = if !has_limit && rooms.iter().any(is_high) { used() } else { known };
        let level = rooms.iter().map(|room| room.level_for(used, self.level)).max().unwrap_or_default();
        let every = if rooms.iter().any(|room| room.is_nearly_short()) { LOOK_EVERY_WHEN_SHORT } else { LOOK_EVERY };
        // Whoever has thousands of arenas does not spend his time looking at them.
        self.look_at = now + every.max(started.elapsed() * LOOK_SHARE);
        std::mem::replace(&mut self.level, level) != level
    }

    /// Where least is left, and what that is. `used`: what the stack takes.
    pub fn tightest(&self, used: u64) -> Option<Room> {
        let rooms = self.sources.iter().filter_map(|source| source.room(used));
        rooms.min_by_key(|room| u128::from(room.left) * 1000 / u128::from(room.thresholds().0.max(1)))
    }

    /// Whether processes wait for memory, as far as the kernel says it.
    pub fn stalls(&self) -> bool {
        self.sources.iter().filter_map(|source| source.stalls.as_ref()).any(|stalls| stalls.are_many)
    }
}

impl Source {
    /// One that has a limit, or may get one.
    fn cgroup(folder: &Path, is_v2: bool, now: Instant) -> Option<Source> {
        let open = |name: &str| File::open(folder.join(name)).ok();
        let names = match is_v2 {
            true => ["memory.max", "memory.current"],
            false => ["memory.limit_in_bytes", "memory.usage_in_bytes"],
        };
        let (limit, usage, stat) = (open(names[0])?, open(names[1])?, open("memory.stat")?);
        Some(if is_v2 {
            let what = What::Cgroup { limit, usage, stat, keys: ["inactive_file", "active_file"] };
            Source { what, stalls: open("memory.pressure").map(|file| Stalls::new(file, now)) }
        } else {
            let what = What::Cgroup { limit, usage, stat, keys: ["total_inactive_file", "total_active_file"] };
            // Version 1 has none of its own.
            Source { what, stalls: Stalls::of_machine(now) }
        })
    }

    /// `used`: what the stack takes. `None`: it has no limit, or does not say.
    fn room(&self, used: u64) -> Option<Room> {
        let (of, all, left) = match &self.what {
            What::Limit(limit) => (Of::Limit, *limit, limit.saturating_sub(used)),
            What::Cgroup { limit, usage, stat, keys } => {
                let all: u64 = text_of(limit).trim().parse().ok().filter(|limit| *limit < UNLIMITED)?;
                let used: u64 = text_of(usage).trim().parse().ok()?;
                // The kernel takes these pages back before it kills anybody.
                let stat = text_of(stat);
                let files = keys.iter().filter_map(|key| value_of(&stat, key)).sum();
                (Of::Cgroup, all, all.saturating_sub(used.saturating_sub(files)))
            }
            What::Machine(meminfo) => {
                let text = text_of(meminfo);
                let kib = |key: &str| value_of(&text, key).map(|kib| kib.saturating_mul(1024));
                (Of::Machine, kib("MemTotal:")?, kib("MemAvailable:")?)
            }
        };
        let is_stalled = self.stalls.as_ref().is_some_and(|stalls| stalls.are_many);
        Some(Room { all, left, of, is_stalled })
    }
}

impl Stalls {
    fn new(file: File, now: Instant) -> Stalls {
        let total = Stalls::total(&file).unwrap_or(0);
        Stalls { file, total, at: now, are_many: false }
    }

    /// Those of all processes. `None`: this kernel does not count them.
    fn of_machine(now: Instant) -> Option<Stalls> {
        File::open("/proc/pressure/memory").ok().map(|file| Stalls::new(file, now))
    }

    /// How long some process has waited, ever, in microseconds.
    fn total(file: &File) -> Option<u64> {
        let text = text_of(file);
        let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
        some.rsplit_once("total=")?.1.trim().parse().ok()
    }

    fn look(&mut self, now: Instant) {
        let Some(total) = Stalls::total(&self.file) else { return };
        let (waited, time) = (total.saturating_sub(self.total), now.saturating_duration_since(self.at));
        self.are_many = u128::from(waited) * STALLED_PART >= time.as_micros().max(1);
        (self.total, self.at) = (total, now);
    }
}

impl Room {
    /// As Linux: `tcp_mem`'s upper threshold is three sixteenths of the machine's memory. Of a cgroup, or of the stack's own limit, it is a quarter:
    /// segments on their way inside of the stack, ledgers and the servers themselves need the rest.
    const fn for_buffers(self) -> u64 {
        if matches!(self.of, Of::Machine) { self.all / 16 * 3 } else { self.all / 4 }
    }

    /// Others use the machine, too, so that less of it is enough. Of the stack's own limit, which nobody else enforces, more is wanted: it is looked at now and
    /// then only. Twice as much is wanted while processes wait for it.
    const fn thresholds(self) -> (u64, u64) {
        let times = if self.is_stalled { 2 } else { 1 };
        let (pressure, high) = match self.of {
            Of::Limit => (4, 8),
            Of::Cgroup => (8, 16),
            Of::Machine => (32, 64),
        };
        (self.all / pressure * times, self.all / high * times)
    }

    /// Whether it is short, or soon may be.
    const fn is_nearly_short(self) -> bool {
        self.left < self.thresholds().0 * 2
    }

    /// What it is called in `atoll status`.
    pub const fn name(self) -> &'static str {
        match self.of {
            Of::Limit => "memory.limit",
            Of::Cgroup => "cgroup",
            Of::Machine => "machine",
        }
    }

    /// The level for a stack that takes `used`. Where others have used up what is for all, and it takes little itself, nothing is won by its
    /// connections' going: it makes do with less, and serves on.
    fn level_for(self, used: u64, before: MemoryLevel) -> MemoryLevel {
        let is_others = self.of != Of::Limit && used < self.all / 16;
        let level = self.level(before);
        if is_others { level.min(MemoryLevel::Pressure) } else { level }
    }

    /// `before`: it takes a quarter more to leave a level than to enter it.
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

/// The folders of the memory cgroup of this process and of those above it, nearest first, and whether they are of version 2. `own`:
/// /proc/self/cgroup, `mounts`: /proc/self/mountinfo.
fn folders(own: &str, mounts: &str) -> Vec<(PathBuf, bool)> {
    let mut folders = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let is_v2 = controllers.is_empty();
        if !is_v2 && !controllers.split(',').any(|controller| controller == "memory") {
            continue;
        }
        // cgroups(7), proc_pid_mountinfo(5): what of the hierarchy is mounted, and where.
        let mount = mounts.lines().find_map(|line| {
            let (front, back) = line.split_once(" - ")?;
            let (mut front, mut back) = (front.split(' ').skip(3), back.split(' '));
            let (root, point, kind, options) = (front.next()?, front.next()?, back.next()?, back.nth(1)?);
            let is_it = match is_v2 {
                true => kind == "cgroup2",
                false => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
            };
            is_it.then_some((root, point))
        });
        let Some((root, point)) = mount else { continue };
        let point = Path::new(point);
        let Ok(below) = Path::new(path).strip_prefix(root) else { continue };
        let own = point.join(below);
        folders.extend(own.ancestors().take_while(|folder| folder.starts_with(point)).map(|it| (it.to_owned(), is_v2)));
    }
    folders
}

/// The number behind a word at the beginning of a line.
fn value_of(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.split_ascii_whitespace().next()?.parse().ok())
}

fn text_of(file: &File) -> String {
    let mut text = vec![0; TEXT_MAX];
    let len = file.read_at(&mut text, 0).unwrap_or(0);
    text.truncate(len);
    String::from_utf8(text).unwrap_or_default()
}

/// How often it is looked. What can be taken meanwhile is bounded by [`Gauge::buffers_max`].
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// And how often when little is left: a program fills some megabytes meanwhile.
const LOOK_EVERY_WHEN_SHORT: Duration = Duration::from_millis(30);
/// The part of the time that looking takes at most: one of so many.
const LOOK_SHARE: u32 = 50;
/// Where processes wait for one of so many parts of the time, memory is short.
const STALLED_PART: u128 = 10;
/// Version 1 says it has no limit by a number near 2^63.
const UNLIMITED: u64 = 1 << 62;
/// So many cgroups above are looked at.
const LEVELS_MAX: usize = 4;
/// Longest text that is read.
const TEXT_MAX: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroups_of_both_versions_are_found_where_they_are_mounted() {
        let mounts = "36 35 0:31 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
                      37 35 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      38 35 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let found = folders("4:memory:/a/b\n1:cpu:/c\n0::/d\n", mounts);
        let found: Vec<_> = found.iter().map(|(folder, is_v2)| (folder.to_str().unwrap(), *is_v2)).collect();
        let (memory, unified) = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified");
        assert_eq!(
            found,
            [
                ("/sys/fs/cgroup/memory/a/b", false),
                ("/sys/fs/cgroup/memory/a", false),
                (memory, false),
                ("/sys/fs/cgroup/unified/d", true),
                (unified, true)
            ]
        );
        // A container sees its own part of the hierarchy only.
        let inside = "36 35 0:31 /docker/7 /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(folders("0::/docker/7/x\n", inside)[0].0, Path::new("/sys/fs/cgroup/x"));
        assert!(folders("0::/elsewhere\n", inside).is_empty());
        assert!(folders("nonsense\n::\n", "nonsense - \n").is_empty());
    }

    #[test]
    fn levels_are_entered_and_left_at_different_places() {
        let room = |left| Room { all: 1600, left, of: Of::Cgroup, is_stalled: false };
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
        assert_eq!(Room { all: 1600, left: 50, of: Of::Machine, is_stalled: false }.level(Plenty), Plenty);
        assert_eq!(Room { all: 1600, left: 49, of: Of::Machine, is_stalled: false }.level(Plenty), Pressure);
    }

    #[test]
    fn what_others_use_up_costs_a_small_stack_no_connection() {
        use MemoryLevel::{High, Plenty, Pressure};
        let room = |of, left| Room { all: 1600, left, of, is_stalled: false };
        for of in [Of::Cgroup, Of::Machine] {
            assert_eq!(room(of, 0).level_for(99, Plenty), Pressure);
            assert_eq!(room(of, 0).level_for(100, Plenty), High);
            assert_eq!(room(of, 1600).level_for(0, Plenty), Plenty);
        }
        assert_eq!(room(Of::Limit, 0).level_for(99, Plenty), High);
    }

    #[test]
    fn the_level_is_raised_earlier_while_processes_wait() {
        use MemoryLevel::{High, Plenty, Pressure};
        for (left, level) in [(400, Plenty), (399, Pressure), (200, Pressure), (199, High)] {
            let room = Room { all: 1600, left, of: Of::Cgroup, is_stalled: true };
            assert_eq!(room.level(Plenty), level, "{left}");
        }
        let path = std::env::temp_dir().join(format!("atoll-psi-{}", std::process::id()));
        let write = |total: u64| {
            let full = "full avg10=0.00 avg60=0.00 avg300=0.00 total=7";
            fs::write(&path, format!("some avg10=0.31 avg60=0.10 avg300=0.00 total={total}\n{full}\n")).unwrap();
        };
        write(1_000_000);
        let start = Instant::now();
        let mut stalls = Stalls::new(File::open(&path).unwrap(), start);
        let mut after = |millis: u64, total: u64| {
            write(total);
            stalls.look(start + Duration::from_millis(millis));
            stalls.are_many
        };
        assert!(!after(250, 1_024_999));
        assert!(after(500, 1_050_000));
        assert!(!after(750, 1_050_000));
        fs::write(&path, "").unwrap();
        stalls.look(start + Duration::from_secs(1));
        assert!(!stalls.are_many && stalls.total == 1_050_000, "nothing is said any more");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_machine_says_how_much_there_is() {
        let now = Instant::now();
        let mut gauge = Gauge::open(now, None);
        assert!(gauge.buffers_max > 0 && gauge.buffers_max < 1 << 50, "{}", gauge.buffers_max);
        gauge.look(now, || panic!("nobody wants to know"));
        assert!(gauge.look_at >= now + LOOK_EVERY, "not at once again");
        let machine = gauge.sources.last().and_then(|source| source.room(0)).expect("there is /proc/meminfo");
        assert!(machine.of == Of::Machine && machine.left <= machine.all && machine.all > 1 << 27);
        assert_eq!(value_of("a 1\nab 2\nMemTotal:   77 kB\n", "MemTotal:"), Some(77));
    }

    #[test]
    fn what_the_stack_takes_counts_against_its_own_limit() {
        let now = Instant::now();
        let limit = 64 << 20;
        let mut gauge = Gauge::open(now, Some(limit));
        assert!(gauge.buffers_max <= limit / 4);
        for (used, level) in [
            (10, MemoryLevel::Plenty),
            (40, MemoryLevel::Plenty),
            (49, MemoryLevel::Pressure),
            (57, MemoryLevel::High),
            (90, MemoryLevel::High),
        ] {
            gauge.look(now, || used << 20);
            assert_eq!(gauge.level, level, "{used} MiB");
            let room = gauge.tightest(used << 20).unwrap();
            assert_eq!((room.all, room.left, room.name()), (limit, limit.saturating_sub(used << 20), "memory.limit"));
            // More often before it is short than while there is plenty.
            assert_eq!(gauge.look_at < now + LOOK_EVERY, used > 32, "{used} MiB");
        }
    }
}

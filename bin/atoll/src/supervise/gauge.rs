//! How much memory is there for the stack, and how much is left of it? That of its memory cgroup and of those above it (cgroups(7), both versions),
//! or the machine's.
//!
//! What a page of shared memory costs is charged to the cgroup of whoever touches it first: receive buffers to the replicas', which is the
//! supervisor's, send buffers to the application's. So the bound on receive buffers is taken from what is read here, and a program that writes
//! much pays for it itself, unless it is in the same cgroup.

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

/// Where it says how much there is and how much is used. Open since the start: files are out of reach later.
#[derive(Debug)]
enum Source {
    Cgroup { limit: File, usage: File, stat: File, keys: [&'static str; 2] },
    Machine(File),
}

/// In octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    all: u64,
    left: u64,
    is_machine: bool,
}

impl Gauge {
    pub fn open(now: Instant) -> Gauge {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let mut sources: Vec<Source> = folders(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
            .iter()
            .filter_map(|(folder, is_v2)| Source::cgroup(folder, *is_v2))
            .take(LEVELS_MAX)
            .collect();
        sources.extend(File::open("/proc/meminfo").map(Source::Machine));
        let rooms = sources.iter().filter_map(Source::room);
        let buffers_max = rooms.map(Room::for_buffers).min().unwrap_or(u64::MAX);
        Gauge { sources, buffers_max, level: MemoryLevel::Plenty, look_at: now }
    }

    /// Looks, if it is time. Returns whether the level has changed.
    pub fn look(&mut self, now: Instant) -> bool {
        if now < self.look_at {
            return false;
        }
        self.look_at = now + LOOK_EVERY;
        let rooms = self.sources.iter().filter_map(Source::room);
        let level = rooms.map(|room| room.level(self.level)).max().unwrap_or_default();
        std::mem::replace(&mut self.level, level) != level
    }
}

impl Source {
    /// One that has a limit, or may get one.
    fn cgroup(folder: &Path, is_v2: bool) -> Option<Source> {
        let open = |name: &str| File::open(folder.join(name)).ok();
        Some(if is_v2 {
            let (limit, usage, stat) = (open("memory.max")?, open("memory.current")?, open("memory.stat")?);
            Source::Cgroup { limit, usage, stat, keys: ["inactive_file", "active_file"] }
        } else {
            let (limit, usage) = (open("memory.limit_in_bytes")?, open("memory.usage_in_bytes")?);
            let stat = open("memory.stat")?;
            Source::Cgroup { limit, usage, stat, keys: ["total_inactive_file", "total_active_file"] }
        })
    }

    /// `None`: it has no limit, or does not say.
    fn room(&self) -> Option<Room> {
        match self {
            Source::Cgroup { limit, usage, stat, keys } => {
                let all = text_of(limit).trim().parse().ok().filter(|limit| *limit < UNLIMITED)?;
                let used: u64 = text_of(usage).trim().parse().ok()?;
                // The kernel takes these pages back before it kills anybody.
                let stat = text_of(stat);
                let files = keys.iter().filter_map(|key| value_of(&stat, key)).sum();
                Some(Room { all, left: all.saturating_sub(used.saturating_sub(files)), is_machine: false })
            }
            Source::Machine(meminfo) => {
                let text = text_of(meminfo);
                let kib = |key: &str| value_of(&text, key).map(|kib| kib.saturating_mul(1024));
                Some(Room { all: kib("MemTotal:")?, left: kib("MemAvailable:")?, is_machine: true })
            }
        }
    }
}

impl Room {
    /// As Linux: `tcp_mem`'s upper threshold is three sixteenths of the machine's memory. Of a cgroup it is a quarter: segments on their way inside of the stack, ledgers and the servers themselves need the rest.
    const fn for_buffers(self) -> u64 {
        if self.is_machine { self.all / 16 * 3 } else { self.all / 4 }
    }

    /// Others use the machine, too, so that less of it is enough.
    const fn thresholds(self) -> (u64, u64) {
        if self.is_machine { (self.all / 32, self.all / 64) } else { (self.all / 8, self.all / 16) }
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
        let room = |left| Room { all: 1600, left, is_machine: false };
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
        assert_eq!(Room { all: 1600, left: 50, is_machine: true }.level(Plenty), Plenty);
        assert_eq!(Room { all: 1600, left: 49, is_machine: true }.level(Plenty), Pressure);
    }

    #[test]
    fn the_machine_says_how_much_there_is() {
        let mut gauge = Gauge::open(Instant::now());
        assert!(gauge.buffers_max > 0 && gauge.buffers_max < 1 << 50, "{}", gauge.buffers_max);
        let now = Instant::now();
        gauge.look(now);
        assert!(!gauge.look(now), "not at once again");
        let machine = gauge.sources.last().and_then(Source::room).expect("there is /proc/meminfo");
        assert!(machine.is_machine && machine.left <= machine.all && machine.all > 1 << 27);
        assert_eq!(value_of("a 1\nab 2\nMemTotal:   77 kB\n", "MemTotal:"), Some(77));
    }
}

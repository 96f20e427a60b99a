//! Measures how much memory there is for the stack, and how much is left. The bounds are `[memory] limit`,
//! the memory cgroup and those above it (cgroups(7), both versions), and the machine; the tightest counts.
//!
//! A page of shared memory is charged to the cgroup of the process that touches it first. Receive buffers are
//! charged to the replicas' cgroup, which is the supervisor's, and send buffers to the application's. The
//! bound on receive buffers is therefore taken from what is read here. Send buffers count where the program
//! is in the same cgroup, and always in `[memory] limit` (`usage.rs`). `atoll_supervisor::Shortness` judges
//! what is short.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use atoll_base::Instant;
use atoll_ipc::control::MemoryLevel;
use atoll_supervisor::{Room, RoomOf, Shortness, Stalls};

use crate::clock;

/// Measures memory now and then.
#[derive(Debug)]
pub(super) struct Gauge {
    sources: Vec<Source>,
    /// The most bytes that all receive buffers may take.
    buffers_max: u64,
    shortness: Shortness,
}

/// A bound and the files with its size, its use and the time that processes wait for memory. The files are
/// open from the start, because they cannot be opened later.
#[derive(Debug)]
struct Source {
    what: What,
    waiting: Option<Waiting>,
}

#[derive(Debug)]
enum What {
    /// The stack's own limit, in bytes.
    Limit(u64),
    Cgroup {
        limit: File,
        usage: File,
        stat: File,
        keys: [&'static str; 2],
    },
    Machine(File),
}

/// The file with the time that processes have waited for memory.
#[derive(Debug)]
struct Waiting {
    file: File,
    stalls: Stalls,
}

impl Gauge {
    /// Opens all files that there are. `limit` is the stack's own limit in bytes.
    pub fn open(now: Instant, limit: Option<u64>) -> Gauge {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let mut sources: Vec<Source> = folders(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
            .iter()
            .filter_map(|(folder, is_v2)| Source::cgroup(folder, *is_v2, now))
            .take(LEVELS_MAX)
            .collect();
        sources.extend(limit.map(|limit| Source { what: What::Limit(limit), waiting: None }));
        let machine = File::open("/proc/meminfo").ok();
        sources.extend(
            machine.map(|file| Source { what: What::Machine(file), waiting: Waiting::of_machine(now) }),
        );
        let rooms = sources.iter().filter_map(|source| source.room(0));
        let buffers_max = rooms.map(Room::for_buffers).min().unwrap_or(u64::MAX);
        Gauge { sources, buffers_max, shortness: Shortness::new(now) }
    }

    /// Returns the most bytes that all receive buffers may take.
    pub fn buffers_max(&self) -> u64 {
        self.buffers_max
    }

    /// Returns the level of the last measurement.
    pub fn level(&self) -> MemoryLevel {
        self.shortness.level()
    }

    /// Returns when the next measurement is due.
    pub fn next_timeout(&self) -> Instant {
        self.shortness.next_timeout()
    }

    /// Measures memory, and returns whether the level has changed. `used` measures the stack's own use in
    /// bytes; it is called only if that matters.
    pub fn look(&mut self, now: Instant, used: impl Fn() -> u64) -> bool {
        let started = clock::now();
        let has_limit = self.sources.iter().any(|source| matches!(source.what, What::Limit(_)));
        self.sources
            .iter_mut()
            .filter_map(|source| source.waiting.as_mut())
            .for_each(|waiting| waiting.look(now));
        // Measuring the stack's own use takes time, so it is done only where it matters.
        let known = if has_limit { used() } else { 0 };
        let rooms: Vec<Room> = self.sources.iter().filter_map(|source| source.room(known)).collect();
        let used = if !has_limit && self.shortness.wants_usage(&rooms) { used() } else { known };
        self.shortness.judge(now, &rooms, used, clock::now().since(started))
    }

    /// Returns the tightest room. `used` is the stack's own use in bytes.
    pub fn tightest(&self, used: u64) -> Option<Room> {
        self.sources.iter().filter_map(|source| source.room(used)).min_by_key(|room| room.tightness())
    }

    /// Returns whether processes wait for memory, as far as the kernel reports it.
    pub fn stalls(&self) -> bool {
        self.sources
            .iter()
            .filter_map(|source| source.waiting.as_ref())
            .any(|waiting| waiting.stalls.are_many())
    }
}

impl Source {
    /// Opens the files of a cgroup that has a limit, or may get one.
    fn cgroup(folder: &Path, is_v2: bool, now: Instant) -> Option<Source> {
        let open = |name: &str| File::open(folder.join(name)).ok();
        let names = match is_v2 {
            true => ["memory.max", "memory.current"],
            false => ["memory.limit_in_bytes", "memory.usage_in_bytes"],
        };
        let (limit, usage, stat) = (open(names[0])?, open(names[1])?, open("memory.stat")?);
        Some(if is_v2 {
            let what = What::Cgroup { limit, usage, stat, keys: ["inactive_file", "active_file"] };
            Source { what, waiting: open("memory.pressure").map(|file| Waiting::new(file, now)) }
        } else {
            let what =
                What::Cgroup { limit, usage, stat, keys: ["total_inactive_file", "total_active_file"] };
            // Version 1 has no pressure file of its own.
            Source { what, waiting: Waiting::of_machine(now) }
        })
    }

    /// Returns the room, or `None` if there is no limit or the files do not show it. `used` is the stack's
    /// own use in bytes.
    fn room(&self, used: u64) -> Option<Room> {
        let (of, all, left) = match &self.what {
            What::Limit(limit) => (RoomOf::Limit, *limit, limit.saturating_sub(used)),
            What::Cgroup { limit, usage, stat, keys } => {
                let all: u64 = text_of(limit).trim().parse().ok().filter(|limit| *limit < UNLIMITED)?;
                let used: u64 = text_of(usage).trim().parse().ok()?;
                // The kernel reclaims these pages before it kills a process.
                let stat = text_of(stat);
                let files = keys.iter().filter_map(|key| value_of(&stat, key)).sum();
                (RoomOf::Cgroup, all, all.saturating_sub(used.saturating_sub(files)))
            }
            What::Machine(meminfo) => {
                let text = text_of(meminfo);
                let kib = |key: &str| value_of(&text, key).map(|kib| kib.saturating_mul(1024));
                (RoomOf::Machine, kib("MemTotal:")?, kib("MemAvailable:")?)
            }
        };
        let is_stalled = self.waiting.as_ref().is_some_and(|waiting| waiting.stalls.are_many());
        Some(Room { all, left, of, is_stalled })
    }
}

impl Waiting {
    fn new(file: File, now: Instant) -> Waiting {
        let total = Waiting::total(&file).unwrap_or(0);
        Waiting { file, stalls: Stalls::new(total, now) }
    }

    /// Opens the file for all processes; returns `None` if this kernel does not count waiting times.
    fn of_machine(now: Instant) -> Option<Waiting> {
        File::open("/proc/pressure/memory").ok().map(|file| Waiting::new(file, now))
    }

    /// Returns how long some process has ever waited, in microseconds.
    fn total(file: &File) -> Option<u64> {
        let text = text_of(file);
        let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
        some.rsplit_once("total=")?.1.trim().parse().ok()
    }

    fn look(&mut self, now: Instant) {
        if let Some(total) = Waiting::total(&self.file) {
            self.stalls.look(total, now);
        }
    }
}

/// Returns the folders of this process's memory cgroup and of those above it, the nearest first, each with
/// whether it is of version 2. `own` is the content of /proc/self/cgroup, `mounts` that of
/// /proc/self/mountinfo.
fn folders(own: &str, mounts: &str) -> Vec<(PathBuf, bool)> {
    let mut folders = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let is_v2 = controllers.is_empty();
        if !is_v2 && !controllers.split(',').any(|controller| controller == "memory") {
            continue;
        }
        // The line says which part of the hierarchy is mounted, and where (cgroups(7),
        // proc_pid_mountinfo(5)).
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
        folders.extend(
            own.ancestors().take_while(|folder| folder.starts_with(point)).map(|it| (it.to_owned(), is_v2)),
        );
    }
    folders
}

/// Returns the number after a word at the beginning of a line.
fn value_of(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.split_ascii_whitespace().next()?.parse().ok())
}

fn text_of(file: &File) -> String {
    let mut text = vec![0; TEXT_MAX];
    let len = file.read_at(&mut text, 0).unwrap_or(0);
    text.truncate(len);
    String::from_utf8(text).unwrap_or_default()
}

/// Version 1 shows the absence of a limit as a number near 2^63.
const UNLIMITED: u64 = 1 << 62;
/// The largest number of cgroups that are read.
const LEVELS_MAX: usize = 4;
/// The longest text that is read, in bytes.
const TEXT_MAX: usize = 8192;

#[cfg(test)]
mod tests {
    use atoll_base::Duration;

    use super::*;

    /// The time between two measurements where there is plenty of memory.
    const SELDOM: Duration = Duration::from_millis(250);

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
        // A container sees only its own part of the hierarchy.
        let inside = "36 35 0:31 /docker/7 /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(folders("0::/docker/7/x\n", inside)[0].0, Path::new("/sys/fs/cgroup/x"));
        assert!(folders("0::/elsewhere\n", inside).is_empty());
        assert!(folders("nonsense\n::\n", "nonsense - \n").is_empty());
    }

    #[test]
    fn what_the_kernel_says_of_processes_that_wait_is_read() {
        let path = std::env::temp_dir().join(format!("atoll-psi-{}", std::process::id()));
        let write = |total: u64| {
            let full = "full avg10=0.00 avg60=0.00 avg300=0.00 total=7";
            fs::write(&path, format!("some avg10=0.31 avg60=0.10 avg300=0.00 total={total}\n{full}\n"))
                .unwrap();
        };
        write(1_000_000);
        let start = clock::now();
        let mut waiting = Waiting::new(File::open(&path).unwrap(), start);
        let mut after = |millis: u64, total: u64| {
            write(total);
            waiting.look(start + Duration::from_millis(millis));
            waiting.stalls.are_many()
        };
        assert!(!after(250, 1_024_999));
        assert!(after(500, 1_050_000));
        assert!(!after(750, 1_050_000));
        fs::write(&path, "").unwrap();
        waiting.look(start + Duration::from_secs(1));
        assert!(
            !waiting.stalls.are_many() && Waiting::total(&waiting.file).is_none(),
            "nothing is said any more"
        );
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_machine_says_how_much_there_is() {
        let now = clock::now();
        let mut gauge = Gauge::open(now, None);
        assert!(gauge.buffers_max > 0 && gauge.buffers_max < 1 << 50, "{}", gauge.buffers_max);
        gauge.look(now, || panic!("nobody wants to know"));
        assert!(gauge.next_timeout() >= now + SELDOM, "not at once again");
        let machine = gauge.sources.last().and_then(|source| source.room(0)).expect("there is /proc/meminfo");
        assert!(machine.of == RoomOf::Machine && machine.left <= machine.all && machine.all > 1 << 27);
        assert_eq!(value_of("a 1\nab 2\nMemTotal:   77 kB\n", "MemTotal:"), Some(77));
    }

    #[test]
    fn what_the_stack_takes_counts_against_its_own_limit() {
        let now = clock::now();
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
            assert_eq!(gauge.level(), level, "{used} MiB");
            let room = gauge.tightest(used << 20).unwrap();
            assert_eq!(
                (room.all, room.left, room.name()),
                (limit, limit.saturating_sub(used << 20), "memory.limit")
            );
            // Measurements become more frequent before memory is short.
            assert_eq!(gauge.next_timeout() < now + SELDOM, used > 32, "{used} MiB");
        }
    }
}

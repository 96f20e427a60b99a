//! Makes a process's own memory resident before it is needed (mallopt(3), madvise(2)).
//!
//! The first touch of a page costs about as much as the work for a connection, and a standby has time.

use std::hint::black_box;
use std::io;
use std::ops::Range;

/// Allocates `bytes` of memory for the heap, touches it, and keeps it there: later allocations use it.
///
/// `bytes` is limited to [`HELD_MAX`]. This is for a process with one thread, because other threads have
/// heaps of their own. From then on blocks below 32 MiB come from the heap (mallopt(3), M_MMAP_THRESHOLD),
/// and the heap returns to the system only what it has free beyond twice `bytes`.
pub fn hold(bytes: usize) {
    let bytes = bytes.min(HELD_MAX);
    keep(bytes);
    // The pieces are so small that the allocator does not map them separately. All exist before the first one
    // is freed, and freed pieces are merged.
    let pieces: Vec<Vec<u8>> = (0..bytes.div_ceil(PIECE)).map(|_| vec![1; PIECE]).collect();
    drop(black_box(pieces));
}

#[cfg(target_env = "gnu")]
fn keep(bytes: usize) {
    // This cannot truncate: `HELD_MAX` is far below the limit.
    let trim = (2 * bytes + PIECE) as libc::c_int;
    for (what, value) in [(libc::M_MMAP_THRESHOLD, MAPPED_FROM), (libc::M_TRIM_THRESHOLD, trim)] {
        // SAFETY: mallopt takes two numbers. A value that the C library does not accept has no effect.
        unsafe { libc::mallopt(what, value) };
    }
}

/// Does nothing: other C libraries may or may not keep memory that is freed.
#[cfg(not(target_env = "gnu"))]
fn keep(_: usize) {}

/// Maps the pages of the program, its libraries and its own memory that are not mapped yet. Code is mapped
/// from the page cache, writable memory as a copy. Shared memory is left alone. Does nothing on kernels
/// before 5.14.
///
/// Fails if /proc/self/maps cannot be read.
pub fn populate() -> io::Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    for (range, advice) in maps.lines().filter_map(worth) {
        // SAFETY: populating changes no octet; pages of a mapping that does not exist (any more) give ENOMEM.
        // The result does not matter: pages that are not mapped now are mapped when they are touched.
        unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), advice) };
    }
    Ok(())
}

/// Returns the range of a mapping and the advice for it, given its line of proc_pid_maps(5); `None` if it is
/// left alone.
fn worth(line: &str) -> Option<(Range<usize>, libc::c_int)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
    // The kernel's own mappings, `[vvar]` and `[vdso]`, are left alone.
    let advice = match (fields.next()?.as_bytes(), fields.nth(3)) {
        (_, Some(name)) if name.starts_with("[v") => return None,
        ([b'r', b'w', _, b'p'], _) => libc::MADV_POPULATE_WRITE,
        ([b'r', b'-', _, b'p'], _) => libc::MADV_POPULATE_READ,
        _ => return None,
    };
    (range.len() <= HELD_MAX).then_some((range, advice))
}

/// The most bytes that are held.
pub const HELD_MAX: usize = 64 << 20;
const PIECE: usize = 1 << 20;
/// The highest M_MMAP_THRESHOLD that the C library accepts, in bytes.
#[cfg(target_env = "gnu")]
const MAPPED_FROM: libc::c_int = 32 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of page faults of this process that needed no reading from a device.
    fn faults() -> libc::c_long {
        // SAFETY: all-zero is a valid `rusage`.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is valid and outlives the call.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
        usage.ru_minflt
    }

    /// This test runs in a child process with one thread and one heap.
    #[test]
    fn what_is_held_is_not_taken_for_the_first_time_later() {
        const INSIDE: &str = "ATOLL_TEST_HEAP";
        const BYTES: usize = 8 << 20;
        if std::env::var_os(INSIDE).is_none() {
            let own = std::env::current_exe().unwrap();
            let mut again = std::process::Command::new(own);
            again.args(["--exact", "heap::tests::what_is_held_is_not_taken_for_the_first_time_later"]);
            let done = again.env(INSIDE, "1").env("MALLOC_ARENA_MAX", "1").output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
            return;
        }
        let take = || {
            let before = faults();
            // One large block is like a table, and many small ones are like connections.
            let table = vec![7u8; BYTES / 4];
            let many: Vec<Box<[u8]>> =
                (0..BYTES / 2 / 4096).map(|_| vec![7; 4096 - 16].into_boxed_slice()).collect();
            drop(black_box((table, many)));
            faults() - before
        };
        hold(BYTES);
        populate().unwrap();
        let few = take();
        assert!(few < 100, "{few} faults for {} pages", BYTES / 4096 * 3 / 4);
    }

    #[test]
    fn what_is_shared_or_not_ours_is_left_alone() {
        let code = "55d0c0a00000-55d0c0c00000 r-xp 00001000 08:01 1311 /usr/bin/atoll";
        assert_eq!(worth(code), Some((0x55d0c0a00000..0x55d0c0c00000, libc::MADV_POPULATE_READ)));
        let heap = "55d0c1a00000-55d0c1c00000 rw-p 00000000 00:00 0 [heap]";
        assert_eq!(worth(heap), Some((0x55d0c1a00000..0x55d0c1c00000, libc::MADV_POPULATE_WRITE)));
        for other in [
            "7f0000000000-7f0000100000 rw-s 00000000 00:01 7 /memfd:atoll-ledger (deleted)",
            "7f0000000000-7f0000100000 ---p 00000000 00:00 0",
            "7ffd00000000-7ffd00004000 r--p 00000000 00:00 0 [vvar]",
            "7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0 [vdso]",
            "7f0000000000-7f0010000000 rw-p 00000000 00:00 0",
            "7f0000000000 rw-p",
            "zz-7f0000000000 rw-p 0 0 0",
            "7f0000000002-7f0000000001 rw-s 0 0 0",
            "",
        ] {
            assert_eq!(worth(other), None, "{other}");
        }
    }
}

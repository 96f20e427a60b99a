//! Address space: getrlimit(2), RLIMIT_AS.
//!
//! An arena is mapped whole, and takes memory only where it is touched: with usual sizes a session maps
//! 2.2 GB for each replica. Programs that limit their address space do not count on that (dovecot and vsftpd
//! do by 200 to 256 MB, and shells for what they start by `ulimit -v`).
//!
//! | limit | what the library does |
//! |---|---|
//! | in force before the process joins a stack | it asks for arenas that together take a quarter of what is left |
//! | set when arenas are mapped | the kernel is told as much more as these take, and the program is shown its own |
//!
//! A limit that the program has set makes the kernel's hard limit larger by several times the arenas: the
//! soft one is raised that far while a child or the next program is prepared, for which arenas are mapped a
//! second time, and while the arenas are mapped of a session whose socket another process has sent.

use std::sync::atomic::{AtomicU64, Ordering};

use atoll_sockets::Errno;
use libc::{RLIM_INFINITY, rlimit};

use crate::confinement::is_confined;
use crate::real::{last_errno, sys};

/// Which part of the address space that is left arenas may take, as its inverse.
const SHARE: u64 = 4;

/// By how many times the size of the arenas the hard limit is larger than the program's.
const COPIES: u64 = 4;

/// A limit that is kept in two words, soft and hard. Programs set limits in one thread, and what another one
/// is shown meanwhile may be half of it.
struct Limit {
    soft: AtomicU64,
    hard: AtomicU64,
}

/// The limit as the program has set it, and what the kernel was told in its place. Both are [`NONE`] if the
/// program has set none, or if there were no arenas then.
static OWN: Limit = Limit::none();
static TOLD: Limit = Limit::none();

const NONE: rlimit = rlimit { rlim_cur: RLIM_INFINITY, rlim_max: RLIM_INFINITY };

impl Limit {
    const fn none() -> Limit {
        Limit { soft: AtomicU64::new(RLIM_INFINITY), hard: AtomicU64::new(RLIM_INFINITY) }
    }

    fn get(&self) -> rlimit {
        rlimit { rlim_cur: self.soft.load(Ordering::Relaxed), rlim_max: self.hard.load(Ordering::Relaxed) }
    }

    fn set(&self, limit: rlimit) {
        self.soft.store(limit.rlim_cur, Ordering::Relaxed);
        self.hard.store(limit.rlim_max, Ordering::Relaxed);
    }
}

/// Returns the limit of this process as the kernel knows it.
fn kernel() -> Result<rlimit, Errno> {
    let mut limit = NONE;
    // SAFETY: asks about this process; the target is valid.
    let result =
        unsafe { sys!(libc::SYS_prlimit64, 0, libc::RLIMIT_AS, std::ptr::null::<rlimit>(), &raw mut limit) };
    if result < 0 { Err(last_errno()) } else { Ok(limit) }
}

/// Changes the limit of this process as the kernel knows it.
fn tell_kernel(limit: rlimit) -> Result<(), Errno> {
    let nothing = std::ptr::null_mut::<rlimit>();
    // SAFETY: the new limit is valid.
    let result = unsafe { sys!(libc::SYS_prlimit64, 0, libc::RLIMIT_AS, &raw const limit, nothing) };
    if result < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Returns what the program has set, if that is what the kernel's limit stands for: somebody else may have
/// changed that meanwhile, as prlimit(1) does, or a child of vfork(2) that shares this memory.
fn own(kernel: &rlimit) -> Option<rlimit> {
    let told = TOLD.get();
    let is_ours = told.rlim_max != RLIM_INFINITY || told.rlim_cur != RLIM_INFINITY;
    (is_ours && told.rlim_max == kernel.rlim_max).then(|| OWN.get())
}

/// Returns a limit that is larger by `bytes`.
fn raised(limit: u64, bytes: u64) -> u64 {
    if limit == RLIM_INFINITY { RLIM_INFINITY } else { limit.saturating_add(bytes).min(RLIM_INFINITY - 1) }
}

/// Returns what the kernel is told of a limit that the program has set, beside `mapped` bytes of arenas.
fn told_for(own: rlimit, mapped: u64) -> rlimit {
    rlimit {
        rlim_cur: raised(own.rlim_cur, mapped),
        rlim_max: raised(own.rlim_max, mapped.saturating_mul(COPIES)),
    }
}

/// Returns the limit as the program knows it.
pub fn limit() -> Result<rlimit, Errno> {
    let kernel = kernel()?;
    Ok(own(&kernel).unwrap_or(kernel))
}

/// Sets the limit, of what the program itself maps beside `mapped` bytes of arenas: setrlimit(2).
pub fn set_limit(limit: rlimit, mapped: u64) -> Result<(), Errno> {
    let kernel = kernel()?;
    if limit.rlim_cur > limit.rlim_max || mapped == 0 {
        tell_kernel(limit)?;
        OWN.set(NONE);
        TOLD.set(NONE);
        return Ok(());
    }
    let before = own(&kernel).unwrap_or(kernel);
    let mut told = told_for(limit, mapped);
    if let Err(errno) = tell_kernel(told) {
        // Without privilege the hard limit may not grow. It stays, if the program does not want it to.
        if limit.rlim_max > before.rlim_max {
            return Err(errno);
        }
        told.rlim_max = told.rlim_max.min(kernel.rlim_max);
        told.rlim_cur = told.rlim_cur.min(told.rlim_max);
        tell_kernel(told)?;
    }
    OWN.set(limit);
    TOLD.set(told);
    Ok(())
}

/// Lets the process map more arenas, for a child, the next program, or a socket that was sent to it, until
/// [`refit`]. A process that confines itself may be killed for asking, so its limit stays.
pub fn loosen() {
    let told = TOLD.get();
    if told.rlim_cur < told.rlim_max && !is_confined() && kernel().is_ok_and(|kernel| own(&kernel).is_some())
    {
        let _ = tell_kernel(rlimit { rlim_cur: told.rlim_max, rlim_max: told.rlim_max });
    }
}

/// Brings the kernel's limit in line with the arenas that are mapped now, which take as many bytes as
/// `mapped` returns.
pub fn refit(mapped: impl FnOnce() -> u64) {
    let told = TOLD.get();
    if told.rlim_cur == RLIM_INFINITY || is_confined() {
        return;
    }
    let Some(own) = kernel().ok().and_then(|kernel| own(&kernel)) else { return };
    let rlim_cur = raised(own.rlim_cur, mapped()).min(told.rlim_max);
    let fitting = rlimit { rlim_cur, ..told };
    if tell_kernel(fitting).is_ok() {
        TOLD.set(fitting);
    }
}

/// Gives a program that takes this one's place, without arenas, the limit that this one has set, as far as
/// that can be undone. Returns the limit of before if there was one.
pub fn without_arenas() -> Option<rlimit> {
    let before = kernel().ok()?;
    let own = own(&before)?;
    tell_kernel(rlimit { rlim_cur: own.rlim_cur.min(before.rlim_max), ..before }).ok()?;
    Some(before)
}

/// Undoes [`without_arenas`], because the program does not run.
pub fn with_arenas_again(before: Option<rlimit>) {
    if let Some(before) = before {
        let _ = tell_kernel(before);
    }
}

/// Returns how many MiB of address space the arenas of another session may take together: at least 1, or 0
/// if nothing limits them.
pub fn room_mib() -> u32 {
    let Ok(kernel) = kernel() else { return 0 };
    let soft = if own(&kernel).is_some() { TOLD.get().rlim_cur } else { kernel.rlim_cur };
    if soft == RLIM_INFINITY {
        return 0;
    }
    share_of(soft.saturating_sub(in_use()))
}

fn share_of(left: u64) -> u32 {
    u32::try_from((left / SHARE) >> 20).unwrap_or(u32::MAX).max(1)
}

/// Returns how many bytes of address space this process uses; 0 where /proc cannot be read.
fn in_use() -> u64 {
    let page = 4096;
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    pages.unwrap_or(0).saturating_mul(page)
}

// ---- over exec ----

/// Returns the limit that the next program has to know of, as text; empty if there is none.
pub fn to_text() -> String {
    match kernel().ok().and_then(|kernel| own(&kernel)) {
        Some(own) => format!("+{}:{}", own.rlim_cur, own.rlim_max),
        None => String::new(),
    }
}

/// Takes over what the program before this one has said of its limit ([`to_text`] without the plus).
pub fn take_text(text: &str) {
    let Some((soft, hard)) = text.split_once(':') else { return };
    let (Ok(rlim_cur), Ok(rlim_max), Ok(kernel)) = (soft.parse(), hard.parse(), kernel()) else { return };
    OWN.set(rlimit { rlim_cur, rlim_max });
    TOLD.set(kernel);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_told_of_more_by_what_arenas_take() {
        let own = rlimit { rlim_cur: 200 << 20, rlim_max: 300 << 20 };
        let told = told_for(own, 64 << 20);
        assert_eq!((told.rlim_cur, told.rlim_max), (264 << 20, (300 + 4 * 64) << 20));
        let soft = told_for(rlimit { rlim_cur: 5, rlim_max: RLIM_INFINITY }, 7);
        assert_eq!((soft.rlim_cur, soft.rlim_max), (12, RLIM_INFINITY));
        // The largest limit is none at all, and is not reached by adding.
        assert_eq!(raised(RLIM_INFINITY - 3, u64::MAX), RLIM_INFINITY - 1);
    }

    #[test]
    fn a_quarter_of_what_is_left_is_for_arenas() {
        assert_eq!(share_of(200 << 20), 50);
        assert_eq!((share_of(0), share_of(u64::MAX)), (1, u32::MAX));
    }
}

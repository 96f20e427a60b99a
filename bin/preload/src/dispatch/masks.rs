//! SIGSYS is never blocked in a process that dispatches: the kernel ends a process with a call to dispatch
//! whose thread blocks it. The program is shown the mask that it has set.

use std::cell::Cell;
use std::ffi::c_int;

use crate::instruction::direct;
use crate::signals::{bit, hidden_signals};

thread_local! {
    /// The signals that the program believes to be blocked in this thread, and that are not.
    static BELIEVED: Cell<u64> = const { Cell::new(0) };
}

/// Returns the signals that the program believes to be blocked in this thread, and that are not.
pub fn believed() -> u64 {
    BELIEVED.get()
}

/// Sets what the program believes of this thread, which has begun with the mask of another one.
pub fn set_believed(signals: u64) {
    BELIEVED.set(signals);
}

/// The signal mask of a thread, for the program and for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask {
    /// What the kernel has blocked.
    pub real: u64,
    /// What the program believes to be blocked besides.
    pub believed: u64,
}

impl Mask {
    /// Returns what the program is shown.
    pub fn shown(self) -> u64 {
        self.real | self.believed
    }

    /// Returns the mask after the program has changed it: sigprocmask(2). `hidden` are the signals that are
    /// never blocked. `None` if there is no such way to change it.
    pub fn change(self, how: c_int, set: u64, hidden: u64) -> Option<Mask> {
        let wanted = match how {
            libc::SIG_BLOCK => self.shown() | set,
            libc::SIG_UNBLOCK => self.shown() & !set,
            libc::SIG_SETMASK => set,
            _ => return None,
        };
        Some(Mask { real: wanted & !hidden, believed: wanted & hidden })
    }
}

/// Changes a mask that is in force when a trapped rt_sigprocmask(2) is over. Returns what the call returns.
///
/// # Safety
/// `set` and `old` are null or valid for a mask of the kernel's. The thread is one of the C library's, unless
/// `is_other`.
pub unsafe fn change_trapped(
    real: &mut u64,
    how: c_int,
    set: *const u64,
    old: *mut u64,
    is_other: bool,
) -> c_int {
    let before = Mask { real: *real, believed: if is_other { 0 } else { BELIEVED.get() } };
    if !set.is_null() {
        // SAFETY: the caller's promise.
        let Some(after) = before.change(how, unsafe { set.read_unaligned() }, hidden_signals()) else {
            return -libc::EINVAL;
        };
        *real = after.real & !(bit(libc::SIGKILL) | bit(libc::SIGSTOP));
        if !is_other {
            BELIEVED.set(after.believed);
        }
    }
    if !old.is_null() {
        // SAFETY: the caller's promise.
        unsafe { old.write_unaligned(before.shown()) };
    }
    0
}

/// Changes the mask of this thread by `change`, which gets what the kernel is to be told, and returns the
/// mask from before.
///
/// # Safety
/// `set` is null or valid.
pub unsafe fn change(
    how: c_int,
    set: *const u64,
    change: impl FnOnce(*const u64) -> Option<u64>,
) -> Option<u64> {
    let hidden = hidden_signals();
    // SAFETY: the caller's promise.
    let asked = unsafe { set.as_ref() }.copied();
    let told = asked.map(|asked| if how == libc::SIG_UNBLOCK { asked } else { asked & !hidden });
    let before = change(told.as_ref().map_or(std::ptr::null(), std::ptr::from_ref))?;
    let mask = Mask { real: before, believed: BELIEVED.get() };
    if let Some(after) = asked.and_then(|asked| mask.change(how, asked, hidden)) {
        BELIEVED.set(after.believed);
    }
    Some(mask.shown())
}

/// Lets the hidden signals through in this thread, which has inherited its mask.
pub fn begin_thread() {
    let hidden = bit(libc::SIGSYS);
    let mut before = 0u64;
    let words = [libc::SIG_UNBLOCK.into(), &raw const hidden as i64, &raw mut before as i64, 8, 0, 0];
    // SAFETY: two masks of the kernel's size.
    unsafe { direct(libc::SYS_rt_sigprocmask, words) };
    BELIEVED.set(before & hidden | BELIEVED.get());
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYS: u64 = 1 << (libc::SIGSYS - 1);
    const TERM: u64 = 1 << (libc::SIGTERM - 1);

    #[test]
    fn a_hidden_signal_is_shown_as_blocked_and_is_not() {
        let none = Mask { real: 0, believed: 0 };
        let all = none.change(libc::SIG_SETMASK, u64::MAX, SYS).unwrap();
        assert_eq!(all, Mask { real: !SYS, believed: SYS });
        assert_eq!(all.shown(), u64::MAX);
        let fewer = all.change(libc::SIG_UNBLOCK, TERM, SYS).unwrap();
        assert_eq!(fewer, Mask { real: !SYS & !TERM, believed: SYS });
        assert_eq!(fewer.change(libc::SIG_UNBLOCK, SYS, SYS).unwrap().shown(), !SYS & !TERM);
        assert_eq!(
            none.change(libc::SIG_BLOCK, SYS | TERM, SYS).unwrap(),
            Mask { real: TERM, believed: SYS }
        );
        assert_eq!(none.change(3, TERM, SYS), None);
    }

    #[test]
    fn a_trapped_call_changes_nothing_when_it_only_asks() {
        let (mut real, mut old) = (TERM, 0);
        // SAFETY: null, and a word of this test.
        let result = unsafe { change_trapped(&mut real, 77, std::ptr::null(), &raw mut old, true) };
        assert_eq!((result, real, old), (0, TERM, TERM));
        let set = SYS;
        // SAFETY: as above.
        let result = unsafe { change_trapped(&mut real, 77, &raw const set, &raw mut old, true) };
        assert_eq!((result, real), (-libc::EINVAL, TERM));
    }
}

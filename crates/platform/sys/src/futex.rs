//! Sleeping on a word of shared memory: futex(2), the shared (not PRIVATE) kind.

use std::io;
use std::sync::atomic::AtomicU32;

use atoll_base::Duration;
use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec};

/// The reason why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The wait ended by a wake-up, a signal, or spuriously: read the word again.
    Maybe,
    /// The word was not `expected` any more, so there was no sleep.
    Changed,
    /// The timeout has passed.
    TimedOut,
}

/// Sleeps while `*word == expected`, for at most `timeout` (`None`: for ever).
///
/// The word may be in memory shared with any process. A hostile one can wake this process early or never, so
/// every wait on such a word needs a timeout or another doorbell.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> io::Result<Woken> {
    let timeout = timeout.map(|t| Timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: t.subsec_nanos().into(),
    });
    match futex::wait(word, Flags::empty(), expected, timeout.as_ref()) {
        Ok(()) | Err(Errno::INTR) => Ok(Woken::Maybe),
        Err(Errno::AGAIN) => Ok(Woken::Changed),
        Err(Errno::TIMEDOUT) => Ok(Woken::TimedOut),
        Err(error) => Err(error.into()),
    }
}

/// Wakes at most `count` sleepers on `word`, and returns how many it has woken.
pub fn wake(word: &AtomicU32, count: u32) -> io::Result<usize> {
    // The kernel takes a signed count.
    Ok(futex::wake(word, Flags::empty(), count.min(i32::MAX as u32))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_changed_word_does_not_sleep_and_an_unchanged_one_times_out() {
        let word = AtomicU32::new(1);
        assert_eq!(wait(&word, 0, None).unwrap(), Woken::Changed);
        assert_eq!(wait(&word, 1, Some(Duration::from_millis(1))).unwrap(), Woken::TimedOut);
    }

    #[test]
    fn a_sleeper_is_woken() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    wait(&word, 0, None).unwrap();
                }
            });
            // Pairs with the Acquire load above.
            word.store(1, Ordering::Release);
            wake(&word, u32::MAX).unwrap();
        });
    }
}

//! Which commands of a session are paced? Those that no honest program says often, each of which makes work
//! elsewhere or is said for nothing: what is refused, and memberships in groups, which routers are told of.
//! Others that it says wait behind them on its ring, and a replica that has nothing else to do sleeps
//! meanwhile.

use atoll_base::{Duration, Instant};

/// So many are carried out in one window. All groups that a session may be in are joined at once.
const BURST: u32 = 256;
const WINDOW: Duration = Duration::from_millis(10);

/// How many there were in this window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    since: Instant,
    count: u32,
    /// Commands wait until the window is over.
    is_waiting: bool,
}

impl Pace {
    /// One more was carried out.
    pub(crate) fn note(&mut self, now: Instant) {
        if now >= self.since + WINDOW {
            (self.since, self.count) = (now, 0);
        }
        self.count += 1;
    }

    /// Whether the next command waits.
    pub(crate) fn waits(&mut self, now: Instant) -> bool {
        self.is_waiting = self.count >= BURST && now < self.since + WINDOW;
        self.is_waiting
    }

    /// It is not known yet whether commands wait.
    pub(crate) fn ask_again(&mut self) {
        self.is_waiting = false;
    }

    /// Whether commands waited when they were last to be taken.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// When they go on.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.is_waiting.then_some(self.since + WINDOW)
    }
}

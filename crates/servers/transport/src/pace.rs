//! Limits the rate of some commands of a session: refused commands, which are useless, and memberships in
//! groups, which are reported to routers. No honest program sends these often. The session's other commands
//! wait behind them on its ring, and an idle replica sleeps meanwhile.

use atoll_base::{Duration, Instant};

/// The number of such commands that are carried out in one window. It allows to join all groups that a
/// session may be in at once.
const BURST: u32 = 256;
const WINDOW: Duration = Duration::from_millis(10);

/// The number of such commands in the present window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    since: Instant,
    count: u32,
    /// Whether commands wait until the window is over.
    is_waiting: bool,
}

impl Pace {
    /// Counts a command that was carried out.
    pub(crate) fn note(&mut self, now: Instant) {
        if now >= self.since + WINDOW {
            (self.since, self.count) = (now, 0);
        }
        self.count += 1;
    }

    /// Returns whether the next command waits.
    pub(crate) fn waits(&mut self, now: Instant) -> bool {
        self.is_waiting = self.count >= BURST && now < self.since + WINDOW;
        self.is_waiting
    }

    /// Notes that it is not known yet whether commands wait.
    pub(crate) fn ask_again(&mut self) {
        self.is_waiting = false;
    }

    /// Returns whether commands waited when they were last to be taken.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Returns when waiting commands continue.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.is_waiting.then_some(self.since + WINDOW)
    }
}

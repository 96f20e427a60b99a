//! Schedules the checks for servers that hang or are stopped; `atoll_supervisor::{Watchdog, Stops}` judge
//! what is found.

use atoll_base::Instant;
use atoll_supervisor::{Stops, Watchdog};

/// The schedule of the checks of a stack's servers. This state is lost with the supervisor.
pub struct Health {
    /// The watchdog, and when its next look is due; `None` if servers may hang for ever.
    watchdog: Option<(Watchdog, Instant)>,
    /// The check for stopped processes; `None` if servers may hang for ever.
    stops: Option<Stops>,
}

impl Health {
    /// Creates checks for servers that give no sign of life for `hang_ms` milliseconds; 0 means that there
    /// are none.
    pub fn new(hang_ms: u32, now: Instant) -> Health {
        let watchdog = Watchdog::new(hang_ms).map(|watchdog| (watchdog, now + watchdog.period));
        Health { watchdog, stops: Stops::new(hang_ms, now) }
    }

    /// Returns when the next check is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        let stops = self.stops.as_ref().map(Stops::next_timeout);
        stops.into_iter().chain(self.watchdog.map(|(_, due)| due)).min()
    }

    /// Returns the watchdog, if it is time for it to look.
    pub fn watchdog(&mut self, now: Instant) -> Option<Watchdog> {
        let (watchdog, due) = self.watchdog.as_mut().filter(|(_, due)| now >= *due)?;
        // The time counts from now and not from when the look was due, so that two looks never follow at
        // once.
        *due = now + watchdog.period;
        Some(*watchdog)
    }

    /// Returns the check for stopped processes, if there is one.
    pub fn stops(&mut self) -> Option<&mut Stops> {
        self.stops.as_mut()
    }
}

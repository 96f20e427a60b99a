//! When is it looked whether servers hang, or are stopped? What follows from a look,
//! `atoll_supervisor::{Watchdog, Stops}` say.

use atoll_base::Instant;
use atoll_supervisor::{Stops, Watchdog};

/// The watch over a stack's servers. Lost with the supervisor.
pub struct Health {
    /// Whether, and when next, it is looked whether servers hang.
    watchdog: Option<(Watchdog, Instant)>,
    /// The same of processes that are stopped.
    stops: Option<Stops>,
}

impl Health {
    /// A watch that gives servers so much time; 0: they have any.
    pub fn new(hang_ms: u32, now: Instant) -> Health {
        let watchdog = Watchdog::new(hang_ms).map(|watchdog| (watchdog, now + watchdog.period));
        Health { watchdog, stops: Stops::new(hang_ms, now) }
    }

    /// When to look again.
    pub fn next_timeout(&self) -> Option<Instant> {
        let stops = self.stops.as_ref().map(Stops::next_timeout);
        stops.into_iter().chain(self.watchdog.map(|(_, due)| due)).min()
    }

    /// The watchdog, if it is time for it to look.
    pub fn watchdog(&mut self, now: Instant) -> Option<Watchdog> {
        let (watchdog, due) = self.watchdog.as_mut().filter(|(_, due)| now >= *due)?;
        // Not from when it was due: who was late does not look twice at once.
        *due = now + watchdog.period;
        Some(*watchdog)
    }

    /// What looks for those that are stopped.
    pub fn stops(&mut self) -> Option<&mut Stops> {
        self.stops.as_mut()
    }
}

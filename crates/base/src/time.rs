//! Moments in nanoseconds on one monotonic clock per machine, which no code below storey 4 can read.

pub use core::time::Duration;

/// A moment on the machine's monotonic clock, in nanoseconds since an arbitrary origin shared by all
/// processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin of the clock.
    pub const ZERO: Instant = Instant(0);
    /// A moment later than every moment that can be reached, which stands for "never" in comparisons.
    pub const FAR_FUTURE: Instant = Instant(u64::MAX);

    /// Returns the moment `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    /// Returns the moment `millis` milliseconds after the origin.
    pub const fn from_millis(millis: u64) -> Instant {
        Instant(millis * 1_000_000)
    }

    /// Returns the nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the whole microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Returns the whole milliseconds since the origin.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Returns the time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl core::ops::Add<Duration> for Instant {
    type Output = Instant;

    /// Adds a duration; saturates at [`Instant::FAR_FUTURE`].
    fn add(self, rhs: Duration) -> Instant {
        let nanos = u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_add(nanos))
    }
}

impl core::ops::AddAssign<Duration> for Instant {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

impl core::ops::Sub<Duration> for Instant {
    type Output = Instant;

    /// Subtracts a duration; saturates at [`Instant::ZERO`].
    fn sub(self, rhs: Duration) -> Instant {
        let nanos = u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_sub(nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_never_go_negative() {
        let (a, b) = (Instant::from_millis(5), Instant::from_millis(7));
        assert_eq!(b.since(a), Duration::from_millis(2));
        assert_eq!(a.since(b), Duration::ZERO);
    }

    #[test]
    fn addition_saturates_at_the_far_future() {
        assert_eq!(Instant::from_nanos(u64::MAX - 1) + Duration::from_secs(1), Instant::FAR_FUTURE);
    }

    #[test]
    fn subtraction_saturates_at_the_origin() {
        assert_eq!(Instant::from_millis(7) - Duration::from_millis(5), Instant::from_millis(2));
        assert_eq!(Instant::from_millis(7) - Duration::from_secs(1), Instant::ZERO);
    }
}

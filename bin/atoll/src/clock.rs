//! The clock of everything that does not serve packets: the kernel's monotonic clock. State machines get the
//! time as an argument (STYLE.md).

use atoll_base::Instant;
use atoll_sys::Clock;

/// Returns the current time of the kernel's monotonic clock.
pub fn now() -> Instant {
    Clock::kernel().now()
}

//! What time is it? One monotonic clock, the kernel's, for everything that does not serve packets; machines
//! are told the time (STYLE.md).

use atoll_base::Instant;
use atoll_sys::Clock;

/// This moment.
pub fn now() -> Instant {
    Clock::kernel().now()
}

//! When datagrams come, on the clock of the day: socket(7), `SO_TIMESTAMP`.

use alloc::boxed::Box;
use core::fmt;

use atoll_ipc::details::TimeOfDay;

/// Reads the clock of the day, in nanoseconds since 1970. It is an argument, as all time is; the simulator
/// has none. It is read only where a datagram is stored for a socket that has asked: the time of the round
/// would be earlier than a request which a program has sent by another replica in the meantime.
#[derive(Default)]
pub struct Calendar(Option<Box<dyn Fn() -> u64>>);

impl Calendar {
    /// Creates a calendar that reads `nanos`.
    pub fn new(nanos: impl Fn() -> u64 + 'static) -> Calendar {
        Calendar(Some(Box::new(nanos)))
    }

    /// Returns the present moment; `None` if there is no clock.
    pub(crate) fn read(&self) -> Option<TimeOfDay> {
        self.0.as_ref().and_then(|nanos| TimeOfDay::from_nanos(nanos()))
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Calendar")
    }
}

//! What the client stands on in a program: memory mapped from descriptors, eventfds, the cycle counter and
//! futexes.

use atoll_base::Instant;
use atoll_shm::ShmMemory;
use atoll_sockets::client::platform::{Before, Bell, Clock, Platform};
use atoll_sys::Calibration;

use crate::family::FamilyLock;
use crate::instruction::ring;
use crate::reach;
use crate::real::count_system_call;
use crate::table::Internal;
use crate::waiter::KernelSet;

/// The platform of a Linux process.
#[derive(Debug)]
pub struct Linux;

/// The client of this process, which knows all its sockets.
pub type Client = atoll_sockets::client::Client<Linux>;
/// What this process shares with the stack.
pub type Session = atoll_sockets::client::session::Session<Linux>;
/// A socket or an epoll instance.
pub type Object = atoll_sockets::client::object::Object<Linux>;

impl Platform for Linux {
    type Memory = ShmMemory;
    type Bell = Internal;
    type FamilyLock = FamilyLock;
    type Clock = StackClock;
    type Kernel = KernelSet;

    fn lock_family(memory: &ShmMemory, at: usize) -> Option<(FamilyLock, Before)> {
        FamilyLock::acquire(memory.clone(), at)
    }

    #[inline]
    fn can_read(octets: &[u8]) -> bool {
        reach::can_read(octets.as_ptr(), octets.len())
    }

    #[inline]
    fn can_write(room: &mut [u8]) -> bool {
        reach::can_overwrite(room.as_mut_ptr(), room.len())
    }
}

impl Bell for Internal {
    fn ring(&self) {
        count_system_call();
        ring(self.number());
    }
}

/// The clock of a stack: the conversion of the cycle counter that all its processes share.
#[derive(Debug)]
pub struct StackClock(atoll_sys::Clock);

impl StackClock {
    /// Creates the clock of the stack that a session belongs to.
    pub fn of(session: &Session) -> StackClock {
        let words = session.facts.calibration;
        StackClock(atoll_sys::Clock::new(Calibration { tsc0: words[0], ns0: words[1], mult: words[2] }))
    }
}

impl Clock for StackClock {
    #[inline]
    fn now(&self) -> Instant {
        self.0.now()
    }

    fn time_of_day(&self) -> u64 {
        atoll_sys::time_of_day()
    }
}

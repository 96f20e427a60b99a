//! What a client needs of the process around it: shared memory, doorbells, the time, and a lock that outlives
//! its holder.
//!
//! The library that programs load implements this with system calls; the simulator uses its own heap and
//! clock.

use core::fmt::Debug;

use atoll_base::Instant;
use atoll_ipc::Memory;

/// The process around a client.
pub trait Platform: Debug + Sized {
    /// The pages and arenas that the client shares with the stack.
    type Memory: Memory + Clone + Debug;
    /// A doorbell of a replica, or of threads of the client's own process.
    type Bell: Bell + Debug;
    /// The lock of a family on one arena, held as long as this value lives.
    type FamilyLock;
    /// The stack's clock.
    type Clock: Clock + Debug;
    /// The kernel's part of an epoll instance: its kernel descriptors, and where threads sleep.
    type Kernel: Debug;

    /// Takes the lock whose word is at `at`, and returns it with the way in which its last holder left it.
    /// Returns `None` if another process holds it. That one may hold it for as long as it is stopped, so the
    /// caller does something else, or leaves the client before it tries again.
    fn lock_family(memory: &Self::Memory, at: usize) -> Option<(Self::FamilyLock, Before)>;

    /// Returns whether octets that the program wants to send are in its memory. Call before they are copied.
    #[inline]
    fn can_read(_octets: &[u8]) -> bool {
        true
    }

    /// Returns whether the program has memory for octets. Call before they are copied.
    #[inline]
    fn can_write(_room: &mut [u8]) -> bool {
        true
    }
}

/// A doorbell.
pub trait Bell {
    /// Rings the doorbell. Ringing again before the sleeper wakes changes nothing.
    fn ring(&self);
}

/// A clock that all processes of a stack share.
pub trait Clock {
    /// Returns the current time.
    fn now(&self) -> Instant;

    /// Returns the time of day in nanoseconds since 1970 (CLOCK_REALTIME), as the program itself sees it.
    fn time_of_day(&self) -> u64;
}

/// How the last holder of a family's lock left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// The holder gave the lock back.
    Done,
    /// The holder died, perhaps during a change.
    Died,
}

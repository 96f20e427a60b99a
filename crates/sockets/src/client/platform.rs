//! What does a client need of the process that it is part of? Shared memory, doorbells, the time, and a lock
//! that outlives its holder.
//!
//! The library that programs load implements this with system calls, the simulator with its own heap and
//! clock.

use core::fmt::Debug;

use atoll_base::Instant;
use atoll_ipc::Memory;

/// The process around a client.
pub trait Platform: Debug + Sized {
    /// Pages and arenas that the client shares with the stack.
    type Memory: Memory + Clone + Debug;
    /// Wakes a replica, or threads of the client's own process.
    type Bell: Bell + Debug;
    /// The lock of a family on one arena, held as long as this value lives.
    type FamilyLock;
    /// The stack's clock.
    type Clock: Clock + Debug;
    /// What an epoll instance has besides its Atoll sockets: the kernel's descriptors, and where threads
    /// sleep.
    type Kernel: Debug;

    /// Waits for the lock whose word is at `at`, and says how its last holder left it.
    fn lock_family(memory: &Self::Memory, at: usize) -> (Self::FamilyLock, Before);
}

/// A doorbell.
pub trait Bell {
    /// Rings it. Ringing once more before anybody has heard it changes nothing.
    fn ring(&self);
}

/// A clock that all processes of a stack share.
pub trait Clock {
    /// The current time.
    fn now(&self) -> Instant;
}

/// How the last holder left a family's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// It gave the lock back.
    Done,
    /// It died, perhaps in the middle of a change.
    Died,
}

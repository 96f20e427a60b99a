//! Waiting for many descriptors: epoll(7).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll as sys;
pub use rustix::event::epoll::{Event, EventFlags};
use rustix::io::Errno;

/// An epoll instance, which is CLOEXEC.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// Creates an epoll instance that watches nothing (epoll_create(2)).
    pub fn new() -> io::Result<Epoll> {
        Ok(Epoll(sys::create(sys::CreateFlags::CLOEXEC)?))
    }

    /// Watches `fd`, whose events will carry `token` (epoll_ctl(2)).
    pub fn add(&self, fd: impl AsFd, token: u64, events: EventFlags) -> io::Result<()> {
        Ok(sys::add(&self.0, fd, sys::EventData::new_u64(token), events)?)
    }

    /// Changes the events that are watched, and the token (epoll_ctl(2)).
    pub fn modify(&self, fd: impl AsFd, token: u64, events: EventFlags) -> io::Result<()> {
        Ok(sys::modify(&self.0, fd, sys::EventData::new_u64(token), events)?)
    }

    /// Stops watching `fd` (epoll_ctl(2)).
    pub fn delete(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(sys::delete(&self.0, fd)?)
    }

    /// Waits until an event comes, for at most `timeout_ms` milliseconds (`None`: for ever; 0: not at all),
    /// and returns how many of `events` were filled (epoll_wait(2)). A signal ends the wait with 0 events.
    ///
    /// A timeout above 0 arms a timer, which costs tens of microseconds in a virtual machine.
    pub fn wait(&self, events: &mut [Event], timeout_ms: Option<u32>) -> io::Result<usize> {
        let timeout = timeout_ms.map(|ms| Timespec {
            tv_sec: i64::from(ms.min(i32::MAX as u32) / 1000),
            tv_nsec: i64::from(ms.min(i32::MAX as u32) % 1000) * 1_000_000,
        });
        match sys::wait(&self.0, events, timeout.as_ref()) {
            Ok(count) => Ok(count),
            Err(Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Epoll {
    /// Takes over an epoll instance that was created elsewhere.
    fn from(fd: OwnedFd) -> Epoll {
        Epoll(fd)
    }
}

/// An event to fill buffers with: `[EMPTY; 64]`.
pub const EMPTY: Event = Event { flags: EventFlags::empty(), data: sys::EventData::new_u64(0) };

/// Returns the token of an event.
#[inline]
pub fn token(event: &Event) -> u64 {
    // The fields of a packed struct are copied, never borrowed.
    let data = event.data;
    data.u64()
}

/// Returns which events have come.
#[inline]
pub fn flags(event: &Event) -> EventFlags {
    event.flags
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventfd;

    #[test]
    fn a_rung_doorbell_is_reported_with_its_token() {
        let (epoll, bell) = (Epoll::new().unwrap(), eventfd::create().unwrap());
        let mut events = [EMPTY; 4];
        epoll.add(&bell, 77, crate::eventfd::WATCHED).unwrap();
        assert_eq!(epoll.wait(&mut events, None).unwrap(), 1, "a watch begins with an event");
        assert_eq!(epoll.wait(&mut events, Some(0)).unwrap(), 0);
        eventfd::ring(&bell).unwrap();
        assert_eq!(epoll.wait(&mut events, None).unwrap(), 1);
        assert_eq!((token(&events[0]), flags(&events[0])), (77, EventFlags::IN | EventFlags::OUT));
        epoll.modify(&bell, 78, EventFlags::IN).unwrap();
        assert_eq!(epoll.wait(&mut events, Some(1000)).unwrap(), 1);
        assert_eq!(token(&events[0]), 78);
        epoll.delete(&bell).unwrap();
        assert_eq!(epoll.wait(&mut events, Some(1)).unwrap(), 0);
    }
}

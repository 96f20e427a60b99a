//! A timer that wakes a sleeping process in time without being armed at every sleep (timerfd_create(2)).
//!
//! Arming and disarming a kernel timer costs more than ten microseconds under virtualisation. [`LazyTimer`]
//! leaves an armed timer alone as long as it fires early enough: a spurious wake-up now and then is far
//! cheaper.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use atoll_base::{Duration, Instant};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// A one-shot timer for an epoll set, in which it is edge-triggered, or read until it is empty.
#[derive(Debug)]
pub struct LazyTimer {
    fd: OwnedFd,
    /// When the timer fires; `None` if it was never armed.
    armed: Option<Instant>,
    slack: Duration,
}

impl LazyTimer {
    /// Creates a timer that may be late by `slack`.
    pub fn new(slack: Duration) -> io::Result<LazyTimer> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        Ok(LazyTimer { fd, armed: None, slack })
    }

    /// Makes sure that the descriptor becomes readable at or before `deadline` plus the slack. `now` is the
    /// current time of CLOCK_MONOTONIC, which `deadline` refers to as well.
    pub fn wake_at(&mut self, now: Instant, deadline: Instant) -> io::Result<()> {
        if self.armed.is_some_and(|at| at > now && at <= deadline + self.slack) {
            return Ok(());
        }
        // The timer is armed at least the slack ahead: what is due sooner is late by the slack at most, and
        // the timer is not armed twice.
        let at = deadline.max(now + self.slack);
        let spec = Timespec {
            tv_sec: i64::try_from(at.as_nanos() / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (at.as_nanos() % 1_000_000_000) as i64,
        };
        let value = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: spec };
        timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &value)?;
        self.armed = Some(at);
        Ok(())
    }
}

impl AsFd for LazyTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::epoll::{self, Epoll, EventFlags};

    #[test]
    fn an_early_enough_timer_is_left_alone_and_fires() {
        let clock = Clock::kernel();
        let mut timer = LazyTimer::new(Duration::from_millis(1)).expect("timerfd");
        let set = Epoll::new().expect("epoll");
        set.add(&timer, 5, EventFlags::IN | EventFlags::ET).expect("add");
        let now = clock.now();
        timer.wake_at(now, now + Duration::from_millis(5)).expect("arm");
        let armed = timer.armed;
        timer.wake_at(now, now + Duration::from_millis(500)).expect("leave");
        assert_eq!(timer.armed, armed);
        let mut events = [epoll::EMPTY; 4];
        assert_eq!(set.wait(&mut events, Some(10_000)).expect("wait"), 1);
        assert_eq!(epoll::token(&events[0]), 5);
        assert!(clock.now() >= now + Duration::from_millis(5));
    }
}

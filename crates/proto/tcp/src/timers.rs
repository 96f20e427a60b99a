//! When a connection has to be woken: its timers.

use atoll_base::Instant;

/// The timers of a connection; `handle_timeout` has exactly one arm for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// When to send again, or to probe; [`Retransmit`] says which.
    Retransmit,
    /// When to send a delayed ACK.
    Ack,
    /// When to look whether the peer has been silent for too long.
    KeepAlive,
    /// When to leave TIME-WAIT, or to leave FIN-WAIT-2 if the application has closed the connection.
    Lifetime,
    /// When the pace allows the next text.
    Pace,
}

/// The meanings of the timer [`Timer::Retransmit`], which exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retransmit {
    /// Something is in flight: when to give up waiting for its acknowledgement (RFC 6298).
    Rto,
    /// Nothing is in flight but something waits: when to probe the window (RFC 9293 §3.8.6.1), or to push out
    /// what Nagle, cork or silly-window avoidance hold back.
    Persist,
    /// Something is in flight and its end may be lost: when to probe (RFC 8985 §7).
    TailProbe,
    /// Something in flight is lost unless it arrives soon: when to look again (RFC 8985 §6.3).
    Reordering,
}

/// The deadlines by timer; [`Instant::FAR_FUTURE`] means "not armed".
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timers {
    deadlines: [Instant; 5],
    pub(crate) retransmit: Retransmit,
}

impl Timers {
    pub(crate) const fn new() -> Timers {
        Timers { deadlines: [Instant::FAR_FUTURE; 5], retransmit: Retransmit::Rto }
    }

    pub(crate) fn arm(&mut self, timer: Timer, at: Instant) {
        self.deadlines[timer as usize] = at;
    }

    pub(crate) fn arm_retransmit(&mut self, kind: Retransmit, at: Instant) {
        self.retransmit = kind;
        self.arm(Timer::Retransmit, at);
    }

    pub(crate) fn cancel(&mut self, timer: Timer) {
        self.deadlines[timer as usize] = Instant::FAR_FUTURE;
    }

    pub(crate) fn cancel_all(&mut self) {
        self.deadlines = [Instant::FAR_FUTURE; 5];
    }

    pub(crate) fn deadline(&self, timer: Timer) -> Instant {
        self.deadlines[timer as usize]
    }

    pub(crate) fn is_armed(&self, timer: Timer) -> bool {
        self.deadlines[timer as usize] != Instant::FAR_FUTURE
    }

    pub(crate) fn is_armed_as(&self, kind: Retransmit) -> bool {
        self.retransmit == kind && self.is_armed(Timer::Retransmit)
    }

    /// Disarms `timer` if it is due; returns whether it was.
    pub(crate) fn take_due(&mut self, timer: Timer, now: Instant) -> bool {
        let due = self.deadlines[timer as usize] <= now;
        if due {
            self.cancel(timer);
        }
        due
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        let [a, b, c, d, e] = self.deadlines;
        let first = a.min(b).min(c.min(d)).min(e);
        (first != Instant::FAR_FUTURE).then_some(first)
    }
}

//! Lists what is measured, how often, and against what.

use std::io;

use atoll_base::Duration;

use crate::partner::Side;
use crate::{dispatch, limits, messaging, wake};

/// The processors on which the two processes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Each process has a processor of its own.
    Apart,
    /// Both processes share a processor; the one that waits yields it.
    Together,
}

/// A case: one line of the table.
pub struct Case {
    /// The name of the case.
    pub name: &'static str,
    /// Describes what is done `count` times.
    pub unit: &'static str,
    /// The number of repetitions on two processors and on one; 0 where the case does not apply.
    counts: (u64, u64),
    /// The part of the process that measures. Returns a time if it is not the time that the call took.
    pub ours: fn(&Side, u64) -> io::Result<Option<Duration>>,
    /// The part of the other process; `None` if that process does nothing.
    pub theirs: Option<fn(&Side, u64) -> io::Result<()>>,
    /// The case to compare with, and the ratio that is aimed at.
    pub aim: Option<(&'static str, Option<f64>)>,
}

impl Case {
    /// Returns whether the case makes sense at `place`.
    pub fn runs(&self, place: Place) -> bool {
        self.count(place) > 0
    }

    /// Returns the number of repetitions at `place`.
    pub fn count(&self, place: Place) -> u64 {
        match place {
            Place::Apart => self.counts.0,
            Place::Together => self.counts.1,
        }
    }
}

/// The table of cases. Limits come before the cases that are compared with them.
pub const CASES: &[Case] = &[
    Case {
        name: "one line, there and back",
        unit: "round trip",
        counts: (4_000, 500),
        ours: limits::line_ours,
        theirs: Some(limits::line_theirs),
        aim: None,
    },
    Case {
        name: "stream of lines, one way",
        unit: "line",
        counts: (40_000, 20_000),
        ours: limits::stream_ours,
        theirs: Some(limits::stream_theirs),
        aim: None,
    },
    Case {
        name: "messaging, synchronous",
        unit: "round trip",
        counts: (4_000, 500),
        ours: messaging::synchronous_ours,
        theirs: Some(messaging::synchronous_theirs),
        aim: Some(("one line, there and back", None)),
    },
    Case {
        name: "messaging, concurrent (32)",
        unit: "round trip",
        counts: (20_000, 10_000),
        ours: messaging::concurrent_ours,
        theirs: Some(messaging::concurrent_theirs),
        aim: Some(("one line, there and back", Some(1.2))),
    },
    Case {
        name: "messaging, one way, batches of 32",
        unit: "message",
        counts: (40_000, 20_000),
        ours: messaging::one_way_ours,
        theirs: Some(messaging::one_way_theirs),
        aim: Some(("stream of lines, one way", None)),
    },
    Case {
        name: "dispatch, synchronous",
        unit: "call",
        counts: (4_000, 500),
        ours: dispatch::synchronous_ours,
        theirs: Some(dispatch::theirs),
        aim: Some(("one line, there and back", Some(2.0))),
    },
    Case {
        name: "dispatch, concurrent (32)",
        unit: "call",
        counts: (16_000, 8_000),
        ours: dispatch::concurrent_ours,
        theirs: Some(dispatch::theirs),
        aim: Some(("one line, there and back", None)),
    },
    Case {
        name: "microthread: create, schedule, run",
        unit: "microthread",
        counts: (40_000, 0),
        ours: dispatch::microthreads,
        theirs: None,
        aim: None,
    },
    Case {
        name: "publish to one who is awake",
        unit: "message",
        counts: (20_000, 0),
        ours: messaging::publish_alone,
        theirs: None,
        aim: None,
    },
    Case { name: "fence", unit: "fence", counts: (20_000, 0), ours: limits::fences, theirs: None, aim: None },
    Case {
        name: "membarrier, the other one running",
        unit: "call",
        counts: (50, 0),
        ours: limits::membarrier_ours,
        theirs: Some(limits::membarrier_theirs),
        aim: None,
    },
    Case {
        name: "wake-ups: bare futex",
        unit: "wake-up",
        counts: (20, 20),
        ours: wake::futex_ours,
        theirs: Some(wake::futex_theirs),
        aim: None,
    },
    Case {
        name: "wake-ups: bare eventfd, epoll",
        unit: "wake-up",
        counts: (20, 20),
        ours: wake::eventfd_ours,
        theirs: Some(wake::eventfd_theirs),
        aim: Some(("wake-ups: bare futex", None)),
    },
    Case {
        name: "wake-ups: channel, futex",
        unit: "wake-up",
        counts: (20, 20),
        ours: wake::channel_futex_ours,
        theirs: Some(wake::channel_futex_theirs),
        aim: Some(("wake-ups: bare futex", Some(1.3))),
    },
    Case {
        name: "wake-ups: channel, eventfd, epoll",
        unit: "wake-up",
        counts: (20, 20),
        ours: wake::channel_eventfd_ours,
        theirs: Some(wake::channel_eventfd_theirs),
        aim: Some(("wake-ups: bare futex", Some(1.3))),
    },
];

//! What does a connection hold of an area, and how full is the area? For those who give back memory:
//! `pressure.rs`.

use alloc::vec::Vec;

use atoll_base::Instant;

use crate::names::Name;

/// How a session stands.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    /// The receive area is nearly used up: windows are small.
    pub(crate) receive: bool,
    /// The send area is nearly used up: send buffers are small.
    pub(crate) send: bool,
    /// Since when one of them is as good as full, and what everybody held then.
    pub(crate) full: Option<(Instant, Vec<Holding>)>,
}

/// What a connection held when an area became full.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    pub(crate) index: u32,
    pub(crate) name: Name,
    pub(crate) area: Area,
    /// What has been acknowledged, or read.
    pub(crate) position: u64,
    pub(crate) octets: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Area {
    Send,
    Receive,
}

/// Octets of an area.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    pub(crate) used: usize,
    pub(crate) all: usize,
}

impl Fill {
    pub(crate) const fn is_high(self) -> bool {
        self.used >= self.all / 4 * 3
    }

    pub(crate) const fn is_full(self) -> bool {
        self.used >= self.all / 16 * 15
    }
}

//! What a connection holds of an area, and how full the area is. `pressure.rs` uses this to give back memory.

use alloc::vec::Vec;

use atoll_base::Instant;

use crate::names::Name;

/// The memory pressure of a session.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    /// Whether the receive area is nearly used up: windows are small then.
    pub(crate) receive: bool,
    /// Whether the send area is nearly used up: send buffers are small then.
    pub(crate) send: bool,
    /// Since when an area is as good as full, and what each connection held then.
    pub(crate) full: Option<(Instant, Vec<Holding>)>,
}

/// The memory that a connection held when an area became full.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holding {
    pub(crate) index: u32,
    pub(crate) name: Name,
    pub(crate) area: Area,
    /// The position that was acknowledged, or read.
    pub(crate) position: u64,
    pub(crate) octets: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Area {
    Send,
    Receive,
}

/// The fill of an area, in octets.
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

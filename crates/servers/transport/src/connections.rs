//! One connection as the transport server keeps it: the TCB, and where its octets and its application are.

use alloc::boxed::Box;
use alloc::vec::Vec;

use atoll_base::{FourTuple, Instant, SlotId};
use atoll_ipc::Ready;
use atoll_ipc::buffer::Extents;
use atoll_tcp::Connection;

/// What a connection is to its application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Passive open, not established: belongs to a listener.
    Handshake,
    /// Established, waits for its first octets before it is offered (`TCP_DEFER_ACCEPT`).
    Deferred,
    /// Established, waits for an acceptor.
    Waiting,
    /// Offered in a slot, not claimed.
    Offered,
    /// In the hands of an application, in a slot.
    Open,
    /// Closed by its application, but the slot still holds octets to send.
    Closing,
    /// No application and no slot any more; only the peer is left.
    Detached,
}

impl Stage {
    /// Whether the connection has a slot.
    pub(crate) const fn has_slot(self) -> bool {
        matches!(self, Stage::Offered | Stage::Open | Stage::Closing)
    }
}

/// A connection and its surroundings. Together with its flow-table entry, timer node and slot an idle one takes at most 1 KiB.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) connection: Connection,
    pub(crate) tuple: FourTuple,
    /// The listener it came from; 0 for active opens.
    pub(crate) lease: u64,
    /// Index of the session in the transport's table, valid while the stage has a slot.
    pub(crate) session: u32,
    pub(crate) slot: SlotId,
    pub(crate) generation: u32,
    /// Rings of the receive buffer; we are their writer.
    pub(crate) receive: Extents,
    /// Text of a connection that has no slot yet.
    pub(crate) early: Option<Box<Vec<u8>>>,
    /// When its timer is armed for; the far future if it is not.
    pub(crate) armed: Instant,
    /// Readiness to announce with the next flush.
    pub(crate) ready: Ready,
    pub(crate) stage: Stage,
    /// On the list of connections to flush.
    pub(crate) touched: bool,
    /// Last send tail at which the application was told that there is room.
    pub(crate) room_told: bool,
    pub(crate) ttl: u8,
    pub(crate) tos: u8,
    /// `REPLICA_*` flags as published.
    pub(crate) flags: u8,
    /// The neighbour generation at which its next hop was unresolved.
    pub(crate) unresolved: bool,
}

/// Bytes of a flow-table entry with its share of empty ones, a wheel node and a slot-table entry.
const TABLES: usize = 28 + 24 + 12;
const _: () =
    assert!(size_of::<Entry>() + TABLES + atoll_ipc::arena::SLOT_BYTES <= 1024, "an idle connection takes 1 KiB");

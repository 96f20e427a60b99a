//! The requests of applications that are in force: a lease, a listener, an acceptor, an option, a datagram
//! socket, a membership. Each is stored as the command that a successor carries out again.

use core::mem::offset_of;

use atoll_base::SessionId;

use super::{TABLE_REQUESTS, Unreadable, check, words};
use crate::Command;
use crate::layout::{Field, put, record};

/// The size of a request in octets.
pub const REQUEST_BYTES: usize = size_of::<Octets>();
type Octets = <Written as Field>::Octets;

record! {
    /// The request as it is written down.
    pub(super) struct Written {
        check: u32,
        version: u32,
        order: u64,
        session: SessionId; 44 unused,
        command: Command; 8 unused,
    }
}

/// The version of requests, which is the same in both versions of the ledger.
const VERSION: u32 = 1;

/// A command that is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// The order in which commands are carried out again.
    pub order: u64,
    /// The session of the command.
    pub session: SessionId,
    /// The command, with what the replica has chosen filled in: the port of a lease.
    pub command: Command,
}

impl RequestRecord {
    pub(super) fn encode(&self, place: u32) -> [u8; REQUEST_BYTES] {
        let RequestRecord { order, session, command } = *self;
        let written = Written { check: 0, version: VERSION, order, session, command };
        let mut bytes: [u8; REQUEST_BYTES] = zerocopy::transmute!(written.write());
        let sum = sum(place, &bytes);
        put(&mut bytes, offset_of!(Octets, check), &sum.write());
        bytes
    }

    /// Decodes a request; returns `None` if the place is free.
    pub(super) fn decode(
        place: u32,
        bytes: &[u8; REQUEST_BYTES],
    ) -> Option<Result<RequestRecord, Unreadable>> {
        let octets: &Octets = zerocopy::transmute_ref!(bytes);
        match octets.version.0.get() {
            0 => return None,
            VERSION => {}
            other => return Some(Err(Unreadable::Version(other))),
        }
        if octets.check.0.get() != sum(place, bytes) {
            return Some(Err(Unreadable::Check));
        }
        let record = Written::read(octets).map(|Written { order, session, command, .. }| RequestRecord {
            order,
            session,
            command,
        });
        Some(record.map_err(|_| Unreadable::Field))
    }
}

/// Returns the check of a request, which is over its octets from the order on.
fn sum(place: u32, bytes: &[u8; REQUEST_BYTES]) -> u32 {
    check(TABLE_REQUESTS, place, words(&bytes[offset_of!(Octets, order)..]))
}

//! The requests of applications that are in force: a lease, a listener, an acceptor, an option, a datagram
//! socket, a membership. Each is stored as the command that a successor carries out again.

use atoll_base::SessionId;

use super::{TABLE_REQUESTS, Unreadable, check, words};
use crate::Command;
use crate::words::MESSAGE_BYTES;

/// The size of a request in octets: `[check u32][version u32][order u64][session u32][unused][command]`.
pub const REQUEST_BYTES: usize = 128;

const ORDER: usize = 8;
const SESSION: usize = 16;
const COMMAND: usize = 64;
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
        let mut bytes = [0; REQUEST_BYTES];
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[ORDER..ORDER + 8].copy_from_slice(&self.order.to_le_bytes());
        bytes[SESSION..SESSION + 4].copy_from_slice(&self.session.0.to_le_bytes());
        bytes[COMMAND..COMMAND + MESSAGE_BYTES].copy_from_slice(&self.command.encode());
        let sum = check(TABLE_REQUESTS, place, words(&bytes[8..]));
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a request; returns `None` if the place is free.
    pub(super) fn decode(
        place: u32,
        bytes: &[u8; REQUEST_BYTES],
    ) -> Option<Result<RequestRecord, Unreadable>> {
        let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("within the record"));
        match word(4) {
            0 => return None,
            VERSION => {}
            other => return Some(Err(Unreadable::Version(other))),
        }
        if word(0) != check(TABLE_REQUESTS, place, words(&bytes[8..])) {
            return Some(Err(Unreadable::Check));
        }
        let order = u64::from_le_bytes(*bytes[ORDER..].first_chunk().expect("within the record"));
        let command = Command::decode(bytes[COMMAND..].first_chunk().expect("within the record"));
        let record =
            command.map(|command| RequestRecord { order, session: SessionId(word(SESSION)), command });
        Some(record.map_err(|_| Unreadable::Field))
    }
}

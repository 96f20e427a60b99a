//! The messages between a transport server (TS) and a connection manager (CM) in another process (P1, P2).
//!
//! Each message is a plain value with its own encoding; mesh records ([`crate::mesh::KIND_MANAGER`]) carry
//! it. No message may get lost: a full ring is offered the waiting messages again, in order.
//!
//! ```text
//!   TS  --Opened, Left, Closed, Registered, Deregistered, Forgotten: who listens, who accepts-->    CM
//!   TS  --Established, Offered, Claimed, TimedOut, Returned, Gone, Served: of connections-->        CM
//!   CM  --Offer, Queued, Reset: who gets a connection--> TS      CM  --AcceptorRemoved-->           TS
//! ```
//! Either may die, and its successor finds in the ring what was meant for its predecessor: a message names
//! the incarnation that it is for, and others drop it. A TS that learns of a new CM reports again which
//! sockets listen and accept, and what is offered (Offered), and asks again about connections that are not
//! offered.
//!
//! A connection has the TS's number, which is used again once the TS has reported to the CM that the
//! connection is claimed or gone. A message of the CM may have been under way meanwhile, so it names the
//! *ticket* of the question that it answers.

use atoll_base::{Endpoint, Epoch, Instant, SessionId};

use crate::device::Device;
use crate::layout::{BadMessage, Field, MESSAGE_BYTES, messages, part, put, record};

/// The size of a message in bytes.
pub const MANAGER_BYTES: usize = MESSAGE_BYTES;

/// A message between a TS and a CM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagerMessage {
    /// The incarnation of the sender; messages of a dead one do not count.
    pub epoch: Epoch,
    /// The incarnation of the receiver that the message is for: another drops it. `Epoch(0)` means any,
    /// because the sender does not know it.
    pub to: Epoch,
    /// When the message was sent, on the machine's clock: a receiver that slept may read it later.
    pub at: Instant,
    /// The content of the message.
    pub body: ManagerBody,
}

messages! {
    /// The content of a message. The TS numbers listeners and connections; numbers of listeners are never
    /// used again.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(missing_docs)] // Fields are named after what the variant's doc says of them.
    pub enum ManagerBody after Head {
        /// A socket, known by its lease, listens at this address on this device. Late: its acceptors are
        /// late, too.
        Opened = 0 { listener: u64, lease: u64, local: Endpoint, v6_only: bool, device: Device },
        /// The socket stopped listening.
        Left = 1 { listener: u64, lease: u64 },
        /// The last socket of the listener stopped listening: waiting connections are to be reset.
        Closed = 2 { listener: u64 },
        /// A session registers as an acceptor: ACCEPT-CONNECTION (P4). Repeated: harmless.
        Registered = 3 { listener: u64, session: SessionId, lease: u64 },
        /// The acceptor wants no more connections for now.
        Deregistered = 4 { listener: u64, session: SessionId, lease: u64 },
        /// The session does not hold the socket any more.
        Forgotten = 5 { listener: u64, session: SessionId, lease: u64 },
        /// Asks for an acceptor of this connection. Answered by Offer, Queued or Reset; asked again under the
        /// same ticket if that takes too long.
        Established = 6 { listener: u64, connection: u32, ticket: u32 },
        /// The acceptor has claimed the connection that it was offered at that time.
        Claimed = 7 { connection: u32, offered_at: Instant },
        /// The acceptor has not claimed the connection in time, and another is to get it. Answered as
        /// Established.
        TimedOut = 8 { connection: u32, ticket: u32 },
        /// The offer was taken back because the acceptor's session has ended. Answered as Established.
        Returned = 9 { connection: u32, ticket: u32 },
        /// The connection has ended before an acceptor claimed it.
        Gone = 10 { connection: u32 },
        /// The application has closed a connection that it was offered at that time, which gives its service
        /// time (P5).
        Served = 11 { session: SessionId, lease: u64, offered_at: Instant },
        /// The connection is for this acceptor. With `measured`, Served is to follow. Late: refused by its
        /// ticket.
        Offer = 12 { connection: u32, ticket: u32, session: SessionId, lease: u64, measured: bool },
        /// No acceptor wants the connection now: an Offer or a Reset follows later.
        Queued = 13 { connection: u32, ticket: u32 },
        /// The listener of the connection is gone, and the CM has forgotten the connection.
        Reset = 14 { connection: u32, ticket: u32 },
        /// The session is to learn that its acceptor was removed (P4). Late: it registers again without need.
        AcceptorRemoved = 15 { session: SessionId, lease: u64 },
        /// Tells a new CM that its predecessor has offered this connection to this acceptor, which has not
        /// claimed it yet.
        Offered = 16 { listener: u64, connection: u32, ticket: u32, session: SessionId, lease: u64 },
    }
}

record! {
    /// The part of a message before its fields.
    struct Head {
        kind: u8,
        epoch: Epoch,
        to: Epoch,
        at: Instant,
    }
}

impl ManagerMessage {
    /// Encodes the message as a payload: kind, epochs, time, and the fields in their order.
    pub fn encode(&self) -> [u8; MANAGER_BYTES] {
        let mut bytes = [0; MANAGER_BYTES];
        let head = Head { kind: 0, epoch: self.epoch, to: self.to, at: self.at };
        put(&mut bytes, 0, &head.write());
        self.body.write(&mut bytes);
        bytes
    }

    /// Decodes the message in a payload. Fails with [`BadMessage`] for another length or an unknown kind.
    pub fn decode(bytes: &[u8]) -> Result<ManagerMessage, BadMessage> {
        let bytes: &[u8; MANAGER_BYTES] = bytes.try_into().map_err(|_| BadMessage)?;
        let Head { epoch, to, at, .. } = Head::read(part(bytes, 0)?)?;
        Ok(ManagerMessage { epoch, to, at, body: ManagerBody::read(bytes)? })
    }
}

#[cfg(test)]
mod tests {
    use atoll_base::Addr;

    use super::*;

    #[test]
    fn every_message_survives_the_ring() {
        let (listener, connection, ticket) = (u64::MAX - 1, 3, u32::MAX);
        let (session, lease, offered_at) = (SessionId(9), 1 << 60, Instant::from_nanos(1 << 61));
        let local = Endpoint::at(Addr::from_octets([0xfd; 16]), 65535);
        let bodies = [
            ManagerBody::Opened { listener, lease, local, v6_only: true, device: Device::Link },
            ManagerBody::Left { listener, lease },
            ManagerBody::Closed { listener },
            ManagerBody::Registered { listener, session, lease },
            ManagerBody::Deregistered { listener, session, lease },
            ManagerBody::Forgotten { listener, session, lease },
            ManagerBody::Established { listener, connection, ticket },
            ManagerBody::Claimed { connection, offered_at },
            ManagerBody::TimedOut { connection, ticket },
            ManagerBody::Returned { connection, ticket },
            ManagerBody::Gone { connection },
            ManagerBody::Served { session, lease, offered_at },
            ManagerBody::Offer { connection, ticket, session, lease, measured: true },
            ManagerBody::Queued { connection, ticket },
            ManagerBody::Reset { connection, ticket },
            ManagerBody::AcceptorRemoved { session, lease },
            ManagerBody::Offered { listener, connection, ticket, session, lease },
        ];
        for body in bodies {
            let message =
                ManagerMessage { epoch: Epoch(7), to: Epoch(8), at: Instant::from_nanos(1 << 62), body };
            let bytes = message.encode();
            assert_eq!(ManagerMessage::decode(&bytes), Ok(message));
            assert_eq!(ManagerMessage::decode(&bytes[1..]), Err(BadMessage));
        }
    }

    #[test]
    fn unknown_kinds_are_refused() {
        for kind in 17..=255 {
            let mut bytes = [0; MANAGER_BYTES];
            bytes[0] = kind;
            assert_eq!(ManagerMessage::decode(&bytes), Err(BadMessage));
        }
    }
}

//! The messages between servers over a channel. Each entry has an envelope, which relates it to a call, and a
//! message.
//!
//! To add a message, write a variant of [`Message`] whose doc says which server sends it, which receives it,
//! and what happens if it is lost, late, repeated, or from a dead epoch. Add a [`Kind`] with its name and
//! number, and a line in the test. The receiver names it where it registers its handlers
//! (`atoll_rpc::Dispatcher::on`).

use atoll_base::{Addr, Epoch, ReplicaId};
use zerocopy::TryFromBytes;

use crate::layout::{BadMessage, Field, MESSAGE_BYTES, messages, numbered, part, put, record};

messages! {
    /// A message from one server to another.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(missing_docs)] // Fields are named after what the variant's doc says of them.
    pub enum Message after Head {
        /// A replica that starts asks each of the others whether it is there, and introduces itself; the
        /// answer introduces the other replica in the same way. Lost or late: the caller's deadline passes,
        /// and it counts one sibling less. Repeated: answered again. Dead epoch: dropped.
        Hello = 0 { replica: ReplicaId, epoch: Epoch },
        /// A replica shares with the others what it learned about a neighbour (N8), by `basis`. Lost: the
        /// receiver asks by itself when it needs to. Late, repeated or of a dead epoch: harmless. The
        /// receiver judges whether it is plausible.
        Neighbour = 1 { addr: Addr, mac: [u8; 6], basis: NewsBasis },
        /// A replica that learned the path's MTU to `dst` from ICMP shares it with the others (N8). Lost: the
        /// receiver gets an ICMP message itself when it sends packets that are too large. Late, repeated or
        /// of a dead epoch: harmless. The receiver judges whether it is plausible.
        Path = 2 { dst: Addr, mtu: u16 },
    }
}

/// The way in which a neighbour became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub enum NewsBasis {
    /// The sender asked for it, or was asked by the neighbour.
    Learned = 1,
    /// The sender did not ask.
    Overheard = 2,
}

numbered!(NewsBasis);

/// The names of the messages, dense from 0: index of a table of handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// The name of [`Message::Hello`].
    Hello = 0,
    /// The name of [`Message::Neighbour`].
    Neighbour = 1,
    /// The name of [`Message::Path`].
    Path = 2,
}

impl Kind {
    /// The number of kinds.
    pub const COUNT: usize = 3;
}

/// The relation of a message to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The message belongs to no call, and is not answered.
    Notice,
    /// The message is to be answered under this number, which the sender chose.
    Request(u32),
    /// The message answers the call that had this number in this epoch of the receiver's.
    Reply(u32, Epoch),
}

/// The payload of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The relation to a call.
    pub role: Role,
    /// The message.
    pub message: Message,
}

record! {
    /// The part of a message before its fields.
    struct Head {
        kind: u8,
        role: u8,
        call: u32,
        epoch: Epoch,
    }
}

impl Envelope {
    /// Encodes the envelope as payload of an entry: kind, role, number and epoch of the call, and the fields
    /// of the message.
    #[inline]
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let (role, call, epoch) = match self.role {
            Role::Notice => (0, 0, Epoch(0)),
            Role::Request(call) => (1, call, Epoch(0)),
            Role::Reply(call, epoch) => (2, call, epoch),
        };
        let mut bytes = [0; MESSAGE_BYTES];
        put(&mut bytes, 0, &Head { kind: 0, role, call, epoch }.write());
        self.message.write(&mut bytes);
        bytes
    }

    /// Decodes the envelope in a payload. Fails with [`BadMessage`] for an unknown kind, role or value.
    #[inline]
    pub fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Result<Envelope, BadMessage> {
        let Head { role, call, epoch, .. } = Head::read(part(bytes, 0)?)?;
        let role = match role {
            0 => Role::Notice,
            1 => Role::Request(call),
            2 => Role::Reply(call, epoch),
            _ => return Err(BadMessage),
        };
        Ok(Envelope { role, message: Message::read(bytes)? })
    }
}

impl Message {
    /// Returns the kind of the message.
    pub const fn kind(&self) -> Kind {
        match self {
            Message::Hello { .. } => Kind::Hello,
            Message::Neighbour { .. } => Kind::Neighbour,
            Message::Path { .. } => Kind::Path,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_ring() {
        let addr = Addr::from_octets([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        let messages = [
            Message::Hello { replica: ReplicaId(3), epoch: Epoch(9) },
            Message::Neighbour { addr, mac: [2, 1, 2, 3, 4, 5], basis: NewsBasis::Learned },
            Message::Neighbour { addr: Addr::v4(0xc612_0001), mac: [2; 6], basis: NewsBasis::Overheard },
            Message::Path { dst: addr, mtu: 1280 },
        ];
        for message in messages {
            for role in [Role::Notice, Role::Request(7), Role::Reply(u32::MAX, Epoch(2))] {
                let envelope = Envelope { role, message };
                let bytes = envelope.encode();
                assert_eq!((Envelope::decode(&bytes), bytes[0]), (Ok(envelope), message.kind() as u8));
            }
            assert!((message.kind() as usize) < Kind::COUNT);
        }
    }

    #[test]
    fn unknown_kinds_roles_and_values_are_refused() {
        let message = Message::Neighbour { addr: Addr::ANY, mac: [0; 6], basis: NewsBasis::Learned };
        let good = Envelope { role: Role::Notice, message }.encode();
        for (at, value) in [(0, Kind::COUNT as u8), (0, 255), (1, 3), (32, 0), (32, 3)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(Envelope::decode(&bad), Err(BadMessage), "octet {at} = {value}");
        }
    }
}

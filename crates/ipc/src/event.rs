//! The events of a replica to an application, one entry of the event ring each.
//!
//! Events are hints to read the slot, or replies. Lost (ring full): the replica raises
//! [`crate::arena::OVERFLOW`] and the library reads all its slots. Repeated: harmless, because all positions
//! are absolute. Late or from a dead epoch: dropped by the library, because the generation of the slot no
//! longer matches.

use atoll_base::{Endpoint, SlotId};
use bitflags::bitflags;
use zerocopy::{LE, TryFromBytes, U32};

pub use crate::layout::BadMessage;
use crate::layout::{MESSAGE_BYTES, messages, numbered, values};
use crate::lease::Voucher;

bitflags! {
    /// Readiness bits, numerically those of `poll(2)`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Ready: u32 {
        /// Octets, a datagram, a connection or the end of the stream can be read.
        const IN = 0x001;
        /// There is an urgent octet.
        const PRI = 0x002;
        /// There is room in the send buffer.
        const OUT = 0x004;
        /// An error is pending.
        const ERR = 0x008;
        /// Both directions are closed.
        const HUP = 0x010;
        /// The descriptor is not open.
        const NVAL = 0x020;
        /// Linux sets it together with `IN`.
        const RDNORM = 0x040;
        /// Linux sets it together with `OUT`.
        const WRNORM = 0x100;
        /// Linux sets it together with `OUT` of a datagram socket.
        const WRBAND = 0x200;
        /// The peer has closed its direction.
        const RDHUP = 0x2000;
        // A newer build may know more of them.
        const _ = !0;
    }
}

impl Ready {
    /// What poll(2) reports of a socket from which something can be read.
    pub const READABLE: Ready = Ready::IN.union(Ready::RDNORM);
    /// What poll(2) reports of a stream that has room.
    pub const WRITABLE: Ready = Ready::OUT.union(Ready::WRNORM);
    /// What poll(2) reports of a datagram socket that has room.
    pub const SENDABLE: Ready = Ready::WRITABLE.union(Ready::WRBAND);
    /// What poll(2) reports of a socket from which nothing more will come.
    pub const ENDED: Ready = Ready::READABLE.union(Ready::RDHUP);

    /// Adds `RDNORM` to `IN`, and `WRNORM` to `OUT`.
    #[must_use]
    pub const fn with_normal(self) -> Ready {
        let readable = if self.contains(Ready::IN) { Ready::RDNORM } else { Ready::empty() };
        let writable = if self.contains(Ready::OUT) { Ready::WRNORM } else { Ready::empty() };
        self.union(readable).union(writable)
    }
}

values! {
    ready: Ready as U32<LE>, ready.bits(), Ready::from_bits_retain(ready.get());
}

/// Why something failed. The library turns causes into errno in one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub enum Cause {
    /// Nothing failed.
    #[default]
    None = 0,
    /// No socket listens at the peer: RST in SYN-SENT, or ICMP port unreachable.
    ConnectionRefused = 1,
    /// The peer reset the connection.
    ConnectionReset = 2,
    /// The peer did not answer for too long.
    TimedOut = 3,
    /// The host cannot be reached: ICMP host unreachable, or no answer to ARP.
    HostUnreachable = 4,
    /// There is no route, or a router has none.
    NetworkUnreachable = 5,
    /// The address or port is already taken.
    AddressInUse = 6,
    /// The address is not one of this stack.
    AddressNotAvailable = 7,
    /// A table or a pool is full.
    NoBuffers = 8,
    /// The datagram is longer than can be sent.
    MessageTooLong = 9,
    /// The command does not fit the state of the socket, or is malformed.
    Invalid = 10,
    /// The replica that held the connection is gone and could not be recovered.
    Lost = 11,
    /// The user may not have the port, or an administrator has forbidden a packet.
    PermissionDenied = 12,
    /// The peer does not speak the protocol: ICMP protocol unreachable.
    NoProtocol = 13,
    /// A source route failed: ICMP.
    RouteFailed = 14,
    /// A router does not know the host: ICMP.
    HostDown = 15,
    /// The host is isolated: ICMP.
    HostIsolated = 16,
    /// A host on the path found a fault in a packet: ICMP parameter problem, or an unknown error of ICMPv6.
    ProtocolError = 17,
    /// A router asks for fewer packets: ICMP source quench.
    SourceQuench = 18,
}

impl Cause {
    /// Returns whether a connection ended for this reason because of its peer, or of the network between.
    pub const fn is_by_network(self) -> bool {
        !matches!(self, Cause::None | Cause::NoBuffers | Cause::Lost | Cause::Invalid)
    }
}

numbered!(Cause else Invalid);

messages! {
    /// One message from a replica to an application.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(missing_docs)] // Fields are named after what the variant's doc says of them.
    pub enum Event after u8 {
        /// Announces that the slot changed in a way that matters to a caller waiting for any of `ready`.
        Ready = 1 { slot: SlotId, generation: u32, ready: Ready },
        /// CONNECTION-AVAILABLE (P4): an established connection is offered to this acceptor in `slot`. The
        /// application claims it by writing `generation` to the slot's `claimed` word and sending
        /// [`crate::Command::Claim`].
        ConnectionAvailable = 2 {
            listener: u64,
            slot: SlotId,
            generation: u32,
            local: Endpoint,
            remote: Endpoint,
        },
        /// The verdict on a claim that met a revocation: `confirmed` or timed out (P4).
        ClaimVerdict = 3 { slot: SlotId, generation: u32, confirmed: bool },
        /// The acceptor was removed because it let a connection time out: it must send ACCEPT-CONNECTION
        /// again (P4).
        AcceptorRemoved = 4 { listener: u64 },
        /// Reports whether connections wait in this replica. It is the answer (`answers`) to
        /// [`crate::Command::AskConnection`], or comes unasked to a session whose last answer was that none
        /// waits.
        ConnectionsWait = 9 { listener: u64, waiting: bool, answers: bool },
        /// The replica is done with a closed slot: buffers may be reclaimed, the slot number may be used
        /// again.
        SlotDone = 5 { slot: SlotId, generation: u32 },
        /// Answers [`crate::Command::Bind`] with the port that is now leased.
        BindReply = 6 { token: u32, cause: Cause, port: u16, voucher: Voucher },
        /// Answers [`crate::Command::Listen`]; the port's authority adds the voucher that the other replicas
        /// want to see.
        ListenReply = 7 { token: u32, cause: Cause, voucher: Voucher },
        /// Answers [`crate::Command::Info`]: the record is in the arena's info area.
        InfoReply = 8 { token: u32, cause: Cause },
        /// Answers [`crate::Command::Group`].
        GroupReply = 10 { token: u32, cause: Cause },
    }
}

impl Event {
    /// Encodes the message as ring payload.
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        self.write(&mut bytes);
        bytes
    }

    /// Decodes the message in a ring payload. Fails with [`BadMessage`] for unknown kinds.
    pub fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Result<Event, BadMessage> {
        Event::read(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_survives_the_ring() {
        let v6 = atoll_base::Addr::from_octets([0xfe; 16]);
        let voucher = Voucher { uid: u32::MAX, flags: 15, granted: u64::MAX - 1, seal: u64::MAX - 2 };
        let (local, remote) = (Endpoint::at(v6, 2), Endpoint::new(0xffff_ffff, 0xffff));
        for event in [
            Event::Ready { slot: SlotId(7), generation: 8, ready: Ready::IN | Ready::HUP },
            Event::ConnectionAvailable { listener: u64::MAX, slot: SlotId(1), generation: 2, local, remote },
            Event::ClaimVerdict { slot: SlotId(1), generation: 2, confirmed: true },
            Event::AcceptorRemoved { listener: 77 },
            Event::ConnectionsWait { listener: 77, waiting: true, answers: false },
            Event::SlotDone { slot: SlotId(3), generation: 4 },
            Event::BindReply { token: 1, cause: Cause::AddressInUse, port: 80, voucher },
            Event::ListenReply { token: 1, cause: Cause::None, voucher: Voucher::default() },
            Event::InfoReply { token: 1, cause: Cause::Invalid },
            Event::GroupReply { token: 1, cause: Cause::NoBuffers },
        ] {
            assert_eq!(Event::decode(&event.encode()), Ok(event));
        }
    }

    #[test]
    fn any_bytes_decode_without_panic() {
        let mut rng = atoll_base::Rng::new(1);
        for _ in 0..100_000 {
            let mut bytes = [0; MESSAGE_BYTES];
            bytes.fill_with(|| rng.next_u32() as u8);
            bytes[0] %= 16;
            let _ = Event::decode(&bytes);
        }
    }
}

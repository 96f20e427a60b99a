//! The commands of an application to a replica, one entry of the command ring each.
//!
//! The command ring never loses or reorders commands; a full ring makes the library wait for the replica. A
//! replica treats every field as hostile: unknown slots, stale generations and impossible options are counted
//! and ignored, or answered with [`crate::Cause::Invalid`] where a reply is owed.

use atoll_base::{Addr, Endpoint, SlotId};
use zerocopy::TryFromBytes;

use crate::device::Device;
use crate::layout::{BadMessage, Field, MESSAGE_BYTES, messages, numbered};
use crate::lease::{Pass, Voucher};
pub use crate::protocol::{DatagramKind, Protocol};

/// The way in which a socket is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub enum CloseMode {
    /// Send what is buffered, then FIN; RST if received octets were left unread, as Linux does.
    Graceful = 0,
    /// RST at once (`SO_LINGER` with zero time).
    Abort = 1,
}

numbered!(CloseMode else Abort);

/// Options of a connection or listener on which the replica acts. Other options live in the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes)]
#[repr(u8)]
pub enum SocketOption {
    /// `TCP_NODELAY`: 0 or 1.
    NoDelay = 1,
    /// `TCP_CORK`: 0 or 1.
    Cork = 2,
    /// `SO_KEEPALIVE`: 0 or 1.
    KeepAlive = 3,
    /// `TCP_KEEPIDLE` in seconds.
    KeepIdle = 4,
    /// `TCP_KEEPINTVL` in seconds.
    KeepInterval = 5,
    /// The value of `TCP_KEEPCNT`.
    KeepCount = 6,
    /// `TCP_USER_TIMEOUT` in milliseconds; 0 is off.
    UserTimeout = 7,
    /// `TCP_QUICKACK`: 0 or 1.
    QuickAck = 8,
    /// `TCP_MAXSEG` in octets.
    MaxSegment = 9,
    /// `SO_RCVBUF` in octets (the effective size, not Linux's doubled one).
    ReceiveBuffer = 10,
    /// `SO_SNDBUF` in octets (the effective size).
    SendBuffer = 11,
    /// `TCP_CONGESTION`: an index into [`CONGESTION_NAMES`].
    Congestion = 12,
    /// `TCP_LINGER2` in seconds.
    Linger2 = 13,
    /// `TCP_DEFER_ACCEPT` in seconds (listeners).
    DeferAccept = 14,
    /// The value of `IP_TTL`.
    TimeToLive = 15,
    /// The value of `IP_TOS`.
    TypeOfService = 16,
    /// The value of `IPV6_UNICAST_HOPS`.
    UnicastHops = 18,
    /// The value of `IPV6_TCLASS`.
    TrafficClass = 19,
    /// `TCP_NOTSENT_LOWAT` in octets; 0 is the default: no limit.
    UnsentLow = 21,
    /// `SO_MAX_PACING_RATE` in octets per second; `u32::MAX`: no limit.
    MaxPacingRate = 22,
    /// `TCP_SYNCNT`: 1 to 127.
    SynCount = 23,
    /// `IP_MTU_DISCOVER`: 0 to 5, as in ip(7) and linux/in.h (datagram sockets).
    MtuDiscover = 32,
    /// `IP_MULTICAST_TTL`: 0 to 255 (datagram sockets).
    MulticastTtl = 33,
    /// `IP_MULTICAST_LOOP`: 0 or 1 (datagram sockets).
    MulticastLoop = 34,
    /// `IP_MULTICAST_ALL`: 0 or 1 (datagram sockets).
    MulticastAll = 35,
    /// `IP_MULTICAST_IF`: 1 if it names the loopback (datagram sockets).
    MulticastInside = 36,
    /// `IPV6_MTU_DISCOVER`: as `IP_MTU_DISCOVER` (datagram sockets).
    MtuDiscoverV6 = 37,
    /// `IPV6_DONTFRAG`: 0 or 1 (datagram sockets).
    DontFragmentV6 = 38,
    /// `IPV6_MULTICAST_HOPS`: 0 to 255 (datagram sockets).
    MulticastHops = 39,
    /// `IPV6_MULTICAST_LOOP`: 0 or 1 (datagram sockets).
    MulticastLoopV6 = 40,
    /// `IPV6_MULTICAST_ALL`: 0 or 1 (datagram sockets).
    MulticastAllV6 = 41,
    /// `IPV6_MULTICAST_IF`: 1 if it names the loopback (datagram sockets).
    MulticastInsideV6 = 42,
    /// Whether received datagrams bring [`crate::Details`]: 0 or 1 (datagram sockets).
    Details = 43,
    /// Whether received datagrams bring [`crate::Details`] that say when they came, and whether errors
    /// say so: 0 or 1 (datagram sockets; `SO_TIMESTAMP` and its kin).
    Times = 50,
    /// Whether received datagrams bring [`crate::Details`] that say how many were dropped before them: 0 or 1
    /// (datagram sockets; `SO_RXQ_OVFL`).
    Drops = 51,
    /// Whether the sizes of buffers stay as they are, as bits: 1 for the send buffer, 2 for the receive
    /// buffer (connections and listeners; `SO_BUF_LOCK`). Setting a size sets its bit.
    BufferLock = 52,
    /// The device that the socket is bound to, by its number in [`Device`] (`SO_BINDTODEVICE`). For a socket
    /// that is bound to a port and does not listen yet, the authority of the port gets it as an option of a
    /// listener.
    Device = 53,
    /// `SO_REUSEADDR`: 0 or 1. [`Command::Bind`] says it first; later the authority of the port gets it as an
    /// option of a listener, whether or not the socket listens.
    ReuseAddr = 64,
    /// The value of `IP_MINTTL`: the least TTL of segments that are taken, and 0 for any (connections and
    /// listeners).
    MinTtl = 54,
    /// The value of `IPV6_MINHOPCOUNT`: as `IP_MINTTL`.
    MinHopCount = 55,
    /// The value of `IPV6_MTU`, 1280 at least; 0 is the default: what the path takes (datagram sockets).
    MtuV6 = 48,
    /// Whether network errors about what the socket has sent come as records into its receive buffer
    /// ([`crate::datagram::Flags::ERROR`]), in order: [`crate::datagram::ErrorWishes`], or 1 for both
    /// families (datagram sockets; `IP_RECVERR`, `IPV6_RECVERR`).
    Errors = 49,
    /// `TCP_FASTOPEN` (listeners): connections that may be open before their handshakes are complete; 0 is
    /// off.
    FastOpen = 20,
    /// The types of ICMP messages 0 to 31 that a raw socket does not get, a bit for each (`ICMP_FILTER`,
    /// `ICMP6_FILTER`).
    Filter0 = 56,
    /// The types 32 to 63 that a raw socket does not get.
    Filter32 = 57,
    /// The types 64 to 95 that a raw socket does not get.
    Filter64 = 58,
    /// The types 96 to 127 that a raw socket does not get.
    Filter96 = 59,
    /// The types 128 to 159 that a raw socket does not get.
    Filter128 = 60,
    /// The types 160 to 191 that a raw socket does not get.
    Filter160 = 61,
    /// The types 192 to 223 that a raw socket does not get.
    Filter192 = 62,
    /// The types 224 to 255 that a raw socket does not get.
    Filter224 = 63,
}

impl SocketOption {
    /// The options about the types of ICMP messages that a raw socket does not get, in the order of the
    /// types.
    pub const FILTERS: [SocketOption; 8] = [
        SocketOption::Filter0,
        SocketOption::Filter32,
        SocketOption::Filter64,
        SocketOption::Filter96,
        SocketOption::Filter128,
        SocketOption::Filter160,
        SocketOption::Filter192,
        SocketOption::Filter224,
    ];
}

numbered!(SocketOption);

messages! {
    /// One message from an application to a replica.
    ///
    /// `lease` is a random 64-bit number that the library draws for each socket that is bound. It is the
    /// socket's identity across `fork` and across replicas, and the lease of a listening socket names the
    /// listener. A replica that is not the authority of the port wants the lease to be shown first
    /// ([`Command::Show`]) by a session that it does not know as a holder.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(missing_docs)] // Fields are named after what the variant's doc says of them.
    pub enum Command after u8 {
        /// Leases `local` (port 0 for any) for the socket `lease`. Sent to the replica `port % replicas`, the
        /// authority of that port (for port 0 to any replica, which chooses one of its own ports). A forked
        /// child that sends the command again becomes a holder. `v6_only`: see [`Command::Listen`]. `device`
        /// is the one that the socket is bound to. Answered by [`crate::Event::BindReply`].
        // The record of this command in a ledger of an older build has a 0 for the device.
        Bind = 1 {
            token: u32,
            lease: u64,
            protocol: Protocol,
            local: Endpoint,
            reuse_addr: bool,
            reuse_port: bool,
            v6_only: bool,
            device: Device,
        },
        /// Ends this session's hold on the lease. The port is free when no session holds it. Also sent to
        /// every replica that was asked to listen or to open: it ends the listener there (for this session).
        Release = 2 { lease: u64 },
        /// Replicates a listening socket to this replica (N2). Answered by [`crate::Event::ListenReply`].
        /// Sent again, the command changes the backlog, or adds a holder. With `v6_only`, a socket at `::`
        /// takes IPv6 alone (`IPV6_V6ONLY`); at other addresses the flag has no meaning. `hops_min` is what
        /// [`SocketOption::MinTtl`] and [`SocketOption::MinHopCount`] say: no SYN that is too far away is
        /// taken before they come. A 0 changes nothing.
        // The record of this command in a ledger of an older build has zeros for `hops_min`.
        Listen = 3 {
            token: u32,
            lease: u64,
            local: Endpoint,
            backlog: u32,
            reuse_port: bool,
            defer_accept: u16,
            v6_only: bool,
            hops_min: [u8; 2],
        },
        /// Shows the grant of a port's authority to another replica: see [`crate::lease`]. The grant counts
        /// for commands of this session that name the lease, until another one is shown.
        Show = 15 { lease: u64, protocol: Protocol, local: Endpoint, voucher: Voucher },
        /// Shows the authority of a port the supervisor's statement about the user that asks for a socket
        /// with that port. The statement counts for commands of this session that name the lease. Of several
        /// statements for one socket the first decides the user.
        Pass = 16 { pass: Pass, seal: u64 },
        /// ACCEPT-CONNECTION (P4): this session is willing to take connections of the listener.
        AcceptConnection = 4 { lease: u64 },
        /// Asks, in the naive accept (P4), for one connection that waits (`takes`), or whether one waits.
        /// Answered at once by [`crate::Event::ConnectionAvailable`] or [`crate::Event::ConnectionsWait`]. A
        /// session that gets the answer that none waits is notified once when one does.
        AskConnection = 14 { lease: u64, takes: bool },
        /// Stops connections of the listener for this session, which still holds the socket open.
        StopAccepting = 5 { lease: u64 },
        /// CLAIM-CONNECTION (P4): see [`crate::Event::ConnectionAvailable`].
        Claim = 6 { slot: SlotId, generation: u32 },
        /// Opens a connection from `slot`. If `local.port` is 0, the replica chooses a port whose replies
        /// steer back to it; if `local.addr` is unspecified, it chooses the address. The outcome is a
        /// [`crate::Event::Ready`].
        Connect = 7 { slot: SlotId, generation: u32, lease: u64, local: Endpoint, remote: Endpoint },
        /// Opens a datagram socket in `slot`, on every replica, or opens it again with another peer. If
        /// `remote.port` is 0, the socket is unconnected. `v6_only`: see [`Command::Listen`].
        // The record of this command in a ledger of an older build ends before `kind`, or has a 1 there for
        // ICMP.
        UdpOpen = 8 {
            slot: SlotId,
            generation: u32,
            lease: u64,
            local: Endpoint,
            remote: Endpoint,
            reuse_port: bool,
            v6_only: bool,
            kind: DatagramKind,
        },
        /// Asks the replica to read the slot, whose application side has changed.
        Kick = 9 { slot: SlotId, generation: u32 },
        /// Reports that the application is done with the slot. Answered by [`crate::Event::SlotDone`],
        /// possibly much later.
        Close = 10 { slot: SlotId, generation: u32, mode: CloseMode },
        /// Sets an option of a connection or datagram socket.
        SetOption = 11 { slot: SlotId, generation: u32, option: SocketOption, value: u32 },
        /// Sets an option of a listener, inherited by connections accepted later.
        SetListenerOption = 12 { lease: u64, option: SocketOption, value: u32 },
        /// Asks for [`crate::info::Info`] of the slot's connection. Answered by [`crate::Event::InfoReply`].
        Info = 13 { token: u32, slot: SlotId, generation: u32 },
        /// Leases a free port of these, the first and the last one, as [`Command::Bind`] with port 0 does
        /// (`IP_LOCAL_PORT_RANGE`). A replica whose ports among these are all in use refuses with
        /// [`crate::Cause::AddressInUse`], and another one may have a free one.
        BindWithin = 21 {
            token: u32,
            lease: u64,
            protocol: Protocol,
            local: Endpoint,
            first: u16,
            last: u16,
            reuse_addr: bool,
            reuse_port: bool,
            v6_only: bool,
            device: Device,
        },
        /// Opens a connection from one of these ports, as [`Command::Connect`] with port 0 does from any
        /// (`IP_LOCAL_PORT_RANGE`).
        ConnectWithin = 22 {
            slot: SlotId,
            generation: u32,
            local: Endpoint,
            remote: Endpoint,
            first: u16,
            last: u16,
        },
        /// Makes a datagram socket join or leave a multicast group, on the link outside or inside. Sent to
        /// every replica. Answered by [`crate::Event::GroupReply`] if `token` is not 0.
        // The record of this command in a ledger of an older build ends before the token.
        Group = 20 { slot: SlotId, generation: u32, group: Addr, inside: bool, joins: bool, token: u32 },
    }
}

impl Command {
    /// Encodes the message as ring payload.
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        self.write(&mut bytes);
        bytes
    }

    /// Decodes the message in a ring payload. Fails with [`BadMessage`] for unknown kinds and invalid values.
    pub fn decode(bytes: &[u8; MESSAGE_BYTES]) -> Result<Command, BadMessage> {
        Command::read(bytes)
    }
}

impl Field for Command {
    type Octets = [u8; MESSAGE_BYTES];

    fn write(&self) -> [u8; MESSAGE_BYTES] {
        self.encode()
    }

    fn read(octets: &[u8; MESSAGE_BYTES]) -> Result<Command, BadMessage> {
        Command::decode(octets)
    }
}

/// The congestion controls by the names that Linux has for them; the first one is the default.
pub const CONGESTION_NAMES: [&str; 3] = ["cubic", "reno", "bbr"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_survives_the_ring() {
        let v6 = Addr::from_octets([0x20; 16]);
        let (local, remote) = (Endpoint::at(v6, 80), Endpoint::new(0xffff_ffff, 0xffff));
        let v6_only = true;
        let (slot, generation, lease, token) = (SlotId(7), 8, u64::MAX - 1, 99);
        for command in [
            Command::Bind {
                token,
                lease,
                protocol: Protocol::Udp,
                local,
                reuse_addr: true,
                reuse_port: false,
                v6_only,
                device: Device::Link,
            },
            Command::Release { lease },
            Command::Listen {
                token,
                lease,
                local,
                backlog: 511,
                reuse_port: true,
                defer_accept: 3,
                v6_only,
                hops_min: [0; 2],
            },
            Command::Show {
                lease,
                protocol: Protocol::Udp,
                local,
                voucher: Voucher { uid: u32::MAX, flags: 7, granted: u64::MAX - 3, seal: u64::MAX - 4 },
            },
            Command::Pass {
                pass: Pass { lease, uid: 33, protocol: Protocol::Udp, port: 80 },
                seal: u64::MAX - 5,
            },
            Command::AcceptConnection { lease },
            Command::AskConnection { lease, takes: true },
            Command::StopAccepting { lease },
            Command::Claim { slot, generation },
            Command::Connect { slot, generation, lease, local, remote },
            Command::UdpOpen {
                slot,
                generation,
                lease,
                local,
                remote,
                reuse_port: true,
                v6_only,
                kind: DatagramKind::Icmp,
            },
            Command::Kick { slot, generation },
            Command::Close { slot, generation, mode: CloseMode::Abort },
            Command::SetOption { slot, generation, option: SocketOption::NoDelay, value: 1 },
            Command::SetListenerOption { lease, option: SocketOption::DeferAccept, value: 5 },
            Command::Info { token, slot, generation },
            Command::Group {
                slot,
                generation,
                group: Addr::v4(0xe000_0001),
                inside: true,
                joins: false,
                token,
            },
            Command::Group { slot, generation, group: v6, inside: false, joins: true, token: 0 },
        ] {
            assert_eq!(Command::decode(&command.encode()), Ok(command));
        }
    }

    #[test]
    fn every_option_has_its_number() {
        for n in 0..=255u8 {
            if let Some(option) = SocketOption::from_u8(n) {
                assert_eq!(option as u8, n);
            }
        }
    }

    #[test]
    fn any_bytes_decode_without_panic() {
        let mut rng = atoll_base::Rng::new(2);
        for _ in 0..100_000 {
            let mut bytes = [0; MESSAGE_BYTES];
            bytes.fill_with(|| rng.next_u32() as u8);
            bytes[0] %= 24;
            let _ = Command::decode(&bytes);
        }
    }
}

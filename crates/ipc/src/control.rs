//! The messages by which a process joins a stack, on the supervisor's unix socket (SOCK_SEQPACKET), with
//! descriptors.
//!
//! These messages arrive on the socket for applications (`NAME.sock`). Administration has a socket of its
//! own, with JSON requests. Every packet is one [`Request`] or [`Reply`] of 56 bytes, sent with the
//! descriptors that its doc names, in that order.
//!
//! A connection belongs to one process: when it closes, the process is gone, and all its memberships end.

use core::mem::offset_of;

use zerocopy::TryFromBytes;

use crate::arena::ArenaConfig;
use crate::balance::Balance;
use crate::command::Protocol;
use crate::layout::{BadMessage, Field, MESSAGE_BYTES, messages, numbered, part, put, record, words};
use crate::lease::{NO_USER, Pass};

messages! {
    /// A request of a process to the supervisor, or of the supervisor to a server.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(missing_docs)] // Fields are named after what the variant's doc says of them.
    pub enum Request after u8 {
        /// Application to supervisor: open a new session of the process's own, on all replicas, whose arenas
        /// together take no more than `room_mib` MiB of address space (0: as much as is configured). Answered
        /// by [`Reply::Joined`].
        Attach = 1 { layout_version: u32, room_mib: u32 },
        /// Application to supervisor: make the process a member of an existing session, whose sockets were
        /// inherited over `fork` or `exec`. The supervisor checks `key`. Answered by [`Reply::Joined`].
        Join = 2 { session: u32, key: u64 },
        /// Application to supervisor: the membership is no longer needed.
        Leave = 3 { session: u32 },
        /// Application to supervisor: open another connection like this one, for a child or for the next
        /// program, which may not see the socket's path (chroot, mount namespaces). Answered by
        /// [`Reply::Connected`].
        Connect = 30,
        /// Application to supervisor: state which user sends this request, and whether that user may have
        /// `port` (0 asks for none). Answered by [`Reply::Vouched`], which is shown to the authority of a
        /// port before the socket `lease` is bound.
        Vouch = 31 { lease: u64, protocol: Protocol, port: u16 },
        /// Supervisor to replica: a session was opened, which may do as `user` what needs no
        /// [`crate::lease::Pass`]. Descriptors: arena, application page, the doorbell by which the session
        /// rings the replica, [`crate::page::BELLS`] doorbells of the session.
        SessionOpened = 4 { session: u32, pid: u32, config: ArenaConfig, user: User },
        /// Supervisor to replica: one process of the session's family is gone; the sockets that it alone held
        /// are closed.
        MemberGone = 5 { session: u32, member: u8 },
        /// Supervisor to replica: the last member is gone. All sockets close; the arena is freed when they
        /// are done.
        SessionGone = 6 { session: u32 },
        /// Supervisor to replica: servers have died of this session. The replica ignores it from now on, and
        /// resets its connections.
        CutOff = 22 { session: u32 },
        /// Supervisor to replica: end orderly (RST to all peers).
        Stop = 7,
        /// Supervisor to replica: list sockets as JSON. The answer is a sequence of JSON packets, the last
        /// one empty (`{}`). Application to supervisor: list the sockets of the stack. Answered by a sequence
        /// of [`Reply::Listed`].
        ListSockets = 8 { token: u32 },
        /// Supervisor to replica: from now on balance by these rules (P5).
        Balance = 9 { rules: Balance },
        /// Supervisor to server: all open sessions have been sent. This is the first request or, to a
        /// replica, follows the open sessions. The server takes over what its predecessor left, reports that
        /// it is ready, and serves.
        Adopt = 10 { blamed: bool },
        /// Supervisor to server: the process of another server has ended. Calls to it will not be answered.
        ServerGone = 11 { server: u8 },
        /// Supervisor to server: another process succeeds it. The server leaves its state where its successor
        /// finds it, with the ledger in a version that the successor reads, and ends without notice to any
        /// peer.
        HandOver = 20 { ledger: u32 },
        /// Supervisor to replica: write the ledger in this version from now on.
        WriteLedger = 21 { version: u32 },
        /// Supervisor to replica: the memory that its receive buffers may take, in bytes, and the level of
        /// the whole stack's memory. Sent again when it changes.
        Memory = 40 { level: MemoryLevel, buffers_max: u64 },
        /// Supervisor to server: another server, which was gone, is started again, as this incarnation.
        ServerRestarted = 12 { server: u8, epoch: u32 },
    }
}

/// The level of memory use, like `tcp_mem`'s three thresholds (tcp(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, TryFromBytes)]
#[repr(u8)]
pub enum MemoryLevel {
    /// There is enough memory.
    #[default]
    Plenty = 0,
    /// Buffers are small, and do not grow.
    Pressure = 1,
    /// Nothing new begins, and memory that is not needed is freed.
    High = 2,
}

numbered!(MemoryLevel else High);

record! {
    /// The user of a process, and what that user may have.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct User {
        /// The effective user; [`NO_USER`] for any.
        pub uid: u32,
        /// The first port that needs no privilege; 0 if the user has the privilege.
        pub unprivileged_start: u16,
        /// The ranges of lower ports, first and last, that the user may bind nevertheless. (0, 0) is none.
        pub ports: [(u16, u16); USER_PORTS_MAX],
        /// The user to whose bound over all sessions the session counts; `None` for root and for the user
        /// that runs the stack, which have no such bound.
        pub counts_for: Option<u32>,
    }
}

/// The maximum number of port ranges of one user.
pub const USER_PORTS_MAX: usize = 4;

impl User {
    /// Returns a user that may have every port, and as much memory as there is.
    pub const fn privileged(uid: u32) -> User {
        User { uid, unprivileged_start: 0, ports: [(0, 0); USER_PORTS_MAX], counts_for: None }
    }

    /// Returns the user for a session that is opened for any user: everything that depends on the user needs
    /// a [`crate::lease::Pass`].
    pub const fn anybody(unprivileged_start: u16) -> User {
        User { unprivileged_start, ..User::privileged(NO_USER) }
    }

    /// Returns the user that a supervisor vouches for, with `port` in addition.
    pub fn vouched(self, uid: u32, port: u16) -> User {
        let mut ports = [(0, 0); USER_PORTS_MAX];
        ports[0] = (port, port);
        User { uid, ports, ..self }
    }

    /// Returns whether a supervisor has vouched for `port`, or its authority has granted it before: that the
    /// port needs no privilege does not count.
    pub fn is_vouched_for(&self, port: u16) -> bool {
        port != 0 && self.uid != NO_USER && self.ports.contains(&(port, port))
    }

    /// Returns whether the user may bind a socket to `port`; 0 means any free port.
    pub fn may_bind(&self, port: u16) -> bool {
        let is_his = |(first, last): (u16, u16)| (first..=last).contains(&port);
        port == 0 || port >= self.unprivileged_start || self.ports.into_iter().any(is_his)
    }
}

messages! {
    /// A reply of the supervisor.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(missing_docs)] // Fields are named after what the variant's doc says of them.
    pub enum Reply after u8 {
        /// The process is `member` of `session`. Descriptors: stack page, application page,
        /// [`crate::page::BELLS`] doorbells, then per replica: replica page, session arena, the session's
        /// doorbell for the replica.
        Joined = 65 { session: u32, key: u64, member: u8, replicas: u8, config: ArenaConfig },
        /// A new connection. Descriptor: the application's end.
        Connected = 67,
        /// The answer to [`Request::Vouch`].
        Vouched = 68 { pass: Pass, seal: u64 },
        /// The answer to an application's [`Request::ListSockets`]: the entries of [`crate::listing`] follow
        /// in the same packet. `is_last` says that the listing is whole.
        Listed = 69 { is_last: bool },
        /// The request was refused for this reason.
        Refused = 66 { reason: Refusal },
    }
}

words! {
    /// A packet of an application or for it.
    struct Packet {
        message: [u8; MESSAGE_BYTES - size_of::<u64>()],
        /// The number that an application chooses for a request and its reply. A supervisor that takes over
        /// may answer again what its predecessor has answered, and the application has to recognise it.
        token: u64,
    }
}

const TOKEN: usize = offset_of!(Packet, token);
const _: () = assert!(size_of::<Packet>() == MESSAGE_BYTES);

/// Sets the number of a request or a reply.
pub fn set_token(packet: &mut [u8; MESSAGE_BYTES], token: u64) {
    put(packet, TOKEN, &token.write());
}

/// Returns the number of a request or a reply; 0 if the packet is neither.
pub fn token(packet: &[u8]) -> u64 {
    part(packet, TOKEN).and_then(u64::read).unwrap_or(0)
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, thiserror::Error)]
#[repr(u8)]
pub enum Refusal {
    /// The library and the stack are of different versions.
    #[error("program and stack are of different builds: start the program again, or the stack")]
    Version = 1,
    /// There are too many sessions.
    #[error("the stack has as many sessions as it may have ([sessions] max)")]
    Sessions = 2,
    /// There is no such session, or the key is wrong.
    #[error("there is no such session")]
    NoSession = 3,
    /// The session has 64 members already.
    #[error("too many processes share its sockets")]
    Members = 4,
    /// The supervisor is out of memory or descriptors.
    #[error("the stack is out of memory or descriptors")]
    Resources = 5,
    /// The process may not use this stack.
    #[error("its user may not use the stack (atoll up --allow-user)")]
    Permission = 6,
    /// The request is malformed.
    #[error("the request makes no sense to the stack")]
    Malformed = 7,
}

numbered!(Refusal else Malformed);

impl Request {
    /// Encodes the request as a packet.
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        self.write(&mut bytes);
        bytes
    }

    /// Decodes the request in a packet. Fails with [`BadMessage`] for another length or an unknown kind.
    pub fn decode(bytes: &[u8]) -> Result<Request, BadMessage> {
        Request::read(bytes.try_into().map_err(|_| BadMessage)?)
    }
}

impl Reply {
    /// Encodes the reply as a packet.
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        self.write(&mut bytes);
        bytes
    }

    /// Decodes the reply in a packet. Fails with [`BadMessage`] for another length or an unknown kind.
    pub fn decode(bytes: &[u8]) -> Result<Reply, BadMessage> {
        Reply::read(bytes.try_into().map_err(|_| BadMessage)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::Scheme;

    #[test]
    fn every_packet_survives_the_socket() {
        let config = ArenaConfig::default();
        let ports = [(1, 2), (3, 4), (5, 6), (u16::MAX, 8)];
        let user = User { uid: u32::MAX, unprivileged_start: 1024, ports, counts_for: Some(33) };
        for request in [
            Request::Attach { layout_version: 1, room_mib: 0 },
            Request::Join { session: 3, key: u64::MAX },
            Request::Leave { session: 3 },
            Request::Connect,
            Request::Vouch { lease: u64::MAX, protocol: Protocol::Udp, port: 80 },
            Request::SessionOpened { session: 1, pid: 2, config, user: User::privileged(7) },
            Request::SessionOpened { session: 1, pid: 2, config, user },
            Request::MemberGone { session: 1, member: 63 },
            Request::SessionGone { session: 1 },
            Request::CutOff { session: u32::MAX },
            Request::Stop,
            Request::ListSockets { token: 5 },
            Request::Balance { rules: Balance { scheme: Scheme::Filtered, offer_us: 77, ..Balance::new() } },
            Request::Adopt { blamed: true },
            Request::ServerGone { server: 9 },
            Request::ServerRestarted { server: 9, epoch: u32::MAX },
            Request::HandOver { ledger: 1 },
            Request::WriteLedger { version: 2 },
            Request::Memory { level: MemoryLevel::High, buffers_max: u64::MAX },
        ] {
            assert_eq!(Request::decode(&request.encode()), Ok(request));
        }
        for reply in [
            Reply::Joined { session: 1, key: 7, member: 2, replicas: 8, config },
            Reply::Refused { reason: Refusal::Members },
            Reply::Connected,
            Reply::Listed { is_last: true },
            Reply::Vouched {
                pass: Pass { lease: 1 << 63, uid: 33, protocol: Protocol::Udp, port: 80 },
                seal: u64::MAX - 7,
            },
        ] {
            assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
        }
        assert_eq!(Request::decode(&[0; 55]), Err(BadMessage));
        // The number lies behind everything else.
        let reply = Reply::Joined { session: 1, key: u64::MAX, member: 255, replicas: 255, config };
        let mut packet = reply.encode();
        assert_eq!(token(&packet), 0);
        set_token(&mut packet, u64::MAX - 1);
        assert_eq!((token(&packet), Reply::decode(&packet)), (u64::MAX - 1, Ok(reply)));
        let senseless = Request::Balance { rules: Balance { tariff: 0, ..Balance::new() } };
        assert_eq!(Request::decode(&senseless.encode()), Err(BadMessage));
    }

    #[test]
    fn low_ports_are_for_those_who_may() {
        let root = User::privileged(0);
        assert!([0, 1, 80, 1023, 1024, u16::MAX].into_iter().all(|port| root.may_bind(port)));
        let ports = [(25, 25), (80, 81), (0, 0), (0, 0)];
        let other = User { uid: 33, unprivileged_start: 1024, ports, counts_for: Some(33) };
        assert!([0, 25, 80, 81, 1024, u16::MAX].into_iter().all(|port| other.may_bind(port)));
        assert!([1, 24, 26, 79, 82, 1023].into_iter().all(|port| !other.may_bind(port)));
        let ports = [(9, 8), (0, 0), (0, 0), (0, 0)];
        let nobody = User { uid: 33, unprivileged_start: u16::MAX, ports, counts_for: Some(33) };
        assert!(
            [8, 9, 1024, u16::MAX - 1].into_iter().all(|port| !nobody.may_bind(port)),
            "a range the wrong way round"
        );
    }
}

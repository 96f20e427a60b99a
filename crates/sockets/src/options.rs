//! The table of socket options (socket(7), ip(7), ipv6(7), tcp(7)). From it follow setsockopt(2),
//! getsockopt(2), the commands to replicas, and the state that is handed over on fork(2) and execve(2).
//!
//! To add an option, add a name and a row here and, if replicas act on it, a [`SocketOption`] and its arm in
//! the transport. Options that are not in the table are refused, as by a Linux without that feature.
//! Multicast options, whose values are lists, and options that can only be read (`TCP_INFO`, `SO_ERROR`) are
//! elsewhere.

use alloc::sync::Arc;
use alloc::vec::Vec;

use atoll_base::Duration;
use atoll_ipc::datagram::ErrorWishes;
use atoll_ipc::{CONGESTION_NAMES, Device, SocketOption};
use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, SOL_UDP};
use serde::{Deserialize, Serialize};

use crate::errno::Errno;
use crate::stamps::Form;
use crate::stream::Local;
use crate::tcp_info::TCP_INFO_BYTES;
use crate::view::{LINK, LINK_NAME, LOOPBACK, LOOPBACK_NAME};

/// The options of the table, in its order. The number of an option is written down over execve(2), so new
/// options are added at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)] // The rows name them.
pub enum Name {
    NoDelay,
    Cork,
    QuickAck,
    KeepAlive,
    KeepIdle,
    KeepInterval,
    KeepCount,
    ReuseAddr,
    ReusePort,
    Broadcast,
    V6Only,
    Congestion,
    OobInline,
    DontRoute,
    FastOpen,
    FastOpenConnect,
    Linger,
    UserTimeout,
    ReceiveBuffer,
    SendBuffer,
    WindowClamp,
    ReceiveLow,
    DeferAccept,
    MaxSegment,
    UnsentLow,
    PacingRate,
    TimeToLive,
    TypeOfService,
    Hops,
    TrafficClass,
    Linger2,
    SynCount,
    Priority,
    MtuDiscover,
    MtuDiscoverV6,
    DontFragmentV6,
    ReceiveTimeout,
    SendTimeout,
    ReceiveErrors,
    ReceiveErrorsV6,
    Debug,
    MtuV6,
    PacketInfo,
    PacketInfoV6,
    ReceiveTtl,
    ReceiveHops,
    ReceiveTos,
    ReceiveClass,
    OriginalAddress,
    Segment,
    Merge,
    Times,
    ZeroCopy,
    CorkUdp,
    ReceiveInq,
    BindWithoutPort,
    PeekOffset,
    ErrorsArePriority,
    Drops,
    BufferLock,
    LocalPorts,
    Device,
    MinTtl,
    MinHopCount,
}

/// The row of an option in the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name of the option here.
    pub name: Name,
    /// `level` of setsockopt(2).
    pub level: i32,
    /// `optname` of setsockopt(2).
    pub number: i32,
    /// The states of a socket in which the option can be set.
    pub when: When,
    /// The encoding of the value.
    pub codec: Codec,
    /// The value unless one was set, as [`Options`] holds it.
    pub default: u64,
    /// The replicas that get the value.
    pub told: Told,
}

/// The states of a socket in which an option can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The option can be set in all states.
    Always,
    /// The option can be set before bind(2).
    Fresh,
    /// The option can be set before connect(2) and listen(2).
    Unconnected,
    /// The option can be set before connect(2).
    NotConnected,
}

/// The encodings of values: how programs write a value, and how [`Options`] holds it. Values are numbers
/// unless a variant says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// An int; any value but 0 is 1.
    Flag,
    /// An int between these; other values are EINVAL.
    Range(i32, i32),
    /// An int between these; -1 restores the default.
    RangeOrDefault(i32, i32),
    /// The value of `TCP_MAXSEG`; 0 means what the path allows.
    Segment,
    /// The value of `IPV6_MTU`: 0, or the size of a packet, at least the least MTU of IPv6.
    PacketSize,
    /// An int that is replaced by the nearest one between these.
    Nearest(i32, i32),
    /// A buffer size between these, half of what getsockopt(2) returns; negative values are large ones.
    Buffer(u32, u32),
    /// The value of `SO_RCVLOWAT`: negative values are the largest, and 0 is 1.
    LowMark,
    /// A `struct linger`, held with bit 32 for "on" and the seconds in the bits below.
    Linger,
    /// A `struct timeval`, held in microseconds, or as [`NO_TIME`].
    Time,
    /// The value of `SO_MAX_PACING_RATE`, in four octets or eight, as asked for.
    Rate,
    /// The name of `TCP_CONGESTION`, held as its index in [`CONGESTION_NAMES`].
    Congestion,
    /// The value of `TCP_LINGER2`: at most two minutes; negative values are -1.
    Linger2,
    /// The value of `TCP_DEFER_ACCEPT`: the time that a number of retransmissions takes, in seconds.
    Retransmissions,
    /// The value of `IP_TOS` and `IPV6_TCLASS`; the two lowest bits of a connection's value belong to TCP
    /// (RFC 3168).
    Class,
    /// The value of `TCP_WINDOW_CLAMP`: 0 is none; the least is half the smallest buffer.
    Window,
    /// The value of `IP_LOCAL_PORT_RANGE`: the first port in the lower half, the last one in the upper half;
    /// 0 stands for that of the stack.
    Ports,
    /// The number of one of the stack's interfaces, or 0 for none; the number of the [`Device`], too.
    Device,
    /// An int; any value but 0 asks for times in the form that the option names, and is held as its number
    /// ([`Form`]).
    Form,
}

/// The replicas to which the library sends a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// No replica gets the value: the library acts on it, or only the program reads it.
    Nobody,
    /// The replicas get the value.
    Replicas(SocketOption),
    /// The replicas get the value for connections and listeners.
    Tcp(SocketOption),
    /// The replicas get the value for listeners.
    Listener(SocketOption),
    /// The replicas get the value for datagram sockets; TCP always behaves as the option asks.
    Udp(SocketOption),
    /// The replicas get the value together with the other values of keep-alive.
    KeepAlive(SocketOption),
    /// The authority of the port gets the value, if the socket has one: bind(2) says it first.
    Authority(SocketOption),
}

const fn row(name: Name, (level, number): (i32, i32), codec: Codec, default: u64, told: Told) -> Row {
    Row { name, level, number, when: When::Always, codec, default, told }
}

const fn only(when: When, row: Row) -> Row {
    Row { when, ..row }
}

const fn socket(number: i32) -> (i32, i32) {
    (SOL_SOCKET, number)
}

const fn ip(number: i32) -> (i32, i32) {
    (IPPROTO_IP, number)
}

const fn tcp(number: i32) -> (i32, i32) {
    (IPPROTO_TCP, number)
}

const fn v6(number: i32) -> (i32, i32) {
    (IPPROTO_IPV6, number)
}

const fn udp(number: i32) -> (i32, i32) {
    (SOL_UDP, number)
}

/// The sizes that Linux reports for a new socket, in octets.
const SEND_BUFFER: u64 = 87040;
const RECEIVE_BUFFER: u64 = 131_072;
/// The value of `TCP_WINDOW_CLAMP` that Linux reports for a new connection: the window of that buffer.
pub const UNSET_CLAMP: u64 = RECEIVE_BUFFER / 2;
/// The option of this name (asm-generic/socket.h).
pub const SO_ZEROCOPY: i32 = 60;
/// The option of this name (linux/in.h).
const IP_LOCAL_PORT_RANGE: i32 = 51;
/// The option of this name (asm-generic/socket.h), and its bits for the two buffers (linux/socket.h).
const SO_BUF_LOCK: i32 = 72;
const SEND_LOCK: u64 = 1;
const RECEIVE_LOCK: u64 = 2;
/// The option of this name (asm-generic/socket.h).
pub const SO_BINDTOIFINDEX: i32 = 62;
/// The option of this name (linux/in6.h).
const IPV6_MINHOPCOUNT: i32 = 73;
/// The value of `net.core.somaxconn`.
const SOMAXCONN: i32 = 4096;
/// The default and the largest value of `IP_MTU_DISCOVER`: ip(7).
const MTU_WANT: u64 = libc::IP_PMTUDISC_WANT as u64;
const MTU_VALUES: Codec = Codec::Range(0, libc::IP_PMTUDISC_OMIT);
/// The least MTU of a link that carries IPv6 (RFC 8200 §5).
const IPV6_MTU_MIN: i32 = 1280;
/// `SO_RCVTIMEO_NEW` and `SO_SNDTIMEO_NEW` (linux/asm-generic/socket.h).
const RECEIVE_TIMEOUT_NEW: i32 = 66;
const SEND_TIMEOUT_NEW: i32 = 67;
/// The value of `SO_PEEK_OFF` unless one was set: -1, as an int is held.
const NO_OFFSET: u64 = u32::MAX as u64;
/// The smallest window clamp: Linux's `SOCK_MIN_RCVBUF` / 2.
const WINDOW_MIN: u64 = 1152;
/// The MSS where nothing is known of the path (RFC 9293 3.7.1), and the values that tcp(7) allows.
const SEGMENT: u32 = 536;
const SEGMENT_MIN: i32 = 88;
const SEGMENT_MAX: i32 = 32767;

use Codec::{Buffer, Class, Flag, Range, RangeOrDefault};
use SocketOption as So;
use Told::{Authority, KeepAlive, Listener, Nobody, Replicas, Tcp, Udp};

/// The table of options, in the order of [`Name`].
pub const TABLE: [Row; NAMES] = [
    row(Name::NoDelay, tcp(libc::TCP_NODELAY), Flag, 0, Tcp(So::NoDelay)),
    row(Name::Cork, tcp(libc::TCP_CORK), Flag, 0, Tcp(So::Cork)),
    row(Name::QuickAck, tcp(libc::TCP_QUICKACK), Flag, 1, Tcp(So::QuickAck)),
    row(Name::KeepAlive, socket(libc::SO_KEEPALIVE), Flag, 0, KeepAlive(So::KeepAlive)),
    row(Name::KeepIdle, tcp(libc::TCP_KEEPIDLE), Range(1, 32767), 7200, KeepAlive(So::KeepIdle)),
    row(Name::KeepInterval, tcp(libc::TCP_KEEPINTVL), Range(1, 32767), 75, KeepAlive(So::KeepInterval)),
    row(Name::KeepCount, tcp(libc::TCP_KEEPCNT), Range(1, 127), 9, KeepAlive(So::KeepCount)),
    row(Name::ReuseAddr, socket(libc::SO_REUSEADDR), Flag, 0, Authority(So::ReuseAddr)),
    row(Name::ReusePort, socket(libc::SO_REUSEPORT), Flag, 0, Nobody),
    row(Name::Broadcast, socket(libc::SO_BROADCAST), Flag, 0, Nobody),
    // ipv6(7): it decides which addresses bind(2) takes, so it has to be set before.
    only(When::Fresh, row(Name::V6Only, v6(libc::IPV6_V6ONLY), Flag, 0, Nobody)),
    row(Name::Congestion, tcp(libc::TCP_CONGESTION), Codec::Congestion, 0, Tcp(So::Congestion)),
    row(Name::OobInline, socket(libc::SO_OOBINLINE), Flag, 0, Nobody),
    row(Name::DontRoute, socket(libc::SO_DONTROUTE), Flag, 0, Nobody),
    // tcp_fastopen_init: at most the limit of the backlog.
    only(
        When::NotConnected,
        row(Name::FastOpen, tcp(libc::TCP_FASTOPEN), Codec::Nearest(0, SOMAXCONN), 0, Listener(So::FastOpen)),
    ),
    only(
        When::Unconnected,
        row(Name::FastOpenConnect, tcp(libc::TCP_FASTOPEN_CONNECT), Range(0, 1), 0, Nobody),
    ),
    row(Name::Linger, socket(libc::SO_LINGER), Codec::Linger, 0, Nobody),
    row(Name::UserTimeout, tcp(libc::TCP_USER_TIMEOUT), Range(0, i32::MAX), 0, Tcp(So::UserTimeout)),
    row(
        Name::ReceiveBuffer,
        socket(libc::SO_RCVBUF),
        Buffer(1152, 3 << 20),
        RECEIVE_BUFFER,
        Replicas(So::ReceiveBuffer),
    ),
    row(
        Name::SendBuffer,
        socket(libc::SO_SNDBUF),
        Buffer(2304, 1 << 20),
        SEND_BUFFER,
        Replicas(So::SendBuffer),
    ),
    row(Name::WindowClamp, tcp(libc::TCP_WINDOW_CLAMP), Codec::Window, 0, Tcp(So::ReceiveBuffer)),
    row(Name::ReceiveLow, socket(libc::SO_RCVLOWAT), Codec::LowMark, 1, Nobody),
    row(Name::DeferAccept, tcp(libc::TCP_DEFER_ACCEPT), Codec::Retransmissions, 0, Listener(So::DeferAccept)),
    row(Name::MaxSegment, tcp(libc::TCP_MAXSEG), Codec::Segment, 0, Tcp(So::MaxSegment)),
    // A negative value is a large one.
    row(Name::UnsentLow, tcp(libc::TCP_NOTSENT_LOWAT), Range(i32::MIN, i32::MAX), 0, Tcp(So::UnsentLow)),
    row(Name::PacingRate, socket(libc::SO_MAX_PACING_RATE), Codec::Rate, u64::MAX, Tcp(So::MaxPacingRate)),
    row(Name::TimeToLive, ip(libc::IP_TTL), RangeOrDefault(1, 255), 64, Replicas(So::TimeToLive)),
    row(Name::TypeOfService, ip(libc::IP_TOS), Class, 0, Replicas(So::TypeOfService)),
    row(Name::Hops, v6(libc::IPV6_UNICAST_HOPS), RangeOrDefault(0, 255), 64, Replicas(So::UnicastHops)),
    row(Name::TrafficClass, v6(libc::IPV6_TCLASS), Class, 0, Replicas(So::TrafficClass)),
    row(Name::Linger2, tcp(libc::TCP_LINGER2), Codec::Linger2, 60, Tcp(So::Linger2)),
    row(Name::SynCount, tcp(libc::TCP_SYNCNT), Range(1, 127), 6, Tcp(So::SynCount)),
    row(Name::Priority, socket(libc::SO_PRIORITY), Range(i32::MIN, i32::MAX), 0, Nobody),
    row(Name::MtuDiscover, ip(libc::IP_MTU_DISCOVER), MTU_VALUES, MTU_WANT, Udp(So::MtuDiscover)),
    row(Name::MtuDiscoverV6, v6(libc::IPV6_MTU_DISCOVER), MTU_VALUES, MTU_WANT, Udp(So::MtuDiscoverV6)),
    row(Name::DontFragmentV6, v6(libc::IPV6_DONTFRAG), Flag, 0, Udp(So::DontFragmentV6)),
    row(Name::ReceiveTimeout, socket(libc::SO_RCVTIMEO), Codec::Time, 0, Nobody),
    row(Name::SendTimeout, socket(libc::SO_SNDTIMEO), Codec::Time, 0, Nobody),
    // One setting of the replicas for both. Streams report errors in any case, and their queue is empty
    // (limits.md).
    row(Name::ReceiveErrors, ip(libc::IP_RECVERR), Flag, 0, Udp(So::Errors)),
    row(Name::ReceiveErrorsV6, v6(libc::IPV6_RECVERR), Flag, 0, Udp(So::Errors)),
    // As on Linux, the option is kept and does nothing.
    row(Name::Debug, socket(libc::SO_DEBUG), Flag, 0, Nobody),
    row(Name::MtuV6, v6(libc::IPV6_MTU), Codec::PacketSize, 0, Udp(So::MtuV6)),
    // One setting of the replicas for all of these: `ancillary` writes what was asked for.
    row(Name::PacketInfo, ip(libc::IP_PKTINFO), Flag, 0, Udp(So::Details)),
    row(Name::PacketInfoV6, v6(libc::IPV6_RECVPKTINFO), Flag, 0, Udp(So::Details)),
    row(Name::ReceiveTtl, ip(libc::IP_RECVTTL), Flag, 0, Udp(So::Details)),
    row(Name::ReceiveHops, v6(libc::IPV6_RECVHOPLIMIT), Flag, 0, Udp(So::Details)),
    row(Name::ReceiveTos, ip(libc::IP_RECVTOS), Flag, 0, Udp(So::Details)),
    row(Name::ReceiveClass, v6(libc::IPV6_RECVTCLASS), Flag, 0, Udp(So::Details)),
    row(Name::OriginalAddress, ip(libc::IP_RECVORIGDSTADDR), Flag, 0, Udp(So::Details)),
    row(Name::Segment, udp(libc::UDP_SEGMENT), Range(0, 65535), 0, Nobody),
    row(Name::Merge, udp(libc::UDP_GRO), Flag, 0, Nobody),
    // One setting for four options: `stamps`.
    row(Name::Times, socket(libc::SO_TIMESTAMP), Codec::Form, 0, Udp(So::Times)),
    // As on Linux without hardware for it, what is sent is copied all the same: `copies`.
    row(Name::ZeroCopy, socket(SO_ZEROCOPY), Range(0, 1), 0, Nobody),
    row(Name::CorkUdp, udp(libc::UDP_CORK), Flag, 0, Nobody),
    row(Name::ReceiveInq, tcp(libc::TCP_INQ), Range(0, 1), 0, Nobody),
    // bind(2) with port 0 looks at it.
    row(Name::BindWithoutPort, ip(libc::IP_BIND_ADDRESS_NO_PORT), Flag, 0, Nobody),
    // Of a connection, `Local` has the offset, because it changes with each call.
    row(Name::PeekOffset, socket(libc::SO_PEEK_OFF), Range(i32::MIN, i32::MAX), NO_OFFSET, Nobody),
    // datagram_poll looks at it.
    row(Name::ErrorsArePriority, socket(libc::SO_SELECT_ERR_QUEUE), Flag, 0, Nobody),
    row(Name::Drops, socket(libc::SO_RXQ_OVFL), Flag, 0, Udp(So::Drops)),
    // Behind the sizes: replicas that hear of a size fix it.
    row(Name::BufferLock, socket(SO_BUF_LOCK), Range(0, 3), 0, Tcp(So::BufferLock)),
    // bind(2) with port 0 and connect(2) look at it.
    row(Name::LocalPorts, ip(IP_LOCAL_PORT_RANGE), Codec::Ports, 0, Nobody),
    // One setting for two options: SO_BINDTODEVICE names the device.
    row(Name::Device, socket(SO_BINDTOIFINDEX), Codec::Device, 0, Replicas(So::Device)),
    // As on Linux, datagram sockets keep them, and nothing acts on them there.
    row(Name::MinTtl, ip(libc::IP_MINTTL), Range(0, 255), 0, Tcp(So::MinTtl)),
    row(Name::MinHopCount, v6(IPV6_MINHOPCOUNT), Range(0, 255), 0, Tcp(So::MinHopCount)),
];

/// The number of options.
const NAMES: usize = Name::MinHopCount as usize + 1;

const _: () = {
    let mut at = 0;
    while at < NAMES {
        assert!(TABLE[at].name as usize == at, "a row for each name, in their order");
        at += 1;
    }
    assert!(NAMES <= u128::BITS as usize, "a bit for each");
};

impl Row {
    /// Returns the row of an option of setsockopt(2); `None` if there is no such option here.
    pub fn find(level: i32, number: i32) -> Option<&'static Row> {
        // socket(7): root may use these to exceed a system limit that does not exist here.
        let number = match (level, number) {
            (SOL_SOCKET, libc::SO_RCVBUFFORCE) => libc::SO_RCVBUF,
            (SOL_SOCKET, libc::SO_SNDBUFFORCE) => libc::SO_SNDBUF,
            // The times of 64 bits are those of a 64-bit system.
            (SOL_SOCKET, RECEIVE_TIMEOUT_NEW) => libc::SO_RCVTIMEO,
            (SOL_SOCKET, SEND_TIMEOUT_NEW) => libc::SO_SNDTIMEO,
            _ if Form::of(level, number).is_some() => libc::SO_TIMESTAMP,
            _ => number,
        };
        TABLE.iter().find(|row| (row.level, row.number) == (level, number))
    }

    /// Returns the option that is sent to replicas, if any, for a socket of TCP or of UDP.
    pub fn told(&self, is_tcp: bool) -> Option<SocketOption> {
        match self.told {
            Told::Nobody | Told::Authority(_) => None,
            Told::Replicas(option) | Told::KeepAlive(option) => Some(option),
            Told::Tcp(option) | Told::Listener(option) => is_tcp.then_some(option),
            Told::Udp(option) => (!is_tcp).then_some(option),
        }
    }

    /// Returns whether replicas must get a value that was never set before. The values that getsockopt(2)
    /// reports for buffers and TCP_QUICKACK that were not set are not the replicas' values, and a size that
    /// was set is fixed unless `SO_BUF_LOCK` says otherwise.
    pub fn differs(&self, held: u64) -> bool {
        let is_changed_by_others = matches!(self.name, Name::QuickAck | Name::BufferLock);
        held != self.default || matches!(self.codec, Codec::Buffer(..)) || is_changed_by_others
    }

    /// Decodes a program's value; `before` is the option's value until now. Returns what [`Options`] is to
    /// hold.
    pub fn decode(&self, value: &[u8], before: u64, is_tcp: bool) -> Result<u64, Errno> {
        let int = || self.int(value);
        let unsigned = || int().map(|value| value as u32);
        Ok(match self.codec {
            Codec::Flag | Codec::Form => u64::from(int()? != 0),
            Codec::Range(least, most) => int().and_then(|value| within(value, least, most))?,
            Codec::RangeOrDefault(least, most) => match int()? {
                -1 => self.default,
                value => within(value, least, most)?,
            },
            Codec::Segment => match int()? {
                0 => 0,
                value => within(value, SEGMENT_MIN, SEGMENT_MAX)?,
            },
            Codec::PacketSize => match int()? {
                0 => 0,
                value => within(value, IPV6_MTU_MIN, i32::MAX)?,
            },
            Codec::Nearest(least, most) => match int()? {
                value if value < least => return Err(Errno::EINVAL),
                value => value.min(most) as u64,
            },
            Codec::Buffer(least, most) => u64::from(unsigned()?.clamp(least, most)),
            Codec::LowMark => match int()? {
                value if value < 0 => i32::MAX as u64,
                value => value.max(1) as u64,
            },
            Codec::Linger => {
                let (Some(on), Some(seconds)) = (int_at(value, 0), int_at(value, 4)) else {
                    return Err(Errno::EINVAL);
                };
                // As on Linux, the time of an option that is switched off is not changed.
                if on != 0 { LINGERS | u64::from(seconds as u32) } else { before & !LINGERS }
            }
            Codec::Time => time_of(value)?,
            Codec::Rate => match value.first_chunk::<8>() {
                Some(rate) => u64::from_ne_bytes(*rate),
                None => match unsigned()? {
                    u32::MAX => u64::MAX,
                    rate => rate.into(),
                },
            },
            Codec::Congestion => {
                let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
                if value.is_empty() {
                    return Err(Errno::EINVAL);
                }
                let place = CONGESTION_NAMES.iter().position(|known| known.as_bytes() == name);
                place.ok_or(Errno::ENOENT)? as u64
            }
            // A negative value is all ones.
            Codec::Linger2 => u64::from(int()?.clamp(-1, LINGER2_MAX) as u32),
            Codec::Retransmissions => time_of_retransmissions(int()?),
            Codec::Class => {
                let class = match int()? {
                    -1 if self.level == IPPROTO_IPV6 => 0,
                    value if self.level == IPPROTO_IPV6 => within(value, 0, 255)?,
                    value => (value as u8).into(),
                };
                if is_tcp { class & !3 | before & 3 } else { class }
            }
            Codec::Ports => read_ports(value)?,
            Codec::Device => device_numbered(int()?)?,
            Codec::Window => match int()? {
                0 => 0,
                value => (value.max(0) as u64).max(WINDOW_MIN),
            },
        })
    }

    /// Encodes a value as getsockopt(2) returns it.
    pub fn encode(&self, held: u64, is_set: bool) -> Value {
        match self.codec {
            // socket(7): the kernel doubles the value, and getsockopt says so.
            Codec::Buffer(..) if is_set => Value::of_int(held as u32 * 2),
            Codec::Segment if held == 0 => Value::of_int(SEGMENT),
            Codec::Linger2 if held == 0 => Value::of_int(self.default as u32),
            Codec::Linger => {
                let pair = [u32::from(held & LINGERS != 0), held as u32];
                Value::of(&pair.map(u32::to_ne_bytes).concat())
            }
            Codec::Time if held == NO_TIME => Value::of(&[0; 16]),
            Codec::Time => Value::of(&[held / 1_000_000, held % 1_000_000].map(u64::to_ne_bytes).concat()),
            Codec::Rate => Value::of(&held.to_ne_bytes()),
            Codec::Congestion => {
                let mut name = [0; CONGESTION_NAME_LEN];
                let known = CONGESTION_NAMES.get(held as usize).unwrap_or(&"");
                name.iter_mut().zip(known.bytes()).for_each(|(to, byte)| *to = byte);
                Value::of(&name)
            }
            _ => Value::of_int(held as u32),
        }
    }

    /// Reads an int. ip(7): options of that level also take an octet, and an empty value for 0.
    fn int(&self, value: &[u8]) -> Result<i32, Errno> {
        match (int_at(value, 0), value.first()) {
            (Some(value), _) => Ok(value),
            (None, Some(octet)) if self.level == IPPROTO_IP => Ok((*octet).into()),
            // As on Linux, an incomplete number counts as none, except for IP_MINTTL.
            (None, None) if self.name == Name::MinTtl => Err(Errno::EINVAL),
            (None, None) if self.level == IPPROTO_IP => Ok(0),
            (None, _) if self.name == Name::DontFragmentV6 => Ok(0),
            (None, _) => Err(Errno::EINVAL),
        }
    }
}

/// The bit of [`Codec::Linger`] that says that lingering is on.
const LINGERS: u64 = 1 << 32;
/// Linux's `TCP_CA_NAME_MAX`.
const CONGESTION_NAME_LEN: usize = 16;
/// The maximum of `TCP_LINGER2` in seconds: Linux's `TCP_FIN_TIMEOUT_MAX`, tcp(7).
const LINGER2_MAX: i32 = 120;
/// Linux's `TCP_TIMEOUT_INIT` and `TCP_RTO_MAX`, in seconds.
const FIRST_TIMEOUT: u64 = 1;
const LAST_TIMEOUT: u64 = 120;
/// The maximum number of retransmissions, which Linux counts in an octet.
const RETRANSMISSIONS_MAX: u32 = 255;

/// Returns the ports of [`Codec::Ports`].
const fn ports_of(held: u64) -> (u16, u16) {
    (held as u16, (held >> 16) as u16)
}

/// Reads a value of [`Codec::Ports`], which has four octets.
fn read_ports(value: &[u8]) -> Result<u64, Errno> {
    let ports = u32::from_ne_bytes(value.try_into().map_err(|_| Errno::EINVAL)?).into();
    match ports_of(ports) {
        (first, last) if first != 0 && last != 0 && first > last => Err(Errno::EINVAL),
        _ => Ok(ports),
    }
}

/// The number of an interface, and its name, for each device that a socket may be bound to.
const DEVICES: [(u32, &str); 2] = [(LOOPBACK, LOOPBACK_NAME), (LINK, LINK_NAME)];

const _: () = assert!(LOOPBACK == Device::Loopback as u32 && LINK == Device::Link as u32);

/// Returns the number of the interface that a value of `SO_BINDTODEVICE` names, 0 for none; fails with ENODEV
/// if there is no such one (sock_setbindtodevice).
pub fn interface_named(value: &[u8]) -> Result<i32, Errno> {
    let value = &value[..value.len().min(libc::IFNAMSIZ - 1)];
    let name = value.split(|octet| *octet == 0).next().unwrap_or_default();
    if name.is_empty() {
        return Ok(0);
    }
    let found = DEVICES.iter().find(|(_, known)| known.as_bytes() == name);
    found.map(|(number, _)| *number as i32).ok_or(Errno(libc::ENODEV))
}

/// Returns the device with the number of an interface.
fn device_numbered(number: i32) -> Result<u64, Errno> {
    let number = u32::try_from(number).map_err(|_| Errno::EINVAL)?;
    // DEVIATION: Linux binds a socket to an interface that is not there, too.
    Device::of_value(number).map(|device| device as u64).ok_or(Errno(libc::ENODEV))
}

/// Returns the value of `SO_BINDTODEVICE`: the name of the device and a 0, or nothing (sock_getbindtodevice).
pub fn name_of(device: Device) -> Value {
    let mut value = [0; libc::IFNAMSIZ];
    let Some((_, name)) = DEVICES.iter().find(|(number, _)| *number == device as u32) else {
        return Value::of(&[]);
    };
    value.iter_mut().zip(name.bytes()).for_each(|(to, octet)| *to = octet);
    Value::of(&value[..name.len() + 1])
}

fn within(value: i32, least: i32, most: i32) -> Result<u64, Errno> {
    if (least..=most).contains(&value) { Ok(u64::from(value as u32)) } else { Err(Errno::EINVAL) }
}

fn int_at(value: &[u8], at: usize) -> Option<i32> {
    value.get(at..)?.first_chunk::<4>().map(|octets| i32::from_ne_bytes(*octets))
}

fn time_of(value: &[u8]) -> Result<u64, Errno> {
    let long = |at: usize| value.get(at..)?.first_chunk::<8>().map(|octets| i64::from_ne_bytes(*octets));
    let (Some(seconds), Some(micros)) = (long(0), long(8)) else { return Err(Errno::EINVAL) };
    if !(0..1_000_000).contains(&micros) {
        return Err(Errno::EDOM);
    }
    // sock_set_timeout: who has less than no time does not wait.
    let Ok(seconds) = u64::try_from(seconds) else { return Ok(NO_TIME) };
    Ok(seconds.saturating_mul(1_000_000).saturating_add(micros as u64).min(NO_TIME - 1))
}

/// The value of `SO_RCVTIMEO` and `SO_SNDTIMEO` of a socket whose calls do not wait: a negative time.
const NO_TIME: u64 = u64::MAX;

/// Returns how long calls wait according to `SO_RCVTIMEO` or `SO_SNDTIMEO`; `None` means for ever.
#[inline]
pub const fn patience(held: u64) -> Option<Duration> {
    match held {
        0 => None,
        NO_TIME => Some(Duration::ZERO),
        micros => Some(Duration::from_micros(micros)),
    }
}

/// Returns the time in seconds that the retransmissions take which are needed to cover `seconds`: Linux's
/// `secs_to_retrans` and back.
fn time_of_retransmissions(seconds: i32) -> u64 {
    let Some(wanted) = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0) else { return 0 };
    let (mut period, mut timeout) = (FIRST_TIMEOUT, FIRST_TIMEOUT);
    for _ in 1..RETRANSMISSIONS_MAX {
        if period >= wanted {
            break;
        }
        timeout = (timeout * 2).min(LAST_TIMEOUT);
        period += timeout;
    }
    period
}

/// The value that getsockopt(2) returns, of which `struct tcp_info` is the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    octets: [u8; VALUE_MAX],
    len: usize,
}

const VALUE_MAX: usize = TCP_INFO_BYTES;

impl Value {
    /// Creates a value of these octets; those beyond the longest value are dropped.
    pub fn of(octets: &[u8]) -> Value {
        let mut value = Value { octets: [0; VALUE_MAX], len: octets.len().min(VALUE_MAX) };
        value.octets[..value.len].copy_from_slice(&octets[..value.len]);
        value
    }

    /// Creates a value of one int.
    pub fn of_int(value: u32) -> Value {
        Value::of(&value.to_ne_bytes())
    }

    /// Returns the octets of the value.
    pub fn octets(&self) -> &[u8] {
        &self.octets[..self.len]
    }
}

/// The options of one socket that were set. Accepted sockets share the options of their listener until one is
/// changed, so most connections hold none of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u8, u64)>", into = "Vec<(u8, u64)>")]
pub struct Options {
    /// A bit for each [`Name`] that was set, in halves, which are aligned as the rest is.
    set: [u64; 2],
    /// The values of the options that were set, in the order of the bits.
    values: Option<Arc<Vec<u64>>>,
}

impl Options {
    /// Returns the value of an option in the form that its [`Codec`] names, or its default.
    #[inline]
    pub fn value(&self, name: Name) -> u64 {
        self.set_value(name).unwrap_or(TABLE[name as usize].default)
    }

    /// Returns the value of an option, if it was set.
    #[inline]
    pub fn set_value(&self, name: Name) -> Option<u64> {
        let (set, bit) = (self.names(), 1u128 << name as u8);
        if set & bit == 0 {
            return None;
        }
        self.values.as_deref()?.get((set & (bit - 1)).count_ones() as usize).copied()
    }

    /// Returns the names that were set, a bit for each.
    #[inline]
    const fn names(&self) -> u128 {
        self.set[0] as u128 | (self.set[1] as u128) << u64::BITS
    }

    /// Returns whether an option is on.
    #[inline]
    pub fn is_on(&self, name: Name) -> bool {
        self.value(name) != 0
    }

    /// Sets an option.
    pub fn set(&mut self, name: Name, value: u64) {
        if self.set_value(name) == Some(value) {
            return;
        }
        let (set, bit) = (self.names(), 1u128 << name as u8);
        let at = (set & (bit - 1)).count_ones() as usize;
        let values = Arc::make_mut(self.values.get_or_insert_default());
        if set & bit == 0 {
            values.insert(at, value);
            self.set = halves(set | bit);
        } else if let Some(held) = values.get_mut(at) {
            *held = value;
        }
    }

    /// Returns the first and the last port of which one is chosen where the program names none, if it has
    /// said so (`IP_LOCAL_PORT_RANGE`). As on Linux, an end that is not among the `ephemeral` ones does not
    /// count (inet_sk_get_local_port_range).
    pub fn local_ports(&self, (first, last): (u16, u16)) -> Option<(u16, u16)> {
        let asked = ports_of(self.set_value(Name::LocalPorts).filter(|ports| *ports != 0)?);
        let is_inside = |port: u16| (first..=last).contains(&port);
        Some((
            if is_inside(asked.0) { asked.0 } else { first },
            if is_inside(asked.1) { asked.1 } else { last },
        ))
    }

    /// Notes that a program has set the size of a buffer, which is fixed from then on (`SOCK_SNDBUF_LOCK`).
    pub fn lock_buffer(&mut self, name: Name) {
        let bit = match name {
            Name::SendBuffer => SEND_LOCK,
            Name::ReceiveBuffer => RECEIVE_LOCK,
            _ => return,
        };
        self.set(Name::BufferLock, self.value(Name::BufferLock) | bit);
    }

    /// Returns whether the size of the receive buffer is fixed.
    pub fn is_receive_locked(&self) -> bool {
        self.value(Name::BufferLock) & RECEIVE_LOCK != 0
    }

    /// Returns the options that were set, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Row, u64)> + '_ {
        TABLE.iter().filter_map(|row| Some((row, self.set_value(row.name)?)))
    }

    /// Returns whether an option was set that counts for the SYN, or for the ACK of the handshake: replicas
    /// must have it before they send anything.
    pub fn count_for_syn(&self) -> bool {
        const FIRST: [Name; 11] = [
            // The answer to the SYN has to come from near by.
            Name::MinTtl,
            Name::MinHopCount,
            Name::Device,
            Name::MaxSegment,
            Name::ReceiveBuffer,
            Name::WindowClamp,
            Name::QuickAck,
            Name::TimeToLive,
            Name::TypeOfService,
            Name::Hops,
            Name::TrafficClass,
        ];
        FIRST.iter().any(|name| self.set_value(*name).is_some())
    }

    /// Returns the device that the socket is bound to.
    #[inline]
    pub fn device(&self) -> Device {
        self.set_value(Name::Device).and_then(|held| Device::of_value(held as u32)).unwrap_or_default()
    }

    /// Returns the least TTL and the least hop limit of segments that are taken.
    pub fn hops_min(&self) -> [u8; 2] {
        [Name::MinTtl, Name::MinHopCount].map(|name| self.value(name) as u8)
    }

    /// Returns the time of `SO_LINGER` in seconds, if it is on.
    pub fn linger(&self) -> Option<u32> {
        let held = self.value(Name::Linger);
        (held & LINGERS != 0).then_some(held as u32)
    }

    /// Sets `SO_LINGER` to a time in seconds, or switches it off.
    pub fn set_linger(&mut self, seconds: Option<u32>) {
        self.set(Name::Linger, seconds.map_or(0, |seconds| LINGERS | u64::from(seconds)));
    }

    /// Returns `TCP_DEFER_ACCEPT` in the form for replicas: in seconds, at most 65535.
    pub fn defer_accept_seconds(&self) -> u16 {
        u16::try_from(self.value(Name::DeferAccept)).unwrap_or(u16::MAX)
    }

    /// Returns the options that concern one connection in this process.
    pub fn local(&self) -> Local {
        let receive_low = self.set_value(Name::ReceiveLow).unwrap_or(0) as u32;
        let (urgent_inline, peek) = (self.is_on(Name::OobInline), self.peek_offset());
        Local { receive_low, urgent_inline, peek, ..Local::default() }
    }

    /// Returns the value of `SO_PEEK_OFF`, unless it is negative, which means that there is none.
    #[inline]
    pub fn peek_offset(&self) -> Option<u32> {
        let held = self.set_value(Name::PeekOffset)? as u32;
        (held <= i32::MAX as u32).then_some(held)
    }

    /// Sets `SO_PEEK_OFF`.
    pub fn set_peek_offset(&mut self, offset: u32) {
        self.set(Name::PeekOffset, offset.into());
    }

    /// Switches `SO_PEEK_OFF` off, as connect(2) with AF_UNSPEC does (tcp_disconnect).
    pub fn forget_peek_offset(&mut self) {
        if self.set_value(Name::PeekOffset).is_some() {
            self.set(Name::PeekOffset, NO_OFFSET);
        }
    }

    /// Returns the value of an option in the form for replicas.
    pub fn told(&self, row: &Row) -> u32 {
        let value = match row.name {
            Name::ReceiveErrors | Name::ReceiveErrorsV6 => {
                let mut wishes = ErrorWishes::empty();
                wishes.set(ErrorWishes::V4, self.is_on(Name::ReceiveErrors));
                wishes.set(ErrorWishes::V6, self.is_on(Name::ReceiveErrorsV6));
                wishes.set(ErrorWishes::TEXT, !wishes.is_empty());
                wishes.bits().into()
            }
            _ if matches!(row.told, Told::Udp(So::Details | So::Times)) => {
                let mut rows = TABLE.iter().filter(|other| other.told == row.told);
                rows.any(|other| self.is_on(other.name)).into()
            }
            // The smaller value counts.
            Name::ReceiveBuffer | Name::WindowClamp => {
                let clamp = Some(self.value(Name::WindowClamp)).filter(|clamp| *clamp > 0);
                let both = [self.set_value(Name::ReceiveBuffer), clamp].into_iter().flatten();
                both.min().unwrap_or(UNSET_CLAMP)
            }
            // A clamp is kept by the size of the buffer.
            Name::BufferLock if self.value(Name::WindowClamp) > 0 => {
                self.value(Name::BufferLock) | RECEIVE_LOCK
            }
            name => self.value(name),
        };
        // Replicas pace up to 4 GB a second.
        u32::try_from(value).unwrap_or(u32::MAX)
    }
}

/// Returns the lower and the upper half of a set of names.
#[inline]
const fn halves(names: u128) -> [u64; 2] {
    [names as u64, (names >> u64::BITS) as u64]
}

/// The written form of options (`client::exec_state`): the number and the value of each that was set, in the
/// order of the table.
impl From<Options> for Vec<(u8, u64)> {
    fn from(options: Options) -> Vec<(u8, u64)> {
        options.iter().map(|(row, value)| (row.name as u8, value)).collect()
    }
}

/// The reason why numbers and values are no options: one is not in the table, or not behind the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no options in the order of the table")]
pub struct NoOptions;

impl TryFrom<Vec<(u8, u64)>> for Options {
    type Error = NoOptions;

    fn try_from(written: Vec<(u8, u64)>) -> Result<Options, NoOptions> {
        let set = written.iter().try_fold(0u128, |set, (name, _)| {
            let is_next = usize::from(*name) < NAMES && set >> name == 0;
            is_next.then(|| set | 1 << name).ok_or(NoOptions)
        })?;
        let values: Vec<u64> = written.into_iter().map(|(_, value)| value).collect();
        Ok(Options { set: halves(set), values: (set != 0).then(|| Arc::new(values)) })
    }
}

#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;

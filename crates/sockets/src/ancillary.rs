//! The control messages of datagrams, as programs write and read them: cmsg(3), ip(7), ipv6(7), udp(7).
//!
//! Which level counts depends on the family of the receiver, not of the socket: a socket of AF_INET6 that
//! sends to an IPv4 address sends a packet of IPv4 (Linux's `ip_cmsg_send` and `ip6_datagram_send_ctl`).

use atoll_base::{Addr, Endpoint};
use atoll_ipc::Details;
use atoll_ipc::datagram::Fault;
use atoll_ipc::details::{Link, TimeOfDay};
use libc::{IPPROTO_IP, IPPROTO_IPV6, SOL_SOCKET, SOL_UDP, UDP_GRO, UDP_SEGMENT};

use crate::Errno;
use crate::copies::Completion;
use crate::options::{Name, Options};
use crate::stamps::Form;
use crate::view::{LINK, LOOPBACK};

/// What a call asks for with its datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ancillary {
    /// What it says of the packet, if anything.
    pub details: Option<Details>,
    /// The octets of each datagram (`UDP_SEGMENT`); 0 switches the socket's own value off.
    pub segment: Option<u16>,
}

/// What a received datagram tells a program besides its octets.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// The options of the socket.
    pub options: &'a Options,
    /// Whether the socket is one of AF_INET6.
    pub v6: bool,
    /// The destination's port, which is the socket's own.
    pub port: u16,
    /// The IPv4 address of the stack on the link.
    pub own_v4: Option<u32>,
    /// What is known of the packet.
    pub details: Option<Details>,
    /// When it came, if the socket has asked for that.
    pub came: Option<TimeOfDay>,
    /// The octets of each datagram, if the call has received several (`UDP_GRO`).
    pub segment: Option<u16>,
    /// What was received from the error queue instead of a datagram.
    pub queued: Option<Queued>,
    /// The octets that a connection still has, if it has asked for that (`TCP_INQ`).
    pub left: Option<u32>,
}

/// An entry of the error queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queued {
    /// A network error.
    Fault(Fault),
    /// The completion of sends with MSG_ZEROCOPY.
    Copied(Completion),
    /// A datagram was too long; packets have so many octets at most.
    TooLong(u32),
}

/// How much of the control messages fitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The octets written: `msg_controllen`.
    pub len: usize,
    /// Whether messages are missing, or cut off (`MSG_CTRUNC`).
    pub truncated: bool,
}

/// Octets of `struct cmsghdr` on 64-bit Linux, which aligns messages to its size of a word.
const HEADER: usize = 16;
const WORD: usize = 8;

/// Returns what the control messages of a datagram to `to` ask for. Fails with EINVAL for messages that Linux
/// does not know, and for those that this stack does not act on.
pub fn parse(control: &[u8], to: Addr) -> Result<Ancillary, Errno> {
    let mut asked = Ancillary::default();
    let mut details = Details::default();
    let is_v4 = to.is_v4();
    let mut rest = control;
    while let Some(message) = next(&mut rest)? {
        match (message.level, message.kind) {
            (SOL_SOCKET, _) => check_socket(&message)?,
            (SOL_UDP, UDP_SEGMENT) => asked.segment = Some(u16::from_ne_bytes(*message.exactly()?)),
            (SOL_UDP, _) => return Err(Errno::EINVAL),
            (IPPROTO_IP, kind) if is_v4 => take_v4(&mut details, kind, &message)?,
            (IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                (details.own, details.link) = packet_info_v6(&message, is_v4)?;
            }
            (IPPROTO_IPV6, kind) if !is_v4 => take_v6(&mut details, kind, &message)?,
            _ => {}
        }
    }
    asked.details = (details != Details::default()).then_some(details);
    Ok(asked)
}

/// Checks the control messages of a connection, of which only those of the socket's level count.
pub fn check(control: &[u8]) -> Result<(), Errno> {
    let mut rest = control;
    while let Some(message) = next(&mut rest)? {
        if message.level == SOL_SOCKET {
            check_socket(&message)?;
        }
    }
    Ok(())
}

/// As on Linux, descriptors and credentials are passed over where there is nobody to take them.
fn check_socket(message: &Message<'_>) -> Result<(), Errno> {
    match message.kind {
        libc::SCM_RIGHTS | libc::SCM_CREDENTIALS => Ok(()),
        // As the option: there is no queue by priority.
        libc::SO_PRIORITY => message.int().map(|_| ()),
        libc::SO_MARK => Err(Errno::EPERM),
        _ => Err(Errno::EINVAL),
    }
}

fn take_v4(details: &mut Details, kind: i32, message: &Message<'_>) -> Result<(), Errno> {
    match kind {
        libc::IP_PKTINFO => {
            let [a, b, c, d, e, f, g, h, _, _, _, _] = *message.exactly::<12>()?;
            details.own = Addr::v4(u32::from_be_bytes([e, f, g, h]));
            details.link = link_of(i32::from_ne_bytes([a, b, c, d]))?;
        }
        libc::IP_TTL => details.ttl = Some(octet(message.int()?, 1)?),
        // ip_cmsg_send: an int, or an octet.
        libc::IP_TOS => {
            details.tos = Some(match message.data {
                [octet] => *octet,
                _ => octet(message.int()?, 0)?,
            });
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(())
}

fn take_v6(details: &mut Details, kind: i32, message: &Message<'_>) -> Result<(), Errno> {
    let value = |int: i32| if int == -1 { Ok(None) } else { octet(int, 0).map(Some) };
    match kind {
        libc::IPV6_HOPLIMIT => details.ttl = value(message.int()?)?,
        libc::IPV6_TCLASS => details.tos = value(message.int()?)?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(())
}

/// Reads `struct in6_pktinfo`, in which a packet of IPv4 has a mapped address.
fn packet_info_v6(message: &Message<'_>, is_v4: bool) -> Result<(Addr, Option<Link>), Errno> {
    let info = message.data.first_chunk::<20>().ok_or(Errno::EINVAL)?;
    let (addr, index) = info.split_first_chunk::<16>().ok_or(Errno::EINVAL)?;
    let addr = Addr::from_octets(*addr);
    if is_v4 && !addr.is_v4() {
        return Err(Errno::EINVAL);
    }
    let index = index.first_chunk::<4>().map_or(0, |index| i32::from_ne_bytes(*index));
    Ok((addr, link_of(index)?))
}

/// Returns the link with this index; 0 stands for any.
fn link_of(index: i32) -> Result<Option<Link>, Errno> {
    match u32::try_from(index) {
        Ok(0) => Ok(None),
        Ok(LOOPBACK) => Ok(Some(Link::Inside)),
        Ok(LINK) => Ok(Some(Link::Outside)),
        _ => Err(Errno::ENODEV),
    }
}

fn octet(value: i32, least: u8) -> Result<u8, Errno> {
    u8::try_from(value).ok().filter(|value| *value >= least).ok_or(Errno::EINVAL)
}

/// A control message that a program has written.
#[derive(Debug)]
struct Message<'a> {
    level: i32,
    kind: i32,
    data: &'a [u8],
}

impl<'a> Message<'a> {
    fn exactly<const N: usize>(&self) -> Result<&'a [u8; N], Errno> {
        self.data.try_into().map_err(|_| Errno::EINVAL)
    }

    fn int(&self) -> Result<i32, Errno> {
        self.exactly().map(|octets| i32::from_ne_bytes(*octets))
    }
}

/// Takes the next message from `rest`. Fails with EINVAL where its length is impossible.
fn next<'a>(rest: &mut &'a [u8]) -> Result<Option<Message<'a>>, Errno> {
    let Some(([a, b, c, d, e, f, g, h], tail)) = rest.split_first_chunk::<8>() else { return Ok(None) };
    let Some(([i, j, k, l, m, n, o, p], _)) = tail.split_first_chunk::<8>() else { return Ok(None) };
    let len = usize::from_ne_bytes([*a, *b, *c, *d, *e, *f, *g, *h]);
    let data = rest.get(HEADER..len).ok_or(Errno::EINVAL)?;
    *rest = rest.get(len.next_multiple_of(WORD)..).unwrap_or_default();
    let (level, kind) = (i32::from_ne_bytes([*i, *j, *k, *l]), i32::from_ne_bytes([*m, *n, *o, *p]));
    Ok(Some(Message { level, kind, data }))
}

/// Writes the control messages that the options of the socket ask for, in the order of Linux.
pub fn write(told: &Told<'_>, out: &mut [u8]) -> Written {
    let mut writer = Writer { out, written: Written::default() };
    let is_on = |name: Name| told.options.is_on(name);
    if let (Some(form), Some(came)) = (Form::held(told.options.value(Name::Times)), told.came) {
        writer.put(SOL_SOCKET, form.number(), &form.encode(came));
    }
    // sock_recv_drops
    let dropped = told.details.map_or(0, |details| details.dropped);
    if dropped > 0 && is_on(Name::Drops) {
        writer.put(SOL_SOCKET, libc::SO_RXQ_OVFL, &dropped.to_ne_bytes());
    }
    if let Some(left) = told.left {
        writer.put(libc::IPPROTO_TCP, libc::TCP_CM_INQ, &left.to_ne_bytes());
    }
    if let Some(segment) = told.segment {
        writer.put(SOL_UDP, UDP_GRO, &i32::from(segment).to_ne_bytes());
    }
    match told.queued {
        Some(Queued::Fault(fault)) => write_fault(told, &fault, &mut writer),
        Some(Queued::Copied(done)) => write_completion(told, done, &mut writer),
        Some(Queued::TooLong(mtu)) => write_local(told, mtu, &mut writer),
        None => {}
    }
    let Some(details) = told.details else { return writer.written };
    let index = if details.link == Some(Link::Inside) { LOOPBACK } else { LINK };
    if told.v6 && is_on(Name::PacketInfoV6) {
        let mut info = [0; 20];
        info[..16].copy_from_slice(&details.own.octets());
        info[16..].copy_from_slice(&index.to_ne_bytes());
        writer.put(IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
    }
    let (ttl, tos) = (i32::from(details.ttl.unwrap_or(0)), details.tos.unwrap_or(0));
    let Some(v4) = details.own.to_v4() else {
        if is_on(Name::ReceiveHops) {
            writer.put(IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &ttl.to_ne_bytes());
        }
        if is_on(Name::ReceiveClass) {
            writer.put(IPPROTO_IPV6, libc::IPV6_TCLASS, &i32::from(tos).to_ne_bytes());
        }
        return writer.written;
    };
    if is_on(Name::PacketInfo) {
        let mut info = [0; 12];
        info[..4].copy_from_slice(&index.to_ne_bytes());
        info[4..8].copy_from_slice(&told.answers_from(v4, &details).to_be_bytes());
        info[8..].copy_from_slice(&v4.to_be_bytes());
        writer.put(IPPROTO_IP, libc::IP_PKTINFO, &info);
    }
    if is_on(Name::ReceiveTtl) {
        writer.put(IPPROTO_IP, libc::IP_TTL, &ttl.to_ne_bytes());
    }
    if is_on(Name::ReceiveTos) {
        writer.put(IPPROTO_IP, libc::IP_TOS, &[tos]);
    }
    if is_on(Name::OriginalAddress) {
        let mut name = [0; 16];
        name[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        name[2..4].copy_from_slice(&told.port.to_be_bytes());
        name[4..8].copy_from_slice(&v4.to_be_bytes());
        writer.put(IPPROTO_IP, libc::IP_ORIGDSTADDR, &name);
    }
    writer.written
}

/// Writes `struct sock_extended_err` and the address of the host that reports the error (ip(7)).
fn write_fault(told: &Told<'_>, fault: &Fault, writer: &mut Writer<'_>) {
    let v4 = fault.reporter.to_v4();
    let errno = Errno::of_fault(fault);
    let origin = if v4.is_some() { SO_EE_ORIGIN_ICMP } else { SO_EE_ORIGIN_ICMP6 };
    let mut value = [0; 16 + 28];
    value[..4].copy_from_slice(&errno.0.to_ne_bytes());
    value[4..7].copy_from_slice(&[origin, fault.kind, fault.code]);
    value[8..12].copy_from_slice(&fault.info.to_ne_bytes());
    let offender = &mut value[16..];
    if told.v6 {
        offender[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        offender[8..24].copy_from_slice(&fault.reporter.octets());
        writer.put(IPPROTO_IPV6, libc::IPV6_RECVERR, &value);
    } else {
        offender[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        offender[4..8].copy_from_slice(&v4.unwrap_or(0).to_be_bytes());
        writer.put(IPPROTO_IP, libc::IP_RECVERR, &value[..32]);
    }
}

/// Writes `struct sock_extended_err` of a completion, which has no address (msg_zerocopy.rst).
fn write_completion(told: &Told<'_>, done: Completion, writer: &mut Writer<'_>) {
    let mut value = [0; 16 + 28];
    value[4..7].copy_from_slice(&[SO_EE_ORIGIN_ZEROCOPY, 0, SO_EE_CODE_ZEROCOPY_COPIED]);
    value[8..12].copy_from_slice(&done.first.to_ne_bytes());
    value[12..16].copy_from_slice(&done.last.to_ne_bytes());
    match told.v6 {
        true => writer.put(IPPROTO_IPV6, libc::IPV6_RECVERR, &value),
        false => writer.put(IPPROTO_IP, libc::IP_RECVERR, &value[..32]),
    }
}

/// Writes `struct sock_extended_err` of what this host has not sent (ip_local_error): it has no address.
fn write_local(told: &Told<'_>, mtu: u32, writer: &mut Writer<'_>) {
    let mut value = [0; 16 + 28];
    value[..4].copy_from_slice(&Errno::EMSGSIZE.0.to_ne_bytes());
    value[4] = SO_EE_ORIGIN_LOCAL;
    value[8..12].copy_from_slice(&mtu.to_ne_bytes());
    match told.v6 {
        true => writer.put(IPPROTO_IPV6, libc::IPV6_RECVERR, &value),
        false => writer.put(IPPROTO_IP, libc::IP_RECVERR, &value[..32]),
    }
}

/// The origins of entries, and the code of a completion: linux/errqueue.h.
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;
const SO_EE_ORIGIN_LOCAL: u8 = 1;
const SO_EE_ORIGIN_ICMP: u8 = 2;
const SO_EE_ORIGIN_ICMP6: u8 = 3;

impl Told<'_> {
    /// Returns the address from which an answer leaves: the packet's destination unless that is many
    /// (Linux's `fib_compute_spec_dst`).
    fn answers_from(&self, v4: u32, details: &Details) -> u32 {
        let is_loopback = v4 >> 24 == 127;
        match (self.own_v4, details.link) {
            _ if is_loopback => v4,
            (Some(own), _) if v4 == own => v4,
            (_, Some(Link::Inside)) => Addr::V4_LOOPBACK.to_v4().unwrap_or(v4),
            (own, _) => own.unwrap_or(v4),
        }
    }
}

#[derive(Debug)]
struct Writer<'a> {
    out: &'a mut [u8],
    written: Written,
}

impl Writer<'_> {
    /// Appends a message, or what fits of it (Linux's `put_cmsg`).
    fn put(&mut self, level: i32, kind: i32, data: &[u8]) {
        let room = self.out.get_mut(self.written.len..).unwrap_or_default();
        if room.len() < HEADER {
            self.written.truncated = true;
            return;
        }
        let len = HEADER + data.len();
        let fits = len.min(room.len());
        self.written.truncated |= fits < len;
        room[..8].copy_from_slice(&fits.to_ne_bytes());
        room[8..12].copy_from_slice(&level.to_ne_bytes());
        room[12..16].copy_from_slice(&kind.to_ne_bytes());
        room[HEADER..fits].copy_from_slice(&data[..fits - HEADER]);
        self.written.len += len.next_multiple_of(WORD).min(room.len());
    }
}

/// The sender's words of a datagram: whom it is for, and its control messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Addressed<'a> {
    /// The receiver, if the call names one.
    pub peer: Option<Endpoint>,
    /// The control messages, as the program has written them.
    pub control: &'a [u8],
}

impl Addressed<'_> {
    /// Addresses a datagram without control messages.
    pub const fn to(peer: Option<Endpoint>) -> Addressed<'static> {
        Addressed { peer, control: &[] }
    }
}

#[cfg(test)]
mod tests;

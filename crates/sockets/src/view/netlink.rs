//! The answers of an AF_NETLINK socket of NETLINK_ROUTE: rtnetlink(7), netlink(7), RFC 3549.
//!
//! A program's packet holds requests, each of which is answered at once: links, addresses and routes from the
//! [`View`], an empty list of neighbours, EPERM for what would change something. The packet is the program's
//! own, and may hold anything.

mod builder;

use alloc::vec::Vec;

use atoll_base::Addr;

use libc::{
    IFA_ADDRESS, IFA_BROADCAST, IFA_CACHEINFO, IFA_FLAGS, IFA_LABEL, IFA_LOCAL, IFLA_ADDRESS,
    IFLA_ALT_IFNAME, IFLA_BROADCAST, IFLA_CARRIER, IFLA_GROUP, IFLA_IFNAME, IFLA_LINKMODE, IFLA_MTU,
    IFLA_OPERSTATE, IFLA_PROMISCUITY, IFLA_QDISC, IFLA_STATS, IFLA_STATS64, IFLA_TXQLEN, RTA_DST,
    RTA_GATEWAY, RTA_OIF, RTA_PREFSRC, RTA_PRIORITY, RTA_TABLE, RTM_F_CLONED, RTM_GETADDR, RTM_GETLINK,
    RTM_GETNEIGH, RTM_GETROUTE, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWROUTE,
};

use super::{Interface, InterfaceAddress, Route, TABLE_LOCAL, TABLE_MAIN, View, full_length};
use crate::Errno;
use builder::{Answers, Head};

// The flags of netlink(7) as messages have them.
const HEAD_BYTES: usize = size_of::<libc::nlmsghdr>();
const NLM_F_REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const NLM_F_ACK: u16 = libc::NLM_F_ACK as u16;
const NLM_F_DUMP: u16 = libc::NLM_F_DUMP as u16;
/// The first type that is no control message of netlink itself.
const FIRST_TYPE: u16 = 16;
/// The last type that kernels of this time know (`RTM_MAX`).
const RTM_LAST: u16 = 123;
/// The last two bits of a type: whether it makes, removes, asks or sets.
const KIND: u16 = 3;
const KIND_GET: u16 = 2;
const OPERATION_UNKNOWN: u8 = libc::IF_OPER_UNKNOWN as u8;
const OPERATION_UP: u8 = libc::IF_OPER_UP as u8;
/// The flag bits of an attribute's type (`NLA_F_NESTED`, `NLA_F_NET_BYTEORDER`).
const ATTRIBUTE_TYPE: u16 = 0x3fff;

/// Returns the datagrams that answer a program's packet, in their order. `port` is the socket's own number
/// (`nl_pid`); with `cap_errors` (`NETLINK_CAP_ACK`) an error quotes only the head of its request.
pub fn answer(view: &View, packet: &[u8], port: u32, cap_errors: bool) -> Vec<Vec<u8>> {
    let mut answers = Answers::new(port, cap_errors);
    let mut rest = packet;
    while let Some((head, request)) = next(&mut rest) {
        let result = match head.flags & NLM_F_REQUEST != 0 && head.kind >= FIRST_TYPE {
            true => answer_one(view, &head, request, &mut answers),
            // netlink_rcv_skb: control messages and answers are not examined.
            false => Ok(Answered::Acknowledged),
        };
        match result {
            Ok(Answered::Whole) => {}
            Ok(Answered::Acknowledged) if head.flags & NLM_F_ACK == 0 => {}
            Ok(Answered::Acknowledged) => answers.error(&head, request, 0),
            Err(errno) => answers.error(&head, request, errno.0),
        }
    }
    answers.finish()
}

/// Whether a request has its whole answer, or still needs an acknowledgement if it asked for one.
enum Answered {
    Whole,
    Acknowledged,
}

/// Takes the next request off a packet: its head, and its octets with the head.
fn next<'a>(rest: &mut &'a [u8]) -> Option<(Head, &'a [u8])> {
    let head = Head::read(rest)?;
    let len = head.len as usize;
    let request = rest.get(..len).filter(|_| len >= HEAD_BYTES)?;
    *rest = rest.get(aligned(len)..).unwrap_or_default();
    Some((head, request))
}

/// Rounds up to four octets, on which messages and attributes begin.
const fn aligned(len: usize) -> usize {
    len.next_multiple_of(4)
}

fn answer_one(view: &View, head: &Head, request: &[u8], answers: &mut Answers) -> Result<Answered, Errno> {
    if head.kind > RTM_LAST {
        return Err(Errno::EOPNOTSUPP);
    }
    let body = &request[HEAD_BYTES..];
    // rtnetlink_rcv_msg: what is too short for a family is passed over.
    let Some(&family) = body.first() else { return Ok(Answered::Acknowledged) };
    if head.kind & KIND != KIND_GET {
        return if is_so(view, head.kind, body) { Ok(Answered::Acknowledged) } else { Err(Errno::EPERM) };
    }
    if head.flags & NLM_F_DUMP != 0 {
        dump(view, head, family, answers)?;
        return Ok(Answered::Whole);
    }
    match head.kind {
        RTM_GETLINK => {
            let interface = asked_interface(view, body)?;
            answers.plain(head, RTM_NEWLINK, |out| link(out, interface));
        }
        RTM_GETROUTE => {
            let (to, route) = asked_route(view, family, body)?;
            answers.plain(head, RTM_NEWROUTE, |out| route_to(out, route, to));
        }
        RTM_GETNEIGH => return Err(Errno(libc::ENOENT)),
        _ => return Err(Errno::EOPNOTSUPP),
    }
    Ok(Answered::Acknowledged)
}

/// Returns whether a request asks for what is so anyway: that the loopback is up and has its addresses. A
/// program that makes a network namespace for itself sets up the loopback there, and gives up where it cannot
/// (bubblewrap).
fn is_so(view: &View, kind: u16, body: &[u8]) -> bool {
    let word = |at: usize| body.get(at..)?.first_chunk::<4>().map(|octets| u32::from_ne_bytes(*octets));
    let Some(interface) = word(4).and_then(|index| view.numbered(index)).filter(|one| one.is_loopback())
    else {
        return false;
    };
    let attributes = |from: usize| attributes(body.get(from..).unwrap_or_default());
    match kind {
        RTM_NEWLINK => {
            let (flags, change) = (word(8).unwrap_or(0), word(12).unwrap_or(0));
            change == libc::IFF_UP as u32
                && (flags ^ interface.flags) & change == 0
                && attributes(16).next().is_none()
        }
        RTM_NEWADDR => {
            let is_v4 = match body.first().map(|family| i32::from(*family)) {
                Some(libc::AF_INET) => true,
                Some(libc::AF_INET6) => false,
                _ => return false,
            };
            let is_there = |octets: &[u8]| {
                interface.addresses.iter().any(|own| {
                    let same = match own.addr.to_v4() {
                        Some(v4) => is_v4 && octets == v4.to_be_bytes(),
                        None => !is_v4 && octets == own.addr.octets(),
                    };
                    same && body.get(1) == Some(&own.prefix_len)
                })
            };
            let named = || attributes(8).filter(|(kind, _)| matches!(*kind, IFA_ADDRESS | IFA_LOCAL));
            named().next().is_some() && named().all(|(_, octets)| is_there(octets))
        }
        _ => false,
    }
}

fn dump(view: &View, head: &Head, family: u8, answers: &mut Answers) -> Result<(), Errno> {
    let families = match i32::from(family) {
        libc::AF_INET => [Some(true), None],
        libc::AF_INET6 => [Some(false), None],
        // Bridges have no addresses, and there is none.
        libc::AF_BRIDGE => [None, None],
        // rtnetlink_rcv_msg: families without answers of their own get those of all.
        _ => [Some(true), Some(false)],
    };
    match head.kind {
        RTM_GETLINK if i32::from(family) != libc::AF_BRIDGE => {
            for interface in &view.interfaces {
                answers.part(head, RTM_NEWLINK, |out| link(out, interface));
            }
        }
        RTM_GETADDR => {
            for (interface, own) in families.into_iter().flatten().flat_map(|v4| view.addresses(v4)) {
                answers.part(head, RTM_NEWADDR, |out| address(out, interface, own));
            }
        }
        RTM_GETROUTE => {
            let wanted = |route: &&Route| families.contains(&Some(route.destination.is_v4()));
            for route in view.routes.iter().filter(wanted) {
                answers.part(head, RTM_NEWROUTE, |out| plain_route(out, route));
            }
        }
        RTM_GETLINK | RTM_GETNEIGH => {}
        _ => return Err(Errno::EOPNOTSUPP),
    }
    answers.done(head);
    Ok(())
}

/// Returns the attributes in `octets`: their types and values, up to the first that is malformed.
fn attributes(mut octets: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let (head, _) = octets.split_first_chunk::<4>()?;
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = octets.get(4..len)?;
        octets = octets.get(aligned(len)..).unwrap_or_default();
        Some((u16::from_ne_bytes([head[2], head[3]]) & ATTRIBUTE_TYPE, value))
    })
}

fn asked_interface<'a>(view: &'a View, body: &[u8]) -> Result<&'a Interface, Errno> {
    let index = body.get(4..8).and_then(|octets| octets.first_chunk()).ok_or(Errno::EINVAL)?;
    let index = u32::from_ne_bytes(*index);
    let found = match index {
        0 => attributes(body.get(16..).unwrap_or_default())
            .find(|(kind, _)| matches!(*kind, IFLA_IFNAME | IFLA_ALT_IFNAME))
            .ok_or(Errno::EINVAL)
            .map(|(_, name)| view.named(name.split(|octet| *octet == 0).next().unwrap_or_default()))?,
        index => view.numbered(index),
    };
    found.ok_or(Errno(libc::ENODEV))
}

fn asked_route<'a>(view: &'a View, family: u8, body: &[u8]) -> Result<(Addr, &'a Route), Errno> {
    let octets = body.get(12..).ok_or(Errno::EINVAL)?;
    let asked = attributes(octets).find(|(kind, _)| *kind == RTA_DST).map(|(_, value)| value);
    let to = match (i32::from(family), asked) {
        (libc::AF_INET, None) => Addr::V4_ANY,
        (libc::AF_INET6, None) => Addr::ANY,
        (libc::AF_INET, Some(value)) => {
            Addr::v4(u32::from_be_bytes(*value.first_chunk().ok_or(Errno::EINVAL)?))
        }
        (libc::AF_INET6, Some(value)) => Addr::from_octets(*value.first_chunk().ok_or(Errno::EINVAL)?),
        _ => return Err(Errno::EOPNOTSUPP),
    };
    Ok((to, view.route_to(to).ok_or(Errno::ENETUNREACH)?))
}

fn link(out: &mut Vec<u8>, interface: &Interface) {
    let loopback = interface.is_loopback();
    let hardware = if loopback { libc::ARPHRD_LOOPBACK } else { libc::ARPHRD_ETHER };
    out.extend([libc::AF_UNSPEC as u8, 0]);
    out.extend(hardware.to_ne_bytes());
    for word in [interface.index, interface.flags, 0] {
        out.extend(word.to_ne_bytes());
    }
    builder::text(out, IFLA_IFNAME, interface.name);
    let state = if loopback { OPERATION_UNKNOWN } else { OPERATION_UP };
    for (kind, word) in
        [(IFLA_TXQLEN, 1000), (IFLA_MTU, interface.mtu), (IFLA_GROUP, 0), (IFLA_PROMISCUITY, 0)]
    {
        builder::word(out, kind, word);
    }
    builder::attribute(out, IFLA_OPERSTATE, &[state]);
    builder::attribute(out, IFLA_LINKMODE, &[0]);
    builder::attribute(out, IFLA_CARRIER, &[1]);
    builder::text(out, IFLA_QDISC, "noqueue");
    builder::attribute(out, IFLA_ADDRESS, &interface.mac);
    let broadcast = if loopback { [0; 6] } else { [0xff; 6] };
    builder::attribute(out, IFLA_BROADCAST, &broadcast);
    let counted = statistics(interface);
    builder::attribute(out, IFLA_STATS64, &counted.map(u64::to_ne_bytes).concat());
    // As on Linux, the shorter form has the lower halves.
    builder::attribute(out, IFLA_STATS, &counted.map(|n| (n as u32).to_ne_bytes()).concat());
}

/// Returns the fields of `struct rtnl_link_stats64`.
pub fn statistics(interface: &Interface) -> [u64; 24] {
    let counted = interface.counters;
    let mut fields = [0; 24];
    fields[..8].copy_from_slice(&[
        counted.frames_in,
        counted.frames_out,
        counted.bytes_in,
        counted.bytes_out,
        0,
        0,
        counted.dropped_in,
        counted.dropped_out,
    ]);
    fields
}

fn address(out: &mut Vec<u8>, interface: &Interface, own: &InterfaceAddress) {
    let addr = octets(own.addr);
    out.extend([family_of(own.addr), own.prefix_len, own.flags as u8, own.scope()]);
    out.extend(interface.index.to_ne_bytes());
    builder::attribute(out, IFA_ADDRESS, &addr);
    if own.addr.is_v4() {
        builder::attribute(out, IFA_LOCAL, &addr);
        if let Some(broadcast) = own.broadcast() {
            builder::attribute(out, IFA_BROADCAST, &octets(broadcast));
        }
        builder::text(out, IFA_LABEL, interface.name);
    }
    builder::word(out, IFA_FLAGS, own.flags);
    let lifetimes = [own.preferred_for, own.valid_for, 0, 0];
    builder::attribute(out, IFA_CACHEINFO, &lifetimes.map(u32::to_ne_bytes).concat());
}

fn plain_route(out: &mut Vec<u8>, route: &Route) {
    route_head(out, route, (route.prefix_len, route.table), 0);
    if route.prefix_len > 0 {
        builder::attribute(out, RTA_DST, &octets(route.destination));
    }
    if route.metric > 0 {
        builder::word(out, RTA_PRIORITY, route.metric);
    }
    route_rest(out, route);
}

/// Appends the route that a packet to `to` takes, as `ip route get` shows it.
fn route_to(out: &mut Vec<u8>, route: &Route, to: Addr) {
    // The kernel finds the result of a look-up in the main table, also for local addresses of IPv4.
    let table = if to.is_v4() { TABLE_MAIN } else { route.table };
    route_head(out, route, (full_length(to), table), RTM_F_CLONED);
    builder::attribute(out, RTA_DST, &octets(to));
    route_rest(out, route);
}

fn route_head(out: &mut Vec<u8>, route: &Route, (len, table): (u8, u8), flags: u32) {
    let scope = match (route.table, route.gateway, route.destination.is_v4()) {
        (_, _, false) | (_, Some(_), _) => libc::RT_SCOPE_UNIVERSE,
        (TABLE_LOCAL, ..) => libc::RT_SCOPE_HOST,
        _ => libc::RT_SCOPE_LINK,
    };
    out.extend([family_of(route.destination), len, 0, 0, table, route.origin, scope, route.kind]);
    out.extend(flags.to_ne_bytes());
    builder::word(out, RTA_TABLE, table.into());
}

fn route_rest(out: &mut Vec<u8>, route: &Route) {
    if let Some(gateway) = route.gateway {
        builder::attribute(out, RTA_GATEWAY, &octets(gateway));
    }
    if let Some(source) = route.source {
        builder::attribute(out, RTA_PREFSRC, &octets(source));
    }
    builder::word(out, RTA_OIF, route.interface);
}

fn family_of(addr: Addr) -> u8 {
    (if addr.is_v4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

/// Returns the octets of an address of its own family.
fn octets(addr: Addr) -> Vec<u8> {
    match addr.to_v4() {
        Some(v4) => v4.to_be_bytes().into(),
        None => addr.octets().into(),
    }
}

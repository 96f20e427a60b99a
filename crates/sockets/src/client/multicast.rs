//! The multicast options of a datagram socket: ip(7), RFC 3678 §4.1 for groups that any source may send to.
//! The options of IPv6 are in `multicast/v6.rs`, the settings of a socket in `groups.rs`.

use alloc::vec::Vec;

use atoll_base::Addr;
use atoll_ipc::Device;
use atoll_ipc::command::{Protocol, SocketOption};
use libc::{MCAST_JOIN_GROUP, MCAST_LEAVE_GROUP};

use super::Client;
use super::groups::{LOOPBACK_INDEX, Multicast};
use super::options::Membership;
use super::platform::Platform;
use crate::errno::Errno;
use crate::options::Value;

mod v6;

pub(super) use self::v6::MEMBERSHIPS_MAX as MEMBERSHIPS_MAX_V6;

/// The maximum number of IPv4 groups of one socket: Linux's `igmp_max_memberships`.
pub(super) const MEMBERSHIPS_MAX: usize = 20;

/// The octets of `struct group_req` (RFC 3678 §5.1.1).
const GROUP_REQUEST: usize = 8 + size_of::<libc::sockaddr_storage>();

/// Returns whether an option is a multicast option.
pub const fn is_option(level: i32, name: i32) -> bool {
    if level == libc::IPPROTO_IPV6 {
        return v6::is_option(name);
    }
    level == libc::IPPROTO_IP
        && matches!(
            name,
            libc::IP_MULTICAST_TTL
                | libc::IP_MULTICAST_LOOP
                | libc::IP_MULTICAST_ALL
                | libc::IP_MULTICAST_IF
                | libc::IP_ADD_MEMBERSHIP
                | libc::IP_DROP_MEMBERSHIP
                | MCAST_JOIN_GROUP
                | MCAST_LEAVE_GROUP
        )
}

/// A group that replicas were asked to join; any of them may have no room for one more.
#[derive(Debug)]
pub struct Joining {
    group: Addr,
    inside: bool,
    tokens: Vec<u32>,
}

impl Joining {
    /// Returns the tokens of the questions that are answered.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

impl<P: Platform> Client<P> {
    /// Sets a multicast option. The value counts in this process at once; returns what replicas are still to
    /// answer. Fails as setsockopt(2) does.
    pub fn set_group_option(
        &mut self,
        object: u32,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> Result<Option<Joining>, Errno> {
        change_option(self, object, level, name, value)
    }

    /// Returns the value of a multicast option. Fails as getsockopt(2) does.
    pub fn group_option(&self, object: u32, level: i32, name: i32) -> Result<Value, Errno> {
        let socket = self.socket(object).ok_or(Errno::ENOTSOCK)?;
        if level == libc::IPPROTO_IPV6 && !socket.v6 {
            return Err(Errno::EOPNOTSUPP);
        }
        let unset = Multicast::new(socket.v6);
        get(socket.multicast.as_deref().unwrap_or(&unset), level, name)
    }

    /// Removes the socket from a group for which a replica has no room: as on Linux, the join fails as a
    /// whole.
    pub fn join_refused(&mut self, object: u32, joining: &Joining) {
        let Joining { group, inside, .. } = *joining;
        if let Some(multicast) = self.socket_mut(object).and_then(|socket| socket.multicast.as_mut()) {
            multicast.joined.retain(|joined| *joined != (group, inside));
        }
        self.send_membership(object, group, inside, Membership::Leaves);
    }
}

/// Sets the value in this process, and returns what replicas are to answer.
fn change_option<P: Platform>(
    client: &mut Client<P>,
    object: u32,
    level: i32,
    name: i32,
    value: &[u8],
) -> Result<Option<Joining>, Errno> {
    if level == libc::IPPROTO_IPV6 {
        return v6::set(client, object, name, value);
    }
    let own = client.own().map_or(0, |session| session.v4().map_or(0, |own| own.addr));
    let socket = client.socket_mut(object).ok_or(Errno::ENOTSOCK)?;
    let (tcp, device) = (socket.protocol == Protocol::Tcp, socket.options.device());
    let multicast = socket.multicast_mut();
    match name {
        libc::IP_MULTICAST_TTL if tcp => return Err(Errno::EINVAL),
        libc::IP_MULTICAST_TTL => {
            multicast.ttl = match number(value)? {
                -1 => 1,
                ttl => u8::try_from(ttl).map_err(|_| Errno::EINVAL)?,
            };
            let ttl = multicast.ttl.into();
            client.send_option(object, SocketOption::MulticastTtl, ttl);
        }
        libc::IP_MULTICAST_LOOP => {
            multicast.is_looped = number(value)? != 0;
            let on = multicast.is_looped.into();
            client.send_option(object, SocketOption::MulticastLoop, on);
        }
        libc::IP_MULTICAST_ALL => {
            multicast.all = match number(value)? {
                0 => false,
                1 => true,
                _ => return Err(Errno::EINVAL),
            };
            let on = multicast.all.into();
            client.send_option(object, SocketOption::MulticastAll, on);
        }
        libc::IP_MULTICAST_IF if tcp => return Err(Errno::EINVAL),
        libc::IP_MULTICAST_IF => {
            let addr = interface(value)?.filter(|addr| *addr == 0 || *addr == own || is_loopback(*addr));
            let addr = addr.ok_or(Errno::EADDRNOTAVAIL)?;
            // do_ip_setsockopt: a socket that is bound to a device sends to groups there.
            let wished = if is_loopback(addr) { Device::Loopback } else { Device::Link };
            if addr != 0 && !device.takes(wished) {
                return Err(Errno::EINVAL);
            }
            multicast.interface = addr;
            let inside = is_loopback(multicast.interface).into();
            client.send_option(object, SocketOption::MulticastInside, inside);
        }
        MCAST_JOIN_GROUP | MCAST_LEAVE_GROUP if tcp && value.len() < GROUP_REQUEST => {
            return Err(Errno::EINVAL);
        }
        _ if tcp => return Err(Errno::EPROTO),
        _ => {
            let joins = matches!(name, libc::IP_ADD_MEMBERSHIP | MCAST_JOIN_GROUP);
            let (group, interface) = membership(name, value)?;
            let interface = interface.filter(|addr| *addr == 0 || *addr == own || is_loopback(*addr));
            return change(client, object, group, interface, joins);
        }
    }
    Ok(None)
}

/// Returns the bytes of an option's value; as on Linux, a number.
fn get(multicast: &Multicast, level: i32, name: i32) -> Result<Value, Errno> {
    if level == libc::IPPROTO_IPV6 {
        return v6::get(&multicast.v6, name);
    }
    Ok(match name {
        libc::IP_MULTICAST_TTL => Value::of(&u32::from(multicast.ttl).to_ne_bytes()),
        libc::IP_MULTICAST_LOOP => Value::of(&u32::from(multicast.is_looped).to_ne_bytes()),
        libc::IP_MULTICAST_ALL => Value::of(&u32::from(multicast.all).to_ne_bytes()),
        libc::IP_MULTICAST_IF => Value::of(&multicast.interface.to_be_bytes()),
        _ => return Err(Errno::ENOPROTOOPT),
    })
}

/// Joins or leaves a group. `interface` is an address of the stack, or 0 for any; `None` if it is not an
/// address of the stack.
fn change<P: Platform>(
    client: &mut Client<P>,
    object: u32,
    group: u32,
    interface: Option<u32>,
    joins: bool,
) -> Result<Option<Joining>, Errno> {
    if !is_group(group) {
        return Err(if joins { Errno::EINVAL } else { Errno::EADDRNOTAVAIL });
    }
    let interface = interface.ok_or(Errno::ENODEV)?;
    // Leaving without an interface leaves the group wherever it was joined.
    let is_anywhere = !joins && interface == 0;
    let change = Change { group: Addr::v4(group), inside: is_loopback(interface), is_anywhere, joins };
    change_membership(client, object, change, None)
}

/// A socket's request about one group.
struct Change {
    group: Addr,
    /// On the loopback.
    inside: bool,
    /// A membership counts on whichever interface it is.
    is_anywhere: bool,
    /// The socket joins; otherwise it leaves.
    joins: bool,
}

/// Joins or leaves a group of either family. `refusal` is the error of a join that the interface forbids.
///
/// Fails with EADDRINUSE if a socket that joins is in the group already, with EADDRNOTAVAIL if a socket that
/// leaves is not, and with ENOBUFS at the most memberships of the family.
fn change_membership<P: Platform>(
    client: &mut Client<P>,
    object: u32,
    change: Change,
    refusal: Option<Errno>,
) -> Result<Option<Joining>, Errno> {
    let Change { group, inside, is_anywhere, joins } = change;
    let socket = client.socket_mut(object).ok_or(Errno::ENOTSOCK)?;
    let joined = &mut socket.multicast_mut().joined;
    let most = if group.is_v4() { MEMBERSHIPS_MAX } else { MEMBERSHIPS_MAX_V6 };
    let count = joined.iter().filter(|(other, _)| other.is_v4() == group.is_v4()).count();
    let refusal = refusal.or((count >= most).then_some(Errno::ENOBUFS));
    match joined.iter().position(|(other, on)| *other == group && (*on == inside || is_anywhere)) {
        Some(_) if joins => Err(Errno::EADDRINUSE),
        None if joins && let Some(errno) = refusal => Err(errno),
        None if joins => {
            joined.push((group, inside));
            let tokens = client.send_membership(object, group, inside, Membership::Joins);
            Ok(Some(Joining { group, inside, tokens }))
        }
        Some(at) => {
            let (_, inside) = joined.remove(at);
            client.send_membership(object, group, inside, Membership::Leaves);
            Ok(None)
        }
        None => Err(Errno::EADDRNOTAVAIL),
    }
}

/// Returns group and interface of `struct ip_mreq`, `ip_mreqn` or `group_req`.
fn membership(name: i32, value: &[u8]) -> Result<(u32, Option<u32>), Errno> {
    if matches!(name, MCAST_JOIN_GROUP | MCAST_LEAVE_GROUP) {
        // The interface's number, padding to 8 bytes, and a struct sockaddr_storage.
        if value.len() < GROUP_REQUEST {
            return Err(Errno::EINVAL);
        }
        let family = u16::from_ne_bytes([value[8], value[9]]);
        let group = word(value, 12).filter(|_| i32::from(family) == libc::AF_INET).ok_or(Errno::EINVAL)?;
        return Ok((group, named(Some(0), index(value, 0))));
    }
    match value.len() {
        0..=7 => Err(Errno::EINVAL),
        8..=11 => Ok((word(value, 0).ok_or(Errno::EINVAL)?, word(value, 4))),
        _ => Ok((word(value, 0).ok_or(Errno::EINVAL)?, named(word(value, 4), index(value, 8)))),
    }
}

/// Returns the address of the interface that a value of `IP_MULTICAST_IF` names.
fn interface(value: &[u8]) -> Result<Option<u32>, Errno> {
    Ok(match value.len() {
        0..=3 => return Err(Errno::EINVAL),
        4..=7 => word(value, 0),
        // struct ip_mreq, and ip_mreqn with the interface's number.
        8..=11 => word(value, 4),
        _ => named(word(value, 4), index(value, 8)),
    })
}

/// Returns an interface's address, unless its number says more. The stack has no interface number, so all but
/// the loopback's mean the link.
fn named(addr: Option<u32>, index: u32) -> Option<u32> {
    match index {
        0 => addr,
        LOOPBACK_INDEX => Some(0x7f00_0001),
        _ => Some(0),
    }
}

/// Reads an int or, as Linux allows here, a char.
fn number(value: &[u8]) -> Result<i32, Errno> {
    match value {
        [a, b, c, d, ..] => Ok(i32::from_ne_bytes([*a, *b, *c, *d])),
        [byte, ..] => Ok((*byte).into()),
        [] => Err(Errno::EINVAL),
    }
}

/// Reads an address in network order at `at`.
fn word(value: &[u8], at: usize) -> Option<u32> {
    value.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

fn index(value: &[u8], at: usize) -> u32 {
    value.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// Returns whether an address is that of a group: 224.0.0.0/4.
pub const fn is_group(addr: u32) -> bool {
    addr >> 28 == 0xe
}

const fn is_loopback(addr: u32) -> bool {
    addr >> 24 == 127
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memberships_are_read_in_all_their_forms() {
        let (group, addr) = ([239, 1, 2, 3], [198, 18, 0, 2]);
        let mreq = [group, addr].concat();
        assert_eq!(membership(libc::IP_ADD_MEMBERSHIP, &mreq), Ok((0xef01_0203, Some(0xc612_0002))));
        let mreqn = |index: u32| [&mreq[..], &index.to_ne_bytes()].concat();
        assert_eq!(membership(libc::IP_ADD_MEMBERSHIP, &mreqn(0)), Ok((0xef01_0203, Some(0xc612_0002))));
        assert_eq!(membership(libc::IP_ADD_MEMBERSHIP, &mreqn(1)), Ok((0xef01_0203, Some(0x7f00_0001))));
        assert_eq!(membership(libc::IP_ADD_MEMBERSHIP, &mreqn(7)), Ok((0xef01_0203, Some(0))));
        assert_eq!(membership(libc::IP_ADD_MEMBERSHIP, &mreq[..7]), Err(Errno::EINVAL));
        let mut request = [0; 136];
        request[8..10].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        request[12..16].copy_from_slice(&group);
        assert_eq!(membership(MCAST_JOIN_GROUP, &request), Ok((0xef01_0203, Some(0))));
        assert_eq!(membership(MCAST_JOIN_GROUP, &request[..135]), Err(Errno::EINVAL));
    }

    #[test]
    fn numbers_may_be_chars() {
        assert_eq!(number(&5i32.to_ne_bytes()), Ok(5));
        assert_eq!((number(&[255]), number(&[])), (Ok(255), Err(Errno::EINVAL)));
    }
}

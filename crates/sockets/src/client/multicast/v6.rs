//! The multicast options of an AF_INET6 socket: ipv6(7), RFC 3493 §5.2, RFC 3678 §5.1.

use atoll_base::Addr;
use atoll_ipc::Device;
use atoll_ipc::command::{Protocol, SocketOption};
use libc::{MCAST_JOIN_GROUP, MCAST_LEAVE_GROUP};

use super::super::Client;
use super::super::groups::{LOOPBACK_INDEX, MulticastV6};
use super::super::platform::Platform;
use super::{Change, Joining, change_membership, index};
use crate::errno::Errno;
use crate::options::Value;

/// The maximum number of IPv6 groups of one socket. Linux bounds their memory (`optmem_max`), which suffices
/// for somewhat more.
pub(in crate::client) const MEMBERSHIPS_MAX: usize = 64;
/// linux/in6.h; not in libc for every target.
const IPV6_MULTICAST_ALL: i32 = 29;

pub(super) const fn is_option(name: i32) -> bool {
    matches!(
        name,
        libc::IPV6_MULTICAST_HOPS
            | libc::IPV6_MULTICAST_LOOP
            | libc::IPV6_MULTICAST_IF
            | IPV6_MULTICAST_ALL
            | libc::IPV6_ADD_MEMBERSHIP
            | libc::IPV6_DROP_MEMBERSHIP
            | MCAST_JOIN_GROUP
            | MCAST_LEAVE_GROUP
    )
}

/// Sets the value of an option; errors are those of `do_ipv6_setsockopt`.
pub(super) fn set<P: Platform>(
    client: &mut Client<P>,
    object: u32,
    name: i32,
    value: &[u8],
) -> Result<Option<Joining>, Errno> {
    let has_link = client.own().is_some_and(|session| !session.network().addresses.is_empty());
    let socket = client.socket_mut(object).ok_or(Errno::ENOTSOCK)?;
    let (tcp, device) = (socket.protocol == Protocol::Tcp, socket.options.device());
    if !socket.v6 || (tcp && matches!(name, libc::IPV6_MULTICAST_HOPS | libc::IPV6_MULTICAST_IF)) {
        return Err(Errno::ENOPROTOOPT);
    }
    let wishes = &mut socket.multicast_mut().v6;
    let number = value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)).ok_or(Errno::EINVAL);
    let flag = || number.and_then(|n| if matches!(n, 0 | 1) { Ok(n != 0) } else { Err(Errno::EINVAL) });
    let (option, told) = match name {
        libc::IPV6_MULTICAST_HOPS => {
            wishes.hops = match number? {
                -1 => 1,
                hops => u8::try_from(hops).map_err(|_| Errno::EINVAL)?,
            };
            (SocketOption::MulticastHops, wishes.hops.into())
        }
        libc::IPV6_MULTICAST_LOOP => {
            wishes.is_looped = flag()?;
            (SocketOption::MulticastLoopV6, wishes.is_looped.into())
        }
        IPV6_MULTICAST_ALL => {
            wishes.all = number? != 0;
            (SocketOption::MulticastAllV6, wishes.all.into())
        }
        libc::IPV6_MULTICAST_IF => {
            // Only the loopback's number means something here: docs/limits.md.
            let interface = u32::try_from(number?).map_err(|_| Errno::ENODEV)?;
            let wished = if interface == LOOPBACK_INDEX { Device::Loopback } else { Device::Link };
            if interface != 0 && !device.takes(wished) {
                return Err(Errno::EINVAL);
            }
            wishes.interface = interface;
            (SocketOption::MulticastInsideV6, wishes.is_inside().into())
        }
        _ => {
            let joins = matches!(name, libc::IPV6_ADD_MEMBERSHIP | MCAST_JOIN_GROUP);
            let (group, interface) = membership(name, value)?;
            if tcp {
                return Err(Errno::EPROTO);
            }
            return change(client, object, group, interface, has_link, joins);
        }
    };
    client.send_option(object, option, told);
    Ok(None)
}

/// Returns the bytes of an option's value.
pub(super) fn get(wishes: &MulticastV6, name: i32) -> Result<Value, Errno> {
    let value = match name {
        libc::IPV6_MULTICAST_HOPS => wishes.hops.into(),
        libc::IPV6_MULTICAST_LOOP => wishes.is_looped.into(),
        libc::IPV6_MULTICAST_IF => wishes.interface,
        IPV6_MULTICAST_ALL => wishes.all.into(),
        _ => return Err(Errno::ENOPROTOOPT),
    };
    Ok(Value::of(&value.to_ne_bytes()))
}

/// Joins or leaves a group (`ipv6_sock_mc_join`, `ipv6_sock_mc_drop`). `interface` is the number of an
/// interface, 0 for any; `has_link` says whether the stack speaks IPv6 on its link.
fn change<P: Platform>(
    client: &mut Client<P>,
    object: u32,
    group: Addr,
    interface: u32,
    has_link: bool,
    joins: bool,
) -> Result<Option<Joining>, Errno> {
    if !group.is_v6_multicast() {
        return Err(Errno::EINVAL);
    }
    let inside = interface == LOOPBACK_INDEX;
    let refusal = (!inside && !has_link).then_some(Errno::ENODEV);
    change_membership(client, object, Change { group, inside, is_anywhere: interface == 0, joins }, refusal)
}

/// Returns group and interface of `struct ipv6_mreq` or `group_req`.
fn membership(name: i32, value: &[u8]) -> Result<(Addr, u32), Errno> {
    let group =
        |at: usize| value.get(at..).and_then(<[u8]>::first_chunk).map(|octets| Addr::from_octets(*octets));
    if matches!(name, MCAST_JOIN_GROUP | MCAST_LEAVE_GROUP) {
        // The interface's number, padding to 8 bytes, and a struct sockaddr_storage.
        if value.len() < 8 + size_of::<libc::sockaddr_storage>() {
            return Err(Errno::EINVAL);
        }
        if i32::from(u16::from_ne_bytes([value[8], value[9]])) != libc::AF_INET6 {
            return Err(Errno::EADDRNOTAVAIL);
        }
        return Ok((group(16).ok_or(Errno::EINVAL)?, index(value, 0)));
    }
    if value.len() < 20 {
        return Err(Errno::EINVAL);
    }
    Ok((group(0).ok_or(Errno::EINVAL)?, index(value, 16)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memberships_are_read_in_both_forms() {
        let octets = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfb];
        let group = Addr::from_octets(octets);
        let mreq = [&octets[..], &7u32.to_ne_bytes()].concat();
        assert_eq!(membership(libc::IPV6_ADD_MEMBERSHIP, &mreq), Ok((group, 7)));
        assert_eq!(membership(libc::IPV6_ADD_MEMBERSHIP, &mreq[..19]), Err(Errno::EINVAL));
        let mut request = [0; 136];
        request[..4].copy_from_slice(&1u32.to_ne_bytes());
        request[8..10].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        request[16..32].copy_from_slice(&octets);
        assert_eq!(membership(MCAST_JOIN_GROUP, &request), Ok((group, 1)));
        assert_eq!(membership(MCAST_JOIN_GROUP, &request[..135]), Err(Errno::EINVAL));
        request[8] = libc::AF_INET as u8;
        assert_eq!(membership(MCAST_JOIN_GROUP, &request), Err(Errno::EADDRNOTAVAIL));
    }
}

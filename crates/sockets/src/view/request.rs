//! ioctl(2) of sockets about interfaces: netdevice(7).

use alloc::vec::Vec;

use super::{Interface, InterfaceAddress, View};
use crate::Errno;

/// The size of `struct ifreq` in octets: a name, and what is asked about it.
pub const REQUEST_BYTES: usize = size_of::<libc::ifreq>();
const NAME_BYTES: usize = libc::IFNAMSIZ;
/// The octets of an `ifreq` that hold an address, for `SIOCGIFCONF`.
type Entry = [u8; REQUEST_BYTES];

// linux/sockios.h; libc knows only some.
const SIOCADDRT: u64 = 0x890b;
const SIOCGIFNAME: u64 = 0x8910;
const SIOCGIFFLAGS: u64 = 0x8913;
const SIOCGIFADDR: u64 = 0x8915;
const SIOCGIFDSTADDR: u64 = 0x8917;
const SIOCGIFBRDADDR: u64 = 0x8919;
const SIOCGIFNETMASK: u64 = 0x891b;
const SIOCGIFMETRIC: u64 = 0x891d;
const SIOCGIFMTU: u64 = 0x8921;
const SIOCGIFHWADDR: u64 = 0x8927;
const SIOCGIFINDEX: u64 = 0x8933;
const SIOCGIFTXQLEN: u64 = 0x8942;
const SIOCGARP: u64 = 0x8954;
const SIOCDEVPRIVATE_LAST: u64 = 0x89ff;
/// Fills an array of `ifreq` with names and IPv4 addresses: see [`list`].
pub const SIOCGIFCONF: u64 = 0x8912;

/// The requests that ask, and those that change something and are refused.
const CHANGES: &[u64] = &[
    SIOCADDRT, 0x890c, 0x890d, 0x8911, 0x8914, 0x8916, 0x8918, 0x891a, 0x891c, 0x891e, 0x8922, 0x8923,
    0x8924, 0x8925, 0x8926, 0x8930, 0x8931, 0x8932, 0x8934, 0x8936, 0x8937, 0x8943, 0x8953, 0x8955, 0x8971,
];

/// Returns the hardware type (netdevice(7), `ARPHRD_*`) of an interface, which is Ethernet or loopback.
const fn hardware(interface: &Interface) -> u16 {
    if interface.index == super::LOOPBACK { libc::ARPHRD_LOOPBACK } else { libc::ARPHRD_ETHER }
}

/// The octets that a connection has not sent (linux/sockios.h): the only request of its range that is about
/// a socket.
pub const SIOCOUTQNSD: u64 = 0x894b;

/// Returns whether an ioctl(2) is about interfaces, routes or neighbours, rather than about a socket.
pub const fn is_about_interfaces(request: u64) -> bool {
    // The requests of protocols are about a socket, too.
    matches!(request, SIOCADDRT..=SIOCDEVPRIVATE_LAST) && !matches!(request, SIOCOUTQNSD | 0x89e0..=0x89ef)
}

/// Returns whether an ioctl(2) is about IPv4 addresses, routes or neighbours: sockets of other families fail
/// with ENOTTY.
pub const fn is_of_ipv4(request: u64) -> bool {
    matches!(request, SIOCADDRT..=0x890c | SIOCGIFADDR..=0x891c | 0x8936 | 0x8953..=0x8955)
}

/// Answers an ioctl(2) other than [`SIOCGIFCONF`], whose argument is the program's `struct ifreq` in `entry`,
/// which becomes the answer.
///
/// Fails with ENODEV for an interface that there is not, EPERM for a change, EADDRNOTAVAIL for an interface
/// without an IPv4 address, ENXIO for a neighbour, and EOPNOTSUPP for what this stack does not know.
pub fn answer(view: &View, request: u64, entry: &mut Entry) -> Result<(), Errno> {
    if CHANGES.contains(&request) {
        return Err(Errno::EPERM);
    }
    let (name, value) = entry.split_at_mut(NAME_BYTES);
    if request == SIOCGIFNAME {
        let index = value.first_chunk().map_or(0, |index| u32::from_ne_bytes(*index));
        let interface = view.numbered(index).ok_or(Errno(libc::ENODEV))?;
        name.fill(0);
        name[..interface.name.len()].copy_from_slice(interface.name.as_bytes());
        return Ok(());
    }
    if request == SIOCGARP {
        return Err(Errno(libc::ENXIO));
    }
    let is_known = matches!(request, SIOCGIFFLAGS | SIOCGIFMETRIC | SIOCGIFMTU | SIOCGIFHWADDR)
        || matches!(request, SIOCGIFINDEX | SIOCGIFTXQLEN | SIOCGIFADDR | SIOCGIFDSTADDR)
        || matches!(request, SIOCGIFBRDADDR | SIOCGIFNETMASK);
    let is_private = matches!(request, 0x89f0..=SIOCDEVPRIVATE_LAST);
    if !is_known && !is_private {
        return Err(Errno::EOPNOTSUPP);
    }
    let len = name.iter().position(|octet| *octet == 0).unwrap_or(NAME_BYTES);
    // The kernel takes an alias (`eth0:1`) for its interface.
    let plain = name[..len].split(|octet| *octet == b':').next().unwrap_or_default();
    let interface = view.named(plain).ok_or(Errno(libc::ENODEV))?;
    let own = || interface.family(true).next().ok_or(Errno::EADDRNOTAVAIL);
    match request {
        _ if is_private => return Err(Errno::EOPNOTSUPP),
        SIOCGIFFLAGS => put(value, &(interface.flags as u16).to_ne_bytes()),
        SIOCGIFMETRIC => put(value, &0u32.to_ne_bytes()),
        SIOCGIFMTU => put(value, &interface.mtu.to_ne_bytes()),
        SIOCGIFINDEX => put(value, &interface.index.to_ne_bytes()),
        SIOCGIFTXQLEN => put(value, &1000u32.to_ne_bytes()),
        SIOCGIFHWADDR => {
            put(value, &[0; 16]);
            put(value, &hardware(interface).to_ne_bytes());
            put(&mut value[2..], &interface.mac);
        }
        SIOCGIFADDR | SIOCGIFDSTADDR => put(value, &address(own()?.addr.to_v4())),
        SIOCGIFBRDADDR => put(value, &address(own()?.broadcast().map_or(Some(0), |addr| addr.to_v4()))),
        _ => put(value, &address(own()?.mask().to_v4())),
    }
    Ok(())
}

fn put(value: &mut [u8], octets: &[u8]) {
    value[..octets.len()].copy_from_slice(octets);
}

/// Returns a `struct sockaddr_in` of an address.
fn address(addr: Option<u32>) -> [u8; 16] {
    let mut octets = [0; 16];
    octets[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    octets[4..8].copy_from_slice(&addr.unwrap_or(0).to_be_bytes());
    octets
}

/// Returns the entries of `SIOCGIFCONF`: an `ifreq` for each interface with an IPv4 address.
pub fn list(view: &View) -> Vec<Entry> {
    let entry = |(interface, own): (&Interface, &InterfaceAddress)| {
        let mut entry = [0; REQUEST_BYTES];
        put(&mut entry, interface.name.as_bytes());
        put(&mut entry[NAME_BYTES..], &address(own.addr.to_v4()));
        entry
    };
    view.addresses(true).map(entry).collect()
}

//! What this library keeps of an AF_NETLINK socket of the program: see [`crate::netlink`].

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_sockets::Errno;

use crate::real::{count_system_call, sys};
use crate::table::Internal;

/// Whether the process has had a netlink socket of this library: other programs pay nothing for them.
pub static ANY: AtomicBool = AtomicBool::new(false);

/// The first of the numbers of a process's further sockets; its first socket has the number of the process.
const FURTHER_PORTS: u32 = 0xf000_0000;

/// Returns whether the process has had a netlink socket of this library.
#[inline]
pub fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Notes that the process has a netlink socket of this library.
pub fn note_any() {
    ANY.store(true, Ordering::Relaxed);
}

/// A netlink socket of this process.
#[derive(Debug)]
pub struct Netlink {
    /// The inode of the program's end.
    pub inode: u64,
    /// The other end.
    pub other: Internal,
    /// SOCK_RAW or SOCK_DGRAM, as the program has asked.
    pub kind: c_int,
    /// The number of the socket among those of netlink; 0 before the first use or bind(2).
    pub port: u32,
    /// Whether errors quote only the head of what was wrong (`NETLINK_CAP_ACK`).
    pub caps_errors: bool,
}

impl Netlink {
    /// Puts a datagram into the program's socket. Fails with ENOBUFS if the program does not read.
    pub fn give(&self, datagram: &[u8]) -> Result<(), Errno> {
        count_system_call();
        let (octets, flags) = (datagram.as_ptr(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        let to = self.other.number();
        // SAFETY: octets of ours.
        let sent = unsafe { sys!(libc::SYS_sendto, to, octets, datagram.len(), flags, 0, 0) };
        if sent < 0 { Err(Errno::ENOBUFS) } else { Ok(()) }
    }

    /// Returns whether the program has closed its end everywhere.
    pub fn has_ended(&self) -> bool {
        let mut entry = libc::pollfd { fd: self.other.number(), events: 0, revents: 0 };
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: looks at one descriptor, and does not wait.
        unsafe { sys!(libc::SYS_ppoll, &raw mut entry, 1, &raw const none, 0, 8) };
        entry.revents & libc::POLLHUP != 0
    }
}

/// Returns the number of a socket: that of the process, or another one if a socket has it.
pub fn port_of(sockets: &[Netlink], at: usize) -> u32 {
    let own = sockets.get(at).map_or(0, |netlink| netlink.port);
    if own != 0 {
        return own;
    }
    let is_free = |port: &u32| sockets.iter().all(|netlink| netlink.port != *port);
    let further = (0..).map(|n| FURTHER_PORTS + n);
    std::iter::once(std::process::id()).chain(further).find(is_free).unwrap_or(FURTHER_PORTS)
}

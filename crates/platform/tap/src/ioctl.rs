//! The requests that the TUN/TAP driver takes (linux/if_tun.h, Documentation/networking/tuntap.rst).

use std::os::fd::BorrowedFd;

use rustix::io::Result;
use rustix::ioctl::{IntegerSetter, Opcode, Setter, Updater, ioctl};

/// `struct ifreq`, as far as TUNSETIFF reads it.
#[repr(C)]
pub(crate) struct InterfaceRequest {
    pub(crate) name: [u8; libc::IFNAMSIZ],
    pub(crate) flags: libc::c_short,
    pub(crate) rest_of_union: [u8; 22],
}

const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());

/// Makes `fd` a queue of the device that `request` describes, and puts the device's name into `request`
/// (TUNSETIFF).
pub(crate) fn set_interface(fd: BorrowedFd<'_>, request: &mut InterfaceRequest) -> Result<()> {
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, and InterfaceRequest has its layout (asserted above).
    let request = unsafe { Updater::<{ libc::TUNSETIFF as Opcode }, InterfaceRequest>::new(request) };
    // SAFETY: as above; the descriptor is borrowed, so it is open.
    unsafe { ioctl(fd, request) }
}

/// Sets which super-packets and unfinished checksums the reader of the device accepts (TUNSETOFFLOAD).
pub(crate) fn set_offload(fd: BorrowedFd<'_>, offloads: u32) -> Result<()> {
    // SAFETY: TUNSETOFFLOAD takes a number in place of a pointer, and touches no memory of ours.
    let request = unsafe { IntegerSetter::<{ libc::TUNSETOFFLOAD as Opcode }>::new_usize(offloads as usize) };
    // SAFETY: as above.
    unsafe { ioctl(fd, request) }
}

/// Sets the length of the header before each frame, in bytes (TUNSETVNETHDRSZ).
pub(crate) fn set_vnet_header_len(fd: BorrowedFd<'_>, len: i32) -> Result<()> {
    // SAFETY: TUNSETVNETHDRSZ reads one int.
    let request = unsafe { Setter::<{ libc::TUNSETVNETHDRSZ as Opcode }, libc::c_int>::new(len) };
    // SAFETY: as above.
    unsafe { ioctl(fd, request) }
}

/// Makes the fields of the header before each frame little-endian on every machine (TUNSETVNETLE).
pub(crate) fn set_vnet_little_endian(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: TUNSETVNETLE reads one int.
    let request = unsafe { Setter::<{ libc::TUNSETVNETLE as Opcode }, libc::c_int>::new(1) };
    // SAFETY: as above.
    unsafe { ioctl(fd, request) }
}

/// Lets the socket filter `program` choose the queue of each frame; -1 removes the filter
/// (TUNSETSTEERINGEBPF).
pub(crate) fn set_steering(fd: BorrowedFd<'_>, program: i32) -> Result<()> {
    // SAFETY: TUNSETSTEERINGEBPF, although numbered as if it wrote, reads one int: a descriptor, which it
    // checks.
    let request = unsafe { Setter::<{ libc::TUNSETSTEERINGEBPF as Opcode }, libc::c_int>::new(program) };
    // SAFETY: as above.
    unsafe { ioctl(fd, request) }
}

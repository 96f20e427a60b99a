//! How a socket travels over a unix socket: SCM_RIGHTS, unix(7).
//!
//! In place of the program's descriptor a *letter* is sent: one end of a connection of two unix sockets whose
//! other end is closed, with one message in it.
//!
//! ```text
//!   program's message --- letter (SOCK_SEQPACKET) --- octets: what the socket is (PassedSocket)
//!                                                     the kernel's socket behind it
//!                                                     perhaps a connection to the supervisor
//! ```
//! So nothing is lost if the sender ends at once, and what is not received goes with the message that it is
//! in. The receiver puts the kernel's socket in the place of the letter: fstat(2) tells both the same inode.
//! The connection stands for a session that holds the port meanwhile ([`crate::child_state`]).
//!
//! Reading a letter leaves it as it is, because a program may look at its message before it takes it
//! (MSG_PEEK), which makes another descriptor each time.

use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

use atoll_sockets::client::exec_state::PASSED_MAX;
use libc::{cmsghdr, iovec, msghdr};

use crate::beyond::{Room, with_room};
use crate::real::sys;
use crate::table::Internal;

/// The low-water mark of letters ("Atol"), by which a receiver knows that it may read one: programs set none
/// on unix sockets, where it means nothing to messages.
const MARK: c_int = 0x4174_6f6c;

/// The most descriptors in a letter.
const RIGHTS_MAX: usize = 2;

/// A letter that was read.
#[derive(Debug)]
pub struct Letter {
    /// What the socket is.
    pub octets: Vec<u8>,
    /// The kernel's socket behind it.
    pub kernel: Internal,
    /// What holds the port until the receiver has it: a connection to the supervisor.
    pub hold: Option<Internal>,
}

/// The control messages of a letter.
#[repr(C, align(8))]
struct Rights([u8; 64]);

/// Returns the descriptors in a message header's control messages, which are `SCM_RIGHTS` alone.
///
/// # Safety
/// The header's control messages are valid.
unsafe fn place_of_rights(header: &msghdr) -> Option<(*mut c_int, usize)> {
    // SAFETY: the caller's promise, here and below.
    let first: *mut cmsghdr = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: as above.
    let control = unsafe { first.as_ref() }?;
    // SAFETY: a constant.
    let head = unsafe { libc::CMSG_LEN(0) } as usize;
    let is_rights = control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS;
    let count = control.cmsg_len.checked_sub(head).filter(|_| is_rights)? / size_of::<c_int>();
    // SAFETY: as above.
    Some((unsafe { libc::CMSG_DATA(first) }.cast(), count))
}

/// Writes a letter about a socket, behind which is the descriptor `kernel`. Returns `None` if there are no
/// more descriptors, or no memory.
pub fn write(octets: &[u8], kernel: c_int, hold: Option<&Internal>) -> Option<Internal> {
    let (near, letter) = with_room(|room| {
        let mut ends = [-1; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: makes two descriptors.
        if unsafe { sys!(libc::SYS_socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } < 0 {
            return None;
        }
        Some((keep(room, ends[0]), keep(room, ends[1])))
    })?;
    let mark = MARK;
    let (level, name, len) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT, size_of::<c_int>());
    // SAFETY: the value is an int.
    if unsafe { sys!(libc::SYS_setsockopt, letter.number(), level, name, &raw const mark, len) } < 0 {
        return None;
    }
    let rights: Vec<c_int> = std::iter::once(kernel).chain(hold.map(Internal::number)).collect();
    let mut space = Rights([0; 64]);
    let mut vector = iovec { iov_base: octets.as_ptr().cast_mut().cast(), iov_len: octets.len() };
    // SAFETY: a header of zeros is valid and empty.
    let mut header: msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut vector, 1);
    header.msg_control = (&raw mut space).cast();
    // SAFETY: numbers only.
    header.msg_controllen = unsafe { libc::CMSG_SPACE(size_of_val(&rights[..]) as u32) } as usize;
    // SAFETY: there is room for a header, and the space is aligned.
    let control = unsafe { libc::CMSG_FIRSTHDR(&raw const header).as_mut() }?;
    (control.cmsg_level, control.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    // SAFETY: numbers only.
    control.cmsg_len = unsafe { libc::CMSG_LEN(size_of_val(&rights[..]) as u32) } as usize;
    // SAFETY: as above; there is room for as many.
    unsafe {
        let place: *mut c_int = libc::CMSG_DATA(control).cast();
        std::ptr::copy_nonoverlapping(rights.as_ptr(), place, rights.len());
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the header, and all that it points to, is valid.
    let sent = unsafe { sys!(libc::SYS_sendmsg, near.number(), &raw const header, flags) };
    (sent == octets.len() as i64).then_some(letter)
}

/// Reads the letter that a descriptor is, which stays as it is; `None` if it is none.
pub fn read(fd: c_int) -> Option<Letter> {
    let (mut mark, mut len): (c_int, c_int) = (0, size_of::<c_int>() as c_int);
    let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
    // SAFETY: room for an int, and its size.
    let asked = unsafe { sys!(libc::SYS_getsockopt, fd, level, name, &raw mut mark, &raw mut len) };
    if asked < 0 || mark != MARK {
        return None;
    }
    let mut octets = vec![0; PASSED_MAX + 1];
    let mut space = Rights([0; 64]);
    let mut vector = iovec { iov_base: octets.as_mut_ptr().cast(), iov_len: octets.len() };
    // SAFETY: a header of zeros is valid and empty.
    let mut header: msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut vector, 1);
    header.msg_control = (&raw mut space).cast();
    // SAFETY: numbers only.
    header.msg_controllen = unsafe { libc::CMSG_SPACE((RIGHTS_MAX * size_of::<c_int>()) as u32) } as usize;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let (received, rights) = with_room(|room| {
        // SAFETY: the header, and all that it points to, is valid.
        let received = unsafe { sys!(libc::SYS_recvmsg, fd, &raw mut header, flags) };
        let mut rights = Vec::new();
        if received < 0 {
            return (received, rights);
        }
        // SAFETY: the kernel has written the control messages.
        if let Some((place, count)) = unsafe { place_of_rights(&header) } {
            // SAFETY: as above; the descriptors are new, and nobody else's.
            rights.extend((0..count).map(|at| keep(room, unsafe { place.add(at).read_unaligned() })));
        }
        (received, rights)
    });
    octets.truncate(usize::try_from(received).ok()?);
    let mut rights = rights.into_iter();
    Some(Letter { octets, kernel: rights.next()?, hold: rights.next() })
}

/// Makes a new descriptor the library's own.
fn keep(room: &Room, fd: c_int) -> Internal {
    // SAFETY: just created, owned by nobody else.
    room.keep(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    fn inode(fd: c_int) -> u64 {
        // SAFETY: a struct that is filled.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        assert_eq!(unsafe { sys!(libc::SYS_fstat, fd, &raw mut status) }, 0);
        status.st_ino
    }

    #[test]
    fn a_letter_can_be_read_again_and_says_the_same() {
        let (kernel, hold) = (File::open("/proc/self/exe").unwrap(), File::open("/dev/null").unwrap());
        let held = with_room(|room| room.keep(hold.try_clone().unwrap().into()));
        let letter = write(b"what it is", kernel.as_raw_fd(), Some(&held)).expect("there are descriptors");
        drop(held);
        for _ in 0..2 {
            let read = read(letter.number()).expect("a letter");
            assert_eq!(read.octets, b"what it is");
            assert_eq!(inode(read.kernel.number()), inode(kernel.as_raw_fd()));
            let hold_there = read.hold.as_ref().expect("two descriptors");
            assert_eq!(inode(hold_there.number()), inode(hold.as_raw_fd()));
        }
    }

    #[test]
    fn what_is_no_letter_is_left_alone() {
        let file = File::open("/dev/null").unwrap();
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut &near, b"atollfd").unwrap();
        assert!(read(file.as_raw_fd()).is_none() && read(far.as_raw_fd()).is_none() && read(-1).is_none());
    }
}

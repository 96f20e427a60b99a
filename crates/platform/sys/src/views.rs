//! Memory that is handed out for reading, so that no process that gets it can open it again for writing
//! (mount_setattr(2), open_tree(2)).
//!
//! A descriptor of a memfd can be opened again through /proc/self/fd with other rights, by its owner and by
//! every user that its mode permits. A seal against writing (`F_SEAL_FUTURE_WRITE`) forbids that to all, and
//! so also to the next process that has to write the memory. So memory that later processes write lies in
//! files of a small file system in memory, which is mounted nowhere:
//!
//! ```text
//!   tmpfs --mount that may write-----> descriptors of writers
//!         `-mount that may only read-> descriptors of readers: opened again for writing they fail
//!                                      with EROFS, for root as well
//! ```
//!
//! A file has no name once it is made, and neither mount is in any namespace, so there is no other way to it.
//! Such a file cannot be sealed against shrinking. Only a process with its descriptor for writing could cut
//! it, see [`crate::Mapping::of_views`].

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ftruncate, openat, unlinkat};
use rustix::io::{Errno, read, retry_on_intr, write};
use rustix::mount::{MountFlags, MountPropagationFlags, OpenTreeFlags, mount, mount_change, open_tree};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, getegid, geteuid, waitpid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// A file system in memory, whose files are handed out for writing and for reading.
#[derive(Debug)]
pub struct Views {
    write: OwnedFd,
    read: OwnedFd,
}

/// Memory with two kinds of descriptors.
#[derive(Debug)]
pub struct View {
    /// The descriptor for processes that write the memory.
    pub write: OwnedFd,
    /// The descriptor for processes that read the memory; it gives no other right.
    pub read: OwnedFd,
}

impl Views {
    /// Creates a file system. This takes a mount namespace and, without privileges, a user namespace, both of
    /// a child that lives for a moment.
    ///
    /// Fails with EPERM if a process may have neither, and with ENOSYS before Linux 5.12.
    pub fn new() -> io::Result<Views> {
        let map = |id: u32| format!("{id} {id} 1");
        let (users, groups) = (map(geteuid().as_raw()), map(getegid().as_raw()));
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let flags = libc::CLONE_FILES | libc::SIGCHLD;
        // SAFETY: this is fork(2) with a shared table of descriptors. The child makes only system calls, with
        // what is prepared above, and leaves by `_exit`; all that it drops is descriptors.
        let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
        if pid == 0 {
            let words = match prepare(users.as_bytes(), groups.as_bytes()) {
                // These descriptors are not closed with the child, because the table is the parent's, too.
                Ok((write, read)) => [0, write.into_raw_fd(), read.into_raw_fd()],
                Err(error) => [error.raw_os_error(), 0, 0],
            };
            let mut said = [0; 12];
            for (place, word) in said.chunks_exact_mut(4).zip(words) {
                place.copy_from_slice(&word.to_ne_bytes());
            }
            let _ = write(&writer, &said);
            // SAFETY: ends the child, without what the parent would do at its end.
            unsafe { libc::_exit(0) };
        }
        let failed = io::Error::last_os_error();
        let Some(pid) = i32::try_from(pid).ok().filter(|pid| *pid > 0).and_then(Pid::from_raw) else {
            return Err(failed);
        };
        // The child has ended when this returns, and has reported before.
        let _ = retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
        drop(writer);
        let mut said = [0; 12];
        if retry_on_intr(|| read(&reader, &mut said))? != said.len() {
            return Err(io::Error::other("the child has ended without a word"));
        }
        let word = |at: usize| {
            i32::from_ne_bytes(*said[at..].first_chunk().expect("twelve octets hold three words"))
        };
        if word(0) != 0 {
            return Err(io::Error::from_raw_os_error(word(0)));
        }
        // SAFETY: the child has opened this descriptor in the shared table, and no longer exists.
        let write = unsafe { OwnedFd::from_raw_fd(word(4)) };
        // SAFETY: the child has opened this descriptor in the shared table, and no longer exists.
        let read = unsafe { OwnedFd::from_raw_fd(word(8)) };
        Ok(Views { write, read })
    }

    /// Creates `len` bytes of zeroed memory that only the owner may open; `name` shows up in
    /// `/proc/PID/maps`. The descriptors are CLOEXEC.
    pub fn create(&self, name: &str, len: usize) -> io::Result<View> {
        let (owner, flags) = (Mode::RUSR | Mode::WUSR, OFlags::CLOEXEC | OFlags::NOFOLLOW);
        let write = openat(&self.write, name, flags | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, owner)?;
        let read = openat(&self.read, name, flags | OFlags::RDONLY, Mode::empty());
        unlinkat(&self.write, name, AtFlags::empty())?;
        ftruncate(&write, len as u64)?;
        Ok(View { write, read: read? })
    }
}

/// Makes the file system in the child, with a mount that may write and one that may not. Allocates nothing.
/// `users` and `groups` are the maps of the only user and group of a user namespace, if one is needed; they
/// are the same inside and outside.
fn prepare(users: &[u8], groups: &[u8]) -> Result<(OwnedFd, OwnedFd), Errno> {
    // SAFETY: the table of descriptors stays shared.
    if unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.is_err() {
        // SAFETY: the table of descriptors stays shared.
        unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) }?;
        tell(c"/proc/self/setgroups", b"deny")?;
        tell(c"/proc/self/uid_map", users)?;
        tell(c"/proc/self/gid_map", groups)?;
    }
    // Mounts made here do not reach other namespaces. This namespace ends with the child.
    mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount(c"atoll", PLACE, c"tmpfs", flags, Some(c"mode=0700"))?;
    let write = openat(CWD, PLACE, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let read = open_tree(CWD, PLACE, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    let attributes =
        MountAttributes { set: libc::MOUNT_ATTR_RDONLY, clear: 0, propagation: 0, user_namespace: 0 };
    // SAFETY: the call gets a string, and a struct with its size, which outlive it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            read.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<MountAttributes>(),
        )
    };
    if done != 0 {
        // SAFETY: the thread's errno can always be read.
        return Err(Errno::from_raw_os_error(unsafe { *libc::__errno_location() }));
    }
    Ok((write, read))
}

/// Writes `text` to a file of /proc in one piece.
fn tell(path: &CStr, text: &[u8]) -> Result<(), Errno> {
    let file = openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    write(file, text).map(drop)
}

/// An existing directory, where the file system is mounted while it is prepared.
const PLACE: &CStr = c"/proc";

/// This is `struct mount_attr` (mount_setattr(2)).
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FallocateFlags, fallocate, fchmod, open};

    use super::*;
    use crate::{Access, Mapping, Prefault};

    /// Opens a descriptor again through /proc, with these flags.
    fn again(fd: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
        open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags | OFlags::CLOEXEC, Mode::empty())
    }

    /// These tests mostly run as root. Root, too, gets no other right from a read-only view.
    #[test]
    fn who_may_read_gets_no_other_right_out_of_it() {
        let Some(views) = views() else { return };
        let View { write, read } = views.create("atoll-test", 8192).unwrap();
        let other = views.create("atoll-test", 4096).unwrap();
        drop(views);
        let ours = Mapping::of_views(&write, 8192, Access::ReadWrite).unwrap();
        let theirs = Mapping::of_views(&read, 8192, Access::ReadOnly).unwrap();
        // SAFETY: the address is in range, and nothing else writes it.
        unsafe { ours.as_ptr().add(5000).write_volatile(7) };
        // SAFETY: the address is in range, and nothing writes it now.
        assert_eq!(unsafe { theirs.as_ptr().add(5000).read_volatile() }, 7);
        for flags in [OFlags::RDWR, OFlags::WRONLY, OFlags::RDWR | OFlags::TRUNC] {
            assert_eq!(again(&read, flags).unwrap_err(), Errno::ROFS);
        }
        let seen = again(&read, OFlags::RDONLY).unwrap();
        for fd in [&read, &seen] {
            assert!(Mapping::of_views(fd, 8192, Access::ReadWrite).is_err());
            assert_eq!(fchmod(fd, Mode::RWXU | Mode::RWXO).unwrap_err(), Errno::ROFS);
            assert!(ftruncate(fd, 0).is_err() && write_to(fd).is_err());
            assert!(fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096).is_err());
        }
        // A process with privileges might try to copy the mount.
        let copy = open_tree(&read, c"", OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_EMPTY_PATH);
        assert!(copy.is_err(), "{copy:?}");
        assert!(Mapping::of_views(&other.write, 8192, Access::ReadWrite).is_err(), "it is shorter");
    }

    /// Returns a file system; `None` on systems where unprivileged users may not have user namespaces.
    fn views() -> Option<Views> {
        match Views::new() {
            Err(error) if !geteuid().is_root() => {
                eprintln!("skipped: no user namespaces ({error})");
                None
            }
            views => Some(views.unwrap()),
        }
    }

    fn write_to(fd: &OwnedFd) -> Result<usize, Errno> {
        write(fd, b"ATOL")
    }

    /// A file of another user is not accepted as a view, because its owner may truncate it.
    #[test]
    fn a_file_is_no_view() {
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        assert!(Mapping::of_views(&file, 4096, Access::ReadOnly).is_err());
        let Some(views) = views() else { return };
        let view = views.create("atoll-test", 4096).unwrap();
        assert!(Mapping::new(&view.read, 4096, Access::ReadOnly, Prefault::No).is_err(), "it can be cut");
    }
}

//! The network namespace of a thread (setns(2), network_namespaces(7)).
//!
//! Only the calling thread moves: call these functions before other threads start, or in a thread made for
//! it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// Enters the namespace that `ip netns add NAME` made. Fails with `InvalidInput` if `name` is not a plain
/// file name.
pub fn enter_named(name: &str) -> io::Result<()> {
    let is_file_name = matches!(Path::new(name).components().collect::<Vec<_>>()[..], [Component::Normal(_)]);
    if !is_file_name {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a name of a network namespace"));
    }
    enter(open_namespace(&Path::new("/run/netns").join(name))?)
}

/// Enters the namespace that `fd` refers to.
pub fn enter(fd: impl AsFd) -> io::Result<()> {
    Ok(move_into_link_name_space(fd.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Returns a descriptor of the calling thread's namespace, which keeps it alive, and by which it can be
/// entered again.
pub fn current() -> io::Result<OwnedFd> {
    open_namespace(Path::new("/proc/thread-self/ns/net"))
}

/// Moves the calling thread into a new, empty namespace, whose loopback device is down (unshare(2)).
pub fn unshare() -> io::Result<()> {
    crate::process::unshare(UnshareFlags::NEWNET)
}

fn open_namespace(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_directory_are_refused() {
        for name in ["", "..", "a/b", "/etc/passwd"] {
            assert_eq!(enter_named(name).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name}");
        }
        assert_eq!(enter_named("atoll-no-such-namespace").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}

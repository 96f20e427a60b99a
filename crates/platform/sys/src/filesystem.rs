//! Leaves the file system, so that no path leads to any file any more (landlock(7), chroot(2)).

use std::io;

use landlock::{
    ABI, Access, AccessFs, AccessNet, RestrictionStatus, Ruleset, RulesetAttr, RulesetError, RulesetStatus,
    Scope,
};
use rustix::process::{chdir, chroot};

use crate::process::{UnshareFlags, set_no_new_privs, unshare};

/// The mechanism that keeps a process from files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// Landlock: no file may be opened, changed or run, no TCP port bound or connected to, and no process
    /// outside signalled, as far as the kernel's version of Landlock goes.
    Landlock,
    /// The root of the process is a directory with nothing in it but what the process knows already.
    EmptyRoot,
    /// Nothing keeps the process from files: the kernel has no Landlock, and allows no other root.
    None,
}

/// Leaves the file system for good, by the best mechanism that the kernel offers, which it returns. Open
/// descriptors stay open. This applies to the calling thread and what it starts, and sets `no_new_privs`.
/// Call it in a process of one thread, and before capabilities are given up.
pub fn leave() -> io::Result<Confinement> {
    set_no_new_privs()?;
    if leave_by_landlock()? {
        return Ok(Confinement::Landlock);
    }
    Ok(if leave_by_empty_root().is_ok() { Confinement::EmptyRoot } else { Confinement::None })
}

/// Enforces Landlock with nothing allowed (landlock(7)). Returns false if the kernel has no Landlock, or it
/// is switched off.
pub fn leave_by_landlock() -> io::Result<bool> {
    let restrict = || -> Result<RestrictionStatus, RulesetError> {
        // Older kernels enforce the part of this that they know.
        Ruleset::default()
            .handle_access(AccessFs::from_all(ABI::V9))?
            .handle_access(AccessNet::from_all(ABI::V9))?
            .scope(Scope::from_all(ABI::V9))?
            .create()?
            .restrict_self()
    };
    let status = restrict().map_err(io::Error::other)?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// Changes the root to this process's own /proc/PID/fdinfo, which has no directories, and only the numbers of
/// its own descriptors (chroot(2)). Without CAP_SYS_CHROOT this needs a user namespace, and so a process of
/// one thread (user_namespaces(7)).
pub fn leave_by_empty_root() -> io::Result<()> {
    const EMPTY: &str = "/proc/self/fdinfo";
    if chroot(EMPTY).is_err() {
        unshare(UnshareFlags::NEWUSER)?;
        chroot(EMPTY)?;
    }
    // Otherwise `..` would lead out.
    Ok(chdir("/")?)
}

//! How does a process leave the file system, so that no name leads anywhere any more? landlock(7), chroot(2).

use std::io;

use landlock::{
    ABI, Access, AccessFs, AccessNet, RestrictionStatus, Ruleset, RulesetAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::process::{chdir, chroot};

use crate::process::{UnshareFlags, set_no_new_privs, unshare};

/// What keeps a process from files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// Landlock: no file may be opened, changed or run, no TCP port bound or reached, and no process outside
    /// signalled, as far as the kernel's version of it goes.
    Landlock,
    /// Its root is a folder in which there is nothing but what it knows already.
    EmptyRoot,
    /// Nothing: the kernel has no Landlock, and allows no other root.
    None,
}

/// Leaves the file system for good, in the best way that there is; descriptors that are open stay so. For the
/// calling thread and what it starts; sets `no_new_privs`. Call it in a process of one thread, and before
/// capabilities are given up.
pub fn leave() -> io::Result<Confinement> {
    set_no_new_privs()?;
    if leave_by_landlock()? {
        return Ok(Confinement::Landlock);
    }
    Ok(if leave_by_empty_root().is_ok() { Confinement::EmptyRoot } else { Confinement::None })
}

/// Whether Landlock, with nothing allowed, now holds. False: the kernel has none, or it is switched off.
/// landlock(7).
pub fn leave_by_landlock() -> io::Result<bool> {
    let restrict = || -> Result<RestrictionStatus, RulesetError> {
        // Of what is asked for, older kernels do what they can.
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

/// Changes the root to this process's own /proc/PID/fdinfo, in which there are no folders, and only numbers
/// of its own descriptors. Without CAP_SYS_CHROOT it takes a user namespace, and so a process of one thread.
/// chroot(2), user_namespaces(7).
pub fn leave_by_empty_root() -> io::Result<()> {
    const EMPTY: &str = "/proc/self/fdinfo";
    if chroot(EMPTY).is_err() {
        unshare(UnshareFlags::NEWUSER)?;
        chroot(EMPTY)?;
    }
    // Otherwise `..` would lead out.
    Ok(chdir("/")?)
}

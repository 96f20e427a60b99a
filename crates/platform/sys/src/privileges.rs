//! Gives up, for good, what a process may do beyond its memory and its descriptors (capabilities(7),
//! setrlimit(2), PR_SET_DUMPABLE(2const)).

use std::fs::OpenOptions;
use std::io;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

pub use rustix::process::Resource;
pub use rustix::thread::CapabilitySet;

/// Reads and caches what this process would otherwise ask for at its first use, by calls that it may not make
/// any more then. These are the page size, and the place of the kernel's clock (getauxval(3), vdso(7); rustix
/// uses prctl or reads a file).
pub fn learn() {
    let _ = (crate::page_size(), crate::Clock::kernel().now());
}

/// Gives up all capabilities of the calling thread but `kept` (capabilities(7)): effective, permitted,
/// inheritable, ambient, and, if it has CAP_SETPCAP, those that programs started from here could gain. A
/// capability in `kept` that the thread does not have is not gained.
///
/// The bounding set means nothing together with `no_new_privs`, so it is no error if it cannot be lowered.
pub fn keep_capabilities(kept: CapabilitySet) -> io::Result<()> {
    lower_bounding_set(kept)?;
    clear_ambient_capability_set()?;
    let permitted = capabilities(None)?.permitted & kept;
    let sets = CapabilitySets { effective: permitted, permitted, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

/// Returns the permitted capabilities of the calling thread (capabilities(7)).
pub fn permitted_capabilities() -> io::Result<CapabilitySet> {
    Ok(capabilities(None)?.permitted)
}

/// Removes every capability but `kept` from the bounding set, which limits what programs started from here
/// can gain. Does nothing without CAP_SETPCAP.
pub fn lower_bounding_set(kept: CapabilitySet) -> io::Result<()> {
    for number in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(one) {
            continue;
        }
        match remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            // INVAL: the kernel has no more capabilities.
            Err(Errno::PERM | Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Makes the calling thread the user `uid` with the group `gid` and no other group, for good: real, effective
/// and saved (setresuid(2), setgroups(2)). Needs CAP_SETUID and CAP_SETGID. All capabilities are lost if the
/// user was root and is not any more, and so is the signal for the parent's end (`process::die_with_parent`,
/// PR_SET_PDEATHSIG(2const)). Call it in a process of one thread, because other threads keep their user.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}

/// Lowers a limit of this process to `value`, soft and hard (setrlimit(2)). A lower soft limit stays, and
/// becomes the hard one.
pub fn limit(resource: Resource, value: u64) -> io::Result<()> {
    let lower = Some(getrlimit(resource).current.map_or(value, |current| current.min(value)));
    Ok(setrlimit(resource, Rlimit { current: lower, maximum: lower })?)
}

/// Hides this process from others of its user (PR_SET_DUMPABLE(2const), ptrace(2)): they may neither trace
/// it, nor read its memory, nor see its descriptors, and it leaves no core. Root may still do so
/// (CAP_SYS_PTRACE). Programs that it starts are visible again.
pub fn hide() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Connects standard input and output to /dev/null (null(4)); standard error stays.
pub fn leave_standard_streams() -> io::Result<()> {
    let nothing = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    Ok(rustix::stdio::dup2_stdout(&nothing)?)
}

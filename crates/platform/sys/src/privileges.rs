//! What may a process do beyond its memory and its descriptors? Giving that up, for good. capabilities(7),
//! setrlimit(2), PR_SET_DUMPABLE(2const).

use std::fs::OpenOptions;
use std::io;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

pub use rustix::process::Resource;
pub use rustix::thread::CapabilitySet;

/// Finds out what this process would otherwise ask for when it first needs it, by calls that it may not make
/// any more then: the size of pages, and where the kernel's clock is (getauxval(3), vdso(7); rustix asks
/// prctl or reads a file).
pub fn learn() {
    let _ = (crate::page_size(), crate::Clock::kernel().now());
}

/// Gives up all capabilities of the calling thread but `kept`: effective, permitted, inheritable, ambient,
/// and as far as it may (CAP_SETPCAP) those that programs started from here could gain. What it did not have
/// it does not get. capabilities(7).
///
/// Together with `no_new_privs` the bounding set means nothing, so that it is no error if it cannot be
/// lowered.
pub fn keep_capabilities(kept: CapabilitySet) -> io::Result<()> {
    lower_bounding_set(kept)?;
    clear_ambient_capability_set()?;
    let permitted = capabilities(None)?.permitted & kept;
    let sets = CapabilitySets { effective: permitted, permitted, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

/// The capabilities that this thread may use. capabilities(7).
pub fn permitted_capabilities() -> io::Result<CapabilitySet> {
    Ok(capabilities(None)?.permitted)
}

/// Takes every capability but `kept` from the set that programs started from here could gain, if this thread
/// has CAP_SETPCAP.
pub fn lower_bounding_set(kept: CapabilitySet) -> io::Result<()> {
    for number in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(one) {
            continue;
        }
        match remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            // INVAL: the kernel has no more of them.
            Err(Errno::PERM | Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Becomes the user `uid` with the group `gid` and no other group, for good: real, effective and saved. Needs
/// CAP_SETUID and CAP_SETGID, and loses all capabilities if the user was root and is not any more. Call it in
/// a process of one thread, because it changes only the calling one. It cancels the signal for the parent's
/// end (`process::die_with_parent`). setresuid(2), setgroups(2), PR_SET_PDEATHSIG(2const).
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}

/// Lowers a limit of this process to `value`, soft and hard; one that is lower already stays, and can be
/// raised no more. setrlimit(2).
pub fn limit(resource: Resource, value: u64) -> io::Result<()> {
    let lower = Some(getrlimit(resource).current.map_or(value, |current| current.min(value)));
    Ok(setrlimit(resource, Rlimit { current: lower, maximum: lower })?)
}

/// Hides this process from others of its user: they may neither trace it, nor read its memory, nor see its
/// descriptors, and it leaves no core. Root may (CAP_SYS_PTRACE). Programs that it starts are visible again.
/// PR_SET_DUMPABLE(2const), ptrace(2).
pub fn hide() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Lets standard input and output lead nowhere; standard error stays. null(4).
pub fn leave_standard_streams() -> io::Result<()> {
    let nothing = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    Ok(rustix::stdio::dup2_stdout(&nothing)?)
}

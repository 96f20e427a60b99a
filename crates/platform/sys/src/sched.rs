//! Where and how a process runs: affinity, policy, niceness, and keeping idle processors awake.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};

use rustix::process::{Pid, getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A scheduling policy for which nobody needs a privilege (sched(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// SCHED_OTHER: a thread that wakes up preempts one that has had more of the processor.
    Other = libc::SCHED_OTHER as isize,
    /// SCHED_BATCH: a thread that wakes up preempts nobody, so the one that woke it finishes its batch first.
    Batch = libc::SCHED_BATCH as isize,
}

/// Sets the scheduling policy of the calling thread (sched_setscheduler(2)).
pub fn set_policy(policy: Policy) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: `parameters` is a valid sched_param that outlives the call; pid 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy as libc::c_int, &parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Restricts the calling thread to the processors `cpus` (sched_setaffinity(2)). Numbers that the system does
/// not have are ignored; fails if none is left.
pub fn set_affinity(cpus: &[usize]) -> io::Result<()> {
    Ok(sched_setaffinity(None, &set_of(cpus))?)
}

/// Restricts the first thread of process `pid`, of the same user, to the processors `cpus`
/// (sched_setaffinity(2)). Fails with `InvalidInput` if `pid` cannot be the number of a process.
pub fn set_affinity_of(pid: u32, cpus: &[usize]) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(sched_setaffinity(Some(pid), &set_of(cpus))?)
}

fn set_of(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
    set
}

/// Returns the processors that the calling thread may run on, in ascending order (sched_getaffinity(2)).
pub fn affinity() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Lets another runnable process of this processor run first (sched_yield(2)).
#[inline]
pub fn yield_now() {
    rustix::thread::sched_yield();
}

/// Names the calling thread, as `ps` and `top` show it (pthread_setname_np(3)). A name of more than 15 bytes
/// is cut; one with a NUL byte is an error.
pub fn set_name(name: &str) -> io::Result<()> {
    let end = name.len().min(15);
    let name = std::ffi::CString::new(&name.as_bytes()[..end]).map_err(io::Error::from)?;
    Ok(rustix::thread::set_name(&name)?)
}

/// Returns the niceness of this process, -20 (greedy) to 19 (modest) (getpriority(2)).
pub fn niceness() -> io::Result<i32> {
    Ok(getpriority_process(None)?)
}

/// Sets the niceness of this process; lowering it needs CAP_SYS_NICE (setpriority(2)).
pub fn set_niceness(niceness: i32) -> io::Result<()> {
    Ok(setpriority_process(None, niceness)?)
}

/// A request that idle processors of the whole machine poll instead of sleeping, valid until it is dropped.
///
/// In a virtual machine this takes a wake-up across processors from ~40 us to ~2 us, at the price of a busy
/// host.
#[derive(Debug)]
pub struct DmaLatency(
    #[expect(dead_code, reason = "the kernel withdraws the request when the file closes")] File,
);

/// Requests a wake-up latency of zero (Documentation/power/pm_qos_interface). Needs root, which may open
/// /dev/cpu_dma_latency.
pub fn dma_latency_zero() -> io::Result<DmaLatency> {
    let mut file = OpenOptions::new().write(true).open("/dev/cpu_dma_latency")?;
    file.write_all(&0i32.to_ne_bytes())?;
    Ok(DmaLatency(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affinity_can_be_narrowed_to_one_processor() {
        std::thread::spawn(|| {
            let all = affinity().unwrap();
            set_affinity(&all[..1]).unwrap();
            assert_eq!(affinity().unwrap(), all[..1]);
            let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            set_affinity_of(own, &all).unwrap();
            assert_eq!(affinity().unwrap(), all);
            assert!(set_affinity_of(0, &all).is_err());
            set_policy(Policy::Batch).unwrap();
        })
        .join()
        .unwrap();
    }
}

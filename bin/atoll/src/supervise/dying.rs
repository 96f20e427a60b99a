//! Finds processes for replicas that are about to end. Such a process executes nothing more, but the kernel
//! takes a millisecond or more to free its memory before it reports the end. The replicas need not wait for
//! that.
//!
//! ```text
//!   last instruction   the word on its page is marked: a thread that waits for that rings
//!                      /proc/PID/stat: PF_EXITING, PF_SIGNALED   its replicas are given to another process
//!   ended              its pidfd is readable: it is reaped
//! ```
//!
//! The word is only a reason to check, because the process itself can write it. What counts is the kernel's
//! statement that no instruction of the process is executed again: after that its successor may touch what it
//! has left. The kernel reports the signal only later, so a process itself states whether its end is its own
//! fault. A process that exits by itself, or by a fault, is noticed by its pidfd.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use atoll_base::{Duration, Instant};
use atoll_ipc::page::ReplicaPage;
use atoll_shm::ShmMemory;
use atoll_sys::process::Child;
use atoll_sys::{ending, eventfd};

use super::spawn::{self, Stat};
use crate::clock;
use crate::log;

/// The processes that are about to end, and the doorbell that reports them.
pub struct Dying {
    /// The doorbell, which the waiting threads ring; there is one thread for each process.
    bell: Arc<OwnedFd>,
    /// Processes whose replicas were taken over; they remain to be reaped.
    children: Vec<Rc<Child>>,
    /// When the next check for ended processes is due.
    reap_at: Instant,
}

impl Dying {
    /// Creates the state of a stack that starts.
    pub fn new() -> io::Result<Dying> {
        Ok(Dying { bell: Arc::new(eventfd::create()?), children: Vec::new(), reap_at: clock::now() })
    }

    /// Returns the doorbell, which is readable when there is a process to check; it is edge-triggered, as all
    /// doorbells.
    pub fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// Starts a thread that rings when the process of this page is about to end. If that fails, the end is
    /// noticed only when the kernel reports it.
    pub fn watch(&self, page: &ReplicaPage<ShmMemory>) {
        let (memory, bell) = (page.0.clone(), self.bell.clone());
        let wait = move || {
            let word = memory.watched32(ReplicaPage::<ShmMemory>::END_AT);
            if word.is_some_and(|word| ending::await_mark(word).unwrap_or(false)) {
                let _ = eventfd::ring(&*bell);
            }
        };
        let thread =
            std::thread::Builder::new().name("atoll-dying".into()).stack_size(STACK_BYTES).spawn(wait);
        if let Err(error) = thread {
            event!(
                end_noticed_late,
                { error = error.to_string(), errno = log::errno(&error) },
                "deaths are noticed a little later: {error}"
            );
        }
    }

    /// Adds a process whose replicas were taken over.
    pub fn add(&mut self, child: Rc<Child>, now: Instant) {
        self.children.push(child);
        self.reap_at = now + REAP_EVERY;
    }

    /// Returns when [`Dying::reap`] is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        (!self.children.is_empty()).then_some(self.reap_at)
    }

    /// Reaps the processes that have ended.
    pub fn reap(&mut self, now: Instant) {
        if self.next_timeout().is_some_and(|due| due <= now) {
            self.children.retain(|child| matches!(child.try_wait(), Ok(None)));
            self.reap_at = now + REAP_EVERY;
        }
    }
}

/// Returns whether a process has been ended by a signal, and will not execute another instruction
/// (proc_pid_stat(5)).
pub fn was_killed(pid: u32) -> bool {
    spawn::stat_line(pid).is_some_and(|line| is_dying_in(&line) == Some(true))
}

fn is_dying_in(line: &str) -> Option<bool> {
    let stat = Stat::parse(line)?;
    // The signal's number is not known before the process has ended.
    Some(stat.number(9)? & DYING == DYING && stat.number(20)? <= 1)
}

/// PF_EXITING and PF_SIGNALED of linux/sched.h: the thread is shutting down because of a signal, and does not
/// return to its program.
const DYING: u64 = 0x4 | 0x400;
/// The time between two checks; the kernel is mostly done by then.
const REAP_EVERY: Duration = Duration::from_millis(20);
/// The stack of a thread that only waits, in bytes.
const STACK_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a line of proc_pid_stat(5) with these flags and this number of threads.
    fn stat(flags: u32, threads: u32) -> String {
        format!("77 (a ) b) R 1 0 0 0 0 {flags} 0 0 0 0 0 0 0 0 20 0 {threads} 0 0\n")
    }

    #[test]
    fn who_does_not_return_to_its_program_is_known_by_the_kernels_word() {
        assert_eq!(is_dying_in(&stat(0x40_0404, 1)), Some(true));
        assert_eq!(is_dying_in(&stat(0x404, 0)), Some(true), "the last thread has left the list");
        assert_eq!(is_dying_in(&stat(0x40_0400, 1)), Some(false), "it runs");
        assert_eq!(is_dying_in(&stat(0x40_0004, 1)), Some(false), "it ends by itself");
        assert_eq!(is_dying_in(&stat(0x404, 2)), Some(false), "another thread runs");
        for bad in ["", "77 (x", "77 (x) R 1 2", "77 (x) R a b c d e f g h i j k l m n o p q r s t u v"] {
            assert_eq!(is_dying_in(bad), None);
        }
    }

    #[test]
    fn the_kernel_says_so_of_one_that_was_killed_and_not_of_one_that_runs() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!was_killed(child.id()));
        child.kill().unwrap();
        let deadline = clock::now() + Duration::from_secs(10);
        while !was_killed(child.id()) && clock::now() < deadline {
            std::thread::yield_now();
        }
        assert!(was_killed(child.id()));
        child.wait().unwrap();
        assert!(!was_killed(child.id()), "it is gone");
    }
}

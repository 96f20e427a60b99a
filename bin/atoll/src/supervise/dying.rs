//! Which processes for replicas are about to end? Who ends does nothing more, but the kernel takes a
//! millisecond and more to take its memory apart before it says that it has ended. Its replicas need not wait
//! for that.
//!
//! ```text
//!   last instruction   the word on its page is marked: a thread that waits for that rings
//!                      /proc/PID/stat: PF_EXITING, PF_SIGNALED      its replicas are given to another process
//!   ended              its pidfd is readable: it is reaped
//! ```
//! The word is nothing but a reason to look: the process itself can write it. What counts is what the kernel
//! says, which is that no instruction of the process is carried out again: that is the fence behind which its
//! successor may touch what it has left. Which signal it was the kernel says later, so a process says itself
//! whether it is its own fault. Who ends by itself, or at fault, is noticed by its pidfd.

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

/// Who is about to end, and who rings for that.
pub struct Dying {
    /// Rung by the threads that wait, one for each process.
    bell: Arc<OwnedFd>,
    /// Whose replicas are somebody else's already. They are still to be reaped.
    children: Vec<Rc<Child>>,
    /// When it is looked whether they have ended.
    reap_at: Instant,
}

impl Dying {
    /// Of a stack that starts.
    pub fn new() -> io::Result<Dying> {
        Ok(Dying { bell: Arc::new(eventfd::create()?), children: Vec::new(), reap_at: clock::now() })
    }

    /// Readable when somebody has to look; edge-triggered, as all bells.
    pub fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// Rings when the process of this page is about to end. Without it everything takes as long as the
    /// kernel.
    pub fn watch(&self, page: &ReplicaPage<ShmMemory>) {
        let (memory, bell) = (page.0.clone(), self.bell.clone());
        let wait = move || {
            let word = memory.watched32(ReplicaPage::<ShmMemory>::END_AT);
            if word.is_some_and(|word| ending::await_mark(word).unwrap_or(false)) {
                let _ = eventfd::ring(&*bell);
            }
        };
        let thread = std::thread::Builder::new().name("atoll-dying".into()).stack_size(STACK_BYTES).spawn(wait);
        if let Err(error) = thread {
            say!("deaths are noticed a little later: {error}");
        }
    }

    /// The replicas of this process are somebody else's already.
    pub fn add(&mut self, child: Rc<Child>, now: Instant) {
        self.children.push(child);
        self.reap_at = now + REAP_EVERY;
    }

    /// When [`Dying::reap`] is due.
    pub fn next_timeout(&self) -> Option<Instant> {
        (!self.children.is_empty()).then_some(self.reap_at)
    }

    /// Lets go of those that have ended.
    pub fn reap(&mut self, now: Instant) {
        if self.next_timeout().is_some_and(|due| due <= now) {
            self.children.retain(|child| matches!(child.try_wait(), Ok(None)));
            self.reap_at = now + REAP_EVERY;
        }
    }
}

/// Whether a process has been ended by a signal, and will not carry out another instruction.
/// proc_pid_stat(5).
pub fn was_killed(pid: u32) -> bool {
    spawn::stat_line(pid).is_some_and(|line| is_dying_in(&line) == Some(true))
}

fn is_dying_in(line: &str) -> Option<bool> {
    let stat = Stat::parse(line)?;
    // By which signal nobody says before it has ended.
    Some(stat.number(9)? & DYING == DYING && stat.number(20)? <= 1)
}

/// linux/sched.h, PF_EXITING and PF_SIGNALED: the thread is shutting down, because of a signal, and does not
/// return to its program.
const DYING: u64 = 0x4 | 0x400;
/// The kernel is mostly done by then.
const REAP_EVERY: Duration = Duration::from_millis(20);
/// A thread that waits needs next to nothing.
const STACK_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of proc_pid_stat(5) with these flags and so many threads.
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

//! Which processes for replicas are about to end? Who ends does nothing more, but the kernel takes a millisecond and more to take its memory apart before it
//! says that it has ended. Its replicas need not wait for that.
//!
//! ```text
//!   last instruction   the word on its page is marked: a thread that waits for that rings
//!                      /proc/PID/stat: PF_EXITING, by which signal      its replicas are given to another process
//!   ended              its pidfd is readable: it is reaped
//! ```
//! The word is nothing but a reason to look: the process itself can write it. What counts is what the kernel says, which is that no instruction of the process
//! is carried out again: that is the fence behind which its successor may touch what it has left.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_ipc::page::ReplicaPage;
use atoll_shm::ShmMemory;
use atoll_sys::process::{Child, Exit};
use atoll_sys::{ending, eventfd};

use super::server::Server;

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
        Ok(Dying { bell: Arc::new(eventfd::create()?), children: Vec::new(), reap_at: Instant::now() })
    }

    /// Readable when somebody has to look; edge-triggered, as all bells.
    pub fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// Rings when the process of this page is about to end. Without it everything takes as long as the kernel.
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
            eprintln!("atoll: deaths are noticed a little later: {error}");
        }
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

impl Server {
    /// Somebody may be about to end.
    pub(super) fn look_for_dying(&mut self) -> io::Result<()> {
        for key in self.hosts.keys() {
            let child = self.hosts.get(key).filter(|host| host.is_up).and_then(|host| host.child.clone());
            if let Some(child) = child
                && let Some(exit) = exit_of(child.pid())
            {
                self.dying.children.push(child);
                self.dying.reap_at = Instant::now() + REAP_EVERY;
                self.host_gone(key, Some(exit))?;
            }
        }
        Ok(())
    }
}

/// How a process ends that will not carry out another instruction; `None`: it may, or nobody says how it ends. proc_pid_stat(5).
fn exit_of(pid: u32) -> Option<Exit> {
    exit_in(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn exit_in(stat: &str) -> Option<Exit> {
    // The name in parentheses may hold blanks and parentheses.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<i32>().ok();
    let is_exiting = number(9)? & PF_EXITING != 0 && number(20)? <= 1;
    match (number(52)?, is_exiting) {
        // Or it is not for us to know.
        (0, _) | (_, false) => None,
        (status, true) if status & 0x7f == 0 => Some(Exit::Code(status >> 8 & 0xff)),
        (status, true) => Some(Exit::Signal(status & 0x7f)),
    }
}

/// linux/sched.h: the thread is shutting down, and does not return to its program.
const PF_EXITING: i32 = 0x4;
/// The kernel is mostly done by then.
const REAP_EVERY: Duration = Duration::from_millis(20);
/// A thread that waits needs next to nothing.
const STACK_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of proc_pid_stat(5) with these flags, so many threads, and this status.
    fn stat(flags: i32, threads: i32, status: i32) -> String {
        let between = |count: usize| "0 ".repeat(count);
        format!("77 (a ) b) R 1 {}{flags} {}{threads} {}{status}\n", between(4), between(10), between(31))
    }

    #[test]
    fn who_does_not_return_to_its_program_is_known_by_the_kernels_word() {
        assert_eq!(exit_in(&stat(0x40_0004, 1, 9)), Some(Exit::Signal(9)));
        assert_eq!(exit_in(&stat(0x4, 1, 0x80 | 11)), Some(Exit::Signal(11)), "with a core");
        assert_eq!(exit_in(&stat(0x4, 0, 3 << 8)), Some(Exit::Code(3)));
        assert_eq!(exit_in(&stat(0x40_0000, 1, 9)), None, "it runs");
        assert_eq!(exit_in(&stat(0x4, 2, 9)), None, "another thread runs");
        assert_eq!(exit_in(&stat(0x4, 1, 0)), None, "nobody says how");
        for bad in ["", "77 (x", "77 (x) R 1 2", "77 (x) R a b c d e f g h i j k l m n o p q r s t u v"] {
            assert_eq!(exit_in(bad), None);
        }
    }

    #[test]
    fn the_kernel_says_so_of_one_that_was_killed_and_not_of_one_that_runs() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(exit_of(child.id()), None);
        child.kill().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while exit_of(child.id()).is_none() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(exit_of(child.id()), Some(Exit::Signal(9)));
        child.wait().unwrap();
        assert_eq!(exit_of(child.id()), None, "it is gone");
    }
}

//! The processes for replicas. A process starts without replicas, is given some, and ends when it has none
//! any more.
//!
//! ```text
//!   number   what people see: replica r is to be in process `places[r]` (`atoll_supervisor::Placement`)
//!   key      what the supervisor sees: during an upgrade, two builds have processes of the same number
//! ```
//!
//! One process may be a standby: it has no number until another process has died, whose replicas it is given
//! (`atoll_supervisor::Standby`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use atoll_base::{Duration, Instant};
use atoll_ipc::page::{REPLICA_PAGE_BYTES, ReplicaPage};
use atoll_shm::{Access, ShmMemory};
use atoll_sys::epoll::{Epoll, EventFlags};
use atoll_sys::process::{Child, Exit, Signal};
use atoll_sys::unix::Channel;
use atoll_sys::{create_memfd, eventfd};

use super::awaiting::await_end;
use super::dying::{Dying, was_killed};
use super::memory::open_for_reading;
use super::program::Program;
use super::setups::Duty;
use super::tokens::{DYING, HOST_CONTROL, HOST_PROCESS, HOSTS_MAX};
use crate::clock;
use crate::setup;

/// The processes for replicas, by key.
pub struct Hosts {
    all: Vec<Option<Host>>,
    /// Processes that are about to end.
    dying: Dying,
    epoll: Rc<Epoll>,
}

/// A process for replicas.
pub struct Host {
    duty: Duty,
    program: Rc<Program>,
    /// The child process; `None` in tests.
    child: Option<Rc<Child>>,
    /// The socket over which the process is given replicas; `None` if it is to end.
    control: Option<Channel>,
    page: HostPage,
    /// Whether the process has reported that it may be given replicas.
    is_up: bool,
    /// The time after which the process is killed, if it is to end.
    until: Option<Instant>,
}

/// The page on which a process for replicas reports how it is confined, and what it has died of.
pub struct HostPage {
    page: ReplicaPage<ShmMemory>,
    write: OwnedFd,
}

/// A message of a process for replicas.
pub enum Said {
    /// The process may be given replicas.
    Up,
    /// There is no message now.
    Nothing,
    /// The connection to the process is broken.
    Broken,
}

impl HostPage {
    /// Creates a new page.
    pub fn create() -> io::Result<HostPage> {
        HostPage::resume(create_memfd("atoll-process", REPLICA_PAGE_BYTES)?)
    }

    /// Maps the page that an earlier supervisor has made.
    pub fn resume(write: OwnedFd) -> io::Result<HostPage> {
        let read = open_for_reading(write.as_fd())?;
        Ok(HostPage {
            page: ReplicaPage(ShmMemory::map(&read, REPLICA_PAGE_BYTES, Access::ReadOnly)?),
            write,
        })
    }

    /// Returns the descriptor for the process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.write.as_fd()
    }
}

impl Host {
    /// Creates the entry of a process that was just started.
    pub fn new(
        duty: Duty,
        program: Rc<Program>,
        child: Option<Rc<Child>>,
        control: Channel,
        page: HostPage,
    ) -> Host {
        Host { duty, program, child, control: Some(control), page, is_up: false, until: None }
    }

    /// Creates the entry of a process that an earlier supervisor has started. `control` is `None` if it is to
    /// end.
    pub fn resume(
        number: usize,
        program: Rc<Program>,
        child: Option<Rc<Child>>,
        control: Option<Channel>,
        page: HostPage,
        is_up: bool,
    ) -> Host {
        Host { duty: Duty::Replicas(number), program, child, control, page, is_up, until: None }
    }

    /// Notes that the process is to end soon.
    pub fn set_ending(&mut self) {
        self.until = Some(clock::now() + ENDING_TIME);
    }

    /// Returns the number of the process, or `None` if it is a standby.
    pub fn number(&self) -> Option<usize> {
        match self.duty {
            Duty::Replicas(number) => Some(number),
            Duty::Standby { .. } => None,
        }
    }

    /// Returns how many bytes of memory of its own a standby has ready.
    pub fn memory(&self) -> Option<u64> {
        match self.duty {
            Duty::Standby { memory } => Some(memory),
            Duty::Replicas(_) => None,
        }
    }

    /// Returns the build that the process runs.
    pub fn program(&self) -> &Rc<Program> {
        &self.program
    }

    /// Returns the child process; `None` in tests.
    pub fn child(&self) -> Option<&Rc<Child>> {
        self.child.as_ref()
    }

    /// Returns the pid of the process.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(|child| child.pid())
    }

    /// Returns the socket over which the process is given replicas, or `None` if it is to end.
    pub fn intake(&self) -> Option<&Channel> {
        self.control.as_ref()
    }

    /// Returns whether the process has reported that it may be given replicas.
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// Returns the forbidden system call that has ended the process, if one has.
    pub fn forbidden_call(&self) -> Option<u32> {
        self.page.page.forbidden_call()
    }

    /// Returns what the next supervisor needs: the page, the pidfd if there is one, and the socket unless the
    /// process is to end.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let child = self.child.as_ref().map(|child| child.pidfd());
        [self.page.write.as_fd()]
            .into_iter()
            .chain(child)
            .chain(self.control.as_ref().map(AsFd::as_fd))
            .collect()
    }
}

impl Hosts {
    /// Creates an empty list of processes.
    pub fn new(epoll: Rc<Epoll>) -> io::Result<Hosts> {
        let dying = Dying::new()?;
        epoll.add(dying.bell(), DYING, eventfd::WATCHED)?;
        Ok(Hosts { all: Vec::new(), dying, epoll })
    }

    /// Returns the key for the next process.
    pub fn free_key(&self) -> usize {
        self.all.iter().position(Option::is_none).unwrap_or(self.all.len())
    }

    /// Adds a process and watches its descriptors. Fails if there are too many processes, or the kernel is
    /// short of something.
    pub fn install(&mut self, key: usize, host: Host) -> io::Result<()> {
        if key >= HOSTS_MAX {
            return Err(io::Error::other("too many processes for replicas"));
        }
        if let Some(control) = &host.control {
            self.epoll.add(control, HOST_CONTROL + key as u64, EventFlags::IN)?;
        }
        if let Some(child) = &host.child {
            let watched = self.epoll.add(&**child, HOST_PROCESS + key as u64, EventFlags::IN);
            if watched.is_err()
                && let Some(control) = &host.control
            {
                let _ = self.epoll.delete(control);
            }
            watched?;
        }
        if host.is_up {
            self.dying.watch(&host.page.page);
        }
        self.all.resize_with(self.all.len().max(key + 1), || None);
        self.all[key] = Some(host);
        Ok(())
    }

    /// Returns the process with this key.
    pub fn get(&self, key: usize) -> Option<&Host> {
        self.all.get(key)?.as_ref()
    }

    /// Returns the keys of the existing processes.
    pub fn keys(&self) -> Vec<usize> {
        (0..self.all.len()).filter(|key| self.get(*key).is_some()).collect()
    }

    /// Returns the key of the process of this build that has, or is to have, the replicas of this number.
    pub fn find(&self, number: usize, program: &Rc<Program>) -> Option<usize> {
        let is_it = |host: &Host| {
            host.number() == Some(number) && host.control.is_some() && Rc::ptr_eq(&host.program, program)
        };
        self.all.iter().position(|host| host.as_ref().is_some_and(is_it))
    }

    /// Returns the key of the standby.
    pub fn standby(&self) -> Option<usize> {
        let is_it = |host: &Host| host.number().is_none() && host.control.is_some();
        self.all.iter().position(|host| host.as_ref().is_some_and(is_it))
    }

    /// Gives a standby this number.
    pub fn appoint(&mut self, key: usize, number: usize) {
        if let Some(host) = self.all.get_mut(key).and_then(Option::as_mut) {
            host.duty = Duty::Replicas(number);
        }
    }

    /// Returns the pages that show how processes are confined.
    pub fn pages(&self) -> impl Iterator<Item = &ReplicaPage<ShmMemory>> {
        self.all.iter().flatten().filter(|host| host.is_up).map(|host| &host.page.page)
    }

    /// Returns the processes that have replicas, are standbys, or are about to end.
    pub fn children(&self) -> impl Iterator<Item = &Rc<Child>> {
        self.all.iter().flatten().filter_map(|host| host.child.as_ref())
    }

    /// Kills a process that has had time enough. Its end is noticed as that of others is.
    pub fn kill(&self, key: usize) {
        if let Some(Host { child: Some(child), .. }) = self.get(key) {
            let _ = child.kill(Signal::KILL);
        }
    }

    /// Returns when the next process is to be killed or reaped.
    pub fn next_timeout(&self) -> Option<Instant> {
        let until = self.all.iter().flatten().filter_map(|host| host.until).min();
        until.into_iter().chain(self.dying.next_timeout()).min()
    }

    /// Kills processes that should have ended, and reaps those that have.
    pub fn look_after(&mut self, now: Instant) {
        for host in self.all.iter_mut().flatten() {
            if let (Some(child), Some(until)) = (&host.child, &mut host.until)
                && now >= *until
            {
                let _ = child.kill(Signal::KILL);
                *until = now + ENDING_TIME;
            }
        }
        self.dying.reap(now);
    }

    /// Waits for all processes to end, at the end of the stack, for at most `time`.
    pub fn end(&mut self, time: Duration) {
        let deadline = clock::now() + time;
        // Processes that were never given a replica end when their sockets close.
        let all: Vec<_> =
            std::mem::take(&mut self.all).into_iter().flatten().filter_map(|host| host.child).collect();
        all.iter().for_each(|child| await_end(child, deadline));
    }

    /// Receives a message of a process.
    pub fn hear(&mut self, key: usize) -> Said {
        let mut buffer = [0; 64];
        loop {
            let Some(Some(host)) = self.all.get_mut(key) else { return Said::Nothing };
            let Some(control) = &host.control else { return Said::Nothing };
            match control.receive(&mut buffer, &mut Vec::new()) {
                Ok(len) if len > 0 => {
                    if &buffer[..len] == setup::UP && !host.is_up {
                        host.is_up = true;
                        self.dying.watch(&host.page.page);
                    }
                    return Said::Up;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Said::Nothing,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                Ok(_) | Err(_) => return Said::Broken,
            }
        }
    }

    /// Handles a broken connection to a process or to one of its replicas. Returns how the process ended, if
    /// it has; otherwise it is killed, so that no part of it stays alive, and its end is reported later with
    /// the reason.
    pub fn broke(&self, key: usize) -> Option<Option<Exit>> {
        let host = self.get(key)?;
        match host.child.as_ref().map(|child| (child, child.try_wait())) {
            Some((child, Ok(None))) => {
                let _ = child.kill(Signal::KILL);
                if let Some(control) = &host.control {
                    let _ = self.epoll.delete(control);
                }
                None
            }
            Some((_, exit)) => Some(exit.ok().flatten()),
            None => Some(None),
        }
    }

    /// Returns how a process has ended, if it has.
    pub fn ended(&self, key: usize) -> Option<Option<Exit>> {
        let child = self.get(key)?.child.as_ref()?;
        match child.try_wait() {
            Ok(None) => None,
            exit => Some(exit.ok().flatten()),
        }
    }

    /// Removes a process that has ended or is about to.
    pub fn take(&mut self, key: usize) -> Option<Host> {
        let host = self.all.get_mut(key).and_then(Option::take)?;
        // The guardian has the descriptors, too, so closing them would not remove them from the epoll set.
        let control = host.control.as_ref().map(AsFd::as_fd);
        for fd in control.into_iter().chain(host.child.as_ref().map(|child| (**child).as_fd())) {
            let _ = self.epoll.delete(fd);
        }
        Some(host)
    }

    /// Lets a process without replicas end. Returns whether this is the first request to do so.
    pub fn close(&mut self, key: usize, now: Instant) -> bool {
        let Some(Some(host)) = self.all.get_mut(key) else { return false };
        // A process that was never given a replica also ends when the socket closes.
        let Some(control) = host.control.take() else { return false };
        host.until = Some(now + ENDING_TIME);
        let is_fake = host.child.is_none();
        let _ = self.epoll.delete(&control);
        if is_fake {
            self.all[key] = None;
        }
        true
    }

    /// Returns the key of a process that is about to end because it was killed: it executes nothing more, and
    /// is reaped later. Take it off the list with [`Hosts::take`]. A process that reports a fault of its own
    /// is left to its pidfd, because its exit status is needed.
    pub fn take_dying(&mut self) -> Option<usize> {
        let is_dying =
            |host: &Host| host.is_up && host.pid().is_some_and(was_killed) && !host.page.page.is_at_fault();
        let key = self.all.iter().position(|host| host.as_ref().is_some_and(is_dying))?;
        let child = self.get(key)?.child.clone()?;
        self.dying.add(child, clock::now());
        Some(key)
    }
}

/// How long a process without replicas may take to end.
const ENDING_TIME: Duration = Duration::from_secs(5);

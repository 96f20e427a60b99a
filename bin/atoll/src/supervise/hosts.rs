//! Which processes for replicas are there? A process starts without replicas, is given some, and ends when it
//! has none any more.
//!
//! ```text
//!   number   what people see: replica r is to be in process `places[r]` (`atoll_supervisor::Placement`)
//!   key      what the supervisor sees: while an upgrade is under way, two builds have processes of the same number
//! ```
//! One may stand by: it has no number until one of them has died, whose replicas it is given
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
    /// `None` in tests.
    child: Option<Rc<Child>>,
    /// Over which it is given replicas; `None`: it is to end.
    control: Option<Channel>,
    page: HostPage,
    /// It has said that it may be given replicas.
    is_up: bool,
    /// Until when it has time to end.
    until: Option<Instant>,
}

/// What a process for replicas says of itself: how it is confined, and what it has died of.
pub struct HostPage {
    page: ReplicaPage<ShmMemory>,
    write: OwnedFd,
}

/// What a process for replicas has said.
pub enum Said {
    /// That it may be given replicas.
    Up,
    /// Nothing now.
    Nothing,
    /// It does not speak to us any more.
    Broken,
}

impl HostPage {
    /// A new one.
    pub fn create() -> io::Result<HostPage> {
        HostPage::resume(create_memfd("atoll-process", REPLICA_PAGE_BYTES)?)
    }

    /// The one that another supervisor has made.
    pub fn resume(write: OwnedFd) -> io::Result<HostPage> {
        let read = open_for_reading(write.as_fd())?;
        Ok(HostPage { page: ReplicaPage(ShmMemory::map(&read, REPLICA_PAGE_BYTES, Access::ReadOnly)?), write })
    }

    /// For the process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.write.as_fd()
    }
}

impl Host {
    /// One that was just started.
    pub fn new(duty: Duty, program: Rc<Program>, child: Option<Rc<Child>>, control: Channel, page: HostPage) -> Host {
        Host { duty, program, child, control: Some(control), page, is_up: false, until: None }
    }

    /// One that another supervisor has started. `control`: `None` if it is to end.
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

    /// It is to end soon.
    pub fn set_ending(&mut self) {
        self.until = Some(clock::now() + ENDING_TIME);
    }

    /// Its number; `None`: it stands by.
    pub fn number(&self) -> Option<usize> {
        match self.duty {
            Duty::Replicas(number) => Some(number),
            Duty::Standby { .. } => None,
        }
    }

    /// How much memory of its own one that stands by has ready.
    pub fn memory(&self) -> Option<u64> {
        match self.duty {
            Duty::Standby { memory } => Some(memory),
            Duty::Replicas(_) => None,
        }
    }

    /// What it is a process of.
    pub fn program(&self) -> &Rc<Program> {
        &self.program
    }

    /// `None` in tests.
    pub fn child(&self) -> Option<&Rc<Child>> {
        self.child.as_ref()
    }

    /// The number of the process.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(|child| child.pid())
    }

    /// Over which it is given replicas; `None`: it is to end.
    pub fn intake(&self) -> Option<&Channel> {
        self.control.as_ref()
    }

    /// Whether it has said that it may be given replicas.
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// The forbidden system call that has ended it, if one has.
    pub fn forbidden_call(&self) -> Option<u32> {
        self.page.page.forbidden_call()
    }

    /// What the next supervisor needs: the page, the pidfd if there is one, the socket if it is not to end.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let child = self.child.as_ref().map(|child| child.pidfd());
        [self.page.write.as_fd()].into_iter().chain(child).chain(self.control.as_ref().map(AsFd::as_fd)).collect()
    }
}

impl Hosts {
    /// None yet.
    pub fn new(epoll: Rc<Epoll>) -> io::Result<Hosts> {
        let dying = Dying::new()?;
        epoll.add(dying.bell(), DYING, eventfd::WATCHED)?;
        Ok(Hosts { all: Vec::new(), dying, epoll })
    }

    /// The key of the next one.
    pub fn free_key(&self) -> usize {
        self.all.iter().position(Option::is_none).unwrap_or(self.all.len())
    }

    /// Adds one, which is listened to.
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

    /// The process with this key.
    pub fn get(&self, key: usize) -> Option<&Host> {
        self.all.get(key)?.as_ref()
    }

    /// Those that are there, by key.
    pub fn keys(&self) -> Vec<usize> {
        (0..self.all.len()).filter(|key| self.get(*key).is_some()).collect()
    }

    /// The process of this build that has, or is to have, the replicas of this number.
    pub fn find(&self, number: usize, program: &Rc<Program>) -> Option<usize> {
        let is_it =
            |host: &Host| host.number() == Some(number) && host.control.is_some() && Rc::ptr_eq(&host.program, program);
        self.all.iter().position(|host| host.as_ref().is_some_and(is_it))
    }

    /// The process that stands by.
    pub fn standby(&self) -> Option<usize> {
        let is_it = |host: &Host| host.number().is_none() && host.control.is_some();
        self.all.iter().position(|host| host.as_ref().is_some_and(is_it))
    }

    /// The process, which has stood by, is the one with this number from now on.
    pub fn appoint(&mut self, key: usize, number: usize) {
        if let Some(host) = self.all.get_mut(key).and_then(Option::as_mut) {
            host.duty = Duty::Replicas(number);
        }
    }

    /// Pages that say how processes are confined.
    pub fn pages(&self) -> impl Iterator<Item = &ReplicaPage<ShmMemory>> {
        self.all.iter().flatten().filter(|host| host.is_up).map(|host| &host.page.page)
    }

    /// Those that have replicas, stand by, or are about to end.
    pub fn children(&self) -> impl Iterator<Item = &Rc<Child>> {
        self.all.iter().flatten().filter_map(|host| host.child.as_ref())
    }

    /// Ends a process that has had time enough. Its end is noticed as those of others are.
    pub fn kill(&self, key: usize) {
        if let Some(Host { child: Some(child), .. }) = self.get(key) {
            let _ = child.kill(Signal::KILL);
        }
    }

    /// When one has had time enough to end, or is to be reaped.
    pub fn next_timeout(&self) -> Option<Instant> {
        let until = self.all.iter().flatten().filter_map(|host| host.until).min();
        until.into_iter().chain(self.dying.next_timeout()).min()
    }

    /// Ends those that should have ended, and reaps those that have.
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

    /// Waits for all to end, at the end of the stack, for so long.
    pub fn end(&mut self, time: Duration) {
        let deadline = clock::now() + time;
        // Those that were never given a replica end when their sockets close.
        let all: Vec<_> = std::mem::take(&mut self.all).into_iter().flatten().filter_map(|host| host.child).collect();
        all.iter().for_each(|child| await_end(child, deadline));
    }

    /// Hears what a process says.
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

    /// A process does not speak to us any more, or one of its replicas does not. Ended is ended: nothing is
    /// left behind half alive. Returns how it ended, if it has; otherwise it is killed, and its end will be
    /// reported with the reason.
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

    /// How a process has ended, if it has.
    pub fn ended(&self, key: usize) -> Option<Option<Exit>> {
        let child = self.get(key)?.child.as_ref()?;
        match child.try_wait() {
            Ok(None) => None,
            exit => Some(exit.ok().flatten()),
        }
    }

    /// Takes a process off the list, which has ended or is about to.
    pub fn take(&mut self, key: usize) -> Option<Host> {
        let host = self.all.get_mut(key).and_then(Option::take)?;
        // The guardian has its descriptors, too: only so are they out of the set.
        let control = host.control.as_ref().map(AsFd::as_fd);
        for fd in control.into_iter().chain(host.child.as_ref().map(|child| (**child).as_fd())) {
            let _ = self.epoll.delete(fd);
        }
        Some(host)
    }

    /// Lets a process end that has no replicas. Returns whether that is news.
    pub fn close(&mut self, key: usize, now: Instant) -> bool {
        let Some(Some(host)) = self.all.get_mut(key) else { return false };
        // With the socket closed it ends also if it was never given any.
        let Some(control) = host.control.take() else { return false };
        host.until = Some(now + ENDING_TIME);
        let is_fake = host.child.is_none();
        let _ = self.epoll.delete(&control);
        if is_fake {
            self.all[key] = None;
        }
        true
    }

    /// A process that is about to end, killed by somebody: it does nothing more, and is reaped later. To be
    /// taken off the list ([`Hosts::take`]). Of whom it cannot be said whose fault that is, the exit status
    /// tells a little later.
    pub fn take_dying(&mut self) -> Option<usize> {
        let is_dying = |host: &Host| host.is_up && host.pid().is_some_and(was_killed) && !host.page.page.is_at_fault();
        let key = self.all.iter().position(|host| host.as_ref().is_some_and(is_dying))?;
        let child = self.get(key)?.child.clone()?;
        self.dying.add(child, clock::now());
        Some(key)
    }
}

/// How long a process without replicas may take to end.
const ENDING_TIME: Duration = Duration::from_secs(5);

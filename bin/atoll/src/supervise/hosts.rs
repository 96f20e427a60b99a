//! Which process is a replica in? The supervisor starts processes for replicas, and gives them some; one that has none any more ends.
//!
//! ```text
//!   number   what people see: replica r is to be in process `places[r]` (scaling.rs)
//!   key      what the supervisor sees: while an upgrade is under way, two builds have processes of the same number
//! ```
//! One may stand by: it has no number until one of them has died, whose replicas it is given (standby.rs).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use atoll_ipc::control::Request;
use atoll_ipc::page::{REPLICA_PAGE_BYTES, ReplicaPage};
use atoll_shm::{Access, ShmMemory};
use atoll_sys::create_memfd;
use atoll_sys::epoll::EventFlags;
use atoll_sys::process::{Child, Exit, Signal};
use atoll_sys::unix::Channel;

use super::launch::Duty;
use super::memory::open_for_reading;
use super::succession::Program;
use super::supervisor::{Ending, HOST_CONTROL, HOST_PROCESS, HOSTS_MAX, REPLICA_CONTROL, Role, Supervisor, await_end};
use crate::failure::{Failure, OrFail};
use crate::setup;

/// The processes for replicas, by key.
#[derive(Default)]
pub(super) struct Hosts(Vec<Option<Host>>);

/// A process for replicas.
pub(super) struct Host {
    pub duty: Duty,
    pub program: Rc<Program>,
    /// `None` in tests.
    pub child: Option<Rc<Child>>,
    /// Over which it is given replicas; `None`: it is to end.
    pub control: Option<Channel>,
    pub page: HostPage,
    /// It has said that it may be given replicas.
    pub is_up: bool,
    /// Until when it has time to end.
    pub until: Option<Instant>,
}

/// What a process for replicas says of itself: how it is confined, and what it has died of.
pub(super) struct HostPage {
    page: ReplicaPage<ShmMemory>,
    write: OwnedFd,
}

impl HostPage {
    fn create() -> io::Result<HostPage> {
        HostPage::resume(create_memfd("atoll-process", REPLICA_PAGE_BYTES)?)
    }

    /// The one that another supervisor has made.
    pub fn resume(write: OwnedFd) -> io::Result<HostPage> {
        let read = open_for_reading(write.as_fd())?;
        Ok(HostPage { page: ReplicaPage(ShmMemory::map(&read, REPLICA_PAGE_BYTES, Access::ReadOnly)?), write })
    }
}

impl Host {
    /// Its number; `None`: it stands by.
    pub fn number(&self) -> Option<usize> {
        match self.duty {
            Duty::Replicas(number) => Some(number),
            Duty::Standby { .. } => None,
        }
    }

    /// Whether it says that it has died of its own fault.
    pub fn is_at_fault(&self) -> bool {
        self.page.page.is_at_fault()
    }

    /// What the next supervisor needs: the page, the pidfd if there is one, the socket if it is not to end.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let child = self.child.as_ref().map(|child| child.pidfd());
        [self.page.write.as_fd()].into_iter().chain(child).chain(self.control.as_ref().map(AsFd::as_fd)).collect()
    }
}

impl Hosts {
    /// The process with this key.
    pub fn get(&self, key: usize) -> Option<&Host> {
        self.0.get(key)?.as_ref()
    }

    /// Those that are there, by key.
    pub fn keys(&self) -> Vec<usize> {
        (0..self.0.len()).filter(|key| self.get(*key).is_some()).collect()
    }

    /// The process of this build that has, or is to have, the replicas of this number.
    pub fn find(&self, number: usize, program: &Rc<Program>) -> Option<usize> {
        let is_it =
            |host: &Host| host.number() == Some(number) && host.control.is_some() && Rc::ptr_eq(&host.program, program);
        self.0.iter().position(|host| host.as_ref().is_some_and(is_it))
    }

    /// The process that stands by.
    pub fn standby(&self) -> Option<usize> {
        let is_it = |host: &Host| host.number().is_none() && host.control.is_some();
        self.0.iter().position(|host| host.as_ref().is_some_and(is_it))
    }

    /// The process, which has stood by, is the one with this number from now on.
    pub fn appoint(&mut self, key: usize, number: usize) {
        if let Some(host) = self.0.get_mut(key).and_then(Option::as_mut) {
            host.duty = Duty::Replicas(number);
        }
    }

    /// Pages that say how processes are confined.
    pub fn pages(&self) -> impl Iterator<Item = &ReplicaPage<ShmMemory>> {
        self.0.iter().flatten().filter(|host| host.is_up).map(|host| &host.page.page)
    }

    /// Those that have replicas, stand by, or are about to end.
    pub fn children(&self) -> impl Iterator<Item = &Rc<Child>> {
        self.0.iter().flatten().filter_map(|host| host.child.as_ref())
    }

    /// Ends a process that has had time enough. Its end is noticed as those of others are.
    pub fn kill(&self, key: usize) {
        if let Some(Host { child: Some(child), .. }) = self.get(key) {
            let _ = child.kill(Signal::KILL);
        }
    }

    /// When one has had time enough to end.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.0.iter().flatten().filter_map(|host| host.until).min()
    }

    /// Ends those that should have ended.
    pub fn look_after(&mut self, now: Instant) {
        for host in self.0.iter_mut().flatten() {
            if let (Some(child), Some(until)) = (&host.child, &mut host.until)
                && now >= *until
            {
                let _ = child.kill(Signal::KILL);
                *until = now + ENDING_TIME;
            }
        }
    }

    /// Waits for all to end, at the end of the stack, for so long.
    pub fn end(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        // Those that were never given a replica end when their sockets close.
        let all: Vec<_> = std::mem::take(&mut self.0).into_iter().flatten().filter_map(|host| host.child).collect();
        all.iter().for_each(|child| await_end(child, deadline));
    }
}

impl Supervisor {
    /// Starts a process for replicas. Returns its key.
    pub(super) fn open_host(&mut self, duty: Duty, program: &Rc<Program>) -> Result<usize, Failure> {
        let Some(launcher) = &mut self.launcher else { return Err(Failure::new("the stack has ended")) };
        self.reserve.release();
        let page = HostPage::create().or_fail("making memory for a process")?;
        let (mut child, control) =
            launcher.start_host(duty, program, page.write.as_fd(), &self.config, &self.identity, &self.memory)?;
        let key = self.hosts.0.iter().position(Option::is_none).unwrap_or(self.hosts.0.len());
        let pipe = child.as_mut().and_then(|child| Some((child.pid(), child.take_errors()?)));
        let (program, child) = (program.clone(), child.map(Rc::new));
        let host = Host { duty, program, child, control: Some(control), page, is_up: false, until: None };
        let child = host.child.clone();
        let installed = self.install_host(key, host);
        if installed.is_err()
            && let Some(child) = child
        {
            // Nobody would see its end.
            let _ = child.kill(Signal::KILL);
            let _ = child.wait();
        }
        installed.or_fail("watching a process for replicas")?;
        self.hear_of(pipe);
        self.note_host(key);
        Ok(key)
    }

    /// Adds a process for replicas.
    pub(super) fn install_host(&mut self, key: usize, host: Host) -> io::Result<()> {
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
        let hosts = &mut self.hosts.0;
        hosts.resize_with(hosts.len().max(key + 1), || None);
        hosts[key] = Some(host);
        Ok(())
    }

    /// Gives a replica, as its next incarnation, to the process that it is to be in, which is started if it is not there.
    pub(super) fn place(&mut self, index: usize) -> Result<(), Failure> {
        let (number, program) = (self.scaling.place(index), self.replicas[index].program.clone());
        let key = match self.hosts.find(number, &program) {
            Some(key) => key,
            None => match self.call_standby(number, &program) {
                Some(key) => key,
                None => self.open_host(Duty::Replicas(number), &program)?,
            },
        };
        let (epoch, epochs) = self.next_epoch(index);
        // Before the next one opens the ledger.
        let untold = self.can_wait(index);
        let (Some(launcher), Some(host)) = (&mut self.launcher, self.hosts.get(key)) else {
            return Err(Failure::new("the stack has ended"));
        };
        let Some(intake) = &host.control else { return Err(Failure::new("a process that is to end")) };
        let control = match launcher.place(index, intake, &epochs, &self.config, &self.identity, &self.memory) {
            Ok(control) => control,
            Err(failure) => {
                // It is gone, or has taken nothing for long; others of it are told by its end.
                self.hosts.kill(key);
                return Err(failure);
            }
        };
        let watched = self.epoll.add(&control, REPLICA_CONTROL + index as u64, EventFlags::IN);
        if watched.is_err() {
            // It has the replica, and nobody would hear of it.
            self.hosts.kill(key);
        }
        watched.or_fail("watching a replica")?;
        let replica = &mut self.replicas[index];
        (replica.host, replica.child) = (Some(key), host.child.clone());
        (replica.control, replica.epoch, replica.untold) = (Some(control), epoch, untold);
        Ok(())
    }

    /// A process for replicas says that it is up, or nothing any more.
    pub(super) fn host_spoke(&mut self, key: usize) -> io::Result<()> {
        let mut buffer = [0; 64];
        loop {
            let Some(Some(host)) = self.hosts.0.get_mut(key) else { return Ok(()) };
            let Some(control) = &host.control else { return Ok(()) };
            match control.receive(&mut buffer, &mut Vec::new()) {
                Ok(len) if len > 0 => {
                    if &buffer[..len] == setup::UP && !host.is_up {
                        host.is_up = true;
                        self.dying.watch(&host.page.page);
                    }
                    if host.number().is_none() {
                        self.standby.is_up(Instant::now());
                    }
                    self.note_host(key);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                Ok(_) | Err(_) => return self.host_broke(key),
            }
        }
    }

    /// A process for replicas does not speak to us any more, or one of its replicas does not. Ended is ended: nothing is left behind half alive.
    pub(super) fn host_broke(&mut self, key: usize) -> io::Result<()> {
        let Some(host) = self.hosts.get(key) else { return Ok(()) };
        let exit = match host.child.as_ref().map(|child| (child, child.try_wait())) {
            Some((child, Ok(None))) => {
                let _ = child.kill(Signal::KILL);
                // Its end will be reported with the reason.
                return host.control.as_ref().map_or(Ok(()), |control| self.epoll.delete(control).or(Ok(())));
            }
            Some((_, exit)) => exit.ok().flatten(),
            None => None,
        };
        self.host_gone(key, exit)
    }

    /// A process for replicas has ended.
    pub(super) fn host_ended(&mut self, key: usize) -> io::Result<()> {
        let Some(Host { child: Some(child), .. }) = self.hosts.get(key) else { return Ok(()) };
        match child.try_wait() {
            Ok(None) => Ok(()),
            exit => {
                let exit = exit.ok().flatten();
                self.host_gone(key, exit)
            }
        }
    }

    /// All replicas of the process have died with it, but for those that have left.
    pub(super) fn host_gone(&mut self, key: usize, exit: Option<Exit>) -> io::Result<()> {
        let Some(host) = self.hosts.0.get_mut(key).and_then(Option::take) else { return Ok(()) };
        self.forget_host(&host);
        self.note_host(key);
        let had = |replica: &super::supervisor::ServerSlot| replica.host == Some(key);
        let replicas: Vec<usize> = (0..self.replicas.len()).filter(|index| had(&self.replicas[*index])).collect();
        for &index in &replicas {
            // What it has said last.
            self.replica_spoke(index, EventFlags::IN)?;
        }
        let (pid, forbidden) = (host.child.as_ref().map(|child| child.pid()), host.page.page.forbidden_call());
        let Some(number) = host.number() else {
            if host.control.is_some() {
                self.standby_ended(pid, exit, forbidden);
            }
            return Ok(());
        };
        if !self.ready && replicas.is_empty() {
            let server = Role::Replica(number);
            self.ending.get_or_insert(Ending::ServerGone { server, pid, exit, forbidden });
        }
        for index in replicas {
            if had(&self.replicas[index]) {
                self.server_ended(index, pid, exit, forbidden)?;
            }
        }
        Ok(())
    }

    /// The guardian has its descriptors, too: only so are they out of the set.
    fn forget_host(&self, host: &Host) {
        let control = host.control.as_ref().map(AsFd::as_fd);
        for fd in control.into_iter().chain(host.child.as_ref().map(|child| (**child).as_fd())) {
            let _ = self.epoll.delete(fd);
        }
    }

    /// Asks a replica to leave its process, or another server to end; another process goes on with it. `ledger`: the version in which it writes
    /// that. Who has not left in time is killed, which comes to the same.
    pub(super) fn ask_to_leave(&mut self, index: usize, ledger: u32, now: Instant) -> io::Result<()> {
        let Some(server) = self.server_mut(index) else { return Ok(()) };
        (server.is_leaving, server.due_by) = (true, Some(now + LEAVE_TIME));
        // The next supervisor knows what its last word means.
        self.note_server(index, true);
        self.send_to_replica(index, &Request::HandOver { ledger }, Vec::new())
    }

    /// A replica has left its process: whatever it was given, it does not touch it any more.
    pub(super) fn replica_left(&mut self, index: usize) -> io::Result<()> {
        let Some(replica) = self.replicas.get(index) else { return Ok(()) };
        if !replica.is_leaving {
            return self.replica_ended(index);
        }
        let (now, from) = (Instant::now(), replica.host);
        self.succeed(index, &format!("replica {index} has left"))?;
        self.replicas[index].life.left(now);
        self.forget_process(index)?;
        from.map_or(Ok(()), |key| self.close_host_if_idle(key, now))
    }

    /// Lets a process end that has no replicas.
    pub(super) fn close_host_if_idle(&mut self, key: usize, now: Instant) -> io::Result<()> {
        if self.replicas.iter().any(|replica| replica.host == Some(key)) {
            return Ok(());
        }
        let Some(Some(host)) = self.hosts.0.get_mut(key).filter(|host| host.is_some()) else { return Ok(()) };
        // With the socket closed it ends also if it was never given any.
        let Some(control) = host.control.take() else { return Ok(()) };
        host.until = Some(now + ENDING_TIME);
        let is_fake = host.child.is_none();
        let _ = self.epoll.delete(&control);
        if is_fake {
            self.hosts.0[key] = None;
        }
        self.note_host(key);
        Ok(())
    }
}

/// How long a replica may take to leave, or a server to hand over: its ledger may have to be written anew. It serves meanwhile, or nearly.
pub(super) const LEAVE_TIME: Duration = Duration::from_secs(2);
/// How long a process without replicas may take to end.
pub(super) const ENDING_TIME: Duration = Duration::from_secs(5);

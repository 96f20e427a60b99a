//! Gives replicas to processes, and handles the ends of processes for replicas, which `hosts.rs` lists.

use std::io;
use std::rc::Rc;

use atoll_base::Instant;
use atoll_ipc::control::Request;
use atoll_sys::epoll::EventFlags;
use atoll_sys::process::{Exit, Signal};

use super::Supervisor;
use crate::clock;
use crate::failure::{Failure, OrFail};
use crate::supervise::ending::{Ending, Role};
use crate::supervise::hosts::{Host, HostPage, Said};
use crate::supervise::launch::Stack;
use crate::supervise::program::Program;
use crate::supervise::servers::Employment;
use crate::supervise::setups::Duty;

impl Supervisor {
    /// Starts a process for replicas, and returns its key.
    pub(super) fn open_host(&mut self, duty: Duty, program: &Rc<Program>) -> Result<usize, Failure> {
        self.starts.release();
        let page = HostPage::create().or_fail("making memory for a process")?;
        let launcher = self.starts.launcher()?;
        let stack = Stack { config: &self.config, identity: &self.identity, memory: &self.memory };
        let (mut child, control) = launcher.start_host(duty, program, page.descriptor(), &stack)?;
        let key = self.hosts.free_key();
        let pipe = child.as_mut().and_then(|child| Some((child.pid(), child.take_errors()?)));
        let child = child.map(Rc::new);
        let host = Host::new(duty, program.clone(), child.clone(), control, page);
        let installed = self.hosts.install(key, host);
        if installed.is_err()
            && let Some(child) = child
        {
            // Its end would not be noticed.
            let _ = child.kill(Signal::KILL);
            let _ = child.wait();
        }
        installed.or_fail("watching a process for replicas")?;
        self.hear_of(pipe);
        self.note_host(key);
        Ok(key)
    }

    /// Gives a replica, as its next incarnation, to the process that it is to be in, which is started if it
    /// does not exist.
    pub(super) fn place(&mut self, index: usize) -> Result<(), Failure> {
        let Some(replica) = self.servers.replica(index) else { return Ok(()) };
        let (number, program) = (self.placement.place(index), replica.program().clone());
        let key = match self.hosts.find(number, &program) {
            Some(key) => key,
            None => match self.call_standby(number, &program) {
                Some(key) => key,
                None => self.open_host(Duty::Replicas(number), &program)?,
            },
        };
        let (epoch, epochs) = self.servers.next_epoch(index);
        // This comes before the next incarnation opens the ledger.
        let untold = self.can_wait(index);
        let launcher = self.starts.launcher()?;
        let stack = Stack { config: &self.config, identity: &self.identity, memory: &self.memory };
        let Some(host) = self.hosts.get(key) else { return Err(Failure::new("the stack has ended")) };
        let Some(intake) = host.intake() else { return Err(Failure::new("a process that is to end")) };
        let control = match launcher.place(index, intake, &epochs, &stack) {
            Ok(control) => control,
            Err(failure) => {
                // The process is gone, or has read nothing for long; its end is handled for its other
                // replicas, too.
                self.hosts.kill(key);
                return Err(failure);
            }
        };
        let employment = Employment { host: Some(key), child: host.child().cloned(), control };
        let employed = self.servers.employ(index, employment);
        if employed.is_err() {
            // The process has the replica, but nothing would be received from it.
            self.hosts.kill(key);
        }
        employed.or_fail("watching a replica")?;
        if let Some(replica) = self.servers.get_mut(index) {
            replica.record_mut().born(epoch);
            replica.set_untold(untold);
        }
        Ok(())
    }

    /// Handles a report of a process for replicas that it is up, or the end of the connection.
    pub(super) fn host_spoke(&mut self, key: usize) -> io::Result<()> {
        loop {
            match self.hosts.hear(key) {
                Said::Up => {
                    if self.hosts.get(key).is_some_and(|host| host.number().is_none()) {
                        self.standby.is_up(clock::now());
                    }
                    self.note_host(key);
                }
                Said::Nothing => return Ok(()),
                Said::Broken => return self.host_broke(key),
            }
        }
    }

    /// Handles a broken connection to a process for replicas, or to one of its replicas.
    pub(super) fn host_broke(&mut self, key: usize) -> io::Result<()> {
        self.hosts.broke(key).map_or(Ok(()), |exit| self.host_gone(key, exit))
    }

    /// Handles the end of a process for replicas.
    pub(super) fn host_ended(&mut self, key: usize) -> io::Result<()> {
        self.hosts.ended(key).map_or(Ok(()), |exit| self.host_gone(key, exit))
    }

    /// Handles processes for replicas that are about to end.
    pub(super) fn look_for_dying(&mut self) -> io::Result<()> {
        while let Some(key) = self.hosts.take_dying() {
            self.host_gone(key, Some(Exit::Killed))?;
        }
        Ok(())
    }

    /// Handles the death of a process, with which all of its replicas have died except those that have left.
    fn host_gone(&mut self, key: usize, exit: Option<Exit>) -> io::Result<()> {
        let Some(host) = self.hosts.take(key) else { return Ok(()) };
        self.note_host(key);
        let replicas = self.replicas_in(key);
        for &index in &replicas {
            // This handles the last messages of the replica.
            self.server_spoke(index, EventFlags::IN)?;
        }
        let (pid, forbidden) = (host.pid(), host.forbidden_call());
        let Some(number) = host.number() else {
            if host.intake().is_some() {
                self.standby_ended(pid, exit, forbidden);
            }
            return Ok(());
        };
        if !self.course.is_ready() && replicas.is_empty() {
            let server = Role::Replica(number);
            self.course.end(Ending::ServerGone { server, pid, exit, forbidden });
        }
        for index in replicas {
            if self.servers.replica(index).is_some_and(|replica| replica.host() == Some(key)) {
                self.server_ended(index, pid, exit, forbidden)?;
            }
        }
        Ok(())
    }

    /// Returns the replicas in a process.
    fn replicas_in(&self, key: usize) -> Vec<usize> {
        let is_in =
            |index: &usize| self.servers.replica(*index).is_some_and(|replica| replica.host() == Some(key));
        self.servers.replica_numbers().filter(is_in).collect()
    }

    /// Asks a replica to leave its process, or another server to end; another process continues it. The
    /// server writes its ledger in the version `ledger`. One that has not left in time is killed, which has
    /// the same effect.
    pub(super) fn ask_to_leave(&mut self, index: usize, ledger: u32, now: Instant) -> io::Result<()> {
        let Some(server) = self.servers.get_mut(index) else { return Ok(()) };
        server.record_mut().asked_to_leave(now);
        // The next supervisor must know what its last message means.
        self.note_server(index, true);
        self.servers.send(index, &Request::HandOver { ledger }, Vec::new())
    }

    /// Handles the report of a replica that it has left its process, and touches nothing any more that it was
    /// given.
    pub(super) fn replica_left(&mut self, index: usize) -> io::Result<()> {
        let Some(replica) = self.servers.replica(index) else { return Ok(()) };
        if !replica.record().is_leaving() {
            return self.server_broke(index);
        }
        let (now, from) = (clock::now(), replica.host());
        self.succeed(index, &format!("replica {index} has left"))?;
        if let Some(replica) = self.servers.get_mut(index) {
            replica.record_mut().left(now);
        }
        self.forget_process(index)?;
        from.map_or(Ok(()), |key| {
            self.close_host_if_idle(key, now);
            Ok(())
        })
    }

    /// Lets a process end if it has no replicas.
    pub(super) fn close_host_if_idle(&mut self, key: usize, now: Instant) {
        if self.replicas_in(key).is_empty() && self.hosts.close(key, now) {
            self.note_host(key);
        }
    }
}

//! Which process is a replica in? The supervisor starts processes for replicas, and gives them some; one that has none any more ends.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use atoll_sys::epoll::EventFlags;
use atoll_sys::process::{Child, Exit, Signal};
use atoll_sys::unix::Channel;

use super::server::{Ending, HOST_CONTROL, REPLICA_CONTROL, REPLICA_PROCESS, Role, Server, await_end};
use crate::failure::{Failure, OrFail};
use crate::setup;

/// The processes for replicas.
pub(super) struct Hosts {
    /// By number; `None`: there is no such process now.
    processes: Vec<Option<Host>>,
    /// Those whose last replica has left, and until when they have time to end.
    departing: Vec<(Rc<Child>, Instant)>,
}

/// A process for replicas.
struct Host {
    /// `None` in tests.
    child: Option<Rc<Child>>,
    control: Channel,
    /// It has said that it may be given replicas.
    is_up: bool,
}

impl Hosts {
    /// For so many replicas: no more processes than that are of use.
    pub fn new(replicas: usize) -> Hosts {
        Hosts { processes: (0..replicas).map(|_| None).collect(), departing: Vec::new() }
    }

    fn get(&self, number: usize) -> Option<&Host> {
        self.processes.get(number)?.as_ref()
    }

    /// Whether this process is there.
    pub fn exists(&self, number: usize) -> bool {
        self.get(number).is_some()
    }

    /// Whether this process may be given replicas without a delay.
    pub fn is_up(&self, number: usize) -> bool {
        self.get(number).is_some_and(|host| host.is_up)
    }

    /// Ends a process that has had time enough. Its end is noticed as those of others are.
    pub fn kill(&self, number: usize) {
        if let Some(Host { child: Some(child), .. }) = self.get(number) {
            let _ = child.kill(Signal::KILL);
        }
    }

    /// When somebody has had time enough to end.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.departing.iter().map(|(_, until)| *until).min()
    }

    /// Ends those that should have ended.
    pub fn look_after(&mut self, now: Instant) {
        for (child, until) in &mut self.departing {
            if now >= *until {
                let _ = child.kill(Signal::KILL);
                *until = now + DEPARTING_TIME;
            }
        }
    }

    /// Waits for all to end, at the end of the stack, for so long.
    pub fn end(&mut self, time: Duration) {
        let deadline = Instant::now() + time;
        // Those that were never given a replica end when their sockets close.
        let rest: Vec<_> = self.processes.iter_mut().filter_map(Option::take).filter_map(|host| host.child).collect();
        for child in rest.into_iter().chain(self.departing.drain(..).map(|(child, _)| child)) {
            await_end(&child, deadline);
        }
    }
}

impl Server {
    /// Starts a process for replicas.
    pub(super) fn open_host(&mut self, number: usize) -> Result<(), Failure> {
        let Some(launcher) = &mut self.launcher else { return Err(Failure::new("the stack has ended")) };
        let (child, control) = launcher.start_host(number, &self.config, &self.identity, &self.memory)?;
        let what = "watching a process for replicas";
        self.epoll.add(&control, HOST_CONTROL + number as u64, EventFlags::IN).or_fail(what)?;
        let child = child.map(Rc::new);
        if let Some(child) = &child {
            self.epoll.add(&**child, REPLICA_PROCESS + number as u64, EventFlags::IN).or_fail(what)?;
        }
        let place = self.hosts.processes.get_mut(number).ok_or_else(|| Failure::new("a process without replicas"))?;
        *place = Some(Host { child, control, is_up: false });
        Ok(())
    }

    /// Gives a replica to its process, which is started if it is not there.
    pub(super) fn place(&mut self, index: usize) -> Result<(), Failure> {
        let number = self.replicas[index].host;
        if !self.hosts.exists(number) {
            self.open_host(number)?;
        }
        let (epoch, epochs) = self.next_epoch(index);
        let (Some(launcher), Some(Some(host))) = (&mut self.launcher, self.hosts.processes.get(number)) else {
            return Err(Failure::new("the stack has ended"));
        };
        let control = launcher.place(index, &host.control, &epochs, &self.config, &self.identity, &self.memory)?;
        let what = "watching a replica";
        self.epoll.add(&control, REPLICA_CONTROL + index as u64, EventFlags::IN).or_fail(what)?;
        let child = host.child.clone();
        let replica = &mut self.replicas[index];
        (replica.child, replica.control, replica.epoch) = (child, Some(control), epoch);
        Ok(())
    }

    /// A process for replicas says that it is up, or nothing any more.
    pub(super) fn host_spoke(&mut self, number: usize) -> io::Result<()> {
        let mut buffer = [0; 64];
        loop {
            let Some(Some(host)) = self.hosts.processes.get_mut(number) else { return Ok(()) };
            match host.control.receive(&mut buffer, &mut Vec::new()) {
                Ok(len) if len > 0 => host.is_up |= &buffer[..len] == setup::UP,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
                Ok(_) | Err(_) => return self.host_broke(number),
            }
        }
    }

    /// A process for replicas does not speak to us any more, or one of its replicas does not. Ended is ended: nothing is left behind half alive.
    pub(super) fn host_broke(&mut self, number: usize) -> io::Result<()> {
        let Some(host) = self.hosts.get(number) else { return Ok(()) };
        let exit = match host.child.as_ref().map(|child| (child, child.try_wait())) {
            Some((child, Ok(None))) => {
                let _ = child.kill(Signal::KILL);
                // Its end will be reported with the reason.
                return self.epoll.delete(&host.control).or(Ok(()));
            }
            Some((_, exit)) => exit.ok().flatten(),
            None => None,
        };
        self.host_gone(number, exit)
    }

    /// A process for replicas with this number has ended: this one, or one that has had it before.
    pub(super) fn host_ended(&mut self, number: usize) -> io::Result<()> {
        self.hosts.departing.retain(|(child, _)| matches!(child.try_wait(), Ok(None)));
        let Some(Host { child: Some(child), .. }) = self.hosts.get(number) else { return Ok(()) };
        match child.try_wait() {
            Ok(None) => Ok(()),
            exit => {
                let exit = exit.ok().flatten();
                self.host_gone(number, exit)
            }
        }
    }

    /// All replicas of the process have died with it.
    fn host_gone(&mut self, number: usize, exit: Option<Exit>) -> io::Result<()> {
        let Some(host) = self.hosts.processes.get_mut(number).and_then(Option::take) else { return Ok(()) };
        let pid = host.child.as_ref().map(|child| child.pid());
        let had = |replica: &super::server::Replica| replica.host == number && replica.control.is_some();
        let died: Vec<usize> = (0..self.replicas.len()).filter(|index| had(&self.replicas[*index])).collect();
        if died.is_empty() && !self.ready {
            let forbidden = self.memory.hosts.get(number).and_then(|host| host.page.forbidden_call());
            self.ending.get_or_insert(Ending::ServerGone { server: Role::Replica(number), pid, exit, forbidden });
        }
        for index in died {
            self.server_ended(index, pid, exit)?;
        }
        Ok(())
    }

    /// A replica has handed over: whatever it was given, it does not touch it any more.
    pub(super) fn replica_left(&mut self, index: usize) -> io::Result<()> {
        let replica = &self.replicas[index];
        if !replica.life.is_leaving() {
            return self.replica_ended(index);
        }
        let now = Instant::now();
        let target = self.host_for(index);
        let replica = &mut self.replicas[index];
        replica.life.left(now);
        let from = std::mem::replace(&mut replica.host, target);
        self.forget_process(index)?;
        self.close_host_if_idle(from, now);
        self.restart(index)
    }

    /// Lets a process end that has no replicas.
    pub(super) fn close_host_if_idle(&mut self, number: usize, now: Instant) {
        if self.replicas.iter().any(|replica| replica.host == number) {
            return;
        }
        // With the socket closed it ends also if it was never given any.
        let child = self.hosts.processes.get_mut(number).and_then(Option::take).and_then(|host| host.child);
        self.hosts.departing.extend(child.map(|child| (child, now + DEPARTING_TIME)));
    }
}

/// How long a process without replicas may take to end.
const DEPARTING_TIME: Duration = Duration::from_secs(5);

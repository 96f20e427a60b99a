//! What does the supervisor do when a server has died? It starts the next one on the same memory, tells it all that there is, and tells the others.
//!
//! The process is certainly gone before: that is the fence behind which the successor may touch what it has left.

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use atoll_ipc::control::Request;
use atoll_supervisor::{Component, ReportPart};
use atoll_sys::epoll::EventFlags;
use atoll_sys::eventfd;
use atoll_sys::process::{Child, Exit, Signal};

use super::death;
use super::life::Recovery;
use super::memory::SessionMemory;
use super::outbox::Outbox;
use super::server::{Ending, REPLICA_CONTROL, REPLICA_PROCESS, Server};
use super::spawn;
use super::vigil::{Judgement, Signs, Watch};

impl Server {
    /// Tells a new process what it has to know, and that this is all. It says that it is ready then.
    pub(super) fn brief(&mut self, index: usize) -> io::Result<()> {
        if index < self.replicas.len() {
            self.tell_open(index)?;
            for (session, memory) in self.lingering_at(index) {
                let opened = Request::SessionOpened { session, pid: memory.pid, config: self.config.sessions.arena };
                self.send_to_replica(index, &opened, memory.for_replica(index))?;
            }
        }
        if self.config.notation.plan().servers_of(Component::Cm).any(|server| server == index) {
            let rules = self.config.accept.rules();
            self.send_to_replica(index, &Request::Balance { rules }, Vec::new())?;
        }
        let blamed = self.server_mut(index).is_some_and(|server| server.blamed);
        self.send_to_replica(index, &Request::Adopt { blamed }, Vec::new())?;
        if let Some(version) = self.ledger_wanted(index) {
            self.send_to_replica(index, &Request::WriteLedger { version }, Vec::new())?;
        }
        if index < self.replicas.len() {
            self.tell_departed(index)?;
            for (session, _) in self.lingering_at(index) {
                self.send_to_replica(index, &Request::SessionGone { session }, Vec::new())?;
            }
        }
        Ok(())
    }

    /// Which sessions there are, and who is in them no more: a replica that knows takes no harm.
    pub(super) fn tell_sessions(&mut self, index: usize) -> io::Result<()> {
        if index < self.replicas.len() {
            self.tell_open(index)?;
            self.tell_departed(index)?;
        }
        Ok(())
    }

    fn tell_open(&mut self, index: usize) -> io::Result<()> {
        let sessions: Vec<u32> = self.open.keys().copied().collect();
        for session in sessions {
            let Some(memory) = self.open.get(&session) else { continue };
            let opened = Request::SessionOpened { session, pid: memory.pid, config: self.config.sessions.arena };
            let descriptors = memory.for_replica(index);
            self.send_to_replica(index, &opened, descriptors)?;
        }
        Ok(())
    }

    /// A predecessor may have heard of it, or not.
    fn tell_departed(&mut self, index: usize) -> io::Result<()> {
        let open: Vec<u32> = self.open.keys().copied().collect();
        for session in open {
            let departed: Vec<u8> = self.sessions.departed(session).collect();
            for member in departed {
                self.send_to_replica(index, &Request::MemberGone { session, member }, Vec::new())?;
            }
        }
        Ok(())
    }

    /// Sessions that have ended, and that a replica has not said to be over.
    fn lingering_at(&self, index: usize) -> Vec<(u32, Rc<SessionMemory>)> {
        let of_it = self.lingering.iter().filter(|lingering| lingering.waits_for.contains(&index));
        of_it.map(|lingering| (lingering.session, lingering.memory.clone())).collect()
    }

    /// A server says that it serves.
    pub(super) fn server_ready(&mut self, index: usize) -> io::Result<()> {
        let role = self.role(index);
        let now = Instant::now();
        let Some(server) = self.server_mut(index) else { return Ok(()) };
        let build = server.program.build.name();
        let (epoch, pid) = (server.epoch, server.child.as_ref().map_or(0, Child::pid));
        (server.blamed, server.due_by) = (false, None);
        let recovery = server.life.ready(now);
        if let Some(recovery) = recovery {
            let Recovery { start, ready } = recovery;
            let [start, ready, total] = [start, ready, recovery.total()].map(|time| time.as_secs_f64() * 1000.0);
            eprintln!(
                "atoll: {role} is back (pid {pid}, epoch {epoch}) after {total:.1} ms: {start:.1} until its process was started, \
                 {ready:.1} until it was ready"
            );
            self.succeeded(now, &format!("{role} is of {build} after {total:.1} ms"))?;
        }
        self.note_server(index, true);
        Ok(())
    }

    /// The process of a server has ended, or does not speak to us any more.
    pub(super) fn replica_ended(&mut self, index: usize) -> io::Result<()> {
        let Some(server) = self.server_mut(index).filter(|server| server.control.is_some()) else { return Ok(()) };
        let exit = server.child.as_ref().and_then(|child| child.try_wait().ok().flatten());
        if let (None, Some(child)) = (exit, &server.child) {
            // It closed its socket and still runs, for a moment at least. Its end will be reported with the reason, which this one is only if
            // there is no other.
            let _ = child.kill(Signal::KILL);
            let Some(server) = self.replicas.iter().chain(&self.others).nth(index) else { return Ok(()) };
            return server.control.as_ref().map_or(Ok(()), |control| self.epoll.delete(control).or(Ok(())));
        }
        let pid = server.child.as_ref().map(Child::pid);
        let role = self.role(index);
        if !self.ready {
            let forbidden = self.forbidden_call(index);
            self.ending.get_or_insert(Ending::ServerGone { server: role, pid, exit, forbidden });
            return Ok(());
        }
        let forbidden = self.forbidden_call(index);
        let (how, on_trial) = (death(role, pid, exit, forbidden), self.is_on_trial(index));
        let asked = self.succeed(index, &how)?;
        let Some(server) = self.server_mut(index) else { return Ok(()) };
        let delay = if asked { Duration::ZERO } else { server.life.died(Instant::now()) };
        if asked {
            server.life.left(Instant::now());
        }
        // Somebody else's doing, as far as one can see: a person's, or that of a build that is no good.
        let is_own =
            exit.is_some_and(|exit| !matches!(exit, Exit::Signal(libc::SIGKILL | libc::SIGTERM) | Exit::Unknown));
        server.blamed |= is_own && !asked && !on_trial;
        let (child, control) = (server.child.take(), server.control.take());
        server.outbox = Outbox::default();
        let listings = std::mem::take(&mut server.listings);
        // The guardian has them, too: only so are they out of the set.
        for fd in child.iter().map(AsFd::as_fd).chain(control.iter().map(AsFd::as_fd)) {
            let _ = self.epoll.delete(fd);
        }
        self.note_server(index, true);
        if !asked {
            eprintln!("atoll: {how}; it is started again {}", when(delay));
        }
        for id in listings {
            self.answer(id, &ReportPart::Restarting(role.to_string()))?;
            self.listing_ended(id)?;
        }
        self.tell_others(index, &Request::ServerGone { server: index as u8 })
    }

    /// The system call that has ended a server, if one has.
    fn forbidden_call(&self, index: usize) -> Option<u32> {
        self.memory.servers().nth(index)?.page.forbidden_call()
    }

    /// How long to wait before [`Server::look_after_servers`] is due, in milliseconds.
    pub(super) fn servers_timeout_ms(&self, now: Instant) -> Option<u32> {
        let lives = self.replicas.iter().chain(&self.others).filter_map(|server| server.life.next_timeout());
        let due = lives.chain(self.vigil.map(|(_, due)| due)).chain(self.upgrade_due()).min()?;
        // Rounded up: too early is for nothing.
        let left = due.saturating_duration_since(now).as_micros().div_ceil(1000);
        Some(u32::try_from(left).unwrap_or(u32::MAX))
    }

    /// Starts servers that are due, and looks whether others hang. Does nothing before the stack is ready, or when it ends.
    pub(super) fn look_after_servers(&mut self) -> io::Result<()> {
        if !self.ready || self.ending.is_some() {
            return Ok(());
        }
        let now = Instant::now();
        self.go_on_with_upgrade(now)?;
        for index in 0..self.replicas.len() + self.others.len() {
            let role = self.role(index);
            let Some(server) = self.server_mut(index) else { continue };
            if server.life.is_hopeless() {
                self.ending.get_or_insert(Ending::CannotStart(role));
                return Ok(());
            }
            if server.life.is_overdue(now)
                && let Some(child) = &server.child
            {
                let _ = child.kill(Signal::KILL);
            }
            if server.life.is_due(now) {
                self.restart(index)?;
            }
        }
        self.keep_vigil(now)
    }

    /// Kills servers that hang. Their ends are noticed as those of others are.
    fn keep_vigil(&mut self, now: Instant) -> io::Result<()> {
        let Some((vigil, due)) = &mut self.vigil else { return Ok(()) };
        if now < *due {
            return Ok(());
        }
        // Not from when it was due: who was late does not look twice at once.
        *due = now + vigil.period;
        let vigil = *vigil;
        for (index, memory) in self.memory.servers().enumerate() {
            let role = self.role(index);
            let Some(server) = (if let Some(at) = index.checked_sub(self.replicas.len()) {
                self.others.get_mut(at)
            } else {
                self.replicas.get_mut(index)
            }) else {
                continue;
            };
            let (Some(child), true) = (&server.child, server.life.is_serving()) else { continue };
            let signs = Signs { heartbeat: memory.page.heartbeat(), sleep_word: memory.page.sleep_word() };
            let ask = || spawn::look(child.pid()).map(|(_, running)| running);
            match vigil.look(&mut server.watch, signs, ask) {
                Judgement::Wait => {}
                Judgement::Ring => eventfd::ring(&*memory.bell)?,
                Judgement::Hangs => {
                    server.blamed = ask().is_none_or(|running| running.state != 'T');
                    let millis = self.config.recovery.hang_ms;
                    eprintln!(
                        "atoll: {role} (pid {}) has given no sign of life for {millis} ms: it is killed",
                        child.pid()
                    );
                    let _ = child.kill(Signal::KILL);
                    server.watch = Watch::default();
                }
            }
        }
        Ok(())
    }

    fn restart(&mut self, index: usize) -> io::Result<()> {
        let (role, count) = (self.role(index), self.replicas.len());
        let mut epochs: Vec<u32> = self.replicas.iter().chain(&self.others).map(|server| server.epoch).collect();
        let Some(epoch) = epochs.get_mut(index) else { return Ok(()) };
        *epoch += 1;
        let epoch = *epoch;
        let Some(program) = self.server_mut(index).map(|server| server.program.clone()) else { return Ok(()) };
        let Some(launcher) = &mut self.launcher else { return Ok(()) };
        let launched = launcher.launch(index, &program, &epochs, &self.config, &self.identity, &self.memory);
        let Some(server) =
            (if index < count { self.replicas.get_mut(index) } else { self.others.get_mut(index - count) })
        else {
            return Ok(());
        };
        let (child, control) = match launched {
            Ok(launched) => launched,
            Err(failure) => {
                let delay = server.life.not_started(Instant::now());
                eprintln!("atoll: {role}: {failure}; it is tried again {}", when(delay));
                return self.succeed(index, &format!("{role}: {failure}")).map(|_| ());
            }
        };
        self.epoll.add(&control, REPLICA_CONTROL + index as u64, EventFlags::IN)?;
        if let Some(child) = &child {
            self.epoll.add(child, REPLICA_PROCESS + index as u64, EventFlags::IN)?;
        }
        server.life.started(Instant::now());
        (server.child, server.control, server.epoch) = (child, Some(control), epoch);
        self.has_started(index, Instant::now());
        // It dies with this supervisor as long as the next one would not know of it.
        self.note_server(index, false);
        self.brief(index)?;
        self.announce_restart(index)?;
        self.note_server(index, true);
        Ok(())
    }

    /// The others hear that a server was started.
    pub(super) fn announce_restart(&mut self, index: usize) -> io::Result<()> {
        let Some(epoch) = self.server_mut(index).map(|server| server.epoch) else { return Ok(()) };
        self.tell_others(index, &Request::ServerRestarted { server: index as u8, epoch })
    }

    fn tell_others(&mut self, index: usize, request: &Request) -> io::Result<()> {
        for other in (0..self.replicas.len() + self.others.len()).filter(|other| *other != index) {
            self.send_to_replica(other, request, Vec::new())?;
        }
        Ok(())
    }
}

fn when(delay: Duration) -> String {
    if delay.is_zero() { "at once".into() } else { format!("in {} ms", delay.as_millis()) }
}

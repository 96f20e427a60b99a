//! What does the supervisor do when a server has died? It starts the next one on the same memory, tells it all that there is, and tells the others.
//!
//! The process is certainly gone before: that is the fence behind which the successor may touch what it has left.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use atoll_ipc::control::Request;
use atoll_supervisor::{Component, ReportPart};
use atoll_sys::epoll::EventFlags;
use atoll_sys::eventfd;
use atoll_sys::process::{Exit, Signal};

use super::death;
use super::life::Recovery;
use super::outbox::Outbox;
use super::spawn;
use super::supervisor::{Ending, FIRST_EPOCH, REPLICA_CONTROL, REPLICA_PROCESS, Supervisor};
use super::watchdog::{Judgement, Signs, Watch};
use crate::failure::{EXIT_OF_SHORTAGE, Failure, OrFail};

impl Supervisor {
    /// Tells a new process what it has to know before it serves, and that this is all. It says that it is ready then.
    pub(super) fn brief(&mut self, index: usize) -> io::Result<()> {
        let is_replica = index < self.replicas.len();
        let sessions = if is_replica { self.told_at(index) } else { BTreeSet::new() };
        sessions.iter().try_for_each(|session| self.tell_opened(index, *session))?;
        if self.config.notation.plan().servers_of(Component::Cm).any(|server| server == index) {
            let rules = self.config.accept.rules();
            self.send_to_replica(index, &Request::Balance { rules }, Vec::new())?;
        }
        if is_replica {
            // Before it adopts: what predecessors hold counts.
            self.tell_memory(index)?;
        }
        let blamed = self.server_mut(index).is_some_and(|server| server.blamed);
        self.send_to_replica(index, &Request::Adopt { blamed }, Vec::new())?;
        if let Some(version) = self.ledger_wanted(index) {
            self.send_to_replica(index, &Request::WriteLedger { version }, Vec::new())?;
        }
        sessions.into_iter().try_for_each(|session| self.tell_departed(index, session))
    }

    /// A server says that it serves.
    pub(super) fn server_ready(&mut self, index: usize) -> io::Result<()> {
        let role = self.role(index);
        let now = Instant::now();
        let Some(server) = self.server_mut(index) else { return Ok(()) };
        let build = server.program.build.name();
        let (epoch, pid) = (server.epoch, server.child.as_ref().map_or(0, |child| child.pid()));
        (server.blamed, server.is_leaving, server.due_by) = (false, false, None);
        let later = match server.untold.len() {
            0 => String::new(),
            count => format!("; of {count} sessions it hears now"),
        };
        let recovery = server.life.ready(now);
        if let Some(recovery) = recovery {
            let Recovery { start, ready, is_move } = recovery;
            let [start, ready, total] = [start, ready, recovery.total()].map(|time| time.as_secs_f64() * 1000.0);
            if is_move {
                say!("{role} goes on in another process (pid {pid}, epoch {epoch}) after {total:.1} ms");
            } else {
                say!(
                    "{role} is back (pid {pid}, epoch {epoch}) after {total:.1} ms: {start:.1} until its process was started, \
                     {ready:.1} until it was ready{later}"
                );
            }
            self.succeeded(now, &format!("{role} is of {build} after {total:.1} ms"))?;
        }
        self.note_server(index, true);
        Ok(())
    }

    /// The process of a server has ended, or does not speak to us any more.
    pub(super) fn replica_ended(&mut self, index: usize) -> io::Result<()> {
        let Some(server) = self.server_mut(index).filter(|server| server.control.is_some()) else { return Ok(()) };
        if let Some(key) = server.host {
            // Nothing more is to be heard here until the process has ended.
            let control = self.replicas.get(index).and_then(|replica| replica.control.as_ref());
            let _ = control.map_or(Ok(()), |control| self.epoll.delete(control));
            return self.host_broke(key);
        }
        let exit = server.child.as_ref().and_then(|child| child.try_wait().ok().flatten());
        if let (None, Some(child)) = (exit, &server.child) {
            // It closed its socket and still runs, for a moment at least. Its end will be reported with the reason, which this one is only if
            // there is no other.
            let _ = child.kill(Signal::KILL);
            let Some(server) = self.replicas.iter().chain(&self.others).nth(index) else { return Ok(()) };
            return server.control.as_ref().map_or(Ok(()), |control| self.epoll.delete(control).or(Ok(())));
        }
        let pid = server.child.as_ref().map(|child| child.pid());
        let forbidden = self.memory.servers().nth(index).and_then(|memory| memory.page.forbidden_call());
        self.server_ended(index, pid, exit, forbidden)
    }

    /// A server is gone. `forbidden`: the system call that has ended it, if one has.
    pub(super) fn server_ended(
        &mut self,
        index: usize,
        pid: Option<u32>,
        exit: Option<Exit>,
        forbidden: Option<u32>,
    ) -> io::Result<()> {
        let role = self.role(index);
        self.hear_last_words(|speaker| Some(speaker) == pid);
        if !self.ready {
            self.ending.get_or_insert(Ending::ServerGone { server: role, pid, exit, forbidden });
            return Ok(());
        }
        let (how, on_trial) = (death(role, pid, exit, forbidden), self.is_on_trial(index));
        let asked = self.succeed(index, &how)?;
        let Some(server) = self.server_mut(index) else { return Ok(()) };
        let delay = if asked { Duration::ZERO } else { server.life.died(Instant::now()) };
        if asked {
            server.life.left(Instant::now());
        }
        // Somebody else's doing, as far as one can see: a person's, or that of a build that is no good.
        let is_own = exit.is_some_and(|exit| {
            let is_short = exit == Exit::Code(EXIT_OF_SHORTAGE);
            !is_short && !matches!(exit, Exit::Signal(libc::SIGKILL | libc::SIGTERM) | Exit::Killed | Exit::Unknown)
        });
        server.blamed |= is_own && !asked && !on_trial;
        if !asked {
            say!("{how}; it is started again {}", when(delay));
        }
        self.forget_process(index)
    }

    /// A server has no process any more. Who waits for it is told.
    pub(super) fn forget_process(&mut self, index: usize) -> io::Result<()> {
        let role = self.role(index);
        let Some(server) = self.server_mut(index) else { return Ok(()) };
        // That of replicas is watched as such.
        let child = server.child.take().filter(|_| server.host.is_none());
        let control = server.control.take();
        (server.host, server.outbox, server.untold) = (None, Outbox::default(), BTreeSet::new());
        (server.is_leaving, server.due_by) = (false, None);
        let lists = std::mem::take(&mut server.lists);
        // The guardian has them, too: only so are they out of the set.
        for fd in child.iter().map(|child| (**child).as_fd()).chain(control.iter().map(AsFd::as_fd)) {
            let _ = self.epoll.delete(fd);
        }
        self.note_server(index, true);
        if lists {
            self.tell_hearers(&ReportPart::Restarting(role.to_string()))?;
            self.listing_goes_on()?;
        }
        self.tell_others(index, &Request::ServerGone { server: index as u8 })
    }

    /// How long to wait before [`Supervisor::look_after_servers`] is due, in milliseconds.
    pub(super) fn servers_timeout_ms(&self, now: Instant) -> Option<u32> {
        let lives = self.replicas.iter().chain(&self.others).filter_map(|server| server.life.next_timeout());
        let others = [
            self.hosts.next_timeout(),
            self.dying.next_timeout(),
            self.scaling.next_timeout(),
            self.standby_due(),
            self.stops.as_ref().map(|stops| stops.due),
            self.watchdog.map(|(_, due)| due),
            self.retry_due(),
            self.telling_due(),
            self.slowed_until(),
            self.questions.next_timeout(),
            self.gauge.as_ref().map(|gauge| gauge.look_at),
            self.words.next_timeout(),
        ];
        // Before the stack is ready nobody looks at these.
        let others = others.into_iter().flatten().filter(|_| self.ready);
        let due = lives.chain(others).chain(self.upgrade_due()).min()?;
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
            let Some(server) = self.server_mut(index) else { continue };
            if server.life.is_overdue(now)
                && let Some(child) = &server.child
            {
                let _ = child.kill(Signal::KILL);
            }
            if server.life.is_due(now) {
                self.restart(index)?;
            }
        }
        self.hosts.look_after(now);
        self.dying.reap(now);
        self.look_after_scaling(now)?;
        self.look_after_standby(now)?;
        self.look_for_stopped(now);
        // What a start has left of it is kept back for the next one.
        self.reserve.refill();
        self.retry_sends(now)?;
        self.tell_some(now)?;
        self.let_slowed_go_on(now)?;
        self.answer_questions(now)?;
        self.look_at_memory(now)?;
        self.keep_vigil(now)
    }

    /// Kills servers that hang. Their ends are noticed as those of others are.
    fn keep_vigil(&mut self, now: Instant) -> io::Result<()> {
        let Some((watchdog, due)) = &mut self.watchdog else { return Ok(()) };
        if now < *due {
            return Ok(());
        }
        // Not from when it was due: who was late does not look twice at once.
        *due = now + watchdog.period;
        let watchdog = *watchdog;
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
            match watchdog.look(&mut server.watch, signs, ask) {
                Judgement::Wait => {}
                Judgement::Ring => eventfd::ring(&*memory.bell)?,
                Judgement::Hangs => {
                    // Standing still was somebody else's doing.
                    server.blamed = ask().is_none_or(|running| !matches!(running.state, 'T' | 't'));
                    let millis = self.config.recovery.hang_ms;
                    say!("{role} (pid {}) has given no sign of life for {millis} ms: it is killed", child.pid());
                    let _ = child.kill(Signal::KILL);
                    server.watch = Watch::default();
                }
            }
        }
        Ok(())
    }

    /// Starts a server as its next incarnation: a process of its own, or a replica in the process that it is to be in.
    pub(super) fn start(&mut self, index: usize) -> Result<(), Failure> {
        self.reserve.release();
        let Some(at) = index.checked_sub(self.replicas.len()) else { return self.place(index) };
        let (epoch, epochs) = self.next_epoch(index);
        let (Some(launcher), Some(server)) = (&mut self.launcher, self.others.get_mut(at)) else { return Ok(()) };
        let (mut child, control) =
            launcher.launch(index, &server.program, &epochs, &self.config, &self.identity, &self.memory)?;
        let watched = self.epoll.add(&control, REPLICA_CONTROL + index as u64, EventFlags::IN).and_then(|()| {
            child.as_ref().map_or(Ok(()), |child| {
                self.epoll.add(child, REPLICA_PROCESS + index as u64, EventFlags::IN).inspect_err(|_| {
                    let _ = self.epoll.delete(&control);
                })
            })
        });
        if watched.is_err()
            && let Some(child) = &child
        {
            // Nobody would see its end.
            let _ = child.kill(Signal::KILL);
            let _ = child.wait();
        }
        watched.or_fail("watching a server")?;
        let pipe = child.as_mut().and_then(|child| Some((child.pid(), child.take_errors()?)));
        (server.child, server.control, server.epoch) = (child.map(Rc::new), Some(control), epoch);
        self.hear_of(pipe);
        Ok(())
    }

    /// The incarnation of a server that is to be started, and those of all, by number, as they are then.
    pub(super) fn next_epoch(&self, index: usize) -> (u32, Vec<u32>) {
        // Those that have none yet are about to have their first one.
        let epochs = self.replicas.iter().chain(&self.others).map(|server| server.epoch.max(FIRST_EPOCH));
        let mut epochs: Vec<u32> = epochs.collect();
        let mut own = FIRST_EPOCH;
        if let (Some(epoch), Some(server)) =
            (epochs.get_mut(index), self.replicas.iter().chain(&self.others).nth(index))
        {
            *epoch = server.epoch + 1;
            own = *epoch;
        }
        (own, epochs)
    }

    fn restart(&mut self, index: usize) -> io::Result<()> {
        let role = self.role(index);
        let started = self.start(index);
        let now = Instant::now();
        let Some(server) = self.server_mut(index) else { return Ok(()) };
        if let Err(failure) = started {
            let (delay, is_news) = server.life.not_started(now, &failure);
            if is_news {
                let again = if failure.is_shortage() { "until that has passed".into() } else { when(delay) };
                say!("{role}: {failure}; it is tried again {again}");
            }
            return self.succeed(index, &format!("{role}: {failure}")).map(|_| ());
        }
        server.life.started(now);
        self.has_started(index, now);
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

//! Replaces servers that have died: starts the successor on the same memory, gives it everything it needs,
//! and notifies the others.
//!
//! The dead process has certainly stopped executing before: only then may the successor touch what it has
//! left.

use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;

use atoll_base::{Duration, Instant};
use atoll_ipc::control::{MemoryLevel, Request};
use atoll_supervisor::{Component, Judgement, LifeRecovery as Recovery, ReportPart, Signs};
use atoll_sys::epoll::EventFlags;
use atoll_sys::eventfd;
use atoll_sys::process::{Exit, Signal};

use super::Supervisor;
use crate::clock;
use crate::failure::{Failure, OrFail};
use crate::supervise::ending::{Ending, HowEnded, Role, death, fault_of};
use crate::supervise::gauge::Gauge;
use crate::supervise::launch::Stack;
use crate::supervise::servers::{Employment, Ended, ServerSlot};
use crate::supervise::spawn;
use crate::{log, rows, setup};

impl Supervisor {
    /// Sends a new process everything that it needs before it serves, and then [`Request::Adopt`]. The
    /// process reports later that it is ready.
    pub(super) fn brief(&mut self, index: usize) -> io::Result<()> {
        let is_replica = self.servers.is_replica(index);
        let sessions = if is_replica { self.told_at(index) } else { BTreeSet::new() };
        sessions.iter().try_for_each(|session| self.tell_opened(index, *session))?;
        if self.config.notation.plan().servers_of(Component::Cm).any(|server| server == index) {
            let rules = self.config.accept.rules();
            self.servers.send(index, &Request::Balance { rules }, Vec::new())?;
        }
        if is_replica {
            // It comes before the adoption, because what predecessors hold counts.
            self.tell_memory(index)?;
        }
        let blamed = self.servers.get(index).is_some_and(|server| server.record().is_blamed());
        self.servers.send(index, &Request::Adopt { blamed }, Vec::new())?;
        if let Some(version) = self.ledger_wanted(index) {
            self.servers.send(index, &Request::WriteLedger { version }, Vec::new())?;
        }
        sessions.into_iter().try_for_each(|session| self.tell_departed(index, session))
    }

    /// Handles a server's report that it serves.
    pub(super) fn server_ready(&mut self, index: usize) -> io::Result<()> {
        let role = Role::of(&self.config.notation.plan(), index);
        let now = clock::now();
        let Some(server) = self.servers.get_mut(index) else { return Ok(()) };
        let build = server.program().build.name();
        let (epoch, pid) = (server.record().epoch(), server.pid().unwrap_or(0));
        let sessions_later = server.untold().len();
        let recovery = server.record_mut().ready(now);
        if let Some(recovery) = recovery {
            let Recovery { start, ready, is_move } = recovery;
            let [start_ms, ready_ms, ms] = [start, ready, recovery.total()].map(log::millis);
            if is_move {
                event!(
                    server_moved,
                    { role = role.kind(), index = role.number(), pid, epoch, ms },
                    "{role} goes on in another process (pid {pid}, epoch {epoch}) after {ms:.1} ms"
                );
            } else {
                let later = match sessions_later {
                    0 => String::new(),
                    count => format!("; of {count} sessions it hears now"),
                };
                event!(
                    server_back,
                    {
                        role = role.kind(), index = role.number(), pid, epoch, ms, start_ms, ready_ms,
                        sessions_later,
                    },
                    "{role} is back (pid {pid}, epoch {epoch}) after {ms:.1} ms: {start_ms:.1} until its \
                     process was started, {ready_ms:.1} until it was ready{later}"
                );
            }
            self.succeeded(now, role, &build, ms)?;
        }
        self.note_server(index, true);
        Ok(())
    }

    /// Handles messages of a server, and sends it what its socket takes now.
    pub(super) fn server_spoke(&mut self, index: usize, flags: EventFlags) -> io::Result<()> {
        if flags.contains(EventFlags::OUT) {
            self.servers.flush(index);
        }
        let mut buffer = vec![0; REPLICA_PACKET_MAX];
        let mut strangers = Vec::new();
        for _ in 0..REQUESTS_PER_TURN {
            strangers.clear();
            // Its end may have been noticed in the same turn.
            let Some(received) = self.servers.receive(index, &mut buffer, &mut strangers) else {
                return Ok(());
            };
            let len = match received {
                Ok(0) => return self.server_broke(index),
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => continue,
                Err(_) => return self.server_broke(index),
            };
            let packet = &buffer[..len];
            if packet == setup::READY {
                self.server_ready(index)?;
            } else if packet == setup::LEFT {
                // When another server leaves, the end of its process follows.
                self.replica_left(index)?;
            } else if let Some(session) = setup::is_over(packet) {
                if self.books.over(index, session) {
                    self.note_session(session);
                }
            } else if let Some(session) = setup::is_cut_off(packet) {
                self.cut_off(index, session)?;
            } else if packet == rows::END {
                self.servers.has_listed(index);
                self.listing_goes_on()?;
            } else if self.servers.get(index).is_some_and(ServerSlot::lists) {
                self.pass_rows(packet)?;
            }
        }
        Ok(())
    }

    /// Handles the end of a server's process, or of the connection to it.
    pub(super) fn server_broke(&mut self, index: usize) -> io::Result<()> {
        let Some(server) = self.servers.get(index).filter(|server| !server.is_down()) else { return Ok(()) };
        if let Some(key) = server.host() {
            self.servers.stop_listening(index);
            return self.host_broke(key);
        }
        let Some(Ended { pid, exit }) = self.servers.broke(index) else { return Ok(()) };
        let forbidden = self.memory.servers().get(index).and_then(|memory| memory.page.forbidden_call());
        self.server_ended(index, pid, exit, forbidden)
    }

    /// Handles the death of a server. `forbidden` is the system call that has ended it, if one has.
    pub(super) fn server_ended(
        &mut self,
        index: usize,
        pid: Option<u32>,
        exit: Option<Exit>,
        forbidden: Option<u32>,
    ) -> io::Result<()> {
        let role = Role::of(&self.config.notation.plan(), index);
        self.hear_last_words(|speaker| Some(speaker) == pid);
        if !self.course.is_ready() {
            self.course.end(Ending::ServerGone { server: role, pid, exit, forbidden });
            return Ok(());
        }
        let (how, on_trial) = (death(role, pid, exit, forbidden), self.is_on_trial(index));
        let asked = self.succeed(index, &how)?;
        let Some(server) = self.servers.get_mut(index) else { return Ok(()) };
        let delay = server.record_mut().ended(clock::now(), fault_of(exit), asked, on_trial);
        if !asked {
            let HowEnded { exit, signal, status, call } = HowEnded::of(exit, forbidden);
            event!(
                server_ended,
                {
                    role = role.kind(), index = role.number(), pid, exit, signal, status, call,
                    retry_ms = log::millis(delay),
                },
                "{how}; it is started again {}",
                when(delay)
            );
        }
        self.forget_process(index)
    }

    /// Removes the process of a server, and notifies those that wait for it.
    pub(super) fn forget_process(&mut self, index: usize) -> io::Result<()> {
        let role = Role::of(&self.config.notation.plan(), index);
        let lists = self.servers.dismiss(index);
        self.note_server(index, true);
        if lists {
            self.tell_hearers(&ReportPart::Restarting(role.to_string()))?;
            self.listing_goes_on()?;
        }
        self.servers.tell_others(index, &Request::ServerGone { server: index as u8 })
    }

    /// Returns how many milliseconds to wait before [`Supervisor::look_after_servers`] is due.
    pub(super) fn servers_timeout_ms(&self, now: Instant) -> Option<u32> {
        let lives = self.servers.all().iter().filter_map(|server| server.record().next_timeout());
        let others = [
            self.hosts.next_timeout(),
            self.placement.next_timeout(),
            self.standby_due(),
            self.health.next_timeout(),
            self.clients.retry_due(),
            self.servers.retry_due(),
            self.servers.telling_due(),
            self.clients.slowed_until(),
            self.clients.questions().next_timeout(),
            self.gauge.as_ref().map(|gauge| gauge.next_timeout()),
            self.words.next_timeout(),
        ];
        // These are not checked before the stack is ready.
        let others = others.into_iter().flatten().filter(|_| self.course.is_ready());
        let due = lives.chain(others).chain(self.upgrade_due()).min()?;
        // The time is rounded up, because to come too early is useless.
        let left = due.since(now).as_micros().div_ceil(1000);
        Some(u32::try_from(left).unwrap_or(u32::MAX))
    }

    /// Starts servers that are due, and checks whether others hang. Does nothing before the stack is ready,
    /// or when it ends.
    pub(super) fn look_after_servers(&mut self) -> io::Result<()> {
        if !self.course.is_ready() || self.course.ending().is_some() {
            return Ok(());
        }
        let now = clock::now();
        self.go_on_with_upgrade(now)?;
        for index in self.servers.numbers() {
            let Some(server) = self.servers.get(index) else { continue };
            if server.record().is_overdue(now) {
                server.kill();
            }
            if server.record().is_due(now) {
                self.restart(index)?;
            }
        }
        self.hosts.look_after(now);
        self.look_after_scaling(now)?;
        self.look_after_standby(now)?;
        self.look_for_stopped(now);
        // What a start has left of the reserved descriptors is reserved for the next one.
        self.starts.refill();
        self.servers.retry(now)?;
        self.clients.retry(now)?;
        self.tell_some(now)?;
        self.clients.let_slowed_go_on(now)?;
        self.answer_questions(now)?;
        self.look_at_memory(now)?;
        self.keep_vigil(now)
    }

    /// Starts to measure memory, and notifies the replicas of the result.
    pub fn watch_memory(&mut self) -> io::Result<()> {
        self.gauge = Some(Gauge::open(clock::now(), self.config.memory_limit));
        self.servers.replica_numbers().try_for_each(|index| self.tell_memory(index))
    }

    /// Notifies a replica of the level of memory, and of its share of the receive buffers.
    pub(super) fn tell_memory(&mut self, index: usize) -> io::Result<()> {
        let Some(gauge) = &self.gauge else { return Ok(()) };
        let buffers_max = gauge.buffers_max() / self.servers.replica_count().max(1) as u64;
        self.servers.send(index, &Request::Memory { level: gauge.level(), buffers_max }, Vec::new())
    }

    /// Measures memory if it is due, and notifies the replicas if the level has changed.
    pub(super) fn look_at_memory(&mut self, now: Instant) -> io::Result<()> {
        let Some(mut gauge) = self.gauge.take_if(|gauge| now >= gauge.next_timeout()) else { return Ok(()) };
        let has_changed = gauge.look(now, || self.memory_used());
        let level = gauge.level();
        self.gauge = Some(gauge);
        if !has_changed {
            return Ok(());
        }
        match level {
            MemoryLevel::Plenty => event!(memory_enough, "there is enough memory again"),
            MemoryLevel::Pressure => event!(memory_short, "memory is short: buffers are kept small"),
            MemoryLevel::High => event!(
                memory_used_up,
                "memory is used up: nothing new is accepted, and who stands still is reset"
            ),
        }
        self.servers.replica_numbers().try_for_each(|index| self.tell_memory(index))
    }

    /// Kills servers that hang. Their ends are noticed as those of others are.
    fn keep_vigil(&mut self, now: Instant) -> io::Result<()> {
        let Some(watchdog) = self.health.watchdog(now) else { return Ok(()) };
        for (index, memory) in self.memory.servers().iter().enumerate() {
            let role = Role::of(&self.config.notation.plan(), index);
            let Some(server) = self.servers.get_mut(index) else { continue };
            let (Some(pid), true) = (server.pid(), server.record().is_serving()) else { continue };
            let signs = Signs { heartbeat: memory.page.heartbeat(), sleep_word: memory.page.sleep_word() };
            let ask = || spawn::look(pid).map(|(_, running)| running);
            match server.record_mut().look(watchdog, signs, ask) {
                Judgement::Wait => {}
                Judgement::Ring => eventfd::ring(&*memory.bell)?,
                Judgement::Hangs => {
                    let ms = self.config.recovery.hang_ms;
                    event!(
                        server_hangs,
                        { role = role.kind(), index = role.number(), pid, ms },
                        "{role} (pid {pid}) has given no sign of life for {ms} ms: it is killed"
                    );
                    server.kill();
                }
            }
        }
        Ok(())
    }

    /// Starts a server as its next incarnation: in a process of its own or, for a replica, in the process
    /// that it is to be in.
    pub(super) fn start(&mut self, index: usize) -> Result<(), Failure> {
        self.starts.release();
        if self.servers.is_replica(index) {
            return self.place(index);
        }
        let (epoch, epochs) = self.servers.next_epoch(index);
        let launcher = self.starts.launcher()?;
        let stack = Stack { config: &self.config, identity: &self.identity, memory: &self.memory };
        let Some(server) = self.servers.get(index) else { return Ok(()) };
        let (mut child, control) = launcher.launch(index, server.program(), &epochs, &stack)?;
        let pipe = child.as_mut().and_then(|child| Some((child.pid(), child.take_errors()?)));
        let child = child.map(Rc::new);
        let employed = self.servers.employ(index, Employment { host: None, child: child.clone(), control });
        if employed.is_err()
            && let Some(child) = &child
        {
            // Its end would not be noticed.
            let _ = child.kill(Signal::KILL);
            let _ = child.wait();
        }
        employed.or_fail("watching a server")?;
        if let Some(server) = self.servers.get_mut(index) {
            server.record_mut().born(epoch);
        }
        self.hear_of(pipe);
        Ok(())
    }

    fn restart(&mut self, index: usize) -> io::Result<()> {
        let role = Role::of(&self.config.notation.plan(), index);
        let started = self.start(index);
        let now = clock::now();
        let on_trial = self.is_on_trial(index);
        let Some(server) = self.servers.get_mut(index) else { return Ok(()) };
        if let Err(failure) = started {
            let (delay, is_news) = server.record_mut().not_started(now, failure.shortage());
            if is_news {
                let shortage = failure.is_shortage();
                let again = if shortage { "until that has passed".into() } else { when(delay) };
                let retry_ms = (!shortage).then(|| log::millis(delay));
                event!(
                    server_not_started,
                    {
                        role = role.kind(), index = role.number(), error = failure.to_string(), shortage,
                        retry_ms,
                    },
                    "{role}: {failure}; it is tried again {again}"
                );
            }
            return self.succeed(index, &format!("{role}: {failure}")).map(|_| ());
        }
        server.record_mut().started(now, on_trial);
        let (pid, epoch) = (server.pid(), server.record().epoch());
        event!(
            server_started,
            { role = role.kind(), index = role.number(), pid, epoch },
            "{role} is started (epoch {epoch})"
        );
        // It dies with this supervisor as long as the next one would not know of it.
        self.note_server(index, false);
        self.brief(index)?;
        self.announce_restart(index)?;
        self.note_server(index, true);
        Ok(())
    }

    /// Notifies the other servers that a server was started.
    pub(super) fn announce_restart(&mut self, index: usize) -> io::Result<()> {
        let Some(epoch) = self.servers.get(index).map(|server| server.record().epoch()) else {
            return Ok(());
        };
        self.servers.tell_others(index, &Request::ServerRestarted { server: index as u8, epoch })
    }
}

fn when(delay: Duration) -> String {
    if delay.is_zero() { "at once".into() } else { format!("in {} ms", delay.as_millis()) }
}

/// The number of requests that are taken from one server before the others get their turn.
const REQUESTS_PER_TURN: usize = 16;
/// The longest packet of a replica, in bytes.
const REPLICA_PACKET_MAX: usize = 256 << 10;

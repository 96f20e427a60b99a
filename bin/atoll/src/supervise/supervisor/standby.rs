//! Keeps a standby process. `atoll_supervisor::Standby` decides when one is started, and whether it is of
//! use.

use std::io;
use std::rc::Rc;

use atoll_base::Instant;
use atoll_ipc::page::Stat;
use atoll_supervisor::{RecoveryMode, StandbyAction as Action, There, is_enough, memory_for};
use atoll_sys::process::Exit;
use atoll_sys::sched;

use super::Supervisor;
use crate::clock;
use crate::log;
use crate::supervise::ending::{HowEnded, ending_of};
use crate::supervise::hosts::Host;
use crate::supervise::program::Program;
use crate::supervise::setups::Duty;
use crate::supervise::setups::cpu_of;
use crate::supervise::spawn;

impl Supervisor {
    /// Returns the pid of the standby, once it is ready.
    pub(super) fn standby_pid(&self) -> Option<u32> {
        self.hosts.get(self.hosts.standby()?).filter(|host| host.is_up())?.pid()
    }

    /// Returns the build that all replicas are of, if they serve and nothing is about to change that.
    fn settled_build(&self) -> Option<Rc<Program>> {
        let first = self.servers.replicas().first()?.program();
        let is_settled = self.config.recovery.standby
            && self.succession.is_none()
            && self
                .servers
                .replicas()
                .iter()
                .all(|replica| replica.record().hears() && Rc::ptr_eq(replica.program(), first));
        is_settled.then(|| first.clone())
    }

    /// Returns when [`Supervisor::look_after_standby`] is due if nothing happens.
    pub(super) fn standby_due(&self) -> Option<Instant> {
        self.settled_build()?;
        self.standby.next_timeout(self.hosts.standby().is_some())
    }

    /// Ensures that there is a standby which is of use.
    pub(super) fn look_after_standby(&mut self, now: Instant) -> io::Result<()> {
        let (program, key) = (self.settled_build(), self.hosts.standby());
        let there = key.and_then(|key| self.hosts.get(key)).map(|host| There {
            is_of_build: program.as_ref().is_some_and(|program| Rc::ptr_eq(host.program(), program)),
            is_fit: !self.standby.is_look_due(now) || self.is_fit(host),
        });
        let action = self.standby.poll(now, program.is_some(), there);
        match (action, program, key) {
            (Some(Action::Start), Some(program), _) => self.start_standby(now, &program),
            (Some(Action::Kill), _, Some(key)) => self.hosts.kill(key),
            (Some(Action::Dismiss), _, Some(key)) => self.close_host_if_idle(key, now),
            _ => {}
        }
        Ok(())
    }

    fn start_standby(&mut self, now: Instant, program: &Rc<Program>) {
        let duty = Duty::Standby { memory: self.memory_for_next() };
        match self.open_host(duty, program) {
            Ok(_) => self.standby.started(now),
            Err(failure) => {
                let (delay, is_news) = self.standby.not_started(now, failure.shortage());
                if is_news {
                    event!(
                        standby_not_started,
                        {
                            error = failure.to_string(),
                            shortage = failure.is_shortage(),
                            retry_ms = log::millis(delay),
                        },
                        "no process stands by: {failure}; it is tried again in {} ms",
                        delay.as_millis()
                    );
                }
            }
        }
    }

    /// Returns whether the standby waits as it should, and has as much memory as it would need now.
    fn is_fit(&self, host: &Host) -> bool {
        let Some(memory) = host.memory() else { return false };
        is_awaiting(host) && is_enough(memory, self.memory_for_next())
    }

    /// Returns how many bytes of memory of its own a process needs that takes over the replicas of any other
    /// one.
    fn memory_for_next(&self) -> u64 {
        let mut connections = vec![0u64; self.servers.replica_count()];
        for (index, memory) in self.memory.replicas().iter().enumerate() {
            if let Some(sum) = connections.get_mut(self.process_of(index)) {
                // The replica reports the number itself, so it may be wrong.
                *sum = sum.saturating_add(memory.page.stat(Stat::Connections));
            }
        }
        let most =
            connections.into_iter().max().filter(|_| self.config.recovery.mode == RecoveryMode::Stateful);
        memory_for(most.unwrap_or(0))
    }

    /// Makes the standby the process with this number, if it is of this build and well. Returns its key.
    pub(super) fn call_standby(&mut self, number: usize, program: &Rc<Program>) -> Option<usize> {
        let key = self.hosts.standby()?;
        let host = self.hosts.get(key).filter(|host| host.is_up() && Rc::ptr_eq(host.program(), program))?;
        let is_well = is_awaiting(host) && self.goes_where_it_is_to_be(host, number);
        if !is_well {
            self.hosts.kill(key);
            return None;
        }
        self.hosts.appoint(key, number);
        self.standby.absent(clock::now());
        // The next supervisor must know of the standby before the order to outlive this supervisor leaves.
        self.note_host(key);
        Some(key)
    }

    /// Moves the standby, which may run on any processor, to that of process `number`. Returns whether that
    /// was possible.
    fn goes_where_it_is_to_be(&self, host: &Host, number: usize) -> bool {
        match (host.pid(), cpu_of(&self.config, number)) {
            (Some(pid), Some(cpu)) => sched::set_affinity_of(pid, &[cpu]).is_ok(),
            _ => true,
        }
    }

    /// Handles the end of the standby.
    pub(super) fn standby_ended(&mut self, pid: Option<u32>, exit: Option<Exit>, forbidden: Option<u32>) {
        self.hear_last_words(|speaker| Some(speaker) == pid);
        let delay = self.standby.died(clock::now());
        let how = ending_of("the process that stands by", pid, exit, forbidden);
        let HowEnded { exit, signal, status, call } = HowEnded::of(exit, forbidden);
        event!(
            standby_ended,
            { pid, exit, signal, status, call, retry_ms = log::millis(delay) },
            "{how}; another one is started in {} ms",
            delay.as_millis()
        );
    }
}

/// Returns whether a process waits as it should. One that is stopped, or about to end, would keep its
/// replicas waiting.
fn is_awaiting(host: &Host) -> bool {
    let Some(pid) = host.pid() else { return true };
    spawn::look(pid).is_some_and(|(_, running)| matches!(running.state, 'R' | 'S'))
}

//! Who goes on when a process of replicas has died? One that is there already: started, confined, and with memory of its own, but without a replica.
//!
//! ```text
//!   a replica's process dies -> its replicas are given to the one that stands by, which gets the number of the dead one
//!   all replicas serve again -> after a while, another one is started to stand by
//! ```
//! There is at most one, of the build that all replicas are of; while they are not all of one, none is started. It is noted nowhere and ends with
//! this supervisor, until it is given a replica: then it is a process like others. If there is none, or it does not seem to be well, a process is
//! started as if there were no such thing.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use atoll_ipc::page::Stat;
use atoll_supervisor::RecoveryMode;
use atoll_sys::process::Exit;
use atoll_sys::sched;

use super::hosts::Host;
use super::launch::Duty;
use super::life::Life;
use super::succession::Program;
use super::supervisor::Supervisor;
use super::{cpu_of, ending_of, spawn};

/// When one is to be started, and looked at. Lost with the supervisor.
#[derive(Debug)]
pub struct Standby {
    /// Of those that stood by one after another, as long as they did.
    life: Life,
    /// Until when none is started, because somebody has died lately.
    rests_until: Instant,
    /// When the one that is there is looked at.
    look_at: Instant,
}

impl Standby {
    /// Of a stack that starts.
    pub fn new(now: Instant) -> Standby {
        let mut life = Life::new(now);
        life.absent(now);
        Standby { life, rests_until: now + REST, look_at: now }
    }

    /// Not all replicas serve: whatever they need goes first.
    fn disturbed(&mut self, now: Instant) {
        self.rests_until = now + REST;
    }

    /// Whether one is to be started, if there is none and replicas serve.
    fn is_due(&self, now: Instant) -> bool {
        now >= self.rests_until && self.life.is_due(now)
    }

    /// One was started.
    fn started(&mut self, now: Instant) {
        self.life.started(now);
        self.look_at = now + LOOK_EVERY;
    }

    /// It has said that it is up.
    pub fn is_up(&mut self, now: Instant) {
        self.life.ready(now);
    }

    /// It does not stand by any more: it was given a replica, or is to end.
    fn absent(&mut self, now: Instant) {
        self.life.absent(now);
        self.disturbed(now);
    }

    /// Whether it is time to look at it. Not at once again.
    fn looks(&mut self, now: Instant) -> bool {
        let is_time = now >= self.look_at;
        if is_time {
            self.look_at = now + LOOK_EVERY;
        }
        is_time
    }

    /// When to ask again, if nothing happens. `is_there`: there is one.
    fn next_timeout(&self, is_there: bool) -> Option<Instant> {
        if is_there {
            return Some(self.life.next_timeout().map_or(self.look_at, |until| until.min(self.look_at)));
        }
        Some(self.life.next_timeout()?.max(self.rests_until))
    }
}

impl Supervisor {
    /// The process that stands by, once it could be called.
    pub(super) fn standby_pid(&self) -> Option<u32> {
        let host = self.hosts.get(self.hosts.standby()?).filter(|host| host.is_up)?;
        host.child.as_ref().map(|child| child.pid())
    }

    /// The build that all replicas are of, if they serve and nobody is about to change that.
    fn settled_build(&self) -> Option<Rc<Program>> {
        let first = &self.replicas.first()?.program;
        let is_settled = self.config.recovery.standby
            && self.succession.is_none()
            && self.replicas.iter().all(|replica| replica.hears() && Rc::ptr_eq(&replica.program, first));
        is_settled.then(|| first.clone())
    }

    /// When [`Supervisor::look_after_standby`] is due, if nothing happens.
    pub(super) fn standby_due(&self) -> Option<Instant> {
        self.settled_build()?;
        self.standby.next_timeout(self.hosts.standby().is_some())
    }

    /// Sees to it that there is one, which is of use.
    pub(super) fn look_after_standby(&mut self, now: Instant) -> io::Result<()> {
        let Some(program) = self.settled_build() else {
            self.standby.disturbed(now);
            return Ok(());
        };
        let Some(key) = self.hosts.standby() else {
            if self.standby.is_due(now) {
                let duty = Duty::Standby { memory: self.memory_for_next() };
                match self.open_host(duty, &program) {
                    Ok(_) => self.standby.started(now),
                    Err(failure) => {
                        let (delay, is_news) = self.standby.life.not_started(now, &failure);
                        if is_news {
                            let millis = delay.as_millis();
                            say!("no process stands by: {failure}; it is tried again in {millis} ms");
                        }
                    }
                }
            }
            return Ok(());
        };
        if self.standby.life.is_overdue(now) {
            self.hosts.kill(key);
        }
        let Some(host) = self.hosts.get(key) else { return Ok(()) };
        let is_of_use = Rc::ptr_eq(&host.program, &program);
        if !is_of_use || (self.standby.looks(now) && !self.is_fit(host)) {
            self.standby.absent(now);
            return self.close_host_if_idle(key, now);
        }
        Ok(())
    }

    /// Whether the process that stands by does so, and has as much memory as it would need now.
    fn is_fit(&self, host: &Host) -> bool {
        let Duty::Standby { memory } = host.duty else { return false };
        let wanted = self.memory_for_next();
        // The first connections are no reason for another one, and who needs less soon needs more again.
        is_awaiting(host) && wanted <= memory.max(SMALL_BYTES) && wanted >= memory / 4
    }

    /// How much memory of its own a process needs that goes on with the replicas of another one, whichever it is.
    fn memory_for_next(&self) -> u64 {
        let mut connections = vec![0u64; self.replicas.len()];
        for (index, memory) in self.memory.replicas.iter().enumerate() {
            if let Some(sum) = connections.get_mut(self.process_of(index)) {
                // What a replica says of itself it may say wrongly.
                *sum = sum.saturating_add(memory.page.stat(Stat::Connections));
            }
        }
        let most = connections.into_iter().max().filter(|_| self.config.recovery.mode == RecoveryMode::Stateful);
        memory_for(most.unwrap_or(0))
    }

    /// The process that stands by becomes the one with this number, if it is of this build and well. Returns its key.
    pub(super) fn call_standby(&mut self, number: usize, program: &Rc<Program>) -> Option<usize> {
        let key = self.hosts.standby()?;
        let host = self.hosts.get(key).filter(|host| host.is_up && Rc::ptr_eq(&host.program, program))?;
        let is_well = is_awaiting(host) && self.goes_where_it_is_to_be(host, number);
        if !is_well {
            self.hosts.kill(key);
            return None;
        }
        self.hosts.appoint(key, number);
        self.standby.absent(Instant::now());
        // The next supervisor knows of it before it is told to outlive this one.
        self.note_host(key);
        Some(key)
    }

    /// It started where any of them may run.
    fn goes_where_it_is_to_be(&self, host: &Host, number: usize) -> bool {
        match (&host.child, cpu_of(&self.config, number)) {
            (Some(child), Some(cpu)) => sched::set_affinity_of(child.pid(), &[cpu]).is_ok(),
            _ => true,
        }
    }

    /// The process that stood by has ended.
    pub(super) fn standby_ended(&mut self, pid: Option<u32>, exit: Option<Exit>, forbidden: Option<u32>) {
        self.hear_last_words(|speaker| Some(speaker) == pid);
        let delay = self.standby.life.died(Instant::now());
        let how = ending_of("the process that stands by", pid, exit, forbidden);
        say!("{how}; another one is started in {} ms", delay.as_millis());
    }
}

/// Whether it does what it is to do: wait. Who was stopped, or is on its way out, would keep its replicas waiting.
fn is_awaiting(host: &Host) -> bool {
    let Some(child) = &host.child else { return true };
    spawn::look(child.pid()).is_some_and(|(_, running)| matches!(running.state, 'R' | 'S'))
}

/// Octets of memory for so many connections: a power of two, so that it is seldom another one.
fn memory_for(connections: u64) -> u64 {
    connections.saturating_mul(CONNECTION_BYTES).saturating_add(FEWEST_BYTES).min(MOST_BYTES).next_power_of_two()
}

/// How long all replicas serve before a process is started to stand by: less than the time between two deaths that are answered at once.
const REST: Duration = Duration::from_millis(100);
/// How often it is looked whether the one that stands by is of use.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What a connection takes of a replica's own memory while it is adopted, at most.
const CONNECTION_BYTES: u64 = 1 << 10;
/// What a replica without connections takes.
const FEWEST_BYTES: u64 = 2 << 20;
/// Who needs no more than this makes do with what it has: the rest is touched soon.
const SMALL_BYTES: u64 = 2 * FEWEST_BYTES;
/// More than this is not held ready.
const MOST_BYTES: u64 = 64 << 20;
const _: () = assert!(MOST_BYTES.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::life::READY_TIME;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn one_is_started_when_nobody_has_died_for_a_while() {
        let now = Instant::now();
        let mut standby = Standby::new(now);
        assert!(!standby.is_due(now + REST - MS) && standby.is_due(now + REST));
        assert_eq!(standby.next_timeout(false), Some(now + REST));
        standby.disturbed(now + REST);
        assert!(!standby.is_due(now + 2 * REST - MS) && standby.is_due(now + 2 * REST));
        let now = now + 2 * REST;
        standby.started(now);
        assert!(!standby.is_due(now + REST), "it is on its way");
        assert_eq!(standby.next_timeout(true), Some(now + LOOK_EVERY));
        assert!(standby.life.is_overdue(now + READY_TIME), "but not for ever");
        standby.is_up(now + 5 * MS);
        assert!(!standby.life.is_overdue(now + READY_TIME));
        assert!(!standby.looks(now + LOOK_EVERY - MS) && standby.looks(now + LOOK_EVERY));
        assert!(!standby.looks(now + LOOK_EVERY + MS), "not at once again");
        // It is needed.
        standby.absent(now + 2 * LOOK_EVERY);
        assert!(!standby.is_due(now + 2 * LOOK_EVERY) && standby.is_due(now + 2 * LOOK_EVERY + REST));
    }

    #[test]
    fn one_that_dies_again_and_again_is_missed_for_longer_and_longer() {
        let mut now = Instant::now() + REST;
        let mut standby = Standby::new(now - REST);
        let mut delays = Vec::new();
        for life in 0..10 {
            standby.started(now);
            if life % 2 == 0 {
                standby.is_up(now);
            }
            delays.push(standby.life.died(now + MS).as_millis());
            let due = standby.next_timeout(false).expect("another one");
            assert!(standby.is_due(due) && !standby.is_due(due - MS) || due <= now + MS);
            now = due.max(now + MS);
        }
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 320, 640, 1280, 2560]);
        assert!(standby.next_timeout(false).is_some(), "it is never given up");
    }

    #[test]
    fn memory_is_held_ready_for_the_connections_that_there_are_within_limits() {
        assert_eq!(
            [0, 2 << 10, 10_000, 40_000, 1 << 20, u64::MAX].map(|n| memory_for(n) >> 20),
            [2, 4, 16, 64, 64, 64]
        );
    }
}

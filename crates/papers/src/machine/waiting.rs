//! How does an idle core wait? It looks for work as long as the real `SpinPolicy` says, and then sleeps.

use atoll_base::SpinPolicy;

use super::items::{Batch, Item, Sent};
use super::settings::Waiting;
use super::{Machine, Purpose, What};

/// The waiting of a core.
#[derive(Debug)]
pub(crate) struct Wait {
    patience: SpinPolicy,
    limit: u64,
    always: bool,
    since: u64,
    /// The nanoseconds for which the core looks for work this time.
    looks: u64,
    /// Whether another core has already notified this one.
    is_rung: bool,
}

impl Wait {
    /// Creates the state of a core that sleeps since `now`.
    pub(crate) fn new(waiting: &Waiting, now: u64) -> Wait {
        let limit = waiting.spin.as_nanos() as u64;
        let patience = SpinPolicy::new(Machine::duration(limit));
        Wait { patience, limit, always: waiting.always, since: now, looks: 0, is_rung: false }
    }

    /// Notes that there was something to do for a connection.
    pub(crate) fn met(&mut self, connection: u32) {
        if !self.always {
            self.patience.met(connection);
        }
    }

    fn begin(&mut self, now: u64) {
        self.since = now;
        let looks = self.patience.begin(Machine::instant(now));
        // The policy alone decides for how long: the whole limit, or a half of it, or of that ...
        let goes_on = |looks: &u64| self.patience.goes_on(Machine::instant(now + looks - 1));
        let lengths = (0..=4).map(|halves| (self.limit >> halves).max(1));
        self.looks = lengths.filter(|_| looks).find(goes_on).unwrap_or(0);
    }

    fn sleeps_at(&self, at: u64) -> bool {
        at >= self.since + self.looks
    }

    fn end(&mut self, now: u64) {
        self.patience.end(Machine::instant(now));
        self.is_rung = false;
    }
}

impl Machine {
    fn duration(nanos: u64) -> atoll_base::Duration {
        atoll_base::Duration::from_nanos(nanos)
    }

    /// Notes that a core has nothing to do.
    pub(crate) fn begin_wait(&mut self, core: usize) {
        let now = self.now;
        if let Some(wait) = &mut self.cores[core].wait {
            wait.begin(now);
        }
    }

    /// Notes that an item has come for a core that waits. Returns how long it takes until the core is awake.
    pub(crate) fn end_wait(&mut self, core: usize) -> u64 {
        let now = self.now;
        let Some(wait) = &mut self.cores[core].wait else { return 0 };
        let (sleeps, looked) = (wait.sleeps_at(now), wait.looks.min(now - wait.since));
        wait.end(now);
        self.report.spend(core, Purpose::Spin, looked);
        if !sleeps {
            return 0;
        }
        self.report.spend(core, Purpose::Wake, self.costs.suspend as u64);
        self.costs.wake as u64
    }

    /// Returns whether a core sleeps at a moment, if nothing comes for it until then.
    pub(crate) fn sleeps(&self, core: usize, at: u64) -> bool {
        let core = &self.cores[core];
        !core.is_busy && core.wait.as_ref().is_some_and(|wait| wait.sleeps_at(at))
    }

    /// Wakes the sleeping receivers of messages that are about to leave, each once.
    pub(crate) fn ring_all(&mut self, batch: &mut Batch) {
        for at in 0..batch.out.len() {
            match batch.out[at].0 {
                Sent::Message { item: Item::Peer { wakes: false, .. }, .. } | Sent::Frame { .. } => {}
                Sent::Message { to, .. } => self.ring(batch, to),
            }
        }
    }

    fn ring(&mut self, batch: &mut Batch, to: usize) {
        let sleeps = self.sleeps(to, batch.clock);
        let Some(wait) = self.cores[to].wait.as_mut().filter(|_| sleeps) else { return };
        if !std::mem::replace(&mut wait.is_rung, true) {
            self.spend(batch, Purpose::Wake, self.costs.ring);
        }
    }

    /// Counts, at the end, the time that waiting cores have looked for work.
    pub(crate) fn end_all_waits(&mut self, end: u64) {
        for core in 0..self.cores.len() {
            let is_busy = self.cores[core].is_busy;
            if let Some(wait) = self.cores[core].wait.as_ref().filter(|_| !is_busy) {
                let looked = wait.looks.min(end.saturating_sub(wait.since));
                self.report.spend(core, Purpose::Spin, looked);
            }
        }
    }

    /// Schedules the moment at which a sleeping core is awake.
    pub(crate) fn wake_later(&mut self, core: usize, after: u64) {
        self.cores[core].is_busy = true;
        self.at(self.now + after, What::Free { core });
    }
}

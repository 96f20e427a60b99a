//! The kernel's two ways to give connections to workers, under the load of the other experiments: one accept
//! queue for all workers, or one for each (SO_REUSEPORT).
//!
//! Every worker has a core, and the kernel's work for a connection takes place there. No lock is simulated,
//! so the results show the kernel at its best.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use atoll_base::Rng;

use crate::costs::Costs;
use crate::machine::{Load, Service, Settings};

/// The rule by which a worker gets a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    /// There is one queue, and the worker that has been idle longest takes the oldest connection.
    Shared,
    /// Each worker has a queue, and a hash of the addresses decides on arrival.
    Each,
}

/// The number of connections that a queue holds (`net.core.somaxconn`); further SYNs are dropped.
const BACKLOG: usize = 4096;

/// Returns the service times of all connections that arrived after the warm-up. A connection that was
/// dropped, or not finished at the end, counts with the time until the end.
pub fn serve(settings: &Settings, costs: &Costs, queues: Queues) -> Vec<Service> {
    let Load::Constant(rate) = settings.load else { return Vec::new() };
    let mut rng = Rng::new(settings.seed);
    let warm = settings.warm_up.as_nanos() as u64;
    let end = warm + settings.duration.as_nanos() as u64;
    let mut waiting: Vec<VecDeque<u64>> = vec![VecDeque::new(); settings.apps];
    let mut idle: VecDeque<usize> = (0..settings.apps).collect();
    let mut busy: BinaryHeap<Reverse<(u64, usize, u64)>> = BinaryHeap::new();
    let mut services = Vec::new();
    let mut note = |app: usize, came: u64, closed: u64| {
        if came >= warm {
            services.push(Service { closed_at: closed - warm, app, nanos: closed - came });
        }
    };
    let take = |app: usize, came: u64, now: u64, busy: &mut BinaryHeap<_>| {
        let own = costs.kernel_connection + settings.work(costs);
        let delay = settings.delay(app, now.saturating_sub(warm), now >= warm);
        busy.push(Reverse((now + own as u64 + delay, app, came)));
    };
    let step = 1_000_000_000 / u64::from(rate.max(1));
    let mut next = 0;
    while next < end {
        let finishes = busy.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
        if finishes <= next {
            let Some(Reverse((now, app, came))) = busy.pop() else { break };
            note(app, came, now);
            let queue = if queues == Queues::Shared { 0 } else { app };
            match waiting[queue].pop_front() {
                Some(came) => take(app, came, now, &mut busy),
                None => idle.push_back(app),
            }
            continue;
        }
        let app = rng.below(settings.apps as u32) as usize;
        let queue = if queues == Queues::Shared { 0 } else { app };
        let free = match queues {
            Queues::Shared => idle.pop_front(),
            Queues::Each => idle.iter().position(|&other| other == app).and_then(|at| idle.remove(at)),
        };
        match free {
            Some(app) => take(app, next, next, &mut busy),
            None if waiting[queue].len() < BACKLOG => waiting[queue].push_back(next),
            None => note(app, next, end),
        }
        next += step;
    }
    for Reverse((_, app, came)) in busy {
        note(app, came, end);
    }
    for (app, queue) in waiting.into_iter().enumerate() {
        queue.into_iter().for_each(|came| note(app, came, end));
    }
    services
}

//! Decides in which process each replica is to be, and which replica moves next. Replicas move one after
//! another, which is invisible outside of the stack.
//!
//! ```text
//!   Opening   the process is started, if it is not there; the replica serves
//!   Leaving   the replica is asked to leave; it serves until it has
//!   Taking    it goes on in the other process, with the same memory and as the next incarnation
//! ```
//!
//! A failure on the way is a death, from which the replica recovers in the process to which it was to go.
//! During an upgrade no replica moves for another reason.

use atoll_base::{Duration, Instant};
use thiserror::Error;

use crate::{ClientId, Config, READY_TIME, Scaler, host_of};

/// The process that each replica is to be in. The processes, whether their number follows the load, and the
/// waiting clients are persisted.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The number of the process that each replica is to be in, by replica.
    places: Vec<u8>,
    /// The value of `places` when all replicas were last in their places.
    reached: Vec<u8>,
    moving: Option<Move>,
    /// The clients that wait until all replicas are in their `places`.
    asking: Vec<ClientId>,
    /// The number of processes in a row that could not be started.
    vain: u32,
    /// When the next attempt to start a process is due.
    retry_at: Option<Instant>,
    auto: Option<Auto>,
    /// The fewest and the most processes of the configuration.
    limits: (u8, u8),
}

/// Why replicas cannot be placed as a client wants; the text is for that client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlacementError {
    /// There cannot be this number of processes.
    #[error(
        "{replicas} replica{} can be in 1 to {replicas} processes, not in {processes}; more processes need \
         more \
         replicas (--configuration, when the stack is started)",
        if *replicas == 1 { "" } else { "s" }
    )]
    Processes {
        /// The number of processes that is wanted.
        processes: u8,
        /// The number of replicas.
        replicas: usize,
    },
    /// There is no process of this number.
    #[error(
        "there is no process {to}: those for replicas are numbered 0 to {last}, because there are no more of \
         them than replicas"
    )]
    NoProcess {
        /// The number.
        to: u8,
        /// The largest number of a process.
        last: usize,
    },
    /// There is no replica of this number.
    #[error("there is no replica {replica}: this stack has 0 to {last}")]
    NoReplica {
        /// The number.
        replica: u8,
        /// The largest number of a replica.
        last: usize,
    },
}

/// A replica that is moving.
#[derive(Clone, Copy, Debug)]
struct Move {
    replica: usize,
    to: usize,
    step: Step,
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Opening,
    Leaving,
    Taking,
}

/// State for a number of processes that follows the load of the replicas.
#[derive(Clone, Debug)]
struct Auto {
    scaler: Scaler,
    /// When the load was last measured, and what was measured.
    looked: Instant,
    seen: Vec<Busy>,
}

/// The state of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stand {
    /// The number of the process that the replica is in, or `None` if it is in none and recovers in its
    /// place.
    pub process: Option<usize>,
    /// Whether the replica serves.
    pub serves: bool,
    /// Whether the replica was asked to leave, and has not left yet.
    pub is_leaving: bool,
    /// The state of the process, of the replica's build, that the replica is to be in.
    pub target: Target,
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The process does not exist.
    Absent,
    /// The process was started.
    Starting,
    /// The process can be given replicas.
    Up,
}

/// How long a replica has been busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// The replica's incarnation.
    pub epoch: u32,
    /// How long the incarnation has been busy, in nanoseconds.
    pub nanos: u64,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementStep {
    /// Start process `process` of the build of this replica, then call [`Placement::opened`] or
    /// [`Placement::failed`].
    Open {
        /// The replica.
        replica: usize,
        /// The number of the process.
        process: usize,
    },
    /// Ask this replica to leave its process. It continues in its new place.
    Leave(usize),
    /// Kill process `process` of the build of this replica, because it is not up in time or has ended, then
    /// call [`Placement::failed`].
    Abandon {
        /// The replica.
        replica: usize,
        /// The number of the process.
        process: usize,
        /// The reason, for people.
        why: &'static str,
    },
    /// End processes without replicas: all replicas are in their places, or will be when they have recovered.
    /// If all of them serve, call [`Placement::reached`].
    Settle,
}

/// The result of giving up after several failed attempts to start a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// The number of processes that was wanted.
    pub wanted: u8,
    /// The number of processes that remains in use.
    pub stays: u8,
    /// The clients that have waited for the change.
    pub asking: Vec<ClientId>,
}

/// A change of the number of processes because of the load.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The number of processes before.
    pub from: u8,
    /// The number of processes that is wanted now.
    pub to: u8,
    /// The share of the time, from 0 to 1, in which each replica was busy.
    pub shares: Vec<f64>,
}

impl Placement {
    /// Creates the placement that `config` asks for.
    pub fn new(config: &Config, now: Instant) -> Placement {
        let places = spread(config.replicas().into(), config.scaling.start);
        let limits = (config.scaling.min, config.scaling.max);
        let mut placement = Placement {
            reached: places.clone(),
            places,
            moving: None,
            asking: Vec::new(),
            vain: 0,
            retry_at: None,
            auto: None,
            limits,
        };
        if config.scaling.auto {
            placement.follow_load(now);
        }
        placement
    }

    /// Restores the placement that an earlier supervisor has left. Impossible places are replaced by those of
    /// the configuration.
    pub fn resume(
        config: &Config,
        places: &[u8],
        auto: bool,
        asking: Vec<ClientId>,
        now: Instant,
    ) -> Placement {
        let replicas = usize::from(config.replicas());
        let mut own = Placement::new(config, now);
        if places.len() != replicas || places.iter().any(|place| usize::from(*place) >= replicas) {
            return own;
        }
        own.auto = None;
        if auto {
            own.follow_load(now);
        }
        Placement { places: places.to_vec(), reached: places.to_vec(), asking, ..own }
    }

    fn follow_load(&mut self, now: Instant) {
        let (min, max) = self.limits;
        self.auto = Some(Auto { scaler: Scaler::new(min, max), looked: now, seen: Vec::new() });
    }

    /// Returns the number of the process that a replica is to be in.
    pub fn place(&self, replica: usize) -> usize {
        self.places.get(replica).copied().unwrap_or(0).into()
    }

    /// Returns the numbers of the processes that the replicas are to be in.
    pub fn places(&self) -> &[u8] {
        &self.places
    }

    /// Returns how many processes there are to be.
    pub fn wanted(&self) -> u8 {
        count(&self.places)
    }

    /// Returns the largest number of replicas that are to be in one process.
    pub fn most_in_one(&self) -> usize {
        let many = |place: &u8| self.places.iter().filter(|other| *other == place).count();
        self.places.iter().map(many).max().unwrap_or(1)
    }

    /// Returns whether the number of processes follows the load.
    pub fn is_auto(&self) -> bool {
        self.auto.is_some()
    }

    /// Returns the fewest and the most processes that there may be.
    pub fn limits(&self) -> (u8, u8) {
        self.auto.as_ref().map_or(self.limits, |auto| auto.scaler.limits())
    }

    /// Returns the clients that wait until all replicas are in their places.
    pub fn asking(&self) -> &[ClientId] {
        &self.asking
    }

    /// Returns whether a replica is moving.
    pub fn is_moving(&self) -> bool {
        self.moving.is_some()
    }

    /// Returns when to poll again if nothing happens.
    pub fn next_timeout(&self) -> Option<Instant> {
        // While a replica leaves or recovers, its own record has the deadline.
        let open_by =
            self.moving.filter(|moving| moving.step == Step::Opening).map(|moving| moving.since + READY_TIME);
        let look_at = self.auto.as_ref().map(|auto| auto.looked + LOOK_EVERY);
        [open_by, self.retry_at, look_at].into_iter().flatten().min()
    }

    /// Returns the places of all replicas in `processes` processes.
    pub fn spread(&self, processes: u8) -> Result<Vec<u8>, PlacementError> {
        let replicas = self.places.len();
        if !(1..=replicas).contains(&processes.into()) {
            return Err(PlacementError::Processes { processes, replicas });
        }
        Ok(spread(replicas, processes))
    }

    /// Returns the places of all replicas after these ones have moved to process `to`.
    pub fn relocated(&self, replicas: &[u8], to: u8) -> Result<Vec<u8>, PlacementError> {
        let mut places = self.places.clone();
        let last = places.len().saturating_sub(1);
        if usize::from(to) > last {
            return Err(PlacementError::NoProcess { to, last });
        }
        for &replica in replicas {
            match places.get_mut(usize::from(replica)) {
                Some(place) => *place = to,
                None => return Err(PlacementError::NoReplica { replica, last }),
            }
        }
        Ok(places)
    }

    /// Sets the places that a client wants, and lets the client wait for them. Returns the waiting clients
    /// that wanted other places.
    pub fn want_by(&mut self, id: ClientId, places: Vec<u8>) -> Vec<ClientId> {
        self.auto = None;
        let others = if places == self.places { Vec::new() } else { std::mem::take(&mut self.asking) };
        self.asking.push(id);
        self.want(places);
        others
    }

    /// Lets the number of processes follow the load from now on. Returns the waiting clients that wanted
    /// other places.
    pub fn leave_to_itself(&mut self, now: Instant) -> Vec<ClientId> {
        // It starts with the present number of processes; the place of each replica follows from the number
        // alone.
        let places = spread(self.places.len(), count(&self.places));
        let others = if places == self.places { Vec::new() } else { std::mem::take(&mut self.asking) };
        self.want(places);
        self.follow_load(now);
        others
    }

    fn want(&mut self, places: Vec<u8>) {
        (self.places, self.vain, self.retry_at) = (places, 0, None);
    }

    /// Returns whether every replica is in its place, or will be when it has recovered.
    pub fn is_reached(&self, stand: impl Fn(usize) -> Stand) -> bool {
        self.moving.is_none()
            && (0..self.places.len()).all(|replica| self.is_in_place(replica, stand(replica)))
    }

    fn is_in_place(&self, replica: usize, stand: Stand) -> bool {
        stand.process.is_none_or(|process| process == self.place(replica))
    }

    /// Returns what is to be done next; call it until it returns `None` or [`PlacementStep::Settle`].
    /// `is_fixed` says that an upgrade is under way, so that no replica may start to move. `stand` returns
    /// the state of a replica.
    pub fn poll(
        &mut self,
        now: Instant,
        is_fixed: bool,
        stand: impl Fn(usize) -> Stand,
    ) -> Option<PlacementStep> {
        // Each turn of the loop ends a step or returns.
        while let Some(moving) = self.moving {
            let Move { replica, to, since, .. } = moving;
            let there = stand(replica);
            let abandon = |why| Some(PlacementStep::Abandon { replica, process: to, why });
            let (step, action) = match moving.step {
                // The wanted place has changed, or the replica has died and recovers in its place.
                Step::Opening if self.place(replica) != to || !there.serves => (None, None),
                Step::Opening => match there.target {
                    Target::Absent => return abandon("a process for replicas ended when it was started"),
                    Target::Up => (Some(Step::Leaving), Some(PlacementStep::Leave(replica))),
                    Target::Starting if now >= since + READY_TIME => {
                        return abandon("a process for replicas was not up in time");
                    }
                    Target::Starting => return None,
                },
                Step::Leaving if there.is_leaving => return None,
                Step::Leaving => (Some(Step::Taking), None),
                Step::Taking if there.serves => (None, None),
                Step::Taking => return None,
            };
            self.moving = step.map(|step| Move { step, since: now, ..moving });
            if action.is_some() {
                return action;
            }
        }
        self.set_out(now, is_fixed, stand)
    }

    /// Starts the move of the next replica.
    fn set_out(
        &mut self,
        now: Instant,
        is_fixed: bool,
        stand: impl Fn(usize) -> Stand,
    ) -> Option<PlacementStep> {
        if is_fixed || self.retry_at.is_some_and(|at| now < at) {
            return None;
        }
        self.retry_at = None;
        let mut all = 0..self.places.len();
        let Some(replica) = all.find(|replica| !self.is_in_place(*replica, stand(*replica))) else {
            return Some(PlacementStep::Settle);
        };
        let (there, process) = (stand(replica), self.place(replica));
        if !there.serves || there.is_leaving {
            // It recovers first, in its place.
            return None;
        }
        if there.target == Target::Absent {
            return Some(PlacementStep::Open { replica, process });
        }
        self.opened(now, replica);
        self.poll(now, is_fixed, stand)
    }

    /// Notes that the process that a replica is to be in exists or is being started.
    pub fn opened(&mut self, now: Instant, replica: usize) {
        let to = self.place(replica);
        self.moving = Some(Move { replica, to, step: Step::Opening, since: now });
    }

    /// Notes that all replicas are in their places and serve. Returns the clients that have waited for that.
    pub fn reached(&mut self) -> Vec<ClientId> {
        self.vain = 0;
        self.reached.clone_from(&self.places);
        std::mem::take(&mut self.asking)
    }

    /// Notes that a process could not be started, or was not up in time: the replica stays where it is until
    /// the next attempt. Returns what was given up after several attempts in a row.
    pub fn failed(&mut self, now: Instant) -> Option<GivenUp> {
        self.moving = None;
        self.vain += 1;
        if self.vain < VAIN_MAX {
            self.retry_at = Some(now + RETRY_TIME * self.vain);
            return None;
        }
        let (wanted, stays) = (count(&self.places), count(&self.reached));
        self.want(self.reached.clone());
        self.retry_at = Some(now + GIVEN_UP_TIME);
        Some(GivenUp { wanted, stays, asking: std::mem::take(&mut self.asking) })
    }

    /// Returns whether it is time to measure the load of the replicas, if the number of processes follows it.
    pub fn is_look_due(&self, now: Instant) -> bool {
        self.auto.as_ref().is_some_and(|auto| now.since(auto.looked) >= LOOK_EVERY)
    }

    /// Takes the measured load of the replicas, and returns a change of the number of processes if there is
    /// one. `is_settled` says that all replicas are in their places and serve, and that no upgrade is under
    /// way.
    pub fn look(&mut self, now: Instant, is_settled: bool, seen: Vec<Busy>) -> Option<Change> {
        let auto = self.auto.as_mut()?;
        let time = now.since(std::mem::replace(&mut auto.looked, now));
        let before = std::mem::replace(&mut auto.seen, seen);
        let is_same = before.iter().map(|busy| busy.epoch).eq(auto.seen.iter().map(|busy| busy.epoch));
        if !is_settled || !is_same {
            // The counters of a new incarnation cannot be compared with those of the last one.
            return None;
        }
        let share = |(before, after): (&Busy, &Busy)| {
            after.nanos.saturating_sub(before.nanos) as f64 / time.as_nanos() as f64
        };
        let shares: Vec<f64> = before.iter().zip(&auto.seen).map(share).collect();
        let from = count(&self.places);
        let to = auto.scaler.look(from, &shares)?;
        self.want(spread(self.places.len(), to));
        Some(Change { from, to, shares })
    }
}

/// Returns the process of each replica, if the replicas are spread over `processes` processes.
fn spread(replicas: usize, processes: u8) -> Vec<u8> {
    (0..replicas).map(|replica| host_of(replica, processes.into()) as u8).collect()
}

/// Returns the number of different processes in `places`.
pub fn count(places: &[u8]) -> u8 {
    let is_first = |(at, place): &(usize, &u8)| !places[..*at].contains(place);
    places.iter().enumerate().filter(is_first).count() as u8
}

/// The time between two measurements of the load.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The number of failed attempts in a row to start a process after which a change is given up.
const VAIN_MAX: u32 = 3;
/// The time until the next attempt to start a process, multiplied by the number of attempts.
const RETRY_TIME: Duration = Duration::from_millis(100);
/// The time until the next attempt after a change was given up.
const GIVEN_UP_TIME: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;

//! Which process is each replica to be in, and who moves next? Replicas move one after another; nobody
//! outside sees it.
//!
//! ```text
//!   Opening   the process is started, if it is not there; the replica serves
//!   Leaving   the replica is asked to leave; it serves until it has
//!   Taking    it goes on in the other process, with the same memory and as the next incarnation
//! ```
//! What is wrong on the way is a death, from which the replica recovers where it was to go. While an upgrade
//! is under way nobody moves for another reason.

use atoll_base::{Duration, Instant};

use crate::{ClientId, Config, READY_TIME, Scaler, host_of};

/// Which process each replica is to be in. Persisted are the processes, whether their number follows from the
/// load, and who waits.
#[derive(Clone, Debug)]
pub struct Placement {
    /// By replica: the number of the process.
    places: Vec<u8>,
    /// Where they were when all were last where they were to be.
    reached: Vec<u8>,
    moving: Option<Move>,
    /// Who waits for `places` to be reached.
    asking: Vec<ClientId>,
    /// Processes in a row that could not be started.
    vain: u32,
    /// When that is tried again.
    retry_at: Option<Instant>,
    auto: Option<Auto>,
    /// The fewest and the most processes of the configuration.
    limits: (u8, u8),
}

/// A replica on its way.
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

/// The number follows from how busy replicas are.
#[derive(Clone, Debug)]
struct Auto {
    scaler: Scaler,
    /// When they were looked at last, and what was seen.
    looked: Instant,
    seen: Vec<Busy>,
}

/// How it stands with one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stand {
    /// The number of the process that it is in; `None`: it is in none, and recovers where it is to be.
    pub process: Option<usize>,
    /// It serves.
    pub serves: bool,
    /// It was asked to leave, and has not yet.
    pub is_leaving: bool,
    /// Of the process that it is to be in, of its own build.
    pub target: Target,
}

/// How it stands with a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// It is not there.
    Absent,
    /// It was started.
    Starting,
    /// It can be given replicas.
    Up,
}

/// What a replica has had to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// Its incarnation.
    pub epoch: u32,
    /// For how long it has had something to do, in nanoseconds.
    pub nanos: u64,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementStep {
    /// Start process `process` of the build of this replica. [`Placement::opened`] or [`Placement::failed`]
    /// is told then.
    Open {
        /// The replica.
        replica: usize,
        /// The number of the process.
        process: usize,
    },
    /// Ask this replica to leave its process. It goes on where it is to be.
    Leave(usize),
    /// Process `process` of the build of this replica is not up in time, or not there any more: kill it.
    /// [`Placement::failed`] is told then.
    Abandon {
        /// The replica.
        replica: usize,
        /// The number of the process.
        process: usize,
        /// Why, for people.
        why: &'static str,
    },
    /// All are where they are to be, or will be when they have recovered: processes without replicas are to
    /// end. If all serve, [`Placement::reached`] is told.
    Settle,
}

/// It is not tried any more to start a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// So many processes were wanted.
    pub wanted: u8,
    /// It stays with so many.
    pub stays: u8,
    /// These have waited for them.
    pub asking: Vec<ClientId>,
}

/// The number of processes follows from the load, and is another one now.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// How many there were.
    pub from: u8,
    /// How many there are to be.
    pub to: u8,
    /// The share of the time in which each replica had something to do.
    pub shares: Vec<f64>,
}

impl Placement {
    /// As `config` says.
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

    /// As another supervisor has left it. Places that cannot be are those of the configuration.
    pub fn resume(config: &Config, places: &[u8], auto: bool, asking: Vec<ClientId>, now: Instant) -> Placement {
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

    /// The number of the process that a replica is to be in.
    pub fn place(&self, replica: usize) -> usize {
        self.places.get(replica).copied().unwrap_or(0).into()
    }

    /// The numbers of the processes that the replicas are to be in.
    pub fn places(&self) -> &[u8] {
        &self.places
    }

    /// How many processes there are to be.
    pub fn wanted(&self) -> u8 {
        count(&self.places)
    }

    /// How many replicas are, or are to be, in one process at most.
    pub fn most_in_one(&self) -> usize {
        let many = |place: &u8| self.places.iter().filter(|other| *other == place).count();
        self.places.iter().map(many).max().unwrap_or(1)
    }

    /// Whether the number of processes follows from how busy replicas are.
    pub fn is_auto(&self) -> bool {
        self.auto.is_some()
    }

    /// The fewest and the most processes that there may be.
    pub fn limits(&self) -> (u8, u8) {
        self.auto.as_ref().map_or(self.limits, |auto| auto.scaler.limits())
    }

    /// Who waits until all are where they are to be.
    pub fn asking(&self) -> &[ClientId] {
        &self.asking
    }

    /// Whether a replica is on its way.
    pub fn is_moving(&self) -> bool {
        self.moving.is_some()
    }

    /// When to look again, if nothing happens.
    pub fn next_timeout(&self) -> Option<Instant> {
        // The replica's life says when it has left, or is there.
        let open_by = self.moving.filter(|moving| moving.step == Step::Opening).map(|moving| moving.since + READY_TIME);
        let look_at = self.auto.as_ref().map(|auto| auto.looked + LOOK_EVERY);
        [open_by, self.retry_at, look_at].into_iter().flatten().min()
    }

    /// So many processes are wanted: where replicas are to be then. `Err`: there cannot be so many.
    pub fn spread(&self, processes: u8) -> Result<Vec<u8>, String> {
        let replicas = self.places.len();
        if !(1..=replicas).contains(&processes.into()) {
            return Err(format!(
                "{replicas} replica{} can be in 1 to {replicas} processes, not in {processes}; more processes need more replicas \
                 (--configuration, when the stack is started)",
                if replicas == 1 { "" } else { "s" }
            ));
        }
        Ok(spread(replicas, processes))
    }

    /// These replicas are wanted in process `to`: where all are to be then. `Err`: there is no such replica,
    /// or process.
    pub fn relocated(&self, replicas: &[u8], to: u8) -> Result<Vec<u8>, String> {
        let mut places = self.places.clone();
        let last = places.len().saturating_sub(1);
        if usize::from(to) > last {
            return Err(format!(
                "there is no process {to}: those for replicas are numbered 0 to {last}, because there are no more of them than replicas"
            ));
        }
        for &replica in replicas {
            match places.get_mut(usize::from(replica)) {
                Some(place) => *place = to,
                None => return Err(format!("there is no replica {replica}: this stack has 0 to {last}")),
            }
        }
        Ok(places)
    }

    /// Somebody wants replicas to be there, and waits for it. Returns those who have wanted something else.
    pub fn want_by(&mut self, id: ClientId, places: Vec<u8>) -> Vec<ClientId> {
        self.auto = None;
        let others = if places == self.places { Vec::new() } else { std::mem::take(&mut self.asking) };
        self.asking.push(id);
        self.want(places);
        others
    }

    /// From now on the number of processes follows from the load. Returns those who have wanted something
    /// else.
    pub fn leave_to_itself(&mut self, now: Instant) -> Vec<ClientId> {
        // It goes on from as many as there are; which replica is in which follows from the number alone.
        let places = spread(self.places.len(), count(&self.places));
        let others = if places == self.places { Vec::new() } else { std::mem::take(&mut self.asking) };
        self.want(places);
        self.follow_load(now);
        others
    }

    fn want(&mut self, places: Vec<u8>) {
        (self.places, self.vain, self.retry_at) = (places, 0, None);
    }

    /// Whether every replica is where it is to be, or will be when it has recovered.
    pub fn is_reached(&self, stand: impl Fn(usize) -> Stand) -> bool {
        self.moving.is_none() && (0..self.places.len()).all(|replica| self.is_in_place(replica, stand(replica)))
    }

    fn is_in_place(&self, replica: usize, stand: Stand) -> bool {
        stand.process.is_none_or(|process| process == self.place(replica))
    }

    /// What is to be done next. `is_fixed`: an upgrade is under way, so nobody else sets out. `stand`: how it
    /// stands with a replica. To be asked until nothing is to be done; which [`PlacementStep::Settle`] says,
    /// too.
    pub fn poll(&mut self, now: Instant, is_fixed: bool, stand: impl Fn(usize) -> Stand) -> Option<PlacementStep> {
        // Each turn ends a step or returns.
        while let Some(moving) = self.moving {
            let Move { replica, to, since, .. } = moving;
            let there = stand(replica);
            let abandon = |why| Some(PlacementStep::Abandon { replica, process: to, why });
            let (step, action) = match moving.step {
                // Somebody has changed his mind, or it has died and recovers where it is to be.
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

    /// Sends the next replica on its way.
    fn set_out(&mut self, now: Instant, is_fixed: bool, stand: impl Fn(usize) -> Stand) -> Option<PlacementStep> {
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
            // It recovers first. Where, it is told then.
            return None;
        }
        if there.target == Target::Absent {
            return Some(PlacementStep::Open { replica, process });
        }
        self.opened(now, replica);
        self.poll(now, is_fixed, stand)
    }

    /// The process that a replica is to be in is on its way, or there.
    pub fn opened(&mut self, now: Instant, replica: usize) {
        let to = self.place(replica);
        self.moving = Some(Move { replica, to, step: Step::Opening, since: now });
    }

    /// All are where they are to be, and serve. Returns who has waited for that.
    pub fn reached(&mut self) -> Vec<ClientId> {
        self.vain = 0;
        self.reached.clone_from(&self.places);
        std::mem::take(&mut self.asking)
    }

    /// A process could not be started, or was not up in time: the replica stays where it is, for now or for
    /// good.
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

    /// Whether it is time to look how busy replicas are, if that counts.
    pub fn is_look_due(&self, now: Instant) -> bool {
        self.auto.as_ref().is_some_and(|auto| now.since(auto.looked) >= LOOK_EVERY)
    }

    /// Looks how busy replicas are. `is_settled`: all are where they are to be and serve, and no upgrade is
    /// under way.
    pub fn look(&mut self, now: Instant, is_settled: bool, seen: Vec<Busy>) -> Option<Change> {
        let auto = self.auto.as_mut()?;
        let time = now.since(std::mem::replace(&mut auto.looked, now));
        let before = std::mem::replace(&mut auto.seen, seen);
        let is_same = before.iter().map(|busy| busy.epoch).eq(auto.seen.iter().map(|busy| busy.epoch));
        if !is_settled || !is_same {
            // A new incarnation has had other things to do.
            return None;
        }
        let share =
            |(before, after): (&Busy, &Busy)| after.nanos.saturating_sub(before.nanos) as f64 / time.as_nanos() as f64;
        let shares: Vec<f64> = before.iter().zip(&auto.seen).map(share).collect();
        let from = count(&self.places);
        let to = auto.scaler.look(from, &shares)?;
        self.want(spread(self.places.len(), to));
        Some(Change { from, to, shares })
    }
}

/// The process of each replica, if there are so many.
fn spread(replicas: usize, processes: u8) -> Vec<u8> {
    (0..replicas).map(|replica| host_of(replica, processes.into()) as u8).collect()
}

/// How many processes these are.
pub fn count(places: &[u8]) -> u8 {
    let is_first = |(at, place): &(usize, &u8)| !places[..*at].contains(place);
    places.iter().enumerate().filter(is_first).count() as u8
}

/// Time between two looks at how busy replicas are.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// So many processes in a row that cannot be started are too many.
const VAIN_MAX: u32 = 3;
/// Time until it is tried again to start one, times the attempts.
const RETRY_TIME: Duration = Duration::from_millis(100);
/// Time until anything is tried again that was given up.
const GIVEN_UP_TIME: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;

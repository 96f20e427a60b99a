//! How does a stack come to have more or fewer processes while its connections are open? Replicas move, one after another; nobody outside sees it.
//!
//! ```text
//!   Opening   the process is started, if it is not there; the replica serves
//!   Leaving   the replica is asked to leave; it serves until it has
//!   Taking    it goes on in the other process, with the same memory and as the next incarnation
//! ```
//! What is wrong on the way is a death, from which the replica recovers where it was to go. While an upgrade is under way nobody moves for
//! another reason.

use std::io;
use std::time::{Duration, Instant};

use atoll_ipc::page::Stat;
use atoll_supervisor::{ClientId, Config, ReportPart, Scaler, ScalingReport, host_of};

use super::hosts::Host;
use super::launch::Duty;
use super::life::READY_TIME;
use super::supervisor::{ServerSlot, Supervisor};

/// Which process each replica is to be in.
pub(super) struct Scaling {
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
struct Auto {
    scaler: Scaler,
    /// When they were looked at last, and what was seen: incarnation, and for how long each has had something to do.
    looked: Instant,
    seen: Vec<(u32, u64)>,
}

impl Auto {
    fn new(config: &Config) -> Auto {
        let scaler = Scaler::new(config.scaling.min, config.scaling.max);
        Auto { scaler, looked: Instant::now(), seen: Vec::new() }
    }
}

impl Scaling {
    /// As `config` says.
    pub fn new(config: &Config) -> Scaling {
        let places = spread(config.replicas().into(), config.scaling.start);
        Scaling {
            reached: places.clone(),
            places,
            moving: None,
            asking: Vec::new(),
            vain: 0,
            retry_at: None,
            auto: config.scaling.auto.then(|| Auto::new(config)),
        }
    }

    /// As another supervisor has left it.
    pub fn resume(config: &Config, places: &[u8], auto: bool, asking: Vec<ClientId>) -> Scaling {
        let replicas = usize::from(config.replicas());
        let own = Scaling::new(config);
        if places.len() != replicas || places.iter().any(|place| usize::from(*place) >= replicas) {
            return own;
        }
        let auto = auto.then(|| Auto::new(config));
        Scaling { places: places.to_vec(), reached: places.to_vec(), auto, asking, ..own }
    }

    /// The number of the process that a replica is to be in.
    pub fn place(&self, index: usize) -> usize {
        self.places.get(index).copied().unwrap_or(0).into()
    }

    /// That of each.
    pub fn places(&self) -> &[u8] {
        &self.places
    }

    /// Whether the number of processes follows from how busy replicas are.
    pub fn is_auto(&self) -> bool {
        self.auto.is_some()
    }

    /// Who waits until all are where they are to be.
    pub fn asking(&self) -> &[ClientId] {
        &self.asking
    }

    /// When to look again, if nothing happens.
    pub fn next_timeout(&self) -> Option<Instant> {
        // The replica's life says when it has left, or is there.
        let open_by = self.moving.filter(|moving| moving.step == Step::Opening).map(|moving| moving.since + READY_TIME);
        let look_at = self.auto.as_ref().map(|auto| auto.looked + LOOK_EVERY);
        [open_by, self.retry_at, look_at].into_iter().flatten().min()
    }
}

impl Supervisor {
    /// The number of the process that a replica is in, or is to be in if it is in none.
    pub(super) fn process_of(&self, index: usize) -> usize {
        let host = self.replicas.get(index).and_then(|replica| self.hosts.get(replica.host?));
        host.and_then(Host::number).unwrap_or(self.scaling.place(index))
    }

    /// In how many processes the replicas are.
    pub(super) fn scaling_report(&self) -> ScalingReport {
        let auto = self.scaling.auto.as_ref();
        let (min, max) = auto.map_or((self.config.scaling.min, self.config.scaling.max), |auto| auto.scaler.limits());
        let processes: Vec<u8> = (0..self.replicas.len()).map(|index| self.process_of(index) as u8).collect();
        let wanted = count(&self.scaling.places);
        ScalingReport { processes: count(&processes), wanted, auto: auto.is_some(), min, max }
    }

    /// Whether every replica is where it is to be, or will be when it has recovered.
    pub(super) fn are_in_place(&self) -> bool {
        let is_there = |index: usize| self.process_of(index) == self.scaling.place(index);
        self.scaling.moving.is_none() && (0..self.replicas.len()).all(is_there)
    }

    /// `atoll scale`. It is answered when there are so many.
    pub(super) fn scale(&mut self, id: ClientId, processes: Option<u8>) -> io::Result<()> {
        let replicas = self.replicas.len();
        let Some(wanted) = processes else {
            // It goes on from as many as there are; which replica is in which follows from the number alone.
            let places = spread(replicas, count(&self.scaling.places));
            if places != self.scaling.places {
                self.answer_askers(&ReportPart::Error("the stack was left to itself meanwhile".into()))?;
            }
            self.want(places);
            self.scaling.auto = Some(Auto::new(&self.config));
            self.note_stack();
            self.answer(id, &ReportPart::Scaling(self.scaling_report()))?;
            return self.answer(id, &ReportPart::Done(true));
        };
        if !(1..=replicas).contains(&wanted.into()) {
            let reason = format!(
                "{replicas} replica{} can be in 1 to {replicas} processes, not in {wanted}; more processes need more replicas \
                 (--configuration, when the stack is started)",
                if replicas == 1 { "" } else { "s" }
            );
            return self.answer(id, &ReportPart::Error(reason));
        }
        self.want_by(id, spread(replicas, wanted), &format!("{wanted} processes were asked for meanwhile"))
    }

    /// `atoll move`. It is answered when they are there.
    pub(super) fn relocate(&mut self, id: ClientId, replicas: &[u8], to: u8) -> io::Result<()> {
        let mut places = self.scaling.places.clone();
        let last = places.len().saturating_sub(1);
        if usize::from(to) > last {
            let reason = format!(
                "there is no process {to}: those for replicas are numbered 0 to {last}, because there are no more of them than replicas"
            );
            return self.answer(id, &ReportPart::Error(reason));
        }
        for &replica in replicas {
            match places.get_mut(usize::from(replica)) {
                Some(place) => *place = to,
                None => {
                    let reason = format!("there is no replica {replica}: this stack has 0 to {last}");
                    return self.answer(id, &ReportPart::Error(reason));
                }
            }
        }
        self.want_by(id, places, "replicas were asked to be elsewhere meanwhile")
    }

    /// Somebody wants replicas in other processes. `instead`: what those are told who have wanted something else.
    fn want_by(&mut self, id: ClientId, places: Vec<u8>, instead: &str) -> io::Result<()> {
        if self.succession.is_some() {
            let reason = "an upgrade is under way: try again when it is over";
            return self.answer(id, &ReportPart::Error(reason.into()));
        }
        self.scaling.auto = None;
        if places != self.scaling.places {
            self.answer_askers(&ReportPart::Error(instead.into()))?;
        }
        self.scaling.asking.push(id);
        self.want(places);
        self.look_after_scaling(Instant::now())
    }

    fn want(&mut self, places: Vec<u8>) {
        let scaling = &mut self.scaling;
        (scaling.places, scaling.vain, scaling.retry_at) = (places, 0, None);
        self.note_stack();
    }

    fn answer_askers(&mut self, last: &ReportPart) -> io::Result<()> {
        let asking = std::mem::take(&mut self.scaling.asking);
        let is_news = !asking.is_empty();
        for id in asking {
            if *last == ReportPart::Done(true) {
                self.answer(id, &ReportPart::Scaling(self.scaling_report()))?;
            }
            self.answer(id, last)?;
        }
        if is_news {
            self.note_stack();
        }
        Ok(())
    }

    /// Does what is to be done next.
    pub(super) fn look_after_scaling(&mut self, now: Instant) -> io::Result<()> {
        self.look_at_load(now);
        // Each turn ends a step or returns.
        loop {
            let Some(moving) = self.scaling.moving else {
                if !self.begin_move(now)? {
                    return Ok(());
                }
                continue;
            };
            let index = moving.replica;
            let ServerSlot { life, is_leaving, program, .. } = &self.replicas[index];
            let step = match moving.step {
                // Somebody has changed his mind, or it has died and recovers where it is to be.
                Step::Opening if self.scaling.place(index) != moving.to || !life.is_serving() => None,
                Step::Opening => match self.hosts.find(moving.to, program) {
                    None => return self.move_failed(now, "a process for replicas ended when it was started"),
                    Some(key) if self.hosts.get(key).is_some_and(|host| host.is_up) => {
                        let newest = program.build.ledger.newest;
                        let ledger = self.memory.ledger_version(index).unwrap_or(newest);
                        self.ask_to_leave(index, ledger, now)?;
                        Some(Step::Leaving)
                    }
                    Some(key) if now >= moving.since + READY_TIME => {
                        self.hosts.kill(key);
                        return self.move_failed(now, "a process for replicas was not up in time");
                    }
                    Some(_) => return Ok(()),
                },
                Step::Leaving if *is_leaving => return Ok(()),
                Step::Leaving => Some(Step::Taking),
                Step::Taking if life.is_serving() => None,
                Step::Taking => return Ok(()),
            };
            self.scaling.moving = step.map(|step| Move { step, since: now, ..moving });
        }
    }

    /// Sends the next replica on its way. Returns whether there was one.
    fn begin_move(&mut self, now: Instant) -> io::Result<bool> {
        if self.succession.is_some() || self.scaling.retry_at.is_some_and(|at| now < at) {
            return Ok(false);
        }
        self.scaling.retry_at = None;
        let mut all = 0..self.replicas.len();
        let Some(replica) = all.find(|index| self.process_of(*index) != self.scaling.place(*index)) else {
            let standby = self.hosts.standby();
            for key in self.hosts.keys().into_iter().filter(|key| Some(*key) != standby) {
                self.close_host_if_idle(key, now)?;
            }
            if self.replicas.iter().all(|replica| replica.life.is_serving()) {
                self.scaling.vain = 0;
                self.scaling.reached.clone_from(&self.scaling.places);
                self.answer_askers(&ReportPart::Done(true))?;
            }
            return Ok(false);
        };
        if !self.replicas[replica].hears() {
            // It recovers first. Where, it is told then.
            return Ok(false);
        }
        let (to, program) = (self.scaling.place(replica), self.replicas[replica].program.clone());
        if self.hosts.find(to, &program).is_none()
            && let Err(failure) = self.open_host(Duty::Replicas(to), &program)
        {
            self.move_failed(now, &failure.to_string())?;
            return Ok(false);
        }
        self.scaling.moving = Some(Move { replica, to, step: Step::Opening, since: now });
        Ok(true)
    }

    /// The replica stays where it is, for now or for good.
    fn move_failed(&mut self, now: Instant, why: &str) -> io::Result<()> {
        let scaling = &mut self.scaling;
        scaling.moving = None;
        scaling.vain += 1;
        if scaling.vain < VAIN_MAX {
            scaling.retry_at = Some(now + RETRY_TIME * scaling.vain);
            return Ok(());
        }
        let (wanted, reached) = (count(&scaling.places), count(&scaling.reached));
        say!("{wanted} processes for replicas were not to be had: {why}");
        let reached_places = scaling.reached.clone();
        self.want(reached_places);
        self.scaling.retry_at = Some(now + GIVEN_UP_TIME);
        self.answer_askers(&ReportPart::Error(format!("it stays with {reached} processes: {why}")))
    }

    /// Looks how busy replicas are, if that counts.
    fn look_at_load(&mut self, now: Instant) {
        let is_settled = self.are_in_place()
            && self.succession.is_none()
            && self.replicas.iter().all(super::supervisor::ServerSlot::hears);
        let Some(auto) = &mut self.scaling.auto else { return };
        let time = now.saturating_duration_since(auto.looked);
        if time < LOOK_EVERY {
            return;
        }
        let pages = self.replicas.iter().zip(&self.memory.replicas);
        let seen: Vec<(u32, u64)> =
            pages.map(|(replica, memory)| (replica.epoch, memory.page.stat(Stat::BusyNanos))).collect();
        let before = std::mem::replace(&mut auto.seen, seen);
        auto.looked = now;
        let is_same = before.iter().map(|(epoch, _)| epoch).eq(auto.seen.iter().map(|(epoch, _)| epoch));
        if !is_settled || !is_same {
            // A new incarnation has had other things to do.
            return;
        }
        let busy = |(before, after): (&(u32, u64), &(u32, u64))| after.1.saturating_sub(before.1) as f64;
        let shares: Vec<f64> = before.iter().zip(&auto.seen).map(|pair| busy(pair) / time.as_nanos() as f64).collect();
        let from = count(&self.scaling.places);
        if let Some(to) = auto.scaler.look(from, &shares) {
            let percent: Vec<String> = shares.iter().map(|share| format!("{:.0}", share * 100.0)).collect();
            say!("{to} processes instead of {from}: the replicas are busy {} %", percent.join(" "));
            self.want(spread(self.replicas.len(), to));
        }
    }
}

/// The process of each replica, if there are so many.
fn spread(replicas: usize, processes: u8) -> Vec<u8> {
    (0..replicas).map(|replica| host_of(replica, processes.into()) as u8).collect()
}

/// How many processes these are.
fn count(places: &[u8]) -> u8 {
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

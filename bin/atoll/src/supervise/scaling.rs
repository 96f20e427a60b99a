//! How does a stack come to have more or fewer processes while its connections are open? Replicas move, one after another; nobody outside sees it.
//!
//! ```text
//!   Opening   the process is started, if it is not there; the replica serves
//!   Leaving   the replica is asked to hand over; it serves until it has
//!   Taking    it goes on in the other process, with the same memory and as the next incarnation
//! ```
//! What is wrong on the way is a death, from which the replica recovers where it was to go.

use std::io;
use std::time::{Duration, Instant};

use atoll_ipc::control::Request;
use atoll_ipc::page::Stat;
use atoll_supervisor::{ClientId, Config, ReportPart, Scaler, ScalingReport, host_of};
use atoll_sys::process::Signal;

use super::life::READY_TIME;
use super::server::Server;

/// In how many processes the replicas are to be.
pub(super) struct Scaling {
    wanted: u8,
    /// The number that was reached last.
    reached: u8,
    moving: Option<Move>,
    /// Who waits for `wanted` to be reached.
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
        let start = config.scaling.start;
        Scaling {
            wanted: start,
            reached: start,
            moving: None,
            asking: Vec::new(),
            vain: 0,
            retry_at: None,
            auto: config.scaling.auto.then(|| Auto::new(config)),
        }
    }

    /// When to look again, if nothing happens.
    pub fn next_timeout(&self) -> Option<Instant> {
        let step_at = self.moving.and_then(|moving| match moving.step {
            Step::Opening => Some(moving.since + READY_TIME),
            Step::Leaving => Some(moving.since + LEAVE_TIME),
            // The replica's life says when.
            Step::Taking => None,
        });
        let look_at = self.auto.as_ref().map(|auto| auto.looked + LOOK_EVERY);
        [step_at, self.retry_at, look_at].into_iter().flatten().min()
    }
}

impl Server {
    /// The process that a replica is to be in.
    pub(super) fn host_for(&self, index: usize) -> usize {
        host_of(index, self.scaling.wanted.into())
    }

    /// In how many processes the replicas are.
    pub(super) fn scaling_report(&self) -> ScalingReport {
        let is_first = |(at, replica): &(usize, &super::server::Replica)| {
            self.replicas[..*at].iter().all(|other| other.host != replica.host)
        };
        let auto = self.scaling.auto.as_ref();
        let (min, max) = auto.map_or((self.config.scaling.min, self.config.scaling.max), |auto| auto.scaler.limits());
        ScalingReport {
            processes: self.replicas.iter().enumerate().filter(is_first).count() as u8,
            wanted: self.scaling.wanted,
            auto: auto.is_some(),
            min,
            max,
        }
    }

    /// `atoll scale`. It is answered when there are so many.
    pub(super) fn scale(&mut self, id: ClientId, processes: Option<u8>) -> io::Result<()> {
        let replicas = self.replicas.len();
        let Some(wanted) = processes else {
            self.scaling.auto = Some(Auto::new(&self.config));
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
        self.scaling.auto = None;
        if wanted != self.scaling.wanted {
            self.answer_askers(&ReportPart::Error(format!("{wanted} processes were asked for meanwhile")))?;
        }
        self.want(wanted);
        self.scaling.asking.push(id);
        self.look_after_scaling(Instant::now())
    }

    fn want(&mut self, processes: u8) {
        let scaling = &mut self.scaling;
        (scaling.wanted, scaling.vain, scaling.retry_at) = (processes, 0, None);
    }

    fn answer_askers(&mut self, last: &ReportPart) -> io::Result<()> {
        for id in std::mem::take(&mut self.scaling.asking) {
            if *last == ReportPart::Done(true) {
                self.answer(id, &ReportPart::Scaling(self.scaling_report()))?;
            }
            self.answer(id, last)?;
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
            let life = &self.replicas[moving.replica].life;
            let step = match moving.step {
                // Somebody has changed his mind, or it has died and recovers where it is to be.
                Step::Opening if self.host_for(moving.replica) != moving.to || !life.is_serving() => None,
                Step::Opening if !self.hosts.exists(moving.to) => {
                    return self.move_failed(now, "a process for replicas ended when it was started");
                }
                Step::Opening if self.hosts.is_up(moving.to) => {
                    self.replicas[moving.replica].life.leave();
                    self.send_to_replica(moving.replica, &Request::HandOver, Vec::new())?;
                    Some(Step::Leaving)
                }
                Step::Opening if now >= moving.since + READY_TIME => {
                    self.hosts.kill(moving.to);
                    return self.move_failed(now, "a process for replicas was not up in time");
                }
                Step::Leaving if !life.is_leaving() => Some(Step::Taking),
                Step::Leaving if now >= moving.since + LEAVE_TIME => {
                    if let Some(child) = &self.replicas[moving.replica].child {
                        eprintln!(
                            "atoll: replica {} (pid {}) has not handed over within {} s: it is killed",
                            moving.replica,
                            child.pid(),
                            LEAVE_TIME.as_secs()
                        );
                        let _ = child.kill(Signal::KILL);
                    }
                    Some(Step::Taking)
                }
                Step::Taking if life.is_serving() => None,
                Step::Opening | Step::Leaving | Step::Taking => return Ok(()),
            };
            self.scaling.moving = step.map(|step| Move { step, since: now, ..moving });
        }
    }

    /// Sends the next replica on its way. Returns whether there was one.
    fn begin_move(&mut self, now: Instant) -> io::Result<bool> {
        if self.scaling.retry_at.is_some_and(|at| now < at) {
            return Ok(false);
        }
        self.scaling.retry_at = None;
        let all = 0..self.replicas.len();
        let Some(replica) = all.clone().find(|index| self.replicas[*index].host != self.host_for(*index)) else {
            all.for_each(|number| self.close_host_if_idle(number, now));
            if self.replicas.iter().all(|replica| replica.life.is_serving()) {
                (self.scaling.reached, self.scaling.vain) = (self.scaling.wanted, 0);
                self.answer_askers(&ReportPart::Done(true))?;
            }
            return Ok(false);
        };
        if !self.replicas[replica].life.is_serving() {
            // It recovers first. Where, it was told when it died.
            return Ok(false);
        }
        let to = self.host_for(replica);
        if !self.hosts.exists(to)
            && let Err(failure) = self.open_host(to)
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
        let (wanted, reached) = (scaling.wanted, scaling.reached);
        eprintln!("atoll: {wanted} processes for replicas were not to be had: {why}");
        self.want(reached);
        self.scaling.retry_at = Some(now + GIVEN_UP_TIME);
        self.answer_askers(&ReportPart::Error(format!("it stays with {reached} processes: {why}")))
    }

    /// Looks how busy replicas are, if that counts.
    fn look_at_load(&mut self, now: Instant) {
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
        let is_settled = self.scaling.moving.is_none()
            && self.scaling.wanted == self.scaling.reached
            && self.replicas.iter().all(|replica| replica.life.is_serving());
        let is_same = before.iter().map(|(epoch, _)| epoch).eq(auto.seen.iter().map(|(epoch, _)| epoch));
        if !is_settled || !is_same {
            // What they count begins anew with each incarnation.
            return;
        }
        let busy = |(before, after): (&(u32, u64), &(u32, u64))| after.1.saturating_sub(before.1) as f64;
        let shares: Vec<f64> = before.iter().zip(&auto.seen).map(|pair| busy(pair) / time.as_nanos() as f64).collect();
        if let Some(to) = auto.scaler.look(self.scaling.wanted, &shares) {
            let percent: Vec<String> = shares.iter().map(|share| format!("{:.0}", share * 100.0)).collect();
            let from = self.scaling.wanted;
            eprintln!("atoll: {to} processes instead of {from}: the replicas are busy {} %", percent.join(" "));
            self.want(to);
        }
    }
}

/// How long a replica may take to hand over. It serves meanwhile, so there is no hurry.
const LEAVE_TIME: Duration = Duration::from_secs(5);
/// Time between two looks at how busy replicas are.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// So many processes in a row that cannot be started are too many.
const VAIN_MAX: u32 = 3;
/// Time until it is tried again to start one, times the attempts.
const RETRY_TIME: Duration = Duration::from_millis(100);
/// Time until anything is tried again that was given up.
const GIVEN_UP_TIME: Duration = Duration::from_secs(30);

//! `atoll chaos`: kills, stops and moves servers of a stack at random, and reports whether the stack
//! survives.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use atoll_base::Rng;
use atoll_supervisor::{RecoveryReport, ServerState, ServerView, StackName, StatusReport};
use atoll_sys::process::{self, Signal};
use atoll_sys::signal::Signals;
use serde::Serialize;
use thiserror::Error;

use crate::client::SupervisorClient;
use crate::failure::{Failure, OrFail};

/// Kill and stop servers of a stack at random, one or two at a time, move replicas from process to process,
/// and tell what came of it.
///
/// Applications should not notice. Servers that were stopped go on after a while, unless the supervisor has
/// replaced them before. Replicas that have moved are back where they were at the end. Ends early on SIGINT.
/// Fails if a server does not come back.
#[derive(clap::Args)]
pub struct Chaos {
    /// The stack.
    #[arg(default_value = "default")]
    name: StackName,
    /// For how long, such as 90s, 10m or 1h.
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    time: Duration,
    /// Kill servers (SIGKILL). Without this, --stop and --move: all three.
    #[arg(long)]
    kill: bool,
    /// Stop servers (SIGSTOP), some for so long that they are replaced.
    #[arg(long)]
    stop: bool,
    /// Move replicas, and change the number of their processes, while the others go on; of a stack with
    /// several.
    #[arg(long = "move")]
    moves: bool,
    /// Kill the supervisor, too, as long as there is a guardian that starts the next one.
    #[arg(long)]
    supervisor: bool,
    /// How much time passes between two deeds in the mean.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s")]
    every: Duration,
    /// The seed of all random choices that do not depend on timing.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print JSON (docs/cli.md).
    #[arg(long, short = 'j')]
    json: bool,
}

/// The action on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Kill,
    /// The server is stopped, and continued after this time.
    Stop(Duration),
}

/// The kinds of deeds that are allowed.
#[derive(Clone, Copy, Debug)]
struct Kinds {
    kill: bool,
    stop: bool,
    moves: bool,
    supervisor: bool,
}

/// A server as the supervisor reports it.
#[derive(Clone, Debug)]
struct Victim {
    name: String,
    pid: u32,
    epoch: u32,
    recovery: RecoveryReport,
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Report {
    /// The name of the stack.
    stack: String,
    /// The seed; it makes another run on such a stack do the same.
    seed: u64,
    /// The duration of the run in seconds.
    seconds: f64,
    /// The number of servers killed, and stopped.
    kills: u64,
    stops: u64,
    /// The number of supervisors killed.
    takeovers: u64,
    /// The number of deeds that hit two servers at once.
    pairs: u64,
    /// The number of requests to place replicas differently, and of moves that resulted.
    rearrangements: u64,
    moves: u64,
    /// The number of restarts of each server, moves not included, by name.
    restarts: BTreeMap<String, u64>,
    /// The number of recoveries that were watched to their ends, and their times in milliseconds.
    recoveries: u64,
    recovery_median_ms: f64,
    recovery_p99_ms: f64,
    recovery_max_ms: f64,
    /// The number of connections at the end, and what became of those of replicas that died.
    connections: u64,
    connections_kept: u64,
    connections_lost: u64,
    connections_quarantined: u64,
    /// The names of servers that did not come back.
    missing: Vec<String>,
}

impl Chaos {
    /// Runs the command. Returns its exit status.
    pub fn run(&self) -> Result<ExitCode, Failure> {
        let seed = match self.seed {
            Some(seed) => seed,
            None => {
                let mut bytes = [0; 8];
                process::random(&mut bytes).or_fail("drawing a seed")?;
                u64::from_ne_bytes(bytes) >> 32
            }
        };
        let supervisor = SupervisorClient::connect(&self.name)?;
        let signals = Signals::catch(&[Signal::INT, Signal::TERM]).or_fail("catching signals")?;
        let mut course = Course::new(&self.name, supervisor, seed, signals)?;
        let any = self.kill || self.stop || self.moves;
        let kinds = Kinds {
            kill: self.kill || !any,
            stop: self.stop || !any,
            moves: self.moves || !any,
            supervisor: self.supervisor,
        };
        if self.moves && course.before.replicas.len() < 2 {
            return Err(Failure::new(
                "the stack has one replica, which is always in process 0 alone: --move does nothing",
            ));
        }
        let start = Instant::now();
        while start.elapsed() < self.time && !course.is_interrupted()? {
            course.act(kinds)?;
            let pause =
                course.rng.below(u32::try_from(2 * self.every.as_micros()).unwrap_or(u32::MAX).max(1));
            let left = self.time.saturating_sub(start.elapsed());
            course.wait(Duration::from_micros(pause.into()).min(left))?;
        }
        let report = course.finish(seed, start)?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report).or_fail("writing JSON")?);
        } else {
            print!("{}", text(&report));
        }
        Ok(if report.missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The state of one run.
struct Course<'a> {
    name: &'a StackName,
    supervisor: SupervisorClient,
    rng: Rng,
    signals: Signals,
    interrupted: bool,
    before: StatusReport,
    /// The crashes of each server when it was last seen to serve.
    crashes: BTreeMap<String, u64>,
    /// Stopped processes, and when they are continued.
    stopped: Vec<(Instant, OwnedFd)>,
    recoveries: Vec<u64>,
    /// The thread that waits for replicas to move.
    moving: Option<thread::JoinHandle<Result<(), Failure>>>,
    report: Report,
}

impl<'a> Course<'a> {
    fn new(
        name: &'a StackName,
        supervisor: SupervisorClient,
        seed: u64,
        signals: Signals,
    ) -> Result<Course<'a>, Failure> {
        let before = supervisor.status()?;
        let crashes =
            victims(&before).into_iter().map(|victim| (victim.name, victim.recovery.crashes)).collect();
        Ok(Course {
            name,
            supervisor,
            rng: Rng::new(seed),
            signals,
            interrupted: false,
            before,
            crashes,
            stopped: Vec::new(),
            recoveries: Vec::new(),
            moving: None,
            report: Report::default(),
        })
    }

    /// Kills or stops one or two serving servers, or changes the placement of replicas. Does nothing if no
    /// server serves.
    fn act(&mut self, Kinds { kill, stop, moves, supervisor }: Kinds) -> Result<(), Failure> {
        let status = self.watch()?;
        let moves = moves && status.replicas.len() > 1;
        if moves && (!kill && !stop || self.rng.below(3) == 0) {
            return self.rearrange(&status);
        }
        let mut serving: Vec<Victim> = victims(&status)
            .into_iter()
            .filter(|victim| victim.recovery.state == ServerState::Serving)
            .collect();
        if supervisor && status.stack.guardian.is_some_and(is_atoll) {
            serving.push(Victim {
                name: SUPERVISOR.into(),
                pid: status.stack.pid,
                epoch: status.stack.takeovers,
                recovery: RecoveryReport::default(),
            });
        }
        let count = if serving.len() > 1 && self.rng.below(4) == 0 { 2 } else { 1 };
        let mut done = 0;
        for _ in 0..count.min(serving.len()) {
            let victim = serving.swap_remove(self.rng.below(serving.len() as u32) as usize);
            let stops = stop && victim.name != SUPERVISOR && (!kill || self.rng.below(3) == 0);
            let deed = if stops { Deed::Stop(self.pause()) } else { Deed::Kill };
            done += u64::from(self.do_to(&victim, deed)?);
        }
        self.report.pairs += u64::from(done > 1);
        Ok(())
    }

    /// Returns how long a server is stopped: mostly a moment, sometimes so long that it is replaced.
    fn pause(&mut self) -> Duration {
        let micros = [1000, 50_000, 500_000, 4_000_000][self.rng.below(4) as usize];
        Duration::from_micros(self.rng.below(micros).into())
    }

    /// Kills or stops a server. Returns whether that was done: the server may have died by itself, and its
    /// process number may be another's.
    fn do_to(&mut self, victim: &Victim, deed: Deed) -> Result<bool, Failure> {
        let Ok(process) = process::pidfd_open(victim.pid) else { return Ok(false) };
        if !is_atoll(victim.pid) {
            return Ok(false);
        }
        let signal = if deed == Deed::Kill { Signal::KILL } else { Signal::STOP };
        match process::send_signal(&process, signal) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                return Err(error)
                    .or_fail(format!("{} (pid {}, epoch {})", victim.name, victim.pid, victim.epoch));
            }
            Err(_) => return Ok(false),
        }
        match deed {
            Deed::Kill if victim.name == SUPERVISOR => self.report.takeovers += 1,
            Deed::Kill => self.report.kills += 1,
            Deed::Stop(time) => {
                self.report.stops += 1;
                self.stopped.push((Instant::now() + time, process));
            }
        }
        Ok(true)
    }

    /// Asks for another placement of replicas in the background, unless such a request is still being carried
    /// out.
    fn rearrange(&mut self, status: &StatusReport) -> Result<(), Failure> {
        if self.moving.as_ref().is_some_and(|moving| !moving.is_finished()) {
            return Ok(());
        }
        self.await_moves()?;
        let replicas = status.replicas.len() as u32;
        let (number, to) = (1 + self.rng.below(replicas) as u8, self.rng.below(replicas) as u8);
        let some: Vec<u8> = (0..replicas as u8).filter(|_| self.rng.below(2) == 0).collect();
        let name = status.stack.name.parse().map_err(Failure::new)?;
        let scales = self.rng.below(2) == 0;
        self.report.rearrangements += 1;
        // The thread has a connection of its own; this one is needed for watching.
        self.moving = Some(thread::spawn(move || {
            let supervisor = SupervisorClient::connect(&name)?.with_patience(MOVE_TIME)?;
            let done = if scales { supervisor.scale(Some(number)) } else { supervisor.relocate(some, to) };
            done.map(|_| ())
        }));
        Ok(())
    }

    /// Waits until requested moves of replicas are done, and returns their error.
    fn await_moves(&mut self) -> Result<(), Failure> {
        let Some(moving) = self.moving.take() else { return Ok(()) };
        let moved = moving.join().unwrap_or_else(|_| Err(Failure::new("who has moved replicas has failed")));
        // A supervisor that was killed may have lost the request.
        if self.report.takeovers > 0 { Ok(()) } else { moved }
    }

    /// Moves replicas back to where they were at the start.
    fn restore(&self) -> Result<(), Failure> {
        if self.report.rearrangements == 0 {
            return Ok(());
        }
        let supervisor = SupervisorClient::connect(self.name)?;
        let mut processes: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        for replica in &self.before.replicas {
            processes.entry(replica.process).or_default().push(replica.index);
        }
        for (process, replicas) in processes {
            supervisor.relocate(replicas, process)?;
        }
        if self.before.stack.scaling.auto {
            supervisor.scale(None)?;
        }
        Ok(())
    }

    /// Waits for `time`, continues stopped servers meanwhile, and watches recoveries.
    fn wait(&mut self, time: Duration) -> Result<(), Failure> {
        let end = Instant::now() + time;
        loop {
            let now = Instant::now();
            self.stopped.retain(|(until, process)| {
                let is_over = *until <= now;
                if is_over {
                    // A process that has been replaced meanwhile does not get it.
                    let _ = process::send_signal(process, Signal::CONT);
                }
                !is_over
            });
            if now >= end || self.is_interrupted()? {
                return Ok(());
            }
            self.watch()?;
            thread::sleep((end - now).min(LOOK_EVERY));
        }
    }

    /// Records recoveries that have ended. Returns the current status.
    fn watch(&mut self) -> Result<StatusReport, Failure> {
        let status = self.status()?;
        for victim in victims(&status) {
            let seen = self.crashes.entry(victim.name).or_default();
            if victim.recovery.state == ServerState::Serving && victim.recovery.crashes > *seen {
                *seen = victim.recovery.crashes;
                self.recoveries.extend(victim.recovery.last.map(|last| last.total_us));
            }
        }
        Ok(status)
    }

    /// Asks the supervisor for its status, or the next supervisor if it is killed meanwhile.
    fn status(&mut self) -> Result<StatusReport, Failure> {
        let deadline = Instant::now() + RETURN_TIME;
        loop {
            match self.supervisor.status() {
                Err(failure) if Instant::now() >= deadline => return Err(failure),
                // The supervisor died before it answered.
                Err(_) => {
                    thread::sleep(LOOK_EVERY);
                    self.supervisor = SupervisorClient::connect(self.name)?.with_patience(ANSWER_TIME)?;
                }
                status => return status,
            }
        }
    }

    fn is_interrupted(&mut self) -> Result<bool, Failure> {
        while self.signals.next().or_fail("reading signals")?.is_some() {
            self.interrupted = true;
        }
        Ok(self.interrupted)
    }

    /// Continues all stopped servers, waits until all serve again, and returns the report.
    fn finish(mut self, seed: u64, start: Instant) -> Result<Report, Failure> {
        let seconds = start.elapsed().as_secs_f64();
        for (_, process) in self.stopped.drain(..) {
            // The process may have been replaced.
            let _ = process::send_signal(&process, Signal::CONT);
        }
        self.await_moves()?;
        self.restore()?;
        let deadline = Instant::now() + RETURN_TIME;
        let status = loop {
            let status = self.watch()?;
            let is_whole =
                victims(&status).iter().all(|victim| victim.recovery.state == ServerState::Serving);
            if is_whole || Instant::now() >= deadline {
                break status;
            }
            thread::sleep(LOOK_EVERY);
        };
        let after = victims(&status);
        let before: BTreeMap<String, Victim> =
            victims(&self.before).into_iter().map(|old| (old.name.clone(), old)).collect();
        let moves = |new: &Victim| {
            let old = before.get(&new.name).map_or(0, |old| old.recovery.moves);
            new.recovery.moves.saturating_sub(old)
        };
        let restarts = after.iter().map(|new| {
            let lives = before.get(&new.name).map_or(0, |old| new.epoch.saturating_sub(old.epoch));
            (new.name.clone(), u64::from(lives).saturating_sub(moves(new)))
        });
        let count = |name: &str| sum(&status, name).saturating_sub(sum(&self.before, name));
        self.recoveries.sort_unstable();
        let times = &self.recoveries;
        let at = |share: usize| times.get((times.len() * share / 100).min(times.len().saturating_sub(1)));
        let millis = |micros: Option<&u64>| micros.map_or(0.0, |micros| *micros as f64 / 1000.0);
        Ok(Report {
            stack: self.name.to_string(),
            seed,
            seconds,
            moves: after.iter().map(moves).sum(),
            restarts: restarts.collect(),
            recoveries: times.len() as u64,
            recovery_median_ms: millis(at(50)),
            recovery_p99_ms: millis(at(99)),
            recovery_max_ms: millis(times.last()),
            connections: sum(&status, "connections"),
            connections_kept: count("connections_kept"),
            connections_lost: count("connections_lost"),
            connections_quarantined: count("connections_quarantined"),
            missing: after
                .iter()
                .filter(|victim| victim.recovery.state != ServerState::Serving)
                .map(|victim| victim.name.clone())
                .collect(),
            ..self.report
        })
    }
}

/// Returns all servers, always in one order.
fn victims(status: &StatusReport) -> Vec<Victim> {
    let victim = |ServerView { kind, index, pid, epoch, recovery, .. }: ServerView<'_>| Victim {
        name: format!("{kind} {index}"),
        pid,
        epoch,
        recovery: recovery.clone(),
    };
    status.servers().map(victim).collect()
}

/// Returns the sum of a counter over all replicas.
fn sum(status: &StatusReport, name: &str) -> u64 {
    status.replicas.iter().filter_map(|replica| replica.stats.get(name)).sum()
}

/// Returns whether a process belongs to a stack, judged by its name: the number of a dead process may be
/// another's.
fn is_atoll(pid: u32) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let program = words.split(|octet| *octet == 0).next().unwrap_or_default();
    program.rsplit(|octet| *octet == b'/').next().is_some_and(|name| name.starts_with(b"atoll"))
}

fn text(report: &Report) -> String {
    let Report { stack, seed, seconds, kills, stops, pairs, .. } = report;
    let mut out = format!("stack {stack}  {seconds:.1} s  seed {seed}\n");
    let takeovers = report.takeovers;
    out += &format!(
        "deeds        {kills} killed, {stops} stopped; {pairs} times two at once; {takeovers} supervisors\n"
    );
    if report.rearrangements > 0 {
        out += &format!(
            "moves        {} of replicas, in {} rearrangements\n",
            report.moves, report.rearrangements
        );
    }
    let restarts: Vec<String> =
        report.restarts.iter().map(|(name, count)| format!("{name}: {count}")).collect();
    out += &format!("restarts     {}\n", restarts.join(", "));
    out += &format!(
        "recoveries   {}  median {:.1} ms  p99 {:.1} ms  max {:.1} ms\n",
        report.recoveries, report.recovery_median_ms, report.recovery_p99_ms, report.recovery_max_ms
    );
    out += &format!(
        "connections  {} kept, {} lost, {} of them quarantined; {} now\n",
        report.connections_kept, report.connections_lost, report.connections_quarantined, report.connections
    );
    if !report.missing.is_empty() {
        out += &format!("missing      {}\n", report.missing.join(", "));
    }
    out
}

/// Why a text is not the length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
enum TimeError {
    #[error("a time is a number and a unit, such as 90s, 10m or 1h")]
    Number,
    #[error("its unit is ms, s, m or h")]
    Unit,
    #[error("that is too long")]
    TooLong,
}

/// Parses a time with its unit.
fn time(text: &str) -> Result<Duration, TimeError> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..at].parse().map_err(|_| TimeError::Number)?;
    let millis = match &text[at..] {
        "ms" => Some(number),
        "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        _ => return Err(TimeError::Unit),
    };
    let millis = millis.filter(|millis| *millis <= TIME_MAX_MS).ok_or(TimeError::TooLong)?;
    Ok(Duration::from_millis(millis))
}

const SUPERVISOR: &str = "supervisor";
/// How long a supervisor may take to answer before another one is asked.
const ANSWER_TIME: atoll_base::Duration = atoll_base::Duration::from_secs(2);
/// How long a move of replicas may take.
const MOVE_TIME: atoll_base::Duration = atoll_base::Duration::from_secs(60);
/// The time between two checks of the stack.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long servers may take to come back at the end.
const RETURN_TIME: Duration = Duration::from_secs(20);
/// The longest run that can be requested: four weeks, in milliseconds.
const TIME_MAX_MS: u64 = 28 * 24 * 3_600_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, millis) in
            [("90s", 90_000), ("500ms", 500), ("10m", 600_000), ("1h", 3_600_000), ("0s", 0)]
        {
            assert_eq!(time(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for (texts, error) in [
            (&["", "s", "-1s", "18446744073709551616s"][..], TimeError::Number),
            (&["10", "1.5s", "1d"], TimeError::Unit),
            (&["99999999999h", "1000h"], TimeError::TooLong),
        ] {
            for text in texts {
                assert_eq!(time(text), Err(error), "{text}");
            }
        }
    }

    #[test]
    fn a_report_is_told_in_lines() {
        let report = Report {
            stack: "default".into(),
            seed: 7,
            seconds: 90.0,
            kills: 50,
            restarts: [("replica 0".to_owned(), 50)].into(),
            recoveries: 50,
            recovery_median_ms: 3.25,
            connections_kept: 1000,
            ..Report::default()
        };
        let said = text(&report);
        assert!(
            said.starts_with("stack default  90.0 s  seed 7\ndeeds        50 killed, 0 stopped"),
            "{said}"
        );
        assert!(said.contains("connections  1000 kept, 0 lost") && !said.contains("missing"), "{said}");
        assert!(!said.contains("moves"), "{said}");
        let moved = Report { rearrangements: 3, moves: 5, ..report.clone() };
        assert!(text(&moved).contains("moves        5 of replicas, in 3 rearrangements\n"));
        assert!(
            text(&Report { missing: vec!["replica 1".into()], ..report })
                .ends_with("missing      replica 1\n")
        );
    }

    #[test]
    fn others_are_not_touched() {
        assert!(!is_atoll(1) && !is_atoll(u32::MAX));
        assert!(is_atoll(std::process::id()), "tests are called atoll, too");
    }
}

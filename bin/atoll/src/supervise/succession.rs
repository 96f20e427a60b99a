//! How are the servers of a stack replaced by those of another build? The supervisor's part in an upgrade; `upgrade.rs` says in which order.
//!
//! A server is asked to hand over: it puts everything in its ledger and ends. Its successor is started on the same memory, as after a
//! death. Who does not end in time is killed, which comes to the same.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use atoll_ipc::control::Request;
use atoll_supervisor::{Build, BuildReport, ClientId, ReportPart};
use atoll_sys::epoll::EventFlags;
use atoll_sys::process::{Child, Signal, Spawn};
use atoll_sys::unix::{Blocking, Channel};

use super::build_file;
use super::supervisor::{SELF_CHECK, Supervisor};
use super::upgrade::{Side, Step, Upgrade};
use crate::failure::{Failure, OrFail};
use crate::self_check::{self, SelfCheck};

/// A build that servers are started of.
#[derive(Debug)]
pub struct Program {
    /// Its file, open; `None`: that of this process.
    pub file: Option<OwnedFd>,
    /// What it says of itself.
    pub build: Build,
}

impl Program {
    /// The build that this process is of.
    pub fn own() -> Program {
        Program { file: None, build: self_check::own() }
    }

    /// A process of it about to be started.
    pub fn spawn(&self) -> io::Result<Spawn<'_>> {
        match &self.file {
            Some(file) => Spawn::file(file.as_fd(), "atoll"),
            None => Spawn::this_binary("atoll"),
        }
    }

    /// What `atoll status` shows of it.
    pub fn report(&self) -> BuildReport {
        BuildReport { version: self.build.version.clone(), id: self.build.id.clone() }
    }
}

/// An upgrade under way.
pub(super) struct Succession {
    /// Who wants to hear of it.
    client: ClientId,
    /// What each server was of before, by number.
    old: Vec<Rc<Program>>,
    stage: Stage,
}

enum Stage {
    /// The new build is asked what it is.
    Check { file: OwnedFd, child: Child, channel: Channel, deadline: Instant },
    /// Servers are replaced.
    Exchange { new: Rc<Program>, upgrade: Upgrade },
}

impl Succession {
    /// Who wants to hear of it.
    pub fn client(&self) -> ClientId {
        self.client
    }
}

impl Supervisor {
    /// `atoll upgrade`: begins with the question what the new build is.
    pub(super) fn begin_upgrade(&mut self, client: ClientId, path: &str) -> io::Result<()> {
        if self.succession.is_some() {
            return self.answer(client, &ReportPart::Error("an upgrade is under way".into()));
        }
        if !self.are_in_place() {
            let reason = "replicas are on their way to other processes: try again when they are there";
            return self.answer(client, &ReportPart::Error(reason.into()));
        }
        // By its name, because clients cannot pass descriptors (THREAT_MODEL.md); from now on by the file.
        let file = match build_file::open(path, self.identity.uid) {
            Ok(file) => file,
            Err(failure) => return self.answer(client, &ReportPart::Error(format!("{path}: {failure}"))),
        };
        let (child, channel) = match ask(&file) {
            Ok(started) => started,
            Err(failure) => return self.answer(client, &ReportPart::Error(format!("{path}: {failure}"))),
        };
        self.epoll.add(&channel, SELF_CHECK, EventFlags::IN)?;
        let deadline = Instant::now() + CHECK_TIME;
        let old = self.replicas.iter().chain(&self.others).map(|server| server.program.clone()).collect();
        self.succession = Some(Succession { client, old, stage: Stage::Check { file, child, channel, deadline } });
        Ok(())
    }

    /// The new build has answered, or has ended without an answer.
    pub(super) fn self_check_spoke(&mut self) -> io::Result<()> {
        let Some(Succession { stage: Stage::Check { channel, .. }, .. }) = &self.succession else { return Ok(()) };
        let mut packet = vec![0; CHECK_MAX];
        let answer = match channel.receive(&mut packet, &mut Vec::new()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Ok(len @ 1..) => serde_json::from_slice::<SelfCheck>(&packet[..len]).ok(),
            _ => None,
        };
        self.judge(answer, "it does not say what it is (`atoll self-check` of it fails)")
    }

    /// Goes on with the upgrade, or refuses it. `silence`: the reason if there is no answer.
    fn judge(&mut self, answer: Option<SelfCheck>, silence: &str) -> io::Result<()> {
        let Some(Succession { client, old, stage: Stage::Check { file, child, channel, .. } }) = self.succession.take()
        else {
            return Ok(());
        };
        self.epoll.delete(&channel)?;
        // It has nothing else to do.
        let _ = child.kill(Signal::KILL);
        let _ = child.wait();
        let refusal = match &answer {
            None => Some(silence.to_owned()),
            Some(SelfCheck { fault: Some(fault), .. }) => Some(format!("it cannot run on this machine: {fault}")),
            Some(SelfCheck { build, .. }) => old.iter().find_map(|program| program.build.misfit(build)),
        };
        let (Some(SelfCheck { build, .. }), None) = (answer, &refusal) else {
            let reason = format!("this build cannot take over: {}", refusal.unwrap_or_default());
            say!("upgrade: {reason}");
            return self.answer(client, &ReportPart::Error(reason));
        };
        self.exchange(client, Program { file: Some(file), build })
    }

    /// The build is good: its servers take over.
    pub(super) fn exchange(&mut self, client: ClientId, new: Program) -> io::Result<()> {
        let old: Vec<_> = self.replicas.iter().chain(&self.others).map(|server| server.program.clone()).collect();
        let line =
            format!("from {} to {}", old.first().map(|old| old.build.name()).unwrap_or_default(), new.build.name());
        let upgrade = Upgrade::new(old.len(), Instant::now());
        self.succession = Some(Succession { client, old, stage: Stage::Exchange { new: Rc::new(new), upgrade } });
        self.progress(&line)
    }

    /// Does what is due. `now`: as of this turn.
    pub(super) fn go_on_with_upgrade(&mut self, now: Instant) -> io::Result<()> {
        self.kill_late(now);
        loop {
            let serving: Vec<bool> =
                self.replicas.iter().chain(&self.others).map(|server| server.life.is_serving()).collect();
            let Some(Succession { client, stage, .. }) = &mut self.succession else { return Ok(()) };
            let client = *client;
            let (new, upgrade) = match stage {
                Stage::Check { deadline, .. } if now >= *deadline => {
                    return self.judge(None, "it has not said within five seconds what it is");
                }
                Stage::Check { .. } => return Ok(()),
                Stage::Exchange { new, upgrade } => (new.clone(), upgrade),
            };
            match upgrade.next(now, |server| serving[server]) {
                None => return Ok(()),
                Some(Step::Exchange(server, side)) => self.ask_to_hand_over(server, side, now)?,
                Some(Step::Confirm) => {
                    self.progress("all servers are of the new build, and it stays")?;
                    self.end_upgrade()?;
                    if self.make_way(client, &new) {
                        return Ok(());
                    }
                    return self.answer(client, &ReportPart::Done(true));
                }
                Some(Step::Failed(reason)) => {
                    self.end_upgrade()?;
                    let reason = format!("the old build is back: {reason}");
                    say!("upgrade: {reason}");
                    return self.answer(client, &ReportPart::Error(reason));
                }
            }
        }
    }

    /// When [`Supervisor::go_on_with_upgrade`] is due, if nothing happens.
    pub(super) fn upgrade_due(&self) -> Option<Instant> {
        let servers = self.replicas.iter().chain(&self.others);
        let leaving = servers.filter_map(|server| server.due_by);
        let of_stage = self.succession.as_ref().and_then(|succession| match &succession.stage {
            Stage::Check { deadline, .. } => Some(*deadline),
            Stage::Exchange { upgrade, .. } => upgrade.due(),
        });
        leaving.chain(of_stage).min()
    }

    /// The process of a server has ended, and says which build the next one is of. `how`: for people. Returns whether it was asked to.
    pub(super) fn succeed(&mut self, index: usize, how: &str) -> io::Result<bool> {
        let ledger = self.memory.ledger_version(index);
        let Some(Succession { old, stage: Stage::Exchange { new, upgrade }, .. }) = &mut self.succession else {
            return Ok(false);
        };
        let was = upgrade.side(index);
        let can_go_on = ledger.is_none_or(|version| version <= new.build.ledger.newest);
        let (side, asked) = upgrade.ended(index, how, can_go_on);
        let program = match side {
            Side::Old => old.get(index).cloned(),
            Side::New => Some(new.clone()),
        };
        let Some(server) = self.server_mut(index) else { return Ok(asked) };
        server.due_by = None;
        if let Some(program) = program {
            server.program = program;
        }
        if was == Side::New && !asked {
            self.progress(&format!("{how}: the old build comes back"))?;
        }
        Ok(asked)
    }

    /// A server is ready: the upgrade goes on. `line`: about it.
    pub(super) fn succeeded(&mut self, now: Instant, line: &str) -> io::Result<()> {
        if let Some(Succession { stage: Stage::Exchange { upgrade, .. }, .. }) = &mut self.succession {
            upgrade.ready(now);
            return self.progress(line);
        }
        Ok(())
    }

    /// A server was started: one of the new build has to be ready soon.
    pub(super) fn has_started(&mut self, index: usize, now: Instant) {
        if self.is_on_trial(index)
            && let Some(server) = self.server_mut(index)
        {
            server.due_by = Some(now + START_TIME);
        }
    }

    /// Whether a server is of a build that has to prove itself.
    pub(super) fn is_on_trial(&self, index: usize) -> bool {
        match &self.succession {
            Some(Succession { stage: Stage::Exchange { upgrade, .. }, .. }) => upgrade.side(index) == Side::New,
            _ => false,
        }
    }

    /// The version of the ledger that a server is to write, if it is not the one that it writes. While builds are exchanged there is none.
    pub(super) fn ledger_wanted(&self, index: usize) -> Option<u32> {
        let replica = self.replicas.get(index).filter(|_| self.succession.is_none())?;
        let newest = replica.program.build.ledger.newest;
        self.memory.ledger_version(index).is_some_and(|version| version != newest).then_some(newest)
    }

    fn ask_to_hand_over(&mut self, index: usize, side: Side, now: Instant) -> io::Result<()> {
        let Some(Succession { old, stage: Stage::Exchange { new, .. }, .. }) = &self.succession else { return Ok(()) };
        let next = if side == Side::New { Some(new) } else { old.get(index) };
        let newest = next.map_or(0, |program| program.build.ledger.newest);
        // Never a newer one than there is: the way back stays open.
        let ledger = self.memory.ledger_version(index).unwrap_or(newest).min(newest);
        self.ask_to_leave(index, ledger, now)
    }

    /// Nothing is exchanged any more: the ledgers are written in the newest version that the build knows.
    fn end_upgrade(&mut self) -> io::Result<()> {
        self.succession = None;
        for index in 0..self.replicas.len() {
            if let Some(version) = self.ledger_wanted(index) {
                self.send_to_replica(index, &Request::WriteLedger { version }, Vec::new())?;
            }
        }
        Ok(())
    }

    /// Kills servers that do not leave although they were asked to, and those of a new build that do not become ready.
    fn kill_late(&mut self, now: Instant) {
        for index in 0..self.replicas.len() + self.others.len() {
            let role = self.role(index);
            let Some(server) = self.server_mut(index) else { continue };
            let is_late = server.due_by.take_if(|until| now >= *until).is_some();
            if let (Some(child), true) = (&server.child, is_late) {
                let what = if server.life.is_serving() { "does not hand over" } else { "is not ready" };
                say!("{role} {what} in time: it is killed");
                let _ = child.kill(Signal::KILL);
            }
        }
    }

    fn progress(&mut self, line: &str) -> io::Result<()> {
        say!("upgrade: {line}");
        let Some(Succession { client, .. }) = &self.succession else { return Ok(()) };
        let client = *client;
        self.answer(client, &ReportPart::Progress(line.to_owned()))
    }
}

/// Starts the self-check of the build in `file`. Returns its process, and where its answer comes.
fn ask(file: &OwnedFd) -> Result<(Child, Channel), Failure> {
    let what = "asking it what it is";
    let (channel, theirs) = Channel::pair(Blocking::No).or_fail(what)?;
    let mut spawn = Spawn::file(file.as_fd(), "atoll").or_fail(what)?;
    spawn.env("LD_PRELOAD", "").or_fail(what)?;
    for argument in ["self-check", "--json", "--channel"] {
        spawn.arg(argument).or_fail(what)?;
    }
    spawn.inherit(theirs.as_fd());
    let child = spawn.start().or_fail(what)?;
    Ok((child, channel))
}

/// How long a build may take to say what it is.
const CHECK_TIME: Duration = Duration::from_secs(5);
/// The longest answer.
const CHECK_MAX: usize = 64 << 10;
/// How long one of a new build may take to become ready.
const START_TIME: Duration = Duration::from_secs(5);

//! The state of an upgrade. First the new build describes itself, then the servers are exchanged in the order
//! that `atoll_supervisor::Upgrade` decides.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use atoll_base::{Duration, Instant};
use atoll_supervisor::{ClientId, Misfit, Side, Upgrade, UpgradeStep};
use atoll_sys::epoll::{Epoll, EventFlags};
use atoll_sys::process::{Child, Signal, Spawn};
use atoll_sys::unix::{Blocking, Channel};
use thiserror::Error;

use super::program::Program;
use super::tokens::SELF_CHECK;
use crate::clock;
use crate::failure::{Failure, OrFail};
use crate::self_check::SelfCheck;

/// An upgrade under way.
pub struct Succession {
    /// The client that is notified of the progress.
    client: ClientId,
    /// The build of each server before the upgrade, by number.
    old: Vec<Rc<Program>>,
    stage: Stage,
}

enum Stage {
    /// The new build was asked to describe itself.
    Check { file: OwnedFd, child: Child, channel: Channel, deadline: Instant },
    /// Servers are being replaced.
    Exchange { new: Rc<Program>, upgrade: Upgrade },
}

/// Why a build cannot take over.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BuildRefusal {
    /// The build's answer is of no use, or its process has ended without one.
    #[error("it does not say what it is (`atoll self-check` of it fails)")]
    NoAnswer,
    /// The build has not answered within [`CHECK_TIME`].
    #[error("it has not said within five seconds what it is")]
    Late,
    /// The build has found out that it cannot run here; the text is its own.
    #[error("it cannot run on this machine: {0}")]
    Machine(String),
    /// The build's servers and those that are up cannot succeed each other.
    #[error(transparent)]
    Misfit(#[from] Misfit),
}

/// The treatment of a server whose process has ended.
pub struct Succeeded {
    /// The build of its next process.
    pub program: Option<Rc<Program>>,
    /// Whether its end was asked for.
    pub is_asked: bool,
    /// Whether it was of the new build, and ended by itself.
    pub has_failed: bool,
}

impl Succession {
    /// Asks the build in `file` to describe itself. `old` has the build of each server. An event with the
    /// token [`SELF_CHECK`] says that the answer can be read.
    pub fn ask(
        client: ClientId,
        old: Vec<Rc<Program>>,
        file: OwnedFd,
        epoll: &Epoll,
    ) -> Result<Succession, Failure> {
        let what = "asking it what it is";
        let (channel, theirs) = Channel::pair(Blocking::No).or_fail(what)?;
        let mut spawn = Spawn::file(file.as_fd(), "atoll").or_fail(what)?;
        spawn.env("LD_PRELOAD", "").or_fail(what)?;
        for argument in ["self-check", "--json", "--channel"] {
            spawn.arg(argument).or_fail(what)?;
        }
        spawn.inherit(theirs.as_fd());
        let child = spawn.start().or_fail(what)?;
        epoll.add(&channel, SELF_CHECK, EventFlags::IN).or_fail(what)?;
        let deadline = clock::now() + CHECK_TIME;
        Ok(Succession { client, old, stage: Stage::Check { file, child, channel, deadline } })
    }

    /// Creates the state of an upgrade that exchanges servers from now on.
    pub fn exchange(client: ClientId, old: Vec<Rc<Program>>, new: Program, now: Instant) -> Succession {
        let upgrade = Upgrade::new(old.len(), now);
        Succession { client, old, stage: Stage::Exchange { new: Rc::new(new), upgrade } }
    }

    /// Returns the client that is notified of the progress.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Returns the answer of the new build; `None` if it has not answered yet, or was not asked.
    pub fn answer(&self) -> Option<Result<SelfCheck, BuildRefusal>> {
        let Stage::Check { channel, .. } = &self.stage else { return None };
        let mut packet = vec![0; CHECK_MAX];
        match channel.receive(&mut packet, &mut Vec::new()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Ok(len @ 1..) => Some(serde_json::from_slice(&packet[..len]).map_err(|_| BuildRefusal::NoAnswer)),
            _ => Some(Err(BuildRefusal::NoAnswer)),
        }
    }

    /// Returns whether the new build has not answered in time.
    pub fn is_silent(&self, now: Instant) -> bool {
        matches!(&self.stage, Stage::Check { deadline, .. } if now >= *deadline)
    }

    /// Ends the check of the new build, with its answer or why there is none. Returns the build, or why it
    /// cannot take over.
    pub fn judge(
        self,
        answer: Result<SelfCheck, BuildRefusal>,
        epoll: &Epoll,
    ) -> io::Result<Result<Program, BuildRefusal>> {
        let Stage::Check { file, child, channel, .. } = self.stage else {
            return Ok(answer.and(Err(BuildRefusal::NoAnswer)));
        };
        epoll.delete(&channel)?;
        // The process has nothing else to do.
        let _ = child.kill(Signal::KILL);
        let _ = child.wait();
        Ok(answer.and_then(|check| match check.fault {
            Some(fault) => Err(BuildRefusal::Machine(fault)),
            None => {
                self.old.iter().try_for_each(|program| program.build.fits(&check.build))?;
                Ok(Program { file: Some(file), build: check.build })
            }
        }))
    }

    /// Returns what is to be done now, and the new build. `is_serving` says whether the process of a server
    /// is ready.
    pub fn next(
        &mut self,
        now: Instant,
        is_serving: impl Fn(usize) -> bool,
    ) -> Option<(UpgradeStep, Rc<Program>)> {
        let Stage::Exchange { new, upgrade } = &mut self.stage else { return None };
        Some((upgrade.next(now, is_serving)?, new.clone()))
    }

    /// Returns when to ask again if nothing happens.
    pub fn due(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Check { deadline, .. } => Some(*deadline),
            Stage::Exchange { upgrade, .. } => upgrade.due(),
        }
    }

    /// Notes that the process of a server has ended. `how` describes that for people; `ledger` is the version
    /// of the ledger that it left. Returns `None` if servers are not being exchanged.
    pub fn ended(&mut self, index: usize, how: &str, ledger: Option<u32>) -> Option<Succeeded> {
        let Stage::Exchange { new, upgrade } = &mut self.stage else { return None };
        let was = upgrade.side(index);
        let can_go_on = ledger.is_none_or(|version| version <= new.build.ledger.newest);
        let (side, is_asked) = upgrade.ended(index, how, can_go_on);
        let program = match side {
            Side::Old => self.old.get(index).cloned(),
            Side::New => Some(new.clone()),
        };
        Some(Succeeded { program, is_asked, has_failed: was == Side::New && !is_asked })
    }

    /// Notes that a server is ready. Returns whether that matters to the upgrade.
    pub fn ready(&mut self, now: Instant) -> bool {
        if let Stage::Exchange { upgrade, .. } = &mut self.stage {
            upgrade.ready(now);
        }
        matches!(self.stage, Stage::Exchange { .. })
    }

    /// Returns whether a server is of a build that has to prove itself.
    pub fn is_on_trial(&self, index: usize) -> bool {
        matches!(&self.stage, Stage::Exchange { upgrade, .. } if upgrade.side(index) == Side::New)
    }

    /// Returns the build of a server on this side of the upgrade.
    pub fn program(&self, index: usize, side: Side) -> Option<&Rc<Program>> {
        match (&self.stage, side) {
            (Stage::Exchange { new, .. }, Side::New) => Some(new),
            _ => self.old.get(index),
        }
    }
}

/// How long a build may take to describe itself.
const CHECK_TIME: Duration = Duration::from_secs(5);
/// The longest answer in bytes.
const CHECK_MAX: usize = 64 << 10;

//! The supervisor's part in an upgrade, which replaces the servers of a stack by those of another build.
//!
//! A server is asked to hand over: it puts everything in its ledger and ends. Its successor is started on the
//! same memory, as after a death. A server that does not end in time is killed, which has the same effect.

use std::io;

use atoll_base::Instant;
use atoll_ipc::control::Request;
use atoll_supervisor::{ClientId, ReportPart, Side, UpgradeStep as Step};

use super::Supervisor;
use crate::clock;
use crate::self_check::SelfCheck;
use crate::supervise::build_file;
use crate::supervise::ending::Role;
use crate::supervise::program::Program;
use crate::supervise::succession::{BuildRefusal, Succeeded, Succession};

impl Supervisor {
    /// Handles `atoll upgrade`: first asks the new build to describe itself.
    pub(super) fn begin_upgrade(&mut self, client: ClientId, path: &str) -> io::Result<()> {
        if self.succession.is_some() {
            return self.clients.answer(client, &ReportPart::Error("an upgrade is under way".into()));
        }
        if !self.are_in_place() {
            let reason = "replicas are on their way to other processes: try again when they are there";
            return self.clients.answer(client, &ReportPart::Error(reason.into()));
        }
        // The build comes by its name, because clients cannot pass descriptors (THREAT_MODEL.md). From now on
        // the open file is used.
        let asked = build_file::open(path, self.identity.uid)
            .and_then(|file| Succession::ask(client, self.servers.programs(), file, &self.epoll));
        match asked {
            Ok(succession) => {
                self.succession = Some(succession);
                Ok(())
            }
            Err(failure) => self.clients.answer(client, &ReportPart::Error(format!("{path}: {failure}"))),
        }
    }

    /// Handles the answer of the new build, or its end without an answer.
    pub(super) fn self_check_spoke(&mut self) -> io::Result<()> {
        match self.succession.as_ref().and_then(Succession::answer) {
            Some(answer) => self.judge(answer),
            None => Ok(()),
        }
    }

    /// Continues with the upgrade, or refuses it.
    fn judge(&mut self, answer: Result<SelfCheck, BuildRefusal>) -> io::Result<()> {
        let Some(succession) = self.succession.take() else { return Ok(()) };
        let client = succession.client();
        match succession.judge(answer, &self.epoll)? {
            Ok(new) => self.exchange(client, new),
            Err(refusal) => {
                let reason = format!("this build cannot take over: {refusal}");
                event!(upgrade_refused, { error = &*reason }, "upgrade: {reason}");
                self.clients.answer(client, &ReportPart::Error(reason))
            }
        }
    }

    /// Starts to replace the servers by those of the new build, which was accepted.
    pub(super) fn exchange(&mut self, client: ClientId, new: Program) -> io::Result<()> {
        let old = self.servers.programs();
        let (from, to) = (old.first().map(|old| old.build.name()).unwrap_or_default(), new.build.name());
        let line = format!("from {from} to {to}");
        event!(upgrade_began, { from = &*from, to = &*to }, "upgrade: {line}");
        self.succession = Some(Succession::exchange(client, old, new, clock::now()));
        self.progress(&line)
    }

    /// Takes the steps of the upgrade that are due. `now` is the time of this turn.
    pub(super) fn go_on_with_upgrade(&mut self, now: Instant) -> io::Result<()> {
        self.kill_late(now);
        if self.succession.as_ref().is_some_and(|succession| succession.is_silent(now)) {
            self.judge(Err(BuildRefusal::Late))?;
        }
        loop {
            let servers = &self.servers;
            let Some(succession) = &mut self.succession else { return Ok(()) };
            let client = succession.client();
            let is_serving = |server| servers.get(server).is_some_and(|server| server.record().is_serving());
            match succession.next(now, is_serving) {
                None => return Ok(()),
                Some((Step::Exchange(server, side), _)) => self.ask_to_hand_over(server, side, now)?,
                Some((Step::Confirm, new)) => {
                    let line = "all servers are of the new build, and it stays";
                    event!(servers_upgraded, "upgrade: {line}");
                    self.progress(line)?;
                    self.end_upgrade()?;
                    if self.make_way(client, &new) {
                        return Ok(());
                    }
                    return self.clients.answer(client, &ReportPart::Done(true));
                }
                Some((Step::Failed(reason), _)) => {
                    self.end_upgrade()?;
                    let reason = format!("the old build is back: {reason}");
                    event!(upgrade_failed, { error = &*reason }, "upgrade: {reason}");
                    return self.clients.answer(client, &ReportPart::Error(reason));
                }
            }
        }
    }

    /// Returns when [`Supervisor::go_on_with_upgrade`] is due if nothing happens.
    pub(super) fn upgrade_due(&self) -> Option<Instant> {
        let leaving = self.servers.all().iter().filter_map(|server| server.record().due_by());
        leaving.chain(self.succession.as_ref().and_then(Succession::due)).min()
    }

    /// Handles the end of a server's process in an upgrade, and sets the build of its next process. `how`
    /// describes the end for people. Returns whether the process was asked to end.
    pub(super) fn succeed(&mut self, index: usize, how: &str) -> io::Result<bool> {
        let ledger = self.memory.ledger_version(index);
        let ended = self.succession.as_mut().and_then(|succession| succession.ended(index, how, ledger));
        let Some(Succeeded { program, is_asked, has_failed }) = ended else { return Ok(false) };
        let Some(server) = self.servers.get_mut(index) else { return Ok(is_asked) };
        server.record_mut().forget_deadline();
        if let Some(program) = program {
            server.set_program(program);
        }
        if has_failed {
            let line = format!("{how}: the old build comes back");
            event!(upgrade_reverts, { error = how }, "upgrade: {line}");
            self.progress(&line)?;
        }
        Ok(is_asked)
    }

    /// Continues the upgrade after a server of this build has become ready, `ms` milliseconds after the one
    /// before has ended.
    pub(super) fn succeeded(&mut self, now: Instant, role: Role, build: &str, ms: f64) -> io::Result<()> {
        if !self.succession.as_mut().is_some_and(|succession| succession.ready(now)) {
            return Ok(());
        }
        let line = format!("{role} is of {build} after {ms:.1} ms");
        event!(
            server_upgraded,
            { role = role.kind(), index = role.number(), build, ms },
            "upgrade: {line}"
        );
        self.progress(&line)
    }

    /// Returns whether a server is of a build that has to prove itself.
    pub(super) fn is_on_trial(&self, index: usize) -> bool {
        self.succession.as_ref().is_some_and(|succession| succession.is_on_trial(index))
    }

    /// Returns the version of the ledger that a replica is to write, if it is not the present one. During an
    /// upgrade there is none.
    pub(super) fn ledger_wanted(&self, index: usize) -> Option<u32> {
        let replica = self.servers.replica(index).filter(|_| self.succession.is_none())?;
        let newest = replica.program().build.ledger.newest;
        self.memory.ledger_version(index).is_some_and(|version| version != newest).then_some(newest)
    }

    fn ask_to_hand_over(&mut self, index: usize, side: Side, now: Instant) -> io::Result<()> {
        let next = self.succession.as_ref().and_then(|succession| succession.program(index, side));
        let newest = next.map_or(0, |program| program.build.ledger.newest);
        // The version never rises above the present one, so that the way back stays open.
        let ledger = self.memory.ledger_version(index).unwrap_or(newest).min(newest);
        self.ask_to_leave(index, ledger, now)
    }

    /// Ends the upgrade. The ledgers are then written in the newest version that the build knows.
    fn end_upgrade(&mut self) -> io::Result<()> {
        self.succession = None;
        for index in self.servers.replica_numbers() {
            if let Some(version) = self.ledger_wanted(index) {
                self.servers.send(index, &Request::WriteLedger { version }, Vec::new())?;
            }
        }
        Ok(())
    }

    /// Kills servers that do not leave although they were asked to, and those of a new build that do not
    /// become ready.
    fn kill_late(&mut self, now: Instant) {
        let plan = self.config.notation.plan();
        for index in self.servers.numbers() {
            let Some(server) = self.servers.get_mut(index) else { continue };
            if server.record_mut().take_late(now) && server.pid().is_some() {
                let serves = server.record().is_serving();
                let what = if serves { "does not hand over" } else { "is not ready" };
                let (role, pid) = (Role::of(&plan, index), server.pid());
                event!(
                    server_late,
                    { role = role.kind(), index = role.number(), pid, serves },
                    "{role} {what} in time: it is killed"
                );
                server.kill();
            }
        }
    }

    fn progress(&mut self, line: &str) -> io::Result<()> {
        let Some(client) = self.succession.as_ref().map(Succession::client) else { return Ok(()) };
        self.clients.answer(client, &ReportPart::Progress(line.to_owned()))
    }
}

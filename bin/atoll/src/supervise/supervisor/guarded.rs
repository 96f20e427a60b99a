//! Keeps a guardian, which starts the next supervisor if this one ends, and makes way for a supervisor of
//! another build.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use atoll_supervisor::{ClientId, ReportPart};
use atoll_sys::unix::Channel;

use super::Supervisor;
use crate::clock;
use crate::log;
use crate::notes::{self, Note};
use crate::supervise::ending::Ending;
use crate::supervise::program::Program;

impl Supervisor {
    /// Starts another guardian when that is due.
    pub(super) fn look_after_guardian(&mut self) {
        if self.course.ending().is_some() || !self.persisted.wants_guardian(clock::now()) {
            return;
        }
        if let Err(error) = self.start_guardian() {
            event!(
                guardian_not_started,
                { error = error.to_string(), errno = log::errno(&error) },
                "no other guardian could be started ({error}): if the supervisor dies, the stack ends"
            );
        }
    }

    /// Starts a guardian, and gives it all notes. Returns the socket to the one before, if that may still be
    /// there.
    fn start_guardian(&mut self) -> io::Result<Option<Channel>> {
        let Some((pid, persisted, last)) = self.persisted.start_guardian(&self.epoll)? else {
            return Ok(None);
        };
        event!(guardian_started, { pid }, "process {pid} is the guardian now");
        self.identity.guardian = Some(pid);
        self.leave_to(persisted);
        Ok(last)
    }

    /// Makes way for a supervisor of another build, which notifies `client` when it has taken over. Returns
    /// whether this supervisor ends: it does not if there is no guardian to start the next one.
    pub(super) fn make_way(&mut self, client: ClientId, new: &Program) -> bool {
        let (None, true, Some(file)) = (self.course.ending(), self.persisted.is_kept(), &new.file) else {
            return false;
        };
        self.course.exchange(Some(client));
        self.note_stack();
        if !self.persisted.note_next(file.as_fd()) {
            self.course.exchange(None);
            return false;
        }
        self.course.end(Ending::MadeWay);
        true
    }

    /// Reports to `client` that this supervisor has taken over from one that made way for another build.
    /// `stayed` is the reason if this one is not of that build. Otherwise the guardian is replaced by one of
    /// the new build, too.
    pub(super) fn exchanged(&mut self, client: ClientId, stayed: Option<String>) -> io::Result<()> {
        if let Some(reason) = stayed {
            let reason =
                format!("all servers are of the new build, but the supervisor is of the old one: {reason}");
            return self.clients.answer(client, &ReportPart::Error(reason));
        }
        let build = Program::own().build.name();
        let (line, error) = match self.start_guardian() {
            Ok(last) => {
                let _ = last.map(|last| notes::send(&last, &Note::Dismissed, &[] as &[OwnedFd]));
                (format!("supervisor and guardian are of {build}"), None)
            }
            // The old guardian continues.
            Err(error) => (
                format!("the supervisor is of {build}; no guardian of that build could be started: {error}"),
                Some(error),
            ),
        };
        let (build, errno) = (&*build, error.as_ref().and_then(log::errno));
        event!(
            upgrade_done,
            { build, error = error.map(|error| error.to_string()), errno },
            "upgrade: {line}"
        );
        self.clients.answer(client, &ReportPart::Progress(line))?;
        self.clients.answer(client, &ReportPart::Done(true))
    }
}

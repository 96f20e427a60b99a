//! Who goes on if this supervisor ends? It looks after its guardian, as that does after it, and makes way for a supervisor of another build.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use atoll_supervisor::{ClientId, ReportPart};
use atoll_sys::process::{Child, Signal};
use atoll_sys::unix::Channel;

use super::Guardian;
use super::persisted::PersistedState;
use super::succession::Program;
use super::supervisor::{Ending, Supervisor};
use crate::notes::{self, NEXT, Note};

/// What the next guardian is started with.
#[derive(Debug)]
pub struct FdStoreLink {
    /// What it is told.
    job: String,
    /// The lock of the stack's name.
    pub lock: Rc<OwnedFd>,
    /// The present one, if this supervisor has started it.
    child: Option<Child>,
    /// When the next one may be started, at the earliest.
    due: Instant,
}

impl PersistedState {
    /// With a guardian.
    pub fn new(guardian: Guardian, lock: OwnedFd) -> PersistedState {
        let fd_store = FdStoreLink { job: guardian.job, lock: Rc::new(lock), child: None, due: Instant::now() };
        PersistedState { channel: Some(guardian.channel), programs: Vec::new(), fd_store: Some(fd_store) }
    }

    /// In how many milliseconds another guardian is to be started, if the present one is gone.
    pub fn look_again_ms(&self, now: Instant) -> Option<u32> {
        let fd_store = self.fd_store.as_ref().filter(|_| self.channel.is_none())?;
        Some(fd_store.due.saturating_duration_since(now).as_millis() as u32)
    }
}

impl Supervisor {
    /// The guardian's end of the socket is closed.
    pub(super) fn guardian_is_gone(&mut self) {
        if let Some(channel) = self.persisted.channel.take() {
            say!("the guardian is gone");
            let _ = self.epoll.delete(&channel);
        }
    }

    /// Starts another guardian when that is due.
    pub(super) fn look_after_guardian(&mut self) {
        let now = Instant::now();
        if self.ending.is_some() || self.persisted.look_again_ms(now) != Some(0) {
            return;
        }
        let Some(fd_store) = &mut self.persisted.fd_store else { return };
        fd_store.due = now + PAUSE;
        // Never two of them.
        if let Some(last) = fd_store.child.take() {
            let _ = last.kill(Signal::KILL);
            let _ = last.wait();
        }
        if let Err(error) = self.start_guardian() {
            say!("no other guardian could be started ({error}): if the supervisor dies, the stack ends");
        }
    }

    /// Starts a guardian, and tells it everything. Returns the socket to the one before, if that may still be there.
    fn start_guardian(&mut self) -> io::Result<Option<Channel>> {
        let Some(fd_store) = &self.persisted.fd_store else { return Ok(None) };
        let (child, channel) = notes::start_another(&fd_store.job)?;
        say!("process {} is the guardian now", child.pid());
        self.identity.guardian = Some(child.pid());
        let PersistedState { channel: last, fd_store, .. } = std::mem::take(&mut self.persisted);
        if let Some(last) = &last {
            let _ = self.epoll.delete(last);
        }
        let due = Instant::now() + PAUSE;
        let fd_store = fd_store.map(|fd_store| FdStoreLink { child: Some(child), due, ..fd_store });
        self.leave_to(PersistedState { channel: Some(channel), programs: Vec::new(), fd_store });
        Ok(last)
    }

    /// Makes way for a supervisor of another build. Returns whether this one ends: it does not if nobody could start the next one. `client` is
    /// told then, when it has taken over.
    pub(super) fn make_way(&mut self, client: ClientId, new: &Program) -> bool {
        let (None, true, Some(file)) = (&self.ending, self.persisted.is_kept(), &new.file) else { return false };
        self.exchange_for = Some(client);
        self.note_stack();
        self.persisted.put(NEXT.into(), &(), &[file.as_fd()]);
        if !self.persisted.is_kept() {
            self.exchange_for = None;
            return false;
        }
        self.ending = Some(Ending::MadeWay);
        true
    }

    /// The last supervisor has made way for one of another build, and this one has taken over; `stayed`: for what reason it is not of that
    /// build. A new one's guardian is of the new build, too.
    pub(super) fn exchanged(&mut self, client: ClientId, stayed: Option<String>) -> io::Result<()> {
        if let Some(reason) = stayed {
            let reason = format!("all servers are of the new build, but the supervisor is of the old one: {reason}");
            return self.answer(client, &ReportPart::Error(reason));
        }
        let build = Program::own().build.name();
        let line = match self.start_guardian() {
            Ok(last) => {
                let _ = last.map(|last| notes::send(&last, &Note::Dismissed, &[] as &[OwnedFd]));
                format!("supervisor and guardian are of {build}")
            }
            // The old one goes on.
            Err(error) => format!("the supervisor is of {build}; no guardian of that build could be started: {error}"),
        };
        say!("upgrade: {line}");
        self.answer(client, &ReportPart::Progress(line))?;
        self.answer(client, &ReportPart::Done(true))
    }
}

/// The shortest time between two guardians.
const PAUSE: Duration = Duration::from_secs(1);

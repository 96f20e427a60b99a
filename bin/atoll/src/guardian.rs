//! The guardian: a process that keeps the supervisor's descriptors and notes, and starts the next supervisor
//! when one dies.
//!
//! ```text
//!   supervisor --notes, with descriptors--> guardian --the same notes--> next supervisor
//! ```
//!
//! Servers and applications notice nothing: the guardian holds a second reference to their sockets to the
//! supervisor, which therefore stay open. They close only when both processes are gone, and servers end then.
//! The supervisor notes what it knows before any other process learns it; a note that is in the socket's
//! buffer when the supervisor dies is read before the next one starts.
//!
//! If the guardian dies, the supervisor starts another one and sends it all notes. A supervisor that makes
//! way for one of another build notes that build before it ends; if that one does not take over, one of the
//! old build does.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use atoll_base::Duration;
use atoll_supervisor::Life;
use atoll_sys::epoll::{self, Epoll, EventFlags};
use atoll_sys::process::{self, Child, Exit, Spawn};
use atoll_sys::signal::{Signal, Signals};
use atoll_sys::unix::{Blocking, Channel};

use crate::clock;
use crate::failure::{EXIT_OF_SHORTAGE, Failure, OrFail, is_shortage};
use crate::log;
use crate::notes::{
    CLIENTS, Known, NEXT, Note, Notes, STACK, STAYED, receive, send, take_note, wait_for_room,
};
use crate::privileges;
use crate::runtime;
use crate::supervise::{DESCRIPTORS_WANTED, HowEnded, StackNote, signal_name};

/// Keeps a stack's supervisor running until the stack ends. `job` is the configuration that the supervisor is
/// started with; `visible` says whether others are to enter its namespaces through this process; the
/// supervisor says on `report` that the stack is ready.
pub fn guard(job: &str, visible: bool, report: OwnedFd) -> Result<ExitCode, Failure> {
    let guardian = Guardian::new(visible).or_fail(WATCHING)?;
    let (child, channel) = guardian.start(job, "--guarded", Some(&report)).or_fail(WATCHING)?;
    drop(report);
    guardian.keep(job, child, channel)
}

/// Watches over a supervisor that works already and sends its notes over `channel`, until the stack ends.
pub fn succeed(job: &str, visible: bool, supervisor: Child, channel: Channel) -> Result<ExitCode, Failure> {
    process::outlive_parent().or_fail(WATCHING)?;
    Guardian::new(visible).or_fail(WATCHING)?.keep(job, supervisor, channel)
}

struct Guardian {
    notes: Notes,
    /// Whether this guardian's work is over: the stack has ended as it was asked to, or another guardian
    /// watches.
    is_over: bool,
    /// Whether another guardian watches over the supervisor now.
    is_dismissed: bool,
    /// The program that supervisors are started from; `None` means the program of this process.
    program: Option<OwnedFd>,
    /// The previous `program`, until a supervisor of the new one has taken over.
    before: Option<Option<OwnedFd>>,
    /// Whether the guardian stays visible when it gives up its privileges; `None` once it has given them up.
    visible: Option<bool>,
    epoll: Epoll,
    signals: Signals,
}

impl Guardian {
    fn new(visible: bool) -> io::Result<Guardian> {
        process::raise_nofile_limit(DESCRIPTORS_WANTED)?;
        let signals = Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT])?;
        let epoll = Epoll::new()?;
        epoll.add(&signals, SIGNALS, EventFlags::IN)?;
        let (notes, visible) = (Notes::new(), Some(visible));
        Ok(Guardian {
            notes,
            is_over: false,
            is_dismissed: false,
            program: None,
            before: None,
            visible,
            epoll,
            signals,
        })
    }

    /// Watches over one supervisor after another until the stack ends, or no supervisor can take over.
    fn keep(mut self, job: &str, child: Child, channel: Channel) -> Result<ExitCode, Failure> {
        let mut life = Life::new(clock::now());
        let mut exit = self.watch(&child, &channel, &mut life).or_fail(WATCHING)?;
        drop((child, channel));
        while !self.is_over && self.notes.contains_key(STACK) && !life.is_hopeless() {
            // Servers and applications continue without a supervisor for now.
            std::thread::sleep(self.choose(&mut life, exit));
            let (child, channel) = self.start_next(job, &mut life)?;
            life.started(clock::now());
            exit = match self.tell(&channel) {
                Ok(()) => self.watch(&child, &channel, &mut life).or_fail(WATCHING)?,
                // The supervisor has died meanwhile.
                Err(_) => child.wait().or_fail(WATCHING)?,
            };
        }
        if life.is_hopeless() {
            event!(supervisors_hopeless, "no supervisor could take over; the stack ends");
        }
        self.let_go();
        Ok(match exit {
            Exit::Code(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
            Exit::Signal(_) | Exit::Killed | Exit::Unknown => ExitCode::FAILURE,
        })
    }

    /// Starts the next supervisor. Waits as long as the system is short of something that this takes.
    fn start_next(&mut self, job: &str, life: &mut Life) -> Result<(Child, Channel), Failure> {
        loop {
            let started = match self.start(job, "--takeover", None) {
                Err(error) if !is_shortage(&error) && self.go_back(&error.to_string()) => {
                    self.start(job, "--takeover", None)
                }
                started => started,
            };
            let failure = match started.or_fail(WATCHING) {
                Ok(started) => return Ok(started),
                Err(failure) if failure.is_shortage() => failure,
                Err(failure) => return Err(failure),
            };
            let (delay, is_news) = life.not_started(clock::now(), failure.shortage());
            if is_news {
                event!(
                    supervisor_not_started,
                    { error = failure.to_string() },
                    "no supervisor can be started: {failure}; it is tried again until that has passed"
                );
            }
            std::thread::sleep(delay.max(SHORTAGE_PAUSE));
        }
    }

    /// Chooses the program of the next supervisor. Returns how long to wait before starting it.
    fn choose(&mut self, life: &mut Life, exit: Exit) -> Duration {
        if let Some(next) = self.notes.remove(NEXT) {
            event!(supervisor_makes_way, "the supervisor makes way for one of another build");
            self.before = Some(std::mem::replace(&mut self.program, next.descriptors.into_iter().next()));
            life.left(clock::now());
            return Duration::ZERO;
        }
        let how = format!("a supervisor of it {}", end(exit));
        if self.go_back(&how) {
            life.left(clock::now());
            return Duration::ZERO;
        }
        if exit == Exit::Code(EXIT_OF_SHORTAGE) {
            // The supervisor has logged what is missing; a shortage passes, and is no reason to give up.
            let lack = "the supervisor was short of something".to_owned();
            return life.not_started(clock::now(), Some(lack)).0.max(SHORTAGE_PAUSE);
        }
        let HowEnded { exit: how, signal, status, .. } = HowEnded::of(Some(exit), None);
        event!(
            supervisor_ended,
            { exit = how, signal, status },
            "the supervisor {}; the next one takes over",
            end(exit)
        );
        life.died(clock::now())
    }

    /// Returns to the previous build, if there is one, and notes the reason for its supervisor. Returns
    /// whether it did.
    fn go_back(&mut self, why: &str) -> bool {
        let Some(before) = self.before.take() else { return false };
        event!(supervisor_reverted, { error = why }, "supervisors are of the old build again: {why}");
        self.program = before;
        self.notes.insert(STAYED.into(), Known { text: why.into(), descriptors: Vec::new() });
        true
    }

    /// Takes notes until the supervisor has died, and returns how it died.
    fn watch(&mut self, child: &Child, channel: &Channel, life: &mut Life) -> io::Result<Exit> {
        self.epoll.add(channel, NOTES, EventFlags::IN)?;
        self.epoll.add(child, PROCESS, EventFlags::IN)?;
        let mut deadline = self.before.is_some().then(|| clock::now() + TAKEOVER_TIME);
        let exit = loop {
            let mut events = [epoll::EMPTY; 4];
            let left = deadline.map(|at| at.since(clock::now()).as_millis() as u32 + 1);
            let count = self.epoll.wait(&mut events, left)?;
            if deadline.take_if(|at| clock::now() >= *at).is_some() && self.before.is_some() {
                let _ = child.kill(Signal::KILL);
            }
            for event in &events[..count] {
                if epoll::token(event) == SIGNALS {
                    while let Some(caught) = self.signals.next()? {
                        // The supervisor ends the stack.
                        let _ = (caught, child.kill(Signal::TERM));
                    }
                }
            }
            while self.take_notes(channel, life)? {}
            if let Some(exit) = child.try_wait()? {
                // Take the last notes of the dead supervisor.
                while self.take_notes(channel, life)? {}
                break exit;
            }
            if self.is_dismissed {
                break Exit::Code(0);
            }
        };
        self.epoll.delete(child)?;
        self.epoll.delete(channel)?;
        Ok(exit)
    }

    /// Takes a note if there is one. Returns whether to call again at once.
    fn take_notes(&mut self, channel: &Channel, life: &mut Life) -> io::Result<bool> {
        let mut descriptors = Vec::new();
        let note = match receive(channel, &mut descriptors) {
            Ok(Some(note)) => note,
            Ok(None) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            // The supervisor ended before it had read everything; its own packets can still be read.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                event!(
                    note_lost,
                    { error = error.to_string(), errno = log::errno(&error) },
                    "a note of the supervisor is lost: {error}"
                );
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        match take_note(&mut self.notes, note, descriptors) {
            Some(Note::Ready) => {
                life.ready(clock::now());
                // A build whose supervisor has taken over stays.
                self.before = None;
                if let Some(visible) = self.visible.take() {
                    // The stack exists, so the next supervisors need only the privileges that this one has
                    // kept.
                    let note = self
                        .notes
                        .get(STACK)
                        .and_then(|known| serde_json::from_str::<StackNote>(&known.text).ok());
                    let own_user = note.is_some_and(|stack| stack.servers.is_some());
                    privileges::confine_supervisor(visible, own_user)?;
                }
            }
            Some(Note::Bye) => self.is_over = true,
            Some(Note::Dismissed) => (self.is_over, self.is_dismissed) = (true, true),
            _ => {}
        }
        Ok(true)
    }

    /// Sends all notes to the next supervisor.
    fn tell(&self, channel: &Channel) -> io::Result<()> {
        let all = self
            .notes
            .iter()
            .map(|(name, known)| (Note::Put(name.clone(), known.text.clone()), &known.descriptors[..]));
        for (note, descriptors) in all.chain([(Note::Ready, &[][..])]) {
            loop {
                match send(channel, &note, descriptors) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_for_room(channel),
                    sent => break sent?,
                }
            }
        }
        Ok(())
    }

    /// Closes all descriptors, connections to the supervisor last: a process that waits for those to close
    /// then finds the name and the device free.
    fn let_go(mut self) {
        let last = self.notes.split_off(CLIENTS);
        drop(self.notes);
        drop(last);
    }

    /// Starts a supervisor. Returns its process and this end of the socket for notes; the supervisor inherits
    /// the other end as its last descriptor.
    fn start(&self, job: &str, how: &str, report: Option<&OwnedFd>) -> io::Result<(Child, Channel)> {
        let (ours, theirs) = Channel::pair(Blocking::No)?;
        let mut spawn = match &self.program {
            Some(file) => Spawn::file(file.as_fd(), "atoll")?,
            None => Spawn::this_binary("atoll")?,
        };
        // In a user namespace the supervisor would take itself for root, and use another directory.
        spawn.env(runtime::DIRECTORY_VARIABLE, runtime::directory())?;
        spawn.arg("supervise")?.arg(job)?.arg(how)?;
        if let Some(report) = report {
            spawn.inherit(report.as_fd());
        }
        spawn.inherit(theirs.as_fd());
        Ok((spawn.start()?, ours))
    }
}

fn end(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("has ended with status {code}"),
        Exit::Signal(signal) => format!("was ended by {}", signal_name(signal)),
        Exit::Killed | Exit::Unknown => "is gone".into(),
    }
}

/// How long a supervisor of another build may take until it serves.
const TAKEOVER_TIME: Duration = Duration::from_secs(10);
/// The shortest pause between two attempts to start a supervisor while the system is short of something.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(10);
const WATCHING: &str = "watching over the supervisor";
const SIGNALS: u64 = 0;
const NOTES: u64 = 1;
const PROCESS: u64 = 2;

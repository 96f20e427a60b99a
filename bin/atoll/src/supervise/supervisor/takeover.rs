//! Continues a stack whose supervisor has died. The new one reads the notes that the old one has left
//! (`persisted.rs`), restores each kind of them, and sends servers the messages that they may have missed.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use atoll_ipc::control::Request;
use atoll_supervisor::{ClientId, Config, Departure, Past, Paths, Placement, Rights, ServerRecord};
use atoll_sys::process::Child;
use atoll_sys::signal::Signals;
use atoll_sys::unix::{Channel, Listener, Peer};
use serde::de::DeserializeOwned;

use super::{Foundation, Supervisor};
use crate::clock;
use crate::failure::{Failure, OrFail};
use crate::log;
use crate::notes::{CLIENTS, Known, Notes, STACK, STAYED};
use crate::runtime;
use crate::supervise::doors::Doors;
use crate::supervise::ending::Ending;
use crate::supervise::hosts::{Host, HostPage};
use crate::supervise::identity::Identity;
use crate::supervise::join::Link;
use crate::supervise::launch::Launch;
use crate::supervise::memory::{SessionMemory, StackMemory};
use crate::supervise::pairs::Pairs;
use crate::supervise::persisted::{
    ADMINISTRATION, ClientNote, HostNote, PersistedState, ProgramNote, ServerNote, SessionNote, StackNote,
};
use crate::supervise::program::Program;
use crate::supervise::servers::{Employment, ServerSlot};
use crate::supervise::words;

/// The stack as the last supervisor has left it.
pub struct Found {
    /// The state of the stack as a whole.
    pub stack: StackNote,
    /// The device's queues.
    pub queues: Vec<OwnedFd>,
    /// The lock of the stack's name.
    pub lock: OwnedFd,
    memory: StackMemory,
    doors: Doors,
    notes: Notes,
}

/// The builds that servers are of, by number of their notes.
struct Programs {
    noted: Vec<Rc<Program>>,
    own: Rc<Program>,
}

impl Programs {
    fn take(notes: &mut Notes) -> Programs {
        let mut noted = Vec::new();
        while let Some((note, descriptors)) = take::<ProgramNote>(notes, &format!("program.{}", noted.len()))
        {
            noted.push(Rc::new(Program { file: descriptors.into_iter().next(), build: note.build }));
        }
        Programs { noted, own: Rc::new(Program::own()) }
    }

    /// Returns the build with this number; `None` means the supervisor's own.
    fn get(&self, number: Option<usize>) -> Rc<Program> {
        number.and_then(|number| self.noted.get(number)).unwrap_or(&self.own).clone()
    }
}

impl Found {
    /// Reads the notes that concern the stack as a whole. `config` is the configuration at the start.
    pub fn read(notes: Notes, config: &mut Config) -> Result<Found, Failure> {
        let paths = runtime::paths(&config.name);
        Found::read_at(notes, config, &paths)
    }

    /// Reads the notes of a stack with these files; otherwise as [`Found::read`].
    pub(super) fn read_at(mut notes: Notes, config: &mut Config, paths: &Paths) -> Result<Found, Failure> {
        let missing = || Failure::new("the last supervisor has left no stack");
        let (stack, descriptors) = take::<StackNote>(&mut notes, STACK).ok_or_else(missing)?;
        let [stack_page, secrets, listener, lock] = descriptors.try_into().map_err(|_| missing())?;
        config.accept = config.accept.changed(&stack.balance).or_fail("the rules of balancing")?;
        let plan = config.notation.plan();
        let count = plan.processes().len();
        let mut pairs = Pairs::resume(secrets);
        let mut parts = Vec::new();
        for number in 0..count {
            let (_, descriptors) = take::<()>(&mut notes, &format!("memory.{number}")).ok_or_else(missing)?;
            parts.push(descriptors);
            let (_, descriptors) = take::<()>(&mut notes, &format!("pairs.{number}")).ok_or_else(missing)?;
            pairs.add_found(&plan, number, descriptors);
        }
        let what = "taking over the stack's memory";
        let memory = StackMemory::resume(stack_page, pairs, parts, config.replicas().into()).or_fail(what)?;
        let mut queues = Vec::new();
        while let Some((_, descriptors)) = take::<()>(&mut notes, &format!("queue.{}", queues.len())) {
            queues.extend(descriptors);
        }
        let administration =
            take::<()>(&mut notes, ADMINISTRATION).and_then(|(_, all)| all.into_iter().next());
        let doors = Doors::resume(listener.into(), administration.map(Listener::from), paths);
        let doors = doors.or_fail("taking over the stack's sockets")?;
        Ok(Found { stack, queues, lock, memory, doors, notes })
    }

    /// Continues the stack. Each kind of note is restored once, in the order in which they depend on each
    /// other.
    pub fn resume(
        self,
        config: Config,
        identity: Identity,
        launcher: Box<dyn Launch>,
        signals: Option<Signals>,
        persisted: PersistedState,
    ) -> Result<Supervisor, Failure> {
        let what = "taking over the stack";
        let Found { stack, memory, doors, mut notes, .. } = self;
        let stayed = notes.remove(STAYED).map(|known| known.text);
        let programs = Programs::take(&mut notes);
        let rights = stack.rights.clone().unwrap_or_else(|| Rights::of(identity.uid));
        // A stack with a link to another one has no guardian, so it is never found.
        let link = Link::default();
        let foundation = Foundation { config, identity, memory, launcher, doors, rights, link, signals };
        let mut server = Supervisor::bare(foundation).or_fail(what)?;
        let asking = stack.asking.iter().copied().map(ClientId).collect();
        server.placement =
            Placement::resume(&server.config, &stack.places, stack.scales, asking, clock::now());
        server.resume_hosts(&mut notes, &programs).or_fail(what)?;
        server.resume_words(&mut notes);
        let unannounced = server.resume_servers(&mut notes, &programs)?;
        server.resume_sessions(&mut notes, &stack);
        let gone = server.resume_clients(notes, stack.next_client);
        if stack.is_ending {
            server.course.end(Ending::Asked);
        }
        server.course.begin();
        server.gate.open(&server.epoll).or_fail(what)?;
        server.remind(&unannounced, gone).or_fail(what)?;
        server.leave_to(persisted);
        if let Some(client) = stack.exchange_for {
            server.exchanged(ClientId(client), stayed).or_fail(what)?;
        }
        Ok(server)
    }
}

impl Supervisor {
    fn resume_hosts(&mut self, notes: &mut Notes, programs: &Programs) -> io::Result<()> {
        while let Some(name) = notes.keys().find(|name| name.starts_with("host.")).cloned() {
            let (Some((note, descriptors)), Some(key)) =
                (take::<HostNote>(notes, &name), name.strip_prefix("host.").and_then(|key| key.parse().ok()))
            else {
                continue;
            };
            let host = found_host(&note, descriptors, programs.get(note.program))?;
            self.hosts.install(key, host)?;
        }
        Ok(())
    }

    fn resume_words(&mut self, notes: &mut Notes) {
        while let Some(name) = notes.keys().find(|name| name.starts_with(words::NOTES)).cloned() {
            if let Some((pid, descriptors)) = take::<u32>(notes, &name)
                && let Some(pipe) = descriptors.into_iter().next()
            {
                self.words.resume(&name, pid, pipe);
            }
        }
    }

    /// Restores the servers. Returns those of whose start the others may not have been notified.
    fn resume_servers(&mut self, notes: &mut Notes, programs: &Programs) -> Result<Vec<usize>, Failure> {
        let mut unannounced = Vec::new();
        for index in 0..self.config.notation.plan().processes().len() {
            let (note, descriptors) = take::<ServerNote>(notes, &format!("server.{index}"))
                .ok_or_else(|| Failure::new(format!("the last supervisor has left no server {index}")))?;
            let (found, employment) = self.found(&note, descriptors, programs.get(note.program));
            if !note.is_announced {
                unannounced.push(index);
            }
            self.servers.install(found, employment).or_fail("taking over the stack")?;
        }
        Ok(unannounced)
    }

    /// Restores a server. One without a process is to be started.
    fn found(
        &self,
        note: &ServerNote,
        descriptors: Vec<OwnedFd>,
        program: Rc<Program>,
    ) -> (ServerSlot, Option<Employment>) {
        let mut descriptors = descriptors.into_iter();
        // A process that is gone has taken its replica along.
        let host = note.host.filter(|key| self.hosts.get(*key).is_some());
        let control = descriptors.next().map(Channel::from).filter(|_| host.is_some() == note.host.is_some());
        let child = match host.and_then(|key| self.hosts.get(key)) {
            Some(host) => host.child().cloned(),
            None => descriptors.next().map(|pidfd| Rc::new(Child::foster(note.pid, pidfd))),
        };
        let past = Past {
            epoch: note.epoch,
            crashes: note.crashes,
            moves: note.moves,
            is_there: control.is_some(),
            is_ready: note.is_ready,
            is_leaving: note.is_leaving,
        };
        let slot = ServerSlot::new(ServerRecord::resume(clock::now(), past), program);
        (slot, control.map(|control| Employment { host, child, control }))
    }

    fn resume_sessions(&mut self, notes: &mut Notes, stack: &StackNote) {
        self.books.resume(stack.last_session, stack.opened);
        while let Some(name) = notes.keys().find(|name| name.starts_with("session.")).cloned() {
            let (Some((note, descriptors)), Some(number)) = (
                take::<SessionNote>(notes, &name),
                name.strip_prefix("session.").and_then(|n| n.parse().ok()),
            ) else {
                continue;
            };
            let user = self.gate.counting_for(note.counts_for);
            let (replicas, started) = (self.servers.replica_count(), self.identity.started);
            let memory = note.arena(self.config.sessions.arena).and_then(|arena| {
                SessionMemory::resume((note.pid, user), descriptors, replicas, arena, started)
            });
            if let Some(memory) = memory {
                // A session that is given up for this one has no note yet.
                let _ = self.books.restore(number, note.standing, memory, replicas);
            }
        }
    }

    /// Restores the clients. Returns what follows for the members of sessions that are gone, of whose
    /// connections there is no note.
    fn resume_clients(&mut self, notes: Notes, next: u64) -> Vec<Departure> {
        self.clients.skip_to(next);
        for (name, known) in notes {
            let Some(number) = name.strip_prefix(CLIENTS).and_then(|number| number.parse().ok()) else {
                continue;
            };
            let Some(channel) = known.descriptors.into_iter().next().map(Channel::from) else { continue };
            let note: ClientNote = serde_json::from_str(&known.text).unwrap_or_default();
            self.clients.skip_to(number + 1);
            let (id, peer) = (ClientId(number), note.peer.map(|[pid, uid, gid]| Peer { pid, uid, gid }));
            if self.clients.restore(id, note.door, peer, channel) {
                self.clients.note_standing(id, self.books.has(id));
                if note.let_in {
                    self.clients.let_in(id);
                }
            }
        }
        let books = &self.books;
        let members: BTreeSet<ClientId> =
            books.ids().flat_map(|id| books.members(id)).map(|(_, client)| client).collect();
        let gone = members.into_iter().filter(|client| self.clients.get(*client).is_none());
        gone.collect::<Vec<_>>().into_iter().flat_map(|client| self.books.closed(client)).collect()
    }

    /// Sends servers the messages that the last supervisor may not have sent; to get them twice does no harm.
    /// `unannounced` has the servers of whose start the others may not have been notified, `gone` the members
    /// that have gone while there was no supervisor.
    fn remind(&mut self, unannounced: &[usize], gone: Vec<Departure>) -> io::Result<()> {
        for index in self.servers.numbers() {
            if self.servers.get(index).is_none_or(ServerSlot::is_down) {
                continue;
            }
            let (sessions, is_replica) = (self.books.at(index), self.servers.is_replica(index));
            if let Some(replica) = self.servers.get_mut(index).filter(|_| is_replica) {
                replica.set_untold(sessions);
            }
            if let Some(version) = self.ledger_wanted(index) {
                self.servers.send(index, &Request::WriteLedger { version }, Vec::new())?;
            }
        }
        for &index in unannounced {
            self.announce_restart(index)?;
        }
        self.spread_balance()?;
        self.announce(gone)?;
        self.tell_some(clock::now())
    }

    /// Notes everything with a guardian, from now on.
    pub fn leave_to(&mut self, persisted: PersistedState) {
        self.persisted = persisted;
        let Some(lock) = self.persisted.lock() else { return };
        if let Err(error) = self.persisted.watch(&self.epoll) {
            event!(
                guardian_not_watched,
                { error = error.to_string(), errno = log::errno(&error) },
                "the guardian is not watched: {error}"
            );
        }
        self.persisted.note_queues(self.starts.queues());
        self.persisted.note_memory(&self.memory);
        for key in self.hosts.keys() {
            self.note_host(key);
        }
        for index in self.servers.numbers() {
            self.note_server(index, true);
        }
        for slot in self.words.of(|_| true) {
            self.persisted.note_words(slot, &self.words);
        }
        for session in self.books.all() {
            self.persisted.note_session(session, &self.books, true);
        }
        for client in self.clients.ids() {
            self.note_client(client);
        }
        let note = self.stack_note();
        let [applications, administration] = self.gate.descriptors();
        self.persisted.note_administration(administration);
        let memory = &self.memory;
        let descriptors = [memory.stack_write.as_fd(), memory.pairs.secrets(), applications, lock.as_fd()];
        self.persisted.note_stack(&note, Some(&descriptors));
        self.persisted.is_complete();
    }

    fn stack_note(&self) -> StackNote {
        let identity = &self.identity;
        StackNote {
            mac: identity.mac.0,
            device: identity.device.clone(),
            offload: identity.offload,
            steering: identity.steering,
            started_ns: identity.started.as_nanos(),
            balance: self.config.accept.told(),
            places: self.placement.places().to_vec(),
            scales: self.placement.is_auto(),
            asking: self.placement.asking().iter().map(|client| client.0).collect(),
            opened: self.books.opened_ever(),
            last_session: self.books.last(),
            next_client: self.clients.next(),
            is_ending: self.course.ending() == Some(&Ending::Asked),
            takeovers: identity.takeovers,
            exchange_for: self.course.exchange_for().map(|client| client.0),
            rights: Some(self.gate.rights().clone()),
            servers: identity.servers,
        }
    }

    /// Notes the state of the stack as a whole, which has changed.
    pub(super) fn note_stack(&mut self) {
        if self.persisted.is_kept() {
            let note = self.stack_note();
            self.persisted.note_stack(&note, None);
        }
    }

    /// Notes a process for replicas that is new or has changed, or that it is gone.
    pub(super) fn note_host(&mut self, key: usize) {
        self.persisted.note_host(key, self.hosts.get(key));
    }

    /// Notes the state of a server that has changed. `is_announced` says whether the other servers were
    /// notified of its start.
    pub(super) fn note_server(&mut self, index: usize, is_announced: bool) {
        if let Some(server) = self.servers.get(index) {
            self.persisted.note_server(index, server, is_announced);
        }
    }

    /// Notes the members of a session, which have changed.
    pub(super) fn note_session(&mut self, session: u32) {
        self.persisted.note_session(session, &self.books, false);
    }

    /// Notes a new client, or that a client is gone.
    pub(super) fn note_client(&mut self, id: ClientId) {
        self.persisted.note_client(id, self.clients.get(id));
    }
}

/// Restores a process for replicas.
fn found_host(note: &HostNote, descriptors: Vec<OwnedFd>, program: Rc<Program>) -> io::Result<Host> {
    let mut descriptors = descriptors.into_iter();
    let page = descriptors.next().ok_or_else(|| io::Error::other("a process without a page"))?;
    let child = if note.pid == 0 { None } else { descriptors.next() };
    let child = child.map(|pidfd| Rc::new(Child::foster(note.pid, pidfd)));
    let control = descriptors.next().map(Channel::from);
    let mut host = Host::resume(note.number, program, child, control, HostPage::resume(page)?, note.is_up);
    if note.is_ending {
        host.set_ending();
    }
    Ok(host)
}

/// Takes the note with this name.
fn take<T: DeserializeOwned>(notes: &mut Notes, name: &str) -> Option<(T, Vec<OwnedFd>)> {
    let Known { text, descriptors } = notes.remove(name)?;
    Some((serde_json::from_str(&text).ok()?, descriptors))
}

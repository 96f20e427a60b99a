//! What does a supervisor leave behind, and how does the next one go on with it? Everything that it alone knows, as notes of its guardian.
//!
//! ```text
//!   stack         identity; descriptors: stack page, keys of servers, socket for applications, lock of the name
//!   admin         descriptor: socket for administration
//!   pairs.N       descriptors: memory between server N and each with a higher number that it talks to
//!   memory.N      server N; descriptors: page, bell, and of a replica the ledger, and the page for reading
//!   queue.N       descriptor: queue N of the device
//!   program.N     a build; descriptor: its file
//!   host.N        a process for replicas; descriptors: page, pidfd, control socket
//!   server.N      process of server N, or which process replica N is in; descriptors: control socket, pidfd
//!   words.N       number of a process; descriptor: the pipe that its standard error leads to
//!   session.N     who is in it; descriptors: application page, bells, arenas, bells of replicas
//!   ~client.N     what may be asked over it; descriptor: a connection to one of these sockets
//! ```
//! What is in shared memory - counters, addresses, the steering table - is found there. Lost are counts of sessions that have ended,
//! answers to the command line that were under way, but for `atoll scale` and `atoll move`, and an upgrade that was: its servers stay what they are.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::control::Request;
use atoll_supervisor::{BalanceRules, Build, ClientId, Config, Door, Mac, Paths, Rights, Sessions, Standing, Steering};
use atoll_sys::Clock;
use atoll_sys::epoll::EventFlags;
use atoll_sys::process::Child;
use atoll_sys::signal::Signals;
use atoll_sys::unix::{Channel, Listener, Peer};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::doors::Doors;
use super::guarded::FdStoreLink;
use super::hosts::{ENDING_TIME, Host, HostPage, LEAVE_TIME};
use super::launch::{Duty, Launch};
use super::life::Life;
use super::memory::{SessionMemory, StackMemory};
use super::pairs::Pairs;
use super::report::Identity;
use super::scaling::Scaling;
use super::succession::Program;
use super::supervisor::{Ending, GUARDIAN, ServerSlot, Supervisor};
use super::words;
use crate::failure::{Failure, OrFail};
use crate::notes::{self, CLIENTS, Known, Note, Notes, STACK, STAYED};
use crate::runtime;
use crate::setup::ServerUser;

/// The way to the guardian.
#[derive(Debug, Default)]
pub struct PersistedState {
    pub channel: Option<Channel>,
    /// Builds that were noted, by number.
    pub programs: Vec<Rc<Program>>,
    /// For the guardian after this one; `None`: there was none.
    pub fd_store: Option<FdStoreLink>,
}

/// `stack`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StackNote {
    pub mac: [u8; 6],
    pub device: Option<String>,
    pub offload: bool,
    pub steering: Steering,
    /// When the stack started, in nanoseconds of the kernel's monotonic clock.
    pub started_ns: u64,
    pub balance: BalanceRules,
    /// The number of the process that each replica is to be in.
    #[serde(default)]
    pub places: Vec<u8>,
    /// Whether that follows from how busy they are.
    #[serde(default)]
    pub scales: bool,
    /// Clients that wait until all replicas are where they are to be.
    #[serde(default)]
    pub asking: Vec<u64>,
    pub opened: u64,
    /// The last session's number, which is not used again.
    pub last_session: u32,
    pub next_client: u64,
    /// Somebody has asked for the end of the stack.
    pub is_ending: bool,
    pub takeovers: u32,
    /// The supervisor makes way for one of another build, and this client is to be told.
    #[serde(default)]
    pub exchange_for: Option<u64>,
    /// Who may ask for what. Absent: the stack's user and root.
    #[serde(default)]
    pub rights: Option<Rights>,
    /// The user that servers run as; `None`: the supervisor's.
    #[serde(default)]
    pub servers: Option<ServerUser>,
}

/// `~client.N`. A build from before there were two sockets noted nothing: what it has accepted is an application's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct ClientNote {
    door: Door,
    /// Process, user and group of who has made the connection.
    #[serde(default)]
    peer: Option<[u32; 3]>,
}

/// `program.N`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ProgramNote {
    build: Build,
}

/// `host.N`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct HostNote {
    /// 0: none, in tests.
    pid: u32,
    number: usize,
    is_up: bool,
    /// It has no replica any more, and is to end.
    is_ending: bool,
    /// As in [`ServerNote`].
    program: Option<usize>,
}

/// `server.N`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ServerNote {
    /// 0: it has no process.
    pid: u32,
    /// The key of a replica's process.
    host: Option<usize>,
    /// It was asked to leave.
    is_leaving: bool,
    epoch: u32,
    crashes: u64,
    moves: u64,
    is_ready: bool,
    /// The others know that it was started.
    is_announced: bool,
    /// Number of its build; `None`: the supervisor's own.
    program: Option<usize>,
}

/// `session.N`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct SessionNote {
    pid: u32,
    /// [`atoll_ipc::control::User::counts_for`].
    #[serde(default)]
    counts_for: Option<u32>,
    /// `None`: it has ended, and a replica may have something to send from its memory.
    standing: Option<Standing>,
}

impl PersistedState {
    /// Says that the stack ends now, so that nobody takes over.
    pub fn bye(&mut self) {
        self.send(&Note::Bye, &[]);
        *self = PersistedState::default();
    }

    /// Whether there is somebody who keeps it.
    pub fn is_kept(&self) -> bool {
        self.channel.is_some()
    }

    pub fn put(&mut self, name: String, note: &impl Serialize, descriptors: &[BorrowedFd<'_>]) {
        let Ok(text) = serde_json::to_string(note) else { return };
        self.send(&Note::Put(name, text), descriptors);
    }

    fn amend(&mut self, name: String, note: &impl Serialize) {
        let Ok(text) = serde_json::to_string(note) else { return };
        self.send(&Note::Amend(name, text), &[]);
    }

    /// Takes back what is noted under a name.
    pub fn drop_note(&mut self, name: String) {
        self.send(&Note::Drop(name), &[]);
    }

    /// Waits while the guardian has too much to read: it does nothing else.
    fn send(&mut self, note: &Note, descriptors: &[BorrowedFd<'_>]) {
        let Some(channel) = &self.channel else { return };
        loop {
            match notes::send(channel, note, descriptors) {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => notes::wait_for_room(channel),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    say!("the guardian is gone ({error})");
                    self.channel = None;
                    return;
                }
            }
        }
    }

    /// The number of a build, which is noted if it was not.
    fn program(&mut self, program: &Rc<Program>) -> Option<usize> {
        let file = program.file.as_ref()?;
        if let Some(number) = self.programs.iter().position(|noted| Rc::ptr_eq(noted, program)) {
            return Some(number);
        }
        let number = self.programs.len();
        self.programs.push(program.clone());
        self.put(format!("program.{number}"), &ProgramNote { build: program.build.clone() }, &[file.as_fd()]);
        Some(number)
    }
}

impl Supervisor {
    /// Leaves everything to a guardian, from now on.
    pub(super) fn leave_to(&mut self, persisted: PersistedState) {
        self.persisted = persisted;
        let Some(lock) = self.persisted.fd_store.as_ref().map(|fd_store| fd_store.lock.clone()) else { return };
        if let Some(channel) = &self.persisted.channel
            && let Err(error) = self.epoll.add(channel, GUARDIAN, EventFlags::RDHUP)
        {
            say!("the guardian is not watched: {error}");
        }
        let queues = self.launcher.as_ref().map(|launcher| launcher.queues()).unwrap_or_default();
        for (number, queue) in queues.iter().enumerate() {
            self.persisted.put(format!("queue.{number}"), &(), &[queue.as_fd()]);
        }
        for (number, memory) in self.memory.servers().enumerate() {
            let mut descriptors = vec![memory.page_write.as_fd(), memory.bell.as_fd()];
            if let Some(ledger) = self.memory.ledgers.get(number) {
                descriptors.extend([ledger.as_fd(), memory.page_read.as_fd()]);
            }
            self.persisted.put(format!("memory.{number}"), &(), &descriptors);
            let pairs: Vec<_> = self.memory.pairs.from(number).collect();
            self.persisted.put(format!("pairs.{number}"), &(), &pairs);
        }
        for key in self.hosts.keys() {
            self.note_host(key);
        }
        for index in 0..self.replicas.len() + self.others.len() {
            self.note_server(index, true);
        }
        self.note_all_words();
        let ended = self.lingering.iter().map(|lingering| lingering.session);
        let sessions: Vec<u32> = self.open.keys().copied().chain(ended).collect();
        let clients: Vec<ClientId> = self.clients.keys().copied().collect();
        sessions.into_iter().for_each(|session| self.note_session(session, true));
        clients.into_iter().for_each(|client| self.note_client(client));
        let note = self.stack_note();
        self.persisted.put(ADMINISTRATION.into(), &(), &[self.doors.administration.as_fd()]);
        let (memory, applications) = (&self.memory, self.doors.applications.as_fd());
        let descriptors = [memory.stack_write.as_fd(), memory.pairs.secrets(), applications, lock.as_fd()];
        self.persisted.put(STACK.into(), &note, &descriptors);
        self.persisted.send(&Note::Ready, &[]);
    }

    fn stack_note(&self) -> StackNote {
        let identity = &self.identity;
        let age = identity.started.elapsed().as_nanos() as u64;
        StackNote {
            mac: identity.mac.0,
            device: identity.device.clone(),
            offload: identity.offload,
            steering: identity.steering,
            started_ns: Clock::kernel().now().as_nanos().saturating_sub(age),
            balance: self.config.accept.told(),
            places: self.scaling.places().to_vec(),
            scales: self.scaling.is_auto(),
            asking: self.scaling.asking().iter().map(|client| client.0).collect(),
            opened: self.opened,
            last_session: self.sessions.last(),
            next_client: self.next_client,
            is_ending: self.ending == Some(Ending::Asked),
            takeovers: identity.takeovers,
            exchange_for: self.exchange_for.map(|client| client.0),
            rights: Some(self.rights.clone()),
            servers: identity.servers,
        }
    }

    /// What is known of the stack as a whole has changed.
    pub(super) fn note_stack(&mut self) {
        if self.persisted.is_kept() {
            let note = self.stack_note();
            self.persisted.amend(STACK.into(), &note);
        }
    }

    /// There is a process for replicas more, or one less, or something else is known of it.
    pub(super) fn note_host(&mut self, key: usize) {
        if !self.persisted.is_kept() {
            return;
        }
        let name = format!("host.{key}");
        let Some(host) = self.hosts.get(key) else { return self.persisted.send(&Note::Drop(name), &[]) };
        // One that stands by ends with this supervisor: it was not told yet to outlive it.
        let Some(number) = host.number() else { return };
        let note = HostNote {
            pid: host.child.as_ref().map_or(0, |child| child.pid()),
            number,
            is_up: host.is_up,
            is_ending: host.control.is_none(),
            program: self.persisted.program(&host.program),
        };
        self.persisted.put(name, &note, &host.descriptors());
    }

    /// A server has another process, or something else is known of it. `is_announced`: to the others.
    pub(super) fn note_server(&mut self, index: usize, is_announced: bool) {
        if !self.persisted.is_kept() {
            return;
        }
        let Some(server) = self.replicas.iter().chain(&self.others).nth(index) else { return };
        let note = ServerNote {
            pid: server.child.as_ref().map_or(0, |child| child.pid()),
            host: server.host,
            is_leaving: server.is_leaving,
            epoch: server.epoch,
            crashes: server.life.crashes,
            moves: server.life.moves,
            is_ready: server.life.is_serving(),
            is_announced,
            program: self.persisted.program(&server.program),
        };
        let control = server.control.as_ref().map(AsFd::as_fd);
        let child = server.child.as_ref().filter(|_| server.host.is_none()).map(|child| child.pidfd());
        let descriptors: Vec<_> = control.into_iter().chain(child).collect();
        self.persisted.put(format!("server.{index}"), &note, &descriptors);
    }

    /// Who is in a session has changed. `is_new`: nobody knows of it.
    pub(super) fn note_session(&mut self, session: u32, is_new: bool) {
        if !self.persisted.is_kept() {
            return;
        }
        let lingers = self.lingering.iter().find(|lingering| lingering.session == session);
        let lingers = lingers.map(|lingering| &*lingering.memory);
        let Some(memory) = self.open.get(&session).or(lingers) else {
            return self.persisted.send(&Note::Drop(format!("session.{session:010}")), &[]);
        };
        let counts_for = memory.user.counts_for;
        let note = SessionNote { pid: memory.pid, counts_for, standing: self.sessions.standing(session) };
        let name = format!("session.{session:010}");
        if is_new {
            let descriptors = memory.descriptors();
            let descriptors: Vec<_> = descriptors.iter().map(|fd| fd.as_fd()).collect();
            self.persisted.put(name, &note, &descriptors);
        } else {
            self.persisted.amend(name, &note);
        }
    }

    /// There is a client more, or one less.
    pub(super) fn note_client(&mut self, id: ClientId) {
        let name = format!("{CLIENTS}{:020}", id.0);
        match self.clients.get(&id) {
            Some(client) => {
                let Peer { pid, uid, gid } = client.peer;
                let note = ClientNote { door: client.door, peer: Some([pid, uid, gid]) };
                self.persisted.put(name, &note, &[client.channel.as_fd()]);
            }
            None => self.persisted.send(&Note::Drop(name), &[]),
        }
    }
}

/// The stack as the last supervisor has left it.
pub struct Found {
    /// What is known of it as a whole.
    pub stack: StackNote,
    /// The device's queues.
    pub queues: Vec<OwnedFd>,
    /// The lock of its name.
    pub lock: OwnedFd,
    memory: StackMemory,
    doors: Doors,
    notes: Notes,
}

impl Found {
    /// Reads the notes, as far as they concern the stack as a whole. `config`: as it was at the start.
    pub fn read(notes: Notes, config: &mut Config) -> Result<Found, Failure> {
        let paths = runtime::paths(&config.name);
        Found::read_at(notes, config, &paths)
    }

    /// The same of a stack with these files.
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
        let administration = take::<()>(&mut notes, ADMINISTRATION).and_then(|(_, all)| all.into_iter().next());
        let doors = Doors::resume(listener.into(), administration.map(Listener::from), paths);
        let doors = doors.or_fail("taking over the stack's sockets")?;
        Ok(Found { stack, queues, lock, memory, doors, notes })
    }

    // structure: resume: each kind of note is taken up once, in the order in which they need each other
    /// Goes on with it.
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
        let mut programs = Vec::new();
        while let Some((note, descriptors)) = take::<ProgramNote>(&mut notes, &format!("program.{}", programs.len())) {
            programs.push(Rc::new(Program { file: descriptors.into_iter().next(), build: note.build }));
        }
        let own = Rc::new(Program::own());
        let program = |note: Option<usize>| note.and_then(|number| programs.get(number)).unwrap_or(&own).clone();
        let mut server = Supervisor::bare(config, identity, memory, launcher, doors, signals).or_fail(what)?;
        server.rights = stack.rights.clone().unwrap_or_else(|| server.rights.clone());
        let asking = stack.asking.iter().copied().map(ClientId).collect();
        server.scaling = Scaling::resume(&server.config, &stack.places, stack.scales, asking);
        while let Some(name) = notes.keys().find(|name| name.starts_with("host.")).cloned() {
            let (Some((note, descriptors)), Some(key)) =
                (take::<HostNote>(&mut notes, &name), name.strip_prefix("host.").and_then(|key| key.parse().ok()))
            else {
                continue;
            };
            let host = found_host(&note, descriptors, program(note.program)).or_fail(what)?;
            server.install_host(key, host).or_fail(what)?;
        }
        while let Some(name) = notes.keys().find(|name| name.starts_with(words::NOTES)).cloned() {
            if let Some((pid, descriptors)) = take::<u32>(&mut notes, &name)
                && let Some(pipe) = descriptors.into_iter().next()
            {
                server.hear_again(&name, pid, pipe);
            }
        }
        let mut unannounced = Vec::new();
        for index in 0..server.config.notation.plan().processes().len() {
            let (note, descriptors) = take::<ServerNote>(&mut notes, &format!("server.{index}"))
                .ok_or_else(|| Failure::new(format!("the last supervisor has left no server {index}")))?;
            let found = server.found(&note, descriptors, program(note.program)).or_fail(what)?;
            if !note.is_announced {
                unannounced.push(index);
            }
            server.install(index, found).or_fail(what)?;
        }
        server.sessions = Sessions::new(server.config.sessions.max);
        server.sessions.resume(stack.last_session);
        while let Some(name) = notes.keys().find(|name| name.starts_with("session.")).cloned() {
            let (Some((note, descriptors)), Some(number)) =
                (take::<SessionNote>(&mut notes, &name), name.strip_prefix("session.").and_then(|n| n.parse().ok()))
            else {
                continue;
            };
            let arena: ArenaConfig = server.config.sessions.arena;
            let user = server.users.counting_for(note.counts_for);
            let (replicas, started) = (server.replicas.len(), server.identity.started);
            let Some(memory) = SessionMemory::resume((note.pid, user), descriptors, replicas, arena, started) else {
                continue;
            };
            match note.standing {
                Some(standing) => {
                    server.sessions.restore(number, standing);
                    server.open.insert(number, memory);
                }
                None => server.linger(number, Rc::new(memory)),
            }
        }
        server.opened = stack.opened;
        server.next_client = stack.next_client;
        for (name, known) in notes {
            let Some(number) = name.strip_prefix(CLIENTS).and_then(|number| number.parse().ok()) else { continue };
            let Some(channel) = known.descriptors.into_iter().next().map(Channel::from) else { continue };
            let note: ClientNote = serde_json::from_str(&known.text).unwrap_or_default();
            server.next_client = server.next_client.max(number + 1);
            let peer = note.peer.map(|[pid, uid, gid]| Peer { pid, uid, gid });
            server.restore_client(ClientId(number), note.door, peer, channel);
        }
        server.lose_members();
        if stack.is_ending {
            server.ending = Some(Ending::Asked);
        }
        server.ready = true;
        server.listen().or_fail(what)?;
        server.remind(&unannounced).or_fail(what)?;
        server.leave_to(persisted);
        if let Some(client) = stack.exchange_for {
            server.exchanged(ClientId(client), stayed).or_fail(what)?;
        }
        Ok(server)
    }
}

impl Supervisor {
    /// A server as it was found. One without a process is to be started.
    fn found(&self, note: &ServerNote, descriptors: Vec<OwnedFd>, program: Rc<Program>) -> io::Result<ServerSlot> {
        let mut descriptors = descriptors.into_iter();
        // A process that is gone has taken the replica along.
        let host = note.host.filter(|key| self.hosts.get(*key).is_some());
        let control = descriptors.next().map(Channel::from).filter(|_| host.is_some() == note.host.is_some());
        let child = match host.and_then(|key| self.hosts.get(key)) {
            Some(host) => host.child.clone(),
            None => descriptors.next().map(|pidfd| Rc::new(Child::foster(note.pid, pidfd))),
        };
        let now = Instant::now();
        let mut life = Life::new(now);
        (life.crashes, life.moves) = (note.crashes, note.moves);
        if control.is_none() {
            life.absent(now);
        } else if note.is_ready {
            life.ready(now);
        }
        let is_leaving = note.is_leaving && control.is_some();
        let due_by = is_leaving.then_some(now + LEAVE_TIME);
        let host = host.filter(|_| control.is_some());
        Ok(ServerSlot { host, control, is_leaving, due_by, ..ServerSlot::new(child, note.epoch, life, program) })
    }

    /// Ends the memberships of clients of which there is no note: they are gone.
    fn lose_members(&mut self) {
        let members: BTreeMap<ClientId, ()> =
            self.sessions.ids().flat_map(|id| self.sessions.members(id)).map(|(_, client)| (client, ())).collect();
        for client in members.into_keys().filter(|client| !self.clients.contains_key(client)) {
            self.gone_meanwhile.extend(self.sessions.closed(client));
        }
    }

    /// Tells servers what the last supervisor may have had to tell them: all of it does no harm twice. `unannounced`: servers of which the
    /// others may not know.
    fn remind(&mut self, unannounced: &[usize]) -> io::Result<()> {
        for index in 0..self.replicas.len() + self.others.len() {
            if self.server_mut(index).is_none_or(|server| server.control.is_none()) {
                continue;
            }
            let sessions = self.sessions_at(index);
            if let Some(replica) = self.replicas.get_mut(index) {
                replica.untold = sessions;
            }
            if let Some(version) = self.ledger_wanted(index) {
                self.send_to_replica(index, &Request::WriteLedger { version }, Vec::new())?;
            }
        }
        for &index in unannounced {
            self.announce_restart(index)?;
        }
        self.spread_balance()?;
        let departures = std::mem::take(&mut self.gone_meanwhile);
        self.announce(departures)?;
        self.tell_some(Instant::now())
    }
}

/// A process for replicas as it was found.
fn found_host(note: &HostNote, descriptors: Vec<OwnedFd>, program: Rc<Program>) -> io::Result<Host> {
    let mut descriptors = descriptors.into_iter();
    let page = descriptors.next().ok_or_else(|| io::Error::other("a process without a page"))?;
    let child = if note.pid == 0 { None } else { descriptors.next() };
    Ok(Host {
        duty: Duty::Replicas(note.number),
        program,
        child: child.map(|pidfd| Rc::new(Child::foster(note.pid, pidfd))),
        control: descriptors.next().map(Channel::from),
        page: HostPage::resume(page)?,
        is_up: note.is_up,
        until: note.is_ending.then(|| Instant::now() + ENDING_TIME),
    })
}

/// Takes what is noted under a name.
fn take<T: DeserializeOwned>(notes: &mut Notes, name: &str) -> Option<(T, Vec<OwnedFd>)> {
    let Known { text, descriptors } = notes.remove(name)?;
    Some((serde_json::from_str(&text).ok()?, descriptors))
}

impl StackNote {
    /// What the next supervisor says of itself.
    pub fn identity(&self, pid: u32, guardian: u32, socket: std::path::PathBuf) -> Identity {
        let age = Clock::kernel().now().as_nanos().saturating_sub(self.started_ns);
        let now = Instant::now();
        Identity {
            uid: rustix::process::geteuid().as_raw(),
            pid,
            guardian: Some(guardian),
            takeovers: self.takeovers + 1,
            socket,
            started: now.checked_sub(Duration::from_nanos(age)).unwrap_or(now),
            mac: Mac(self.mac),
            device: self.device.clone(),
            offload: self.offload,
            steering: self.steering,
            servers: self.servers,
        }
    }
}

/// The note of the socket for administration.
const ADMINISTRATION: &str = "admin";

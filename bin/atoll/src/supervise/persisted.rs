//! What a supervisor leaves behind: everything that it alone knows, as notes that its guardian keeps.
//! `supervisor/takeover.rs` restores the stack from them.
//!
//! ```text
//!   stack         identity; descriptors: stack page, keys of servers, application socket, lock of the name
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
//! What is in shared memory - counters, addresses, the steering table - is found there. These are lost:
//! counts of sessions that have ended; answers to the command line that were under way, except for `atoll
//! scale` and `atoll move`; and an upgrade that was under way, whose servers stay what they are.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use atoll_base::{Duration, Instant};
use atoll_ipc::arena::ArenaConfig;
use atoll_supervisor::{BalanceRules, Build, ClientId, Door, Mac, Rights, Standing, Steering};
use atoll_sys::epoll::{Epoll, EventFlags};
use atoll_sys::process::{Child, Signal};
use atoll_sys::unix::{Channel, Peer};
use serde::{Deserialize, Serialize};

use super::Guardian;
use super::books::Books;
use super::clients::Client;
use super::hosts::Host;
use super::identity::Identity;
use super::memory::{SessionMemory, StackMemory};
use super::program::Program;
use super::servers::ServerSlot;
use super::tokens::GUARDIAN;
use super::words::{self, Words};
use crate::clock;
use crate::log;
use crate::notes::{self, CLIENTS, NEXT, Note, STACK};
use crate::setup::ServerUser;

/// The connection to the guardian, which keeps the notes.
#[derive(Debug, Default)]
pub struct PersistedState {
    channel: Option<Channel>,
    /// The builds that were noted, by number.
    programs: Vec<Rc<Program>>,
    /// The resources for starting another guardian; `None` if there has never been one.
    fd_store: Option<FdStoreLink>,
}

/// The resources for starting the next guardian.
#[derive(Debug)]
pub struct FdStoreLink {
    /// The job that it is given.
    job: String,
    /// The lock of the stack's name.
    lock: Rc<OwnedFd>,
    /// The present guardian, if this supervisor has started it.
    child: Option<Child>,
    /// The earliest time at which the next guardian may be started.
    due: Instant,
}

/// The note `stack`.
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
    /// Whether the number of processes follows the load.
    #[serde(default)]
    pub scales: bool,
    /// Clients that wait until all replicas are in their places.
    #[serde(default)]
    pub asking: Vec<u64>,
    pub opened: u64,
    /// The number of the session that was opened last, which is not used again.
    pub last_session: u32,
    pub next_client: u64,
    /// Whether the stack is ending because that was asked for.
    pub is_ending: bool,
    pub takeovers: u32,
    /// The client that is notified when a supervisor of another build has taken over, for which this one
    /// makes way.
    #[serde(default)]
    pub exchange_for: Option<u64>,
    /// The users that may ask for what; if absent, only the stack's user and root.
    #[serde(default)]
    pub rights: Option<Rights>,
    /// The user that servers run as; `None` means the supervisor's.
    #[serde(default)]
    pub servers: Option<ServerUser>,
}

/// The note `~client.N`. A build from before there were two sockets noted nothing: the connections that it
/// accepted are those of applications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientNote {
    pub door: Door,
    /// The pid, user and group of the process that made the connection.
    #[serde(default)]
    pub peer: Option<[u32; 3]>,
    /// Whether the process that has the connection may begin sessions.
    #[serde(default)]
    pub let_in: bool,
}

/// The note `program.N`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgramNote {
    pub build: Build,
}

/// The note `host.N`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostNote {
    /// The pid; 0 in tests, where there is no process.
    pub pid: u32,
    pub number: usize,
    pub is_up: bool,
    /// Whether the process has no replica any more, and is to end.
    pub is_ending: bool,
    /// The number of its build; `None` means the supervisor's own.
    pub program: Option<usize>,
}

/// The note `server.N`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerNote {
    /// The pid, or 0 if the server has no process.
    pub pid: u32,
    /// The key of a replica's process.
    pub host: Option<usize>,
    /// Whether the server was asked to leave.
    pub is_leaving: bool,
    pub epoch: u32,
    pub crashes: u64,
    pub moves: u64,
    pub is_ready: bool,
    /// Whether the other servers were notified of its start.
    pub is_announced: bool,
    /// The number of its build; `None` means the supervisor's own.
    pub program: Option<usize>,
}

/// The note `session.N`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionNote {
    pub pid: u32,
    /// The value of [`atoll_ipc::control::User::counts_for`].
    #[serde(default)]
    pub counts_for: Option<u32>,
    /// The members of the session; `None` if it has ended, and a replica may have something to send from its
    /// memory.
    pub standing: Option<Standing>,
    /// The sizes of its arenas: slots, and the powers of two of its send and receive areas; `None` if they
    /// are those that are configured.
    #[serde(default)]
    pub arena: Option<(u32, u8, u8)>,
}

impl SessionNote {
    /// Returns the note of a session with this memory.
    fn of(memory: &SessionMemory, standing: Option<Standing>) -> SessionNote {
        let ArenaConfig { slots, send_log2, receive_log2 } = memory.config();
        SessionNote {
            pid: memory.pid,
            counts_for: memory.user.counts_for,
            standing,
            arena: Some((slots, send_log2, receive_log2)),
        }
    }

    /// Returns the sizes of the session's arenas; `usual` are those that are configured. `None` if nothing
    /// can have such sizes.
    pub fn arena(&self, usual: ArenaConfig) -> Option<ArenaConfig> {
        let arena =
            self.arena.map(|(slots, send_log2, receive_log2)| ArenaConfig { slots, send_log2, receive_log2 });
        Some(arena.unwrap_or(usual)).filter(ArenaConfig::is_valid)
    }
}

impl PersistedState {
    /// Notifies the guardian that the stack ends now, so that no supervisor takes over.
    pub fn bye(&mut self) {
        self.send(&Note::Bye, &[]);
        *self = PersistedState::default();
    }

    /// Returns whether there is a guardian that keeps the notes.
    pub fn is_kept(&self) -> bool {
        self.channel.is_some()
    }

    fn put(&mut self, name: String, note: &impl Serialize, descriptors: &[BorrowedFd<'_>]) {
        let Ok(text) = serde_json::to_string(note) else { return };
        self.send(&Note::Put(name, text), descriptors);
    }

    fn amend(&mut self, name: String, note: &impl Serialize) {
        let Ok(text) = serde_json::to_string(note) else { return };
        self.send(&Note::Amend(name, text), &[]);
    }

    /// Sends a note. Waits while the guardian has too much to read, which it does promptly because it does
    /// nothing else.
    fn send(&mut self, note: &Note, descriptors: &[BorrowedFd<'_>]) {
        let Some(channel) = &self.channel else { return };
        loop {
            match notes::send(channel, note, descriptors) {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => notes::wait_for_room(channel),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    event!(
                        guardian_gone,
                        { error = error.to_string(), errno = log::errno(&error) },
                        "the guardian is gone ({error})"
                    );
                    self.channel = None;
                    return;
                }
            }
        }
    }

    /// Returns the number of a build, which is noted if it was not; `None` for the supervisor's own.
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

    /// Notes something under a name, or removes the note of that name.
    fn put_or_drop(&mut self, name: String, note: Option<(&impl Serialize, &[BorrowedFd<'_>])>) {
        match note {
            Some((note, descriptors)) => self.put(name, note, descriptors),
            None => self.send(&Note::Drop(name), &[]),
        }
    }

    /// Creates the connection to a guardian.
    pub fn new(guardian: Guardian, lock: OwnedFd) -> PersistedState {
        let fd_store = FdStoreLink { job: guardian.job, lock: Rc::new(lock), child: None, due: clock::now() };
        PersistedState { channel: Some(guardian.channel), programs: Vec::new(), fd_store: Some(fd_store) }
    }

    /// Returns the lock of the stack's name, or `None` if there has never been a guardian.
    pub fn lock(&self) -> Option<Rc<OwnedFd>> {
        self.fd_store.as_ref().map(|fd_store| fd_store.lock.clone())
    }

    /// Watches for the end of the guardian.
    pub fn watch(&self, epoll: &Epoll) -> io::Result<()> {
        self.channel.as_ref().map_or(Ok(()), |channel| epoll.add(channel, GUARDIAN, EventFlags::RDHUP))
    }

    /// Handles the end of the guardian: nothing is noted until there is another one.
    pub fn lose_guardian(&mut self, epoll: &Epoll) {
        if let Some(channel) = self.channel.take() {
            event!(guardian_gone, "the guardian is gone");
            let _ = epoll.delete(&channel);
        }
    }

    /// Returns in how many milliseconds another guardian is to be started, if the present one is gone.
    pub fn look_again_ms(&self, now: Instant) -> Option<u32> {
        let fd_store = self.fd_store.as_ref().filter(|_| self.channel.is_none())?;
        Some(fd_store.due.since(now).as_millis() as u32)
    }

    /// Returns whether another guardian is to be started now. There are never two of them: one that this
    /// supervisor has started has ended then.
    pub fn wants_guardian(&mut self, now: Instant) -> bool {
        if self.look_again_ms(now) != Some(0) {
            return false;
        }
        let Some(fd_store) = &mut self.fd_store else { return false };
        fd_store.due = now + PAUSE;
        if let Some(last) = fd_store.child.take() {
            let _ = last.kill(Signal::KILL);
            let _ = last.wait();
        }
        true
    }

    /// Starts another guardian, which has no notes yet. Returns its pid, the connection to it, and the socket
    /// to the one before, if that may still be there. Returns `None` if there has never been a guardian.
    pub fn start_guardian(
        &mut self,
        epoll: &Epoll,
    ) -> io::Result<Option<(u32, PersistedState, Option<Channel>)>> {
        let Some(fd_store) = &self.fd_store else { return Ok(None) };
        let (child, channel) = notes::start_another(&fd_store.job)?;
        let pid = child.pid();
        let PersistedState { channel: last, fd_store, .. } = std::mem::take(self);
        if let Some(last) = &last {
            let _ = epoll.delete(last);
        }
        let due = clock::now() + PAUSE;
        let fd_store = fd_store.map(|fd_store| FdStoreLink { child: Some(child), due, ..fd_store });
        Ok(Some((pid, PersistedState { channel: Some(channel), programs: Vec::new(), fd_store }, last)))
    }

    /// Notes the state of the stack as a whole. `descriptors` is `None` if they were noted before.
    pub fn note_stack(&mut self, note: &StackNote, descriptors: Option<&[BorrowedFd<'_>]>) {
        match descriptors {
            Some(descriptors) => self.put(STACK.into(), note, descriptors),
            None => self.amend(STACK.into(), note),
        }
    }

    /// Notes the socket for administration.
    pub fn note_administration(&mut self, socket: BorrowedFd<'_>) {
        self.put(ADMINISTRATION.into(), &(), &[socket]);
    }

    /// Notes the queues of the device.
    pub fn note_queues(&mut self, queues: &[OwnedFd]) {
        for (number, queue) in queues.iter().enumerate() {
            self.put(format!("queue.{number}"), &(), &[queue.as_fd()]);
        }
    }

    /// Notes the memory of the servers, and that between them.
    pub fn note_memory(&mut self, stack: &StackMemory) {
        for (number, memory) in stack.servers().iter().enumerate() {
            let mut descriptors = vec![memory.page_write.as_fd(), memory.bell.as_fd()];
            if let Some(ledger) = stack.ledgers.get(number) {
                descriptors.extend([ledger.as_fd(), memory.page_read.as_fd()]);
            }
            self.put(format!("memory.{number}"), &(), &descriptors);
            let pairs: Vec<_> = stack.pairs.from(number).collect();
            self.put(format!("pairs.{number}"), &(), &pairs);
        }
    }

    /// Notes a process for replicas that is new or has changed, or that it is gone.
    pub fn note_host(&mut self, key: usize, host: Option<&Host>) {
        if !self.is_kept() {
            return;
        }
        let name = format!("host.{key}");
        let Some(host) = host else { return self.send(&Note::Drop(name), &[]) };
        // A standby ends with this supervisor, because it has no order yet to outlive it.
        let Some(number) = host.number() else { return };
        let note = HostNote {
            pid: host.pid().unwrap_or(0),
            number,
            is_up: host.is_up(),
            is_ending: host.intake().is_none(),
            program: self.program(host.program()),
        };
        self.put(name, &note, &host.descriptors());
    }

    /// Notes the state of a server that has changed. `is_announced` says whether the other servers were
    /// notified of its start.
    pub fn note_server(&mut self, index: usize, server: &ServerSlot, is_announced: bool) {
        if !self.is_kept() {
            return;
        }
        let record = server.record();
        let note = ServerNote {
            pid: server.pid().unwrap_or(0),
            host: server.host(),
            is_leaving: record.is_leaving(),
            epoch: record.epoch(),
            crashes: record.life().crashes,
            moves: record.life().moves,
            is_ready: record.is_serving(),
            is_announced,
            program: self.program(server.program()),
        };
        self.put(format!("server.{index}"), &note, &server.descriptors());
    }

    /// Notes the members of a session, which have changed. `is_new` says that the session was not noted yet.
    pub fn note_session(&mut self, session: u32, books: &Books, is_new: bool) {
        if !self.is_kept() {
            return;
        }
        let name = format!("session.{session:010}");
        let Some(memory) = books.memory(session) else { return self.send(&Note::Drop(name), &[]) };
        let note = SessionNote::of(memory, books.standing(session));
        if is_new {
            let descriptors = memory.descriptors();
            let descriptors: Vec<_> = descriptors.iter().map(|fd| fd.as_fd()).collect();
            self.put(name, &note, &descriptors);
        } else {
            self.amend(name, &note);
        }
    }

    /// Notes a new client, or that a client is gone.
    pub fn note_client(&mut self, id: ClientId, client: Option<&Client>) {
        let note = client.map(|client| {
            let Peer { pid, uid, gid } = client.peer();
            let (door, let_in) = (client.door(), client.is_let_in());
            (ClientNote { door, peer: Some([pid, uid, gid]), let_in }, [client.descriptor()])
        });
        let note = note.as_ref().map(|(note, descriptors)| (note, &descriptors[..]));
        self.put_or_drop(format!("{CLIENTS}{:020}", id.0), note);
    }

    /// Notes the process in this slot whose output is read, or that there is none any more.
    pub fn note_words(&mut self, slot: usize, words: &Words) {
        let speaker = words.speaker(slot).map(|(pid, pipe)| (pid, [pipe]));
        let note = speaker.as_ref().map(|(pid, pipe)| (pid, &pipe[..]));
        self.put_or_drop(format!("{}{slot}", words::NOTES), note);
    }

    /// Notifies the guardian that the notes are complete. From now on another supervisor can take over.
    pub fn is_complete(&mut self) {
        self.send(&Note::Ready, &[]);
    }

    /// Notes that the next supervisor is to be of the build in this file. Returns whether there is a guardian
    /// to start it.
    pub fn note_next(&mut self, file: BorrowedFd<'_>) -> bool {
        self.put(NEXT.into(), &(), &[file]);
        self.is_kept()
    }
}

impl StackNote {
    /// Returns the identity of the next supervisor.
    pub fn identity(&self, pid: u32, guardian: u32, socket: std::path::PathBuf) -> Identity {
        let age = clock::now().as_nanos().saturating_sub(self.started_ns);
        let now = clock::now();
        Identity {
            uid: rustix::process::geteuid().as_raw(),
            pid,
            guardian: Some(guardian),
            takeovers: self.takeovers + 1,
            socket,
            started: now - Duration::from_nanos(age),
            mac: Mac(self.mac),
            device: self.device.clone(),
            offload: self.offload,
            steering: self.steering,
            servers: self.servers,
        }
    }
}

/// The name of the note of the socket for administration.
pub const ADMINISTRATION: &str = "admin";
/// The shortest time between two guardians.
const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// A supervisor of one build takes over from a supervisor of another. These are the names and forms of
    /// the notes that it finds.
    #[test]
    fn notes_are_written_as_every_build_reads_them() {
        let server = ServerNote {
            pid: 7,
            host: Some(1),
            is_leaving: false,
            epoch: 3,
            crashes: 2,
            moves: 1,
            is_ready: true,
            is_announced: true,
            program: None,
        };
        let text = r#"{"pid":7,"host":1,"is_leaving":false,"epoch":3,"crashes":2,"moves":1,"is_ready":true,"is_announced":true,"program":null}"#;
        assert_eq!(
            (serde_json::to_string(&server).unwrap().as_str(), serde_json::from_str(text).ok()),
            (text, Some(server))
        );
        let host = HostNote { pid: 0, number: 2, is_up: true, is_ending: false, program: Some(0) };
        let text = r#"{"pid":0,"number":2,"is_up":true,"is_ending":false,"program":0}"#;
        assert_eq!(
            (serde_json::to_string(&host).unwrap().as_str(), serde_json::from_str(text).ok()),
            (text, Some(host))
        );
        let session =
            SessionNote { pid: 7, counts_for: Some(33), standing: None, arena: Some((256, 20, 21)) };
        let text = r#"{"pid":7,"counts_for":33,"standing":null,"arena":[256,20,21]}"#;
        assert_eq!(
            (serde_json::to_string(&session).unwrap().as_str(), serde_json::from_str(text).ok()),
            (text, Some(session))
        );
        let client = ClientNote { door: Door::Administration, peer: Some([7, 33, 34]), let_in: true };
        let text = r#"{"door":"administration","peer":[7,33,34],"let_in":true}"#;
        assert_eq!(
            (serde_json::to_string(&client).unwrap().as_str(), serde_json::from_str(text).ok()),
            (text, Some(client))
        );
        let early: SessionNote =
            serde_json::from_str(r#"{"pid":7,"counts_for":33,"standing":null}"#).unwrap();
        assert_eq!(early.arena(ArenaConfig::default()), Some(ArenaConfig::default()));
        assert_eq!(SessionNote { arena: Some((3, 20, 20)), ..early }.arena(ArenaConfig::default()), None);
        // What an earlier build has left out gets the value that it had then.
        let early = r#"{"mac":[2,0,0,0,0,1],"device":null,"offload":false,"steering":"software","started_ns":5,"balance":{},
            "opened":4,"last_session":4,"next_client":1030,"is_ending":false,"takeovers":0}"#;
        let stack: StackNote = serde_json::from_str(early).unwrap();
        assert_eq!((stack.started_ns, stack.next_client, stack.takeovers), (5, 1030, 0));
        assert!(stack.places.is_empty() && !stack.scales && stack.asking.is_empty());
        assert!(stack.exchange_for.is_none() && stack.rights.is_none() && stack.servers.is_none());
    }
}

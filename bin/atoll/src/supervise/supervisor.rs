//! What does the supervisor do while the stack is up? One loop over epoll that never waits for anybody in particular.
//!
//! ```text
//!   clients (applications, command line, other stacks) --requests--> books of sessions --packets--> replicas
//!                                                      <--replies--                    <--rows----
//! ```
//! Every socket is nonblocking; what a socket does not take waits in its outbox. A client with a full outbox is not read
//! from until it has read, so what it can make the supervisor hold is bounded.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use atoll_ipc::control::{MemoryLevel, Refusal, Reply, Request, set_token, token};
use atoll_ipc::lease::Pass;
use atoll_ipc::network::Network;
use atoll_ipc::page::Stat;
use atoll_supervisor::{
    BalanceRules, CliRequest, ClientId, Component, Config, Departure, Door, Incoming, LinkType, ReportPart, Rights,
    SERVERS_MAX, Sessions, classify,
};
use atoll_sys::epoll::{self, Epoll, EventFlags};
use atoll_sys::process::{Child, Exit};
use atoll_sys::signal::Signals;
use atoll_sys::unix::{Blocking, Channel, Peer};
use atoll_sys::{eventfd, process};
use atoll_transport::seal_pass;

use super::crowds::{self, Budget, Crowds, Reserve};
use super::doors::{Doors, asker};
use super::dying::Dying;
use super::gauge::Gauge;
use super::hosts::Hosts;
use super::join::HostedLink;
use super::launch::Launch;
use super::life::Life;
use super::memory::{LibraryCalls, SessionMemory, StackMemory};
use super::outbox::Outbox;
use super::owner::{Activity, Owner};
use super::pace::{self, Pace};
use super::persisted::PersistedState;
use super::questions::Questions;
use super::report::Identity;
use super::scaling::Scaling;
use super::standby::Standby;
use super::stopped::Stops;
use super::succession::{Program, Succession};
use super::users::Users;
use super::watchdog::{Watch, Watchdog};
use super::words::Words;
use crate::failure::{Failure, OrFail};
use crate::{rows, setup};

/// A session that has ended. What its connections have still to send lies in its memory.
#[derive(Debug)]
pub(super) struct Lingering {
    pub(super) session: u32,
    pub(super) memory: Rc<SessionMemory>,
    /// Replicas that have not said that it is over.
    pub(super) waits_for: BTreeSet<usize>,
}

// structure: Supervisor: the whole supervisor; what it decides is not in machines of their own yet
/// The supervisor of a running stack.
pub struct Supervisor {
    pub(super) config: Config,
    pub(super) identity: Identity,
    pub(super) memory: StackMemory,
    pub(super) replicas: Vec<ServerSlot>,
    /// The servers that are no replicas: link servers and connection managers.
    pub(super) others: Vec<ServerSlot>,
    /// The processes that replicas are in.
    pub(super) hosts: Hosts,
    /// Processes that are about to end.
    pub(super) dying: Dying,
    pub(super) scaling: Scaling,
    pub(super) standby: Standby,
    /// What servers say.
    pub(super) words: Words,
    pub(super) sessions: Sessions,
    pub(super) users: Users,
    pub(super) open: BTreeMap<u32, SessionMemory>,
    /// Sessions that have ended, and that replicas, or their successors, have connections of.
    pub(super) lingering: VecDeque<Lingering>,
    pub(super) clients: BTreeMap<ClientId, Client>,
    /// Sessions opened since the start.
    pub(super) opened: u64,
    /// Library calls of sessions that are gone.
    pub(super) past_calls: LibraryCalls,
    /// The link that this stack hosts.
    pub(super) link: Option<HostedLink>,
    /// The connection to the stack that hosts the link.
    pub(super) link_host: Option<Channel>,
    /// Starts servers; `None` once the stack has ended.
    pub(super) launcher: Option<Box<dyn Launch>>,
    pub(super) epoll: Epoll,
    pub(super) doors: Doors,
    /// Who may ask for what.
    pub(super) rights: Rights,
    signals: Option<Signals>,
    /// The `atoll run` for which this stack exists.
    owner: Owner,
    /// Who is connected, and how many may be.
    pub(super) crowds: Crowds,
    pub(super) budget: Budget,
    /// Descriptors to spare: for starting servers, and so that a connection can be taken and refused when there are no others.
    pub(super) reserve: Reserve,
    /// How much memory there is; `None`: nobody looks, in tests.
    pub(super) gauge: Option<Gauge>,
    /// How fast who begins sessions.
    pace: Pace,
    /// Clients whose request waits because they are too fast, and until when.
    slowed: BTreeSet<(Instant, ClientId)>,
    /// Questions of the command line.
    pub(super) questions: Questions,
    /// When it is tried again to send what the system was short of something for.
    retry_at: Option<Instant>,
    /// When replicas are told of more sessions.
    pub(super) tell_at: Instant,
    pub(super) next_client: u64,
    pub(super) ending: Option<Ending>,
    pub(super) ready: bool,
    /// Whether, and when next, it is looked whether servers hang.
    pub(super) watchdog: Option<(Watchdog, Instant)>,
    /// The same of processes that are stopped.
    pub(super) stops: Option<Stops>,
    /// The upgrade under way.
    pub(super) succession: Option<Succession>,
    /// What the next supervisor finds.
    pub(super) persisted: PersistedState,
    /// Whom the next supervisor tells that it has taken over, for which this one makes way.
    pub(super) exchange_for: Option<ClientId>,
    /// Members that have gone while there was no supervisor.
    pub(super) gone_meanwhile: Vec<Departure>,
}

/// A replica, or another server, as the supervisor sees it.
pub(super) struct ServerSlot {
    /// Of a replica: the key of its process among those for replicas; `None` while it has none.
    pub(super) host: Option<usize>,
    /// Its process, which may have other replicas, too; `None` while it has none, and in tests.
    pub(super) child: Option<Rc<Child>>,
    pub(super) epoch: u32,
    /// `None` while it is down.
    pub(super) control: Option<Channel>,
    pub(super) outbox: Outbox,
    /// Sessions of which it has not heard: see `telling.rs`.
    pub(super) untold: BTreeSet<u32>,
    /// It is to list its sockets, and has not listed all.
    pub(super) lists: bool,
    pub(super) life: Life,
    pub(super) watch: Watch,
    /// Its last process has died by its own fault.
    pub(super) blamed: bool,
    /// What it is, or will be, a process of.
    pub(super) program: Rc<Program>,
    /// It was asked to hand over, and has not yet. It hears nothing more.
    pub(super) is_leaving: bool,
    /// Until when it is to have handed over or, in an upgrade, to be ready.
    pub(super) due_by: Option<Instant>,
}

impl ServerSlot {
    /// One without a control socket.
    pub(super) fn new(child: Option<Rc<Child>>, epoch: u32, life: Life, program: Rc<Program>) -> ServerSlot {
        ServerSlot {
            host: None,
            child,
            epoch,
            control: None,
            outbox: Outbox::default(),
            untold: BTreeSet::new(),
            lists: false,
            life,
            watch: Watch::default(),
            blamed: false,
            program,
            is_leaving: false,
            due_by: None,
        }
    }

    /// Whether it serves, and reads what it is told: who is asked to leave does not.
    pub(super) fn hears(&self) -> bool {
        self.life.is_serving() && !self.is_leaving
    }
}

/// A connection of an application, of the command line, or of another stack.
pub(super) struct Client {
    pub(super) channel: Channel,
    /// What can be asked over it, for ever.
    pub(super) door: Door,
    /// Who has made it.
    pub(super) peer: Peer,
    /// Who has sent the request under way, if the kernel said it.
    asks: Option<Peer>,
    outbox: Outbox,
    watched: EventFlags,
    /// Whether it is the supervisor of a joined stack.
    is_guest: bool,
    /// The number of the request under way, which its answer has, too.
    token: u64,
    /// Its request stays in the socket until then.
    slowed: Option<Instant>,
}

impl Client {
    fn new(channel: Channel, door: Door, peer: Peer) -> Client {
        let outbox = Outbox::default();
        Client { channel, door, peer, asks: None, outbox, watched: READING, is_guest: false, token: 0, slowed: None }
    }
}

/// Why the stack ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By this signal.
    Signal(i32),
    /// By `atoll down`.
    Asked,
    /// The program that it was made for has ended.
    ProgramEnded,
    /// It does not: a supervisor of another build takes over.
    MadeWay,
    /// A server is gone before the stack was ready.
    ServerGone {
        /// Which one.
        server: Role,
        /// Its process.
        pid: Option<u32>,
        /// How it ended, if known.
        exit: Option<Exit>,
        /// The system call that is not on its list, if it died of one.
        forbidden: Option<u32>,
    },
}

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The replica with this number.
    Replica(usize),
    /// The link server, in a process of its own, with this number.
    LinkServer(usize),
    /// The IP server, in a process of its own, with this number.
    IpServer(usize),
    /// The connection manager, in a process of its own, with this number.
    Manager(usize),
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Role::Replica(index) => write!(f, "replica {index}"),
            Role::LinkServer(index) => write!(f, "link server {index}"),
            Role::IpServer(index) => write!(f, "IP server {index}"),
            Role::Manager(index) => write!(f, "connection manager {index}"),
        }
    }
}

const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
const OWNER: u64 = 2;
/// The answer of a new build.
pub(super) const SELF_CHECK: u64 = 3;
/// The socket to the guardian.
pub(super) const GUARDIAN: u64 = 4;
/// The bell of those who wait for deaths.
const DYING: u64 = 5;
/// The listener for administration.
const ADMINISTRATION: u64 = 6;
/// And the number of the server, here and below.
pub(super) const REPLICA_CONTROL: u64 = 16;
pub(super) const REPLICA_PROCESS: u64 = REPLICA_CONTROL + SERVERS_MAX as u64;
/// And the key of a process for replicas.
pub(super) const HOST_CONTROL: u64 = REPLICA_PROCESS + SERVERS_MAX as u64;
pub(super) const HOST_PROCESS: u64 = HOST_CONTROL + HOSTS_MAX as u64;
/// And the slot of a process that is listened to.
pub(super) const WORDS: u64 = HOST_PROCESS + HOSTS_MAX as u64;
const FIRST_CLIENT: u64 = 1024;
const _: () = assert!(WORDS + WORDS_MAX as u64 <= FIRST_CLIENT);
/// Most processes for replicas: as many as replicas, those of another build, and those that are ending.
pub(super) const HOSTS_MAX: usize = 128;
/// Most processes that are listened to.
pub(super) const WORDS_MAX: usize = HOSTS_MAX + SERVERS_MAX;

/// The first incarnation of every server.
pub(super) const FIRST_EPOCH: u32 = 1;
/// How soon what the system was short of something for is tried again.
const RETRY_EVERY: Duration = Duration::from_millis(10);
/// Connections taken at one door before everything else gets its turn: who connects and closes can be faster than they are taken.
const ACCEPTS_PER_TURN: usize = 16;
/// Requests taken from one client before the others get their turn.
const REQUESTS_PER_TURN: usize = 16;
/// Longest request of a client.
const REQUEST_MAX: usize = 4096;
/// Sessions that have ended whose memory is kept. Of one beyond that, what has not been sent is lost if its replica dies: their number is up to
/// their peers.
const LINGERING_MAX: usize = 1024;
/// Longest packet of a replica.
const REPLICA_PACKET_MAX: usize = 256 << 10;

impl Supervisor {
    /// A supervisor that starts the servers. Applications are not served before [`Supervisor::all_ready`].
    pub fn new(
        config: Config,
        identity: Identity,
        memory: StackMemory,
        launcher: Box<dyn Launch>,
        doors: Doors,
        signals: Option<Signals>,
    ) -> Result<Supervisor, Failure> {
        let what = "starting the supervisor";
        let count = config.notation.plan().processes().len();
        let program = Rc::new(Program::own());
        let mut server = Supervisor::bare(config, identity, memory, launcher, doors, signals).or_fail(what)?;
        for index in 0..count {
            let unborn = ServerSlot::new(None, FIRST_EPOCH - 1, Life::new(Instant::now()), program.clone());
            server.install(index, unborn).or_fail(what)?;
        }
        for index in 0..count {
            server.start(index)?;
        }
        for index in 0..count {
            server.brief(index).or_fail(what)?;
        }
        Ok(server)
    }

    /// A supervisor without servers.
    pub(super) fn bare(
        config: Config,
        identity: Identity,
        memory: StackMemory,
        launcher: Box<dyn Launch>,
        doors: Doors,
        signals: Option<Signals>,
    ) -> io::Result<Supervisor> {
        let (epoll, dying) = (Epoll::new()?, Dying::new()?);
        epoll.add(dying.bell(), DYING, eventfd::WATCHED)?;
        if let Some(signals) = &signals {
            epoll.add(signals, SIGNALS, EventFlags::IN)?;
        }
        let (replicas, servers) = (config.replicas(), config.notation.plan().processes().len());
        let budget = Budget::new(process::nofile_limit(), servers, replicas.into(), memory.pairs.len());
        Ok(Supervisor {
            crowds: Crowds::new(budget.clients_max()),
            reserve: Reserve::new(&budget),
            budget,
            retry_at: None,
            tell_at: Instant::now(),
            gauge: None,
            pace: Pace::default(),
            slowed: BTreeSet::new(),
            questions: Questions::new(Instant::now()),
            sessions: Sessions::new(config.sessions.max),
            users: Users::new(identity.uid, &config.ports),
            watchdog: Watchdog::new(config.recovery.hang_ms)
                .map(|watchdog| (watchdog, Instant::now() + watchdog.period)),
            stops: Stops::new(config.recovery.hang_ms, Instant::now()),
            hosts: Hosts::default(),
            dying,
            scaling: Scaling::new(&config),
            standby: Standby::new(Instant::now()),
            words: Words::default(),
            config,
            memory,
            replicas: Vec::new(),
            others: Vec::new(),
            open: BTreeMap::new(),
            lingering: VecDeque::new(),
            clients: BTreeMap::new(),
            opened: 0,
            past_calls: LibraryCalls::default(),
            link: None,
            link_host: None,
            launcher: Some(launcher),
            epoll,
            rights: Rights::of(identity.uid),
            identity,
            doors,
            signals,
            owner: Owner::Nobody,
            next_client: FIRST_CLIENT,
            ending: None,
            ready: false,
            succession: None,
            persisted: PersistedState::default(),
            exchange_for: None,
            gone_meanwhile: Vec::new(),
        })
    }

    /// Adds the next server.
    pub(super) fn install(&mut self, index: usize, server: ServerSlot) -> io::Result<()> {
        if let Some(control) = &server.control {
            self.epoll.add(control, REPLICA_CONTROL + index as u64, EventFlags::IN)?;
        }
        if let (Some(child), None) = (&server.child, server.host) {
            self.epoll.add(&**child, REPLICA_PROCESS + index as u64, EventFlags::IN)?;
        }
        if index < usize::from(self.config.replicas()) {
            self.replicas.push(server)
        } else {
            self.others.push(server)
        }
        Ok(())
    }

    /// Lets clients connect.
    pub(super) fn listen(&self) -> io::Result<()> {
        self.epoll.add(&self.doors.applications, LISTENER, EventFlags::IN)?;
        self.epoll.add(&self.doors.administration, ADMINISTRATION, EventFlags::IN)
    }

    /// A client whose connection another supervisor has accepted.
    pub(super) fn restore_client(&mut self, id: ClientId, door: Door, peer: Option<Peer>, channel: Channel) {
        let Ok(peer) = peer.map_or_else(|| channel.peer(), Ok) else { return };
        let ready = Channel::ask_for_senders(&channel).and_then(|()| self.epoll.add(&channel, id.0, READING));
        if ready.is_ok() {
            self.clients.insert(id, Client::new(channel, door, peer));
            self.crowds.entered(id, peer);
            self.note_standing(id);
        }
    }

    /// Makes the stack end with the program of the `atoll run` at the other end of `channel`.
    pub fn set_owner(&mut self, channel: Channel) -> io::Result<()> {
        self.epoll.add(&channel, OWNER, EventFlags::IN | EventFlags::RDHUP)?;
        self.owner = Owner::Present(channel);
        Ok(())
    }

    /// Whether every server has said that it is ready.
    pub fn all_ready(&self) -> bool {
        self.replicas.iter().chain(&self.others).all(|server| server.life.is_serving())
    }

    /// The server with this number.
    pub(super) fn server_mut(&mut self, index: usize) -> Option<&mut ServerSlot> {
        self.replicas.iter_mut().chain(&mut self.others).nth(index)
    }

    /// What the server with this number is.
    pub(super) fn role(&self, index: usize) -> Role {
        if index < self.replicas.len() {
            return Role::Replica(index);
        }
        let plan = self.config.notation.plan();
        match (plan.ip_of(index), plan.manager_of(index)) {
            (Some(number), _) => Role::IpServer(number),
            (None, Some(number)) => Role::Manager(number),
            // Queues are numbered through, and some may be of replicas.
            (None, None) => Role::LinkServer(plan.queue_of(index).unwrap_or(index)),
        }
    }

    /// Waits for at most `timeout_ms` and handles what happened. Returns why the stack must end, once it must.
    pub fn turn(&mut self, timeout_ms: Option<u32>) -> io::Result<Option<Ending>> {
        let mut events = [epoll::EMPTY; 64];
        let for_servers = self.servers_timeout_ms(Instant::now());
        // One that takes over in the middle of the end goes on with that.
        let at_once = self.ending.as_ref().map(|_| 0);
        let timeout = timeout_ms.into_iter().chain(at_once).chain(self.owner.look_again_ms()).chain(for_servers);
        let timeout = timeout.chain(self.persisted.look_again_ms(Instant::now())).min();
        let count = self.epoll.wait(&mut events, timeout)?;
        for event in &events[..count] {
            match epoll::token(event) {
                LISTENER => self.accept(Door::Applications)?,
                ADMINISTRATION => self.accept(Door::Administration)?,
                SIGNALS => self.take_signals()?,
                OWNER => self.owner_spoke()?,
                SELF_CHECK => self.self_check_spoke()?,
                GUARDIAN => self.guardian_is_gone(),
                DYING => self.look_for_dying()?,
                token @ REPLICA_CONTROL..REPLICA_PROCESS => {
                    self.replica_spoke((token - REPLICA_CONTROL) as usize, epoll::flags(event))?;
                }
                token @ REPLICA_PROCESS..HOST_CONTROL => self.replica_ended((token - REPLICA_PROCESS) as usize)?,
                token @ HOST_CONTROL..HOST_PROCESS => self.host_spoke((token - HOST_CONTROL) as usize)?,
                token @ HOST_PROCESS..WORDS => self.host_ended((token - HOST_PROCESS) as usize)?,
                token @ WORDS..FIRST_CLIENT => self.words_spoken((token - WORDS) as usize),
                client => self.client_spoke(ClientId(client), epoll::flags(event))?,
            }
        }
        if !self.ready && self.all_ready() {
            self.ready = true;
            self.listen()?;
        }
        self.look_after_servers()?;
        self.go_on_listening(Instant::now());
        self.look_after_guardian();
        self.look_at_owner();
        Ok(self.ending.clone())
    }

    fn accept(&mut self, door: Door) -> io::Result<()> {
        for _ in 0..ACCEPTS_PER_TURN {
            let channel = match self.doors.listener(door).accept(Blocking::No) {
                Ok(channel) => channel,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    // Somebody who wants nothing makes room, or else the client sees the connection close, instead of waiting for an answer
                    // that cannot come.
                    let stays = |id| self.is_awaiting(id);
                    match self.crowds.oldest_stranger(stays) {
                        Some(stranger) => self.close_client(stranger)?,
                        None => {
                            self.reserve.release();
                            let _ = self.doors.listener(door).accept(Blocking::No);
                            self.reserve.refill();
                        }
                    }
                    return Ok(());
                }
                // The client went away meanwhile, or the system is short of something.
                Err(_) => return Ok(()),
            };
            let Ok(peer) = channel.peer() else { continue };
            let permitted = self.rights.may_attach(asker(peer));
            let verdict = self.crowds.judge(&peer, |id| self.is_awaiting(id));
            if !permitted || verdict == crowds::Verdict::Refuse {
                let reason = if permitted { Refusal::Resources } else { Refusal::Permission };
                let _ = channel.send(&Reply::Refused { reason }.encode(), &[]);
                continue;
            }
            if let crowds::Verdict::TakeInsteadOf(stranger) = verdict {
                self.close_client(stranger)?;
            }
            if let Err(channel) = self.admit(channel, door, peer) {
                let _ = channel.send(&Reply::Refused { reason: Refusal::Resources }.encode(), &[]);
            }
        }
        Ok(())
    }

    /// Whether a connection without a session stays: it waits for an answer, or is that of another stack.
    fn is_awaiting(&self, id: ClientId) -> bool {
        let is_busy = |client: &Client| client.is_guest || client.slowed.is_some() || !client.outbox.is_empty();
        let of_upgrade = self.succession.as_ref().is_some_and(|upgrade| upgrade.client() == id);
        of_upgrade
            || self.exchange_for == Some(id)
            || self.scaling.asking().contains(&id)
            || self.questions.has(id)
            || self.clients.get(&id).is_some_and(is_busy)
    }

    /// Whether a session has just begun, or ended, for this connection.
    fn note_standing(&mut self, id: ClientId) {
        // Who is at the door for administration has no session, and is no stranger.
        let is_application = self.clients.get(&id).is_some_and(|client| client.door == Door::Applications);
        let is_stranger = is_application && !self.sessions.has(id);
        self.crowds.set_stranger(id, is_stranger);
    }

    fn take_signals(&mut self) -> io::Result<()> {
        while let Some(caught) = self.signals.as_ref().map_or(Ok(None), Signals::next)? {
            self.ending.get_or_insert(Ending::Signal(caught.signal));
        }
        Ok(())
    }

    fn owner_spoke(&mut self) -> io::Result<()> {
        match self.owner.spoke(Instant::now()) {
            Some(channel) => self.epoll.delete(&channel),
            None => Ok(()),
        }
    }

    /// Once the program is gone: ends the stack when nobody needs it any more.
    fn look_at_owner(&mut self) {
        if self.owner.look_again_ms().is_none() {
            return;
        }
        let replicas = &self.memory.replicas;
        let sum = |stat: Stat| replicas.iter().map(|replica| replica.page.stat(stat)).fold(0, u64::wrapping_add);
        let moved = [Stat::SegmentsIn, Stat::SegmentsOut, Stat::DatagramsOut].map(sum);
        let activity = Activity {
            sessions: self.sessions.len(),
            opened: self.opened,
            connections: sum(Stat::Connections),
            moved: moved.into_iter().fold(0, u64::wrapping_add),
        };
        if self.owner.wants_end(activity, Instant::now()) {
            self.ending.get_or_insert(Ending::ProgramEnded);
        }
    }

    pub(super) fn replica_spoke(&mut self, index: usize, flags: EventFlags) -> io::Result<()> {
        if flags.contains(EventFlags::OUT) {
            self.flush_replica(index)?;
        }
        let mut buffer = vec![0; REPLICA_PACKET_MAX];
        let mut strangers = Vec::new();
        for _ in 0..REQUESTS_PER_TURN {
            strangers.clear();
            let Some(replica) = self.server_mut(index) else { return Ok(()) };
            // Its end may have been noticed in the same turn.
            let Some(control) = &replica.control else { return Ok(()) };
            let len = match control.receive(&mut buffer, &mut strangers) {
                Ok(0) => return self.replica_ended(index),
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => continue,
                Err(_) => return self.replica_ended(index),
            };
            let packet = &buffer[..len];
            if packet == setup::READY {
                self.server_ready(index)?;
            } else if packet == setup::LEFT {
                // That of another server is followed by the end of its process.
                self.replica_left(index)?;
            } else if let Some(session) = setup::is_over(packet) {
                self.session_is_over(index, session);
            } else if let Some(session) = setup::is_cut_off(packet) {
                self.cut_off(index, session)?;
            } else if packet == rows::END {
                replica.lists = false;
                self.listing_goes_on()?;
            } else if replica.lists {
                self.pass_rows(packet)?;
            }
        }
        Ok(())
    }

    /// A replica needs the memory of an ended session no more, nor will its successors.
    fn session_is_over(&mut self, index: usize, session: u32) {
        for lingering in self.lingering.iter_mut().filter(|lingering| lingering.session == session) {
            lingering.waits_for.remove(&index);
        }
        if self.lingering.iter().any(|lingering| lingering.session == session && lingering.waits_for.is_empty()) {
            self.lingering.retain(|lingering| lingering.session != session);
            self.note_session(session, false);
        }
    }

    /// Servers have died of a session: no replica listens to it any more, and it ends. Its programs live on, with sockets that fail.
    fn cut_off(&mut self, index: usize, session: u32) -> io::Result<()> {
        let Some(pid) = self.open.get(&session).map(|memory| memory.pid) else { return Ok(()) };
        let role = self.role(index);
        say!("session {session} (pid {pid}) is cut off: {role} has died again and again at work for it");
        for replica in 0..self.replicas.len() {
            self.tell_now(replica, session)?;
            self.send_to_replica(replica, &Request::CutOff { session }, Vec::new())?;
        }
        let members: Vec<ClientId> = self.sessions.members(session).map(|(_, client)| client).collect();
        for client in members {
            let departure = self.sessions.leave(client, session);
            self.announce(departure)?;
        }
        Ok(())
    }

    /// A session has ended: its memory stays until no replica, nor the successor of one, has anything to send from it.
    pub(super) fn linger(&mut self, session: u32, memory: Rc<SessionMemory>) {
        let waits_for = (0..self.replicas.len()).collect();
        self.lingering.push_back(Lingering { session, memory, waits_for });
        if self.lingering.len() > LINGERING_MAX {
            let oldest = self.lingering.pop_front().map(|oldest| oldest.session);
            oldest.into_iter().for_each(|session| self.note_session(session, false));
        }
    }

    fn client_spoke(&mut self, id: ClientId, flags: EventFlags) -> io::Result<()> {
        if flags.contains(EventFlags::OUT) {
            self.flush_client(id)?;
        }
        let is_gone = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        let mut buffer = [0; REQUEST_MAX];
        let mut descriptors = Vec::new();
        for _ in 0..REQUESTS_PER_TURN {
            descriptors.clear();
            let Some(client) = self.clients.get(&id) else { return Ok(()) };
            let waits = client.slowed.is_some() || self.questions.has(id);
            if waits && is_gone {
                // What it has asked for nobody would get. What it has asked behind that is not read: that could be as much again for each connection.
                return self.close_client(id);
            }
            let is_busy = waits || !client.outbox.is_empty();
            if is_busy && !is_gone {
                return Ok(());
            }
            // A request of an application stays in the socket until it is answered, so that the next supervisor finds it if this one dies.
            let stays = client.door == Door::Applications;
            let received = match stays {
                true => client.channel.look_from(&mut buffer, &mut descriptors),
                false => client.channel.receive_from(&mut buffer, &mut descriptors),
            };
            match received {
                Ok((0, _)) => return self.close_client(id),
                Ok((len, asks)) => {
                    if self.is_too_fast(id, asks, &buffer[..len]) {
                        return self.flush_client(id);
                    }
                    self.handle_packet(id, asks, &buffer[..len], descriptors.len())?;
                    if let (true, Some(client)) = (stays, self.clients.get(&id)) {
                        let _ = client.channel.receive_from(&mut [0; REQUEST_MAX], &mut Vec::new());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    if stays {
                        let _ = client.channel.receive_from(&mut [0; REQUEST_MAX], &mut Vec::new());
                    }
                    self.refuse(id, Refusal::Malformed)?;
                }
                Err(_) => return self.close_client(id),
            }
        }
        Ok(())
    }

    /// Whether an application begins so much that this request has to wait.
    fn is_too_fast(&mut self, id: ClientId, asks: Option<Peer>, packet: &[u8]) -> bool {
        let Some(client) = self.clients.get_mut(&id).filter(|client| client.door == Door::Applications) else {
            return false;
        };
        let cost = match Request::decode(packet) {
            Ok(Request::Attach { .. }) => pace::ATTACH,
            Ok(Request::Join { .. }) => pace::JOIN,
            _ => return false,
        };
        // Whoever asks now, which need not be whoever connected.
        let due = self.pace.ask(&asks.unwrap_or(client.peer), Instant::now(), cost).err();
        client.slowed = due;
        self.slowed.extend(due.map(|due| (due, id)));
        due.is_some()
    }

    /// When a client that was too fast has waited long enough.
    pub(super) fn slowed_until(&self) -> Option<Instant> {
        self.slowed.first().map(|(due, _)| *due)
    }

    /// Those go on that have waited long enough.
    pub(super) fn let_slowed_go_on(&mut self, now: Instant) -> io::Result<()> {
        while let Some(&(due, id)) = self.slowed.first().filter(|(due, _)| *due <= now) {
            self.slowed.remove(&(due, id));
            if let Some(client) = self.clients.get_mut(&id) {
                client.slowed = None;
                self.flush_client(id)?;
            }
        }
        Ok(())
    }

    fn handle_packet(&mut self, id: ClientId, asks: Option<Peer>, packet: &[u8], descriptors: usize) -> io::Result<()> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        client.token = token(packet);
        client.asks = asks;
        let (door, peer) = (client.door, client.peer);
        match classify(door, packet, descriptors) {
            // Who asks now counts, not who has made the connection: that may be inherited.
            Ok(Incoming::Application(Request::Attach { .. } | Request::Connect))
                if !asks.is_some_and(|asks| self.rights.may_attach(asker(asks))) =>
            {
                self.refuse(id, Refusal::Permission)
            }
            Ok(Incoming::Application(Request::Attach { layout_version })) => self.attach(id, layout_version),
            Ok(Incoming::Application(Request::Connect)) => self.connect(id, asks.unwrap_or(peer)),
            // The key is the right: whoever has inherited sockets goes on using them, as with the kernel's.
            Ok(Incoming::Application(Request::Join { session, key })) => self.join(id, session, key),
            Ok(Incoming::Application(Request::Vouch { lease, protocol, port })) => {
                let Some(asks) = asks else { return self.refuse(id, Refusal::Permission) };
                let port = if self.users.may_bind(&asks, port) { port } else { 0 };
                let pass = Pass { lease, uid: asks.uid, protocol, port };
                let reply = Reply::Vouched { pass, seal: seal_pass(&self.memory.lease_key, &pass) };
                self.reply(id, &reply, Vec::new())
            }
            Ok(Incoming::Application(Request::Leave { session })) => {
                let departure = self.sessions.leave(id, session);
                self.note_standing(id);
                self.announce(departure)
            }
            Ok(Incoming::Cli(_)) if !self.rights.may_administer(asker(peer), asks.map(asker)) => {
                let who = asks.map_or("somebody".into(), |asks| format!("user {}", asks.uid));
                self.answer(id, &ReportPart::Error(format!("{who} may not administer this stack")))
            }
            Ok(Incoming::Cli(request)) => self.handle_cli(id, &request),
            Err(reason) if packet.first() == Some(&b'{') => self.answer(id, &ReportPart::Error(reason)),
            Ok(Incoming::Application(_)) | Err(_) => self.refuse(id, Refusal::Malformed),
        }
    }

    /// Another connection for whoever cannot connect by a path.
    fn connect(&mut self, id: ClientId, peer: Peer) -> io::Result<()> {
        let made = Channel::pair(Blocking::Yes).and_then(|(ours, theirs)| {
            ours.set_nonblocking()?;
            Channel::refuse_descriptors(&ours)?;
            Channel::ask_for_senders(&ours)?;
            Ok((ours, OwnedFd::from(theirs)))
        });
        let Ok((ours, theirs)) = made else { return self.refuse(id, Refusal::Resources) };
        match self.crowds.judge(&peer, |other| other == id || self.is_awaiting(other)) {
            crowds::Verdict::Take => {}
            crowds::Verdict::TakeInsteadOf(stranger) => self.close_client(stranger)?,
            crowds::Verdict::Refuse => return self.refuse(id, Refusal::Resources),
        }
        if self.admit(ours, Door::Applications, peer).is_err() {
            return self.refuse(id, Refusal::Resources);
        }
        self.reply(id, &Reply::Connected, vec![Rc::new(theirs)])
    }

    /// Listens to a client from now on. Gives the connection back if that is impossible.
    fn admit(&mut self, channel: Channel, door: Door, peer: Peer) -> Result<(), Channel> {
        let id = ClientId(self.next_client);
        self.next_client += 1;
        if self.epoll.add(&channel, id.0, READING).is_err() {
            return Err(channel);
        }
        self.clients.insert(id, Client::new(channel, door, peer));
        self.crowds.entered(id, peer);
        self.note_standing(id);
        self.note_client(id);
        Ok(())
    }

    fn attach(&mut self, id: ClientId, layout_version: u32) -> io::Result<()> {
        let is_full = self.gauge.as_ref().is_some_and(|gauge| gauge.level == MemoryLevel::High);
        if is_full || !self.has_room() {
            return self.refuse(id, Refusal::Resources);
        }
        let mut key = [0; 8];
        process::random(&mut key)?;
        let joined = match self.sessions.attach(id, layout_version, u64::from_ne_bytes(key)) {
            Ok(joined) => joined,
            Err(reason) => return self.refuse(id, reason),
        };
        // Whoever asks now, which need not be whoever connected.
        let asks = self.clients.get(&id).map(|client| client.asks.unwrap_or(client.peer));
        let Some(peer) = asks else { return Ok(()) };
        let (user, config) = (self.users.anybody(&peer), self.config.sessions.arena);
        let memory = match SessionMemory::create(peer.pid, user, self.replicas.len(), config) {
            Ok(memory) => memory,
            Err(_) => {
                // No replica has heard of the session, so none has to hear of its end.
                let _ = self.sessions.leave(id, joined.session);
                return self.refuse(id, Refusal::Resources);
            }
        };
        let opened = memory.opened(joined.session);
        for index in 0..self.replicas.len() {
            // Nobody waits for the replica: it reads this before it can see a command in the arena's ring.
            self.send_to_replica(index, &opened, memory.for_replica(index))?;
        }
        self.open.insert(joined.session, memory);
        self.opened += 1;
        self.note_standing(id);
        self.note_session(joined.session, true);
        self.note_stack();
        self.welcome(id, joined)
    }

    /// Looks from now on how much memory there is, and tells the replicas.
    pub(super) fn watch_memory(&mut self) -> io::Result<()> {
        self.gauge = Some(Gauge::open(Instant::now(), self.config.memory_limit));
        (0..self.replicas.len()).try_for_each(|index| self.tell_memory(index))
    }

    /// How it stands with memory, and the replica's part of it.
    pub(super) fn tell_memory(&mut self, index: usize) -> io::Result<()> {
        let Some(gauge) = &self.gauge else { return Ok(()) };
        let buffers_max = gauge.buffers_max / self.replicas.len().max(1) as u64;
        self.send_to_replica(index, &Request::Memory { level: gauge.level, buffers_max }, Vec::new())
    }

    /// Looks whether that has changed.
    pub(super) fn look_at_memory(&mut self, now: Instant) -> io::Result<()> {
        let Some(mut gauge) = self.gauge.take_if(|gauge| now >= gauge.look_at) else { return Ok(()) };
        let has_changed = gauge.look(now, || self.memory_used());
        let level = gauge.level;
        self.gauge = Some(gauge);
        if !has_changed {
            return Ok(());
        }
        match level {
            MemoryLevel::Plenty => say!("there is enough memory again"),
            MemoryLevel::Pressure => say!("memory is short: buffers are kept small"),
            MemoryLevel::High => {
                say!("memory is used up: nothing new is accepted, and who stands still is reset")
            }
        }
        (0..self.replicas.len()).try_for_each(|index| self.tell_memory(index))
    }

    /// Whether there are descriptors for one more session. Those that have ended give theirs up first, the oldest before others.
    fn has_room(&mut self) -> bool {
        let shared = self.most_in_a_process();
        let room = |server: &Supervisor| {
            let sessions = server.open.len() + server.lingering.len();
            server.budget.has_room(sessions, server.clients.len(), shared)
        };
        while !room(self) {
            let Some(oldest) = self.lingering.pop_front() else { return false };
            self.note_session(oldest.session, false);
        }
        true
    }

    /// How many replicas are, or are to be, in one process at most.
    fn most_in_a_process(&self) -> usize {
        let places = self.scaling.places();
        let count = |place: &u8| places.iter().filter(|other| *other == place).count();
        places.iter().map(count).max().unwrap_or(1)
    }

    fn join(&mut self, id: ClientId, session: u32, key: u64) -> io::Result<()> {
        match self.sessions.join(id, session, key) {
            Ok(joined) => {
                self.note_standing(id);
                self.note_session(session, false);
                self.welcome(id, joined)
            }
            Err(reason) => self.refuse(id, reason),
        }
    }

    fn welcome(&mut self, id: ClientId, joined: atoll_supervisor::Joined) -> io::Result<()> {
        let Some(memory) = self.open.get(&joined.session) else { return Ok(()) };
        let reply = Reply::Joined {
            session: joined.session,
            key: joined.key,
            member: joined.member,
            replicas: self.config.replicas(),
            config: self.config.sessions.arena,
        };
        let descriptors = memory.for_application(&self.memory);
        self.reply(id, &reply, descriptors)
    }

    fn handle_cli(&mut self, id: ClientId, request: &CliRequest) -> io::Result<()> {
        match request {
            CliRequest::Status => self.ask_for_report(id),
            CliRequest::Ss => self.ask_for_listing(id),
            CliRequest::Balance(changes) => {
                match self.config.accept.changed(changes) {
                    Ok(accept) => {
                        self.config.accept = accept;
                        if *changes != BalanceRules::default() {
                            self.note_stack();
                            self.spread_balance()?;
                        }
                        self.answer(id, &ReportPart::Balance(self.config.accept.told()))?;
                    }
                    Err(error) => return self.answer(id, &ReportPart::Error(error.to_string())),
                }
                self.answer(id, &ReportPart::Done(true))
            }
            CliRequest::Scale { processes } => self.scale(id, *processes),
            CliRequest::Move { replicas, to } => self.relocate(id, replicas, *to),
            CliRequest::Upgrade { path } => self.begin_upgrade(id, path),
            CliRequest::Down => {
                self.ending.get_or_insert(Ending::Asked);
                self.note_stack();
                self.answer(id, &ReportPart::Done(true))
            }
            CliRequest::JoinLink { from, layout_version } => {
                let stack = &self.memory.stack;
                let Some(link) = self.link.as_mut() else {
                    let reason = super::join::no_link(&self.config, self.link_host.is_some());
                    return self.answer(id, &ReportPart::Error(reason));
                };
                match link.join(&self.config, stack, from, *layout_version) {
                    Ok((packet, descriptors)) => {
                        if let Some(client) = self.clients.get_mut(&id) {
                            client.is_guest = true;
                        }
                        self.send_to_client(id, packet, descriptors)
                    }
                    Err(reason) => self.answer(id, &ReportPart::Error(reason)),
                }
            }
        }
    }

    /// Tells every connection manager the rules of balancing.
    pub fn spread_balance(&mut self) -> io::Result<()> {
        let rules = self.config.accept.rules();
        let plan = self.config.notation.plan();
        for index in plan.servers_of(Component::Cm) {
            self.send_to_replica(index, &Request::Balance { rules }, Vec::new())?;
        }
        Ok(())
    }

    /// Tells every replica who is gone, and lets go of the memory of closed sessions.
    pub(super) fn announce(&mut self, departures: impl IntoIterator<Item = Departure>) -> io::Result<()> {
        for departure in departures {
            let request = match departure {
                Departure::Member { session, member } => Request::MemberGone { session, member },
                Departure::Session { session } => {
                    if let Some(memory) = self.open.remove(&session) {
                        let calls = memory.library_calls();
                        let past = &mut self.past_calls;
                        past.calls = past.calls.saturating_add(calls.calls);
                        past.with_system_call = past.with_system_call.saturating_add(calls.with_system_call);
                        self.linger(session, Rc::new(memory));
                    }
                    Request::SessionGone { session }
                }
            };
            let (Departure::Member { session, .. } | Departure::Session { session }) = departure;
            for index in 0..self.replicas.len() {
                self.tell_of(index, session, &request)?;
            }
            self.note_session(session, false);
        }
        Ok(())
    }

    fn refuse(&mut self, id: ClientId, reason: Refusal) -> io::Result<()> {
        self.reply(id, &Reply::Refused { reason }, Vec::new())
    }

    /// Answers the request of an application.
    fn reply(&mut self, id: ClientId, reply: &Reply, descriptors: Vec<Rc<OwnedFd>>) -> io::Result<()> {
        let mut packet = reply.encode();
        set_token(&mut packet, self.clients.get(&id).map_or(0, |client| client.token));
        self.send_to_client(id, packet.to_vec(), descriptors)
    }

    pub(super) fn answer(&mut self, id: ClientId, part: &ReportPart) -> io::Result<()> {
        self.send_to_client(id, serde_json::to_vec(part).map_err(io::Error::from)?, Vec::new())
    }

    pub(super) fn send_to_client(
        &mut self,
        id: ClientId,
        packet: Vec<u8>,
        descriptors: Vec<Rc<OwnedFd>>,
    ) -> io::Result<()> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        client.outbox.push(packet, descriptors);
        self.flush_client(id)
    }

    pub(super) fn flush_client(&mut self, id: ClientId) -> io::Result<()> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
        if client.outbox.flush(&client.channel).is_err() {
            return self.close_client(id);
        }
        let wanted = match (client.outbox.is_empty(), client.outbox.is_starved()) {
            // What it asks next waits in its socket.
            (true, _) if self.questions.has(id) || client.slowed.is_some() => EventFlags::empty(),
            (true, _) => READING,
            (false, false) => EventFlags::OUT,
            // There is room in the socket, so that would be said all the time.
            (false, true) => EventFlags::empty(),
        };
        if client.outbox.is_starved() {
            self.retry_at.get_or_insert(Instant::now() + RETRY_EVERY);
        }
        if wanted != client.watched {
            client.watched = wanted;
            self.epoll.modify(&client.channel, id.0, wanted)?;
        }
        Ok(())
    }

    /// Sends what the system was short of something for.
    pub(super) fn retry_sends(&mut self, now: Instant) -> io::Result<()> {
        if self.retry_at.is_none_or(|at| now < at) {
            return Ok(());
        }
        self.retry_at = None;
        for index in 0..self.replicas.len() + self.others.len() {
            if self.server_mut(index).is_some_and(|server| server.outbox.is_starved()) {
                self.flush_replica(index)?;
                self.memory.servers().nth(index).map_or(Ok(()), |server| eventfd::ring(&*server.bell))?;
            }
        }
        let starved = self.clients.iter().filter(|(_, client)| client.outbox.is_starved()).map(|(id, _)| *id);
        let starved: Vec<ClientId> = starved.collect();
        starved.into_iter().try_for_each(|id| self.flush_client(id))
    }

    /// When [`Supervisor::retry_sends`] is due.
    pub(super) fn retry_due(&self) -> Option<Instant> {
        self.retry_at
    }

    fn close_client(&mut self, id: ClientId) -> io::Result<()> {
        let Some(client) = self.clients.remove(&id) else { return Ok(()) };
        if let (true, Some(link)) = (client.is_guest, self.link.as_mut()) {
            link.guest_left();
        }
        // Out of the set: closing does that only if nobody else has it.
        let _ = self.epoll.delete(&client.channel);
        if let Some(due) = client.slowed {
            self.slowed.remove(&(due, id));
        }
        drop(client);
        self.crowds.left(id);
        self.questions.forget(id);
        let departures = self.sessions.closed(id);
        self.announce(departures)?;
        self.note_client(id);
        Ok(())
    }

    /// Tells a server something. One that is down hears all there is to hear when it is started.
    pub(super) fn send_to_replica(
        &mut self,
        index: usize,
        request: &Request,
        descriptors: Vec<Rc<OwnedFd>>,
    ) -> io::Result<()> {
        self.post(index, request, descriptors)?;
        self.ring(index)
    }

    /// The same without waking it.
    pub(super) fn post(&mut self, index: usize, request: &Request, descriptors: Vec<Rc<OwnedFd>>) -> io::Result<()> {
        let Some(server) = self.server_mut(index).filter(|server| server.control.is_some()) else { return Ok(()) };
        server.outbox.push(request.encode().to_vec(), descriptors);
        self.flush_replica(index)
    }

    /// A server looks at its socket now and then; this makes that now.
    pub(super) fn ring(&self, index: usize) -> io::Result<()> {
        self.memory.servers().nth(index).map_or(Ok(()), |server| eventfd::ring(&*server.bell))
    }

    fn flush_replica(&mut self, index: usize) -> io::Result<()> {
        let Some(replica) = self.replicas.iter_mut().chain(&mut self.others).nth(index) else { return Ok(()) };
        let Some(control) = &replica.control else { return Ok(()) };
        if replica.outbox.flush(control).is_err() {
            // It hangs or is gone. Ended is ended: the process is not left behind half alive.
            if let Some(child) = &replica.child {
                let _ = child.kill(process::Signal::KILL);
            }
            return Ok(());
        }
        let is_starved = replica.outbox.is_starved();
        let out = if replica.outbox.is_empty() || is_starved { EventFlags::empty() } else { EventFlags::OUT };
        // Gone from the set if the replica has closed its end; then there is nothing left to watch.
        let _ = self.epoll.modify(control, REPLICA_CONTROL + index as u64, EventFlags::IN | out);
        if is_starved {
            self.retry_at.get_or_insert(Instant::now() + RETRY_EVERY);
        }
        Ok(())
    }

    /// Lets go of the device. There are no servers any more.
    pub fn drop_launcher(&mut self) {
        self.launcher = None;
    }

    /// A few lines about where the stack is, for people.
    pub fn describe(&self) -> String {
        let (config, identity) = (&self.config, &self.identity);
        let link = &config.link;
        let way = match (link.kind, &identity.device) {
            (LinkType::Tap, Some(device)) => {
                let namespace = link.netns.as_ref().map(|name| format!(" in namespace {name}")).unwrap_or_default();
                let kernel = match link.peer_address {
                    Some(peer) => format!("the kernel's end is {}", peer.address),
                    None => "the kernel's end is down and without address: set it up yourself".into(),
                };
                let steering = if identity.steering == atoll_supervisor::Steering::Bpf {
                    "steered by BPF"
                } else {
                    "steered in software"
                };
                format!("on {device}{namespace} ({kernel}; {steering})")
            }
            (LinkType::Shm, _) => {
                format!("linked to stack {}", link.peer.as_ref().map(ToString::to_string).unwrap_or_default())
            }
            _ => "without a link".into(),
        };
        let address = match (link.address, self.memory.replicas.first().map(|replica| replica.page.network())) {
            (Some(own), _) => own.to_string(),
            (None, Some(Network { v4: Some(own), dhcp: Some(dhcp), .. })) => {
                let (addr, server) = (Ipv4Addr::from(own.addr), Ipv4Addr::from(dhcp.server));
                format!("{addr}/{} from the DHCP server {server}", own.prefix_len)
            }
            _ => format!(
                "without an IPv4 address yet (no DHCP server has given one within {} s; the stack goes on asking, `atoll \
                 status {}` shows when it has one, and --address ADDRESS/PREFIX sets one)",
                link.dhcp_wait_s, config.name
            ),
        };
        format!("stack {} is up: {} {address}, {way}", config.name, config.notation)
    }

    /// Whether a DHCP server has yet to give the stack its address.
    pub fn waits_for_address(&self) -> bool {
        let is_there = self.memory.replicas.first().is_some_and(|replica| replica.page.v4().is_some());
        self.config.link.address.is_none() && !is_there
    }

    /// For how many seconds `atoll up` waits for that.
    pub fn dhcp_wait_s(&self) -> u32 {
        self.config.link.dhcp_wait_s
    }

    /// Ends the servers: asks them first, so that peers hear of it, and kills those that do not end in time. Those that carry frames of
    /// others end after these.
    pub fn stop(&mut self) {
        let plan = self.config.notation.plan();
        let (carriers, others): (Vec<_>, Vec<_>) =
            (0..plan.processes().len()).partition(|&server| plan.queue_of(server).is_some());
        // IP servers carry frames as well, to others.
        let is_ip_server = |server: &usize| plan.is_ip_apart() && plan.ip_of(*server).is_some();
        let (ip_servers, others): (Vec<_>, Vec<_>) = others.into_iter().partition(is_ip_server);
        for servers in [others, ip_servers, carriers] {
            self.stop_servers(&servers);
        }
        self.hosts.end(STOP_TIME);
        self.hear_last_words(|_| true);
        if let Some(channel) = self.owner.channel() {
            let stats = serde_json::to_vec(&self.final_report()).unwrap_or_default();
            let _ = channel.send(&stats, &[]);
        }
    }

    fn stop_servers(&mut self, servers: &[usize]) {
        for &index in servers {
            let _ = self.send_to_replica(index, &Request::Stop, Vec::new());
        }
        let deadline = Instant::now() + STOP_TIME;
        for &index in servers {
            let Some(replica) = self.server_mut(index) else { continue };
            let (Some(child), Some(control)) = (&replica.child, &replica.control) else { continue };
            // Where several replicas are in one process, it is the socket that says of each that it is over.
            while !is_closed(control) {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    let _ = child.kill(process::Signal::KILL);
                    break;
                }
                wait_readable(control.as_fd(), left);
            }
        }
        // Processes of replicas are waited for when there are none in them any more.
        for index in servers.iter().filter_map(|index| index.checked_sub(self.replicas.len())) {
            if let Some(child) = self.others.get(index).and_then(|server| server.child.as_deref()) {
                await_end(child, deadline);
            }
        }
    }
}

/// Waits for the end of a process, and kills it when that takes too long.
pub(super) fn await_end(child: &Child, deadline: Instant) {
    // An error says that it was reaped before.
    while matches!(child.try_wait(), Ok(None)) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let _ = child.kill(process::Signal::KILL);
            let _ = child.wait();
            break;
        }
        wait_readable(child.as_fd(), left);
    }
}

/// Whether the other end has closed the socket. What it has still said is passed over.
fn is_closed(control: &Channel) -> bool {
    let (mut buffer, mut fds) = ([0; 4096], Vec::new());
    loop {
        match control.receive(&mut buffer, &mut fds) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return false,
                io::ErrorKind::InvalidData | io::ErrorKind::Interrupted => {}
                _ => return true,
            },
        }
    }
}

fn wait_readable(fd: std::os::fd::BorrowedFd<'_>, time: Duration) {
    let mut set = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
    let time = rustix::event::Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    let _ = rustix::event::poll(&mut set, Some(&time));
}

const READING: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);
/// How long servers may take to end, those that carry frames of others after these.
const STOP_TIME: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;

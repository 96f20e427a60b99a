//! The supervisor of a running stack: one loop over epoll that never waits for any one process.
//!
//! Its parts each have a file of their own, and private fields: servers, processes for replicas, clients,
//! sessions, notes for the next supervisor. `atoll_supervisor` has their decisions. The files below this one
//! carry them out, each for one subject:
//!
//! ```text
//!   serving     requests of clients           lives       servers start, die, hang
//!   questions   requests of people            placing     processes for replicas
//!   telling     notifications of replicas     scaling     replicas move
//!   takeover    what a supervisor has left    standby     a process stands by
//!   guarded     the guardian, the successor   stopped     processes that are stopped
//!   report      the state of the stack        upgrading   servers of another build
//!   usage       the memory that it uses
//! ```

mod guarded;
mod lives;
mod placing;
mod questions;
mod report;
mod scaling;
mod serving;
mod standby;
mod stopped;
mod takeover;
mod telling;
mod upgrading;
mod usage;

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use atoll_base::Duration;
use atoll_ipc::control::Request;
use atoll_ipc::network::Network;
use atoll_ipc::page::Stat;
use atoll_supervisor::{
    Activity, Budget, ClientId, Config, Door, LinkType, Placement, Rights, ServerRecord, Standby, Steering,
};
use atoll_sys::epoll::{self, Epoll};
use atoll_sys::process;
use atoll_sys::signal::Signals;
use atoll_sys::unix::Channel;

pub use self::takeover::Found;
use super::awaiting::{await_closed, await_end};
use super::books::Books;
use super::clients::Clients;
use super::course::Course;
use super::doors::Doors;
use super::ending::Ending;
use super::gate::Gate;
use super::gauge::Gauge;
use super::health::Health;
use super::hosts::Hosts;
use super::identity::Identity;
use super::join::Link;
use super::launch::Launch;
use super::memory::StackMemory;
use super::persisted::PersistedState;
use super::program::Program;
use super::servers::{ServerSlot, Servers};
use super::starts::Starts;
use super::succession::Succession;
use super::tokens::{
    ADMINISTRATION, DYING, FIRST_CLIENT, GUARDIAN, HOST_CONTROL, HOST_PROCESS, LISTENER, OWNER, SELF_CHECK,
    SERVER_CONTROL, SERVER_PROCESS, SIGNALS, WORDS,
};
use super::users::Users;
use super::words::Words;
use crate::clock;
use crate::failure::{Failure, OrFail};

/// The supervisor of a running stack.
pub struct Supervisor {
    config: Config,
    identity: Identity,
    memory: StackMemory,
    /// The servers, the messages to them, and their lives.
    servers: Servers,
    /// The processes that replicas are in.
    hosts: Hosts,
    /// The process that each replica is to be in.
    placement: Placement,
    /// When a standby is to be started.
    standby: Standby,
    /// The upgrade under way.
    succession: Option<Succession>,
    /// The checks for servers that hang, and processes that are stopped.
    health: Health,
    /// The output of servers.
    words: Words,
    /// The sessions.
    books: Books,
    clients: Clients,
    /// The sockets, and the rights of users.
    gate: Gate,
    /// The link to another stack.
    link: Link,
    /// The means to start servers.
    starts: Starts,
    /// The gauge of memory; `None` in tests that do not measure it.
    gauge: Option<Gauge>,
    course: Course,
    /// The notes for the next supervisor.
    persisted: PersistedState,
    epoll: Rc<Epoll>,
}

/// The resources with which a supervisor begins.
pub struct Foundation {
    /// The configuration of the stack.
    pub config: Config,
    /// The properties of the stack besides its configuration.
    pub identity: Identity,
    /// The memory that the stack's processes share.
    pub memory: StackMemory,
    /// The launcher that starts the stack's servers.
    pub launcher: Box<dyn Launch>,
    /// The sockets that the stack listens at.
    pub doors: Doors,
    /// The users that the stack serves.
    pub rights: Rights,
    /// The link to another stack.
    pub link: Link,
    /// The signals that end the stack.
    pub signals: Option<Signals>,
}

impl Supervisor {
    /// Creates a supervisor, and starts the servers. Applications are not served before
    /// [`Supervisor::all_ready`].
    pub fn new(foundation: Foundation) -> Result<Supervisor, Failure> {
        let what = "starting the supervisor";
        let mut server = Supervisor::bare(foundation).or_fail(what)?;
        let count = server.config.notation.plan().processes().len();
        let program = Rc::new(Program::own());
        for _ in 0..count {
            let unborn = ServerSlot::new(ServerRecord::new(clock::now()), program.clone());
            server.servers.install(unborn, None).or_fail(what)?;
        }
        for index in 0..count {
            server.start(index)?;
        }
        for index in 0..count {
            server.brief(index).or_fail(what)?;
        }
        Ok(server)
    }

    /// Creates a supervisor without servers.
    fn bare(foundation: Foundation) -> io::Result<Supervisor> {
        let Foundation { config, identity, memory, launcher, doors, rights, link, signals } = foundation;
        let (epoll, now) = (Rc::new(Epoll::new()?), clock::now());
        let (replicas, servers) = (usize::from(config.replicas()), config.notation.plan().processes().len());
        let bells = memory.servers().iter().map(|server| server.bell.clone()).collect();
        let budget = Budget::new(process::nofile_limit(), servers, replicas, memory.pairs.len());
        Ok(Supervisor {
            servers: Servers::new(epoll.clone(), bells, replicas),
            hosts: Hosts::new(epoll.clone())?,
            placement: Placement::new(&config, now),
            standby: Standby::new(now),
            succession: None,
            health: Health::new(config.recovery.hang_ms, now),
            words: Words::new(epoll.clone()),
            books: Books::new(config.sessions.max),
            clients: Clients::new(epoll.clone(), budget.clients_max()),
            gate: Gate::new(doors, rights, Users::new(identity.uid, &config.ports)),
            link,
            starts: Starts::new(launcher, budget),
            gauge: None,
            course: Course::new(signals, &epoll)?,
            persisted: PersistedState::default(),
            config,
            identity,
            memory,
            epoll,
        })
    }

    /// Returns the properties of the stack besides its configuration.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Makes the stack end with the program of the `atoll run` at the other end of `channel`.
    pub fn set_owner(&mut self, channel: Channel) -> io::Result<()> {
        self.course.set_owner(channel, &self.epoll)
    }

    /// Returns whether every server has reported that it is ready.
    pub fn all_ready(&self) -> bool {
        self.servers.are_ready()
    }

    /// Waits for at most `timeout_ms`, which is without limit if `None`, and handles what happened. Returns
    /// why the stack must end, once it must.
    pub fn turn(&mut self, timeout_ms: Option<u32>) -> io::Result<Option<Ending>> {
        let mut events = [epoll::EMPTY; 64];
        let for_servers = self.servers_timeout_ms(clock::now());
        // A supervisor that takes over a stack that is ending does not wait; nor does one that a shortage has
        // interrupted.
        let at_once = (self.course.ending().is_some() || self.clients.has_broken()).then_some(0);
        let timeout =
            timeout_ms.into_iter().chain(at_once).chain(self.course.look_again_ms()).chain(for_servers);
        let timeout = timeout.chain(self.persisted.look_again_ms(clock::now())).min();
        let count = self.epoll.wait(&mut events, timeout)?;
        for event in &events[..count] {
            match epoll::token(event) {
                LISTENER => self.accept(Door::Applications)?,
                ADMINISTRATION => self.accept(Door::Administration)?,
                SIGNALS => self.course.take_signals()?,
                OWNER => self.course.owner_spoke(clock::now(), &self.epoll)?,
                SELF_CHECK => self.self_check_spoke()?,
                GUARDIAN => self.persisted.lose_guardian(&self.epoll),
                DYING => self.look_for_dying()?,
                token @ SERVER_CONTROL..SERVER_PROCESS => {
                    self.server_spoke((token - SERVER_CONTROL) as usize, epoll::flags(event))?;
                }
                token @ SERVER_PROCESS..HOST_CONTROL => {
                    self.server_broke((token - SERVER_PROCESS) as usize)?
                }
                token @ HOST_CONTROL..HOST_PROCESS => self.host_spoke((token - HOST_CONTROL) as usize)?,
                token @ HOST_PROCESS..WORDS => self.host_ended((token - HOST_PROCESS) as usize)?,
                token @ WORDS..FIRST_CLIENT => self.words_spoken((token - WORDS) as usize),
                client => self.client_spoke(ClientId(client), epoll::flags(event))?,
            }
            self.close_broken()?;
        }
        if self.all_ready() && self.course.begin() {
            self.gate.open(&self.epoll)?;
        }
        self.look_after_servers()?;
        self.close_broken()?;
        self.go_on_listening(clock::now());
        self.look_after_guardian();
        self.look_at_owner();
        Ok(self.course.ending().cloned())
    }

    /// Ends the stack once its program has ended and nothing needs the stack any more.
    fn look_at_owner(&mut self) {
        if self.course.look_again_ms().is_none() {
            return;
        }
        let replicas = self.memory.replicas();
        let sum =
            |stat: Stat| replicas.iter().map(|replica| replica.page.stat(stat)).fold(0, u64::wrapping_add);
        let moved = [Stat::SegmentsIn, Stat::SegmentsOut, Stat::DatagramsOut].map(sum);
        let activity = Activity {
            sessions: self.books.len(),
            opened: self.books.opened_ever(),
            connections: sum(Stat::Connections),
            moved: moved.into_iter().fold(0, u64::wrapping_add),
        };
        self.course.look_at_owner(activity, clock::now());
    }

    /// Reads the output of a process, given by its pid, through this pipe.
    fn hear_of(&mut self, speaker: Option<(u32, OwnedFd)>) {
        if let Some((pid, pipe)) = speaker
            && let Some(slot) = self.words.add(pid, pipe)
        {
            self.persisted.note_words(slot, &self.words);
        }
    }

    /// Reads the output of the process in this slot, which may have ended.
    fn words_spoken(&mut self, slot: usize) {
        if self.words.listen(slot, clock::now()) {
            self.persisted.note_words(slot, &self.words);
        }
    }

    /// Continues to read the output of processes that were interrupted.
    fn go_on_listening(&mut self, now: atoll_base::Instant) {
        self.words.due(now).into_iter().for_each(|slot| self.words_spoken(slot));
    }

    /// Reads the last output of processes for which `is_gone` returns true, so that it is logged before their
    /// ends.
    fn hear_last_words(&mut self, is_gone: impl Fn(u32) -> bool) {
        self.words.of(is_gone).into_iter().for_each(|slot| self.words_spoken(slot));
    }

    /// Ends the guardian: no supervisor takes over from here on.
    pub fn bye(&mut self) {
        self.persisted.bye();
    }

    /// Drops the launcher, and thereby the device. There are no servers any more.
    pub fn drop_launcher(&mut self) {
        self.starts.end();
    }

    /// Returns a few lines for people about where the stack is.
    pub fn describe(&self) -> String {
        let (config, identity) = (&self.config, &self.identity);
        let link = &config.link;
        let way = match (link.kind, &identity.device) {
            (LinkType::Tap, Some(device)) => {
                let namespace =
                    link.netns.as_ref().map(|name| format!(" in namespace {name}")).unwrap_or_default();
                let kernel = match link.peer_address {
                    Some(peer) => format!("the kernel's end is {}", peer.address),
                    None => "the kernel's end is down and without address: set it up yourself".into(),
                };
                let steering =
                    if identity.steering == Steering::Bpf { "steered by BPF" } else { "steered in software" };
                format!("on {device}{namespace} ({kernel}; {steering})")
            }
            (LinkType::Shm, _) => {
                format!("linked to stack {}", link.peer.as_ref().map(ToString::to_string).unwrap_or_default())
            }
            _ => "without a link".into(),
        };
        let address = match (
            link.address,
            self.memory.replicas().first().map(|replica| replica.page.network()),
        ) {
            (Some(own), _) => own.to_string(),
            (None, Some(Network { v4: Some(own), dhcp: Some(dhcp), .. })) => {
                let (addr, server) = (Ipv4Addr::from(own.addr), Ipv4Addr::from(dhcp.server));
                format!("{addr}/{} from the DHCP server {server}", own.prefix_len)
            }
            _ => format!(
                "without an IPv4 address yet (no DHCP server has given one within {} s; the stack goes on \
                 asking, `atoll status {}` shows when it has one, and --address ADDRESS/PREFIX sets one)",
                link.dhcp_wait_s, config.name
            ),
        };
        format!("stack {} is up: {} {address}, {way}", config.name, config.notation)
    }

    /// Returns whether a DHCP server has yet to assign the stack's address.
    pub fn waits_for_address(&self) -> bool {
        let is_there = self.memory.replicas().first().is_some_and(|replica| replica.page.v4().is_some());
        self.config.link.address.is_none() && !is_there
    }

    /// Returns for how many seconds `atoll up` waits for an address from DHCP.
    pub fn dhcp_wait_s(&self) -> u32 {
        self.config.link.dhcp_wait_s
    }

    /// Ends the servers: asks them first, so that peers are notified, and kills those that do not end in
    /// time. Servers that carry frames of others end after these.
    pub fn stop(&mut self) {
        let plan = self.config.notation.plan();
        let (carriers, others): (Vec<_>, Vec<_>) =
            (0..plan.processes().len()).partition(|&server| plan.queue_of(server).is_some());
        // IP servers carry frames as well, to other servers.
        let is_ip_server = |server: &usize| plan.is_ip_apart() && plan.ip_of(*server).is_some();
        let (ip_servers, others): (Vec<_>, Vec<_>) = others.into_iter().partition(is_ip_server);
        for servers in [others, ip_servers, carriers] {
            self.stop_servers(&servers);
        }
        self.hosts.end(STOP_TIME);
        self.hear_last_words(|_| true);
        if let Some(channel) = self.course.owner() {
            let stats = serde_json::to_vec(&self.final_report()).unwrap_or_default();
            let _ = channel.send(&stats, &[]);
        }
    }

    fn stop_servers(&mut self, servers: &[usize]) {
        for &index in servers {
            let _ = self.servers.send(index, &Request::Stop, Vec::new());
        }
        let deadline = clock::now() + STOP_TIME;
        for &index in servers {
            // Where several replicas are in one process, the control socket of each shows its end.
            if let Some((child, control)) = self.servers.get(index).and_then(ServerSlot::employment) {
                await_closed(control, child, deadline);
            }
        }
        // Processes of replicas are waited for when there are none in them any more.
        for &index in servers {
            if let Some(child) = self.servers.get(index).and_then(ServerSlot::own_child) {
                await_end(child, deadline);
            }
        }
    }
}

/// How long servers may take to end; those that carry frames of others get this time after the others.
const STOP_TIME: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;

//! Whole stacks and their applications: two machines with several replicas each, the wire between them, and
//! processes that sleep until their doorbell rings, so that a lost wake-up shows as silence.

mod departing;
mod family;
mod forger;
mod going;
mod greedy;
mod hoarding;
mod program;
mod scaling;
mod violation;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use atoll_base::{
    Addr, Duration, Epoch, FLOW_GROUPS, FlowGroup, FlowKey, Instant, ReplicaId, Rng, SessionId, SlotId,
};
use atoll_connmgr::Reach;
use atoll_ip::{ChecksumOffload, Ip, Part, V6Config, parts};
use atoll_ipc::arena::{ArenaConfig, ArenaLayout};
use atoll_ipc::balance::{Balance, Estimator, Scheme};
use atoll_ipc::control::{MemoryLevel, Reply, User};
use atoll_ipc::ledger::{LEDGER_VERSION, Ledger, LedgerConfig, written_version};
use atoll_ipc::page::{
    APP_PAGE_BYTES, AppPage, REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackFacts, StackPage, Stat,
};
use atoll_ipc::{Command, HeapMemory};
use atoll_link::{Destination, Steering};
use atoll_sockets::client::session::Session;
use atoll_sockets::client::simulated::shared;
use atoll_sockets::port::Port;
use atoll_transport::{Config, FrameSink, Offload, Quota, Recovery, Secrets, TextRef, Transport};
use atoll_wire::ethernet::EtherType;
use atoll_wire::{Mac, checksum, ethernet, ipv4, ipv6};

use crate::adversary::Adversary;
use crate::ip_servers::{IpPlan, IpServers};
use crate::link_server::LinkServer;
use crate::managers::{ManagerPlan, Managers};
use crate::mortal::{Life, Mortal, POISON};
use departing::Departure;
pub use departing::Told;
use family::{Farewells, Handing, Letter};
use forger::Role;
pub use going::Going;
pub use greedy::Appetite;
use greedy::{Greedy, Watch};
pub use hoarding::{Hoard, Shortage};
use program::{Program, Socket};
use scaling::Hosts;
pub use scaling::{ScaledBy, ScalingPlan};
pub use violation::WorldViolation;

const KEY: FlowKey = FlowKey { k0: 1, k1: 2 };
const SERVER: u8 = 1;
const ATTACKER: u8 = 3;
/// The most octets of heap that a connection may hold beside itself, whatever its peer does.
const RECORDS_MAX: usize = 100 << 10;
const PORT: u16 = 80;
/// The size of a ledger, which is enough for every story.
const LEDGER: LedgerConfig = LedgerConfig { connections: 512, requests: 256, text_units: 512 };
/// The most deaths of a run, so that it comes to its end.
const CRASHES_MAX: u32 = 300;
/// The most deaths by the same fault, from which successors must learn.
const POISONED_MAX: u32 = 20;
/// The most stores after which a replica that is going to die does so.
const LIFE_MAX: u32 = 600;
/// The cost that the commands of one process may have in a round.
const SHARE: u32 = 64;

/// The parameters of a run, all of which a seed decides.
#[derive(Clone, Debug)]
pub struct Story {
    /// The seed, which decides everything random.
    pub seed: u64,
    /// The number of replicas of the server's and of the client's machine.
    pub replicas: [u8; 2],
    /// The number of processes that accept.
    pub workers: usize,
    /// The number of connections, one after another or at once.
    pub connections: usize,
    /// The octets that each connection sends, and gets back.
    pub length: usize,
    /// Frames lost, per million.
    pub loss: u32,
    /// Frames duplicated, per million.
    pub duplicate: u32,
    /// Frames that arrive in fragments, per million.
    pub tear: u32,
    /// How often a process that is woken is late, per million, and by how many microseconds at most: longer
    /// than a claim may take.
    pub late: u32,
    /// How often a program that has sent something rests before it sends more, per million, for one to three
    /// seconds: long enough to give its send buffers back.
    pub rests: u32,
    /// The send and receive memory of a process and replica: octets, as powers of two.
    pub memory_log2: u8,
    /// Whether a third machine attacks the server.
    pub attacked: bool,
    /// Whether clients connect to the IPv6 address. The server listens to both families.
    pub v6: bool,
    /// Whether the link servers of both machines are processes of their own.
    pub links_apart: bool,
    /// The IP servers of both machines; if `None`, IP is in each replica.
    pub ip: Option<IpPlan>,
    /// The connection managers of both machines; if `None`, there is one in each replica.
    pub managers: Option<ManagerPlan>,
    /// The number of connections open at a time; if `None`, it is random.
    pub at_once: Option<usize>,
    /// Whether the server's processes ask for each connection (P4's naive accept).
    pub asks: bool,
    /// How the server's processes differ.
    pub workforce: Workforce,
    /// How often a replica dies, per million of its turns, and is replaced by another one.
    pub crashes: u32,
    /// How replicas move from process to process; if `None`, each has its own, and stays there.
    pub scaling: Option<ScalingPlan>,
    /// The resource that a greedy program on each machine asks for.
    pub greed: Option<Appetite>,
    /// The program that does not read, and how little memory there is; if `None`, there is plenty.
    pub hoard: Option<Hoard>,
    /// Whether a program on the server's machine forges commands about ports while others send each other
    /// datagrams.
    pub forged: bool,
    /// How a fault of the server's replicas is triggered again and again; if `None`, they have none.
    pub poison: Option<Poison>,
    /// How often a process of the server forks, executes another program, or sends a connection to another
    /// process, per million of its turns.
    pub hands_over: u32,
    /// Whether every other process of the server uses poll(2) in place of epoll.
    pub polls: bool,
    /// When the server's stack goes with all of its processes; if `None`, it stays.
    pub goes: Option<Going>,
}

/// How the fault of the server's replicas is triggered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    /// A program of the server's machine triggers it by a command.
    Command,
    /// The first client triggers it by the first octets that it sends.
    Segment,
}

/// The processes that accept, and how connections are given to them.
#[derive(Clone, Debug, Default)]
pub struct Workforce {
    /// The rules of balancing.
    pub rules: Balance,
    /// The microseconds that each keeps a connection when all has been sent; 0 for those not in the list.
    pub services: Vec<u64>,
    /// Messages between replicas that are lost, per million.
    pub loss: u32,
    /// The process that stops as soon as it has no connection, and when it may do so.
    pub stops: Option<(usize, Duration)>,
    /// How long that process is stopped, and whether it dies then or continues.
    pub stands: (Duration, bool),
    /// How long other processes of its family, which share its sockets, outlive it.
    pub outlived: Duration,
}

impl Workforce {
    /// Draws a workforce of `workers` processes from `seed`.
    pub fn random(seed: u64, workers: usize) -> Workforce {
        let mut rng = Rng::new(seed ^ 0x776f_726b);
        let rules = Balance {
            scheme: Scheme::ALL[rng.below(4) as usize],
            tariff: [1, 2, 100][rng.below(3) as usize],
            estimator: [Estimator::Median, Estimator::Average][rng.below(2) as usize],
            ..Balance::new()
        };
        let mut stop =
            || (rng.below(workers as u32) as usize, Duration::from_micros(rng.below(50_000).into()));
        let stops = Some(stop()).filter(|_| !seed.is_multiple_of(3));
        let stands = (Duration::from_micros(rng.below(500_000).into()), seed % 3 == 2);
        Workforce {
            rules,
            services: (0..workers).map(|_| [0, 100, 1000, 20_000][rng.below(4) as usize]).collect(),
            loss: [0, 100_000, 1_000_000][rng.below(3) as usize],
            stops,
            stands,
            outlived: Duration::from_millis([0, 20][rng.below(2) as usize]),
        }
    }
}

impl Story {
    /// Draws a story from `seed`.
    pub fn random(seed: u64) -> Story {
        let mut rng = Rng::new(seed);
        let replicas = [1 + rng.below(3) as u8, 1 + rng.below(3) as u8];
        Story {
            seed,
            replicas,
            workers: 1 + rng.below(4) as usize,
            connections: 1 + rng.below(24) as usize,
            length: [1, 500, 5000, 70_000, 300_000][rng.below(5) as usize],
            loss: [0, 0, 10_000, 50_000][rng.below(4) as usize],
            duplicate: [0, 10_000][rng.below(2) as usize],
            late: [0, 0, 50_000, 300_000][rng.below(4) as usize],
            rests: 0,
            memory_log2: [17, 20, 22][rng.below(3) as usize],
            tear: [0, 0, 100_000, 1_000_000][rng.below(4) as usize],
            v6: rng.below(2) == 0,
            links_apart: rng.below(3) == 0,
            ip: None,
            managers: None,
            attacked: false,
            at_once: None,
            asks: false,
            workforce: Workforce::default(),
            crashes: 0,
            scaling: None,
            greed: None,
            hoard: None,
            forged: false,
            poison: None,
            hands_over: 0,
            polls: false,
            goes: None,
        }
    }
}

struct Out {
    frames: VecDeque<(bool, Vec<u8>)>,
    /// The life of the replica that sends.
    life: Life,
    /// The number of frames that the outside link still takes.
    room: usize,
    /// Whether frames leave with their checksums complete.
    seals: bool,
}

impl Out {
    fn push(&mut self, inside: bool, headers: &[u8], text: &TextRef<'_, Mortal>, offload: &Offload) -> bool {
        if !self.life.spend() {
            return true;
        }
        let mut frame = headers.to_vec();
        frame.resize(headers.len() + text.len(), 0);
        text.copy_to(&mut frame[headers.len()..]);
        if self.seals && !inside && offload.needs_checksum {
            // The field holds the pseudo header's sum, so summing over it includes that.
            let start = usize::from(offload.csum_start);
            let field = start + usize::from(offload.csum_offset);
            let sum = !checksum::sum(&frame[start..]).fold();
            frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        }
        self.frames.push_back((inside, frame));
        true
    }
}

impl FrameSink<Mortal> for Out {
    fn send(&mut self, headers: &[u8], text: TextRef<'_, Mortal>, offload: Offload) -> bool {
        let has_room = self.room > 0;
        self.room = self.room.saturating_sub(1);
        has_room && self.push(false, headers, &text, &offload)
    }

    fn send_internal(&mut self, headers: &[u8], text: TextRef<'_, Mortal>, offload: Offload) -> bool {
        self.push(true, headers, &text, &offload)
    }

    fn segment_max(&self) -> u32 {
        16 << 10
    }
}

/// A machine with the replicas of its stack.
struct Machine {
    host: u8,
    replicas: Vec<Transport<Mortal>>,
    /// The memory that the successors of each replica find: its page and its ledger.
    legacies: Vec<(HeapMemory, HeapMemory)>,
    lives: Vec<Life>,
    out: Out,
    /// The page that programs read, with the owners of flow groups.
    stack: StackPage<HeapMemory>,
    steering: Box<Steering>,
    link_server: Option<LinkServer>,
    ip_servers: Option<IpServers>,
    managers: Option<Managers>,
    /// The processes that the replicas are in, if they move from one to another.
    hosts: Option<Hosts>,
    /// The sessions that successors have not opened yet: which replica, and what it needs to open the
    /// session.
    unopened: VecDeque<(usize, SessionId, ArenaLayout, Mortal, AppPage<Mortal>)>,
    /// The most octets that all receive buffers of a replica may take.
    memory: Option<u64>,
    /// How many stacks there were before on this machine.
    stacks: u8,
    /// Whether its stack is gone, and this one is not up yet.
    is_away: bool,
}

impl Machine {
    fn new(host: u8, count: u8, story: &Story, now: Instant, stacks: u8) -> Machine {
        let seed = story.seed;
        let is_faulty = story.poison.is_some() && host == SERVER;
        let managers = story.managers.map(|plan| Managers::new(plan, count, seed));
        let v6 = V6Config { address: Some((address_v6(host), 64)), gateway: None, autoconf: false };
        let ip_config =
            atoll_ip::Config { v6: Some(v6), ..atoll_ip::Config::new(mac(host), address(host), 24) };
        let ip_servers = story.ip.map(|plan| IpServers::new(plan, count, ip_config, seed, now));
        let legacy = || (HeapMemory::new(REPLICA_PAGE_BYTES), HeapMemory::new(LEDGER.bytes()));
        let page = StackPage(HeapMemory::new(STACK_PAGE_BYTES));
        (0..FLOW_GROUPS as u16)
            .for_each(|group| page.set_owner(FlowGroup(group), ReplicaId((group % u16::from(count)) as u8)));
        page.write_facts(&StackFacts {
            replicas: count,
            key: KEY,
            naive_accept: story.asks,
            ..StackFacts::default()
        });
        let mut steering = Box::new(Steering::new(KEY));
        steering.refresh(&page, count);
        let mut machine = Machine {
            host,
            replicas: Vec::new(),
            legacies: (0..count).map(|_| legacy()).collect(),
            lives: (0..count).map(|_| if is_faulty { Life::faulty() } else { Life::new() }).collect(),
            out: Out {
                frames: VecDeque::new(),
                life: Life::new(),
                room: usize::MAX,
                // A reassembled packet may consist of parts of two packets, which only a checksum detects.
                seals: story.ip.is_some() || story.tear > 0,
            },
            stack: page,
            steering,
            link_server: story
                .links_apart
                .then(|| LinkServer::new(ip_servers.as_ref().map_or(count, IpServers::count))),
            ip_servers,
            managers,
            hosts: story.scaling.map(|plan| Hosts::new(plan, host, count, seed, now)),
            unopened: VecDeque::new(),
            memory: story.hoard.map(|hoard| hoard.memory),
            stacks,
            is_away: false,
        };
        for index in 0..count {
            let replica = machine.replica(now, index, Epoch(3), seed);
            machine.replicas.push(replica);
        }
        machine
    }

    /// Creates a replica as its process starts it.
    fn replica(&self, now: Instant, index: u8, epoch: Epoch, seed: u64) -> Transport<Mortal> {
        let (host, count) = (self.host, self.legacies.len() as u8);
        let config = Config::new(ReplicaId(index), count, epoch, KEY);
        // Adopted connections continue one after another, soon or much later, as long as they are not needed.
        let adopt_every = [0, 50, 5_000, 200_000][(seed.wrapping_add(epoch.0.into()) % 4) as usize];
        let config = Config { adopt_batch: 1, adopt_every: Duration::from_micros(adopt_every), ..config };
        let config = Config { quota: Quota { requests: LEDGER.requests / 4, ..config.quota }, ..config };
        let config = self.managers.as_ref().map_or(config, |managers| managers.configure(config));
        let v6 = V6Config { address: Some((address_v6(host), 64)), gateway: None, autoconf: false };
        let ip_config =
            atoll_ip::Config { v6: Some(v6), ..atoll_ip::Config::new(mac(host), address(host), 24) };
        let ip_config = self.ip_servers.as_ref().map_or(ip_config, |servers| servers.config_of(index));
        let ip = Ip::new(ip_config, seed + u64::from(index), now).expect("a valid network");
        let (page, ledger) = &self.legacies[usize::from(index)];
        let life = &self.lives[usize::from(index)];
        let ports = seed + u64::from(index) + u64::from(epoch.0 - 3);
        let secrets = Secrets {
            sequence: [host; 16],
            fast_open: [host; 16],
            // Nobody believes what another stack has granted.
            leases: [host + 16 * self.stacks; 16],
            table: seed + 5,
            ports,
        };
        let page = ReplicaPage(Mortal::new(page.clone(), life));
        page.announce(ReplicaId(index), epoch);
        let mut transport = Transport::new(config, secrets, ip, page, now);
        if let Some(epoch) = self.managers.as_ref().and_then(|managers| managers.epoch_for(index)) {
            transport.handle_manager_restarted(now, epoch);
        }
        if let Some(memory) = self.memory {
            transport.set_memory(now, MemoryLevel::Plenty, memory);
        }
        transport.set_owners(|group| ReplicaId((group.0 % u16::from(count)) as u8));
        // Every other incarnation is of a build that knows no newer version, if its ledger is not of a newer
        // one.
        let is_old = epoch.0 % 2 == 1 && written_version(ledger) == Some(1);
        let newest = if is_old { 1 } else { LEDGER_VERSION };
        let ledger =
            Ledger::open_as(Mortal::new(ledger.clone(), life), LEDGER, epoch, newest).expect("a ledger");
        transport.set_ledger(ledger);
        transport
    }

    /// Handles a frame that arrives. A packet that it completes is passed on to its owner.
    fn receive(&mut self, now: Instant, rng: &mut Rng, frame: &[u8], inside: bool) {
        if let Some(servers) = self.ip_servers.as_mut().filter(|_| !inside) {
            servers.receive(now, rng, &self.steering, frame);
            return;
        }
        let receivers = match self.steering.destination(frame, ReplicaId(0)) {
            Destination::One(owner) => usize::from(owner.0)..usize::from(owner.0) + 1,
            Destination::All => 0..self.replicas.len(),
        };
        for index in receivers {
            if self.hosts.as_mut().is_none_or(|hosts| hosts.lets_pass(index, frame, inside)) {
                self.handle(now, index, frame, inside);
            }
        }
    }

    /// Gives a frame to a replica.
    fn handle(&mut self, now: Instant, index: usize, frame: &[u8], inside: bool) {
        let replica = &mut self.replicas[index];
        let is_sealed = self.out.seals && !inside;
        let offload = if is_sealed { ChecksumOffload::Unknown } else { ChecksumOffload::Partial };
        replica.handle_frame(now, frame, offload, inside);
        if let Some(whole) = replica.ip_mut().poll_whole()
            && let Destination::One(owner) = self.steering.destination(&whole.bytes, ReplicaId(0))
        {
            let owner = usize::from(owner.0);
            if self.hosts.as_mut().is_none_or(|hosts| hosts.lets_pass(owner, &whole.bytes, inside)) {
                self.replicas[owner].handle_frame(now, &whole.bytes, offload, inside);
            }
        }
    }

    /// Sets how many frames of a replica the outside link takes now.
    fn look_for_room(&mut self, index: usize) {
        self.out.room = match (&self.ip_servers, &self.link_server) {
            (Some(servers), _) => servers.room(index),
            (None, Some(link)) => link.room(index),
            (None, None) => usize::MAX,
        };
    }

    /// Lets a replica open one more session of its predecessor. Returns whether there was one.
    fn open_one(&mut self, now: Instant, index: usize) -> bool {
        let at = self.unopened.iter().position(|(replica, ..)| *replica == index);
        let Some((_, session, layout, arena, page)) = at.and_then(|at| self.unopened.remove(at)) else {
            return false;
        };
        self.replicas[index].open_session(now, (session, User::privileged(0)), layout, arena, page);
        self.replicas[index].remind(session);
        true
    }

    /// Returns whether a replica is in a process and serves.
    fn serves(&self, index: usize) -> bool {
        !self.is_away && self.hosts.as_ref().is_none_or(|hosts| hosts.serves(index))
    }

    /// Returns whether each replica serves, by number.
    fn serving(&self) -> Vec<bool> {
        (0..self.replicas.len()).map(|index| self.serves(index)).collect()
    }
}

/// Fragments a frame that is longer than `mtu`. An IPv4 frame (without options) is fragmented as by a router
/// that ignores "don't fragment", an IPv6 frame (without extension headers) as by a host.
fn torn(frame: &[u8], mtu: u16, id: u32) -> Vec<Vec<u8>> {
    let packet = &frame[ethernet::HEADER_LEN..];
    if let Some((header, len)) = ipv6::parse(packet).ok().filter(|_| packet.len() > usize::from(mtu)) {
        let fragment = |part: Part| {
            let mut bytes = frame[..ethernet::HEADER_LEN + len].to_vec();
            let payload_len = (ipv6::FRAGMENT_LEN + part.len) as u16;
            let next_header = ipv4::Protocol(ipv6::FRAGMENT);
            ipv6::emit(
                &ipv6::Header { next_header, payload_len, ..header },
                &mut bytes[ethernet::HEADER_LEN..],
            );
            let mut head = [0; ipv6::FRAGMENT_LEN];
            let place = ipv6::Fragment { offset: (part.offset / 8) as u16, more: part.more, id };
            ipv6::emit_fragment(header.next_header, &place, &mut head);
            bytes.extend_from_slice(&head);
            bytes.extend_from_slice(&packet[len + part.offset..][..part.len]);
            bytes
        };
        // The first fragment holds the whole TCP header (RFC 7112).
        let mtu = mtu.max((ipv6::HEADER_LEN + ipv6::FRAGMENT_LEN + 24) as u16);
        return parts(header.dst, packet.len() - len, 0, mtu).map(fragment).collect();
    }
    let Some((header, len)) = ipv4::parse(packet).ok().filter(|_| packet.len() > usize::from(mtu)) else {
        return vec![frame.to_vec()];
    };
    // Identifications repeat while others wait for their fragments (RFC 4963 §3); the checksum detects that.
    let fragment = |part: Part| {
        let mut bytes = frame[..ethernet::HEADER_LEN + len].to_vec();
        let header = ipv4::Header {
            payload_len: part.len as u16,
            id: id as u16,
            dont_fragment: false,
            more_fragments: part.more,
            fragment_offset: (part.offset / 8) as u16,
            ..header
        };
        ipv4::emit(&header, &mut bytes[ethernet::HEADER_LEN..]);
        bytes.extend_from_slice(&packet[len + part.offset..][..part.len]);
        bytes
    };
    parts(Addr::V4_ANY, packet.len() - len, 0, mtu).map(fragment).collect()
}

/// Returns whether a frame asks for a hardware address, or answers: ARP, or neighbour discovery (RFC 4861
/// §4).
fn is_discovery(frame: &[u8]) -> bool {
    let Ok((header, at)) = ethernet::parse(frame) else { return false };
    match ipv6::parse(&frame[at..]) {
        Ok((packet, len)) => {
            packet.next_header == ipv4::Protocol::ICMPV6 && matches!(frame.get(at + len), Some(133..=137))
        }
        Err(_) => header.ethertype == EtherType::ARP,
    }
}

fn mac(host: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, host])
}

fn address(host: u8) -> u32 {
    0x0a00_0000 | u32::from(host)
}

fn address_v6(host: u8) -> Addr {
    Addr::from_octets([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host])
}

fn octet(connection: u64, offset: usize) -> u8 {
    ((offset as u64 ^ connection << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Returns an octet of the text of a client, whose first connection may be poisoned.
fn text_octet(poisoned: bool, connection: u64, offset: usize) -> u8 {
    match POISON.get(offset).filter(|_| poisoned && connection == 0) {
        Some(poison) => *poison,
        None => octet(connection, offset),
    }
}

/// A process with its own session.
struct Process {
    machine: usize,
    session: SessionId,
    page: AppPage<HeapMemory>,
    /// The client library of an honest program.
    program: Option<Program>,
    /// The ports of other programs, which write to their rings as they like.
    ports: Vec<Port<HeapMemory>>,
    arenas: Vec<HeapMemory>,
    /// The connections of an honest program, by object.
    sockets: BTreeMap<u32, Socket>,
    /// The numbers of the connections to open.
    to_open: VecDeque<u64>,
    at_once: usize,
    /// When the process runs again.
    wakes_at: Option<Instant>,
    finished: u64,
    length: usize,
    is_server: bool,
    v6: bool,
    service: Duration,
    /// When the process stops as soon as it has no connection.
    stops_at: Option<Instant>,
    /// Until when the process is stopped.
    stands_until: Option<Instant>,
    /// The state of its departure, once it has died.
    departure: Option<Departure>,
    /// The sessions of others that it is a member of, with its number there.
    memberships: Vec<(SessionId, u8)>,
    /// The number of the next member of its own session.
    next_member: u8,
    /// The next process that it prepares, while it forks or executes.
    handing: Option<Handing>,
    /// How often it rests; see [`Story::rests`].
    rests: u32,
    /// Whether the process does not read.
    hoards: bool,
    /// Whether its peers may have to end connections.
    is_forgiving: bool,
    /// Whether the story lets the server's stack go: connections may end with an error, and clients open them
    /// again.
    loses_stack: bool,
    /// The number of connections that it could not open, or has lost, for want of memory; `waits_until` says
    /// when it opens others.
    refused: u64,
    waits_until: Option<Instant>,
    /// The state of a greedy program.
    greedy: Option<Greedy>,
    /// The role of a program that is neither server nor client.
    role: Option<Role>,
    /// Whether it is the program that triggers the fault by commands.
    is_rogue: bool,
    /// Whether the story poisons a connection, so that a lost connection may be explained; `has_failed` says
    /// whether the process has seen the poisoned one end.
    is_poisoned: bool,
    has_failed: bool,
}

/// The whole simulation.
pub struct World {
    story: Story,
    rng: Rng,
    now: Instant,
    machines: [Machine; 2],
    processes: Vec<Process>,
    wire: BTreeMap<(Instant, u64), (usize, Vec<u8>)>,
    frames: u64,
    adversary: Option<Adversary>,
    /// The number of deaths of replicas so far.
    crashed: u32,
    /// Whether all replicas of the server listen, so that its clients have begun.
    has_begun: bool,
    /// The earliest time at which clients begin.
    begins_at: Instant,
    /// How often a successor learned that a program had died.
    told: u32,
    /// The watch over the progress of others beside greedy programs.
    watch: Option<Watch>,
    /// The observations while memory was short.
    shortage: Shortage,
    /// The number of deaths of replicas by their own fault; `is_blamed` says whether the last one was so, and
    /// the other fields count what successors have made of them.
    poisoned: u32,
    is_blamed: bool,
    quarantined: u32,
    lost: u32,
    cut_off: BTreeSet<SessionId>,
    /// Connections on their way from one process to another.
    letters: Vec<Letter>,
    /// The members of sessions that are gone, until replicas know it.
    farewells: Farewells,
    /// How often processes have executed another program, forked, sent a connection, and ended.
    handed: [u32; 4],
    /// How often the server's stack has gone, when it comes back, and how many connections programs have
    /// lost.
    gone: u32,
    away_until: Option<Instant>,
    losses: usize,
}

impl World {
    /// Creates stacks and processes that have not done anything yet.
    pub fn new(story: &Story) -> World {
        let first = Instant::from_millis(1000);
        let machine = |host: u8| Machine::new(host, story.replicas[usize::from(host - 1)], story, first, 0);
        let mut world = World {
            story: story.clone(),
            rng: Rng::new(story.seed),
            now: Instant::from_millis(1000),
            machines: [machine(1), machine(2)],
            processes: Vec::new(),
            wire: BTreeMap::new(),
            frames: 0,
            adversary: None,
            crashed: 0,
            has_begun: false,
            begins_at: Instant::from_millis(1000),
            told: 0,
            watch: None,
            shortage: Shortage::default(),
            poisoned: 0,
            is_blamed: false,
            quarantined: 0,
            lost: 0,
            cut_off: BTreeSet::new(),
            letters: Vec::new(),
            farewells: Farewells::default(),
            handed: [0; 4],
            gone: 0,
            away_until: None,
            losses: 0,
        };
        let mut delay = Duration::ZERO;
        if story.attacked {
            let server = (address(SERVER), mac(SERVER), PORT);
            world.adversary = Some(Adversary::new(address(ATTACKER), mac(ATTACKER), server, world.now));
            delay = Duration::from_secs(2);
        }
        for _ in 0..story.workers {
            world.attach(0);
            let program = world.processes.last_mut().and_then(|process| process.program.as_mut());
            program.expect("just attached").listen();
        }
        for replica in &mut world.machines[0].replicas {
            replica.set_balance(story.workforce.rules);
        }
        if let Some(managers) = &mut world.machines[0].managers {
            managers.set_balance(story.workforce.rules);
        }
        for (process, micros) in world.processes.iter_mut().zip(&story.workforce.services) {
            process.set_service(Duration::from_micros(*micros));
        }
        if let Some((worker, after)) = story.workforce.stops {
            world.processes[worker].stops_at = Some(world.now + after);
        }
        if story.poison == Some(Poison::Command) {
            world.attach(0);
            let rogue = world.processes.last_mut().expect("just attached");
            rogue.is_rogue = true;
            rogue.wakes_at =
                Some(Instant::from_millis(1000) + Duration::from_micros(story.seed * 7919 % 20_000));
        }
        world.begins_at += delay;
        world.attach(1);
        let client = world.processes.last_mut().expect("just attached");
        // The client waits until all replicas listen: one process announces what the others want to see.
        client.wakes_at = None;
        client.to_open = (0..story.connections as u64).collect();
        client.at_once = 1 + world.rng.below(story.connections as u32) as usize;
        client.at_once = story.at_once.unwrap_or(client.at_once);
        if let Some(hoard) = story.hoard {
            world.invite_hoarder(hoard);
        }
        if let Some(appetite) = story.greed {
            world.invite(appetite);
        }
        if story.forged {
            world.invite_forger();
        }
        world
    }

    fn attach(&mut self, machine: usize) {
        self.attach_as(machine, None);
    }

    fn attach_as(&mut self, machine: usize, greedy: Option<Greedy>) {
        self.attach_in(machine, greedy, None);
    }

    fn attach_in(&mut self, machine: usize, greedy: Option<Greedy>, role: Option<Role>) {
        let session = SessionId(self.processes.len() as u32 + 1);
        let log2 = self.story.memory_log2;
        let layout = ArenaConfig { slots: 128, send_log2: log2, receive_log2: log2 }.layout();
        let page = AppPage(HeapMemory::new(APP_PAGE_BYTES));
        let mut ports = Vec::new();
        let arenas = self.open_sessions(machine, session, &page);
        let Machine { legacies, stack, .. } = &self.machines[machine];
        let config = ArenaConfig { slots: 128, send_log2: log2, receive_log2: log2 };
        let program = if greedy.is_none() && role.is_none() {
            let count = arenas.len() as u8;
            let reply = Reply::Joined { session: session.0, key: 0, member: 0, replicas: count, config };
            let pages = legacies.iter().map(|(page, _)| page.clone());
            let own_page = AppPage(page.0.clone());
            let stack = StackPage(stack.0.clone());
            let shared = shared(stack, own_page, pages.zip(arenas.iter().cloned()));
            let polls = self.story.polls && self.processes.len() % 2 == 1;
            Some(Program::new(
                Session::new(&reply, shared).expect("a whole session"),
                self.rng.next_u64(),
                polls,
            ))
        } else {
            ports.extend(arenas.iter().map(|arena| Port::new(arena.clone(), layout)));
            None
        };
        let process = Process {
            machine,
            session,
            page,
            program,
            ports,
            arenas,
            sockets: BTreeMap::new(),
            to_open: VecDeque::new(),
            at_once: 0,
            wakes_at: Some(self.now),
            finished: 0,
            length: self.story.length,
            is_server: machine == 0 && greedy.is_none() && role.is_none(),
            v6: self.story.v6,
            service: Duration::ZERO,
            stops_at: None,
            stands_until: None,
            departure: None,
            memberships: Vec::new(),
            next_member: 1,
            handing: None,
            rests: self.story.rests,
            hoards: false,
            is_forgiving: self.story.hoard.is_some(),
            loses_stack: self.story.goes.is_some(),
            refused: 0,
            waits_until: None,
            greedy,
            role,
            is_rogue: false,
            is_poisoned: self.story.poison == Some(Poison::Segment),
            has_failed: false,
        };
        self.processes.push(process);
    }

    /// Opens a session at all replicas of a machine. Returns its arenas.
    fn open_sessions(
        &mut self,
        machine: usize,
        session: SessionId,
        page: &AppPage<HeapMemory>,
    ) -> Vec<HeapMemory> {
        let log2 = self.story.memory_log2;
        let layout = ArenaConfig { slots: 128, send_log2: log2, receive_log2: log2 }.layout();
        let mut arenas = Vec::new();
        let Machine { replicas, lives, .. } = &mut self.machines[machine];
        for (replica, life) in replicas.iter_mut().zip(lives) {
            let arena = HeapMemory::new(layout.total);
            let (theirs, their_page) =
                (Mortal::new(arena.clone(), life), AppPage(Mortal::new(page.0.clone(), life)));
            replica.open_session(self.now, (session, User::privileged(0)), layout, theirs, their_page);
            arenas.push(arena);
        }
        arenas
    }

    /// Runs until every stream has been delivered both ways and every connection is gone. Returns how much
    /// time that took.
    pub fn run(&mut self) -> Result<Duration, WorldViolation> {
        let began = self.now;
        let limit = began + Duration::from_secs(3000);
        loop {
            if self.poisoned > POISONED_MAX {
                return Err(WorldViolation::Deaths { count: self.poisoned, report: self.report() });
            }
            if self.turn()? {
                continue;
            }
            if self.is_over() {
                return Ok(self.now.since(began));
            }
            if !self.go_on(limit) {
                return Err(WorldViolation::Silence(self.report()));
            }
        }
    }

    /// Continues after [`World::run`] until replicas have forgotten every connection, and what programs have
    /// had is free again.
    pub fn settle(&mut self) -> Result<(), WorldViolation> {
        let limit = self.now + Duration::from_secs(300);
        self.dismiss_greedy();
        self.dismiss_roles();
        self.dismiss_families(limit)?;
        while self.turn()? || self.go_on(limit) {}
        for replica in self.machines.iter_mut().flat_map(|machine| &mut machine.replicas) {
            replica.adopt_rest(self.now);
        }
        for machine in &self.machines {
            let mut all = machine.replicas.iter().flat_map(|replica| replica.sockets(self.now));
            if let Some(left) = all.find(|socket| socket.remote.port != 0) {
                let (socket, report) = (format!("{left:?}"), self.report());
                return Err(WorldViolation::ConnectionLeft { socket, report });
            }
        }
        for replica in self.machines.iter_mut().flat_map(|machine| &mut machine.replicas) {
            replica.publish_stats();
            let held = replica.stat(Stat::BufferBytes);
            if held > 0 {
                return Err(WorldViolation::BuffersLeft(held));
            }
        }
        for process in &mut self.processes {
            if let Some(departure) = &process.departure {
                // The arena is not used by any replica any more.
                departure.check(process.session)?;
                continue;
            }
            let own = process.program.as_mut().and_then(|program| program.client.own_mut());
            let own =
                own.into_iter().flat_map(|session| session.replicas_mut()).map(|replica| replica.port_mut());
            for (replica, port) in process.ports.iter_mut().chain(own).enumerate() {
                port.sweep();
                let slots = port.layout().application_slots().len();
                let free = std::iter::from_fn(|| port.allocate_slot()).count();
                if free != slots {
                    let session = process.session.0;
                    return Err(WorldViolation::SlotsLeft { session, free, slots, replica });
                }
            }
        }
        Ok(())
    }

    /// Lets every component do what there is to do at this moment. Returns whether there was anything; the
    /// clock has advanced a little then.
    fn turn(&mut self) -> Result<bool, WorldViolation> {
        let mut busy = self.go_and_come();
        busy |= self.deliver();
        self.attack()?;
        busy |= self.run_link_servers();
        busy |= self.run_ip_servers();
        busy |= self.run_hosts();
        busy |= self.run_replicas();
        busy |= self.run_managers();
        busy |= self.run_families();
        busy |= self.run_processes();
        busy |= self.tell_departed();
        if busy {
            self.now += Duration::from_micros(2);
        }
        self.watch()?;
        self.look_at_memory()?;
        Ok(busy)
    }

    /// Advances the clock to the next moment at which there is something to do. Returns whether there is one
    /// before `limit`.
    fn go_on(&mut self, limit: Instant) -> bool {
        let timers = self.machines.iter().flat_map(|machine| {
            let there = machine.replicas.iter().enumerate().filter(|(index, _)| machine.serves(*index));
            there.filter_map(|(_, replica)| replica.next_timeout())
        });
        let is_awake = |process: &&Process| process.stands_until.is_none() && process.departure.is_none();
        let wakes = self.processes.iter().filter(is_awake).filter_map(|process| process.wakes_at);
        let stands = self.processes.iter().filter_map(|process| process.stands_until);
        let arrival = self.wire.keys().next().map(|(at, _)| *at);
        let attack = self.adversary.as_ref().and_then(|adversary| adversary.acts_at);
        let links = self.machines.iter().filter_map(|machine| machine.link_server.as_ref()?.wakes_at());
        let ips = self.machines.iter().filter_map(|machine| machine.ip_servers.as_ref()?.wakes_at());
        let managers = self
            .machines
            .iter()
            .filter_map(|machine| machine.managers.as_ref()?.wakes_at(&machine.serving()));
        let hosts = self.machines.iter().filter_map(|machine| machine.hosts.as_ref()?.next_timeout());
        let next = timers
            .chain(wakes)
            .chain(stands)
            .chain(links)
            .chain(ips)
            .chain(managers)
            .chain(hosts)
            .chain(self.next_telling())
            .chain(self.next_of_families())
            .chain(self.next_of_going())
            .chain(arrival)
            .chain(attack)
            .min();
        match next.filter(|next| *next < limit) {
            Some(next) => self.now = next.max(self.now + Duration::from_micros(1)),
            None => return false,
        }
        true
    }

    /// Returns whether the client of the poisoned connection knows that it has ended.
    fn has_failed(&self) -> bool {
        self.processes.iter().any(|process| process.has_failed)
    }

    /// Returns the number of deaths of replicas by their own fault, of connections quarantined for that and
    /// of connections lost, and the sessions that were cut off.
    pub fn verdicts(&self) -> (u32, u32, u32, Vec<SessionId>) {
        (self.poisoned, self.quarantined, self.lost, self.cut_off.iter().copied().collect())
    }

    fn is_over(&self) -> bool {
        let finished = |is_server| -> u64 {
            self.processes
                .iter()
                .filter(|process| process.is_server == is_server)
                .map(|process| process.finished)
                .sum()
        };
        // The poisoned connection fails, and its client knows.
        let fails = self.story.poison == Some(Poison::Segment);
        let is_at_large = self.story.poison == Some(Poison::Command) && self.cut_off.is_empty();
        if fails && !self.has_failed() || is_at_large {
            return false;
        }
        let all = self.story.connections as u64 - u64::from(fails);
        if self.story.hoard.is_some() {
            // Some connections of the program that does not read remain until it ends.
            let mut others = self.processes.iter().filter(|process| !process.is_server && !process.hoards);
            return finished(false) == all && others.all(|process| process.sockets.is_empty());
        }
        if self.story.goes.is_some() {
            // The server counts connections as well whose end its clients have not heard.
            let is_quiet = |process: &Process| process.sockets.values().all(|socket| socket.is_hostile);
            return self.gone > 0 && finished(false) == all && self.processes.iter().all(is_quiet);
        }
        // The attack runs before, while and after others are served.
        !self.processes.iter().any(Process::plays)
            && self.adversary.as_ref().is_none_or(|adversary| adversary.acts_at.is_none())
            && finished(false) == all
            && finished(true) == all
            && self.processes.iter().all(|process| process.sockets.values().all(|socket| socket.is_hostile))
    }

    /// Returns how many connections each of the server's processes has served.
    pub fn served(&self) -> Vec<u64> {
        self.processes.iter().filter(|process| process.is_server).map(|process| process.finished).collect()
    }

    /// Returns a description of the current state.
    pub fn report(&self) -> String {
        let mut text = format!("silence at {:?}, {} frames:", self.now, self.frames);
        for process in &self.processes {
            let (session, machine, finished) = (process.session.0, process.machine, process.finished);
            let state = process.program.as_ref().map_or("no program".into(), Program::state);
            text += &format!("\n  process {session} of machine {machine}: {finished} finished, {state}");
            for (object, socket) in &process.sockets {
                let Socket { sent, got, held, ended, shut, .. } = socket;
                let held = held.len();
                text += &format!(
                    "\n    socket {object}: {sent} sent, {got} got, {held} held, ended {ended}, shut {shut}"
                );
            }
        }
        for machine in &self.machines {
            for replica in &machine.replicas {
                text += &format!(
                    "\n  replica: {} connections, {} retransmits",
                    replica.stat(Stat::Connections),
                    replica.stat(Stat::Retransmits)
                );
                for socket in replica.sockets(self.now) {
                    text += &format!("\n    {socket:?}");
                }
            }
        }
        text
    }

    /// Delivers the frames that have arrived by now. Returns whether there were any.
    fn deliver(&mut self) -> bool {
        let mut any = false;
        while let Some(first) = self.wire.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (to, frame) = first.remove();
            any = true;
            if self.machines[to].is_away {
                continue;
            }
            self.machines[to].receive(self.now, &mut self.rng, &frame, false);
        }
        any
    }

    fn run_link_servers(&mut self) -> bool {
        let mut any = false;
        for at in 0..2 {
            let Some(link) = &mut self.machines[at].link_server else { continue };
            for frame in link.run(self.now, &mut self.rng) {
                any = true;
                self.transmit(1 - at, frame);
            }
        }
        any
    }

    fn run_ip_servers(&mut self) -> bool {
        let mut any = false;
        for at in 0..2 {
            let Machine { ip_servers: Some(servers), steering, link_server, .. } = &mut self.machines[at]
            else {
                continue;
            };
            let room = |server| link_server.as_ref().map_or(usize::MAX, |link| link.room(server));
            let (frames, busy) = servers.run(self.now, &mut self.rng, steering, room);
            any |= busy;
            for (server, frame) in frames {
                match &mut self.machines[at].link_server {
                    Some(link) => link.push(self.now, &mut self.rng, server, frame),
                    None => self.transmit(1 - at, frame),
                }
            }
            let there = self.machines[at].serving();
            let Machine { ip_servers: Some(servers), replicas, hosts, .. } = &mut self.machines[at] else {
                continue;
            };
            for index in (0..replicas.len()).filter(|index| there[*index]) {
                let taken = servers.deliver(self.now, &mut self.rng, index, &mut replicas[index]);
                any |= taken > 0;
                hosts.iter_mut().for_each(|hosts| hosts.note_work(index, taken));
            }
        }
        any
    }

    fn run_managers(&mut self) -> bool {
        let mut any = false;
        for machine in &mut self.machines {
            let there = machine.serving();
            if let Some(managers) = &mut machine.managers {
                let loss = self.story.workforce.loss;
                any |= managers.run(self.now, &mut self.rng, &mut machine.replicas, &there, loss);
            }
        }
        any
    }

    fn run_replicas(&mut self) -> bool {
        let mut any = false;
        for at in 0..2 {
            for index in 0..self.machines[at].replicas.len() {
                if self.machines[at].serves(index) {
                    any |= self.run_replica(at, index);
                }
            }
        }
        any
    }

    /// Runs one turn of a replica. Returns whether there was anything to do.
    fn run_replica(&mut self, at: usize, index: usize) -> bool {
        self.doom(at, index);
        let mut any = self.read_queue(at, index);
        any |= self.machines[at].open_one(self.now, index);
        let machine = &mut self.machines[at];
        any |= machine.replicas[index].handle_commands(self.now, SHARE);
        machine.replicas[index].handle_timers(self.now);
        self.flush(at, index);
        self.collect(at, index);
        self.note_ended(at, index);
        let machine = &mut self.machines[at];
        while let Some(update) = machine.replicas[index].ip_mut().poll_neighbour() {
            for other in (0..machine.replicas.len()).filter(|other| *other != index) {
                if machine.serves(other) {
                    machine.replicas[other].ip_mut().handle_neighbour(self.now, update);
                }
            }
        }
        let mut said = Vec::new();
        let reach = Reach { awake: u64::MAX, takes: u64::MAX };
        while let Some(output) = machine.replicas[index].poll_peer(self.now, reach, true) {
            if !self.rng.chance_per_million(self.story.workforce.loss) {
                said.push(output);
            }
        }
        for output in said {
            any = true;
            for other in (0..machine.replicas.len()).filter(|other| output.to & (1 << other) != 0) {
                if machine.serves(other) {
                    machine.replicas[other].handle_peer(self.now, &output.message);
                }
            }
        }
        let mut rung = self.take_bells(at, index);
        if self.machines[at].lives[index].is_over() {
            any = true;
            if self.machines[at].hosts.is_some() {
                self.process_ends(at, index);
            } else {
                let next = self.machines[at].lives[index].next();
                let past = std::mem::replace(&mut self.machines[at].lives[index], next);
                self.is_blamed = past.is_poisoned();
                self.poisoned += u32::from(past.is_poisoned());
                rung.extend(self.succeed(at, index));
            }
        }
        any |= self.send_out(at, index);
        self.ring(&rung);
        any
    }

    /// Collects the messages of a replica for servers of its machine that are apart.
    fn collect(&mut self, at: usize, index: usize) {
        let there = self.machines[at].serving();
        let Machine { replicas, lives, ip_servers, managers, .. } = &mut self.machines[at];
        let (replica, life) = (&mut replicas[index], &lives[index]);
        if let Some(servers) = ip_servers {
            servers.collect(self.now, &mut self.rng, index, replica, life);
        }
        if let Some(managers) = managers {
            managers.collect(self.now, &mut self.rng, replica, life, &there);
        }
    }

    /// Commits what a replica has done, and sends its output.
    fn flush(&mut self, at: usize, index: usize) {
        self.machines[at].look_for_room(index);
        let machine = &mut self.machines[at];
        machine.out.life = machine.lives[index].clone();
        machine.replicas[index].flush(self.now, &mut machine.out);
    }

    /// Returns the doorbells that a replica rings.
    fn take_bells(&mut self, at: usize, index: usize) -> Vec<(SessionId, u32)> {
        let mut rung = Vec::new();
        let Machine { replicas, lives, .. } = &mut self.machines[at];
        replicas[index].take_bells(|session, bell| {
            if lives[index].spend() {
                rung.push((session, bell));
            }
        });
        rung
    }

    /// Puts the output of a replica on its way. Returns whether there was anything.
    fn send_out(&mut self, at: usize, index: usize) -> bool {
        let mut any = false;
        for (inside, frame) in std::mem::take(&mut self.machines[at].out.frames) {
            any = true;
            if inside {
                self.machines[at].receive(self.now, &mut self.rng, &frame, true);
            } else if let Some(servers) = &mut self.machines[at].ip_servers {
                servers.push(self.now, &mut self.rng, index, frame);
            } else if let Some(link) = &mut self.machines[at].link_server {
                link.push(self.now, &mut self.rng, index, frame);
            } else {
                self.transmit(1 - at, frame);
            }
        }
        any
    }

    /// Decides whether a replica is going to die.
    fn doom(&mut self, at: usize, index: usize) {
        if self.story.crashes > 0
            && self.crashed < CRASHES_MAX
            && self.rng.chance_per_million(self.story.crashes)
        {
            self.crashed += 1;
            self.machines[at].lives[index].shorten(self.rng.below(LIFE_MAX).into());
            if self.rng.below(3) == 0 {
                // The replica dies during an upgrade, or on the way back.
                self.machines[at].replicas[index].convert_ledger(1 + self.rng.below(2));
            }
        }
    }

    /// Replaces a replica that has died or left by the next one, whose life has begun. Returns the doorbells
    /// that it rings.
    fn succeed(&mut self, at: usize, index: usize) -> Vec<(SessionId, u32)> {
        let (now, story) = (self.now, &self.story);
        let machine = &mut self.machines[at];
        let (_, epoch) = machine.replicas[index].identity();
        let mut next = machine.replica(now, index as u8, Epoch(epoch.0 + 1), story.seed);
        if let Some(servers) = &mut machine.ip_servers {
            servers.replica_restarted(index, Epoch(epoch.0 + 1));
        }
        let replicas = machine.replicas.len();
        if let Some(managers) = &mut machine.managers {
            managers.replica_restarted(now, &mut self.rng, index, Epoch(epoch.0 + 1), replicas);
        }
        let life = &machine.lives[index];
        let needed = next.sessions_in_ledger();
        let mut later = Vec::new();
        for process in
            self.processes.iter().filter(|process| process.machine == at && !process.is_over(index))
        {
            if self.cut_off.contains(&process.session) {
                continue;
            }
            let arena = Mortal::new(process.arenas[index].clone(), life);
            let page = AppPage(Mortal::new(process.page.0.clone(), life));
            let log2 = story.memory_log2;
            let layout = ArenaConfig { slots: 128, send_log2: log2, receive_log2: log2 }.layout();
            if needed.contains(&process.session) {
                next.open_session(now, (process.session, User::privileged(0)), layout, arena, page);
            } else {
                later.push((process.session, process.departure.is_some(), layout, arena, page));
            }
        }
        machine.unopened.retain(|(replica, ..)| *replica != index);
        next.set_balance(story.workforce.rules);
        let adoption = next.adopt(now, Recovery::Stateful, std::mem::take(&mut self.is_blamed));
        self.quarantined += adoption.quarantined;
        self.lost += adoption.lost;
        let cut_off = next.take_cut_off();
        if std::env::var_os("ATOLL_SEED").is_some() {
            eprintln!("{now:?} replica {index} of machine {at}: {adoption:?}");
        }
        for (session, is_needed, layout, arena, page) in later {
            if is_needed {
                next.open_session(now, (session, User::privileged(0)), layout, arena, page);
            } else {
                machine.unopened.push_back((index, session, layout, arena, page));
            }
        }
        machine.replicas[index] = next;
        // This is what a supervisor does.
        for session in cut_off {
            machine.replicas.iter_mut().for_each(|replica| replica.cut_off(now, session));
            self.cut_off.insert(session);
        }
        self.brief(at, index);
        let machine = &mut self.machines[at];
        machine.out.life = machine.lives[index].clone();
        machine.replicas[index].flush(now, &mut machine.out);
        self.take_bells(at, index)
    }

    /// Returns how often replicas have died.
    pub fn crashed(&self) -> u32 {
        self.crashed
    }

    /// Lets the third machine act; checks that what the server keeps for it stays bounded.
    fn attack(&mut self) -> Result<(), WorldViolation> {
        let Some(adversary) = &mut self.adversary else { return Ok(()) };
        if adversary.acts_at.is_none_or(|at| at > self.now) {
            return Ok(());
        }
        let frame = adversary.act(self.now, &mut self.rng);
        self.put_on_wire(0, frame);
        for replica in &self.machines[0].replicas {
            let connections = replica.sockets(self.now).count();
            let held = replica.heap_bytes();
            if held > connections * RECORDS_MAX {
                return Err(WorldViolation::Held { held, connections });
            }
        }
        Ok(())
    }

    fn transmit(&mut self, to: usize, frame: Vec<u8>) {
        if let Some(adversary) = self.adversary.as_mut().filter(|_| to == 1) {
            let is_for_him = adversary.is_for_us(&frame);
            if let Some(answer) = adversary.hear(&frame) {
                self.put_on_wire(0, answer);
            }
            if is_for_him {
                return;
            }
        }
        self.put_on_wire(to, frame);
    }

    fn put_on_wire(&mut self, to: usize, frame: Vec<u8>) {
        // After three lost requests in a row, a connection fails with EHOSTUNREACH: that is right, but would
        // spoil a story. In fragments they would be as good as lost (RFC 6980).
        let is_discovery = is_discovery(&frame);
        if self.rng.chance_per_million(self.story.loss) && !is_discovery {
            return;
        }
        let copies = 1 + u64::from(self.rng.chance_per_million(self.story.duplicate));
        for _ in 0..copies {
            let is_torn = self.rng.chance_per_million(self.story.tear) && !is_discovery;
            let mtu = [68, 576, 1006, u16::MAX][if is_torn { self.rng.below(3) as usize } else { 3 }];
            for frame in torn(&frame, mtu, self.frames as u32) {
                self.frames += 1;
                let delay = Duration::from_micros(u64::from(20 + self.rng.below(30)));
                self.wire.insert((self.now + delay, self.frames), (to, frame));
            }
        }
    }

    fn ring(&mut self, rung: &[(SessionId, u32)]) {
        for (session, bell) in rung {
            let late = self.rng.chance_per_million(self.story.late);
            let most = if late { 20_000 } else { 20 };
            let at = self.now + Duration::from_micros(1 + u64::from(self.rng.below(most)));
            for process in self.processes.iter_mut().filter(|process| process.is_member(*session)) {
                let hears = process.program.as_ref().is_some_and(|program| program.hears(*session, *bell));
                if hears && process.wakes_at.is_none_or(|other| other > at) {
                    process.wakes_at = Some(at);
                }
            }
        }
    }

    fn run_processes(&mut self) -> bool {
        let mut any = false;
        any |= self.stop_and_go();
        for process in self
            .processes
            .iter_mut()
            .filter(|process| process.stands_until.is_none() && process.departure.is_none())
            .filter(|process| process.handing.is_none())
        {
            if process.wakes_at.is_some_and(|at| at <= self.now) {
                any = true;
                if process.is_rogue {
                    process.poison();
                    continue;
                }
                process.run(self.now, &mut self.rng);
            }
        }
        any
    }

    /// Stops processes (SIGSTOP), and continues (SIGCONT) or kills (SIGKILL) them. Returns whether there was
    /// anything to do.
    fn stop_and_go(&mut self) -> bool {
        let (stands, dies) = self.story.workforce.stands;
        let now = self.now;
        for at in 0..self.processes.len() {
            let process = &mut self.processes[at];
            // A claimed connection would die with the process, and its peer would see an error.
            let is_claiming = process.program.as_ref().is_some_and(Program::is_claiming);
            if process.stops_at.is_some_and(|at| at <= now) && process.sockets.is_empty() && !is_claiming {
                process.stops_at = None;
                process.stands_until = Some(now + stands);
            }
            if process.stands_until.is_some_and(|until| until <= now) {
                process.stands_until = None;
                process.wakes_at = Some(now);
                if dies && self.story.workers > 1 {
                    let replicas = self.machines[process.machine].replicas.len();
                    process.departure =
                        Some(Departure::new(now, self.story.workforce.outlived, replicas, &mut self.rng));
                }
                return true;
            }
        }
        false
    }
}

impl Process {
    fn push(&mut self, replica: usize, command: &Command) {
        assert!(self.ports[replica].push(command), "the command ring is full");
    }

    /// Sends every replica a command that triggers the fault, and then falls silent.
    fn poison(&mut self) {
        self.wakes_at = None;
        let word = |at: usize| u32::from_le_bytes(*POISON[at..].first_chunk().expect("eight octets"));
        let Some(program) = &mut self.program else { return };
        for replica in 0..program.client.replicas() {
            program.client.push(0, replica, &Command::Kick { slot: SlotId(word(0)), generation: word(4) });
        }
    }
}

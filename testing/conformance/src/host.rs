//! The system under test: one replica of the stack and one program, in virtual time.
//!
//! The program's calls go through the client that `libatoll.so` contains ([`atoll_sockets::client`]);
//! descriptors and blocking are implemented here.

mod datagrams;
mod options;
mod out;
mod polls;
mod streams;

use std::collections::{BTreeMap, VecDeque};

use atoll_base::{Endpoint, Epoch, FlowKey, FourTuple, Instant, ReplicaId, SessionId};
use atoll_ip::{ChecksumOffload, Ip, V6Config};
use atoll_ipc::HeapMemory;
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::page::{
    APP_PAGE_BYTES, AppPage, REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackFacts, StackPage,
};
use atoll_sockets::client::Client;
use atoll_sockets::client::object::{Kind, Object, Socket};
use atoll_sockets::client::simulated::{Moment, Opening, Simulated, joined};
use atoll_sockets::options::Name;
use atoll_sockets::{Errno, Failure};
use atoll_testkit::Front;
use atoll_transport::{Config, EcnMode, FastOpenSides, Secrets, Transport};

use crate::wire::{self, Family, Frame, Sent};
use out::Out;

pub use options::Known;
pub use polls::Control;

/// When the clock of every script starts: long enough after 0 for timers that reach back.
pub const START: Instant = Instant::from_millis(1_000_000);
/// The port that `bind(fd, ..., ...)` binds to, and that `connect(fd, ..., ...)` connects to.
pub const PORT: u16 = 8080;
/// The most attempts to get the stack's answer to a call.
const ANSWERS_MAX: usize = 8;
/// The size of the arena that the program shares with the replica.
const ARENA: ArenaConfig = ArenaConfig { slots: 64, send_log2: 20, receive_log2: 20 };

/// The settings of the stack that a script may change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// The address family of the two ends.
    pub family: Family,
    /// The largest packet that the link carries, in octets.
    pub mtu: Option<u16>,
    /// The send buffer in octets: initial and largest size.
    pub send: Option<(u32, u32)>,
    /// Explicit congestion notification, as Linux's `tcp_ecn`.
    pub ecn: Option<u32>,
    /// The receive buffer in octets: initial and largest size.
    pub receive: Option<(u32, u32)>,
    /// `net.ipv4.tcp_fastopen`.
    pub fast_open: Option<u32>,
    /// `net.ipv4.tcp_notsent_lowat`.
    pub unsent_low: Option<u32>,
    /// `net.ipv4.tcp_congestion_control`, by its number.
    pub congestion: u32,
    /// Whether the transport has a part of IP, and an IP server the rest.
    pub ip_apart: bool,
}

/// The incarnation of the only replica; `KEY` is the key of its flow hash.
const EPOCH: Epoch = Epoch(1);
const KEY: FlowKey = FlowKey { k0: 1, k1: 2 };
/// The program's session.
const SESSION: SessionId = SessionId(1);
/// The key of the stack's Fast Open cookies.
const COOKIE_KEY: [u8; 16] = [8; 16];

/// Returns the Fast Open cookie that the stack gives to the other end.
pub fn cookie_of_peer(is_v6: bool) -> Vec<u8> {
    let family = if is_v6 { Family::V6 } else { Family::V4 };
    let tuple =
        FourTuple { local: Endpoint::at(family.local(), 0), remote: Endpoint::at(family.remote(), 0) };
    atoll_tcp::fast_open_cookie(&COOKIE_KEY, &tuple, START).bytes().to_vec()
}

/// The result of a call; [`Failure::WouldBlock`] means that it has not returned yet.
pub type Outcome = Result<i64, Failure>;

/// A descriptor of the program.
#[derive(Clone, Copy, Debug)]
struct File {
    /// The object of the client behind the descriptor.
    object: u32,
    /// The octets of a blocking write that were already taken.
    written: usize,
}

/// The stack and the program.
pub struct Host {
    now: Instant,
    family: Family,
    congestion: u32,
    unsent_low: Option<u32>,
    transport: Transport<HeapMemory>,
    front: Option<Front>,
    out: Out,
    /// The frames that were sent and not processed yet.
    wire: VecDeque<Vec<u8>>,
    client: Client<Simulated>,
    clock: Moment,
    files: BTreeMap<i32, File>,
    /// The descriptors by the numbers of the script.
    names: BTreeMap<i32, i32>,
    /// The sender of the datagram that was received last.
    last_peer: Option<Endpoint>,
    /// The send and receive buffers of new connections, in octets.
    buffers: (u32, u32),
    /// The packets that were sent and not compared yet.
    pub sent: VecDeque<(Instant, Sent)>,
}

impl Host {
    /// Creates a stack without connections.
    pub fn new(settings: &Settings) -> Host {
        let whole = || Ip::new(network(settings), 7, START).expect("a valid network");
        let half = || atoll_ip::Config { apart: true, sibling: (1, 2), ..network(settings) };
        let (ip, front) = match settings.ip_apart {
            true => (Ip::new(half(), 7, START).expect("a valid network"), Some(Front::new(whole()))),
            false => (whole(), None),
        };
        let page = ReplicaPage(HeapMemory::new(REPLICA_PAGE_BYTES));
        page.announce(ReplicaId(0), EPOCH);
        let secrets =
            Secrets { sequence: [7; 16], fast_open: COOKIE_KEY, leases: [3; 16], table: 5, ports: 9 };
        let config = config(settings);
        let buffers = (config.send_limit.0, config.receive_capacity.0);
        let mut transport = Transport::new(config, secrets, ip, page.clone(), START);
        let layout = ARENA.layout();
        let arena = HeapMemory::new(layout.total);
        let app_page = AppPage(HeapMemory::new(APP_PAGE_BYTES));
        transport.open_session(
            START,
            (SESSION, User::privileged(0)),
            layout,
            arena.clone(),
            app_page.clone(),
        );
        let (client, clock) = joined(SESSION.0, ARENA, stack_page(settings), app_page, (page.0, arena));
        let mut host = Host {
            now: START,
            family: settings.family,
            congestion: settings.congestion,
            unsent_low: settings.unsent_low,
            transport,
            front,
            out: Out::default(),
            wire: VecDeque::new(),
            client,
            clock,
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            last_peer: None,
            buffers,
            sent: VecDeque::new(),
        };
        host.step();
        host
    }

    /// Returns the current time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the address family of the two ends.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Returns when the stack's next timer expires.
    pub fn next_timeout(&self) -> Option<Instant> {
        let front = self.front.as_ref().and_then(Front::next_timeout);
        self.transport.next_timeout().into_iter().chain(front).min()
    }

    /// Sets the clock to `to`, at most the next timer's time, and runs the stack.
    pub fn advance(&mut self, to: Instant) {
        self.now = self.now.max(to);
        self.step();
    }

    /// Delivers a frame to the stack.
    pub fn inject(&mut self, frame: &[u8]) {
        self.hear(frame);
        self.step();
    }

    fn hear(&mut self, frame: &[u8]) {
        let Some(front) = &mut self.front else {
            self.transport.handle_frame(self.now, frame, ChecksumOffload::Unknown, false);
            return;
        };
        let (mut sent, delivered) = front.hear(self.now, ChecksumOffload::Unknown, frame);
        for (offload, frame) in delivered {
            self.transport.handle_frame(self.now, &frame, offload, false);
        }
        self.wire.append(&mut sent);
    }

    /// Notes that the script calls the descriptor `live` by the number `name`.
    pub fn name_descriptor(&mut self, name: i32, live: i32) {
        self.names.insert(name, live);
    }

    /// Returns the descriptor that the script means; an unknown one keeps its number.
    pub fn descriptor(&self, name: i32) -> i32 {
        self.names.get(&name).copied().unwrap_or(name)
    }

    /// Runs the stack until it has nothing to do at the current time.
    pub fn step(&mut self) {
        self.clock.set(self.now);
        loop {
            self.client.poll_due();
            let mut any = self.transport.handle_commands(self.now, 64);
            self.transport.handle_timers(self.now);
            self.transport.flush(self.now, &mut self.out);
            self.transport.take_bells(|_, _| {});
            let mut frames = std::mem::take(&mut self.out.0);
            if let Some(front) = &mut self.front {
                let (sent, errors) = front.round(self.now, self.transport.ip_mut(), frames);
                errors.iter().for_each(|error| self.transport.handle_network_error(self.now, error, &[]));
                frames = sent;
            }
            self.wire.append(&mut frames);
            while let Some(frame) = self.wire.pop_front() {
                any = true;
                match wire::read(&frame) {
                    Frame::Sent(sent) => self.sent.push_back((self.now, sent)),
                    Frame::Question(answer) => {
                        self.hear(&answer);
                    }
                    Frame::Other => {}
                }
            }
            any |= self.client.has_event();
            self.client.drain();
            if !any {
                return;
            }
        }
    }

    /// Waits for the stack's answer to a call.
    fn finish(&mut self, mut opening: Opening) -> Result<(), Failure> {
        for _ in 0..ANSWERS_MAX {
            self.step();
            match opening.poll(&mut self.client) {
                Err(Failure::WouldBlock) => {}
                result => {
                    self.step();
                    return result;
                }
            }
        }
        Err(Failure::WouldBlock)
    }

    /// Adds a descriptor; returns its number.
    fn add(&mut self, object: u32) -> i64 {
        let fd = (3..).find(|fd| !self.files.contains_key(fd)).expect("there are numbers");
        self.files.insert(fd, File { object, written: 0 });
        fd.into()
    }

    /// Returns the object behind a descriptor.
    fn object(&self, fd: i32) -> Result<u32, Errno> {
        self.files.get(&fd).map(|file| file.object).ok_or(Errno::EBADF)
    }

    fn socket_of(&self, fd: i32) -> Option<&Socket> {
        self.client.socket(self.object(fd).ok()?)
    }

    /// Calls socket(2).
    pub fn socket(&mut self, protocol: Protocol, nonblocking: bool) -> Outcome {
        let is_v6 = self.family != Family::V4;
        let object = self.client.insert(Object::socket(protocol, is_v6, nonblocking));
        if let Some(Socket { options, .. }) = self.client.socket_mut(object) {
            // Every bind may take the port of a connection that has ended.
            options.set(Name::ReuseAddr, 1);
            if protocol == Protocol::Tcp {
                options.set(Name::Congestion, self.congestion.into());
                options.set(Name::UnsentLow, self.unsent_low.unwrap_or_default().into());
            }
        }
        Ok(self.add(object))
    }

    /// Returns the receiver of a datagram that the script leaves open: the last sender.
    pub fn someone(&self) -> Endpoint {
        self.last_peer.unwrap_or(Endpoint::at(self.family.remote(), PORT))
    }

    /// Returns whether a descriptor is a datagram socket.
    pub fn is_datagram(&self, fd: i32) -> bool {
        self.socket_of(fd).is_some_and(|socket| socket.protocol == Protocol::Udp)
    }

    /// Returns whether a socket is neither connected nor listening.
    pub fn is_fresh(&self, fd: i32) -> bool {
        self.socket_of(fd).is_some_and(|socket| matches!(socket.kind, Kind::Fresh | Kind::Bound))
    }

    /// Returns whether O_NONBLOCK is set.
    pub fn is_nonblocking(&self, fd: i32) -> bool {
        self.object(fd).is_ok_and(|object| self.client.is_nonblocking(object))
    }

    /// Sets or clears O_NONBLOCK.
    pub fn set_nonblocking(&mut self, fd: i32, nonblocking: bool) -> Outcome {
        let object = self.object(fd)?;
        self.client.object_mut(object).ok_or(Errno::EBADF)?.nonblocking = nonblocking;
        Ok(0)
    }
}

fn config(settings: &Settings) -> Config {
    let mut config = Config::new(ReplicaId(0), 1, EPOCH, KEY);
    if let Some((first, most)) = settings.send {
        config.send_limit = (first.min(most), most);
    }
    match settings.ecn {
        Some(0) => config.ecn = EcnMode::Off,
        Some(1) => config.ecn = EcnMode::Request,
        Some(3) => config.ecn = EcnMode::RequestAccurate,
        _ => {}
    }
    if let Some(receive) = settings.receive {
        config.receive_capacity = receive;
    }
    if let Some(bits) = settings.fast_open {
        config.fast_open = FastOpenSides::from_bits(bits);
    }
    config
}

fn network(settings: &Settings) -> atoll_ip::Config {
    let mut config = atoll_ip::Config::new(wire::LOCAL_MAC, wire::LOCAL, wire::PREFIX_LEN);
    config.gateway = Some(wire::GATEWAY);
    config.mtu = settings.mtu.unwrap_or(config.mtu);
    config.v6 = (settings.family == Family::V6).then_some(V6Config {
        address: Some((wire::LOCAL_V6, wire::PREFIX_LEN_V6)),
        gateway: Some(wire::GATEWAY_V6),
        autoconf: false,
    });
    config
}

/// Returns the page on which a supervisor describes the stack.
fn stack_page(settings: &Settings) -> StackPage<HeapMemory> {
    let page = StackPage(HeapMemory::new(STACK_PAGE_BYTES));
    let network = network(settings);
    page.write_facts(&StackFacts {
        replicas: 1,
        addr: wire::LOCAL,
        prefix_len: wire::PREFIX_LEN,
        gateway: wire::GATEWAY,
        mtu: network.mtu,
        key: KEY,
        ..StackFacts::default()
    });
    page
}

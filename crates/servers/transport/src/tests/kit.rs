//! The kit of the tests: stacks, a wire between them, and applications that the tests control.

use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;

use atoll_base::{
    Addr, Duration, Endpoint, Epoch, FlowKey, FourTuple, Instant, ReplicaId, Rng, SessionId, SlotId,
};
use atoll_ip::{ChecksumOffload, Ip, V6Config};
use atoll_ipc::arena::{ArenaConfig, ArenaLayout, COMMANDS, EVENTS};
use atoll_ipc::buffer::Extents;
use atoll_ipc::command::{CloseMode, Protocol};
use atoll_ipc::control::User;
use atoll_ipc::ledger::{ConnectionRecord, Ledger, LedgerConfig, Work};
use atoll_ipc::page::{APP_PAGE_BYTES, AppPage, REPLICA_PAGE_BYTES, ReplicaPage, Stat};
use atoll_ipc::ring::{Consumer, Producer};
use atoll_ipc::slot::{Slot, SlotState};
use atoll_ipc::{Cause, Command, Event, HeapMemory, Memory, Ready};
use atoll_testkit::Front;
use atoll_wire::Mac;

use super::front::is_ip_apart;
use crate::{Adoption, Config, FrameSink, Offload, Recovery, Secrets, TextRef, Transport};

pub(crate) const ARENA: ArenaConfig = ArenaConfig { slots: 1024, send_log2: 22, receive_log2: 22 };

pub(crate) fn addr(host: u8) -> u32 {
    0x0a00_0000 | u32::from(host)
}

pub(crate) fn addr_v6(host: u8) -> Addr {
    Addr::from_octets([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host])
}

/// A stack of one replica, and the frames it has sent.
pub(crate) struct Stack {
    pub(crate) transport: Transport<HeapMemory>,
    pub(crate) page: ReplicaPage<HeapMemory>,
    pub(crate) out: Out,
    pub(crate) bells: Vec<(SessionId, u32)>,
    /// The IP server, if that is apart.
    front: Option<Front>,
    /// This field and those below are what a successor needs.
    host: u8,
    config: Config,
    network: atoll_ip::Config,
    ledger: Option<HeapMemory>,
}

/// The ledger of stacks whose servers die.
const LEDGER: LedgerConfig = LedgerConfig { connections: 256, requests: 256, text_units: 256 };

#[derive(Default)]
pub(crate) struct Out {
    pub(crate) outside: VecDeque<Vec<u8>>,
    pub(crate) inside: VecDeque<Vec<u8>>,
    pub(crate) segment_max: u32,
    /// The frames that may still be sent before the link is full; `None` means no limit.
    pub(crate) room: Option<usize>,
    /// The key of flows that the internal link refuses if they belong to an odd group.
    pub(crate) internal_full_for: Option<FlowKey>,
}

impl Out {
    fn take_room(&mut self) -> bool {
        match &mut self.room {
            Some(0) => false,
            Some(room) => {
                *room -= 1;
                true
            }
            None => true,
        }
    }
}

fn whole(headers: &[u8], text: &TextRef<'_, HeapMemory>) -> Vec<u8> {
    let mut frame = headers.to_vec();
    frame.resize(headers.len() + text.len(), 0);
    text.copy_to(&mut frame[headers.len()..]);
    frame
}

impl FrameSink<HeapMemory> for Out {
    fn send(&mut self, headers: &[u8], text: TextRef<'_, HeapMemory>, offload: Offload) -> bool {
        assert!(offload.gso_size.is_none_or(|size| text.len() > usize::from(size)));
        if !self.take_room() {
            return false;
        }
        self.outside.push_back(whole(headers, &text));
        true
    }

    fn send_internal(&mut self, headers: &[u8], text: TextRef<'_, HeapMemory>, _offload: Offload) -> bool {
        let frame = whole(headers, &text);
        if let Some(key) = self.internal_full_for
            && let Ok((segment, _)) = atoll_wire::tcp::parse(&frame[34..])
        {
            let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().expect("four bytes"));
            let remote = Endpoint::new(word(26), segment.src_port);
            let local = Endpoint::new(word(30), segment.dst_port);
            if key.group(&FourTuple { local, remote }).0 % 2 == 1 {
                return false;
            }
        }
        self.inside.push_back(frame);
        true
    }

    fn segment_max(&self) -> u32 {
        self.segment_max
    }
}

impl Stack {
    pub(crate) fn new(host: u8) -> Stack {
        Stack::with(host, |_| {})
    }

    /// Creates a stack that uses IPv6 on its link, too.
    pub(crate) fn v6(host: u8) -> Stack {
        let v6 =
            V6Config { address: Some((addr_v6(host), 64)), gateway: Some(addr_v6(0xfe)), autoconf: false };
        Stack::with_network(host, |_| {}, |ip| ip.v6 = Some(v6))
    }

    /// Creates a stack whose IPv4 address comes and goes, as another replica reports.
    pub(crate) fn told(host: u8) -> Stack {
        Stack::with_network(host, |_| {}, |ip| (ip.dhcp, ip.sibling) = (true, (1, 2)))
    }

    pub(crate) fn with(host: u8, change: impl FnOnce(&mut Config)) -> Stack {
        Stack::with_network(host, change, |_| {})
    }

    fn with_network(
        host: u8,
        change: impl FnOnce(&mut Config),
        network: impl FnOnce(&mut atoll_ip::Config),
    ) -> Stack {
        let mut config = Config::new(ReplicaId(0), 1, Epoch(3), FlowKey { k0: 1, k1: 2 });
        change(&mut config);
        let now = Instant::from_millis(1000);
        let mut ip_config = atoll_ip::Config::new(Mac([2, 0, 0, 0, 0, host]), addr(host), 24);
        network(&mut ip_config);
        let front =
            is_ip_apart().then(|| Front::new(Ip::new(ip_config.clone(), 7, now).expect("a valid network")));
        ip_config.apart = front.is_some();
        let ip = Ip::new(ip_config.clone(), 7, now).expect("a valid network");
        let page = ReplicaPage(HeapMemory::new(REPLICA_PAGE_BYTES));
        let secrets = Secrets {
            sequence: [host; 16],
            fast_open: [host; 16],
            table: 5,
            leases: [9; 16],
            ports: host.into(),
        };
        let transport = Transport::new(config, secrets, ip, page.clone(), now);
        let (out, bells) = (Out::default(), Vec::new());
        Stack { transport, page, out, bells, front, host, config, network: ip_config, ledger: None }
    }

    /// Lets the stack's server die: see [`Stack::restart`].
    pub(crate) fn mortal(mut self) -> Stack {
        let ledger = HeapMemory::new(LEDGER.bytes());
        self.transport.set_ledger(Ledger::open(ledger.clone(), LEDGER, Epoch(3)).expect("a ledger"));
        self.ledger = Some(ledger);
        self
    }

    /// Changes a record of the ledger, as if it had been overwritten.
    pub(crate) fn damage(&mut self, place: u32, change: impl FnOnce(&mut ConnectionRecord)) {
        let memory = self.ledger.clone().expect("it is mortal");
        let mut ledger = Ledger::open(memory, LEDGER, Epoch(3)).expect("a ledger");
        let mut record = ledger.connection(place).expect("there is one").expect("it is good");
        change(&mut record);
        ledger.stage_connection(place, Some(&record));
        ledger.commit();
    }

    /// Changes the configuration of the stack's servers from the next one on.
    pub(crate) fn changed(mut self, change: impl FnOnce(&mut Config)) -> Stack {
        change(&mut self.config);
        self
    }

    /// Lets the server die between two rounds, and another one take its place. Frames that it had sent and
    /// that were not delivered are lost.
    pub(crate) fn restart(&mut self, now: Instant, apps: &[&App], recovery: Recovery) -> Adoption {
        self.succeed(now, apps, recovery, false)
    }

    /// Lets the server die by its own fault while it is working on this, and another one take its place.
    pub(crate) fn die_of(&mut self, now: Instant, apps: &[&App], work: Work) -> Adoption {
        self.transport.durability.mark(work);
        self.succeed(now, apps, Recovery::Stateful, true)
    }

    /// Writes what has changed to the ledger, as a flush begins with, and stops there.
    pub(crate) fn commit(&mut self) {
        let Transport { durability, connections, applications, .. } = &mut self.transport;
        let dirty = connections.take_dirty();
        durability.commit(&dirty, connections, applications);
        connections.put_back_dirty(dirty);
    }

    /// Makes a record of the ledger unreadable.
    pub(crate) fn spoil(&mut self, place: u32) {
        let memory = self.ledger.as_ref().expect("it is mortal");
        // docs/ledger.md: the journal is before the connections.
        let connections = (20_480 + LEDGER.connections.min(1 << 14) as usize * 272).next_multiple_of(4096);
        let at = connections + place as usize * 256 + 64;
        memory.store32(at, memory.load32(at) ^ 0x40);
    }

    fn succeed(&mut self, now: Instant, apps: &[&App], recovery: Recovery, is_blamed: bool) -> Adoption {
        let ledger = self.ledger.clone().expect("it is mortal");
        let mut ip = Ip::new(self.network.clone(), 8, now).expect("a valid network");
        ip.resume(now, &crate::past(&self.page.network(), now));
        let secrets = Secrets {
            sequence: [self.host; 16],
            fast_open: [self.host; 16],
            leases: [9; 16],
            table: 6,
            ports: 77,
        };
        let mut next = Transport::new(self.config, secrets, ip, self.page.clone(), now);
        // The epoch is the same: applications of the kit know no other.
        next.set_ledger(Ledger::open(ledger, LEDGER, Epoch(3)).expect("a ledger"));
        for app in apps {
            next.open_session(now, (app.id, app.user), app.layout, app.arena.clone(), app.page.clone());
        }
        self.transport = next;
        self.out.outside.clear();
        self.out.inside.clear();
        self.transport.adopt(now, recovery, is_blamed)
    }

    pub(crate) fn round(&mut self, now: Instant) {
        self.transport.handle_commands(now, 4096);
        self.transport.handle_timers(now);
        self.flush(now);
        let bells = &mut self.bells;
        self.transport.take_bells(|session, bell| bells.push((session, bell)));
    }

    /// Sends what the transport has to send.
    pub(crate) fn flush(&mut self, now: Instant) {
        let before = core::mem::take(&mut self.out.outside);
        self.transport.flush(now, &mut self.out);
        let mut frames = core::mem::replace(&mut self.out.outside, before);
        if let Some(front) = &mut self.front {
            let (sent, errors) = front.round(now, self.transport.ip_mut(), frames);
            errors.iter().for_each(|error| self.transport.handle_network_error(now, error));
            frames = sent;
        }
        self.out.outside.append(&mut frames);
    }

    /// Handles a frame of the outside link.
    pub(crate) fn hear(&mut self, now: Instant, frame: &[u8], offload: ChecksumOffload) {
        if let Some(front) = &mut self.front {
            let (mut sent, delivered) = front.hear(now, offload, frame);
            self.out.outside.append(&mut sent);
            for (offload, frame) in delivered {
                self.transport.handle_frame(now, &frame, offload, false);
            }
            return;
        }
        self.transport.handle_frame(now, frame, offload, false);
        while let Some(whole) = self.transport.ip_mut().poll_whole() {
            self.transport.handle_frame(now, &whole.bytes, ChecksumOffload::Unknown, false);
        }
    }

    /// Returns the whole of IP, wherever it is.
    pub(crate) fn whole_ip(&mut self) -> &mut Ip {
        match &mut self.front {
            Some(front) => front.ip_mut(),
            None => self.transport.ip_mut(),
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let front = self.front.as_ref().and_then(Front::next_timeout);
        self.transport.next_timeout().into_iter().chain(front).min()
    }

    pub(crate) fn stat(&self, stat: Stat) -> u64 {
        self.transport.stat(stat)
    }

    pub(crate) fn buffer_bytes(&mut self) -> u64 {
        self.transport.publish_stats();
        self.stat(Stat::BufferBytes)
    }
}

/// Stacks on one wire.
pub(crate) struct Net {
    pub(crate) now: Instant,
    pub(crate) stacks: Vec<Stack>,
    pub(crate) rng: Rng,
    /// The probability of losing a frame on the outside link, per million.
    pub(crate) loss: u32,
}

impl Net {
    pub(crate) fn new(stacks: Vec<Stack>) -> Net {
        Net { now: Instant::from_millis(1000), stacks, rng: Rng::new(1), loss: 0 }
    }

    pub(crate) fn stack(&mut self, n: usize) -> &mut Stack {
        &mut self.stacks[n]
    }

    /// Runs one round of every stack, and delivers what was sent before. Returns whether a frame was
    /// delivered.
    pub(crate) fn step(&mut self) -> bool {
        let mut any = false;
        for i in 0..self.stacks.len() {
            self.stacks[i].round(self.now);
            for frame in core::mem::take(&mut self.stacks[i].out.inside) {
                any = true;
                self.stacks[i].transport.handle_frame(self.now, &frame, ChecksumOffload::Partial, true);
            }
            for frame in core::mem::take(&mut self.stacks[i].out.outside) {
                any = true;
                if self.rng.chance_per_million(self.loss) {
                    continue;
                }
                for (_, other) in self.stacks.iter_mut().enumerate().filter(|(j, _)| *j != i) {
                    other.hear(self.now, &frame, ChecksumOffload::Partial);
                }
            }
        }
        any
    }

    /// Runs until nothing is sent any more, without waiting for timers.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            self.now += Duration::from_micros(10);
            if !self.step() {
                self.step();
                self.stacks.iter().for_each(|stack| stack.transport.connections.check_invariants());
                return;
            }
        }
        panic!("the stacks do not come to rest");
    }

    /// Advances the time to the next timer, but not beyond `limit`.
    pub(crate) fn advance(&mut self, limit: Instant) {
        let next = self.stacks.iter().filter_map(Stack::next_timeout).min();
        self.now = next.unwrap_or(limit).min(limit).max(self.now + Duration::from_micros(10));
        self.settle();
    }

    pub(crate) fn wait(&mut self, duration: Duration) {
        let until = self.now + duration;
        while self.now < until {
            self.advance(until);
        }
    }
}

/// A socket of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket {
    pub(crate) slot: SlotId,
    pub(crate) generation: u32,
}

/// An application, with its half of an arena.
pub(crate) struct App {
    pub(crate) id: SessionId,
    pub(crate) user: User,
    pub(crate) arena: HeapMemory,
    pub(crate) layout: ArenaLayout,
    pub(crate) page: AppPage<HeapMemory>,
    pub(crate) commands: Producer,
    pub(crate) events: Consumer,
    next_slot: u32,
    send: BTreeMap<SlotId, Extents>,
    pub(crate) offers: VecDeque<Socket>,
    /// The peer of each connection that was offered.
    pub(crate) peers: BTreeMap<SlotId, Endpoint>,
    pub(crate) ready: BTreeMap<SlotId, Ready>,
    pub(crate) done: Vec<Socket>,
    pub(crate) verdicts: Vec<bool>,
    pub(crate) removed: usize,
    pub(crate) replies: Vec<Event>,
}

impl App {
    pub(crate) fn attach(stack: &mut Stack, id: u32) -> App {
        App::attach_with(stack, id, ARENA)
    }

    pub(crate) fn attach_with(stack: &mut Stack, id: u32, config: ArenaConfig) -> App {
        App::attach_as(stack, id, User::privileged(0), config)
    }

    pub(crate) fn attach_as(stack: &mut Stack, id: u32, user: User, config: ArenaConfig) -> App {
        let layout = config.layout();
        let arena = HeapMemory::new(layout.total);
        let page = AppPage(HeapMemory::new(APP_PAGE_BYTES));
        let id = SessionId(id);
        stack.transport.open_session(Instant::ZERO, (id, user), layout, arena.clone(), page.clone());
        App {
            id,
            user,
            commands: Producer::resume(&arena, layout.commands, COMMANDS),
            events: Consumer::resume(&arena, layout.events, EVENTS),
            arena,
            layout,
            page,
            next_slot: 0,
            send: BTreeMap::new(),
            offers: VecDeque::new(),
            peers: BTreeMap::new(),
            ready: BTreeMap::new(),
            done: Vec::new(),
            verdicts: Vec::new(),
            removed: 0,
            replies: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, command: Command) {
        assert!(self.commands.push(&self.arena, 1, &command.encode()), "the command ring is full");
    }

    pub(crate) fn slot(&self, socket: Socket) -> Slot<'_, HeapMemory> {
        Slot::new(&self.arena, &self.layout, socket.slot).expect("a slot")
    }

    pub(crate) fn listen(&mut self, lease: u64, local: Endpoint, backlog: u32) {
        self.listen_only(lease, local, backlog);
        self.push(Command::AcceptConnection { lease });
    }

    pub(crate) fn listen_only(&mut self, lease: u64, local: Endpoint, backlog: u32) {
        let protocol = Protocol::Tcp;
        self.push(Command::Bind {
            token: 1,
            lease,
            protocol,
            local,
            reuse_addr: true,
            reuse_port: false,
            v6_only: false,
        });
        self.push(Command::Listen {
            token: 2,
            lease,
            local,
            backlog,
            reuse_port: false,
            defer_accept: 0,
            v6_only: false,
        });
    }

    /// Returns a slot of the application's half, under a new generation.
    pub(crate) fn open_slot(&mut self) -> Socket {
        let socket = Socket { slot: SlotId(self.next_slot), generation: 1 };
        self.next_slot += 1;
        let slot = self.slot(socket);
        slot.app_reset(1);
        slot.set_holders(1);
        socket
    }

    /// Opens a given slot, whatever is in it.
    pub(crate) fn open_slot_at(&mut self, slot: u32, generation: u32) -> Socket {
        let socket = Socket { slot: SlotId(slot), generation };
        let slot = self.slot(socket);
        slot.app_reset(generation);
        slot.set_holders(1);
        socket
    }

    /// Opens a connection in a slot that was used before.
    pub(crate) fn connect_in(&mut self, slot: u32, remote: Endpoint) -> Socket {
        let generation = self.slot(Socket { slot: SlotId(slot), generation: 0 }).app_generation() + 1;
        let socket = self.open_slot_at(slot, generation);
        let slot = socket.slot;
        self.push(Command::Connect { slot, generation, lease: 0, local: Endpoint::default(), remote });
        socket
    }

    pub(crate) fn connect(&mut self, remote: Endpoint) -> Socket {
        let socket = self.open_slot();
        let Socket { slot, generation } = socket;
        self.push(Command::Connect { slot, generation, lease: 0, local: Endpoint::default(), remote });
        socket
    }

    /// Takes the events that have come.
    pub(crate) fn poll(&mut self) {
        while let Some((epoch, payload)) = self.events.pop(&self.arena) {
            assert_eq!(epoch, 3);
            match Event::decode(&payload).expect("events are well-formed") {
                Event::Ready { slot, ready, .. } => *self.ready.entry(slot).or_default() |= ready,
                Event::ConnectionAvailable { slot, generation, remote, .. } => {
                    self.peers.insert(slot, remote);
                    self.offers.push_back(Socket { slot, generation });
                }
                Event::ClaimVerdict { confirmed, .. } => self.verdicts.push(confirmed),
                Event::AcceptorRemoved { .. } => self.removed += 1,
                Event::SlotDone { slot, generation } => {
                    if let Some(mut extents) = self.send.remove(&slot) {
                        extents.release_all(&self.layout.send_pool.state_in(&self.arena));
                    }
                    self.done.push(Socket { slot, generation });
                }
                reply => self.replies.push(reply),
            }
        }
        self.events.publish(&self.arena);
    }

    /// Claims the oldest offer. The bool says whether the claim certainly holds.
    pub(crate) fn claim(&mut self) -> Option<(Socket, bool)> {
        self.poll();
        let socket = self.offers.pop_front()?;
        let slot = self.slot(socket);
        slot.app_reset(socket.generation);
        slot.set_holders(1);
        let holds = slot.claim(socket.generation);
        self.push(Command::Claim { slot: socket.slot, generation: socket.generation });
        Some((socket, holds))
    }

    pub(crate) fn accept(&mut self) -> Option<Socket> {
        self.claim().map(|(socket, holds)| {
            assert!(holds, "claimed in time");
            socket
        })
    }

    pub(crate) fn kick(&mut self, socket: Socket) {
        self.push(Command::Kick { slot: socket.slot, generation: socket.generation });
    }

    /// Accepts all connections that come within this number of tenths of a second. Returns how many there
    /// were.
    pub(crate) fn accept_for(&mut self, net: &mut Net, tenths: u32) -> usize {
        let mut accepted = 0;
        for _ in 0..tenths {
            net.wait(Duration::from_millis(100));
            while self.accept().is_some() {
                accepted += 1;
            }
        }
        accepted
    }

    /// Writes as much as there is room for, and returns how much that was.
    pub(crate) fn write(&mut self, socket: Socket, bytes: &[u8]) -> usize {
        let n = self.store(socket, bytes);
        if n > 0 {
            self.kick(socket);
        }
        n
    }

    /// Writes without a command.
    pub(crate) fn store(&mut self, socket: Socket, bytes: &[u8]) -> usize {
        let (tail, acked, limit) = {
            let slot = self.slot(socket);
            (slot.send_tail(), slot.acknowledged(), u64::from(slot.send_limit()))
        };
        // A slot that was opened again may still show what was acknowledged before.
        let acked = acked.min(tail);
        let room = limit.saturating_sub(tail - acked).min(bytes.len() as u64);
        let mut extents = self.send.get(&socket.slot).copied().unwrap_or_default();
        let pool = self.layout.send_pool;
        let end = extents.reserve(&pool.state_in(&self.arena), acked, tail, tail + room, 1 << 20);
        let n = (end - tail) as usize;
        if n > 0 {
            let pieces = extents.pieces(tail, n).expect("reserved");
            pieces.write(&self.arena, self.layout.send_area, &bytes[..n]);
        }
        self.send.insert(socket.slot, extents);
        let slot = self.slot(socket);
        slot.set_send_extents(&extents);
        slot.set_send_tail(tail + n as u64);
        n
    }

    /// Reads what there is.
    pub(crate) fn read(&mut self, socket: Socket) -> Vec<u8> {
        let slot = self.slot(socket);
        let (head, tail) = (slot.receive_head(), slot.receive_tail());
        let mut bytes = std::vec![0; (tail - head) as usize];
        if !bytes.is_empty() {
            let extents = slot.receive_extents(&self.layout).expect("published");
            let pieces = extents.pieces(head, bytes.len()).expect("published octets are covered");
            pieces.read(&self.arena, self.layout.receive_area, &mut bytes);
        }
        slot.set_receive_head(tail);
        self.arena.fence();
        let mark = slot.read_mark();
        if tail >= mark {
            self.kick(socket);
        }
        bytes
    }

    pub(crate) fn shutdown(&mut self, socket: Socket) {
        self.slot(socket).set_app_flags(atoll_ipc::slot::APP_SHUT_SEND);
        self.kick(socket);
    }

    pub(crate) fn close(&mut self, socket: Socket) {
        self.close_as(socket, CloseMode::Graceful);
    }

    pub(crate) fn close_as(&mut self, socket: Socket, mode: CloseMode) {
        self.push(Command::Close { slot: socket.slot, generation: socket.generation, mode });
    }

    pub(crate) fn state(&self, socket: Socket) -> (SlotState, Cause, u32) {
        let slot = self.slot(socket);
        (slot.state(), slot.error(), slot.replica_flags())
    }

    /// Returns the events for the socket since the last call.
    pub(crate) fn take_ready(&mut self, socket: Socket) -> Ready {
        self.poll();
        self.ready.remove(&socket.slot).unwrap_or_default()
    }
}

/// Connects a client to a server on the first stack, at port 80 of any of its addresses. Returns the server's
/// socket and the client's.
pub(crate) fn meet(net: &mut Net, server: &mut App, client: &mut App) -> (Socket, Socket) {
    server.listen(77, Endpoint::new(0, 80), 16);
    net.settle();
    let c = client.connect(Endpoint::new(addr(1), 80));
    net.settle();
    let s = server.accept().expect("offered");
    net.settle();
    (s, c)
}

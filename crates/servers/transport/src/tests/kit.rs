//! The kit of the tests: stacks, and a wire between them. [`super::app`] has the programs that use them,
//! [`super::raw`] what no program sends.

use std::collections::VecDeque;
use std::vec::Vec;

use atoll_base::{Addr, Duration, Endpoint, Epoch, FlowKey, FourTuple, Instant, ReplicaId, Rng, SessionId};
use atoll_ip::{ChecksumOffload, Ip, V6Config};
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::ledger::{ConnectionRecord, Ledger, LedgerConfig, Work};
use atoll_ipc::page::{REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackFacts, StackPage, Stat};
use atoll_ipc::{HeapMemory, Memory};
use atoll_testkit::Front;
use atoll_wire::Mac;

pub(crate) use super::app::{App, Socket, meet};
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

/// The key of flow hashes.
const KEY: FlowKey = FlowKey { k0: 1, k1: 2 };
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
        Stack::v6_with(host, |_| {})
    }

    /// Creates a stack with another configuration that uses IPv6 on its link, too.
    pub(crate) fn v6_with(host: u8, change: impl FnOnce(&mut Config)) -> Stack {
        let v6 =
            V6Config { address: Some((addr_v6(host), 64)), gateway: Some(addr_v6(0xfe)), autoconf: false };
        Stack::with_network(host, change, |ip| ip.v6 = Some(v6))
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
        let mut config = Config::new(ReplicaId(0), 1, Epoch(3), KEY);
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

    /// Returns the page on which a supervisor describes the stack.
    pub(crate) fn facts(&self) -> StackPage<HeapMemory> {
        let page = StackPage(HeapMemory::new(STACK_PAGE_BYTES));
        let (addr, prefix_len) = (if self.network.dhcp { 0 } else { addr(self.host) }, 24);
        let (replicas, mtu, key) = (1, self.network.mtu, KEY);
        page.write_facts(&StackFacts { replicas, addr, prefix_len, mtu, key, ..StackFacts::default() });
        page
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
    pub(crate) fn restart(&mut self, now: Instant, sessions: &[&App], recovery: Recovery) -> Adoption {
        self.succeed(now, sessions, recovery, false)
    }

    /// Lets the server die by its own fault while it is working on this, and another one take its place.
    pub(crate) fn die_of(&mut self, now: Instant, sessions: &[&App], work: Work) -> Adoption {
        self.transport.durability.mark(work);
        self.succeed(now, sessions, Recovery::Stateful, true)
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

    fn succeed(&mut self, now: Instant, sessions: &[&App], recovery: Recovery, is_blamed: bool) -> Adoption {
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
        // The epoch is the same, so that programs do not repeat what the successor has to know by itself.
        next.set_ledger(Ledger::open(ledger, LEDGER, Epoch(3)).expect("a ledger"));
        for session in sessions {
            session.open_at(&mut next, now);
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
            errors.iter().for_each(|error| self.transport.handle_network_error(now, error, &[]));
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

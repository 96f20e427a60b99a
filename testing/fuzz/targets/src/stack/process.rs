//! What does an application do? Socket calls as the library makes them; a hostile one also writes where it should not.

use std::collections::{BTreeMap, VecDeque};

use atoll_base::{Addr, Endpoint, Instant, SessionId, SlotId};
use atoll_ipc::arena::{ArenaConfig, COMMANDS};
use atoll_ipc::command::{CloseMode, Protocol};
use atoll_ipc::control::User;
use atoll_ipc::page::{APP_PAGE_BYTES, AppPage};
use atoll_ipc::ring::{Producer, ring_bytes};
use atoll_ipc::{Command, Event, SocketOption};
use atoll_sockets::listener::{self, Claim, Offer};
use atoll_sockets::port::Port;
use atoll_sockets::stream::{Local, Stream};
use atoll_transport::Transport;
use atoll_udp::{Flags, Record, encode};

use super::memory::SparseMemory;
use super::scribble;
use crate::input::Input;
use crate::ip::{PEER, US};

/// Where the server listens.
pub(crate) const PORT: u16 = 80;
/// Where it connects to.
pub(crate) const REMOTE_PORT: u16 = 2000;
/// Where datagrams come to.
pub(crate) const DATAGRAM_PORT: u16 = 90;
const LEASE: u64 = 77;
/// Small: memory runs out.
const ARENA: ArenaConfig = ArenaConfig { slots: 32, send_log2: 16, receive_log2: 16 };

pub(crate) struct Process {
    pub(crate) id: SessionId,
    port: Port<SparseMemory>,
    arena: SparseMemory,
    commands: Producer,
    page: AppPage<SparseMemory>,
    sockets: BTreeMap<u32, (u32, Local)>,
    offers: VecDeque<Offer>,
    datagrams: Vec<(SlotId, u32)>,
    hostile: bool,
    /// What the server shows may not be what it was.
    doubts: bool,
}

impl Process {
    pub(crate) fn attach(transport: &mut Transport<SparseMemory>, id: SessionId, hostile: bool) -> Process {
        let layout = ARENA.layout();
        let arena = SparseMemory::new(layout.total);
        let page = AppPage(SparseMemory::new(APP_PAGE_BYTES));
        transport.open_session(Instant::ZERO, (id, User::privileged(id.0)), layout, arena.clone(), page.clone());
        Process {
            id,
            commands: Producer::resume(&arena, layout.commands, COMMANDS),
            port: Port::new(arena.clone(), layout),
            arena,
            page,
            sockets: BTreeMap::new(),
            offers: VecDeque::new(),
            datagrams: Vec::new(),
            hostile,
            doubts: false,
        }
    }

    /// From now on the server may show things that are not so: somebody has changed what it remembers.
    pub(crate) fn doubt(&mut self) {
        self.doubts = true;
    }

    /// Another server takes over.
    pub(crate) fn meet(&self, transport: &mut Transport<SparseMemory>, now: Instant) {
        transport.open_session(
            now,
            (self.id, User::privileged(self.id.0)),
            ARENA.layout(),
            self.arena.clone(),
            self.page.clone(),
        );
    }

    pub(crate) fn listen(&mut self) {
        let (local, lease) = (Endpoint::new(0, PORT), LEASE + u64::from(self.id.0));
        let (protocol, reuse_port) = (Protocol::Tcp, true);
        self.push(&Command::Bind { token: 1, lease, protocol, local, reuse_addr: true, reuse_port, v6_only: false });
        self.push(&Command::Listen { token: 2, lease, local, backlog: 1, reuse_port, v6_only: false, defer_accept: 0 });
        self.push(&Command::AcceptConnection { lease });
    }

    /// Takes the events that have come.
    pub(crate) fn poll(&mut self) {
        // A hostile one may have made its own ring endless.
        for _ in 0..10_000 {
            let Some(event) = self.port.next_event() else { break };
            match event {
                Event::ConnectionAvailable { slot, generation, local, remote, .. } if self.offers.len() < 100 => {
                    self.offers.push_back(Offer { replica: 0, slot, generation, local, remote });
                }
                Event::SlotDone { slot, generation } => {
                    self.port.slot_done(slot, generation);
                }
                _ => {}
            }
        }
        self.port.publish();
    }

    pub(crate) fn act(&mut self, input: &mut Input<'_>) {
        if self.hostile && input.byte().is_multiple_of(2) {
            self.misbehave(input);
            return;
        }
        match input.byte() % 16 {
            0 | 1 => self.accept(),
            2 => self.connect(input),
            3 => {
                let command = self.any_command(input);
                self.push(&command);
            }
            4 => self.open_datagram(input),
            _ => self.use_socket(input),
        }
    }

    fn accept(&mut self) {
        let Some(offer) = self.offers.pop_front() else { return };
        let claim = listener::claim(&self.port, &offer, 0, 1);
        if claim != Claim::Gone {
            self.push(&Command::Claim { slot: offer.slot, generation: offer.generation });
            self.sockets.insert(offer.slot.0, (offer.generation, Local::default()));
        }
    }

    fn connect(&mut self, input: &mut Input<'_>) {
        let Some((slot, generation)) = self.port.allocate_slot() else { return };
        if let Some(view) = self.port.slot(slot) {
            view.set_holders(1);
        }
        let remote = if input.byte() < 40 { Endpoint::new(US, PORT) } else { Endpoint::new(PEER, REMOTE_PORT) };
        self.push(&Command::Connect { slot, generation, lease: 0, local: Endpoint::default(), remote });
        self.sockets.insert(slot.0, (generation, Local::default()));
    }

    fn open_datagram(&mut self, input: &mut Input<'_>) {
        let Some((slot, generation)) = self.port.allocate_slot() else { return };
        if let Some(view) = self.port.slot(slot) {
            view.set_holders(1);
        }
        let peer = Endpoint::new(PEER, DATAGRAM_PORT);
        let remote = if input.flip() { peer } else { Endpoint::default() };
        let local = Endpoint::new(0, DATAGRAM_PORT);
        self.push(&Command::UdpOpen {
            slot,
            generation,
            lease: LEASE,
            local,
            remote,
            reuse_port: true,
            v6_only: false,
        });
        // What it writes is one record, and what follows is none.
        let record = Record { len: 8, peer, flags: Flags::NONE };
        let mut local = Local::default();
        if let Some(stream) = Stream::new(&self.port, slot, generation)
            && let Ok(room) = stream.writable(&mut local, 64)
        {
            let mut bytes = encode(&record).to_vec();
            bytes.extend_from_slice(&[7; 8]);
            stream.copy_in(&room, 0, &bytes[..bytes.len().min(room.len)]);
            stream.commit(&room, bytes.len().min(room.len));
        }
        self.push(&Command::Kick { slot, generation });
        self.datagrams.push((slot, generation));
        if self.datagrams.len() > 3 {
            let (slot, generation) = self.datagrams.remove(0);
            self.port.mark_closing(slot, generation);
            self.push(&Command::Close { slot, generation, mode: CloseMode::Graceful });
        }
    }

    fn use_socket(&mut self, input: &mut Input<'_>) {
        if self.sockets.is_empty() {
            return;
        }
        let which = usize::from(input.byte()) % self.sockets.len();
        let Some((slot, (generation, mut local))) =
            self.sockets.iter().nth(which).map(|(slot, value)| (SlotId(*slot), *value))
        else {
            return;
        };
        let Some(stream) = Stream::new(&self.port, slot, generation) else { return };
        match input.byte() % 8 {
            0 | 1 => {
                if let Ok(readable) = stream.readable(&mut local) {
                    let len = readable.len.min(1 + u64::from(input.half()));
                    let mut bytes = vec![0; len as usize];
                    let covered = stream.copy_out(&readable, readable.head, &mut bytes);
                    assert!(covered || self.hostile || self.doubts, "published octets are covered");
                    stream.consume(readable.head + len);
                }
            }
            2..=4 => {
                let want = 1 + usize::from(input.half());
                if let Ok(room) = stream.writable(&mut local, want) {
                    stream.copy_in(&room, 0, &vec![7; room.len.min(want)]);
                    stream.commit(&room, room.len.min(want));
                }
            }
            5 => {
                let _ = stream.shutdown(input.flip(), input.flip());
            }
            6 => {
                let mode = if input.flip() { CloseMode::Abort } else { CloseMode::Graceful };
                self.port.mark_closing(slot, generation);
                self.push(&Command::Close { slot, generation, mode });
                self.sockets.remove(&slot.0);
                return;
            }
            _ => {
                stream.release();
            }
        }
        self.sockets.insert(slot.0, (generation, local));
        self.push(&Command::Kick { slot, generation });
    }

    /// Words where they hurt, commands that are none, positions that lie.
    fn misbehave(&mut self, input: &mut Input<'_>) {
        let layout = *self.port.layout();
        let value = if input.flip() { input.long() } else { input.half().into() };
        let (slot, offset) = (usize::from(input.byte()) % 32, usize::from(input.byte()));
        match input.byte() % 8 {
            0..=2 => scribble(&self.arena, layout.slots + slot * 256 + offset, value),
            3 => scribble(&self.arena, layout.commands + input.word() as usize % ring_bytes(COMMANDS), value),
            4 => scribble(&self.arena, layout.commands + offset, value),
            5 => scribble(&self.arena, input.word() as usize, value),
            6 => scribble(&self.page.0, input.half().into(), value),
            _ => {
                let mut bytes = [0; 56];
                let some = input.bytes(56);
                bytes[..some.len()].copy_from_slice(some);
                self.commands.reload(&self.arena);
                self.commands.push(&self.arena, 1, &bytes);
            }
        }
    }

    fn any_command(&self, input: &mut Input<'_>) -> Command {
        let (slot, generation) = (SlotId(u32::from(input.byte()) % 34), input.byte().into());
        let lease = LEASE + u64::from(input.byte() % 4);
        let ends = [
            Endpoint::new(US, PORT),
            Endpoint::new(0, 0),
            Endpoint::new(0x7f00_0001, PORT),
            Endpoint::new(0, 90),
            Endpoint::new(PEER, REMOTE_PORT),
            Endpoint::new(u32::MAX, 53),
            Endpoint::at(Addr::ANY, PORT),
            Endpoint::at(Addr::LOOPBACK, PORT),
        ];
        let (local, remote) = (input.pick(&ends), input.pick(&ends));
        let (token, backlog) = (input.byte().into(), input.byte().into());
        let (reuse_addr, reuse_port) = (input.flip(), input.flip());
        let value = if input.flip() { input.word() } else { input.byte().into() };
        let v6_only = value & 1 != 0;
        let option = SocketOption::from_u8(1 + input.byte() % 19).unwrap_or(SocketOption::NoDelay);
        match input.byte() % 13 {
            0 => {
                let protocol = if input.flip() { Protocol::Tcp } else { Protocol::Udp };
                Command::Bind { token, lease, protocol, local, reuse_addr, reuse_port, v6_only }
            }
            1 => Command::Release { lease },
            2 => {
                Command::Listen { token, lease, local, backlog, reuse_port, v6_only, defer_accept: input.byte().into() }
            }
            3 => Command::AcceptConnection { lease },
            4 => Command::StopAccepting { lease },
            5 => Command::Claim { slot, generation },
            6 => Command::Connect { slot, generation, lease, local, remote },
            7 => Command::UdpOpen { slot, generation, lease, local, remote, reuse_port, v6_only },
            8 => Command::Kick { slot, generation },
            9 => Command::SetOption { slot, generation, option, value },
            10 => Command::SetListenerOption { lease, option, value },
            11 => Command::AskConnection { lease, takes: reuse_addr },
            _ => Command::Info { token, slot, generation },
        }
    }

    fn push(&mut self, command: &Command) {
        // A full ring makes a process wait; here it forgets.
        self.port.push(command);
    }
}

//! A transport server between scripted applications (with arenas on the heap) and a wire that tests can hold and spoil.

use std::collections::VecDeque;
use std::vec::Vec;
use std::{assert_eq, vec};

use atoll_base::{Duration, Endpoint, Epoch, FlowKey, Instant, ReplicaId, Rng, SessionId, SlotId};
use atoll_ip::{ChecksumOffload, Ip};
use atoll_ipc::arena::{ArenaConfig, ArenaLayout, COMMANDS, EVENTS};
use atoll_ipc::buffer::Extents;
use atoll_ipc::command::{CloseMode, Command, Protocol};
use atoll_ipc::page::{APP_PAGE_BYTES, AppPage, REPLICA_PAGE_BYTES, ReplicaPage};
use atoll_ipc::ring::{Consumer, Producer};
use atoll_ipc::slot::{APP_SHUT_SEND, REPLICA_CLOSED, REPLICA_FIN, Slot};
use atoll_ipc::{Cause, Event, HeapMemory, Memory};
use atoll_wire::Mac;

use crate::{Config, FrameSink, Offload, Secrets, TextRef, Transport};

mod accept;
mod hostile;
mod streams;

const SERVER: u32 = 0x0a00_0001;
const CLIENT: u32 = 0x0a00_0002;
const LAYOUT: ArenaConfig = ArenaConfig { slots: 64, send_log2: 22, receive_log2: 22 };

/// One replica, and the frames that it wants to send.
struct Stack {
    transport: Transport<HeapMemory>,
    wire: Wire,
}

#[derive(Default)]
struct Wire {
    outside: VecDeque<(Vec<u8>, bool)>,
    inside: VecDeque<(Vec<u8>, bool)>,
}

impl FrameSink<HeapMemory> for Wire {
    fn send(&mut self, headers: &[u8], text: TextRef<'_, HeapMemory>, offload: Offload) -> bool {
        self.outside.push_back((flat(headers, &text), offload.needs_checksum));
        true
    }

    fn send_internal(&mut self, headers: &[u8], text: TextRef<'_, HeapMemory>, offload: Offload) -> bool {
        self.inside.push_back((flat(headers, &text), offload.needs_checksum));
        true
    }

    fn segment_max(&self) -> u32 {
        0
    }
}

fn flat(headers: &[u8], text: &TextRef<'_, HeapMemory>) -> Vec<u8> {
    let mut frame = headers.to_vec();
    match text {
        TextRef::None => {}
        TextRef::Slice(bytes) => frame.extend_from_slice(bytes),
        TextRef::Pieces(memory, parts) => {
            for &(at, len) in parts.iter() {
                let start = frame.len();
                frame.resize(start + len, 0);
                memory.read(at, &mut frame[start..]);
            }
        }
    }
    frame
}

impl Stack {
    fn new(addr: u32) -> Stack {
        let mac = Mac([2, 0, 0, 0, 0, addr as u8]);
        let now = Instant::from_millis(1000);
        let ip = Ip::new(atoll_ip::Config::new(mac, addr, 24), 7, now).expect("configuration");
        let config = Config::new(ReplicaId(0), 1, Epoch(1), FlowKey { k0: 1, k1: 2 });
        let secrets = Secrets { sequence: [addr as u8; 16], table: 3, ports: 4 };
        let page = ReplicaPage(HeapMemory::new(REPLICA_PAGE_BYTES));
        Stack { transport: Transport::new(config, secrets, ip, page, now), wire: Wire::default() }
    }

    /// One round, with all frames that it sends to itself.
    fn round(&mut self, now: Instant) {
        self.transport.handle_commands(now, 256);
        self.transport.handle_timers(now);
        self.transport.flush(now, &mut self.wire);
        for _ in 0..100 {
            if self.wire.inside.is_empty() {
                break;
            }
            while let Some((frame, partial)) = self.wire.inside.pop_front() {
                self.transport.handle_frame(now, &frame, offload(partial), true);
            }
            self.transport.flush(now, &mut self.wire);
        }
    }
}

fn offload(partial: bool) -> ChecksumOffload {
    if partial { ChecksumOffload::Partial } else { ChecksumOffload::Unknown }
}

/// A library's half of one session, reduced to what tests need.
struct App {
    arena: HeapMemory,
    layout: ArenaLayout,
    commands: Producer,
    events: Consumer,
    next_generation: u32,
    offers: VecDeque<(SlotId, u32)>,
    seen: Vec<Event>,
}

impl App {
    fn join(stack: &mut Stack, id: u32) -> App {
        let layout = LAYOUT.layout();
        let arena = HeapMemory::new(layout.total);
        let page = AppPage(HeapMemory::new(APP_PAGE_BYTES));
        stack.transport.open_session(Instant::ZERO, SessionId(id), layout, arena.clone(), page);
        App {
            commands: Producer::resume(&arena, layout.commands, COMMANDS),
            events: Consumer::resume(&arena, layout.events, EVENTS),
            arena,
            layout,
            next_generation: 1000,
            offers: VecDeque::new(),
            seen: Vec::new(),
        }
    }

    fn slot(&self, slot: SlotId) -> Slot<'_, HeapMemory> {
        Slot::new(&self.arena, &self.layout, slot).expect("slot")
    }

    fn tell(&mut self, command: Command) {
        assert!(self.commands.push(&self.arena, 0, &command.encode()));
    }

    fn poll(&mut self) {
        while let Some((_, payload)) = self.events.pop(&self.arena) {
            let event = Event::decode(&payload).expect("event");
            if let Event::ConnectionAvailable { slot, generation, .. } = event {
                self.offers.push_back((slot, generation));
            }
            self.seen.push(event);
        }
        self.events.publish(&self.arena);
    }

    fn listen(&mut self, lease: u64, port: u16, backlog: u32) {
        let local = Endpoint::new(0, port);
        self.tell(Command::Bind {
            token: 1,
            lease,
            protocol: Protocol::Tcp,
            local,
            reuse_addr: true,
            reuse_port: false,
        });
        self.tell(Command::Listen { token: 2, lease, local, backlog, reuse_port: false, defer_accept: 0 });
    }

    fn connect(&mut self, slot: u32, remote: Endpoint) -> (SlotId, u32) {
        let generation = self.next_generation;
        self.next_generation += 1;
        let slot = SlotId(slot);
        self.slot(slot).app_reset(generation);
        self.slot(slot).set_holders(1);
        self.tell(Command::Connect { slot, generation, lease: 0, local: Endpoint::default(), remote });
        (slot, generation)
    }

    fn accept(&mut self) -> Option<(SlotId, u32)> {
        self.poll();
        let (slot, generation) = self.offers.pop_front()?;
        self.slot(slot).app_reset(generation);
        self.slot(slot).set_holders(1);
        if !self.slot(slot).claim(generation) {
            return None;
        }
        self.tell(Command::Claim { slot, generation });
        Some((slot, generation))
    }

    /// Appends as much of `bytes` as fits 64 KiB of buffer; returns how much.
    fn write(&mut self, (slot, generation): (SlotId, u32), bytes: &[u8]) -> usize {
        let s = self.slot(slot);
        let (acked, tail) = (s.acknowledged(), s.send_tail());
        let len = bytes.len().min((65536 - (tail - acked)) as usize);
        if len == 0 {
            return 0;
        }
        let mut extents = s.send_extents(&self.layout).expect("own extents");
        let end = tail + len as u64;
        let room = extents.reserve(&self.layout.send_pool, &self.arena, acked, tail, end, 65536);
        let len = (room - tail) as usize;
        s.set_send_extents(&extents);
        if let Some(pieces) = extents.pieces(tail, len) {
            pieces.write(&self.arena, self.layout.send_area, &bytes[..len]);
        }
        s.set_send_tail(tail + len as u64);
        self.tell(Command::Kick { slot, generation });
        len
    }

    fn read(&mut self, (slot, generation): (SlotId, u32), max: usize) -> Vec<u8> {
        let s = self.slot(slot);
        let (head, tail) = (s.receive_head(), s.receive_tail());
        let len = max.min((tail - head) as usize);
        let mut out = vec![0; len];
        if len > 0 {
            let extents: Extents = s.receive_extents(&self.layout).expect("extents");
            extents.pieces(head, len).expect("covered").read(&self.arena, self.layout.receive_area, &mut out);
            s.set_receive_head(head + len as u64);
            if head + len as u64 >= s.read_mark() {
                self.tell(Command::Kick { slot, generation });
            }
        }
        out
    }

    fn shut_send(&mut self, (slot, generation): (SlotId, u32)) {
        self.slot(slot).set_app_flags(APP_SHUT_SEND);
        self.tell(Command::Kick { slot, generation });
    }

    fn close(&mut self, (slot, generation): (SlotId, u32)) {
        self.tell(Command::Close { slot, generation, mode: CloseMode::Graceful });
    }

    fn is_done(&mut self, (slot, generation): (SlotId, u32)) -> bool {
        self.poll();
        self.seen.contains(&Event::SlotDone { slot, generation })
    }
}

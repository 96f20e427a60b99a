//! One end of a connection for tests, whose replica does what the test says.

use atoll_ipc::Cause;
use atoll_ipc::buffer::Extents;
use atoll_ipc::slot::{Slot, SlotState};

use crate::errno::Failure;
use crate::port::Port;
use crate::stream::{Local, Stream};
use atoll_base::{Endpoint, SlotId};
use atoll_ipc::HeapMemory;
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::pool::Pool;

/// One end of a connection; the test plays the replica.
pub(crate) struct Pair {
    pub(crate) port: Port<HeapMemory>,
    pub(crate) slot: SlotId,
    pub(crate) generation: u32,
    pub(crate) local: Local,
    pub(crate) extents: Extents,
    pub(crate) pool_memory: HeapMemory,
}

const POOL: Pool = Pool { control: 0, links: 128, units: 32 };

impl Pair {
    pub(crate) fn open() -> Pair {
        let layout = ArenaConfig { slots: 16, send_log2: 16, receive_log2: 16 }.layout();
        let mut port = Port::new(HeapMemory::new(layout.total), layout);
        let (slot, generation) = port.allocate_slot().expect("free");
        let pair = Pair {
            port,
            slot,
            generation,
            local: Local::default(),
            extents: Extents::default(),
            pool_memory: HeapMemory::new(512),
        };
        pair.slot().replica_reset(generation, SlotState::Open, 8192);
        pair.slot().set_local(Endpoint::new(1, 2));
        pair
    }

    pub(crate) fn slot(&self) -> Slot<'_, HeapMemory> {
        self.port.slot(self.slot).expect("in range")
    }

    pub(crate) fn stream(&self) -> Stream<'_, HeapMemory> {
        Stream::new(&self.port, self.slot, self.generation).expect("in range")
    }

    pub(crate) fn deliver(&mut self, bytes: &[u8]) {
        let (head, tail) = (self.slot().receive_head(), self.slot().receive_tail());
        let end = tail + bytes.len() as u64;
        let mut extents = self.extents;
        assert_eq!(extents.reserve(&POOL.state_in(&self.pool_memory), head, tail, end, 1 << 16), end);
        let pieces = extents.pieces(tail, bytes.len()).expect("reserved");
        pieces.write(self.port.memory(), self.port.layout().receive_area, bytes);
        self.extents = extents;
        self.slot().set_receive_extents(&extents);
        self.slot().set_receive_tail(end);
    }

    pub(crate) fn sent(&self) -> std::vec::Vec<u8> {
        let slot = self.slot();
        let (from, to) = (slot.acknowledged(), slot.send_tail());
        let mut out = std::vec![0; (to - from) as usize];
        if let Some(pieces) = slot.send_extents(self.port.layout()).expect("valid").pieces(from, out.len()) {
            pieces.read(self.port.memory(), self.port.layout().send_area, &mut out);
        }
        out
    }

    pub(crate) fn receive(&mut self, len: usize) -> Result<std::vec::Vec<u8>, Failure> {
        let mut local = self.local;
        let stream = self.stream();
        let result = stream.readable(&mut local).map(|readable| {
            let mut out = std::vec![0; len.min(readable.len as usize)];
            assert!(stream.copy_out(&readable, readable.head, &mut out));
            stream.consume(readable.head + out.len() as u64);
            out
        });
        self.local = local;
        result
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<usize, Failure> {
        let mut local = self.local;
        let stream = self.stream();
        let result = stream.writable(&mut local, bytes.len()).map(|room| {
            stream.copy_in(&room, 0, &bytes[..room.len]);
            stream.commit(&room, room.len);
            room.len
        });
        self.local = local;
        result
    }

    pub(crate) fn end(&self, cause: Cause, flags: u32) {
        self.slot().set_error(cause);
        self.slot().set_replica_flags(flags);
    }
}

extern crate std;

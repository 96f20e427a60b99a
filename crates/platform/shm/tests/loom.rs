//! Do the rings and the claim protocol hold under every interleaving and every reordering that the memory
//! model allows?
//!
//! The code under test is generic over `Memory`; here the memory consists of loom's atomics.

use atoll_base::{Epoch, SlotId};
use atoll_ipc::Memory;
use atoll_ipc::arena::{ArenaConfig, ArenaLayout, SLOT_BYTES};
use atoll_ipc::channel::{self, Bell, Receiver, Sender};
use atoll_ipc::ring::{Consumer, MESSAGE_BYTES, Producer, ring_bytes};
use atoll_ipc::slot::{Slot, SlotState};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

/// Eight bytes per cell, from an offset on. Halves of a cell are only ever written by the same side, so a
/// store of one half may be a load and a store.
struct LoomMemory {
    start: usize,
    cells: Vec<AtomicU64>,
}

impl LoomMemory {
    fn new(bytes: usize) -> LoomMemory {
        LoomMemory::part(0, bytes)
    }

    /// Creates the `bytes` bytes from `start` on of a region, for tests that touch nothing else of it.
    fn part(start: usize, bytes: usize) -> LoomMemory {
        LoomMemory { start, cells: (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect() }
    }

    fn cell(&self, at: usize) -> &AtomicU64 {
        &self.cells[(at - self.start) / 8]
    }

    fn load(&self, at: usize, order: Ordering) -> u32 {
        (self.cell(at).load(order) >> (at % 8 * 8)) as u32
    }

    fn store(&self, at: usize, value: u32, order: Ordering) {
        let shift = at % 8 * 8;
        let old = self.cell(at).load(Ordering::Relaxed);
        self.cell(at).store(old & !(0xffff_ffff << shift) | u64::from(value) << shift, order);
    }
}

impl Memory for LoomMemory {
    fn len(&self) -> usize {
        self.start + self.cells.len() * 8
    }
    fn load32(&self, at: usize) -> u32 {
        self.load(at, Ordering::Relaxed)
    }
    fn load32_acquire(&self, at: usize) -> u32 {
        self.load(at, Ordering::Acquire)
    }
    fn store32(&self, at: usize, value: u32) {
        self.store(at, value, Ordering::Relaxed);
    }
    fn store32_release(&self, at: usize, value: u32) {
        self.store(at, value, Ordering::Release);
    }
    fn load64(&self, at: usize) -> u64 {
        self.cell(at).load(Ordering::Relaxed)
    }
    fn load64_acquire(&self, at: usize) -> u64 {
        self.cell(at).load(Ordering::Acquire)
    }
    fn store64(&self, at: usize, value: u64) {
        self.cell(at).store(value, Ordering::Relaxed);
    }
    fn store64_release(&self, at: usize, value: u64) {
        self.cell(at).store(value, Ordering::Release);
    }
    fn fetch_and64(&self, at: usize, value: u64) -> u64 {
        self.cell(at).fetch_and(value, Ordering::SeqCst)
    }
    fn fetch_or64(&self, at: usize, value: u64) -> u64 {
        self.cell(at).fetch_or(value, Ordering::SeqCst)
    }
    fn read(&self, at: usize, out: &mut [u8]) {
        // Only the first word of a payload carries information in these tests.
        out.fill(0);
        out[..8].copy_from_slice(&self.load64(at).to_ne_bytes());
    }
    fn write(&self, at: usize, bytes: &[u8]) {
        self.store64(at, u64::from_ne_bytes(bytes[..8].try_into().expect("eight bytes")));
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

fn message(n: u64) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    bytes[..8].copy_from_slice(&n.to_ne_bytes());
    bytes
}

#[test]
fn messages_arrive_whole_in_order_and_once_over_a_wrap() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let memory = Arc::new(LoomMemory::new(ring_bytes(2)));
        let theirs = memory.clone();
        let sender = thread::spawn(move || {
            let mut producer = Producer::resume(&*theirs, 0, 2);
            let mut next = 1;
            for _ in 0..4 {
                if next <= 3 && producer.push(&*theirs, 7, &message(next)) {
                    next += 1;
                } else {
                    thread::yield_now();
                }
            }
            next - 1
        });
        let mut consumer = Consumer::resume(&*memory, 0, 2);
        let mut seen = 0;
        for _ in 0..4 {
            match consumer.pop(&*memory) {
                Some((epoch, bytes)) => {
                    seen += 1;
                    assert_eq!((epoch, bytes), (7, message(seen)), "out of order or torn");
                    consumer.publish(&*memory);
                }
                None => thread::yield_now(),
            }
        }
        let sent = sender.join().expect("sender");
        while let Some((_, bytes)) = consumer.pop(&*memory) {
            seen += 1;
            assert_eq!(bytes, message(seen));
        }
        assert_eq!(seen, sent, "every message that was pushed arrives");
    });
}

#[test]
fn a_message_is_never_left_behind_with_a_sleeper() {
    // The sleep word lies at the end. The sleeper publishes it and checks the ring again; the sender pushes
    // and then reads the word.
    let sleep = ring_bytes(2);
    loom::model(move || {
        let memory = Arc::new(LoomMemory::new(sleep + 8));
        let theirs = memory.clone();
        let sender = thread::spawn(move || {
            let mut producer = Producer::resume(&*theirs, 0, 2);
            assert!(producer.push(&*theirs, 1, &message(1)));
            theirs.fence();
            theirs.load32(sleep) & 1 == 1
        });
        let consumer = Consumer::resume(&*memory, 0, 2);
        memory.store32(sleep, 1);
        memory.fence();
        let sleeps = !consumer.is_ready(&*memory);
        let rings = sender.join().expect("sender");
        assert!(!sleeps || rings, "asleep with a message waiting and no bell");
    });
}

/// Creates a ring of a channel with both its sides. The sides are resumed before the threads start, because
/// loom does not try all orders of a store and the loads of another thread if the storing thread has loaded
/// the word before.
fn channel_ring() -> (Arc<LoomMemory>, Sender, Receiver) {
    let memory = LoomMemory::new(channel::ring_bytes(4));
    let sender = Sender::resume(&memory, 0, 4, Epoch(7));
    let receiver = Receiver::resume(&memory, 0, 4, Epoch(7));
    (Arc::new(memory), sender, receiver)
}

#[test]
fn batches_of_a_channel_arrive_whole_in_order_and_once() {
    loom::model(|| {
        let (memory, mut sender, mut receiver) = channel_ring();
        let theirs = memory.clone();
        let sending = thread::spawn(move || {
            for n in 1..=3 {
                sender.push(&*theirs, &message(n)).expect("room");
                if n != 2 {
                    let _ = sender.publish(&*theirs);
                }
            }
        });
        // Without yields: after one, loom shows a thread the newest values only.
        let mut seen = 0;
        for _ in 0..3 {
            if let Some(bytes) = receiver.pop(&*memory) {
                seen += 1;
                assert_eq!(bytes, message(seen), "out of order or torn");
            }
        }
        sending.join().expect("sender");
        while let Some(bytes) = receiver.pop(&*memory) {
            seen += 1;
            assert_eq!(bytes, message(seen), "out of order or torn");
        }
        assert_eq!((seen, receiver.stale()), (3, 0), "every message that was pushed arrives");
    });
}

#[test]
fn an_entry_of_a_channel_is_written_again_only_after_it_was_read() {
    // Of interleavings, that is: loom has no loads that happen after later stores.
    loom::model(|| {
        let (memory, mut sender, mut receiver) = channel_ring();
        for n in 1..=4 {
            sender.push(&*memory, &message(n)).expect("room");
        }
        let _ = sender.publish(&*memory);
        let theirs = memory.clone();
        let receiving = thread::spawn(move || {
            for n in 1..=2 {
                assert_eq!(receiver.pop(&*theirs), Some(message(n)), "written too early");
            }
            receiver
        });
        let mut sent = 4;
        for n in 5..=6 {
            sent += u64::from(n == sent + 1 && sender.push(&*memory, &message(n)).is_ok());
        }
        let _ = sender.publish(&*memory);
        let mut receiver = receiving.join().expect("receiver");
        for n in 3..=sent {
            assert_eq!(receiver.pop(&*memory), Some(message(n)));
        }
        assert_eq!(receiver.pop(&*memory), None);
    });
}

#[test]
fn a_message_of_a_channel_is_never_left_behind_with_a_sleeper() {
    loom::model(|| {
        let (memory, mut sender, mut receiver) = channel_ring();
        let theirs = memory.clone();
        let sending = thread::spawn(move || {
            sender.push(&*theirs, &message(1)).expect("room");
            sender.publish(&*theirs) == Bell::Ring
        });
        receiver.fall_asleep(&*memory);
        memory.fence();
        let sleeps = !receiver.is_ready(&*memory);
        let rings = sending.join().expect("sender");
        assert!(!sleeps || rings, "asleep with a message waiting and no bell");
    });
}

/// Creates one slot of a replica's half of an arena, without the rest of the arena.
fn slot() -> (ArenaLayout, SlotId, LoomMemory) {
    let layout = ArenaConfig { slots: 16, send_log2: 16, receive_log2: 16 }.layout();
    let slot = SlotId(layout.replica_slots().start);
    let memory = LoomMemory::part(layout.slot(slot).expect("in range"), SLOT_BYTES);
    (layout, slot, memory)
}

#[test]
fn of_a_claim_and_a_revocation_exactly_one_is_certain_or_both_defer() {
    loom::model(|| {
        let (layout, id, memory) = slot();
        let memory = Arc::new(memory);
        Slot::new(&*memory, &layout, id).expect("in range").replica_reset(5, SlotState::Offered, 1000);
        let theirs = memory.clone();
        let application = thread::spawn(move || Slot::new(&*theirs, &layout, id).expect("in range").claim(5));
        let revoked = Slot::new(&*memory, &layout, id).expect("in range").revoke(5);
        let claimed = application.join().expect("application");
        assert!(!(claimed && revoked), "two owners of one connection");
    });
}

#[test]
fn a_claim_that_comes_late_is_not_certain_though_the_slot_was_offered_again() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (layout, id, memory) = slot();
        let memory = Arc::new(memory);
        Slot::new(&*memory, &layout, id).expect("in range").replica_reset(5, SlotState::Offered, 1000);
        let theirs = memory.clone();
        let application = thread::spawn(move || Slot::new(&*theirs, &layout, id).expect("in range").claim(5));
        // The offer is taken back, and so is the next one in this slot, which may be of another listener.
        let slot = Slot::new(&*memory, &layout, id).expect("in range");
        let revoked = slot.revoke(5);
        if revoked {
            slot.set_state(SlotState::Free);
            slot.replica_reset(6, SlotState::Offered, 1000);
            slot.revoke(6);
        }
        let claimed = application.join().expect("application");
        assert!(!(claimed && revoked), "the connection is somebody else's");
    });
}

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cell::Cell;

use atoll_base::Rng;

use super::*;
use crate::memory::HeapMemory;
use crate::memory::mortal::Mortal;

const CAPACITY: usize = 8;
const FIRST: Epoch = Epoch(1);

fn payload(n: u64) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [n as u8; MESSAGE_BYTES];
    bytes[..8].copy_from_slice(&n.to_le_bytes());
    bytes
}

fn number(payload: [u8; MESSAGE_BYTES]) -> u64 {
    u64::from_le_bytes(*payload.first_chunk().expect("longer than that"))
}

fn ring() -> (HeapMemory, Sender, Receiver) {
    let memory = HeapMemory::new(ring_bytes(CAPACITY));
    let sender = Sender::resume(&memory, 0, CAPACITY, FIRST);
    let receiver = Receiver::resume(&memory, 0, CAPACITY, FIRST);
    (memory, sender, receiver)
}

#[test]
fn the_ring_agrees_with_a_queue() {
    let (memory, mut sender, mut receiver) = ring();
    let (mut batch, mut visible) = (VecDeque::new(), VecDeque::new());
    let mut rng = Rng::new(3);
    let mut next = 0;
    for _ in 0..200_000 {
        match rng.below(8) {
            0..=2 => match sender.push(&memory, &payload(next)) {
                Ok(()) => {
                    batch.push_back(next);
                    next += 1;
                }
                Err(Full) => {
                    let waiting = batch.len() + visible.len();
                    assert!(waiting + CAPACITY / 4 > CAPACITY, "full although {waiting} are waiting");
                }
            },
            3 => {
                let _ = sender.publish(&memory);
                visible.append(&mut batch);
            }
            4..=6 => {
                assert_eq!(receiver.is_ready(&memory), !visible.is_empty());
                assert_eq!(receiver.pop(&memory), visible.pop_front().map(payload));
            }
            _ => match rng.below(3) {
                0 => receiver.release(&memory),
                1 => {
                    receiver.release(&memory);
                    receiver = Receiver::resume(&memory, 0, CAPACITY, FIRST);
                }
                // The successor does not send what its predecessor did not publish.
                _ => {
                    batch.clear();
                    sender = Sender::resume(&memory, 0, CAPACITY, FIRST);
                }
            },
        }
        assert!(sender.room(&memory) <= CAPACITY as u64);
    }
    assert_eq!((sender.lies(), receiver.stale()), (0, 0));
    assert!(next > 10_000);
}

#[test]
fn a_batch_is_seen_as_a_whole_or_not_at_all() {
    let (memory, mut sender, mut receiver) = ring();
    for n in 0..3 {
        sender.push(&memory, &payload(n)).expect("room");
        assert_eq!(receiver.pop(&memory), None);
    }
    assert_eq!(sender.publish(&memory), Bell::Silent);
    let got: Vec<_> = core::iter::from_fn(|| receiver.pop(&memory)).map(number).collect();
    assert_eq!(got, [0, 1, 2]);
}

#[test]
fn the_bell_is_wanted_once_for_each_sleep() {
    let (memory, mut sender, mut receiver) = ring();
    let mut send = |memory: &HeapMemory| {
        sender.push(memory, &payload(1)).expect("room");
        sender.publish(memory)
    };
    assert_eq!(send(&memory), Bell::Silent);
    receiver.fall_asleep(&memory);
    assert_eq!((send(&memory), send(&memory)), (Bell::Ring, Bell::Silent));
    receiver.wake_up(&memory);
    assert_eq!(send(&memory), Bell::Silent);
    receiver.fall_asleep(&memory);
    assert_eq!(send(&memory), Bell::Ring);
    assert_eq!(sender.publish(&memory), Bell::Silent, "nothing sent, nothing to ring for");
}

#[test]
fn the_sleep_of_a_successor_is_another_than_its_predecessors() {
    let (memory, mut sender, mut receiver) = ring();
    let mut send = || {
        sender.push(&memory, &payload(1)).expect("room");
        sender.publish(&memory)
    };
    receiver.fall_asleep(&memory);
    assert_eq!(send(), Bell::Ring);
    let mut successor = Receiver::resume(&memory, 0, CAPACITY, FIRST);
    assert_eq!(send(), Bell::Silent, "a process that starts is awake");
    successor.fall_asleep(&memory);
    assert_eq!(send(), Bell::Ring);
}

#[test]
fn messages_of_a_dead_epoch_are_dropped_and_counted() {
    let (memory, mut first, mut receiver) = ring();
    for n in 0..3 {
        first.push(&memory, &payload(n)).expect("room");
    }
    let _ = first.publish(&memory);
    let mut second = Sender::resume(&memory, 0, CAPACITY, Epoch(2));
    second.push(&memory, &payload(3)).expect("room");
    let _ = second.publish(&memory);
    assert_eq!(receiver.pop(&memory).map(number), Some(0), "as long as nobody said that it is dead");
    receiver.set_peer(Epoch(2));
    assert_eq!(receiver.pop(&memory).map(number), Some(3));
    assert_eq!(receiver.stale(), 2);
}

#[test]
fn messages_of_an_epoch_to_come_wait_and_keep_nobody_awake() {
    let (memory, _, mut receiver) = ring();
    let mut second = Sender::resume(&memory, 0, CAPACITY, Epoch(2));
    second.push(&memory, &payload(3)).expect("room");
    let _ = second.publish(&memory);
    assert!(!receiver.is_ready(&memory) && receiver.pop(&memory).is_none());
    receiver.set_peer(Epoch(2));
    assert!(receiver.is_ready(&memory));
    assert_eq!(receiver.pop(&memory).map(number), Some(3));
}

#[test]
fn a_lying_receiver_cannot_make_the_sender_overrun() {
    let (memory, mut sender, _) = ring();
    for n in 0..CAPACITY as u64 {
        sender.push(&memory, &payload(n)).expect("room");
    }
    let _ = sender.publish(&memory);
    for lie in [0xdead_beef_dead_beef, CAPACITY as u64 + 1, u64::MAX] {
        memory.store64(HEAD, lie);
        assert_eq!(sender.push(&memory, &payload(9)), Err(Full));
    }
    assert_eq!(sender.lies(), 3);
    memory.store64(HEAD, 1);
    assert_eq!(sender.push(&memory, &payload(9)), Ok(()));
}

#[test]
fn a_sender_may_die_between_any_two_stores() {
    // Three batches of three, two of which lie across the end of the ring; killed after each store in turn.
    for life in 0..40 {
        let (memory, _, mut receiver) = ring();
        let left = Cell::new(u64::MAX);
        let mortal = Mortal { memory: memory.clone(), left: &left };
        let mut first = Sender::resume(&mortal, 0, CAPACITY, FIRST);
        left.set(life);
        let mut published = 0;
        let mut got = Vec::new();
        for batch in 0..3 {
            for n in 0..3 {
                let pushed = first.push(&mortal, &payload(batch * 3 + n));
                assert!(pushed.is_ok() || left.get() == 0);
            }
            let _ = first.publish(&mortal);
            published += if left.get() > 0 { 3 } else { 0 };
            got.extend(core::iter::from_fn(|| receiver.pop(&memory)).map(number));
            receiver.release(&memory);
        }
        let mut second = Sender::resume(&memory, 0, CAPACITY, Epoch(2));
        for n in 100..105 {
            second.push(&memory, &payload(n)).expect("room");
            let _ = second.publish(&memory);
        }
        got.extend(core::iter::from_fn(|| receiver.pop(&memory)).map(number));
        receiver.set_peer(Epoch(2));
        got.extend(core::iter::from_fn(|| receiver.pop(&memory)).map(number));
        let (old, new): (Vec<u64>, Vec<u64>) = got.iter().partition(|n| **n < 100);
        assert!(old.len() % 3 == 0 && old.len() >= published, "dead after {life}: {old:?}");
        assert!(old.iter().copied().eq(0..old.len() as u64), "dead after {life}: {old:?}");
        assert_eq!(new, [100, 101, 102, 103, 104], "dead after {life}");
        assert_eq!(receiver.stale(), 0);
    }
}

#[test]
fn a_receiver_may_die_between_any_two_stores() {
    for life in 0..10 {
        let (memory, mut sender, _) = ring();
        let left = Cell::new(life);
        let mortal = Mortal { memory: memory.clone(), left: &left };
        let mut first = Receiver::resume(&mortal, 0, CAPACITY, FIRST);
        let (mut sent, mut got) = (0, Vec::new());
        for _ in 0..4 {
            while sender.push(&memory, &payload(sent)).is_ok() {
                sent += 1;
            }
            let _ = sender.publish(&memory);
            got.extend(core::iter::from_fn(|| first.pop(&mortal)).map(number));
            first.release(&mortal);
        }
        let seen = got.len() as u64;
        let mut second = Receiver::resume(&memory, 0, CAPACITY, FIRST);
        let again: Vec<u64> = core::iter::from_fn(|| second.pop(&memory)).map(number).collect();
        assert!(got.iter().copied().eq(0..seen));
        // The messages come without a gap, and to the end.
        let from = again.first().copied().unwrap_or(seen);
        assert!(
            from <= seen && again.iter().copied().eq(from..sent),
            "dead after {life}: {again:?} of {sent}"
        );
    }
}

#[test]
fn a_scribbling_peer_harms_nobody_else() {
    let memory = HeapMemory::new(ring_bytes(16));
    let mut rng = Rng::new(11);
    let mut sender = Sender::resume(&memory, 0, 16, FIRST);
    let mut receiver = Receiver::resume(&memory, 0, 16, FIRST);
    for _ in 0..100_000 {
        let at = rng.below(ring_bytes(16) as u32 / 8) as usize * 8;
        // The values are often near the truth, because those far from it are refused at once.
        let value = if rng.below(2) == 0 {
            rng.next_u64()
        } else {
            memory.load64(at).wrapping_add(rng.below(20).into())
        };
        memory.store64(at, value);
        let _ = receiver.pop(&memory);
        let _ = receiver.is_ready(&memory);
        receiver.release(&memory);
        let _ = sender.push(&memory, &payload(1));
        let _ = sender.publish(&memory);
        assert!(sender.room(&memory) <= 16);
        match rng.below(1000) {
            0 => sender = Sender::resume(&memory, 0, 16, FIRST),
            1 => receiver = Receiver::resume(&memory, 0, 16, FIRST),
            _ => {}
        }
    }
}

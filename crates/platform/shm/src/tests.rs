use std::thread;

use atoll_ipc::ring::{Consumer, MESSAGE_BYTES, Producer, ring_bytes};

use super::*;

#[test]
fn two_mappings_of_one_region_see_the_same_words_and_bytes() {
    let (fd, a) = ShmMemory::create("atoll-test", 8192).expect("memfd");
    let b = ShmMemory::map(&fd, 8192, Access::ReadOnly).expect("map");
    a.store32_release(64, 7);
    a.write(100, b"hello");
    let mut out = [0; 5];
    b.read(100, &mut out);
    assert_eq!((b.load32_acquire(64), &out), (7, b"hello"));
    b.store32(64, 9);
    assert_eq!(a.load32(64), 7, "a read-only mapping drops stores");
}

#[test]
fn messages_cross_threads_in_order_and_whole() {
    const COUNT: u64 = 200_000;
    let (fd, a) = ShmMemory::create("atoll-test", ring_bytes(64)).expect("memfd");
    let b = ShmMemory::map(&fd, ring_bytes(64), Access::ReadWrite).expect("map");
    let sender = thread::spawn(move || {
        let mut producer = Producer::resume(&a, 0, 64);
        let mut n = 0u64;
        while n < COUNT {
            let mut message = [n as u8; MESSAGE_BYTES];
            message[..8].copy_from_slice(&n.to_le_bytes());
            if producer.push(&a, 1, &message) {
                n += 1;
            } else {
                thread::yield_now();
            }
        }
    });
    let mut consumer = Consumer::resume(&b, 0, 64);
    for expected in 0..COUNT {
        let (_, message) = loop {
            match consumer.pop(&b) {
                Some(message) => break message,
                None => {
                    consumer.publish(&b);
                    thread::yield_now();
                }
            }
        };
        assert_eq!(message[..8], expected.to_le_bytes());
        assert!(message[8..].iter().all(|byte| *byte == expected as u8), "torn message");
    }
    sender.join().expect("sender");
}

#[test]
fn a_word_is_inside_if_it_is_aligned_and_whole() {
    for len in [8usize, 12, 4096, 4100, usize::MAX] {
        for at in (0..20).chain(len.saturating_sub(12)..=len).chain(usize::MAX - 9..=usize::MAX) {
            for size in [4usize, 8] {
                let expected = at % size == 0 && at.checked_add(size).is_some_and(|end| end <= len);
                assert_eq!(super::is_word_inside(at, size, len / size), expected, "{at} of {len}, {size}");
            }
        }
    }
}

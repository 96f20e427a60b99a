use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use atoll_ipc::mesh::{FRAME_PREFIX, FramePrefix, KIND_FRAME, Mark, PAYLOAD_MAX};
use atoll_shm::{Access, ShmMemory};
use atoll_sys::{create_memfd, eventfd};

use super::super::rings::{Received, prefix_of};
use super::*;
use crate::mesh::RING_STRIDE;
use crate::mesh::Way;

const VNET: [u8; vnet::HEADER_LEN] = [7; vnet::HEADER_LEN];

/// A link server with two replicas, and a socket in place of a device.
struct Bench {
    retry_queue: RetryQueue,
    rings: Rings,
    replicas: [Rings; 2],
    queue: Queue,
    wire: UnixDatagram,
    buffer: Vec<u8>,
}

impl Bench {
    fn new() -> Bench {
        let bytes = 4 * RING_STRIDE;
        let memory = create_memfd("test-mesh", bytes).unwrap();
        let way = |to, from| {
            Some(Way { memory: ShmMemory::map(&memory, bytes, Access::ReadWrite).unwrap(), to, from })
        };
        let bell = || eventfd::create().unwrap();
        // Offsets of the rings to and from each replica.
        let places = [(0, RING_STRIDE), (2 * RING_STRIDE, 3 * RING_STRIDE)];
        let (device, wire) = UnixDatagram::pair().unwrap();
        device.set_nonblocking(true).unwrap();
        wire.set_nonblocking(true).unwrap();
        Bench {
            retry_queue: RetryQueue::new(2),
            rings: Rings::resume(places.map(|(to, from)| way(to, from)).into(), vec![bell(), bell()]),
            replicas: places.map(|(to, from)| Rings::resume(vec![way(from, to)], vec![bell()])),
            queue: Queue::from_fd(OwnedFd::from(device)),
            wire,
            buffer: vec![0; PAYLOAD_MAX],
        }
    }

    /// Makes replica `from` send a frame. Returns whether the ring took it.
    fn hand_out(&mut self, from: usize, frame: &[u8]) -> bool {
        let prefix = prefix_of(&VNET, Mark::Outbound);
        let taken =
            self.replicas[from].send_frame(0, &Outgoing { prefix, headers: frame, slice: &[], pieces: None });
        self.replicas[from].publish();
        taken
    }

    /// Makes the link server send what is in its rings. Returns the number of frames.
    fn send_all(&mut self) -> usize {
        let mut count = 0;
        while let Some(Received { peer, kind: KIND_FRAME, len }) = self.rings.receive(0, &mut self.buffer) {
            count += 1;
            self.retry_queue.send(&mut self.queue, &mut self.rings, peer, &self.buffer[..len]);
        }
        self.rings.publish();
        count
    }

    /// Returns the first octets of the frames on the wire.
    fn on_wire(&mut self) -> Vec<u8> {
        let mut seen = Vec::new();
        while let Ok(len) = self.wire.recv(&mut self.buffer) {
            assert_eq!(self.buffer[..vnet::HEADER_LEN], VNET);
            assert!(len > vnet::HEADER_LEN);
            seen.push(self.buffer[vnet::HEADER_LEN]);
        }
        seen
    }

    /// Returns the first octets of the frames that replica `to` finds.
    fn brought(&mut self, to: usize) -> Vec<u8> {
        self.rings.publish();
        let mut seen = Vec::new();
        while let Some(record) = self.replicas[to].receive(0, &mut self.buffer) {
            let prefix = FramePrefix::decode(&self.buffer).expect("a frame");
            assert_eq!((record.kind, prefix.mark), (KIND_FRAME, Mark::Forwarded));
            seen.push(self.buffer[FRAME_PREFIX]);
        }
        self.replicas[to].publish();
        seen
    }
}

#[test]
fn what_the_device_does_not_take_is_kept_in_order_and_its_sender_is_held_up() {
    let mut bench = Bench::new();
    let mut count = 0u8;
    while bench.retry_queue.failures == 0 {
        assert!(bench.hand_out(0, &[count; 1000]));
        count += 1;
        bench.send_all();
    }
    assert!(bench.retry_queue.keeps());
    for _ in 0..3 {
        assert!(bench.hand_out(0, &[count; 1000]));
        count += 1;
    }
    assert!(!bench.rings.is_ready(), "nothing is taken from who is held up");
    assert_eq!(bench.send_all(), 0);
    assert!(bench.hand_out(1, &[255]));
    assert_eq!(
        bench.send_all(),
        1,
        "the other one is not held up before the device has refused one of its frames"
    );

    let mut seen = bench.on_wire();
    bench.retry_queue.retry(Some(&mut bench.queue), &mut bench.rings);
    assert!(!bench.retry_queue.keeps());
    bench.send_all();
    seen.extend(bench.on_wire());
    assert_eq!(seen.iter().filter(|&&first| first == 255).count(), 1);
    seen.retain(|&first| first != 255);
    assert_eq!(seen, (0..count).collect::<Vec<_>>());
    assert_eq!(bench.retry_queue.frames_out, u64::from(count) + 1);
}

#[test]
fn what_a_replica_does_not_take_is_kept_in_order_and_holds_up_no_other() {
    let mut bench = Bench::new();
    let frame = |first: u8| vec![first; 60_000];
    // These are more frames than a ring takes, and fewer than are kept.
    for first in 0..40 {
        bench.retry_queue.forward(Instant::ZERO, &mut bench.rings, 0, &VNET, &frame(first));
    }
    assert!(bench.retry_queue.keeps());
    bench.retry_queue.forward(Instant::ZERO, &mut bench.rings, 1, &VNET, &frame(99));
    assert_eq!(bench.brought(1), [99]);
    let mut seen = Vec::new();
    while seen.len() < 40 {
        let some = bench.brought(0);
        assert!(!some.is_empty(), "after {seen:?}");
        seen.extend(some);
        bench.retry_queue.retry(None, &mut bench.rings);
    }
    assert_eq!(seen, (0..40).collect::<Vec<_>>());
    assert!(!bench.retry_queue.keeps() && bench.retry_queue.dropped == 0);
}

#[test]
fn what_is_kept_for_a_replica_is_bounded() {
    let mut bench = Bench::new();
    for _ in 0..1000 {
        bench.retry_queue.forward(Instant::ZERO, &mut bench.rings, 0, &VNET, &[1; 60_000]);
    }
    let kept = bench.retry_queue.servers[0].inbound_len;
    assert!(kept <= KEPT_MAX && kept > KEPT_MAX - 60_000);
    assert!(bench.retry_queue.dropped > 900);
    // A server that does not exist gets nothing.
    bench.retry_queue.forward(Instant::ZERO, &mut bench.rings, 7, &VNET, &[1]);
}

#[test]
fn records_that_are_no_frames_are_lost() {
    let mut bench = Bench::new();
    for len in 0..FRAME_PREFIX {
        bench.retry_queue.send(
            &mut bench.queue,
            &mut bench.rings,
            0,
            &[Mark::Outbound as u8; FRAME_PREFIX][..len],
        );
    }
    assert!(!bench.retry_queue.keeps() && bench.on_wire().is_empty());
    assert_eq!(bench.retry_queue.frames_out, 0);
}

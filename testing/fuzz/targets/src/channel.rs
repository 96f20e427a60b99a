//! Checks that a server survives a peer that writes anything into their channel at any time.

use std::future::Future;
use std::pin::Pin;

use atoll_base::{Addr, Duration, Epoch, Instant, ReplicaId};
use atoll_ipc::channel::{Channel, MESSAGE_BYTES, Place, Sender, ring_bytes};
use atoll_ipc::message::{Envelope, Kind, NewsBasis, Role};
use atoll_ipc::{HeapMemory, Memory, Message};
use atoll_rpc::{Dispatcher, Handler, Limits, PeerId};

use crate::features::mark;
use crate::input::Input;

const CAPACITY: usize = 8;
const RING: usize = ring_bytes(CAPACITY);
const PEER: PeerId = PeerId(0);
const LIMITS: Limits = Limits { threads_max: 8, calls_max: 8, backlog_max: 8 };
/// The time that calls wait for an answer.
const PATIENCE: Duration = Duration::from_millis(20);

type Thread = Pin<Box<dyn Future<Output = ()>>>;

/// Decodes an envelope, and checks that encoding it gives octets that decode to an equal one.
pub fn ipc_message(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<MESSAGE_BYTES>() else { return };
    if let Ok(envelope) = Envelope::decode(bytes) {
        assert_eq!(Envelope::decode(&envelope.encode()), Ok(envelope));
    }
}

/// Runs steps of a server and of its peer, which shares their channel's memory. A step is an opcode and its
/// arguments.
///
/// The server never panics, keeps its limits, and when the peer falls silent, all its calls and microthreads
/// end in time.
pub fn rpc_channel(data: &[u8]) {
    let mut input = Input::new(data);
    let memory = HeapMemory::new(2 * RING);
    let mut now = Instant::from_millis(1000);
    let mut server: Dispatcher<_, u64, Thread> = Dispatcher::new(Epoch(1), LIMITS, now);
    let place = Place { outgoing: 0, incoming: RING, capacity: CAPACITY };
    server.add_peer(Channel::resume(memory.clone(), place, Epoch(1), Epoch(1)), Epoch(1));
    server.on(Kind::Hello, Handler::Answer(|_, _, incoming| incoming.message));
    server.on(Kind::Path, Handler::Notice(|noted, _, _| *noted += 1));
    server.on(
        Kind::Neighbour,
        Handler::Thread(|_, router, incoming| {
            let router = router.clone();
            Box::pin(async move {
                router.yield_now().await;
                if let Ok(message) =
                    router.call(incoming.peer, incoming.message, router.now() + PATIENCE).await
                {
                    let _ = router.reply(&incoming, message);
                }
            })
        }),
    );
    let mut noted = 0;
    let mut peer = Sender::resume(&memory, RING, CAPACITY, Epoch(1));
    while !input.is_empty() {
        match input.byte() % 16 {
            0..=2 => {
                server.turn(now, &mut noted, 4);
            }
            3 => {
                server.publish(|peer| assert_eq!(peer, PEER));
            }
            4 => {
                let router = server.router().clone();
                let _ = server.spawn(Box::pin(async move {
                    let _ = router.call(PEER, hello(), router.now() + PATIENCE).await;
                }));
            }
            5 => {
                let _ = server.notify(PEER, Message::Path { dst: Addr::ANY, mtu: input.half() });
            }
            6 => now += Duration::from_micros(u64::from(input.half())),
            7 => server.fall_asleep(),
            8 => server.wake_up(),
            9 if input.byte() < 16 => server.peer_gone(PEER),
            9 => server.peer_back(PEER, Epoch(u32::from(input.byte() % 4))),
            10 => {
                // The peer keeps to the rules of the ring, if not to those of messages.
                let mut payload = envelope(&mut input).encode();
                if input.byte() < 64 {
                    payload[usize::from(input.byte()) % MESSAGE_BYTES] = input.byte();
                }
                let _ = peer.push(&memory, &payload);
            }
            11 => {
                let _ = peer.publish(&memory);
            }
            12 => peer = Sender::resume(&memory, RING, CAPACITY, Epoch(u32::from(input.byte() % 4))),
            _ => {
                let at = usize::from(input.half()) % (2 * RING / 8) * 8;
                let value = if input.flip() {
                    memory.load64(at).wrapping_add_signed(input.distance().into())
                } else {
                    input.long()
                };
                memory.store64(at, value);
            }
        }
        let (threads, calls) = server.load();
        assert!(threads <= LIMITS.threads_max && calls <= LIMITS.calls_max);
        mark(70, (threads as u64) << 8 | calls as u64);
    }
    let counts = server.counts();
    for (kind, count) in (71..).zip([
        counts.bad,
        counts.unexpected,
        counts.unmatched,
        counts.dropped,
        counts.refused,
        counts.stale,
        counts.lies,
        counts.answered,
        counts.timed_out,
        counts.abandoned,
        noted,
    ]) {
        mark(kind, count.min(4));
    }
    // The peer falls silent: the ring is used up, and every wait has a deadline.
    for _ in 0..64 {
        server.turn(now, &mut noted, 4);
        server.publish(|_| {});
        now += PATIENCE / 4;
    }
    assert_eq!(server.load(), (0, 0), "something waits for ever");
}

fn hello() -> Message {
    Message::Hello { replica: ReplicaId(1), epoch: Epoch(1) }
}

fn envelope(input: &mut Input<'_>) -> Envelope {
    let message = match input.byte() % 3 {
        0 => hello(),
        1 => Message::Path { dst: Addr::v4(input.word()), mtu: input.half() },
        _ => Message::Neighbour { addr: Addr::v4(input.word()), mac: [2; 6], basis: NewsBasis::Learned },
    };
    // A call's number consists of the index and the use count of its slot.
    let call = u32::from(input.byte() % 8) | u32::from(input.byte() % 4) << 12;
    let role = match input.byte() % 3 {
        0 => Role::Notice,
        1 => Role::Request(call),
        _ => Role::Reply(call, Epoch(1)),
    };
    Envelope { role, message }
}

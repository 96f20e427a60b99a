//! Do messages, calls and microthreads between two servers get by without allocating?

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::future::Future;

use atoll_base::{Duration, Epoch, Instant, ReplicaId};
use atoll_ipc::Message;
use atoll_ipc::channel::{Channel, Place, ring_bytes};
use atoll_ipc::message::Kind;
use atoll_rpc::{CallRouter, Dispatcher, Handler, Limits, PeerId};
use atoll_shm::ShmMemory;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts what this thread asks of it.
struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATED.try_with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const CAPACITY: usize = 64;
const EPOCH: Epoch = Epoch(1);
const HELLO: Message = Message::Hello { replica: ReplicaId(0), epoch: EPOCH };

/// Makes `count` calls, one after another.
async fn calls(router: CallRouter<ShmMemory>, count: u32) {
    for _ in 0..count {
        let deadline = router.now() + Duration::from_millis(100);
        assert_eq!(router.call(PeerId(0), HELLO, deadline).await, Ok(HELLO));
    }
}

/// Lets both run until `server` has no microthread left.
fn exchange<F, G>(
    now: &mut Instant,
    server: &mut Dispatcher<ShmMemory, (), F>,
    other: &mut Dispatcher<ShmMemory, (), G>,
) where
    F: Future<Output = ()>,
    G: Future<Output = ()>,
{
    while server.load().0 > 0 {
        *now += Duration::from_micros(10);
        server.turn(*now, &mut (), 16);
        server.publish(|_| {});
        other.turn(*now, &mut (), 16);
        other.publish(|_| {});
    }
}

#[test]
fn messages_calls_and_microthreads_allocate_nothing_once_there_were_as_many() {
    let (_, memory) = ShmMemory::create("atoll-test", 2 * ring_bytes(CAPACITY)).expect("memfd");
    let place = |to: usize, from: usize| Place {
        outgoing: to * ring_bytes(CAPACITY),
        incoming: from * ring_bytes(CAPACITY),
        capacity: CAPACITY,
    };
    let mut now = Instant::from_millis(1000);
    let mut asks = Dispatcher::new(EPOCH, Limits::default(), now);
    let mut answers = Dispatcher::<_, _, std::future::Ready<()>>::new(EPOCH, Limits::default(), now);
    asks.add_peer(Channel::resume(memory.clone(), place(0, 1), EPOCH, EPOCH), EPOCH);
    answers.add_peer(Channel::resume(memory, place(1, 0), EPOCH, EPOCH), EPOCH);
    answers.on(Kind::Hello, Handler::Answer(|(), _, incoming| incoming.message));
    let round = |asks: &mut Dispatcher<ShmMemory, (), _>, answers: &mut _, now: &mut Instant| {
        for _ in 0..32 {
            let thread = calls(asks.router().clone(), 50);
            asks.spawn(thread).expect("room");
        }
        exchange(now, asks, answers);
    };
    round(&mut asks, &mut answers, &mut now);
    let before = ALLOCATED.get();
    assert!(before > 0, "the allocator counts");
    round(&mut asks, &mut answers, &mut now);
    assert_eq!(ALLOCATED.get(), before);
    assert_eq!(asks.counts().answered, 2 * 32 * 50);
}

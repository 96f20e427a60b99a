//! Measures what dispatch, calls and microthreads cost on top of the channel.

use std::cell::Cell;
use std::future::Future;
use std::hint::black_box;
use std::io;
use std::rc::Rc;

use atoll_base::{Duration, Epoch, ReplicaId};
use atoll_ipc::Message;
use atoll_ipc::message::Kind;
use atoll_rpc::{CallRouter, Dispatcher, Handler, Limits, PeerId, Threads};
use atoll_shm::ShmMemory;

use crate::messaging::WINDOW;
use crate::partner::{EPOCH, Side};

const HELLO: Message = Message::Hello { replica: ReplicaId(0), epoch: Epoch(1) };
/// The number of messages that are handled before the microthreads have their turn.
const BATCH: usize = 64;

pub fn synchronous_ours(side: &Side, count: u64) -> io::Result<Option<Duration>> {
    calls(side, 1, count).map(|()| None)
}

pub fn concurrent_ours(side: &Side, count: u64) -> io::Result<Option<Duration>> {
    calls(side, WINDOW, count).map(|()| None)
}

/// Runs a number of microthreads, each of which makes its part of the calls, one after another.
fn calls(side: &Side, threads: u64, count: u64) -> io::Result<()> {
    let now = side.clock.now();
    let answered = Rc::new(Cell::new(0));
    let mut dispatcher = Dispatcher::new(EPOCH, Limits::default(), now);
    let peer = dispatcher.add_peer(side.our_channel(), EPOCH);
    for _ in 0..threads {
        let thread = caller(dispatcher.router().clone(), peer, count / threads, answered.clone());
        dispatcher.spawn(thread).map_err(|_| io::Error::other("too many microthreads"))?;
    }
    while dispatcher.load().0 > 0 {
        turn(side, &mut dispatcher, &mut ());
    }
    if answered.get() != count {
        return Err(io::Error::other(format!("{} of {count} calls were answered", answered.get())));
    }
    Ok(())
}

/// Waits as an idle server does, and takes a turn. The clock is read while there is nothing to do, and now
/// and then otherwise, for the deadlines.
#[inline(always)]
fn turn<S, F>(side: &Side, dispatcher: &mut Dispatcher<&ShmMemory, S, F>, state: &mut S)
where
    F: Future<Output = ()>,
{
    let (mut now, mut looks) = (side.clock.now(), 0u32);
    side.wait(|| {
        looks += 1;
        if looks % 64 == 0 {
            now = side.clock.now();
        }
        dispatcher.is_ready() || (looks % 64 == 0 && dispatcher.next_timeout().is_some_and(|at| at <= now))
    });
    dispatcher.turn(now, state, BATCH);
    dispatcher.publish(|_| {});
}

async fn caller(router: CallRouter<&ShmMemory>, peer: PeerId, count: u64, answered: Rc<Cell<u64>>) {
    for _ in 0..count {
        let deadline = router.now() + Duration::from_secs(5);
        if router.call(peer, HELLO, deadline).await.is_ok() {
            answered.set(answered.get() + 1);
        }
    }
}

/// Answers a number of calls.
pub fn theirs(side: &Side, count: u64) -> io::Result<()> {
    let mut dispatcher =
        Dispatcher::<_, u64, std::future::Ready<()>>::new(EPOCH, Limits::default(), side.clock.now());
    dispatcher.add_peer(side.their_channel(), EPOCH);
    dispatcher.on(
        Kind::Hello,
        Handler::Answer(|done, _, incoming| {
            *done += 1;
            incoming.message
        }),
    );
    let mut done = 0;
    while done < count {
        turn(side, &mut dispatcher, &mut done);
    }
    Ok(())
}

/// Runs microthreads that do not wait: each is created, scheduled and run before the next one.
pub fn microthreads(_: &Side, count: u64) -> io::Result<Option<Duration>> {
    async fn one(n: u64, sum: &Cell<u64>) {
        sum.set(sum.get().wrapping_add(n));
    }
    let sum = Cell::new(0);
    let mut threads = Threads::new(64);
    for n in 0..count {
        threads.spawn(one(black_box(n), &sum)).map_err(|_| io::Error::other("too many microthreads"))?;
        threads.run(|_| {});
    }
    black_box(sum.get());
    Ok(None)
}

use alloc::boxed::Box;
use alloc::vec;
use core::pin::Pin;

use atoll_base::{Addr, Duration, ReplicaId};
use atoll_ipc::HeapMemory;
use atoll_ipc::channel::{MESSAGE_BYTES, Place, ring_bytes};
use atoll_ipc::message::Envelope;

use super::*;
use crate::calls::CallError;

const CAPACITY: usize = 8;
const FIRST: Epoch = Epoch(1);

type Thread = Pin<Box<dyn Future<Output = ()>>>;
type Server = Dispatcher<HeapMemory, State, Thread>;

/// The state of a server in these tests.
#[derive(Default)]
struct State {
    /// Paths that notices have named.
    told: Vec<u16>,
    /// The peer that it asks before it answers.
    behind: Option<PeerId>,
}

fn path(mtu: u16) -> Message {
    Message::Path { dst: Addr::ANY, mtu }
}

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn place(to: usize, from: usize) -> Place {
    Place { outgoing: to * ring_bytes(CAPACITY), incoming: from * ring_bytes(CAPACITY), capacity: CAPACITY }
}

fn memory() -> HeapMemory {
    HeapMemory::new(2 * ring_bytes(CAPACITY))
}

/// Creates a server that takes notices of paths. It answers `Hello` with its epoch, after asking the next
/// server, if there is one.
fn server(own: Epoch) -> Server {
    let mut server = Server::new(own, Limits { threads_max: 4, calls_max: 4, backlog_max: 4 }, at(0));
    server.on(
        Kind::Path,
        Handler::Notice(|state, _, incoming| {
            let Message::Path { mtu, .. } = incoming.message else { unreachable!("registered for paths") };
            state.told.push(mtu);
        }),
    );
    server.on(
        Kind::Hello,
        Handler::Thread(|state, router, incoming| {
            let (router, behind) = (router.clone(), state.behind);
            Box::pin(async move {
                let mut answer = Message::Hello { replica: ReplicaId(7), epoch: Epoch(70) };
                if let Some(behind) = behind {
                    let deadline = router.now() + Duration::from_millis(5);
                    match router.call(behind, incoming.message, deadline).await {
                        Ok(message) => answer = message,
                        Err(_) => return,
                    }
                }
                let _ = router.reply(&incoming, answer);
            })
        }),
    );
    server
}

/// Creates two servers that a channel joins.
fn pair() -> (HeapMemory, Server, Server) {
    let memory = memory();
    let (mut a, mut b) = (server(FIRST), server(FIRST));
    a.add_peer(Channel::resume(memory.clone(), place(0, 1), FIRST, FIRST), FIRST);
    b.add_peer(Channel::resume(memory.clone(), place(1, 0), FIRST, FIRST), FIRST);
    (memory, a, b)
}

/// Makes `server` ask its first peer; the outcome is stored in the cell.
fn ask(server: &mut Server, millis: u64) -> Rc<RefCell<Option<Result<Message, CallError>>>> {
    let (router, outcome) = (server.router().clone(), Rc::new(RefCell::new(None)));
    let result = outcome.clone();
    let hello = Message::Hello { replica: ReplicaId(1), epoch: FIRST };
    let thread = async move {
        let deadline = router.now() + Duration::from_millis(millis);
        *result.borrow_mut() = Some(router.call(PeerId(0), hello, deadline).await);
    };
    server.spawn(Box::pin(thread)).expect("room");
    outcome
}

fn turn(server: &mut Server, now: Instant) {
    server.turn(now, &mut State::default(), 8);
    server.publish(|_| {});
}

const SEVEN: Message = Message::Hello { replica: ReplicaId(7), epoch: Epoch(70) };

#[test]
fn a_call_waits_for_its_answer_and_goes_on_with_it() {
    let (_, mut a, mut b) = pair();
    let outcome = ask(&mut a, 10);
    turn(&mut a, at(1));
    assert!(b.is_ready() && outcome.borrow().is_none());
    turn(&mut b, at(1));
    turn(&mut a, at(1));
    assert_eq!(*outcome.borrow(), Some(Ok(SEVEN)));
    assert_eq!((a.load(), b.load(), a.next_timeout()), ((0, 0), (0, 0), None));
    assert_eq!((a.counts().answered, a.counts().sent, b.counts().sent), (1, 1, 1));
}

#[test]
fn a_handler_may_ask_others_before_it_answers() {
    let (_, mut a, mut b) = pair();
    let (memory, mut c) = (memory(), server(FIRST));
    let behind = b.add_peer(Channel::resume(memory.clone(), place(0, 1), FIRST, FIRST), FIRST);
    c.add_peer(Channel::resume(memory, place(1, 0), FIRST, FIRST), FIRST);
    let mut state = State { behind: Some(behind), ..State::default() };
    let outcome = ask(&mut a, 10);
    turn(&mut a, at(1));
    for _ in 0..2 {
        b.turn(at(1), &mut state, 8);
        b.publish(|_| {});
        turn(&mut c, at(1));
    }
    turn(&mut a, at(1));
    assert_eq!(*outcome.borrow(), Some(Ok(SEVEN)));
}

#[test]
fn a_call_without_answer_ends_at_its_deadline_and_a_late_answer_is_counted() {
    let (_, mut a, mut b) = pair();
    let outcome = ask(&mut a, 10);
    turn(&mut a, at(1));
    let due = a.next_timeout().expect("a deadline");
    assert!(due > at(1) && due < at(12), "{due:?}");
    turn(&mut a, at(10));
    assert_eq!(*outcome.borrow(), None);
    turn(&mut a, at(12));
    assert_eq!(*outcome.borrow(), Some(Err(CallError::TimedOut)));
    turn(&mut b, at(12));
    turn(&mut a, at(13));
    assert_eq!((a.counts().timed_out, a.counts().unmatched, a.load()), (1, 1, (0, 0)));
}

#[test]
fn the_death_of_the_peer_ends_the_call_and_its_successor_can_be_called() {
    let (memory, mut a, _) = pair();
    let outcome = ask(&mut a, 10);
    turn(&mut a, at(1));
    a.peer_gone(PeerId(0));
    assert!(a.is_ready(), "somebody has to be told");
    turn(&mut a, at(1));
    assert_eq!(*outcome.borrow(), Some(Err(CallError::PeerGone)));
    let outcome = ask(&mut a, 10);
    turn(&mut a, at(1));
    assert_eq!(*outcome.borrow(), Some(Err(CallError::PeerGone)));

    let mut b = server(Epoch(2));
    b.add_peer(Channel::resume(memory, place(1, 0), Epoch(2), FIRST), FIRST);
    a.peer_back(PeerId(0), Epoch(2));
    let outcome = ask(&mut a, 10);
    for _ in 0..2 {
        turn(&mut a, at(2));
        turn(&mut b, at(2));
    }
    turn(&mut a, at(2));
    assert_eq!(*outcome.borrow(), Some(Ok(SEVEN)));
    assert_eq!(a.counts().unmatched, 1, "the successor answers the call to its predecessor, too");
}

#[test]
fn an_answer_to_a_predecessor_is_not_taken_for_ones_own() {
    let (memory, mut a, mut b) = pair();
    let _ = ask(&mut a, 10);
    turn(&mut a, at(1));
    turn(&mut b, at(1));
    let mut successor = server(Epoch(2));
    successor.add_peer(Channel::resume(memory, place(0, 1), Epoch(2), FIRST), FIRST);
    let outcome = ask(&mut successor, 10);
    // The first call of each server has the same number.
    turn(&mut successor, at(2));
    turn(&mut successor, at(2));
    assert_eq!((outcome.borrow().is_none(), successor.counts().unmatched), (true, 1));
}

#[test]
fn a_peer_that_takes_nothing_is_waited_for_and_then_given_up() {
    let (_, mut a, mut b) = pair();
    for n in 0..12 {
        assert_eq!(a.notify(PeerId(0), path(n)), Ok(()), "8 in the ring, 4 behind it");
    }
    assert_eq!(a.notify(PeerId(0), path(12)), Err(SendError::Full));
    turn(&mut a, at(10));
    assert_eq!(a.next_timeout(), Some(at(11)));
    let mut state = State::default();
    for now in [11, 12] {
        b.turn(at(now), &mut state, 8);
        turn(&mut a, at(now));
    }
    b.turn(at(13), &mut state, 8);
    assert!(state.told.iter().copied().eq(0..12), "in order: {:?}", state.told);
    assert_eq!((a.counts().dropped, a.next_timeout()), (1, None));

    for n in 0..12 {
        let _ = a.notify(PeerId(0), path(n));
    }
    turn(&mut a, at(20));
    turn(&mut a, at(21));
    turn(&mut a, at(1022));
    assert_eq!((a.counts().dropped, a.next_timeout()), (5, None));
}

#[test]
fn what_is_unexpected_is_counted_and_not_handled() {
    let (_, mut a, mut b) = pair();
    let neighbour =
        Message::Neighbour { addr: Addr::ANY, mac: [0; 6], basis: atoll_ipc::message::NewsBasis::Learned };
    a.notify(PeerId(0), neighbour).unwrap();
    let router = a.router().clone();
    a.spawn(Box::pin(async move {
        let _ = router.call(PeerId(0), path(1), at(5)).await;
    }))
    .unwrap();
    turn(&mut a, at(1));
    let mut state = State::default();
    b.turn(at(1), &mut state, 8);
    assert_eq!((b.counts().unexpected, state.told.len()), (2, 0));
    assert_eq!(a.notify(PeerId(9), path(1)), Err(SendError::PeerGone));
}

#[test]
fn what_is_no_message_is_counted_and_passed_over() {
    let (memory, _, mut b) = pair();
    let mut liar = Channel::resume(memory, place(0, 1), FIRST, FIRST);
    liar.push(&[0xee; MESSAGE_BYTES]).unwrap();
    liar.push(&Envelope { role: Role::Reply(0, FIRST), message: path(1) }.encode()).unwrap();
    liar.push(&Envelope { role: Role::Notice, message: path(2) }.encode()).unwrap();
    let _ = liar.publish();
    let mut state = State::default();
    b.turn(at(1), &mut state, 8);
    assert_eq!((b.counts().bad, b.counts().unmatched, state.told), (1, 1, vec![2]));
}

#[test]
fn too_many_calls_and_microthreads_are_refused() {
    let (_, mut a, mut b) = pair();
    let mut state = State { behind: Some(PeerId(0)), ..State::default() };
    for _ in 0..6 {
        let _ = liar_request(&mut a);
    }
    a.publish(|_| {});
    // Four wait for the next server; two are refused.
    b.turn(at(1), &mut state, 8);
    assert_eq!((b.counts().refused, b.load()), (2, (4, 4)));
    b.turn(at(100), &mut state, 8);
    assert_eq!((b.counts().timed_out, b.load()), (4, (0, 0)));
}

/// Sends a request without waiting for its answer.
fn liar_request(server: &mut Server) -> Result<(), SendError> {
    let board = &mut *server.router().0.borrow_mut();
    board.send(PeerId(0), Role::Request(1), SEVEN)
}

#[test]
fn a_dropped_call_is_given_up() {
    let (_, mut a, mut b) = pair();
    let router = a.router().clone();
    let waiting = Rc::new(RefCell::new(Some(Box::pin(router.call(PeerId(0), SEVEN, at(50))))));
    let call = waiting.clone();
    let thread = core::future::poll_fn(move |context| match &mut *call.borrow_mut() {
        Some(call) => call.as_mut().poll(context).map(|_| ()),
        None => core::task::Poll::Ready(()),
    });
    a.spawn(Box::pin(thread)).unwrap();
    turn(&mut a, at(1));
    assert_eq!(a.load(), (1, 1));
    *waiting.borrow_mut() = None;
    assert_eq!((a.load(), a.next_timeout()), ((1, 0), None));
    turn(&mut b, at(1));
    turn(&mut a, at(1));
    assert_eq!(a.counts().unmatched, 1);
}

#[test]
fn a_yield_lets_messages_and_others_go_first() {
    let (_, mut a, _) = pair();
    let order = Rc::new(RefCell::new(Vec::new()));
    for n in [1, 2] {
        let (router, order) = (a.router().clone(), order.clone());
        let thread = async move {
            order.borrow_mut().push(n);
            router.yield_now().await;
            order.borrow_mut().push(10 * n);
        };
        a.spawn(Box::pin(thread)).unwrap();
    }
    turn(&mut a, at(1));
    assert!(a.is_ready());
    turn(&mut a, at(1));
    assert_eq!(*order.borrow(), [1, 2, 10, 20]);
}

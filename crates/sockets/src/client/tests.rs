//! A client, and replicas that do what a test says.

extern crate std;

use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use atoll_base::{Addr, Duration, Endpoint, Epoch, Instant, ReplicaId, SlotId};
use atoll_ipc::arena::{ArenaConfig, ArenaLayout, COMMANDS, EVENTS, OVERFLOW};
use atoll_ipc::command::Protocol;
use atoll_ipc::control::Reply;
use atoll_ipc::lease::Voucher;
use atoll_ipc::page::{
    APP_PAGE_BYTES, AppPage, REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackFacts, StackPage,
};
use atoll_ipc::ring::{Consumer, Producer};
use atoll_ipc::slot::{Slot, SlotState};
use atoll_ipc::{Cause, Command, Device, Event, HeapMemory, Memory, Ready, SocketOption};

use super::exec_state::{ExecState, PassedSocket, SessionState, SocketState};
use super::object::{Body, Kind, Object, Owner, Place, Set, any};
use super::questions::Answer;
use super::session::Session;
use super::simulated::{Moment, Simulated, shared};
use super::transfer::Sending;
use super::{Change, Client, PassedPort};
use crate::options::Name;
use crate::watch::EXCLUSIVE;
use crate::{Errno, Failure};

mod gone;
mod splicing;

const CONFIG: ArenaConfig = ArenaConfig { slots: 32, send_log2: 16, receive_log2: 16 };
const IN: u32 = 1;
const LEASE: u64 = 7;

/// The stack's side of one session.
struct Stack {
    stack: HeapMemory,
    app_page: HeapMemory,
    pages: Vec<HeapMemory>,
    arenas: Vec<HeapMemory>,
    clock: Moment,
    config: ArenaConfig,
    layout: ArenaLayout,
}

impl Stack {
    fn new(replicas: u8) -> Stack {
        Stack::sized(replicas, CONFIG)
    }

    fn sized(replicas: u8, config: ArenaConfig) -> Stack {
        let layout = config.layout();
        let stack = StackPage(HeapMemory::new(STACK_PAGE_BYTES));
        stack.write_facts(&StackFacts { replicas, ..StackFacts::default() });
        let page = |index| {
            let page = ReplicaPage(HeapMemory::new(REPLICA_PAGE_BYTES));
            page.announce(ReplicaId(index), Epoch(1));
            page.0
        };
        Stack {
            stack: stack.0,
            app_page: HeapMemory::new(APP_PAGE_BYTES),
            pages: (0..replicas).map(page).collect(),
            arenas: (0..replicas).map(|_| HeapMemory::new(layout.total)).collect(),
            clock: Moment::default(),
            config,
            layout,
        }
    }

    /// Returns a member's view of the session.
    fn session(&self, id: u32, member: u8) -> Session<Simulated> {
        let replicas = self.pages.iter().cloned().zip(self.arenas.iter().cloned());
        let shared = shared(StackPage(self.stack.clone()), AppPage(self.app_page.clone()), replicas);
        let replicas = self.arenas.len() as u8;
        let reply = Reply::Joined { session: id, key: 1, member, replicas, config: self.config };
        Session::new(&reply, shared).expect("a whole session")
    }

    fn client(&self) -> Client<Simulated> {
        let mut client = Client::new();
        client.adopt(self.session(1, 0), self.clock.clone(), 1);
        client
    }

    /// Takes the commands that were sent to a replica.
    fn commands(&self, replica: usize) -> Vec<Command> {
        self.take(replica, usize::MAX)
    }

    fn take(&self, replica: usize, most: usize) -> Vec<Command> {
        let arena = &self.arenas[replica];
        let mut consumer = Consumer::resume(arena, self.layout.commands, COMMANDS);
        let next = || consumer.pop(arena).map(|(_, payload)| Command::decode(&payload).expect("a command"));
        let taken = std::iter::from_fn(next).take(most).collect();
        consumer.publish(arena);
        taken
    }

    /// Sends an event of a replica.
    fn send(&self, replica: usize, event: Event) {
        let arena = &self.arenas[replica];
        let mut producer = Producer::resume(arena, self.layout.events, EVENTS);
        assert!(producer.push(arena, 1, &event.encode()), "there is room");
    }

    /// Loses events of a replica, as if the ring had no room.
    fn lose_events(&self, replica: usize) {
        let arena = &self.arenas[replica];
        arena.store32(OVERFLOW, arena.load32(OVERFLOW) + 1);
    }

    fn slot(&self, replica: usize, slot: SlotId) -> Slot<'_, HeapMemory> {
        Slot::new(&self.arenas[replica], &self.layout, slot).expect("in range")
    }

    /// Opens the slot of a connection, as a replica does.
    fn open(&self, place: Place) {
        self.slot(place.replica, place.slot).replica_reset(place.generation, SlotState::Open, 8192);
    }

    /// Ends a stream, as a replica does that has received a FIN.
    fn end(&self, place: Place) {
        self.slot(place.replica, place.slot).set_replica_flags(atoll_ipc::slot::REPLICA_FIN);
        let Place { slot, generation, .. } = place;
        self.send(place.replica, Event::Ready { slot, generation, ready: Ready::IN });
    }

    /// Offers a connection, in slot number `nth` of those that replicas hand out.
    fn offer(&self, replica: usize, nth: u32) -> (SlotId, u32) {
        let slot = SlotId(self.layout.replica_slots().start + nth);
        let generation = self.slot(replica, slot).replica_generation() + 1;
        self.slot(replica, slot).replica_reset(generation, SlotState::Offered, 8192);
        let (local, remote) = (Endpoint::new(1, 80), Endpoint::new(2, 4000));
        self.send(replica, Event::ConnectionAvailable { listener: LEASE, slot, generation, local, remote });
        (slot, generation)
    }
}

fn listener(client: &mut Client<Simulated>) -> u32 {
    let object = client.insert(Object::socket(Protocol::Tcp, false, true));
    let socket = client.socket_mut(object).expect("a socket");
    (socket.lease, socket.local) = (LEASE, Endpoint::new(0, 80));
    socket.kind = Kind::Listening(std::boxed::Box::default());
    client.add_listener(LEASE, object);
    object
}

fn connection(client: &mut Client<Simulated>, stack: &Stack, replica: usize) -> (u32, Place) {
    let object = client.insert(Object::socket(Protocol::Tcp, false, true));
    let place = client.new_place(object, replica).expect("there are slots");
    let socket = client.socket_mut(object).expect("a socket");
    socket.kind = Kind::Stream(place, socket.options.local());
    stack.open(place);
    (object, place)
}

fn epoll(client: &mut Client<Simulated>) -> u32 {
    let set = Set::new(client.new_bell(), ());
    client.insert(Object::new(Body::Epoll(std::boxed::Box::new(set)), false))
}

fn ready(client: &mut Client<Simulated>, epoll: u32) -> Vec<(u32, u64)> {
    let mut found = Vec::new();
    client.collect(epoll, 64, |fired| found.push((fired.events, fired.data)));
    found
}

fn bind_reply(token: u32, cause: Cause) -> Event {
    Event::BindReply { token, cause, port: 80, voucher: Voucher::default() }
}

// ---- questions ----

#[test]
fn an_answer_is_there_once_it_has_come_and_a_refusal_is_an_error() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let object = client.insert(Object::socket(Protocol::Tcp, false, true));
    for (cause, expected) in [(Cause::AddressInUse, Err(Errno::EADDRINUSE.into())), (Cause::None, Ok(80))] {
        let binding = client.start_binding(object, Endpoint::new(0, 80)).expect("fresh");
        let token = client.ask_for_port(object, &binding, &[]).expect("heard");
        assert!(matches!(stack.commands(0)[..], [Command::Bind { .. }]));
        assert_eq!(client.poll_answer(token), Err(Failure::WouldBlock));
        stack.send(0, bind_reply(token + 1, Cause::None));
        client.drain();
        assert_eq!(client.poll_answer(token), Err(Failure::WouldBlock), "an answer to something else");
        stack.send(0, bind_reply(token, cause));
        client.drain();
        assert_eq!(client.poll_answer(token).map(|answer| answer.port), expected);
        client.answered(token);
        assert_eq!(client.poll_answer(token), Err(Failure::WouldBlock), "nobody waits for it any more");
    }
}

#[test]
fn questions_are_asked_again_when_events_were_lost_or_the_replica_is_another() {
    let stack = Stack::new(2);
    let mut client = stack.client();
    let token = client.new_token();
    client.ask(1, token, [Command::Release { lease: 5 }].into());
    assert_eq!(stack.commands(1), [Command::Release { lease: 5 }]);
    stack.lose_events(0);
    client.drain();
    assert_eq!(stack.commands(1), [], "it was another replica's");
    stack.lose_events(1);
    client.drain();
    assert_eq!(stack.commands(1), [Command::Release { lease: 5 }]);
    ReplicaPage(stack.pages[1].clone()).announce(ReplicaId(1), Epoch(2));
    client.drain();
    assert_eq!(stack.commands(1), [Command::Release { lease: 5 }]);
    client.answered(token);
    stack.lose_events(1);
    client.drain();
    assert_eq!(stack.commands(1), []);
}

// ---- accept ----

#[test]
fn a_listener_accepts_everywhere_from_when_it_is_watched_until_it_is_not() {
    let stack = Stack::new(2);
    let mut client = stack.client();
    let (object, epoll) = (listener(&mut client), epoll(&mut client));
    assert_eq!(stack.commands(0), []);
    client.control(epoll, object, 3, Change::Add(IN, 1)).expect("added");
    for replica in 0..2 {
        assert_eq!(stack.commands(replica), [Command::AcceptConnection { lease: LEASE }]);
    }
    client.accept_connections(object);
    assert_eq!(stack.commands(0), [], "it knows");
    client.control(epoll, object, 3, Change::Delete).expect("deleted");
    assert_eq!(stack.commands(1), [Command::StopAccepting { lease: LEASE }]);
}

#[test]
fn an_acceptor_that_was_removed_accepts_again_when_it_waits_and_not_before() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (object, epoll) = (listener(&mut client), epoll(&mut client));
    client.control(epoll, object, 3, Change::Add(IN, 1)).expect("added");
    stack.commands(0);
    stack.send(0, Event::AcceptorRemoved { listener: LEASE });
    client.drain();
    assert_eq!(stack.commands(0), [], "its process is busy");
    client.accept_watched(epoll);
    assert_eq!(stack.commands(0), [Command::AcceptConnection { lease: LEASE }]);
    client.accept_watched(epoll);
    assert_eq!(stack.commands(0), []);
    // While a thread waits, the process registers at once.
    client.sleep_on(object, 1);
    stack.send(0, Event::AcceptorRemoved { listener: LEASE });
    client.drain();
    assert_eq!(stack.commands(0), [Command::AcceptConnection { lease: LEASE }]);
}

#[test]
fn who_comes_late_asks_and_awaits_the_answers() {
    let stack = Stack::new(2);
    let mut client = stack.client();
    let object = listener(&mut client);
    assert_eq!(client.ask_for_offers(), None, "it does not accept");
    let questions = |client: &mut Client<Simulated>| {
        assert!(client.accept_connections(object));
        assert_eq!(client.ask_for_offers(), Some(object));
        let [accept, ask] = [
            Command::AcceptConnection { lease: LEASE },
            Command::AskConnection { lease: LEASE, takes: false },
        ];
        assert_eq!([stack.commands(0), stack.commands(1)], [[accept, ask], [accept, ask]]);
        assert_eq!(client.ask_for_offers(), Some(object));
        assert_eq!(stack.commands(0), [], "it has asked");
    };
    questions(&mut client);
    // More may wait than are offered to it now: that makes no listener readable.
    let answer = |waiting| Event::ConnectionsWait { listener: LEASE, waiting, answers: true };
    stack.send(0, answer(true));
    client.drain();
    assert_eq!(client.ask_for_offers(), Some(object), "one has not answered");
    stack.send(1, answer(false));
    client.drain();
    assert_eq!(client.ask_for_offers(), None);
    assert_eq!(client.readiness(object) & IN, 0);
    client.stop_accepting(object);
    (0..2).for_each(|replica| drop(stack.commands(replica)));
    // A successor did not get the question.
    questions(&mut client);
    stack.send(0, answer(false));
    stack.lose_events(1);
    client.drain();
    assert_eq!(client.ask_for_offers(), Some(object));
    let asked = stack.commands(1);
    assert!(asked.contains(&Command::AskConnection { lease: LEASE, takes: false }), "{asked:?}");
}

#[test]
fn an_offer_that_stands_is_accepted_and_one_that_is_gone_is_passed_over() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let object = listener(&mut client);
    assert_eq!(client.accept(object, true), Err(Failure::WouldBlock));
    let (gone, _) = stack.offer(0, 0);
    let (slot, generation) = stack.offer(0, 1);
    stack.slot(0, gone).set_state(SlotState::Free);
    client.drain();
    assert_eq!(client.readiness(object) & IN, IN);
    let accepted = client.accept(object, true).expect("one stands");
    assert_eq!(stack.commands(0), [Command::Claim { slot, generation }]);
    assert_eq!(client.peer_of(accepted), Ok(Endpoint::new(2, 4000)));
    assert_eq!(client.accept(object, true), Err(Failure::WouldBlock));
}

#[test]
fn a_doubtful_claim_waits_for_its_verdict_and_asks_again_if_that_is_lost() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let object = listener(&mut client);
    for confirmed in [true, false] {
        let (slot, generation) = stack.offer(0, 0);
        assert!(stack.slot(0, slot).revoke(generation));
        client.drain();
        assert_eq!(client.accept(object, true), Err(Failure::WouldBlock));
        assert_eq!(stack.commands(0), [Command::Claim { slot, generation }]);
        stack.lose_events(0);
        client.drain();
        assert_eq!(stack.commands(0), [Command::Claim { slot, generation }], "once more");
        stack.send(0, Event::ClaimVerdict { slot, generation, confirmed });
        client.drain();
        stack.lose_events(0);
        client.drain();
        assert_eq!(stack.commands(0), [], "the verdict is there");
        assert_eq!(client.accept(object, true).is_ok(), confirmed);
    }
}

#[test]
fn a_successor_hears_of_ports_and_listeners_from_who_has_them() {
    let stack = Stack::new(2);
    let mut client = stack.client();
    let object = listener(&mut client);
    client.sleep_on(object, 1);
    client.accept_connections(object);
    (0..2).for_each(|replica| drop(stack.commands(replica)));
    for replica in 0..2 {
        ReplicaPage(stack.pages[replica].clone()).announce(ReplicaId(replica as u8), Epoch(2));
        client.drain();
        let commands = stack.commands(replica);
        let kinds: Vec<&str> = commands
            .iter()
            .map(|command| match command {
                Command::Show { .. } => "show",
                Command::Bind { .. } => "bind",
                Command::Listen { .. } => "listen",
                Command::AcceptConnection { .. } => "accept",
                _ => "else",
            })
            .collect();
        // Port 80 has its authority at replica 0.
        let expected: &[&str] = if replica == 0 {
            &["show", "bind", "show", "listen", "accept"]
        } else {
            &["show", "listen", "accept"]
        };
        assert_eq!(kinds, expected);
        assert_eq!(stack.commands(1 - replica), []);
    }
}

// ---- epoll ----

#[test]
fn an_event_queues_the_watch_of_its_socket_and_of_no_other() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (object, place) = connection(&mut client, &stack, 0);
    let (other, _) = connection(&mut client, &stack, 0);
    let epoll = epoll(&mut client);
    client.control(epoll, object, 3, Change::Add(IN, 30)).expect("added");
    client.control(epoll, other, 4, Change::Add(IN, 40)).expect("added");
    assert_eq!(client.control(epoll, object, 3, Change::Add(IN, 30)), Err(Errno::EEXIST));
    assert_eq!(ready(&mut client, epoll), []);
    let stale = Event::Ready { slot: place.slot, generation: place.generation + 1, ready: Ready::IN };
    stack.send(0, stale);
    client.drain();
    assert_eq!(ready(&mut client, epoll), [], "another generation");
    stack.end(place);
    client.drain();
    assert_eq!(ready(&mut client, epoll), [(IN, 30)]);
    client.release(object);
    assert_eq!(ready(&mut client, epoll), [], "it is closed");
}

#[test]
fn all_sockets_are_looked_at_when_events_were_lost() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (object, place) = connection(&mut client, &stack, 0);
    let epoll = epoll(&mut client);
    client.control(epoll, object, 3, Change::Add(IN, 30)).expect("added");
    stack.slot(0, place.slot).set_replica_flags(atoll_ipc::slot::REPLICA_FIN);
    client.drain();
    assert_eq!(ready(&mut client, epoll), [], "nobody has said so");
    stack.lose_events(0);
    client.drain();
    assert_eq!(ready(&mut client, epoll), [(IN, 30)]);
}

#[test]
fn an_instance_in_an_instance_is_ready_while_one_of_its_members_is() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (object, place) = connection(&mut client, &stack, 0);
    let (inner, outer) = (epoll(&mut client), epoll(&mut client));
    client.control(outer, inner, 5, Change::Add(IN, 50)).expect("added");
    client.control(inner, object, 3, Change::Add(IN, 30)).expect("added");
    let bells = |client: &Client<Simulated>, set| client.set(set).map_or(0, |set| set.bells);
    assert_eq!(
        bells(&client, outer) & bells(&client, inner),
        bells(&client, inner),
        "it hears what the inner one hears"
    );
    assert_eq!(ready(&mut client, outer), []);
    stack.end(place);
    client.drain();
    assert_eq!(ready(&mut client, outer), [(IN, 50)]);
    assert_eq!(ready(&mut client, inner), [(IN, 30)]);
    client.release(object);
    assert_eq!(ready(&mut client, outer), []);
}

#[test]
fn exclusive_watches_keep_to_what_epoll_ctl_says() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (object, _) = connection(&mut client, &stack, 0);
    let (one, other) = (epoll(&mut client), epoll(&mut client));
    let add = Change::Add(IN | EXCLUSIVE, 1);
    assert_eq!(client.control(one, other, 5, add), Err(Errno::EINVAL), "no instances");
    assert_eq!(client.control(one, object, 3, add), Ok(()));
    assert_eq!(client.control(one, object, 3, Change::Modify(IN, 1)), Err(Errno::EINVAL), "only with ADD");
    assert_eq!(client.control(other, object, 3, Change::Modify(IN, 1)), Err(Errno::ENOENT));
}

// ---- sleeping ----

#[test]
fn a_bell_that_was_rung_before_does_not_count_for_the_next_sleep() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let page = AppPage(stack.app_page.clone());
    let bell = client.new_bell();
    assert_eq!(page.sleep_word(bell) & 1, 0);
    client.before_sleep(1 << bell);
    let first = page.sleep_word(bell);
    client.after_sleep(1 << bell);
    assert_eq!(page.sleep_word(bell) & 1, 0, "nobody sleeps");
    client.before_sleep(1 << bell);
    assert!(page.sleep_word(bell) & 1 == 1 && page.sleep_word(bell) != first);
    // Another thread on the same doorbell is still asleep when this one wakes.
    client.before_sleep(1 << bell);
    client.after_sleep(1 << bell);
    assert_eq!(page.sleep_word(bell) & 1, 1);
}

#[test]
fn events_ring_who_sleeps_on_a_socket_and_then_its_instance_again() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (object, place) = connection(&mut client, &stack, 0);
    let epoll = epoll(&mut client);
    client.control(epoll, object, 3, Change::Add(IN, 30)).expect("added");
    let own = client.set(epoll).map_or(0, |set| set.bell);
    assert_eq!(stack.slot(0, place.slot).bell(), own);
    let bell = client.new_bell();
    client.sleep_on(object, bell);
    assert_eq!(stack.slot(0, place.slot).bell(), bell);
    client.sleep_no_more(object, bell);
    assert_eq!(stack.slot(0, place.slot).bell(), own);
}

// ---- commands that wait ----

#[test]
fn a_replica_that_stands_still_is_given_up_by_itself() {
    let stack = Stack::new(2);
    let mut client = stack.client();
    let (_, stuck) = connection(&mut client, &stack, 0);
    let (_, moving) = connection(&mut client, &stack, 1);
    while !client.has_waiting() {
        client.kick(stuck);
    }
    assert!(client.take_owed(), "whoever fills the ring is slowed down");
    assert!(client.send_waiting(), "it may take something yet");
    stack.clock.set(Instant::ZERO + Duration::from_secs(6));
    assert!(!client.send_waiting(), "it has taken nothing for five seconds");
    client.kick(stuck);
    client.kick(moving);
    assert!(!client.take_owed(), "nobody waits for it any more");
    assert_eq!(stack.commands(1).len(), 1, "the other is not held up");
    // The other replica falls behind without standing still.
    (0..2 * COMMANDS).for_each(|_| client.kick(moving));
    assert!(client.take_owed() && client.send_waiting());
    stack.take(0, 1);
    assert!(client.send_waiting());
    client.kick(stuck);
    assert!(client.take_owed(), "it takes something again");
    while client.has_waiting() {
        (0..2).for_each(|replica| drop(stack.commands(replica)));
        client.send_waiting();
    }
}

// ---- closing, forking, passing ----

#[test]
fn a_socket_that_a_call_sleeps_on_is_closed_when_the_call_is_over() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (object, _) = connection(&mut client, &stack, 0);
    client.pin(object);
    client.release(object);
    assert_eq!(stack.commands(0), []);
    client.unpin(object);
    assert!(matches!(stack.commands(0)[..], [Command::Close { .. }]));
    assert!(client.object(object).is_none());
}

#[test]
fn a_child_polls_what_it_inherits_and_closes_what_only_a_call_of_its_parent_had_open() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (kept, place) = connection(&mut client, &stack, 0);
    let (pinned, _) = connection(&mut client, &stack, 0);
    client.pin(pinned);
    client.release(pinned);
    // The parent makes the child a holder of both, and forks.
    for object in client.held() {
        let places = client.socket(object).expect("a socket").places().to_vec();
        assert!(places.into_iter().all(|place| client.add_holder(place, 1)));
    }
    let (own, mut joined) = (Stack::new(1), stack.session(1, 1));
    joined.shared = true;
    client.forget_threads();
    drop(client.become_child((own.session(2, 0), own.clock.clone(), 2), [(0, joined)].into()));
    assert!(client.object(pinned).is_none());
    assert_eq!(stack.commands(0), [], "the parent still holds it");
    let epoll = epoll(&mut client);
    client.control(epoll, kept, 3, Change::Add(IN, 30)).expect("added");
    assert!(client.has_event(), "no event comes, so it looks each time");
    client.drain();
    assert_eq!(ready(&mut client, epoll), []);
    stack.slot(0, place.slot).set_replica_flags(atoll_ipc::slot::REPLICA_FIN);
    client.drain();
    assert_eq!(ready(&mut client, epoll), [(IN, 30)]);
    assert_eq!(stack.slot(0, place.slot).bell(), 0, "all of the family hears of it");
    client.release(kept);
    assert_eq!(stack.commands(0), [], "the parent still holds it");
    assert_eq!(stack.slot(0, place.slot).holders(), 1);
}

#[test]
fn a_value_that_reads_as_the_default_is_told_if_it_changes_something() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (object, place) = connection(&mut client, &stack, 0);
    let mut told = |level: i32, name: i32, value: u32| {
        client.set_option(object, level, name, &value.to_ne_bytes()).expect("it is taken");
        let is_told = |command| {
            matches!(
                command,
                Command::SetOption { slot, value: told, .. } if slot == place.slot && told == value
            )
        };
        let commands = stack.commands(0);
        assert!(commands.len() <= 1 && commands.iter().cloned().all(is_told), "{commands:?}");
        commands.len()
    };
    for (size, times) in [(131_072, 1), (131_072, 0), (65536, 1)] {
        assert_eq!(told(libc::SOL_SOCKET, libc::SO_RCVBUF, size), times, "{size}");
    }
    for (on, times) in [(0, 0), (1, 1), (1, 0), (0, 1)] {
        assert_eq!(told(libc::IPPROTO_TCP, libc::TCP_NODELAY, on), times, "{on}");
    }
    for (on, times) in [(1, 1), (1, 1), (0, 1)] {
        assert_eq!(told(libc::IPPROTO_TCP, libc::TCP_QUICKACK, on), times, "{on}");
    }
}

#[test]
fn refused_options_say_why() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (connected, _) = connection(&mut client, &stack, 0);
    let fresh = client.insert(Object::socket(Protocol::Tcp, false, true));
    let datagrams = client.insert(Object::socket(Protocol::Udp, false, true));
    let mut set = |object, number, value: &[u8]| client.set_option(object, libc::IPPROTO_TCP, number, value);
    for object in [connected, fresh] {
        assert_eq!(set(object, libc::TCP_ULP, b"tls"), Err(Errno::ENOENT.into()));
        assert_eq!(set(object, libc::TCP_ULP, b""), Err(Errno::EINVAL.into()));
        for number in [libc::TCP_REPAIR, libc::TCP_REPAIR_QUEUE, libc::TCP_TIMESTAMP, libc::TCP_REPAIR_WINDOW]
        {
            assert_eq!(set(object, number, &[1, 0, 0, 0]), Err(Errno::EPERM.into()), "{number}");
            assert_eq!(set(object, number, &[1]), Err(Errno::EINVAL.into()), "{number}");
        }
        assert_eq!(set(object, libc::TCP_REPAIR_OPTIONS, &[0; 8]), Err(Errno::EINVAL.into()));
        assert_eq!(set(object, libc::TCP_MD5SIG, &[0; 216]), Err(Errno::ENOPROTOOPT.into()));
    }
    assert_eq!(set(connected, libc::TCP_QUEUE_SEQ, &[0; 4]), Err(Errno::EPERM.into()));
    assert_eq!(set(fresh, libc::TCP_QUEUE_SEQ, &[0; 4]), Err(Errno::EINVAL.into()));
    assert_eq!(set(datagrams, libc::TCP_ULP, b"tls"), Err(Errno::ENOPROTOOPT.into()));
    let get = |number| client.option(fresh, libc::IPPROTO_TCP, number).map(|value| value.octets().to_vec());
    assert_eq!(get(libc::TCP_ULP), Ok(Vec::new()));
    assert_eq!(get(libc::TCP_REPAIR), Ok(vec![0; 4]));
    assert_eq!(get(libc::TCP_REPAIR_WINDOW), Err(Errno::EPERM));
    assert_eq!(get(libc::TCP_QUEUE_SEQ), Err(Errno::EINVAL));
}

#[test]
fn nobody_connects_to_many() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let everybody = Endpoint::new(u32::MAX, 80);
    let groups = [0xe000_0001, 0xefff_fffe].map(|group| Endpoint::new(group, 80));
    let mut group = [0; 16];
    (group[0], group[1], group[15]) = (0xff, 2, 1);
    let group = Endpoint::at(atoll_base::Addr::from_octets(group), 80);
    for remote in [everybody, groups[0], groups[1], group] {
        let object = client.insert(Object::socket(Protocol::Tcp, !remote.addr.is_v4(), true));
        assert_eq!(client.connect(object, remote), Err(Errno::ENETUNREACH));
        assert!(matches!(client.socket(object).expect("a socket").kind, Kind::Fresh));
    }
    assert_eq!(stack.commands(0), []);
}

#[test]
fn a_connection_that_is_disconnected_is_reset_and_its_socket_may_connect_again() {
    for pooled in [false, true] {
        let stack = Stack::new(1);
        let mut client = stack.client();
        let (object, place) = connection(&mut client, &stack, 0);
        client.socket_mut(object).expect("a socket").pooled = pooled;
        client.disconnect(object).expect("its turn");
        assert!(matches!(stack.commands(0)[..], [Command::Close { slot, .. }] if slot == place.slot));
        assert_ne!(
            stack.slot(0, place.slot).app_flags() & atoll_ipc::slot::APP_RESET,
            0,
            "its end is a reset"
        );
        let kind = &client.socket(object).expect("a socket").kind;
        assert_eq!((matches!(kind, Kind::Fresh), matches!(kind, Kind::Bound)), (!pooled, pooled));
        assert!(client.peer_of(object).is_err());
        client.disconnect(object).expect("its turn");
        assert_eq!(stack.commands(0), [], "there is nothing to end");
    }
}

#[test]
fn who_receives_a_listener_says_so_to_all_replicas() {
    let stack = Stack::new(2);
    let mut client = stack.client();
    let object = listener(&mut client);
    let Some(socket) = client.socket_mut(object) else { panic!("a socket") };
    (socket.lease, socket.local.port) = (77, 80);
    assert_eq!((client.holder_of(77), client.holder_of(78), client.holder_of(0)), (Some(object), None, None));
    for replica in 0..2 {
        stack.commands(replica);
    }
    assert_eq!(client.ask_for_passed_port(object, 77), None, "nobody has the port, so it was forged");
    assert_eq!([stack.commands(0), stack.commands(1)], [[], []]);
    ReplicaPage(stack.pages[0].clone()).set_port(false, 80, true);
    assert_eq!(client.ask_for_passed_port(object, 0), None, "without a lease there is nothing to ask for");
    assert!(client.ask_for_passed_port(object, 77).is_some());
    let mut registration = client.start_listening(object, 16).expect("it is in a session");
    let mut said = Vec::new();
    for replica in [80 % 2, 81 % 2] {
        assert_ne!(client.ask_to_listen(object, &registration, &[]), Ok(None));
        said.push(stack.commands(replica));
        let granted = Answer { cause: Cause::None, port: 80, voucher: Voucher::default() };
        assert_eq!(client.listens_at(object, &mut registration, &granted), Ok(()));
    }
    assert_eq!(client.ask_to_listen(object, &registration, &[]), Ok(None), "all replicas have answered");
    let [authority, other] = &said[..] else { panic!("two replicas") };
    let listens = |command: &Command| matches!(command, Command::Listen { lease: 77, .. });
    let binds = |command: &Command| matches!(command, Command::Bind { lease: 77, reuse_port: false, .. });
    assert!(authority.iter().any(binds), "{authority:?}");
    assert!(authority.iter().any(listens) && other.iter().any(listens), "{other:?}");
    assert!(matches!(other[0], Command::Show { lease: 77, .. }), "what was granted comes first: {other:?}");
}

/// Passes a socket: returns the receiver's decoded form of what the sender encodes.
fn sent(client: &mut Client<Simulated>, object: u32) -> PassedSocket {
    let passed = client.pass(object).expect("it can be passed");
    PassedSocket::decode(&passed.encode().expect("short")).expect("sound")
}

/// Receives a connection in a process on another stack, which joins the session of the sender.
fn received(stack: &Stack, passed: PassedSocket) -> (Client<Simulated>, u32) {
    let (mut receiver, own) = (Client::new(), Stack::new(1));
    receiver.adopt(own.session(9, 0), own.clock.clone(), 3);
    let mut joined = stack.session(1, 1);
    joined.shared = true;
    assert_eq!(receiver.add_session(joined), 1);
    let taken = receiver.take_passed(passed).expect("its place exists");
    (receiver, taken)
}

#[test]
fn a_socket_with_a_port_that_is_sent_asks_for_that_port_by_its_lease() {
    let stack = Stack::new(2);
    let mut client = stack.client();
    let object = listener(&mut client);
    let Some(socket) = client.socket_mut(object) else { panic!("a socket") };
    (socket.lease, socket.local.port) = (77, 80);
    client.listener_mut(object).expect("it listens").backlog = 5;
    let passed = sent(&mut client, object);
    assert_eq!(client.take_passed_port(passed.clone()), Some(PassedPort::Back(object)));
    assert_eq!(client.object(object).map(|object| object.descriptors), Some(2));
    let mut receiver = stack.client();
    let taken = receiver.take_passed_port(passed.clone());
    let Some(PassedPort::New(taken)) = taken else { panic!("it is new: {taken:?}") };
    assert_eq!(receiver.listener(taken).map(|listener| listener.backlog), Some(5));
    // A socket that is only bound shows no replica that somebody has its port.
    client.socket_mut(object).expect("a socket").kind = Kind::Bound;
    let bound = sent(&mut client, object);
    let mut receiver = stack.client();
    let Some(PassedPort::New(taken)) = receiver.take_passed_port(bound) else { panic!("it is new") };
    for replica in 0..2 {
        stack.commands(replica);
    }
    let token = receiver.ask_for_passed_port(taken, 77).expect("it has a port");
    let asked = stack.commands(0);
    let is_bind = |command: &Command| {
        matches!(command, Command::Bind { lease: 77, reuse_addr: false, reuse_port: false, .. })
    };
    assert!(asked.iter().any(is_bind) && stack.commands(1).is_empty(), "{asked:?}");
    assert!(!asked.iter().any(|command| matches!(command, Command::Pass { .. })), "no right to low ports");
    stack.send(0, bind_reply(token, Cause::None));
    receiver.drain();
    let answer = receiver.poll_answer(token).expect("granted");
    receiver.finish_passed_port(taken, 77, &answer);
    assert_eq!(receiver.holder_of(77), Some(taken));
}

#[test]
fn a_new_socket_that_is_sent_is_new_for_its_receiver() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let object = client.insert(Object::socket(Protocol::Udp, true, true));
    let passed = sent(&mut client, object);
    let mut receiver = stack.client();
    let Some(PassedPort::New(taken)) = receiver.take_passed_port(passed) else { panic!("it is new") };
    let socket = receiver.socket(taken).expect("a socket");
    assert!(matches!(socket.kind, Kind::Fresh) && socket.v6 && socket.protocol == Protocol::Udp);
    assert!(receiver.is_nonblocking(taken));
    assert_eq!(receiver.ask_for_passed_port(taken, 5), None, "it has no port");
}

#[test]
fn a_program_goes_on_with_the_sockets_of_the_one_before() {
    let (stack, next_stack) = (Stack::new(2), Stack::new(1));
    let mut client = stack.client();
    let (first, place) = connection(&mut client, &stack, 1);
    let listening = listener(&mut client);
    let fresh = client.insert(Object::socket(Protocol::Tcp, false, true));
    let Some(socket) = client.socket_mut(listening) else { panic!("a socket") };
    (socket.lease, socket.local.port) = (77, 80);
    assert!(client.add_holder(place, 3));
    let descriptors = |first: i32, replicas: i32| (first..first + 18 + 3 * replicas).collect();
    let sessions = vec![
        SessionState { reply: next_stack.session(5, 0).reply, descriptors: descriptors(100, 1) },
        SessionState { reply: stack.session(1, 3).reply, descriptors: descriptors(200, 2) },
    ];
    let state = client.exec_state(99, sessions, &[0], &[(3, first), (4, listening), (5, first), (6, fresh)]);
    let state = ExecState::decode(&state.encode().expect("short")).expect("sound");
    let mut next = Client::new();
    let own = (next_stack.session(5, 0), next_stack.clock.clone(), 3);
    let mut all = next.take_exec_state(own, vec![stack.session(1, 3)], state.sockets);
    all.sort_unstable();
    let [(3, first_there), (4, listening_there), (5, again), (6, fresh_there)] = all[..] else {
        panic!("{all:?}")
    };
    assert!(matches!(next.socket(fresh_there).map(|socket| &socket.kind), Some(Kind::Fresh)));
    assert_eq!(first_there, again, "both descriptors name it");
    assert_eq!(next.object(first_there).map(|object| object.descriptors), Some(2));
    assert_eq!(
        next.socket(first_there).map(|socket| socket.places().to_vec()),
        Some(vec![Place { session: 1, ..place }])
    );
    assert!(next.sessions()[1].shared && !next.sessions()[0].shared);
    assert_eq!((next.holder_of(77), next.listener(listening_there).is_some()), (Some(listening_there), true));
    // The socket is polled, because the owner of the session takes its events, and no thread waits for it.
    client.release(first);
    assert_eq!(stack.commands(1), [], "the next program holds it");
    next.release(first_there);
    assert_eq!(stack.commands(1), [], "one descriptor is left");
    next.release(first_there);
    assert!(matches!(stack.commands(1)[..], [Command::Close { slot, .. }] if slot == place.slot));
}

#[test]
fn a_socket_that_is_sent_names_no_other_of_its_receiver() {
    let stack = Stack::new(2);
    let mut client = stack.client();
    let (object, place) = connection(&mut client, &stack, 0);
    let passed = sent(&mut client, object);
    assert_eq!(client.take_passed(passed.clone()), Some(object), "it came back");
    assert_eq!(client.object(object).map(|object| object.descriptors), Some(2));
    let forged = PassedSocket { key: passed.key + 1, ..passed.clone() };
    assert_eq!(
        client.take_passed(forged),
        None,
        "who does not know the key has not got the socket from here"
    );
    let elsewhere = |place: Place| {
        let state =
            SocketState::of(client.socket(object).expect("a socket"), (true, Owner::default()), |_| place);
        PassedSocket { socket: state, ..passed.clone() }
    };
    let forged = [
        elsewhere(Place { session: 0, replica: 2, ..place }),
        elsewhere(Place { session: 0, slot: SlotId(CONFIG.slots), ..place }),
        PassedSocket { session: 2, ..passed.clone() },
    ];
    for forged in forged {
        assert_eq!(client.take_passed(forged), None);
    }
}

/// A sleeping thread sleeps on its own doorbell; sockets of a family use the doorbell of the family.
#[test]
fn threads_that_sleep_look_again_when_their_session_becomes_a_familys() {
    for passes in [true, false] {
        let stack = Stack::new(1);
        let mut client = stack.client();
        let (object, place) = connection(&mut client, &stack, 0);
        let bell = client.new_bell();
        client.sleep_on(object, bell);
        client.before_sleep(1 << bell);
        client.doze_off();
        let rung =
            |client: &Client<Simulated>| client.own().expect("a session").bells()[bell as usize].count();
        assert_eq!(rung(&client), 0);
        for _ in 0..2 {
            if passes {
                client.before_passing(object).expect("a connection");
            } else {
                assert!(client.add_holder(place, 1));
            }
            assert_eq!(rung(&client), 1, "once");
        }
    }
}

#[test]
fn a_socket_that_is_sent_and_closed_is_held_until_its_receiver_has_it_or_ten_seconds() {
    for arrives in [true, false] {
        let stack = Stack::new(1);
        let mut client = stack.client();
        let (object, place) = connection(&mut client, &stack, 0);
        let passed = sent(&mut client, object);
        assert_eq!(client.nap(None), None);
        client.release(object);
        client.drain();
        assert_eq!(stack.commands(0), []);
        assert!(client.nap(None).is_some(), "who sleeps looks again whether it has arrived");
        if arrives {
            let (receiver, taken) = received(&stack, passed);
            assert_eq!(
                receiver.socket(taken).map(|socket| socket.places().to_vec()),
                Some(vec![Place { session: 1, ..place }])
            );
            client.drain();
            assert_eq!(stack.commands(0), [], "the receiver holds it");
            assert_eq!(client.nap(None), None);
            assert_eq!(stack.slot(0, place.slot).holders(), 2);
        } else {
            stack.clock.set(Instant::ZERO + Duration::from_secs(11));
            client.drain();
            assert!(matches!(stack.commands(0)[..], [Command::Close { .. }]), "nobody has taken it");
        }
    }
}

/// The sender sleeps in a call that is none of the library's, such as a read of the unix socket.
#[test]
fn a_sender_that_has_closed_a_socket_and_sleeps_keeps_it_from_nothing() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (object, place) = connection(&mut client, &stack, 0);
    let passed = sent(&mut client, object);
    client.release(object);
    let (mut receiver, taken) = received(&stack, passed);
    assert_eq!(stack.slot(0, place.slot).holders(), 2);
    assert!(receiver.closes_for_all(taken));
    receiver.release(taken);
    assert!(matches!(stack.commands(0)[..], [Command::Close { slot, .. }] if slot == place.slot));
    // The replica gives the slot to another connection of the sender before that wakes up.
    stack.send(0, Event::SlotDone { slot: place.slot, generation: place.generation });
    client.drain();
    let (next, next_place) = connection(&mut client, &stack, 0);
    assert_eq!(next_place.slot, place.slot);
    client.drain();
    assert_eq!(stack.commands(0), []);
    assert_eq!(client.nap(None), None, "nothing is left to let go of");
    client.release(next);
    assert!(matches!(stack.commands(0)[..], [Command::Close { slot, .. }] if slot == place.slot));
}

#[test]
fn a_socket_that_is_sent_and_comes_back_at_once_stays_open() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (object, place) = connection(&mut client, &stack, 0);
    let passed = sent(&mut client, object);
    client.release(object);
    let taken = client.take_passed(passed).expect("it is its own");
    client.drain();
    assert_eq!((stack.commands(0), stack.slot(0, place.slot).holders()), (vec![], 1));
    client.release(taken);
    assert!(matches!(stack.commands(0)[..], [Command::Close { .. }]));
}

#[test]
fn a_large_write_fills_all_the_room_there_is() {
    let stack = Stack::sized(1, ArenaConfig { slots: 32, send_log2: 22, receive_log2: 16 });
    let mut client = stack.client();
    let (object, place) = connection(&mut client, &stack, 0);
    stack.slot(0, place.slot).replica_reset(place.generation, SlotState::Open, 1 << 20);
    let (text, mut done) = (std::vec![7; 3 << 20], 0);
    let source = || std::iter::once(&text[..]);
    let sent = client.send_octets(object, source, text.len(), Sending::default(), &mut done);
    assert_eq!((sent, done), (Err(Failure::WouldBlock), 1 << 20));
}

// ---- datagram sockets ----

#[test]
fn a_new_socket_is_ready_as_linux_says() {
    let mut client = Stack::new(1).client();
    for (protocol, expected) in [(Protocol::Tcp, 0x114), (Protocol::Udp, 0x304)] {
        let object = client.insert(Object::socket(protocol, false, true));
        assert_eq!(client.readiness(object), expected, "{protocol:?}");
    }
}

#[test]
fn a_datagram_socket_is_open_when_every_replica_has_it_and_refused_when_one_refuses() {
    let stack = Stack::new(2);
    let mut client = stack.client();
    let object = client.insert(Object::socket(Protocol::Udp, false, true));
    let binding = client.start_binding(object, any(false)).expect("fresh");
    let token = client.ask_for_port(object, &binding, &[]).expect("heard");
    (0..2).for_each(|replica| stack.send(replica, bind_reply(token, Cause::None)));
    client.drain();
    let answer = client.poll_answer(token).expect("granted");
    client.finish_binding(object, &binding, &answer).expect("a socket");
    client.open_datagrams(object, Endpoint::default()).expect("there are slots");
    assert_eq!(client.poll_opened(object), Err(Failure::WouldBlock));
    let places = client.socket(object).expect("a socket").places().to_vec();
    stack.open(places[0]);
    assert_eq!(client.poll_opened(object), Err(Failure::WouldBlock), "one of two");
    stack.open(places[1]);
    assert_eq!(client.poll_opened(object), Ok(()));
    let refused = stack.slot(1, places[1].slot);
    refused.set_error(Cause::AddressInUse);
    refused.set_state(SlotState::Closing);
    assert_eq!(client.poll_opened(object), Err(Errno::EADDRINUSE.into()));
}

/// `SO_BINDTODEVICE`: the authority of a port learns the device with bind(2), and from a socket that has its
/// port later, unless the socket listens.
#[test]
fn the_authority_of_a_port_learns_of_the_device() {
    let stack = Stack::new(2);
    let mut client = stack.client();
    let object = client.insert(Object::socket(Protocol::Tcp, false, true));
    let set = |client: &mut Client<Simulated>, name: &[u8]| {
        client.set_option(object, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name)
    };
    assert_eq!(set(&mut client, b"wlan0"), Err(Errno(libc::ENODEV).into()));
    set(&mut client, b"lo").expect("it is there");
    let binding = client.start_binding(object, Endpoint::new(0, 81)).expect("fresh");
    client.ask_for_port(object, &binding, &[]).expect("heard");
    let commands = stack.commands(1);
    assert!(matches!(commands[..], [Command::Bind { device: Device::Loopback, .. }]), "{commands:?}");
    let socket = client.socket_mut(object).expect("a socket");
    (socket.kind, socket.lease, socket.local) = (Kind::Bound, LEASE, Endpoint::new(0, 81));
    set(&mut client, b"eth0").expect("it does not listen");
    let value = Device::Link as u32;
    let told = Command::SetListenerOption { lease: LEASE, option: SocketOption::Device, value };
    assert_eq!((stack.commands(0), stack.commands(1)), (vec![], vec![told]));
    client.socket_mut(object).expect("a socket").kind = Kind::Listening(Box::default());
    set(&mut client, b"eth0").expect("it is bound to it");
    assert_eq!(set(&mut client, b""), Err(Errno::EOPNOTSUPP.into()));
    assert_eq!((stack.commands(0), stack.commands(1)), (vec![], vec![]));
    let shown = client.option(object, libc::SOL_SOCKET, libc::SO_BINDTODEVICE).map(|it| it.octets().to_vec());
    assert_eq!(shown, Ok(b"eth0\0".to_vec()));
}

/// udp_lib_lport_inuse, inet_bind_conflict: who may have the port beside a socket follows `SO_REUSEADDR`.
#[test]
fn the_authority_of_a_port_learns_of_so_reuseaddr_that_is_set_later() {
    let stack = Stack::new(2);
    let mut client = stack.client();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let object = client.insert(Object::socket(protocol, false, true));
        let set = |client: &mut Client<Simulated>, value: u8| {
            client.set_option(object, libc::SOL_SOCKET, libc::SO_REUSEADDR, &[value, 0, 0, 0])
        };
        set(&mut client, 1).expect("known");
        assert_eq!((stack.commands(0), stack.commands(1)), (vec![], vec![]), "bind(2) will say it");
        let socket = client.socket_mut(object).expect("a socket");
        (socket.kind, socket.lease, socket.local) = (Kind::Bound, LEASE, Endpoint::new(0, 81));
        for value in [0, 1] {
            set(&mut client, value).expect("known");
            let (option, value) = (SocketOption::ReuseAddr, value.into());
            let told = Command::SetListenerOption { lease: LEASE, option, value };
            assert_eq!((stack.commands(0), stack.commands(1)), (vec![], vec![told]), "{protocol:?}");
        }
    }
}

/// ip_route_output_key_hash, ip6_route_output: what a socket on a device has no way to.
#[test]
fn a_socket_on_a_device_has_no_way_to_others() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (inside, v4) = (Addr::V4_LOOPBACK, Addr::v4(0xc612_0009));
    let (inside6, v6) = (Addr::LOOPBACK, Addr::from_octets([0x20; 16]));
    for (device, bound, to, result) in [
        (Device::None, Addr::ANY, inside, Ok(())),
        (Device::Loopback, Addr::ANY, inside, Ok(())),
        (Device::Loopback, Addr::ANY, v4, Ok(())),
        (Device::Loopback, Addr::ANY, inside6, Ok(())),
        (Device::Loopback, Addr::ANY, v6, Err(Errno::ENETUNREACH)),
        (Device::Link, Addr::ANY, v4, Ok(())),
        (Device::Link, Addr::ANY, v6, Ok(())),
        (Device::Link, Addr::ANY, inside, Ok(())),
        (Device::Link, Addr::ANY, Addr::V4_ANY, Ok(())),
        (Device::Link, inside, inside, Err(Errno::EINVAL)),
        (Device::Link, Addr::ANY, inside6, Err(Errno::ENETUNREACH)),
        (Device::Link, Addr::ANY, Addr::ANY, Err(Errno::ENETUNREACH)),
    ] {
        let object = client.insert(Object::socket(Protocol::Udp, true, true));
        let socket = client.socket_mut(object).expect("a socket");
        socket.options.set(Name::Device, device as u64);
        socket.local = Endpoint::at(bound, 0);
        let socket = client.socket(object).expect("a socket");
        assert_eq!(client.check_device(socket, to), result, "{device:?} {bound:?} {to:?}");
        // __inet6_bind
        let loopback = client.start_binding(object, Endpoint::at(inside6, 0)).map(|_| ());
        let expected = if device == Device::Link { Err(Errno::EADDRNOTAVAIL) } else { Ok(()) };
        assert_eq!(loopback, expected, "{device:?}");
    }
}

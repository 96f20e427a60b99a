//! A stack that goes with all of its processes, and one of its name that is up again.

use super::*;
use crate::ancillary::Addressed;
use crate::client::Losses;
use crate::client::simulated::Opening;
use crate::client::transfer::Receiving;
use atoll_ipc::buffer::{Extent, Extents};
use atoll_ipc::slot::{REPLICA_CLOSED, REPLICA_FIN};

const ERR: u32 = 0x8;
const HUP: u32 = 0x10;

/// Puts octets into the receive buffer of a connection, as a replica does.
pub(super) fn receive(stack: &Stack, place: Place, octets: &[u8]) {
    let slot = stack.slot(place.replica, place.slot);
    let extents = Extents { current: Some(Extent { base: 0, unit: 0, log2: 12 }), old: None };
    let pieces = extents.pieces(0, octets.len()).expect("fits");
    pieces.write(&stack.arenas[place.replica], stack.layout.receive_area, octets);
    slot.set_receive_extents(&extents);
    slot.set_receive_tail(octets.len() as u64);
}

pub(super) fn read(client: &mut Client<Simulated>, object: u32) -> Result<Vec<u8>, Failure> {
    let (mut octets, mut done) = ([0; 64], 0);
    let target = &mut octets[..];
    let targets = move || std::iter::once(target);
    let received = client.receive_octets(object, targets, 64, Receiving::default(), &mut done)?;
    Ok(octets[..received].to_vec())
}

fn write(client: &mut Client<Simulated>, object: u32) -> Result<(), Failure> {
    client.send_octets(object, || std::iter::once(&b"x"[..]), 1, Sending::default(), &mut 0).map(|_| ())
}

/// Carries out what binds a socket again, at a stack that grants everything. Returns the commands.
fn register(client: &mut Client<Simulated>, stack: &Stack, object: u32) -> Vec<Command> {
    let mut opening = Opening::again(client, object).expect("it waits");
    let mut all = Vec::new();
    for _ in 0..20 {
        match opening.poll(client) {
            Ok(()) => {
                client.registered_again(object, Ok(()));
                return all;
            }
            Err(Failure::WouldBlock) => {}
            Err(Failure::Error(errno)) => panic!("{errno:?}"),
        }
        for replica in 0..stack.arenas.len() {
            let commands = stack.commands(replica);
            for command in &commands {
                match *command {
                    Command::Bind { token, .. } => stack.send(replica, bind_reply(token, Cause::None)),
                    Command::Listen { token, .. } => {
                        let voucher = Voucher::default();
                        stack.send(replica, Event::ListenReply { token, cause: Cause::None, voucher });
                    }
                    Command::UdpOpen { slot, generation, .. } => {
                        stack.slot(replica, slot).replica_reset(generation, SlotState::Open, 8192);
                    }
                    _ => {}
                }
            }
            all.extend(commands);
        }
        client.drain();
    }
    panic!("it is never registered")
}

fn datagrams(client: &mut Client<Simulated>, stack: &Stack) -> u32 {
    let object = client.insert(Object::socket(Protocol::Udp, false, true));
    let socket = client.socket_mut(object).expect("a socket");
    (socket.lease, socket.local, socket.kind) = (9, Endpoint::new(0, 53), Kind::Bound);
    client.open_datagrams(object, Endpoint::default()).expect("heard");
    for place in client.socket(object).expect("a socket").places().to_vec() {
        stack.slot(place.replica, place.slot).replica_reset(place.generation, SlotState::Open, 8192);
    }
    object
}

#[test]
fn connections_end_as_by_a_reset_once_what_was_received_is_read() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (object, place) = connection(&mut client, &stack, 0);
    let epoll = epoll(&mut client);
    client.control(epoll, object, 3, Change::Add(IN, 1)).expect("added");
    receive(&stack, place, b"last");
    stack.commands(0);
    assert_eq!(client.stack_gone(), Losses { connections: 1, waiting: 0 });
    assert!(client.is_stack_gone());
    let found = ready(&mut client, epoll);
    assert_eq!((found.len(), found[0].0), (1, IN | ERR | HUP), "epoll(7): errors are always reported");
    assert_eq!(read(&mut client, object).expect("it is there"), b"last");
    assert_eq!(read(&mut client, object), Err(Errno::ECONNRESET.into()));
    assert_eq!(read(&mut client, object).expect("the end"), b"", "an error is reported once");
    assert_eq!(write(&mut client, object), Err(Errno::EPIPE.into()));
    client.release(object);
    assert_eq!(stack.commands(0), [], "nobody hears them");
}

#[test]
fn an_end_that_came_before_is_what_it_was() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    // The peer has ended its stream; another connection is over.
    let (half, place) = connection(&mut client, &stack, 0);
    stack.slot(0, place.slot).set_replica_flags(REPLICA_FIN);
    let (over, place) = connection(&mut client, &stack, 0);
    stack.slot(0, place.slot).set_replica_flags(REPLICA_FIN | REPLICA_CLOSED);
    client.stack_gone();
    for object in [half, over] {
        assert_eq!(read(&mut client, object).expect("the end"), b"");
    }
    assert_eq!(client.take_error(half), Some(Errno::EPIPE), "tcp_reset, in CLOSE-WAIT");
    assert_eq!(client.take_error(over), None);
}

#[test]
fn a_connection_that_is_being_opened_fails_and_the_socket_may_try_again() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let object = client.insert(Object::socket(Protocol::Tcp, false, true));
    client.connect(object, Endpoint::new(2, 80)).expect("begun");
    assert_eq!(client.poll_connected(object), Err(Failure::WouldBlock));
    client.stack_gone();
    assert_eq!(client.poll_connected(object), Err(Errno::ENETDOWN.into()));
    assert_eq!(client.connect(object, Endpoint::new(2, 80)), Err(Errno::ENETDOWN), "there is no stack");
    let next = Stack::new(1);
    client.stack_is_back(next.session(1, 0), next.clock.clone(), 2);
    client.connect(object, Endpoint::new(2, 80)).expect("begun");
    assert!(matches!(next.commands(0)[..], [Command::Connect { .. }]));
}

#[test]
fn a_listener_waits_in_silence_and_accepts_on_the_next_stack() {
    let stack = Stack::new(2);
    let mut client = stack.client();
    let (object, epoll) = (listener(&mut client), epoll(&mut client));
    client.control(epoll, object, 3, Change::Add(IN, 1)).expect("added");
    stack.offer(0, 0);
    client.drain();
    assert_eq!(client.stack_gone(), Losses { connections: 0, waiting: 1 });
    assert_eq!(ready(&mut client, epoll), [], "the offer is gone with its connection");
    assert_eq!(client.accept(object, true), Err(Failure::WouldBlock));
    assert_eq!(client.waiting_for_stack(), [object]);
    // The next stack may have another number of replicas.
    let next = Stack::new(1);
    client.stack_is_back(next.session(1, 0), next.clock.clone(), 2);
    assert!(!client.is_stack_gone());
    assert_eq!(client.sessions().len(), 1, "no connection needs what the first had");
    client.sleep_on(object, 1);
    let commands = register(&mut client, &next, object);
    assert!(matches!(commands[0], Command::Bind { lease: LEASE, .. }), "under its number: {commands:?}");
    assert!(matches!(commands[1], Command::Listen { lease: LEASE, .. }), "{commands:?}");
    assert_eq!(client.waiting_for_stack(), []);
    assert_eq!(next.commands(0), [Command::AcceptConnection { lease: LEASE }]);
    next.offer(0, 0);
    client.drain();
    assert_eq!(ready(&mut client, epoll).len(), 1);
    assert!(client.accept(object, true).is_ok());
}

#[test]
fn a_datagram_socket_fails_once_and_gets_its_port_back() {
    let stack = Stack::new(2);
    let mut client = stack.client();
    let object = datagrams(&mut client, &stack);
    client.stack_gone();
    assert_eq!(client.readiness(object) & ERR, ERR);
    let send = |client: &mut Client<Simulated>| {
        client.send_datagram(
            object,
            std::iter::once(&b"x"[..]),
            1,
            Addressed::to(Some(Endpoint::new(0x7f00_0001, 9))),
            false,
        )
    };
    let receive = |client: &mut Client<Simulated>| {
        client.receive_datagram(object, std::iter::empty, Receiving::default())
    };
    assert_eq!(receive(&mut client), Err(Errno::ENETDOWN.into()));
    assert_eq!(receive(&mut client), Err(Failure::WouldBlock), "an error is reported once");
    assert_eq!(client.readiness(object) & ERR, 0);
    assert_eq!(send(&mut client), Err(Errno::ENETDOWN.into()), "nothing leaves");
    let next = Stack::new(1);
    client.stack_is_back(next.session(1, 0), next.clock.clone(), 2);
    assert_eq!(send(&mut client), Err(Errno::ENETDOWN.into()), "it has no slot yet");
    register(&mut client, &next, object);
    assert_eq!(send(&mut client), Ok(()));
    assert!(matches!(next.commands(0)[..], [Command::Kick { .. }]));
    assert_eq!(client.socket(object).expect("a socket").places().len(), 1);
}

#[test]
fn a_refusal_that_is_met_twice_is_the_error_of_one_call() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let object = listener(&mut client);
    client.stack_gone();
    let next = Stack::new(1);
    client.stack_is_back(next.session(1, 0), next.clock.clone(), 2);
    let refused = Err(Errno::EACCES);
    assert!(!client.registered_again(object, refused), "its family may be about to register it");
    assert_eq!(client.accept(object, true), Err(Failure::WouldBlock));
    assert!(client.registered_again(object, refused));
    assert_eq!(client.readiness(object) & ERR, ERR);
    assert_eq!(client.accept(object, true), Err(Errno::EACCES.into()));
    assert_eq!((client.accept(object, true), client.readiness(object)), (Err(Failure::WouldBlock), 0));
    assert!(!client.registered_again(object, refused), "it was told");
    assert_eq!(client.waiting_for_stack(), [object], "and waits on");
}

#[test]
fn what_was_received_outlives_the_stack_and_its_memory_goes_with_the_last_connection() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (first, place) = connection(&mut client, &stack, 0);
    let (second, _) = connection(&mut client, &stack, 0);
    receive(&stack, place, b"last");
    client.stack_gone();
    let next = Stack::new(1);
    client.stack_is_back(next.session(1, 0), next.clock.clone(), 2);
    assert_eq!(client.sessions().len(), 2);
    // A connection of the next stack has its own slot, which looks the same.
    let (third, place) = connection(&mut client, &next, 0);
    assert_eq!(place.session, 0);
    client.release(second);
    assert_eq!(client.sessions().len(), 2);
    assert_eq!(read(&mut client, first).expect("it is there"), b"last");
    client.release(first);
    assert_eq!(client.sessions().len(), 1);
    assert_eq!(read(&mut client, third), Err(Failure::WouldBlock));
    assert!(!client.stream(third).expect("a connection").0.is_closed());
}

#[test]
fn a_child_has_what_its_parent_has_of_a_stack_that_went() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (old, place) = connection(&mut client, &stack, 0);
    receive(&stack, place, b"last");
    client.stack_gone();
    let next = Stack::new(1);
    client.stack_is_back(next.session(1, 0), next.clock.clone(), 2);
    let (open, place) = connection(&mut client, &next, 0);
    assert_eq!(client.held(), [open], "nobody is to be asked for what is over");
    client.forget_threads();
    let joined = next.session(1, 1);
    let own = Stack::new(1);
    drop(client.become_child((own.session(2, 0), own.clock.clone(), 3), vec![(0, joined)]));
    assert_eq!(client.socket(open).expect("a socket").places()[0], Place { session: 1, ..place });
    assert_eq!(read(&mut client, old).expect("it is there"), b"last");
    assert_eq!(read(&mut client, old), Err(Errno::ECONNRESET.into()));
    assert_eq!(read(&mut client, open), Err(Failure::WouldBlock));
}

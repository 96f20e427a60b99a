//! Tests of connections that are continued later than their server: whatever needs them finds them as if they
//! had never stopped.

use std::vec;
use std::vec::Vec;

use atoll_base::{Addr, Duration, Endpoint, FourTuple};
use atoll_ipc::ledger::ConnectionRecord;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{REPLICA_CLOSED, REPLICA_FIN, REPLICA_RESET, SlotState};
use atoll_ipc::{Cause, SocketOption};

use super::kit::{App, Net, Socket, Stack, addr_v6};
use crate::{Config, Loss, Recovery};

const HTTP: Endpoint = Endpoint::new(0x0a00_0001, 80);
const COUNT: usize = 5;

/// Configures that no connection is continued by itself for a second.
fn patient(config: &mut Config) {
    (config.adopt_batch, config.adopt_every) = (1, Duration::from_secs(1));
}

struct Scene {
    net: Net,
    server: App,
    client: App,
    /// Both ends of each connection.
    ends: Vec<(Socket, Socket)>,
}

/// Creates a scene in which the first stack's server has died, and its successor has adopted: all connections
/// wait, and one of them is continued in the first round.
fn scene(stack: Stack, remote: Endpoint) -> Scene {
    let other = if remote.addr.is_v4() { Stack::new(2) } else { Stack::v6(2) };
    let mut net = Net::new(vec![stack.mortal(), other]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    server.listen(&mut net, 77, Endpoint::at(Addr::ANY, 80), 16);
    let mut ends = Vec::new();
    for n in 0..COUNT {
        let c = client.connect(remote);
        net.settle();
        let s = server.accept().expect("offered");
        net.settle();
        client.write(c, &[n as u8; 3]);
        net.wait(Duration::from_secs(1));
        assert_eq!(server.read(s), [n as u8; 3]);
        net.settle();
        ends.push((s, c));
    }
    let mut scene = Scene { net, server, client, ends };
    scene.die(Recovery::Stateful);
    scene
}

fn stacks() -> Scene {
    scene(Stack::new(1).changed(patient), HTTP)
}

impl Scene {
    fn die(&mut self, recovery: Recovery) {
        let now = self.net.now;
        let adoption = self.net.stack(0).restart(now, &[&self.server], recovery);
        assert_eq!((adoption.kept, adoption.lost), (COUNT as u32, 0), "{adoption:?}");
    }

    /// Returns how many connections are continued.
    fn there(&mut self) -> usize {
        self.net.stack(0).transport.connections.len()
    }

    fn waiting(&mut self) -> usize {
        self.net.stack(0).transport.connections.count() - self.there()
    }

    /// Exchanges question and answer on a connection.
    fn talk(&mut self, at: usize) {
        let (s, c) = self.ends[at];
        let (question, answer) = (vec![at as u8; 5000], vec![at as u8 + 100; 9000]);
        assert_eq!(self.client.write(c, &question), 5000);
        self.net.settle();
        assert!(self.server.read(s) == question);
        assert_eq!(self.server.write(s, &answer), 9000);
        self.net.settle();
        assert!(self.client.read(c) == answer);
        self.net.settle();
    }
}

#[test]
fn connections_that_need_nothing_go_on_one_after_another() {
    let mut scene = stacks();
    assert_eq!((scene.there(), scene.waiting()), (0, COUNT));
    assert!(scene.net.stack(0).transport.has_work(), "it does not sleep");
    assert_eq!(scene.net.stack(0).transport.take_adoption(), None);
    for n in 1..=COUNT {
        scene.net.settle();
        assert_eq!(scene.waiting(), COUNT - n);
        scene.net.now += Duration::from_secs(1);
    }
    let adoption = scene.net.stack(0).transport.take_adoption().expect("all are there");
    assert_eq!((adoption.kept, adoption.lost), (COUNT as u32, 0));
    assert_eq!(scene.net.stack(0).transport.take_adoption(), None, "once");
    assert!(!scene.net.stack(0).transport.is_adopting());
    (0..COUNT).for_each(|at| scene.talk(at));
}

#[test]
fn a_segment_for_one_that_waits_finds_it() {
    let mut scene = stacks();
    scene.net.settle();
    assert_eq!(scene.waiting(), COUNT - 1);
    scene.talk(3);
    assert_eq!(scene.waiting(), COUNT - 2);
    assert_eq!(scene.net.stack(0).stat(Stat::ResetsOut), 0);
    (0..COUNT).for_each(|at| scene.talk(at));
    assert_eq!(scene.waiting(), 0);
}

#[test]
fn over_ipv6_too_however_many_addresses_there_were() {
    let remote = Endpoint::at(addr_v6(1), 80);
    let mut scene = scene(Stack::v6(1).changed(patient), remote);
    scene.net.settle();
    assert_eq!(scene.waiting(), COUNT - 1);
    // Names that nothing refers to are forgotten; those of connections that wait are not among them.
    for n in 0..100 {
        let local = Endpoint::at(addr_v6(n), 9);
        scene.net.stack(0).transport.connections.name(&FourTuple { local, remote });
    }
    (0..COUNT).for_each(|at| scene.talk(at));
}

#[test]
fn what_its_application_does_finds_it() {
    let mut scene = stacks();
    scene.net.settle();
    assert_eq!(scene.waiting(), COUNT - 1);
    // The application sends something.
    let (s, c) = scene.ends[1];
    scene.server.write(s, b"a word");
    scene.net.settle();
    assert_eq!((scene.client.read(c), scene.waiting()), (b"a word".to_vec(), COUNT - 2));
    // The application asks for the facts of the connection.
    let (s, _) = scene.ends[2];
    scene.server.info(&mut scene.net, s);
    // The application sets an option, and closes.
    let (s, c) = scene.ends[3];
    scene.server.set_option(s, SocketOption::NoDelay, 1);
    scene.server.close(s);
    scene.net.settle();
    assert_eq!(scene.client.state(c).2 & REPLICA_FIN, REPLICA_FIN);
    assert_eq!((scene.waiting(), scene.net.stack(0).stat(Stat::BadCommands)), (1, 0));
}

#[test]
fn what_was_said_before_the_death_and_not_heard_is_heard() {
    let mut scene = stacks();
    let (s, c) = scene.ends[2];
    scene.server.raw().store(s, b"stored and not told");
    scene.die(Recovery::Stateful);
    scene.net.wait(Duration::from_secs(COUNT as u64 + 1));
    assert_eq!(scene.client.read(c), b"stored and not told");
}

#[test]
fn names_and_places_of_those_that_wait_are_taken() {
    let mut scene = stacks();
    let (_, c) = scene.ends[0];
    let peer = scene.client.slot(c).local();
    // This connects from the very port of the listener to the peer of a connection that waits.
    let own = scene.server.raw().connect(77, HTTP, peer);
    scene.net.settle();
    assert_eq!(scene.server.state(own).1, Cause::AddressNotAvailable);
    assert_eq!(scene.waiting(), COUNT - 1, "its name is known though it waits");
    scene.die(Recovery::Stateful);
    // New connections take other places meanwhile.
    let more: Vec<Socket> = (0..3).map(|_| scene.client.connect(HTTP)).collect();
    scene.net.settle();
    let accepted: Vec<Socket> = more.iter().map(|_| scene.server.accept().expect("offered")).collect();
    scene.net.settle();
    assert!(accepted.iter().all(|new| scene.ends.iter().all(|(s, _)| s.slot != new.slot)));
    scene.ends.extend(accepted.into_iter().zip(more));
    (0..COUNT + 3).for_each(|at| scene.talk(at));
}

#[test]
fn a_successor_that_dies_leaves_them_to_its_own() {
    let mut scene = stacks();
    for _ in 0..4 {
        scene.net.settle();
        scene.die(Recovery::Stateful);
    }
    (0..COUNT).for_each(|at| scene.talk(at));
}

#[test]
fn they_end_with_their_application() {
    let mut scene = stacks();
    scene.net.settle();
    assert_eq!(scene.waiting(), COUNT - 1);
    let (now, id) = (scene.net.now, scene.server.id);
    scene.net.stack(0).transport.close_session(now, id);
    (0..COUNT).for_each(|_| scene.net.wait(Duration::from_secs(1)));
    for &(_, c) in &scene.ends {
        assert_eq!(scene.client.state(c).2 & REPLICA_FIN, REPLICA_FIN);
        scene.client.close(c);
    }
    scene.net.wait(Duration::from_secs(1));
    assert_eq!((scene.there(), scene.waiting()), (0, 0));
}

#[test]
fn they_end_with_the_stack() {
    let mut scene = stacks();
    let now = scene.net.now;
    scene.net.stack(0).transport.abort_all(now);
    scene.net.settle();
    assert!(scene.ends.iter().all(|(_, c)| scene.client.state(*c).2 & REPLICA_RESET != 0));
}

/// A record contradicts itself, which is seen only when the connection is continued: it costs that one
/// connection, whose place and slot are free then.
#[test]
fn one_that_cannot_go_on_is_told_as_lost() {
    let mut scene = stacks();
    let damage = |record: &mut ConnectionRecord| record.mss_path = 0;
    scene.net.stack(0).damage(1, damage);
    scene.die(Recovery::Stateful);
    scene.net.wait(Duration::from_secs(COUNT as u64 + 1));
    let adoption = scene.net.stack(0).transport.take_adoption().expect("all are there");
    assert_eq!(
        (adoption.kept, adoption.lost, adoption.why),
        (COUNT as u32 - 1, 1, Some(Loss::Contradiction))
    );
    assert_eq!(scene.net.stack(0).stat(Stat::ConnectionsLost), 1);
    let (s, _) = scene.ends[1];
    assert_eq!(scene.server.state(s).2 & (REPLICA_CLOSED | REPLICA_RESET), REPLICA_CLOSED | REPLICA_RESET);
    scene.server.close(s);
    scene.net.settle();
    for at in [0, 2, 3, 4] {
        scene.talk(at);
    }
    let c = scene.client.connect(HTTP);
    scene.net.settle();
    scene.ends[1] = (scene.server.accept().expect("offered"), c);
    scene.net.settle();
    (0..COUNT).for_each(|at| scene.talk(at));
}

/// The predecessor has given a slot back, and dies before it has written that: the blocks of its buffer are
/// free, as the slot is.
#[test]
fn blocks_of_a_slot_that_was_given_back_are_free() {
    let mut scene = stacks();
    let (s, c) = scene.ends[2];
    scene.client.write(c, &[7; 5000]);
    scene.net.wait(Duration::from_secs(COUNT as u64 + 1));
    assert!(scene.net.stack(0).buffer_bytes() >= 5000);
    scene.server.slot(s).set_state(SlotState::Free);
    scene.die(Recovery::Stateful);
    scene.net.wait(Duration::from_secs(COUNT as u64 + 1));
    assert_eq!((scene.there(), scene.net.stack(0).buffer_bytes()), (COUNT - 1, 0));
}

#[test]
fn who_has_died_is_cleaned_up_after_when_what_it_had_goes_on_and_nobody_else_hurries() {
    let mut scene = stacks();
    let (now, id) = (scene.net.now, scene.server.id);
    scene.net.stack(0).transport.close_session(now, id);
    assert_eq!((scene.there(), scene.waiting()), (0, COUNT), "all at once would take long");
    assert!(scene.net.stack(0).transport.is_behind() && scene.net.stack(0).transport.has_work());
    assert_eq!(scene.net.stack(0).transport.take_ended(), []);
    for _ in 0..=COUNT {
        scene.net.wait(Duration::from_secs(1));
    }
    // They end as those of any session that is gone: none was lost, and each peer sees the end of its
    // connection.
    let adoption = scene.net.stack(0).transport.take_adoption().expect("all are there");
    assert_eq!((adoption.kept, adoption.lost), (COUNT as u32, 0));
    let flags: Vec<u32> = scene.ends.iter().map(|(_, c)| scene.client.state(*c).2).collect();
    assert!(flags.iter().all(|flags| flags & REPLICA_FIN != 0 && flags & REPLICA_RESET == 0), "{flags:?}");
}

#[test]
fn a_connection_is_opened_beside_those_that_wait_under_another_name() {
    // There are as many ports as connections, and one more.
    let few = |config: &mut Config| {
        patient(config);
        config.ephemeral = (40_000, 40_000 + COUNT as u16);
    };
    let mut net = Net::new(vec![Stack::with(1, few).mortal(), Stack::new(2)]);
    let mut client = App::attach(net.stack(0), 1);
    let mut server = App::attach(net.stack(1), 2);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 16);
    let remote = Endpoint::new(super::kit::addr(2), 80);
    let old: Vec<Socket> = (0..COUNT).map(|_| client.connect(remote)).collect();
    net.wait(Duration::from_secs(2));
    let accepted: Vec<Socket> = core::iter::from_fn(|| server.accept()).collect();
    net.wait(Duration::from_secs(2));
    let now = net.now;
    let adoption = net.stack(0).restart(now, &[&client], Recovery::Stateful);
    assert_eq!((adoption.kept, accepted.len()), (COUNT as u32, COUNT));
    let waiting =
        |net: &mut Net| net.stack(0).transport.connections.count() - net.stack(0).transport.connections.len();
    let (new, none) = (client.connect(remote), client.connect(remote));
    net.settle();
    assert_eq!(waiting(&mut net), COUNT - 1, "they need not go on for that");
    assert_eq!(client.state(new).1, Cause::None);
    let ports: Vec<u16> = old.iter().chain([&new, &none]).map(|s| client.slot(*s).local().port).collect();
    assert_eq!(client.state(none).1, Cause::AddressNotAvailable, "{ports:?}");
    for (n, socket) in old.iter().enumerate() {
        client.write(*socket, &[n as u8]);
        net.settle();
        assert_eq!(server.read(accepted[n]), [n as u8]);
    }
}

//! Tests of the port that a connection gets if few are free, and of the time that the choice takes.

use std::collections::BTreeSet;
use std::vec;
use std::vec::Vec;

use atoll_base::{Duration, Endpoint};
use atoll_ipc::Cause;
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::command::CloseMode;
use atoll_ipc::slot::SlotState;

use super::kit::{ARENA, App, Net, Socket, Stack, addr};
use crate::Recovery;

const PORTS: u32 = 3000;
const SHARE: u32 = 512;

/// Returns an address that no host has, so that a connection to it stays under way.
fn nowhere() -> Endpoint {
    Endpoint::new(addr(77), 80)
}

/// Creates a stack with this number of ephemeral ports.
fn with_ports(count: u32) -> Stack {
    // Cannot truncate: the callers use small numbers.
    Stack::with(1, |config| config.ephemeral = (40_000, 39_999 + count as u16))
}

fn attach(net: &mut Net) -> App {
    App::attach_with(net.stack(0), 1, ArenaConfig { slots: 1 << 13, ..ARENA })
}

/// Runs rounds with the share of a session that serves, until nothing is left to do at once. Returns how many
/// rounds found commands.
fn rounds(net: &mut Net) -> usize {
    for n in 0..1000 {
        net.now += Duration::from_micros(10);
        let now = net.now;
        let stack = net.stack(0);
        let busy = stack.transport.handle_commands(now, SHARE);
        stack.transport.handle_timers(now);
        stack.flush(now);
        stack.out.outside.clear();
        if !busy {
            return n;
        }
    }
    panic!("it does not come to an end");
}

/// Opens this number of connections to an address that does not answer.
fn connect_many(net: &mut Net, app: &mut App, count: u32) -> Vec<Socket> {
    let connect = |n| {
        let socket = app.connect(nowhere());
        if n % 64 == 63 {
            rounds(net);
        }
        socket
    };
    let sockets = (0..count).map(connect).collect();
    rounds(net);
    sockets
}

fn port_of(app: &App, socket: Socket) -> u16 {
    app.slot(socket).local().port
}

fn close(net: &mut Net, app: &mut App, socket: Socket) {
    app.reset(socket);
    rounds(net);
}

#[test]
fn a_search_where_all_ports_are_in_use_is_cut_into_slices() {
    let mut net = Net::new(vec![with_ports(PORTS)]);
    let mut app = attach(&mut net);
    let all = connect_many(&mut net, &mut app, PORTS);
    let ports: BTreeSet<u16> = all.iter().map(|socket| port_of(&app, *socket)).collect();
    assert_eq!(ports.len(), PORTS as usize, "each has one of its own, the last one, too");
    net.stack(0).transport.connections.forget_searches();
    let none = app.connect(nowhere());
    let needed = rounds(&mut net);
    assert!((10..100).contains(&needed), "{needed} rounds");
    assert_eq!(app.state(none).1, Cause::AddressNotAvailable);
    // The result is known then.
    let none = app.connect(nowhere());
    assert_eq!(rounds(&mut net), 1);
    assert_eq!(app.state(none).1, Cause::AddressNotAvailable);
    // Towards other destinations all ports are free.
    let elsewhere = app.connect(Endpoint::new(addr(77), 81));
    assert_eq!(rounds(&mut net), 1);
    assert_eq!(app.state(elsewhere).1, Cause::None);
}

#[test]
fn what_a_session_says_after_a_connection_that_is_sought_a_port_for_waits_and_others_do_not() {
    let mut net = Net::new(vec![with_ports(PORTS)]);
    let mut app = attach(&mut net);
    let mut other = App::attach(net.stack(0), 2);
    connect_many(&mut net, &mut app, PORTS);
    net.stack(0).transport.connections.forget_searches();
    let (none, elsewhere) = (app.connect(nowhere()), app.connect(Endpoint::new(addr(77), 81)));
    let others = other.connect(Endpoint::new(addr(77), 82));
    let now = net.now;
    net.stack(0).transport.handle_commands(now, SHARE);
    net.stack(0).flush(now);
    let states = [none, elsewhere].map(|socket| app.state(socket).0);
    assert_eq!(states, [SlotState::Free; 2], "it is not known yet");
    assert_eq!(other.state(others).0, SlotState::Connecting);
    assert!(net.stack(0).transport.has_commands());
    rounds(&mut net);
    assert_eq!((app.state(none).1, app.state(elsewhere).1), (Cause::AddressNotAvailable, Cause::None));
}

#[test]
fn the_only_free_port_is_found_whenever_it_has_become_free() {
    let mut net = Net::new(vec![with_ports(PORTS)]);
    let mut app = attach(&mut net);
    let all = connect_many(&mut net, &mut app, PORTS);
    // These are given up before there was a search, after all were found in use, and again.
    for given_up in [all[17], all[999], all[1], all[2999]] {
        let port = port_of(&app, given_up);
        close(&mut net, &mut app, given_up);
        let socket = app.connect(nowhere());
        rounds(&mut net);
        assert_eq!((app.state(socket).1, port_of(&app, socket)), (Cause::None, port));
        let none = app.connect(nowhere());
        rounds(&mut net);
        assert_eq!(app.state(none).1, Cause::AddressNotAvailable);
    }
    // These are given up during the search, both ports that were examined and ports that were not.
    for given_up in [all[18], all[1500], all[700]] {
        let port = port_of(&app, given_up);
        net.stack(0).transport.connections.forget_searches();
        let socket = app.connect(nowhere());
        let now = net.now;
        for _ in 0..10 {
            net.stack(0).transport.handle_commands(now, SHARE);
        }
        assert_eq!(app.state(socket).0, SlotState::Free, "it is not known yet");
        let mut entries = net.stack(0).transport.connections.iter();
        let (index, _) = entries.find(|(_, entry)| entry.name.local_port() == port).expect("it is in use");
        drop(entries);
        net.stack(0).transport.close(now, index, CloseMode::Abort);
        rounds(&mut net);
        assert_eq!((app.state(socket).1, port_of(&app, socket)), (Cause::None, port));
    }
}

#[test]
fn a_search_is_begun_again_by_a_successor() {
    let stack = with_ports(256).mortal();
    let mut net = Net::new(vec![stack]);
    let mut app = attach(&mut net);
    let all = connect_many(&mut net, &mut app, 256);
    net.stack(0).transport.connections.forget_searches();
    let none = app.connect(nowhere());
    let now = net.now;
    net.stack(0).transport.handle_commands(now, SHARE);
    net.stack(0).flush(now);
    assert_eq!(app.state(none).0, SlotState::Free, "it is not known yet");
    assert_eq!(net.stack(0).restart(now, &[&app], Recovery::Stateful).kept, 256);
    net.wait(Duration::from_millis(100));
    rounds(&mut net);
    assert_eq!(app.state(none).1, Cause::AddressNotAvailable);
    close(&mut net, &mut app, all[100]);
    let socket = app.connect(nowhere());
    rounds(&mut net);
    assert_eq!(app.state(socket).1, Cause::None);
}

#[test]
fn ports_in_time_wait_come_back_when_it_is_over() {
    let few = |config: &mut crate::Config| config.ephemeral = (40_000, 40_299);
    let mut net = Net::new(vec![Stack::new(1), Stack::with(2, few)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach_with(net.stack(1), 2, ArenaConfig { slots: 1 << 13, ..ARENA });
    let remote = Endpoint::new(addr(1), 80);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 64);
    let seek = |net: &mut Net, client: &mut App| {
        let socket = client.connect(remote);
        // A settled net waits for no command.
        (0..10).for_each(|_| net.settle());
        socket
    };
    for _ in 0..300 {
        let c = seek(&mut net, &mut client);
        let s = server.accept().expect("offered");
        client.close(c);
        net.settle();
        server.close(s);
        net.settle();
    }
    assert_eq!(net.stack(1).transport.connections.time_waits().len(), 300);
    let too_early = seek(&mut net, &mut client);
    assert_eq!(client.state(too_early).1, Cause::AddressNotAvailable);
    // RFC 6191 allows it after a second.
    net.wait(Duration::from_millis(1500));
    let again = seek(&mut net, &mut client);
    assert_eq!(client.state(again).1, Cause::None);
    let ports: BTreeSet<u16> = (0..299)
        .map(|_| {
            let socket = seek(&mut net, &mut client);
            server.poll();
            while server.accept().is_some() {}
            port_of(&client, socket)
        })
        .collect();
    assert_eq!(ports.len(), 299, "all of them");
}

#[test]
fn searches_are_bounded_and_a_forgotten_one_is_only_begun_again() {
    let mut net = Net::new(vec![with_ports(1)]);
    let mut app = attach(&mut net);
    for port in 1..300 {
        let to = Endpoint::new(addr(77), port);
        let (first, second) = (app.connect(to), app.connect(to));
        rounds(&mut net);
        assert_eq!((app.state(first).1, app.state(second).1), (Cause::None, Cause::AddressNotAvailable));
    }
    assert_eq!(net.stack(0).transport.connections.searches(), 64);
}

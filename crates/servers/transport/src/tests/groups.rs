//! Tests of datagrams to groups.

use std::cell::Cell;
use std::vec;
use std::vec::Vec;

use atoll_base::{Addr, Duration, Endpoint};
use atoll_ipc::details::TimeOfDay;
use atoll_ipc::page::Stat;
use atoll_ipc::{Command, SocketOption};

use super::kit::{App, Net, Socket, Stack, addr};
use crate::Calendar;

const ADDR: u32 = 0xefff_0102;
const GROUP: Endpoint = Endpoint::new(ADDR, 5353);

/// Creates two machines, each with two sockets at the group's port, of which the first two of each are
/// members.
fn members() -> (Net, [App; 2], [[Socket; 2]; 2]) {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut apps = [0, 1].map(|n| App::attach(net.stack(n), n as u32 + 1));
    let sockets = [0, 1].map(|n: usize| {
        [(), ()].map(|()| apps[n].open_datagrams(&mut net, Endpoint::new(0, GROUP.port), Endpoint::default()))
    });
    for (app, sockets) in apps.iter_mut().zip(&sockets) {
        sockets.iter().for_each(|socket| app.join(*socket, ADDR.into(), true));
    }
    net.settle();
    (net, apps, sockets)
}

fn texts(apps: &mut [App; 2], sockets: &[[Socket; 2]; 2]) -> Vec<Option<Vec<u8>>> {
    let mut all = Vec::new();
    for (app, sockets) in apps.iter_mut().zip(sockets) {
        for socket in sockets {
            all.push(app.receive(*socket).map(|(_, text)| text));
        }
    }
    all
}

#[test]
fn every_member_on_every_machine_hears_it_once() {
    let (mut net, mut apps, sockets) = members();
    apps[0].send(sockets[0][0], GROUP, b"hello");
    net.settle();
    assert_eq!(texts(&mut apps, &sockets), vec![Some(b"hello".to_vec()); 4], "the sender is a member, too");
    // Without IP_MULTICAST_LOOP only other machines get it.
    apps[0].set_option(sockets[0][0], SocketOption::MulticastLoop, 0);
    apps[0].send(sockets[0][0], GROUP, b"again");
    net.settle();
    let there = Some(b"again".to_vec());
    assert_eq!(texts(&mut apps, &sockets), [None, None, there.clone(), there]);
    // Without hops only this machine gets it.
    for (option, value) in [(SocketOption::MulticastLoop, 1), (SocketOption::MulticastTtl, 0)] {
        apps[0].set_option(sockets[0][0], option, value);
    }
    apps[0].send(sockets[0][0], GROUP, b"here");
    net.settle();
    let here = Some(b"here".to_vec());
    assert_eq!(texts(&mut apps, &sockets), [here.clone(), here, None, None]);
}

#[test]
fn who_has_left_hears_nothing_and_the_last_one_closes_the_door() {
    let (mut net, mut apps, sockets) = members();
    apps[1].set_option(sockets[1][0], SocketOption::MulticastAll, 0);
    apps[1].join(sockets[1][0], ADDR.into(), false);
    net.settle();
    apps[0].send(sockets[0][0], GROUP, b"hello");
    net.settle();
    assert_eq!(texts(&mut apps, &sockets)[2..], [None, Some(b"hello".to_vec())]);
    // Closing leaves the group as well.
    apps[1].close(sockets[1][1]);
    net.settle();
    assert!(!net.stack(1).transport.ip_mut().is_member(atoll_ip::Link::Outside, ADDR));
    apps[0].send(sockets[0][0], GROUP, b"hello");
    net.settle();
    assert_eq!(texts(&mut apps, &sockets)[2], None);
}

#[test]
fn a_link_that_is_full_repeats_nothing_to_those_who_have_heard_it() {
    let (mut net, mut apps, sockets) = members();
    let before = net.stack(0).stat(Stat::DatagramsIn);
    apps[0].send(sockets[0][0], GROUP, b"hello");
    net.stack(0).out.room = Some(0);
    for _ in 0..5 {
        net.wait(Duration::from_millis(2));
    }
    net.stack(0).out.room = None;
    net.wait(Duration::from_millis(5));
    assert_eq!(net.stack(0).stat(Stat::DatagramsIn) - before, 2);
    assert_eq!(texts(&mut apps, &sockets), vec![Some(b"hello".to_vec()); 4]);
}

#[test]
fn all_members_are_told_of_one_time() {
    let (mut net, mut apps, sockets) = members();
    let nanos = Cell::new(0);
    net.stack(1).transport.set_calendar(Calendar::new(move || nanos.replace(nanos.get() + 1) + 1));
    sockets[1].iter().for_each(|socket| apps[1].set_option(*socket, SocketOption::Times, 1));
    net.settle();
    apps[0].send(sockets[0][0], GROUP, b"hello");
    net.settle();
    for socket in sockets[1] {
        let details = apps[1].receive_told(socket).expect("a copy").0.details;
        assert_eq!(details.and_then(|details| details.came), TimeOfDay::from_nanos(1));
    }
}

#[test]
fn memberships_that_make_no_sense_are_counted() {
    let (mut net, mut apps, sockets) = members();
    let bad = net.stack(0).stat(Stat::BadCommands);
    let Socket { slot, generation } = sockets[0][0];
    for (generation, group, joins) in [
        (generation, ADDR, true),
        (generation, ADDR + 1, false),
        (generation, addr(2), true),
        (generation + 1, ADDR + 1, true),
    ] {
        apps[0].raw().push(Command::Group {
            slot,
            generation,
            group: group.into(),
            inside: false,
            joins,
            token: 0,
        });
    }
    for n in 0..94 {
        apps[0].raw().push(Command::Group {
            slot,
            generation,
            group: (ADDR + 1 + n).into(),
            inside: true,
            joins: true,
            token: 0,
        });
    }
    net.settle();
    assert_eq!(net.stack(0).stat(Stat::BadCommands) - bad, 4 + 75);
    apps[0].close(sockets[0][0]);
    net.settle();
    assert!(!net.stack(0).transport.ip_mut().is_member(atoll_ip::Link::Inside, ADDR + 1));
}

/// The address `ff15::1:2`, a group of the site.
const ADDR_V6: Addr = Addr::from_octets([0xff, 0x15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2]);
const GROUP_V6: Endpoint = Endpoint::at(ADDR_V6, 5353);

#[test]
fn members_of_a_group_of_ipv6_hear_it_wherever_they_are() {
    let mut net = Net::new(vec![Stack::v6(1), Stack::v6(2)]);
    let mut apps = [0, 1].map(|n| App::attach(net.stack(n), n as u32 + 1));
    let any = Endpoint::at(Addr::ANY, GROUP_V6.port);
    let sockets =
        [0, 1].map(|n: usize| [(), ()].map(|()| apps[n].open_datagrams(&mut net, any, Endpoint::default())));
    for (app, sockets) in apps.iter_mut().zip(&sockets) {
        sockets.iter().for_each(|socket| app.join(*socket, ADDR_V6, true));
    }
    net.settle();
    let say = |net: &mut Net, apps: &mut [App; 2], options: &[(SocketOption, u32)], to, word: &[u8]| {
        for (option, value) in options {
            apps[0].set_option(sockets[0][0], *option, *value);
        }
        apps[0].send(sockets[0][0], to, word);
        net.settle();
        texts(apps, &sockets)
    };
    let heard = |word: &[u8], where_: [bool; 4]| where_.map(|there| there.then(|| word.to_vec())).to_vec();
    assert_eq!(say(&mut net, &mut apps, &[], GROUP_V6, b"hello"), heard(b"hello", [true; 4]));
    // The options of IPv4 are not those of IPv6.
    let mute = [(SocketOption::MulticastLoop, 0), (SocketOption::MulticastTtl, 0)];
    assert_eq!(say(&mut net, &mut apps, &mute, GROUP_V6, b"still"), heard(b"still", [true; 4]));
    let there = heard(b"there", [false, false, true, true]);
    assert_eq!(say(&mut net, &mut apps, &[(SocketOption::MulticastLoopV6, 0)], GROUP_V6, b"there"), there);
    let here = [(SocketOption::MulticastLoopV6, 1), (SocketOption::MulticastHops, 0)];
    assert_eq!(
        say(&mut net, &mut apps, &here, GROUP_V6, b"here"),
        heard(b"here", [true, true, false, false])
    );
    // This group never leaves its machine.
    let mut octets = ADDR_V6.octets();
    octets[1] = 0x11;
    let local = Addr::from_octets(octets);
    for (app, sockets) in apps.iter_mut().zip(&sockets) {
        app.join(sockets[1], local, true);
        app.set_option(sockets[0], SocketOption::MulticastAllV6, 0);
    }
    let hops = [(SocketOption::MulticastHops, 9)];
    let to = Endpoint::at(local, GROUP_V6.port);
    assert_eq!(say(&mut net, &mut apps, &hops, to, b"mine"), heard(b"mine", [false, true, false, false]));
    // Closing leaves the group.
    sockets[1].iter().for_each(|socket| apps[1].close(*socket));
    net.settle();
    assert!(!net.stack(1).transport.ip_mut().is_member(atoll_ip::Link::Outside, ADDR_V6));
}

#[test]
fn a_large_datagram_to_a_group_leaves_in_parts() {
    let mut net = Net::new(vec![Stack::v6(1), Stack::v6(2)]);
    let mut apps = [0, 1].map(|n| App::attach(net.stack(n), n as u32 + 1));
    let any = Endpoint::at(Addr::ANY, GROUP_V6.port);
    let sockets = [0, 1].map(|n: usize| apps[n].open_datagrams(&mut net, any, Endpoint::default()));
    apps[1].join(sockets[1], ADDR_V6, true);
    net.settle();
    let text = vec![7; 5000];
    apps[0].send(sockets[0], GROUP_V6, &text);
    net.settle();
    assert!(apps[1].receive(sockets[1]).expect("a datagram").1 == text);
    net.stack(0).transport.publish_stats();
    assert_eq!(net.stack(0).stat(Stat::FragmentsOut), 4);
}

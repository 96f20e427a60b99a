use std::vec::Vec;

use atoll_base::Endpoint;
use atoll_wire::ethernet::{self, EtherType};
use atoll_wire::{icmpv6, udp};

use super::super::tests::{
    Build, MAC_PEER, MAC_US, addr, at, local_us, machine, packet, peer, receive, router,
};
use super::*;
use crate::{Cast, ChecksumOffload, Config, Ip, Received, V6Config};

fn group() -> Addr {
    addr("ff15::1:2")
}

fn other() -> Addr {
    addr("ff02::fb")
}

fn mine() -> Addr {
    solicited_node(local_us())
}

/// Returns what was sent: a version 2 report as kinds and groups, other messages as type octet and group.
fn said(ip: &mut Ip) -> Vec<Vec<(u8, Addr)>> {
    let mut all = Vec::new();
    while let Some(frame) = ip.poll_frame() {
        let (ethernet, at) = ethernet::parse(&frame.bytes).unwrap();
        let Ok((header, len)) = ipv6::parse(&frame.bytes[at..]) else { continue };
        let text = &frame.bytes[at + len..];
        if header.next_header != Protocol(ipv6::HOP_BY_HOP) {
            continue;
        }
        assert_eq!((ethernet.ethertype, header.hop_limit), (EtherType::IPV6, 1));
        assert_eq!((ethernet.dst, &text[..8]), (multicast_mac(header.dst), &mld::ROUTER_ALERT[..]));
        let text = &text[8..];
        assert!(icmpv6::parse(header.src, header.dst, text).is_ok());
        let addr = |at: usize| Addr::from_octets(text[at..at + 16].try_into().unwrap());
        if text[0] == 143 {
            assert_eq!(header.dst, mld::ROUTERS);
            all.push((8..text.len()).step_by(20).map(|at| (text[at], addr(at + 4))).collect());
        } else {
            assert_eq!(header.dst, if text[0] == mld::DONE { mld::ALL_ROUTERS } else { addr(8) });
            all.push(std::vec![(text[0], addr(8))]);
        }
    }
    all
}

/// Lets time pass until nothing is due before `until`; returns what was sent, and when.
fn wait(ip: &mut Ip, until: Instant) -> Vec<(Instant, Vec<(u8, Addr)>)> {
    let mut all = Vec::new();
    while let Some(due) = ip.next_timeout().filter(|due| *due <= until) {
        ip.handle_timeout(due);
        all.extend(said(ip).into_iter().map(|what| (due, what)));
    }
    all
}

/// Returns a machine that has reported the groups it is in.
fn member(groups: &[Addr]) -> Ip {
    let mut ip = machine(false);
    ip.announce(at(0));
    for group in groups {
        assert!(ip.join_group(at(0), Link::Outside, *group));
    }
    wait(&mut ip, at(20));
    ip
}

fn query(group: Addr, window: u16, version: u8) -> Build {
    let mut text = std::vec![0; if version == 1 { 24 } else { 28 }];
    text[0] = mld::QUERY;
    text[4..6].copy_from_slice(&window.to_be_bytes());
    text[8..24].copy_from_slice(&group.octets());
    listener_packet(router(), if group == Addr::ANY { ALL_NODES } else { group }, text)
}

fn listener_packet(src: Addr, dst: Addr, mut text: Vec<u8>) -> Build {
    let message = icmpv6::Message::Other { kind: text[0], code: 0, rest: text[4..8].try_into().unwrap() };
    icmpv6::emit(src, dst, &message, &mut text);
    let payload = [&mld::ROUTER_ALERT[..], &text].concat();
    packet(Protocol(ipv6::HOP_BY_HOP), &payload).with(|build| {
        build.dst_mac = multicast_mac(dst);
        (build.header.src, build.header.dst, build.header.hop_limit) = (src, dst, 1);
    })
}

fn words(heard: Vec<(Instant, Vec<(u8, Addr)>)>) -> Vec<Vec<(u8, Addr)>> {
    heard.into_iter().map(|(_, what)| what).collect()
}

#[test]
fn joining_and_leaving_are_told_twice() {
    // covers: RFC 3810 §6.1
    let mut ip = member(&[]);
    assert!(ip.join_group(at(20), Link::Outside, group()));
    assert!(ip.join_group(at(20), Link::Outside, group()), "another socket");
    let heard = wait(&mut ip, at(30));
    assert!(heard[0].0 == at(20) && heard[1].0 <= at(21) + Duration::from_millis(1));
    assert_eq!(words(heard), [[(4, group())], [(4, group())]]);
    ip.leave_group(at(30), Link::Outside, group());
    assert_eq!(wait(&mut ip, at(40)), [], "one is still there");
    ip.leave_group(at(40), Link::Outside, group());
    assert!(!ip.is_member(Link::Outside, group()));
    assert_eq!(words(wait(&mut ip, at(50))), [[(3, group())], [(3, group())]]);
}

#[test]
fn what_stays_on_this_machine_is_not_told() {
    let mut ip = member(&[ALL_NODES, addr("ff01::7"), addr("ff10::7")]);
    assert!(ip.is_member(Link::Outside, addr("ff01::7")) && ip.is_member(Link::Outside, ALL_NODES));
    receive(&mut ip, at(20), &query(Addr::ANY, 1000, 2).frame());
    assert_eq!(words(wait(&mut ip, at(30))), [[(2, mine())]], "that of both addresses");
}

#[test]
fn a_query_is_answered_within_its_time() {
    // covers: RFC 3810 §6.2, §6.3
    for (asked, expected) in [(group(), &[(2, group())][..]), (addr("ff15::9"), &[])] {
        let mut ip = member(&[group(), other()]);
        receive(&mut ip, at(30), &query(asked, 5000, 2).frame());
        let heard = wait(&mut ip, at(60));
        assert!(heard.iter().all(|(when, _)| (at(30)..at(36)).contains(when)));
        assert_eq!(words(heard).concat(), expected);
    }
}

#[test]
fn older_routers_are_spoken_to_in_their_words() {
    // covers: RFC 3810 §8.2.1
    let mut ip = member(&[group()]);
    receive(&mut ip, at(30), &query(Addr::ANY, 5000, 1).frame());
    let heard = words(wait(&mut ip, at(50)));
    assert!(
        heard.contains(&std::vec![(mld::REPORT_V1, group())])
            && heard.contains(&std::vec![(mld::REPORT_V1, mine())])
    );
    ip.join_group(at(50), Link::Outside, other());
    assert_eq!(words(wait(&mut ip, at(70))), [[(mld::REPORT_V1, other())], [(mld::REPORT_V1, other())]]);
    // The report of another member is enough for such a router.
    receive(&mut ip, at(70), &query(other(), 5000, 1).frame());
    let mut report = std::vec![0; 24];
    report[0] = mld::REPORT_V1;
    report[8..].copy_from_slice(&other().octets());
    assert_eq!(
        receive(&mut ip, at(70), &listener_packet(router(), other(), report).frame()),
        Received::Consumed
    );
    assert_eq!(wait(&mut ip, at(80)), []);
    ip.leave_group(at(80), Link::Outside, other());
    assert_eq!(words(wait(&mut ip, at(80)))[0], [(mld::DONE, other())]);
    // No query of the old router has arrived for 260 s.
    wait(&mut ip, at(331));
    ip.join_group(at(331), Link::Outside, other());
    assert_eq!(words(wait(&mut ip, at(331))), [[(4, other())]]);
}

#[test]
fn only_the_leader_speaks_and_only_neighbours_are_heard() {
    let mut ip = machine(true);
    assert!(ip.join_group(at(3), Link::Outside, group()));
    assert_eq!(said(&mut ip), Vec::<Vec<_>>::new());
    let asked = query(Addr::ANY, 100, 2);
    assert_eq!(receive(&mut ip, at(3), &asked.frame()), Received::Dropped(Reason::NdIgnored));
    let mut ip = member(&[group()]);
    for far in [
        asked.clone().with(|build| build.header.hop_limit = 2),
        // covers: RFC 3810 §6.2: without the option for routers.
        asked.clone().with(|build| {
            build.header.next_header = Protocol::ICMPV6;
            build.payload.drain(..mld::ROUTER_ALERT.len());
        }),
        listener_packet(peer(), ALL_NODES, std::vec![mld::QUERY; 28]),
    ] {
        assert!(matches!(receive(&mut ip, at(20), &far.frame()), Received::Dropped(_)));
    }
    assert_eq!(receive(&mut ip, at(20), &asked.frame()), Received::Consumed);
}

#[test]
fn datagrams_are_heard_by_members_only() {
    let mut text = std::vec![0; udp::HEADER_LEN + 5];
    udp::emit(&udp::Header { src_port: 4000, dst_port: 53, payload_len: 5, checksum: 0 }, &mut text);
    let mut to = |dst: Addr, protocol| {
        udp::seal(peer(), dst, &mut text);
        let build = packet(protocol, &text).with(|build| {
            build.dst_mac = multicast_mac(dst);
            build.header.dst = dst;
        });
        build.frame()
    };
    let mut ip = machine(true);
    let there = to(group(), Protocol::UDP);
    assert_eq!(receive(&mut ip, at(3), &there), Received::Dropped(Reason::Multicast));
    ip.join_group(at(3), Link::Outside, group());
    match receive(&mut ip, at(3), &there) {
        Received::Udp { cast, dst, .. } => {
            assert_eq!((cast, dst), (Cast::Multicast, Endpoint::at(group(), 53)))
        }
        other => panic!("{other:?}"),
    }
    // The hardware address of the group is also that of other groups, and other protocols use it, too.
    assert_eq!(
        receive(&mut ip, at(3), &to(addr("ff18::1:2"), Protocol::UDP)),
        Received::Dropped(Reason::Multicast)
    );
    for protocol in [Protocol::TCP, Protocol(132)] {
        assert_eq!(receive(&mut ip, at(3), &to(group(), protocol)), Received::Dropped(Reason::Broadcast));
    }
    ip.leave_group(at(3), Link::Outside, group());
    ip.join_group(at(3), Link::Inside, group());
    assert_eq!(
        receive(&mut ip, at(3), &there),
        Received::Dropped(Reason::Multicast),
        "inside is not outside"
    );
    // From inside, only our own addresses are accepted.
    let inside = ip.handle_frame(at(3), Link::Inside, &there, ChecksumOffload::Partial);
    assert_eq!(inside, Received::Dropped(Reason::Martian));
    assert_eq!(ip.poll_frame(), None, "groups get no errors");
}

#[test]
fn groups_need_a_link_and_are_bounded() {
    let mut ip = Ip::new(Config::new(MAC_US, 0xc612_0001, 24), 42, at(0)).unwrap();
    assert!(!ip.join_group(at(0), Link::Outside, group()), "there is no IPv6");
    assert!(ip.join_group(at(0), Link::Inside, group()));
    let v6 = V6Config { address: None, gateway: None, autoconf: true };
    let mut ip =
        Ip::new(Config { v6: Some(v6), ..Config::new(MAC_PEER, 0xc612_0001, 24) }, 42, at(0)).unwrap();
    ip.announce(at(0));
    let joined =
        (0..2000).filter(|n| ip.join_group(at(0), Link::Outside, addr(&std::format!("ff15::{n:x}")))).count();
    assert_eq!(joined, crate::membership::GROUPS_MAX - 1, "one is the stack's own");
    assert!(!ip.join_group(at(0), Link::Outside, peer()), "no group");
}

use std::vec::Vec;

use atoll_wire::Mac;

use super::*;
use crate::ip::tests::{Build, PEER, US, at, config, ip, packet, receive, udp_packet};
use crate::membership::GROUPS_MAX;
use crate::{Config, Ip, Received};

const GROUP: u32 = 0xefff_0102;
const OTHER: u32 = 0xe000_00fb;

fn query(group: u32, max_response: u8, version: u8) -> Vec<u8> {
    let mut bytes = std::vec![0x11, if version == 1 { 0 } else { max_response }, 0, 0];
    bytes.extend(group.to_be_bytes());
    bytes.resize(if version == 3 { 12 } else { 8 }, 0);
    let sum = atoll_wire::checksum::sum(&bytes).finish();
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    igmp_packet(if group == 0 { igmp::ALL_SYSTEMS } else { group }, &bytes).frame()
}

fn igmp_packet(dst: u32, message: &[u8]) -> Build {
    packet(Protocol::IGMP, message).with(|b| {
        b.dst_mac = multicast_mac(dst);
        b.header.dst = dst;
        b.header.ttl = 1;
    })
}

/// Returns what was sent: a version 3 report as kinds and groups, other messages as type octet and group.
fn said(ip: &mut Ip) -> Vec<Vec<(u8, u32)>> {
    let mut all = Vec::new();
    while let Some(frame) = ip.poll_frame() {
        let (ethernet, at) = ethernet::parse(&frame.bytes).unwrap();
        let (header, len) = ipv4::parse(&frame.bytes[at..]).unwrap();
        assert_eq!((header.src, header.ttl, header.protocol, len), (US, 1, Protocol::IGMP, 24));
        assert_eq!(ethernet.dst, multicast_mac(header.dst));
        let text = &frame.bytes[at + len..];
        assert!(atoll_wire::checksum::sum(text).is_valid());
        let word = |at: usize| u32::from_be_bytes(text[at..at + 4].try_into().unwrap());
        if text[0] == 0x22 {
            assert_eq!(header.dst, igmp::REPORTS);
            all.push((8..text.len()).step_by(8).map(|at| (text[at], word(at + 4))).collect());
        } else {
            assert_eq!(header.dst, if text[0] == 0x17 { igmp::ALL_ROUTERS } else { word(4) });
            all.push(std::vec![(text[0], word(4))]);
        }
    }
    all
}

/// Lets time pass until nothing is due before `until`; returns what was sent, and when.
fn wait(ip: &mut Ip, until: Instant) -> Vec<(Instant, Vec<(u8, u32)>)> {
    let mut all = Vec::new();
    while let Some(due) = ip.next_timeout().filter(|due| *due <= until) {
        ip.handle_timeout(due);
        all.extend(said(ip).into_iter().map(|what| (due, what)));
    }
    all
}

/// Returns a machine that has joined groups and reported them.
fn member(groups: &[u32]) -> Ip {
    let mut ip = ip();
    for group in groups {
        assert!(ip.join_group(at(0), Link::Outside, *group));
    }
    wait(&mut ip, at(20_000));
    ip
}

#[test]
fn joining_and_leaving_are_told_twice() {
    // RFC 3376 §5.1, §8.1.
    let mut ip = ip();
    assert!(ip.join_group(at(0), Link::Outside, GROUP));
    assert!(ip.join_group(at(0), Link::Outside, GROUP), "another socket");
    let heard = wait(&mut ip, at(10_000));
    assert_eq!(heard.iter().map(|(_, what)| what.clone()).collect::<Vec<_>>(), [[(4, GROUP)], [(4, GROUP)]]);
    assert!(heard[0].0 == at(0) && heard[1].0 <= at(1001));
    ip.leave_group(at(10_000), Link::Outside, GROUP);
    assert_eq!(wait(&mut ip, at(20_000)), [], "one is still there");
    ip.leave_group(at(20_000), Link::Outside, GROUP);
    assert!(!ip.is_member(Link::Outside, GROUP));
    let heard = wait(&mut ip, at(30_000));
    assert_eq!(heard.iter().map(|(_, what)| what.clone()).collect::<Vec<_>>(), [[(3, GROUP)], [(3, GROUP)]]);
    assert_eq!(ip.next_timeout(), None);
}

#[test]
fn only_one_replica_speaks() {
    let config = Config { sibling: (1, 2), ..config() };
    let mut ip = Ip::new(config, 1, at(0)).unwrap();
    assert!(ip.join_group(at(0), Link::Outside, GROUP) && ip.is_member(Link::Outside, GROUP));
    assert_eq!(receive(&mut ip, &query(0, 100, 3)), Received::Dropped(Reason::IgmpIgnored));
    ip.leave_group(at(0), Link::Outside, GROUP);
    assert_eq!((ip.next_timeout(), ip.is_member(Link::Outside, GROUP)), (None, false));
}

#[test]
fn a_query_is_answered_within_its_time() {
    // RFC 3376 §5.2: one report has all groups; another has one group alone.
    for (asked, expected) in [(0, &[(2, OTHER), (2, GROUP)][..]), (GROUP, &[(2, GROUP)]), (GROUP + 1, &[])] {
        let mut ip = member(&[GROUP, OTHER]);
        let asked = query(asked, 50, 3);
        ip.handle_frame(at(30_000), Link::Outside, &asked, crate::ChecksumOffload::Unknown);
        let heard = wait(&mut ip, at(60_000));
        assert!(heard.iter().all(|(when, _)| (at(30_000)..at(35_001)).contains(when)));
        assert_eq!(heard.into_iter().flat_map(|(_, what)| what).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn older_routers_are_spoken_to_in_their_words() {
    // RFC 3376 §7.2.1.
    for (version, report, leave) in [(2, 0x16, Some(0x17)), (1, 0x12, None)] {
        let mut ip = member(&[GROUP, igmp::ALL_SYSTEMS]);
        let asked = query(0, 50, version);
        ip.handle_frame(at(30_000), Link::Outside, &asked, crate::ChecksumOffload::Unknown);
        let heard = wait(&mut ip, at(50_000));
        assert_eq!(heard.len(), 1, "{heard:?}");
        assert_eq!(heard[0].1, [(report, GROUP)]);
        ip.join_group(at(50_000), Link::Outside, OTHER);
        let heard = wait(&mut ip, at(70_000));
        assert_eq!(
            heard.iter().map(|(_, what)| what.clone()).collect::<Vec<_>>(),
            [[(report, OTHER)], [(report, OTHER)]]
        );
        ip.leave_group(at(70_000), Link::Outside, OTHER);
        assert_eq!(wait(&mut ip, at(70_000)).first().map(|(_, what)| what[0].0), leave);
        wait(&mut ip, at(290_000));
        // No query of the old router has arrived for 260 s.
        ip.join_group(at(290_000), Link::Outside, OTHER);
        assert_eq!(wait(&mut ip, at(290_000))[0].1, [(4, OTHER)]);
    }
}

#[test]
fn another_members_report_is_enough_for_an_older_router() {
    let mut ip = member(&[GROUP]);
    let offload = crate::ChecksumOffload::Unknown;
    ip.handle_frame(at(30_000), Link::Outside, &query(0, 100, 2), offload);
    let mut report = [0; igmp::HEADER_LEN];
    igmp::emit(&Message::Report { version: 2, group: GROUP }, &mut report);
    let report = igmp_packet(GROUP, &report).frame();
    assert_eq!(ip.handle_frame(at(30_000), Link::Outside, &report, offload), Received::Consumed);
    assert_eq!(wait(&mut ip, at(60_000)), []);
}

#[test]
fn many_groups_take_several_reports() {
    let groups: Vec<u32> = (0..200).map(|n| GROUP + n).collect();
    let mut ip = member(&groups);
    ip.handle_frame(at(30_000), Link::Outside, &query(0, 10, 3), crate::ChecksumOffload::Unknown);
    let heard = wait(&mut ip, at(60_000));
    assert_eq!(heard.len(), 3);
    assert_eq!(
        heard.into_iter().flat_map(|(_, what)| what).map(|(_, group)| group).collect::<Vec<_>>(),
        groups
    );
}

#[test]
fn groups_are_bounded() {
    let mut ip = ip();
    let joined = (0..2000).filter(|n| ip.join_group(at(0), Link::Outside, GROUP + n)).count();
    assert_eq!(joined, GROUPS_MAX);
    assert!(ip.join_group(at(0), Link::Outside, GROUP), "those that are there can have more members");
    assert!(!ip.join_group(at(0), Link::Outside, PEER), "no group");
}

#[test]
fn groups_that_were_left_take_nobody_s_place_and_are_forgotten_at_last() {
    let mut ip = ip();
    for n in 0..5000 {
        assert!(ip.join_group(at(0), Link::Outside, GROUP + 1 + n));
        ip.leave_group(at(0), Link::Outside, GROUP + 1 + n);
    }
    let joined = (0..2000).filter(|n| ip.join_group(at(1), Link::Outside, GROUP + n)).count();
    assert_eq!(joined, GROUPS_MAX);
    (0..2000).for_each(|n| ip.leave_group(at(2), Link::Outside, GROUP + n));
    wait(&mut ip, at(60_000));
    assert!((0..5001).all(|n| !ip.is_member(Link::Outside, GROUP + n)));
    assert!(ip.next_timeout().is_none_or(|due| due > at(60_000)));
}

#[test]
fn datagrams_are_heard_by_members_only() {
    let to = |dst: u32| {
        let build = udp_packet(b"hello").with(|b| {
            b.dst_mac = multicast_mac(dst);
            b.header.dst = dst;
            atoll_wire::udp::seal(PEER, dst, &mut b.payload);
        });
        build.frame()
    };
    let mut ip = ip();
    assert_eq!(receive(&mut ip, &to(GROUP)), Received::Dropped(Reason::Multicast));
    ip.join_group(at(0), Link::Outside, GROUP);
    let received =
        |ip: &mut Ip, dst| matches!(receive(ip, &to(dst)), Received::Udp { cast: Cast::Multicast, .. });
    assert!(received(&mut ip, GROUP) && !received(&mut ip, OTHER));
    // The low 23 bits are equal, and so is the hardware address.
    assert!(!received(&mut ip, GROUP ^ 0x0080_0000));
    ip.leave_group(at(0), Link::Outside, GROUP);
    assert!(!received(&mut ip, GROUP));
    ip.join_group(at(0), Link::Inside, GROUP);
    assert!(!received(&mut ip, GROUP), "inside is not outside");
}

#[test]
fn what_comes_from_far_away_is_ignored() {
    let far = igmp_packet(igmp::ALL_SYSTEMS, &[0x11, 100, 0xee, 0x9b, 0, 0, 0, 0]).with(|b| b.header.ttl = 2);
    assert_eq!(receive(&mut member(&[GROUP]), &far.frame()), Received::Dropped(Reason::IgmpIgnored));
    let segment = crate::ip::tests::tcp_packet().with(|b| {
        b.dst_mac = Mac([1, 0, 0x5e, 0, 0, 1]);
        b.header.dst = igmp::ALL_SYSTEMS;
    });
    assert_eq!(receive(&mut ip(), &segment.frame()), Received::Dropped(Reason::Broadcast));
}

#[test]
fn a_question_about_all_groups_to_one_of_them_is_ignored() {
    // covers: RFC 3376 §9.1, §4.1.12: but not one to us.
    for (dst, heard) in [(GROUP, false), (igmp::ALL_SYSTEMS, true), (US, true)] {
        let mut ip = member(&[GROUP]);
        let question = igmp_packet(dst, &[0x11, 100, 0xee, 0x9b, 0, 0, 0, 0]);
        let question =
            if dst == US { question.with(|b| b.dst_mac = Mac([2, 0, 0, 0, 0, 1])) } else { question };
        let question = question.with(|b| b.header.src = PEER);
        assert_eq!(receive(&mut ip, &question.frame()) == Received::Consumed, heard, "{dst:x}");
    }
}

#[test]
fn a_querier_without_address_is_answered() {
    // RFC 4541 §2.1.1: switches query for the sake of their tables.
    let mut ip = member(&[GROUP]);
    let mut frame = query(0, 10, 3);
    frame[26..30].fill(0);
    frame[24..26].fill(0);
    let sum = atoll_wire::checksum::sum(&frame[14..34]).finish();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(
        ip.handle_frame(at(30_000), Link::Outside, &frame, crate::ChecksumOffload::Unknown),
        Received::Consumed
    );
    assert_eq!(wait(&mut ip, at(60_000)).len(), 1);
}

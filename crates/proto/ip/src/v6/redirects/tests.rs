use atoll_wire::nd::{Message, RouterAdvertisement};

use super::super::addresses::ALL_NODES;
use super::super::tests::{MAC_OTHER, MAC_PEER, addr, at, machine, nd_frame, peer, receive, router, us};
use super::*;
use crate::{Ip, Reason, Received, Route};

fn far() -> Addr {
    addr("2001:db8:ffff::1")
}

fn better() -> Addr {
    addr("fe80::bb")
}

/// Returns a machine with a router that has a lifetime of 1800 s.
fn routed() -> Ip {
    let mut ip = machine(true);
    let message =
        RouterAdvertisement { router_lifetime: 1800, source_mac: Some(MAC_PEER), ..Default::default() };
    let frame = nd_frame(router(), ALL_NODES, &Message::RouterAdvertisement(message));
    assert_eq!(receive(&mut ip, at(3), &frame), Received::Consumed);
    assert_eq!(ip.route(at(3), far()), Route::Via { mac: MAC_PEER });
    ip
}

fn redirect(from: Addr, destination: Addr, target: Addr) -> alloc::vec::Vec<u8> {
    nd_frame(from, us(), &Message::Redirect { target, destination, target_mac: Some(MAC_OTHER) })
}

#[test]
fn the_router_in_use_may_name_a_better_way() {
    // covers: RFC 4861 §8.3
    let mut ip = routed();
    let generation = ip.neighbour_generation();
    assert_eq!(receive(&mut ip, at(4), &redirect(router(), far(), better())), Received::Consumed);
    assert!(ip.neighbour_generation() > generation);
    assert_eq!((ip.route(at(4), far()), ip.next_hop(far())), (Route::Via { mac: MAC_OTHER }, Some(better())));
    assert_eq!(ip.next_hop(addr("2001:db8:ffff::2")), Some(router()), "others go as before");
    // The router that is in use may send redirects; the other may not.
    assert_eq!(
        receive(&mut ip, at(5), &redirect(router(), far(), far())),
        Received::Dropped(Reason::NdIgnored)
    );
    assert_eq!(receive(&mut ip, at(5), &redirect(better(), far(), far())), Received::Consumed);
    assert_eq!(ip.next_hop(far()), Some(far()), "it is on this link after all");
    assert!(matches!(ip.route(at(5), far()), Route::Via { .. } | Route::Resolving));
    ip.handle_timeout(at(605));
    assert_eq!(ip.next_hop(far()), Some(router()), "for ten minutes");
}

#[test]
fn redirects_are_believed_of_nobody_else_and_about_nothing_else() {
    // covers: RFC 4861 §8.1
    let mut ip = routed();
    let other = addr("fe80::cc");
    let mut routed_by = redirect(router(), far(), better());
    routed_by[14 + 7] = 254;
    for frame in [
        redirect(other, far(), better()),
        redirect(peer(), far(), better()),
        redirect(router(), far(), addr("2001:db8::77")),
        redirect(router(), far(), us()),
        redirect(router(), peer(), better()),
        redirect(router(), us(), better()),
        redirect(router(), addr("ff15::1"), better()),
        redirect(router(), Addr::LOOPBACK, better()),
        nd_frame(
            router(),
            ALL_NODES,
            &Message::Redirect { target: better(), destination: far(), target_mac: None },
        ),
        routed_by,
    ] {
        assert_eq!(receive(&mut ip, at(4), &frame), Received::Dropped(Reason::NdIgnored));
    }
    assert_eq!((ip.next_hop(far()), ip.counters().redirects), (Some(router()), 0));
    let mut short = redirect(router(), far(), better());
    short.truncate(14 + 40 + 32);
    short[18..20].copy_from_slice(&32u16.to_be_bytes());
    assert!(matches!(receive(&mut ip, at(4), &short), Received::Dropped(_)));
}

#[test]
fn a_target_that_does_not_answer_is_passed_over() {
    // covers: RFC 4861 §7.3.3
    let mut ip = routed();
    let message = Message::Redirect { target: better(), destination: far(), target_mac: None };
    assert_eq!(receive(&mut ip, at(4), &nd_frame(router(), us(), &message)), Received::Consumed);
    assert_eq!(ip.route(at(4), far()), Route::Resolving);
    for n in 1..5 {
        ip.handle_timeout(at(4) + Duration::from_millis(n * 1100));
        // The router answers whenever it is asked.
        let (target, target_mac) = (router(), Some(MAC_PEER));
        let (router, solicited, overriding) = (true, true, true);
        let answer = Message::NeighbourAdvertisement { target, router, solicited, overriding, target_mac };
        receive(&mut ip, at(4) + Duration::from_millis(n * 1100), &nd_frame(target, us(), &answer));
    }
    assert_eq!((ip.next_hop(far()), ip.route(at(9), far())), (Some(router()), Route::Via { mac: MAC_PEER }));
}

#[test]
fn a_router_that_leaves_takes_its_redirects_along() {
    let mut ip = routed();
    let second =
        RouterAdvertisement { router_lifetime: 1800, source_mac: Some(MAC_OTHER), ..Default::default() };
    let frame = nd_frame(better(), ALL_NODES, &Message::RouterAdvertisement(second));
    assert_eq!(receive(&mut ip, at(4), &frame), Received::Consumed);
    assert_eq!(receive(&mut ip, at(4), &redirect(router(), far(), better())), Received::Consumed);
    assert_eq!(ip.next_hop(far()), Some(better()));
    let leaves = RouterAdvertisement { router_lifetime: 0, ..Default::default() };
    let frame = nd_frame(better(), ALL_NODES, &Message::RouterAdvertisement(leaves));
    assert_eq!(receive(&mut ip, at(5), &frame), Received::Consumed);
    assert_eq!(ip.next_hop(far()), Some(router()));
}

#[test]
fn a_target_that_is_no_router_any_more_is_passed_over() {
    // covers: RFC 4861 §7.2.5: what went by a router that is none any more goes elsewhere; what is on the link needs none.
    let (mut ip, near) = (routed(), addr("2001:db8:ffff::2"));
    for (destination, target) in [(far(), better()), (near, near)] {
        assert_eq!(receive(&mut ip, at(4), &redirect(router(), destination, target)), Received::Consumed);
        assert_eq!(ip.next_hop(destination), Some(target));
        let message = Message::NeighbourAdvertisement {
            target,
            router: false,
            solicited: false,
            overriding: true,
            target_mac: Some(MAC_OTHER),
        };
        assert_eq!(receive(&mut ip, at(5), &nd_frame(target, ALL_NODES, &message)), Received::Consumed);
    }
    assert_eq!((ip.next_hop(far()), ip.next_hop(near)), (Some(router()), Some(near)));
}

#[test]
fn redirects_are_bounded() {
    let mut ip = routed();
    for n in 0..1000u64 {
        let to = addr(&std::format!("2001:db8:ffff::{:x}", n + 1));
        assert_eq!(receive(&mut ip, at(4 + n / 100), &redirect(router(), to, better())), Received::Consumed);
    }
    assert_eq!(ip.redirects(), REDIRECTS_MAX);
    assert_eq!(ip.next_hop(addr("2001:db8:ffff::3e8")), Some(better()));
    assert_eq!(ip.next_hop(far()), Some(router()), "the oldest has gone");
}

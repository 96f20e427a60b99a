use super::*;

#[test]
fn a_question_for_us_is_answered_and_teaches_us_who_asked() {
    let mut ip = ip();
    assert_eq!(receive(&mut ip, &question(PEER, MAC_PEER, US)), Received::Consumed);
    let (to, reply) = next_arp(&mut ip).unwrap();
    assert_eq!(to, MAC_PEER);
    let expected = Packet {
        operation: Operation::Reply,
        sender_mac: MAC_US,
        sender_addr: US,
        target_mac: MAC_PEER,
        target_addr: PEER,
    };
    assert_eq!(reply, expected);
    assert_eq!(ip.route(at(0), PEER), Route::Via { mac: MAC_PEER });
    let update = NeighbourUpdate { addr: PEER, mac: MAC_PEER, basis: Basis::Learned };
    assert_eq!(ip.poll_neighbour(), Some(update));
}

#[test]
fn a_question_for_another_is_nobody_elses_lesson() {
    let mut ip = ip();
    assert_eq!(
        receive(&mut ip, &question(PEER, MAC_PEER, 0xc612_0009)),
        Received::Dropped(Reason::ArpIgnored)
    );
    assert_eq!((ip.poll_frame(), ip.poll_neighbour()), (None, None));
    assert_eq!(ip.route(at(0), PEER), Route::Resolving);
}

#[test]
fn a_probe_is_answered_and_teaches_nothing() {
    let mut ip = ip();
    assert_eq!(receive(&mut ip, &question(0, MAC_PEER, US)), Received::Consumed);
    assert_eq!(next_arp(&mut ip).map(|(to, _)| to), Some(MAC_PEER));
    assert_eq!(ip.poll_neighbour(), None);
}

#[test]
fn a_route_is_resolved_by_question_and_answer() {
    let mut ip = ip();
    assert_eq!(ip.route(at(0), PEER), Route::Resolving);
    let (to, asked) = next_arp(&mut ip).unwrap();
    assert_eq!((to, asked.operation, asked.target_addr), (Mac::BROADCAST, Operation::Request, PEER));
    assert_eq!(ip.route(at(0), PEER), Route::Resolving);
    assert_eq!(next_arp(&mut ip), None, "asked once a second");
    let generation = ip.neighbour_generation();
    assert_eq!(receive(&mut ip, &answer(PEER, MAC_PEER)), Received::Consumed);
    assert!(ip.neighbour_generation() > generation);
    assert_eq!(ip.route(at(0), PEER), Route::Via { mac: MAC_PEER });
}

#[test]
fn an_unasked_answer_is_passed_on_and_only_who_asked_takes_it() {
    let (mut queue_zero, mut asker, mut bystander) = (ip(), ip(), ip());
    assert_eq!(asker.route(at(0), PEER), Route::Resolving);
    receive(&mut queue_zero, &answer(PEER, MAC_PEER));
    let update = queue_zero.poll_neighbour().unwrap();
    assert_eq!(update.basis, Basis::Overheard);
    asker.handle_neighbour(at(1), update);
    bystander.handle_neighbour(at(1), update);
    assert_eq!(asker.route(at(1), PEER), Route::Via { mac: MAC_PEER });
    assert_eq!(bystander.route(at(1), PEER), Route::Resolving);
    assert_eq!(queue_zero.route(at(1), PEER), Route::Resolving);
}

#[test]
fn what_one_replica_learned_all_know() {
    let (mut a, mut b) = (ip(), ip());
    receive(&mut a, &question(PEER, MAC_PEER, US));
    b.handle_neighbour(at(0), a.poll_neighbour().unwrap());
    assert_eq!(b.route(at(0), PEER), Route::Via { mac: MAC_PEER });
    assert_eq!(b.poll_neighbour(), None, "news are not passed on twice");
}

#[test]
fn implausible_news_from_a_replica_are_ignored() {
    let mut ip = ip();
    for (addr, mac) in
        [(FAR, MAC_PEER), (US, MAC_PEER), (PEER, Mac::BROADCAST), (PEER, Mac::ZERO), (PEER, MAC_US)]
    {
        ip.handle_neighbour(at(0), NeighbourUpdate { addr, mac, basis: Basis::Learned });
    }
    assert_eq!(ip.route(at(0), PEER), Route::Resolving);
}

#[test]
fn a_broadcast_announcement_is_verified_before_it_is_believed() {
    let mut ip = ip();
    receive(&mut ip, &question(PEER, MAC_PEER, US));
    next_arp(&mut ip);
    let announcement = question(PEER, MAC_OTHER, PEER);
    ip.handle_frame(at(5000), Link::Outside, &announcement, ChecksumOffload::Unknown);
    let (to, asked) = next_arp(&mut ip).unwrap();
    assert_eq!(
        (to, asked.target_addr),
        (MAC_PEER, PEER),
        "whoever has it is asked, and not whoever wants it"
    );
    assert_eq!(ip.poll_neighbour().map(|news| news.basis), Some(Basis::Learned));
    let news = NeighbourUpdate { addr: PEER, mac: MAC_OTHER, basis: Basis::Learned };
    assert_eq!(ip.poll_neighbour(), Some(news), "the others judge for themselves");
    ip.handle_frame(at(5001), Link::Outside, &answer(PEER, MAC_OTHER), ChecksumOffload::Unknown);
    assert_eq!(ip.route(at(5001), PEER), Route::Via { mac: MAC_PEER });
    ip.handle_timeout(at(5400));
    assert_eq!(next_arp(&mut ip).map(|(to, _)| to), Some(MAC_PEER));
    ip.handle_timeout(at(5800));
    assert_eq!(ip.route(at(5800), PEER), Route::Via { mac: MAC_OTHER });
    assert_eq!(next_arp(&mut ip).map(|(to, _)| to), Some(MAC_OTHER));
}

#[test]
fn a_lie_in_a_question_costs_a_neighbour_nothing() {
    let mut ip = ip();
    ip.route(at(0), PEER);
    receive(&mut ip, &answer(PEER, MAC_PEER));
    next_arp(&mut ip);
    for seconds in 2..30 {
        let now = at(1000 * seconds);
        ip.handle_frame(now, Link::Outside, &question(PEER, MAC_OTHER, US), ChecksumOffload::Unknown);
        let to: Vec<Mac> = core::iter::from_fn(|| next_arp(&mut ip)).map(|(to, _)| to).collect();
        assert_eq!(to, [MAC_PEER, MAC_OTHER], "asked and answered");
        assert_eq!(ip.route(now, PEER), Route::Via { mac: MAC_PEER });
        ip.handle_frame(now, Link::Outside, &answer(PEER, MAC_PEER), ChecksumOffload::Unknown);
        ip.handle_timeout(at(1000 * seconds + 900));
        assert_eq!(ip.route(at(1000 * seconds + 900), PEER), Route::Via { mac: MAC_PEER });
    }
}

#[test]
fn progress_through_the_gateway_confirms_the_gateway() {
    let mut ip = ip();
    ip.route(at(0), FAR);
    receive(&mut ip, &answer(GATEWAY, MAC_PEER));
    next_arp(&mut ip);
    for seconds in 2..200 {
        ip.note_progress(at(1000 * seconds), FAR.into());
        ip.handle_timeout(at(1000 * seconds));
        assert_eq!(next_arp(&mut ip), None, "nobody is asked");
    }
}

#[test]
fn silence_makes_a_neighbour_unreachable_after_three_questions() {
    let mut ip = ip();
    assert_eq!(ip.route(at(0), PEER), Route::Resolving);
    let mut asked = 0;
    while ip.poll_unreachable().inspect(|addr| assert_eq!(*addr, PEER)).is_none() {
        asked += core::iter::from_fn(|| next_arp(&mut ip)).count();
        let due = ip.next_timeout().unwrap();
        assert!(due < at(4000));
        ip.handle_timeout(due);
    }
    assert_eq!(asked, 3);
    assert_eq!(ip.route(at(3300), PEER), Route::Unreachable);
    assert_eq!(ip.counters().neighbours_failed, 1);
    ip.handle_timeout(at(6000));
    assert_eq!(ip.route(at(6000), PEER), Route::Resolving, "and is asked for again later");
}

#[test]
fn an_announcement_goes_out_twice() {
    let mut ip = ip();
    ip.announce(at(0));
    let (to, first) = next_arp(&mut ip).unwrap();
    assert_eq!((to, first.sender_addr, first.target_addr), (Mac::BROADCAST, US, US));
    assert_eq!(ip.next_timeout(), Some(at(2000)));
    ip.handle_timeout(at(2000));
    assert_eq!(next_arp(&mut ip), Some((to, first)));
    assert_eq!(ip.next_timeout(), None);
}

#[test]
fn a_claim_to_our_address_is_contradicted_once_in_ten_seconds() {
    let mut ip = ip();
    for millis in [0, 1, 9_999] {
        let claim = question(US, MAC_OTHER, US);
        let received = ip.handle_frame(at(millis), Link::Outside, &claim, ChecksumOffload::Unknown);
        assert_eq!(received, Received::Dropped(Reason::ArpIgnored));
    }
    assert_eq!(core::iter::from_fn(|| next_arp(&mut ip)).count(), 1);
    assert_eq!(ip.counters().arp_conflicts, 3);
}

#[test]
fn the_queue_of_frames_is_bounded() {
    let mut ip = ip();
    for n in 0..1000u32 {
        receive(&mut ip, &question(0xc612_0000 + 2 + n % 200, MAC_PEER, US));
    }
    assert_eq!(core::iter::from_fn(|| ip.poll_frame()).count(), 256);
    assert!(ip.counters().overflows >= 744);
}

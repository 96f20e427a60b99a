//! What can off-path attackers who guess, and peers who lie, achieve? There is one test per row of
//! `docs/attacks.md` that this crate keeps.

use std::collections::BTreeSet;
use std::vec::Vec;

use atoll_base::Duration;
use atoll_wire::tcp::Flags;

use crate::outcome::{Events, Reason, Transmit, Verdict};
use crate::ranges::RangeSet;
use crate::settings::Settings;
use crate::state::State;
use crate::testing::{MSS, Seg, Tcb, ack, bare, data, fin, ms, rst, settings, syn, syn_ack};

fn with_timestamps() -> Tcb {
    Tcb::established_by(syn_ack(1).timestamps(1000, 0), &settings())
}

/// Returns whether the segment asks for a challenge ACK.
fn is_challenged(t: &mut Tcb, seg: Seg) -> bool {
    t.recv(seg).events.contains(Events::CHALLENGE)
}

// --- strangers, who see nothing and guess
// --------------------------------------------------------------------------------------

#[test]
fn of_all_resets_in_and_around_the_window_one_counts() {
    // covers: RFC 5961 §3.2
    let mut ended = Vec::new();
    for seq in (0..70_000).step_by(97).chain([0, 1, 2]) {
        let mut t = Tcb::established();
        t.recv(rst(seq));
        if t.conn.state() == State::Closed {
            ended.push(seq);
        }
    }
    assert_eq!(ended, [1]);
}

#[test]
fn a_storm_of_strangers_segments_gets_two_answers_a_second() {
    // covers: RFC 5961 §7
    let mut t = Tcb::established().sent(500);
    let mut answers = 0;
    for n in 0..10_000u32 {
        t.advance(ms(1));
        let seg = match n % 5 {
            0 => rst(2 + n),
            1 => syn().seq(n),
            2 => syn().seq(100_000 + n),
            3 => ack(502 + n),
            _ => bare().seq(1 << 30),
        };
        t.recv(seg);
        answers += t.poll().iter().filter(|transmit| !transmit.retransmit).count();
    }
    assert!((19..=21).contains(&answers), "{answers}");
    assert_eq!((t.conn.state(), t.conn.receive_nxt(), t.conn.send_una()), (State::Established, 0, 0));
}

#[test]
fn the_caller_decides_whether_a_challenge_leaves() {
    let mut t = Tcb::established();
    let segment = atoll_wire::tcp::Segment {
        seq: t.conn.rcv.seq(50),
        flags: Flags::RST,
        ..atoll_wire::tcp::Segment::default()
    };
    let input = t.conn.handle_segment(t.now, &segment);
    assert_eq!((input.verdict, input.events), (Verdict::Dropped(Reason::BlindReset), Events::CHALLENGE));
    t.expect_silence();
    t.conn.send_challenge();
    t.expect([bare().ack(1)]);
}

#[test]
fn a_probe_of_a_peer_is_answered_and_not_counted_as_an_attack() {
    let mut t = Tcb::established();
    assert!(!is_challenged(&mut t, bare().seq(0)));
    t.expect([bare().ack(1)]);
}

#[test]
fn a_syn_is_challenged_whatever_it_carries() {
    // covers: RFC 5961 §4.2; a peer that has restarted may not know timestamps any more.
    let mut t = with_timestamps();
    assert!(is_challenged(&mut t, syn().seq(1)));
    t.drops(data(1..11), Reason::NoTimestamp);
    t.expect([bare().ack(1)]);
}

#[test]
fn injected_text_needs_an_acknowledgement_of_the_last_window() {
    // covers: RFC 5961 §5.2
    let mut t = Tcb::established().sent(5 * MSS);
    t.takes(ack(5 * MSS + 1).window(2000));
    // The peer's largest window was 60,000, but before 5,000 lies our SYN.
    let mut taken = 0;
    for step in 0..1000u32 {
        let guess = step.wrapping_mul(u32::MAX / 1000);
        let seg = data(1..11).ack(guess);
        if t.recv(seg).verdict == Verdict::Accepted {
            taken += 1;
        }
        t.poll();
    }
    assert_eq!(taken, 0);
    for (number, counts) in
        [(0, false), (1, true), (2500, true), (5001, true), (5002, false), (u32::MAX, false)]
    {
        let mut t = Tcb::established().sent(5 * MSS);
        t.takes(ack(5 * MSS + 1));
        let is_taken = t.recv(data(1..11).ack(number)).text.is_some();
        assert_eq!(is_taken, counts, "{number}");
    }
}

#[test]
fn an_injected_timestamp_does_not_make_the_peer_look_old() {
    let mut t = with_timestamps();
    t.write(100);
    t.poll();
    // This segment is at the left edge and from the future, but its acknowledgement was guessed.
    t.drops(data(1..11).ack(1 << 30).timestamps(1 << 30, 0), Reason::AckUnsent);
    t.drops(data(1..11).ack(0u32.wrapping_sub(1 << 29)).timestamps(1 << 30, 0), Reason::AckOld);
    assert!(t.takes(data(1..11).timestamps(1001, 0)).contains(Events::READABLE));
}

#[test]
fn a_strangers_segment_is_no_sign_of_life() {
    let mut t = Tcb::established();
    let heard = t.conn.heard_at;
    t.advance(ms(1000));
    t.drops(data(1..11).ack(1 << 30), Reason::AckUnsent);
    assert_eq!(t.conn.heard_at, heard);
}

#[test]
fn a_strangers_fin_does_not_prolong_time_wait() {
    let mut t = Tcb::in_state(State::TimeWait);
    let mut record = t.conn.time_wait().expect("in TIME-WAIT");
    let deadline = record.deadline();
    t.advance(ms(5000));
    t.recv(fin(700));
    assert_eq!(t.conn.time_wait().expect("still").deadline(), deadline);
    let stranger = atoll_wire::tcp::Segment {
        seq: t.conn.rcv.seq(700),
        flags: Flags::FIN | Flags::ACK,
        ..atoll_wire::tcp::Segment::default()
    };
    let _ = record.handle_segment(t.now, &stranger);
    assert_eq!(record.deadline(), deadline);
    // The peer's own FIN, which comes again because our ACK was lost, does extend the wait.
    t.recv(fin(1));
    assert!(t.conn.time_wait().expect("still").deadline() > deadline);
}

// --- peers who lie about what they have received
// ---------------------------------------------------------------------------------

#[test]
fn an_ack_of_what_was_never_sent_changes_nothing() {
    let mut t = Tcb::established().sent(3 * MSS);
    let before = t.conn.info(t.now);
    for ahead in [1, 1000, 100_000, 1 << 30] {
        t.drops(ack(3 * MSS + 1 + ahead).window(60_000), Reason::AckUnsent);
    }
    let after = t.conn.info(t.now);
    assert_eq!(
        (after.snd_cwnd, after.snd_wnd, after.unacked),
        (before.snd_cwnd, before.snd_wnd, before.unacked)
    );
}

#[test]
fn an_ack_in_pieces_opens_the_window_no_further_than_a_whole_one() {
    // covers: RFC 3465 §2; S. Savage, TCP Congestion Control with a Misbehaving Receiver, §2.1
    let whole = {
        let mut t = Tcb::established().sent(10 * MSS);
        t.takes(ack(5 * MSS + 1));
        t.conn.congestion.cwnd
    };
    let mut t = Tcb::established().sent(10 * MSS);
    for octet in 1..=5 * MSS {
        t.takes(ack(octet + 1));
    }
    assert!(t.conn.congestion.cwnd <= whole, "{} instead of {whole}", t.conn.congestion.cwnd);
}

#[test]
fn a_storm_of_duplicate_acks_draws_no_more_than_the_window() {
    // Savage, §2.2
    for plain in [false, true] {
        let answer = if plain { syn_ack(1).no_sack() } else { syn_ack(1) };
        let mut t = Tcb::established_by(answer, &settings()).sent(100 * MSS);
        for _ in 0..5000 {
            t.takes(ack(1));
            let drawn: u32 = t.poll().iter().map(|transmit| transmit.segment.len).sum();
            assert!(drawn <= 3 * MSS, "one duplicate has drawn {drawn} octets");
        }
        assert!(t.conn.send_nxt() <= 60_000, "what the peer has offered");
        assert!(t.conn.congestion.cwnd <= 60_000, "{}", t.conn.congestion.cwnd);
    }
}

#[test]
fn blocks_that_cannot_be_true_are_passed_over() {
    // covers: RFC 2018 §3
    for (left, right) in [(3001, 3002), (2001, 3002), (1001, 1001), (2001, 1001), (1, 1 << 30)] {
        let range = left..right;
        let mut t = Tcb::established().sent(3 * MSS);
        assert!(t.takes(ack(1).sack(range.clone())).contains(Events::SACK_IGNORED), "{range:?}");
        assert_eq!(t.conn.info(t.now).sacked, 0, "{range:?}");
    }
    let mut t = Tcb::established().sent(3 * MSS);
    assert!(t.takes(ack(1).sack(1001..2001)).is_empty());
    assert_eq!(t.conn.info(t.now).sacked, 1);
}

#[test]
fn thousands_of_tiny_blocks_take_bounded_memory_and_lose_no_text() {
    // CVE-2019-11478
    let mut t = Tcb::established().sent(50 * MSS);
    for n in 0..4000u32 {
        let from = 100 + n * 2;
        t.takes(ack(1).sack(from..from + 1));
        t.poll();
    }
    let (bytes, flight) = (t.conn.heap_bytes(), 50 * MSS as usize);
    assert!(bytes <= flight / 4 + 12_000, "{bytes} octets of records for {flight} octets in flight");
    // The peer turns honest, and gets everything.
    let mut sent = Vec::new();
    for _ in 0..2000 {
        let una = t.conn.send_una();
        if una == 50 * u64::from(MSS) {
            return;
        }
        let next = sent
            .iter()
            .filter(|sent: &&Transmit| sent.offset <= una)
            .map(|sent| sent.offset + u64::from(sent.segment.len))
            .max();
        if let Some(end) = next.filter(|end| *end > una) {
            t.takes(ack(u32::try_from(end).expect("small") + 1));
        } else {
            t.advance_to_timer();
        }
        sent.append(&mut t.poll());
    }
    panic!("{} is as far as it got", t.conn.send_una());
}

#[test]
fn what_was_reported_and_thrown_away_is_sent_again() {
    // covers: RFC 2018 §8
    let mut t = Tcb::established().sent(3 * MSS);
    t.takes(ack(1).sack(1001..3001));
    t.poll();
    // The peer's answer to the first segment shows that it has nothing beyond.
    t.takes(ack(1001));
    let mut events = Events::empty();
    let mut again = BTreeSet::new();
    for _ in 0..4 {
        events |= t.advance_to_timer().1;
        again.extend(
            t.poll().into_iter().flat_map(|sent| {
                (0..sent.segment.len).step_by(1000).map(move |n| sent.offset + u64::from(n))
            }),
        );
    }
    assert!(events.contains(Events::SACK_RENEGED), "{events:?}");
    assert!(again.contains(&1000), "{again:?}");
}

#[test]
fn segments_are_never_tiny() {
    // CVE-2019-11479; Linux's tcp_min_snd_mss is 48 with the options.
    for tiny in [0, 1, 8, 47] {
        let syn_ack = syn_ack(1).mss(tiny);
        assert_eq!(Tcb::established_by(syn_ack, &settings()).conn.mss(), 48);
        assert_eq!(Tcb::established_by(syn_ack.timestamps(1, 0), &settings()).conn.mss(), 36);
    }
    let mut t = Tcb::established().sent(10 * MSS);
    for mtu in [0, 1, 39, 68, 100] {
        let quoted = t.conn.snd.seq(0);
        t.conn.handle_mtu(t.now, mtu, quoted);
        assert!(t.conn.mss() >= 512, "{mtu}");
    }
}

// --- peers who hold memory
// -------------------------------------------------------------------------------------------------------

/// Lets the peer answer every probe with a window of zero. Returns how long the connection has lived.
fn held(mut t: Tcb, at_most: Duration) -> (Duration, Events) {
    let start = t.now;
    while t.now.since(start) < at_most {
        let (_, events) = t.advance_to_timer();
        if events.contains(Events::CLOSED) {
            return (t.now.since(start), events);
        }
        if !t.poll().is_empty() {
            t.recv(bare().window(0));
            t.poll();
        }
    }
    (at_most, Events::empty())
}

#[test]
fn a_closed_window_holds_nobody_whose_application_is_gone() {
    let hours = Duration::from_secs(5 * 3600);
    for in_flight in [0, MSS] {
        let mut t = Tcb::established().sent(in_flight);
        t.takes(ack(1 + in_flight).window(0));
        t.write(5000);
        t.conn.close(t.now);
        t.poll();
        assert_eq!(t.conn.state(), State::FinWait1);
        let (lived, events) = held(t, hours);
        assert!(lived < Duration::from_secs(600), "{lived:?}");
        assert!(events.contains(Events::TIMED_OUT | Events::CLOSED));
    }
    // An application that waits decides for itself, by TCP_USER_TIMEOUT (RFC 6429 §4).
    let mut t = Tcb::established();
    t.takes(bare().window(0));
    t.write(5000);
    t.poll();
    assert_eq!(held(t, hours).1, Events::empty());
    let settings = Settings { user_timeout: Some(Duration::from_secs(30)), ..settings() };
    let mut t = Tcb::established_by(syn_ack(1), &settings);
    t.takes(bare().window(0));
    t.write(5000);
    t.poll();
    let (lived, events) = held(t, hours);
    assert!(lived < Duration::from_secs(32) && events.contains(Events::TIMED_OUT), "{lived:?}");
}

#[test]
fn a_peer_that_makes_round_trips_long_holds_no_orphan_for_long() {
    // Found by the fuzz target `stack_frames`.
    let mut t = Tcb::established();
    t.write(100);
    t.poll();
    t.advance(ms(119_000));
    t.takes(ack(101));
    t.conn.close(t.now);
    t.poll();
    let start = t.now;
    while !t.advance_to_timer().1.contains(Events::CLOSED) {
        t.poll();
    }
    assert!(t.now.since(start) < Duration::from_secs(300), "{:?}", t.now.since(start));
}

#[test]
fn an_orphan_whose_peer_reads_slowly_is_served_to_its_end() {
    let mut t = Tcb::established();
    t.takes(bare().window(0));
    t.write(20_000);
    t.conn.close(t.now);
    t.poll();
    let mut got = 1;
    while got < 20_001 {
        let (_, events) = t.advance_to_timer();
        assert!(!events.contains(Events::CLOSED), "after {got} octets");
        t.poll();
        t.recv(ack(got).window(0));
        t.poll();
        t.recv(ack(got).window(1000));
        got += t.poll().iter().map(|transmit| transmit.segment.len).sum::<u32>();
        t.recv(ack(got).window(0));
        t.poll();
    }
}

#[test]
fn holes_are_counted_and_bounded() {
    // CVE-2018-5390
    let mut t = Tcb::established();
    let mut refused = 0;
    for n in 0..10_000u32 {
        let from = 11 + n * 2;
        refused += usize::from(t.recv(data(from..from + 1)).events.contains(Events::TEXT_REFUSED));
        t.poll();
    }
    assert_eq!(refused, 10_000 - RangeSet::MAX);
    let kept = t.conn.rcv.reassembly.as_ref().map_or(0, |reassembly| reassembly.ranges.len());
    assert_eq!(kept, RangeSet::MAX);
    // Text in order is all taken.
    t.takes(data(1..1001));
    t.takes(data(1001..2001));
    assert_eq!(t.conn.receive_nxt(), 2000);
}

#[test]
fn text_out_of_order_may_be_dropped_and_comes_again() {
    let mut t = Tcb::established();
    t.takes(data(2001..3001).fin());
    t.takes(data(1001..1501));
    t.poll();
    assert_eq!(t.conn.drop_out_of_order(), 1500);
    t.conn.check_invariants();
    assert_eq!((t.conn.drop_out_of_order(), t.conn.receive_max()), (0, 0));
    t.takes(data(1..1001));
    t.expect([bare().ack(1001)]);
    t.takes(data(1001..2001));
    assert!(t.takes(data(2001..3001).fin()).contains(Events::READABLE | Events::FIN));
    assert_eq!(t.conn.receive_nxt(), 3000);
}

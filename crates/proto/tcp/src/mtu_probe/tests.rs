use std::vec::Vec;

use crate::outcome::{Events, Transmit};
use crate::recovery::Phase;
use crate::testing::{MSS, Tcb, ack, data, ms, settings, syn_ack};

/// Returns an open connection that sends segments of 1000 octets, with ten full ones in flight.
fn full() -> Tcb {
    Tcb::established().sent(10 * MSS)
}

/// Advances to the next time-out of what is in flight, passing tail probes, and returns what is sent then.
fn time_out(t: &mut Tcb) -> Vec<Transmit> {
    let before = t.conn.recovery.retries;
    while t.conn.recovery.retries == before {
        let (_, events) = t.advance_to_timer();
        assert_eq!(events, Events::empty());
        if t.conn.recovery.retries == before {
            t.poll();
        }
    }
    t.poll()
}

/// Returns a connection behind a black hole: it has found that 500 octets pass, everything is acknowledged,
/// and its window is wide.
fn narrowed() -> Tcb {
    let mut t = full();
    for _ in 0..4 {
        time_out(&mut t);
    }
    assert_eq!(t.conn.mss(), 500);
    acknowledge_all(&mut t);
    for _ in 0..10 {
        t.write(8_000);
        t.poll();
        if t.conn.mtu.as_ref().is_some_and(|search| search.probe.is_some()) {
            return t;
        }
        acknowledge_all(&mut t);
    }
    panic!("no probe");
}

fn acknowledge_all(t: &mut Tcb) {
    for _ in 0..100 {
        t.advance(ms(10));
        let nxt = t.conn.send_nxt() as u32 + 1;
        t.takes(ack(nxt));
        if t.poll().is_empty() && t.conn.snd.flight() == 0 {
            return;
        }
    }
    panic!("there is no end");
}

fn probe(t: &Tcb) -> (u32, u32) {
    let probe = t.conn.mtu.as_ref().and_then(|search| search.probe).expect("a probe is in flight");
    (probe.from as u32 + 1, probe.end as u32 + 1)
}

// Black holes

#[test]
fn segments_become_small_after_several_time_outs() {
    // covers: RFC 4821 §7.7
    let mut t = full();
    for retries in 1..=4 {
        let sent = time_out(&mut t);
        assert_eq!(sent[0].segment.len, if retries < 4 { 1000 } else { 500 }, "{retries}");
    }
    time_out(&mut t);
    time_out(&mut t);
    assert_eq!(t.conn.mss(), 256, "never below the floor");
    t.takes(ack(257));
    assert!(t.poll().iter().all(|transmit| transmit.segment.len <= 256));
}

#[test]
fn small_segments_that_time_out_prove_nothing() {
    let mut t = Tcb::established().sent(256);
    for _ in 0..5 {
        time_out(&mut t);
    }
    assert_eq!(t.conn.mss(), 1000);
    assert!(t.conn.mtu.is_none());
}

#[test]
fn a_path_that_never_was_large_is_left_alone() {
    let mut answer = syn_ack(1);
    answer = answer.mss(200);
    let mut t = Tcb::established_by(answer, &settings()).sent(2000);
    for _ in 0..5 {
        time_out(&mut t);
    }
    assert_eq!(t.conn.mss(), 200);
}

// The search

#[test]
fn a_probe_that_arrives_makes_segments_larger() {
    // covers: RFC 4821 §7.6.1
    let mut t = narrowed();
    let (from, end) = probe(&t);
    assert_eq!(end - from, 750, "the middle between 500 and 1000");
    acknowledge_all(&mut t);
    assert_eq!(t.conn.mss(), 750);
    // The search continues until the link's size is reached, and is over then.
    for _ in 0..20 {
        t.write(30_000);
        t.poll();
        acknowledge_all(&mut t);
    }
    assert!(t.conn.mss() > 992, "{}", t.conn.mss());
}

#[test]
fn a_probe_is_one_segment() {
    let mut t = full();
    for _ in 0..4 {
        time_out(&mut t);
    }
    acknowledge_all(&mut t);
    for _ in 0..10 {
        t.write(12_000);
        for transmit in t.poll_up_to(65_000) {
            let is_probe = t.conn.mtu.as_ref().is_some_and(|search| search.probe.is_some())
                && transmit.offset + 1 == u64::from(probe(&t).0);
            assert_eq!(t.conn.segment_size(&transmit) == u16::MAX, is_probe, "{transmit:?}");
            assert!(!is_probe || transmit.segment.len == probe(&t).1 - probe(&t).0);
        }
        acknowledge_all(&mut t);
    }
}

#[test]
fn a_probe_that_is_lost_alone_is_no_congestion() {
    // covers: RFC 4821 §7.6.2
    let mut t = narrowed();
    let (from, end) = probe(&t);
    let nxt = t.conn.send_nxt() as u32 + 1;
    let window = t.conn.congestion.cwnd;
    t.advance(ms(100));
    t.takes(ack(from));
    t.takes(ack(from).sack(end..nxt));
    t.advance(ms(100));
    let again: Vec<_> = t.poll().into_iter().filter(|transmit| transmit.retransmit).collect();
    t.compare(&again, &[data(from..from + 500), data(from + 500..end)].map(crate::testing::Seg::retransmit));
    acknowledge_all(&mut t);
    assert_eq!(t.conn.recovery.phase, Phase::Open);
    assert!(t.conn.congestion.cwnd >= window, "{} {window}", t.conn.congestion.cwnd);
    assert_eq!(t.conn.mss(), 500);
    // The next probe is smaller.
    for _ in 0..10 {
        t.write(8_000);
        t.poll();
        if t.conn.mtu.as_ref().is_some_and(|search| search.probe.is_some()) {
            break;
        }
        acknowledge_all(&mut t);
    }
    let (from, end) = probe(&t);
    assert_eq!(end - from, 625);
}

#[test]
fn the_search_ends_and_begins_again_after_ten_minutes() {
    let mut t = narrowed();
    // Nothing above 500 passes: every probe is lost.
    for _ in 0..40 {
        if t.conn.mtu.as_ref().is_some_and(|search| search.probe.is_some()) {
            let (from, end) = probe(&t);
            let nxt = t.conn.send_nxt() as u32 + 1;
            t.advance(ms(100));
            t.takes(ack(from));
            t.takes(ack(from).sack(end..nxt));
            t.advance(ms(100));
            t.poll();
        }
        acknowledge_all(&mut t);
        t.write(8_000);
        t.poll();
    }
    let search = t.conn.mtu.as_ref().expect("the search is not over");
    assert!(search.probe.is_none() && search.low == 500 && search.high == 1000);
    let wait = search.next_at.since(t.now);
    acknowledge_all(&mut t);
    t.advance(wait);
    for _ in 0..200 {
        t.write(8_000);
        t.poll();
        acknowledge_all(&mut t);
        if t.conn.mss() > 500 {
            return;
        }
    }
    panic!("no probe");
}

// Claims of ICMP

#[test]
fn a_claim_that_contradicts_what_arrived_waits_for_a_time_out() {
    // covers: RFC 5927 §7.2
    let mut t = full();
    t.takes(ack(5001));
    assert!(!t.conn.handle_mtu(t.now, 640, t.conn.snd.seq(5000)));
    t.poll();
    assert_eq!(t.conn.mss(), 1000);
    time_out(&mut t);
    assert_eq!(t.conn.mss(), 600, "the quoted segment did not arrive");
}

#[test]
fn a_claim_about_what_arrives_is_forgotten() {
    let mut t = full();
    t.takes(ack(5001));
    t.conn.handle_mtu(t.now, 640, t.conn.snd.seq(5000));
    t.takes(ack(6001));
    t.poll();
    time_out(&mut t);
    assert_eq!(t.conn.mss(), 1000);
}

#[test]
fn a_claim_about_a_probe_limits_the_search() {
    let mut t = narrowed();
    let (from, _) = probe(&t);
    assert!(!t.conn.handle_mtu(t.now, 640, t.conn.snd.seq(i64::from(from) - 1)));
    let search = t.conn.mtu.as_ref().expect("the search goes on");
    assert_eq!((search.low, search.high, t.conn.mss()), (500, 600, 500));
}

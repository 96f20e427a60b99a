//! covers: RFC 9293 §3.7.4 and §3.8, RFC 5681, RFC 6675, RFC 6582, RFC 6298.

use core::num::NonZeroU8;
use std::vec::Vec;

use atoll_base::Duration;
use atoll_wire::tcp::Flags;

use super::*;
use crate::outcome::Events;
use crate::recovery::Phase;
use crate::settings::{KeepAlive, Settings};
use crate::testing::{MSS, Seg, Tcb, ack, bare, data, fin, ms, settings, syn, syn_ack};

fn reno() -> Tcb {
    Tcb::established_by(syn_ack(1).no_sack(), &settings())
}

// --- segments
// -----------------------------------------------------------------------------------------------------------

#[test]
fn text_is_cut_into_segments_and_the_last_is_pushed() {
    let mut t = Tcb::established();
    t.write(2500);
    let sent = t.expect([data(1..1001), data(1001..2001), data(2001..2501)]);
    let pushed: Vec<bool> = sent.iter().map(|transmit| transmit.segment.has(Flags::PSH)).collect();
    assert_eq!(pushed, [false, false, true]);
    assert_eq!(sent[1].offset, 1000);
}

#[test]
fn a_link_that_cuts_gets_super_segments() {
    let mut t = Tcb::established();
    t.write(9500);
    let sent = t.poll_up_to(4500);
    t.compare(&sent, &[data(1..4001), data(4001..8001), data(8001..9501)]);
}

#[test]
fn a_page_and_its_end_leave_in_one_segment() {
    let mut t = Tcb::established();
    t.takes(data(1..101));
    t.write(4);
    t.conn.close(t.now);
    t.expect([data(1..5).fin().ack(101)]);
    assert_eq!(t.conn.state(), State::FinWait1);
}

#[test]
fn the_initial_window_is_ten_segments() {
    // covers: RFC 6928
    let t = Tcb::established().sent(50 * MSS);
    assert_eq!(t.conn.send_nxt(), 10_000);
}

#[test]
fn nagle_keeps_a_small_segment_back_while_another_is_in_flight() {
    // covers: RFC 9293 §3.7.4 MUST-17, with Minshall's variant
    let mut t = Tcb::established_by(syn_ack(1), &Settings { nodelay: false, ..settings() });
    t.write(10);
    t.expect([data(1..11)]);
    t.write(10);
    t.expect_silence();
    t.write(1500);
    t.expect([data(11..1011)]);
    t.takes(ack(11));
    t.expect([data(1011..1521)]);
}

#[test]
fn nodelay_lets_a_small_segment_go() {
    let mut t = Tcb::established().sent(10);
    t.write(10);
    t.expect([data(11..21)]);
}

#[test]
fn cork_keeps_small_segments_back_for_200_ms() {
    let mut t = Tcb::established();
    t.conn.set_cork(true);
    t.write(1500);
    t.expect([data(1..1001)]);
    t.takes(ack(1001));
    t.expect_silence();
    let (wait, _) = t.advance_to_timer();
    assert!(wait >= ms(200) && wait < ms(400), "{wait:?}");
    t.expect([data(1001..1501)]);
    t.write(10);
    t.expect_silence();
    t.conn.set_cork(false);
    t.expect([data(1501..1511)]);
}

#[test]
fn a_silly_window_is_not_used() {
    // covers: RFC 9293 §3.8.6.2.1 MUST-38
    let mut t = Tcb::established();
    t.takes(bare().window(1100));
    t.write(3000);
    t.expect([data(1..1001)]);
    t.takes(ack(1001).window(300));
    t.expect_silence();
    t.takes(ack(1001).window(30_000));
    t.expect([data(1001..2001), data(2001..3001)]);
}

#[test]
fn an_idle_connection_has_no_timer() {
    let mut t = Tcb::established().sent(100);
    t.takes(ack(101));
    t.expect_silence();
    assert_eq!(t.conn.next_timeout(), None);
}

// --- acknowledgements
// ------------------------------------------------------------------------------------------------------

#[test]
fn every_second_full_segment_is_acknowledged_at_once() {
    // covers: RFC 9293 §3.8.6.3 MUST-58, MUST-59
    let mut t = Tcb::established();
    t.takes(data(1..1001));
    t.expect_silence();
    t.takes(data(1001..2001));
    t.expect([ack_of(2001)]);
    t.takes(data(2001..3001));
    let (wait, _) = t.advance_to_timer();
    assert_eq!(wait, ms(40));
    t.expect([ack_of(3001)]);
}

fn ack_of(n: u32) -> Seg {
    bare().ack(n)
}

#[test]
fn a_batch_is_answered_by_one_ack() {
    let mut t = Tcb::established();
    for n in 0..10 {
        t.takes(data(1000 * n + 1..1000 * n + 1001));
    }
    t.expect([ack_of(10_001)]);
    assert_eq!(t.conn.next_timeout(), None);
}

#[test]
fn an_ack_rides_on_text() {
    let mut t = Tcb::established();
    t.takes(data(1..101));
    t.write(50);
    t.expect([data(1..51).ack(101)]);
}

#[test]
fn small_segments_that_nothing_answers_are_acknowledged_at_once() {
    let mut t = Tcb::established();
    t.takes(data(1..2));
    assert_eq!(t.advance_to_timer().0, ms(40));
    t.expect([ack_of(2)]);
    for n in 2..10 {
        t.takes(data(n..n + 1));
        t.expect([ack_of(n + 1)]);
    }
    // An answer makes a conversation of it: the next ACK rides on text again.
    t.write(10);
    t.expect([data(1..11).ack(10)]);
    t.takes(data(10..20).ack(11));
    t.expect_silence();
    t.write(10);
    t.expect([data(11..21).ack(20)]);
    // Full-sized segments are acknowledged by pairs all the same.
    t.takes(data(20..21).ack(21));
    t.advance_to_timer();
    t.expect([ack_of(21)]);
    t.takes(data(21..1021));
    t.expect_silence();
    t.takes(data(1021..2021));
    t.expect([ack_of(2021)]);
}

#[test]
fn who_answers_late_gets_no_ack_of_its_own_twice() {
    // A conversation whose first answer took longer than the short delay at the start.
    let mut t = Tcb::connecting(&settings());
    t.poll();
    t.takes(syn_ack(1));
    t.poll();
    t.takes(data(1..101));
    assert_eq!(t.advance_to_timer().0, ms(1));
    t.expect([ack_of(101)]);
    t.write(10);
    t.expect([data(1..11).ack(101)]);
    t.takes(data(101..201).ack(11));
    t.expect_silence();
    assert_eq!(t.advance_to_timer().0, ms(40));
}

#[test]
fn at_the_start_full_segments_are_acknowledged_at_once_and_requests_soon() {
    let mut t = Tcb::connecting(&settings());
    t.poll();
    t.takes(syn_ack(1));
    t.poll();
    t.takes(data(1..1001));
    t.expect([ack_of(1001)]);
    t.takes(data(1001..1101));
    t.expect_silence();
    assert_eq!(t.advance_to_timer().0, ms(1));
    t.expect([ack_of(1101)]);
}

#[test]
fn a_peer_without_sack_gets_every_duplicate_ack() {
    let mut t = reno();
    for n in 1..=4 {
        t.takes(data(1000 * n + 1..1000 * n + 1001));
    }
    t.expect([ack_of(1); 4]);
}

#[test]
fn the_window_opens_when_half_of_it_can_be_offered_again() {
    // covers: RFC 9293 §3.8.6.2.2 MUST-39
    let mut t = Tcb::established();
    for n in 0..50 {
        t.takes(data(1000 * n + 1..1000 * n + 1001));
    }
    t.expect([ack_of(50_001).window(0)]);
    let mark = t.conn.receive_read_mark().expect("the window is closed");
    t.conn.handle_read_head(t.now, mark - 1);
    t.expect_silence();
    t.conn.handle_read_head(t.now, mark);
    t.expect([ack_of(50_001).window(mark as u16)]);
    // Reading more than there is, or going backwards, changes nothing.
    t.conn.handle_read_head(t.now, u64::MAX);
    t.conn.handle_read_head(t.now, 0);
    assert_eq!(t.conn.receive_head(), 50_000);
}

#[test]
fn a_smaller_buffer_does_not_shrink_the_window() {
    // covers: RFC 9293 §3.8.6 SHLD-14
    let mut t = Tcb::established();
    t.conn.set_receive_capacity(2000);
    assert_eq!(t.conn.receive_edge(), 50_000);
    assert!(t.recv(data(40_001..41_001)).text.is_some());
}

#[test]
fn segments_with_text_are_counted_and_those_that_have_arrived() {
    let mut t = Tcb::established().sent(6 * MSS);
    let counts = |t: &Tcb| {
        let info = t.conn.info(t.now);
        (info.data_segs_in, info.data_segs_out, info.delivered)
    };
    assert_eq!(counts(&t), (0, 6, 1), "the SYN has arrived");
    t.advance(ms(100));
    t.takes(ack(1).sack(1001..4001));
    assert_eq!(counts(&t), (0, 6, 4));
    t.expect([data(1..1001).retransmit()]);
    t.takes(ack(6001));
    assert_eq!(counts(&t), (0, 7, 7));
    t.recv(data(1..1001));
    t.recv(data(1001..1002));
    // What the link has put together counts as what the peer has sent.
    t.recv(data(1002..1002 + 3 * u32::from(t.conn.rcv.mss)));
    assert_eq!(counts(&t), (5, 7, 7));
    t.write(2 * MSS);
    let len_max = 10 * MSS;
    assert_eq!(t.conn.poll_transmit(t.now, len_max).expect("text").segment.len, 2 * MSS);
    t.conn.shutdown_send(t.now);
    t.poll();
    t.takes(ack(8002));
    assert_eq!(counts(&t), (5, 9, 10), "the FIN has arrived, too");
}

// --- loss
// -----------------------------------------------------------------------------------------------------------

#[test]
fn three_segments_sacked_beyond_a_hole_are_a_loss() {
    // covers: RFC 6675 §5
    let mut t = Tcb::established().sent(6 * MSS);
    t.advance(ms(100));
    t.takes(ack(1).sack(1001..2001));
    t.expect_silence();
    t.takes(ack(1).sack(1001..3001));
    t.expect_silence();
    t.takes(ack(1).sack(1001..4001));
    t.expect([data(1..1001).retransmit()]);
    assert_eq!(t.conn.info(t.now).phase, Phase::Recovery);
    t.takes(ack(6001));
    assert_eq!(t.conn.info(t.now).phase, Phase::Open);
    assert_eq!(t.conn.info(t.now).snd_cwnd, 7);
    t.expect_silence();
}

#[test]
fn only_holes_are_sent_again() {
    let mut t = Tcb::established().sent(10 * MSS);
    t.takes(ack(1).sack(1001..2001).sack(3001..4001).sack(5001..10_001));
    let sent = t.poll();
    t.compare(&sent, &[data(1..1001), data(2001..3001), data(4001..5001)].map(Seg::retransmit));
}

#[test]
fn a_retransmission_that_is_lost_is_noticed() {
    // covers: RFC 8985 §3.2
    let mut t = Tcb::established().sent(10 * MSS);
    t.advance(ms(100));
    t.takes(ack(1).sack(1001..4001));
    t.expect([data(1..1001).retransmit()]);
    t.write(10 * MSS);
    t.advance(ms(10));
    t.takes(ack(1).sack(1001..10_001));
    let sent = t.poll();
    assert!(sent.len() >= 3 && sent.iter().all(|transmit| !transmit.retransmit), "{sent:#?}");
    t.advance(ms(100));
    t.takes(ack(1).sack(1001..13_001));
    let again = t.poll();
    assert!(again[0].retransmit && again[0].offset == 0);
}

#[test]
fn without_sack_three_duplicates_are_a_loss_and_partial_acks_show_the_next() {
    // covers: RFC 6582 §3.2
    let mut t = reno().sent(8 * MSS);
    t.takes(ack(1));
    t.takes(ack(1));
    t.expect_silence();
    t.takes(ack(1));
    t.expect([data(1..1001).retransmit()]);
    t.takes(ack(3001));
    t.expect([data(3001..4001).retransmit()]);
    t.takes(ack(8001));
    assert_eq!(t.conn.info(t.now).phase, Phase::Open);
    t.expect_silence();
}

#[test]
fn text_that_comes_a_little_late_is_waited_for() {
    // covers: RFC 8985 §6.2 step 4, §6.3
    let mut t = Tcb::established();
    for _ in 0..3 {
        t.write(MSS);
        t.poll();
        t.advance(ms(1));
    }
    t.advance(ms(97));
    // The third has arrived, the first two have not: the connection waits a quarter of a round trip.
    t.takes(ack(1).sack(2001..3001));
    t.expect_silence();
    let (wait, _) = t.advance_to_timer();
    assert!(wait > ms(20) && wait < ms(25), "{wait:?}");
    t.expect([data(1..1001).retransmit()]);
    // They were late indeed: the second arrives, then the first. From now on three segments beyond a hole
    // prove nothing.
    t.takes(ack(1).sack(1001..3001));
    t.takes(ack(3001));
    assert!(t.conn.recovery.reordering.seen);
    let info = t.conn.info(t.now);
    assert_eq!((info.reordered, info.twice), (1, 0));
    t.write(6 * MSS);
    t.poll();
    t.advance(ms(100));
    t.takes(ack(3001).sack(4001..9001));
    t.expect_silence();
    t.takes(ack(9001));
    t.expect_silence();
}

#[test]
fn a_report_of_everything_sent_again_ends_the_episode() {
    // covers: RFC 3708
    let mut t = Tcb::established().sent(8 * MSS);
    t.advance(ms(100));
    t.takes(ack(1).sack(1001..4001));
    t.expect([data(1..1001).retransmit()]);
    let reduced = t.conn.info(t.now).snd_ssthresh;
    t.advance(ms(10));
    t.takes(ack(4001));
    assert_eq!(t.conn.info(t.now).phase, Phase::Recovery);
    t.takes(ack(4001).sack(1..1001));
    let info = t.conn.info(t.now);
    assert!(info.phase == Phase::Open && info.snd_cwnd >= 10 && info.snd_ssthresh > reduced, "{info:?}");
}

#[test]
fn a_time_out_that_was_too_early_is_taken_back() {
    // covers: RFC 5682 §3.1. No timestamps, SACK or not.
    for answer in [syn_ack(1), syn_ack(1).no_sack()] {
        let mut t = Tcb::established_by(answer, &settings()).sent(4 * MSS);
        while t.conn.info(t.now).phase != Phase::Loss {
            t.advance_to_timer();
            t.poll();
        }
        // The originals were only late. New text leaves, and its acknowledgement shows that.
        t.write(4 * MSS);
        t.takes(ack(1001));
        t.expect([data(4001..5001), data(5001..6001)]);
        t.takes(ack(2001));
        let info = t.conn.info(t.now);
        assert!(info.phase == Phase::Open && info.snd_cwnd >= 10, "{info:?}");
        t.expect([data(6001..7001), data(7001..8001)]);
    }
}

#[test]
fn a_time_out_that_was_right_goes_on_with_what_is_lost() {
    // covers: RFC 5682 §3.1
    let mut t = Tcb::established().sent(4 * MSS);
    while t.conn.info(t.now).phase != Phase::Loss {
        t.advance_to_timer();
        t.poll();
    }
    t.write(4 * MSS);
    t.takes(ack(1001));
    t.expect([data(4001..5001), data(5001..6001)]);
    t.advance(ms(100));
    t.takes(ack(1001).sack(4001..5001));
    t.expect([data(1001..2001).retransmit()]);
    assert_eq!(t.conn.info(t.now).phase, Phase::Loss);
}

#[test]
fn an_ack_stays_within_the_peers_window_even_if_more_was_sent() {
    // Linux's tcp_acceptable_seq does the same. Found by simulation seed 17968.
    let mut t = Tcb::established().sent(10 * MSS);
    t.takes(data(1..1001).ack(1).window(4000));
    t.takes(data(1001..2001).ack(1).window(4000));
    t.expect([ack(2001).seq(4001)]);
}

#[test]
fn limited_transmit_keeps_the_acks_coming() {
    // covers: RFC 3042
    let mut t = Tcb::established().sent(20 * MSS);
    t.advance(ms(100));
    t.takes(ack(1).sack(1001..2001));
    t.expect([data(10_001..11_001)]);
}

#[test]
fn a_time_out_sends_the_first_segment_and_backs_off() {
    // covers: RFC 6298 §5.4 to §5.6
    let mut t = reno().sent(3 * MSS);
    let rto = t.conn.info(t.now).rto;
    let (wait, _) = t.advance_to_timer();
    assert_eq!(wait, rto);
    t.expect([data(1..1001).retransmit()]);
    assert_eq!(t.conn.info(t.now).snd_cwnd, 1);
    let (wait, _) = t.advance_to_timer();
    assert_eq!(wait, 2 * rto);
    t.expect([data(1..1001).retransmit()]);
    // Slow start continues through the rest.
    t.takes(ack(1001));
    t.expect([data(1001..2001).retransmit(), data(2001..3001).retransmit()]);
    t.takes(ack(3001));
    assert_eq!(t.conn.next_timeout(), None);
}

#[test]
fn what_was_late_or_overtaken_is_no_loss() {
    // covers: RFC 3522, RFC 4015
    for (late, by_timeout) in [(true, true), (false, true), (true, false), (false, false)] {
        let answer = if by_timeout { syn_ack(1).no_sack() } else { syn_ack(1) };
        let mut t = Tcb::established_by(answer.timestamps(5, 0), &settings());
        t.write(5 * MSS);
        let clock =
            |sent: &[Transmit]| sent[0].segment.options.timestamps.expect("timestamps are in use").value;
        let first = clock(&t.poll());
        let mss = u32::from(t.conn.mss());
        t.advance(ms(50));
        if by_timeout {
            t.advance_to_timer();
        } else {
            t.takes(ack(1).sack(1 + mss..1 + 4 * mss).timestamps(6, 0));
        }
        let again = clock(&t.poll());
        assert_ne!(t.conn.info(t.now).phase, Phase::Open);
        t.advance(ms(5));
        let echo = if late { first } else { again };
        t.takes(ack(1 + mss).timestamps(7, echo));
        let info = t.conn.info(t.now);
        assert_eq!(info.phase == Phase::Open, late, "by time-out: {by_timeout}");
        assert_eq!(
            (info.snd_cwnd >= 10, info.snd_ssthresh == u32::MAX),
            (late, late),
            "by time-out: {by_timeout}"
        );
    }
}

#[test]
fn a_time_out_leaves_out_what_may_only_be_out_of_order() {
    // covers: RFC 8985 §6.3
    let mut t = Tcb::established();
    t.conn.recovery.reordering.seen = true;
    t.write(2 * MSS);
    t.poll();
    t.advance(ms(100));
    t.takes(ack(1001));
    // No probe of the end comes first.
    t.conn.recovery.rtt.backoff = 1;
    t.conn.arm_rto(t.now);
    let wait = t.conn.next_timeout().expect("a time-out").since(t.now);
    // The round trip is 100 ms, and text out of order is waited for 25 ms: this one has 10 ms left.
    t.advance(wait - ms(115));
    t.write(MSS);
    t.poll();
    let left = t.conn.recovery.reordering_window(&t.conn.snd);
    assert_eq!(left, ms(25));
    t.advance(ms(115));
    assert_eq!((t.conn.info(t.now).phase, t.conn.recovery.lost()), (Phase::Loss, i64::from(MSS)));
}

#[test]
fn proportional_rate_reduction_counts_what_was_in_flight_at_the_start() {
    // covers: RFC 9937 §6.1. Ten segments, 3 SACKed; the last report begins the episode, so 8 were in flight before it.
    let mut t = Tcb::established();
    t.conn.congestion.cwnd = 20_000;
    let mut t = t.sent(20 * MSS);
    t.advance(ms(100));
    for n in 2..=4 {
        t.takes(ack(1).sack(1001..n * 1000 + 1));
    }
    assert_eq!(t.conn.info(t.now).phase, Phase::Recovery);
    assert_eq!(t.conn.recovery.episode.as_ref().map(|episode| episode.prr.flight()), Some(18_000));
}

#[test]
fn without_sack_what_duplicates_have_counted_is_not_counted_again() {
    // covers: RFC 9937 §6.2
    let mut t = reno();
    t.conn.congestion.cwnd = 10_000;
    let mut t = t.sent(10 * MSS);
    for _ in 0..9 {
        t.takes(ack(1));
    }
    let delivered = |t: &Tcb| t.conn.recovery.episode.as_ref().map(|episode| episode.prr.delivered());
    assert_eq!(delivered(&t), Some(7_000));
    // The first segment, which was lost, has come, and so have five that were counted: the seventh is lost,
    // too.
    t.takes(ack(6001));
    assert_eq!(delivered(&t), Some(8_000));
}

#[test]
fn a_time_out_merges_small_segments() {
    let mut t = reno();
    for _ in 0..3 {
        t.write(100);
        t.poll();
    }
    t.advance_to_timer();
    t.expect([data(1..301).retransmit()]);
}

#[test]
fn a_lost_fin_is_sent_again() {
    let mut t = reno();
    t.write(10);
    t.conn.shutdown_send(t.now);
    t.expect([data(1..11).fin()]);
    t.advance_to_timer();
    t.expect([data(1..11).fin().retransmit()]);
    // The text has arrived, the FIN has not.
    t.takes(ack(11));
    t.advance_to_timer();
    t.expect([fin(11).retransmit()]);
}

#[test]
fn the_end_of_a_flight_is_probed_before_the_time_out() {
    // covers: RFC 8985 §7
    let mut t = Tcb::established().sent(5 * MSS);
    let (wait, _) = t.advance_to_timer();
    assert_eq!(wait, ms(202));
    t.expect([data(4001..5001).retransmit()]);
    t.takes(ack(1).sack(4001..5001));
    t.expect_silence();
    let (wait, _) = t.advance_to_timer();
    assert!(wait >= ms(200));
    t.expect([data(1..1001).retransmit()]);
}

#[test]
fn a_probe_that_repairs_a_loss_is_congestion_unless_the_text_arrived_twice() {
    // covers: RFC 8985 §7.4
    for (twice, threshold) in [(false, 7), (true, u32::MAX)] {
        let mut t = Tcb::established().sent(2 * MSS);
        t.advance_to_timer();
        t.expect([data(1001..2001).retransmit()]);
        t.takes(if twice { ack(2001).sack(1001..2001) } else { ack(2001) });
        t.write(MSS);
        t.expect([data(2001..3001)]);
        t.takes(ack(3001));
        let info = t.conn.info(t.now);
        assert_eq!((info.snd_ssthresh, info.twice), (threshold, twice.into()));
        assert_eq!(info.reordered, 0);
    }
}

#[test]
fn one_end_is_probed_at_a_time() {
    // covers: RFC 8985 §7.3: none while another is in flight, and none without a round trip measured since.
    for new_text in [false, true] {
        let mut t = Tcb::established().sent(3 * MSS);
        if new_text {
            t.conn.congestion.cwnd = 3000;
            t.write(MSS);
            t.poll();
        }
        t.advance_to_timer();
        let probe = t.poll();
        assert_eq!((probe.len(), probe[0].retransmit), (1, !new_text));
        t.takes(ack(1001));
        t.poll();
        assert!(!t.conn.timers.is_armed_as(crate::timers::Retransmit::TailProbe), "new text: {new_text}");
    }
    // The probe is acknowledged, but it is not known which copy of it.
    let mut t = Tcb::established().sent(MSS);
    t.advance_to_timer();
    t.poll();
    t.advance(ms(100));
    t.takes(ack(1001));
    let mut t = t.sent(MSS);
    assert!(!t.conn.timers.is_armed_as(crate::timers::Retransmit::TailProbe));
    t.advance(ms(100));
    t.takes(ack(2001));
    let t = t.sent(MSS);
    assert!(t.conn.timers.is_armed_as(crate::timers::Retransmit::TailProbe));
}

#[test]
fn a_probe_takes_the_place_of_a_time_out_that_would_come_first() {
    // covers: RFC 8985 §7.2. A lone segment: two round trips and a delayed ACK are more than the time-out.
    let mut t = Tcb::established().sent(100);
    let (wait, _) = t.advance_to_timer();
    assert!(wait <= ms(300), "{wait:?}");
    t.expect([data(1..101).retransmit()]);
    let info = t.conn.info(t.now);
    assert_eq!((info.snd_cwnd, info.retransmits), (10, 0));
    t.advance_to_timer();
    t.expect([data(1..101).retransmit()]);
    let info = t.conn.info(t.now);
    assert_eq!((info.snd_cwnd, info.retransmits), (1, 1));
}

#[test]
fn a_time_out_ends_the_episode_of_the_probe() {
    // covers: RFC 8985 §7.4.1: what is acknowledged after it is no repair of the probe's.
    let mut t = Tcb::established().sent(2 * MSS);
    t.advance_to_timer();
    t.expect([data(1001..2001).retransmit()]);
    t.advance_to_timer();
    t.expect([data(1..1001).retransmit()]);
    t.takes(ack(2001));
    t.write(2 * MSS);
    t.poll();
    t.takes(ack(4001));
    assert_eq!(t.conn.info(t.now).snd_ssthresh, 7);
}

#[test]
fn a_fin_alone_leaves_although_the_congestion_window_is_used_up() {
    let mut t = Tcb::established().sent(10 * MSS);
    t.conn.shutdown_send(t.now);
    t.expect([fin(10_001)]);
}

#[test]
fn a_silent_peer_is_given_up_after_fifteen_time_outs() {
    let mut t = Tcb::established().sent(100);
    let start = t.now;
    let events = loop {
        let (_, events) = t.advance_to_timer();
        t.poll();
        if !events.is_empty() {
            break events;
        }
    };
    assert_eq!(events, Events::TIMED_OUT | Events::CLOSED);
    let waited = t.now.since(start).as_secs();
    assert!((600..1500).contains(&waited), "{waited}");
    assert_eq!(t.conn.next_timeout(), None);
}

#[test]
fn a_user_time_out_is_kept_to_the_moment() {
    let mut t = Tcb::established();
    t.conn.set_user_timeout(Some(Duration::from_secs(7)));
    let mut t = t.sent(100);
    let start = t.now;
    while t.advance_to_timer().1.is_empty() {
        t.poll();
    }
    let waited = t.now.since(start);
    assert!(waited >= ms(7000) && waited <= ms(7020), "{waited:?}");
}

#[test]
fn an_unanswered_syn_is_repeated_six_times() {
    let mut t = Tcb::connecting(&settings());
    assert_eq!(t.poll().len(), 1);
    let start = t.now;
    for n in 0..6 {
        let (wait, events) = t.advance_to_timer();
        assert_eq!((wait, events), (ms(1000 << n), Events::empty()));
        assert!(t.poll()[0].retransmit);
    }
    assert_eq!(t.advance_to_timer().1, Events::TIMED_OUT | Events::CLOSED);
    assert_eq!(t.now.since(start), Duration::from_secs(127));
}

// --- windows
// -----------------------------------------------------------------------------------------------------------

#[test]
fn after_a_handshake_with_losses_a_connection_begins_carefully() {
    // covers: RFC 6298 §5.7, RFC 5681 §3.1 with RFC 6928 §2
    for (lost, window) in [(0, 10_000), (1, 10_000), (2, 1000), (3, 1000)] {
        let (mut active, mut passive) = (Tcb::connecting(&settings()), Tcb::accepting(syn(), &settings()));
        for t in [&mut active, &mut passive] {
            t.poll();
            for _ in 0..lost {
                t.advance_to_timer();
                t.poll();
            }
            t.advance(ms(100));
        }
        active.takes(syn_ack(1));
        passive.takes(ack(1));
        for t in [active, passive] {
            assert_eq!(t.conn.congestion.cwnd, window, "{lost}");
            let rtt = t.conn.recovery.rtt;
            // It is not known which copy was answered (RFC 6298 §3).
            assert_eq!((rtt.srtt_us, rtt.rto()), if lost == 0 { (100_000, ms(300)) } else { (0, ms(3000)) });
        }
    }
}

#[test]
fn the_answer_to_a_cookie_is_not_measured() {
    // covers: RFC 6298 §3. When the SYN-ACK left is forgotten.
    let mut t = Tcb::accepting(syn(), &settings());
    t.conn.skip_syn_ack(t.now);
    t.takes(ack(1));
    assert_eq!(t.conn.recovery.rtt.srtt_us, 0);
    assert_eq!(t.conn.congestion.cwnd, 10_000);
}

#[test]
fn a_closed_window_is_probed_for_as_long_as_the_peer_answers() {
    // covers: RFC 9293 §3.8.6.1 MUST-35, MUST-37, SHLD-29, SHLD-30
    let mut t = Tcb::established();
    t.takes(bare().window(0));
    t.write(500);
    t.expect_silence();
    let mut last = Duration::ZERO;
    for _ in 0..30 {
        let (wait, events) = t.advance_to_timer();
        assert!(events.is_empty() && wait >= last && wait <= Duration::from_secs(120));
        last = wait;
        t.expect([bare().seq(0)]);
        t.takes(bare().window(0));
        t.expect_silence();
    }
    t.takes(bare().window(5000));
    t.expect([data(1..501)]);
}

#[test]
fn a_closed_window_of_a_silent_peer_is_not_probed_forever() {
    let mut t = Tcb::established();
    t.takes(bare().window(0));
    t.write(500);
    t.poll();
    let events = loop {
        let (_, events) = t.advance_to_timer();
        t.poll();
        if !events.is_empty() {
            break events;
        }
    };
    assert_eq!(events, Events::TIMED_OUT | Events::CLOSED);
}

#[test]
fn a_window_taken_back_does_not_end_a_connection_that_answers() {
    // covers: RFC 9293 §3.8.6, SHLD-15 to SHLD-17
    let mut t = Tcb::established().sent(3 * MSS);
    t.takes(ack(1).window(0));
    t.write(MSS);
    for _ in 0..40 {
        let (_, events) = t.advance_to_timer();
        assert!(events.is_empty());
        let sent = t.poll();
        assert!(sent.iter().all(|transmit| transmit.retransmit && transmit.offset == 0), "{sent:?}");
        t.takes(ack(1).window(0));
        t.expect_silence();
    }
    t.takes(ack(3001).window(5000));
    t.expect([data(3001..4001)]);
}

#[test]
fn two_hours_pass_before_the_first_probe() {
    // covers: RFC 9293 §3.8.4, MUST-28
    let mut t = Tcb::established();
    t.conn.set_keep_alive(t.now, Some(KeepAlive::default()));
    assert_eq!(t.advance_to_timer().0, Duration::from_secs(7200));
    t.expect([bare().seq(0)]);
}

#[test]
fn what_a_small_window_keeps_back_leaves_after_a_while() {
    let mut t = Tcb::established();
    t.takes(bare().window(300));
    t.write(500);
    t.expect_silence();
    t.advance_to_timer();
    t.expect([data(1..301)]);
}

// --- keep-alive
// -----------------------------------------------------------------------------------------------------------

#[test]
fn an_idle_peer_is_probed_and_given_up() {
    // covers: RFC 9293 §3.8.4
    let keep_alive = KeepAlive { idle: ms(60_000), interval: ms(5_000), probes: 3 };
    let mut t = Tcb::established_by(syn_ack(1), &Settings { keep_alive: Some(keep_alive), ..settings() });
    t.advance(ms(40_000));
    t.takes(bare());
    assert_eq!(t.advance_to_timer().0, ms(20_000));
    t.expect_silence();
    assert_eq!(t.advance_to_timer().0, ms(40_000));
    t.expect([bare().seq(0)]);
    t.takes(bare());
    let mut probes = 0;
    let events = loop {
        let (_, events) = t.advance_to_timer();
        if !events.is_empty() {
            break events;
        }
        probes += t.poll().len();
    };
    assert_eq!((probes, events), (3, Events::TIMED_OUT | Events::CLOSED));
    assert!(t.poll()[0].segment.has(Flags::RST));
}

// --- the end
// -----------------------------------------------------------------------------------------------------------

#[test]
fn a_reset_carries_a_timestamp_if_the_other_segments_do() {
    // covers: RFC 7323 §3.2
    for agreed in [false, true] {
        let answer = if agreed { syn_ack(1).timestamps(5, 0) } else { syn_ack(1) };
        let mut t = Tcb::established_by(answer, &settings());
        t.conn.abort();
        let reset = t.poll()[0].segment;
        assert!(reset.has(Flags::RST));
        assert_eq!(reset.options.timestamps.map(|timestamps| timestamps.echo), agreed.then_some(5));
    }
}

#[test]
fn an_abort_sends_a_reset_where_the_state_wants_one() {
    // covers: RFC 9293 §3.10.5
    let wanted = [
        (State::Established, 1),
        (State::FinWait1, 1),
        (State::FinWait2, 1),
        (State::CloseWait, 1),
        (State::Closing, 0),
        (State::LastAck, 0),
        (State::TimeWait, 0),
    ];
    for (state, resets) in wanted {
        let mut t = Tcb::in_state(state);
        t.conn.abort();
        assert_eq!(t.conn.state(), State::Closed);
        assert_eq!(
            t.poll().iter().filter(|transmit| transmit.segment.has(Flags::RST)).count(),
            resets,
            "{state:?}"
        );
        assert_eq!(t.conn.next_timeout(), None);
    }
    let mut t = Tcb::connecting(&settings());
    t.poll();
    t.conn.abort();
    t.expect_silence();
    let mut t = Tcb::accepting(syn(), &settings());
    t.poll();
    t.conn.abort();
    assert!(t.poll()[0].segment.has(Flags::RST));
}

#[test]
fn text_for_who_neither_reads_nor_writes_is_answered_by_a_reset() {
    for state in [State::Established, State::FinWait1, State::FinWait2] {
        let mut t = Tcb::in_state(state);
        t.conn.shutdown_receive();
        t.takes(data(1..6));
        let resets = t.poll().iter().filter(|transmit| transmit.segment.has(Flags::RST)).count();
        assert_eq!(resets, usize::from(state != State::Established), "{state:?}");
    }
}

#[test]
fn a_reset_that_may_wait_follows_the_text_that_may_leave() {
    for (window, room) in [(1000, 20), (0, 0)] {
        let mut t = Tcb::established();
        t.takes(ack(1).window(window));
        t.write(20);
        t.conn.abort_after_text();
        let sent = t.poll();
        let text: u32 = sent.iter().map(|transmit| transmit.segment.len).sum();
        assert_eq!(text, room, "what the peer has room for");
        let reset = sent.last().expect("a reset").segment;
        assert!(reset.has(Flags::RST) && sent.iter().filter(|it| it.segment.has(Flags::RST)).count() == 1);
        assert_eq!((t.conn.state(), t.conn.next_timeout()), (State::Closed, None));
    }
    let mut t = Tcb::in_state(State::Established);
    t.conn.abort_after_text();
    assert_eq!(t.conn.state(), State::Closed, "there is nothing to wait for");
    // Text that arrives in between has no place to go to.
    let mut t = Tcb::established();
    t.write(20);
    t.conn.abort_after_text();
    t.takes(data(1..6));
    assert_eq!((t.conn.receive_nxt(), t.conn.state()), (0, State::Closed));
}

#[test]
fn nobody_waits_in_fin_wait_2_for_longer_than_linger2() {
    let mut t = Tcb::in_state(State::FinWait1);
    t.conn.set_linger2(ms(3000));
    t.conn.close(t.now);
    t.takes(ack(2));
    assert_eq!(t.advance_to_timer(), (ms(3000), Events::CLOSED));
    // An application that still reads may wait forever.
    let t = Tcb::in_state(State::FinWait2);
    assert_eq!(t.conn.next_timeout(), None);
}

// --- the network
// -----------------------------------------------------------------------------------------------------------

#[test]
fn a_smaller_path_mtu_sends_again_what_was_too_large() {
    // covers: RFC 1191 §6.4
    let mut t = Tcb::established().sent(2 * MSS);
    t.conn.handle_mtu(t.now, 640, t.conn.snd.seq(-5));
    assert_eq!(t.conn.mss(), 1000, "a stray message is not believed");
    t.conn.handle_mtu(t.now, 640, t.conn.snd.seq(0));
    assert_eq!(t.conn.mss(), 600);
    let sent = t.poll();
    t.compare(
        &sent,
        &[data(1..601), data(601..1201), data(1201..1801), data(1801..2001)].map(Seg::retransmit),
    );
    assert_eq!(t.conn.congestion.cwnd, 10_000);
    // covers: RFC 8201 §5.4: what says nothing new has nothing sent again.
    t.conn.handle_mtu(t.now, 640, t.conn.snd.seq(1000));
    assert!(t.poll().is_empty());
}

#[test]
fn an_unreachable_peer_ends_a_handshake_but_not_a_connection() {
    // covers: RFC 5927 §5.2
    let reason = NonZeroU8::new(7).expect("not 0");
    let ended = Events::UNREACHABLE | Events::CLOSED;
    let mut t = Tcb::connecting(&settings());
    t.poll();
    assert_eq!(
        t.conn.handle_network_error(reason, t.conn.snd.seq(0), false),
        Events::empty(),
        "not in flight"
    );
    assert_eq!(t.conn.handle_network_error(reason, t.conn.snd.seq(-1), false), ended);
    assert_eq!(t.conn.network_error(), Some(reason));
    let mut t = Tcb::established().sent(10);
    assert_eq!(t.conn.handle_network_error(reason, t.conn.snd.seq(0), true), Events::empty());
    assert_eq!((t.conn.state(), t.conn.network_error()), (State::Established, Some(reason)));
    t.takes(ack(11));
    assert_eq!(t.conn.network_error(), None, "it was heard");
}

#[test]
fn the_owners_pace_holds_back_whatever_the_windows_allow() {
    let mut t = Tcb::established();
    t.conn.set_pacing_rate_max(t.now, core::num::NonZeroU64::new(100_000));
    t.write(6000);
    let octets = |t: &mut Tcb| t.poll_up_to(65_000).iter().map(|sent| sent.segment.len).sum::<u32>();
    assert_eq!(octets(&mut t), 2000);
    let (waited, _) = t.advance_to_timer();
    assert!((ms(19)..=ms(20)).contains(&waited), "{waited:?}");
    assert_eq!(octets(&mut t), 2000);
    // Without a pace the rest leaves at once.
    t.conn.set_pacing_rate_max(t.now, None);
    assert_eq!(octets(&mut t), 2000);
    assert_eq!(t.conn.info(t.now).pacing_rate, None);
}

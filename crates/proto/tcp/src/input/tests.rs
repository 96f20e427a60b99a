//! covers: RFC 9293 §3.10.7, in its order.

use atoll_base::Rng;

use super::*;
use crate::outcome::Text;
use crate::testing::{MSS, Tcb, ack, bare, data, fin, ms, rst, settings, syn, syn_ack};

const SYNCHRONIZED: [State; 7] = [
    State::Established,
    State::FinWait1,
    State::FinWait2,
    State::CloseWait,
    State::Closing,
    State::LastAck,
    State::TimeWait,
];

// --- opening
// -----------------------------------------------------------------------------------------------------------

#[test]
fn every_second_segment_is_acknowledged_before_more_are_looked_at_and_each_while_some_are_missing() {
    // covers: RFC 5681 §4.2
    let mut t = Tcb::established();
    t.takes(data(1..1001));
    assert!(!t.conn.ack_is_overdue());
    t.takes(data(1001..2001));
    assert!(t.conn.ack_is_overdue());
    t.expect([ack(2001)]);
    assert!(!t.conn.ack_is_overdue());
    t.takes(data(3001..4001));
    assert!(t.conn.ack_is_overdue());
}

#[test]
fn frames_of_many_segments_are_acknowledged_eight_at_a_time() {
    let mut t = Tcb::established();
    for n in 0..7 {
        t.takes(data(1 + n * 5 * MSS..1 + (n + 1) * 5 * MSS));
        assert!(!t.conn.ack_is_overdue());
    }
    t.takes(data(1 + 35 * MSS..1 + 40 * MSS));
    assert!(t.conn.ack_is_overdue());
}

#[test]
fn an_active_open_takes_three_segments() {
    let mut t = Tcb::connecting(&settings());
    let sent = t.poll();
    let options = sent[0].segment.options;
    assert_eq!((sent.len(), sent[0].segment.flags), (1, Flags::SYN));
    assert!(options.sack_permitted && options.timestamps.is_some() && options.window_scale.is_some());
    assert_eq!(t.takes(syn_ack(1)), Events::ESTABLISHED);
    t.expect([ack(1)]);
    assert_eq!(t.conn.state(), State::Established);
    assert_eq!(t.conn.next_timeout(), None);
}

#[test]
fn a_passive_open_takes_three_segments() {
    let mut t = Tcb::accepting(syn(), &settings());
    t.expect([syn_ack(1)]);
    assert_eq!(t.takes(ack(1)), Events::ESTABLISHED);
    t.expect_silence();
    assert_eq!(t.conn.next_timeout(), None);
}

#[test]
fn text_with_the_last_ack_of_the_handshake_is_taken() {
    let mut t = Tcb::accepting(syn(), &settings());
    t.poll();
    assert_eq!(t.takes(data(1..101)), Events::ESTABLISHED | Events::READABLE);
    assert_eq!(t.conn.receive_nxt(), 100);
}

#[test]
fn both_ends_may_open_at_once() {
    // covers: RFC 9293 §3.5, figure 8
    let mut t = Tcb::connecting(&settings());
    t.poll();
    assert_eq!(t.takes(syn()), Events::empty());
    assert_eq!(t.conn.state(), State::SynReceived);
    let sent = t.poll();
    assert_eq!(sent[0].segment.flags, Flags::SYN | Flags::ACK);
    assert_eq!(t.takes(syn_ack(1)), Events::ESTABLISHED);
}

#[test]
fn an_option_holds_only_if_both_syns_carry_it() {
    let t = Tcb::established_by(syn_ack(1).no_sack(), &settings());
    let info = t.conn.info(t.now);
    assert_eq!((info.sack, info.timestamps, info.window_scaling), (false, false, false));
    let t = Tcb::established_by(syn_ack(1).scale(3).timestamps(5, 0), &settings());
    let info = t.conn.info(t.now);
    assert_eq!((info.sack, info.timestamps, info.snd_wscale), (true, true, 3));
    assert_eq!(t.conn.mss(), MSS as u16 - 12);
}

#[test]
fn an_ack_of_something_else_in_syn_sent_is_answered_by_a_reset() {
    for wrong in [0, 2] {
        let mut t = Tcb::connecting(&settings());
        t.poll();
        let input = t.recv(syn_ack(wrong));
        assert_eq!(input.events, Events::ANSWER_RESET);
        assert_eq!(t.conn.state(), State::SynSent);
    }
}

#[test]
fn a_reset_with_the_right_ack_refuses_the_connection() {
    let mut t = Tcb::connecting(&settings());
    t.poll();
    t.drops(rst(0), Reason::BlindReset);
    assert_eq!(t.takes(rst(0).with(Flags::ACK).ack(1)), Events::REFUSED | Events::CLOSED);
    t.expect_silence();
}

#[test]
fn a_repeated_syn_gets_the_syn_ack_again() {
    let mut t = Tcb::accepting(syn(), &settings());
    t.poll();
    t.drops(syn(), Reason::UnexpectedSyn);
    assert!(t.poll()[0].retransmit);
}

// --- first: sequence
// ---------------------------------------------------------------------------------------------------------

#[test]
fn segments_outside_the_window_are_answered_but_not_taken() {
    // covers: RFC 9293 §3.4 table 6
    for (name, seg) in [
        ("before", data(1..11).seq(1)),
        ("beyond", data(60_000..60_010)),
        ("far", data(1_000_000..1_000_010)),
    ] {
        let mut t = Tcb::established();
        t.takes(data(1..101));
        t.poll();
        t.advance(ms(50));
        t.poll();
        t.drops(seg, Reason::OutsideWindow);
        assert_eq!(t.poll().len(), 1, "{name}");
        assert_eq!(t.conn.receive_nxt(), 100);
    }
}

#[test]
fn the_window_ends_at_its_right_edge_to_the_octet() {
    // covers: RFC 9293 §3.4 table 6, MUST-66. The window takes octets 1 to 50,000.
    let mut t = Tcb::established();
    let last = t.recv(data(50_000..50_001));
    assert_eq!(last.text.map(|text| (text.offset, text.len)), Some((49_999, 1)));
    // A segment that begins at the right edge counts, without its text: the peer may not know better yet.
    assert_eq!(t.recv(data(50_001..50_011)).text, None);
    t.takes(bare().seq(50_001));
    t.drops(bare().seq(50_002), Reason::OutsideWindow);
    t.drops(data(50_002..50_012), Reason::OutsideWindow);
}

#[test]
fn a_keep_alive_probe_is_answered_but_not_twice_in_a_row() {
    let mut t = Tcb::established();
    t.drops(bare().seq(0), Reason::OutsideWindow);
    t.expect([bare().ack(1)]);
    t.drops(bare().seq(0), Reason::OutsideWindow);
    t.expect_silence();
    t.advance(ms(501));
    t.drops(bare().seq(0), Reason::OutsideWindow);
    t.expect([bare().ack(1)]);
}

#[test]
fn an_old_timestamp_means_an_old_segment() {
    // covers: RFC 7323 §5.3 R1
    let mut t = Tcb::established_by(syn_ack(1).timestamps(1000, 0), &settings());
    assert_eq!(t.takes(data(1..11).timestamps(1001, 0)), Events::READABLE);
    t.poll();
    t.drops(data(11..21).timestamps(1000, 0), Reason::OldTimestamp);
    t.drops(data(11..21), Reason::NoTimestamp);
    // After 24 days of silence timestamps prove nothing.
    t.advance(ms(25 * 24 * 3600 * 1000));
    assert_eq!(t.takes(data(11..21).timestamps(5, 0)), Events::READABLE);
}

#[test]
fn a_timestamp_that_was_not_agreed_upon_is_passed_over() {
    // covers: RFC 7323 §3.2
    let mut t = Tcb::established();
    t.takes(data(1..11).timestamps(1000, 0));
    t.takes(data(11..21).timestamps(5, 0));
    t.takes(data(21..31));
    t.conn.send_challenge();
    assert_eq!(t.poll()[0].segment.options.timestamps, None);
}

#[test]
fn the_echo_is_that_of_the_first_segment_not_acknowledged() {
    // covers: RFC 7323 §4.3, §5.3 R3
    let mut t = Tcb::established_by(syn_ack(1).timestamps(5, 0), &settings());
    let echo = |t: &mut Tcb| {
        t.conn.send_challenge();
        t.poll()[0].segment.options.timestamps.map(|timestamps| timestamps.echo)
    };
    t.takes(data(1..1001).timestamps(10, 0));
    t.takes(data(1001..2001).timestamps(20, 0));
    assert_eq!(echo(&mut t), Some(10));
    // Text comes out of order, and then the text that was missing before it.
    t.takes(data(3001..4001).timestamps(30, 0));
    assert_eq!(echo(&mut t), Some(10));
    t.takes(data(2001..3001).timestamps(40, 0));
    assert_eq!(echo(&mut t), Some(40));
}

#[test]
fn a_late_echo_measures_nothing() {
    // covers: RFC 7323 §4.1
    let mut t = Tcb::established_by(syn_ack(1).timestamps(5, 0), &settings());
    let sent = t.conn.options.clock(t.now);
    let before = t.conn.recovery.rtt.srtt_us;
    t.write(100);
    t.poll();
    t.advance(ms(50));
    t.takes(ack(1).timestamps(6, sent));
    assert_eq!(t.conn.recovery.rtt.srtt_us, before);
    t.takes(ack(101).timestamps(7, sent));
    assert_ne!(t.conn.recovery.rtt.srtt_us, before);
}

// --- second: RST
// -----------------------------------------------------------------------------------------------------------

#[test]
fn a_reset_counts_only_at_the_left_edge_of_the_window() {
    // covers: RFC 5961 §3.2
    for state in SYNCHRONIZED {
        let edge = if Tcb::in_state(state).conn.fin_received() { 2 } else { 1 };
        let mut t = Tcb::in_state(state);
        t.poll();
        t.recv(rst(edge + 5));
        assert_eq!(t.conn.state(), state, "a RST within the window");
        let mut t = Tcb::in_state(state);
        t.recv(rst(edge));
        assert_eq!(t.conn.state(), State::Closed, "{state:?}");
        t.expect_silence();
    }
}

#[test]
fn a_reset_is_not_judged_by_its_timestamp() {
    // covers: RFC 7323 §5.2
    for timestamps in [None, Some((5, 0)), Some((2000, 0))] {
        let mut t = Tcb::established_by(syn_ack(1).timestamps(1000, 0), &settings());
        let seg = timestamps.map_or(rst(1), |(value, echo)| rst(1).timestamps(value, echo));
        assert!(t.takes(seg).contains(Events::RESET));
    }
}

#[test]
fn a_blind_reset_is_challenged_once_in_a_while() {
    let mut t = Tcb::established();
    t.drops(rst(100), Reason::BlindReset);
    t.expect([bare()]);
    t.drops(rst(100), Reason::BlindReset);
    t.expect_silence();
}

// --- fourth: SYN
// -----------------------------------------------------------------------------------------------------------

#[test]
fn a_syn_on_an_open_connection_is_challenged() {
    // covers: RFC 5961 §4.2
    for seq in [0, 1, 500] {
        let mut t = Tcb::established();
        t.drops(syn().seq(seq).with(Flags::ACK), Reason::UnexpectedSyn);
        t.expect([bare()]);
        assert_eq!(t.conn.state(), State::Established);
    }
}

// --- fifth: ACK
// -----------------------------------------------------------------------------------------------------------

#[test]
fn an_ack_frees_the_send_buffer_and_stops_the_timer() {
    let mut t = Tcb::established().sent(2 * MSS);
    assert!(t.conn.next_timeout().is_some());
    assert_eq!(t.takes(ack(1001)), Events::ACKED);
    assert_eq!(t.conn.send_una(), 1000);
    assert_eq!(t.takes(ack(2001)), Events::ACKED);
    assert_eq!(t.conn.next_timeout(), None);
    // An acknowledgement that goes backwards changes nothing.
    assert_eq!(t.takes(ack(1001)), Events::empty());
    assert_eq!(t.conn.send_una(), 2000);
}

#[test]
fn an_ack_of_the_unsent_is_answered_and_dropped() {
    let mut t = Tcb::established().sent(100);
    t.drops(ack(102), Reason::AckUnsent);
    t.expect([bare()]);
}

#[test]
fn an_ack_older_than_a_window_is_challenged() {
    // covers: RFC 5961 §5.2
    let mut t = Tcb::established();
    t.drops(data(1..11).ack(0u32.wrapping_sub(61_000)), Reason::AckOld);
    assert_eq!(t.conn.receive_nxt(), 0);
}

#[test]
fn the_window_of_an_older_segment_does_not_count() {
    // covers: RFC 9293 §3.10.7.4 fifth, SND.WL1 and SND.WL2
    let mut t = Tcb::established();
    t.takes(data(1..11).window(5000));
    t.takes(bare().seq(1).window(100));
    assert_eq!(t.conn.info(t.now).snd_wnd, 5000);
}

// --- seventh: text
// -----------------------------------------------------------------------------------------------------------

#[test]
fn text_out_of_order_is_placed_where_it_belongs_and_reported() {
    // covers: RFC 2018 §4
    let mut t = Tcb::established();
    let input = t.recv(data(1001..2001));
    assert_eq!(
        (input.text, input.events),
        (Some(Text { offset: 1000, skip: 0, len: 1000 }), Events::empty())
    );
    t.expect([ack_of(1).sack(1001..2001)]);
    t.recv(data(3001..4001));
    t.expect([ack_of(1).sack(3001..4001).sack(1001..2001)]);
    assert_eq!(t.conn.receive_max(), 4000);
    assert_eq!(t.takes(data(1..1001)), Events::READABLE);
    t.expect([ack_of(2001).sack(3001..4001)]);
    assert_eq!(t.takes(data(2001..3001)), Events::READABLE);
    t.expect([ack_of(4001)]);
    assert!(t.conn.rcv.reassembly.is_none());
}

fn ack_of(n: u32) -> crate::testing::Seg {
    bare().ack(n)
}

#[test]
fn text_that_comes_twice_is_reported_as_such() {
    // covers: RFC 2883 §4.1
    let mut t = Tcb::established();
    t.takes(data(1..1001));
    t.takes(data(1001..2001));
    t.expect([ack_of(2001)]);
    t.drops(data(1..1001), Reason::OutsideWindow);
    t.expect([ack_of(2001).sack(1..1001)]);
}

#[test]
fn a_stretch_that_grows_does_not_hide_the_others() {
    // covers: RFC 2018 §4, as many blocks as there is room for
    let mut t = Tcb::established();
    t.takes(data(2001..3001));
    for at in [5001, 6001, 7001, 8001, 9001] {
        t.takes(data(at..at + 1000));
    }
    t.expect([ack_of(1).sack(5001..10_001).sack(2001..3001)]);
}

#[test]
fn a_duplicate_is_followed_by_the_block_that_it_lies_in() {
    // covers: RFC 2883 §4.1.2, RFC 2018 §4 (the first block)
    let mut t = Tcb::established();
    t.takes(data(2001..4001));
    t.takes(data(6001..7001));
    t.expect([ack_of(1).sack(6001..7001).sack(2001..4001)]);
    t.takes(data(2001..3001));
    t.expect([ack_of(1).sack(2001..3001).sack(2001..4001).sack(6001..7001)]);
    t.takes(data(6001..6501));
    t.expect([ack_of(1).sack(6001..6501).sack(6001..7001).sack(2001..4001)]);
}

#[test]
fn what_was_there_already_inside_of_a_new_segment_is_reported() {
    // covers: RFC 2883 §4.2
    let mut t = Tcb::established();
    t.takes(data(1001..2001));
    t.expect([ack_of(1).sack(1001..2001)]);
    t.takes(data(1..3001));
    t.expect([ack_of(3001).sack(1001..2001)]);
}

#[test]
fn only_the_new_part_of_overlapping_text_is_taken() {
    let mut t = Tcb::established();
    t.takes(data(1..501));
    let input = t.recv(data(301..1001));
    assert_eq!(input.text, Some(Text { offset: 500, skip: 200, len: 500 }));
}

#[test]
fn text_beyond_the_window_is_cut() {
    let mut t = Tcb::established();
    let input = t.recv(data(49_001..51_001));
    assert_eq!(input.text.map(|text| text.len), Some(1000));
}

#[test]
fn text_for_an_application_that_is_gone_is_reset() {
    // covers: RFC 9293 §3.6.1 SHLD-3
    for state in [State::FinWait1, State::FinWait2] {
        let mut t = Tcb::in_state(state);
        t.conn.close(t.now);
        assert!(t.takes(data(1..11).ack(1)).contains(Events::CLOSED));
        assert!(t.poll()[0].segment.has(Flags::RST));
    }
}

// --- eighth: FIN
// -----------------------------------------------------------------------------------------------------------

#[test]
fn the_peers_fin_moves_the_state() {
    let cases = [
        (State::Established, State::CloseWait),
        (State::FinWait1, State::Closing),
        (State::FinWait2, State::TimeWait),
    ];
    for (before, after) in cases {
        let mut t = Tcb::in_state(before);
        let acked = if before == State::FinWait2 { 2 } else { 1 };
        assert!(t.takes(fin(1).ack(acked)).contains(Events::FIN));
        assert_eq!(t.conn.state(), after);
        assert!(t.conn.fin_received());
        assert_eq!(t.conn.receive_nxt(), 0);
    }
}

#[test]
fn fin_wait_1_moves_to_time_wait_when_the_fin_acknowledges_ours() {
    let mut t = Tcb::in_state(State::FinWait1);
    assert_eq!(t.takes(fin(1).ack(2)), Events::ACKED | Events::FIN | Events::TIME_WAIT);
    t.expect([ack_of(2)]);
}

#[test]
fn the_ack_of_our_fin_moves_the_state() {
    let cases = [
        (State::FinWait1, State::FinWait2, Events::ACKED),
        (State::Closing, State::TimeWait, Events::ACKED | Events::TIME_WAIT),
        (State::LastAck, State::Closed, Events::ACKED | Events::CLOSED),
    ];
    for (before, after, events) in cases {
        let mut t = Tcb::in_state(before);
        assert_eq!(t.takes(ack(2)), events);
        assert_eq!(t.conn.state(), after);
    }
}

#[test]
fn a_fin_ahead_of_its_text_waits_for_it() {
    let mut t = Tcb::established();
    assert_eq!(t.takes(data(101..201).fin()), Events::empty());
    assert_eq!(t.takes(data(1..101)), Events::READABLE | Events::FIN);
    assert_eq!(t.conn.receive_nxt(), 200);
    assert_eq!(t.conn.state(), State::CloseWait);
}

#[test]
fn a_fin_before_text_that_has_been_seen_is_not_believed() {
    let mut t = Tcb::established();
    t.takes(data(101..201));
    t.takes(data(51..52).fin());
    t.takes(data(1..101));
    assert_eq!(t.conn.receive_nxt(), 200);
    assert_eq!(t.conn.state(), State::Established);
}

#[test]
fn the_ack_of_a_fin_waits_for_the_application_to_close() {
    let mut t = Tcb::established();
    t.takes(fin(1));
    t.expect_silence();
    t.conn.close(t.now);
    t.expect([fin(1).ack(2)]);
    assert_eq!(t.conn.state(), State::LastAck);
}

// --- noise
// -----------------------------------------------------------------------------------------------------------

#[test]
fn no_segments_make_a_connection_panic_or_contradict_itself() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let scaled = rng.below(2) == 0;
        let answer = if scaled { syn_ack(1).scale(14).timestamps(1, 0) } else { syn_ack(1) };
        let mut t = Tcb::established_by(answer, &settings());
        for _ in 0..400 {
            let near = |rng: &mut Rng, base: i64| match rng.below(4) {
                0 => rng.next_u32(),
                1 => base as u32,
                _ => (base as u32).wrapping_add(rng.below(70_000)).wrapping_sub(rng.below(70_000)),
            };
            let mut seg = data(0..rng.below(3000)).seq(near(&mut rng, t.conn.rcv.nxt + 1));
            seg = seg.ack(near(&mut rng, t.conn.snd.nxt + 1)).window(rng.next_u32() as u16);
            if rng.below(4) == 0 {
                let bits = Flags::from_bits_truncate(rng.next_u32() as u16);
                seg = seg.with(if rng.below(20) == 0 {
                    bits
                } else {
                    bits.difference(Flags::RST | Flags::FIN)
                });
            }
            for _ in 0..rng.below(4) {
                let left = near(&mut rng, t.conn.snd.una + 1);
                let right = left.wrapping_add(rng.below(5000));
                if left <= right {
                    seg = seg.sack(left..right);
                }
            }
            if rng.below(10) != 0 && scaled {
                seg = seg.timestamps(if rng.below(10) == 0 { rng.next_u32() } else { 1 }, rng.next_u32());
            }
            t.recv(seg);
            if rng.below(3) == 0 {
                t.write(rng.below(5000));
                t.conn.handle_read_head(t.now, u64::from(rng.next_u32()));
                t.conn.handle_mtu(t.now, rng.next_u32() as u16, t.conn.snd.seq(t.conn.snd.una));
            }
            for _ in 0..rng.below(200) {
                if t.conn.poll_transmit(t.now, rng.below(100_000)).is_none() {
                    break;
                }
                t.conn.check_invariants();
            }
            if rng.below(3) == 0 {
                t.advance(ms(u64::from(rng.below(2000))));
            }
        }
    }
}

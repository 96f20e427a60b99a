use atoll_wire::tcp::{Flags, Segment};

use super::*;
use crate::state::State;
use crate::testing::{Tcb, bare, fin, ms};

fn record() -> (TimeWait, Segment, Tcb) {
    let mut t = Tcb::in_state(State::TimeWait);
    t.poll();
    let record = t.conn.time_wait().expect("the state is TIME-WAIT");
    let next = Segment { seq: record.rcv_nxt, ack: record.snd_nxt, flags: Flags::ACK, ..Segment::default() };
    (record, next, t)
}

#[test]
fn a_repeated_fin_is_acknowledged_and_prolongs_the_wait() {
    // covers: RFC 9293 §3.10.7.4 eighth, TIME-WAIT
    let (mut record, next, t) = record();
    let before = record.deadline();
    let repeated = Segment { seq: next.seq.minus(1), flags: Flags::ACK | Flags::FIN, ..next };
    let answer = record.handle_segment(t.now + ms(1000), &repeated);
    assert!(matches!(answer, TimeWaitAnswer::Ack(ack) if ack.ack == next.seq && ack.seq == next.ack));
    assert_eq!(record.deadline(), before + ms(1000));
}

#[test]
fn segments_in_time_wait_are_judged_one_by_one() {
    let (record, next, t) = record();
    let later = next.seq.plus(1);
    let syn = Segment { flags: Flags::SYN, ..next };
    let cases = [
        ("an ordinary ACK", next, "drop"),
        ("text", Segment { len: 5, ..next }, "ack"),
        ("an ACK outside the window", Segment { seq: next.seq.minus(5), ..next }, "ack"),
        ("a RST at the edge", Segment { flags: Flags::RST, ..next }, "delete"),
        ("a RST within the window", Segment { flags: Flags::RST, seq: later, ..next }, "drop"),
        ("a SYN above the old sequence numbers", Segment { seq: later, ..syn }, "reuse"),
        ("a SYN within them", Segment { seq: next.seq.minus(10), ..syn }, "ack"),
    ];
    for (name, segment, expected) in cases {
        let mut record = record;
        let answer = match record.handle_segment(t.now, &segment) {
            TimeWaitAnswer::Ack(_) => "ack",
            TimeWaitAnswer::Reuse { iss_above } => {
                assert_eq!(iss_above, next.ack);
                "reuse"
            }
            TimeWaitAnswer::Drop => "drop",
            TimeWaitAnswer::Delete => "delete",
        };
        assert_eq!(answer, expected, "{name}");
    }
}

#[test]
fn two_confused_peers_do_not_answer_each_other_forever() {
    let (mut record, next, t) = record();
    let stray = Segment { seq: next.seq.minus(5), ..next };
    assert!(matches!(record.handle_segment(t.now, &stray), TimeWaitAnswer::Ack(_)));
    assert_eq!(record.handle_segment(t.now + ms(10), &stray), TimeWaitAnswer::Drop);
    assert!(matches!(record.handle_segment(t.now + ms(600), &stray), TimeWaitAnswer::Ack(_)));
}

#[test]
fn time_wait_ends_after_a_minute() {
    let mut t = Tcb::in_state(State::FinWait2);
    t.takes(fin(1));
    t.expect([bare()]);
    let (wait, events) = t.advance_to_timer();
    assert_eq!((wait, events), (TIME_WAIT, crate::Events::CLOSED));
}

#[test]
fn timestamps_decide_which_syn_is_new() {
    // covers: RFC 6191 §2
    let timestamps =
        |value| Options { timestamps: Some(Timestamps { value, echo: 0 }), ..Options::default() };
    let (plain, next, t) = record();
    let stamped = TimeWait { timestamps: true, ts_recent: 1000, ..plain };
    let (newer, older) = (next.seq.plus(100), next.seq.minus(100));
    let syn = |seq, options| Segment { seq, flags: Flags::SYN, options, ..Segment::default() };
    let none = Options::default();
    let cases = [
        ("stamped, a later stamp", stamped, syn(older, timestamps(1001)), true),
        ("stamped, the same stamp, a later number", stamped, syn(newer, timestamps(1000)), true),
        ("stamped, the same stamp, an earlier number", stamped, syn(older, timestamps(1000)), false),
        ("stamped, an earlier stamp", stamped, syn(newer, timestamps(999)), false),
        ("stamped, no stamp, a later number", stamped, syn(newer, none), true),
        ("stamped, no stamp, an earlier number", stamped, syn(older, none), false),
        ("plain, a stamp", plain, syn(older, timestamps(5)), true),
        ("plain, no stamp, a later number", plain, syn(newer, none), true),
        ("plain, no stamp, an earlier number", plain, syn(older, none), false),
    ];
    for (name, mut record, segment, is_new) in cases {
        let answer = record.handle_segment(t.now, &segment);
        assert_eq!(matches!(answer, TimeWaitAnswer::Reuse { .. }), is_new, "{name}");
    }
    assert_eq!((stamped.reusable(), plain.reusable()), (Some(next.ack), None));
}

#[test]
fn late_segments_do_not_end_the_wait() {
    // covers: RFC 1337 §2, hazards of old duplicates
    let (mut record, next, t) = record();
    let before = record.deadline();
    let late = [
        Segment { flags: Flags::RST, seq: next.seq.minus(1), ..next },
        Segment { flags: Flags::RST | Flags::ACK, seq: next.seq.minus(500), ..next },
        Segment { seq: next.seq.minus(500), len: 499, ..next },
        Segment { ack: next.ack.minus(500), ..next },
        Segment { flags: Flags::SYN, seq: next.seq.minus(500), ..next },
    ];
    for segment in late {
        let answer = record.handle_segment(t.now, &segment);
        assert!(!matches!(answer, TimeWaitAnswer::Delete | TimeWaitAnswer::Reuse { .. }), "{segment:?}");
    }
    assert_eq!(record.deadline(), before);
}

use std::vec::Vec;

use atoll_wire::tcp::Flags;

use crate::outcome::{Events, Reason};
use crate::settings::Settings;
use crate::testing::{MSS, Tcb, ack, bare, data, fin, ms, settings, syn_ack};

/// Writes `octets` octets, the last of which is urgent.
fn write_urgent(t: &mut Tcb, octets: u32) {
    t.write(octets);
    t.conn.handle_urgent(t.conn.send_tail());
}

/// Returns where the segments that are sent now begin, and their urgent pointers.
fn pointers(t: &mut Tcb) -> Vec<(u64, Option<u16>)> {
    let sent = t.poll_up_to(64_000);
    sent.iter()
        .map(|sent| (sent.offset, sent.segment.has(Flags::URG).then_some(sent.segment.urgent)))
        .collect()
}

// --- sending
// -----------------------------------------------------------------------------------------------------------

#[test]
fn the_pointer_shows_the_octet_after_the_urgent_ones() {
    // covers: RFC 9293 §3.8.5, MUST-30, MUST-62
    let mut t = Tcb::established();
    t.write(10);
    assert_eq!(pointers(&mut t), [(0, None)]);
    write_urgent(&mut t, 5);
    assert_eq!(pointers(&mut t), [(10, Some(5))]);
    t.write(7);
    assert_eq!(pointers(&mut t), [(15, None)]);
}

#[test]
fn every_segment_before_the_end_points_to_it_and_is_not_cut_by_the_device() {
    let mut t = Tcb::established();
    write_urgent(&mut t, 3 * MSS + 1);
    let expected = [(0, Some(3001)), (1000, Some(2001)), (2000, Some(1001)), (3000, Some(1))];
    assert_eq!(pointers(&mut t), expected);
    t.takes(ack(3002));
    t.write(3 * MSS);
    // Nothing is urgent any more.
    assert_eq!(pointers(&mut t), [(3001, None)]);
}

#[test]
fn a_pointer_that_does_not_reach_says_that_there_is_more() {
    // covers: RFC 9293 §3.8.5, MUST-31
    let mut t = Tcb::established();
    write_urgent(&mut t, 100_000);
    let sent = pointers(&mut t);
    assert!(sent.len() == 10 && sent.iter().all(|(_, pointer)| *pointer == Some(u16::MAX)), "{sent:?}");
    t.takes(ack(10_001).window(60_000));
    let sent = pointers(&mut t);
    assert!(!sent.is_empty() && sent.iter().all(|(_, pointer)| pointer.is_some()), "{sent:?}");
}

#[test]
fn what_is_sent_again_points_to_the_same_place() {
    let mut t = Tcb::established();
    write_urgent(&mut t, 20);
    t.poll();
    t.write(30);
    t.poll();
    t.advance_to_timer();
    t.poll();
    t.advance_to_timer();
    assert_eq!(pointers(&mut t), [(0, Some(20))]);
}

#[test]
fn urgent_text_waits_for_nothing_small() {
    let mut t = Tcb::established_by(syn_ack(1), &Settings { nodelay: false, cork: true, ..settings() });
    t.write(10);
    assert_eq!(pointers(&mut t), []);
    write_urgent(&mut t, 1);
    assert_eq!(pointers(&mut t), [(0, Some(11))]);
    write_urgent(&mut t, 1);
    assert_eq!(pointers(&mut t), [(11, Some(1))]);
}

#[test]
fn a_probe_of_a_closed_window_brings_the_pointer() {
    // RFC 9293 §3.8.5: urgency is reported although the window is closed.
    let mut t = Tcb::established();
    t.takes(bare().window(0));
    write_urgent(&mut t, 5);
    t.expect_silence();
    t.advance_to_timer();
    let sent = t.poll();
    let last = sent.last().expect("a probe and an ACK").segment;
    assert_eq!((last.seq, last.len, last.urgent), (t.conn.snd.seq(0), 0, 5));
    assert!(last.has(Flags::URG));
}

#[test]
fn nonsense_of_the_application_is_passed_over() {
    let mut t = Tcb::established();
    for end in [0, 1, u64::MAX, 1 << 62] {
        t.conn.handle_urgent(end);
    }
    t.write(3);
    t.conn.handle_urgent(4);
    assert_eq!(pointers(&mut t), [(0, None)]);
    t.takes(ack(4));
    t.conn.handle_urgent(3);
    assert!(t.conn.urgent_end().is_none());
}

// --- receiving
// -----------------------------------------------------------------------------------------------------------

#[test]
fn a_new_pointer_is_told_once() {
    // covers: RFC 9293 §3.8.5, MUST-32
    let mut t = Tcb::established();
    assert_eq!(t.takes(data(1..11).urgent(10)), Events::URGENT | Events::READABLE);
    assert_eq!(t.conn.receive_mark(), Some(9));
    // These pointers show text that was there already, and the same octet again.
    assert_eq!(t.takes(data(1..21).urgent(5)), Events::READABLE);
    assert_eq!(t.takes(data(21..31).urgent(20)), Events::URGENT | Events::READABLE);
    assert_eq!(t.takes(data(31..41).urgent(10)), Events::READABLE);
    assert_eq!(t.conn.receive_mark(), Some(39));
}

#[test]
fn the_pointer_comes_before_the_text() {
    let mut t = Tcb::established();
    assert_eq!(t.takes(bare().urgent(500)), Events::URGENT);
    assert_eq!(t.conn.receive_mark(), Some(499));
    // The mark does not go back.
    assert_eq!(t.takes(bare().urgent(400)), Events::empty());
    assert_eq!(t.takes(data(1..501).urgent(500)), Events::READABLE);
    // The offset is as large as a pointer may be, beyond the window.
    assert_eq!(t.takes(bare().urgent(u16::MAX)), Events::URGENT);
    assert_eq!(t.conn.receive_mark(), Some(500 + 65534));
}

#[test]
fn text_out_of_order_brings_its_pointer() {
    let mut t = Tcb::established();
    assert_eq!(t.takes(data(101..201).urgent(50)), Events::URGENT);
    assert_eq!(t.conn.receive_mark(), Some(149));
    assert_eq!(t.takes(data(1..101).urgent(150)), Events::READABLE);
}

#[test]
fn strangers_and_the_dead_have_no_pointers() {
    let mut t = Tcb::established();
    t.drops(data(60_000..60_010).urgent(3), Reason::OutsideWindow);
    t.takes(fin(1));
    assert_eq!(t.takes(bare().urgent(7)), Events::empty());
    assert_eq!(t.conn.receive_mark(), None);
    t.advance(ms(1));
}

#[test]
fn marks_that_the_reader_stands_at_are_passed_when_they_move() {
    let mut t = Tcb::established();
    t.takes(data(1..2).urgent(1));
    for n in 1..4u32 {
        t.conn.note_reader(0);
        t.takes(data(1 + n..2 + n).urgent(1));
        assert_eq!(t.conn.passed_marks(), Some((0, n as u8)));
    }
    // The reader stands at the mark at 3 now, and then beyond it.
    t.conn.note_reader(3);
    t.takes(data(5..8).urgent(3));
    assert_eq!(t.conn.passed_marks(), Some((3, 1)));
    t.conn.note_reader(5);
    t.takes(data(8..9).urgent(1));
    assert_eq!((t.conn.passed_marks(), t.conn.receive_mark()), (None, Some(7)));
}

#[test]
fn a_mark_without_its_octet_is_not_passed() {
    let mut t = Tcb::established();
    t.takes(bare().urgent(1));
    t.conn.note_reader(0);
    t.takes(bare().urgent(2));
    assert_eq!(t.conn.passed_marks(), None);
}

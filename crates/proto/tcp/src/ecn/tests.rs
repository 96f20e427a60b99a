use super::*;
use crate::outcome::Reason;
use crate::settings::Settings;
use crate::testing::{MSS, Tcb, ack, data, ms, settings, syn, syn_ack};

fn asking() -> Settings {
    Settings { ecn: EcnMode::Request, ..settings() }
}

fn agreed() -> Tcb {
    Tcb::established_by(syn_ack(1).with(Flags::ECE), &asking())
}

#[test]
fn who_asks_and_is_answered_marks_new_text() {
    // covers: RFC 3168 §6.1.1, §6.1.4, §6.1.5
    let mut t = Tcb::connecting(&asking());
    assert!(t.poll()[0].segment.has(Flags::SYN | Flags::ECE | Flags::CWR));
    let mut t = agreed().sent(2 * MSS);
    assert!(t.conn.info(t.now).ecn);
    t.advance_to_timer();
    let probe = t.poll();
    assert!(probe[0].retransmit && probe[0].segment.ecn == Ecn::NotEct);
    t.takes(ack(2001));
    t.write(MSS);
    assert_eq!(t.poll()[0].segment.ecn, Ecn::Ect0);
}

#[test]
fn it_takes_two() {
    // covers: RFC 3168 §6.1.1
    for answer in [syn_ack(1), syn_ack(1).with(Flags::ECE | Flags::CWR)] {
        let mut t = Tcb::established_by(answer, &asking());
        t.write(MSS);
        assert_eq!(t.poll()[0].segment.ecn, Ecn::NotEct);
    }
    let asks = syn().with(Flags::ECE | Flags::CWR);
    for (seg, mode, answers) in
        [(asks, EcnMode::Accept, true), (asks, EcnMode::Off, false), (syn(), EcnMode::Request, false)]
    {
        let mut t = Tcb::accepting(seg, &Settings { ecn: mode, ..settings() });
        let answer = t.poll()[0].segment;
        assert_eq!(answer.flags.difference(Flags::ACK | Flags::SYN) == Flags::ECE, answers);
    }
}

#[test]
fn a_syn_that_is_sent_again_does_not_ask() {
    // covers: RFC 3168 §6.1.1.1
    let mut t = Tcb::connecting(&asking());
    t.poll();
    t.advance_to_timer();
    assert_eq!(t.poll()[0].segment.flags, Flags::SYN);
}

#[test]
fn after_a_syn_that_does_not_ask_any_more_text_is_not_marked() {
    // covers: RFC 3168 §6.1.1: who has received a SYN that does not ask sends no ECT.
    // RFC 9768 §3.1.5: the kind that was agreed upon stays.
    for (asks, answer) in [(0b011, 0b001), (0b111, 0b010)] {
        let mut t = Tcb::accepting(syn().with(with_ace(asks)), &settings());
        t.poll();
        t.recv(syn());
        assert_eq!(count(&t.poll()[0].segment), answer);
        t.takes(ack(1).with(with_ace(asks & 0b010)));
        t.write(MSS);
        assert_eq!(t.poll()[0].segment.ecn, Ecn::NotEct);
        t.takes(data(1..1001).marked());
        assert_ne!(count(&t.poll()[0].segment), 0);
    }
    // A repeated SYN that asks again changes nothing, and neither does one that begins to ask.
    for (first, answered) in [(Flags::ECE | Flags::CWR, true), (Flags::empty(), false)] {
        let mut t = Tcb::accepting(syn().with(first), &settings());
        t.poll();
        t.recv(syn().with(Flags::ECE | Flags::CWR));
        assert_eq!(t.poll()[0].segment.has(Flags::ECE), answered);
    }
}

#[test]
fn a_mark_is_echoed_until_the_peer_has_reduced_its_window() {
    // covers: RFC 3168 §6.1.3
    let mut t = agreed();
    t.takes(data(1..1001).marked());
    assert!(t.poll()[0].segment.has(Flags::ECE));
    t.takes(data(1001..2001));
    t.advance(ms(50));
    assert!(t.poll()[0].segment.has(Flags::ECE));
    t.takes(data(2001..3001).with(Flags::CWR));
    t.advance(ms(50));
    assert!(!t.poll()[0].segment.has(Flags::ECE));
}

#[test]
fn a_mark_with_cwr_is_a_new_one() {
    // covers: RFC 3168 §6.1.3
    let mut t = agreed();
    t.takes(data(1..1001).marked());
    assert!(t.poll()[0].segment.has(Flags::ECE));
    t.takes(data(1001..2001).with(Flags::CWR).marked());
    t.advance(ms(50));
    assert!(t.poll()[0].segment.has(Flags::ECE));
}

#[test]
fn a_mark_outside_the_window_is_passed_over() {
    // covers: RFC 3168 §6.1.5
    let mut t = agreed();
    t.drops(data(1_000_000..1_000_010).marked(), Reason::OutsideWindow);
    assert!(!t.conn.ecn.echo().contains(Flags::ECE));
}

#[test]
fn a_probe_of_a_closed_window_is_not_marked() {
    // covers: RFC 3168 §6.1.6
    let mut t = agreed();
    t.takes(ack(1).window(0));
    t.write(MSS);
    t.poll();
    t.advance_to_timer();
    let probe = t.poll();
    assert_eq!(probe.iter().map(|probe| probe.segment.ecn).collect::<std::vec::Vec<_>>(), [Ecn::NotEct]);
}

#[test]
fn the_last_syn_is_the_one_that_is_told_of() {
    // covers: RFC 9768 §3.1.5
    let mut t = Tcb::accepting(syn().with(with_ace(0b111)), &settings());
    assert_eq!(count(&t.poll()[0].segment), 0b010);
    t.recv(syn().with(with_ace(0b111)).marked());
    assert_eq!(count(&t.poll()[0].segment), CODE_CE);
}

#[test]
fn an_echo_halves_the_window_once_and_the_next_segment_says_so() {
    // covers: RFC 3168 §6.1.2
    let mut t = agreed().sent(10 * MSS);
    t.takes(ack(1001).with(Flags::ECE));
    assert!(t.conn.congestion.cwnd < 7100);
    t.takes(ack(2001).with(Flags::ECE));
    assert!((7000..7200).contains(&t.conn.congestion.cwnd));
    t.write(10 * MSS);
    t.takes(ack(5001));
    let sent = t.poll_up_to(64 << 10);
    assert!(sent[0].segment.has(Flags::CWR) && sent[0].segment.len == MSS, "{sent:#?}");
    assert!(sent[1..].iter().all(|transmit| !transmit.segment.has(Flags::CWR)));
}

fn asking_accurate() -> Settings {
    Settings { ecn: EcnMode::RequestAccurate, ..settings() }
}

fn count(segment: &Segment) -> u8 {
    ace(segment.flags)
}

#[test]
fn the_accurate_kind_falls_back_to_what_the_peer_knows() {
    // covers: RFC 9768 §3.1.2
    for (answer, kind) in [
        (Flags::empty(), Kind::None),
        (Flags::ECE, Kind::Classic),
        (Flags::CWR, Kind::Accurate),
        (Flags::AE | Flags::CWR, Kind::Accurate),
        // RFC 9768 §3.1.3.
        (Flags::AE | Flags::ECE, Kind::Accurate),
        (Flags::AE | Flags::CWR | Flags::ECE, Kind::None),
    ] {
        let mut t = Tcb::connecting(&asking_accurate());
        assert_eq!(count(&t.poll()[0].segment), 0b111);
        t.takes(syn_ack(1).with(answer));
        assert_eq!(t.conn.ecn.kind, kind);
    }
}

#[test]
fn marks_are_counted_and_told_modulo_eight() {
    // covers: RFC 9768 §3.2.2
    let mut t = Tcb::connecting(&asking_accurate());
    t.poll();
    t.takes(syn_ack(1).with(Flags::CWR).marked());
    // The first ACK says how the SYN-ACK came; the following ones have the count.
    assert_eq!(count(&t.poll()[0].segment), CODE_CE);
    t.conn.rcv.quick = 0;
    for n in 0..10u8 {
        let from = u32::from(n) * MSS + 1;
        t.takes(data(from..from + MSS).marked());
        assert_eq!(count(&t.poll()[0].segment), (6 + n + 1) & 7);
    }
}

#[test]
fn what_the_peer_has_counted_reduces_the_window() {
    // covers: RFC 9768 §3.2.2.5
    let asks = syn().with(Flags::AE | Flags::ECE | Flags::CWR);
    let mut t = Tcb::accepting(asks, &settings());
    assert_eq!(count(&t.poll()[0].segment), 0b010);
    t.takes(ack(1).with(with_ace(0b010)));
    t.write(10 * MSS);
    assert!(t.poll().iter().all(|transmit| transmit.segment.ecn == Ecn::Ect0));
    t.takes(ack(1001).with(with_ace(5)));
    assert!(t.conn.congestion.cwnd >= 10_000);
    t.takes(ack(2001).with(with_ace(6)));
    assert!(t.conn.congestion.cwnd < 8_000);
    // This count comes once more, and an ACK that was overtaken has an older one.
    t.takes(ack(3001).with(with_ace(6)));
    t.takes(ack(3001).with(with_ace(5)));
    assert!((7_000..8_500).contains(&t.conn.congestion.cwnd));
    assert_eq!(t.conn.ecn.told, 6);
}

#[test]
fn a_server_takes_every_other_combination_for_the_accurate_kind() {
    // covers: RFC 9768 §3.1.3: so that a later standard can use them.
    for code in 0..8 {
        let kind = match code {
            0b000 => Kind::None,
            0b011 => Kind::Classic,
            _ => Kind::Accurate,
        };
        let t = Tcb::accepting(syn().with(with_ace(code)), &settings());
        assert_eq!(t.conn.ecn.kind, kind, "{code:03b}");
    }
}

#[test]
fn how_the_syn_ack_came_is_told_by_an_ack_alone() {
    // covers: RFC 9768 §3.2.2.1: on everything else the bits count.
    let mut t = Tcb::connecting(&asking_accurate());
    t.poll();
    t.write(MSS);
    t.takes(syn_ack(1).with(Flags::CWR));
    let sent = t.poll();
    assert_eq!(sent.iter().map(|transmit| transmit.segment.len).collect::<std::vec::Vec<_>>(), [0, MSS]);
    assert_eq!((count(&sent[0].segment), count(&sent[1].segment)), (0b010, COUNT_START));
    // The server reads it so: a mark on the SYN-ACK is counted then, and not once more by the next segment.
    for (first, told) in [(ack(1).with(with_ace(CODE_CE)), 6), (data(1..11).ack(1).with(with_ace(6)), 6)] {
        let mut t = Tcb::accepting(syn().with(with_ace(0b111)), &settings());
        t.poll();
        t.takes(first);
        assert_eq!(t.conn.ecn.told, told);
    }
}

#[test]
fn bits_that_are_cleared_on_the_way_end_it() {
    // covers: RFC 9768 §3.2.2.4
    let asks = syn().with(Flags::AE | Flags::ECE | Flags::CWR);
    let mut t = Tcb::accepting(asks, &settings());
    t.poll();
    t.takes(ack(1));
    t.write(2 * MSS);
    assert!(t.poll().iter().all(|transmit| transmit.segment.ecn == Ecn::NotEct));
    // The marks that the peer reports mean nothing, but marks of the peer's text are reported.
    t.takes(ack(1001).with(with_ace(3)));
    assert!(t.conn.congestion.cwnd >= 10_000);
    t.takes(data(1..1001).marked());
    assert_eq!(count(&t.poll()[0].segment), COUNT_START + 1);
}

#[test]
fn the_accurate_kind_is_asked_for_twice() {
    // covers: RFC 9768 §3.1.4.1, §3.1.5
    let mut t = Tcb::connecting(&asking_accurate());
    let mut asked = std::vec::Vec::new();
    for _ in 0..3 {
        asked.push(count(&t.poll()[0].segment));
        t.advance_to_timer();
    }
    assert_eq!(asked, [0b111, 0b111, 0]);
    // An answer of the accurate kind still counts; for the classic kind, a SYN that did not ask is one too
    // many.
    for (code, marks) in [(0b010, true), (0b001, false)] {
        let mut t = Tcb::connecting(&asking_accurate());
        for _ in 0..3 {
            t.poll();
            t.advance_to_timer();
        }
        t.takes(syn_ack(1).with(with_ace(code)));
        t.write(MSS);
        let sent = t.poll();
        assert_eq!(sent.last().map(|last| last.segment.ecn == Ecn::Ect0), Some(marks), "{code:03b}");
    }
}

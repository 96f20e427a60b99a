use super::*;
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
        assert_eq!(answer.flags.without(Flags::ACK | Flags::SYN) == Flags::ECE, answers);
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

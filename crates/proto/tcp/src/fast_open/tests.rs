use atoll_base::{Duration, Endpoint};
use atoll_wire::tcp::{Flags, Options};
use std::vec::Vec;

use super::*;
use crate::outcome::{Events, Reason};
use crate::testing::{MSS, Seg, Tcb, ack, bare, data, fin, ms, settings, syn, syn_ack};

const KEY: [u8; 16] = [5; 16];
const TUPLE: FourTuple = FourTuple { local: Endpoint::new(1, 80), remote: Endpoint::new(2, 4000) };

fn cookie() -> FastOpen {
    FastOpen::cookie(&[1, 2, 3, 4, 5, 6, 7, 8]).expect("a cookie")
}

// --- the client
// -----------------------------------------------------------------------------------------------------------

/// Returns a client with a cookie that has written `octets`.
fn client(octets: u32) -> Tcb {
    let mut t = Tcb::connecting(&settings());
    t.conn.open_fast(cookie(), MSS as u16);
    t.conn.handle_urgent(0);
    t.expect_silence();
    assert!(t.conn.waits_for_text() && t.conn.next_timeout().is_none());
    t.write(octets);
    t
}

fn syn_with(len: u32) -> Seg {
    data(0..len).only(Flags::SYN)
}

#[test]
fn the_syn_waits_for_text_and_takes_it_along() {
    // covers: RFC 7413 §4.2.1
    let mut t = client(500);
    let sent = t.expect([syn_with(500)]);
    assert_eq!((sent[0].offset, t.conn.fast_open_option(sent[0].retransmit)), (0, Some(cookie())));
    assert_eq!(t.takes(syn_ack(501)), Events::ESTABLISHED | Events::ACKED);
    t.expect([ack(1).ack(1)]);
    assert_eq!(t.conn.send_una(), 500);
    assert!(t.conn.info(t.now).syn_text);
    t.write(10);
    t.expect([data(501..511)]);
}

#[test]
fn as_much_text_as_a_segment_holds_beside_the_options_goes_along() {
    let mut t = client(3 * MSS);
    t.expect([syn_with(MSS - 40)]);
    t.takes(syn_ack(MSS - 39));
    t.expect([data(961..1961), data(1961..2961), data(2961..3001)]);
}

#[test]
fn text_that_the_server_did_not_take_is_sent_at_once() {
    for taken in [0, 200] {
        let mut t = client(500);
        t.poll();
        let before = t.conn.congestion.cwnd;
        t.takes(syn_ack(1 + taken));
        t.expect([data(1 + taken..501)]);
        assert!(t.conn.congestion.cwnd >= before, "nothing was lost");
        t.takes(ack(501));
        assert_eq!((t.conn.send_una(), t.conn.info(t.now).syn_text), (500, taken > 0));
    }
}

#[test]
fn a_syn_that_is_sent_again_has_neither_text_nor_cookie() {
    // covers: RFC 7413 §4.2.1, §4.1.3.1
    let mut t = client(500);
    t.poll();
    t.advance_to_timer();
    let sent = t.expect([syn_with(0).retransmit()]);
    assert_eq!(t.conn.fast_open_option(sent[0].retransmit), None);
    // The first SYN may have arrived nevertheless.
    assert_eq!(t.takes(syn_ack(501)), Events::ESTABLISHED | Events::ACKED);
}

#[test]
fn a_request_does_not_wait_and_takes_no_text() {
    let mut t = Tcb::connecting(&settings());
    t.conn.open_fast(FastOpen::REQUEST, 0);
    t.write(100);
    let sent = t.expect([syn_with(0)]);
    assert_eq!(t.conn.fast_open_option(sent[0].retransmit), Some(FastOpen::REQUEST));
    t.takes(syn_ack(1));
    t.expect([data(1..101)]);
}

#[test]
fn an_acknowledgement_beyond_the_text_of_the_syn_is_refused() {
    let mut t = client(100);
    t.poll();
    assert_eq!(t.recv(syn_ack(102)).events, Events::ANSWER_RESET);
    assert_eq!(t.conn.state(), State::SynSent);
}

#[test]
fn a_client_that_closes_without_text_is_forgotten() {
    let mut t = Tcb::connecting(&settings());
    t.conn.open_fast(cookie(), MSS as u16);
    t.conn.close(t.now);
    assert_eq!((t.conn.state(), t.poll().len()), (State::Closed, 0));
}

// --- the server
// -----------------------------------------------------------------------------------------------------------

/// Returns a server that has taken `len` octets of a SYN's text.
fn server(len: u32) -> Tcb {
    let t = Tcb::accepting(syn(), &settings());
    let (now, at) = (t.now, t.conn.rcv.start.plus(u32::MAX));
    let options = Options { mss: Some(MSS as u16), sack_permitted: true, ..Options::default() };
    let syn = Segment { seq: at, flags: Flags::SYN, window: 60_000, options, len, ..Segment::default() };
    let iss = t.conn.snd.seq(-1);
    let path = Path { mss: MSS as u16 };
    Tcb::of(Connection::accept_fast(now, &syn, iss, 77, path, &settings(), len, None), now)
}

#[test]
fn the_text_of_the_syn_is_acknowledged_and_answered_before_the_handshake_is_over() {
    // covers: RFC 7413 §4.2.2
    let mut t = server(300);
    assert_eq!((t.conn.receive_nxt(), t.conn.is_open_early()), (300, true));
    t.expect([syn_ack(301).seq(0)]);
    t.write(2 * MSS);
    t.expect([data(1..1001).ack(301), data(1001..2001).ack(301)]);
    t.advance(ms(50));
    assert_eq!(t.takes(ack(2001)), Events::ESTABLISHED | Events::ACKED);
    assert_eq!((t.conn.send_una(), t.conn.next_timeout()), (2000, None));
    assert_eq!(t.takes(data(301..311)), Events::READABLE);
}

#[test]
fn only_the_syn_ack_is_repeated_before_the_handshake_is_over() {
    let mut t = server(300);
    t.poll();
    t.advance(ms(5));
    t.write(100);
    t.poll();
    t.advance_to_timer();
    t.expect([syn_ack(301).seq(0).retransmit()]);
    t.advance(ms(50));
    t.takes(ack(1));
    t.advance_to_timer();
    t.expect([data(1..101).retransmit()]);
}

#[test]
fn a_syn_that_comes_again_does_not_bring_its_text_again() {
    let mut t = server(300);
    t.poll();
    t.drops(syn_with(300), Reason::UnexpectedSyn);
    t.expect([syn_ack(301).seq(0).retransmit()]);
    assert_eq!(t.conn.receive_nxt(), 300);
}

#[test]
fn an_application_may_close_before_the_handshake_is_over() {
    let mut t = server(300);
    t.poll();
    t.write(10);
    t.conn.shutdown_send(t.now);
    t.expect([data(1..11).fin()]);
    assert_eq!(t.takes(ack(12)), Events::ESTABLISHED | Events::ACKED);
    assert_eq!(t.conn.state(), State::FinWait2);
    assert!(t.takes(fin(301)).contains(Events::TIME_WAIT));
}

#[test]
fn no_more_text_is_taken_than_there_is_window_for() {
    let mut t = server(60_000);
    assert_eq!(t.conn.receive_nxt(), 50_000);
    t.expect([syn_ack(50_001).seq(0)]);
    t.conn.check_invariants();
    assert_eq!(t.takes(bare().seq(50_001).ack(1)), Events::ESTABLISHED);
}

// --- cookies
// -----------------------------------------------------------------------------------------------------------

#[test]
fn a_cookie_is_good_for_one_address_and_two_periods() {
    // covers: RFC 7413 §4.1.2
    let at = |hours: u64| Instant::from_millis(1000) + Duration::from_secs(hours * 3600);
    let cookie = fast_open_cookie(&KEY, &TUPLE, at(0));
    let check = |tuple: &FourTuple, hours| check_fast_open(&KEY, tuple, &cookie, at(hours));
    assert_eq!(check(&TUPLE, 0), CookieVerdict::Good { newer: None });
    let newer = fast_open_cookie(&KEY, &TUPLE, at(13));
    assert_eq!(check(&TUPLE, 13), CookieVerdict::Good { newer: Some(newer) });
    let newest = fast_open_cookie(&KEY, &TUPLE, at(25));
    assert_eq!(check(&TUPLE, 25), CookieVerdict::Bad { newest });
    // Ports do not matter, addresses and keys do.
    let other_port = FourTuple { remote: Endpoint::new(2, 9), ..TUPLE };
    assert_eq!(check(&other_port, 0), CookieVerdict::Good { newer: None });
    for other in [
        FourTuple { remote: Endpoint::new(3, 4000), ..TUPLE },
        FourTuple { local: Endpoint::new(3, 80), ..TUPLE },
    ] {
        assert!(matches!(check(&other, 0), CookieVerdict::Bad { .. }));
    }
    assert!(matches!(check_fast_open(&[6; 16], &TUPLE, &cookie, at(0)), CookieVerdict::Bad { .. }));
    let request = check_fast_open(&KEY, &TUPLE, &FastOpen::REQUEST, at(0));
    assert_eq!(request, CookieVerdict::Bad { newest: cookie });
    let guesses: Vec<FastOpen> = (0..200u64).filter_map(|n| FastOpen::cookie(&n.to_be_bytes())).collect();
    assert!(
        guesses
            .iter()
            .all(|guess| matches!(check_fast_open(&KEY, &TUPLE, guess, at(0)), CookieVerdict::Bad { .. }))
    );
}

#[test]
fn a_syn_that_is_too_large_for_the_way_leaves_again_without_text() {
    let mut t = client(500);
    t.poll();
    t.conn.handle_mtu(t.now, 400, t.conn.snd.seq(-1));
    t.expect([syn_with(0).retransmit()]);
}

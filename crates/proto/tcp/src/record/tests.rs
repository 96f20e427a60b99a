//! Tests that a successor continues where its predecessor was. Whole exchanges with crashes at any moment are
//! in the simulator (`testing/sim`).

use std::format;
use std::prelude::v1::*;

use atoll_base::{Instant, Rng, SeqNum};
use atoll_wire::tcp::{Flags, Options, Segment, Timestamps};

use super::*;
use crate::settings::Path;

const NOW: Instant = Instant::from_millis(1_000_000);

fn established() -> Connection {
    let path = Path { mss: 1000 };
    let syn = Segment { flags: Flags::SYN, seq: SeqNum(99), window: 5000, ..Segment::default() };
    let mut connection = Connection::accept(NOW, &syn, SeqNum(7), 3, path, &Settings::default());
    assert!(connection.poll_transmit(NOW, 1000).is_some());
    let flags = Flags::ACK;
    let ack = Segment { flags, seq: SeqNum(100), ack: SeqNum(8), window: 5000, ..Segment::default() };
    connection.handle_segment(NOW, &ack);
    assert_eq!(connection.state(), State::Established);
    connection
}

#[test]
fn a_successor_has_the_record_of_its_predecessor() {
    let mut connection = established();
    connection.handle_send_tail(NOW, 2500);
    while connection.poll_transmit(NOW, 1000).is_some() {}
    let record = connection.record();
    let mut next = Connection::resume(NOW, &record, 0).expect("it is consistent");
    next.check_invariants();
    assert_eq!(next.record(), record);
    assert_eq!(next.settings(), connection.settings());
    // What was in flight leaves again, from the first octet on.
    let first = next.poll_transmit(NOW, 1000).expect("something is in flight");
    assert_eq!((first.offset, first.segment.len, first.retransmit), (0, 536, true));
}

/// A successor only guesses when its predecessor sent a segment. As a sample of the round-trip time the guess
/// would raise the estimate with each death, until no connection makes progress (seed 10040 of the pairs).
#[test]
fn what_a_predecessor_has_sent_is_no_sample_of_the_round_trip() {
    let mut connection = established();
    connection.handle_send_tail(NOW, 2500);
    while connection.poll_transmit(NOW, 1000).is_some() {}
    let record = Record { srtt_us: 10_000, ..connection.record() };
    let mut next = Connection::resume(NOW, &record, 0).expect("it is consistent");
    let ack = |offset: u32| Segment { ack: SeqNum(8 + offset), ..text(0, 0) };
    let soon = NOW + Duration::from_millis(1);
    next.handle_segment(soon, &ack(2500));
    assert_eq!(next.record().srtt_us, 10_000);
    // What the successor sends itself gives a sample.
    next.handle_send_tail(soon, 3000);
    while next.poll_transmit(soon, 1000).is_some() {}
    next.handle_segment(soon + Duration::from_millis(18), &ack(3000));
    assert_eq!(next.record().srtt_us, 11_000);
}

#[test]
fn who_has_nothing_in_flight_says_nothing_unless_he_is_told_to() {
    let mut next = Connection::resume(NOW, &established().record(), 0).expect("it is consistent");
    assert!(next.poll_transmit(NOW, 1000).is_none());
    next.greet();
    let greeting = next.poll_transmit(NOW, 1000).expect("an acknowledgement");
    assert_eq!(
        (greeting.segment.seq, greeting.segment.ack, greeting.segment.len),
        (SeqNum(8), SeqNum(100), 0)
    );
}

/// A record has the timestamp of the moment at which it was written. If a successor echoed it, the peer would
/// measure a round trip of seconds, and its next retransmission time-out would take as long.
#[test]
fn who_has_heard_nothing_yet_echoes_nothing() {
    let stamp = |value| Some(Timestamps { value, echo: 0 });
    let syn = Segment { flags: Flags::SYN, seq: SeqNum(99), window: 5000, ..Segment::default() };
    let syn = Segment { options: Options { timestamps: stamp(1000), ..Options::default() }, ..syn };
    let mut connection =
        Connection::accept(NOW, &syn, SeqNum(7), 3, Path { mss: 1000 }, &Settings::default());
    let echo = |connection: &mut Connection| {
        connection
            .poll_transmit(NOW, 1000)
            .and_then(|sent| sent.segment.options.timestamps)
            .map(|stamps| stamps.echo)
    };
    // The SYN-ACK of a successor echoes the timestamp, which is that of the SYN.
    let mut next = Connection::resume(NOW, &connection.record(), 0).expect("it is consistent");
    assert_eq!((echo(&mut connection), echo(&mut next)), (Some(1000), Some(1000)));
    let ack = Segment { flags: Flags::ACK, seq: SeqNum(100), ack: SeqNum(8), ..syn };
    let at = |value| Segment { options: Options { timestamps: stamp(value), ..Options::default() }, ..ack };
    connection.handle_segment(NOW, &at(2000));
    let mut next = Connection::resume(NOW, &connection.record(), 0).expect("it is consistent");
    next.greet();
    assert_eq!(echo(&mut next), Some(0));
    next.handle_segment(NOW, &Segment { len: 5, ..at(9000) });
    next.greet();
    assert_eq!(echo(&mut next), Some(9000));
    // A segment that is older than the record is still rejected as old.
    let mut next = Connection::resume(NOW, &connection.record(), 0).expect("it is consistent");
    next.handle_segment(NOW, &Segment { len: 5, ..at(1999) });
    assert_eq!(next.receive_nxt(), 0);
}

/// The predecessor's SYN carried text, of which the peer has all, a part or nothing.
#[test]
fn an_answer_to_the_predecessors_syn_with_text_is_understood() {
    for taken in [0u32, 4, 10] {
        let mut client = Connection::connect(NOW, SeqNum(7), 3, Path { mss: 1000 }, &Settings::default());
        client.open_fast(atoll_wire::fast_open::FastOpen::cookie(&[1; 8]).expect("a cookie"), 1000);
        client.handle_send_tail(NOW, 10);
        let record = client.record();
        let syn = client.poll_transmit(NOW, 1000).expect("a SYN");
        assert_eq!((syn.segment.len, syn.segment.has(Flags::SYN)), (10, true));
        let mut next = Connection::resume(NOW, &record, 0).expect("it is consistent");
        next.check_invariants();
        let again = next.poll_transmit(NOW, 1000).expect("a SYN");
        assert_eq!((again.segment.seq, again.segment.len), (syn.segment.seq, 0));
        let ack = SeqNum(8).plus(taken);
        let answer = Segment {
            flags: Flags::SYN | Flags::ACK,
            seq: SeqNum(99),
            ack,
            window: 5000,
            ..Segment::default()
        };
        next.handle_segment(NOW, &answer);
        next.check_invariants();
        assert_eq!((next.state(), next.send_una()), (State::Established, u64::from(taken)));
        let first = next.poll_transmit(NOW, 1000).expect("an acknowledgement, or text");
        assert_eq!((first.segment.seq, first.segment.len), (ack, 10 - taken));
    }
}

/// Returns a segment of text from the peer.
fn text(offset: u32, len: u32) -> Segment {
    Segment {
        flags: Flags::ACK,
        seq: SeqNum(100 + offset),
        ack: SeqNum(8),
        window: 5000,
        len,
        ..Segment::default()
    }
}

#[test]
fn what_has_arrived_out_of_order_need_not_come_again() {
    let mut connection = established();
    for offset in [1000, 3000, 5000, 7000, 9000] {
        connection.handle_segment(NOW, &text(offset, 500));
    }
    let record = connection.record();
    assert_eq!(record.beyond, [(1000, 1500), (3000, 3500), (5000, 5500), (7000, 7500)]);
    let mut next = Connection::resume(NOW, &record, 0).expect("it is consistent");
    next.check_invariants();
    assert_eq!(next.record(), record);
    next.handle_segment(NOW, &text(0, 1000));
    assert_eq!(next.receive_nxt(), 1500);
    next.handle_segment(NOW, &text(1500, 1500));
    assert_eq!(next.receive_nxt(), 3500);

    // The progress says more than the rest of the record: text that it has reached is in order.
    let later = Record { received: 3000, ..record };
    let next = Connection::resume(NOW, &later, 0).expect("it is consistent");
    next.check_invariants();
    assert_eq!((next.receive_nxt(), next.record().beyond[0]), (3500, (5000, 5500)));

    // Text that no window has ever allowed is left out.
    let window = i64::from(record.settings.receive_capacity);
    let beyond = [(window - 500, window), (window + 1, window + 2), (i64::MAX - 1, i64::MAX), (5, -5)];
    let next = Connection::resume(NOW, &Record { beyond, ..record }, 0).expect("it is consistent");
    next.check_invariants();
    assert_eq!(next.record().beyond, [(window - 500, window), (0, 0), (0, 0), (0, 0)]);
}

#[test]
fn a_record_that_contradicts_itself_is_refused() {
    let good = established().record();
    assert!(Connection::resume(NOW, &good, 0).is_some());
    for bad in [
        Record { acked: -2, ..good },
        Record { acked: 1, ..good },
        Record { acked: -1, ..good },
        Record { received: -1, ..good },
        Record { received: i64::MAX, ..good },
        Record { edge: i64::MAX, ..good },
        Record { send_tail: 3 << 30, ..good },
        Record { receive_fin: Some(0), ..good },
        Record { state: State::CloseWait, ..good },
        Record { state: State::FinWait1, ..good },
        Record { send_fin: true, ..good },
        Record { state: State::SynSent, ..good },
        Record { snd_scale: 15, ..good },
        Record { mss_path: 0, ..good },
    ] {
        assert!(Connection::resume(NOW, &bad, 0).is_none(), "{bad:?}");
    }
}

#[test]
fn no_record_makes_a_successor_panic() {
    let mut rng = Rng::new(5);
    let good = established().record();
    let mut resumed = 0;
    for _ in 0..20_000 {
        let mut offset = || match rng.below(4) {
            0 => i64::from(rng.below(5)) - 1,
            1 => i64::from(rng.next_u32()),
            2 => 0,
            _ => rng.next_u64() as i64,
        };
        let (acked, received, edge, send_tail, fin) = (offset(), offset(), offset(), offset(), offset());
        let state = [
            State::Established,
            State::CloseWait,
            State::LastAck,
            State::TimeWait,
            State::SynSent,
            State::Closing,
        ];
        let record = Record {
            state: state[rng.below(6) as usize],
            acked,
            received,
            edge,
            send_tail,
            send_fin: rng.below(2) == 0,
            receive_fin: (rng.below(2) == 0).then_some(if rng.below(2) == 0 { received } else { fin }),
            ecn: rng.next_u32() as u8,
            mss_path: rng.next_u32() as u16,
            mss_peer: rng.next_u32() as u16,
            beyond: core::array::from_fn(|_| {
                let near = received.saturating_add(i64::from(rng.below(3000)));
                (near, near.saturating_add(i64::from(rng.below(2000)) - 100))
            }),
            ..good
        };
        let Some(mut next) = Connection::resume(NOW, &record, rng.next_u64()) else { continue };
        resumed += 1;
        next.check_invariants();
        next.greet();
        for _ in 0..20 {
            let _ = next.poll_transmit(NOW, 3000);
            next.check_invariants();
        }
        assert!(!format!("{next:?}").is_empty());
    }
    assert!(resumed > 100, "{resumed}");
}

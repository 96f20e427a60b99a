use super::*;
use crate::testing::Pair;

#[test]
fn octets_arrive_in_order_then_the_stream_ends() {
    let mut pair = Pair::open();
    assert_eq!(pair.receive(10), Err(Failure::WouldBlock));
    pair.deliver(b"hello ");
    pair.deliver(b"world");
    assert_eq!(pair.receive(8).unwrap(), b"hello wo");
    pair.end(Cause::None, REPLICA_FIN);
    assert_eq!(pair.receive(8).unwrap(), b"rld");
    assert_eq!(pair.receive(8).unwrap(), b"");
    assert!(pair.stream().readiness(&pair.local).contains(Ready::IN | Ready::RDHUP));
}

#[test]
fn what_has_not_been_read_is_void_when_a_connection_had_to_go_for_want_of_memory() {
    let mut pair = Pair::open();
    pair.deliver(b"unread");
    let readable = pair.stream().readable(&mut pair.local.clone()).unwrap();
    // While a program copies, the replica reports that it is out of memory, and reuses the buffer.
    pair.end(Cause::NoBuffers, REPLICA_CLOSED);
    assert!(!pair.stream().copy_out(&readable, readable.head, &mut [0; 6]), "it is not to be believed");
    assert_eq!(pair.receive(8), Err(Errno::ENOBUFS.into()));
    assert_eq!(pair.receive(8).unwrap(), b"");
}

#[test]
fn a_reset_is_told_once_after_the_octets_before_it() {
    let mut pair = Pair::open();
    pair.deliver(b"x");
    pair.end(Cause::ConnectionReset, REPLICA_CLOSED | REPLICA_RESET);
    assert!(pair.stream().readiness(&pair.local).contains(Ready::ERR));
    assert_eq!(pair.receive(8).unwrap(), b"x");
    assert_eq!(pair.receive(8), Err(Errno::ECONNRESET.into()));
    assert_eq!(pair.receive(8).unwrap(), b"");
    assert_eq!(pair.send(b"y"), Err(Errno::EPIPE.into()));
    assert!(!pair.stream().readiness(&pair.local).contains(Ready::ERR));
}

#[test]
fn sending_stops_at_the_limit_and_goes_on_after_acknowledgement() {
    let mut pair = Pair::open();
    let bytes = [7; 10_000];
    assert_eq!(pair.send(&bytes), Ok(8192));
    assert_eq!(pair.send(&bytes), Err(Failure::WouldBlock));
    assert!(!pair.stream().readiness(&pair.local).contains(Ready::OUT));
    assert_eq!(pair.sent().len(), 8192);
    pair.slot().set_acknowledged(8192);
    assert!(pair.stream().readiness(&pair.local).contains(Ready::OUT));
    assert!(pair.stream().release());
    assert_eq!(
        pair.port.layout().send_pool.used_bytes(pair.port.memory()),
        0,
        "a drained socket owns no memory"
    );
    assert_eq!(pair.send(b"again"), Ok(5));
    assert_eq!(pair.sent(), b"again");
}

#[test]
fn with_a_mark_for_unsent_text_the_replica_says_whether_there_is_room() {
    let mut pair = Pair::open();
    let has_room = |pair: &Pair| pair.stream().readiness(&pair.local).contains(Ready::OUT);
    pair.slot().set_replica_flags(REPLICA_UNSENT);
    assert_eq!(pair.send(&[7; 6000]), Ok(6000));
    assert!(has_room(&pair), "less than a third of the limit is free, but most of it is in flight");
    pair.slot().set_replica_flags(REPLICA_UNSENT | REPLICA_UNSENT_FULL);
    assert!(!has_room(&pair));
    pair.slot().set_replica_flags(REPLICA_UNSENT);
    assert_eq!(pair.send(&[7; 6000]), Ok(2192));
    assert!(!has_room(&pair), "nothing fits until the replica has moved the limit");
}

#[test]
fn a_shut_direction_ends_and_does_not_block() {
    let mut pair = Pair::open();
    pair.stream().shutdown(true, true).unwrap();
    assert_eq!(pair.receive(1).unwrap(), b"");
    assert_eq!(pair.send(b"x"), Err(Errno::EPIPE.into()));
    assert!(pair.stream().readiness(&pair.local).contains(Ready::HUP));
}

#[test]
fn a_replica_that_has_not_answered_yet_makes_everything_wait() {
    let mut pair = Pair::open();
    pair.generation += 1;
    assert!(pair.stream().is_connecting());
    assert_eq!(pair.receive(1), Err(Failure::WouldBlock));
    assert_eq!(pair.send(b"x"), Err(Failure::WouldBlock));
    assert_eq!(pair.stream().shutdown(false, true), Err(Errno::ENOTCONN));
    assert!(pair.stream().readiness(&pair.local).is_empty());
}

#[test]
fn reading_past_the_mark_asks_for_a_kick() {
    let mut pair = Pair::open();
    pair.deliver(&[1; 100]);
    pair.slot().set_read_mark(50);
    assert!(!pair.stream().consume(49));
    assert!(pair.stream().consume(50));
    assert!(!pair.stream().consume(60));
}

#[test]
fn a_scribbling_replica_is_survived() {
    let mut pair = Pair::open();
    let mut rng = atoll_base::Rng::new(4);
    let base = pair.port.layout().slots + 128;
    for _ in 0..100_000 {
        pair.port.memory().store64(base + rng.below(16) as usize * 8, rng.next_u64() >> rng.below(64));
        pair.port.memory().store32(base, pair.generation);
        let stream = pair.stream();
        let mut local = Local::default();
        if let Ok(readable) = stream.readable(&mut local) {
            let mut out = [0; 64];
            let n = readable.len.min(64) as usize;
            let _ = stream.copy_out(&readable, readable.head, &mut out[..n]);
        }
        let _ = stream.readiness(&local);
        let _ = (stream.unread(&pair.local), stream.unacknowledged());
        let _ = pair.send(b"abc");
    }
}

#[test]
fn a_call_that_looks_behind_some_octets_finds_the_others() {
    let mut pair = Pair::open();
    pair.deliver(b"abcdef");
    let found = |pair: &Pair, skip: u64| {
        let readable = pair.stream().readable_from(&mut pair.local.clone(), skip)?;
        Ok((readable.head, readable.len))
    };
    assert_eq!([0, 2, 5].map(|skip| found(&pair, skip)), [Ok((0, 6)), Ok((2, 4)), Ok((5, 1))]);
    assert_eq!([6, u64::MAX].map(|skip| found(&pair, skip)), [Err(Failure::WouldBlock); 2]);
    assert_eq!(pair.receive(2).unwrap(), b"ab");
    assert_eq!([3, 4].map(|skip| found(&pair, skip)), [Ok((5, 1)), Err(Failure::WouldBlock)]);
    // Behind the FIN is the end, as far as anybody looks.
    pair.end(Cause::None, REPLICA_FIN);
    assert!([4, 1000].iter().all(|skip| found(&pair, *skip).is_ok_and(|(_, len)| len == 0)));
}

#[test]
fn an_offset_moves_with_each_look_and_with_what_is_taken() {
    let mut local = Local { peek: Some(3), ..Local::default() };
    local.has_peeked(4);
    assert_eq!(local.peek, Some(7));
    local.has_taken(5);
    assert_eq!(local.peek, Some(2));
    local.has_taken(5);
    assert_eq!(local.peek, Some(0));
    local.has_peeked(usize::MAX);
    assert_eq!(local.peek, Some(i32::MAX as u32));
    let mut local = Local::default();
    local.has_peeked(4);
    local.has_taken(1);
    assert_eq!(local.peek, None);
}

use super::*;
use crate::testing::Pair;

const PRI: u32 = 2;
const IN: u32 = 0x41;

/// Opens a connection on which `bytes` have arrived, with the mark at `mark`.
fn marked(bytes: &[u8], mark: u64) -> Pair {
    let mut pair = Pair::open();
    pair.slot().set_mark(mark, None);
    pair.slot().set_replica_flags(REPLICA_URGENT);
    pair.deliver(bytes);
    pair
}

/// Reads as recv(2) does.
fn read(pair: &mut Pair) -> Result<alloc::vec::Vec<u8>, Failure> {
    let result = pair.receive(100);
    let mut local = pair.local;
    pair.stream().pass(&mut local);
    pair.local = local;
    result
}

fn readiness(pair: &Pair) -> u32 {
    pair.stream().readiness(&pair.local).bits() & (IN | PRI)
}

#[test]
fn reading_stops_at_the_mark_and_passes_the_octet_over() {
    let mut pair = marked(b"abXcd", 2);
    assert_eq!((readiness(&pair), pair.stream().unread(&pair.local)), (IN | PRI, 2));
    assert_eq!((pair.stream().is_at_mark(&pair.local), read(&mut pair)), (false, Ok(b"ab".to_vec())));
    assert!(pair.stream().is_at_mark(&pair.local));
    assert_eq!((readiness(&pair), pair.stream().unread(&pair.local)), (IN | PRI, 0));
    assert_eq!(read(&mut pair), Ok(b"cd".to_vec()));
    assert_eq!((readiness(&pair), pair.stream().is_at_mark(&pair.local)), (0, false));
    assert_eq!(pair.stream().receive_urgent(&pair.local, false), Err(Errno::EINVAL.into()));
}

#[test]
fn the_octet_can_be_taken_once() {
    let pair = marked(b"abXcd", 2);
    for peek in [true, true, false] {
        assert_eq!(pair.stream().receive_urgent(&pair.local, peek), Ok(Urgent::Octet(b'X')));
    }
    assert_eq!(readiness(&pair), IN);
    assert_eq!(pair.stream().receive_urgent(&pair.local, false), Err(Errno::EINVAL.into()));
}

#[test]
fn an_octet_that_is_on_its_way_is_waited_for_without_blocking() {
    let mut pair = marked(b"ab", 2);
    assert_eq!(readiness(&pair), IN);
    assert_eq!(pair.stream().receive_urgent(&pair.local, false), Err(Failure::WouldBlock));
    assert_eq!(read(&mut pair), Ok(b"ab".to_vec()));
    assert!(pair.stream().is_at_mark(&pair.local));
    pair.deliver(b"X");
    // The octet alone is nothing to read, but it can be taken.
    assert_eq!(readiness(&pair), PRI);
    assert_eq!(pair.stream().receive_urgent(&pair.local, true), Ok(Urgent::Octet(b'X')));
    // A program that reads nevertheless skips the octet.
    assert_eq!(read(&mut pair), Err(Failure::WouldBlock));
    assert_eq!((readiness(&pair), pair.slot().receive_head()), (0, 3));
}

#[test]
fn peeking_leaves_a_lone_octet() {
    let mut pair = marked(b"X", 0);
    let mut local = pair.local;
    assert!(pair.stream().readable(&mut local).is_err());
    assert_eq!(pair.stream().receive_urgent(&pair.local, false), Ok(Urgent::Octet(b'X')));
    assert_eq!(read(&mut pair), Err(Failure::WouldBlock));
}

#[test]
fn in_line_it_is_part_of_the_stream() {
    let mut pair = marked(b"abXcd", 2);
    pair.local.urgent_inline = true;
    assert_eq!(pair.stream().unread(&pair.local), 5);
    assert_eq!(pair.stream().receive_urgent(&pair.local, false), Err(Errno::EINVAL.into()));
    assert_eq!(read(&mut pair), Ok(b"ab".to_vec()));
    assert_eq!((pair.stream().is_at_mark(&pair.local), readiness(&pair)), (true, IN | PRI));
    assert_eq!(read(&mut pair), Ok(b"Xcd".to_vec()));
}

#[test]
fn a_newer_mark_takes_the_place_of_an_older_one() {
    // The mark was not reached yet: its octet becomes ordinary.
    let mut pair = marked(b"aXb", 1);
    pair.slot().set_mark(4, None);
    pair.deliver(b"cY");
    assert_eq!(read(&mut pair), Ok(b"aXbc".to_vec()));
    // The mark was reached: its octet stays out of the stream, with all marks that follow it directly.
    let mut pair = marked(b"XYZ", 2);
    pair.slot().set_mark(3, Some((0, 3)));
    pair.deliver(b"!ab");
    assert_eq!(read(&mut pair), Ok(b"ab".to_vec()));
}

#[test]
fn the_last_octet_of_a_stream_may_be_urgent() {
    let mut pair = marked(b"X", 0);
    pair.slot().set_replica_flags(REPLICA_URGENT | atoll_ipc::slot::REPLICA_FIN);
    assert_eq!(read(&mut pair), Ok(b"".to_vec()));
    assert_eq!(pair.slot().receive_head(), 1);
    let pair = marked(b"", 0);
    pair.slot().set_replica_flags(REPLICA_URGENT | atoll_ipc::slot::REPLICA_FIN);
    assert_eq!(pair.stream().receive_urgent(&pair.local, false), Ok(Urgent::End));
}

#[test]
fn sending_tells_where_it_ends() {
    let mut pair = Pair::open();
    let mut local = pair.local;
    let room = pair.stream().writable(&mut local, 3).expect("room");
    pair.stream().copy_in(&room, 0, b"abX");
    pair.stream().commit_urgent(&room, 3);
    assert_eq!((pair.slot().send_urgent(), pair.sent()), (3, b"abX".to_vec()));
    pair.send(b"cd").expect("room");
    assert_eq!(pair.slot().send_urgent(), 3);
}

#[test]
fn no_marks_of_the_replica_make_reading_panic_or_go_beyond_the_tail() {
    let mut rng = atoll_base::Rng::new(5);
    for _ in 0..20_000 {
        let mut pair = Pair::open();
        pair.slot().set_replica_flags(REPLICA_URGENT);
        pair.deliver(&[7; 100]);
        pair.local.urgent_inline = rng.below(2) == 0;
        for _ in 0..4 {
            let near = u64::from(rng.below(120));
            let mark = if rng.below(4) == 0 { rng.next_u64() } else { near };
            let passed = (u64::from(rng.below(110)), rng.next_u32() as u8);
            pair.slot().set_mark(mark, (rng.below(2) == 0).then_some(passed));
            let _ = pair.stream().receive_urgent(&pair.local, rng.below(2) == 0);
            let _ = (pair.stream().unread(&pair.local), readiness(&pair));
            let _ = read(&mut pair);
            assert!(pair.slot().receive_head() <= 100);
        }
    }
}

#[test]
fn looking_behind_some_octets_stops_at_the_mark_and_passes_it_there() {
    let pair = marked(b"abXcd", 2);
    let found = |skip: u64, urgent_inline: bool| {
        let mut local = Local { urgent_inline, ..pair.local };
        let readable = pair.stream().readable_from(&mut local, skip)?;
        Ok::<_, Failure>((readable.head, readable.len, readable.is_cut))
    };
    assert_eq!(found(1, false), Ok((1, 1, true)));
    assert_eq!([found(2, false), found(2, true)], [Ok((3, 2, false)), Ok((2, 3, false))]);
    assert_eq!([found(3, false), found(4, false)], [Ok((3, 2, false)), Ok((4, 1, false))]);
    let at_mark = [0, 2, 3].map(|skip| pair.stream().is_mark_behind(&pair.local, skip));
    assert_eq!(at_mark, [false, true, false]);
}

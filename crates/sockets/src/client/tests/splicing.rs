//! Octets between connections and pipes.

use super::gone::{read, receive};
use super::*;

#[test]
fn what_a_pipe_does_not_take_is_received_again() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (object, place) = connection(&mut client, &stack, 0);
    let mut room = [0; 8];
    let mut shown = Vec::new();
    let nothing = client.splice_octets(object, &mut room, true, |_| Ok(1));
    assert_eq!(nothing, Err(Failure::WouldBlock));
    receive(&stack, place, b"octets of a connection");
    for taken in [Ok(3), Err(Errno::EAGAIN), Ok(0), Ok(8), Ok(100)] {
        let result = client.splice_octets(object, &mut room, true, |octets| {
            shown.push(octets.to_vec());
            taken
        });
        assert_eq!(result, taken.map(|taken: usize| taken.min(8)).map_err(Failure::from));
    }
    let expected: [&[u8]; 5] = [b"octets o", b"ets of a", b"ets of a", b"ets of a", b" connect"];
    assert_eq!(shown, expected);
    assert_eq!(read(&mut client, object), Ok(b"ion".to_vec()));
    stack.end(place);
    assert_eq!(client.splice_octets(object, &mut room, true, |_| Ok(1)), Ok(0), "the end");
}

#[test]
fn octets_that_were_taken_away_reach_no_pipe() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (object, place) = connection(&mut client, &stack, 0);
    receive(&stack, place, b"octets");
    // The replica's rings hold nothing of what its tail says.
    stack.slot(place.replica, place.slot).set_receive_extents(&atoll_ipc::buffer::Extents::default());
    let mut is_shown = false;
    let result = client.splice_octets(object, &mut [0; 8], true, |octets| {
        is_shown = true;
        Ok(octets.len())
    });
    assert_eq!((result, is_shown), (Err(Errno::ECONNRESET.into()), false));
}

#[test]
fn an_error_behind_octets_is_kept_for_the_next_call() {
    let stack = Stack::new(1);
    let mut client = stack.client();
    let (object, place) = connection(&mut client, &stack, 0);
    let slot = stack.slot(place.replica, place.slot);
    slot.set_error(Cause::ConnectionReset);
    slot.set_replica_flags(atoll_ipc::slot::REPLICA_CLOSED);
    for (is_first, result) in
        [(false, Err(Errno::ECONNRESET.into())), (true, Err(Errno::ECONNRESET.into())), (true, Ok(0))]
    {
        assert_eq!(client.splice_octets(object, &mut [0; 8], is_first, |_| Ok(1)), result);
    }
}

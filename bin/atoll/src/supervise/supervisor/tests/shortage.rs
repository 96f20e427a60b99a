//! Checks what the supervisor does when the system is short of something.

use super::*;

/// Lets the start of a server fail again and again, each time at once.
fn fail_often(bench: &mut Bench) {
    for _ in 0..30 {
        assert_eq!(bench.settle(), None, "the stack stays");
        // This removes the delay before the next start.
        bench.server.servers.is_missing(0);
    }
}

#[test]
fn a_shortage_is_waited_for_and_said_in_the_status() {
    for number in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN, libc::ENOSPC] {
        let mut bench = Bench::new(2);
        (bench.launches.borrow_mut().failing, bench.launches.borrow_mut().for_want) =
            (u32::MAX, Some(number));
        drop(bench.replicas.remove(0));
        fail_often(&mut bench);
        let status = StatusReport::assemble(bench.server.report()).unwrap();
        let why = io::Error::from_raw_os_error(number).to_string();
        assert_eq!(status.replicas[0].recovery.lacks.as_deref(), Some(format!("a process: {why}").as_str()));
        assert_eq!(status.replicas[1].recovery.lacks, None);
        bench.launches.borrow_mut().failing = 0;
        bench.settle();
        let _control = bench.comes_back(0, 2);
        bench.settle();
        let status = StatusReport::assemble(bench.server.report()).unwrap();
        assert_eq!(status.replicas[0].recovery.lacks, None, "it has passed");
        assert!(bench.server.all_ready());
    }
}

/// The other servers serve, and the cause may be repaired.
#[test]
fn a_server_that_cannot_be_started_for_another_reason_takes_no_stack_down_either() {
    let mut bench = Bench::new(2);
    bench.launches.borrow_mut().failing = u32::MAX;
    drop(bench.replicas.remove(0));
    fail_often(&mut bench);
    bench.launches.borrow_mut().failing = 0;
    bench.settle();
    let _control = bench.comes_back(0, 2);
    bench.settle();
    assert!(bench.server.all_ready());
}

#[test]
fn connections_that_want_nothing_make_room_for_those_that_do() {
    let mut bench = Bench::new(1);
    bench.server.clients.set_max(40);
    let (_member, joined, _) = bench.attach();
    // All connections are of this process, which may have half of them.
    let idle: Vec<Channel> = (0..100)
        .map(|_| {
            let client = bench.client();
            bench.server.turn(Some(0)).unwrap();
            client
        })
        .collect();
    assert_eq!(bench.server.clients.len(), 20);
    let is_closed = |client: &Channel| matches!(client.receive(&mut [0; 64], &mut Vec::new()), Ok(0));
    assert_eq!(idle.iter().map(is_closed).collect::<Vec<_>>(), [vec![true; 81], vec![false; 19]].concat());
    assert!(
        bench.server.books.open(joined.session).is_some(),
        "who was there before and has a session stays"
    );
    let (_another, ..) = bench.attach();
    // A client that waits for an answer keeps its connection.
    let asking = bench.administrator();
    asking.send(br#"{"cmd":"ss"}"#, &[]).unwrap();
    bench.settle();
    for _ in 0..60 {
        let _ = bench.client();
        bench.server.turn(Some(0)).unwrap();
    }
    bench.replicas[0].send(rows::END, &[]).unwrap();
    bench.settle();
    let (packet, _) = receive(&asking).expect("an answer");
    assert_eq!(serde_json::from_slice::<ReportPart>(&packet).unwrap(), ReportPart::Done(true));
}

#[test]
fn sessions_beyond_the_descriptors_are_refused_with_the_reason_and_leave_nothing() {
    let mut bench = Bench::new(1);
    bench.server.starts.set_budget(Budget::new(300, 1, 1, 0));
    let mut sessions = Vec::new();
    let reason = loop {
        let client = bench.client();
        let (joined, fds) =
            bench.ask(&client, &Request::Attach { layout_version: LAYOUT_VERSION, room_mib: 0 });
        match joined {
            Ok(_) => sessions.push((client, fds)),
            Err(reason) => break reason,
        }
    };
    assert_eq!(reason, Refusal::Resources);
    assert!((3..12).contains(&sessions.len()), "{}", sessions.len());
    assert_eq!(
        (bench.server.books.open_now().len(), bench.server.books.len()),
        (sessions.len(), sessions.len())
    );
    // The memory of a session that has ended is given up before a new session is refused.
    drop(sessions.pop());
    bench.settle();
    assert_eq!(bench.server.books.ended().len(), 1);
    let (_client, ..) = bench.attach();
    assert!(bench.server.books.ended().is_empty());
}

#[test]
fn what_is_kept_back_is_there_at_a_start_and_taken_again_after_it() {
    let mut bench = Bench::new(1);
    assert!(!bench.server.starts.is_short());
    bench.server.starts.release();
    bench.settle();
    assert!(!bench.server.starts.is_short());
    drop(bench.replicas.remove(0));
    bench.settle();
    let _control = bench.comes_back(0, 2);
    bench.settle();
    assert!(bench.server.all_ready() && !bench.server.starts.is_short());
}

/// Returns how many rows a client has received, and whether its answer is complete.
fn heard(client: &Channel) -> (usize, bool) {
    let (mut rows, mut is_done) = (0, false);
    while let Some((packet, _)) = receive(client) {
        match serde_json::from_slice::<RowsPacket>(&packet) {
            Ok(packet) => rows += packet.rows.len(),
            Err(_) => {
                is_done |= serde_json::from_slice::<ReportPart>(&packet).unwrap() == ReportPart::Done(true)
            }
        }
    }
    (rows, is_done)
}

#[test]
fn those_who_ask_while_a_listing_is_under_way_share_the_next_one() {
    let mut bench = Bench::new(1);
    let clients: Vec<Channel> = (0..5).map(|_| bench.administrator()).collect();
    for client in &clients {
        client.send(br#"{"cmd":"ss"}"#, &[]).unwrap();
        bench.settle();
    }
    for (listing, hear) in [(0, 0..1), (1, 1..5)] {
        assert_eq!(bench.told(0).len(), 1, "the replica is asked once, listing {listing}");
        for packet in rows::packets((0..30).map(|_| SocketRow::default())) {
            bench.replicas[0].send(&packet, &[]).unwrap();
        }
        bench.settle();
        for (number, client) in clients.iter().enumerate() {
            let wanted = if hear.contains(&number) { (30, true) } else { (0, false) };
            assert_eq!(heard(client), wanted, "client {number}, listing {listing}");
        }
    }
    assert!(bench.told(0).is_empty());
}

#[test]
fn questions_without_end_are_answered_now_and_then() {
    let mut bench = Bench::new(1);
    let client = bench.administrator();
    let until = clock::now() + Duration::from_millis(500);
    let mut answers = 0;
    while clock::now() < until {
        client.send(br#"{"cmd":"status"}"#, &[]).unwrap();
        while clock::now() < until && !heard(&client).1 {
            bench.server.turn(Some(1)).unwrap();
        }
        answers += 1;
    }
    // 200 ms are available from the start, and at least 25 are charged for an answer.
    assert!((5..=30).contains(&answers), "{answers}");
}

#[test]
fn who_has_gone_is_not_asked_what_he_wanted() {
    let mut bench = Bench::new(1);
    // A listing does not end, and no report is due for a while, so all requests wait.
    let first = bench.administrator();
    first.send(br#"{"cmd":"ss"}"#, &[]).unwrap();
    bench.settle();
    let (before, began) = (bench.server.clients.len(), clock::now());
    while clock::now().since(began) < Duration::from_millis(20) {
        let gone: Vec<Channel> = (0..8).map(|_| bench.administrator()).collect();
        for client in &gone {
            (0..100).for_each(|_| client.send(br#"{"cmd":"ss"}"#, &[]).unwrap());
        }
        drop(gone);
        // The connection is accepted, and read from once.
        for _ in 0..2 {
            bench.server.turn(Some(0)).unwrap();
        }
        assert_eq!(bench.server.clients.len(), before, "none is kept until all is read that it has asked");
    }
    bench.replicas[0].send(rows::END, &[]).unwrap();
    bench.settle();
    assert!(heard(&first).1);
    assert_eq!(bench.told(0).len(), 1, "nobody wants another listing");
}

#[test]
fn who_connects_without_end_leaves_turns_to_others() {
    let mut bench = Bench::new(1);
    let before = bench.server.clients.len();
    let _clients: Vec<Channel> = (0..17).map(|_| bench.administrator()).collect();
    bench.server.turn(Some(0)).unwrap();
    assert_eq!(bench.server.clients.len() - before, ACCEPTS_PER_TURN);
    bench.server.turn(Some(0)).unwrap();
    assert_eq!(bench.server.clients.len() - before, 17);
}

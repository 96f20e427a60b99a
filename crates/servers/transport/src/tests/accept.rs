use super::*;

fn two_acceptors() -> (Stack, App, App, App) {
    let mut stack = Stack::new(SERVER);
    let (mut a, mut b, client) = (App::join(&mut stack, 1), App::join(&mut stack, 2), App::join(&mut stack, 3));
    for app in [&mut a, &mut b] {
        app.listen(9, 80, 64);
        app.tell(Command::AcceptConnection { lease: 9 });
    }
    stack.round(Instant::from_millis(2000));
    (stack, a, b, client)
}

#[test]
fn an_unclaimed_connection_goes_to_the_other_acceptor_with_its_octets() {
    let (mut stack, mut a, mut b, mut client) = two_acceptors();
    let now = Instant::from_millis(2000);
    let connection = client.connect(0, Endpoint::new(SERVER, 80));
    stack.round(now);
    client.write(connection, b"hello");
    stack.round(now);
    a.poll();
    b.poll();
    let (slow, fast) = if a.offers.is_empty() { (&mut b, &mut a) } else { (&mut a, &mut b) };
    stack.round(now + Duration::from_secs(1));
    let taken = fast.accept().expect("offered again");
    assert_eq!(fast.read(taken, 10), b"hello");
    stack.round(now + Duration::from_secs(1));
    // The slow one comes too late, and is told.
    assert!(slow.accept().is_none());
    assert!(slow.seen.contains(&Event::AcceptorRemoved { listener: 9 }));
    assert_eq!(stack.transport.stats().claim_timeouts, 1);
    assert_eq!(stack.transport.stats().claims, 1);
}

#[test]
fn a_removed_acceptor_gets_nothing_until_it_asks_again() {
    let (mut stack, mut a, b, mut client) = two_acceptors();
    drop(b);
    stack.transport.close_session(Instant::from_millis(2000), SessionId(2));
    let now = Instant::from_millis(2000);
    client.connect(0, Endpoint::new(SERVER, 80));
    stack.round(now);
    stack.round(now + Duration::from_secs(1));
    client.connect(1, Endpoint::new(SERVER, 80));
    stack.round(now + Duration::from_secs(1));
    a.poll();
    assert_eq!(a.offers.len(), 1);
    assert!(a.accept().is_none(), "revoked meanwhile");
    a.tell(Command::AcceptConnection { lease: 9 });
    stack.round(now + Duration::from_secs(1));
    a.poll();
    assert_eq!(a.offers.len(), 2, "both were kept");
}

#[test]
fn the_backlog_bounds_what_waits() {
    let mut stack = Stack::new(SERVER);
    let (mut server, mut client) = (App::join(&mut stack, 1), App::join(&mut stack, 2));
    server.listen(9, 80, 4);
    stack.round(Instant::from_millis(2000));
    for slot in 0..20 {
        client.connect(slot, Endpoint::new(SERVER, 80));
        stack.round(Instant::from_millis(2000));
    }
    assert_eq!(stack.transport.stats().passive_opens, 5, "backlog + 1, as on Linux");
    assert_eq!(stack.transport.stats().syn_drops, 15);
}

#[test]
fn a_dead_application_leaves_nothing_behind() {
    let (mut stack, mut a, mut b, mut client) = two_acceptors();
    let now = Instant::from_millis(2000);
    let mut connections = Vec::new();
    for slot in 0..6 {
        connections.push(client.connect(slot, Endpoint::new(SERVER, 80)));
    }
    stack.round(now);
    while a.accept().is_some() {}
    while b.accept().is_some() {}
    stack.round(now);
    client.write(connections[0], b"unread");
    stack.round(now);
    stack.transport.close_session(now, SessionId(1));
    stack.transport.close_session(now, SessionId(2));
    stack.round(now);
    client.poll();
    for connection in &connections {
        let flags = client.slot(connection.0).replica_flags();
        assert!(flags & (REPLICA_FIN | REPLICA_CLOSED) != 0, "the peer is told");
    }
    for connection in connections {
        client.close(connection);
    }
    for ms in 1..200 {
        stack.round(now + Duration::from_millis(ms));
    }
    assert_eq!(stack.transport.connections.len(), 0);
    assert_eq!(stack.transport.session_index.len(), 1);
    assert!(stack.transport.leases.is_empty());
    assert!(!stack.transport.page.has_port(false, 80));
}

#[test]
fn text_that_arrives_between_a_claim_and_its_message_is_announced() {
    let mut stack = Stack::new(SERVER);
    let (mut server, mut client) = (App::join(&mut stack, 1), App::join(&mut stack, 2));
    server.listen(9, 80, 4);
    server.tell(Command::AcceptConnection { lease: 9 });
    let connection = client.connect(0, Endpoint::new(SERVER, 80));
    let now = Instant::from_millis(2000);
    stack.round(now);
    server.poll();
    let (slot, generation) = server.offers.pop_front().expect("offered");
    server.slot(slot).app_reset(generation);
    assert!(server.slot(slot).claim(generation), "claimed, but the replica does not know yet");
    client.write(connection, b"hello");
    stack.round(now);
    server.poll();
    let told = |event: &Event| matches!(event, Event::Ready { slot: s, ready, .. } if *s == slot && ready.contains(atoll_ipc::Ready::IN));
    assert!(server.seen.iter().any(told));
}

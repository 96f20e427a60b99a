//! Listings of sockets for programs.

use atoll_ipc::listing::{self, HEAD_BYTES, SocketEntry};

use super::*;

/// Returns a row of a listener of this session.
fn row(session: u32) -> SocketRow {
    SocketRow {
        proto: "tcp".into(),
        state: "LISTEN".into(),
        local: "*:80".into(),
        peer: "*:*".into(),
        session,
        ..SocketRow::default()
    }
}

/// Lets a client ask, and returns once the replica was asked.
fn ask(bench: &mut Bench, client: &Channel) {
    client.send(&Request::ListSockets { token: 0 }.encode(), &[]).unwrap();
    bench.settle();
    while !matches!(Request::decode(&receive(&bench.replicas[0]).unwrap().0), Ok(Request::ListSockets { .. }))
    {
    }
}

/// Returns the sockets that a client was sent, and whether the listing has ended.
fn heard(client: &Channel) -> (Vec<SocketEntry>, bool) {
    let mut entries = Vec::new();
    while let Some((packet, _)) = receive(client) {
        let reply = Reply::decode(&packet[..HEAD_BYTES]);
        entries.extend(listing::decode(&packet));
        match reply {
            Ok(Reply::Listed { is_last: false }) => {}
            Ok(Reply::Listed { is_last: true }) => return (entries, true),
            other => panic!("{other:?}"),
        }
    }
    (entries, false)
}

#[test]
fn programs_hear_of_all_sockets_and_nothing_else() {
    let mut bench = Bench::new(1);
    let (_client, joined, _) = bench.attach();
    let asks = bench.client();
    ask(&mut bench, &asks);
    for packet in rows::packets((0..100).map(|_| row(joined.session))) {
        bench.replicas[0].send(&packet, &[]).unwrap();
    }
    bench.settle();
    let (entries, is_over) = heard(&asks);
    assert!(is_over && entries.len() == 100);
    let own = rustix::process::geteuid().as_raw();
    assert!(entries.iter().all(|entry| (entry.session, entry.uid) == (joined.session, own)));
}

#[test]
fn a_program_that_does_not_read_its_listing_is_cut_off() {
    let mut bench = Bench::new(1);
    let (client, joined, _) = bench.attach();
    let asks = bench.client();
    ask(&mut bench, &asks);
    let before = bench.server.clients.len();
    let packet = rows::packets((0..64).map(|_| row(joined.session))).next().unwrap();
    for _ in 0..2500 {
        bench.replicas[0].send(&packet, &[]).unwrap();
        bench.settle();
    }
    assert_eq!(bench.server.clients.len(), before - 1, "eleven megabytes wait for nobody");
    drop(client);
}

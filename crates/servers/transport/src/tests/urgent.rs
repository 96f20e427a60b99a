//! Tests of urgent octets, from one application to the other.

use std::vec;

use atoll_base::{Duration, Endpoint};
use atoll_ipc::Ready;
use atoll_ipc::slot::REPLICA_URGENT;

use super::kit::{App, Net, Stack, addr};

fn two() -> (Net, App, App) {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let client = App::attach(net.stack(1), 2);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 16);
    (net, server, client)
}

#[test]
fn the_mark_is_published_with_its_text() {
    let (mut net, mut server, mut client) = two();
    let c = client.connect(Endpoint::new(addr(1), 80));
    net.settle();
    let s = server.accept().expect("offered");
    net.settle();
    client.write(c, b"ab");
    net.settle();
    assert!(!server.take_ready(s).contains(Ready::PRI));
    assert_eq!(server.slot(s).mark(), None);
    client.write_urgent(c, b"X");
    net.settle();
    assert!(server.take_ready(s).contains(Ready::PRI | Ready::IN));
    assert_eq!((server.slot(s).mark(), server.state(s).2), (Some(2), REPLICA_URGENT));
    // The reader stands at the mark when it moves on.
    server.slot(s).set_receive_head(2);
    client.write_urgent(c, b"cY");
    net.settle();
    assert_eq!((server.slot(s).mark(), server.slot(s).passed_marks(2)), (Some(4), 1));
    server.slot(s).set_receive_head(4);
    server.raw().kick(s);
    net.settle();
    assert_eq!(server.slot(s).passed_marks(2), 0);
}

#[test]
fn urgency_before_accept_is_not_lost() {
    let (mut net, mut server, mut client) = two();
    let c = client.connect(Endpoint::new(addr(1), 80));
    net.settle();
    client.write_urgent(c, b"abX");
    net.settle();
    let s = server.accept().expect("offered");
    net.settle();
    server.keep_urgent_inline(s);
    assert_eq!((server.slot(s).mark(), server.read(s)), (Some(2), b"abX".to_vec()));
}

#[test]
fn an_application_may_call_anything_urgent() {
    for end in [1, 2, 1000, u64::MAX, 1 << 63] {
        let (mut net, mut server, mut client) = two();
        let c = client.connect(Endpoint::new(addr(1), 80));
        net.settle();
        let s = server.accept().expect("offered");
        server.keep_urgent_inline(s);
        client.slot(c).set_send_urgent(end);
        server.slot(s).set_mark(end, Some((0, 255)));
        client.write(c, b"ab");
        net.settle();
        client.write(c, b"cd");
        net.wait(Duration::from_millis(100));
        assert_eq!(server.read(s), b"abcd");
    }
}

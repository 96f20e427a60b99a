//! What datagram sockets hear of errors of the network.

use core::cell::Cell;
use std::vec;
use std::vec::Vec;

use atoll_base::{Addr, Endpoint, FourTuple};
use atoll_ip::{ErrorKind, NetworkError};
use atoll_ipc::{NetworkCause, Ready, SocketOption};
use atoll_sockets::client::transfer::Receiving;
use atoll_sockets::{Errno, Failure};
use atoll_wire::ipv4::Protocol;

use super::kit::{App, Net, Socket, Stack, addr, addr_v6};

const PORT: u16 = 5000;

/// A program with a socket, and the stack on which both are.
struct Bench {
    net: Net,
    app: App,
    socket: Socket,
    peer: Endpoint,
    /// The program at the peer that sends to the socket, once there is one.
    sender: Option<(App, Socket)>,
}

impl Bench {
    fn new(is_v4: bool, is_connected: bool) -> Bench {
        let mut net = Net::new(vec![Stack::v6(1), Stack::v6(2)]);
        let mut app = App::attach(net.stack(1), 2);
        let any = if is_v4 { Addr::V4_ANY } else { Addr::ANY };
        let peer = Endpoint::at(if is_v4 { Addr::v4(addr(1)) } else { addr_v6(1) }, 53);
        let remote = if is_connected { peer } else { Endpoint::default() };
        let socket = app.open_datagrams(&mut net, Endpoint::at(any, PORT), remote);
        Bench { net, app, socket, peer, sender: None }
    }

    /// Lets the stack hear that a packet of the socket was lost.
    fn hear(&mut self, kind: ErrorKind) {
        let own = if self.peer.addr.is_v4() { Addr::v4(addr(2)) } else { addr_v6(2) };
        let error = NetworkError {
            kind,
            protocol: Protocol::UDP,
            tuple: FourTuple { local: Endpoint::at(own, PORT), remote: self.peer },
            quoted_seq: None,
            quoted: [0; 8],
            reporter: self.peer.addr,
            hops: u8::MAX,
        };
        let now = self.net.now;
        self.net.stack(1).transport.handle_network_error(now, &error, &[]);
        self.net.settle();
    }

    /// Lets the peer send a datagram to the socket.
    fn deliver(&mut self, text: &[u8]) {
        let own = if self.peer.addr.is_v4() { Addr::v4(addr(2)) } else { addr_v6(2) };
        let sender = match &mut self.sender {
            Some(sender) => sender,
            none => {
                let mut app = App::attach(self.net.stack(0), 1);
                let any = if self.peer.addr.is_v4() { Addr::V4_ANY } else { Addr::ANY };
                let at = Endpoint::at(any, self.peer.port);
                let socket = app.open_datagrams(&mut self.net, at, Endpoint::default());
                none.insert((app, socket))
            }
        };
        sender.0.send(sender.1, Endpoint::at(own, PORT), text);
        self.net.settle();
    }

    /// Returns what poll(2) reports, but for room to send.
    fn readiness(&mut self) -> Ready {
        let object = self.app.object(self.socket);
        Ready::from_bits_retain(self.app.client.readiness(object)) & (Ready::IN | Ready::ERR)
    }

    /// Receives a datagram, or the error with which recv(2) fails.
    fn receive(&mut self) -> Result<Vec<u8>, Failure> {
        let object = self.app.object(self.socket);
        let mut text = [0; 100];
        let target = Cell::new(Some(&mut text[..]));
        let how = Receiving::default();
        let received = self.app.client.receive_datagram(object, || target.take().into_iter(), how)?;
        Ok(text[..received.len].to_vec())
    }

    /// Takes the error with which the next call would fail.
    fn take(&mut self) -> Option<Errno> {
        let object = self.app.object(self.socket);
        self.app.client.take_error(object)
    }
}

/// The errors of ICMP, or of ICMPv6, but those about an MTU and those that no socket of UDP hears of.
fn lost(is_v4: bool) -> impl Iterator<Item = (u8, u8)> {
    let (unreachable, others) =
        if is_v4 { (3, [(11, 0), (12, 0), (12, 1)]) } else { (1, [(3, 0), (4, 1), (100, 0)]) };
    let codes = (0..16).map(move |code| (unreachable, code));
    codes.chain(others).filter(move |error| (is_v4, *error) != (true, (3, 4)))
}

#[test]
fn errors_of_icmp_are_what_linux_shows() {
    for is_v4 in [true, false] {
        for is_connected in [true, false] {
            let mut bench = Bench::new(is_v4, is_connected);
            for (kind, code) in lost(is_v4) {
                let NetworkCause { cause, is_hard } = NetworkCause::of(is_v4, kind, code);
                bench.hear(ErrorKind::Lost { kind, code, info: 7 });
                let expected = Errno::of(cause).filter(|_| is_hard && is_connected);
                assert_eq!(bench.take(), expected, "{kind}, {code}");
                assert_eq!(bench.take(), None);
            }
        }
    }
    // Source quench is for pings alone.
    let mut bench = Bench::new(true, true);
    bench.hear(ErrorKind::Lost { kind: 4, code: 0, info: 0 });
    assert_eq!(bench.take(), None);
}

#[test]
fn errors_of_icmp_come_to_who_asks_for_them() {
    for is_v4 in [true, false] {
        for (wish, hears) in [(1, true), (2, is_v4), (4, !is_v4), (0, false)] {
            let mut bench = Bench::new(is_v4, false);
            bench.app.keep_errors(bench.socket);
            bench.app.set_option(bench.socket, SocketOption::Errors, wish);
            bench.net.settle();
            for (kind, code) in lost(is_v4) {
                bench.hear(ErrorKind::Lost { kind, code, info: 7 });
                let cause = NetworkCause::of(is_v4, kind, code).cause;
                assert_eq!(bench.take(), Errno::of(cause).filter(|_| hears), "{kind}, {code}");
                let fault = bench.app.receive_fault(bench.socket).map(|(_, fault, _)| fault);
                let found = fault.map(|fault| (fault.kind, fault.code, fault.info));
                assert_eq!(found, hears.then_some((kind, code, 7)));
            }
        }
    }
}

#[test]
fn errors_of_icmp_about_the_size_follow_the_discovery() {
    let too_long = Some(Errno::EMSGSIZE);
    // The values of IP_MTU_DISCOVER and IPV6_MTU_DISCOVER, and what a connected socket hears.
    for (is_v4, discovery, option, expected) in [
        (true, 0, SocketOption::MtuDiscover, None),
        (true, 1, SocketOption::MtuDiscover, too_long),
        (true, 4, SocketOption::MtuDiscover, too_long),
        (false, 0, SocketOption::MtuDiscoverV6, None),
        (false, 1, SocketOption::MtuDiscoverV6, too_long),
        (false, 4, SocketOption::MtuDiscoverV6, None),
    ] {
        let mut bench = Bench::new(is_v4, true);
        bench.app.set_option(bench.socket, option, discovery);
        bench.net.settle();
        bench.hear(ErrorKind::FragNeeded { mtu: 1300 });
        assert_eq!(bench.take(), expected, "{is_v4}, {discovery}");
    }
}

#[test]
fn errors_of_datagrams_are_told_once_each_whenever_their_event_comes() {
    let refused = ErrorKind::Lost { kind: 3, code: 3, info: 0 };
    let mut bench = Bench::new(true, true);
    for _ in 0..600 {
        bench.hear(refused);
        // The program calls before it has read the event, and reads it afterwards.
        assert_eq!(bench.take(), Some(Errno::ECONNREFUSED));
        bench.app.poll();
        assert_eq!(bench.take(), None);
    }
}

/// The error of most of these tests.
const REFUSED: ErrorKind = ErrorKind::Lost { kind: 3, code: 3, info: 0 };

/// Returns a program whose socket has no peer, and asks for errors.
fn asking() -> Bench {
    let mut bench = Bench::new(true, false);
    bench.app.keep_errors(bench.socket);
    bench.net.settle();
    bench
}

#[test]
fn an_error_is_told_before_datagrams_that_have_come_before_it() {
    for is_v4 in [true, false] {
        let mut bench = Bench::new(is_v4, false);
        bench.app.keep_errors(bench.socket);
        bench.net.settle();
        bench.deliver(b"one");
        bench.deliver(b"two");
        assert_eq!(bench.app.take_ready(bench.socket) & (Ready::IN | Ready::ERR), Ready::IN);
        let (kind, code) = if is_v4 { (3, 3) } else { (1, 4) };
        bench.hear(ErrorKind::Lost { kind, code, info: 0 });
        // The edge is that of the error.
        assert_eq!(bench.app.take_ready(bench.socket) & (Ready::IN | Ready::ERR), Ready::IN | Ready::ERR);
        assert_eq!(bench.readiness(), Ready::IN | Ready::ERR, "looking takes nothing");
        assert_eq!(bench.receive(), Err(Errno::ECONNREFUSED.into()));
        assert_eq!(bench.receive(), Ok(b"one".to_vec()));
        assert_eq!(bench.readiness(), Ready::IN | Ready::ERR, "it is in the queue");
        let (_, fault, _) = bench.app.receive_fault(bench.socket).expect("in the queue");
        assert_eq!((fault.kind, fault.code), (kind, code));
        assert_eq!(bench.readiness(), Ready::IN);
        assert_eq!(bench.receive(), Ok(b"two".to_vec()));
        assert_eq!((bench.readiness(), bench.app.receive_fault(bench.socket)), (Ready::empty(), None));
        assert_eq!(bench.receive(), Err(Failure::WouldBlock));
    }
}

#[test]
fn errors_that_were_taken_between_datagrams_are_no_datagrams() {
    let mut bench = asking();
    for text in [b"one", b"two"] {
        bench.deliver(text);
        bench.hear(REFUSED);
        bench.hear(REFUSED);
    }
    let mut faults = 0;
    while bench.app.receive_fault(bench.socket).is_some() {
        faults += 1;
    }
    assert_eq!((faults, bench.take()), (4, None));
    assert_eq!((bench.receive(), bench.readiness()), (Ok(b"one".to_vec()), Ready::IN));
    assert_eq!((bench.receive(), bench.readiness()), (Ok(b"two".to_vec()), Ready::empty()));
    assert_eq!(bench.receive(), Err(Failure::WouldBlock));
}

#[test]
fn an_error_behind_those_that_were_taken_is_told() {
    let mut bench = asking();
    bench.deliver(b"one");
    for _ in 0..3 {
        bench.hear(REFUSED);
        assert_eq!((bench.take(), bench.take()), (Some(Errno::ECONNREFUSED), None));
        assert!(bench.app.receive_fault(bench.socket).is_some());
        assert_eq!(bench.readiness(), Ready::IN);
        bench.deliver(b"more");
    }
    for text in [&b"one"[..], b"more", b"more", b"more"] {
        assert_eq!(bench.receive(), Ok(text.to_vec()));
    }
    assert_eq!(bench.readiness(), Ready::empty());
}

#[test]
fn no_error_is_lost_that_the_program_reads_in_time() {
    let mut bench = asking();
    bench.deliver(b"text");
    for _ in 0..150 {
        bench.hear(REFUSED);
    }
    for left in (0..150).rev() {
        assert!(bench.app.receive_fault(bench.socket).is_some(), "{left} are left");
    }
    assert_eq!((bench.app.receive_fault(bench.socket), bench.readiness()), (None, Ready::IN));
}

#[test]
fn errors_that_nobody_asks_for_any_more_are_forgotten_and_are_no_datagrams() {
    let mut bench = asking();
    bench.deliver(b"one");
    for _ in 0..100 {
        bench.hear(REFUSED);
    }
    bench.deliver(b"two");
    bench.app.set_wish_off(bench.socket);
    bench.net.settle();
    // do_ip_setsockopt purges the queue, and not the error that the next call tells.
    assert_eq!((bench.app.receive_fault(bench.socket), bench.take()), (None, Some(Errno::ECONNREFUSED)));
    assert_eq!((bench.receive(), bench.readiness()), (Ok(b"one".to_vec()), Ready::IN));
    assert_eq!((bench.receive(), bench.readiness()), (Ok(b"two".to_vec()), Ready::empty()));
}

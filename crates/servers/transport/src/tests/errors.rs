//! What datagram sockets hear of errors of the network.

use std::vec;

use atoll_base::{Addr, Endpoint, FourTuple};
use atoll_ip::{ErrorKind, NetworkError};
use atoll_ipc::{NetworkCause, SocketOption};
use atoll_sockets::Errno;
use atoll_wire::ipv4::Protocol;

use super::kit::{App, Net, Socket, Stack, addr, addr_v6};

const PORT: u16 = 5000;

/// A program with a socket, and the stack on which both are.
struct Bench {
    net: Net,
    app: App,
    socket: Socket,
    peer: Endpoint,
}

impl Bench {
    fn new(is_v4: bool, is_connected: bool) -> Bench {
        let mut net = Net::new(vec![Stack::v6(1), Stack::v6(2)]);
        let mut app = App::attach(net.stack(1), 2);
        let any = if is_v4 { Addr::V4_ANY } else { Addr::ANY };
        let peer = Endpoint::at(if is_v4 { Addr::v4(addr(1)) } else { addr_v6(1) }, 53);
        let remote = if is_connected { peer } else { Endpoint::default() };
        let socket = app.open_datagrams(&mut net, Endpoint::at(any, PORT), remote);
        Bench { net, app, socket, peer }
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

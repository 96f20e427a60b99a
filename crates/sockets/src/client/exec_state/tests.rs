extern crate std;

use alloc::vec;

use atoll_base::{Addr, Rng, SlotId};
use atoll_ipc::arena::ArenaConfig;

use super::super::groups::MulticastV6;
use super::super::simulated::Simulated;
use super::*;
use crate::options::TABLE;

const CONFIG: ArenaConfig = ArenaConfig { slots: 32, send_log2: 16, receive_log2: 16 };
const REPLICAS: u8 = 2;

fn place(session: usize, replica: usize, slot: u32) -> Place {
    Place { session, replica, slot: SlotId(slot), generation: 5 }
}

fn session(id: u32, first: i32) -> SessionState {
    let reply =
        Reply::Joined { session: id, key: 0x1234_5678_9abc, member: 3, replicas: REPLICAS, config: CONFIG };
    let count = 2 + BELLS as i32 + 3 * i32::from(REPLICAS);
    SessionState { reply, descriptors: (first..first + count).collect() }
}

/// Returns a socket of each kind, whose values differ from those of a new one.
fn sockets() -> Vec<Socket> {
    let datagram = Datagram {
        places: vec![place(1, 0, 7), place(1, 1, 8)],
        connected: true,
        local_chosen: true,
        sender: 1,
        next: 1,
        shut_receive: true,
        shut_send: true,
        corked: Some(Corked {
            to: Endpoint::at(Addr::v4(0x0a00_0001), 53),
            octets: vec![1, 2, 3],
            details: Some([7; 32]),
            segment: 9,
        }),
        ..Datagram::default()
    };
    let local = Local { error_taken: true, ..Local::default() };
    let kinds = [
        Kind::Bound,
        Kind::Listening(Box::new(Listener { backlog: 511, ..Listener::default() })),
        Kind::Stream(place(1, 1, 31), local),
        Kind::Datagram(Box::new(datagram)),
    ];
    let socket = |kind| {
        let protocol = if matches!(kind, Kind::Datagram(_)) { Protocol::Udp } else { Protocol::Tcp };
        let mut socket = Socket::new(protocol, true);
        (socket.kind, socket.lease) = (kind, 0xfeed_f00d);
        socket.voucher = Voucher { uid: 1000, flags: 5, granted: 1 << 40, seal: u64::MAX };
        socket.local = Endpoint::at(Addr::v4(0x7f00_0001), 80);
        socket.remote = Endpoint::at(Addr::LOOPBACK, 40_000);
        (socket.connect_reported, socket.more) = (true, true);
        socket.lasting = Lasting { shut_receive: true, shut_send: true, port_found: true, bound_since: true };
        socket
    };
    kinds.into_iter().map(socket).collect()
}

fn multicast() -> Multicast {
    Multicast {
        joined: vec![(Addr::v4(0xe000_0001), true), (Addr::from_octets([0xff; 16]), false)],
        all: false,
        is_looped: false,
        ttl: 9,
        interface: 7,
        v6: MulticastV6 { all: false, is_looped: false, hops: 8, interface: 3 },
    }
}

const OWNER: Owner = Owner { id: -77, is_thread: true };

/// Returns `sockets` as they are written down, each with two descriptors.
fn state(sockets: &[Socket]) -> ExecState {
    let inherited = |(n, socket): (i32, &Socket)| Inherited {
        socket: SocketState::of(socket, (n % 2 == 0, OWNER), |place| place),
        descriptors: vec![10 + 2 * n, 11 + 2 * n],
    };
    let sockets = (0..).zip(sockets).map(inherited).collect();
    ExecState { control: 1000, sessions: vec![session(7, 1001), session(8, 1101)], sockets }
}

fn sample() -> ExecState {
    let mut all = sockets();
    all[3].multicast = Some(Box::new(multicast()));
    all[2].options.set(TABLE[0].name, 1);
    state(&all)
}

fn passed() -> PassedSocket {
    let socket = SocketState::of(&sockets()[2], (true, OWNER), |place| Place { session: 0, ..place });
    PassedSocket { session: 8, key: 9, socket }
}

/// Returns whether what comes out of `written` is what went in, also as an object.
fn survives(written: &SocketState, read: &SocketState) -> bool {
    let object: Object<Simulated> = read.clone().into_object(2);
    let Body::Socket(socket) = &object.body else { return false };
    let again = SocketState::of(socket, (object.nonblocking, object.owner), |place| place);
    object.descriptors == 2 && written == read && again == *written
}

#[test]
fn every_kind_of_socket_survives_with_every_option() {
    for mut socket in sockets() {
        let mut check = |change: &dyn Fn(&mut Socket)| {
            change(&mut socket);
            let before = state(core::slice::from_ref(&socket));
            let after = ExecState::decode(&before.encode().expect("short")).expect("sound");
            assert_eq!(after, before);
            assert!(survives(&before.sockets[0].socket, &after.sockets[0].socket), "{socket:?}");
        };
        check(&|_| ());
        for row in &TABLE {
            check(&|socket| socket.options.set(row.name, row.default ^ 1));
            check(&|socket| socket.options.set(row.name, u64::MAX));
        }
        check(&|socket| socket.multicast = Some(Box::new(multicast())));
        check(&|socket| (socket.v6, socket.lease, socket.local) = (false, 0, Endpoint::default()));
        check(&|socket| (socket.connect_reported, socket.more) = (false, false));
        check(&|socket| socket.lasting = Lasting::default());
    }
}

/// `SO_RCVLOWAT` and `SO_OOBINLINE` also act on the connection, besides being options of the socket.
#[test]
fn a_connection_acts_on_its_options_again() {
    let mut socket = sockets().remove(2);
    socket.options.set(crate::options::Name::ReceiveLow, 400);
    socket.options.set(crate::options::Name::OobInline, 1);
    let state = SocketState::of(&socket, (true, OWNER), |place| place);
    let object: Object<Simulated> = state.into_object(1);
    let Body::Socket(Socket { kind: Kind::Stream(_, local), .. }) = object.body else { panic!("a stream") };
    assert_eq!((local.receive_low, local.urgent_inline, local.error_taken), (400, true, true));
}

#[test]
fn a_new_socket_stays_new() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let mut socket = Socket::new(protocol, true);
        socket.options.set(crate::options::Name::KeepAlive, 1);
        let written = SocketState::of(&socket, (true, OWNER), |place| place);
        assert_eq!((&written.kind, written.places()), (&KindState::Fresh, &[][..]));
        let passed = PassedSocket { session: 8, key: 9, socket: written.clone() };
        let read = PassedSocket::decode(&passed.encode().expect("short")).expect("sound");
        let object: Object<Simulated> = read.socket.into_object(1);
        let Body::Socket(socket) = &object.body else { panic!("a socket") };
        assert_eq!(SocketState::of(socket, (object.nonblocking, object.owner), |place| place), written);
    }
}

#[test]
fn what_is_cut_off_is_refused_at_every_length() {
    let (inherited, passed) = (sample().encode().expect("short"), passed().encode().expect("short"));
    for len in 0..inherited.len() {
        let expected = match len {
            0..HEADER_LEN => BadState::Foreign,
            _ => BadState::Malformed,
        };
        assert_eq!(ExecState::decode(&inherited[..len]), Err(expected), "{len}");
    }
    for len in 0..passed.len() {
        assert!(PassedSocket::decode(&passed[..len]).is_err(), "{len}");
    }
    let longer = [&inherited[..], &[0]].concat();
    assert_eq!(ExecState::decode(&longer), Err(BadState::Malformed), "something follows");
}

#[test]
fn other_versions_and_other_things_are_refused() {
    let octets = sample().encode().expect("short");
    for version in [0, b'2', VERSION + 1, 255] {
        let mut other = octets.clone();
        other[HEADER_LEN - 1] = version;
        assert_eq!(ExecState::decode(&other), Err(BadState::Version(version)));
    }
    // What builds before wrote: words in native order, of which the first was this.
    let before = [&b"atollin2"[..], &[0; 400]].concat();
    assert_eq!(ExecState::decode(&before), Err(BadState::Version(b'2')));
    let passed = passed().encode().expect("short");
    assert!(PassedSocket::is_begun_by(&passed) && !PassedSocket::is_begun_by(&octets));
    assert_eq!(ExecState::decode(&passed), Err(BadState::Foreign));
    assert_eq!(PassedSocket::decode(&octets), Err(BadState::Foreign));
    let long = [&passed[..], &vec![0; PASSED_MAX]].concat();
    assert_eq!(PassedSocket::decode(&long), Err(BadState::TooLong));
}

#[test]
fn what_would_be_too_long_is_not_written() {
    let mut state = sample();
    let Some(inherited) = state.sockets.first_mut() else { panic!("four") };
    inherited.descriptors = (0..INHERITED_MAX as i32).collect();
    assert_eq!(state.encode(), Err(BadState::TooLong));
}

/// A count that is too large costs neither memory nor time, because the octets end before it is reached.
#[test]
fn counts_that_lie_are_refused() {
    let counts: [&[u8]; 4] = [
        &[0xff, 0x7f],
        &[0xff, 0xff, 0xff, 0xff, 0x0f],
        &[0xff; 9],
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
    ];
    let head = [&INHERITED[..], &[VERSION], &[0]].concat();
    for count in counts {
        let sessions = [&head[..], count, &[0; 100]].concat();
        assert_eq!(ExecState::decode(&sessions), Err(BadState::Malformed));
    }
    let octets = sample().encode().expect("short");
    for at in HEADER_LEN..octets.len() {
        for count in counts {
            let lie = [&octets[..at], count, &octets[at + 1..]].concat();
            if let Ok(read) = ExecState::decode(&lie) {
                assert_eq!(ExecState::decode(&read.encode().expect("short")), Ok(read), "at {at}");
            }
        }
    }
}

#[test]
fn random_octets_are_read_without_harm() {
    let mut rng = Rng::new(0xe8ec);
    let sound = [sample().encode().expect("short"), passed().encode().expect("short")];
    for round in 0..10_000 {
        let mut octets = sound[round % 2].clone();
        if round % 5 == 0 {
            octets.truncate(HEADER_LEN);
            octets.extend((0..rng.below(200)).map(|_| rng.next_u64() as u8));
        }
        for _ in 0..rng.below(4) {
            let at = HEADER_LEN as u32 + rng.below((octets.len() - HEADER_LEN).max(1) as u32);
            if let Some(octet) = octets.get_mut(at as usize) {
                *octet = rng.next_u64() as u8;
            }
        }
        if let Ok(read) = ExecState::decode(&octets) {
            assert_eq!(ExecState::decode(&read.encode().expect("short")), Ok(read));
        }
        if let Ok(read) = PassedSocket::decode(&octets) {
            assert_eq!(PassedSocket::decode(&read.encode().expect("short")), Ok(read));
        }
    }
}

fn datagram(state: &mut ExecState) -> &mut DatagramState {
    match &mut state.sockets[3].socket.kind {
        KindState::Datagram(datagram) => datagram,
        kind => panic!("{kind:?}"),
    }
}

#[test]
fn what_cannot_be_is_refused() {
    type Lie = fn(&mut ExecState);
    let lies: &[(BadState, Lie)] = &[
        (BadState::Session, |state| state.sessions.clear()),
        (BadState::Session, |state| state.sessions[1].reply = Reply::Connected),
        (BadState::Session, |state| state.sessions[0].descriptors.truncate(23)),
        (BadState::Session, |state| {
            let reply = Reply::Joined { session: 1, key: 1, member: 0, replicas: 0, config: CONFIG };
            state.sessions[0] = SessionState { reply, descriptors: (2000..2018).collect() };
        }),
        (BadState::Session, |state| {
            let reply = Reply::Joined { session: 1, key: 1, member: 0, replicas: 255, config: CONFIG };
            state.sessions[0] = SessionState { reply, descriptors: (2000..2018 + 3 * 255).collect() };
        }),
        (BadState::Descriptor, |state| state.control = -1),
        (BadState::Descriptor, |state| state.control = 10),
        (BadState::Descriptor, |state| state.sockets[1].descriptors.clear()),
        (BadState::Descriptor, |state| state.sockets[1].descriptors = vec![1002]),
        (BadState::Descriptor, |state| state.sessions[1].descriptors[3] = i32::MIN),
        (BadState::Place, |state| datagram(state).places[0].session = 2),
        (BadState::Place, |state| datagram(state).places[0].session = usize::MAX),
        (BadState::Place, |state| datagram(state).places[0].session = 0),
        (BadState::Place, |state| datagram(state).places[0].replica = 1),
        (BadState::Place, |state| datagram(state).places[0].replica = 2),
        (BadState::Place, |state| datagram(state).places[0].slot = SlotId(32)),
        (BadState::Place, |state| datagram(state).places.clear()),
        (BadState::Place, |state| datagram(state).sender = 2),
        (BadState::Place, |state| {
            state.sockets[2].socket.kind =
                KindState::Stream { place: place(1, 0, u32::MAX), error_taken: false };
        }),
        (BadState::Socket, |state| state.sockets[2].socket.protocol = Protocol::Udp),
        (BadState::Socket, |state| state.sockets[3].socket.protocol = Protocol::Tcp),
        (BadState::Socket, |state| {
            datagram(state).corked = Some(Corked {
                to: Endpoint::default(),
                octets: vec![0; CORKED_MAX + 1],
                details: None,
                segment: 0,
            });
        }),
        (BadState::Socket, |state| {
            let joined = vec![(Addr::v4(0xe000_0001), false); MEMBERSHIPS_MAX + 1];
            state.sockets[3].socket.multicast = Some(Box::new(Multicast { joined, ..multicast() }));
        }),
        (BadState::Socket, |state| {
            let joined = vec![(Addr::LOOPBACK, false); MEMBERSHIPS_MAX_V6 + 1];
            state.sockets[3].socket.multicast = Some(Box::new(Multicast { joined, ..multicast() }));
        }),
    ];
    for (n, (fault, lie)) in lies.iter().enumerate() {
        let mut state = sample();
        lie(&mut state);
        let octets = state.encode().expect("short");
        assert_eq!(ExecState::decode(&octets), Err(*fault), "lie {n}");
    }
    let mut passed = passed();
    passed.socket.kind = KindState::Stream { place: place(1, 0, 0), error_taken: false };
    assert_eq!(PassedSocket::decode(&passed.encode().expect("short")), Err(BadState::Place));
}

/// This is the encoding of this version. If the test fails, [`VERSION`] has to change, because a library of
/// another build must not misread the octets.
#[test]
fn the_form_of_this_version_is_this() {
    let octets = sample().encode().expect("short");
    let digest = octets.iter().fold(0xcbf2_9ce4_8422_2325u64, |digest, octet| {
        (digest ^ u64::from(*octet)).wrapping_mul(0x100_0000_01b3)
    });
    assert_eq!((VERSION, TABLE.len(), octets.len(), digest), (12, 64, 666, 0x35ae_6090_9f07_3aba));
}

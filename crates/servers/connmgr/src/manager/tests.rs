use alloc::vec::Vec;

use atoll_base::Addr;
use atoll_ipc::balance::Scheme;
use atoll_ipc::control::User;
use atoll_ipc::lease::Grant;

use super::*;
use crate::messages::Offer;

const ADDR: u32 = 0x0a00_0001;
const LOOPBACK: u32 = 0x7f00_0001;
const NOW: Instant = Instant::from_millis(1000);

const IN_TURN: Balance = Balance { scheme: Scheme::Naive, ..Balance::new() };

fn manager(replica: u8, replicas: u8) -> ConnMgr {
    let config = Config {
        replica: ReplicaId(replica),
        replicas,
        epoch: Epoch(1),
        ephemeral: (32768, 60999),
        backlog_max: 4096,
        leases_max: 1000,
        session_leases_max: 1000,
        session_listeners_max: 1000,
        managers: replicas,
        managers_apart: false,
        patience: Duration::from_millis(100),
    };
    ConnMgr::new(config, 5)
}

fn bind(session: u32, lease: u64, addr: u32, port: u16, reuse_addr: bool, reuse_port: bool) -> Bind {
    let (session, protocol, local) = (SessionId(session), Protocol::Tcp, Endpoint::new(addr, port));
    Bind {
        session,
        user: User::privileged(0),
        lease,
        protocol,
        local,
        reuse_addr,
        reuse_port,
        v6_only: false,
        device: atoll_ipc::Device::None,
    }
}

fn listen(session: u32, lease: u64, addr: u32, port: u16, backlog: u32, reuse_port: bool) -> Listen {
    let (session, local) = (SessionId(session), Endpoint::new(addr, port));
    let shown = Some(Grant { reuse_port, ..Grant::to_listen(lease, local) });
    Listen { session, lease, local, backlog, reuse_port, defer_accept: 0, v6_only: false, uid: 0, shown }
}

fn syn(cm: &mut ConnMgr, addr: u32, port: u16) -> SynVerdict {
    cm.handle_syn(&Syn {
        local: Endpoint::new(addr, port),
        by_cookie: false,
        device: atoll_ipc::Device::None,
    })
}

fn accepted(verdict: SynVerdict) -> ListenerId {
    match verdict {
        SynVerdict::Accept { listener, .. } => listener,
        other => panic!("{other:?}"),
    }
}

fn offers(cm: &mut ConnMgr) -> Vec<Offer> {
    core::iter::from_fn(|| cm.poll_directive())
        .filter_map(|directive| match directive {
            Directive::Offer(offer) => Some(offer),
            _ => None,
        })
        .collect()
}

// ---- ports ----

#[test]
fn two_sockets_bind_one_port_only_if_linux_would_let_them() {
    // The columns are, of the first socket: address, SO_REUSEADDR, SO_REUSEPORT, listening; of the second:
    // address, SO_REUSEADDR, SO_REUSEPORT.
    let cases = [
        ((0, false, false, false), (0, false, false), false),
        ((ADDR, false, false, false), (LOOPBACK, false, false), true),
        ((ADDR, false, false, false), (0, false, false), false),
        ((0, true, false, false), (0, true, false), true),
        ((0, true, false, true), (0, true, false), false),
        ((0, true, false, false), (0, false, false), false),
        ((0, false, true, true), (0, false, true), true),
        ((0, false, true, true), (ADDR, false, true), true),
        ((0, true, true, true), (0, true, false), false),
    ];
    for (first, second, works) in cases {
        let mut cm = manager(0, 1);
        let (addr, reuse_addr, reuse_port, listening) = first;
        assert_eq!(cm.handle_bind(&bind(1, 1, addr, 80, reuse_addr, reuse_port)), Ok(80));
        if listening {
            cm.handle_listen(&listen(1, 1, addr, 80, 5, reuse_port)).expect("the holder");
        }
        let (addr, reuse_addr, reuse_port) = second;
        let result = cm.handle_bind(&bind(2, 2, addr, 80, reuse_addr, reuse_port));
        assert_eq!(result, if works { Ok(80) } else { Err(Cause::AddressInUse) }, "{first:?} {second:?}");
    }
}

/// inet_bind_conflict: what comes over one device is not for a socket on another.
#[test]
fn sockets_on_different_devices_share_a_port() {
    use Device::{Link, Loopback, None as Any};
    for (first, second, works) in [
        (Any, Loopback, false),
        (Loopback, Any, false),
        (Loopback, Loopback, false),
        (Loopback, Link, true),
        (Link, Loopback, true),
    ] {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let mut cm = manager(0, 1);
            let with = |lease, device| Bind { device, protocol, ..bind(1, lease, 0, 80, false, false) };
            assert_eq!(cm.handle_bind(&with(1, first)), Ok(80));
            let expected = if works { Ok(80) } else { Err(Cause::AddressInUse) };
            assert_eq!(cm.handle_bind(&with(2, second)), expected, "{first:?} {second:?}");
            let grants = [1, 2].map(|lease| cm.grant(SessionId(1), lease));
            if let [Some(a), Some(b)] = grants {
                assert!(!crate::are_rivals(&a, &b));
            }
        }
        let mut cm = manager(0, 1);
        cm.handle_bind(&Bind { device: first, ..bind(1, 1, 0, 80, true, false) }).expect("free");
        cm.handle_bind(&Bind { device: second, ..bind(1, 2, 0, 80, true, false) }).expect("SO_REUSEADDR");
        cm.handle_listen(&listen(1, 1, 0, 80, 5, false)).expect("the holder");
        assert_eq!(cm.handle_listen(&listen(1, 2, 0, 80, 5, false)).is_ok(), works, "{first:?} {second:?}");
    }
}

/// inet_lookup_listener, compute_score: the address decides first, and then the device.
#[test]
fn a_syn_finds_the_listener_on_its_device() {
    use Device::{Link, Loopback};
    let mut cm = manager(0, 1);
    let mut open = |lease, addr, device| {
        cm.handle_bind(&Bind { device, ..bind(1, lease, addr, 80, false, true) }).expect("shared");
        cm.handle_listen(&listen(1, lease, addr, 80, 5, true)).expect("shared")
    };
    let inside = open(1, 0, Loopback);
    let outside = open(2, 0, Link);
    let find = |cm: &mut ConnMgr, addr, device| {
        cm.handle_syn(&Syn { local: Endpoint::new(addr, 80), device, by_cookie: false })
    };
    assert_eq!(accepted(find(&mut cm, LOOPBACK, Loopback)), inside);
    assert_eq!(accepted(find(&mut cm, ADDR, Link)), outside);
    assert_eq!([inside, outside].map(|listener| cm.device_of(listener)), [Loopback, Link]);
    cm.handle_release(SessionId(1), 2);
    assert_eq!(find(&mut cm, ADDR, Link), SynVerdict::Refused);
    assert!(!cm.has_listener(Endpoint::new(ADDR, 80), Link));
    assert!(cm.has_listener(Endpoint::new(ADDR, 80), Loopback));
    // One on no device takes what is left, and one at the very address comes first.
    cm.handle_bind(&bind(1, 3, 0, 80, false, true)).expect("shared");
    let any = cm.handle_listen(&listen(1, 3, 0, 80, 5, true)).expect("shared");
    assert_eq!(accepted(find(&mut cm, ADDR, Link)), any);
    assert_eq!(accepted(find(&mut cm, LOOPBACK, Loopback)), inside);
    cm.handle_bind(&bind(1, 4, LOOPBACK, 80, false, true)).expect("shared");
    let exact = cm.handle_listen(&listen(1, 4, LOOPBACK, 80, 5, true)).expect("shared");
    assert_eq!(accepted(find(&mut cm, LOOPBACK, Loopback)), exact);
    [1, 3, 4].into_iter().for_each(|lease| cm.handle_release(SessionId(1), lease));
    assert_eq!(find(&mut cm, ADDR, Link), SynVerdict::Refused);
}

#[test]
fn a_lease_is_bound_to_another_device_before_its_socket_listens() {
    let mut cm = manager(0, 1);
    cm.handle_bind(&bind(1, 1, 0, 80, false, false)).expect("free");
    assert!(cm.set_device(1, Device::Loopback) && !cm.set_device(2, Device::Link));
    let other = Bind { device: Device::Link, ..bind(2, 2, 0, 80, false, false) };
    assert_eq!(cm.handle_bind(&other), Ok(80));
    let listener = cm.handle_listen(&listen(1, 1, 0, 80, 5, false)).expect("the holder");
    assert_eq!(cm.device_of(listener), Device::Loopback);
}

#[test]
fn so_reuseaddr_counts_as_it_is_and_not_as_it_was_at_bind() {
    for (later, [before, after]) in [(true, [false, true]), (false, [true, false])] {
        let mut cm = manager(0, 1);
        cm.handle_bind(&Bind { reuse_addr: before, ..bind(1, 1, 0, 80, false, false) }).expect("free");
        let other = Bind { reuse_addr: true, ..bind(2, 2, ADDR, 80, false, false) };
        assert!(cm.set_reuse_addr(1, after) && !cm.set_reuse_addr(2, after));
        let expected = if later { Ok(80) } else { Err(Cause::AddressInUse) };
        assert_eq!(cm.handle_bind(&other), expected);
        // A predecessor has let both have it, before the first one forbade that.
        assert_eq!(cm.repeat_bind(&other), Ok(80));
    }
}

#[test]
fn ipv4_and_ipv6_share_a_port_as_on_linux() {
    let (any, v4_any) = ((Addr::ANY, false), (Addr::V4_ANY, false));
    let (v6_only, v4, v6) =
        ((Addr::ANY, true), (Addr::v4(ADDR), false), (Addr::from_octets([0x20; 16]), false));
    for (first, second, works) in [
        (any, v4_any, false),
        (any, v4, false),
        (any, v6, false),
        (v6_only, v4_any, true),
        (v6_only, v4, true),
        (v6_only, v6, false),
        (v6_only, any, false),
        (v4_any, v6, true),
        (v4_any, any, false),
        (v4_any, v6_only, true),
        (v4, v6, true),
        (v6, any, false),
        (v6, v6, false),
    ] {
        let mut cm = manager(0, 1);
        let with = |lease, (addr, v6_only)| {
            let local = Endpoint::at(addr, 80);
            (
                Bind { local, v6_only, ..bind(1, lease, 0, 80, false, false) },
                Listen { local, v6_only, ..listen(1, lease, 0, 80, 5, false) },
            )
        };
        let (bind_first, listen_first) = with(1, first);
        let (bind_second, listen_second) = with(2, second);
        assert_eq!(cm.handle_bind(&bind_first), Ok(80));
        assert!(cm.handle_listen(&listen_first).is_ok());
        let expected = if works { Ok(80) } else { Err(Cause::AddressInUse) };
        assert_eq!(cm.handle_bind(&bind_second), expected, "{first:?} {second:?}");
        assert_eq!(cm.handle_listen(&listen_second).is_ok(), works, "{first:?} {second:?}");
    }
}

#[test]
fn a_listener_of_both_families_comes_after_those_of_one() {
    let mut cm = manager(0, 1);
    let v6 = Addr::from_octets([0x20; 16]);
    let mut open = |lease, addr, v6_only, reuse| {
        let local = Endpoint::at(addr, 80);
        cm.handle_bind(&Bind { local, v6_only, ..bind(1, lease, 0, 80, false, reuse) }).expect("shared");
        cm.handle_listen(&Listen { local, v6_only, ..listen(1, lease, 0, 80, 5, reuse) }).expect("shared")
    };
    let both = open(1, Addr::ANY, false, true);
    let v6_only = open(2, Addr::ANY, true, true);
    let exact = open(3, v6, false, true);
    let at = |cm: &mut ConnMgr, addr| {
        accepted(cm.handle_syn(&Syn {
            local: Endpoint::at(addr, 80),
            by_cookie: false,
            device: atoll_ipc::Device::None,
        }))
    };
    assert_eq!(at(&mut cm, Addr::v4(ADDR)), both);
    assert_eq!(at(&mut cm, Addr::LOOPBACK), v6_only);
    assert_eq!(at(&mut cm, v6), exact);
    cm.handle_release(SessionId(1), 2);
    assert_eq!(at(&mut cm, Addr::LOOPBACK), both);
}

#[test]
fn a_port_is_shared_with_the_same_user_only() {
    for (uid, expected) in [(33, Ok(80)), (34, Err(Cause::AddressInUse)), (0, Err(Cause::AddressInUse))] {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let mut cm = manager(0, 1);
            let of = |session, uid| Bind {
                user: User::privileged(uid),
                protocol,
                ..bind(session, session.into(), 0, 80, false, true)
            };
            assert_eq!(cm.handle_bind(&of(1, 33)), Ok(80));
            assert_eq!(cm.handle_bind(&of(2, uid)), expected, "{uid}");
        }
        // This is another replica, where the session has shown what it was granted.
        let mut cm = manager(1, 2);
        let of = |session: u32, uid, granted| {
            let grant = Grant {
                uid,
                granted,
                reuse_port: true,
                ..Grant::to_listen(session.into(), Endpoint::new(0, 80))
            };
            Listen { shown: Some(grant), ..listen(session, session.into(), 0, 80, 5, true) }
        };
        assert!(cm.handle_listen(&of(1, 33, 2)).is_ok());
        assert_eq!(cm.handle_listen(&of(2, uid, 1)).is_ok(), uid == 33, "a later one is there");
        assert!(cm.handle_listen(&of(3, uid, 3)).is_ok());
        assert_eq!(cm.listener_of(SessionId(1), 1).is_some(), uid == 33, "and goes before it");
    }
}

#[test]
fn who_has_not_shown_a_grant_to_listen_does_not() {
    let mut cm = manager(1, 2);
    let good = listen(1, 7, 0, 80, 5, false);
    let grant = good.shown.expect("it was shown");
    for shown in [
        None,
        Some(Grant { lease: 8, ..grant }),
        Some(Grant { listening: false, ..grant }),
        Some(Grant { protocol: Protocol::Udp, ..grant }),
        Some(Grant { local: Endpoint::new(0, 82), ..grant }),
    ] {
        assert_eq!(cm.handle_listen(&Listen { shown, ..good }), Err(Cause::Invalid), "{shown:?}");
    }
    assert!(cm.handle_listen(&good).is_ok());
    assert!(cm.handle_listen(&Listen { shown: None, ..good }).is_ok(), "who listens already has shown it");
    let another = Listen { session: SessionId(2), shown: None, ..good };
    assert_eq!(cm.handle_listen(&another), Err(Cause::Invalid), "the lease alone is nothing");
}

/// A socket that fails to listen does not keep others from binding.
#[test]
fn who_may_not_listen_is_only_bound() {
    let mut cm = manager(0, 1);
    for lease in [1, 2] {
        assert_eq!(cm.handle_bind(&bind(1, lease, 0, 80, true, false)), Ok(80));
    }
    assert!(cm.handle_listen(&listen(1, 1, 0, 80, 5, false)).is_ok());
    assert_eq!(cm.handle_listen(&listen(1, 2, 0, 80, 5, false)), Err(Cause::AddressInUse));
    cm.handle_release(SessionId(1), 1);
    assert_eq!(cm.handle_bind(&bind(1, 3, 0, 80, true, false)), Ok(80));
}

#[test]
fn a_port_is_free_when_its_last_holder_has_left() {
    let mut cm = manager(0, 1);
    assert_eq!(cm.handle_bind(&bind(1, 7, 0, 80, false, false)), Ok(80));
    assert_eq!(cm.handle_bind(&bind(2, 7, 0, 80, false, false)), Ok(80), "a forked child");
    cm.handle_release(SessionId(1), 7);
    assert_eq!(cm.handle_bind(&bind(3, 8, 0, 80, false, false)), Err(Cause::AddressInUse));
    cm.handle_session_gone(SessionId(2));
    assert_eq!(cm.handle_bind(&bind(3, 8, 0, 80, false, false)), Ok(80));
}

#[test]
fn a_replica_gives_out_its_own_ports_only() {
    let mut cm = manager(2, 3);
    assert_eq!(cm.handle_bind(&bind(1, 1, 0, 80, false, false)), Ok(80));
    assert_eq!(cm.handle_bind(&bind(1, 2, 0, 81, false, false)), Err(Cause::Invalid));
    let mut seen = alloc::collections::BTreeSet::new();
    for lease in 10..500 {
        let port = cm.handle_bind(&bind(1, lease, 0, 0, false, false)).expect("free");
        assert!(port % 3 == 2 && (32768..=60999).contains(&port) && seen.insert(port));
    }
}

#[test]
fn free_ports_run_out_and_leases_are_bounded() {
    let config = Config { ephemeral: (100, 109), ..manager(1, 3).config };
    let mut cm = ConnMgr::new(config, 1);
    let ports: Vec<_> = (0..4).map(|lease| cm.handle_bind(&bind(1, lease, 0, 0, false, false))).collect();
    assert!(ports[..4].iter().all(|port| matches!(port, Ok(100 | 103 | 106 | 109))), "{ports:?}");
    assert_eq!(cm.handle_bind(&bind(1, 9, 0, 0, false, false)), Err(Cause::AddressInUse));
    // A port that is given back is found, whichever it is, and each protocol has as many.
    assert_eq!(
        cm.handle_bind(&Bind { protocol: Protocol::Udp, ..bind(1, 9, 0, 0, false, false) }).map(|_| ()),
        Ok(())
    );
    for lease in [2, 0] {
        cm.handle_release(SessionId(1), lease);
        assert_eq!(cm.handle_bind(&bind(1, 20 + lease, 0, 0, false, false)), ports[lease as usize]);
        assert_eq!(cm.handle_bind(&bind(1, 19, 0, 0, false, false)), Err(Cause::AddressInUse));
    }
    let mut cm = ConnMgr::new(Config { leases_max: 1, ..manager(0, 1).config }, 1);
    assert_eq!(cm.handle_bind(&bind(1, 1, 0, 0, false, false)).map(|_| ()), Ok(()));
    assert_eq!(cm.handle_bind(&bind(1, 2, 0, 0, false, false)), Err(Cause::NoBuffers));
}

// ---- listeners ----

#[test]
fn the_more_definite_address_gets_the_connection() {
    let mut cm = manager(1, 2);
    let any = cm.handle_listen(&listen(1, 1, 0, 80, 5, true)).expect("free");
    let own = cm.handle_listen(&listen(1, 2, ADDR, 80, 5, true)).expect("shared");
    assert_eq!(accepted(syn(&mut cm, ADDR, 80)), own);
    assert_eq!(accepted(syn(&mut cm, LOOPBACK, 80)), any);
    assert_eq!(syn(&mut cm, ADDR, 82), SynVerdict::Refused);
}

#[test]
fn a_listener_holds_backlog_plus_one_and_128_handshakes_or_as_many_as_the_backlog() {
    for backlog in 0..3 {
        let mut cm = manager(1, 2);
        let id = cm.handle_listen(&listen(1, 1, 0, 80, backlog, false)).expect("free");
        for _ in 1..128 {
            assert_eq!(accepted(syn(&mut cm, ADDR, 80)), id);
        }
        for n in 0..=backlog {
            assert_eq!(accepted(syn(&mut cm, ADDR, 80)), id);
            assert_eq!(syn(&mut cm, ADDR, 80), SynVerdict::Cookie { listener: id }, "128 handshakes");
            assert!(cm.may_establish(id));
            cm.handle_established(NOW, ConnectionId(n), id);
        }
        assert!(!cm.may_establish(id));
        assert_eq!(syn(&mut cm, ADDR, 80), SynVerdict::Full);
        // A cookie that comes back waits in the SYN queue, and is forgotten if there is no room either.
        let local = Endpoint::new(ADDR, 80);
        assert_eq!(
            accepted(cm.handle_syn(&Syn { local, by_cookie: true, device: atoll_ipc::Device::None })),
            id
        );
        assert_eq!(
            cm.handle_syn(&Syn { local, by_cookie: true, device: atoll_ipc::Device::None }),
            SynVerdict::Full
        );
        cm.handle_listen(&listen(1, 1, 0, 80, 1_000_000, false)).expect("again");
        assert_eq!(
            cm.listeners().next().map(|view| (view.backlog, view.unclaimed)),
            Some((4096, backlog + 1))
        );
    }
}

#[test]
fn sockets_that_share_a_port_share_its_connections() {
    let mut cm = manager(1, 2);
    cm.set_balance(IN_TURN);
    let id = cm.handle_listen(&listen(1, 1, 0, 80, 50, true)).expect("free");
    assert_eq!(cm.handle_listen(&listen(2, 2, 0, 80, 50, true)), Ok(id));
    assert_eq!(cm.handle_listen(&listen(3, 3, 0, 80, 50, false)), Err(Cause::AddressInUse));
    assert!(cm.handle_accept(NOW, SessionId(1), 1) && cm.handle_accept(NOW, SessionId(2), 2));
    assert!(!cm.handle_accept(NOW, SessionId(3), 3) && !cm.handle_accept(NOW, SessionId(2), 1));
    for n in 0..4 {
        syn(&mut cm, ADDR, 80);
        cm.handle_established(NOW, ConnectionId(n), id);
    }
    let sessions: Vec<u32> = offers(&mut cm).iter().map(|offer| offer.session.0).collect();
    assert_eq!(sessions, [1, 2, 1, 2]);
    // One session leaves: the other gets everything, and the port stays.
    cm.handle_session_gone(SessionId(1));
    syn(&mut cm, ADDR, 80);
    cm.handle_established(NOW, ConnectionId(4), id);
    assert_eq!(offers(&mut cm)[0].session, SessionId(2));
}

#[test]
fn who_has_not_claimed_yet_comes_last() {
    let mut cm = manager(1, 2);
    cm.set_balance(IN_TURN);
    let id = cm.handle_listen(&listen(1, 1, 0, 80, 50, false)).expect("free");
    cm.handle_listen(&listen(2, 1, 0, 80, 50, false)).expect("a child");
    cm.handle_accept(NOW, SessionId(1), 1);
    cm.handle_accept(NOW, SessionId(2), 1);
    let mut shares = [0; 3];
    for n in 0..20 {
        syn(&mut cm, ADDR, 80);
        cm.handle_established(NOW, ConnectionId(n), id);
        let offer = offers(&mut cm)[0];
        shares[offer.session.0 as usize] += 1;
        if offer.session == SessionId(2) {
            cm.handle_claimed(NOW, offer.connection, id, offer.session, offer.lease, NOW);
        }
    }
    assert_eq!(shares, [0, 1, 19], "the first sleeps");
}

#[test]
fn a_connection_that_timed_out_goes_to_the_next_or_waits() {
    let mut cm = manager(1, 2);
    let id = cm.handle_listen(&listen(1, 1, 0, 80, 50, false)).expect("free");
    cm.handle_accept(NOW, SessionId(1), 1);
    syn(&mut cm, ADDR, 80);
    cm.handle_established(NOW, ConnectionId(3), id);
    assert_eq!(offers(&mut cm).len(), 1);
    cm.handle_claim_timeout(NOW, ConnectionId(3), id, SessionId(1), 1);
    let removed = Directive::AcceptorRemoved { session: SessionId(1), lease: 1 };
    assert_eq!(cm.poll_directive(), Some(removed));
    assert_eq!(cm.poll_directive(), None);
    cm.handle_accept(NOW, SessionId(1), 1);
    let offer = offers(&mut cm)[0];
    assert_eq!((offer.connection, offer.session), (ConnectionId(3), SessionId(1)));
    // The connection is gone before it is claimed: nothing is left.
    let stage = Stage::Offered { session: SessionId(1), lease: 1 };
    cm.handle_gone(ConnectionId(3), id, stage);
    assert_eq!(cm.listeners().next().map(|view| (view.embryonic, view.unclaimed)), Some((0, 0)));
}

#[test]
fn the_end_of_a_listener_is_told_and_late_news_about_it_is_harmless() {
    let mut cm = manager(1, 2);
    let old = cm.handle_listen(&listen(1, 1, 0, 80, 50, false)).expect("free");
    assert_eq!(cm.poll_directive(), Some(Directive::PortTaken { port: 80, taken: true }));
    for n in 0..3 {
        syn(&mut cm, ADDR, 80);
        if n < 2 {
            cm.handle_established(NOW, ConnectionId(n), old);
        }
    }
    cm.handle_release(SessionId(1), 1);
    let told: Vec<Directive> = core::iter::from_fn(|| cm.poll_directive()).collect();
    assert_eq!(
        told,
        [
            Directive::Reset { connection: ConnectionId(0) },
            Directive::Reset { connection: ConnectionId(1) },
            Directive::PortTaken { port: 80, taken: false },
        ]
    );
    // A new listener in the same place is not confused with the old one.
    let new = cm.handle_listen(&listen(2, 2, 0, 80, 50, false)).expect("free again");
    assert!(new != old && new.index == old.index);
    assert_eq!(cm.poll_directive(), Some(Directive::PortTaken { port: 80, taken: true }));
    cm.handle_established(NOW, ConnectionId(2), old);
    assert_eq!(cm.poll_directive(), Some(Directive::Reset { connection: ConnectionId(2) }));
    cm.handle_gone(ConnectionId(2), old, Stage::Waiting);
    assert_eq!(cm.listeners().next().map(|view| (view.embryonic, view.unclaimed)), Some((0, 0)));
}

#[test]
fn random_messages_leave_the_counts_right() {
    let mut rng = atoll_base::Rng::new(4);
    for _ in 0..200 {
        let mut cm = manager(0, 1);
        // These are what the transport server would know: connection, listener, stage.
        let mut live: Vec<(ConnectionId, ListenerId, Stage)> = Vec::new();
        let mut next = 0;
        for _ in 0..300 {
            let (session, lease) = (rng.below(3), u64::from(rng.below(3)));
            match rng.below(9) {
                0 => drop(cm.handle_bind(&bind(session, lease, 0, 80, true, true))),
                1 => drop(cm.handle_listen(&listen(session, lease, 0, 80, 8, true))),
                2 => drop(cm.handle_accept(NOW, SessionId(session), lease)),
                3 if rng.below(5) == 0 => cm.handle_release(SessionId(session), lease),
                4 if rng.below(9) == 0 => cm.handle_session_gone(SessionId(session)),
                5 | 6 => {
                    if let SynVerdict::Accept { listener, .. } = syn(&mut cm, ADDR, 80) {
                        live.push((ConnectionId(next), listener, Stage::Embryonic));
                        next += 1;
                    }
                }
                _ if !live.is_empty() => {
                    let chosen = rng.below(live.len() as u32) as usize;
                    let (connection, listener, stage) = live[chosen];
                    match (stage, rng.below(3)) {
                        (Stage::Embryonic, 0) => {
                            live[chosen].2 = Stage::Waiting;
                            cm.handle_established(NOW, connection, listener);
                        }
                        (Stage::Offered { session, lease }, 0) => {
                            live.remove(chosen);
                            cm.handle_claimed(NOW, connection, listener, session, lease, NOW);
                        }
                        (Stage::Offered { session, lease }, 1) => {
                            live[chosen].2 = Stage::Waiting;
                            cm.handle_claim_timeout(NOW, connection, listener, session, lease);
                        }
                        (stage, 2) => {
                            live.remove(chosen);
                            cm.handle_gone(connection, listener, stage);
                        }
                        _ => {}
                    }
                }
                _ => {}
            }
            while let Some(directive) = cm.poll_directive() {
                match directive {
                    Directive::Offer(offer) => {
                        let place = live.iter_mut().find(|(connection, ..)| *connection == offer.connection);
                        let place = place.expect("the connection is known");
                        assert_eq!(place.2, Stage::Waiting);
                        place.2 = Stage::Offered { session: offer.session, lease: offer.lease };
                    }
                    Directive::Reset { connection } => live.retain(|(known, ..)| *known != connection),
                    _ => {}
                }
            }
            for view in cm.listeners() {
                let id = cm.listeners.by_address(Endpoint::new(0, 80)).expect("the only one");
                let ours = live.iter().filter(|(_, listener, _)| *listener == id);
                let embryonic = ours.clone().filter(|(.., stage)| *stage == Stage::Embryonic).count();
                assert_eq!(view.embryonic as usize, embryonic);
                assert_eq!(view.unclaimed as usize, ours.count() - embryonic);
            }
        }
    }
}

// ---- the naive accept ----

/// Creates a listener of two sessions that ask.
fn asking() -> (ConnMgr, ListenerId) {
    let mut cm = manager(0, 1);
    for session in [1, 2] {
        assert_eq!(cm.handle_bind(&bind(session, 7, 0, 80, false, false)), Ok(80));
        assert!(cm.handle_listen(&listen(session, 7, 0, 80, 8, false)).is_ok());
    }
    while cm.poll_directive().is_some() {}
    let listener = accepted(syn(&mut cm, ADDR, 80));
    (cm, listener)
}

fn told(cm: &mut ConnMgr) -> Vec<(u32, bool, bool)> {
    core::iter::from_fn(|| cm.poll_directive())
        .map(|directive| match directive {
            Directive::ConnectionsWait { session, lease: 7, waiting, answers } => {
                (session.0, waiting, answers)
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn who_asks_gets_the_connection_that_has_waited_longest_and_only_one() {
    let (mut cm, listener) = asking();
    for connection in [10, 11] {
        cm.handle_established(NOW, ConnectionId(connection), listener);
    }
    assert_eq!(told(&mut cm), [], "nobody has asked");
    assert!(cm.handle_ask(NOW, SessionId(2), 7, false));
    assert_eq!(told(&mut cm), [(2, true, true)]);
    for (session, connection) in [(2, 10), (1, 11)] {
        assert!(cm.handle_ask(NOW, SessionId(session), 7, true));
        let offers = offers(&mut cm);
        assert_eq!(offers.len(), 1);
        assert_eq!((offers[0].session, offers[0].connection), (SessionId(session), ConnectionId(connection)));
    }
    assert!(cm.handle_ask(NOW, SessionId(1), 7, true));
    assert_eq!(told(&mut cm), [(1, false, true)]);
    assert!(!cm.handle_ask(NOW, SessionId(3), 7, true), "it does not listen");
    assert!(!cm.handle_ask(NOW, SessionId(1), 8, true), "nor does it with this lease");
}

#[test]
fn of_those_who_were_told_none_one_hears_of_a_connection_and_all_if_it_does_not_come() {
    let (mut cm, listener) = asking();
    for session in [1, 2, 1] {
        assert!(cm.handle_ask(NOW, SessionId(session), 7, session == 2));
    }
    assert_eq!(told(&mut cm).len(), 3);
    cm.handle_established(NOW, ConnectionId(10), listener);
    assert_eq!(told(&mut cm), [(1, true, false)]);
    cm.handle_waits_long(listener);
    assert_eq!(told(&mut cm), [(2, true, false)]);
    cm.handle_waits_long(listener);
    assert_eq!(told(&mut cm), [], "each is told once");
}

#[test]
fn a_connection_that_comes_back_is_everybodys() {
    let (mut cm, listener) = asking();
    cm.handle_established(NOW, ConnectionId(10), listener);
    assert!(cm.handle_ask(NOW, SessionId(1), 7, true));
    assert_eq!(offers(&mut cm).len(), 1);
    assert!(cm.handle_ask(NOW, SessionId(1), 7, false) && cm.handle_ask(NOW, SessionId(2), 7, false));
    told(&mut cm);
    cm.handle_claim_timeout(NOW, ConnectionId(10), listener, SessionId(1), 7);
    assert_eq!(told(&mut cm), [(1, true, false), (2, true, false)]);
}

#[test]
fn who_stops_or_goes_is_not_told() {
    let (mut cm, listener) = asking();
    assert!(cm.handle_ask(NOW, SessionId(1), 7, true) && cm.handle_ask(NOW, SessionId(2), 7, true));
    told(&mut cm);
    cm.handle_stop_accepting(NOW, SessionId(1), 7);
    cm.handle_session_gone(SessionId(2));
    cm.handle_established(NOW, ConnectionId(10), listener);
    assert_eq!(told(&mut cm), []);
}

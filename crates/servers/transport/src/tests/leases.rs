//! Tests that no process uses a port without a grant, whatever it sends and to whichever replica.

use std::vec;
use std::vec::Vec;

use atoll_base::{Endpoint, Instant, ReplicaId};
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::lease::{NO_USER, Pass, Voucher};
use atoll_ipc::page::Stat;
use atoll_ipc::slot::SlotState;
use atoll_ipc::{Cause, Command, Event, SocketOption};

use crate::{Recovery, seal_pass};

use super::kit::{App, Net, Socket, Stack, addr};

const ARENA: ArenaConfig = ArenaConfig { slots: 64, send_log2: 16, receive_log2: 16 };
/// Replica 1 of two is the authority of this port.
const DNS: Endpoint = Endpoint::new(0, 53);

/// Creates two replicas of one stack, which exchange nothing.
fn replicas() -> Net {
    let replica = |n: u8| Stack::with(1, move |config| (config.replica, config.replicas) = (ReplicaId(n), 2));
    Net::new(vec![replica(0), replica(1).mortal()])
}

/// Attaches a process to both.
fn process(net: &mut Net, id: u32, uid: u32) -> [App; 2] {
    [0, 1].map(|n| App::attach_as(net.stack(n), id, User::privileged(uid), ARENA))
}

fn carry_out(net: &mut Net) {
    for stack in &mut net.stacks {
        stack.round(Instant::from_millis(1000));
        stack.out.outside.clear();
    }
}

fn bind(lease: u64, protocol: Protocol, local: Endpoint, reuse: bool) -> Command {
    Command::Bind {
        token: 1,
        lease,
        protocol,
        local,
        reuse_addr: reuse,
        reuse_port: false,
        v6_only: false,
        device: atoll_ipc::Device::None,
    }
}

fn listen(lease: u64, local: Endpoint) -> Command {
    Command::Listen {
        token: 2,
        lease,
        local,
        backlog: 5,
        reuse_port: false,
        defer_accept: 0,
        v6_only: false,
        hops_min: [0; 2],
    }
}

/// Returns the answer to a command.
fn answer(net: &mut Net, app: &mut App, command: Command) -> (Cause, Voucher) {
    app.raw().push(command);
    carry_out(net);
    match app.raw().events().pop() {
        Some(Event::BindReply { cause, voucher, .. } | Event::ListenReply { cause, voucher, .. }) => {
            (cause, voucher)
        }
        other => panic!("{other:?}"),
    }
}

fn show(lease: u64, protocol: Protocol, voucher: Voucher) -> Command {
    Command::Show { lease, protocol, local: DNS, voucher }
}

/// Opens a datagram socket at a replica. Returns it, and whether it is open.
fn open(net: &mut Net, app: &mut App, lease: u64, local: Endpoint) -> (Socket, bool) {
    let socket = app.raw().open_datagrams(lease, local);
    carry_out(net);
    let is_open = app.slot(socket).replica_generation() == 1 && app.state(socket).0 == SlotState::Open;
    (socket, is_open)
}

fn bad(net: &mut Net) -> [u64; 2] {
    [0, 1].map(|n| net.stack(n).stat(Stat::BadCommands))
}

#[test]
fn a_datagram_socket_without_a_grant_is_opened_nowhere() {
    let mut net = replicas();
    let mut owner = process(&mut net, 1, 33);
    let mut thief = process(&mut net, 2, 34);
    let (cause, voucher) = answer(&mut net, &mut owner[1], bind(7, Protocol::Udp, DNS, false));
    assert_eq!(cause, Cause::None);
    // The process shows nothing, and names another lease or the owner's; at the authority as well.
    for lease in [0, 5, 7] {
        assert!(!open(&mut net, &mut thief[0], lease, DNS).1 && !open(&mut net, &mut thief[1], lease, DNS).1);
    }
    assert_eq!(bad(&mut net), [3, 3]);
    // These are forged: what the owner has, with any change.
    for forged in [
        Voucher { seal: voucher.seal ^ 1, ..voucher },
        Voucher { uid: 34, ..voucher },
        Voucher { granted: voucher.granted + 1, ..voucher },
        Voucher { flags: voucher.flags ^ 2, ..voucher },
        Voucher::default(),
    ] {
        thief[0].raw().push(show(7, Protocol::Udp, forged));
        assert!(!open(&mut net, &mut thief[0], 7, DNS).1);
    }
    for (lease, protocol, local) in [
        (8, Protocol::Udp, DNS),
        (7, Protocol::Tcp, DNS),
        (7, Protocol::Udp, Endpoint::new(0, 55)),
        (7, Protocol::Udp, Endpoint::new(addr(1), 53)),
    ] {
        thief[0].raw().push(Command::Show { lease, protocol, local, voucher });
        assert!(!open(&mut net, &mut thief[0], lease, local).1);
    }
    assert_eq!(bad(&mut net), [3 + 2 * 9, 3]);
    // A process's own grant is good for itself only.
    let (_, own) = answer(&mut net, &mut thief[1], bind(9, Protocol::Udp, Endpoint::new(0, 55), false));
    thief[0].raw().push(Command::Show {
        lease: 9,
        protocol: Protocol::Udp,
        local: Endpoint::new(0, 55),
        voucher: own,
    });
    assert!(!open(&mut net, &mut thief[0], 9, DNS).1);
    assert!(open(&mut net, &mut thief[0], 9, Endpoint::new(0, 55)).1);
    // The owner shows its grant, and no other process took its place.
    owner[0].raw().push(show(7, Protocol::Udp, voucher));
    let (socket, is_open) = open(&mut net, &mut owner[0], 7, DNS);
    assert!(is_open && open(&mut net, &mut owner[1], 7, DNS).1);
    // An open socket gets no other port by being opened once more.
    let before = bad(&mut net);
    owner[0].raw().open_datagrams_in(socket, 7, Endpoint::new(0, 57));
    carry_out(&mut net);
    assert_eq!((bad(&mut net)[0], owner[0].slot(socket).local()), (before[0] + 1, DNS));
}

#[test]
fn who_keeps_a_port_that_he_has_released_is_expelled_by_its_next_holder() {
    let mut net = replicas();
    let mut first = process(&mut net, 1, 33);
    let mut second = process(&mut net, 2, 34);
    let (_, old) = answer(&mut net, &mut first[1], bind(7, Protocol::Udp, DNS, false));
    first[0].raw().push(show(7, Protocol::Udp, old));
    let (kept, is_open) = open(&mut net, &mut first[0], 7, DNS);
    assert!(is_open && open(&mut net, &mut first[1], 7, DNS).1);
    assert_eq!(answer(&mut net, &mut second[1], bind(8, Protocol::Udp, DNS, false)).0, Cause::AddressInUse);
    // The owner releases the port at its authority, and stays everywhere.
    first[1].raw().push(Command::Release { lease: 7 });
    let (cause, new) = answer(&mut net, &mut second[1], bind(8, Protocol::Udp, DNS, false));
    assert_eq!(cause, Cause::None);
    second[0].raw().push(show(8, Protocol::Udp, new));
    let opened = [0, 1].map(|n| open(&mut net, &mut second[n], 8, DNS));
    assert!(opened[0].1 && opened[1].1);
    assert_eq!(first[0].state(kept).0, SlotState::Free);
    // An old grant stays old.
    let before = bad(&mut net);
    first[0].raw().push(show(7, Protocol::Udp, old));
    assert!(!open(&mut net, &mut first[0], 7, DNS).1 && !open(&mut net, &mut first[1], 7, DNS).1);
    assert_eq!(bad(&mut net), [before[0] + 1, before[1] + 1]);
    // A datagram goes to the process that has the port.
    let mut net = Net { stacks: vec![net.stacks.remove(0), Stack::new(2)], ..replicas() };
    let mut client = App::attach(net.stack(1), 3);
    let c = client.open_datagrams(&mut net, Endpoint::new(0, 5000), Endpoint::new(addr(1), 53));
    client.send(c, Endpoint::default(), b"question");
    net.settle();
    assert!(second[0].slot(opened[0].0).receive_tail() > 0, "it has the question");
    assert_eq!(first[0].slot(kept).receive_tail(), 0);
}

/// udp_lib_lport_inuse. ntpd sets SO_REUSEADDR on what it has bound, binds other sockets, and clears it
/// again.
#[test]
fn who_may_have_a_port_follows_so_reuseaddr_after_bind_and_a_successor_knows_it() {
    let mut net = replicas();
    let [mut first, mut second] = [1, 2].map(|id| process(&mut net, id, 33));
    let set = |net: &mut Net, app: &mut App, value| {
        app.raw().push(Command::SetListenerOption { lease: 7, option: SocketOption::ReuseAddr, value });
        carry_out(net);
    };
    let bind = |lease, reuse| bind(lease, Protocol::Udp, DNS, reuse);
    let (_, old) = answer(&mut net, &mut first[1], bind(7, false));
    first[0].raw().push(show(7, Protocol::Udp, old));
    let kept = [0, 1].map(|n| open(&mut net, &mut first[n], 7, DNS).0);
    assert_eq!(answer(&mut net, &mut second[1], bind(8, true)).0, Cause::AddressInUse);
    set(&mut net, &mut first[1], 1);
    assert_eq!(answer(&mut net, &mut second[1], bind(8, false)).0, Cause::AddressInUse);
    let (cause, new) = answer(&mut net, &mut second[1], bind(8, true));
    assert_eq!(cause, Cause::None);
    second[0].raw().push(show(8, Protocol::Udp, new));
    assert!([0, 1].into_iter().all(|n| open(&mut net, &mut second[n], 8, DNS).1));
    // Replica 0 has only seen the grant from before.
    assert_eq!([0, 1].map(|n| first[n].state(kept[n]).0), [SlotState::Open; 2]);
    set(&mut net, &mut first[1], 0);
    let now = Instant::from_millis(1000);
    net.stack(1).restart(now, &[&first[1], &second[1]], Recovery::Stateful);
    carry_out(&mut net);
    // Both have their leases, and the last value counts.
    assert_eq!(answer(&mut net, &mut second[1], bind(8, true)).0, Cause::None);
    assert_eq!(answer(&mut net, &mut second[1], bind(9, true)).0, Cause::AddressInUse);
    set(&mut net, &mut first[1], 1);
    assert_eq!(answer(&mut net, &mut second[1], bind(9, true)).0, Cause::None);
    assert_eq!(first[1].state(kept[1]).0, SlotState::Open);
    // Nobody sets it for a socket of others.
    let before = bad(&mut net);
    set(&mut net, &mut second[1], 0);
    assert_eq!(bad(&mut net), [before[0], before[1] + 1]);
    assert_eq!(answer(&mut net, &mut second[1], bind(10, true)).0, Cause::None);
}

#[test]
fn who_listens_at_the_authority_listens_everywhere_and_nobody_else() {
    let mut net = replicas();
    let mut owner = process(&mut net, 1, 33);
    let mut other = process(&mut net, 2, 33);
    let local = DNS;
    // Both may be bound, because neither listens (SO_REUSEADDR).
    let (_, bound) = answer(&mut net, &mut other[1], bind(8, Protocol::Tcp, local, true));
    answer(&mut net, &mut owner[1], bind(7, Protocol::Tcp, local, true));
    let (cause, listens) = answer(&mut net, &mut owner[1], listen(7, local));
    assert_eq!(cause, Cause::None);
    // The other process asks where the owner has not been yet.
    other[0].raw().push(show(8, Protocol::Tcp, bound));
    assert_eq!(answer(&mut net, &mut other[0], listen(8, local)).0, Cause::Invalid);
    other[0].raw().push(show(8, Protocol::Tcp, Voucher { flags: bound.flags | 8, ..bound }));
    assert_eq!(answer(&mut net, &mut other[0], listen(8, local)).0, Cause::Invalid);
    assert_eq!(answer(&mut net, &mut other[0], listen(7, local)).0, Cause::Invalid, "nor by another's lease");
    assert_eq!(answer(&mut net, &mut other[1], listen(8, local)).0, Cause::AddressInUse);
    owner[0].raw().push(show(7, Protocol::Tcp, listens));
    assert_eq!(answer(&mut net, &mut owner[0], listen(7, local)).0, Cause::None);
    assert_eq!(bad(&mut net), [4, 0]);
    // The owner releases the port at the authority, and remains elsewhere, until the next holder comes.
    owner[1].raw().push(Command::Release { lease: 7 });
    let (cause, listens) = answer(&mut net, &mut other[1], listen(8, local));
    assert_eq!(cause, Cause::None);
    other[0].raw().push(show(8, Protocol::Tcp, listens));
    assert_eq!(answer(&mut net, &mut other[0], listen(8, local)).0, Cause::None);
    owner[0].raw().push(Command::AcceptConnection { lease: 7 });
    carry_out(&mut net);
    assert_eq!(bad(&mut net), [5, 0], "it listens no more");
}

#[test]
fn a_connection_leaves_from_a_port_of_ones_own_only() {
    let mut net = replicas();
    let mut owner = process(&mut net, 1, 33);
    let mut thief = process(&mut net, 2, 34);
    let (_, voucher) = answer(&mut net, &mut owner[1], bind(7, Protocol::Tcp, DNS, true));
    let local = Endpoint::new(addr(1), 53);
    let connect_from = |net: &mut Net, app: &mut App, lease, local| {
        let socket = app.raw().connect(lease, local, Endpoint::new(addr(2), 80));
        carry_out(net);
        app.state(socket)
    };
    let connect = |net: &mut Net, app: &mut App, lease| connect_from(net, app, lease, local);
    for n in [0, 1] {
        assert_eq!(connect(&mut net, &mut thief[n], 7).1, Cause::Invalid);
    }
    assert_eq!(bad(&mut net), [1, 1]);
    owner[0].raw().push(show(7, Protocol::Tcp, voucher));
    // All flow groups are the replica's own here.
    let (state, cause, _) = connect(&mut net, &mut owner[0], 7);
    assert_eq!((state, cause), (SlotState::Connecting, Cause::None));
    let (state, cause, _) = connect(&mut net, &mut owner[1], 7);
    assert_eq!((state, cause), (SlotState::Connecting, Cause::None));
    assert_eq!(bad(&mut net), [1, 1]);
    // The grant does not allow another port either.
    for n in [0, 1] {
        let (_, cause, _) = connect_from(&mut net, &mut owner[n], 7, Endpoint::new(addr(1), 55));
        assert_eq!(cause, Cause::Invalid);
    }
    assert_eq!(bad(&mut net), [2, 2]);
}

#[test]
fn what_was_shown_outlives_the_replica_until_something_else_is() {
    let replica = |n: u8| Stack::with(1, move |config| (config.replica, config.replicas) = (ReplicaId(n), 2));
    let mut net = Net::new(vec![replica(0).mortal(), replica(1)]);
    let mut app = process(&mut net, 1, 33);
    let die = |net: &mut Net, app: &App| {
        let _ = net.stack(0).restart(Instant::from_millis(1000), &[app], Recovery::Stateful);
    };
    let (_, first) = answer(&mut net, &mut app[1], bind(7, Protocol::Udp, DNS, false));
    app[0].raw().push(show(7, Protocol::Udp, first));
    carry_out(&mut net);
    die(&mut net, &app[0]);
    assert!(open(&mut net, &mut app[0], 7, DNS).1, "it needs not be shown again");
    // A grant in use stays behind the one that is shown next; an unused one goes.
    for (lease, port) in [(8, 55), (9, 57)] {
        let local = Endpoint::new(0, port);
        let (_, voucher) = answer(&mut net, &mut app[1], bind(lease, Protocol::Udp, local, false));
        app[0].raw().push(Command::Show { lease, protocol: Protocol::Udp, local, voucher });
        carry_out(&mut net);
    }
    die(&mut net, &app[0]);
    assert!(!open(&mut net, &mut app[0], 8, Endpoint::new(0, 55)).1);
    assert!(open(&mut net, &mut app[0], 9, Endpoint::new(0, 57)).1);
    let mut thief = process(&mut net, 2, 34);
    assert!(!open(&mut net, &mut thief[0], 7, DNS).1);
}

#[test]
fn low_ports_are_refused_to_who_may_not_have_them() {
    let mut net = Net::new(vec![Stack::new(1)]);
    let ports = [(53, 53), (0, 0), (0, 0), (0, 0)];
    let user = User { uid: 33, unprivileged_start: 1024, ports, counts_for: Some(33) };
    let mut app = App::attach_as(net.stack(0), 1, user, ARENA);
    let mut root = App::attach(net.stack(0), 2);
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let lease = protocol as u64;
        let at = |port| bind(lease + u64::from(port) * 100, protocol, Endpoint::new(0, port), false);
        assert_eq!(answer(&mut net, &mut app, at(80)).0, Cause::PermissionDenied);
        assert_eq!(answer(&mut net, &mut app, at(53)).0, Cause::None);
        assert_eq!(answer(&mut net, &mut app, at(1024)).0, Cause::None);
        assert_eq!(answer(&mut net, &mut app, at(0)).0, Cause::None);
        assert_eq!(answer(&mut net, &mut root, at(80)).0, Cause::None);
        // A process that has inherited the socket has it.
        assert_eq!(answer(&mut net, &mut app, at(80)).0, Cause::None);
    }
    assert_eq!(net.stack(0).stat(Stat::BadCommands), 0, "it may ask");
}

#[test]
fn datagram_sockets_of_two_users_share_nothing_that_comes() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut apps = [(1, 33), (2, 33), (3, 34)]
        .map(|(id, uid)| App::attach_as(net.stack(0), id, User::privileged(uid), ARENA));
    let reuse_port = true;
    let local = DNS;
    let mut causes = Vec::new();
    for (lease, app) in (1..).zip(&mut apps) {
        let protocol = Protocol::Udp;
        let (token, reuse_addr, v6_only) = (1, false, false);
        app.raw().push(Command::Bind {
            token,
            lease,
            protocol,
            local,
            reuse_addr,
            reuse_port,
            v6_only,
            device: atoll_ipc::Device::None,
        });
        net.stack(0).round(Instant::from_millis(1000));
        causes.extend(app.raw().events().into_iter().map(|reply| match reply {
            Event::BindReply { cause, .. } => cause,
            other => panic!("{other:?}"),
        }));
    }
    assert_eq!(causes, [Cause::None, Cause::None, Cause::AddressInUse]);
}

/// Returns the command that shows a pass of the supervisor.
fn pass(lease: u64, uid: u32, protocol: Protocol, port: u16) -> Command {
    let pass = Pass { lease, uid, protocol, port };
    // All servers of the kit have this key.
    Command::Pass { pass, seal: seal_pass(&[9; 16], &pass) }
}

fn bind_shared(lease: u64, protocol: Protocol, local: Endpoint) -> Command {
    Command::Bind {
        token: 1,
        lease,
        protocol,
        local,
        reuse_addr: false,
        reuse_port: true,
        v6_only: false,
        device: atoll_ipc::Device::None,
    }
}

/// Attaches sessions of which nothing is known, as the supervisor opens them.
fn sessions(net: &mut Net) -> [App; 2] {
    [1, 2].map(|id| App::attach_as(net.stack(0), id, User::anybody(1024), ARENA))
}

#[test]
fn a_session_has_of_a_user_what_the_supervisor_says_and_for_that_socket_only() {
    let mut net = Net::new(vec![Stack::new(1)]);
    let [mut first, mut second] = sessions(&mut net);
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let n = u64::from(protocol as u8) * 100;
        let http = Endpoint::new(0, 80);
        // Without a pass there is no low port, and nothing is shared, not even between sessions that are as
        // unknown.
        assert_eq!(
            answer(&mut net, &mut first, bind_shared(n + 1, protocol, http)).0,
            Cause::PermissionDenied
        );
        let high = Endpoint::new(0, 8080);
        assert_eq!(answer(&mut net, &mut first, bind_shared(n + 2, protocol, high)).0, Cause::None);
        assert_eq!(answer(&mut net, &mut second, bind_shared(n + 3, protocol, high)).0, Cause::AddressInUse);
        assert_eq!(answer(&mut net, &mut first, bind_shared(n + 4, protocol, high)).0, Cause::AddressInUse);
        // The passes are for another socket, another port, the other protocol, or no port.
        for (lease, other, port) in [(n + 9, protocol, 80), (n + 5, protocol, 81), (n + 5, protocol, 0)] {
            first.raw().push(pass(lease, 33, other, port));
            assert_eq!(
                answer(&mut net, &mut first, bind_shared(n + 5, protocol, http)).0,
                Cause::PermissionDenied
            );
        }
        let other = if protocol == Protocol::Tcp { Protocol::Udp } else { Protocol::Tcp };
        first.raw().push(pass(n + 6, 33, other, 80));
        assert_eq!(
            answer(&mut net, &mut first, bind_shared(n + 6, protocol, http)).0,
            Cause::PermissionDenied
        );
        first.raw().push(pass(n + 7, 33, protocol, 80));
        let (cause, voucher) = answer(&mut net, &mut first, bind_shared(n + 7, protocol, http));
        assert_eq!((cause, voucher.uid), (Cause::None, 33));
        // The first user is another, and the second is the same one.
        for (lease, uid, cause) in [
            (n + 10, 34, Cause::AddressInUse),
            (n + 11, NO_USER, Cause::AddressInUse),
            (n + 12, 33, Cause::None),
        ] {
            second.raw().push(pass(lease, uid, protocol, 80));
            assert_eq!(answer(&mut net, &mut second, bind_shared(lease, protocol, http)).0, cause, "{uid}");
        }
        // Of two passes for one socket the first decides whose it is, and the last which port it may have.
        second.raw().push(pass(n + 13, 34, protocol, 0));
        second.raw().push(pass(n + 13, 33, protocol, 80));
        assert_eq!(answer(&mut net, &mut second, bind_shared(n + 13, protocol, http)).0, Cause::AddressInUse);
        second.raw().push(pass(n + 14, 33, protocol, 0));
        second.raw().push(pass(n + 14, 34, protocol, 80));
        assert_eq!(answer(&mut net, &mut second, bind_shared(n + 14, protocol, http)).0, Cause::None);
    }
    assert_eq!(net.stack(0).stat(Stat::BadCommands), 0, "they may ask");
}

#[test]
fn what_a_session_says_itself_of_its_user_counts_for_nothing() {
    let mut net = Net::new(vec![Stack::new(1)]);
    let [mut owner, mut thief] = sessions(&mut net);
    let http = Endpoint::new(0, 80);
    owner.raw().push(pass(7, 0, Protocol::Tcp, 80));
    let (cause, voucher) = answer(&mut net, &mut owner, bind_shared(7, Protocol::Tcp, http));
    assert_eq!(cause, Cause::None);
    let own = Pass { lease: 8, uid: 34, protocol: Protocol::Tcp, port: 0 };
    let seal = seal_pass(&[9; 16], &own);
    let forged = [
        (Pass { uid: 0, port: 80, ..own }, seal),
        (Pass { port: 80, ..own }, seal),
        (Pass { uid: 0, ..own }, 0),
        (Pass { uid: 0, port: 80, ..own }, voucher.seal),
        (Pass { uid: 0, port: 80, ..own }, seal_pass(&[8; 16], &Pass { uid: 0, port: 80, ..own })),
    ];
    for (pass, seal) in forged {
        thief.raw().push(Command::Pass { pass, seal });
        assert_eq!(
            answer(&mut net, &mut thief, bind_shared(8, Protocol::Tcp, http)).0,
            Cause::PermissionDenied
        );
    }
    assert_eq!(net.stack(0).stat(Stat::BadCommands), forged.len() as u64);
    // The owner's grant is shown for a socket of the thief's own, and for the other protocol.
    for (lease, protocol) in [(8, Protocol::Tcp), (7, Protocol::Udp)] {
        thief.raw().push(Command::Show { lease, protocol, local: http, voucher });
        assert_eq!(answer(&mut net, &mut thief, bind_shared(9, protocol, http)).0, Cause::PermissionDenied);
    }
    thief.raw().push(Command::Show { lease: 7, protocol: Protocol::Tcp, local: http, voucher });
    assert_eq!(answer(&mut net, &mut thief, bind_shared(9, Protocol::Tcp, http)).0, Cause::PermissionDenied);
}

/// This holds for a bound socket, for a listener that was shared only when it listened, and for a death
/// between a pass and the command that it was for.
#[test]
fn a_successor_knows_whose_each_socket_is() {
    let mut net = Net::new(vec![Stack::new(1).mortal()]);
    let [mut first, mut second] = sessions(&mut net);
    let die = |net: &mut Net, apps: &[&App]| {
        let _ = net.stack(0).restart(Instant::from_millis(1000), apps, Recovery::Stateful);
    };
    let (http, dns, high) = (Endpoint::new(0, 80), DNS, Endpoint::new(0, 8080));
    first.raw().push(pass(1, 33, Protocol::Tcp, 80));
    let (cause, voucher) = answer(&mut net, &mut first, bind_shared(1, Protocol::Tcp, http));
    assert_eq!(cause, Cause::None);
    first.raw().push(pass(2, 33, Protocol::Udp, 53));
    assert_eq!(answer(&mut net, &mut first, bind_shared(2, Protocol::Udp, dns)).0, Cause::None);
    assert_eq!(answer(&mut net, &mut first, bind(3, Protocol::Tcp, high, true)).0, Cause::None);
    assert_eq!(answer(&mut net, &mut second, bind(13, Protocol::Tcp, high, true)).0, Cause::None);
    let shared = |lease| Command::Listen {
        token: 2,
        lease,
        local: high,
        backlog: 5,
        reuse_port: true,
        defer_accept: 0,
        v6_only: false,
        hops_min: [0; 2],
    };
    first.raw().push(pass(3, 33, Protocol::Tcp, 0));
    assert_eq!(answer(&mut net, &mut first, shared(3)).0, Cause::None);
    second.raw().push(pass(11, 33, Protocol::Tcp, 80));
    carry_out(&mut net);
    die(&mut net, &[&first, &second]);
    assert_eq!(answer(&mut net, &mut second, bind_shared(11, Protocol::Tcp, http)).0, Cause::None);
    for uid in [34, 33] {
        let expected = if uid == 33 { Cause::None } else { Cause::AddressInUse };
        let lease = |n: u64| n + u64::from(uid) * 100;
        second.raw().push(pass(lease(1), uid, Protocol::Udp, 53));
        assert_eq!(answer(&mut net, &mut second, bind_shared(lease(1), Protocol::Udp, dns)).0, expected);
        second.raw().push(pass(lease(2), uid, Protocol::Tcp, 80));
        assert_eq!(answer(&mut net, &mut second, bind_shared(lease(2), Protocol::Tcp, http)).0, expected);
    }
    second.raw().push(pass(13, 33, Protocol::Tcp, 0));
    assert_eq!(answer(&mut net, &mut second, shared(13)).0, Cause::None);
    // The library shows all that it has when there is a new incarnation: later grants do not make the first
    // forgotten.
    first.raw().push(Command::Show { lease: 1, protocol: Protocol::Tcp, local: http, voucher });
    assert_eq!(answer(&mut net, &mut first, bind_shared(1, Protocol::Tcp, http)).0, Cause::None);
    let (cause, voucher) =
        answer(&mut net, &mut first, bind(4, Protocol::Tcp, Endpoint::new(0, 8081), false));
    assert_eq!(cause, Cause::None);
    first.raw().push(Command::Show {
        lease: 4,
        protocol: Protocol::Tcp,
        local: Endpoint::new(0, 8081),
        voucher,
    });
    carry_out(&mut net);
    // So does the incarnation after that.
    die(&mut net, &[&first, &second]);
    first.raw().push(pass(21, 34, Protocol::Tcp, 80));
    assert_eq!(answer(&mut net, &mut first, bind_shared(21, Protocol::Tcp, http)).0, Cause::AddressInUse);
    first.raw().push(pass(22, 33, Protocol::Tcp, 80));
    assert_eq!(answer(&mut net, &mut first, bind_shared(22, Protocol::Tcp, http)).0, Cause::None);
}

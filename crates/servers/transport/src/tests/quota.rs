//! Tests of what one application can make grow, and how long it can delay others.

use std::vec;
use std::vec::Vec;

use atoll_base::{Duration, Endpoint};
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{REPLICA_CLOSED, SlotState};
use atoll_ipc::{Cause, Command, Event, SocketOption};

use super::kit::{ARENA, App, Net, Socket, Stack, addr};
use crate::{Quota, Recovery};

const GROUP: u32 = 0xefff_0102;

fn group(app: &mut App, socket: Socket, group: u32, joins: bool) {
    let Socket { slot, generation } = socket;
    app.raw().push(Command::Group { slot, generation, group: group.into(), inside: false, joins, token: 0 });
}

/// Returns the number of requests in force.
fn kept(stack: &Stack) -> usize {
    stack.transport.requests_in_force()
}

fn restart(net: &mut Net, apps: &[&App]) {
    let now = net.now;
    net.stack(0).restart(now, apps, Recovery::Stateful);
    net.settle();
}

fn is_member(net: &mut Net, group: u32) -> bool {
    net.stack(0).transport.ip_mut().is_member(atoll_ip::Link::Outside, group)
}

#[test]
fn groups_that_were_left_or_never_joined_are_not_kept() {
    let mut net = Net::new(vec![Stack::new(1).mortal()]);
    let mut app = App::attach(net.stack(0), 1);
    let socket = app.open_datagrams(&mut net, Endpoint::new(0, 5353), Endpoint::default());
    group(&mut app, socket, GROUP, true);
    net.settle();
    let before = kept(net.stack(0));
    for n in 1..3000 {
        // One group is joined and left again, one is only left, one is no group.
        group(&mut app, socket, GROUP + n, true);
        group(&mut app, socket, GROUP + n, false);
        group(&mut app, socket, GROUP + 5000 + n, false);
        group(&mut app, socket, addr(9) + n, true);
        // The commands come as fast as they may.
        net.now += Duration::from_micros(200);
        net.step();
    }
    net.wait(Duration::from_millis(25));
    assert_eq!(kept(net.stack(0)), before);
    // More than one socket may join.
    for n in 1..300 {
        group(&mut app, socket, GROUP + n, true);
    }
    net.wait(Duration::from_millis(25));
    assert_eq!(kept(net.stack(0)), before + 19);
    restart(&mut net, &[&app]);
    assert_eq!(kept(net.stack(0)), before + 19);
    assert!(
        is_member(&mut net, GROUP) && is_member(&mut net, GROUP + 19) && !is_member(&mut net, GROUP + 20)
    );
    // A group that was left does not come back.
    group(&mut app, socket, GROUP + 19, false);
    net.settle();
    restart(&mut net, &[&app]);
    assert!(is_member(&mut net, GROUP) && !is_member(&mut net, GROUP + 19));
    app.close(socket);
    net.settle();
    assert_eq!(kept(net.stack(0)), 0);
}

#[test]
fn one_that_joins_and_leaves_all_the_time_keeps_nobody_from_joining() {
    let mut net = Net::new(vec![Stack::new(1)]);
    let mut greedy = App::attach(net.stack(0), 1);
    let mut other = App::attach(net.stack(0), 2);
    let its = greedy.open_datagrams(&mut net, Endpoint::new(0, 5353), Endpoint::default());
    let own = other.open_datagrams(&mut net, Endpoint::new(0, 5354), Endpoint::default());
    for n in 1..3000 {
        group(&mut greedy, its, GROUP + n, true);
        group(&mut greedy, its, GROUP + n, false);
        // The commands come as fast as they may.
        net.now += Duration::from_micros(100);
        net.step();
    }
    group(&mut other, own, GROUP, true);
    net.step();
    assert!(is_member(&mut net, GROUP));
}

#[test]
fn what_is_refused_and_memberships_are_paced_and_others_are_not_held_up() {
    let mut net = Net::new(vec![Stack::new(1)]);
    let mut greedy = App::attach(net.stack(0), 1);
    let mut other = App::attach(net.stack(0), 2);
    let its = greedy.open_datagrams(&mut net, Endpoint::new(0, 5353), Endpoint::default());
    let own = other.open_datagrams(&mut net, Endpoint::new(0, 5354), Endpoint::default());
    net.settle();
    let joins = |greedy: &mut App, n: u32| group(greedy, its, GROUP + n / 2, n.is_multiple_of(2));
    // These are for a group that the socket is not in, and for a socket that does not exist.
    let leaves = |greedy: &mut App, n: u32| group(greedy, its, GROUP + n, false);
    let nothing =
        |greedy: &mut App, n: u32| greedy.raw().push(Command::Kick { slot: its.slot, generation: 2 + n });
    type Say<'a> = &'a dyn Fn(&mut App, u32);
    for say in [&joins as Say<'_>, &leaves, &nothing] {
        let before = net.stack(0).stat(Stat::Commands);
        let taken = |net: &mut Net| net.stack(0).stat(Stat::Commands) - before;
        (0..600).for_each(|n| say(&mut greedy, n));
        let now = net.now;
        net.stack(0).round(now);
        net.stack(0).round(now);
        assert_eq!(taken(&mut net), 256);
        // Commands that have not come yet are no reason to stay awake, and wake the replica later.
        let transport = &net.stack(0).transport;
        assert!(!transport.has_commands() && !transport.is_behind());
        let due = transport.next_timeout().expect("they are taken later");
        assert!(due > now && due <= now + Duration::from_millis(10));
        group(&mut other, own, GROUP, true);
        net.stack(0).round(now);
        assert!(is_member(&mut net, GROUP));
        group(&mut other, own, GROUP, false);
        net.wait(Duration::from_millis(25));
        assert_eq!(taken(&mut net), 602);
        net.wait(Duration::from_millis(25));
    }
    // A session that ends is cleaned up after at once.
    (0..600).for_each(|n| joins(&mut greedy, n));
    let now = net.now;
    net.stack(0).round(now);
    net.stack(0).transport.close_session(now, greedy.id);
    (0..10).for_each(|_| net.stack(0).round(now));
    assert_eq!(net.stack(0).transport.take_ended(), [greedy.id]);
}

#[test]
fn a_bind_to_a_port_with_many_leases_costs_a_look_at_each() {
    let mut net = Net::new(vec![Stack::new(1)]);
    let mut app = App::attach(net.stack(0), 1);
    let ask = |app: &mut App, lease: u64| {
        app.raw().bind(lease, Protocol::Udp, Endpoint::new(0, 5353), true);
    };
    // This is how many are carried out in a round.
    let taken = |net: &mut Net, app: &mut App, first: u64| {
        (first..first + 100).for_each(|lease| ask(app, lease));
        let before = net.stack(0).stat(Stat::Commands);
        let now = net.now;
        net.stack(0).transport.handle_commands(now, 512);
        let taken = net.stack(0).stat(Stat::Commands) - before;
        net.settle();
        net.settle();
        app.poll();
        taken
    };
    assert!((30..=64).contains(&taken(&mut net, &mut app, 1)));
    for first in (1000..6000).step_by(100) {
        taken(&mut net, &mut app, first);
    }
    assert!((1..4).contains(&taken(&mut net, &mut app, 7000)));
}

#[test]
fn options_that_a_socket_does_not_have_are_not_kept() {
    let mut net = Net::new(vec![Stack::new(1).mortal()]);
    let mut app = App::attach(net.stack(0), 1);
    let Socket { slot, generation } =
        app.open_datagrams(&mut net, Endpoint::new(0, 5353), Endpoint::default());
    app.listen_only(&mut net, 77, Endpoint::new(0, 80), 16);
    let before = kept(net.stack(0));
    let bad = net.stack(0).stat(Stat::BadCommands);
    for n in 0..=255 {
        let Some(option) = SocketOption::from_u8(n) else { continue };
        // The first options are for connections only; the second are not for listeners.
        if matches!(option, SocketOption::NoDelay | SocketOption::KeepAlive | SocketOption::Linger2) {
            app.raw().push(Command::SetOption { slot, generation, option, value: 1 });
        }
        if matches!(option, SocketOption::MtuDiscover | SocketOption::DontFragmentV6) {
            app.raw().push(Command::SetListenerOption { lease: 77, option, value: 1 });
        }
    }
    net.settle();
    assert_eq!(kept(net.stack(0)), before);
    assert_eq!(net.stack(0).stat(Stat::BadCommands) - bad, 5);
    // Setting an option again replaces its first value.
    for value in [8, 9, 10] {
        app.raw().push(Command::SetOption { slot, generation, option: SocketOption::TypeOfService, value });
        app.raw().push(Command::SetListenerOption { lease: 77, option: SocketOption::TypeOfService, value });
    }
    net.settle();
    assert_eq!(kept(net.stack(0)), before + 2);
}

/// Creates a stack whose sessions may have little.
fn frugal(quota: Quota) -> Net {
    Net::new(vec![Stack::with(1, |config| config.quota = quota).mortal(), Stack::new(2)])
}

const LITTLE: Quota =
    Quota { requests: 12, leases: 3, listeners: 2, datagram_sockets: 4, groups: 3, sockets: u32::MAX };

fn bind(app: &mut App, lease: u64, port: u16) {
    app.raw().bind(lease, Protocol::Tcp, Endpoint::new(0, port), false);
}

fn listen(app: &mut App, lease: u64, port: u16) {
    app.raw().listen(lease, Endpoint::new(0, port), 16);
}

fn causes(app: &mut App) -> Vec<Cause> {
    let cause = |event: Event| match event {
        Event::BindReply { cause, .. }
        | Event::ListenReply { cause, .. }
        | Event::GroupReply { cause, .. } => Some(cause),
        _ => None,
    };
    app.raw().events().into_iter().filter_map(cause).collect()
}

#[test]
fn ports_and_listeners_of_a_session_are_bounded_and_it_hears_so() {
    let mut net = frugal(LITTLE);
    let mut greedy = App::attach(net.stack(0), 1);
    let mut other = App::attach(net.stack(0), 2);
    (1..=5).for_each(|n| bind(&mut greedy, n, 80 + n as u16));
    net.settle();
    let (good, full) = (Cause::None, Cause::NoBuffers);
    assert_eq!(causes(&mut greedy), [good, good, good, full, full]);
    (1..=3).for_each(|n| listen(&mut greedy, n, 80 + n as u16));
    // A repeated request is not one more.
    (1..=2).for_each(|n| listen(&mut greedy, n, 80 + n as u16));
    net.settle();
    assert_eq!(causes(&mut greedy), [good, good, full, good, good]);
    bind(&mut other, 9, 89);
    listen(&mut other, 9, 89);
    net.settle();
    assert_eq!(causes(&mut other), [good, good], "others have their own");
    // What was given back can be had again.
    greedy.raw().push(Command::Release { lease: 1 });
    bind(&mut greedy, 4, 84);
    listen(&mut greedy, 4, 84);
    net.settle();
    assert_eq!(causes(&mut greedy), [good, good]);
    restart(&mut net, &[&greedy, &other]);
    bind(&mut greedy, 5, 85);
    listen(&mut greedy, 3, 83);
    net.settle();
    assert_eq!(causes(&mut greedy), [full, full], "also after a death");
}

/// Creates a stack whose users may have little together, and sessions as usual.
fn frugal_to_users(user_quota: Quota) -> Net {
    Net::new(vec![Stack::with(1, |config| config.user_quota = user_quota).mortal(), Stack::new(2)])
}

fn user(uid: u32) -> User {
    User { counts_for: Some(uid), ..User::privileged(uid) }
}

#[test]
fn what_all_sessions_of_a_user_have_is_bounded_and_others_have_their_own() {
    let mut net = frugal_to_users(Quota { requests: 100, ..LITTLE });
    let mut attach = |id, user| App::attach_as(net.stack(0), id, user, ARENA);
    let (mut first, mut second) = (attach(1, user(33)), attach(2, user(33)));
    let (mut other, mut root) = (attach(3, user(34)), attach(4, User::privileged(0)));
    let (good, full) = (Cause::None, Cause::NoBuffers);
    (1..=2).for_each(|n| bind(&mut first, n, 80 + n as u16));
    net.settle();
    (3..=4).for_each(|n| bind(&mut second, n, 80 + n as u16));
    net.settle();
    assert_eq!((causes(&mut first), causes(&mut second)), (vec![good, good], vec![good, full]));
    listen(&mut first, 1, 81);
    listen(&mut first, 2, 82);
    net.settle();
    listen(&mut second, 3, 83);
    net.settle();
    assert_eq!((causes(&mut first), causes(&mut second)), (vec![good, good], vec![full]));
    (10..=12).for_each(|n| bind(&mut other, n, 80 + n as u16));
    (20..=25).for_each(|n| bind(&mut root, n, 80 + n as u16));
    net.settle();
    assert_eq!((causes(&mut other), causes(&mut root)), (vec![good; 3], vec![good; 6]));
    restart(&mut net, &[&first, &second, &other, &root]);
    bind(&mut second, 4, 84);
    net.settle();
    assert_eq!(causes(&mut second), [full], "also after a death");
    // What one session gives back the other one can have, and so it is with one that ends.
    first.raw().push(Command::Release { lease: 1 });
    net.settle();
    bind(&mut second, 4, 84);
    net.settle();
    assert_eq!(causes(&mut second), [good]);
    let now = net.now;
    net.stack(0).transport.close_session(now, first.id);
    net.settle();
    (5..=6).for_each(|n| bind(&mut second, n, 80 + n as u16));
    net.settle();
    assert_eq!(causes(&mut second), [good, full]);
}

#[test]
fn sockets_and_groups_of_a_user_are_bounded_and_he_hears_so() {
    let mut net = frugal_to_users(Quota { requests: 100, leases: 100, sockets: 6, ..LITTLE });
    let mut attach = |id, user| App::attach_as(net.stack(0), id, user, ARENA);
    let (mut first, mut second) = (attach(1, user(33)), attach(2, user(33)));
    let mut root = attach(4, User::privileged(0));
    let mut server = App::attach(net.stack(1), 9);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 100);
    let datagrams: Vec<Socket> = (0..3)
        .map(|n| first.open_datagrams(&mut net, Endpoint::new(0, 5000 + n), Endpoint::default()))
        .collect();
    net.settle();
    let more: Vec<Socket> = (3..5)
        .map(|n| second.open_datagrams(&mut net, Endpoint::new(0, 5000 + n), Endpoint::default()))
        .collect();
    net.settle();
    assert_eq!(second.state(more[0]), (SlotState::Open, Cause::None, 0));
    assert_eq!(second.state(more[1]).1, Cause::NoBuffers, "the fifth datagram socket");
    let connected: Vec<Socket> = (0..3).map(|_| second.connect(Endpoint::new(addr(2), 80))).collect();
    let of_root = root.connect(Endpoint::new(addr(2), 80));
    net.settle();
    let told: Vec<Cause> = connected.iter().map(|socket| second.state(*socket).1).collect();
    assert_eq!(told, [Cause::None, Cause::None, Cause::NoBuffers], "the seventh socket");
    assert_eq!(root.state(of_root).1, Cause::None);
    (0..2).for_each(|n| group(&mut first, datagrams[n], GROUP + n as u32, true));
    net.settle();
    (2..4).for_each(|n| group(&mut second, more[0], GROUP + n, true));
    net.settle();
    assert_eq!((0..4).filter(|n| is_member(&mut net, GROUP + n)).count(), 3);
    // A closed socket makes room.
    first.close(datagrams[0]);
    net.settle();
    let again = second.connect(Endpoint::new(addr(2), 80));
    net.settle();
    assert_eq!(second.state(again).1, Cause::None);
    // Nothing is remembered of users without sessions.
    let now = net.now;
    assert_eq!(net.stack(0).transport.applications.users(), 2);
    [first.id, second.id].into_iter().for_each(|id| net.stack(0).transport.close_session(now, id));
    net.stack(1).transport.close_session(now, server.id);
    net.wait(Duration::from_secs(100));
    assert_eq!(net.stack(0).transport.applications.users(), 1);
}

#[test]
fn what_a_peer_opens_for_a_user_who_has_all_his_sockets_waits() {
    let mut net = frugal_to_users(Quota { sockets: 2, ..Quota::USER });
    let mut server = App::attach_as(net.stack(0), 1, user(33), ARENA);
    let mut client = App::attach(net.stack(1), 9);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 100);
    let clients: Vec<Socket> = (0..3).map(|_| client.connect(Endpoint::new(addr(1), 80))).collect();
    net.settle();
    let accepted: Vec<Socket> = core::iter::from_fn(|| server.accept()).collect();
    net.settle();
    assert_eq!(accepted.len(), 2);
    assert!(clients.iter().all(|socket| client.state(*socket).1 == Cause::None), "it is not refused");
    server.close(accepted[0]);
    client.close(clients[0]);
    net.settle();
    server.raw().push(Command::AcceptConnection { lease: 77 });
    net.settle();
    assert!(server.accept().is_some());
}

#[test]
fn requests_of_a_session_are_bounded_and_what_could_not_be_kept_is_not_done() {
    let mut net = frugal(Quota { leases: 100, listeners: 100, ..LITTLE });
    let mut greedy = App::attach(net.stack(0), 1);
    (1..=20).for_each(|n| bind(&mut greedy, n, 80 + n as u16));
    net.settle();
    let good = causes(&mut greedy).into_iter().filter(|cause| *cause == Cause::None).count();
    assert_eq!((good, kept(net.stack(0))), (12, 12));
    listen(&mut greedy, 1, 81);
    net.settle();
    assert_eq!(causes(&mut greedy), [Cause::NoBuffers]);
    // All sessions together have no more than the ledger has places.
    let mut net = Net::new(vec![Stack::new(1).mortal()]);
    let mut apps: Vec<App> = (1..=3).map(|n| App::attach(net.stack(0), n)).collect();
    for n in 0..300 {
        let app = &mut apps[n % 3];
        bind(app, n as u64 + 1, 1000 + n as u16);
    }
    net.settle();
    let good = apps.iter_mut().flat_map(causes).filter(|cause| *cause == Cause::None).count();
    assert_eq!((good, kept(net.stack(0))), (256, 256));
}

#[test]
fn datagram_sockets_and_groups_of_a_session_are_bounded_and_it_hears_so() {
    let mut net = frugal(Quota { requests: 100, leases: 100, ..LITTLE });
    let mut greedy = App::attach(net.stack(0), 1);
    let sockets: Vec<Socket> = (0..6)
        .map(|n| greedy.open_datagrams(&mut net, Endpoint::new(0, 5000 + n), Endpoint::default()))
        .collect();
    net.settle();
    let told: Vec<_> = sockets.iter().map(|socket| greedy.state(*socket)).collect();
    assert_eq!(told[..4], [(SlotState::Open, Cause::None, 0); 4]);
    assert_eq!(told[4..], [(SlotState::Closing, Cause::NoBuffers, REPLICA_CLOSED); 2]);
    // The slot of a refused socket can be used again.
    greedy.close(sockets[5]);
    greedy.close(sockets[0]);
    net.settle();
    assert!(greedy.is_done(sockets[5]) && greedy.is_done(sockets[0]));
    let again = greedy.open_datagrams(&mut net, Endpoint::new(0, 5005), Endpoint::default());
    assert_eq!(greedy.state(again), (SlotState::Open, Cause::None, 0));
    for (n, socket) in sockets[1..4].iter().enumerate() {
        group(&mut greedy, *socket, GROUP + 2 * n as u32, true);
        group(&mut greedy, *socket, GROUP + 2 * n as u32 + 1, true);
    }
    net.settle();
    let joined = |net: &mut Net| (0..6).filter(|n| is_member(net, GROUP + n)).count();
    assert_eq!(joined(&mut net), 3);
    causes(&mut greedy);
    // A command with a token is answered, also if it is done already.
    for (n, joins) in [(0, true), (4, true), (0, false), (7, false)] {
        let Socket { slot, generation } = sockets[1];
        let group = (GROUP + n).into();
        greedy.raw().push(Command::Group { slot, generation, group, inside: false, joins, token: 1 + n });
    }
    net.settle();
    let (good, full, unknown) = (Cause::None, Cause::NoBuffers, Cause::AddressNotAvailable);
    assert_eq!(causes(&mut greedy), [good, full, good, unknown]);
    group(&mut greedy, sockets[1], GROUP, true);
    net.settle();
    assert_eq!(joined(&mut net), 3);
    // Closing gives them back.
    greedy.close(sockets[1]);
    net.settle();
    group(&mut greedy, sockets[3], GROUP + 4, true);
    net.settle();
    assert_eq!(joined(&mut net), 2);
}

/// The sockets of one session that are open at once: half of what its arena has.
const MANY: usize = 500;

/// Creates a stack that has a session with many connections to the second one, and a session with another.
fn crowd() -> (Net, App, App, App, (Socket, Socket)) {
    let mut net = Net::new(vec![Stack::new(1).mortal(), Stack::new(2)]);
    let mut server = App::attach_with(net.stack(1), 9, ArenaConfig { receive_log2: 26, ..ARENA });
    let mut big = App::attach(net.stack(0), 1);
    let mut small = App::attach(net.stack(0), 2);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 4096);
    let c = small.connect(Endpoint::new(addr(2), 80));
    net.settle();
    let s = server.accept().expect("offered");
    // There are as many as the ledger of the kit has room for, besides.
    for _ in 0..MANY / 2 - 8 {
        big.connect(Endpoint::new(addr(2), 80));
        net.settle();
        server.accept().expect("offered");
        net.settle();
    }
    (net, server, big, small, (s, c))
}

#[test]
fn a_session_with_many_sockets_ends_in_slices() {
    for dies in [false, true] {
        let (mut net, mut server, big, mut small, (s, c)) = crowd();
        let now = net.now;
        net.stack(0).transport.close_session(now, big.id);
        let mut most = 0;
        let mut rounds = 0;
        while net.stack(0).transport.applications.get(0).is_some_and(|session| session.ending.is_some()) {
            rounds += 1;
            assert!(rounds < 100, "it comes to an end");
            assert!(
                net.stack(0).transport.has_work() && net.stack(0).transport.next_timeout() <= Some(net.now)
            );
            small.write(c, b"ping");
            net.now += Duration::from_micros(10);
            let now = net.now;
            net.stack(0).round(now);
            most = most.max(net.stack(0).out.outside.len());
            net.step();
            net.step();
            assert_eq!(server.read(s), b"ping", "others are served in each round");
            if dies && rounds == 1 {
                net.stack(0).restart(now, &[&big, &small], Recovery::Stateful);
                // The supervisor repeats it.
                net.stack(0).transport.close_session(now, big.id);
            }
        }
        assert!((2..=200).contains(&most), "{most} frames in one round");
        assert!(rounds > 0, "it is too much for one slice");
        let now = net.now;
        net.stack(1).transport.close_session(now, server.id);
        net.wait(Duration::from_secs(100));
        assert_eq!(net.stack(0).transport.take_ended(), [big.id]);
        assert_eq!(kept(net.stack(0)), 0);
    }
}

#[test]
fn a_session_is_cut_off_in_slices_and_its_programs_hear_so() {
    let (mut net, mut server, mut big, mut small, (s, c)) = crowd();
    let now = net.now;
    big.forget_ready();
    small.set_option(c, SocketOption::NoDelay, 1);
    // The supervisor cuts it off: it ends at once.
    net.stack(0).transport.cut_off(now, big.id);
    net.stack(0).transport.close_session(now, big.id);
    let (mut rounds, mut most) = (0, 0);
    while net.stack(0).transport.is_behind() {
        rounds += 1;
        assert!(rounds < 100, "it comes to an end");
        small.write(c, b"ping");
        let now = net.now;
        net.stack(0).round(now);
        most = most.max(net.stack(0).out.outside.len());
        net.step();
        net.step();
        assert_eq!(server.read(s), b"ping", "others are served in each round");
    }
    assert!(rounds > 0 && (2..=200).contains(&most), "{rounds} rounds, {most} frames in one");
    net.settle();
    for slot in 0..(MANY / 2 - 8) as u32 {
        let (slot, generation) = (atoll_base::SlotId(slot), 1);
        let socket = Socket { slot, generation };
        assert_eq!(big.state(socket).1, Cause::Lost);
        assert!(!big.take_ready(socket).is_empty(), "who waits for it is woken");
    }
    net.wait(Duration::from_secs(100));
    assert_eq!(net.stack(0).transport.take_ended(), [big.id]);
}

#[test]
fn connections_that_waited_for_an_acceptor_are_offered_in_slices() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut other = App::attach(net.stack(0), 3);
    let mut client = App::attach(net.stack(1), 2);
    server.listen_only(&mut net, 77, Endpoint::new(0, 80), 4096);
    other.listen_only(&mut net, 78, Endpoint::new(0, 81), 4096);
    for _ in 0..MANY {
        client.connect(Endpoint::new(addr(1), 80));
    }
    net.settle();
    client.connect(Endpoint::new(addr(1), 81));
    net.settle();
    server.accept_again(77);
    // Repetitions are not more.
    (0..16).for_each(|_| server.raw().push(Command::AcceptConnection { lease: 77 }));
    other.accept_again(78);
    let now = net.now;
    let (mut counts, mut others) = (Vec::new(), None);
    while counts.iter().sum::<usize>() < MANY && counts.len() < 100 {
        net.stack(0).round(now);
        counts.push(core::iter::from_fn(|| server.accept()).count());
        others = others.or(other.accept().map(|_| counts.len()));
        if counts.iter().sum::<usize>() < MANY {
            assert!(net.stack(0).transport.is_behind() && net.stack(0).transport.next_timeout() <= Some(now));
        }
    }
    assert_eq!(counts.iter().sum::<usize>(), MANY);
    assert!(counts.iter().all(|count| *count <= 128), "{counts:?}");
    assert!(others.is_some_and(|round| round <= 3), "{others:?}: another listener has its turn before");
    net.settle();
    assert!(!net.stack(0).transport.is_behind());
}

#[test]
fn a_dead_member_is_taken_off_its_sockets_in_slices() {
    let mut net = Net::new(vec![Stack::new(1)]);
    // This is more than one slice examines.
    let count = 3000;
    let mut big = App::attach_with(net.stack(0), 1, ArenaConfig { slots: 8192, ..ARENA });
    let sockets: Vec<Socket> = (0..count)
        .map(|n| {
            let socket = big.open_datagrams(&mut net, Endpoint::new(0, 5000 + n as u16), Endpoint::default());
            net.step();
            socket
        })
        .collect();
    net.settle();
    // The session has opened them, and all are shared with children.
    for socket in &sockets {
        big.slot(*socket).add_holder(5);
        big.slot(*socket).add_holder(6);
    }
    let left = |big: &App| sockets.iter().filter(|socket| big.slot(**socket).holders() & 1 << 5 != 0).count();
    let now = net.now;
    net.stack(0).transport.member_gone(now, big.id, 5);
    let (mut before, mut rounds) = (left(&big), 0);
    assert!(before > 0, "it is too much for one slice");
    while before > 0 {
        net.stack(0).round(now);
        let after = left(&big);
        assert!(before - after <= 1024, "{before} {after}");
        before = after;
        rounds += 1;
        assert!(rounds < 10, "it comes to an end");
    }
    net.settle();
    assert!(sockets.iter().all(|socket| big.state(*socket).0 == SlotState::Open));
}

#[test]
fn options_that_no_successor_would_know_are_refused_and_the_socket_says_so() {
    // The requests are lease, socket, and one option.
    let mut net = frugal(Quota { requests: 4, ..LITTLE });
    let mut app = App::attach(net.stack(0), 1);
    let Socket { slot, generation } =
        app.open_datagrams(&mut net, Endpoint::new(0, 5353), Endpoint::default());
    net.settle();
    let set =
        |app: &mut App, option, value| app.raw().push(Command::SetOption { slot, generation, option, value });
    let before = kept(net.stack(0));
    for n in before..4 {
        let option = [SocketOption::TypeOfService, SocketOption::TimeToLive][n % 2];
        set(&mut app, option, 7);
    }
    net.settle();
    assert_eq!(kept(net.stack(0)), 4);
    let bad = net.stack(0).stat(Stat::BadCommands);
    app.poll();
    set(&mut app, SocketOption::ReceiveBuffer, 4096);
    // Setting an option again takes no more room.
    set(&mut app, SocketOption::TypeOfService, 8);
    net.settle();
    assert_eq!((kept(net.stack(0)), net.stack(0).stat(Stat::BadCommands) - bad), (4, 1));
    assert_eq!(app.state(Socket { slot, generation }).1, Cause::NoBuffers);
    // These are the requests of a listener.
    let mut net = frugal(Quota { requests: 3, ..LITTLE });
    let mut app = App::attach(net.stack(0), 1);
    app.listen_only(&mut net, 77, Endpoint::new(0, 80), 16);
    let bad = net.stack(0).stat(Stat::BadCommands);
    for option in [SocketOption::TypeOfService, SocketOption::TimeToLive] {
        app.raw().push(Command::SetListenerOption { lease: 77, option, value: 9 });
    }
    net.settle();
    assert_eq!((kept(net.stack(0)), net.stack(0).stat(Stat::BadCommands) - bad), (3, 1));
}

#[test]
fn leases_and_requests_of_a_session_end_in_slices() {
    let mut net = Net::new(vec![Stack::new(1)]);
    let mut big = App::attach(net.stack(0), 1);
    for n in 1..1500 {
        bind(&mut big, n, 1000 + n as u16);
        listen(&mut big, n, 1000 + n as u16);
        net.step();
    }
    net.settle();
    assert!(causes(&mut big).iter().all(|cause| *cause == Cause::None));
    let now = net.now;
    let has = |net: &mut Net| (1001..2500).filter(|port| net.stack(0).transport.cm.has_port(*port)).count();
    net.stack(0).transport.close_session(now, big.id);
    let left = has(&mut net);
    assert!((1000..1400).contains(&left), "{left} listeners are left");
    net.wait(Duration::from_millis(10));
    assert_eq!(has(&mut net), 0);
    assert_eq!(net.stack(0).transport.take_ended(), [big.id]);
}

#[test]
fn what_a_dead_member_held_is_closed_in_slices_and_the_rest_stays() {
    let (mut net, mut server, big, mut small, (s, c)) = crowd();
    let sockets: Vec<Socket> =
        (0..(MANY / 2 - 8) as u32).map(|n| Socket { slot: atoll_base::SlotId(n), generation: 1 }).collect();
    // Every second one is shared with a child.
    for socket in sockets.iter().step_by(2) {
        big.slot(*socket).add_holder(5);
    }
    let now = net.now;
    net.stack(0).transport.member_gone(now, big.id, 0);
    assert!(net.stack(0).transport.applications.get(0).is_some_and(|session| session.ending.is_some()));
    net.settle();
    for (n, socket) in sockets.iter().enumerate() {
        let (state, holders) = (big.slot(*socket).state(), big.slot(*socket).holders());
        let expected = if n % 2 == 0 { (true, 1 << 5) } else { (false, 0) };
        assert_eq!((state == SlotState::Open, holders), expected, "{n}");
    }
    small.write(c, b"ping");
    net.settle();
    assert_eq!(server.read(s), b"ping");
}

#[test]
fn connections_of_a_listener_that_is_gone_are_reset_in_slices() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    server.listen_only(&mut net, 77, Endpoint::new(0, 80), 4096);
    let sockets: Vec<Socket> = (0..MANY).map(|_| client.connect(Endpoint::new(addr(1), 80))).collect();
    net.settle();
    server.release(77);
    let now = net.now;
    let mut rounds = Vec::new();
    loop {
        net.stack(0).round(now);
        let frames = net.stack(0).out.outside.len();
        if frames == 0 {
            break;
        }
        rounds.push(frames);
        net.step();
    }
    assert!(
        rounds.len() >= 2 && rounds.iter().all(|frames| *frames <= 2 * crate::resets::RESETS as usize),
        "{rounds:?}"
    );
    net.settle();
    assert!(sockets.iter().all(|socket| client.state(*socket).1 == Cause::ConnectionReset));
}

#[test]
fn who_waits_for_text_for_a_listener_that_is_gone_is_reset_in_slices_and_who_comes_to_the_next_one_stays() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    server.listen_only(&mut net, 77, Endpoint::new(0, 80), 4096);
    server.set_listener_option(77, SocketOption::DeferAccept, 40_000);
    net.settle();
    let sockets: Vec<Socket> = (0..MANY).map(|_| client.connect(Endpoint::new(addr(1), 80))).collect();
    net.settle();
    let deferred = |net: &mut Net| net.stack(0).transport.handshakes.deferred();
    assert_eq!(deferred(&mut net), MANY);
    server.release(77);
    // Before all are examined, others come to the new listener: more than have gone.
    server.raw().bind(78, Protocol::Tcp, Endpoint::new(0, 80), true);
    server.raw().listen(78, Endpoint::new(0, 80), 4096);
    let (option, value) = (SocketOption::DeferAccept, 40_000);
    server.raw().push(Command::SetListenerOption { lease: 78, option, value });
    let mut others = App::attach(net.stack(1), 3);
    let later: Vec<Socket> = (0..MANY / 2).map(|_| others.connect(Endpoint::new(addr(1), 80))).collect();
    let now = net.now;
    net.stack(0).round(now);
    let left = deferred(&mut net);
    assert!((MANY - 2 * crate::resets::RESETS as usize..MANY).contains(&left), "{left} after one round");
    assert!(net.stack(0).transport.is_behind(), "and the next one goes on at once");
    net.settle();
    assert!(sockets.iter().all(|socket| client.state(*socket).1 == Cause::ConnectionReset));
    assert!(later.iter().all(|socket| others.state(*socket).1 == Cause::None));
    assert_eq!(deferred(&mut net), MANY / 2);
    // This holds whatever places they were given.
    net.stack(0).transport.handshakes.reset_deferred_later(80);
    net.settle();
    assert_eq!(deferred(&mut net), MANY / 2);
    assert!(!net.stack(0).transport.is_behind());
}

#[test]
fn who_says_much_delays_others_by_no_more_than_a_share() {
    let mut net = Net::new(vec![Stack::new(1)]);
    let mut greedy: Vec<App> = (0..40).map(|n| App::attach(net.stack(0), n + 1)).collect();
    let mut other = App::attach(net.stack(0), 99);
    for (n, app) in (0u64..).zip(&mut greedy) {
        (0..400).for_each(|m| bind(app, n * 1000 + m + 1, 1000 + (n * 400 + m) as u16));
    }
    bind(&mut other, 99_999, 80);
    let now = net.now;
    // All shares of a round are for 16 of those 41.
    for round in 1.. {
        assert!(round <= 3, "it has waited for too long");
        net.stack(0).transport.handle_commands(now, 64);
        net.stack(0).flush(now);
        if causes(&mut other) == [Cause::None] {
            break;
        }
    }
    let served: Vec<usize> = greedy.iter_mut().map(|app| causes(app).len()).collect();
    assert!(served.iter().all(|count| *count <= 24), "{served:?}");
    for _ in 0..5 {
        net.stack(0).transport.handle_commands(now, 64);
        net.stack(0).flush(now);
    }
    let served: Vec<usize> = greedy.iter_mut().map(|app| causes(app).len()).collect();
    assert!(served.iter().all(|count| (8..=24).contains(count)), "all had their turn: {served:?}");
}

#[test]
fn who_sends_many_datagrams_leaves_room_for_others() {
    let mut net = Net::new(vec![Stack::new(1), Stack::new(2)]);
    let mut greedy = App::attach(net.stack(0), 1);
    let mut other = App::attach(net.stack(0), 2);
    let mut far = App::attach(net.stack(1), 3);
    let to = Endpoint::new(addr(2), 9);
    let sink = far.open_datagrams(&mut net, Endpoint::new(0, 9), Endpoint::default());
    let heard = far.open_datagrams(&mut net, Endpoint::new(0, 10), Endpoint::default());
    let its = greedy.open_datagrams(&mut net, Endpoint::new(0, 5000), to);
    let own = other.open_datagrams(&mut net, Endpoint::new(0, 5001), Endpoint::new(addr(2), 10));
    net.settle();
    greedy.send(its, to, b"who are you");
    net.settle();
    for _ in 0..4000 {
        greedy.raw().store_datagram(its, to, None, b"many");
    }
    greedy.raw().kick(its);
    other.send(own, Endpoint::new(addr(2), 10), b"one");
    let now = net.now;
    net.stack(0).round(now);
    let frames = net.stack(0).out.outside.len();
    assert!((100..=1100).contains(&frames), "{frames} in one round");
    assert!(net.stack(0).transport.has_work());
    net.settle();
    assert_eq!(far.receive(heard).expect("a datagram").1, b"one");
    assert_eq!(net.stack(0).stat(Stat::DatagramsOut), 4002, "all leave in the end");
    assert!(far.receive(sink).is_some());
}

#[test]
fn who_sends_much_on_many_connections_leaves_room_for_others() {
    let (mut net, mut server, mut big, mut small, (s, c)) = crowd();
    for n in 0..(MANY / 2 - 8) as u32 {
        let socket = Socket { slot: atoll_base::SlotId(n), generation: 1 };
        assert_eq!(big.write(socket, &[7; 8 << 10]), 8 << 10);
    }
    small.write(c, b"one");
    let mut turns = 0;
    while server.read(s) != b"one" {
        turns += 1;
        assert!(turns < 3);
        net.now += Duration::from_micros(10);
        let now = net.now;
        net.stack(0).round(now);
        let frames = net.stack(0).out.outside.len();
        assert!(frames <= 1100, "{frames} in one round");
        net.step();
    }
    net.wait(Duration::from_secs(1));
    assert!(!net.stack(0).transport.applications.has_put_off());
    let unsent: u64 = net
        .stack(0)
        .transport
        .connections
        .iter()
        .map(|(_, e)| e.connection.send_tail() - e.connection.send_una())
        .sum();
    assert_eq!(unsent, 0, "all arrives in the end");
}

//! Tests that a successor serves soon, whatever applications hold: it examines what it needs, and the rest
//! when that is needed.

use std::vec;
use std::vec::Vec;

use atoll_base::{Duration, Endpoint, SessionId, SlotId};
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{REPLICA_CLOSED, SlotState};
use atoll_ipc::{Command, Event};

use super::kit::{App, Net, Socket, Stack, addr, meet};
use crate::Recovery;

const MANY: ArenaConfig = ArenaConfig { slots: 1 << 15, send_log2: 17, receive_log2: 17 };

fn net() -> Net {
    Net::new(vec![Stack::new(1).mortal(), Stack::new(2)])
}

/// The application has marked every slot as if it had been offered once; only that of its connection is
/// examined. New connections get generations beyond those that there are.
#[test]
fn slots_are_looked_at_when_they_are_needed() {
    let mut net = net();
    let mut server = App::attach_with(net.stack(0), 1, MANY);
    let mut client = App::attach(net.stack(1), 2);
    let (s, c) = meet(&mut net, &mut server, &mut client);
    for slot in server.layout.replica_slots().skip(1) {
        let socket = Socket { slot: SlotId(slot), generation: 0 };
        server.slot(socket).replica_reset(7, SlotState::Free, 0);
    }
    for turn in 0..3 {
        let now = net.now;
        let adoption = net.stack(0).restart(now, &[&server], Recovery::Stateful);
        assert_eq!((adoption.kept, adoption.lost), (1 + turn, 0));
        net.settle();
        let seen = net.stack(0).transport.applications.get(0).expect("it is open").seen_slots();
        assert!(seen <= 1, "{seen} slots were looked at for nothing");
        assert_eq!((client.write(c, b"question"), server.write(s, b"answer")), (8, 6));
        net.wait(Duration::from_secs(1));
        assert_eq!((server.read(s), client.read(c)), (b"question".to_vec(), b"answer".to_vec()));
        client.connect(Endpoint::new(addr(1), 80));
        net.settle();
        let next = server.accept().expect("offered");
        net.settle();
        assert_eq!(next, Socket { slot: SlotId(s.slot.0 + 1 + turn), generation: 8 });
    }
    // A late claim is for another generation, or for an offer that was never made.
    for (slot, generation) in [(s.slot.0 + 1, 7), (s.slot.0 + 100, 7), (s.slot.0 + 100, 6)] {
        server.raw().push(Command::Claim { slot: SlotId(slot), generation });
    }
    server.poll();
    net.settle();
    let is_refusal = |event: &Event| matches!(event, Event::ClaimVerdict { confirmed: false, .. });
    assert_eq!(server.raw().events().iter().filter(|event| is_refusal(event)).count(), 3);
}

/// Records name slots far behind, and slots become free before they were examined: none is given out twice.
#[test]
fn no_slot_is_given_out_twice() {
    let mut net = net();
    let mut server = App::attach(net.stack(0), 1);
    let mut client = App::attach(net.stack(1), 2);
    server.listen(&mut net, 77, Endpoint::new(0, 80), 64);
    let mut open = vec![];
    let connect = |net: &mut Net, server: &mut App, client: &mut App| {
        let c = client.connect(Endpoint::new(addr(1), 80));
        net.settle();
        let s = server.accept().expect("offered");
        net.settle();
        (s, c)
    };
    for _ in 0..12 {
        open.push(connect(&mut net, &mut server, &mut client));
    }
    // Every other connection ends, half of them before the death.
    for turn in 0..4 {
        for at in [turn * 3, turn * 3 + 1] {
            let (s, c) = open[at];
            client.close(c);
            net.settle();
            server.close(s);
            net.settle();
            if at % 3 == 0 {
                let now = net.now;
                net.stack(0).restart(now, &[&server], Recovery::Stateful);
                net.settle();
            }
        }
    }
    let mut held: Vec<SlotId> =
        open.iter().enumerate().filter(|(at, _)| at % 3 == 2).map(|(_, (s, _))| s.slot).collect();
    for _ in 0..12 {
        let (s, _) = connect(&mut net, &mut server, &mut client);
        assert!(!held.contains(&s.slot), "{:?} twice", s.slot);
        held.push(s.slot);
    }
    assert!(held.iter().all(|slot| slot.0 < server.layout.replica_slots().start + 17), "{held:?}");
}

/// The ledger says nothing of a session without sockets: it may be opened when the server serves already, and
/// its commands are read then.
#[test]
fn sessions_that_the_ledger_does_not_name_are_opened_later() {
    let mut net = net();
    let mut server = App::attach(net.stack(0), 1);
    let mut idle = App::attach(net.stack(0), 5);
    let mut bound = App::attach(net.stack(0), 6);
    let mut client = App::attach(net.stack(1), 2);
    let (s, c) = meet(&mut net, &mut server, &mut client);
    bound.listen_only(&mut net, 79, Endpoint::new(0, 81), 4);
    // The session has asked for something, and its command was not read.
    let opening = idle.begin_to_listen(78, Endpoint::new(0, 82), 4);
    let now = net.now;
    // The session of the connection is named by its record alone.
    let needed = net.stack(0).transport.sessions_in_ledger();
    assert!(needed.iter().eq(&[SessionId(1), SessionId(6)]), "{needed:?}");
    let adoption = net.stack(0).restart(now, &[&server, &bound], Recovery::Stateful);
    assert_eq!((adoption.kept, adoption.lost), (1, 0));
    net.settle();
    assert_eq!((client.write(c, b"question"), server.write(s, b"answer")), (8, 6));
    net.wait(Duration::from_secs(1));
    assert_eq!((server.read(s), client.read(c)), (b"question".to_vec(), b"answer".to_vec()));
    idle.open_at(&mut net.stack(0).transport, now);
    idle.complete(&mut net, opening);
    idle.accept_again(78);
    net.settle();
    let c = client.connect(Endpoint::new(addr(1), 82));
    net.settle();
    let s = idle.accept().expect("offered");
    net.settle();
    client.write(c, b"hello");
    net.settle();
    assert_eq!(idle.read(s), b"hello");
}

/// If slots have to be examined one by one, because connections are lost with their records, that is done in
/// parts.
#[test]
fn sockets_of_lost_connections_are_looked_for_in_parts() {
    let mut net = net();
    let server = App::attach_with(net.stack(0), 1, MANY);
    let half = server.layout.replica_slots();
    for slot in half.clone() {
        let socket = Socket { slot: SlotId(slot), generation: 0 };
        let slot = server.slot(socket);
        slot.replica_reset(7, SlotState::Open, 0);
        slot.app_reset(7);
    }
    let now = net.now;
    let adoption = net.stack(0).restart(now, &[&server], Recovery::Stateless);
    assert!((1..=4096).contains(&adoption.lost), "{}", adoption.lost);
    assert!(net.stack(0).transport.has_work(), "there is more to do");
    let mut rounds = 0;
    while net.stack(0).transport.has_work() {
        let now = net.now;
        net.stack(0).round(now);
        rounds += 1;
        assert!(rounds < 1000);
    }
    assert!(rounds > 20, "{rounds}");
    let told = half.filter(|slot| {
        let socket = Socket { slot: SlotId(*slot), generation: 7 };
        server.slot(socket).replica_flags() & REPLICA_CLOSED != 0
    });
    assert_eq!(told.count(), 1 << 14);
    assert_eq!(net.stack(0).stat(Stat::ConnectionsLost), 1 << 14);
}

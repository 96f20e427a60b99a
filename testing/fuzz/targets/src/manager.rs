//! Checks that no message between a transport server (TS) and a connection manager (CM) in another process
//! harms connections. Messages decode without harm; a TS takes an offer only for what it has asked for, and
//! once; a CM keeps no more than was reported to it.

use std::collections::BTreeMap;

use atoll_base::{Duration, Endpoint, Epoch, Instant, ReplicaId, SessionId};
use atoll_connmgr::{
    Config, ConnMgr, ConnectionId, Directive, Listen, Manager, ManagerConfig, Stage, Syn, SynVerdict,
};
use atoll_ipc::Device;
use atoll_ipc::lease::Grant;
use atoll_ipc::manager::{ManagerBody, ManagerMessage};

use crate::input::Input;

const LOCAL: Endpoint = Endpoint::new(0, 81);

/// Decodes a message between a TS and a CM.
pub fn ipc_manager(data: &[u8]) {
    if let Ok(message) = ManagerMessage::decode(data) {
        assert_eq!(ManagerMessage::decode(&message.encode()), Ok(message));
    }
}

/// Runs a TS and a CM, each of which may receive anything from the other.
pub fn cm_manager(data: &[u8]) {
    let mut input = Input::new(data);
    let mut now = Instant::from_millis(1000);
    let mut manager = Manager::new(ManagerConfig { number: 0, managers: 2, epoch: Epoch(1), own: None }, 1);
    let config = Config {
        replica: ReplicaId(0),
        replicas: 2,
        epoch: Epoch(1),
        ephemeral: (32768, 60999),
        backlog_max: 64,
        leases_max: 10,
        session_leases_max: 10,
        session_listeners_max: 10,
        managers: 1,
        managers_apart: true,
        patience: Duration::from_millis(100),
    };
    let mut ts = ConnMgr::new(config, 1);
    let (session, lease, backlog) = (SessionId(0), 0, 64);
    let (reuse_port, defer_accept, v6_only) = (false, 0, false);
    let shown = Some(Grant::to_listen(lease, LOCAL));
    let listen =
        Listen { session, lease, local: LOCAL, backlog, reuse_port, defer_accept, v6_only, uid: 0, shown };
    let listener = ts.handle_listen(&listen).expect("the port is free");
    // For each connection: whether it is offered.
    let mut live: BTreeMap<u32, bool> = BTreeMap::new();
    while !input.is_empty() {
        now += Duration::from_micros(u64::from(input.half()));
        let connection = ConnectionId(u32::from(input.byte() % 8));
        match input.byte() % 6 {
            0 | 1 => {
                let from = ReplicaId(input.byte() % 9);
                manager.handle(now, from, &message(&mut input));
                let mut sent = 0;
                manager.send(now, |_, _| {
                    sent += 1;
                    sent < 50
                });
                assert!(!manager.has_output() || sent == 50, "all is taken that there is room for");
            }
            2 | 3 => ts.handle_message(now, ReplicaId(1), &message(&mut input)),
            4 if !live.contains_key(&connection.0) => {
                if let SynVerdict::Accept { .. } =
                    ts.handle_syn(&Syn { local: LOCAL, by_cookie: false, device: Device::None })
                {
                    live.insert(connection.0, false);
                    ts.handle_established(now, connection, listener);
                }
            }
            _ => {
                if let Some(is_offered) = live.remove(&connection.0) {
                    let stage = if is_offered { Stage::Offered { session, lease } } else { Stage::Waiting };
                    ts.handle_gone(connection, listener, stage);
                }
            }
        }
        while let Some(directive) = ts.poll_directive() {
            match directive {
                Directive::Offer(offer) => {
                    let is_offered = live.insert(offer.connection.0, true);
                    assert_eq!(
                        (is_offered, offer.listener),
                        (Some(false), listener),
                        "asked for, and offered to nobody"
                    );
                }
                Directive::Reset { connection } => {
                    assert_eq!(live.remove(&connection.0), Some(false), "asked for, and offered to nobody");
                }
                Directive::AcceptorRemoved { .. } | Directive::PortTaken { .. } => {}
                Directive::ConnectionsWait { .. } => panic!("nobody has asked, and the manager is apart"),
            }
        }
        ts.handle_timers(now);
        ts.send_messages(now, |_, _| true);
        let unclaimed = ts.listeners().map(|view| view.unclaimed as usize).sum::<usize>();
        assert_eq!(unclaimed, live.len());
        assert!(manager.acceptors(now).len() <= data.len(), "one for each message at most");
    }
}

/// Returns a random message, whose fields are likely to mean something.
fn message(input: &mut Input<'_>) -> ManagerMessage {
    let (listener, lease) =
        (u64::from(input.byte() % 4) << 32 | u64::from(input.byte() % 2), u64::from(input.byte() % 3));
    let (session, connection) = (SessionId(u32::from(input.byte() % 4)), u32::from(input.byte() % 8));
    let (ticket, offered_at) = (u32::from(input.byte() % 32), Instant::from_nanos(input.long()));
    let (local, v6_only) = (Endpoint::new(u32::from(input.byte() % 2), 80), input.byte().is_multiple_of(4));
    let body = match input.byte() % 17 {
        0 => {
            let device = Device::of_value(ticket % 3).unwrap_or_default();
            ManagerBody::Opened { listener, lease, local, v6_only, device }
        }
        1 => ManagerBody::Left { listener, lease },
        2 => ManagerBody::Closed { listener },
        3 => ManagerBody::Registered { listener, session, lease },
        4 => ManagerBody::Deregistered { listener, session, lease },
        5 => ManagerBody::Forgotten { listener, session, lease },
        6 => ManagerBody::Established { listener, connection, ticket },
        7 => ManagerBody::Claimed { connection, offered_at },
        8 => ManagerBody::TimedOut { connection, ticket },
        9 => ManagerBody::Returned { connection, ticket },
        10 => ManagerBody::Gone { connection },
        11 => ManagerBody::Served { session, lease, offered_at },
        12 => ManagerBody::Offer { connection, ticket, session, lease, measured: v6_only },
        13 => ManagerBody::Queued { connection, ticket },
        14 => ManagerBody::Reset { connection, ticket },
        15 => ManagerBody::Offered { listener, connection, ticket, session, lease },
        _ => ManagerBody::AcceptorRemoved { session, lease },
    };
    let epoch = if input.byte().is_multiple_of(32) { Epoch(u32::from(input.byte() % 4)) } else { Epoch(1) };
    let to = if input.byte().is_multiple_of(32) { Epoch(u32::from(input.byte() % 4)) } else { Epoch(1) };
    ManagerMessage { epoch, to, at: Instant::from_nanos(input.long()), body }
}

//! Gives back what a connection holds: its slot and buffer, its place in the tables, and its record.

use atoll_connmgr::{ConnMgr, ConnectionId};
use atoll_ipc::{Event, Memory};

use crate::applications::Applications;
use crate::connections::Connections;
use crate::durability::Durability;
use crate::entry::{Flags, Stage};
use crate::handshakes::Handshakes;
use crate::stats::Stats;

/// Removes a connection. Its slot must have been given back.
pub(crate) fn remove<M: Memory>(
    index: u32,
    connections: &mut Connections,
    handshakes: &mut Handshakes,
    durability: &mut Durability<M>,
) {
    let Some(entry) = connections.get_mut(index) else { return };
    handshakes.end_early(index, entry);
    if let Stage::Deferred { .. } = entry.stage {
        handshakes.end_deferral(&entry.name, index);
    }
    connections.remove(index);
    durability.forget_connection(index);
}

/// Removes a connection that no application has, and reports its end to the CM.
pub(crate) fn drop_unclaimed<M: Memory>(
    index: u32,
    cm: &mut ConnMgr,
    connections: &mut Connections,
    handshakes: &mut Handshakes,
    durability: &mut Durability<M>,
) {
    let Some(entry) = connections.get(index) else { return };
    let stage = match entry.stage {
        Stage::Embryonic { .. } | Stage::Deferred { .. } => atoll_connmgr::Stage::Embryonic,
        _ => atoll_connmgr::Stage::Waiting,
    };
    if let Some(listener) = entry.stage.listener() {
        cm.handle_gone(ConnectionId(index), listener, stage);
    }
    remove(index, connections, handshakes, durability);
}

/// Gives back receive buffer and slot; the application may use the slot's number again.
pub(crate) fn give_back_slot<M: Memory>(
    index: u32,
    connections: &mut Connections,
    applications: &mut Applications<M>,
    stats: &mut Stats,
) {
    let Some(entry) = connections.get_mut(index) else { return };
    let Some(place) = entry.place.take() else { return };
    let Some(session) = applications.get_mut(place.session) else { return };
    entry.receive.release_all(session.memory());
    session.vacate(place.slot, false);
    let event = Event::SlotDone { slot: place.slot, generation: place.generation };
    // A thread that waits in close(2) sleeps on a doorbell that no socket names any more.
    let bell = if entry.flags.intersects(Flags::LINGERS) { None } else { Some(0) };
    session.push(stats, &event, bell);
}

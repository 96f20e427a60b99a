//! What is left of a predecessor's death to be told, and to be looked for?

use alloc::collections::VecDeque;

use atoll_base::{SessionId, SlotId};
use atoll_ipc::ledger::Work;
use atoll_ipc::slot::{REPLICA_CLOSED, REPLICA_RESET, SlotState};
use atoll_ipc::{Cause, Event, Memory};

use crate::applications::Applications;
use crate::session::Occupant;
use crate::stats::Stats;

/// What became of the connections of a predecessor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adoption {
    /// They go on.
    pub kept: u32,
    /// Their records could not be used, or were not to be: their applications see a reset.
    pub lost: u32,
    /// Those among them of which a predecessor has died twice.
    pub quarantined: u32,
    /// Why the first one was lost.
    pub why: Option<Loss>,
}

/// Why a connection does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Its record cannot be read.
    Unreadable,
    /// The record contradicts itself.
    Contradiction,
    /// Connections are not to be kept.
    Stateless,
    /// A predecessor has died of it twice.
    Quarantined,
    /// Predecessors have died of its session.
    CutOff,
    /// Its receive buffer is another's.
    Overlap,
    /// Another record has its slot, or its name.
    Twice,
    /// Its application has died meanwhile.
    SessionGone,
    /// Text that may have to be sent again, or that nobody has read yet, is not there any more.
    TextGone,
    /// Nobody listens there any more.
    NoListener,
}

/// How a successor begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Connections go on.
    Stateful,
    /// Connections are reset; what was asked for stays in force (NEaT's way, N3).
    Stateless,
}

/// What a death was put down to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// What the server was at work on.
    pub work: Work,
    /// How many have died at work for the same session; 0: no session is charged.
    pub deaths: u8,
}

impl Adoption {
    pub(crate) fn lose(&mut self, why: Loss) {
        self.lost += 1;
        self.quarantined += u32::from(why == Loss::Quarantined);
        self.why.get_or_insert(why);
    }
}

/// What is still to be done about a predecessor's death, and to be told of it.
#[derive(Debug, Default)]
pub(crate) struct Aftermath {
    /// What became of all its connections, if nobody has asked yet.
    adoption: Option<Adoption>,
    /// What its death was put down to, if nobody has asked yet.
    charge: Option<Charge>,
    /// Sessions - place, number, and which slot comes next - whose slots may hold sockets of lost
    /// connections.
    lost_slots: VecDeque<(u32, SessionId, u32)>,
    /// Whether sessions that are opened later may have such, too.
    looks_for_lost: bool,
}

impl Aftermath {
    /// This became of its connections.
    pub(crate) const fn tell_adoption(&mut self, adoption: Adoption) {
        self.adoption = Some(adoption);
    }

    /// Returns what became of its connections: once.
    pub(crate) const fn take_adoption(&mut self) -> Option<Adoption> {
        self.adoption.take()
    }

    /// Its death was put down to this; `None`: it has not died by its own fault.
    pub(crate) const fn tell_charge(&mut self, charge: Option<Charge>) {
        self.charge = charge;
    }

    /// Returns what its death was put down to: once.
    pub(crate) const fn take_charge(&mut self) -> Option<Charge> {
        self.charge.take()
    }

    /// There are no records, or nobody knows whose they were: the slots of all sessions say who has a socket,
    /// also of those that are opened later.
    pub(crate) fn begin_to_look(&mut self, sessions: impl Iterator<Item = (u32, SessionId)>) {
        self.lost_slots = sessions.map(|(place, id)| (place, id, 0)).collect();
        self.looks_for_lost = true;
    }

    /// A session was opened.
    pub(crate) fn session_opened(&mut self, place: u32, id: SessionId) {
        if self.looks_for_lost {
            self.lost_slots.push_back((place, id, 0));
        }
    }

    /// Whether slots are still to be looked at.
    #[inline]
    pub(crate) fn is_looking(&self) -> bool {
        !self.lost_slots.is_empty()
    }

    /// Looks at some of the slots in which connections may have been lost with their records, and tells their
    /// applications. Applications can mark as many as they like, so this is done in parts. Returns how many
    /// there were.
    pub(crate) fn look_for_lost<M: Memory>(
        &mut self,
        slots: usize,
        applications: &mut Applications<M>,
        stats: &mut Stats,
    ) -> u32 {
        let mut lost = 0;
        for _ in 0..slots {
            let Some(&mut (place, id, ref mut next)) = self.lost_slots.front_mut() else { break };
            let slot = SlotId(*next);
            *next += 1;
            let Some(session) = applications.get(place).filter(|it| it.id == id) else {
                self.lost_slots.pop_front();
                continue;
            };
            let generations = session.slot(slot).map(|view| (view.app_generation(), view.replica_generation()));
            let half = session.layout.replica_slots().start;
            match generations {
                // The library takes its slots in order, and so does the replica.
                Some((0, 0)) if slot.0 < half => *next = half,
                None | Some((0, 0)) => {
                    self.lost_slots.pop_front();
                }
                Some((_, generation)) if generation != 0 && session.is_vacant(slot) => {
                    lost += u32::from(give_up(applications, stats, place, slot, generation));
                }
                Some(_) => {}
            }
        }
        lost
    }
}

/// The application of a connection that cannot go on is told. Returns whether it has a socket for it, which
/// keeps its slot until it is closed.
pub(crate) fn give_up<M: Memory>(
    applications: &mut Applications<M>,
    stats: &mut Stats,
    place: u32,
    slot: SlotId,
    generation: u32,
) -> bool {
    let Some(session) = applications.get_mut(place) else { return false };
    let Some(view) = session.slot(slot).filter(|view| view.replica_generation() == generation) else {
        return false;
    };
    let is_offer = view.state() == SlotState::Offered;
    let is_held = match view.state() {
        SlotState::Open | SlotState::Connecting => true,
        // If it has been claimed.
        SlotState::Offered => !view.revoke(generation),
        _ => false,
    };
    if !is_held || !session.occupy_again(slot, generation, Occupant::Lost) {
        return false;
    }
    let Some(view) = session.slot(slot) else { return false };
    if view.replica_flags() & REPLICA_CLOSED == 0 {
        // What was not read is not there any more: others may get its memory.
        view.set_receive_tail(view.receive_head());
        view.set_error(Cause::ConnectionReset);
        view.set_state(SlotState::Open);
        view.set_replica_flags(view.replica_flags() | REPLICA_CLOSED | REPLICA_RESET);
    }
    if is_offer {
        session.push(stats, &Event::ClaimVerdict { slot, generation, confirmed: true }, None);
    }
    true
}

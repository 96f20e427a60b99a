//! What is still to be reported, and searched for, after a predecessor's death.

use alloc::collections::VecDeque;

use atoll_base::{SessionId, SlotId};
use atoll_ipc::ledger::Work;
use atoll_ipc::slot::{REPLICA_CLOSED, REPLICA_RESET, SlotState};
use atoll_ipc::{Cause, Event, Memory};

use crate::applications::Applications;
use crate::session::Occupant;
use crate::stats::Stats;

/// The fate of the connections of a predecessor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adoption {
    /// The number of connections that continue.
    pub kept: u32,
    /// The number of connections whose records could not be used, or were not to be: their applications see a
    /// reset.
    pub lost: u32,
    /// The number of the lost connections on which a predecessor has died twice.
    pub quarantined: u32,
    /// The reason for which the first one was lost.
    pub why: Option<Loss>,
}

/// The reason for which a connection cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The record of the connection cannot be read.
    Unreadable,
    /// The record contradicts itself.
    Contradiction,
    /// Connections are not to be kept.
    Stateless,
    /// Predecessors have died twice while working on the connection.
    Quarantined,
    /// Predecessors have died while working for the session of the connection.
    CutOff,
    /// The receive buffer of the connection is another's.
    Overlap,
    /// Another record has the slot or the name of the connection.
    Twice,
    /// The application of the connection has ended meanwhile.
    SessionGone,
    /// Text that may have to be sent again, or that was not read yet, is gone.
    TextGone,
    /// No socket listens there any more.
    NoListener,
}

/// The mode in which a successor begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Connections continue.
    Stateful,
    /// Connections are reset; what was asked for stays in force (NEaT's way, N3).
    Stateless,
}

/// The work to which a death was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The work during which the server died.
    pub work: Work,
    /// The number of deaths at work for the same session; 0 if no session is charged.
    pub deaths: u8,
}

impl Adoption {
    pub(crate) fn lose(&mut self, why: Loss) {
        self.lost += 1;
        self.quarantined += u32::from(why == Loss::Quarantined);
        self.why.get_or_insert(why);
    }
}

/// The work and reports about a predecessor's death that are still due.
#[derive(Debug, Default)]
pub(crate) struct Aftermath {
    /// The fate of all its connections, until it is asked for.
    adoption: Option<Adoption>,
    /// The charge for its death, until it is asked for.
    charge: Option<Charge>,
    /// The sessions (place, number, next slot) whose slots may hold sockets of lost connections.
    lost_slots: VecDeque<(u32, SessionId, u32)>,
    /// Whether sessions that are opened later may have such slots, too.
    looks_for_lost: bool,
}

impl Aftermath {
    /// Notes what became of its connections.
    pub(crate) const fn tell_adoption(&mut self, adoption: Adoption) {
        self.adoption = Some(adoption);
    }

    /// Returns what became of its connections, once.
    pub(crate) const fn take_adoption(&mut self) -> Option<Adoption> {
        self.adoption.take()
    }

    /// Notes what its death was charged to; `None` if it has not died by its own fault.
    pub(crate) const fn tell_charge(&mut self, charge: Option<Charge>) {
        self.charge = charge;
    }

    /// Returns what its death was charged to, once.
    pub(crate) const fn take_charge(&mut self) -> Option<Charge> {
        self.charge.take()
    }

    /// Begins to search the slots of all sessions, also of those that are opened later, for sockets of lost
    /// connections: there are no records, or their owners are unknown.
    pub(crate) fn begin_to_look(&mut self, sessions: impl Iterator<Item = (u32, SessionId)>) {
        self.lost_slots = sessions.map(|(place, id)| (place, id, 0)).collect();
        self.looks_for_lost = true;
    }

    /// Notes that a session was opened.
    pub(crate) fn session_opened(&mut self, place: u32, id: SessionId) {
        if self.looks_for_lost {
            self.lost_slots.push_back((place, id, 0));
        }
    }

    /// Returns whether slots are still to be searched.
    #[inline]
    pub(crate) fn is_looking(&self) -> bool {
        !self.lost_slots.is_empty()
    }

    /// Searches some of the slots for connections that were lost with their records, and notifies their
    /// applications. Applications can mark as many slots as they like, so this is done in parts. Returns the
    /// number of lost connections.
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
            let generations =
                session.slot(slot).map(|view| (view.app_generation(), view.replica_generation()));
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

/// Notifies the application of a connection that cannot continue. Returns whether the application has a
/// socket for it, which keeps its slot until it is closed.
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
        // An offer counts only if it has been claimed.
        SlotState::Offered => !view.revoke(generation),
        _ => false,
    };
    if !is_held || !session.occupy_again(slot, generation, Occupant::Lost) {
        return false;
    }
    let Some(view) = session.slot(slot) else { return false };
    if view.replica_flags() & REPLICA_CLOSED == 0 {
        // Unread text is gone: others may get its memory.
        view.set_receive_tail(view.receive_head());
        let flags = view.replica_flags() | REPLICA_CLOSED | REPLICA_RESET;
        view.set_outcome(flags, Cause::ConnectionReset, Some(SlotState::Open));
    }
    if is_offer {
        session.push(stats, &Event::ClaimVerdict { slot, generation, confirmed: true }, None);
    }
    true
}

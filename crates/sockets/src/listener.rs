//! The connections on offer to a listener of this process, and the claim by which accept(2) takes one (P4).

use alloc::collections::VecDeque;

use atoll_base::{Endpoint, SlotId};
use atoll_ipc::Memory;
use atoll_ipc::slot::SlotState;

use crate::asking::Asking;
use crate::port::Port;

/// The maximum number of offers that a listener keeps. Replicas bound their offers by the backlog, so more
/// would be nonsense.
pub const OFFERS_MAX: usize = 65536;

/// A CONNECTION-AVAILABLE message that waits for accept(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The replica that offers the connection.
    pub replica: u8,
    /// The slot that the connection will have.
    pub slot: SlotId,
    /// The generation of the slot that is offered.
    pub generation: u32,
    /// The local address and port of the connection.
    pub local: Endpoint,
    /// The remote address and port of the connection.
    pub remote: Endpoint,
}

/// The state of a listener in one process.
#[derive(Debug, Default)]
pub struct Listener {
    /// The offers, in the order of their arrival.
    pub offers: VecDeque<Offer>,
    /// The replicas that were sent ACCEPT-CONNECTION and have not removed this process since, one bit each.
    pub accepting: u32,
    /// The known states of the replicas' queues, where connections are asked for (naive accept), and whose
    /// answers are awaited otherwise.
    pub asking: Asking,
    /// The backlog given to listen(2).
    pub backlog: u32,
    /// The claim whose verdict is awaited.
    pub claimed: Option<Offer>,
    /// The verdict on the claim, once it has come.
    pub verdict: Option<bool>,
    /// Whether replicas have removed this process since its last claim: one connection is on offer until it
    /// claims again.
    pub on_trial: bool,
    /// Whether a claim has ended that: more connections may be on offer in a moment.
    pub more_soon: bool,
    /// Whether replicas may be about to offer connections, and have not been asked whether they have done so.
    pub is_late: bool,
}

/// The result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The connection belongs to this process.
    Held,
    /// The replica may have revoked the offer: the caller has to wait for the verdict.
    Doubtful,
    /// The offer is gone.
    Gone,
}

impl Listener {
    /// Stores an offer; returns false when there are [`OFFERS_MAX`] already.
    pub fn offer(&mut self, offer: Offer) -> bool {
        if self.offers.len() >= OFFERS_MAX {
            return false;
        }
        self.offers.push_back(offer);
        true
    }
}

/// Claims `offer` for process `member`. Prepares the part of the slot that the application writes, then
/// claims it.
pub fn claim<M: Memory>(port: &Port<M>, offer: &Offer, member: u8, bell: u32) -> Claim {
    let Some(slot) = port.slot(offer.slot) else { return Claim::Gone };
    if slot.replica_generation() != offer.generation
        || slot.state() != SlotState::Offered
        || !port.layout().replica_slots().contains(&offer.slot.0)
    {
        return Claim::Gone;
    }
    slot.app_reset(offer.generation);
    slot.set_holders(1 << (member & 63));
    slot.set_bell(bell);
    if slot.claim(offer.generation) { Claim::Held } else { Claim::Doubtful }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_ipc::HeapMemory;
    use atoll_ipc::arena::ArenaConfig;

    #[test]
    fn an_offer_is_claimed_doubtful_after_a_revocation_and_gone_when_the_slot_moved_on() {
        let layout = ArenaConfig { slots: 16, send_log2: 16, receive_log2: 16 }.layout();
        let port = Port::new(HeapMemory::new(layout.total), layout);
        let offer = Offer {
            replica: 0,
            slot: SlotId(9),
            generation: 3,
            local: Endpoint::default(),
            remote: Endpoint::default(),
        };
        assert_eq!(claim(&port, &offer, 2, 5), Claim::Gone);
        let slot = port.slot(SlotId(9)).expect("in range");
        slot.replica_reset(3, SlotState::Offered, 1000);
        assert_eq!(claim(&port, &offer, 2, 5), Claim::Held);
        assert_eq!((slot.holders(), slot.bell(), slot.app_generation()), (4, 5, 3));
        slot.replica_reset(4, SlotState::Offered, 1000);
        let offer = Offer { generation: 4, ..offer };
        assert!(slot.revoke(4));
        assert_eq!(claim(&port, &offer, 2, 5), Claim::Doubtful);
    }
}

//! Which connections are on offer to a listener of this process, and which one does accept take? P4,
//! accept(2).

use alloc::collections::VecDeque;

use atoll_base::{Endpoint, SlotId};
use atoll_ipc::Memory;
use atoll_ipc::slot::SlotState;

use crate::asking::Asking;
use crate::port::Port;

/// Most offers that are remembered; replicas bound theirs by the backlog, so more is nonsense.
pub const OFFERS_MAX: usize = 65536;

/// CONNECTION-AVAILABLE as it waits for accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The replica that offers.
    pub replica: u8,
    /// The slot that the connection will have.
    pub slot: SlotId,
    /// Generation of the offer.
    pub generation: u32,
    /// Own end of the connection.
    pub local: Endpoint,
    /// Peer of the connection.
    pub remote: Endpoint,
}

/// Listener state of one process.
#[derive(Debug, Default)]
pub struct Listener {
    /// Offers in the order of their arrival.
    pub offers: VecDeque<Offer>,
    /// ACCEPT-CONNECTION was sent to these replicas (one bit each) and they have not removed us since.
    pub accepting: u32,
    /// What is known of the queues, where connections are asked for.
    pub asking: Asking,
    /// Backlog asked for in listen(2).
    pub backlog: u32,
    /// A claim whose verdict is awaited.
    pub claimed: Option<Offer>,
    /// The verdict, once it is there.
    pub verdict: Option<bool>,
    /// shutdown(2) has ended it: accept fails.
    pub is_shut: bool,
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The connection is ours.
    Held,
    /// The replica may have revoked the offer: wait for the verdict.
    Doubtful,
    /// The offer is gone.
    Gone,
}

impl Listener {
    /// Remembers an offer; false when there are too many.
    pub fn offer(&mut self, offer: Offer) -> bool {
        if self.offers.len() >= OFFERS_MAX {
            return false;
        }
        self.offers.push_back(offer);
        true
    }
}

/// Claims `offer` for process `member`: prepares the slot's lines, then claims.
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

//! Which replica owns a flow? A copy of the stack page's table, so that a frame costs no shared memory.

use atoll_base::{FLOW_GROUPS, FlowGroup, FlowKey, FourTuple, ReplicaId};
use atoll_ipc::Memory;
use atoll_ipc::page::{REPLICAS_MAX, StackPage};

use crate::classify::{Class, classify};

/// Who gets a frame from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// This replica.
    One(ReplicaId),
    /// Every replica, a copy each.
    All,
}

/// Flow group to replica (S4, design 11), as one stack sees it.
#[derive(Clone, Debug)]
pub struct Steering {
    key: FlowKey,
    owners: [u8; FLOW_GROUPS],
}

impl Steering {
    /// All groups belong to replica 0.
    pub const fn new(key: FlowKey) -> Steering {
        Steering { key, owners: [0; FLOW_GROUPS] }
    }

    /// Copies the table from the stack page. Entries that name no replica of the stack are taken modulo
    /// `replicas`.
    pub fn refresh<M: Memory>(&mut self, page: &StackPage<M>, replicas: u8) {
        let replicas = replicas.clamp(1, REPLICAS_MAX as u8);
        for (group, owner) in (0u16..).zip(self.owners.iter_mut()) {
            *owner = page.owner(FlowGroup(group)).0 % replicas;
        }
    }

    /// Which replica owns the connection; `tuple` from the receiver's point of view.
    #[inline]
    pub fn owner(&self, tuple: &FourTuple) -> ReplicaId {
        ReplicaId(self.owners[usize::from(self.key.group(tuple).0)])
    }

    /// Who gets `frame` (from the Ethernet header on). What anybody may handle goes to `any`.
    #[inline]
    pub fn destination(&self, frame: &[u8], any: ReplicaId) -> Destination {
        Destination::One(match classify(frame) {
            Class::Flow(tuple) => self.owner(&tuple),
            Class::Stack => ReplicaId(0),
            Class::Any => any,
            Class::All => return Destination::All,
        })
    }
}

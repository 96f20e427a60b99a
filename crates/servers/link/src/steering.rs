//! Finds the replica that owns a flow, in a copy of the stack page's table, so that a frame costs no access
//! to shared memory.

use atoll_base::{FLOW_GROUPS, FlowGroup, FlowKey, FourTuple, ReplicaId};
use atoll_ipc::Memory;
use atoll_ipc::page::{REPLICAS_MAX, StackPage};

use crate::classify::{Class, classify};

/// The receiver of a frame from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// This replica gets the frame.
    One(ReplicaId),
    /// Every replica gets a copy of the frame.
    All,
}

/// The map from flow groups to replicas (S4, decision 9), as one stack sees it.
#[derive(Clone, Debug)]
pub struct Steering {
    key: FlowKey,
    owners: [u8; FLOW_GROUPS],
}

impl Steering {
    /// Creates a table in which all groups belong to replica 0.
    pub const fn new(key: FlowKey) -> Steering {
        Steering { key, owners: [0; FLOW_GROUPS] }
    }

    /// Copies the table from the stack page. An entry that names no replica of the stack is taken modulo
    /// `replicas`.
    pub fn refresh<M: Memory>(&mut self, page: &StackPage<M>, replicas: u8) {
        let replicas = replicas.clamp(1, REPLICAS_MAX as u8);
        for (group, owner) in (0u16..).zip(self.owners.iter_mut()) {
            *owner = page.owner(FlowGroup(group)).0 % replicas;
        }
    }

    /// Returns the replica that owns the connection. `tuple` is as the receiver sees it.
    #[inline]
    pub fn owner(&self, tuple: &FourTuple) -> ReplicaId {
        ReplicaId(self.owners[usize::from(self.key.group(tuple).0)])
    }

    /// Returns the receiver of `frame`, which starts at the Ethernet header. A frame that any replica may
    /// handle goes to `any`.
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

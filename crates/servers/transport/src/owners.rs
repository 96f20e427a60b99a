//! Finds the replica that gets the packets of a connection, in a copy of the stack page's table from flow
//! groups to replicas.

use alloc::boxed::Box;

use atoll_base::{FLOW_GROUPS, FlowGroup, FlowKey, FourTuple, ReplicaId};
use atoll_ipc::page::REPLICAS_MAX;

use crate::config::Config;

/// The replica that owns each flow group.
#[derive(Debug)]
pub(crate) struct Owners {
    of_group: Box<[u8; FLOW_GROUPS]>,
    key: FlowKey,
    own: ReplicaId,
    replicas: u8,
}

impl Owners {
    /// Creates the table: all flow groups belong to this replica until [`Owners::set`].
    pub(crate) fn new(config: &Config) -> Owners {
        let of_group = Box::new([config.replica.0; FLOW_GROUPS]);
        let replicas = config.replicas.clamp(1, REPLICAS_MAX as u8);
        Owners { of_group, key: config.key, own: config.replica, replicas }
    }

    /// Sets the owner of every flow group.
    pub(crate) fn set(&mut self, owner_of: impl Fn(FlowGroup) -> ReplicaId) {
        for (group, owner) in (0..).zip(self.of_group.iter_mut()) {
            *owner = owner_of(FlowGroup(group)).0 % self.replicas;
        }
    }

    /// Returns the replica that gets packets of `tuple`, which is seen from their receiver.
    #[inline]
    pub(crate) fn of(&self, tuple: &FourTuple) -> ReplicaId {
        ReplicaId(self.of_group[usize::from(self.key.group(tuple).0)])
    }

    /// Returns whether packets of `tuple` reach this replica.
    #[inline]
    pub(crate) fn is_ours(&self, tuple: &FourTuple) -> bool {
        self.of(tuple) == self.own
    }
}

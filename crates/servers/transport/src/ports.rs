//! Which local port does an outgoing connection take? One whose replies steer back to this replica.

use atoll_base::{Endpoint, FourTuple};
use atoll_ipc::Memory;

use crate::transport::Transport;

impl<M: Memory> Transport<M> {
    /// A tuple for a connection from `local` (port 0: any) to `remote`, not in use, and owned by this replica.
    ///
    /// A port that the application chose is taken as it is (the library asks the replica that owns the tuple). `None`: all
    /// ports to this peer are in use.
    pub(crate) fn choose_tuple(&mut self, local: Endpoint, remote: Endpoint) -> Option<FourTuple> {
        let is_free = |transport: &Self, tuple: &FourTuple| {
            !transport.flows.contains_key(tuple) && !transport.time_waits.contains_key(tuple)
        };
        if local.port != 0 {
            let tuple = FourTuple { local, remote };
            return is_free(self, &tuple).then_some(tuple);
        }
        let (first, last) = self.config.ephemeral;
        let span = u32::from(last.saturating_sub(first)) + 1;
        // RFC 6056 §3.3.1: a random start, then the next ports in turn.
        let start = self.rng.below(span);
        (0..span)
            .map(|i| Endpoint::new(local.addr, first + ((start + i) % span) as u16))
            .map(|local| FourTuple { local, remote })
            .find(|tuple| self.owns(tuple) && is_free(self, tuple))
    }
}

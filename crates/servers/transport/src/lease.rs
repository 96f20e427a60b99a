//! By what right does a socket use a port? Every command that names one is checked here.
//!
//! The authority of the port looks into its own table; others look at what the session has shown them, whose seal they can make themselves.

use atoll_base::Endpoint;
use atoll_connmgr::covers;
use atoll_ipc::Memory;
use atoll_ipc::command::Protocol;
use atoll_ipc::lease::{Grant, Voucher};
use core::hash::Hasher;
use siphasher::sip::SipHasher24;

use crate::transport::Transport;

/// What only servers can make of a grant.
fn seal(key: &[u8; 16], grant: &Grant) -> u64 {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(&grant.sealed());
    hasher.finish()
}

impl<M: Memory> Transport<M> {
    /// What the holder of a grant is told, for other replicas. `None`: nothing, because somebody else grants it.
    pub(crate) fn voucher(&self, grant: Option<Grant>) -> Voucher {
        grant.map(|grant| grant.voucher(seal(&self.secrets.leases, &grant))).unwrap_or_default()
    }

    /// A session shows what the authority of a port has granted. `false`: it has not.
    pub(crate) fn show(&mut self, session: u32, grant: Grant, voucher: &Voucher) -> bool {
        let is_sealed = seal(&self.secrets.leases, &grant) == voucher.seal;
        if let Some(session) = self.session_mut(session).filter(|_| is_sealed) {
            session.shown = Some(grant);
        }
        is_sealed
    }

    /// What a session has shown, if it is about this lease.
    pub(crate) fn shown(&self, session: u32, lease: u64) -> Option<Grant> {
        self.session(session)?.shown.filter(|grant| grant.lease == lease)
    }

    /// What allows a session to call a socket `local`; `None`: nothing does.
    pub(crate) fn grant(&self, session: u32, lease: u64, protocol: Protocol, local: Endpoint) -> Option<Grant> {
        let grant = if self.cm.is_authority(local.port) {
            self.cm.grant(self.session(session)?.id, lease)
        } else {
            self.shown(session, lease)
        };
        grant.filter(|grant| grant.protocol == protocol && covers(grant, local))
    }
}

//! By what right does a socket use a port? Every command that names one is checked here.
//!
//! The authority of the port looks into its own table; others look at what the session has shown them, whose seal they can make themselves.
//!
//! Whose a socket is, and whether it may have a low port, is nothing that a session says of itself, or that it was when it was opened: its process
//! may have given up that user since. The supervisor says it about one socket ([`Pass`]).

use atoll_base::Endpoint;
use atoll_connmgr::covers;
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::lease::{Grant, Pass, Voucher};
use atoll_ipc::{Command, Memory};
use core::hash::Hasher;
use siphasher::sip::SipHasher24;

use crate::transport::Transport;

/// What only servers can make of a grant.
fn seal(key: &[u8; 16], grant: &Grant) -> u64 {
    seal_bytes(key, &grant.sealed())
}

/// What only servers and the supervisor can make of a pass.
pub fn seal_pass(key: &[u8; 16], pass: &Pass) -> u64 {
    seal_bytes(key, &pass.sealed())
}

fn seal_bytes(key: &[u8; 16], bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(bytes);
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

    /// A session shows what the supervisor has said of it. `None`: it has not. Otherwise what holds for this socket now.
    pub(crate) fn take_pass(&mut self, session: u32, pass: Pass, shown_seal: u64) -> Option<Pass> {
        if seal_pass(&self.secrets.leases, &pass) != shown_seal {
            return None;
        }
        let session = self.session_mut(session)?;
        let first = session.pass.filter(|first| first.lease == pass.lease);
        let uid = first.map_or(pass.uid, |first| first.uid);
        session.pass = Some(Pass { uid, ..pass });
        session.pass
    }

    /// The command by which a session shows a pass.
    pub(crate) fn pass_command(&self, pass: Pass) -> Command {
        Command::Pass { pass, seal: seal_pass(&self.secrets.leases, &pass) }
    }

    /// As whom a session asks for a socket: as nobody in particular, unless the supervisor has vouched for it, or the socket was granted before.
    pub(crate) fn user_of(&self, session: u32, lease: u64, protocol: Protocol, local: Endpoint) -> Option<User> {
        let session = self.session(session)?;
        let user = session.user;
        if let Some(pass) = session.pass.filter(|pass| pass.lease == lease) {
            let port = if pass.protocol == protocol { pass.port } else { 0 };
            return Some(user.vouched(pass.uid, port));
        }
        let is_meant = |grant: &Grant| grant.lease == lease && grant.protocol == protocol && covers(grant, local);
        let shown = session.shown.filter(is_meant);
        Some(shown.map_or(user, |grant| user.vouched(grant.uid, grant.local.port)))
    }

    /// Whether the session would be granted it, as the same user's, with nothing to show.
    pub(crate) fn is_plain(&self, session: u32, grant: &Grant) -> bool {
        let user = self.session(session).map(|session| session.user);
        user.is_some_and(|user| user.uid == grant.uid && user.may_bind(grant.local.port))
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

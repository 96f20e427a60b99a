//! By what right does a socket use a port? Every command that names one is checked here.
//!
//! The authority of the port looks into its own table; others look at what the session has shown them, whose
//! seal they can make themselves.
//!
//! Whose a socket is, and whether it may have a low port, is nothing that a session says of itself, or that
//! it was when it was opened: its process may have given up that user since. The supervisor says it about one
//! socket ([`Pass`]).

use atoll_base::{Endpoint, SessionId};
use atoll_connmgr::{ConnMgr, covers};
use atoll_ipc::Command;
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::lease::{Grant, Pass, Voucher};
use core::hash::Hasher;
use siphasher::sip::SipHasher24;

use crate::config::Secrets;

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

/// Returns what the holder of a grant is told, for other replicas. `None`: nothing, because somebody else
/// grants it.
pub(crate) fn voucher(secrets: &Secrets, grant: Option<Grant>) -> Voucher {
    grant.map(|grant| grant.voucher(seal(&secrets.leases, &grant))).unwrap_or_default()
}

/// Returns the command by which a session shows a pass.
pub(crate) fn pass_command(secrets: &Secrets, pass: Pass) -> Command {
    Command::Pass { pass, seal: seal_pass(&secrets.leases, &pass) }
}

/// What a session has shown of its rights.
#[derive(Debug)]
pub(crate) struct Rights {
    /// Whose it is.
    user: User,
    /// What it has shown last of what the supervisor has said of it.
    pass: Option<Pass>,
    /// What it has shown last of what the authority of a port has granted.
    shown: Option<Grant>,
}

impl Rights {
    /// Creates the rights of a session of this user that has shown nothing.
    pub(crate) const fn new(user: User) -> Rights {
        Rights { user, pass: None, shown: None }
    }

    /// Returns for which user it counts, if what all of his sessions have together is bounded.
    pub(crate) const fn counts_for(&self) -> Option<u32> {
        self.user.counts_for
    }

    /// Returns what it has shown last of what the supervisor has said of it.
    pub(crate) const fn last_pass(&self) -> Option<Pass> {
        self.pass
    }

    /// Returns what it has shown last of what the authority of a port has granted.
    pub(crate) const fn last_shown(&self) -> Option<Grant> {
        self.shown
    }

    /// The session shows what the authority of a port has granted. `false`: it has not.
    pub(crate) fn show(&mut self, secrets: &Secrets, grant: Grant, voucher: &Voucher) -> bool {
        let is_sealed = seal(&secrets.leases, &grant) == voucher.seal;
        if is_sealed {
            self.shown = Some(grant);
        }
        is_sealed
    }

    /// The session shows what the supervisor has said of it. `None`: it has not. Otherwise what holds for
    /// this socket now.
    pub(crate) fn take_pass(&mut self, secrets: &Secrets, pass: Pass, shown_seal: u64) -> Option<Pass> {
        if seal_pass(&secrets.leases, &pass) != shown_seal {
            return None;
        }
        let first = self.pass.filter(|first| first.lease == pass.lease);
        let uid = first.map_or(pass.uid, |first| first.uid);
        self.pass = Some(Pass { uid, ..pass });
        self.pass
    }

    /// Returns as whom the session asks for a socket: as nobody in particular, unless the supervisor has
    /// vouched for it, or the socket was granted before.
    pub(crate) fn user_of(&self, lease: u64, protocol: Protocol, local: Endpoint) -> User {
        let user = self.user;
        if let Some(pass) = self.pass.filter(|pass| pass.lease == lease) {
            let port = if pass.protocol == protocol { pass.port } else { 0 };
            return user.vouched(pass.uid, port);
        }
        let is_meant = |grant: &Grant| grant.lease == lease && grant.protocol == protocol && covers(grant, local);
        let shown = self.shown.filter(is_meant);
        shown.map_or(user, |grant| user.vouched(grant.uid, grant.local.port))
    }

    /// Whether the session would be granted it, as the same user's, with nothing to show.
    pub(crate) fn is_plain(&self, grant: &Grant) -> bool {
        self.user.uid == grant.uid && self.user.may_bind(grant.local.port)
    }

    /// Returns what the session has shown, if it is about this lease.
    pub(crate) fn shown(&self, lease: u64) -> Option<Grant> {
        self.shown.filter(|grant| grant.lease == lease)
    }

    /// Returns what allows the session `id` to call a socket `local`; `None`: nothing does.
    pub(crate) fn grant(
        &self,
        (cm, id): (&ConnMgr, SessionId),
        lease: u64,
        protocol: Protocol,
        local: Endpoint,
    ) -> Option<Grant> {
        let grant = if cm.is_authority(local.port) { cm.grant(id, lease) } else { self.shown(lease) };
        grant.filter(|grant| grant.protocol == protocol && covers(grant, local))
    }
}

//! The right of a socket to use a port. Every command that names a port is checked here.
//!
//! The authority of the port looks into its own table. Other replicas examine what the session has shown
//! them, whose seal they can compute themselves.
//!
//! A session cannot say itself to which user a socket belongs, and whether it may have a low port. Nor does
//! the time of its opening decide: its process may have given up that user since. The supervisor certifies it
//! for one socket ([`Pass`]).

use atoll_base::{Endpoint, SessionId};
use atoll_connmgr::{ConnMgr, covers};
use atoll_ipc::Command;
use atoll_ipc::command::Protocol;
use atoll_ipc::control::User;
use atoll_ipc::lease::{Grant, Pass, Voucher};
use core::hash::Hasher;
use siphasher::sip::SipHasher24;

use crate::config::Secrets;

/// Returns the seal of a grant, which only servers can compute.
fn seal(key: &[u8; 16], grant: &Grant) -> u64 {
    seal_bytes(key, &grant.sealed())
}

/// Returns the seal of a pass, which only servers and the supervisor can compute.
pub fn seal_pass(key: &[u8; 16], pass: &Pass) -> u64 {
    seal_bytes(key, &pass.sealed())
}

fn seal_bytes(key: &[u8; 16], bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(bytes);
    hasher.finish()
}

/// Returns the voucher that the holder of a grant gets, for other replicas. It is empty without a grant,
/// which another replica makes then.
pub(crate) fn voucher(secrets: &Secrets, grant: Option<Grant>) -> Voucher {
    grant.map(|grant| grant.voucher(seal(&secrets.leases, &grant))).unwrap_or_default()
}

/// Returns the command by which a session shows a pass.
pub(crate) fn pass_command(secrets: &Secrets, pass: Pass) -> Command {
    Command::Pass { pass, seal: seal_pass(&secrets.leases, &pass) }
}

/// The rights that a session has shown.
#[derive(Debug)]
pub(crate) struct Rights {
    /// The user of the session.
    user: User,
    /// The last pass of the supervisor that the session has shown.
    pass: Option<Pass>,
    /// The last grant of a port's authority that the session has shown.
    shown: Option<Grant>,
}

impl Rights {
    /// Creates the rights of a session of this user that has shown nothing.
    pub(crate) const fn new(user: User) -> Rights {
        Rights { user, pass: None, shown: None }
    }

    /// Returns the user that the session counts for, if the total of that user's sessions is bounded.
    pub(crate) const fn counts_for(&self) -> Option<u32> {
        self.user.counts_for
    }

    /// Returns the last pass of the supervisor that the session has shown.
    pub(crate) const fn last_pass(&self) -> Option<Pass> {
        self.pass
    }

    /// Returns the last grant of a port's authority that the session has shown.
    pub(crate) const fn last_shown(&self) -> Option<Grant> {
        self.shown
    }

    /// Notes a grant that the session shows. Returns `false` if the seal is wrong.
    pub(crate) fn show(&mut self, secrets: &Secrets, grant: Grant, voucher: &Voucher) -> bool {
        let is_sealed = seal(&secrets.leases, &grant) == voucher.seal;
        if is_sealed {
            self.shown = Some(grant);
        }
        is_sealed
    }

    /// Notes a pass that the session shows. Returns what holds for this socket now; `None` if the seal is
    /// wrong.
    pub(crate) fn take_pass(&mut self, secrets: &Secrets, pass: Pass, shown_seal: u64) -> Option<Pass> {
        if seal_pass(&secrets.leases, &pass) != shown_seal {
            return None;
        }
        let first = self.pass.filter(|first| first.lease == pass.lease);
        let uid = first.map_or(pass.uid, |first| first.uid);
        self.pass = Some(Pass { uid, ..pass });
        self.pass
    }

    /// Returns the user as which the session asks for a socket: the session's own user, unless the supervisor
    /// has vouched for the socket, or the socket was granted before.
    pub(crate) fn user_of(&self, lease: u64, protocol: Protocol, local: Endpoint) -> User {
        let user = self.user;
        if let Some(pass) = self.pass.filter(|pass| pass.lease == lease) {
            let port = if pass.protocol == protocol { pass.port } else { 0 };
            return user.vouched(pass.uid, port);
        }
        let is_meant =
            |grant: &Grant| grant.lease == lease && grant.protocol == protocol && covers(grant, local);
        let shown = self.shown.filter(is_meant);
        shown.map_or(user, |grant| user.vouched(grant.uid, grant.local.port))
    }

    /// Returns whether the session would be granted this, for the same user, with nothing to show.
    pub(crate) fn is_plain(&self, grant: &Grant) -> bool {
        let is_free = grant.protocol != Protocol::Raw && self.user.may_bind(grant.local.port);
        self.user.uid == grant.uid && is_free
    }

    /// Returns the grant that the session has shown, if it is about this lease.
    pub(crate) fn shown(&self, lease: u64) -> Option<Grant> {
        self.shown.filter(|grant| grant.lease == lease)
    }

    /// Returns the grant by which the session `id` may give a socket the address `local`; `None` if there is
    /// none.
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

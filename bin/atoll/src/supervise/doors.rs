//! The sockets that a stack listens at: one for applications and one for administration, which never share a
//! connection.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use atoll_supervisor::{Asker, Caller, Config, Door, Paths, Rights};
use atoll_sys::unix::{Blocking, Channel, Listener, Peer};
use atoll_sys::users;

use super::users::unknown;
use crate::failure::{Failure, OrFail};

/// The listening sockets of a stack.
#[derive(Debug)]
pub struct Doors {
    /// `NAME.sock`, for applications.
    pub applications: Listener,
    /// `NAME.admin`, for administration.
    pub administration: Listener,
}

impl Doors {
    /// Opens both sockets at their paths. `rights` has the users that the stack serves.
    pub fn open(paths: &Paths, rights: &Rights) -> io::Result<Doors> {
        // With more than one user, only the supervisor can decide which users may connect.
        let mode = if rights.is_shared() { 0o666 } else { 0o600 };
        Ok(Doors { applications: open(&paths.socket, mode)?, administration: open(&paths.admin, 0o600)? })
    }

    /// Takes over the sockets of an earlier supervisor. `administration` is `None` if it was of a build that
    /// had one socket for everything; the other socket is opened then.
    pub fn resume(
        applications: Listener,
        administration: Option<Listener>,
        paths: &Paths,
    ) -> io::Result<Doors> {
        Channel::ask_for_senders(&applications)?;
        let administration = administration.map_or_else(|| open(&paths.admin, 0o600), Ok)?;
        Ok(Doors { applications, administration })
    }

    /// Returns one of the sockets.
    pub fn listener(&self, door: Door) -> &Listener {
        match door {
            Door::Applications => &self.applications,
            Door::Administration => &self.administration,
        }
    }
}

/// Looks up the users that the stack serves.
pub fn rights(config: &Config) -> Result<Rights, Failure> {
    let mut rights = Rights::of(rustix::process::geteuid().as_raw());
    for name in &config.users.allow {
        let found = users::user(name).or_fail(format!("users.allow: {name:?}"))?;
        rights.allow_user(found.ok_or_else(|| unknown("users.allow (--allow-user)", "user", name))?);
    }
    for name in &config.users.groups {
        let found = users::group(name).or_fail(format!("users.groups: {name:?}"))?;
        let (gid, members) = found.ok_or_else(|| unknown("users.groups (--allow-group)", "group", name))?;
        rights.allow_group(gid);
        members.into_iter().for_each(|uid| rights.allow_user(uid));
    }
    Ok(rights)
}

/// Returns an error if other users cannot reach a stack that is shared with them. `directory` is where its
/// sockets are.
pub fn check_reach(rights: &Rights, directory: &Path) -> Result<(), Failure> {
    if !rights.is_shared() {
        return Ok(());
    }
    if rustix::process::geteuid().as_raw() != 0 {
        // Programs trust only root and their own user.
        return Err(Failure::new(ROOT_ONLY));
    }
    let mode = std::fs::metadata(directory).or_fail(directory.display())?.permissions().mode();
    if mode & 0o001 == 0 {
        return Err(Failure::new(format!(
            "{} is closed to the users that the stack is for: chmod o+x {0}",
            directory.display()
        )));
    }
    Ok(())
}

/// Listens at `path`. Connections report the sender of each message, and refuse descriptors.
fn open(path: &Path, mode: u32) -> io::Result<Listener> {
    let listener = Listener::bind(path, BACKLOG, Blocking::No)?;
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    Channel::refuse_descriptors(&listener)?;
    Channel::ask_for_senders(&listener)?;
    Ok(listener)
}

/// The error for a stack of another user than root that is to be shared.
pub const ROOT_ONLY: &str =
    "users.allow and users.groups (--allow-user, --allow-group): only a stack of root can be for other users";

/// Returns the part of a process's credentials that rights depend on.
pub fn asker(peer: Peer) -> Asker {
    Asker { uid: peer.uid, gid: peer.gid }
}

/// Returns the part of a process's credentials by which its connections and requests are counted.
pub fn caller(peer: Peer) -> Caller {
    Caller { uid: peer.uid, pid: peer.pid }
}

/// The number of connections that may wait for the supervisor.
const BACKLOG: u32 = 1024;

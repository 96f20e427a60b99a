//! The user that servers run as. In a stack of root it is one of their own, so that a compromised server has
//! no rights on the machine.

use std::io;

use atoll_sys::users;

use crate::failure::{Failure, OrFail};
use crate::privileges;
use crate::setup::ServerUser;

/// Returns the user for the servers of a stack that starts, or `None` if servers keep the supervisor's.
/// `wanted` is the user in the configuration.
pub fn choose(wanted: Option<&str>) -> Result<Option<ServerUser>, Failure> {
    choose_from(wanted, privileges::may_change_user(), users::account)
}

/// Chooses the user. `may_change` says whether children of this process can become another user; `account`
/// looks up user and group.
fn choose_from(
    wanted: Option<&str>,
    may_change: bool,
    account: impl Fn(&str) -> io::Result<Option<(u32, u32)>>,
) -> Result<Option<ServerUser>, Failure> {
    let name = wanted.unwrap_or(USUAL);
    let found = match account(name) {
        Ok(found) => found,
        // The user was not asked for, and a directory service that is down is no reason not to start.
        Err(_) if wanted.is_none() => None,
        failed => failed.or_fail(format!("servers.user: {name:?}"))?,
    };
    match found {
        Some((0, _)) => Ok(None),
        Some((uid, gid)) if may_change => Ok(Some(ServerUser { uid, gid })),
        _ if wanted.is_none() => Ok(None),
        Some(_) => Err(Failure::new(ROOT_ONLY)),
        None => Err(Failure::new(format!("servers.user (--servers-user): there is no user {name:?}"))),
    }
}

/// The user that is taken if the configuration names none, and the system has it.
const USUAL: &str = "atoll";
/// The error if servers cannot run as another user.
const ROOT_ONLY: &str = "servers.user (--servers-user): only servers of a stack of root, which may change \
                         users and is not --rootless, can run as another one";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_get_a_user_of_their_own_where_there_is_one() {
        let account = |name: &str| {
            Ok(match name {
                "atoll" => Some((990, 991)),
                "other" => Some((5, 6)),
                "root" | "toor" => Some((0, 0)),
                _ => None,
            })
        };
        let choose = |wanted, may_change| {
            choose_from(wanted, may_change, account).map_err(|failure| failure.to_string())
        };
        let own = |uid, gid| Ok(Some(ServerUser { uid, gid }));
        assert_eq!(choose(None, true), own(990, 991));
        assert_eq!(choose(Some("other"), true), own(5, 6));
        // The servers are to stay root, or cannot be anything else.
        assert_eq!((choose(Some("root"), true), choose(Some("toor"), true)), (Ok(None), Ok(None)));
        assert_eq!((choose(None, false), choose(Some("root"), false)), (Ok(None), Ok(None)));
        // A user that is asked for is not ignored.
        assert_eq!(choose(Some("other"), false), Err(ROOT_ONLY.into()));
        assert!(choose(Some("nobody else"), true).is_err_and(|why| why.contains("no user \"nobody else\"")));
        let no_such_user = |_: &str| Ok(None);
        assert!(choose_from(None, true, no_such_user).is_ok_and(|user| user.is_none()));
        let broken = |_: &str| Err(io::ErrorKind::TimedOut.into());
        assert!(choose_from(None, true, broken).is_ok_and(|user| user.is_none()));
        assert!(choose_from(Some("other"), true, broken).is_err());
    }
}

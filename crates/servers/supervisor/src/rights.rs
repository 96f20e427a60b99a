//! Decides which user may ask what of a supervisor: the table "Who may ask what" of THREAT_MODEL.md as code.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The socket that a connection came through. It decides what can be asked over the connection for as long as
/// the connection exists, whichever process has inherited it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Door {
    /// `NAME.sock`, for the requests of applications.
    #[default]
    Applications,
    /// `NAME.admin`, for the requests of the command line and of other stacks.
    Administration,
}

/// The user and group of a process, as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The user id.
    pub uid: u32,
    /// The id of the primary group.
    pub gid: u32,
}

/// A process and its user, by which connections and requests are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user id.
    pub uid: u32,
    /// The process id, or 0 if the process is in a pid namespace that the supervisor cannot see; such a
    /// process counts with its user.
    pub pid: u32,
}

/// The users that a stack serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    /// The user that the stack belongs to.
    own: u32,
    /// Users that may have sessions.
    users: BTreeSet<u32>,
    /// Groups whose members may have sessions, if this is their primary group. Users that are listed as
    /// members of a group are in `users`.
    groups: BTreeSet<u32>,
}

impl Rights {
    /// Creates the rights of a stack that belongs to the user `own` and serves no other user.
    pub fn of(own: u32) -> Rights {
        Rights { own, ..Rights::default() }
    }

    /// Lets a user have sessions.
    pub fn allow_user(&mut self, uid: u32) {
        self.users.insert(uid);
    }

    /// Lets users have sessions whose primary group is `gid`.
    pub fn allow_group(&mut self, gid: u32) {
        self.groups.insert(gid);
    }

    /// Returns whether users other than the stack's own user and root may have sessions.
    pub fn is_shared(&self) -> bool {
        !self.users.is_empty() || !self.groups.is_empty()
    }

    /// Returns whether `asker` may have sessions of its own: the stack's user, root, and users that were
    /// allowed to may.
    pub fn may_attach(&self, asker: Asker) -> bool {
        self.is_administrator(asker) || self.users.contains(&asker.uid) || self.groups.contains(&asker.gid)
    }

    /// Returns whether a request may concern the stack as a whole. `opened` made the connection; `asks` sent
    /// the request, if the kernel says which user did. Both must be administrators: a program that gave up
    /// its rights may have inherited the connection, and one with rights may have been made to write on
    /// another user's connection.
    pub fn may_administer(&self, opened: Asker, asks: Option<Asker>) -> bool {
        self.is_administrator(opened) && asks.is_some_and(|asks| self.is_administrator(asks))
    }

    fn is_administrator(&self, asker: Asker) -> bool {
        asker.uid == 0 || asker.uid == self.own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Asker = Asker { uid: 0, gid: 0 };
    const OWNER: Asker = Asker { uid: 1000, gid: 1000 };
    const OTHER: Asker = Asker { uid: 33, gid: 33 };

    #[test]
    fn administration_needs_rights_when_connecting_and_when_asking() {
        let rights = Rights::of(OWNER.uid);
        for opened in [ROOT, OWNER, OTHER] {
            for asks in [Some(ROOT), Some(OWNER), Some(OTHER), None] {
                let allowed = opened != OTHER && asks.is_some_and(|asks| asks != OTHER);
                assert_eq!(rights.may_administer(opened, asks), allowed, "{opened:?} {asks:?}");
            }
        }
        // A stack of root belongs to no other user.
        assert!(!Rights::of(0).may_administer(ROOT, Some(OWNER)));
    }

    #[test]
    fn a_stack_is_its_users_and_roots() {
        let rights = Rights::of(OWNER.uid);
        assert!(rights.may_attach(ROOT) && rights.may_attach(OWNER) && !rights.may_attach(OTHER));
        assert!(!rights.is_shared());
    }

    #[test]
    fn who_is_allowed_has_sessions_and_administers_nothing() {
        let mut rights = Rights::of(0);
        rights.allow_user(OTHER.uid);
        rights.allow_group(1000);
        assert!(rights.is_shared() && rights.may_attach(OTHER));
        assert!(
            rights.may_attach(Asker { uid: 1234, gid: 1000 })
                && !rights.may_attach(Asker { uid: 1234, gid: 33 })
        );
        assert!(!rights.may_administer(OTHER, Some(OTHER)) && !rights.may_administer(ROOT, Some(OTHER)));
        // Allowing group 0 does not make every user an administrator.
        rights.allow_group(0);
        assert!(!rights.may_administer(Asker { uid: 33, gid: 0 }, Some(Asker { uid: 33, gid: 0 })));
        let text = serde_json::to_string(&rights).unwrap();
        assert_eq!(serde_json::from_str::<Rights>(&text).unwrap(), rights);
    }
}

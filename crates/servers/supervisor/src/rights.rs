//! Who may ask what of a supervisor? The table in THREAT_MODEL.md ("Who may ask what") as code.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// The socket that a connection came through. It says for ever what can be asked over the connection, whoever
/// has inherited it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Door {
    /// `NAME.sock`: what applications ask.
    #[default]
    Applications,
    /// `NAME.admin`: what the command line and other stacks ask.
    Administration,
}

/// A user and a group, as the kernel says them of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
}

/// A process of a user, as connections and requests are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Process; 0: it is in a pid namespace that the supervisor does not see into, and counts with its user.
    pub pid: u32,
}

/// The users that a stack is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights {
    /// The user that the stack belongs to.
    own: u32,
    /// Users that may have sessions.
    users: BTreeSet<u32>,
    /// Groups whose members may, by their primary group. Users that are listed as members were added to the
    /// users.
    groups: BTreeSet<u32>,
}

impl Rights {
    /// The stack belongs to the user `own`.
    pub fn of(own: u32) -> Rights {
        Rights { own, ..Rights::default() }
    }

    /// Lets a user have sessions.
    pub fn allow_user(&mut self, uid: u32) {
        self.users.insert(uid);
    }

    /// Lets those have sessions whose primary group this is.
    pub fn allow_group(&mut self, gid: u32) {
        self.groups.insert(gid);
    }

    /// Whether others than the stack's user and root may use it.
    pub fn is_shared(&self) -> bool {
        !self.users.is_empty() || !self.groups.is_empty()
    }

    /// Whether `asker` may have sessions of its own: the user of the stack and root may, and who was allowed
    /// to.
    pub fn may_attach(&self, asker: Asker) -> bool {
        self.is_administrator(asker) || self.users.contains(&asker.uid) || self.groups.contains(&asker.gid)
    }

    /// Whether somebody may ask for what concerns the stack as a whole. `opened`: who made the connection;
    /// `asks`: who has sent the request, if the kernel says it. Both count, because either may be without
    /// rights: a program that has given them up and has inherited the connection, or one with rights that was
    /// made to write on a connection of somebody else.
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
        // Root's stack is not any user's.
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
        assert!(rights.may_attach(Asker { uid: 1234, gid: 1000 }) && !rights.may_attach(Asker { uid: 1234, gid: 33 }));
        assert!(!rights.may_administer(OTHER, Some(OTHER)) && !rights.may_administer(ROOT, Some(OTHER)));
        // Number 0 among the groups does not make everybody root.
        rights.allow_group(0);
        assert!(!rights.may_administer(Asker { uid: 33, gid: 0 }, Some(Asker { uid: 33, gid: 0 })));
        let text = serde_json::to_string(&rights).unwrap();
        assert_eq!(serde_json::from_str::<Rights>(&text).unwrap(), rights);
    }
}

//! Decides which ports the user of a session may bind, and whether the user's sessions have a common limit.
//!
//! As on Linux, a port below `ports.unprivileged_start` needs CAP_NET_BIND_SERVICE, and a raw socket
//! CAP_NET_RAW; the configuration may also give such ports to users. The user that runs the stack may bind
//! every port. The decision is made when a port is asked for, by the credentials that the asking process has
//! then. A session has no user, because its process may give up its own at any time.

use std::collections::BTreeMap;
use std::fs::read_to_string;

use atoll_ipc::control::{USER_PORTS_MAX, User};
use atoll_supervisor::Ports;
use atoll_sys::unix::Peer;
use atoll_sys::users;

use crate::failure::{Failure, OrFail};
use crate::log;

/// The users of a stack and their ports.
#[derive(Debug)]
pub struct Users {
    /// The user that runs the stack.
    own: u32,
    unprivileged_start: u16,
    /// The ports of users, by user id.
    ports: BTreeMap<u32, [(u16, u16); USER_PORTS_MAX]>,
}

impl Users {
    /// Creates the users of a stack that `own` runs. A configured name that no user has is skipped, with a
    /// line on standard error: a running stack does not end because a user was removed. [`check`] rejects
    /// such names at the start.
    pub fn new(own: u32, config: &Ports) -> Users {
        let mut ports = BTreeMap::new();
        for (name, ranges) in &config.users {
            match users::user(name) {
                Ok(Some(uid)) => drop(ports.insert(uid, *ranges)),
                Ok(None) => event!(
                    user_unknown,
                    { user = &**name },
                    "ports.users: there is no user \"{}\"",
                    name.escape_debug()
                ),
                Err(error) => event!(
                    user_unknown,
                    { user = &**name, error = error.to_string(), errno = log::errno(&error) },
                    "ports.users: \"{}\": {error}",
                    name.escape_debug()
                ),
            }
        }
        Users { own, unprivileged_start: config.unprivileged_start, ports }
    }

    /// Returns the rights of a session that `peer` opens, where nothing else says whose it is. It counts for
    /// the user of `peer`, unless that user has no limit: as with resource limits, users that could raise it
    /// have none (CAP_SYS_RESOURCE).
    pub fn anybody(&self, peer: &Peer) -> User {
        self.counting_for((peer.uid != self.own && peer.uid != 0).then_some(peer.uid))
    }

    /// Returns the rights of a session that counts for the user `counts_for`, or for none.
    pub fn counting_for(&self, counts_for: Option<u32>) -> User {
        User { counts_for, ..User::anybody(self.unprivileged_start) }
    }

    /// Returns whether a process that has `peer`'s credentials now may bind `port`.
    pub fn may_bind(&self, peer: &Peer, port: u16) -> bool {
        let ports = self.ports.get(&peer.uid).copied().unwrap_or_default();
        let user = User { uid: peer.uid, ports, ..User::anybody(self.unprivileged_start) };
        let is_master = peer.uid == self.own || peer.uid == 0;
        is_master || user.may_bind(port) || may(peer, BIND_SERVICE)
    }

    /// Returns whether a process that has `peer`'s credentials now may open raw sockets. As on Linux, root
    /// may not without the capability. The user that runs a stack without being root has no capability on
    /// this machine, and all rights on that stack.
    pub fn may_open_raw(&self, peer: &Peer) -> bool {
        (peer.uid == self.own && peer.uid != 0) || may(peer, NET_RAW)
    }
}

/// Checks that the users to which the configuration gives ports exist. A stack that started without one of
/// them would refuse its ports later without a reason.
pub fn check(config: &Ports) -> Result<(), Failure> {
    for (name, _) in &config.users {
        let found = users::user(name).or_fail(format!("ports.users: {name:?}"))?;
        found.ok_or_else(|| unknown("ports.users", "user", name))?;
    }
    Ok(())
}

/// Returns the error for a name that does not exist. `kind` says of what, such as `user`.
pub fn unknown(setting: &str, kind: &str, name: &str) -> Failure {
    Failure::new(format!(
        "{setting}: there is no {kind} {name:?}: make it, take it out of the configuration, or give a \
         number instead of the name"
    ))
}

/// CAP_NET_BIND_SERVICE: see capabilities(7).
const BIND_SERVICE: u32 = 10;
/// CAP_NET_RAW: see capabilities(7).
const NET_RAW: u32 = 13;

/// Returns whether the process has the capability now, in the user namespace of this process. A process in
/// another pid namespace has no number here, and counts as having none.
fn may(peer: &Peer, capability: u32) -> bool {
    let of = |name| read_to_string(format!("/proc/{}/{name}", peer.pid)).ok();
    // In a user namespace of its own a process may have all capabilities, but then it has another map:
    // user_namespaces(7).
    let is_inside =
        || of("uid_map").is_some_and(|map| read_to_string("/proc/self/uid_map").is_ok_and(|own| own == map));
    peer.pid != 0
        && of("status").is_some_and(|status| has_capability(&status, peer.uid, capability))
        && is_inside()
}

/// Returns whether `status` (proc_pid_status(5)) is that of a process of effective user `uid` that has the
/// capability. The pid may have become that of another process meanwhile, which counts only if it is of the
/// same user.
fn has_capability(status: &str, uid: u32, capability: u32) -> bool {
    let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
    let effective = value("Uid:").and_then(|ids| ids.split_ascii_whitespace().nth(1)?.parse().ok());
    let bits = value("CapEff:").and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective == Some(uid) && bits.is_some_and(|bits| bits & 1 << capability != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(text: &str) -> Ports {
        atoll_supervisor::ConfigFile::parse(text).unwrap().validate().unwrap().ports
    }

    #[test]
    fn low_ports_are_for_the_stacks_user_for_root_and_for_whom_the_configuration_names() {
        let users = Users::new(
            1000,
            &ports("[ports]\nusers = { root = [\"22\"], 33 = [\"80\", \"8-10\"], no-such = [\"1\"] }"),
        );
        let may = |uid, port| users.may_bind(&Peer { pid: 0, uid, gid: uid }, port);
        assert!(may(1000, 1) && may(0, 1));
        assert!([80, 8, 9, 10, 1024, 0].into_iter().all(|port| may(33, port)));
        assert!([7, 11, 22, 443, 1023].into_iter().all(|port| !may(33, port)));
        assert!(!may(34, 80) && may(34, 1024));
        let anybody = |uid| users.anybody(&Peer { pid: 0, uid, gid: uid });
        assert!(!anybody(0).may_bind(1023) && anybody(0).may_bind(1024));
        assert_eq!([0, 1000, 33].map(|uid| anybody(uid).counts_for), [None, None, Some(33)]);
        let all = Users::new(1000, &ports("[ports]\nunprivileged_start = 0"));
        assert!(all.may_bind(&Peer { pid: 0, uid: 5, gid: 5 }, 1));
    }

    #[test]
    fn a_capability_counts_if_it_is_that_of_the_same_user() {
        let status = "Name:\tx\nUid:\t1\t33\t1\t1\nGid:\t0\t0\t0\t0\nCapEff:\t0000000000000400\n";
        assert!(has_capability(status, 33, BIND_SERVICE));
        assert!(!has_capability(status, 1, BIND_SERVICE), "the real user is not asked");
        assert!(!has_capability(status, 33, 11));
        assert!(!has_capability(&status.replace("400", "bff"), 33, BIND_SERVICE));
        assert!(!has_capability("", 33, BIND_SERVICE));
    }

    #[test]
    fn raw_sockets_are_for_the_capability_and_for_the_user_of_a_stack_that_is_not_roots() {
        let configuration = ports("[ports]\nunprivileged_start = 0\nusers = { 33 = [\"1-1023\"] }");
        let may = |own, peer: Peer| Users::new(own, &configuration).may_open_raw(&peer);
        let nowhere = |uid| Peer { pid: 0, uid, gid: uid };
        assert!(may(1000, nowhere(1000)));
        assert!(!may(1000, nowhere(33)) && !may(1000, nowhere(0)) && !may(0, nowhere(0)));
        let status = |effective: &str| format!("Uid:\t0\t0\t0\t0\nCapEff:\t{effective}\n");
        assert!(has_capability(&status("0000000000002000"), 0, NET_RAW));
        assert!(!has_capability(&status("000001ffffffdfff"), 0, NET_RAW));
    }

    #[test]
    fn ports_of_a_user_that_is_not_there_are_an_error_that_says_what_to_do() {
        assert!(check(&ports("[ports]\nusers = { root = [\"22\"], 4711 = [\"80\"] }")).is_ok());
        let error = check(&ports("[ports]\nusers = { root = [\"22\"], no-such = [\"1\"] }")).unwrap_err();
        assert!(format!("{error}").contains("ports.users: there is no user \"no-such\": make it"), "{error}");
    }

    #[test]
    fn names_are_looked_up() {
        assert_eq!(users::user("www-data").unwrap(), Some(33));
        assert_eq!((users::user("www").unwrap(), users::user("").unwrap()), (None, None));
    }
}

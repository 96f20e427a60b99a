//! Decides which connections are accepted, and how many descriptors are reserved for the stack itself. All
//! share the limit on descriptors, and a supervisor without a free one cannot even refuse a connection.
//!
//! ```text
//!   0 -- servers, memory --|-- connections and sessions --|--- headroom ---|---- reserve ----| RLIMIT_NOFILE
//!                                                           short look-ups  starts of servers
//! ```
//!
//! The reserved descriptors are held open, so that nothing else can take them, and closed just before a
//! server is started. Connections that never attached to a session are strangers: where there are too many,
//! of one process or in all, the oldest of them is closed. A process whose pid is 0, because it is in a pid
//! namespace that the supervisor cannot see, counts with its user.

use std::collections::{BTreeMap, BTreeSet};

use atoll_ipc::page::BELLS;

use crate::{Caller, ClientId};

/// The number of descriptors, and what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The value of RLIMIT_NOFILE.
    limit: u64,
    /// The descriptors that the supervisor has open besides those of connections and sessions.
    fixed: u64,
    /// The descriptors that a session takes in the supervisor.
    session: u64,
    /// The descriptors per replica that a session takes in a process of replicas, which has the same limit.
    session_in_server: u64,
    /// The descriptors that the start of a server takes for a moment.
    reserve: u64,
}

impl Budget {
    /// Computes the budget from `limit`, which is RLIMIT_NOFILE, the numbers of servers and replicas of the
    /// stack, and the number of pairs of servers that talk.
    pub fn new(limit: u64, servers: usize, replicas: usize, pairs: usize) -> Budget {
        let (servers, replicas, pairs) = (servers as u64, replicas as u64, pairs as u64);
        Budget {
            limit,
            // Each server has a page, doorbell, ledger, control socket, pidfd, queue and standard error.
            // Processes for replicas have some more, and there may be two of each number.
            fixed: FIXED + 7 * servers + pairs + 4 * (2 * replicas + 1),
            session: SESSION + replicas,
            session_in_server: BELLS as u64,
            // These are the doorbells of all servers, those of the replicas once more, and the memory between
            // the server and each other one.
            reserve: RESERVE + 3 * servers,
        }
    }

    /// Returns how many descriptors the start of a server takes for a moment.
    pub fn reserve(&self) -> usize {
        usize::try_from(self.reserve).unwrap_or(usize::MAX)
    }

    /// Returns how many descriptors connections and sessions may take together.
    fn free(&self) -> u64 {
        self.limit.saturating_sub(self.fixed + self.reserve + HEADROOM)
    }

    /// Returns the largest number of connections: half of the free descriptors, so that sessions find the
    /// rest.
    pub fn clients_max(&self) -> usize {
        usize::try_from(self.free() / 2).unwrap_or(usize::MAX).clamp(CLIENTS_MIN, CLIENTS_MAX)
    }

    /// Returns whether there is room for one more session beside these numbers of sessions and connections.
    /// `shared` is the largest number of replicas in one process.
    pub fn has_room(&self, sessions: usize, clients: usize, shared: usize) -> bool {
        let here = (sessions as u64 + 1) * self.session + clients as u64;
        let there = (sessions as u64 + 1) * self.session_in_server * shared as u64;
        here <= self.free() && there + SERVER_FIXED <= self.limit
    }
}

/// The decision about a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Accept it: there is room.
    Take,
    /// Accept it after closing the connection of this stranger.
    TakeInsteadOf(ClientId),
    /// Refuse it: there is no room, and no stranger may be closed.
    Refuse,
}

/// The connections to the control socket.
#[derive(Debug)]
pub struct Crowds {
    clients_max: usize,
    /// The process and user of every connection.
    all: BTreeMap<ClientId, Caller>,
    strangers: BTreeSet<ClientId>,
    processes: BTreeMap<(u32, u32), Crowd>,
    users: BTreeMap<u32, Crowd>,
}

/// The connections of one process, or of one user.
#[derive(Debug, Default)]
struct Crowd {
    all: usize,
    strangers: BTreeSet<ClientId>,
}

impl Crowds {
    /// Creates an empty set for at most `clients_max` connections.
    pub fn new(clients_max: usize) -> Crowds {
        Crowds {
            clients_max,
            all: BTreeMap::new(),
            strangers: BTreeSet::new(),
            processes: BTreeMap::new(),
            users: BTreeMap::new(),
        }
    }

    /// Decides whether a connection of this caller is accepted. If there are too many, the oldest stranger of
    /// the process, of the user, or of all is closed, in this order. `stays` returns true for strangers that
    /// may not be closed, because they wait for an answer.
    pub fn judge(&self, caller: &Caller, stays: impl Fn(ClientId) -> bool) -> Admission {
        let none = Crowd::default();
        let process = process_of(caller).and_then(|process| self.processes.get(&process));
        let user = self.users.get(&caller.uid).unwrap_or(&none);
        let process = process.unwrap_or(&none);
        let is_full = [
            (
                process.strangers.len() >= STRANGERS_PER_PROCESS || process.all >= self.per_process(),
                &process.strangers,
            ),
            (user.all >= self.per_user(), &user.strangers),
            (self.all.len() >= self.clients_max, &self.strangers),
        ];
        let Some((_, strangers)) = is_full.into_iter().find(|(is_full, _)| *is_full) else {
            return Admission::Take;
        };
        let oldest = strangers.iter().take(LOOKS).find(|id| !stays(**id));
        oldest.map_or(Admission::Refuse, |id| Admission::TakeInsteadOf(*id))
    }

    /// Returns the oldest stranger for which `stays` is false, if there is one.
    pub fn oldest_stranger(&self, stays: impl Fn(ClientId) -> bool) -> Option<ClientId> {
        self.strangers.iter().take(LOOKS).find(|id| !stays(**id)).copied()
    }

    /// Adds an accepted connection, as a stranger's.
    pub fn entered(&mut self, id: ClientId, caller: Caller) {
        self.all.insert(id, caller);
        self.strangers.insert(id);
        for crowd in self.groups(&caller) {
            crowd.all += 1;
            crowd.strangers.insert(id);
        }
    }

    /// Notes whether a connection is a stranger's: it is while it is a member of no session.
    pub fn set_stranger(&mut self, id: ClientId, is_stranger: bool) {
        let Some(caller) = self.all.get(&id).copied() else { return };
        let put = |set: &mut BTreeSet<ClientId>| if is_stranger { set.insert(id) } else { set.remove(&id) };
        put(&mut self.strangers);
        for crowd in self.groups(&caller) {
            put(&mut crowd.strangers);
        }
    }

    /// Removes a closed connection.
    pub fn left(&mut self, id: ClientId) {
        let Some(caller) = self.all.remove(&id) else { return };
        self.strangers.remove(&id);
        for crowd in self.groups(&caller) {
            crowd.all = crowd.all.saturating_sub(1);
            crowd.strangers.remove(&id);
        }
        let is_empty = |crowd: &Crowd| crowd.all == 0;
        if let Some(process) = process_of(&caller)
            && self.processes.get(&process).is_some_and(is_empty)
        {
            self.processes.remove(&process);
        }
        if self.users.get(&caller.uid).is_some_and(is_empty) {
            self.users.remove(&caller.uid);
        }
    }

    fn groups(&mut self, caller: &Caller) -> impl Iterator<Item = &mut Crowd> {
        let process = process_of(caller).map(|process| self.processes.entry(process).or_default());
        process.into_iter().chain([self.users.entry(caller.uid).or_default()])
    }

    /// Returns the largest number of connections of one process. A process that forks has a connection for
    /// each child until the children have their own, so the number is large.
    fn per_process(&self) -> usize {
        self.clients_max / 2
    }

    /// Returns the largest number of connections of one user, which is less than all so that others find
    /// room, too.
    fn per_user(&self) -> usize {
        self.clients_max / 4 * 3
    }
}

/// Returns the user and pid of a caller; processes of other pid namespaces have no number here.
fn process_of(caller: &Caller) -> Option<(u32, u32)> {
    (caller.pid != 0).then_some((caller.uid, caller.pid))
}

/// The largest number of connections to the control socket, however many descriptors there are; each
/// application process has one.
const CLIENTS_MAX: usize = 65_536;
/// The number of connections that is allowed however few descriptors there are.
const CLIENTS_MIN: usize = 16;
/// The largest number of strangers of one process: a process has few connections that are not attached yet.
const STRANGERS_PER_PROCESS: usize = 64;
/// The number of strangers that are checked in search of one that may be closed.
const LOOKS: usize = 256;
/// The supervisor's own descriptors: standard streams, epoll, signals, listener, lock, guardian, stack page,
/// keys of servers, device, a build or two.
const FIXED: u64 = 48;
/// The descriptors of a session: the application's page, and the doorbells; arenas come with replicas.
const SESSION: u64 = 1 + BELLS as u64;
/// The descriptors for the start of a server: socket, page, its own descriptors twice, the guardian's packet.
const RESERVE: u64 = 32;
/// The descriptors for look-ups in /proc, connections that are refused, and replies that are on their way.
const HEADROOM: u64 = 24;
/// The descriptors that a process of replicas has besides those of sessions.
const SERVER_FIXED: u64 = 160;

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(uid: u32, pid: u32) -> Caller {
        Caller { uid, pid }
    }

    fn enter(crowds: &mut Crowds, next: &mut u64, caller: Caller) -> Admission {
        let verdict = crowds.judge(&caller, |_| false);
        if let Admission::TakeInsteadOf(old) = verdict {
            crowds.left(old);
        }
        if verdict != Admission::Refuse {
            crowds.entered(ClientId(*next), caller);
            *next += 1;
        }
        verdict
    }

    #[test]
    fn a_process_that_connects_without_end_loses_its_own_oldest_connections() {
        let (mut crowds, mut next) = (Crowds::new(1000), 0);
        enter(&mut crowds, &mut next, caller(1, 7));
        for n in 0..10_000 {
            let verdict = enter(&mut crowds, &mut next, caller(1, 8));
            let wanted = match n {
                0..64 => Admission::Take,
                _ => Admission::TakeInsteadOf(ClientId(n + 1 - 64)),
            };
            assert_eq!(verdict, wanted);
        }
        assert_eq!(crowds.all.len(), 65);
        assert!(crowds.all.contains_key(&ClientId(0)), "the neighbour's is older, and stays");
    }

    #[test]
    fn who_has_a_session_stays_and_who_leaves_it_is_a_stranger_again() {
        let (mut crowds, mut next) = (Crowds::new(1000), 0);
        for _ in 0..64 {
            enter(&mut crowds, &mut next, caller(1, 8));
        }
        crowds.set_stranger(ClientId(0), false);
        assert_eq!(enter(&mut crowds, &mut next, caller(1, 8)), Admission::Take, "63 strangers");
        assert_eq!(enter(&mut crowds, &mut next, caller(1, 8)), Admission::TakeInsteadOf(ClientId(1)));
        crowds.set_stranger(ClientId(0), true);
        assert_eq!(enter(&mut crowds, &mut next, caller(1, 8)), Admission::TakeInsteadOf(ClientId(0)));
        // A stranger that waits for an answer stays.
        assert_eq!(
            crowds.judge(&caller(1, 8), |id| id < ClientId(10)),
            Admission::TakeInsteadOf(ClientId(10))
        );
    }

    #[test]
    fn many_processes_of_a_user_leave_room_for_others() {
        let (mut crowds, mut next) = (Crowds::new(400), 0);
        for pid in 1..=500 {
            let verdict = enter(&mut crowds, &mut next, caller(1, pid));
            assert_eq!(verdict == Admission::Take, pid <= 300, "{pid}: {verdict:?}");
        }
        assert_eq!(enter(&mut crowds, &mut next, caller(2, 9)), Admission::Take);
        // Processes without a number count by their user.
        for n in 0..310 {
            let verdict = enter(&mut crowds, &mut next, caller(3, 0));
            assert_eq!(verdict == Admission::Take, n < 400 - 300 - 1, "{n}: {verdict:?}");
        }
        // All connections have sessions, so none of them is closed.
        let mut crowds = Crowds::new(8);
        for n in 0..4 {
            crowds.entered(ClientId(n), caller(1, 1));
            crowds.set_stranger(ClientId(n), false);
        }
        assert_eq!(crowds.judge(&caller(1, 1), |_| false), Admission::Refuse, "half of all is one process's");
        assert_eq!(crowds.judge(&caller(1, 2), |_| false), Admission::Take);
    }

    #[test]
    fn nothing_is_left_of_those_that_have_gone() {
        let (mut crowds, mut next) = (Crowds::new(100), 0);
        for pid in [1, 1, 2, 0, 0] {
            enter(&mut crowds, &mut next, caller(pid, pid));
        }
        crowds.set_stranger(ClientId(1), false);
        (0..5).for_each(|n| crowds.left(ClientId(n)));
        crowds.left(ClientId(3));
        assert!(crowds.all.is_empty() && crowds.strangers.is_empty());
        assert!(crowds.processes.is_empty() && crowds.users.is_empty());
    }

    #[test]
    fn sessions_are_refused_before_descriptors_run_out() {
        let budget = Budget::new(1024, 2, 2, 1);
        let mut sessions = 0;
        while budget.has_room(sessions, 10, 1) {
            sessions += 1;
        }
        let used = sessions as u64 * (17 + 2) + 10 + budget.fixed;
        assert!((35..50).contains(&sessions) && used + budget.reserve + HEADROOM <= 1024, "{sessions}");
        assert!(!budget.has_room(sessions / 2 + 10, 10, 2), "two replicas in one process have half as many");
        assert!(budget.clients_max() < 1024 / 2 && budget.clients_max() > 300);
        assert_eq!(Budget::new(100, 2, 2, 1).clients_max(), CLIENTS_MIN, "it is refused by the kernel then");
        assert_eq!(Budget::new(1 << 20, 8, 8, 28).clients_max(), CLIENTS_MAX);
    }
}

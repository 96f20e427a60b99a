//! The sessions of a stack, their members, and what follows when a member goes.
//!
//! A session is a set of sockets; its members are the processes that can use them: the one that attached, and
//! those that inherited them over `fork` or `exec`. A client is one connection to the control socket, and
//! belongs to one process. When the supervisor dies, the next one restores what its guardian has kept
//! ([`Standing`]).
//!
//! ```text
//!   client 1 --member 0--> session 1 <--member 1-- client 2 (forked from client 1)
//!                                                  client 2 --member 0--> session 2 (its own)
//! ```

use std::collections::BTreeMap;

use atoll_ipc::LAYOUT_VERSION;
use atoll_ipc::control::Refusal;
use serde::{Deserialize, Serialize};

/// The largest number of members of a session: sockets count their holders in a word of this many bits.
pub const MEMBERS_MAX: u8 = 64;
/// The largest number of sessions that one client may be a member of: its own, and those that it inherited.
pub const MEMBERSHIPS_MAX: usize = 8;

/// One connection to the control socket; numbers are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A membership that a client was given, to be answered with `Reply::Joined`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The session.
    pub session: u32,
    /// The key that a child must show to join the session.
    pub key: u64,
    /// The client's member number in the session.
    pub member: u8,
}

/// The end of a membership or session, of which every replica must be notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// A member left and others remain; replicas get `Request::MemberGone`.
    Member {
        /// The session, which lives on.
        session: u32,
        /// The member's number.
        member: u8,
    },
    /// The last member left, which ended the session; replicas get `Request::SessionGone`.
    Session {
        /// The session, whose number is never used again.
        session: u32,
    },
}

/// All sessions of a stack.
#[derive(Debug)]
pub struct Sessions {
    sessions_max: usize,
    last: u32,
    sessions: BTreeMap<u32, Session>,
    clients: BTreeMap<ClientId, Vec<(u32, u8)>>,
}

/// The members of a session, as they are persisted for the next supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    key: u64,
    members: BTreeMap<u8, u64>,
    known: u64,
    next_member: u8,
}

#[derive(Debug)]
struct Session {
    key: u64,
    members: BTreeMap<u8, ClientId>,
    /// A bit for each number that members have, or had.
    known: u64,
    /// The number at which the search for a free one starts, behind the youngest one. So a number is used
    /// again as late as possible, long after every replica was notified of the end of its last owner.
    next_member: u8,
}

impl Sessions {
    /// Creates an empty set of sessions, of which at most `sessions_max` may be open at a time.
    pub fn new(sessions_max: u32) -> Sessions {
        Sessions {
            sessions_max: sessions_max as usize,
            last: 0,
            sessions: BTreeMap::new(),
            clients: BTreeMap::new(),
        }
    }

    /// Opens a session of `client`'s own, whose key is the random number `key`. Refuses another layout
    /// version, and a session beyond the limits of the stack or of the client.
    pub fn attach(&mut self, client: ClientId, layout_version: u32, key: u64) -> Result<Joined, Refusal> {
        if layout_version != LAYOUT_VERSION {
            return Err(Refusal::Version);
        }
        if self.sessions.len() >= self.sessions_max || self.last == u32::MAX {
            return Err(Refusal::Sessions);
        }
        self.check_room(client)?;
        self.last += 1;
        let session = self.last;
        self.sessions.insert(
            session,
            Session { key, members: BTreeMap::from([(0, client)]), known: 1, next_member: 1 },
        );
        self.clients.entry(client).or_default().push((session, 0));
        Ok(Joined { session, key, member: 0 })
    }

    /// Makes `client` a member of an existing session. Joining twice returns the same membership again.
    /// Refuses a session that is not open or has another key, and a membership beyond the limits.
    pub fn join(&mut self, client: ClientId, session: u32, key: u64) -> Result<Joined, Refusal> {
        let found = self.sessions.get(&session).filter(|found| found.key == key).ok_or(Refusal::NoSession)?;
        if let Some((_, member)) = self.memberships(client).find(|(joined, _)| *joined == session) {
            return Ok(Joined { session, key, member });
        }
        let mut numbers = (0..MEMBERS_MAX).map(|n| (found.next_member + n) % MEMBERS_MAX);
        let member = numbers.find(|number| !found.members.contains_key(number)).ok_or(Refusal::Members)?;
        self.check_room(client)?;
        let found = self.sessions.get_mut(&session).expect("found above");
        found.members.insert(member, client);
        found.known |= 1 << member;
        found.next_member = (member + 1) % MEMBERS_MAX;
        self.clients.entry(client).or_default().push((session, member));
        Ok(Joined { session, key, member })
    }

    /// Ends the client's membership of a session; returns `None` if there is none.
    pub fn leave(&mut self, client: ClientId, session: u32) -> Option<Departure> {
        let memberships = self.clients.get_mut(&client)?;
        let at = memberships.iter().position(|(joined, _)| *joined == session)?;
        let (session, member) = memberships.swap_remove(at);
        if memberships.is_empty() {
            self.clients.remove(&client);
        }
        Some(self.depart(session, member))
    }

    /// Ends all memberships of a client whose connection has closed.
    pub fn closed(&mut self, client: ClientId) -> Vec<Departure> {
        let memberships = self.clients.remove(&client).unwrap_or_default();
        memberships.into_iter().map(|(session, member)| self.depart(session, member)).collect()
    }

    /// Returns the numbers of the open sessions, the oldest first.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.sessions.keys().copied()
    }

    /// Returns the members of a session, by number.
    pub fn members(&self, session: u32) -> impl Iterator<Item = (u8, ClientId)> + '_ {
        let members = self.sessions.get(&session).map(|session| &session.members);
        members.into_iter().flatten().map(|(member, client)| (*member, *client))
    }

    /// Returns whether the client is a member of any session.
    pub fn has(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|joined| !joined.is_empty())
    }

    /// Returns the numbers of members of a session that have gone, unless the number is used again.
    pub fn departed(&self, session: u32) -> impl Iterator<Item = u8> + '_ {
        let session = self.sessions.get(&session);
        let is_gone = |session: &Session, member: u8| {
            session.known >> member & 1 == 1 && !session.members.contains_key(&member)
        };
        (0..MEMBERS_MAX).filter(move |&member| session.is_some_and(|session| is_gone(session, member)))
    }

    /// Returns the number of the session that was opened last, or 0 if there was none.
    pub fn last(&self) -> u32 {
        self.last
    }

    /// Continues the numbering of sessions after `last`, which an earlier supervisor used.
    pub fn resume(&mut self, last: u32) {
        self.last = self.last.max(last);
    }

    /// Returns the persisted form of a session, or `None` if it is not open.
    pub fn standing(&self, session: u32) -> Option<Standing> {
        let Session { key, members, known, next_member } = self.sessions.get(&session)?;
        let members = members.iter().map(|(member, client)| (*member, client.0)).collect();
        Some(Standing { key: *key, members, known: *known, next_member: *next_member })
    }

    /// Restores a session from its persisted form; one without members is not restored.
    pub fn restore(&mut self, session: u32, standing: Standing) {
        let Standing { key, members, known, next_member } = standing;
        if members.is_empty() {
            return;
        }
        let members: BTreeMap<u8, ClientId> =
            members.into_iter().map(|(member, client)| (member % MEMBERS_MAX, ClientId(client))).collect();
        for (member, client) in &members {
            self.clients.entry(*client).or_default().push((session, *member));
        }
        self.sessions.insert(session, Session { key, members, known, next_member });
        self.resume(session);
    }

    /// Returns the number of open sessions.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Returns whether no session is open.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    fn memberships(&self, client: ClientId) -> impl Iterator<Item = (u32, u8)> + '_ {
        self.clients.get(&client).into_iter().flatten().copied()
    }

    fn check_room(&self, client: ClientId) -> Result<(), Refusal> {
        if self.memberships(client).count() < MEMBERSHIPS_MAX { Ok(()) } else { Err(Refusal::Sessions) }
    }

    fn depart(&mut self, session: u32, member: u8) -> Departure {
        let found = self.sessions.get_mut(&session).expect("memberships name open sessions");
        found.members.remove(&member);
        if found.members.is_empty() {
            self.sessions.remove(&session);
            return Departure::Session { session };
        }
        Departure::Member { session, member }
    }

    /// Checks that both maps agree, and that no session is without members.
    #[cfg(test)]
    fn check_invariants(&self) {
        let mut of_clients: Vec<(u32, u8, ClientId)> = Vec::new();
        for (client, memberships) in &self.clients {
            assert!(!memberships.is_empty() && memberships.len() <= MEMBERSHIPS_MAX);
            of_clients.extend(memberships.iter().map(|(session, member)| (*session, *member, *client)));
        }
        let mut of_sessions = Vec::new();
        for (session, state) in &self.sessions {
            assert!(!state.members.is_empty());
            of_sessions.extend(state.members.iter().map(|(member, client)| (*session, *member, *client)));
        }
        of_clients.sort();
        of_sessions.sort();
        assert_eq!(of_clients, of_sessions);
    }
}

#[cfg(test)]
mod tests;

//! The sessions of a stack and their memory. [`Sessions`] knows the members; this has what belongs to each
//! session.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::rc::Rc;

use atoll_ipc::control::Refusal;
use atoll_supervisor::{ClientId, Departure, Joined, Lingering, Sessions, Standing};

use super::memory::{LibraryCalls, SessionMemory};

/// The sessions of a stack and their memory.
pub struct Books {
    sessions: Sessions,
    open: BTreeMap<u32, SessionMemory>,
    /// Sessions that have ended, but of which replicas or their successors have connections.
    lingering: Lingering<Rc<SessionMemory>>,
    /// The number of sessions opened since the start.
    opened: u64,
    /// The library calls of sessions that are gone.
    past_calls: LibraryCalls,
}

impl Books {
    /// Creates empty books, for at most `sessions_max` open sessions.
    pub fn new(sessions_max: u32) -> Books {
        Books {
            sessions: Sessions::new(sessions_max),
            open: BTreeMap::new(),
            lingering: Lingering::new(),
            opened: 0,
            past_calls: LibraryCalls::default(),
        }
    }

    /// Continues the books of an earlier supervisor, which used session numbers up to `last` and opened this
    /// number of sessions.
    pub fn resume(&mut self, last: u32, opened: u64) {
        self.sessions.resume(last);
        self.opened = opened;
    }

    /// Restores a session that an earlier supervisor has left. `standing` has its members; `None` means that
    /// it has ended. Returns a session that is given up for it.
    pub fn restore(
        &mut self,
        session: u32,
        standing: Option<Standing>,
        memory: SessionMemory,
        replicas: usize,
    ) -> Option<u32> {
        match standing {
            Some(standing) => {
                self.sessions.restore(session, standing);
                self.open.insert(session, memory);
                None
            }
            None => self.lingering.ended(session, Rc::new(memory), replicas),
        }
    }

    /// Opens a session for a client. It has no memory yet: call [`Books::opened`] or [`Books::leave`] next.
    pub fn attach(&mut self, id: ClientId, layout_version: u32, key: u64) -> Result<Joined, Refusal> {
        self.sessions.attach(id, layout_version, key)
    }

    /// Gives an open session its memory.
    pub fn opened(&mut self, session: u32, memory: SessionMemory) {
        self.open.insert(session, memory);
        self.opened += 1;
    }

    /// Makes a client a member of an existing session.
    pub fn join(&mut self, id: ClientId, session: u32, key: u64) -> Result<Joined, Refusal> {
        self.sessions.join(id, session, key)
    }

    /// Ends a client's membership of a session. Returns what follows from that.
    pub fn leave(&mut self, id: ClientId, session: u32) -> Option<Departure> {
        self.sessions.leave(id, session)
    }

    /// Ends all memberships of a client that is gone. Returns what follows from that.
    pub fn closed(&mut self, id: ClientId) -> Vec<Departure> {
        self.sessions.closed(id)
    }

    /// Ends a session, whose memory lingers. Returns a session that is given up for it.
    pub fn end(&mut self, session: u32, replicas: usize) -> Option<u32> {
        let memory = self.open.remove(&session)?;
        let calls = memory.library_calls();
        self.past_calls = self.past_calls.plus(calls);
        self.lingering.ended(session, Rc::new(memory), replicas)
    }

    /// Notes that a replica needs the memory of an ended session no more. Returns whether no replica needs
    /// it.
    pub fn over(&mut self, replica: usize, session: u32) -> bool {
        self.lingering.over(replica, session)
    }

    /// Gives up the memory of the session that ended first, and returns its number.
    pub fn give_up_oldest(&mut self) -> Option<u32> {
        self.lingering.give_up_oldest()
    }

    /// Returns whether a client is a member of a session.
    pub fn has(&self, id: ClientId) -> bool {
        self.sessions.has(id)
    }

    /// Returns the number of open sessions.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the number of sessions that have memory: open ones and those that linger.
    pub fn with_memory(&self) -> usize {
        self.open.len() + self.lingering.len()
    }

    /// Returns the number of sessions opened since the start.
    pub fn opened_ever(&self) -> u64 {
        self.opened
    }

    /// Returns the number of the session that was opened last.
    pub fn last(&self) -> u32 {
        self.sessions.last()
    }

    /// Returns the numbers of the open sessions.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.sessions.ids()
    }

    /// Returns the numbers of the sessions that have memory.
    pub fn all(&self) -> Vec<u32> {
        self.open.keys().copied().chain(self.lingering.iter().map(|(session, _)| session)).collect()
    }

    /// Returns the members of a session: their numbers and clients.
    pub fn members(&self, session: u32) -> impl Iterator<Item = (u8, ClientId)> {
        self.sessions.members(session)
    }

    /// Returns the numbers of members that have gone.
    pub fn departed(&self, session: u32) -> impl Iterator<Item = u8> {
        self.sessions.departed(session)
    }

    /// Returns the persisted form of a session.
    pub fn standing(&self, session: u32) -> Option<Standing> {
        self.sessions.standing(session)
    }

    /// Returns the memory of an open session.
    pub fn open(&self, session: u32) -> Option<&SessionMemory> {
        self.open.get(&session)
    }

    /// Returns the memory of a session that is open or lingers.
    pub fn memory(&self, session: u32) -> Option<&SessionMemory> {
        self.open.get(&session).or_else(|| Some(&**self.lingering.get(session)?))
    }

    /// Returns the open sessions, and those that have ended but are not over for the replica.
    pub fn at(&self, replica: usize) -> BTreeSet<u32> {
        self.open.keys().copied().chain(self.lingering.at(replica)).collect()
    }

    /// Returns what the library has counted in all sessions that ever existed.
    pub fn library_calls(&self) -> LibraryCalls {
        self.open.values().fold(self.past_calls, |sum, memory| sum.plus(memory.library_calls()))
    }

    /// Returns how many bytes the kernel has allocated for all sessions.
    pub fn allocated(&self) -> u64 {
        let ended = self.lingering.iter().map(|(_, memory)| &**memory);
        self.open.values().chain(ended).map(SessionMemory::allocated).sum()
    }
}

#[cfg(test)]
impl Books {
    /// Returns the open sessions that have memory.
    pub fn open_now(&self) -> Vec<u32> {
        self.open.keys().copied().collect()
    }

    /// Returns the sessions that linger, the oldest first.
    pub fn ended(&self) -> Vec<u32> {
        self.lingering.iter().map(|(session, _)| session).collect()
    }

    /// Adds a session with this memory that has ended.
    pub fn linger(&mut self, session: u32, memory: Rc<SessionMemory>, replicas: usize) {
        let _ = self.lingering.ended(session, memory, replicas);
    }
}

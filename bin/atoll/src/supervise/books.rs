//! Which sessions are there, and which memory have they? Who is in them is in [`Sessions`]; here is what
//! belongs to each.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::rc::Rc;

use atoll_ipc::control::Refusal;
use atoll_supervisor::{ClientId, Departure, Joined, Lingering, Sessions, Standing};

use super::memory::{LibraryCalls, SessionMemory};

/// The books of a stack.
pub struct Books {
    sessions: Sessions,
    open: BTreeMap<u32, SessionMemory>,
    /// Sessions that have ended, and that replicas, or their successors, have connections of.
    lingering: Lingering<Rc<SessionMemory>>,
    /// Sessions opened since the start.
    opened: u64,
    /// Library calls of sessions that are gone.
    past_calls: LibraryCalls,
}

impl Books {
    /// Empty books, of a stack with so many sessions at most.
    pub fn new(sessions_max: u32) -> Books {
        Books {
            sessions: Sessions::new(sessions_max),
            open: BTreeMap::new(),
            lingering: Lingering::new(),
            opened: 0,
            past_calls: LibraryCalls::default(),
        }
    }

    /// Those that another supervisor has left: numbers up to `last` were used, and so many sessions were
    /// opened.
    pub fn resume(&mut self, last: u32, opened: u64) {
        self.sessions.resume(last);
        self.opened = opened;
    }

    /// A session that another supervisor has left. `standing`: who is in it; `None`: it has ended. Returns
    /// one that is given up for it.
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

    /// A client attaches. The session has no memory yet: [`Books::opened`] or [`Books::leave`] follows.
    pub fn attach(&mut self, id: ClientId, layout_version: u32, key: u64) -> Result<Joined, Refusal> {
        self.sessions.attach(id, layout_version, key)
    }

    /// The session has memory from now on.
    pub fn opened(&mut self, session: u32, memory: SessionMemory) {
        self.open.insert(session, memory);
        self.opened += 1;
    }

    /// A client becomes a member of a session that there is.
    pub fn join(&mut self, id: ClientId, session: u32, key: u64) -> Result<Joined, Refusal> {
        self.sessions.join(id, session, key)
    }

    /// A client leaves a session. Returns what follows.
    pub fn leave(&mut self, id: ClientId, session: u32) -> Option<Departure> {
        self.sessions.leave(id, session)
    }

    /// A client is gone. Returns what follows.
    pub fn closed(&mut self, id: ClientId) -> Vec<Departure> {
        self.sessions.closed(id)
    }

    /// A session has ended: its memory lingers. Returns one that is given up for it.
    pub fn end(&mut self, session: u32, replicas: usize) -> Option<u32> {
        let memory = self.open.remove(&session)?;
        let calls = memory.library_calls();
        self.past_calls = self.past_calls.plus(calls);
        self.lingering.ended(session, Rc::new(memory), replicas)
    }

    /// A replica needs the memory of an ended session no more. Returns whether nobody does.
    pub fn over(&mut self, replica: usize, session: u32) -> bool {
        self.lingering.over(replica, session)
    }

    /// Gives up the memory of the session that ended first.
    pub fn give_up_oldest(&mut self) -> Option<u32> {
        self.lingering.give_up_oldest()
    }

    /// Whether a client is in a session.
    pub fn has(&self, id: ClientId) -> bool {
        self.sessions.has(id)
    }

    /// How many sessions are open.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// How many sessions have memory, open ones and those that linger.
    pub fn with_memory(&self) -> usize {
        self.open.len() + self.lingering.len()
    }

    /// Sessions opened since the start.
    pub fn opened_ever(&self) -> u64 {
        self.opened
    }

    /// The last session's number.
    pub fn last(&self) -> u32 {
        self.sessions.last()
    }

    /// The numbers of the open sessions.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.sessions.ids()
    }

    /// The numbers of the sessions that have memory.
    pub fn all(&self) -> Vec<u32> {
        self.open.keys().copied().chain(self.lingering.iter().map(|(session, _)| session)).collect()
    }

    /// Who is in a session: numbers of members and their clients.
    pub fn members(&self, session: u32) -> impl Iterator<Item = (u8, ClientId)> {
        self.sessions.members(session)
    }

    /// Numbers of members that have gone.
    pub fn departed(&self, session: u32) -> impl Iterator<Item = u8> {
        self.sessions.departed(session)
    }

    /// What the next supervisor has to know of who is in a session.
    pub fn standing(&self, session: u32) -> Option<Standing> {
        self.sessions.standing(session)
    }

    /// The memory of an open session.
    pub fn open(&self, session: u32) -> Option<&SessionMemory> {
        self.open.get(&session)
    }

    /// The memory of a session that is open, or has ended and is not over.
    pub fn memory(&self, session: u32) -> Option<&SessionMemory> {
        self.open.get(&session).or_else(|| Some(&**self.lingering.get(session)?))
    }

    /// Those that are open, and those that have ended and that the replica has not said to be over.
    pub fn at(&self, replica: usize) -> BTreeSet<u32> {
        self.open.keys().copied().chain(self.lingering.at(replica)).collect()
    }

    /// What the library has counted in all sessions that there ever were.
    pub fn library_calls(&self) -> LibraryCalls {
        self.open.values().fold(self.past_calls, |sum, memory| sum.plus(memory.library_calls()))
    }

    /// How many bytes the kernel has allocated for all of them.
    pub fn allocated(&self) -> u64 {
        let ended = self.lingering.iter().map(|(_, memory)| &**memory);
        self.open.values().chain(ended).map(SessionMemory::allocated).sum()
    }
}

#[cfg(test)]
impl Books {
    /// The open sessions that have memory.
    pub fn open_now(&self) -> Vec<u32> {
        self.open.keys().copied().collect()
    }

    /// The sessions that have ended and are not over, the oldest first.
    pub fn ended(&self) -> Vec<u32> {
        self.lingering.iter().map(|(session, _)| session).collect()
    }

    /// A session with this memory has ended.
    pub fn linger(&mut self, session: u32, memory: Rc<SessionMemory>, replicas: usize) {
        let _ = self.lingering.ended(session, memory, replicas);
    }
}

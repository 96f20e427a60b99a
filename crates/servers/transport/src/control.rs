//! What happens when processes come and go?

use atoll_base::{Instant, SessionId};
use atoll_ipc::Memory;
use atoll_ipc::arena::{ArenaLayout, COMMANDS};
use atoll_ipc::command::CloseMode;
use atoll_ipc::page::AppPage;

use crate::connections::Stage;
use crate::session::{Session, Target};
use crate::transport::Transport;

impl<M: Memory> Transport<M> {
    /// A process joins: `arena` is laid out as `layout` says.
    pub fn open_session(&mut self, _now: Instant, id: SessionId, layout: ArenaLayout, arena: M, app_page: AppPage<M>) {
        if self.session_index.contains_key(&id) {
            return;
        }
        let session = Session::new(id, self.config.epoch.0, layout, arena, app_page);
        let index = self.sessions.insert(session) as u32;
        self.session_index.insert(id, index);
    }

    /// A process of the session's family is gone: the sockets that it alone held close as its kernel would close them.
    pub fn member_gone(&mut self, now: Instant, id: SessionId, member: u8) {
        // What it asked for before it died still counts.
        self.handle_commands(now, COMMANDS as u32);
        let Some(session) = self.session_index.get(&id).and_then(|index| self.sessions.get_mut(*index as usize)) else {
            return;
        };
        session.gone_members |= 1 << (member & 63);
        let gone = session.gone_members;
        let orphans: alloc::vec::Vec<_> = session
            .users()
            .into_iter()
            .filter(|(slot, ..)| session.slot(*slot).is_none_or(|slot| slot.holders() & !gone == 0))
            .collect();
        for (.., target) in orphans {
            // An offer that was not claimed is not the dead process' yet: it times out and goes to another acceptor.
            if self.is_offered(target) {
                continue;
            }
            self.close_target(now, target, CloseMode::Graceful);
        }
    }

    /// The last process of the session is gone: all its sockets close, its listeners and ports are free.
    pub fn close_session(&mut self, now: Instant, id: SessionId) {
        self.handle_commands(now, COMMANDS as u32);
        let Some(&index) = self.session_index.get(&id) else { return };
        for lease in self.listeners.held_by(id) {
            self.release_listener(id, lease);
        }
        self.leases.release_session(id);
        let Some(session) = self.sessions.get_mut(index as usize) else { return };
        for (.., target) in session.users() {
            match target {
                Target::Connection(id) if self.is_offered(target) => self.withdraw_offer(now, id),
                _ => self.close_target(now, target, CloseMode::Graceful),
            }
        }
        if let Some(session) = self.sessions.get_mut(index as usize) {
            session.gone = true;
        }
        self.drop_session_if_done(index);
    }

    fn is_offered(&self, target: Target) -> bool {
        let Target::Connection(id) = target else { return false };
        self.connections.get(id as usize).is_some_and(|entry| entry.stage == Stage::Offered)
    }

    /// Forgets a session that is gone, when none of its slots holds octets to send any more.
    pub(crate) fn drop_session_if_done(&mut self, index: u32) {
        let done = self.sessions.get(index as usize).is_some_and(|session| session.gone && session.users().is_empty());
        if done {
            let session = self.sessions.remove(index as usize);
            self.session_index.remove(&session.id);
        }
    }

    /// Resets everything: the stack is going down.
    pub fn abort_all(&mut self, _now: Instant) {
        let all: alloc::vec::Vec<u32> = self.connections.iter().map(|(id, _)| id as u32).collect();
        for id in all {
            self.abort(id);
        }
    }
}

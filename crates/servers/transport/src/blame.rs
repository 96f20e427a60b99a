//! Who pays when servers die of something? Each kind of work has its own mark ([`Work`]), which survives the server in its ledger.
//!
//! ```text
//!   a segment, a timer, the output or the record of a connection   that connection: after two deaths it is given up (quarantine)
//!   commands, datagrams in or out, memory or clean-up of a session that session: after two deaths it is cut off
//!   everything else                                                nobody
//! ```
//! A session that is cut off is not listened to any more: its commands stay in their rings, its requests are in force no longer, its
//! connections are reset at both ends. Its neighbours lose nothing. Only deaths by a server's own fault count, and hangs.

use alloc::vec::Vec;

use atoll_base::{Duration, Instant, SeqNum, SessionId, SlotId};
use atoll_ipc::ledger::{ConnectionRecord, Work};
use atoll_ipc::page::Stat;
use atoll_ipc::slot::{REPLICA_CLOSED, REPLICA_RESET};
use atoll_ipc::{Cause, Event, Memory, Ready};
use atoll_tcp::State;
use atoll_wire::tcp::{Flags, Segment};

use crate::ending::Departure;
use crate::record::state;
use crate::records::Records;
use crate::session::{Occupant, Session};
use crate::transport::Transport;

/// So many deaths at work for a session cut it off.
pub(crate) const SESSION_DEATHS_MAX: u8 = 2;
/// A server that lives so long has not died of what its predecessors were at work on.
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);

/// What a death was put down to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// What the server was at work on.
    pub work: Work,
    /// How many have died at work for the same session; 0: no session is charged.
    pub deaths: u8,
}

impl<M: Memory> Transport<M> {
    /// Work on a message of the server with this number begins.
    #[inline]
    pub fn mark_mesh(&self, server: u32) {
        self.mark(Work::Mesh(server));
    }

    /// No work goes on that belongs to anybody.
    #[inline]
    pub fn mark_nothing(&self) {
        self.mark(Work::Nothing);
    }

    /// Puts the death of the predecessor down to whoever it was at work for, and marks the sessions that are cut off because of that.
    /// Returns the connection that is charged.
    pub(crate) fn charge(&mut self, now: Instant, records: &mut Records<M>, is_blamed: bool) -> Option<u32> {
        let work = if is_blamed { records.ledger.past_work() } else { Work::Nothing };
        let mut deaths = 0;
        if let Some(session) = work.session().filter(|session| self.session_index.contains_key(session)) {
            let before = records.ledger.suspects().find(|(suspect, _)| *suspect == session);
            deaths = before.map_or(0, |(_, deaths)| deaths).saturating_add(1);
            records.ledger.set_deaths(session, deaths);
        }
        let suspects: Vec<_> = records.ledger.suspects().collect();
        for (id, deaths) in suspects {
            let Some(&index) = self.session_index.get(&id) else {
                records.ledger.set_deaths(id, 0);
                continue;
            };
            if deaths >= SESSION_DEATHS_MAX
                && let Some(session) = self.session_mut(index)
            {
                session.cut_off();
                self.cut_off.push(id);
            } else {
                records.forgive_at = now + FORGIVEN_AFTER;
            }
        }
        self.charge = is_blamed.then_some(Charge { work, deaths });
        work.connection()
    }

    /// What the death of the predecessor was put down to, if it died by its own fault: once.
    pub fn take_charge(&mut self) -> Option<Charge> {
        self.charge.take()
    }

    /// Sessions that are cut off here, and that the supervisor has not been told of.
    pub fn take_cut_off(&mut self) -> Vec<SessionId> {
        core::mem::take(&mut self.cut_off)
    }

    /// Whether the session is cut off here.
    pub fn is_cut_off(&self, id: SessionId) -> bool {
        let index = self.session_index.get(&id);
        index.and_then(|&index| self.session(index)).is_some_and(Session::is_cut_off)
    }

    /// Nobody has died for so long that earlier deaths were chance. Sessions that are cut off stay so.
    pub(crate) fn forgive(&mut self, now: Instant) {
        if let Some(records) = self.records.as_deref_mut().filter(|records| records.forgive_at <= now) {
            records.forgive_at = Instant::FAR_FUTURE;
            let forgiven: Vec<_> =
                records.ledger.suspects().filter(|(_, deaths)| *deaths < SESSION_DEATHS_MAX).collect();
            forgiven.into_iter().for_each(|(session, _)| records.ledger.set_deaths(session, 0));
        }
    }

    /// Other servers have died of the session: it is not listened to any more, and what it has ends as by a reset, in slices. Its memory goes with
    /// [`Transport::close_session`].
    pub fn cut_off(&mut self, now: Instant, id: SessionId) {
        let Some(&index) = self.session_index.get(&id) else { return };
        let Some(session) = self.session_mut(index) else { return };
        session.cut_off();
        self.depart(now, Departure::CutOff(id));
    }

    /// One of its sockets. Offers were taken back before.
    pub(crate) fn cut_socket(&mut self, now: Instant, session: u32, at: (SlotId, u32), occupant: Occupant) {
        let (slot, generation) = at;
        match occupant {
            Occupant::Connection(index) => {
                if let Some(entry) = self.entries.get_mut(index) {
                    if entry.cause == Cause::None {
                        entry.cause = Cause::Lost;
                    }
                    entry.replica_flags |= REPLICA_RESET;
                    entry.connection.abort();
                }
                self.touch(index);
            }
            Occupant::Datagram(index) => {
                self.remove_datagram(now, index);
                if let Some(view) = self.session(session).and_then(|session| session.slot(slot)) {
                    view.set_error(Cause::Lost);
                    view.set_replica_flags(view.replica_flags() | REPLICA_CLOSED | REPLICA_RESET);
                }
                let ready = Ready::IN | Ready::OUT | Ready::ERR | Ready::HUP;
                self.reply(session, &Event::Ready { slot, generation, ready });
            }
            Occupant::Lost | Occupant::Nobody => {}
        }
    }

    /// The peer of a connection that does not go on hears so, as far as the record says where it stands.
    ///
    /// A reset counts only exactly where the peer waits for the next octet (RFC 5961 §3); in its window it makes the peer ask, and
    /// what it asks is answered as for any unknown connection, by a reset in the right place. What was acknowledged is where it waits if
    /// nothing was under way, the end of what was sent if all has arrived, and in its window otherwise: both are said.
    pub(crate) fn reset_peer(&mut self, record: &ConnectionRecord, written: Option<i64>) {
        let is_synchronised = match state(record) {
            Some(State::Closed | State::SynSent | State::TimeWait) | None => false,
            Some(_) => true,
        };
        if !is_synchronised || record.progress.received < 0 {
            return;
        }
        let at = |start: u32, offset: i64| SeqNum(start.wrapping_add(offset as u32));
        let acked = record.progress.acked;
        let end = record.send_tail.max(written.unwrap_or(0)).saturating_add(i64::from(record.send_fin));
        let sent = end.min(record.progress.edge).max(acked);
        let has_fin = record.receive_fin == Some(record.progress.received);
        let ack = at(record.receive_start, record.progress.received.saturating_add(i64::from(has_fin)));
        let (local, remote) = (record.tuple.local.port, record.tuple.remote.port);
        let mut places = alloc::vec![acked];
        places.extend((sent != acked).then_some(sent));
        for offset in places {
            let seq = at(record.send_start, offset);
            let flags = Flags::RST | Flags::ACK;
            self.stats.count(Stat::ResetsOut);
            self.answer(
                record.tuple,
                Segment { src_port: local, dst_port: remote, seq, ack, flags, ..Segment::default() },
            );
        }
    }
}

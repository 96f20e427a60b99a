//! How does a transport server (TS) speak with a CM in another process? It asks who is to have a connection,
//! and goes on; the answer comes some day, or is asked for again.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use atoll_base::{Duration, Epoch, Instant, SessionId};
use atoll_ipc::manager::{ManagerBody, ManagerMessage};

use crate::messages::{ConnectionId, Directive, ListenerId, Offer};

/// The CM of a TS, in another process.
#[derive(Debug)]
pub(crate) struct Remote {
    epoch: Epoch,
    /// The CM's incarnation; `Epoch(0)` as long as nobody has said it.
    manager: Epoch,
    /// Since when it is that one.
    since: Instant,
    /// An answer that takes longer is asked for again.
    patience: Duration,
    ticket: u32,
    /// Who accepts, to be told again to a new CM: listener, socket, session.
    acceptors: BTreeSet<(ListenerId, u64, SessionId)>,
    /// Established connections that nobody has claimed.
    asked: BTreeMap<u32, Asked>,
    /// When to ask again for which connection, under which ticket: in order.
    deadlines: VecDeque<(Instant, u32, u32)>,
    /// What the ring has not taken yet.
    outbox: VecDeque<ManagerBody>,
    dropped: u64,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    ticket: u32,
    listener: ListenerId,
    answer: Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// None yet.
    Due,
    /// It waits for an acceptor.
    Queued,
    /// It is offered to this acceptor; whether its end is to be told.
    Offered { session: SessionId, lease: u64, measured: bool },
}

/// What an answer of the CM leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Nothing.
    Nothing,
    /// This.
    Do(Directive),
    /// The CM has forgotten a connection of this listener.
    Lost(ConnectionId, ListenerId),
}

/// Messages that may wait for the CM before nothing new is begun: no SYN answered, no command taken. What is
/// under way adds a few for each connection.
const OUTBOX_MAX: usize = 1024;

impl Remote {
    pub(crate) fn new(epoch: Epoch, patience: Duration) -> Remote {
        Remote {
            epoch,
            manager: Epoch(0),
            since: Instant::ZERO,
            patience,
            ticket: 0,
            acceptors: BTreeSet::new(),
            asked: BTreeMap::new(),
            deadlines: VecDeque::new(),
            outbox: VecDeque::new(),
            dropped: 0,
        }
    }

    /// The CM has a new incarnation, which knows nothing. What was still to be told to the last one is not;
    /// the caller says who listens now, and then [`Remote::tell_again`].
    pub(crate) fn restarted(&mut self, now: Instant, manager: Epoch) {
        (self.manager, self.since) = (manager, now);
        self.outbox.clear();
    }

    /// Tells a new CM what the last one knew: who accepts, what is offered to whom, and what waits, oldest
    /// first.
    pub(crate) fn tell_again(&mut self, now: Instant) {
        for (listener, lease, session) in self.acceptors.clone() {
            self.tell(ManagerBody::Registered { listener: listener.to_bits(), session, lease });
        }
        let mut asked: Vec<(u32, Asked)> = self.asked.iter().map(|(connection, asked)| (*connection, *asked)).collect();
        // Tickets are given in order, and come round.
        asked.sort_by_key(|(_, asked)| asked.ticket.wrapping_sub(self.ticket).wrapping_sub(1));
        for (connection, Asked { ticket, listener, answer }) in asked {
            let Answer::Offered { session, lease, .. } = answer else {
                self.established(now, ConnectionId(connection), listener);
                continue;
            };
            if let Some(asked) = self.asked.get_mut(&connection) {
                // It does not know when the connection was offered, so it could not make anything of its end.
                asked.answer = Answer::Offered { session, lease, measured: false };
            }
            let listener = listener.to_bits();
            self.tell(ManagerBody::Offered { listener, connection, ticket, session, lease });
        }
        self.prune();
    }

    /// ACCEPT-CONNECTION (P4).
    pub(crate) fn register(&mut self, listener: ListenerId, session: SessionId, lease: u64) {
        self.acceptors.insert((listener, lease, session));
        self.tell(ManagerBody::Registered { listener: listener.to_bits(), session, lease });
    }

    /// The acceptor wants no more for now.
    pub(crate) fn deregister(&mut self, listener: ListenerId, session: SessionId, lease: u64) {
        self.acceptors.remove(&(listener, lease, session));
        self.tell(ManagerBody::Deregistered { listener: listener.to_bits(), session, lease });
    }

    /// The session does not hold the socket any more.
    pub(crate) fn forget(&mut self, listener: ListenerId, session: SessionId, lease: u64) {
        self.acceptors.remove(&(listener, lease, session));
        self.tell(ManagerBody::Forgotten { listener: listener.to_bits(), session, lease });
    }

    /// The application has closed what it had been offered at `offered_at`. The CM that has seen that offer
    /// is told.
    pub(crate) fn served(&mut self, session: SessionId, lease: u64, offered_at: Instant) {
        if offered_at >= self.since {
            self.tell(ManagerBody::Served { session, lease, offered_at });
        }
    }

    /// Tells the CM what is not about a connection.
    pub(crate) fn tell(&mut self, body: ManagerBody) {
        self.outbox.push_back(body);
    }

    /// Asks who is to have a connection.
    pub(crate) fn established(&mut self, now: Instant, connection: ConnectionId, listener: ListenerId) {
        let ticket = self.next_ticket(now, connection, listener);
        self.tell(ManagerBody::Established { listener: listener.to_bits(), connection: connection.0, ticket });
    }

    /// Asks again, because the acceptor has not claimed in time, or has ended.
    pub(crate) fn returned(&mut self, now: Instant, connection: ConnectionId, listener: ListenerId, timed_out: bool) {
        let ticket = self.next_ticket(now, connection, listener);
        let connection = connection.0;
        self.tell(if timed_out {
            ManagerBody::TimedOut { connection, ticket }
        } else {
            ManagerBody::Returned { connection, ticket }
        });
    }

    fn next_ticket(&mut self, now: Instant, connection: ConnectionId, listener: ListenerId) -> u32 {
        self.ticket = self.ticket.wrapping_add(1);
        let ticket = self.ticket;
        self.asked.insert(connection.0, Asked { ticket, listener, answer: Answer::Due });
        self.deadlines.push_back((now + self.patience, connection.0, ticket));
        ticket
    }

    /// The connection is claimed. Returns whether its end is to be told.
    pub(crate) fn claimed(&mut self, connection: ConnectionId, offered_at: Instant) -> bool {
        let Some(asked) = self.asked.remove(&connection.0) else { return false };
        self.tell(ManagerBody::Claimed { connection: connection.0, offered_at });
        matches!(asked.answer, Answer::Offered { measured: true, .. })
    }

    /// The connection has ended before it was claimed.
    pub(crate) fn gone(&mut self, connection: ConnectionId) {
        if self.asked.remove(&connection.0).is_some() {
            self.tell(ManagerBody::Gone { connection: connection.0 });
            self.prune();
        }
    }

    /// The CM speaks.
    pub(crate) fn handle(&mut self, message: &ManagerMessage) -> Told {
        let is_known = message.epoch == self.manager || self.manager == Epoch(0) && message.epoch != Epoch(0);
        if !is_known || message.to != Epoch(0) && message.to != self.epoch {
            self.dropped += 1;
            return Told::Nothing;
        }
        self.manager = message.epoch;
        let told = self.handle_body(message.body);
        self.prune();
        told
    }

    fn handle_body(&mut self, body: ManagerBody) -> Told {
        match body {
            ManagerBody::Offer { connection, ticket, session, lease, measured } => {
                let Some(asked) = self.waiting(connection, ticket) else { return Told::Nothing };
                asked.answer = Answer::Offered { session, lease, measured };
                let (connection, listener) = (ConnectionId(connection), asked.listener);
                Told::Do(Directive::Offer(Offer { connection, listener, session, lease }))
            }
            ManagerBody::Queued { connection, ticket } => {
                if let Some(asked) = self.waiting(connection, ticket) {
                    asked.answer = Answer::Queued;
                }
                Told::Nothing
            }
            ManagerBody::Reset { connection, ticket } => {
                let Some(&mut Asked { listener, .. }) = self.waiting(connection, ticket) else { return Told::Nothing };
                self.asked.remove(&connection);
                Told::Lost(ConnectionId(connection), listener)
            }
            ManagerBody::AcceptorRemoved { session, lease } => {
                self.acceptors.retain(|(_, socket, of)| (*socket, *of) != (lease, session));
                Told::Do(Directive::AcceptorRemoved { session, lease })
            }
            _ => {
                self.dropped += 1;
                Told::Nothing
            }
        }
    }

    /// A connection that is offered to nobody, if the answer is to the last question about it.
    fn waiting(&mut self, connection: u32, ticket: u32) -> Option<&mut Asked> {
        let is_meant = |asked: &&mut Asked| asked.ticket == ticket && !matches!(asked.answer, Answer::Offered { .. });
        let asked = self.asked.get_mut(&connection).filter(is_meant);
        // Usual, if seldom: the connection has ended meanwhile.
        self.dropped += u64::from(asked.is_none());
        asked
    }

    /// Asks again for answers that are late.
    pub(crate) fn handle_timers(&mut self, now: Instant) {
        while let Some(&(_, connection, ticket)) = self.deadlines.front().filter(|(due, ..)| *due <= now) {
            self.deadlines.pop_front();
            let is_due = |asked: &&Asked| asked.ticket == ticket && asked.answer == Answer::Due;
            let Some(listener) = self.asked.get(&connection).filter(is_due).map(|asked| asked.listener) else {
                continue;
            };
            self.deadlines.push_back((now + self.patience, connection, ticket));
            self.tell(ManagerBody::Established { listener: listener.to_bits(), connection, ticket });
        }
        self.prune();
    }

    /// When [`Remote::handle_timers`] is due, at the latest. What is answered needs no timer.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.deadlines.front().map(|(due, ..)| *due)
    }

    /// Forgets deadlines that do not matter any more, from the first.
    fn prune(&mut self) {
        while let Some((_, connection, ticket)) = self.deadlines.front() {
            let asked = self.asked.get(connection).filter(|asked| asked.ticket == *ticket);
            if asked.is_some_and(|asked| asked.answer == Answer::Due) {
                return;
            }
            self.deadlines.pop_front();
        }
    }

    /// Gives the messages to `send`, as long as it takes them.
    pub(crate) fn send(&mut self, now: Instant, mut send: impl FnMut(&ManagerMessage) -> bool) {
        while let Some(&body) = self.outbox.front() {
            if !send(&ManagerMessage { epoch: self.epoch, to: self.manager, at: now, body }) {
                return;
            }
            self.outbox.pop_front();
        }
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.outbox.is_empty()
    }

    pub(crate) fn is_crowded(&self) -> bool {
        self.outbox.len() > OUTBOX_MAX
    }

    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }
}

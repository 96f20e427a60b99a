//! Lets a transport server (TS) ask a CM in another process which acceptor gets a connection. The TS does not
//! wait for the answer, and repeats the question if the answer is late.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use atoll_base::{Duration, Epoch, Instant, SessionId};
use atoll_ipc::manager::{ManagerBody, ManagerMessage};

use crate::messages::{ConnectionId, Directive, ListenerId, Offer};

/// The CM of a TS, in another process.
#[derive(Debug)]
pub(crate) struct Remote {
    epoch: Epoch,
    /// The CM's incarnation; `Epoch(0)` as long as it is unknown.
    manager: Epoch,
    /// The moment at which this incarnation became known.
    since: Instant,
    /// The time after which a question is repeated.
    patience: Duration,
    ticket: u32,
    /// The registered acceptors (listener, lease, session), to be reported again to a new CM.
    acceptors: BTreeSet<(ListenerId, u64, SessionId)>,
    /// The established connections that no application has claimed.
    asked: BTreeMap<u32, Asked>,
    /// When to repeat the question about which connection, under which ticket; the earliest comes first.
    deadlines: VecDeque<(Instant, u32, u32)>,
    /// The messages that the ring has not taken yet.
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
    /// There is no answer yet.
    Due,
    /// The connection waits for an acceptor.
    Queued,
    /// The connection is offered to this acceptor; `measured` says whether its end is to be reported.
    Offered { session: SessionId, lease: u64, measured: bool },
}

/// The consequence of an answer of the CM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Nothing is to be done.
    Nothing,
    /// This directive is to be carried out.
    Do(Directive),
    /// The CM has forgotten a connection of this listener.
    Lost(ConnectionId, ListenerId),
}

/// The number of messages waiting for the CM above which nothing new is begun: no SYN answered, no command
/// taken. Connections that exist already add a few more each.
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

    /// Notes a new incarnation of the CM, which knows nothing. Messages for the last one are dropped. The
    /// caller reports the listeners next, and then calls [`Remote::tell_again`].
    pub(crate) fn restarted(&mut self, now: Instant, manager: Epoch) {
        (self.manager, self.since) = (manager, now);
        self.outbox.clear();
    }

    /// Reports to a new CM what the last one knew: the acceptors, the offers, and the waiting connections,
    /// oldest first.
    pub(crate) fn tell_again(&mut self, now: Instant) {
        for (listener, lease, session) in self.acceptors.clone() {
            self.tell(ManagerBody::Registered { listener: listener.to_bits(), session, lease });
        }
        let mut asked: Vec<(u32, Asked)> =
            self.asked.iter().map(|(connection, asked)| (*connection, *asked)).collect();
        // Tickets are given in order, and wrap around.
        asked.sort_by_key(|(_, asked)| asked.ticket.wrapping_sub(self.ticket).wrapping_sub(1));
        for (connection, Asked { ticket, listener, answer }) in asked {
            let Answer::Offered { session, lease, .. } = answer else {
                self.established(now, ConnectionId(connection), listener);
                continue;
            };
            if let Some(asked) = self.asked.get_mut(&connection) {
                // The CM does not know when the connection was offered, so it cannot use its end.
                asked.answer = Answer::Offered { session, lease, measured: false };
            }
            let listener = listener.to_bits();
            self.tell(ManagerBody::Offered { listener, connection, ticket, session, lease });
        }
        self.prune();
    }

    /// Registers an acceptor: ACCEPT-CONNECTION (P4).
    pub(crate) fn register(&mut self, listener: ListenerId, session: SessionId, lease: u64) {
        self.acceptors.insert((listener, lease, session));
        self.tell(ManagerBody::Registered { listener: listener.to_bits(), session, lease });
    }

    /// Reports that the acceptor wants no more connections for now.
    pub(crate) fn deregister(&mut self, listener: ListenerId, session: SessionId, lease: u64) {
        self.acceptors.remove(&(listener, lease, session));
        self.tell(ManagerBody::Deregistered { listener: listener.to_bits(), session, lease });
    }

    /// Reports that the session no longer holds the socket.
    pub(crate) fn forget(&mut self, listener: ListenerId, session: SessionId, lease: u64) {
        self.acceptors.remove(&(listener, lease, session));
        self.tell(ManagerBody::Forgotten { listener: listener.to_bits(), session, lease });
    }

    /// Reports that the application has closed a connection that it was offered at `offered_at`. Only the CM
    /// that has seen that offer is told.
    pub(crate) fn served(&mut self, session: SessionId, lease: u64, offered_at: Instant) {
        if offered_at >= self.since {
            self.tell(ManagerBody::Served { session, lease, offered_at });
        }
    }

    /// Queues a message that is not about a connection.
    pub(crate) fn tell(&mut self, body: ManagerBody) {
        self.outbox.push_back(body);
    }

    /// Asks which acceptor gets a connection.
    pub(crate) fn established(&mut self, now: Instant, connection: ConnectionId, listener: ListenerId) {
        let ticket = self.next_ticket(now, connection, listener);
        self.tell(ManagerBody::Established {
            listener: listener.to_bits(),
            connection: connection.0,
            ticket,
        });
    }

    /// Asks again for a connection whose acceptor has not claimed in time, or has ended.
    pub(crate) fn returned(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        listener: ListenerId,
        timed_out: bool,
    ) {
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

    /// Reports that the connection is claimed. Returns whether its end is to be reported.
    pub(crate) fn claimed(&mut self, connection: ConnectionId, offered_at: Instant) -> bool {
        let Some(asked) = self.asked.remove(&connection.0) else { return false };
        self.tell(ManagerBody::Claimed { connection: connection.0, offered_at });
        matches!(asked.answer, Answer::Offered { measured: true, .. })
    }

    /// Reports that the connection has ended before it was claimed.
    pub(crate) fn gone(&mut self, connection: ConnectionId) {
        if self.asked.remove(&connection.0).is_some() {
            self.tell(ManagerBody::Gone { connection: connection.0 });
            self.prune();
        }
    }

    /// Handles a message of the CM.
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
                let Some(&mut Asked { listener, .. }) = self.waiting(connection, ticket) else {
                    return Told::Nothing;
                };
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

    /// Returns a connection that is offered to no acceptor, if the answer is to the last question about it.
    fn waiting(&mut self, connection: u32, ticket: u32) -> Option<&mut Asked> {
        let is_meant =
            |asked: &&mut Asked| asked.ticket == ticket && !matches!(asked.answer, Answer::Offered { .. });
        let asked = self.asked.get_mut(&connection).filter(is_meant);
        // The connection has ended meanwhile; that is rare, but no fault.
        self.dropped += u64::from(asked.is_none());
        asked
    }

    /// Repeats the questions whose answers are late.
    pub(crate) fn handle_timers(&mut self, now: Instant) {
        while let Some(&(_, connection, ticket)) = self.deadlines.front().filter(|(due, ..)| *due <= now) {
            self.deadlines.pop_front();
            let is_due = |asked: &&Asked| asked.ticket == ticket && asked.answer == Answer::Due;
            let Some(listener) = self.asked.get(&connection).filter(is_due).map(|asked| asked.listener)
            else {
                continue;
            };
            self.deadlines.push_back((now + self.patience, connection, ticket));
            self.tell(ManagerBody::Established { listener: listener.to_bits(), connection, ticket });
        }
        self.prune();
    }

    /// Returns when [`Remote::handle_timers`] is due at the latest. An answered question needs no timer.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.deadlines.front().map(|(due, ..)| *due)
    }

    /// Removes deadlines of questions that are answered or gone, from the first on.
    fn prune(&mut self) {
        while let Some((_, connection, ticket)) = self.deadlines.front() {
            let asked = self.asked.get(connection).filter(|asked| asked.ticket == *ticket);
            if asked.is_some_and(|asked| asked.answer == Answer::Due) {
                return;
            }
            self.deadlines.pop_front();
        }
    }

    /// Passes the messages to `send`, as long as that returns true.
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

//! Decides which acceptor gets the next connection: Pika's distributed balancing (P5).
//!
//! ```text
//!                    own replica                        other replicas
//!   TS --offered, claimed, closed--> Acceptor --report--> Acceptor at its home: Estimate
//!                                        |                              |
//!                                     choose <-- Offers <--offer-- the best of its own
//! ```
//! Each CM chooses by itself, from what it knows, and gives the connection to the acceptor's session in its
//! own replica. So nothing moves between transport servers, whichever acceptor is chosen, and a late or lost
//! message costs balance, never a connection.
//!
//! No CM is woken for an offer, and none sleeps less for balancing. A CM that has received nothing from
//! another for a second treats that one's acceptors as its own, and relies on what it has seen of them
//! itself.
//!
//! A listener with one acceptor skips all of this.

mod acceptor;
mod acceptors;
mod estimate;
mod offers;
mod scheme;
mod watermark;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use atoll_base::{Duration, Epoch, Instant, ReplicaId, Rng, SessionId};
use atoll_ipc::balance::{Balance, PeerBody, PeerMessage};

pub use self::acceptors::AcceptorView;
pub(crate) use self::acceptors::{Acceptors, Reported};
use self::scheme::Candidate;

/// The balancing state that all listeners of a CM share.
#[derive(Debug)]
pub(crate) struct Balancer {
    me: ReplicaId,
    replicas: u8,
    epoch: Epoch,
    rules: Balance,
    rng: Rng,
    peers: [Peer; PEERS],
    counts: BalanceCounts,
    /// The listeners (by index) where something has happened, and when the first of them may be reported.
    active: Vec<u32>,
    due_at: Instant,
    outbox: VecDeque<PeerOutput>,
    /// These two vectors are kept for their memory.
    own: Vec<Candidate>,
    offered: Vec<Candidate>,
}

/// The state of another CM.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    epoch: Epoch,
    woken_at: Option<Instant>,
    /// The number of connections given to acceptors at home there since the last report.
    given: u32,
}

/// The greatest number of CMs, which is more than a stack has replicas, because the simulated machine has
/// more.
const PEERS: usize = 64;
/// The number of connections for which a sleeping CM is woken with a report at once.
const WORTH_WAKING: u32 = 16;
/// The time after which a sleeping CM is woken with a report for fewer connections.
const WAKE_EVERY: Duration = Duration::from_millis(50);

/// The other replicas that messages can be sent to, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// The replicas that do not sleep.
    pub awake: u64,
    /// The replicas that take a message and read it when they wake up: those that do not sleep, and those for
    /// which few messages are waiting.
    pub takes: u64,
}

/// A message to other CMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerOutput {
    /// The replicas that get the message, a bit each.
    pub to: u64,
    /// Whether those of them that sleep are to be woken.
    pub wakes: bool,
    /// The message to send.
    pub message: PeerMessage,
}

/// Counters of what has happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalanceCounts {
    /// Offers sent.
    pub offers_out: u64,
    /// Offers received.
    pub offers_in: u64,
    /// Connections given to an acceptor that another CM has offered.
    pub offers_taken: u64,
    /// Messages ignored, because they are of a dead epoch or about something that is gone.
    pub dropped: u64,
    /// Reports sent.
    pub reports_out: u64,
    /// Reports received.
    pub reports_in: u64,
}

impl Balancer {
    pub(crate) fn new(me: ReplicaId, replicas: u8, epoch: Epoch, seed: u64) -> Balancer {
        Balancer {
            me,
            replicas: replicas.clamp(1, PEERS as u8),
            epoch,
            rules: Balance::new(),
            rng: Rng::new(seed),
            peers: [Peer::default(); PEERS],
            counts: BalanceCounts::default(),
            active: Vec::new(),
            due_at: Instant::FAR_FUTURE,
            outbox: VecDeque::new(),
            own: Vec::new(),
            offered: Vec::new(),
        }
    }

    /// Changes the rules; invalid ones change nothing.
    pub(crate) fn set_rules(&mut self, rules: Balance) {
        if rules.is_valid() {
            self.rules = rules;
        }
    }

    pub(crate) const fn rules(&self) -> &Balance {
        &self.rules
    }

    pub(crate) const fn counts(&self) -> BalanceCounts {
        self.counts
    }

    /// Returns the home of a session's acceptors.
    ///
    /// The rule is fixed, so that all CMs agree without a message. Sessions are numbered as they attach, so
    /// workers that are started one after another spread evenly. A CM that gets none lives from offers.
    pub(crate) fn home(&self, session: SessionId) -> ReplicaId {
        ReplicaId((session.0 % u32::from(self.replicas)) as u8)
    }

    /// Returns where the session's acceptors are at home, if that is not here.
    fn away_from(&self, session: SessionId) -> Option<ReplicaId> {
        Some(self.home(session)).filter(|home| *home != self.me)
    }

    /// Checks the sender of a message. Returns `None` if the message does not count, otherwise whether it is
    /// from a new incarnation, so that everything from the last one is void.
    pub(crate) fn admit(&mut self, message: &PeerMessage) -> Option<bool> {
        let is_peer = message.from != self.me && message.from.0 < self.replicas;
        let peer = self.peers.get_mut(usize::from(message.from.0)).filter(|_| is_peer);
        let Some(peer) = peer.filter(|peer| message.epoch >= peer.epoch && message.epoch != Epoch(0)) else {
            self.counts.dropped += 1;
            return None;
        };
        match message.body {
            PeerBody::Offer(_) => self.counts.offers_in += 1,
            PeerBody::Report(_) => self.counts.reports_in += 1,
        }
        let is_new = peer.epoch != Epoch(0) && message.epoch != peer.epoch;
        peer.epoch = message.epoch;
        Some(is_new)
    }

    pub(crate) const fn count_dropped(&mut self) {
        self.counts.dropped += 1;
    }

    /// Returns whether there is anything to report now. `last` says that the replica is going to sleep.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant, last: bool) -> bool {
        now >= self.due_at || (last && self.due_at != Instant::FAR_FUTURE)
    }

    pub(crate) fn poll(&mut self) -> Option<PeerOutput> {
        self.outbox.pop_front()
    }

    /// Returns the listeners that may have something to report, and empties their list.
    pub(crate) fn take_active(&mut self) -> Vec<u32> {
        self.due_at = Instant::FAR_FUTURE;
        core::mem::take(&mut self.active)
    }

    fn stir_at(&mut self, listener: u32, offers: &mut offers::Offers, due: Instant) {
        if !core::mem::replace(&mut offers.is_active, true) {
            self.active.push(listener);
        }
        self.due_at = self.due_at.min(due);
    }

    fn send(&mut self, now: Instant, to: u64, wakes: bool, body: PeerBody) {
        match body {
            PeerBody::Offer(_) => self.counts.offers_out += 1,
            PeerBody::Report(_) => self.counts.reports_out += 1,
        }
        let message = PeerMessage { from: self.me, epoch: self.epoch, sent_at: now, body };
        self.outbox.push_back(PeerOutput { to, wakes, message });
    }

    /// Counts a connection given to an acceptor that is at home at another CM.
    fn count_given(&mut self, home: ReplicaId) {
        if let Some(peer) = self.peers.get_mut(usize::from(home.0)) {
            peer.given = peer.given.saturating_add(1);
        }
    }

    /// Returns whether a sleeping CM is to be woken for a report.
    fn is_worth_waking(&self, now: Instant, home: ReplicaId) -> bool {
        self.peers.get(usize::from(home.0)).is_some_and(|peer| {
            peer.given >= WORTH_WAKING || peer.woken_at.is_none_or(|at| now.since(at) >= WAKE_EVERY)
        })
    }

    fn told(&mut self, now: Instant, home: ReplicaId) {
        if let Some(peer) = self.peers.get_mut(usize::from(home.0)) {
            (peer.woken_at, peer.given) = (Some(now), 0);
        }
    }

    /// Returns every other replica, a bit each.
    fn others(&self) -> u64 {
        (u64::MAX >> (PEERS as u8 - self.replicas)) & !(1 << self.me.0)
    }
}

#[cfg(test)]
mod tests;

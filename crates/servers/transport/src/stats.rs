//! The counters of the replica's page that belong to transport.

use atoll_ipc::page::{ReplicaPage, Stat};
use atoll_ipc::{Memory, Tally};
use atoll_tcp::Reason;

#[derive(Debug)]
pub(crate) struct Stats {
    /// The counters of this life of the server.
    own: [u64; Stat::ALL.len()],
    past: Tally,
}

impl Stats {
    /// Creates counters that continue from what predecessors have left on the page.
    pub(crate) fn new<M: Memory>(page: &ReplicaPage<M>) -> Stats {
        Stats { own: [0; Stat::ALL.len()], past: Tally::read(page) }
    }

    #[inline]
    pub(crate) const fn add(&mut self, stat: Stat, n: u64) {
        self.own[stat as usize] += n;
    }

    #[inline]
    pub(crate) const fn count(&mut self, stat: Stat) {
        self.add(stat, 1);
    }

    /// Counts why a connection has dropped a segment, as far as that may be an attack.
    pub(crate) const fn count_reason(&mut self, reason: Reason) {
        self.count(match reason {
            Reason::OutsideWindow => Stat::DroppedOutsideWindow,
            Reason::OldTimestamp | Reason::NoTimestamp => Stat::DroppedTimestamp,
            Reason::BlindReset => Stat::DroppedResets,
            Reason::UnexpectedSyn => Stat::DroppedSyns,
            Reason::AckUnsent | Reason::AckOld | Reason::AckHandshake => Stat::DroppedAcks,
            Reason::Closed | Reason::NoAck => return,
        });
    }

    pub(crate) const fn set(&mut self, stat: Stat, value: u64) {
        self.own[stat as usize] = value;
    }

    pub(crate) const fn get(&self, stat: Stat) -> u64 {
        self.own[stat as usize]
    }

    /// Writes these counters to the page; the link writes its own.
    pub(crate) fn publish<M: Memory>(&self, page: &ReplicaPage<M>) {
        for &stat in OURS {
            page.set_stat(stat, self.past.with(stat, self.get(stat)));
        }
    }
}

const OURS: &[Stat] = &[
    Stat::ConnectionsKept,
    Stat::ConnectionsLost,
    Stat::ConnectionsQuarantined,
    Stat::FramesDropped,
    Stat::FragmentsIn,
    Stat::FragmentsOut,
    Stat::Reassembled,
    Stat::ReassemblyTimeouts,
    Stat::ReassemblyEvictions,
    Stat::FragmentsMalformed,
    Stat::FragmentsTiny,
    Stat::FragmentsOverlapping,
    Stat::FragmentsDuplicate,
    Stat::PathMtuLowered,
    Stat::MtuBlackHoles,
    Stat::SegmentsIn,
    Stat::SegmentsOut,
    Stat::Retransmits,
    Stat::SegmentsDropped,
    Stat::DroppedOutsideWindow,
    Stat::DroppedTimestamp,
    Stat::DroppedResets,
    Stat::DroppedSyns,
    Stat::DroppedAcks,
    Stat::DroppedTtl,
    Stat::ChallengesSent,
    Stat::ChallengesWithheld,
    Stat::SackIgnored,
    Stat::SackReneged,
    Stat::TextRefused,
    Stat::TextPruned,
    Stat::Orphans,
    Stat::OrphansReset,
    Stat::ConnectionsShed,
    Stat::Pressured,
    Stat::TimeWaitsDropped,
    Stat::ResetsOut,
    Stat::PassiveOpens,
    Stat::ActiveOpens,
    Stat::Connections,
    Stat::TimeWaits,
    Stat::SynDrops,
    Stat::SynCookiesSent,
    Stat::SynCookiesReceived,
    Stat::FastOpens,
    Stat::FastOpenRefused,
    Stat::AcceptDrops,
    Stat::Offers,
    Stat::Claims,
    Stat::ClaimTimeouts,
    Stat::HandshakesTimed,
    Stat::TimeCm,
    Stat::TimeTcp,
    Stat::TimeMsg,
    Stat::TimeAccept,
    Stat::TimeTotal,
    Stat::DatagramsIn,
    Stat::DatagramsOut,
    Stat::DatagramsDropped,
    Stat::Commands,
    Stat::BadCommands,
    Stat::Events,
    Stat::EventOverflows,
    Stat::Sessions,
    Stat::BufferBytes,
    Stat::PeerOffersOut,
    Stat::PeerOffersIn,
    Stat::PeerOffersTaken,
    Stat::PeerMessagesDropped,
    Stat::ServiceReportsOut,
    Stat::ServiceReportsIn,
];

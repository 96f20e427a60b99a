//! Opens connections for SYNs that a listener wants, and for segments that bring a cookie back.

use atoll_base::{FourTuple, Instant, SeqNum};
use atoll_connmgr::{ConnectionId, ListenerId, Syn, SynVerdict};
use atoll_ipc::Memory;
use atoll_ipc::page::Stat;
use atoll_tcp::{Connection, Text};

use crate::entry::{Entry, Flags, Stage};
use crate::options::Inherited;
use crate::passive::{Arrival, Opening};
use crate::transport::Transport;

/// The result of a segment that may bring a cookie back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByCookie {
    /// The segment brings no cookie, or no socket listens.
    None,
    /// The segment brings a cookie, but there is no room for its connection: the peer tries again.
    Forgotten,
    /// The segment is the first one of this new connection, which is still to handle it.
    Opened(u32),
}

impl<M: Memory> Transport<M> {
    /// Opens the connection of a SYN that the CM wants answered. `defer` is the time in seconds to wait for
    /// text when the connection is established.
    pub(crate) fn accept(
        &mut self,
        now: Instant,
        arrival: &Arrival<'_>,
        iss_above: Option<SeqNum>,
        (listener, defer): (ListenerId, u16),
    ) {
        let Arrival { tuple, segment, internal, .. } = *arrival;
        let inherited = self.handshakes.inherited(&self.config, listener);
        if iss_above.is_some() {
            self.connections.replace_time_wait(&tuple);
        }
        let mut iss = atoll_tcp::initial_sequence(&self.secrets.sequence, &tuple, now);
        if let Some(above) = iss_above
            && !iss.after(above)
        {
            // RFC 6191 §2: the sequence number is above everything that the old connection has used.
            iss = above.plus(1 + self.rng.below(1 << 16));
        }
        let opening = Opening { config: &self.config, secrets: &self.secrets, ip: &self.ip };
        let fast =
            self.handshakes.accept_fast(now, &opening, (arrival, iss), (listener, &self.cm), &mut self.stats);
        let (connection, early) = fast.unwrap_or_else(|| {
            (opening.open_passively(now, &tuple, segment, iss, internal, &inherited.settings), None)
        });
        let index = self.enter(connection, tuple, &inherited, internal, Stage::Embryonic { listener, defer });
        let Some(entry) = self.connections.get_mut(index) else { return };
        self.handshakes.phases().opened(now, index, entry.name);
        if let Some(len) = early {
            // The application gets the connection at once.
            entry.flags.insert(Flags::FAST_OPEN);
            self.stats.count(Stat::FastOpens);
            self.handshakes.begin_early(index, listener);
            if len > 0 {
                let taken = Text { offset: 0, skip: 0, len };
                self.connections.place_text(index, taken, arrival.text, &self.applications);
            }
            self.establish(now, index);
        }
        self.connections.touch(index);
    }

    /// Opens the connection whose handshake a segment completes, if the segment brings a cookie back.
    pub(crate) fn accept_by_cookie(&mut self, now: Instant, arrival: &Arrival<'_>) -> ByCookie {
        let Arrival { tuple, segment, internal, .. } = *arrival;
        let Some(syn) = self.handshakes.check_cookie(now, &self.secrets, arrival) else {
            return ByCookie::None;
        };
        let verdict =
            self.cm.handle_syn(&Syn { local: tuple.local, device: arrival.device, by_cookie: true });
        let SynVerdict::Accept { listener, defer_accept: defer } = verdict else {
            // As on Linux, the last ACK of the handshake is forgotten while the accept queue is full.
            self.stats.add(Stat::AcceptDrops, (verdict == SynVerdict::Full).into());
            return if verdict == SynVerdict::Full { ByCookie::Forgotten } else { ByCookie::None };
        };
        if !self.has_room_for(listener) {
            return ByCookie::Forgotten;
        }
        self.stats.count(Stat::SegmentsIn);
        self.stats.count(Stat::SynCookiesReceived);
        let iss = SeqNum(segment.ack.0.wrapping_sub(1));
        let inherited = self.handshakes.inherited(&self.config, listener);
        let opening = Opening { config: &self.config, secrets: &self.secrets, ip: &self.ip };
        let mut connection = opening.open_passively(now, &tuple, &syn, iss, internal, &inherited.settings);
        connection.skip_syn_ack(now);
        let stage = Stage::Embryonic { listener, defer };
        ByCookie::Opened(self.enter(connection, tuple, &inherited, internal, stage))
    }

    /// Returns whether there is room for one more connection. If not, reports to the CM that the connection
    /// that it accepted is gone.
    pub(crate) fn has_room_for(&mut self, listener: ListenerId) -> bool {
        let has_room = self.connections.count() < self.config.connections_max
            && self.shortage.may_accept(&self.applications, &self.cm, listener);
        if !has_room {
            self.stats.count(Stat::SynDrops);
            // No connection was made, so no number was given out either.
            self.cm.handle_gone(ConnectionId(u32::MAX), listener, atoll_connmgr::Stage::Embryonic);
        }
        has_room
    }

    /// Adds a connection that a peer has opened to the tables. Returns its index.
    fn enter(
        &mut self,
        connection: Connection,
        tuple: FourTuple,
        inherited: &Inherited,
        internal: bool,
        stage: Stage,
    ) -> u32 {
        let mut entry = Entry::new(connection, self.connections.name(&tuple), stage);
        if let Some(listener) = stage.listener() {
            // inet_csk_clone_lock: it is bound as its listener is.
            entry.set_device(self.cm.device_of(listener));
        }
        entry.inherit(&self.config, inherited, self.ip.hop_limit());
        if internal {
            entry.flags.insert(Flags::INTERNAL);
        }
        let index = self.connections.insert(entry);
        self.connections.enroll(index);
        index
    }
}

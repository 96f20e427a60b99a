//! How is a flood of SYNs survived? They are answered without being remembered; see `atoll_tcp::syn_cookie`.

use atoll_base::{FourTuple, Instant, SeqNum};
use atoll_connmgr::{ListenerId, Syn, SynVerdict};
use atoll_ipc::Memory;
use atoll_ipc::page::Stat;
use atoll_tcp::COOKIE_LIFETIME;
use atoll_wire::tcp::Segment;

use crate::entry::Stage;
use crate::transport::Transport;

impl<M: Memory> Transport<M> {
    /// Answers a SYN and forgets it.
    pub(crate) fn answer_by_cookie(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        syn: &Segment,
        internal: bool,
        listener: ListenerId,
    ) {
        let syn = atoll_tcp::simplify_for_cookie(syn);
        let iss = atoll_tcp::syn_cookie(&self.secrets.sequence, &tuple, &syn, now);
        let settings = self.inherited(listener).settings;
        // The SYN-ACK is that of a connection which nobody keeps.
        let mut connection = self.open_passively(now, tuple, &syn, iss, internal, &settings);
        let Some(transmit) = connection.poll_transmit(now, 0) else { return };
        let mut syn_ack = Segment { src_port: tuple.local.port, dst_port: tuple.remote.port, ..transmit.segment };
        atoll_tcp::stamp_cookie(&mut syn_ack, &syn);
        self.cookies_until = now + COOKIE_LIFETIME;
        self.stats.count(Stat::SynCookiesSent);
        self.answer(tuple, syn_ack);
    }

    /// Opens the connection that a segment completes the handshake of, if it brings a cookie back. `false`: it does not.
    pub(crate) fn accept_by_cookie(
        &mut self,
        now: Instant,
        tuple: FourTuple,
        segment: &Segment,
        text: &[u8],
        internal: bool,
    ) -> bool {
        if now >= self.cookies_until {
            return false;
        }
        let syn = atoll_tcp::check_syn_cookie(&self.secrets.sequence, &tuple, segment, now);
        let Some(syn) = syn else { return false };
        let verdict = self.cm.handle_syn(&Syn { local: tuple.local, by_cookie: true });
        let SynVerdict::Accept { listener, defer_accept: defer } = verdict else {
            // As on Linux, the last ACK of the handshake is forgotten while the accept queue is full.
            self.stats.add(Stat::AcceptDrops, (verdict == SynVerdict::Full).into());
            return verdict == SynVerdict::Full;
        };
        if !self.has_room_for(listener) {
            return true;
        }
        self.stats.count(Stat::SegmentsIn);
        self.stats.count(Stat::SynCookiesReceived);
        let iss = SeqNum(segment.ack.0.wrapping_sub(1));
        let inherited = self.inherited(listener);
        let mut connection = self.open_passively(now, tuple, &syn, iss, internal, &inherited.settings);
        connection.skip_syn_ack(now);
        let index = self.enter(connection, tuple, &inherited, internal, Stage::Embryonic { listener, defer });
        self.segment_arrives(now, index, segment, text);
        // If the accept queue is full, the segment was forgotten, and only the timer remembers to repeat the SYN-ACK.
        self.touch(index);
        true
    }
}

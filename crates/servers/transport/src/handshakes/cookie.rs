//! Answers a flood of SYNs without keeping state; see `atoll_tcp::syn_cookie`.

use atoll_base::Instant;
use atoll_connmgr::ListenerId;
use atoll_tcp::COOKIE_LIFETIME;
use atoll_wire::tcp::Segment;

use super::Handshakes;
use crate::config::Secrets;
use crate::passive::{Arrival, Opening};

impl Handshakes {
    /// Returns the answer to a SYN of which nothing is kept.
    pub(crate) fn answer_by_cookie(
        &mut self,
        now: Instant,
        opening: &Opening<'_>,
        arrival: &Arrival<'_>,
        listener: ListenerId,
    ) -> Option<Segment> {
        let Arrival { tuple, segment, internal, .. } = *arrival;
        let syn = atoll_tcp::simplify_for_cookie(segment);
        let iss = atoll_tcp::syn_cookie(&opening.secrets.sequence, &tuple, &syn, now);
        let settings = self.inherited(opening.config, listener).settings;
        // The SYN-ACK is that of a connection which is not kept.
        let mut connection = opening.open_passively(now, &tuple, &syn, iss, internal, &settings);
        let transmit = connection.poll_transmit(now, 0)?;
        let mut syn_ack =
            Segment { src_port: tuple.local.port, dst_port: tuple.remote.port, ..transmit.segment };
        atoll_tcp::stamp_cookie(&mut syn_ack, &syn);
        self.cookies_until = now + COOKIE_LIFETIME;
        Some(syn_ack)
    }

    /// Returns the SYN that a segment was the answer to, if it brings a cookie back.
    pub(crate) fn check_cookie(
        &self,
        now: Instant,
        secrets: &Secrets,
        arrival: &Arrival<'_>,
    ) -> Option<Segment> {
        if now >= self.cookies_until {
            return None;
        }
        atoll_tcp::check_syn_cookie(&secrets.sequence, &arrival.tuple, arrival.segment, now)
    }
}

//! Opens connections whose SYN carries text: RFC 7413. Cookies of servers are in `fast_open.rs`.

use atoll_base::{FourTuple, Instant, SeqNum};
use atoll_connmgr::{ConnMgr, ListenerId};
use atoll_ipc::page::Stat;
use atoll_tcp::{Connection, CookieVerdict};

use super::Handshakes;
use crate::config::Config;
use crate::entry::Entry;
use crate::passive::{Arrival, Opening};
use crate::receive::PARKED_MAX;
use crate::stats::Stats;

impl Handshakes {
    // ---- server ----

    /// Handles a SYN for a listener with Fast Open. Takes its text if the cookie is good; otherwise the
    /// SYN-ACK brings one. Returns the connection, and how much text is in it; `None` if it is an ordinary
    /// one.
    pub(crate) fn accept_fast(
        &self,
        now: Instant,
        opening: &Opening<'_>,
        (arrival, iss): (&Arrival<'_>, SeqNum),
        (listener, cm): (ListenerId, &ConnMgr),
        stats: &mut Stats,
    ) -> Option<(Connection, Option<u32>)> {
        let Arrival { tuple, segment: syn, internal, .. } = *arrival;
        let option = self.syn_option()?;
        let inherited = self.inherited(opening.config, listener);
        if !opening.config.fast_open.server || inherited.fast_open == 0 {
            return None;
        }
        let newer = match atoll_tcp::check_fast_open(&opening.secrets.fast_open, &tuple, &option, now) {
            CookieVerdict::Good { newer } => newer,
            CookieVerdict::Bad { newest } => {
                if !option.is_request() {
                    stats.count(Stat::FastOpenRefused);
                }
                let mut connection =
                    opening.open_passively(now, &tuple, syn, iss, internal, &inherited.settings);
                connection.grant_fast(newest);
                return Some((connection, None));
            }
        };
        if self.early_of(listener) >= inherited.fast_open || !cm.may_establish(listener) {
            stats.count(Stat::FastOpenRefused);
            return None;
        }
        let ts_offset = atoll_tcp::timestamp_offset(&opening.secrets.sequence, &tuple);
        let (path, len) = (opening.path(tuple.remote.addr, internal), syn.len.min(PARKED_MAX as u32));
        let settings = &inherited.settings;
        let connection = Connection::accept_fast(now, syn, iss, ts_offset, path, settings, len, newer);
        let len = u32::try_from(connection.receive_nxt()).unwrap_or(0);
        Some((connection, Some(len)))
    }

    // ---- client ----

    /// Prepares a new connection whose application wants Fast Open. Returns how much text its SYN waits for.
    pub(crate) fn open_fast(
        &self,
        now: Instant,
        config: &Config,
        tuple: &FourTuple,
        connection: &mut Connection,
    ) -> Option<u16> {
        if !config.fast_open.client {
            return None;
        }
        if let Some((option, mss)) = self.servers.option_for(now, tuple.remote.addr) {
            connection.open_fast(option, mss);
        }
        connection.text_wanted()
    }

    /// Learns from the server's answer.
    #[cold]
    pub(crate) fn learn_fast_open(&mut self, now: Instant, entry: &Entry, stats: &mut Stats) {
        let connection = &entry.connection;
        if connection.fast_open_option(false).is_none() {
            return;
        }
        let info = connection.info(now);
        let lost = info.total_retrans > 0;
        let answer = self.syn_option.filter(|option| !option.is_request());
        stats.add(Stat::FastOpens, info.syn_text.into());
        self.servers.learn(now, entry.name.remote_addr(), answer, connection.mss_of_peer(), lost);
    }
}

//! How does text travel on the SYN? TCP Fast Open, RFC 7413.
//!
//! A client that has talked to a server before holds a cookie of it; with the cookie the server takes the
//! text of a SYN, gives it to the application and sends its answer at once. Everything that goes wrong leaves
//! an ordinary handshake: a SYN that is sent again carries neither text nor cookie, because what drops the
//! one may drop all of that kind; and text that the SYN-ACK does not acknowledge counts as never sent.
//!
//! ```text
//!   client                                     server
//!   SYN, cookie, text [0, n)      ------->     SYN-RECEIVED, reads [0, n)
//!                                 <-------     SYN-ACK of n
//!                                 <-------     answer
//!   ACK                           ------->     ESTABLISHED
//! ```

use core::hash::Hasher;

use atoll_base::{FourTuple, Instant, SeqNum};
use atoll_wire::fast_open::FastOpen;
use atoll_wire::tcp::Segment;
use siphasher::sip::SipHasher24;

use crate::connection::Connection;
use crate::pending::Pending;
use crate::settings::{Path, Settings};
use crate::state::State;

/// What a connection has to do with Fast Open.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Early {
    /// The option of the first SYN or SYN-ACK.
    option: Option<FastOpen>,
    /// Most octets of text that the SYN carries.
    room: u16,
    /// The SYN waits for text.
    waits: bool,
    /// The SYN brought text, and the application has the connection: it may answer in SYN-RECEIVED.
    is_open: bool,
    /// The text of the SYN has been acknowledged, by whichever end.
    acknowledged: bool,
}

impl Connection {
    /// Client, before the SYN leaves: it carries `option`; if that is a cookie, it waits for text of the
    /// application, and takes as much of it along as a segment of `mss` octets (the server's, as known from
    /// before) holds.
    pub fn open_fast(&mut self, option: FastOpen, mss: u16) {
        let has_cookie = !option.is_request();
        let room = self.config.clamp_mss(self.snd.mss_path.min(mss)).saturating_sub(OPTIONS_MAX);
        let early = Early { option: Some(option), room, waits: has_cookie, ..Early::default() };
        self.rare.get_or_insert_default().early = early;
        if has_cookie {
            self.pending.clear(Pending::SYN);
        }
    }

    /// Whether the SYN still waits for text (TCP_FASTOPEN_CONNECT).
    pub fn waits_for_text(&self) -> bool {
        self.text_wanted().is_some()
    }

    /// How much text the SYN takes along that waits for it.
    pub fn text_wanted(&self) -> Option<u16> {
        let early = self.rare.as_ref()?.early;
        early.waits.then_some(early.room)
    }

    /// There is text, or there will be none: the SYN waits no more.
    pub(crate) fn release_syn(&mut self) {
        if let Some(rare) = &mut self.rare
            && rare.early.waits
            && self.snd.end() > 0
        {
            rare.early.waits = false;
            self.pending.set(Pending::SYN);
        }
    }

    // structure: accept_fast: a SYN with text has as many facts
    /// Passive open by `syn`, whose cookie is good: as [`Connection::accept`], but the first `len` octets of
    /// its text are taken (at most as many as there is window for), and the application gets the connection
    /// at once. `option`: a newer cookie for the peer.
    #[allow(clippy::too_many_arguments)] // Those of `accept`.
    pub fn accept_fast(
        now: Instant,
        syn: &Segment,
        iss: SeqNum,
        ts_offset: u32,
        path: Path,
        settings: &Settings,
        len: u32,
        option: Option<FastOpen>,
    ) -> Connection {
        let mut connection = Connection::accept(now, syn, iss, ts_offset, path, settings);
        let rcv = &mut connection.rcv;
        rcv.nxt = i64::from(len.min(syn.len)).min(rcv.edge);
        rcv.acked = rcv.nxt;
        let early = Early { option, is_open: true, acknowledged: rcv.nxt > 0, ..Early::default() };
        connection.rare.get_or_insert_default().early = early;
        connection
    }

    /// A connection of a predecessor whose application has had it since its SYN.
    pub fn resume_fast(&mut self) {
        if self.state() == State::SynReceived {
            let acknowledged = self.rcv.nxt > 0;
            self.rare.get_or_insert_default().early = Early { is_open: true, acknowledged, ..Early::default() };
        }
    }

    /// The SYN-ACK brings the peer a cookie (RFC 7413 §4.1.3.1).
    pub fn grant_fast(&mut self, option: FastOpen) {
        self.rare.get_or_insert_default().early.option = Some(option);
    }

    /// The largest segment that the peer takes, by its SYN.
    pub fn mss_of_peer(&self) -> u16 {
        self.snd.mss_peer
    }

    /// The option of a SYN or SYN-ACK that leaves now. `again`: it has left before, and goes without.
    pub fn fast_open_option(&self, again: bool) -> Option<FastOpen> {
        self.rare.as_ref().filter(|_| !again)?.early.option
    }

    /// Whether the application has the connection although the handshake is not complete.
    pub fn is_open_early(&self) -> bool {
        self.state() == State::SynReceived && self.rare.as_ref().is_some_and(|rare| rare.early.is_open)
    }

    /// Whether text of a SYN has been acknowledged (TCPI_OPT_SYN_DATA).
    pub(crate) fn has_fast_text(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.early.acknowledged)
    }

    /// Octets of text that the SYN takes along, the first time that it leaves.
    pub(crate) fn text_on_syn(&self) -> i64 {
        let early = self.rare.as_ref().map(|rare| rare.early);
        // The pointer of a SYN means nothing to many: urgent text waits.
        early
            .filter(|_| self.urgent_end().is_none())
            .filter(|early| self.state() == State::SynSent && early.option.is_some_and(|option| !option.is_request()))
            .map_or(0, |early| i64::from(early.room).min(self.snd.tail))
    }

    /// The SYN-ACK acknowledges everything before `ack`: the rest of the SYN's text is to be sent as if it
    /// never had been.
    pub(crate) fn judge_syn_text(&mut self, ack: i64) {
        if self.snd.nxt > ack {
            self.snd.nxt = ack;
            self.snd.small_end = self.snd.small_end.min(ack);
            self.recovery.forget_flight();
        }
        if ack > 0
            && let Some(rare) = &mut self.rare
        {
            rare.early.acknowledged = true;
        }
    }
}

/// The cookie that a server gives to the client of `tuple` (RFC 7413 §4.1.2): only who receives at that
/// address has it.
///
/// `key`: random, the same for all that answer at one address. The key of the hash changes every [`PERIOD_S`]
/// seconds with `now`.
pub fn fast_open_cookie(key: &[u8; 16], tuple: &FourTuple, now: Instant) -> FastOpen {
    cookie_of(key, tuple, period(now))
}

/// Whether `option` is a cookie of this server's, of this period or the one before; and the present one if it
/// is of the one before, for the client to use from now on.
pub fn check_fast_open(key: &[u8; 16], tuple: &FourTuple, option: &FastOpen, now: Instant) -> CookieVerdict {
    let now = period(now);
    let newest = cookie_of(key, tuple, now);
    if option.is_request() {
        CookieVerdict::Bad { newest }
    } else if *option == newest {
        CookieVerdict::Good { newer: None }
    } else if *option == cookie_of(key, tuple, now.wrapping_sub(1)) {
        CookieVerdict::Good { newer: Some(newest) }
    } else {
        CookieVerdict::Bad { newest }
    }
}

/// What a server thinks of the option of a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CookieVerdict {
    /// A cookie of its own; perhaps there is a newer one.
    Good {
        /// For the client.
        newer: Option<FastOpen>,
    },
    /// None, or one that is not good any more.
    Bad {
        /// For the client.
        newest: FastOpen,
    },
}

fn period(now: Instant) -> u64 {
    now.as_millis() / 1000 / PERIOD_S
}

fn cookie_of(key: &[u8; 16], tuple: &FourTuple, period: u64) -> FastOpen {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(&tuple.local.addr.octets());
    hasher.write(&tuple.remote.addr.octets());
    hasher.write_u64(period);
    hasher.write_u8(b'f');
    FastOpen::cookie(&hasher.finish().to_be_bytes()).unwrap_or(FastOpen::REQUEST)
}

/// How long a key is in use. A cookie is good for as long again.
const PERIOD_S: u64 = 12 * 3600;
/// As Linux: room for all options that a SYN may carry.
const OPTIONS_MAX: u16 = 40;

#[cfg(test)]
mod tests;

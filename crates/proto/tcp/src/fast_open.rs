//! How text travels on the SYN: TCP Fast Open (RFC 7413).
//!
//! A client that has talked to a server before holds a cookie of that server. With the cookie, the server
//! takes the text of a SYN, gives it to the application and sends its answer at once. Everything that goes
//! wrong leaves an ordinary handshake. A SYN that is sent again carries neither text nor cookie, because a
//! network that drops one such SYN may drop all of them. Text that the SYN-ACK does not acknowledge counts as
//! never sent.
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

/// The state of TCP Fast Open in a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Early {
    /// The Fast Open option of the first SYN or SYN-ACK.
    option: Option<FastOpen>,
    /// The most octets of text that the SYN carries.
    room: u16,
    /// Whether the SYN waits for text.
    waits: bool,
    /// Whether the SYN brought a good cookie, so that the application has the connection and may answer in
    /// SYN-RECEIVED.
    is_open: bool,
    /// Whether the text of the SYN has been acknowledged, by whichever end received it.
    acknowledged: bool,
}

impl Connection {
    /// Makes a client's SYN carry `option`; call this before the SYN leaves. If `option` is a cookie, the SYN
    /// waits for text of the application, and takes along as much as a segment of `mss` octets holds. `mss`
    /// is the server's segment size, known from an earlier connection.
    pub fn open_fast(&mut self, option: FastOpen, mss: u16) {
        let has_cookie = !option.is_request();
        let room = self.config.clamp_mss(self.snd.mss_path.min(mss)).saturating_sub(OPTIONS_MAX);
        let early = Early { option: Some(option), room, waits: has_cookie, ..Early::default() };
        self.rare.get_or_insert_default().early = early;
        if has_cookie {
            self.pending.clear(Pending::SYN);
        }
    }

    /// Returns whether the SYN still waits for text (TCP_FASTOPEN_CONNECT).
    pub fn waits_for_text(&self) -> bool {
        self.text_wanted().is_some()
    }

    /// Returns how many octets of text the waiting SYN can take along; `None` if it does not wait.
    pub fn text_wanted(&self) -> Option<u16> {
        let early = self.rare.as_ref()?.early;
        early.waits.then_some(early.room)
    }

    /// Lets a waiting SYN leave, once there is text to send or the application has closed its side.
    pub(crate) fn release_syn(&mut self) {
        if self.snd.end() > 0 {
            self.send_waiting_syn();
        }
    }

    /// Lets a waiting SYN leave, although there is no text: the application has sent none, and waits for the
    /// connection.
    pub fn send_waiting_syn(&mut self) {
        if let Some(rare) = &mut self.rare
            && rare.early.waits
        {
            rare.early.waits = false;
            self.pending.set(Pending::SYN);
        }
    }

    // structure: accept_fast: a SYN with text has as many facts
    /// Opens a connection passively, in answer to a `syn` with a good cookie. This is like
    /// [`Connection::accept`], but the first `len` octets of the SYN's text are taken, as far as the window
    /// allows, and the application gets the connection at once. `option` is a newer cookie for the peer.
    #[allow(clippy::too_many_arguments)] // The arguments of `accept`, and two more.
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

    /// Continues a connection of a predecessor whose application has had it since its SYN.
    pub fn resume_fast(&mut self) {
        if self.state() == State::SynReceived {
            let acknowledged = self.rcv.nxt > 0;
            self.rare.get_or_insert_default().early =
                Early { is_open: true, acknowledged, ..Early::default() };
        }
    }

    /// Makes the SYN-ACK carry `option`, a cookie for the peer (RFC 7413 §4.1.3.1).
    pub fn grant_fast(&mut self, option: FastOpen) {
        self.rare.get_or_insert_default().early.option = Some(option);
    }

    /// Returns the largest segment that the peer takes, in octets, as its SYN says.
    pub fn mss_of_peer(&self) -> u16 {
        self.snd.mss_peer
    }

    /// Returns the Fast Open option of a SYN or SYN-ACK that leaves now; `None` if `again`, because a segment
    /// that is sent again goes without.
    pub fn fast_open_option(&self, again: bool) -> Option<FastOpen> {
        self.rare.as_ref().filter(|_| !again)?.early.option
    }

    /// Returns whether the application has the connection although the handshake is not complete.
    pub fn is_open_early(&self) -> bool {
        self.state() == State::SynReceived && self.rare.as_ref().is_some_and(|rare| rare.early.is_open)
    }

    /// Returns whether text of a SYN has been acknowledged (TCPI_OPT_SYN_DATA).
    pub(crate) fn has_fast_text(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.early.acknowledged)
    }

    /// Returns how many octets of text the SYN takes along when it leaves for the first time.
    pub(crate) fn text_on_syn(&self) -> i64 {
        let early = self.rare.as_ref().map(|rare| rare.early);
        // Many peers ignore the urgent pointer of a SYN: urgent text waits.
        early
            .filter(|_| self.urgent_end().is_none())
            .filter(|early| {
                self.state() == State::SynSent && early.option.is_some_and(|option| !option.is_request())
            })
            .map_or(0, |early| i64::from(early.room).min(self.snd.tail))
    }

    /// Handles a SYN-ACK that acknowledges everything before `ack`: the rest of the SYN's text is to be sent
    /// as if it had never been sent.
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

/// Returns the cookie that a server gives to the client of `tuple` (RFC 7413 §4.1.2). Only a host that
/// receives packets at the client's address learns it.
///
/// `key` is random, and the same for all servers that answer at one address. The cookie also depends on the
/// period of [`PERIOD_S`] seconds that `now` is in.
pub fn fast_open_cookie(key: &[u8; 16], tuple: &FourTuple, now: Instant) -> FastOpen {
    cookie_of(key, tuple, period(now))
}

/// Judges the option of a SYN. A cookie is good if this server made it in this period or in the one before.
/// If it is of the period before, the verdict has the present cookie for the client to use from now on.
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

/// A server's verdict on the Fast Open option of a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CookieVerdict {
    /// The option is a cookie of this server; perhaps there is a newer one.
    Good {
        /// The newer cookie, for the client to use from now on.
        newer: Option<FastOpen>,
    },
    /// The option is a request, or a cookie that is wrong or too old.
    Bad {
        /// The present cookie, for the client.
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

/// How long one cookie is given out, in seconds. A cookie is good for as long again.
const PERIOD_S: u64 = 12 * 3600;
/// The room for all options that a SYN may carry, in octets, as on Linux.
const OPTIONS_MAX: u16 = 40;

#[cfg(test)]
mod tests;

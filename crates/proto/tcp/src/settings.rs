//! What the application or an administrator may choose for a connection.

use core::num::NonZeroU64;

use atoll_base::Duration;

/// The choices of an application or an administrator for a connection. The defaults are those of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether small segments are sent at once, without Nagle's algorithm (TCP_NODELAY).
    pub nodelay: bool,
    /// Whether only full segments are sent, for 200 ms at most (TCP_CORK).
    pub cork: bool,
    /// When an idle peer is probed (SO_KEEPALIVE); `None` if never.
    pub keep_alive: Option<KeepAlive>,
    /// The congestion control algorithm (TCP_CONGESTION).
    pub congestion: Algorithm,
    /// The longest time for which sent data may stay unacknowledged before the connection is given up
    /// (TCP_USER_TIMEOUT); `None` means after the usual retries.
    pub user_timeout: Option<Duration>,
    /// Whether every segment is acknowledged at once (TCP_QUICKACK).
    pub quick_ack: bool,
    /// The upper bound of the segment size in both directions, in octets (TCP_MAXSEG).
    pub mss_max: Option<u16>,
    /// The size of the receive buffer in octets, from which the advertised window follows.
    pub receive_capacity: u32,
    /// The size to which the receive buffer may ever grow, in octets; together with `receive_capacity` it
    /// decides the window scale.
    pub receive_capacity_max: u32,
    /// The time for which a closed socket stays in FIN-WAIT-2 (TCP_LINGER2).
    pub linger2: Duration,
    /// The use of explicit congestion notification.
    pub ecn: EcnMode,
    /// The number of retransmissions of a SYN before the connection is given up (TCP_SYNCNT).
    pub syn_retries: u8,
    /// The most octets of text that leave per second (SO_MAX_PACING_RATE).
    pub pacing_rate_max: Option<NonZeroU64>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            nodelay: false,
            cork: false,
            keep_alive: None,
            congestion: Algorithm::Cubic,
            user_timeout: None,
            quick_ack: false,
            mss_max: None,
            receive_capacity: 65536,
            receive_capacity_max: 6 << 20,
            linger2: Duration::from_secs(60),
            ecn: EcnMode::Accept,
            syn_retries: 6,
            pacing_rate_max: None,
        }
    }
}

/// When an idle peer is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// The time of silence before the first probe (TCP_KEEPIDLE).
    pub idle: Duration,
    /// The time between probes (TCP_KEEPINTVL).
    pub interval: Duration,
    /// The number of unanswered probes after which the connection is given up (TCP_KEEPCNT).
    pub probes: u8,
}

impl Default for KeepAlive {
    fn default() -> KeepAlive {
        KeepAlive { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), probes: 9 }
    }
}

/// The end that may ask for explicit congestion notification (RFC 3168; the values of Linux's `tcp_ecn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EcnMode {
    /// Neither end may ask.
    Off,
    /// Both ends may ask, and our SYNs do.
    Request,
    /// Only the peer may ask.
    Accept,
    /// Both ends may ask, and our SYNs ask for accurate ECN (RFC 9768) first.
    RequestAccurate,
}

/// A congestion control algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// CUBIC (RFC 9438).
    Cubic,
    /// NewReno (RFC 5681).
    NewReno,
    /// BBRv3 (draft-ietf-ccwg-bbr).
    Bbr,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 3] = [Algorithm::Cubic, Algorithm::NewReno, Algorithm::Bbr];
}

/// The known properties of the path to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The largest segment text that the link allows without options, in octets: its MTU less 40.
    pub mss: u16,
}

/// The settings that a connection has to remember, in 24 octets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    keep_idle_ms: u32,
    keep_interval_ms: u32,
    user_timeout_ms: u32,
    linger2_ms: u32,
    mss_max: u16,
    keep_probes: u8,
    pub(crate) syn_retries: u8,
    pub(crate) nodelay: bool,
    pub(crate) cork: bool,
    pub(crate) quick_ack: bool,
    pub(crate) ecn: EcnMode,
}

impl Config {
    pub(crate) fn new(settings: &Settings) -> Config {
        let mut config = Config {
            keep_idle_ms: 0,
            keep_interval_ms: 0,
            user_timeout_ms: 0,
            linger2_ms: millis(settings.linger2),
            mss_max: settings.mss_max.unwrap_or(u16::MAX),
            keep_probes: 0,
            syn_retries: settings.syn_retries,
            nodelay: settings.nodelay,
            cork: settings.cork,
            quick_ack: settings.quick_ack,
            ecn: settings.ecn,
        };
        config.set_keep_alive(settings.keep_alive);
        config.set_user_timeout(settings.user_timeout);
        config
    }

    pub(crate) fn keep_alive(&self) -> Option<KeepAlive> {
        (self.keep_idle_ms != 0).then(|| KeepAlive {
            idle: Duration::from_millis(self.keep_idle_ms.into()),
            interval: Duration::from_millis(self.keep_interval_ms.into()),
            probes: self.keep_probes,
        })
    }

    pub(crate) fn set_keep_alive(&mut self, keep_alive: Option<KeepAlive>) {
        let Some(KeepAlive { idle, interval, probes }) = keep_alive else {
            self.keep_idle_ms = 0;
            return;
        };
        self.keep_idle_ms = millis(idle);
        self.keep_interval_ms = millis(interval);
        self.keep_probes = probes.max(1);
    }

    pub(crate) fn user_timeout(&self) -> Option<Duration> {
        (self.user_timeout_ms != 0).then(|| Duration::from_millis(self.user_timeout_ms.into()))
    }

    pub(crate) fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.user_timeout_ms = timeout.map_or(0, millis);
    }

    pub(crate) fn linger2(&self) -> Duration {
        Duration::from_millis(self.linger2_ms.into())
    }

    pub(crate) fn set_linger2(&mut self, linger2: Duration) {
        self.linger2_ms = millis(linger2);
    }

    pub(crate) fn mss_max(&self) -> Option<u16> {
        (self.mss_max != u16::MAX).then_some(self.mss_max)
    }

    pub(crate) fn set_mss_max(&mut self, mss: Option<u16>) {
        self.mss_max = mss.unwrap_or(u16::MAX);
    }

    /// Returns `mss` clamped to the limit that the application has set; the result is never below
    /// [`MSS_MIN`].
    pub(crate) fn clamp_mss(&self, mss: u16) -> u16 {
        mss.min(self.mss_max).max(MSS_MIN)
    }
}

/// Converts a duration to whole milliseconds, at least 1.
fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX).max(1)
}

/// The smallest segment size that is ever agreed to, in octets: Linux's `tcp_min_snd_mss`, which keeps room
/// for eight octets beside all options. It bounds the work that a peer can cause per octet (CVE-2019-11479).
pub(crate) const MSS_MIN: u16 = 48;

const _: () = assert!(size_of::<Config>() <= 24);

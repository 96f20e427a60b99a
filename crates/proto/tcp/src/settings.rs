//! What may the owner of a connection choose?

use core::num::NonZeroU64;

use atoll_base::Duration;

/// What an application or an administrator decides about a connection. The defaults are those of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Send small segments at once (TCP_NODELAY): no Nagle.
    pub nodelay: bool,
    /// Send full segments only, for 200 ms at most (TCP_CORK).
    pub cork: bool,
    /// Probe an idle peer (SO_KEEPALIVE).
    pub keep_alive: Option<KeepAlive>,
    /// Congestion control (TCP_CONGESTION).
    pub congestion: Algorithm,
    /// Give up when sent data stays unacknowledged for this long (TCP_USER_TIMEOUT); `None`: after the usual
    /// retries.
    pub user_timeout: Option<Duration>,
    /// Acknowledge every segment at once (TCP_QUICKACK).
    pub quick_ack: bool,
    /// Upper bound of the segment size both ways (TCP_MAXSEG).
    pub mss_max: Option<u16>,
    /// Bytes of receive buffer: the basis of the advertised window.
    pub receive_capacity: u32,
    /// Bytes to which the receive buffer may ever grow; together with `receive_capacity` it decides the
    /// window scale.
    pub receive_capacity_max: u32,
    /// How long a closed socket stays in FIN-WAIT-2 (TCP_LINGER2).
    pub linger2: Duration,
    /// Explicit congestion notification.
    pub ecn: EcnMode,
    /// SYNs sent again before giving up (TCP_SYNCNT).
    pub syn_retries: u8,
    /// Octets per second at which text leaves at most (SO_MAX_PACING_RATE).
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
    /// Silence before the first probe (TCP_KEEPIDLE).
    pub idle: Duration,
    /// Time between probes (TCP_KEEPINTVL).
    pub interval: Duration,
    /// Unanswered probes before giving up (TCP_KEEPCNT).
    pub probes: u8,
}

impl Default for KeepAlive {
    fn default() -> KeepAlive {
        KeepAlive { idle: Duration::from_secs(7200), interval: Duration::from_secs(75), probes: 9 }
    }
}

/// Who may begin with explicit congestion notification (RFC 3168; the values of Linux's `tcp_ecn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EcnMode {
    /// Nobody.
    Off,
    /// Both ends: our SYNs ask for it.
    Request,
    /// The peer.
    Accept,
    /// Both ends, and our SYNs ask for accurate ECN (RFC 9768) first.
    RequestAccurate,
}

/// A congestion control algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// RFC 9438.
    Cubic,
    /// RFC 5681.
    NewReno,
    /// draft-ietf-ccwg-bbr: BBRv3.
    Bbr,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 3] = [Algorithm::Cubic, Algorithm::NewReno, Algorithm::Bbr];
}

/// What is known about the way to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Largest segment text the link allows without options: its MTU less 40.
    pub mss: u16,
}

/// The settings that a connection has to remember, at 24 octets.
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

    /// `mss` within the bounds that the owner has set; never below [`MSS_MIN`].
    pub(crate) fn clamp_mss(&self, mss: u16) -> u16 {
        mss.min(self.mss_max).max(MSS_MIN)
    }
}

/// Whole milliseconds, at least 1.
fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX).max(1)
}

/// Segments smaller than this are never agreed to: Linux's `tcp_min_snd_mss`, which keeps room for eight
/// octets beside all options. It bounds the work that a peer can cause per octet (CVE-2019-11479).
pub(crate) const MSS_MIN: u16 = 48;

const _: () = assert!(size_of::<Config>() <= 24);

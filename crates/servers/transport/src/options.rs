//! Sets the options of sockets: tcp(7), socket(7), ip(7).

use core::num::NonZeroU64;

use atoll_base::{Duration, Instant};
use atoll_ipc::{Device, SocketOption};
use atoll_tcp::{Algorithm, Settings};

use crate::config::Config;
use crate::entry::{Entry, Flags};
use crate::keep::Keep;

/// The options that a listener hands on to the connections that it accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inherited {
    pub(crate) settings: Settings,
    pub(crate) keep: Keep,
    pub(crate) ttl: u8,
    pub(crate) tos: u8,
    /// The value of `IPV6_UNICAST_HOPS`, if set.
    pub(crate) hops: Option<u8>,
    /// The value of `IPV6_TCLASS`.
    pub(crate) class: u8,
    /// The values of `IP_MINTTL` and `IPV6_MINHOPCOUNT`.
    pub(crate) hops_min: [u8; 2],
    /// The value of `SO_SNDBUF`, if set.
    pub(crate) send_limit: Option<u32>,
    /// The value of `TCP_NOTSENT_LOWAT`; 0 means none.
    pub(crate) unsent_low: u32,
    /// Whether the sizes of send buffers and receive buffers stay what they are.
    pub(crate) fixed_send: bool,
    pub(crate) fixed_receive: bool,
    /// The value of `TCP_FASTOPEN`: how many connections the application may have before their handshakes are
    /// complete.
    pub(crate) fast_open: u32,
}

/// The smallest size of buffers, near those of Linux (`SOCK_MIN_SNDBUF`, `SOCK_MIN_RCVBUF`).
const BUFFER_MIN: u32 = 4096;
/// The bits of `SO_BUF_LOCK` (linux/socket.h).
const SEND_LOCK: u32 = 1;
const RECEIVE_LOCK: u32 = 2;
/// The value of MAX_TCP_SYNCNT of Linux.
const SYN_RETRIES_MAX: u32 = 127;

impl Inherited {
    pub(crate) fn new(config: &Config) -> Inherited {
        let (receive_capacity, receive_capacity_max) = config.receive_capacity;
        Inherited {
            settings: Settings {
                receive_capacity,
                receive_capacity_max,
                ecn: config.ecn,
                ..Settings::default()
            },
            keep: Keep::default(),
            ttl: atoll_ip::TTL,
            tos: 0,
            hops: None,
            class: 0,
            hops_min: [0; 2],
            send_limit: None,
            unsent_low: 0,
            fixed_send: false,
            fixed_receive: false,
            fast_open: 0,
        }
    }

    /// Returns the least TTL, or the least hop limit, of segments of a family.
    #[inline]
    pub(crate) fn hops_min(&self, is_v4: bool) -> u8 {
        self.hops_min[usize::from(!is_v4)]
    }

    /// Sets an option. Returns `false` if the value is out of range or means nothing here.
    pub(crate) fn set(&mut self, config: &Config, option: SocketOption, value: u32) -> bool {
        let settings = &mut self.settings;
        match option {
            SocketOption::NoDelay => settings.nodelay = value != 0,
            SocketOption::Cork => settings.cork = value != 0,
            SocketOption::UserTimeout => settings.user_timeout = user_timeout(value),
            SocketOption::QuickAck => settings.quick_ack = value != 0,
            SocketOption::MaxSegment => settings.mss_max = u16::try_from(value).ok().filter(|mss| *mss != 0),
            SocketOption::ReceiveBuffer => {
                settings.receive_capacity = value.clamp(BUFFER_MIN, config.receive_capacity.1);
                settings.receive_capacity_max = settings.receive_capacity;
                self.fixed_receive = true;
            }
            SocketOption::SendBuffer => {
                self.send_limit = Some(value.clamp(BUFFER_MIN, config.send_limit.1));
                self.fixed_send = true;
            }
            SocketOption::BufferLock => {
                (self.fixed_send, self.fixed_receive) = (value & SEND_LOCK != 0, value & RECEIVE_LOCK != 0);
                let capacity_max =
                    if self.fixed_receive { settings.receive_capacity } else { config.receive_capacity.1 };
                settings.receive_capacity_max = capacity_max;
            }
            SocketOption::Congestion => match algorithm(value) {
                Some(algorithm) => settings.congestion = algorithm,
                None => return false,
            },
            SocketOption::Linger2 => settings.linger2 = linger2(value),
            SocketOption::SynCount if (1..=SYN_RETRIES_MAX).contains(&value) => {
                settings.syn_retries = value as u8
            }
            SocketOption::UnsentLow => self.unsent_low = unsent_low(value),
            SocketOption::MaxPacingRate => settings.pacing_rate_max = pacing_rate(value),
            SocketOption::FastOpen => self.fast_open = value.min(config.backlog_max),
            SocketOption::TimeToLive if (1..=255).contains(&value) => self.ttl = value as u8,
            SocketOption::TypeOfService => self.tos = value as u8,
            SocketOption::UnicastHops => self.hops = u8::try_from(value).ok(),
            SocketOption::TrafficClass => self.class = value as u8,
            SocketOption::MinTtl if value <= 255 => self.hops_min[0] = value as u8,
            SocketOption::MinHopCount if value <= 255 => self.hops_min[1] = value as u8,
            SocketOption::DeferAccept
            | SocketOption::SynCount
            | SocketOption::TimeToLive
            | SocketOption::MinTtl
            | SocketOption::MinHopCount
            | SocketOption::MtuDiscover
            | SocketOption::MtuDiscoverV6
            | SocketOption::DontFragmentV6
            | SocketOption::MtuV6 => {
                return false;
            }
            _ => {
                let taken = self.keep.set(option, value);
                self.settings.keep_alive = self.keep.settings();
                return taken;
            }
        }
        true
    }
}

impl Entry {
    /// Gives a new connection the options of its listener. `hop_limit` is that of IPv6 packets, if the
    /// listener has none.
    pub(crate) fn inherit(&mut self, config: &Config, inherited: &Inherited, hop_limit: u8) {
        self.keep = inherited.keep;
        self.next_hop.set_marks(match self.name.is_v4() {
            true => (inherited.ttl, inherited.tos),
            false => (inherited.hops.unwrap_or(hop_limit), inherited.class),
        });
        self.send_limit = inherited.send_limit.unwrap_or(config.send_limit.0);
        self.unsent_low = inherited.unsent_low;
        self.hops_min = inherited.hops_min(self.name.is_v4());
        self.receive_capacity = inherited.settings.receive_capacity;
        if inherited.fixed_send {
            self.flags.insert(Flags::FIXED_SEND);
        }
        if inherited.fixed_receive {
            self.flags.insert(Flags::FIXED_RECEIVE);
        }
    }

    /// Sets an option. Returns `false` if the value is out of range or means nothing here. The caller flushes
    /// afterwards.
    pub(crate) fn set_option(
        &mut self,
        now: Instant,
        config: &Config,
        option: SocketOption,
        value: u32,
    ) -> bool {
        self.flags.insert(Flags::RECORD);
        let connection = &mut self.connection;
        match option {
            SocketOption::NoDelay => connection.set_nodelay(value != 0),
            SocketOption::Cork => connection.set_cork(value != 0),
            SocketOption::UserTimeout => connection.set_user_timeout(user_timeout(value)),
            SocketOption::QuickAck => connection.set_quick_ack(value != 0),
            SocketOption::ReceiveBuffer => {
                self.receive_capacity = value.clamp(BUFFER_MIN, config.receive_capacity.1);
                self.flags.insert(Flags::FIXED_RECEIVE);
                connection.set_receive_capacity(self.receive_capacity);
            }
            SocketOption::SendBuffer => {
                self.send_limit = value.clamp(BUFFER_MIN, config.send_limit.1);
                self.flags.insert(Flags::FIXED_SEND | Flags::LIMIT);
            }
            SocketOption::BufferLock => {
                self.flags.set(Flags::FIXED_SEND, value & SEND_LOCK != 0);
                self.flags.set(Flags::FIXED_RECEIVE, value & RECEIVE_LOCK != 0);
            }
            SocketOption::Congestion => match algorithm(value) {
                Some(algorithm) => connection.set_congestion(algorithm),
                None => return false,
            },
            SocketOption::Linger2 => connection.set_linger2(linger2(value)),
            SocketOption::SynCount if (1..=SYN_RETRIES_MAX).contains(&value) => {
                connection.set_syn_retries(value as u8)
            }
            SocketOption::UnsentLow => self.set_unsent_low(unsent_low(value)),
            SocketOption::MaxPacingRate => connection.set_pacing_rate_max(now, pacing_rate(value)),
            SocketOption::TimeToLive if (1..=255).contains(&value) => self.set_hops(value as u8, Family::V4),
            SocketOption::TypeOfService => self.set_class(value as u8, Family::V4),
            SocketOption::UnicastHops if value <= 255 => self.set_hops(value as u8, Family::V6),
            SocketOption::TrafficClass => self.set_class(value as u8, Family::V6),
            SocketOption::MinTtl => return self.set_hops_min(value, Family::V4),
            SocketOption::MinHopCount => return self.set_hops_min(value, Family::V6),
            SocketOption::MaxSegment => {
                connection.set_mss_max(u16::try_from(value).ok().filter(|mss| *mss != 0));
            }
            SocketOption::Device => match Device::of_value(value) {
                Some(device) => self.set_device(device),
                None => return false,
            },
            SocketOption::DeferAccept
            | SocketOption::FastOpen
            | SocketOption::SynCount
            | SocketOption::TimeToLive
            | SocketOption::UnicastHops
            | SocketOption::MtuDiscover
            | SocketOption::MtuDiscoverV6
            | SocketOption::DontFragmentV6
            | SocketOption::MtuV6 => {
                return false;
            }
            _ => {
                if !self.keep.set(option, value) {
                    return false;
                }
                connection.set_keep_alive(now, self.keep.settings());
            }
        }
        true
    }
}

/// The family whose header an option is about: a socket for both families has options for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Entry {
    fn family(&self) -> Family {
        if self.name.is_v4() { Family::V4 } else { Family::V6 }
    }

    fn set_hops(&mut self, hops: u8, of: Family) {
        if of == self.family() {
            self.next_hop.set_marks((hops, self.next_hop.marks().1));
        }
    }

    fn set_hops_min(&mut self, hops: u32, of: Family) -> bool {
        let Ok(hops) = u8::try_from(hops) else { return false };
        if of == self.family() {
            self.hops_min = hops;
        }
        true
    }

    fn set_class(&mut self, class: u8, of: Family) {
        if of == self.family() {
            self.next_hop.set_marks((self.next_hop.marks().0, class));
        }
    }
}

/// Returns the limit: `u32::MAX`, which is none, becomes 0.
const fn unsent_low(octets: u32) -> u32 {
    if octets == u32::MAX { 0 } else { octets }
}

/// Returns the rate in octets per second. As on Linux, 0 paces nothing.
fn pacing_rate(rate: u32) -> Option<NonZeroU64> {
    NonZeroU64::new(rate.into()).filter(|_| rate != u32::MAX)
}

const fn user_timeout(millis: u32) -> Option<Duration> {
    if millis == 0 { None } else { Some(Duration::from_millis(millis as u64)) }
}

const fn algorithm(value: u32) -> Option<Algorithm> {
    match value {
        0 => Some(Algorithm::Cubic),
        1 => Some(Algorithm::NewReno),
        2 => Some(Algorithm::Bbr),
        _ => None,
    }
}

/// Returns the time of TCP_LINGER2 (tcp(7)): 0 is the default of the system, and no more than 120 s are
/// allowed. A negative value (no time at all) arrives as a large one.
fn linger2(seconds: u32) -> Duration {
    match seconds {
        0 => Settings::default().linger2,
        1..=120 => Duration::from_secs(seconds.into()),
        _ => Duration::from_millis(1),
    }
}

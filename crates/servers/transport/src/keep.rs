//! Keep-alive: when an idle connection is probed. See tcp(7): TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT.

use atoll_base::Duration;
use atoll_ipc::SocketOption;
use atoll_tcp::KeepAlive;

/// `SO_KEEPALIVE` with its parameters, which are set independently of it. Each connection has it, so it is
/// kept in five octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keep {
    /// The number of probes, and [`ON`].
    probes: u8,
    /// The idle time before the first probe, in seconds.
    idle: [u8; 2],
    /// The time between probes, in seconds.
    interval: [u8; 2],
}

/// The bit beside the number of probes that says that keep-alive is on.
const ON: u8 = 1 << 7;
const _: () = assert!(KEEP_PROBES_MAX < ON as u32);

/// Linux's upper bounds of TCP_KEEPIDLE and TCP_KEEPINTVL in seconds, and of TCP_KEEPCNT.
const KEEP_SECONDS_MAX: u32 = 32_767;
const KEEP_PROBES_MAX: u32 = 127;

impl Default for Keep {
    fn default() -> Keep {
        Keep::new(false, 9, 7200, 75)
    }
}

impl Keep {
    /// Creates keep-alive, `on` or off, with a number of probes and times in seconds.
    pub(crate) const fn new(on: bool, probes: u8, idle: u16, interval: u16) -> Keep {
        let probes = probes & !ON | if on { ON } else { 0 };
        Keep { probes, idle: idle.to_ne_bytes(), interval: interval.to_ne_bytes() }
    }

    /// Returns whether keep-alive is on.
    pub(crate) const fn is_on(self) -> bool {
        self.probes & ON != 0
    }

    /// Returns the number of probes.
    pub(crate) const fn probes(self) -> u8 {
        self.probes & !ON
    }

    /// Returns the idle time before the first probe, in seconds.
    pub(crate) const fn idle(self) -> u16 {
        u16::from_ne_bytes(self.idle)
    }

    /// Returns the time between probes, in seconds.
    pub(crate) const fn interval(self) -> u16 {
        u16::from_ne_bytes(self.interval)
    }

    /// Returns the settings for the TCB; `None` if keep-alive is off.
    pub(crate) fn settings(self) -> Option<KeepAlive> {
        self.is_on().then(|| KeepAlive {
            idle: Duration::from_secs(self.idle().into()),
            interval: Duration::from_secs(self.interval().into()),
            probes: self.probes(),
        })
    }

    /// Sets an option of keep-alive. Returns `false` if it is another option, or the value is out of range.
    pub(crate) fn set(&mut self, option: SocketOption, value: u32) -> bool {
        let seconds = u16::try_from(value).ok().filter(|s| (1..=KEEP_SECONDS_MAX).contains(&u32::from(*s)));
        match (option, seconds) {
            (SocketOption::KeepAlive, _) => {
                self.probes = self.probes() | if value != 0 { ON } else { 0 };
            }
            (SocketOption::KeepIdle, Some(seconds)) => self.idle = seconds.to_ne_bytes(),
            (SocketOption::KeepInterval, Some(seconds)) => self.interval = seconds.to_ne_bytes(),
            (SocketOption::KeepCount, _) if (1..=KEEP_PROBES_MAX).contains(&value) => {
                self.probes = self.probes & ON | value as u8;
            }
            _ => return false,
        }
        true
    }
}

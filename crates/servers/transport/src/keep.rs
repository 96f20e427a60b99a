//! Keep-alive: when an idle connection is probed. See tcp(7): TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT.

use atoll_base::Duration;
use atoll_ipc::SocketOption;
use atoll_tcp::KeepAlive;

/// `SO_KEEPALIVE` with its parameters, which are set independently of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keep {
    pub(crate) on: bool,
    pub(crate) probes: u8,
    /// The idle time before the first probe, in seconds.
    pub(crate) idle: u16,
    /// The time between probes, in seconds.
    pub(crate) interval: u16,
}

/// Linux's upper bounds of TCP_KEEPIDLE and TCP_KEEPINTVL in seconds, and of TCP_KEEPCNT.
const KEEP_SECONDS_MAX: u32 = 32_767;
const KEEP_PROBES_MAX: u32 = 127;

impl Default for Keep {
    fn default() -> Keep {
        Keep { on: false, probes: 9, idle: 7200, interval: 75 }
    }
}

impl Keep {
    /// Returns the settings for the TCB; `None` if keep-alive is off.
    pub(crate) fn settings(self) -> Option<KeepAlive> {
        self.on.then(|| KeepAlive {
            idle: Duration::from_secs(self.idle.into()),
            interval: Duration::from_secs(self.interval.into()),
            probes: self.probes,
        })
    }

    /// Sets an option of keep-alive. Returns `false` if it is another option, or the value is out of range.
    pub(crate) fn set(&mut self, option: SocketOption, value: u32) -> bool {
        let seconds = u16::try_from(value).ok().filter(|s| (1..=KEEP_SECONDS_MAX).contains(&u32::from(*s)));
        match (option, seconds) {
            (SocketOption::KeepAlive, _) => self.on = value != 0,
            (SocketOption::KeepIdle, Some(seconds)) => self.idle = seconds,
            (SocketOption::KeepInterval, Some(seconds)) => self.interval = seconds,
            (SocketOption::KeepCount, _) if (1..=KEEP_PROBES_MAX).contains(&value) => {
                self.probes = value as u8
            }
            _ => return false,
        }
        true
    }
}

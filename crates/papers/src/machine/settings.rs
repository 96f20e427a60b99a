//! The settings of a simulated experiment.

use std::time::Duration;

use atoll_ipc::balance::Balance;

use crate::configuration::Configuration;
use crate::costs::Costs;

/// Everything that decides a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The seed of all that is random.
    pub seed: u64,
    /// The servers, of which each has a core.
    pub configuration: Configuration,
    /// The number of applications that accept, of which each has a core. Application `n` is at home at
    /// connection manager `n` modulo their number.
    pub apps: usize,
    /// The rules by which connection managers choose.
    pub balance: Balance,
    /// The handshake by which applications come to connections.
    pub handshake: Handshake,
    /// The load: where connections come from.
    pub load: Load,
    /// The number of requests on each connection.
    pub requests: u32,
    /// The web server's own time for a page; `None` for the measured one.
    pub app_work: Option<Duration>,
    /// The times at which applications are slow.
    pub delays: Vec<Delay>,
    /// The one-way delay between clients and the machine.
    pub wire: Duration,
    /// The number of cores of a socket; between sockets messages cost [`Settings::off_socket`] times as much.
    pub cores_per_socket: usize,
    /// The factor by which messages and cache lines cost more between sockets.
    pub off_socket: f64,
    /// The warm-up, in which nothing is counted.
    pub warm_up: Duration,
    /// The time that is counted.
    pub duration: Duration,
    /// The period at which estimates are noted; zero for never.
    pub sample_every: Duration,
    /// How idle cores wait; `None` if they look for work all the time, and need no wake-up.
    pub waiting: Option<Waiting>,
}

/// The way in which idle cores wait (N7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The longest time for which cores look for work before they sleep.
    pub spin: Duration,
    /// Whether cores look for work even if they serve many conversations at a time.
    pub always: bool,
}

impl Default for Waiting {
    /// Returns the waiting of servers and programs (`wait.spin_us`). They do not look for work where there
    /// are many conversations, because a process that sleeps finds a batch.
    fn default() -> Waiting {
        Waiting { spin: Duration::from_micros(100), always: false }
    }
}

/// The handshakes by which applications come to connections (P4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// Applications are offered connections.
    Speculative,
    /// Applications call accept, which asks their home's connection manager, and waits.
    Accept,
    /// Applications call select, which asks whether there is a connection, and then accept.
    Select,
}

/// The load: where connections come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// A number of clients, each of which opens its next connection as soon as it has the last page.
    Closed(u32),
    /// A number of connections a second, evenly, whatever happens to them.
    Constant(u32),
}

/// A time in which an application is slow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Delay {
    /// The number of the application.
    pub app: usize,
    /// The beginning, after the warm-up.
    pub from: Duration,
    /// The end, after the warm-up.
    pub until: Duration,
    /// The delay of each request, in which the application does nothing else.
    pub by: Duration,
}

impl Settings {
    /// Returns the web server's own time for a page, in nanoseconds.
    pub(crate) fn work(&self, costs: &Costs) -> f64 {
        self.app_work.map_or(costs.app_work, |work| work.as_nanos() as f64)
    }

    /// Returns the delay of an application `now` nanoseconds after the warm-up, in nanoseconds.
    pub(crate) fn delay(&self, app: usize, now: u64, is_warm: bool) -> u64 {
        let is_now =
            |delay: &&Delay| (delay.from.as_nanos()..delay.until.as_nanos()).contains(&u128::from(now));
        let delays = self.delays.iter().filter(|delay| delay.app == app && is_warm);
        delays.filter(is_now).map(|delay| delay.by.as_nanos() as u64).sum()
    }

    /// Returns the paper's usual set-up: `n` combined servers with an application each, all of them saturated
    /// by short connections.
    pub fn saturated(n: usize) -> Settings {
        Settings {
            seed: 1,
            configuration: Configuration::combined(n),
            apps: n,
            balance: Balance::new(),
            handshake: Handshake::Speculative,
            load: Load::Closed(64 * n as u32),
            requests: 1,
            app_work: None,
            delays: Vec::new(),
            wire: Duration::from_micros(10),
            cores_per_socket: 10,
            off_socket: OFF_SOCKET,
            warm_up: Duration::from_millis(20),
            duration: Duration::from_millis(50),
            sample_every: Duration::ZERO,
            waiting: None,
        }
    }
}

/// The ratio from Pika's Table 2: synchronous messages take 1898 cycles between sockets and 597 on one. The
/// machine at hand has one socket.
pub const OFF_SOCKET: f64 = 1898.0 / 597.0;

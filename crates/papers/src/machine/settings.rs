//! What is an experiment made of?

use std::time::Duration;

use atoll_ipc::balance::Balance;

use crate::configuration::Configuration;
use crate::costs::Costs;

/// Everything that decides a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Decides all that is random.
    pub seed: u64,
    /// The servers, a core each.
    pub configuration: Configuration,
    /// Applications that accept, a core each; application `n` is at home at connection manager `n` modulo
    /// their number.
    pub apps: usize,
    /// How connection managers choose.
    pub balance: Balance,
    /// How applications come to connections.
    pub handshake: Handshake,
    /// Where connections come from.
    pub load: Load,
    /// Requests on each connection.
    pub requests: u32,
    /// What the web server does for a page by itself; `None`: what was measured.
    pub app_work: Option<Duration>,
    /// When applications are slow.
    pub delays: Vec<Delay>,
    /// One way between clients and the machine.
    pub wire: Duration,
    /// Cores that lie together; between others messages cost [`Settings::off_socket`] times as much.
    pub cores_per_socket: usize,
    /// By how much messages and cache lines cost more between sockets.
    pub off_socket: f64,
    /// Before anything is counted.
    pub warm_up: Duration,
    /// What is counted.
    pub duration: Duration,
    /// How often the estimates are noted; zero: never.
    pub sample_every: Duration,
    /// How cores wait that have nothing to do; `None`: they look all the time, and nobody has to be woken.
    pub waiting: Option<Waiting>,
}

/// How cores wait that have nothing to do (N7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// For how long they look for work at most before they sleep.
    pub spin: Duration,
    /// Whether they do so although they serve many at a time.
    pub always: bool,
}

impl Default for Waiting {
    /// As servers and programs do (`wait.spin_us`): not where there are many conversations, because whoever
    /// sleeps finds a batch.
    fn default() -> Waiting {
        Waiting { spin: Duration::from_micros(100), always: false }
    }
}

/// How applications come to connections (P4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// They are offered some.
    Speculative,
    /// They call accept, which asks the connection manager where they are at home, and waits.
    Accept,
    /// They call select, which asks whether there is one, and then accept.
    Select,
}

/// Where connections come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// So many clients, each of which opens its next connection as soon as it has the last page.
    Closed(u32),
    /// So many connections a second, evenly, whatever happens to them.
    Constant(u32),
}

/// An application takes longer for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Delay {
    /// Which application.
    pub app: usize,
    /// From when, after the warm-up.
    pub from: Duration,
    /// Until when.
    pub until: Duration,
    /// By how much for each request; meanwhile the application does nothing else.
    pub by: Duration,
}

impl Settings {
    /// What the web server does for a page by itself, in nanoseconds.
    pub(crate) fn work(&self, costs: &Costs) -> f64 {
        self.app_work.map_or(costs.app_work, |work| work.as_nanos() as f64)
    }

    /// By how much an application is slow `now` nanoseconds after the warm-up, in nanoseconds.
    pub(crate) fn delay(&self, app: usize, now: u64, is_warm: bool) -> u64 {
        let is_now =
            |delay: &&Delay| (delay.from.as_nanos()..delay.until.as_nanos()).contains(&u128::from(now));
        let delays = self.delays.iter().filter(|delay| delay.app == app && is_warm);
        delays.filter(is_now).map(|delay| delay.by.as_nanos() as u64).sum()
    }

    /// `n` combined servers with an application each, all of them saturated by short connections: the paper's
    /// usual set-up.
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

/// Pika's Table 2: synchronous messages take 1898 cycles between sockets and 597 on one. The machine at hand
/// has one socket.
pub const OFF_SOCKET: f64 = 1898.0 / 597.0;

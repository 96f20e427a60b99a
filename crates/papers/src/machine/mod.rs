//! A machine of many cores that send each other messages, in virtual time. It shows what the real machine
//! would do if it had more than two cores.
//!
//! ```text
//!   clients --frames--> queue of a link server                 each box is a process on a core of its own
//!                         | LS | -- | IP, TS | -- | CM | <--offers--> other CMs   (the real ConnMgr)
//!                                       |
//!                        CONNECTION-AVAILABLE, claim, text, close
//!                                       |
//!                                 application
//! ```
//! Components of one process call each other, those of different processes send messages. The connection
//! managers are the real ones, with the real balancing; what takes place of everything else is its
//! [cost](crate::Costs), measured on the real machine. A core takes what has arrived as a batch; a server
//! lets everything out at the batch's end, as the real one does, an application as it comes. All cores look
//! for work all the time, unless the experiment is about waiting (`waiting`).
//!
//! One seed decides the whole run.

mod app;
mod client;
mod connections;
mod cores;
mod items;
mod report;
mod server;
mod settings;
mod waiting;

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use atoll_base::{Instant, Rng};

pub use report::{Assigned, Purpose, Report, Service, percentile};
pub use settings::{Delay, Handshake, Load, Settings, Waiting};

use crate::costs::Costs;
use app::App;
use connections::Connections;
use cores::{Core, Origin};
use items::Item;
use server::Server;
use waiting::Wait;

/// The machine.
pub struct Machine {
    settings: Settings,
    costs: Costs,
    rng: Rng,
    /// The current time in nanoseconds.
    now: u64,
    began: u64,
    serial: u64,
    events: BinaryHeap<Reverse<Event>>,
    cores: Vec<Core>,
    servers: Vec<Server>,
    apps: Vec<App>,
    connections: Connections,
    report: Report,
    /// The places of TS, IP, LS and CM of each number.
    ts: Vec<usize>,
    ip: Vec<usize>,
    ls: Vec<usize>,
    cm: Vec<usize>,
}

/// An event to come. Events are in the order of time, and at the same moment in the order in which they were
/// decided.
#[derive(Debug)]
struct Event {
    at: u64,
    serial: u64,
    what: What,
}

#[derive(Debug)]
enum What {
    /// An item reaches a core.
    Arrive { core: usize, from: Origin, item: Item },
    /// A core has finished its batch.
    Free { core: usize },
    /// A client opens a connection.
    Open { client: u32 },
    /// A frame reaches a client.
    Client { connection: u32, reply: items::Reply },
}

/// The time at which the simulation begins, in nanoseconds. It is not 0, which means "never" in some places.
const BEGAN: u64 = 1_000_000;

impl Ord for Event {
    fn cmp(&self, other: &Event) -> Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

impl Machine {
    /// Creates a machine in which nothing has happened yet.
    pub fn new(settings: Settings, costs: Costs) -> Machine {
        let roles = settings.configuration.servers();
        let of = |kind: fn(&crate::configuration::Roles) -> Option<usize>| -> Vec<usize> {
            (0..roles.len()).filter(|&at| kind(&roles[at]).is_some()).collect()
        };
        let (ts, ip) = (of(|roles| roles.ts), of(|roles| roles.ip));
        let (ls, cm) = (of(|roles| roles.ls), of(|roles| roles.cm));
        let apps = settings.apps;
        // Server n and application n lie side by side; servers that have no application come last.
        let place = |core: usize| match core.checked_sub(roles.len()) {
            None if core < apps => 2 * core,
            None => apps + core,
            Some(app) if app < roles.len() => 2 * app + 1,
            Some(app) => roles.len() + app,
        };
        let socket = |core| place(core) / settings.cores_per_socket.max(1);
        let count = roles.len() + apps;
        let wait = || settings.waiting.as_ref().map(|waiting| Wait::new(waiting, BEGAN));
        let mut machine = Machine {
            rng: Rng::new(settings.seed),
            now: BEGAN,
            began: BEGAN,
            serial: 0,
            events: BinaryHeap::new(),
            cores: (0..count).map(|core| Core::new(socket(core), wait())).collect(),
            servers: roles.iter().map(|roles| Server::new(*roles, &settings, cm.len())).collect(),
            apps: (0..apps).map(|_| App::default()).collect(),
            connections: Connections::default(),
            report: Report::new(count, roles.len()),
            ts,
            ip,
            ls,
            cm,
            costs,
            settings,
        };
        machine.listen();
        machine.start_clients();
        machine
    }

    /// Runs to the end of the experiment, and reports what happened after the warm-up.
    pub fn run(mut self) -> Report {
        let warm = self.now + self.settings.warm_up.as_nanos() as u64;
        let end = warm + self.settings.duration.as_nanos() as u64;
        let mut is_warm = false;
        let mut sample_at = warm;
        while let Some(Reverse(event)) = self.events.pop() {
            if event.at >= end {
                break;
            }
            if !is_warm && event.at >= warm {
                is_warm = true;
                self.report.begin(warm);
            }
            while self.settings.sample_every.as_nanos() > 0 && is_warm && sample_at <= event.at {
                self.now = sample_at;
                self.sample_estimates();
                sample_at += self.settings.sample_every.as_nanos() as u64;
            }
            self.now = event.at;
            match event.what {
                What::Arrive { core, from, item } => self.arrive(core, from, item),
                What::Free { core } => self.free(core),
                What::Open { client } => self.open(client),
                What::Client { connection, reply } => self.handle_reply(connection, reply),
            }
        }
        self.end_all_waits(end);
        self.report.end(end);
        for connection in self.connections.open_ones() {
            self.report.unfinished(connection, end);
        }
        self.count_messages();
        self.report
    }

    fn at(&mut self, at: u64, what: What) {
        self.serial += 1;
        self.events.push(Reverse(Event { at, serial: self.serial, what }));
    }

    fn instant(at: u64) -> Instant {
        Instant::from_nanos(at)
    }
}

#[cfg(test)]
mod tests;

//! The results of a run.

use std::time::Duration;

use super::connections::Connection;

/// The purposes on which a core spends its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Handling frames.
    Link,
    /// Handling segments, connections and slots.
    Tcp,
    /// Giving verdicts and making choices.
    Cm,
    /// Exchanging offers and reports between connection managers.
    Peer,
    /// Moving rings and cache lines between processes.
    Message,
    /// Polling empty rings.
    Poll,
    /// Running the application and its library.
    App,
    /// Handling packets, where IP is in another process than the transport server.
    Ip,
    /// Waiting for work without sleeping.
    Spin,
    /// The kernel's work of sleeping, being woken and waking others.
    Wake,
}

/// The service of a connection, from its first offer to its close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// The moment of its close in nanoseconds of virtual time.
    pub closed_at: u64,
    /// The number of the application that served it.
    pub app: usize,
    /// The time that it took, in nanoseconds.
    pub nanos: u64,
}

/// The first assignment of a connection to an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The moment of the assignment in nanoseconds of virtual time.
    pub at: u64,
    /// The application that got it.
    pub app: usize,
    /// The connection manager that chose.
    pub cm: usize,
    /// The connection manager that is the application's home.
    pub home: usize,
}

/// Everything that was counted after the warm-up. Times are nanoseconds since its end.
#[derive(Clone, Debug, Default)]
pub struct Report {
    began: u64,
    ended: u64,
    is_on: bool,
    servers: usize,
    spent: Vec<[u64; 10]>,
    /// The number of connections that clients began.
    pub opened: u64,
    /// The number of connections that clients have seen to the end.
    pub finished: u64,
    /// The number of pages sent.
    pub pages: u64,
    /// The number of SYNs that found a queue full.
    pub refused: u64,
    /// The number of offers that were not claimed in time.
    pub timed_out: u64,
    /// The service of each connection that was closed.
    pub services: Vec<Service>,
    /// The latencies from the client's SYN to its page, in nanoseconds.
    pub latencies: Vec<u64>,
    /// The first assignments of connections.
    pub assigned: Vec<Assigned>,
    /// The estimates of homes for their applications: moment, application, microseconds.
    pub estimates: Vec<(u64, usize, u64)>,
    /// The nanoseconds that each connection waited for its connection manager, both questions together.
    pub cm_waits: Vec<u64>,
    /// The number of offers that all connection managers received, from the start on.
    pub offers_heard: u64,
    /// The number of reports of service times that all connection managers received, from the start on.
    pub reports_heard: u64,
    /// The number of connections given to an application that another connection manager had offered, from
    /// the start on.
    pub offers_taken: u64,
}

impl Report {
    pub(crate) fn new(cores: usize, servers: usize) -> Report {
        Report { spent: vec![[0; 10]; cores], servers, ..Report::default() }
    }

    pub(crate) fn begin(&mut self, at: u64) {
        (self.is_on, self.began) = (true, at);
        (self.refused, self.timed_out) = (0, 0);
    }

    pub(crate) fn end(&mut self, at: u64) {
        self.ended = at;
    }

    pub(crate) fn spend(&mut self, core: usize, purpose: Purpose, nanos: u64) {
        if self.is_on {
            self.spent[core][purpose as usize] += nanos;
        }
    }

    pub(crate) fn opened(&mut self) {
        self.opened += u64::from(self.is_on);
    }

    pub(crate) fn finished(&mut self, took: u64) {
        if self.is_on {
            self.finished += 1;
            self.latencies.push(took);
        }
    }

    pub(crate) fn page(&mut self) {
        self.pages += u64::from(self.is_on);
    }

    pub(crate) fn service(&mut self, service: Service) {
        if self.is_on {
            self.services.push(Service { closed_at: service.closed_at - self.began, ..service });
        }
    }

    /// Counts a connection that is not over in the end, with the time until then, as its client sees it.
    pub(crate) fn unfinished(&mut self, connection: &Connection, end: u64) {
        let since =
            if connection.first_offered_at == 0 { connection.opened_at } else { connection.first_offered_at };
        // A server's batch may reach beyond the end.
        if !connection.closed && (self.began..=end).contains(&since) {
            self.services.push(Service {
                closed_at: end - self.began,
                app: connection.app,
                nanos: end - since,
            });
        }
    }

    pub(crate) fn assigned(&mut self, at: u64, app: usize, cm: usize, home: usize) {
        if self.is_on {
            self.assigned.push(Assigned { at: at.saturating_sub(self.began), app, cm, home });
        }
    }

    pub(crate) fn waited_for_cm(&mut self, nanos: u64) {
        if self.is_on {
            self.cm_waits.push(nanos);
        }
    }

    pub(crate) fn estimated(&mut self, at: u64, app: usize, micros: u64) {
        self.estimates.push((at.saturating_sub(self.began), app, micros));
    }

    /// Returns the length of the time that was counted.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.ended.saturating_sub(self.began))
    }

    /// Returns the connections a second.
    pub fn rate(&self) -> f64 {
        self.finished as f64 / self.time().as_secs_f64()
    }

    /// Returns the pages a second.
    pub fn page_rate(&self) -> f64 {
        self.pages as f64 / self.time().as_secs_f64()
    }

    /// Returns the share of their time that all servers spend on `purpose`, 0 to 1.
    pub fn share(&self, purpose: Purpose) -> f64 {
        let spent: u64 = self.spent[..self.servers].iter().map(|spent| spent[purpose as usize]).sum();
        spent as f64 / (self.time().as_nanos() as f64 * self.servers as f64)
    }

    /// Returns the share of its time that the server with this number spends on `purpose`, 0 to 1.
    pub fn core_share(&self, server: usize, purpose: Purpose) -> f64 {
        let spent = self.spent.get(server).map_or(0, |spent| spent[purpose as usize]);
        spent as f64 / self.time().as_nanos().max(1) as f64
    }

    /// Returns the microseconds that all servers together spend on `purpose` for each connection.
    pub fn micros_each(&self, purpose: Purpose) -> f64 {
        let spent: u64 = self.spent[..self.servers].iter().map(|spent| spent[purpose as usize]).sum();
        spent as f64 / 1000.0 / self.finished.max(1) as f64
    }

    /// Returns the share of its time that the busiest core works, 0 to 1 (a batch that ends after the end
    /// counts whole).
    pub fn busiest(&self) -> f64 {
        let most = self.spent.iter().map(|spent| spent.iter().sum::<u64>()).max().unwrap_or(0);
        most as f64 / self.time().as_nanos().max(1) as f64
    }

    /// Returns the share of connections that were given to an application at home, 0 to 1.
    pub fn locality(&self) -> f64 {
        let local = self.assigned.iter().filter(|assigned| assigned.cm == assigned.home).count();
        local as f64 / self.assigned.len().max(1) as f64
    }

    /// Returns the service times in microseconds, the shortest first.
    pub fn sorted_services(&self) -> Vec<f64> {
        sorted(self.services.iter().map(|service| service.nanos))
    }

    /// Returns the latencies in microseconds, the shortest first.
    pub fn sorted_latencies(&self) -> Vec<f64> {
        sorted(self.latencies.iter().copied())
    }
}

fn sorted(nanos: impl Iterator<Item = u64>) -> Vec<f64> {
    let mut all: Vec<f64> = nanos.map(|nanos| nanos as f64 / 1000.0).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// Returns the value below which `percent` percent of the ordered values lie; 0 if there are none.
pub fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let at = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(at.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}

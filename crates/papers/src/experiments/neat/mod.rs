//! NEaT's experiments (N9): how its replicas scale, what their deaths cost, and what it claims about its
//! library and about address spaces.
//!
//! "Component" here is NEaT's word for a process of a replica: a replica of `TS2LS2CM2` is one component, a
//! replica of `TS2CM2+IP2LS2` is two.

mod elastic;
mod faults;
mod layout;
mod scale;
mod waiting;

pub(super) use elastic::scaling;
pub(super) use faults::{kept, recovery, throughput};
pub(super) use layout::addresses;
pub(super) use scale::{configurations, replicas};
pub(super) use waiting::{calls, driver};

use std::time::Duration;

use super::Context;
use crate::configuration::{Configuration, ConfigurationError};
use crate::machine::{Load, Settings, Waiting};

/// The number of cores of the simulated machine. It is that of the last machine on which NEaT was measured:
/// two sockets with eight hardware threads each.
const CORES: usize = 16;

/// The number of requests on a connection, as in NEaT's runs of httperf.
const REQUESTS: u32 = 100;

/// The ways to divide a replica into processes: NEaT's two, and this stack's third.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A replica is one process.
    Single,
    /// TCP and IP are in two processes.
    Multi,
    /// Each component is in a process of its own.
    Apart,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Form::Single => "one component",
            Form::Multi => "TCP and IP apart",
            Form::Apart => "everything apart",
        }
    }

    /// Returns the name of a stack of `n` replicas, as NEaT writes it.
    fn of(self, n: usize) -> String {
        match self {
            Form::Single => format!("NEaT {n}x"),
            Form::Multi => format!("Multi {n}x"),
            Form::Apart => format!("Apart {n}x"),
        }
    }

    /// Returns the number of processes of a replica, each of which has a core.
    fn cores(self) -> usize {
        match self {
            Form::Single => 1,
            Form::Multi => 2,
            Form::Apart => 4,
        }
    }

    fn configuration(self, n: usize) -> Result<Configuration, ConfigurationError> {
        Configuration::parse(&match self {
            Form::Single => format!("TS{n}LS{n}CM{n}"),
            Form::Multi => format!("TS{n}CM{n}+IP{n}LS{n}"),
            Form::Apart => format!("TS{n}+IP{n}+LS{n}+CM{n}"),
        })
    }
}

/// Returns the settings of lighttpd in `apps` processes on a stack, with 32 connections for each process,
/// which keep it busy.
fn lighttpd(context: &Context<'_>, configuration: Configuration, apps: usize) -> Settings {
    let (warm_up, duration) = if context.quick { (6, 12) } else { (20, 60) };
    Settings {
        configuration,
        apps,
        load: Load::Closed(32 * apps as u32),
        requests: REQUESTS,
        app_work: Some(Duration::from_nanos(context.costs.app_lighttpd as u64)),
        cores_per_socket: CORES / 2,
        warm_up: Duration::from_millis(warm_up),
        duration: Duration::from_millis(duration),
        ..Settings::saturated(apps)
    }
}

/// How idle processes wait: as NEaT's, each of which has a core, and as this stack's.
const WAYS: [(&str, Waiting); 2] = [
    ("looking always", Waiting { spin: SPIN, always: true }),
    ("looking if few talk", Waiting { spin: SPIN, always: false }),
];

/// The default of this stack's `wait.spin_us`.
const SPIN: Duration = Duration::from_micros(100);

/// Measured values as (series, x, y), and whether they were measured on this machine.
struct Measured<'a> {
    lines: Vec<(&'a str, f64, f64)>,
    here: bool,
}

impl<'a> Measured<'a> {
    /// Takes the results that lie beside the experiment's output, or else those of the machine of
    /// docs/measurements.md.
    fn new(context: &Context<'a>, built_in: &'a str) -> Measured<'a> {
        let lines = super::real_lines(context.real.unwrap_or(built_in)).collect();
        Measured { lines, here: context.real.is_some() }
    }

    fn of<'b>(&'b self, series: &'b str) -> impl Iterator<Item = (f64, f64)> + 'b {
        self.lines.iter().filter(move |(name, ..)| *name == series).map(|&(_, x, y)| (x, y))
    }

    /// Returns the names of the series, each once, in the order of the file.
    fn names(&self) -> Vec<&'a str> {
        let mut names: Vec<&str> = Vec::new();
        for (name, ..) in &self.lines {
            if !names.contains(name) {
                names.push(name);
            }
        }
        names
    }

    fn place(&self) -> &'static str {
        if self.here { "on this machine" } else { "on the machine of docs/measurements.md" }
    }
}

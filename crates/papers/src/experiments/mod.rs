//! The papers' experiments, by name. Each gives numbers, pictures, and a sentence on whether the paper's
//! shape is there.

mod accept;
mod cache;
mod components;
mod imbalance;
mod neat;
mod scale;

use atoll_ipc::balance::{Balance, Scheme};

use thiserror::Error;

use crate::chart::{Chart, Series, Style};
use crate::configuration::ConfigurationError;
use crate::costs::Costs;
use crate::machine::{Machine, Report, Settings};

pub use cache::{Cachegrind, CachegrindError};

/// One experiment.
pub struct Experiment {
    /// As `atoll paper` knows it.
    pub name: &'static str,
    /// What the paper shows there.
    pub about: &'static str,
    run: fn(&mut Context<'_>) -> Result<Outcome, ExperimentError>,
}

/// What an experiment needs to know.
pub struct Context<'a> {
    /// What things cost.
    pub costs: Costs,
    /// Less of everything.
    pub quick: bool,
    /// What was measured for real, if it was: lines of `series,x,y`.
    pub real: Option<&'a str>,
    /// How to count cache misses.
    pub cachegrind: Option<&'a dyn Cachegrind>,
    /// Told what is being done.
    pub progress: &'a mut dyn FnMut(&str),
}

/// Why an experiment was not made.
#[derive(Debug, Error)]
pub enum ExperimentError {
    /// There is no tool to count cache misses.
    #[error("valgrind is needed (Debian: valgrind)")]
    NoValgrind,
    /// Cache misses were not counted.
    #[error(transparent)]
    Cachegrind(#[from] CachegrindError),
    /// A configuration of the experiment is none.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// The experiment has not run this.
    #[error("{0} is missing")]
    Incomplete(&'static str),
    /// These were not measured for real.
    #[error("no {0} were measured")]
    NotMeasured(&'static str),
    /// What was measured for real has no series of this name.
    #[error("nobody has measured `{0}`")]
    NoSeries(&'static str),
    /// No process with these components was killed for real.
    #[error("nobody has measured what the death of {kind} costs ({recovery})")]
    NoDeathOf {
        /// The components of the process, such as `TSCM`.
        kind: String,
        /// What becomes of its connections: `stateful` or `stateless`.
        recovery: String,
    },
    /// No process of this series was killed while it served.
    #[error("{0}: no deaths")]
    NoDeaths(String),
    /// This series does not name a kind of process.
    #[error("{0}: no kind of process")]
    NoKind(String),
    /// No process of the configuration has the component.
    #[error("{configuration} has no {component}")]
    NoComponent {
        /// The configuration.
        configuration: String,
        /// The component.
        component: String,
    },
}

/// What came of one.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Rows of numbers; the first is the header.
    pub rows: Vec<Vec<String>>,
    /// Pictures: what is added to the experiment's name, and the picture.
    pub charts: Vec<(&'static str, Chart)>,
    /// Whether the paper's shape is there.
    pub reproduced: bool,
    /// That, in one sentence, with the numbers that decide it.
    pub sentence: String,
}

/// All of them, Pika's and NEaT's, each in its paper's order; NEaT's figures and tables are those of
/// chapter 6.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment { name: "pika-fig4a", about: "short connections a second against cores", run: scale::short },
    Experiment {
        name: "pika-fig4b",
        about: "requests on long connections a second against cores",
        run: scale::long,
    },
    Experiment {
        name: "pika-accept",
        about: "the speculative handshake beside an accept that asks",
        run: accept::handshakes,
    },
    Experiment {
        name: "pika-table3",
        about: "time that connection managers spend on updates",
        run: scale::updates,
    },
    Experiment {
        name: "pika-fig5",
        about: "service times under imbalance, beside the kernel's",
        run: imbalance::kernel,
    },
    Experiment {
        name: "pika-fig6",
        about: "estimated service times follow the true ones",
        run: imbalance::estimates,
    },
    Experiment {
        name: "pika-fig7",
        about: "service times under imbalance, by scheme",
        run: imbalance::schemes,
    },
    Experiment { name: "pika-fig8", about: "uniform load against cores, by scheme", run: scale::schemes },
    Experiment {
        name: "pika-fig9",
        about: "who gets the connections under imbalance, over time",
        run: imbalance::shares,
    },
    Experiment {
        name: "pika-fig10",
        about: "connections kept at home by a server that slows a little",
        run: imbalance::locality,
    },
    Experiment {
        name: "pika-table4",
        about: "one connection's time, by component, one client",
        run: components::alone,
    },
    Experiment {
        name: "pika-table5",
        about: "one connection's time, by component, full load",
        run: components::loaded,
    },
    Experiment { name: "pika-fig11", about: "nine configurations", run: components::configurations },
    Experiment { name: "pika-fig12", about: "cache misses against cache size", run: cache::misses },
    Experiment { name: "neat-calls", about: "socket calls without a system call, by load", run: neat::calls },
    Experiment {
        name: "neat-layout",
        about: "memory layouts of replicas, and who meets which",
        run: neat::addresses,
    },
    Experiment {
        name: "neat-fig6",
        about: "requests a second against web servers, by replicas (and Fig. 6.9, 6.11)",
        run: neat::replicas,
    },
    Experiment {
        name: "neat-fig12",
        about: "one request a connection, by stack and load",
        run: neat::configurations,
    },
    Experiment {
        name: "neat-table2",
        about: "polling and sleeping of the driver, by load",
        run: neat::driver,
    },
    Experiment {
        name: "neat-scaling",
        about: "throughput while replicas go to other processes under load",
        run: neat::scaling,
    },
    Experiment {
        name: "neat-faults",
        about: "connections that outlive a process, by what it holds",
        run: neat::kept,
    },
    Experiment { name: "neat-recovery", about: "waits when a process dies", run: neat::recovery },
    Experiment {
        name: "neat-fig13",
        about: "state kept after a fault against throughput",
        run: neat::throughput,
    },
];

impl Experiment {
    /// The experiment of that name.
    pub fn find(name: &str) -> Option<&'static Experiment> {
        EXPERIMENTS.iter().find(|experiment| experiment.name == name)
    }

    /// Makes it.
    pub fn run(&self, context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
        (self.run)(context)
    }
}

impl Outcome {
    /// The numbers as a file.
    pub fn to_csv(&self) -> String {
        self.rows.iter().map(|row| row.join(",") + "\n").collect()
    }
}

impl Context<'_> {
    fn simulate(&mut self, what: &str, settings: Settings) -> Report {
        (self.progress)(what);
        Machine::new(settings, self.costs).run()
    }

    /// What was measured for real, by series.
    fn real_series(&self) -> Vec<Series> {
        let mut all: Vec<Series> = Vec::new();
        for (name, x, y) in real_lines(self.real.unwrap_or_default()) {
            let name = format!("{name} (measured)");
            match all.iter_mut().find(|series| series.name == name) {
                Some(series) => series.points.push((x, y)),
                None => all.push(Series::line(&name, vec![(x, y)]).styled(Style::Marks)),
            }
        }
        all
    }

    /// A second picture with nothing but what was measured for real, if there is anything.
    fn real_chart(&self, chart: Chart, style: Style) -> Option<(&'static str, Chart)> {
        let series: Vec<Series> = self.real_series().into_iter().map(|series| series.styled(style)).collect();
        (!series.is_empty()).then_some(("-real", Chart { series, ..chart }))
    }
}

/// Lines of `series,x,y` behind a header; others are passed over.
fn real_lines(text: &str) -> impl Iterator<Item = (&str, f64, f64)> {
    text.lines().skip(1).filter_map(|line| {
        let mut fields = line.split(',');
        let name = fields.next()?;
        let mut number = || fields.next()?.parse().ok().filter(|number: &f64| number.is_finite());
        Some((name, number()?, number()?))
    })
}

/// The five schemes of the paper, by its names.
fn schemes() -> Vec<(&'static str, Balance)> {
    let of = |scheme, tariff| Balance { scheme, tariff, ..Balance::new() };
    vec![
        ("Naive", of(Scheme::Naive, 1)),
        ("Unfiltered 2", of(Scheme::Unfiltered, 2)),
        ("Unfiltered 100", of(Scheme::Unfiltered, 100)),
        ("Filtered 2", of(Scheme::Filtered, 2)),
        ("Tournament 2", of(Scheme::Tournament, 2)),
    ]
}

/// A row of text.
fn row<const N: usize>(fields: [&str; N]) -> Vec<String> {
    fields.iter().map(|field| field.to_string()).collect()
}

#[cfg(test)]
mod tests;

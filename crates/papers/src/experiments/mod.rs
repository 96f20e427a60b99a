//! The papers' experiments, by name. Each gives numbers, pictures, and a sentence that says whether the
//! paper's result is reproduced.

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

/// One experiment of a paper.
pub struct Experiment {
    /// The name of the experiment on the command line of `atoll paper`.
    pub name: &'static str,
    /// What the paper shows with the experiment.
    pub about: &'static str,
    run: fn(&mut Context<'_>) -> Result<Outcome, ExperimentError>,
}

/// The inputs of an experiment.
pub struct Context<'a> {
    /// The costs of the simulated machine's steps.
    pub costs: Costs,
    /// Whether to run fewer and shorter simulations.
    pub quick: bool,
    /// Results from a real machine, as lines of `series,x,y`; `None` if there are none.
    pub real: Option<&'a str>,
    /// The tool that counts cache misses; `None` if it is not installed.
    pub cachegrind: Option<&'a dyn Cachegrind>,
    /// A function that is called with a description of each step before it runs.
    pub progress: &'a mut dyn FnMut(&str),
}

/// The reason why an experiment gave no outcome.
#[derive(Debug, Error)]
pub enum ExperimentError {
    /// There is no tool to count cache misses.
    #[error("valgrind is needed (Debian: valgrind)")]
    NoValgrind,
    /// The tool has failed to count cache misses.
    #[error(transparent)]
    Cachegrind(#[from] CachegrindError),
    /// A configuration of the experiment is not valid.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// The experiment has not run a part that its verdict needs; the text names it.
    #[error("{0} is missing")]
    Incomplete(&'static str),
    /// The results from a real machine lack what the text names.
    #[error("no {0} were measured")]
    NotMeasured(&'static str),
    /// The results from a real machine have no series of this name.
    #[error("nobody has measured `{0}`")]
    NoSeries(&'static str),
    /// The results from a real machine have no death of a process with these components.
    #[error("nobody has measured what the death of {kind} costs ({recovery})")]
    NoDeathOf {
        /// The components of the process, such as `TSCM`.
        kind: String,
        /// The kind of recovery, `stateful` or `stateless`.
        recovery: String,
    },
    /// In this series no process was killed while it served connections.
    #[error("{0}: no deaths")]
    NoDeaths(String),
    /// The name of this series has no kind of process.
    #[error("{0}: no kind of process")]
    NoKind(String),
    /// No process of the configuration has the component.
    #[error("{configuration} has no {component}")]
    NoComponent {
        /// The configuration, in the notation.
        configuration: String,
        /// The name of the component, such as `TS`.
        component: String,
    },
}

/// The outcome of an experiment.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The results as rows of text, of which the first is the header.
    pub rows: Vec<Vec<String>>,
    /// The pictures, each with the suffix that its file name gets after the experiment's name.
    pub charts: Vec<(&'static str, Chart)>,
    /// Whether the paper's result is reproduced.
    pub reproduced: bool,
    /// The verdict in one sentence, with the numbers that decide it.
    pub sentence: String,
}

/// All experiments, Pika's and NEaT's, each in the order of its paper. NEaT's figures and tables are those of
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
    /// Returns the experiment with this name.
    pub fn find(name: &str) -> Option<&'static Experiment> {
        EXPERIMENTS.iter().find(|experiment| experiment.name == name)
    }

    /// Runs the experiment.
    pub fn run(&self, context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
        (self.run)(context)
    }
}

impl Outcome {
    /// Returns the rows as a CSV file.
    pub fn to_csv(&self) -> String {
        self.rows.iter().map(|row| row.join(",") + "\n").collect()
    }
}

impl Context<'_> {
    fn simulate(&mut self, what: &str, settings: Settings) -> Report {
        (self.progress)(what);
        Machine::new(settings, self.costs).run()
    }

    /// Returns the series that were measured on a real machine.
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

    /// Returns a second picture that shows only what was measured on a real machine, if anything was.
    fn real_chart(&self, chart: Chart, style: Style) -> Option<(&'static str, Chart)> {
        let series: Vec<Series> = self.real_series().into_iter().map(|series| series.styled(style)).collect();
        (!series.is_empty()).then_some(("-real", Chart { series, ..chart }))
    }
}

/// Parses lines of `series,x,y` after a header line; skips lines of any other form.
fn real_lines(text: &str) -> impl Iterator<Item = (&str, f64, f64)> {
    text.lines().skip(1).filter_map(|line| {
        let mut fields = line.split(',');
        let name = fields.next()?;
        let mut number = || fields.next()?.parse().ok().filter(|number: &f64| number.is_finite());
        Some((name, number()?, number()?))
    })
}

/// Returns the five schemes of the paper, by the paper's names.
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

/// Returns a row with these fields.
fn row<const N: usize>(fields: [&str; N]) -> Vec<String> {
    fields.iter().map(|field| field.to_string()).collect()
}

#[cfg(test)]
mod tests;

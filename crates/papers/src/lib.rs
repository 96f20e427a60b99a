//! The papers' experiments (P8, N9), repeated: simulated machines of many cores, their costs, and the
//! pictures.
//!
//! ```text
//!   costs.toml --> machine (real connection managers, simulated cores) --> experiment --> CSV, SVG, a sentence
//! ```
//! Storey 4.
#![forbid(unsafe_code)]

mod chart;
mod configuration;
mod costs;
mod experiments;
mod kernel;
mod machine;
mod rig;

pub use chart::{Axis, Chart, Series, Style};
pub use configuration::{Configuration, ConfigurationError};
pub use costs::{Cost, Costs, Table, TableError};
pub use experiments::{
    Cachegrind, CachegrindError, Context, EXPERIMENTS, Experiment, ExperimentError, Outcome,
};
pub use kernel::{Queues, serve};
pub use machine::{Assigned, Delay, Load, Machine, Purpose, Report, Service, Settings, Waiting, percentile};
pub use rig::{Replay, measure, record, replay};

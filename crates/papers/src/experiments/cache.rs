//! How much cache does a server need? This repeats Pika's Fig. 12 with the real code under Cachegrind.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use thiserror::Error;

use super::scale::said;
use super::{Context, ExperimentError, Outcome, row};
use crate::chart::{Axis, Chart, Series};

/// Runs the recorded connections in a process of their own and counts what it misses.
pub trait Cachegrind {
    /// Returns the misses of the instruction cache and of the data cache, each of `bytes` bytes, while a
    /// process starts and serves `connections` short connections. With 0 connections it returns what starting
    /// alone costs.
    fn misses(&self, bytes: usize, connections: usize) -> Result<(u64, u64), CachegrindError>;
}

/// The reason why misses were not counted.
#[derive(Debug, Error)]
pub enum CachegrindError {
    /// The recording cannot be written or removed.
    #[error("{}: {error}", path.display())]
    Recording {
        /// The path of the recording.
        path: PathBuf,
        /// The error that the system reports.
        error: io::Error,
    },
    /// The path of this program's executable is unknown.
    #[error(transparent)]
    Program(io::Error),
    /// Valgrind cannot be started.
    #[error("valgrind: {0}")]
    Start(io::Error),
    /// Valgrind has failed, or has not printed its counts.
    #[error("valgrind: {status}\n{text}")]
    Failed {
        /// The exit status of Valgrind.
        status: ExitStatus,
        /// The standard error of Valgrind.
        text: String,
    },
}

/// Runs the experiment of Pika's Fig. 12: cache misses of a server by cache size.
pub(super) fn misses(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let Some(cachegrind) = context.cachegrind else {
        return Err(ExperimentError::NoValgrind);
    };
    let connections = if context.quick { 640 } else { 10_000 };
    let sizes: &[usize] = if context.quick { &[8, 32, 128] } else { &[4, 8, 16, 32, 64, 128, 256] };
    let mut rows =
        vec![row(["cache_kib", "instruction_misses_per_connection", "data_misses_per_connection"])];
    let (mut instructions, mut data) = (Vec::new(), Vec::new());
    for &size in sizes {
        (context.progress)(&format!("{size} KiB"));
        let none = cachegrind.misses(size << 10, 0)?;
        let all = cachegrind.misses(size << 10, connections)?;
        let each = |all: u64, none: u64| all.saturating_sub(none) as f64 / connections as f64;
        let (i, d) = (each(all.0, none.0), each(all.1, none.1));
        rows.push(vec![size.to_string(), format!("{i:.2}"), format!("{d:.2}")]);
        instructions.push((size as f64, i));
        data.push((size as f64, d));
    }
    let at = |points: &[(f64, f64)], size: f64| {
        points.iter().find(|point| point.0 >= size).map_or(f64::NAN, |point| point.1)
    };
    let fits = instructions.iter().find(|point| point.1 < 1.0).map(|point| point.0);
    let (small, large) = (at(&instructions, 8.0), at(&instructions, 64.0));
    let reproduced = large < 1.0 && large * 20.0 < small;
    let sentence = format!(
        "{}: with 8 KiB a short connection misses {small:.0} instruction lines, with 64 KiB (the paper's \
         size) {large:.2}; {}.",
        said(reproduced),
        fits.map_or("it does not fit anywhere".into(), |size| format!("less than one from {size} KiB on"))
    );
    let chart = Chart {
        title: "Cache misses of a server, TS1LS1CM1 (Pika, Fig. 12)".into(),
        x: Axis::new("size of each private cache, KiB").from_to(0.0, 260.0),
        y: Axis::new("misses per connection"),
        series: vec![Series::line("instructions", instructions), Series::line("data", data)],
        names: Vec::new(),
    };
    Ok(Outcome { rows, charts: vec![("", chart)], reproduced, sentence })
}

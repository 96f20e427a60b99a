//! Do consecutive connections meet different memory layouts? This repeats NEaT's security by replication
//! (N5).

use std::collections::{BTreeMap, BTreeSet};

use super::Measured;
use crate::chart::{Axis, Chart, Series, Style};
use crate::experiments::scale::said;
use crate::experiments::{Context, ExperimentError, Outcome, row};

/// Series `text`, `heap`, `stack` and `libraries` (x: number of the process; y: page of the address), and
/// series `connection` (x: its number; y: its replica).
const LAYOUTS: &str = include_str!("../../measured/layout.csv");

/// Runs the experiment of address spaces: the addresses of replicas and their successors, and the replica of
/// each connection.
pub(in crate::experiments) fn addresses(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let measured = Measured::new(context, LAYOUTS);
    let mut rows = vec![row(["what", "processes", "different", "range_bits"])];
    let mut series = Vec::new();
    let (mut processes, mut all_differ) = (0, true);
    for kind in measured.names().into_iter().filter(|name| *name != "connection") {
        let pages: Vec<(f64, f64)> = measured.of(kind).collect();
        let different: BTreeSet<u64> = pages.iter().map(|(_, page)| *page as u64).collect();
        let (low, high) = (different.first().copied().unwrap_or(0), different.last().copied().unwrap_or(0));
        processes = processes.max(pages.len());
        all_differ &= different.len() == pages.len();
        rows.push(vec![
            kind.into(),
            pages.len().to_string(),
            different.len().to_string(),
            format!("{:.1}", ((high - low) as f64 + 1.0).log2()),
        ]);
        // Addresses relative to the least of their series, in GiB.
        let points =
            pages.iter().map(|(number, page)| (*number, (page - low as f64) * 4096.0 / (1u64 << 30) as f64));
        series.push(Series::line(kind, points.collect()).styled(Style::Marks));
    }
    let replicas: Vec<u64> = measured.of("connection").map(|(_, replica)| replica as u64).collect();
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    replicas.iter().for_each(|replica| *counts.entry(*replica).or_default() += 1);
    if processes == 0 || replicas.len() < 2 {
        return Err(ExperimentError::NotMeasured("layouts"));
    }
    let changes =
        replicas.windows(2).filter(|pair| pair[0] != pair[1]).count() as f64 / (replicas.len() - 1) as f64;
    // The share of changes if each connection went to any replica with equal probability.
    let ideal = 1.0 - 1.0 / counts.len() as f64;
    for (replica, count) in &counts {
        rows.push(vec![format!("replica {replica}"), count.to_string(), String::new(), String::new()]);
    }
    let deviation = (ideal * (1.0 - ideal) / (replicas.len() - 1) as f64).sqrt();
    let reproduced = all_differ && counts.len() > 1 && (changes - ideal).abs() < 4.0 * deviation;
    let sentence = format!(
        "{}: {processes} processes that were replicas {} have {} of text, heap, stack and libraries, \
         successors of dead ones included; of {} consecutive connections {:.1} % meet another replica than \
         the one before (at random: {:.1} %).",
        said(reproduced),
        measured.place(),
        if all_differ { "all different addresses" } else { "some equal addresses" },
        replicas.len(),
        100.0 * changes,
        100.0 * ideal,
    );
    let chart = Chart {
        title: "Where replicas lie in memory, from the least (NEaT, N5)".into(),
        x: Axis::new("process"),
        y: Axis::log("GiB"),
        series,
        names: Vec::new(),
    };
    Ok(Outcome { rows, charts: vec![("", chart)], reproduced, sentence })
}

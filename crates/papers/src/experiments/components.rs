//! Should the components share processes? This repeats Pika's Tables 4 and 5, and Fig. 11.

use std::time::Duration;

use super::scale::said;
use super::{Context, ExperimentError, Outcome, row};
use crate::chart::{Axis, Chart, Series};
use crate::configuration::Configuration;
use crate::machine::{Load, Purpose, Report, Settings, percentile};

fn settings(
    context: &Context<'_>,
    configuration: &str,
    apps: usize,
    clients: u32,
) -> Result<Settings, ExperimentError> {
    let (warm_up, duration) = if context.quick { (5, 10) } else { (30, 100) };
    Ok(Settings {
        configuration: Configuration::parse(configuration)?,
        load: Load::Closed(clients),
        warm_up: Duration::from_millis(warm_up),
        duration: Duration::from_millis(duration),
        ..Settings::saturated(apps)
    })
}

/// Returns the mean of `T_CM` in microseconds: the time from a SYN's arrival at the transport server to its
/// verdict, plus the time from the end of the handshake to the offer.
fn cm_wait(report: &Report) -> f64 {
    let mut waits: Vec<f64> = report.cm_waits.iter().map(|nanos| *nanos as f64 / 1000.0).collect();
    waits.sort_by(f64::total_cmp);
    waits.iter().sum::<f64>() / waits.len().max(1) as f64
}

fn tcp(report: &Report) -> f64 {
    report.micros_each(Purpose::Tcp) + report.micros_each(Purpose::Link)
}

/// Runs the experiment of Pika's Table 4: where the time of a connection goes, with one client.
pub(super) fn alone(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let mut rows = vec![row(["configuration", "t_cm_us", "t_tcp_us", "t_msg_us", "t_total_us"])];
    let mut found = Vec::new();
    for configuration in ["TS1LS1CM1", "TS1LS1+CM1"] {
        let settings = settings(context, configuration, 1, 1)?;
        let report = context.simulate(configuration, settings);
        let total = percentile(&report.sorted_latencies(), 50.0);
        let (cm, message) = (cm_wait(&report), report.micros_each(Purpose::Message));
        rows.push(vec![
            configuration.into(),
            format!("{cm:.2}"),
            format!("{:.2}", tcp(&report)),
            format!("{message:.2}"),
            format!("{total:.2}"),
        ]);
        found.push((cm, total));
    }
    let [(joined, total), (split, split_total)] = found[..] else {
        return Err(ExperimentError::Incomplete("a configuration"));
    };
    let reproduced = split > 2.0 * joined && split_total > total;
    let sentence = format!(
        "{}: T_CM is {joined:.2} us joined and {split:.2} us split (paper: 0.31 and 9.24), the only great \
         difference; the client waits {total:.1} and {split_total:.1} us (paper: 307 and 311, most of it the \
         network and its own machine).",
        said(reproduced)
    );
    Ok(Outcome { rows, charts: Vec::new(), reproduced, sentence })
}

/// Runs the experiment of Pika's Table 5: the time that the connection manager adds under full load.
pub(super) fn loaded(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let mut rows = vec![row(["configuration", "t_cm_us", "t_tcp_us", "t_msg_us"])];
    let names =
        ["TS8LS8CM8", "TS8LS8+CM1", "TS8LS8+CM2", "TS8LS8+CM4", "TS8LS8CM1", "TS8LS8CM2", "TS8LS8CM4"];
    let mut waits = Vec::new();
    for configuration in names {
        let settings = settings(context, configuration, 8, CLIENTS)?;
        let report = context.simulate(configuration, settings);
        let cm = cm_wait(&report);
        rows.push(vec![
            configuration.into(),
            format!("{cm:.2}"),
            format!("{:.2}", tcp(&report)),
            format!("{:.2}", report.micros_each(Purpose::Message)),
        ]);
        waits.push((configuration, cm));
    }
    let least_other = waits[1..].iter().map(|(_, cm)| *cm).fold(f64::INFINITY, f64::min);
    let reproduced = waits[0].1 * 2.0 < least_other
        && waits[4].1 > waits[5].1
        && waits[5].1 > waits[6].1
        && waits[4].1 > waits[1].1;
    let text: Vec<String> = waits.iter().map(|(name, cm)| format!("{name} {cm:.2}")).collect();
    let sentence = format!(
        "{}: T_CM in us: {}; joined is least by far, a manager in a subset of the servers worst, and better \
         the more there are.",
        said(reproduced),
        text.join(", ")
    );
    let points = waits.iter().enumerate().map(|(at, (_, cm))| (at as f64, *cm)).collect();
    let chart = Chart {
        title: "T_CM under full load (Pika, Table 5)".into(),
        x: Axis::new(""),
        y: Axis::log("us"),
        series: vec![Series::line("T_CM", points)],
        names: names.iter().map(|name| name.to_string()).collect(),
    };
    Ok(Outcome { rows, charts: vec![("", chart)], reproduced, sentence })
}

/// The number of the paper's clients: 48 processes with 4 connections each.
const CLIENTS: u32 = 192;

/// Runs the experiment of Pika's Fig. 11: the throughput of nine configurations.
pub(super) fn configurations(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let names = [
        "TS8CM8+LS2",
        "TS8CM8+LS4",
        "TS8CM8+LS8",
        "TS8LS8+CM1",
        "TS8LS8+CM4",
        "TS8+LS8+CM8",
        "TS8LS8CM1",
        "TS8LS8CM2",
        "TS8LS8CM8",
    ];
    let mut rows = vec![row(["configuration", "server_cores", "per_second", "per_second_and_core"])];
    let (mut rates, mut each) = (Vec::new(), Vec::new());
    for configuration in names {
        let settings = settings(context, configuration, 8, CLIENTS)?;
        let cores = settings.configuration.servers().len() + settings.apps;
        let report = context.simulate(configuration, settings);
        let rate = report.rate();
        rows.push(vec![
            configuration.into(),
            (cores - 8).to_string(),
            format!("{rate:.0}"),
            format!("{:.0}", rate / cores as f64),
        ]);
        rates.push(rate);
        each.push(rate / cores as f64);
    }
    let joined = rates[8];
    let better: Vec<&str> =
        names.iter().zip(&rates).filter(|(_, rate)| **rate > joined).map(|(name, _)| *name).collect();
    let best_each =
        names[..8].iter().zip(&each).max_by(|a, b| a.1.total_cmp(b.1)).map_or("", |(name, _)| *name);
    let best_other = each[..8].iter().copied().fold(0.0, f64::max);
    let subset_suffers = rates[6] < 0.8 * joined && rates[6] < rates[7];
    let reproduced = better.is_empty() && subset_suffers;
    let sentence = format!(
        "{}: TS8LS8CM8 serves {:.2} M connections a second with the fewest cores{}; for each core it serves \
         {:.0}, the best of the others, {best_each}, {best_other:.0}; one manager for eight servers costs \
         {:.0} %.",
        if reproduced { "Reproduced" } else { "Reproduced for the managers, not for separate link servers" },
        joined / 1e6,
        if better.is_empty() {
            ", the most of all".into()
        } else {
            format!(
                ", less than {} with more cores, because frames are the greater part of the work here",
                better.join(" and ")
            )
        },
        each[8],
        100.0 * (1.0 - rates[6] / joined)
    );
    let points = rates.iter().enumerate().map(|(at, rate)| (at as f64, *rate)).collect();
    let chart = Chart {
        title: "Nine configurations with eight transport servers (Pika, Fig. 11)".into(),
        x: Axis::new(""),
        y: Axis::new("connections/s"),
        series: vec![Series::line("all cores", points)],
        names: names.iter().map(|name| name.to_string()).collect(),
    };
    Ok(Outcome { rows, charts: vec![("", chart)], reproduced, sentence })
}

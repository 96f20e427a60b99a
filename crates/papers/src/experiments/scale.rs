//! How does throughput grow with the number of cores? This repeats Pika's Fig. 4a, 4b, 8 and Table 3.

use std::time::Duration;

use super::{Context, ExperimentError, Outcome, row};
use crate::chart::{Axis, Chart, Series, Style};
use crate::machine::{Purpose, Report, Settings};

/// Returns the counts of pairs to simulate; a pair is a server and an application.
fn pairs(context: &Context<'_>) -> &'static [usize] {
    if context.quick { &[1, 2, 8, 16] } else { &[1, 2, 4, 8, 12, 16, 20, 24, 28, 32] }
}

fn settings(context: &Context<'_>, n: usize) -> Settings {
    let (warm_up, duration) = if context.quick { (6, 12) } else { (20, 40) };
    Settings {
        warm_up: Duration::from_millis(warm_up),
        duration: Duration::from_millis(duration),
        ..Settings::saturated(n)
    }
}

/// Runs the experiment of Pika's Fig. 4a: short connections.
pub(super) fn short(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    curve(context, "Short connections (Pika, Fig. 4a)", "connections/s", 1, Report::rate)
}

/// Runs the experiment of Pika's Fig. 4b: requests on long connections.
pub(super) fn long(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    curve(context, "Requests on long connections (Pika, Fig. 4b)", "requests/s", 1000, Report::page_rate)
}

fn curve(
    context: &mut Context<'_>,
    title: &str,
    unit: &str,
    requests: u32,
    rate: fn(&Report) -> f64,
) -> Result<Outcome, ExperimentError> {
    let mut points = Vec::new();
    let mut rows =
        vec![row(["cores", "per_second", "of_linear_percent", "time_on_updates_percent", "at_home_percent"])];
    let mut first = 0.0;
    for &n in pairs(context) {
        let settings = Settings { requests, ..settings(context, n) };
        let report = context.simulate(&format!("{} cores", 2 * n), settings);
        let value = rate(&report);
        if n == 1 {
            first = value;
        }
        let linear = 100.0 * value / (first * n as f64);
        points.push((2.0 * n as f64, value));
        rows.push(vec![
            (2 * n).to_string(),
            format!("{value:.0}"),
            format!("{linear:.1}"),
            format!("{:.2}", 100.0 * report.share(Purpose::Peer)),
            format!("{:.1}", 100.0 * report.locality()),
        ]);
    }
    let ideal = points.iter().map(|(cores, _)| (*cores, first * cores / 2.0)).collect();
    let least =
        points.iter().map(|(cores, rate)| 100.0 * rate / (first * cores / 2.0)).fold(f64::INFINITY, f64::min);
    let mut series = vec![
        Series::line("TSnLSnCMn, Tournament 2", points),
        Series::line("linear from 2 cores", ideal).styled(Style::Dashed),
    ];
    series.extend(context.real_series());
    let reproduced = least >= 90.0;
    let sentence = format!(
        "{}: throughput stays at or above {least:.1} % of linear from 2 to {} cores (aim: 90 %); the \
         kernel's collapse at many cores cannot be seen on the cores at hand.",
        said(reproduced),
        2 * pairs(context).last().copied().unwrap_or(1),
    );
    let chart =
        Chart { title: title.into(), x: Axis::new("cores"), y: Axis::new(unit), series, names: Vec::new() };
    Ok(Outcome { rows, charts: vec![("", chart)], reproduced, sentence })
}

/// Returns the first words of a verdict.
pub(super) fn said(reproduced: bool) -> &'static str {
    if reproduced { "Reproduced" } else { "Not reproduced" }
}

/// Runs the experiment of Pika's Table 3: the time that connection managers spend on each other's updates.
pub(super) fn updates(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let mut rows = vec![row([
        "cms",
        "updates_per_second_and_cm",
        "microseconds_per_second_and_cm",
        "overhead_percent",
        "paper_percent",
    ])];
    let mut points = Vec::new();
    for (n, paper) in [(2, 0.03), (4, 0.07), (8, 0.13), (16, 0.34)] {
        let settings = settings(context, n);
        let all = (settings.warm_up + settings.duration).as_secs_f64();
        let report = context.simulate(&format!("{n} connection managers"), settings);
        let heard = (report.offers_heard + report.reports_heard) as f64 / all / n as f64;
        let share = report.share(Purpose::Peer);
        points.push((n as f64, 100.0 * share));
        rows.push(vec![
            n.to_string(),
            format!("{heard:.0}"),
            format!("{:.0}", share * 1e6),
            format!("{:.3}", 100.0 * share),
            paper.to_string(),
        ]);
    }
    let worst = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let reproduced = worst > 0.0 && worst <= 0.34;
    let paper = Series::line("Pika, Table 3", vec![(2.0, 0.03), (4.0, 0.07), (8.0, 0.13), (16.0, 0.34)])
        .styled(Style::Dashed);
    let chart = Chart {
        title: "Time that connection managers spend on each other (Pika, Table 3)".into(),
        x: Axis::new("connection managers"),
        y: Axis::new("% of time"),
        series: vec![Series::line("simulated, Tournament 2", points), paper],
        names: Vec::new(),
    };
    let sentence = format!(
        "{}: connection managers spend at most {worst:.3} % of the servers' time on each other, up to 16 of \
         them (paper: 0.34 % at 16).",
        said(reproduced)
    );
    Ok(Outcome { rows, charts: vec![("", chart)], reproduced, sentence })
}

/// Runs the experiment of Pika's Fig. 8: uniform load, by scheme.
pub(super) fn schemes(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let mut rows = vec![row(["scheme", "cores", "per_second", "of_naive_percent", "at_home_percent"])];
    let mut series = Vec::new();
    let counts: &[usize] = if context.quick { &[1, 4, 16] } else { &[1, 2, 4, 8, 12, 16, 24, 32] };
    let mut naive: Vec<f64> = Vec::new();
    // For each scheme its throughput at 32 cores, in percent of Naive's.
    let mut at_32 = Vec::new();
    for (name, balance) in super::schemes() {
        let mut points = Vec::new();
        for (at, &n) in counts.iter().enumerate() {
            let settings = Settings { balance, ..settings(context, n) };
            let report = context.simulate(&format!("{name}, {} cores", 2 * n), settings);
            let rate = report.rate();
            if naive.len() == at {
                naive.push(rate);
            }
            let share = 100.0 * rate / naive[at];
            if n == 16 {
                at_32.push(share);
            }
            points.push((2.0 * n as f64, rate));
            rows.push(vec![
                name.into(),
                (2 * n).to_string(),
                format!("{rate:.0}"),
                format!("{share:.2}"),
                format!("{:.1}", 100.0 * report.locality()),
            ]);
        }
        series.push(Series::line(name, points));
    }
    let [_, unfiltered, unfiltered_100, filtered, tournament] = at_32[..] else {
        return Err(ExperimentError::Incomplete("a scheme"));
    };
    let reproduced = unfiltered < 95.0 && filtered >= 99.0 && tournament >= 99.0;
    let sentence = format!(
        "{}: at 32 cores Unfiltered 2 has {unfiltered:.1} % of Naive's throughput (paper: less than half), \
         Unfiltered 100 {unfiltered_100:.1} %, Filtered 2 {filtered:.1} %, Tournament 2 {tournament:.1} % \
         (aim: 99 %).",
        if reproduced { "Reproduced in kind" } else { "Not reproduced" }
    );
    let chart = Chart {
        title: "Uniform load by scheme (Pika, Fig. 8)".into(),
        x: Axis::new("cores"),
        y: Axis::new("connections/s"),
        series,
        names: Vec::new(),
    };
    Ok(Outcome { rows, charts: vec![("", chart)], reproduced, sentence })
}

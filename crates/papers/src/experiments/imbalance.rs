//! Do connections avoid slow applications? This repeats Pika's Fig. 5, 6, 7, 9 and 10: 30,000 connections a
//! second for eight web servers, of which one is always slow and three become slow for a while.

use std::time::Duration;

use atoll_ipc::balance::Balance;

use super::scale::said;
use super::{Context, ExperimentError, Outcome, row};
use crate::chart::{Axis, Chart, Series, Style};
use crate::kernel::{self, Queues};
use crate::machine::{Delay, Load, Report, Service, Settings, percentile};

const APPS: usize = 8;
/// The applications that become slow, by their colours in the paper: yellow for half a second, purple always,
/// green for a long time, magenta only a little.
const YELLOW: usize = 1;
const GREEN: usize = 3;
const PURPLE: usize = 5;
const MAGENTA: usize = 7;

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Returns when each application is slow, and by how much. The paper names the applications, the times and
/// the order of the delays; the delays themselves are chosen here.
fn delays(seconds: f64) -> Vec<Delay> {
    let of = |app, from: f64, until: f64, by| Delay {
        app,
        from: Duration::from_secs_f64(from * seconds / 5.0),
        until: Duration::from_secs_f64(until * seconds / 5.0),
        by,
    };
    vec![
        of(YELLOW, 0.5, 1.0, millis(2)),
        of(GREEN, 1.5, 4.0, millis(1)),
        of(PURPLE, 0.0, 5.0, millis(5)),
        of(MAGENTA, 3.0, 4.5, Duration::from_micros(60)),
    ]
}

/// Returns the settings of an experiment that takes five seconds of virtual time, or one with `--quick`.
fn settings(context: &Context<'_>, balance: Balance) -> Settings {
    let seconds = if context.quick { 1.0 } else { 5.0 };
    Settings {
        balance,
        load: Load::Constant(30_000),
        app_work: Some(Duration::from_micros(20)),
        delays: delays(seconds),
        warm_up: millis(200),
        duration: Duration::from_secs_f64(seconds),
        ..Settings::saturated(APPS)
    }
}

fn sorted(services: &[Service]) -> Vec<f64> {
    let mut all: Vec<f64> = services.iter().map(|service| service.nanos as f64 / 1000.0).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// Returns the percentile at which service times pass `factor` times the median.
fn knee(sorted: &[f64], factor: f64) -> f64 {
    let median = percentile(sorted, 50.0);
    let below = sorted.partition_point(|micros| *micros <= factor * median);
    100.0 * below as f64 / sorted.len().max(1) as f64
}

/// The percentiles of several runs, as rows, lines and knees.
struct Percentiles {
    rows: Vec<Vec<String>>,
    series: Vec<Series>,
    all: Vec<(String, Vec<f64>)>,
}

impl Percentiles {
    const SHOWN: [f64; 12] = [10.0, 25.0, 50.0, 75.0, 80.0, 85.0, 90.0, 95.0, 99.0, 99.5, 99.9, 100.0];

    fn new() -> Percentiles {
        let mut header = row(["scheme", "passes_2_medians_at", "passes_10_medians_at"]);
        header.extend(Self::SHOWN.map(|percent| format!("p{percent}_us")));
        Percentiles { rows: vec![header], series: Vec::new(), all: Vec::new() }
    }

    fn add(&mut self, name: &str, sorted: Vec<f64>) {
        let mut row = vec![
            name.to_string(),
            format!("{:.2}", knee(&sorted, 2.0)),
            format!("{:.2}", knee(&sorted, 10.0)),
        ];
        row.extend(Self::SHOWN.map(|percent| format!("{:.1}", percentile(&sorted, percent))));
        self.rows.push(row);
        let points = (0..=400).map(|at| {
            let percent = 60.0 + f64::from(at) / 10.0;
            (percentile(&sorted, percent), percent)
        });
        self.series.push(Series::line(name, points.collect()));
        self.all.push((name.into(), sorted));
    }

    fn at(&self, name: &str, percent: f64) -> f64 {
        self.of(name).map_or(0.0, |sorted| percentile(sorted, percent))
    }

    fn knee(&self, name: &str, factor: f64) -> f64 {
        self.of(name).map_or(0.0, |sorted| knee(sorted, factor))
    }

    fn of(&self, name: &str) -> Option<&[f64]> {
        self.all.iter().find(|(of, _)| of == name).map(|(_, sorted)| &sorted[..])
    }

    fn outcome(self, context: &Context<'_>, title: &str, reproduced: bool, sentence: String) -> Outcome {
        let chart = Chart {
            title: title.into(),
            x: Axis::log("service time, us"),
            y: Axis::new("percentile").from_to(60.0, 100.0),
            series: self.series,
            names: Vec::new(),
        };
        let real = Chart { title: format!("{title}, measured"), series: Vec::new(), ..chart.clone() };
        let mut charts = vec![("", chart)];
        charts.extend(context.real_chart(real, Style::Line));
        Outcome { rows: self.rows, charts, reproduced, sentence }
    }

    fn add_kernel(&mut self, context: &mut Context<'_>) {
        let settings = settings(context, Balance::new());
        for (name, queues) in [(SHARED, Queues::Shared), (EACH, Queues::Each)] {
            (context.progress)(name);
            self.add(name, sorted(&kernel::serve(&settings, &context.costs, queues)));
        }
    }
}

const SHARED: &str = "kernel, one queue";
const EACH: &str = "kernel, SO_REUSEPORT";
const TOURNAMENT: &str = "Tournament 2";

/// Runs the experiment of Pika's Fig. 5: service times under imbalance, beside the kernel's.
pub(super) fn kernel(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let mut found = Percentiles::new();
    let settings = settings(context, Balance::new());
    let report = context.simulate(TOURNAMENT, settings);
    found.add(TOURNAMENT, report.sorted_services());
    found.add_kernel(context);
    let (own, shared, each) = (found.at(TOURNAMENT, 99.0), found.at(SHARED, 99.0), found.at(EACH, 99.0));
    let knee = found.knee(TOURNAMENT, 10.0);
    let reproduced = knee >= 99.0 && own <= shared && own * 5.0 <= each;
    let sentence = format!(
        "{}: Tournament 2 bends at percentile {knee:.2} (paper: past 99) and has a p99 of {own:.0} us, the \
         kernel's one queue {shared:.0} us, SO_REUSEPORT {each:.0} us (aims: no worse than the one, at most \
         a fifth of the other).",
        said(reproduced)
    );
    Ok(found.outcome(context, "Service times under imbalance (Pika, Fig. 5)", reproduced, sentence))
}

/// Runs the experiment of Pika's Fig. 7: service times under imbalance, by scheme.
pub(super) fn schemes(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let mut found = Percentiles::new();
    for (name, balance) in super::schemes() {
        let settings = settings(context, balance);
        let report = context.simulate(name, settings);
        found.add(name, report.sorted_services());
    }
    found.add_kernel(context);
    let knees: Vec<f64> = super::schemes().iter().map(|(name, _)| found.knee(name, 10.0)).collect();
    let [naive, unfiltered, unfiltered_100, filtered, tournament] = knees[..] else {
        return Err(ExperimentError::Incomplete("a scheme"));
    };
    let good = filtered.min(tournament).min(unfiltered);
    let breaks = found.knee("Naive", 2.0);
    let reproduced = (75.0..90.0).contains(&breaks) && good >= 98.5 && unfiltered_100 < good;
    let sentence = format!(
        "{}: Naive passes twice its median at percentile {breaks:.1} (paper: breaks near 80) and ten times \
         at {naive:.1}; ten times is passed at {unfiltered_100:.1} by Unfiltered 100 (paper: before 99), \
         {unfiltered:.2} by Unfiltered 2, {filtered:.2} by Filtered 2 and {tournament:.2} by Tournament 2 \
         (paper: about 99).",
        said(reproduced)
    );
    Ok(found.outcome(
        context,
        "Service times under imbalance, by scheme (Pika, Fig. 7)",
        reproduced,
        sentence,
    ))
}

/// The values of each application in steps of time.
struct Steps {
    width: u64,
    all: Vec<Vec<Vec<f64>>>,
}

impl Steps {
    fn new(report: &Report, count: u64) -> Steps {
        let width = (report.time().as_nanos() as u64 / count).max(1);
        Steps { width, all: vec![vec![Vec::new(); count as usize]; APPS] }
    }

    fn add(&mut self, at: u64, app: usize, value: f64) {
        if let Some(step) = self.all[app].get_mut((at / self.width) as usize) {
            step.push(value);
        }
    }

    fn seconds(&self, step: usize) -> f64 {
        (step as u64 * self.width) as f64 / 1e9
    }

    fn median(&self, app: usize, step: usize) -> Option<f64> {
        let mut values = self.all[app][step].clone();
        values.sort_by(f64::total_cmp);
        (!values.is_empty()).then(|| percentile(&values, 50.0))
    }

    fn count(&self, app: usize, step: usize) -> f64 {
        self.all[app][step].len() as f64 * 1e9 / self.width as f64
    }

    fn len(&self) -> usize {
        self.all[0].len()
    }
}

fn name(app: usize) -> String {
    let note = match app {
        YELLOW => " (slow early)",
        GREEN => " (slow long)",
        PURPLE => " (always slow)",
        MAGENTA => " (a little slow)",
        _ => "",
    };
    format!("server {app}{note}")
}

/// Runs the experiment of Pika's Fig. 6: whether estimated service times follow the true ones.
pub(super) fn estimates(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let settings = Settings { sample_every: millis(5), ..settings(context, Balance::new()) };
    let report = context.simulate("Tournament 2, with estimates", settings);
    let mut truth = Steps::new(&report, 100);
    let mut thought = Steps::new(&report, 100);
    for service in &report.services {
        truth.add(
            service.closed_at - service.nanos.min(service.closed_at),
            service.app,
            service.nanos as f64 / 1000.0,
        );
    }
    for &(at, app, micros) in &report.estimates {
        thought.add(at, app, micros as f64);
    }
    let mut rows = vec![row(["seconds", "server", "true_us", "estimated_us"])];
    let (mut within, mut compared) = (0, 0);
    let mut series: [Vec<Series>; 2] = [Vec::new(), Vec::new()];
    for app in 0..APPS {
        let mut lines = [Vec::new(), Vec::new()];
        for step in 0..truth.len() {
            let (real, estimated) = (truth.median(app, step), thought.median(app, step));
            for (line, value) in lines.iter_mut().zip([real, estimated]) {
                line.extend(value.map(|value| (truth.seconds(step), value)));
            }
            if let (Some(real), Some(estimated)) = (real, estimated) {
                compared += 1;
                within += u32::from(estimated <= 2.0 * real && real <= 2.0 * estimated);
                rows.push(vec![
                    format!("{:.2}", truth.seconds(step)),
                    app.to_string(),
                    format!("{real:.1}"),
                    format!("{estimated:.1}"),
                ]);
            }
        }
        for (series, line) in series.iter_mut().zip(lines) {
            series.push(Series::line(&name(app), line));
        }
    }
    let share = 100.0 * f64::from(within) / f64::from(compared.max(1));
    let reproduced = share >= 90.0;
    let sentence = format!(
        "{}: in {share:.1} % of the steps of a hundredth of the time each, the estimate is within a factor \
         of 2 of the true median; what is left are the moments after a change, longest for a slow server, \
         which gets few connections to be judged by.",
        said(reproduced)
    );
    let chart = |title: &str, series| Chart {
        title: title.into(),
        x: Axis::new("seconds"),
        y: Axis::log("service time, us"),
        series,
        names: Vec::new(),
    };
    let [real, estimated] = series;
    let charts = vec![
        ("a", chart("True service times (Pika, Fig. 6a)", real)),
        ("b", chart("Estimated service times (Pika, Fig. 6b)", estimated)),
    ];
    Ok(Outcome { rows, charts, reproduced, sentence })
}

/// Runs the experiment of Pika's Fig. 9: which applications get the connections over time.
pub(super) fn shares(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let settings = settings(context, Balance::new());
    let report = context.simulate(TOURNAMENT, settings);
    let mut steps = Steps::new(&report, 50);
    report.assigned.iter().for_each(|assigned| steps.add(assigned.at, assigned.app, 1.0));
    let mut rows = vec![row(["seconds", "server", "connections_per_second"])];
    let mut series = Vec::new();
    for app in 0..APPS {
        let points: Vec<(f64, f64)> =
            (0..steps.len()).map(|step| (steps.seconds(step), steps.count(app, step))).collect();
        rows.extend(
            points.iter().map(|(at, rate)| vec![format!("{at:.2}"), app.to_string(), format!("{rate:.0}")]),
        );
        series.push(Series::line(&name(app), points).styled(Style::Area));
    }
    let sum = |step: usize| (0..APPS).map(|app| steps.count(app, step)).sum::<f64>();
    let least = (0..steps.len()).map(sum).fold(f64::INFINITY, f64::min);
    // Steps 28 and 48 of 50 lie inside the slow time of GREEN and after its end.
    let (slow, after) = (steps.count(GREEN, 28), steps.count(GREEN, 48));
    let purple = (0..steps.len()).map(|step| steps.count(PURPLE, step)).sum::<f64>() / steps.len() as f64;
    let reproduced = least >= 0.98 * 30_000.0 && slow < 0.4 * after && purple < 400.0;
    let sentence = format!(
        "{}: at least {least:.0} of 30,000 connections a second are given out at any time; the server that \
         is slow for long gets {slow:.0} a second then and {after:.0} in the end, the one that is always \
         slow {purple:.0}.",
        said(reproduced)
    );
    let chart = Chart {
        title: "Who gets the connections, Tournament 2 (Pika, Fig. 9)".into(),
        x: Axis::new("seconds"),
        y: Axis::new("connections/s"),
        series,
        names: Vec::new(),
    };
    Ok(Outcome { rows, charts: vec![("", chart)], reproduced, sentence })
}

/// Runs the experiment of Pika's Fig. 10: the share of connections kept at home by a server that slows a
/// little.
pub(super) fn locality(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let mut rows = vec![row(["scheme", "seconds", "assigned_at_home_per_second"])];
    let mut series = Vec::new();
    // For each scheme: the connections a second that are assigned at home before MAGENTA slows, and while it
    // is slow.
    let mut found = Vec::new();
    for (scheme, balance) in super::schemes().into_iter().filter(|(name, _)| name.ends_with(" 2")) {
        let settings = settings(context, balance);
        let report = context.simulate(scheme, settings);
        let mut steps = Steps::new(&report, 50);
        let own = report.assigned.iter().filter(|assigned| assigned.cm == MAGENTA && assigned.app == MAGENTA);
        own.for_each(|assigned| steps.add(assigned.at, MAGENTA, 1.0));
        let points: Vec<(f64, f64)> =
            (0..50).map(|step| (steps.seconds(step), steps.count(MAGENTA, step))).collect();
        let mean = |range: std::ops::Range<usize>| {
            let count = range.len() as f64;
            range.map(|step| points[step].1).sum::<f64>() / count
        };
        found.push((mean(5..30), mean(32..45)));
        rows.extend(
            points.iter().map(|(at, rate)| vec![scheme.into(), format!("{at:.2}"), format!("{rate:.0}")]),
        );
        series.push(Series::line(scheme, points));
    }
    let [unfiltered, filtered, tournament] = found[..] else {
        return Err(ExperimentError::Incomplete("a scheme"));
    };
    let reproduced =
        unfiltered.0 < 0.6 * tournament.0 && filtered.0 > 0.9 * tournament.0 && tournament.1 > filtered.1;
    let sentence = format!(
        "{}: of about 3,750 connections a second that reach server {MAGENTA}'s replica, Unfiltered 2 keeps \
         {:.0} there even before it slows, Filtered 2 {:.0} before and {:.0} while it is a little slow, \
         Tournament 2 {:.0} and {:.0}.",
        said(reproduced),
        unfiltered.0,
        filtered.0,
        filtered.1,
        tournament.0,
        tournament.1
    );
    let chart = Chart {
        title: format!("Connections that server {MAGENTA}'s manager gives to it (Pika, Fig. 10)"),
        x: Axis::new("seconds"),
        y: Axis::new("connections/s"),
        series,
        names: Vec::new(),
    };
    Ok(Outcome { rows, charts: vec![("", chart)], reproduced, sentence })
}

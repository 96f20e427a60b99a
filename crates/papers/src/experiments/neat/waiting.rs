//! How do polling, sleeping and system calls change as the load grows? This repeats NEaT's Table 6.2, and its
//! claim about the library (N2, N7).

use std::time::Duration;

use super::{Measured, WAYS, lighttpd};
use crate::chart::{Axis, Chart, Series, Style};
use crate::configuration::Configuration;
use crate::experiments::scale::said;
use crate::experiments::{Context, ExperimentError, Outcome, row};
use crate::machine::{Load, Purpose, Settings, Waiting};

/// Series `without a system call` (x: connections; y: percent) and `thousand requests a second` (x:
/// connections; y: thousands).
const CALLS: &str = include_str!("../../measured/calls.csv");

/// The state of a driver at one load: requests a second, and three percentages: its time awake, and within
/// that the time in the kernel and the time spent polling.
type Load62 = [f64; 4];

/// Returns the driver's state at loads from very low to the most that it can serve.
fn driver_at(context: &mut Context<'_>, way: &str, waiting: Waiting) -> Result<Vec<Load62>, ExperimentError> {
    let loads: &[u32] =
        if context.quick { &[30, 1000, 16_000] } else { &[10, 30, 100, 300, 1000, 3000, 9000, 16_000] };
    let mut found = Vec::new();
    for &connections in loads {
        let settings = Settings {
            // Each connection makes 100 requests, so the rate of connections decides the rate of requests.
            load: Load::Constant(connections),
            waiting: Some(waiting),
            warm_up: Duration::from_millis(50),
            duration: Duration::from_millis(if connections < 1000 { 1000 } else { 200 }),
            ..lighttpd(context, Configuration::parse("TS3CM3+LS1")?, 6)
        };
        let at = settings.configuration.servers().iter().position(|roles| roles.ls.is_some()).unwrap_or(0);
        let report = context.simulate(&format!("{connections} connections a second, {way}"), settings);
        let of = |purpose| report.core_share(at, purpose);
        let purposes = [Purpose::Link, Purpose::Message, Purpose::Poll, Purpose::Spin, Purpose::Wake];
        let awake: f64 = purposes.into_iter().map(of).sum();
        found.push([
            report.page_rate(),
            100.0 * awake.min(1.0),
            100.0 * of(Purpose::Wake) / awake,
            100.0 * (of(Purpose::Poll) + of(Purpose::Spin)) / awake,
        ]);
    }
    Ok(found)
}

/// Runs the experiment of NEaT's Table 6.2: the process that drives the device for three replicas.
pub(in crate::experiments) fn driver(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let mut rows = vec![row([
        "waiting",
        "requests_per_second",
        "driver_awake_percent",
        "of_that_in_kernel_percent",
        "of_that_polling_percent",
    ])];
    let (mut charts, mut texts, mut verdicts) = (Vec::new(), Vec::new(), Vec::new());
    for ((way, waiting), part) in WAYS.into_iter().zip(["", "-few"]) {
        let found = driver_at(context, way, waiting)?;
        for [rate, awake, kernel, polling] in &found {
            rows.push(vec![
                way.into(),
                format!("{rate:.0}"),
                format!("{awake:.1}"),
                format!("{kernel:.1}"),
                format!("{polling:.1}"),
            ]);
        }
        let [little, .., much] = &found[..] else { return Err(ExperimentError::Incomplete("a load")) };
        verdicts.push(much[1] > 2.0 * little[1] && much[2] < little[2] && much[3] < little[3]);
        texts.push(format!(
            "from {:.0} to {:.0} thousand requests a second it is awake for {:.0} to {:.0} % of the time, of \
             which the kernel takes {:.1} and {:.1} % and looking for work {:.1} and {:.1} %",
            little[0] / 1e3,
            much[0] / 1e3,
            little[1],
            much[1],
            little[2],
            much[2],
            little[3],
            much[3],
        ));
        let of = |name: &str, at: usize| {
            Series::line(name, found.iter().map(|load| (load[0], load[at])).collect())
        };
        let paper = |name: &str, values: [f64; 4]| {
            let points = [3e3, 45e3, 90e3, 242e3].into_iter().zip(values).collect();
            Series::line(name, points).styled(Style::Dashed)
        };
        let chart = Chart {
            title: format!("The driver of three replicas, {way} (NEaT, Table 6.2)"),
            x: Axis::log("requests/s"),
            y: Axis::new("%"),
            series: vec![
                of("awake", 1),
                of("of that in kernel", 2),
                of("of that polling", 3),
                paper("awake (paper)", [6.0, 60.0, 88.0, 97.0]),
                paper("in kernel (paper)", [33.3, 14.2, 5.4, 0.1]),
                paper("polling (paper)", [51.8, 27.9, 19.7, 7.4]),
            ],
            names: Vec::new(),
        };
        charts.push((part, chart));
    }
    let reproduced = verdicts[0];
    let sentence = format!(
        "{}: {} (paper, 3 to 242 thousand: awake 6 to 97 %, kernel 33.3 and 0.1, polling 51.8 and 7.4); if \
         processes look for work only where few talk, as this stack's do, {}.",
        said(reproduced),
        texts[0],
        texts[1]
    );
    Ok(Outcome { rows, charts, reproduced, sentence })
}

/// Runs the experiment of NEaT's N2: the share of the library's calls that need no system call.
pub(in crate::experiments) fn calls(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let measured = Measured::new(context, CALLS);
    let without: Vec<(f64, f64)> = measured.of("without a system call").collect();
    let rates: Vec<(f64, f64)> = measured.of("thousand requests a second").collect();
    let (Some(first), Some(last)) = (without.first(), without.last()) else {
        return Err(ExperimentError::NotMeasured("calls"));
    };
    let mut rows = vec![row(["connections", "requests_per_second", "without_system_call_percent"])];
    for ((connections, percent), (_, rate)) in without.iter().zip(&rates) {
        rows.push(vec![connections.to_string(), format!("{:.0}", 1000.0 * rate), format!("{percent:.2}")]);
    }
    let reproduced = last.1 > 99.0 && first.1 < last.1;
    let sentence = format!(
        "{}: of lighttpd's socket calls {} {:.2} % need no system call with {} connections, {:.1} % with {} \
         (paper: more than 99 % under load).",
        said(reproduced),
        measured.place(),
        last.1,
        last.0,
        first.1,
        first.0,
    );
    let chart = Chart {
        title: "Socket calls without a system call (NEaT, N2)".into(),
        x: Axis::log("connections"),
        y: Axis::new("%").from_to(0.0, 100.0),
        series: vec![Series::line("lighttpd", without)],
        names: Vec::new(),
    };
    Ok(Outcome { rows, charts: vec![("", chart)], reproduced, sentence })
}

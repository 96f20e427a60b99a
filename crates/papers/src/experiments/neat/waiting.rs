//! What becomes of polling, sleeping and system calls as the load grows? NEaT's Table 6.2, and its claim of the library (N2, N7).

use std::time::Duration;

use super::{Measured, lighttpd};
use crate::chart::{Axis, Chart, Series, Style};
use crate::configuration::Configuration;
use crate::experiments::scale::said;
use crate::experiments::{Context, Outcome, row};
use crate::machine::{Load, Purpose, Settings, Waiting};

/// Series `without a system call`: connections, percent; `thousand requests a second`: connections, thousands.
const CALLS: &str = include_str!("../../measured/calls.csv");

/// Table 6.2: the process that drives the device for three replicas.
pub(in crate::experiments) fn driver(context: &mut Context<'_>) -> Result<Outcome, String> {
    let mut rows = vec![row([
        "requests_per_second",
        "driver_awake_percent",
        "of_that_in_kernel_percent",
        "of_that_polling_percent",
    ])];
    let mut series: [Vec<(f64, f64)>; 3] = Default::default();
    let loads: &[u32] = if context.quick { &[30, 1000, 10_000] } else { &[10, 30, 100, 300, 1000, 3000, 6000, 10_000] };
    for &connections in loads {
        let settings = Settings {
            // Each connection has its hundred requests one after another, so this decides how many are made.
            load: Load::Constant(connections),
            waiting: Some(Waiting::default()),
            warm_up: Duration::from_millis(50),
            duration: Duration::from_millis(if connections < 1000 { 1000 } else { 200 }),
            ..lighttpd(context, Configuration::parse("TS3CM3+LS1")?, 6)
        };
        let at = settings.configuration.servers().iter().position(|roles| roles.ls.is_some()).unwrap_or(0);
        let report = context.simulate(&format!("{connections} connections a second"), settings);
        let of = |purpose| report.core_share(at, purpose);
        let purposes = [Purpose::Link, Purpose::Message, Purpose::Poll, Purpose::Spin, Purpose::Wake];
        let awake: f64 = purposes.into_iter().map(of).sum();
        let kernel = of(Purpose::Wake) / awake;
        let polling = (of(Purpose::Poll) + of(Purpose::Spin)) / awake;
        let rate = report.page_rate();
        rows.push(vec![
            format!("{rate:.0}"),
            format!("{:.1}", 100.0 * awake),
            format!("{:.1}", 100.0 * kernel),
            format!("{:.1}", 100.0 * polling),
        ]);
        for (series, share) in series.iter_mut().zip([awake, kernel, polling]) {
            series.push((rate, 100.0 * share));
        }
    }
    let ends = |series: &[(f64, f64)]| (series[0].1, series[series.len() - 1].1);
    let [awake, kernel, polling] = series;
    let ((idle, busy), (slept, sleeps), (polled, polls)) = (ends(&awake), ends(&kernel), ends(&polling));
    let reproduced = busy > 2.0 * idle && sleeps < 0.2 * slept && polls < polled;
    let sentence = format!(
        "{}: from {:.0} to {:.0} thousand requests a second the driver of three replicas is awake for {idle:.0} to {busy:.0} % of the time; of that, sleeping and being \
         woken takes {slept:.1} % at first and {sleeps:.1} % in the end, looking for work {polled:.1} and {polls:.1} % (paper, 3 to 242 thousand: 6 to 97 %; \
         33.3 and 0.1 %; 51.8 and 7.4 %).",
        said(reproduced),
        awake[0].0 / 1e3,
        awake[awake.len() - 1].0 / 1e3,
    );
    let paper = |name: &str, values: [f64; 4]| {
        let points = [3e3, 45e3, 90e3, 242e3].into_iter().zip(values).collect();
        Series::line(name, points).styled(Style::Dashed)
    };
    let chart = Chart {
        title: "What the driver of three replicas does (NEaT, Table 6.2)".into(),
        x: Axis::log("requests/s"),
        y: Axis::new("%"),
        series: vec![
            Series::line("awake", awake),
            Series::line("of that in kernel", kernel),
            Series::line("of that polling", polling),
            paper("awake (paper)", [6.0, 60.0, 88.0, 97.0]),
            paper("in kernel (paper)", [33.3, 14.2, 5.4, 0.1]),
            paper("polling (paper)", [51.8, 27.9, 19.7, 7.4]),
        ],
        names: Vec::new(),
    };
    Ok(Outcome { rows, charts: vec![("", chart)], reproduced, sentence })
}

/// The share of the library's calls that need no system call.
pub(in crate::experiments) fn calls(context: &mut Context<'_>) -> Result<Outcome, String> {
    let measured = Measured::new(context, CALLS);
    let without: Vec<(f64, f64)> = measured.of("without a system call").collect();
    let rates: Vec<(f64, f64)> = measured.of("thousand requests a second").collect();
    let (Some(first), Some(last)) = (without.first(), without.last()) else {
        return Err("no calls were measured".into());
    };
    let mut rows = vec![row(["connections", "requests_per_second", "without_system_call_percent"])];
    for ((connections, percent), (_, rate)) in without.iter().zip(&rates) {
        rows.push(vec![connections.to_string(), format!("{:.0}", 1000.0 * rate), format!("{percent:.2}")]);
    }
    let reproduced = last.1 > 99.0 && first.1 < last.1;
    let sentence = format!(
        "{}: of lighttpd's socket calls {} {:.2} % need no system call with {} connections, {:.1} % with {} (paper: more than 99 % under load).",
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

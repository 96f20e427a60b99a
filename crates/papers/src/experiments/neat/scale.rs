//! How does throughput grow with replicas and web servers? This repeats NEaT's Fig. 6.6, 6.9 and 6.11
//! (persistent connections) and 6.12 (one request each).

use std::time::Duration;

use super::{CORES, Form, Measured, WAYS, lighttpd};
use crate::chart::{Axis, Chart, Series, Style};
use crate::experiments::scale::said;
use crate::experiments::{Context, ExperimentError, Outcome, row};
use crate::machine::{Load, Settings, Waiting};

/// Series `Linux`, `NEaT` and `Multi` (x: lighttpd processes, as many as CPUs and replicas; y: requests a
/// second).
const LIGHTTPD: &str = include_str!("../../measured/lighttpd.csv");

// structure: replicas: one experiment from its settings to its sentence
/// Runs the experiment of NEaT's Fig. 6.6, 6.9 and 6.11: web servers are added until no core is left.
pub(in crate::experiments) fn replicas(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let counts: &[usize] = if context.quick { &[1, 4, 6, 10] } else { &[1, 2, 3, 4, 5, 6, 8, 10, 12, 14] };
    let mut rows = vec![row(["stack", "cores_of_the_stack", "web_servers", "requests_per_second"])];
    let mut series = Vec::new();
    let mut best = Vec::new();
    for (form, n) in [
        (Form::Single, 1),
        (Form::Single, 2),
        (Form::Single, 3),
        (Form::Single, 4),
        (Form::Multi, 1),
        (Form::Multi, 2),
        (Form::Multi, 3),
    ] {
        let name = form.of(n);
        let mut points = Vec::new();
        for &apps in counts.iter().filter(|&&apps| apps + n * form.cores() <= CORES) {
            let settings = lighttpd(context, form.configuration(n)?, apps);
            let rate = context.simulate(&format!("{name}, {apps} web servers"), settings).page_rate();
            rows.push(vec![
                name.clone(),
                (n * form.cores()).to_string(),
                apps.to_string(),
                format!("{rate:.0}"),
            ]);
            points.push((apps as f64, rate));
        }
        best.push((form, n, points[0].1, points.iter().map(|point| point.1).fold(0.0, f64::max)));
        series.push(Series::line(&name, points));
    }
    let of = |form, n| best.iter().find(|(f, m, ..)| (*f, *m) == (form, n)).map_or(0.0, |(.., most)| *most);
    let [one, two, three, four] = [1, 2, 3, 4].map(|n| of(Form::Single, n));
    let [multi, multi_two, multi_three] = [1, 2, 3].map(|n| of(Form::Multi, n));
    let alone = best[0].2;
    let grows =
        two > 1.3 * one && three > two && four > three && multi_two > 1.3 * multi && multi_three > multi_two;
    let reproduced = grows && one > 1.5 * alone;
    let measured = Measured::new(context, LIGHTTPD);
    let most_cpus = |series| {
        measured
            .of(series)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .ok_or(ExperimentError::NotMeasured("requests of lighttpd"))
    };
    let ((cpus, linux), (_, neat), (_, parts)) =
        (most_cpus("Linux")?, most_cpus("NEaT")?, most_cpus("Multi")?);
    let million = |rate: f64| format!("{:.2}", rate / 1e6);
    let sentence = format!(
        "{}: one replica serves {} million requests a second at most, {} web servers' worth, and 2, 3 and 4 \
         replicas {}, {} and {}; with TCP and IP apart 1, 2 and 3 replicas serve {}, {} and {} (paper: web \
         servers saturate a replica, another replica helps). lighttpd {} with {:.0} CPUs for everything: \
         Linux {:.0} thousand requests a second, one component {:.0} ({:+.1} %), TCP and IP apart {:.0} \
         (paper, 8 cores: Linux 328, NEaT 372, +13.4 %).",
        said(reproduced),
        million(one),
        (one / alone).round(),
        million(two),
        million(three),
        million(four),
        million(multi),
        million(multi_two),
        million(multi_three),
        measured.place(),
        cpus,
        linux / 1e3,
        neat / 1e3,
        100.0 * (neat / linux - 1.0),
        parts / 1e3,
    );
    let chart = Chart {
        title: "Web servers and replicas, 100 requests a connection (NEaT, Fig. 6.6, 6.9, 6.11)".into(),
        x: Axis::new("web servers"),
        y: Axis::new("requests/s"),
        series,
        names: Vec::new(),
    };
    let marks = |name: &&str| Series::line(name, measured.of(name).collect()).styled(Style::Marks);
    let real = Chart {
        title: "lighttpd, as many as CPUs, beside their clients (measured)".into(),
        x: Axis::new("web servers").from_to(0.0, cpus + 1.0),
        series: measured.names().iter().map(marks).collect(),
        ..chart.clone()
    };
    let charts = vec![("", chart), ("-real", real)];
    Ok(Outcome { rows, charts, reproduced, sentence })
}

/// The loads of Fig. 6.12: web servers, and concurrent connections.
const LOADS: [(usize, u32); 6] = [(1, 8), (1, 16), (1, 32), (1, 64), (2, 32), (4, 64)];
/// The stacks of Fig. 6.12.
const STACKS: [(Form, usize); 5] =
    [(Form::Multi, 1), (Form::Multi, 2), (Form::Single, 1), (Form::Single, 2), (Form::Single, 3)];

/// Returns the connections a second of each stack under each load.
fn rates(context: &mut Context<'_>, way: &str, waiting: Waiting) -> Result<Vec<Vec<f64>>, ExperimentError> {
    let mut all = Vec::new();
    for (form, n) in STACKS {
        let mut rates = Vec::new();
        for (apps, connections) in LOADS {
            let settings = Settings {
                load: Load::Closed(connections),
                requests: 1,
                waiting: Some(waiting),
                cores_per_socket: 12,
                // Few connections on sleeping processes make few requests, so the run is longer.
                duration: Duration::from_millis(if context.quick { 50 } else { 300 }),
                ..lighttpd(context, form.configuration(n)?, apps)
            };
            let what = format!("{}, {apps} web servers, {connections} connections, {way}", form.of(n));
            rates.push(context.simulate(&what, settings).rate());
        }
        all.push(rates);
    }
    Ok(all)
}

/// Runs the experiment of NEaT's Fig. 6.12: few connections and many, on stacks with ever more processes,
/// which sleep when they are idle.
pub(in crate::experiments) fn configurations(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let mut rows = vec![row(["waiting", "stack", "web_servers", "connections", "per_second"])];
    let mut charts = Vec::new();
    let mut texts = Vec::new();
    let mut verdicts = Vec::new();
    for ((way, waiting), part) in WAYS.into_iter().zip(["", "-few"]) {
        let rates = rates(context, way, waiting)?;
        let mut series = Vec::new();
        for ((form, n), rates) in STACKS.into_iter().zip(&rates) {
            for ((apps, connections), rate) in LOADS.into_iter().zip(rates) {
                let fields =
                    [way.into(), form.of(n), apps.to_string(), connections.to_string(), format!("{rate:.0}")];
                rows.push(fields.to_vec());
            }
            let points = rates.iter().enumerate().map(|(at, rate)| (at as f64, *rate)).collect();
            series.push(Series::line(&form.of(n), points));
        }
        let [multi, multi_two, one, two, three] = &rates[..] else {
            return Err(ExperimentError::Incomplete("a stack"));
        };
        let last = LOADS.len() - 1;
        verdicts.push((
            multi[0] > multi_two[0] && one[0] > two[0],
            multi_two[last] > multi[last] && two[last] > one[last] && three[last] > two[last],
        ));
        let thousand = |rate: f64| format!("{:.0}", rate / 1e3);
        texts.push(format!(
            "a second replica changes {} thousand connections a second to {} with one web server and 8 \
             connections, with TCP and IP apart {} to {}; with 4 and 64 one, two and three replicas serve \
             {}, {} and {}, with TCP and IP apart one and two {} and {}",
            thousand(one[0]),
            thousand(two[0]),
            thousand(multi[0]),
            thousand(multi_two[0]),
            thousand(one[last]),
            thousand(two[last]),
            thousand(three[last]),
            thousand(multi[last]),
            thousand(multi_two[last]),
        ));
        let name =
            |(apps, connections)| format!("{apps} server{}, {connections}", if apps > 1 { "s" } else { "" });
        let chart = Chart {
            title: format!("One request a connection, {way} (NEaT, Fig. 6.12)"),
            x: Axis::new(""),
            y: Axis::new("connections/s"),
            series,
            names: LOADS.into_iter().map(name).collect(),
        };
        charts.push((part, chart));
    }
    let (few, many) = verdicts[0];
    let verdict = match (few, many) {
        (true, true) => "Reproduced",
        (false, true) => "Reproduced for many connections, not for few",
        (true, false) => "Reproduced for few connections, not for many",
        (false, false) => "Not reproduced",
    };
    let sentence = format!(
        "{verdict}: {} (paper: a second replica makes it worse with few connections, better with many); if \
         processes look for work only where few talk, as this stack's do, {}.",
        texts[0], texts[1]
    );
    Ok(Outcome { rows, charts, reproduced: few && many, sentence })
}

//! How does throughput grow with replicas and web servers? NEaT's Fig. 6.6, 6.9 and 6.11 (persistent connections) and 6.12 (one request each).

use std::time::Duration;

use super::{CORES, Form, lighttpd};
use crate::chart::{Axis, Chart, Series};
use crate::experiments::scale::said;
use crate::experiments::{Context, Outcome, row};
use crate::machine::{Load, Settings, Waiting};

/// Fig. 6.6, 6.9, 6.11: web servers are added until no core is left.
pub(in crate::experiments) fn replicas(context: &mut Context<'_>) -> Result<Outcome, String> {
    let counts: &[usize] = if context.quick { &[1, 4, 8, 14] } else { &[1, 2, 3, 4, 5, 6, 8, 10, 12, 14] };
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
        let name = format!("{} {n}x", if form == Form::Single { "NEaT" } else { "Multi" });
        let mut points = Vec::new();
        for &apps in counts.iter().filter(|&&apps| apps + n * form.cores() <= CORES) {
            let settings = lighttpd(context, form.configuration(n)?, apps);
            let rate = context.simulate(&format!("{name}, {apps} web servers"), settings).page_rate();
            rows.push(vec![name.clone(), (n * form.cores()).to_string(), apps.to_string(), format!("{rate:.0}")]);
            points.push((apps as f64, rate));
        }
        best.push((form, n, points[0].1, points.iter().map(|point| point.1).fold(0.0, f64::max)));
        series.push(Series::line(&name, points));
    }
    let of = |form, n| best.iter().find(|(f, m, ..)| (*f, *m) == (form, n)).map_or(0.0, |(.., most)| *most);
    let [one, two, three, four] = [1, 2, 3, 4].map(|n| of(Form::Single, n));
    let [multi, multi_two, multi_three] = [1, 2, 3].map(|n| of(Form::Multi, n));
    let alone = best[0].2;
    let grows = two > 1.5 * one && three > two && four > three && multi_two > 1.5 * multi && multi_three > multi_two;
    let reproduced = grows && one > 1.5 * alone;
    let million = |rate: f64| format!("{:.2}", rate / 1e6);
    let sentence = format!(
        "{}: one replica serves {} million requests a second at most, {} web servers' worth, and 2, 3 and 4 replicas {}, {} and {}; with TCP \
         and IP apart 1, 2 and 3 replicas serve {}, {} and {} (paper: more web servers saturate a replica, another replica helps; 4 replicas 372 \
         thousand). Linux's 328 thousand cannot be had on the cores at hand.",
        said(reproduced),
        million(one),
        (one / alone).round(),
        million(two),
        million(three),
        million(four),
        million(multi),
        million(multi_two),
        million(multi_three),
    );
    let chart = Chart {
        title: "Web servers and replicas, 100 requests a connection (NEaT, Fig. 6.6, 6.9, 6.11)".into(),
        x: Axis::new("web servers"),
        y: Axis::new("requests/s"),
        series,
        names: Vec::new(),
    };
    let real = Chart {
        title: "lighttpd, as many as CPUs, beside their clients (measured)".into(),
        x: Axis::new("web servers").from_to(0.0, 3.0),
        ..chart.clone()
    };
    let mut charts = vec![("", chart)];
    charts.extend(context.real_chart(real, crate::chart::Style::Marks));
    Ok(Outcome { rows, charts, reproduced, sentence })
}

/// Fig. 6.12: few connections and many, on stacks of ever more processes, which sleep when there is nothing to do.
pub(in crate::experiments) fn configurations(context: &mut Context<'_>) -> Result<Outcome, String> {
    let loads = [(1, 8), (1, 16), (1, 32), (1, 64), (2, 32), (4, 64)];
    let stacks = [(Form::Multi, 1), (Form::Multi, 2), (Form::Single, 1), (Form::Single, 2), (Form::Single, 3)];
    let names: Vec<String> = loads
        .iter()
        .map(|(apps, connections)| format!("{apps} server{}, {connections}", if *apps > 1 { "s" } else { "" }))
        .collect();
    let mut rows = vec![row(["stack", "web_servers", "connections", "per_second"])];
    let mut series = Vec::new();
    let mut rates = Vec::new();
    for (form, n) in stacks {
        let name = format!("{} {n}x", if form == Form::Single { "NEaT" } else { "Multi" });
        let mut points = Vec::new();
        for (at, (apps, connections)) in loads.into_iter().enumerate() {
            let settings = Settings {
                load: Load::Closed(connections),
                requests: 1,
                waiting: Some(Waiting::default()),
                cores_per_socket: 12,
                // Few connections that wait for sleepers make few requests.
                duration: Duration::from_millis(if context.quick { 50 } else { 300 }),
                ..lighttpd(context, form.configuration(n)?, apps)
            };
            let rate =
                context.simulate(&format!("{name}, {apps} web servers, {connections} connections"), settings).rate();
            rows.push(vec![name.clone(), apps.to_string(), connections.to_string(), format!("{rate:.0}")]);
            points.push((at as f64, rate));
        }
        rates.push(points.iter().map(|point| point.1).collect::<Vec<f64>>());
        series.push(Series::line(&name, points));
    }
    let last = loads.len() - 1;
    let (multi, multi_two, one, two, three) = (&rates[0], &rates[1], &rates[2], &rates[3], &rates[4]);
    let few = multi[0] > multi_two[0] && one[0] > two[0];
    let many = multi_two[last] > multi[last] && two[last] > one[last] && three[last] > two[last];
    let verdict = match (few, many) {
        (true, true) => "Reproduced",
        (false, true) => "Reproduced for many connections, not for few",
        (true, false) => "Reproduced for few connections, not for many",
        (false, false) => "Not reproduced",
    };
    let thousand = |rate: f64| format!("{:.0}", rate / 1e3);
    let sentence = format!(
        "{verdict}: with one web server and 8 connections a second replica changes {} thousand connections a second to {}, with TCP and IP apart \
         {} to {} (paper: both lower); with 4 web servers and 64 connections 1, 2 and 3 replicas serve {}, {} and {} thousand, with TCP and IP apart 1 and \
         2 {} and {}.",
        thousand(one[0]),
        thousand(two[0]),
        thousand(multi[0]),
        thousand(multi_two[0]),
        thousand(one[last]),
        thousand(two[last]),
        thousand(three[last]),
        thousand(multi[last]),
        thousand(multi_two[last]),
    );
    let chart = Chart {
        title: "One request a connection, by load (NEaT, Fig. 6.12)".into(),
        x: Axis::new(""),
        y: Axis::new("connections/s"),
        series,
        names,
    };
    Ok(Outcome { rows, charts: vec![("", chart)], reproduced: few && many, sentence })
}

//! What is lost when a component dies, and what does it cost to lose less? This repeats NEaT's Fig. 6.13, and
//! its recoveries.
//!
//! As in the thesis, a fault is equally likely anywhere in the code. The share of a component in the code
//! ([`SIZES`]) is then the probability that the fault is in that component, and the process that holds it
//! dies. The cost of a death was measured, not assumed: real processes were killed under load
//! (`bench/faults.py`), with NEaT's recovery (`stateless`) and with this stack's (`stateful`).

use super::{CORES, Form, Measured, lighttpd};
use crate::chart::{Axis, Chart, Series, Style};
use crate::configuration::Roles;
use crate::experiments::scale::said;
use crate::experiments::{Context, ExperimentError, Outcome, row};
use crate::machine::Purpose;

/// Deaths: series `CONFIGURATION:KIND RECOVERY[ others]`; x: connections at the death, y: those of them that
/// survived.
const DEATHS: &str = include_str!("../../measured/deaths.csv");
/// Waits: series `KIND[ (others)]`; x: milliseconds (0 for less than one), y: percentile.
const WAITS: &str = include_str!("../../measured/waits.csv");

/// The lines of code of each component, without blank lines, comments and tests. A test counts them again.
/// Code that all processes share (layouts, system calls, the servers' loop) counts for no component.
pub(super) const SIZES: [(&str, f64); 4] = [("TS", 16121.0), ("IP", 5614.0), ("LS", 1135.0), ("CM", 2933.0)];

/// What happened to the connections in all deaths of one kind of process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Fate {
    deaths: usize,
    served: f64,
    kept: f64,
    /// The least and the greatest share of connections that survived one death, 0 to 1.
    low: f64,
    high: f64,
}

impl Fate {
    fn of(deaths: impl Iterator<Item = (f64, f64)>) -> Fate {
        let mut fate = Fate { low: 1.0, ..Fate::default() };
        for (served, kept) in deaths.filter(|(served, _)| *served > 0.0) {
            fate.deaths += 1;
            (fate.served, fate.kept) = (fate.served + served, fate.kept + kept);
            (fate.low, fate.high) = (fate.low.min(kept / served), fate.high.max(kept / served));
        }
        fate
    }

    /// Returns the share of connections that survived, 0 to 1; 1 if there were none.
    fn share(&self) -> f64 {
        if self.served > 0.0 { self.kept / self.served } else { 1.0 }
    }
}

/// Returns what happens to connections when a process with these components dies: to its own, and to those of
/// other processes. `recovery` is `stateless` (NEaT's) or `stateful` (this stack's).
fn fate(measured: &Measured<'_>, kind: &str, recovery: &str) -> Result<(Fate, Fate), ExperimentError> {
    let ending = format!(":{kind} {recovery}");
    let names = measured.names();
    let Some(name) = names.iter().find(|name| name.ends_with(&ending)) else {
        return Err(ExperimentError::NoDeathOf { kind: kind.into(), recovery: recovery.into() });
    };
    let (own, others) = (Fate::of(measured.of(name)), Fate::of(measured.of(&format!("{name} others"))));
    if own.deaths == 0 { Err(ExperimentError::NoDeaths(name.to_string())) } else { Ok((own, others)) }
}

/// Returns the components of a process in the notation of `bench/faults.py`, such as `TSCM`.
fn kind(roles: &Roles) -> String {
    [("TS", roles.ts), ("IP", roles.ip), ("LS", roles.ls), ("CM", roles.cm)]
        .into_iter()
        .filter_map(|(name, number)| number.map(|_| name))
        .collect()
}

/// Returns the expected share of connections that survive a fault, 0 to 1. `weights` has the relative
/// probability of a fault in each component.
fn preserved(
    measured: &Measured<'_>,
    form: Form,
    n: usize,
    recovery: &str,
    weights: &[(&str, f64)],
) -> Result<f64, ExperimentError> {
    let configuration = form.configuration(n)?;
    let all: f64 = weights.iter().map(|(_, weight)| weight).sum();
    let mut expected = 0.0;
    for (component, weight) in weights {
        let Some(kind) = configuration.servers().iter().map(kind).find(|kind| kind.contains(component))
        else {
            let (configuration, component) = (configuration.to_string(), component.to_string());
            return Err(ExperimentError::NoComponent { configuration, component });
        };
        let (own, others) = fate(measured, &kind, recovery)?;
        // Each process of a kind serves as many connections as any other.
        let share = 1.0 / n as f64;
        expected += weight / all * (share * own.share() + (1.0 - share) * others.share());
    }
    Ok(expected)
}

/// The columns of [`kept`].
const KEPT: [&str; 9] = [
    "case",
    "recovery",
    "deaths",
    "connections_served",
    "kept_percent",
    "least_percent",
    "greatest_percent",
    "connections_of_others",
    "others_kept_percent",
];

/// Runs the experiment of what each kind of process takes with it when it dies.
pub(in crate::experiments) fn kept(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let measured = Measured::new(context, DEATHS);
    let mut rows = vec![row(KEPT)];
    let names: Vec<&str> = measured.names().into_iter().filter(|name| name.ends_with(" stateful")).collect();
    let mut bars: [Vec<(f64, f64)>; 2] = Default::default();
    let (mut deaths, mut connections, mut lost) = (0, 0.0, 0.0);
    let (mut stateless_of_ts, mut stateless_of_others, mut others_lost) = (0.0f64, 1.0f64, 0.0);
    for (at, name) in names.iter().enumerate() {
        let case = name.trim_end_matches(" stateful");
        let Some((_, kind)) = case.split_once(':') else {
            return Err(ExperimentError::NoKind(name.to_string()));
        };
        for (bars, recovery) in bars.iter_mut().zip(["stateless", "stateful"]) {
            let series = format!("{case} {recovery}");
            let own = Fate::of(measured.of(&series));
            let others = Fate::of(measured.of(&format!("{series} others")));
            let percent = |share: f64| format!("{:.1}", 100.0 * share);
            rows.push(vec![
                case.to_string(),
                recovery.into(),
                own.deaths.to_string(),
                own.served.to_string(),
                percent(own.share()),
                percent(own.low),
                percent(own.high),
                others.served.to_string(),
                percent(others.share()),
            ]);
            bars.push((at as f64, 100.0 * own.share()));
            others_lost += others.served - others.kept;
            deaths += own.deaths;
            match (recovery, kind.contains("TS")) {
                ("stateful", _) => {
                    (connections, lost) = (connections + own.served, lost + own.served - own.kept)
                }
                (_, true) => stateless_of_ts = stateless_of_ts.max(own.share()),
                (_, false) => stateless_of_others = stateless_of_others.min(own.share()),
            }
        }
    }
    if deaths == 0 {
        return Err(ExperimentError::NotMeasured("deaths"));
    }
    let reproduced =
        stateless_of_ts == 0.0 && stateless_of_others == 1.0 && others_lost == 0.0 && lost == 0.0;
    let sentence = format!(
        "{}: {deaths} processes were killed {} with connections at work; with NEaT's recovery the \
         connections of a process that holds TCP keep {:.1} % of themselves and those of IP, link servers \
         and connection managers {:.1} % (paper: none and all); with this stack's {lost:.0} of \
         {connections:.0} were lost, whichever died; of connections that another replica served, \
         {others_lost:.0}.",
        said(reproduced),
        measured.place(),
        100.0 * stateless_of_ts,
        100.0 * stateless_of_others,
    );
    let [stateless, stateful] = bars;
    let chart = Chart {
        title: "Connections that outlive the process that served them (NEaT, N4 and N6)".into(),
        x: Axis::new(""),
        y: Axis::new("% kept").from_to(0.0, 105.0),
        series: vec![Series::line("NEaT's recovery", stateless), Series::line("this stack's", stateful)],
        names: names.iter().map(|name| name.trim_end_matches(" stateful").to_string()).collect(),
    };
    Ok(Outcome { rows, charts: vec![("", chart)], reproduced, sentence })
}

// structure: throughput: one experiment from its settings to its sentence
/// Runs the experiment of NEaT's Fig. 6.13: state kept after a fault, against throughput.
pub(in crate::experiments) fn throughput(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let measured = Measured::new(context, DEATHS);
    let by_time = time_in_components(context)?;
    let most = if context.quick { 2 } else { CORES };
    let mut rows = vec![row([
        "form",
        "configuration",
        "cores_of_the_stack",
        "requests_per_second",
        "stateless_percent",
        "stateless_percent_by_time",
        "stateful_percent",
    ])];
    let (mut series, mut ours) = (Vec::new(), Vec::new());
    let mut found = Vec::new();
    for form in [Form::Single, Form::Multi, Form::Apart] {
        let (mut neat, mut stateful) = (Vec::new(), Vec::new());
        for n in (1..=most).filter(|n| 2 * n * form.cores() <= CORES) {
            let (name, rate) = most_of(context, form, n)?;
            let percent = |recovery, weights: &[(&str, f64)]| {
                preserved(&measured, form, n, recovery, weights).map(|share| 100.0 * share)
            };
            let (old, new) = (percent("stateless", &SIZES)?, percent("stateful", &SIZES)?);
            rows.push(vec![
                form.name().into(),
                name,
                (n * form.cores()).to_string(),
                format!("{rate:.0}"),
                format!("{old:.1}"),
                format!("{:.1}", percent("stateless", &by_time)?),
                format!("{new:.1}"),
            ]);
            neat.push((rate, old));
            stateful.push((rate, new));
            found.push((form, n, rate, old, new));
        }
        series.push(Series::line(&format!("{}, stateless", form.name()), neat));
        ours.push(Series::line(&format!("{}, stateful", form.name()), stateful).styled(Style::Marks));
    }
    series.extend(ours);
    let of = |form, n| found.iter().find(|(f, m, ..)| (*f, *m) == (form, n)).copied();
    let first_and_last = |form| {
        let mut all = found.iter().filter(|(f, ..)| *f == form);
        let first = all.next()?;
        Some((*first, *all.next_back()?))
    };
    let (Some((one, many)), Some((two_parts, many_parts)), Some(two)) =
        (first_and_last(Form::Single), first_and_last(Form::Multi), of(Form::Single, 2))
    else {
        return Err(ExperimentError::Incomplete("a configuration"));
    };
    let grows = many.2 > one.2 && many.3 > one.3 && many_parts.2 > two_parts.2 && many_parts.3 > two_parts.3;
    // With equal numbers of replicas, those in parts keep more.
    let parts_keep_more = two_parts.3 > one.3;
    // With equal numbers of cores, two replicas of one component compete with one replica of two.
    let of_two_cores = match (two.2 > two_parts.2, two.3 > two_parts.3) {
        (true, true) => "one component is better at both",
        (false, false) => "two components are better at both",
        _ => "each is better at one",
    };
    let least = found.iter().map(|(.., new)| *new).fold(f64::INFINITY, f64::min);
    let reproduced = grows && parts_keep_more;
    let million = |rate: f64| format!("{:.2}", rate / 1e6);
    let sentence = format!(
        "{}: with NEaT's recovery {} replicas of one component keep {:.1} % of the connections at {} million \
         requests a second, one none at {}; with TCP and IP apart {} keep {:.1} % at {}, one {:.1} % at {}: \
         both grow with the cores; of two cores, {of_two_cores} ({:.1} % at {}, {:.1} % at {}); with this \
         stack's recovery none keeps less than {least:.1} %. Weights are lines of code: TS {:.0} %, IP {:.0} \
         %, LS {:.0} %, CM {:.0} %.",
        said(reproduced),
        many.1,
        many.3,
        million(many.2),
        million(one.2),
        many_parts.1,
        many_parts.3,
        million(many_parts.2),
        two_parts.3,
        million(two_parts.2),
        two.3,
        million(two.2),
        two_parts.3,
        million(two_parts.2),
        share_of(&SIZES, 0),
        share_of(&SIZES, 1),
        share_of(&SIZES, 2),
        share_of(&SIZES, 3),
    );
    let chart = Chart {
        title: "State that outlives a fault, and throughput (NEaT, Fig. 6.13)".into(),
        x: Axis::new("requests/s"),
        y: Axis::new("% of connections kept").from_to(0.0, 105.0),
        series,
        names: Vec::new(),
    };
    Ok(Outcome { rows, charts: vec![("", chart)], reproduced, sentence })
}

/// Returns the configuration's name and the most requests a second that it serves. It tries several numbers
/// of web servers: one for each process of the stack, two, three or four for each replica, and all that fit.
fn most_of(context: &mut Context<'_>, form: Form, n: usize) -> Result<(String, f64), ExperimentError> {
    let (cores, mut best) = (n * form.cores(), 0.0f64);
    let configuration = form.configuration(n)?;
    let mut counts = vec![cores, 2 * n, 3 * n, 4 * n, CORES - cores];
    counts.sort_unstable();
    counts.dedup();
    for apps in counts.into_iter().filter(|apps| apps + cores <= CORES) {
        let settings = lighttpd(context, configuration.clone(), apps);
        best =
            best.max(context.simulate(&format!("{configuration}, {apps} web servers"), settings).page_rate());
    }
    Ok((configuration.to_string(), best))
}

fn share_of(weights: &[(&str, f64)], at: usize) -> f64 {
    100.0 * weights[at].1 / weights.iter().map(|(_, weight)| weight).sum::<f64>()
}

/// Returns the share of time that each component takes when each is a process. These are other weights, for
/// faults whose probability grows with the time that code runs.
fn time_in_components(context: &mut Context<'_>) -> Result<Vec<(&'static str, f64)>, ExperimentError> {
    let settings = lighttpd(context, Form::Apart.configuration(1)?, 4);
    let report = context.simulate("time in each component", settings);
    let of = |purposes: &[Purpose]| purposes.iter().map(|purpose| report.share(*purpose)).sum();
    Ok(vec![
        ("TS", of(&[Purpose::Tcp])),
        ("IP", of(&[Purpose::Ip])),
        ("LS", of(&[Purpose::Link])),
        ("CM", of(&[Purpose::Cm, Purpose::Peer])),
    ])
}

/// The time after which a peer on Linux retransmits if no answer arrives, in milliseconds (RFC 6298 has one
/// second; Linux has 200 ms).
const AGAIN_MS: f64 = 200.0;

/// Runs the experiment of how long connections wait when a process dies and its successor takes over.
pub(in crate::experiments) fn recovery(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let measured = Measured::new(context, WAITS);
    let mut rows = vec![row(["died", "percentile", "wait_ms"])];
    let mut series = Vec::new();
    let mut texts = Vec::new();
    let (mut reproduced, mut longest, mut longest_other) = (true, 0.0f64, 0.0f64);
    for name in measured.names() {
        let points: Vec<(f64, f64)> = measured.of(name).collect();
        rows.extend(
            points.iter().map(|(ms, percent)| vec![name.into(), percent.to_string(), format!("{ms:.3}")]),
        );
        let most = points.iter().map(|point| point.0).fold(0.0, f64::max);
        let at =
            |percent: f64| points.iter().find(|point| point.1 >= percent).map_or(f64::NAN, |point| point.0);
        if name.ends_with("(others)") {
            longest_other = longest_other.max(most);
            // A connection whose process survives loses no frame, so its peer does not retransmit.
            reproduced &= most < AGAIN_MS;
        } else {
            longest = longest.max(most);
            texts.push(format!("{name} {:.1} and {:.1} ms", at(50.0), at(99.0)));
            // Peers may retransmit once, but not twice.
            reproduced &= at(99.0) < 2.0 * AGAIN_MS;
        }
        let style = if name.ends_with("(others)") { Style::Dashed } else { Style::Line };
        series.push(Series::line(name, points).styled(style));
    }
    if texts.is_empty() {
        return Err(ExperimentError::NotMeasured("waits"));
    }
    let sentence = format!(
        "{}: when a process dies {} the connections it served wait, median and 99th percentile, {}; at most \
         {longest:.0} ms, those of the other replica at most {longest_other:.0} ms, on processors that all \
         processes share (paper: no numbers; only what died is out of service, for a short time).",
        said(reproduced),
        measured.place(),
        texts.join(", ")
    );
    let chart = Chart {
        title: "Waits of busy connections when a process dies (NEaT, N4)".into(),
        x: Axis::new("wait, ms"),
        y: Axis::new("% of connections").from_to(0.0, 100.0),
        series,
        names: Vec::new(),
    };
    Ok(Outcome { rows, charts: vec![("", chart)], reproduced, sentence })
}

#[cfg(test)]
mod tests;

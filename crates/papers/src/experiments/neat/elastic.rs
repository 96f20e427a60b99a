//! Do replicas scale under load without harm to a connection? This repeats NEaT's scaling up and down (N3,
//! §6.3.4), of which the thesis shows no figure.
//!
//! NEaT adds and ends replicas, leaves connections where they are, and waits until the last connection of a
//! replica closes. Here replicas move between processes together with their connections. The cost of a move
//! was measured on a real machine. The throughput of more processes, each on a core of its own, is simulated
//! without moves, one simulation for each number of processes.

use super::{CORES, Form, Measured, lighttpd};
use crate::chart::{Axis, Chart, Series, Style};
use crate::experiments::scale::said;
use crate::experiments::{Context, ExperimentError, Outcome, row};

/// Series `requests` (x: seconds; y: requests a second in that tenth of a second), `asked` and `reached` (x:
/// seconds; y: processes), and totals with x = 0: `failed`, `lost`, `moves`, `deaths`, `slowest ms` and `away
/// ms`.
const SCALING: &str = include_str!("../../measured/scaling.csv");

/// The numbers of processes that hold the replicas, one after another.
const PROCESSES: [usize; 4] = [1, 2, 4, 1];
/// The number of web servers in the simulated machine, whatever the number of processes.
const WEB_SERVERS: usize = CORES - 4;

// structure: scaling: one experiment from its settings to its sentence
/// Runs the experiment of NEaT's scaling: throughput over time while replicas move to other processes.
pub(in crate::experiments) fn scaling(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let measured = Measured::new(context, SCALING);
    let requests: Vec<(f64, f64)> = measured.of("requests").collect();
    let (asked, reached): (Vec<_>, Vec<_>) =
        (measured.of("asked").collect(), measured.of("reached").collect());
    let [failed, lost, moves, slowest, away] =
        ["failed", "lost", "moves", "slowest ms", "away ms"].map(|name| result(&measured, name));
    let (failed, lost, moves, slowest, away) = (failed?, lost?, moves?, slowest?, away?);
    if requests.is_empty() || reached.is_empty() {
        return Err(ExperimentError::NotMeasured("requests"));
    }
    let last = requests.iter().map(|point| point.0).fold(0.0, f64::max);
    // The mean rate between reaching a number of processes and asking for the next one.
    let mut steady = Vec::new();
    for (at, (since, processes)) in reached.iter().enumerate() {
        let until = asked.get(at).map_or(last, |point| point.0);
        let rates: Vec<f64> =
            requests.iter().filter(|(t, _)| (*since..until).contains(t)).map(|point| point.1).collect();
        steady.push((*processes, rates.iter().sum::<f64>() / rates.len().max(1) as f64));
    }
    let mut rows = vec![row(["what", "seconds", "value"])];
    for name in measured.names() {
        rows.extend(measured.of(name).map(|(x, y)| vec![name.to_string(), format!("{x:.3}"), y.to_string()]));
    }
    let mut simulated: Vec<f64> = Vec::new();
    for (phase, processes) in PROCESSES.into_iter().enumerate() {
        // A number of processes that was simulated before gives an equal result.
        let rate = match PROCESSES[..phase].iter().position(|before| *before == processes) {
            Some(before) => simulated[before],
            None => {
                let settings = lighttpd(context, Form::Single.configuration(processes)?, WEB_SERVERS);
                context
                    .simulate(&format!("{processes} processes, {WEB_SERVERS} web servers"), settings)
                    .page_rate()
            }
        };
        rows.push(vec![format!("simulated, {processes} processes"), phase.to_string(), format!("{rate:.0}")]);
        simulated.push(rate);
    }
    let follows =
        simulated[1] > 1.3 * simulated[0] && simulated[2] > simulated[1] && simulated[3] < simulated[1];
    let reproduced = follows && is_unharmed(&measured)?;
    let list = |values: Vec<String>| values.join(", ");
    let sentence = format!(
        "{}: while the replicas of a stack under lighttpd's load are in {} processes {}, {failed:.0} \
         requests fail and {lost:.0} connections are lost in {moves:.0} moves, the last of each replica \
         takes {away:.1} ms at most and the slowest answer {slowest:.0} ms; with 2 CPUs for everything, \
         clients included, where another process has no processor of its own, they serve {} thousand \
         requests a second; simulated, where each process has one of {CORES} cores and {WEB_SERVERS} are web \
         servers, {} million (paper: no numbers; no connection breaks, and another replica keeps up with a \
         growing load).",
        said(reproduced),
        list(reached.iter().map(|(_, processes)| processes.to_string()).collect()),
        measured.place(),
        list(steady.iter().map(|(_, rate)| format!("{:.0}", rate / 1e3)).collect()),
        list(simulated.iter().map(|rate| format!("{:.2}", rate / 1e6)).collect()),
    );
    let steps =
        simulated.iter().enumerate().flat_map(|(at, rate)| [(at as f64, *rate), (at as f64 + 1.0, *rate)]);
    let chart = Chart {
        title: "Replicas in 1, 2, 4 and 1 processes, each with a core (NEaT, N3)".into(),
        x: Axis::new("phase"),
        y: Axis::new("requests/s"),
        series: vec![Series::line(&format!("{WEB_SERVERS} web servers"), steps.collect())],
        names: Vec::new(),
    };
    let high = requests.iter().map(|point| point.1).fold(0.0, f64::max);
    let mut series = vec![Series::line("lighttpd, beside its clients", requests)];
    for ((from, to), processes) in asked.iter().zip(reached.iter().skip(1)).map(|(a, r)| ((a.0, r.0), r.1)) {
        let box_of = vec![(from, 0.0), (from, high), (to, high), (to, 0.0)];
        series.push(Series::line(&format!("to {processes:.0}"), box_of).styled(Style::Dashed));
    }
    let real = Chart {
        title: "The same on 2 CPUs for everything (measured)".into(),
        x: Axis::new("seconds"),
        y: Axis::new("requests/s").from_to(0.0, 1.05 * high.max(1.0)),
        series,
        names: Vec::new(),
    };
    Ok(Outcome { rows, charts: vec![("", chart), ("-real", real)], reproduced, sentence })
}

fn result(measured: &Measured<'_>, name: &'static str) -> Result<f64, ExperimentError> {
    measured.of(name).next().map(|point| point.1).ok_or(ExperimentError::NoSeries(name))
}

/// Returns whether every number of processes was reached, and no request failed, no connection was lost and
/// no process died.
fn is_unharmed(measured: &Measured<'_>) -> Result<bool, ExperimentError> {
    let numbers: Vec<usize> = measured.of("reached").map(|(_, processes)| processes as usize).collect();
    let [failed, lost, deaths] = ["failed", "lost", "deaths"].map(|name| result(measured, name));
    Ok(failed? + lost? + deaths? == 0.0 && result(measured, "moves")? > 0.0 && numbers == PROCESSES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_notices_is_one_too_many() {
        let of = |changed: Option<(&'static str, f64, f64)>| {
            let mut lines = vec![
                ("reached", 0.0, 1.0),
                ("reached", 2.0, 2.0),
                ("reached", 4.0, 4.0),
                ("reached", 6.0, 1.0),
            ];
            lines.extend([
                ("failed", 0.0, 0.0),
                ("lost", 0.0, 0.0),
                ("deaths", 0.0, 0.0),
                ("moves", 0.0, 7.0),
            ]);
            let is_it =
                |line: &(&str, f64, f64)| changed.is_some_and(|(name, x, _)| (line.0, line.1) == (name, x));
            let lines =
                lines.into_iter().map(|line| changed.filter(|_| is_it(&line)).unwrap_or(line)).collect();
            is_unharmed(&Measured { lines, here: true })
        };
        assert!(of(None).unwrap());
        for (name, x, y) in [
            ("failed", 0.0, 1.0),
            ("lost", 0.0, 1.0),
            ("deaths", 0.0, 1.0),
            ("moves", 0.0, 0.0),
            ("reached", 4.0, 3.0),
        ] {
            assert!(!of(Some((name, x, y))).unwrap(), "{name}");
        }
        assert!(matches!(
            is_unharmed(&Measured { lines: Vec::new(), here: true }),
            Err(ExperimentError::NoSeries(_))
        ));
    }
}

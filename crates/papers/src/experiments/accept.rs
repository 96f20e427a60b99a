//! What is the speculative handshake worth? The baseline is Pika's naive accept (§3.2), which sends a message
//! to the connection manager for each connection.

use std::time::Duration;

use super::scale::said;
use super::{Context, ExperimentError, Outcome, row};
use crate::chart::{Axis, Chart, Series};
use crate::machine::{Handshake, Load, Purpose, Report, Settings, percentile};

fn settings(context: &Context<'_>, n: usize, handshake: Handshake) -> Settings {
    let (warm_up, duration) = if context.quick { (6, 12) } else { (20, 40) };
    Settings {
        handshake,
        warm_up: Duration::from_millis(warm_up),
        duration: Duration::from_millis(duration),
        ..Settings::saturated(n)
    }
}

fn messages(report: &Report) -> f64 {
    report.micros_each(Purpose::Message) + report.micros_each(Purpose::Cm)
}

// structure: handshakes: one experiment from its settings to its sentence
/// Measures each handshake at full load, and the latency of a connection at half the load that the
/// speculative one can serve.
pub(super) fn handshakes(context: &mut Context<'_>) -> Result<Outcome, ExperimentError> {
    let counts: &[usize] = if context.quick { &[1, 8] } else { &[1, 2, 4, 8, 16, 32] };
    let mut rows = vec![row([
        "handshake",
        "cores",
        "per_second",
        "server_messages_and_cm_us",
        "median_us_at_half_load",
        "p99_us_at_half_load",
    ])];
    let mut series = Vec::new();
    let mut capacity = Vec::new();
    // For each handshake at the last count of cores: its rate, the servers' time per connection for messages
    // and choice, and the 99th percentile of the latency.
    let mut last = Vec::new();
    for (name, handshake) in [
        ("speculative", Handshake::Speculative),
        ("naive accept", Handshake::Accept),
        ("naive select and accept", Handshake::Select),
    ] {
        let mut points = Vec::new();
        let mut at_end = (0.0, 0.0, 0.0);
        for (at, &n) in counts.iter().enumerate() {
            let report =
                context.simulate(&format!("{name}, {} cores", 2 * n), settings(context, n, handshake));
            let rate = report.rate();
            if capacity.len() == at {
                capacity.push(rate);
            }
            let half = Settings {
                load: Load::Constant((capacity[at] / 2.0) as u32),
                ..settings(context, n, handshake)
            };
            let relaxed = context.simulate(&format!("{name}, {} cores, half load", 2 * n), half);
            let latencies = relaxed.sorted_latencies();
            at_end = (rate, messages(&report), percentile(&latencies, 99.0));
            points.push((2.0 * n as f64, rate));
            rows.push(vec![
                name.into(),
                (2 * n).to_string(),
                format!("{rate:.0}"),
                format!("{:.3}", at_end.1),
                format!("{:.2}", percentile(&latencies, 50.0)),
                format!("{:.2}", at_end.2),
            ]);
        }
        last.push(at_end);
        series.push(Series::line(name, points));
    }
    let [speculative, accept, select] = last[..] else {
        return Err(ExperimentError::Incomplete("a handshake"));
    };
    let share = |other: (f64, f64, f64)| 100.0 * other.0 / speculative.0;
    let reproduced = select.0 < accept.0 && accept.0 < speculative.0 && accept.2 > speculative.2;
    let sentence = format!(
        "{}: with {} cores an accept that asks serves {:.1} % of the connections, with a select before it \
         that asks {:.1} %; messages and choice take a server {:.2} and {:.2} us rather than {:.2} each, and \
         at half load the 99th percentile is {:.0} and {:.0} us rather than {:.0} (paper: 3 and 5 messages, \
         \"prohibitively high\", no numbers).",
        said(reproduced),
        2 * counts.last().copied().unwrap_or(1),
        share(accept),
        share(select),
        accept.1,
        select.1,
        speculative.1,
        accept.2,
        select.2,
        speculative.2,
    );
    let chart = Chart {
        title: "Accept that asks, and accept that is offered (Pika, 3.2)".into(),
        x: Axis::new("cores"),
        y: Axis::new("connections/s"),
        series,
        names: Vec::new(),
    };
    Ok(Outcome { rows, charts: vec![("", chart)], reproduced, sentence })
}

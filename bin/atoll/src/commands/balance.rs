//! `atoll balance`: shows or changes the rules by which processes get connections.

use std::process::ExitCode;

use atoll_supervisor::{BalanceRules, Estimate, Scheme, StackName};

use super::options::ValueError;
use crate::client::SupervisorClient;
use crate::failure::{Failure, OrFail};

/// Show, or change, the rules by which connections are given to the processes that accept on one port.
///
/// Changes hold at once and until the stack ends; connections that processes have already are not touched.
/// `atoll ss -l -i` shows what comes of it.
#[derive(clap::Args)]
pub struct Balance {
    /// The stack.
    #[arg(default_value = "default")]
    name: StackName,
    /// The scheme of choosing: naive, unfiltered, filtered or tournament.
    #[arg(long, value_parser = scheme)]
    scheme: Option<Scheme>,
    /// By how much what another replica offers counts as slower than it is.
    #[arg(long, value_name = "N")]
    tariff: Option<u16>,
    /// How the service time of a process is estimated: median or average of its last connections.
    #[arg(long, value_parser = estimate)]
    estimate: Option<Estimate>,
    /// The number of connections in an estimate.
    #[arg(long, value_name = "N")]
    window: Option<u16>,
    /// Microseconds between two estimates.
    #[arg(long, value_name = "N")]
    sample_us: Option<u32>,
    /// Microseconds between two offers.
    #[arg(long, value_name = "N")]
    offer_us: Option<u32>,
    /// When an offer begins and ceases to count, in percent.
    #[arg(long, value_name = "HIGH,LOW", value_parser = watermarks)]
    watermarks: Option<[u16; 2]>,
    /// Print JSON (docs/cli.md).
    #[arg(long, short = 'j')]
    json: bool,
}

impl Balance {
    /// Runs the command. Returns its exit status.
    pub fn run(&self) -> Result<ExitCode, Failure> {
        let changes = BalanceRules {
            scheme: self.scheme,
            tariff: self.tariff,
            estimate: self.estimate,
            window: self.window,
            sample_us: self.sample_us,
            offer_us: self.offer_us,
            watermarks: self.watermarks,
        };
        let rules = SupervisorClient::connect(&self.name)?.balance(&changes)?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&rules).or_fail("writing JSON")?);
        } else {
            print!("{}", text(&rules));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns a line for each rule, with the configuration's keys.
fn text(rules: &BalanceRules) -> String {
    let rows = [
        ("scheme", rules.scheme.map(|scheme| scheme.to_string())),
        ("tariff", rules.tariff.map(|n| n.to_string())),
        ("estimate", rules.estimate.map(|estimate| estimate.to_string())),
        ("window", rules.window.map(|n| format!("{n} connections"))),
        ("sample_us", rules.sample_us.map(|n| n.to_string())),
        ("offer_us", rules.offer_us.map(|n| n.to_string())),
        ("watermarks", rules.watermarks.map(|[high, low]| format!("{high} % {low} %"))),
    ];
    let rows = rows.into_iter().filter_map(|(key, value)| Some([key.to_owned(), value?]));
    super::table::lines(rows, 2, &[]).into_iter().map(|line| line + "\n").collect()
}

fn scheme(text: &str) -> Result<Scheme, ValueError> {
    match text {
        "naive" => Ok(Scheme::Naive),
        "unfiltered" => Ok(Scheme::Unfiltered),
        "filtered" => Ok(Scheme::Filtered),
        "tournament" => Ok(Scheme::Tournament),
        _ => Err(ValueError::Scheme),
    }
}

fn estimate(text: &str) -> Result<Estimate, ValueError> {
    match text {
        "median" => Ok(Estimate::Median),
        "average" => Ok(Estimate::Average),
        _ => Err(ValueError::Estimate),
    }
}

fn watermarks(text: &str) -> Result<[u16; 2], ValueError> {
    let two = text.split_once(',').and_then(|(high, low)| Some([high.parse().ok()?, low.parse().ok()?]));
    two.ok_or(ValueError::Watermarks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_a_line() {
        let rules = atoll_supervisor::Accept::default().told();
        let lines = text(&rules);
        assert_eq!(lines.lines().count(), 7);
        assert!(lines.starts_with("scheme      tournament\ntariff      2\n"), "{lines}");
    }

    #[test]
    fn watermarks_are_two_numbers() {
        assert_eq!(watermarks("100,75"), Ok([100, 75]));
        for text in ["", "100", "100,", "a,b", "100,75,50", "-1,0"] {
            assert!(watermarks(text).is_err(), "{text}");
        }
    }
}

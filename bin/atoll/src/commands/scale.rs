//! `atoll scale`: sets or shows the number of processes for the replicas of a stack.

use std::process::ExitCode;

use atoll_supervisor::{ScalingReport, StackName};

use super::options::ValueError;
use crate::client::SupervisorClient;
use crate::failure::{Failure, OrFail};

/// Show, or change, in how many processes the replicas of a stack are.
///
/// Replicas move from process to process with their open connections, one after another; neither programs nor
/// peers notice. More processes do more at a time, fewer leave processors to others. There are never more
/// processes than replicas, whose number the configuration sets.
#[derive(clap::Args)]
pub struct Scale {
    /// The stack.
    name: String,
    /// The number of processes, from 1 to the number of replicas, or "auto" for as many as they need. Without
    /// it the number is only shown.
    #[arg(value_parser = number)]
    processes: Option<Wanted>,
    /// Print JSON (docs/cli.md).
    #[arg(long, short = 'j')]
    json: bool,
}

/// The requested number of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Number(u8),
    Auto,
}

impl Scale {
    /// Runs the command. Returns its exit status.
    pub fn run(&self) -> Result<ExitCode, Failure> {
        let (name, wanted) = self.whom_and_what()?;
        let supervisor = SupervisorClient::connect(&name)?;
        let report = match wanted {
            Some(Wanted::Number(processes)) => supervisor.scale(Some(processes))?,
            Some(Wanted::Auto) => supervisor.scale(None)?,
            None => supervisor.status()?.stack.scaling,
        };
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report).or_fail("writing JSON")?);
        } else {
            println!("{}", text(&report));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the stack and the requested number. A number alone applies to the stack called "default".
    fn whom_and_what(&self) -> Result<(StackName, Option<Wanted>), Failure> {
        match (self.processes, number(&self.name)) {
            (None, Ok(wanted)) => Ok((StackName::default(), Some(wanted))),
            (wanted, _) => Ok((self.name.parse().map_err(Failure::new)?, wanted)),
        }
    }
}

/// Returns a line for people.
pub fn text(report: &ScalingReport) -> String {
    let ScalingReport { processes, wanted, auto, min, max } = report;
    let mut out = format!("processes {processes}");
    if wanted != processes {
        out += &format!("  wanted {wanted}");
    }
    if *auto {
        out += &format!("  auto {min} to {max}");
    }
    out
}

fn number(text: &str) -> Result<Wanted, ValueError> {
    match text.parse() {
        Ok(n) => Ok(Wanted::Number(n)),
        Err(_) if text == "auto" => Ok(Wanted::Auto),
        Err(_) => Err(ValueError::Processes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(name: &str, processes: Option<&str>) -> (String, Option<Wanted>) {
        let processes = processes.map(|text| number(text).unwrap());
        let scale = Scale { name: name.into(), processes, json: false };
        let (name, wanted) = scale.whom_and_what().unwrap();
        (name.to_string(), wanted)
    }

    #[test]
    fn the_stack_may_be_left_out() {
        assert_eq!(meant("4", None), ("default".into(), Some(Wanted::Number(4))));
        assert_eq!(meant("auto", None), ("default".into(), Some(Wanted::Auto)));
        assert_eq!(meant("web", Some("2")), ("web".into(), Some(Wanted::Number(2))));
        assert_eq!(meant("web", None), ("web".into(), None));
        assert_eq!(meant("4", Some("2")), ("4".into(), Some(Wanted::Number(2))));
        assert!(number("four").is_err() && number("-1").is_err() && number("300").is_err());
    }

    #[test]
    fn what_is_under_way_is_told() {
        let report = ScalingReport { processes: 2, wanted: 4, auto: true, min: 1, max: 4 };
        assert_eq!(text(&report), "processes 2  wanted 4  auto 1 to 4");
        assert_eq!(text(&ScalingReport { wanted: 2, auto: false, ..report }), "processes 2");
    }
}

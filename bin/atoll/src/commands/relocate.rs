//! `atoll move`: moves replicas to another process.

use std::process::ExitCode;

use atoll_supervisor::StackName;

use super::scale::text;
use crate::client::SupervisorClient;
use crate::failure::{Failure, OrFail};

/// Move replicas of a stack, with all their open connections, to one of its processes.
///
/// A replica moves as a whole: its flow groups, its queue and all its connections go with it. Neither
/// programs nor peers see anything of it. `atoll status` shows which process has which replicas,
/// `atoll scale` spreads them evenly.
#[derive(clap::Args)]
pub struct Move {
    /// The stack, and the numbers of the replicas, separated by commas. The stack is "default" if only
    /// replicas are given.
    #[arg(value_name = "[NAME] REPLICAS", num_args = 1..=2, required = true)]
    what: Vec<String>,
    /// The number of the process; it is started if it does not exist.
    #[arg(long, value_name = "PROCESS")]
    to: u8,
    /// Print JSON (docs/cli.md).
    #[arg(long, short = 'j')]
    json: bool,
}

impl Move {
    /// Runs the command. Returns its exit status.
    pub fn run(&self) -> Result<ExitCode, Failure> {
        let (name, replicas) = self.whom()?;
        let report = SupervisorClient::connect(&name)?.relocate(replicas, self.to)?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report).or_fail("writing JSON")?);
        } else {
            println!("{}", text(&report));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn whom(&self) -> Result<(StackName, Vec<u8>), Failure> {
        let (name, replicas) = match &self.what[..] {
            [name, replicas] => (name.as_str(), replicas),
            [replicas] => ("default", replicas),
            _ => return Err(Failure::new("say which replicas")),
        };
        Ok((name.parse().map_err(Failure::new)?, numbers(replicas)?))
    }
}

fn numbers(text: &str) -> Result<Vec<u8>, Failure> {
    let wrong =
        || Failure::new(format!("{text:?}: give numbers of replicas, with commas between them, such as 1,3"));
    text.split(',').map(|number| number.parse().map_err(|_| wrong())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(what: &[&str]) -> Option<(String, Vec<u8>)> {
        let what = what.iter().map(|&text| text.to_owned()).collect();
        let (name, replicas) = Move { what, to: 0, json: false }.whom().ok()?;
        Some((name.to_string(), replicas))
    }

    #[test]
    fn the_stack_may_be_left_out() {
        assert_eq!(meant(&["1,3"]), Some(("default".into(), vec![1, 3])));
        assert_eq!(meant(&["web", "2"]), Some(("web".into(), vec![2])));
        for what in [&["web"][..], &["1,"], &["1 3"], &["-1"], &["256"], &["web", ""], &["a/b", "1"]] {
            assert_eq!(meant(what), None, "{what:?}");
        }
    }
}

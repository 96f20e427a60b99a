//! `atoll down`: ends a stack.

use std::process::ExitCode;

use atoll_base::Duration;
use atoll_supervisor::StackName;

use crate::client::{SupervisorClient, stacks_up};
use crate::failure::Failure;

/// End a stack. Its connections are reset, and programs on it see that.
#[derive(clap::Args)]
pub struct Down {
    /// The stack.
    #[arg(default_value = "default")]
    name: StackName,
    /// End all stacks of this user.
    #[arg(long, conflicts_with = "name")]
    all: bool,
}

impl Down {
    /// Runs the command. Returns its exit status.
    pub fn run(&self) -> Result<ExitCode, Failure> {
        if !self.all {
            end(&self.name)?;
            return Ok(ExitCode::SUCCESS);
        }
        for name in stacks_up() {
            end(&name.parse().map_err(Failure::new)?)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn end(name: &StackName) -> Result<(), Failure> {
    let supervisor = SupervisorClient::connect(name)?;
    supervisor.end()?;
    if supervisor.wait_until_gone(DOWN_TIME) {
        Ok(())
    } else {
        Err(Failure::new(format!("stack \"{name}\" did not end within {} seconds", DOWN_TIME.as_secs())))
    }
}

/// How long to wait for the end of a stack, which is longer than the supervisor gives its replicas.
const DOWN_TIME: Duration = Duration::from_secs(10);

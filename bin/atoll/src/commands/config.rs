//! `atoll config`: prints the configuration of a stack, with all defaults.

use std::process::ExitCode;

use super::options::StackOptions;
use crate::failure::Failure;

/// Print the configuration of a stack as TOML, each key with its value and what it means.
///
/// Without options these are the defaults: `atoll config > atoll.toml` makes a file to edit. With options, or
/// with a file, it shows what `atoll up` would use.
#[derive(clap::Args)]
pub struct Config {
    #[command(flatten)]
    options: StackOptions,
    /// Check only; print nothing if all is well.
    #[arg(long)]
    check: bool,
}

impl Config {
    /// Runs the command. Returns its exit status.
    pub fn run(&self) -> Result<ExitCode, Failure> {
        let file = self.options.load()?;
        self.options.validate(&file)?;
        if !self.check {
            print!("{}", file.to_commented_toml());
        }
        Ok(ExitCode::SUCCESS)
    }
}

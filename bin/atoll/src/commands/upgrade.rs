//! `atoll upgrade`: replaces the servers of a running stack by those of another build.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use atoll_supervisor::StackName;
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags};

use crate::client::SupervisorClient;
use crate::failure::{Failure, OrFail};

/// Replace the servers of a stack by those of another build, one after the other, while it works.
///
/// No connection notices. A build that does not fit, does not start, or crashes before all servers have run
/// for some seconds, is replaced by the one before. The supervisor itself stays the one that it is.
#[derive(clap::Args)]
#[command(allow_missing_positional = true)]
pub struct Upgrade {
    /// The stack.
    #[arg(default_value = "default")]
    name: StackName,
    /// The program `atoll` of the new build.
    path: PathBuf,
}

impl Upgrade {
    /// Runs the command. Returns its exit status.
    pub fn run(&self) -> Result<ExitCode, Failure> {
        let path = self.path.display().to_string();
        let file =
            rustix::fs::open(&self.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).or_fail(&path)?;
        let found = rustix::fs::fstat(&file).or_fail(&path)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile
            || rustix::fs::accessat(CWD, &self.path, Access::EXEC_OK, AtFlags::EACCESS).is_err()
        {
            return Err(Failure::new(format!("{path} is not a program")));
        }
        // The supervisor has another working directory.
        let whole = self.path.canonicalize().or_fail(&path)?.display().to_string();
        let supervisor = SupervisorClient::connect(&self.name)?;
        supervisor.upgrade(&whole, |line| {
            // The upgrade continues even if no process reads this any more.
            let _ = writeln!(std::io::stdout(), "{line}");
            let _ = std::io::stdout().flush();
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

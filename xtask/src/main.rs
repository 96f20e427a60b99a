//! `cargo xtask`: the steps of the Makefile that need more than a line.
#![forbid(unsafe_code)]

mod structure;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use thiserror::Error;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("structure") => structure::report(&root()).map_err(TaskError::from),
        Some("build") => build(),
        Some("demo") => build().and_then(|()| python("bench/demo.py", &arguments[1..])),
        Some("papers") => build().and_then(|()| papers(&arguments[1..])),
        Some("bench") => build().and_then(|()| python("bench/bench.py", &arguments[1..])),
        _ => Err(TaskError::Usage),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Why a task was not done.
#[derive(Debug, Error)]
enum TaskError {
    #[error("{USAGE}")]
    Usage,
    #[error(transparent)]
    Structure(#[from] structure::StructureError),
    #[error("{name}: {error}")]
    Start { name: String, error: std::io::Error },
    #[error("{name}: {status}")]
    Failed { name: String, status: ExitStatus },
}

const USAGE: &str = "usage: cargo xtask COMMAND
  structure   check the arrows between crates, unsafe code, clocks and randomness
  build       build the release binaries
  demo        nginx on Atoll beside nginx on the kernel, on one page
  papers      the papers' experiments, for real where that is possible, and simulated; --quick
  bench       the benchmarks; see `cargo xtask bench --help`";

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root").to_path_buf()
}

fn build() -> Result<(), TaskError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    run(Command::new(cargo)
        .args(["build", "--release", "-p", "atoll", "-p", "atoll-preload"])
        .current_dir(root()))
}

fn python(script: &str, arguments: &[String]) -> Result<(), TaskError> {
    // The full path is used because a version manager's wrapper in PATH would be a shell script, which slows
    // every start.
    run(Command::new("/usr/bin/python3").arg(root().join(script)).args(arguments))
}

/// Measures on the real machine first, if possible, so that the results lie beside those of the simulation.
fn papers(arguments: &[String]) -> Result<(), TaskError> {
    let out = root().join("papers");
    if let Err(message) =
        python("bench/papers.py", &[&["--out".into(), out.display().to_string()], arguments].concat())
    {
        // Without privileges or tools, there is still the simulation.
        eprintln!("nothing is measured for real: {message}");
    }
    let program = root().join("target/release/atoll");
    run(Command::new(program).args(["paper", "all", "--out"]).arg(out).args(arguments))
}

/// Runs a command to its end, with this process's output; fails if the command does.
fn run(command: &mut Command) -> Result<(), TaskError> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(TaskError::Failed { name, status }),
        Err(error) => Err(TaskError::Start { name, error }),
    }
}

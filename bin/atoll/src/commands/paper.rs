//! `atoll paper`: repeats the papers' experiments in a simulated machine of many cores, and shows real
//! measurements beside them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use atoll_papers::{Cachegrind, CachegrindError, Context, EXPERIMENTS, Experiment, Replay, Table};

use crate::failure::{Failure, OrFail};

/// Repeat an experiment of a paper: numbers (CSV), pictures (SVG) and a sentence on whether its shape is
/// there.
#[derive(clap::Args)]
#[command(
    after_help = "`atoll paper list` says what there is. Progress goes to standard error, sentences to \
         standard output.\n\
What was measured for real and lies in DIR/real/NAME.csv (series,x,y) is drawn beside the simulation."
)]
pub struct Paper {
    /// An experiment such as pika-fig7, `all`, `list`, or `measure`: what the real code costs on this
    /// machine, as a table.
    name: String,
    /// The directory for the files.
    #[arg(long, value_name = "DIR", default_value = "papers")]
    out: PathBuf,
    /// Do less of everything: seconds instead of minutes, rougher numbers.
    #[arg(long)]
    quick: bool,
    /// Costs to use instead of the built-in ones, as `measure` prints them.
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
}

/// Serve recorded connections, for tools that count what a process does.
#[derive(clap::Args)]
pub struct Replayed {
    /// A file with the output of `Replay::to_bytes`.
    file: PathBuf,
}

impl Paper {
    pub fn run(&self) -> Result<ExitCode, Failure> {
        let table = match &self.costs {
            Some(file) => {
                let text = fs::read_to_string(file).or_fail(file.display())?;
                Table::parse(&text).or_fail(file.display())?
            }
            None => Table::built_in(),
        };
        match self.name.as_str() {
            "list" => {
                for experiment in EXPERIMENTS {
                    println!("{:14} {}", experiment.name, experiment.about);
                }
            }
            "measure" => {
                let runs = if self.quick { 3 } else { 11 };
                let table =
                    atoll_papers::measure(&table, runs, |done| complain!("measure: {done} of {runs}"));
                print!("{}", table.to_toml());
            }
            "all" => {
                let mut failed = 0;
                for (number, experiment) in EXPERIMENTS.iter().enumerate() {
                    complain!(
                        "[{}/{}] {}: {}",
                        number + 1,
                        EXPERIMENTS.len(),
                        experiment.name,
                        experiment.about
                    );
                    if let Err(failure) = self.make(experiment, &table) {
                        complain!("atoll: {failure}");
                        failed += 1;
                    }
                }
                if failed > 0 {
                    return Err(Failure::new(format!(
                        "{failed} of {} experiments were not made",
                        EXPERIMENTS.len()
                    )));
                }
            }
            name => match Experiment::find(name) {
                Some(experiment) => self.make(experiment, &table)?,
                None => return Err(Failure::new(format!("no experiment `{name}`: see `atoll paper list`"))),
            },
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Runs one experiment and writes its files; the error says which file or experiment failed.
    fn make(&self, experiment: &Experiment, table: &Table) -> Result<(), Failure> {
        fs::create_dir_all(&self.out).or_fail(self.out.display())?;
        let file = |ending: &str| self.out.join(format!("{}{ending}", experiment.name));
        let real = fs::read_to_string(self.out.join("real").join(format!("{}.csv", experiment.name))).ok();
        let valgrind = Valgrind::find(&self.out);
        let costs = table.costs().map_err(Failure::new)?;
        let outcome = experiment
            .run(&mut Context {
                costs,
                quick: self.quick,
                real: real.as_deref(),
                cachegrind: valgrind.as_ref().map(|valgrind| valgrind as &dyn Cachegrind),
                progress: &mut |what| complain!("{}: {what}", experiment.name),
            })
            .or_fail(experiment.name)?;
        let mut written =
            vec![(file(".csv"), outcome.to_csv()), (file(".txt"), outcome.sentence.clone() + "\n")];
        for (part, chart) in &outcome.charts {
            written.push((file(&format!("{part}.svg")), chart.to_svg()));
        }
        for (path, text) in written {
            fs::write(&path, text).or_fail(path.display())?;
        }
        println!("{}: {}", experiment.name, outcome.sentence);
        Ok(())
    }
}

impl Replayed {
    pub fn run(&self) -> Result<ExitCode, Failure> {
        let bytes = fs::read(&self.file).or_fail(self.file.display())?;
        let replay = Replay::from_bytes(&bytes).ok_or_else(|| Failure::new("not a recording"))?;
        println!("{} bytes answered", atoll_papers::replay(&replay));
        Ok(ExitCode::SUCCESS)
    }
}

/// Runs this program under Cachegrind.
struct Valgrind {
    folder: PathBuf,
}

impl Valgrind {
    /// Returns `None` if Valgrind is not installed.
    fn find(folder: &Path) -> Option<Valgrind> {
        let there =
            Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success());
        there.then(|| Valgrind { folder: folder.to_path_buf() })
    }
}

impl Cachegrind for Valgrind {
    fn misses(&self, bytes: usize, connections: usize) -> Result<(u64, u64), CachegrindError> {
        let recording = self.folder.join(format!("replay-{}.bin", std::process::id()));
        let failed = |error| CachegrindError::Recording { path: recording.clone(), error };
        fs::write(&recording, atoll_papers::record(connections).to_bytes()).map_err(failed)?;
        let program = std::env::current_exe().map_err(CachegrindError::Program)?;
        let output = Command::new("valgrind")
            .args(["--tool=cachegrind", "--cache-sim=yes", "--cachegrind-out-file=/dev/null"])
            .args([format!("--I1={bytes},8,64"), format!("--D1={bytes},8,64"), "--LL=8388608,16,64".into()])
            .arg(program)
            .arg("replay")
            .arg(&recording)
            .output()
            .map_err(CachegrindError::Start)?;
        fs::remove_file(&recording).map_err(failed)?;
        let text = String::from_utf8_lossy(&output.stderr);
        let misses = (count(&text, "I1  misses:"), count(&text, "D1  misses:"));
        match misses {
            (Some(instructions), Some(data)) if output.status.success() => Ok((instructions, data)),
            _ => Err(CachegrindError::Failed { status: output.status, text: text.into_owned() }),
        }
    }
}

/// Returns the first number after `what` in `text`, which may contain commas.
fn count(text: &str, what: &str) -> Option<u64> {
    let (_, rest) = text.split_once(what)?;
    let digits: String = rest.split_whitespace().next()?.chars().filter(|c| *c != ',').collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_counts_of_cachegrind_are_read() {
        let text = "==1== I   refs:      1,234,567\n==1== I1  misses:        12,345\n==1== D1  misses:    \
             678  (  1 rd)";
        assert_eq!(super::count(text, "I1  misses:"), Some(12_345));
        assert_eq!(super::count(text, "D1  misses:"), Some(678));
        assert_eq!(super::count(text, "LL misses:"), None);
    }
}

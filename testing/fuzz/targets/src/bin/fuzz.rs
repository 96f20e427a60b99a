//! `fuzz [--seconds N] [--executions N] [--number N] [--save] [--input HEX]
//! [TARGET...]`: runs targets again and again, without nightly.
//!
//! The program prints for each target how many executions there were, what was found, and which execution was
//! the slowest. It ends at the first failure, with the input in hexadecimal; `--input` runs that input once
//! more. `--save` adds a few inputs that reach something new to `testing/fuzz/seeds`.

use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use atoll_fuzz_targets::runner::{Campaign, minimise, root, run_one, seeds};
use atoll_fuzz_targets::{TARGETS, Target};
use thiserror::Error;

/// The number of executions between two readings of the clock.
const BATCH: u64 = 100;
/// The most inputs that `--save` writes for a target.
const SAVED_MAX: usize = 24;

struct Options {
    seconds: Duration,
    executions: u64,
    number: u64,
    save: bool,
    input: Option<Vec<u8>>,
    targets: Vec<Target>,
}

/// The fault of the arguments.
#[derive(Debug, Error)]
enum UsageError {
    #[error("--input wants hexadecimal digits")]
    NoInput,
    #[error("{0} is not hexadecimal")]
    Input(String),
    #[error("{0} wants a number")]
    NoNumber(String),
    #[error("{0} is no number")]
    Number(String),
    #[error("no target is called {0}")]
    Target(String),
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(cause) => {
            eprintln!("{cause}");
            return ExitCode::from(2);
        }
    };
    for target in &options.targets {
        if let Some(input) = &options.input {
            run_one(target, input);
            continue;
        }
        let known: Vec<Vec<u8>> =
            seeds(target).map(|seeds| seeds.into_values().collect()).unwrap_or_default();
        let known_count = known.len();
        let mut campaign = Campaign::new(*target, known, options.number);
        let began = Instant::now();
        while began.elapsed() < options.seconds && campaign.executions < options.executions {
            campaign.run(BATCH.min(options.executions - campaign.executions));
        }
        println!(
            "{:<20} {:>12} executions {:>6} finds, slowest {:>8.1?}, {:.0} s",
            target.name,
            campaign.executions,
            campaign.finds,
            campaign.slowest,
            began.elapsed().as_secs_f64()
        );
        if options.save {
            save(target, campaign.kept(), known_count);
        }
    }
    ExitCode::SUCCESS
}

fn save(target: &Target, kept: &[Vec<u8>], known_count: usize) {
    let folder = root().join("seeds").join(target.name);
    fs::create_dir_all(&folder).expect("the tree can be written");
    let known = &kept[..known_count.min(kept.len())];
    for input in minimise(target, kept, SAVED_MAX).iter().filter(|input| !known.contains(input)) {
        let sum = input.iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
            (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        fs::write(folder.join(format!("found-{sum:016x}")), input).expect("the tree can be written");
    }
}

fn options() -> Result<Options, UsageError> {
    let mut options = Options {
        seconds: Duration::from_secs(60),
        executions: u64::MAX,
        number: 1,
        save: false,
        input: None,
        targets: Vec::new(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--input" {
            options.input = Some(bytes_of(&arguments.next().ok_or(UsageError::NoInput)?)?);
            continue;
        }
        let mut number = || {
            let value = arguments.next().ok_or_else(|| UsageError::NoNumber(argument.clone()))?;
            value.parse::<u64>().map_err(|_| UsageError::Number(value))
        };
        match argument.as_str() {
            "--seconds" => options.seconds = Duration::from_secs(number()?),
            "--executions" => (options.executions, options.seconds) = (number()?, Duration::MAX),
            "--number" => options.number = number()?,
            "--save" => options.save = true,
            name => match TARGETS.iter().find(|target| target.name == name) {
                Some(target) => options.targets.push(*target),
                None => return Err(UsageError::Target(name.into())),
            },
        }
    }
    if options.targets.is_empty() {
        options.targets = TARGETS.to_vec();
    }
    Ok(options)
}

fn bytes_of(hex: &str) -> Result<Vec<u8>, UsageError> {
    let byte = |at: usize| hex.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    (0..hex.len()).step_by(2).map(|at| byte(at).ok_or_else(|| UsageError::Input(hex.into()))).collect()
}

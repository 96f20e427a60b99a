//! Runs a target many times, on the stable compiler. Inputs are mutations of those that have reached
//! something new.

use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use atoll_base::Rng;

use crate::{Target, features, mutate};

/// The most inputs that are kept; the latest find takes the place of a random one.
const KEPT_MAX: usize = 2000;
/// The time after which an input counts as a bug: an endless loop, or work that grows beyond its input.
const PATIENCE: Duration = Duration::from_secs(5);
/// The length of the longest input that a mutation makes.
const LEN_MAX: usize = 1 << 12;

/// The campaign of one target.
pub struct Campaign {
    target: Target,
    rng: Rng,
    kept: Vec<Vec<u8>>,
    seen: Vec<bool>,
    /// The number of executions so far.
    pub executions: u64,
    /// The slowest execution so far.
    pub slowest: Duration,
    /// The number of inputs, beside the seeds, that have reached something new.
    pub finds: u64,
}

impl Campaign {
    /// Creates a campaign that begins with `seeds`. Equal seeds and numbers give equal inputs.
    pub fn new(target: Target, seeds: Vec<Vec<u8>>, number: u64) -> Campaign {
        let mut campaign = Campaign {
            target,
            rng: Rng::new(number),
            kept: Vec::new(),
            seen: vec![false; features::KINDS],
            executions: 0,
            slowest: Duration::ZERO,
            finds: 0,
        };
        for seed in seeds {
            campaign.execute(&seed);
            campaign.kept.push(seed);
        }
        campaign
    }

    /// Runs this many more executions.
    pub fn run(&mut self, executions: u64) {
        for _ in 0..executions {
            let input = self.next_input();
            if self.execute(&input) {
                self.finds += 1;
                if self.kept.len() < KEPT_MAX {
                    self.kept.push(input);
                } else {
                    let place = self.rng.below(KEPT_MAX as u32) as usize;
                    self.kept[place] = input;
                }
            }
        }
    }

    /// Returns the inputs that were kept, seeds first.
    pub fn kept(&self) -> &[Vec<u8>] {
        &self.kept
    }

    fn next_input(&mut self) -> Vec<u8> {
        let rng = &mut self.rng;
        let count = self.kept.len() as u32;
        if count == 0 || rng.below(16) == 0 {
            // Now and then an input begins from nothing.
            let len = rng.below(600);
            return (0..len).map(|_| rng.next_u32() as u8).collect();
        }
        // Late finds are chosen more often than early ones, so that what they have reached is explored
        // further.
        let at = rng.below(count).max(rng.below(count)) as usize;
        let other = rng.below(count) as usize;
        let mut input = self.kept[at].clone();
        mutate(rng, &mut input, &self.kept[other]);
        if rng.below(4) == 0 {
            let more = rng.below(64);
            input.extend((0..more).map(|_| rng.next_u32() as u8));
        }
        input.truncate(LEN_MAX);
        input
    }

    /// Runs an input, and returns whether something new was reached.
    fn execute(&mut self, input: &[u8]) -> bool {
        let time = || {
            let began = Instant::now();
            run_one(&self.target, input);
            began.elapsed()
        };
        let mut took = time();
        let marks = features::take();
        if took > PATIENCE {
            // Other processes may have had the processor.
            took = took.min(time());
            features::take();
        }
        if took > PATIENCE {
            report(&self.target, input);
            panic!("{} has taken {took:?}", self.target.name);
        }
        self.slowest = self.slowest.max(took);
        self.executions += 1;
        let mut is_new = false;
        for mark in marks {
            is_new |= !std::mem::replace(&mut self.seen[mark as usize % features::KINDS], true);
        }
        is_new
    }
}

/// Runs `input`, and prints it if it fails, so that it can be kept as a seed.
pub fn run_one(target: &Target, input: &[u8]) {
    if let Err(cause) = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        report(target, input);
        panic::resume_unwind(cause);
    }
}

fn report(target: &Target, input: &[u8]) {
    let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
    eprintln!("{} fails on (hex): {hex}", target.name);
}

/// Returns a few of `inputs` that together reach most of what all of them reach. Each is shortened as far as
/// nothing is lost.
pub fn minimise(target: &Target, inputs: &[Vec<u8>], few: usize) -> Vec<Vec<u8>> {
    let reached = |input: &[u8]| {
        features::take();
        run_one(target, input);
        let mut marks = features::take();
        marks.sort_unstable();
        marks.dedup();
        marks
    };
    let all: Vec<(&Vec<u8>, Vec<u32>)> = inputs.iter().map(|input| (input, reached(input))).collect();
    let mut seen = vec![false; features::KINDS];
    let mut kept = Vec::new();
    while kept.len() < few {
        // The ratio of what is new to the length.
        let worth = |(input, marks): &&(&Vec<u8>, Vec<u32>)| {
            marks.iter().filter(|mark| !seen[**mark as usize]).count() * 1000 / (input.len() + 100)
        };
        let Some((input, marks)) = all.iter().max_by_key(worth).filter(|best| worth(best) > 0) else { break };
        let new: Vec<u32> = marks.iter().copied().filter(|mark| !seen[*mark as usize]).collect();
        let mut input = (*input).clone();
        while input.len() > 8 {
            let shorter = &input[..input.len() * 7 / 8];
            let marks = reached(shorter);
            if !new.iter().all(|mark| marks.contains(mark)) {
                break;
            }
            input = shorter.to_vec();
        }
        for mark in reached(&input) {
            seen[mark as usize] = true;
        }
        kept.push(input);
    }
    kept
}

/// Returns the seeds in the tree, sorted by name, so that the same tree gives the same run.
pub fn seeds(target: &Target) -> io::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let folder = root().join("seeds").join(target.name);
    fs::read_dir(&folder)?
        .map(|file| file?.path().canonicalize())
        .map(|path| path.and_then(|path| Ok((path.clone(), fs::read(&path)?))))
        .collect()
}

/// Returns the folder `testing/fuzz`.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

//! Fuzzing for everybody, on the stable compiler and within seconds: every seed, and mutations of them with a fixed seed.

use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::{env, fs};

use atoll_base::Rng;
use atoll_fuzz_targets::{TARGETS, Target, mutate};

/// Mutations per target; `FUZZ_ITERATIONS` overrides it for a longer run.
const ITERATIONS: u32 = 200_000;

#[test]
fn seeds_and_their_mutations_break_nothing() {
    let iterations = env::var("FUZZ_ITERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(ITERATIONS);
    for target in TARGETS {
        let seeds: Vec<Vec<u8>> = seeds(target).into_values().collect();
        assert!(!seeds.is_empty(), "no seeds for {}", target.name);
        for seed in &seeds {
            run(target, seed);
        }
        let mut rng = Rng::new(0xa701);
        let pick = |rng: &mut Rng| seeds[rng.below(seeds.len() as u32) as usize].clone();
        for _ in 0..iterations {
            let mut input = pick(&mut rng);
            let other = pick(&mut rng);
            mutate(&mut rng, &mut input, &other);
            run(target, &input);
        }
    }
}

#[test]
fn every_target_has_its_binary() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    for target in TARGETS {
        assert!(root().join(format!("fuzz_targets/{}.rs", target.name)).is_file(), "{}", target.name);
        assert!(manifest.contains(&format!("name = \"{}\"", target.name)), "{}", target.name);
    }
}

#[test]
fn the_seeds_in_the_tree_are_those_of_the_code() {
    for seed in atoll_fuzz_targets::seeds::all() {
        let path = root().join("seeds").join(seed.target).join(seed.name);
        let found = fs::read(&path).unwrap_or_default();
        assert_eq!(found, seed.bytes, "{}: run `cargo run -p atoll-fuzz-targets --example seeds`", path.display());
    }
}

/// Runs `input`, and prints it if it fails, so that it can be kept as a seed.
fn run(target: &Target, input: &[u8]) {
    if let Err(cause) = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!("{} fails on (hex): {hex}", target.name);
        panic::resume_unwind(cause);
    }
}

/// Sorted by name, so that the same tree gives the same run.
fn seeds(target: &Target) -> BTreeMap<PathBuf, Vec<u8>> {
    let folder = root().join("seeds").join(target.name);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    files.map(|file| file.unwrap().path()).map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

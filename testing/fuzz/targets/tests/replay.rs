//! Fuzzes on the stable compiler within seconds: runs every seed, and mutations of them with a fixed random
//! seed.

use std::{env, fs};

use atoll_fuzz_targets::TARGETS;
use atoll_fuzz_targets::runner::{Campaign, root, seeds};

#[test]
fn seeds_and_their_mutations_break_nothing() {
    let executions = env::var("FUZZ_EXECUTIONS").ok().and_then(|n| n.parse().ok());
    for target in TARGETS {
        let seeds: Vec<Vec<u8>> = seeds(target).expect("a folder of seeds").into_values().collect();
        assert!(!seeds.is_empty(), "no seeds for {}", target.name);
        let mut campaign = Campaign::new(*target, seeds, 0xa701);
        campaign.run(executions.unwrap_or(target.executions));
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
        assert_eq!(
            found,
            seed.bytes,
            "{}: run `cargo run -p atoll-fuzz-targets --example seeds`",
            path.display()
        );
    }
}

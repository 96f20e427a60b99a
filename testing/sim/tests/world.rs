//! Whole stacks, libraries and processes that sleep: hundreds of seeds.
//!
//! `ATOLL_SEED=n` replays one seed; `ATOLL_SEEDS=n` changes how many are tried.

use atoll_sim::{Story, World};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn every_connection_is_accepted_served_and_closed() {
    let seeds = match number("ATOLL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ATOLL_SEEDS").unwrap_or(200),
    };
    for seed in seeds {
        let story = Story::random(seed);
        match std::panic::catch_unwind(|| World::new(&story).run()) {
            Ok(Ok(_)) => {}
            Ok(Err(report)) => panic!("ATOLL_SEED={seed}: {report}\n{story:#?}"),
            Err(_) => panic!("ATOLL_SEED={seed}: a panic, see above\n{story:#?}"),
        }
    }
}

//! Whole stacks, libraries and processes that sleep: hundreds of seeds.
//!
//! `ATOLL_SEED=n` replays one seed; `ATOLL_SEEDS=n` changes how many are tried.

use atoll_sim::{Story, World, seeds};

#[test]
fn every_connection_is_accepted_served_and_closed() {
    for seed in seeds(200) {
        let story = Story::random(seed);
        match std::panic::catch_unwind(|| World::new(&story).run()) {
            Ok(Ok(_)) => {}
            Ok(Err(report)) => panic!("ATOLL_SEED={seed}: {report}\n{story:#?}"),
            Err(_) => panic!("ATOLL_SEED={seed}: a panic, see above\n{story:#?}"),
        }
    }
}

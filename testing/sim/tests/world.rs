//! Whole stacks, libraries and processes that sleep: hundreds of seeds.
//!
//! `ATOLL_SEED=n` replays one seed; `ATOLL_SEEDS=n` changes how many are tried.

use atoll_sim::{Story, World, seeds};

#[test]
fn every_connection_is_accepted_served_and_closed() {
    run(200, false);
}

#[test]
fn others_are_served_beside_an_attacker() {
    run(100, true);
}

fn run(usual: u64, attacked: bool) {
    for seed in seeds(usual) {
        let story = Story { attacked, ..Story::random(seed) };
        match std::panic::catch_unwind(|| World::new(&story).run()) {
            Ok(Ok(_)) => {}
            Ok(Err(report)) => panic!("ATOLL_SEED={seed}: {report}\n{story:#?}"),
            Err(_) => panic!("ATOLL_SEED={seed}: a panic, see above\n{story:#?}"),
        }
    }
}

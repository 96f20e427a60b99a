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

#[test]
fn a_link_server_apart_loses_nothing() {
    for seed in seeds(30) {
        // Large texts over many connections: its rings are full most of the time.
        let story = Story { links_apart: true, length: 300_000, loss: 0, ..Story::random(seed) };
        live(seed, &story);
    }
}

fn run(usual: u64, attacked: bool) {
    for seed in seeds(usual) {
        live(seed, &Story { attacked, ..Story::random(seed) });
    }
}

fn live(seed: u64, story: &Story) {
    match std::panic::catch_unwind(|| World::new(story).run()) {
        Ok(Ok(_)) => {}
        Ok(Err(report)) => panic!("ATOLL_SEED={seed}: {report}\n{story:#?}"),
        Err(_) => panic!("ATOLL_SEED={seed}: a panic, see above\n{story:#?}"),
    }
}

//! Two endpoints over a bad link: thousands of seeds.
//!
//! `ATOLL_SEED=n` replays one seed with its exchange; `ATOLL_SEEDS=n` changes how many are tried.

use atoll_sim::{Pair, Scenario, seeds};

#[test]
fn both_streams_arrive_and_then_there_is_silence() {
    for seed in seeds(3000) {
        let scenario = Scenario::random(seed);
        let outcome = std::panic::catch_unwind(|| Pair::new(&scenario).run());
        match outcome {
            Ok(Ok(_)) => {}
            Ok(Err(failure)) => {
                let trace = failure.trace.join("\n");
                panic!("ATOLL_SEED={seed}: {}\n{scenario:#?}\n{trace}", failure.what);
            }
            Err(_) => panic!("ATOLL_SEED={seed}: a panic, see above\n{scenario:#?}"),
        }
    }
}

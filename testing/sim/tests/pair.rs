//! Two endpoints over a bad link: thousands of seeds.
//!
//! `ATOLL_SEED=n` replays one seed with its exchange; `ATOLL_SEEDS=n` changes how many are tried.

use atoll_sim::{Pair, Scenario};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn both_streams_arrive_and_then_there_is_silence() {
    let seeds = match number("ATOLL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ATOLL_SEEDS").unwrap_or(3000),
    };
    for seed in seeds {
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

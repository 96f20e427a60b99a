//! Two endpoints over a bad link: thousands of seeds.
//!
//! `ATOLL_SEED=n` replays one seed with its exchange; `ATOLL_SEEDS=n` changes how many are tried.

use atoll_sim::{Pair, Scenario, seeds};

#[test]
fn both_streams_arrive_and_then_there_is_silence() {
    run(3000, |_| {});
}

#[test]
fn a_stranger_who_guesses_changes_nothing() {
    run(500, |scenario| scenario.stranger = [10_000, 300_000, 1_000_000][(scenario.seed % 3) as usize]);
}

#[test]
fn processes_die_at_any_moment_and_the_streams_arrive() {
    run(2000, |scenario| {
        scenario.crashes = [1000, 20_000, 200_000][(scenario.seed % 3) as usize];
        // What the next process does not know: how far a mark was, and what went along with a SYN.
        scenario.flow.fast_open = false;
        scenario.flow.plans.iter_mut().for_each(|plan| plan.urgent = 0);
    });
}

fn run(usual: u64, change: impl Fn(&mut Scenario)) {
    for seed in seeds(usual) {
        let mut scenario = Scenario::random(seed);
        change(&mut scenario);
        let outcome = std::panic::catch_unwind(|| Pair::new(&scenario).run());
        match outcome {
            Ok(Ok(_)) => {}
            Ok(Err(failure)) => {
                let trace = failure.trace.join("\n");
                panic!("ATOLL_SEED={seed}: {failure}\n{scenario:#?}\n{trace}");
            }
            Err(_) => panic!("ATOLL_SEED={seed}: a panic, see above\n{scenario:#?}"),
        }
    }
}

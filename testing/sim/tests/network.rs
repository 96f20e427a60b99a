//! Many connections over shared, bad lines: thousands of seeds.
//!
//! `ATOLL_SEED=n` replays one seed with its exchange; `ATOLL_SEEDS=n` changes how many are tried.

use core::time::Duration;

use atoll_sim::{Network, NetworkSettings, seeds};

#[test]
fn all_streams_arrive_and_then_there_is_silence() {
    for seed in seeds(1000) {
        let settings = NetworkSettings::random(seed);
        // A burst of losses lasts for a number of packets, which may be for ever where all have backed off.
        // The last of the SYN-ACKs leaves after 31 s, and is to find a good network: then giving up is always
        // a mistake.
        let run = || Network::new(&settings).run_to_the_end(Duration::from_secs(20));
        match std::panic::catch_unwind(run) {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => {
                let trace = failure.trace.join("\n");
                panic!("ATOLL_SEED={seed}: {failure}\n{settings:#?}\n{trace}");
            }
            Err(_) => panic!("ATOLL_SEED={seed}: a panic, see above\n{settings:#?}"),
        }
    }
}

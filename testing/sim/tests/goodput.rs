//! What arrives over a path of 10 Mb/s, by loss, delay and buffer? A snapshot, so that a change of recovery
//! or congestion control shows in the diff.
//!
//! `docs/networks.md` has the kernel's and Atoll's goodput over real frames.

use core::time::Duration;

use atoll_sim::{FlowSettings, Network, NetworkSettings};
use atoll_tcp::{Algorithm, EcnMode};
use atoll_testkit::{LineSettings, Loss, Marking};

const RATE: u64 = 10_000_000;
const SECONDS: u64 = 10;

/// Returns the goodput in Mb/s that the server's application reads in ten seconds, the median of three seeds.
fn goodput(algorithm: Algorithm, loss: u32, rtt_ms: u64, buffer: f64) -> f64 {
    let product = RATE / 8 * rtt_ms / 1000;
    // Three packets at least: two leave no room for any burst, and no sender gets far.
    let queue = ((product as f64 * buffer) as u64).max(4_600);
    let line = LineSettings {
        rate: RATE,
        queue,
        delay: Duration::from_millis(rtt_ms) / 2,
        loss: Loss::Random(loss),
        ..LineSettings::default()
    };
    let mut runs: Vec<u64> = (0..3)
        .map(|seed| {
            let flows = vec![(FlowSettings::bulk(algorithm), Duration::ZERO)];
            let mut network = Network::new(&NetworkSettings::dumbbell(seed, [line; 2], flows));
            network.run_for(Duration::from_secs(SECONDS)).expect("all rules hold");
            network.flows().map(|flow| flow.hosts()[1].read()).sum()
        })
        .collect();
    runs.sort_unstable();
    (runs[1] * 8 / SECONDS) as f64 / 1e6
}

#[test]
fn goodput_over_loss_delay_and_buffer() {
    let mut table = String::from(
        "Mb/s of 10; columns: round trip of 4, 20, 100 ms with a buffer of 0.2, 1 and 4 times rate and round \
         trip\n",
    );
    for algorithm in Algorithm::ALL {
        for loss in [0, 1_000, 10_000, 30_000] {
            table += &format!("{:8} {:4} %:", format!("{algorithm:?}"), f64::from(loss) / 1e4);
            for rtt_ms in [4, 20, 100] {
                for buffer in [0.2, 1.0, 4.0] {
                    table += &format!(" {:5.2}", goodput(algorithm, loss, rtt_ms, buffer));
                }
                table += "  ";
            }
            table = table.trim_end().to_string() + "\n";
        }
    }
    let expected = include_str!("goodput.txt");
    assert!(table.trim() == expected.trim(), "the table is now\n{table}\ninstead of\n{expected}");
}

#[test]
fn marks_take_the_place_of_losses() {
    let marking = Marking::CoDel { target: Duration::from_millis(5), interval: Duration::from_millis(100) };
    let line = LineSettings {
        rate: RATE,
        delay: Duration::from_millis(10),
        queue: 200_000,
        marking,
        ..LineSettings::default()
    };
    for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
        let mut flow = FlowSettings::bulk(algorithm);
        flow.settings[0].ecn = EcnMode::Request;
        let mut network =
            Network::new(&NetworkSettings::dumbbell(1, [line; 2], vec![(flow, Duration::ZERO)]));
        // Slow start goes beyond any queue; what comes after it does not.
        network.run_for(Duration::from_secs(5)).expect("all rules hold");
        let so_far = |network: &Network| {
            network.flows().map(|flow| (flow.retransmits(), flow.hosts()[1].read())).next()
        };
        let (again, before) = so_far(&network).expect("it has begun");
        network.take_counts(0);
        network.run_for(Duration::from_secs(SECONDS)).expect("all rules hold");
        let (again_after, after) = so_far(&network).expect("it has begun");
        let counts = network.take_counts(0);
        let mbps = ((after - before) * 8 / SECONDS) as f64 / 1e6;
        assert!(counts.marked > 5 && counts.overflowed == 0, "{algorithm:?}: {counts:?}");
        assert_eq!(again_after, again, "{algorithm:?}");
        assert!(mbps > 8.5, "{algorithm:?}: {mbps} Mb/s");
    }
}

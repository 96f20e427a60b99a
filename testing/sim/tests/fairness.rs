//! Do connections that share a bottleneck share it fairly? Jain's index of their goodput (1: equal shares,
//! 1/n: one has all).

use core::time::Duration;

use atoll_sim::{FlowSettings, Network, NetworkSettings};
use atoll_tcp::Algorithm;
use atoll_testkit::LineSettings;

const RATE: u64 = 10_000_000;
const MS: Duration = Duration::from_millis(1);

/// The shares of several senders in the second half of 40 s.
struct Shares {
    mbps: Vec<f64>,
}

impl Shares {
    /// Runs these flows, each with its algorithm and the one-way delay that it has in addition to the 10 ms
    /// of all, and returns their shares.
    fn of(flows: &[(Algorithm, Duration)]) -> Shares {
        // One product of rate and round-trip time.
        let line =
            LineSettings { rate: RATE, queue: RATE / 8 / 50, delay: 10 * MS, ..LineSettings::default() };
        let ends = flows.iter().map(|&(algorithm, delay)| (FlowSettings::bulk(algorithm), delay)).collect();
        let mut settings = NetworkSettings::dumbbell(1, [line; 2], ends);
        for (number, flow) in settings.flows.iter_mut().enumerate() {
            flow.starts = Duration::from_millis(300) * number as u32;
        }
        let mut network = Network::new(&settings);
        let read = |network: &Network| network.flows().map(|flow| flow.hosts()[1].read()).collect::<Vec<_>>();
        network.run_for(Duration::from_secs(20)).expect("all rules hold");
        let before = read(&network);
        network.run_for(Duration::from_secs(20)).expect("all rules hold");
        let mbps = read(&network)
            .iter()
            .zip(before)
            .map(|(after, before)| (after - before) as f64 * 8.0 / 20e6)
            .collect();
        Shares { mbps }
    }

    fn jain(&self) -> f64 {
        let sum: f64 = self.mbps.iter().sum();
        let squares: f64 = self.mbps.iter().map(|share| share * share).sum();
        sum * sum / (self.mbps.len() as f64 * squares)
    }

    fn used(&self) -> f64 {
        self.mbps.iter().sum::<f64>() * 1e6 / RATE as f64
    }

    fn line(&self, what: &str) -> String {
        let shares: Vec<String> = self.mbps.iter().map(|share| format!("{share:.2}")).collect();
        format!("{what}: Jain {:.3}, used {:.2}, Mb/s {}\n", self.jain(), self.used(), shares.join(" "))
    }
}

#[test]
fn equal_senders_get_equal_shares() {
    for algorithm in Algorithm::ALL {
        let shares = Shares::of(&[(algorithm, Duration::ZERO); 4]);
        assert!(shares.jain() > 0.9, "{}", shares.line(&format!("{algorithm:?}")));
        assert!(shares.used() > 0.85, "{}", shares.line(&format!("{algorithm:?}")));
    }
}

#[test]
fn nobody_is_starved_in_a_mixture() {
    let mixture: Vec<_> =
        Algorithm::ALL.into_iter().flat_map(|algorithm| [(algorithm, Duration::ZERO); 2]).collect();
    let shares = Shares::of(&mixture);
    let fair = RATE as f64 / 1e6 / mixture.len() as f64;
    assert!(shares.mbps.iter().all(|&share| share > fair / 5.0), "{}", shares.line("mixture"));
}

/// Compares the shares with a snapshot.
#[test]
fn shares_of_a_bottleneck() {
    let mut table =
        String::from("10 Mb/s, round trip of 20 ms, buffer of one product; the second half of 40 s\n");
    for algorithm in Algorithm::ALL {
        table += &Shares::of(&[(algorithm, Duration::ZERO); 2]).line(&format!("{algorithm:?}, 2"));
        table += &Shares::of(&[(algorithm, Duration::ZERO); 8]).line(&format!("{algorithm:?}, 8"));
        let far = [
            (algorithm, Duration::ZERO),
            (algorithm, Duration::ZERO),
            (algorithm, 40 * MS),
            (algorithm, 40 * MS),
        ];
        table += &Shares::of(&far).line(&format!("{algorithm:?}, round trips of 20, 20, 100, 100 ms"));
    }
    for (number, one) in Algorithm::ALL.into_iter().enumerate() {
        for &other in &Algorithm::ALL[number + 1..] {
            let both = [
                (one, Duration::ZERO),
                (one, Duration::ZERO),
                (other, Duration::ZERO),
                (other, Duration::ZERO),
            ];
            table += &Shares::of(&both).line(&format!("{one:?} twice, {other:?} twice"));
        }
    }
    let expected = include_str!("fairness.txt");
    assert!(table.trim() == expected.trim(), "the table is now\n{table}\ninstead of\n{expected}");
}

//! Draws networks from a seed.

use atoll_base::{Duration, Rng};
use atoll_tcp::{EcnMode, Settings};
use atoll_testkit::{LineSettings, Loss, Marking};

use crate::flow::{FlowSettings, any_algorithm};
use crate::host::Plan;
use crate::middlebox::Middlebox;
use crate::network::{NetworkSettings, RoutedFlow};

impl NetworkSettings {
    /// Draws a network from `seed`: up to four bottlenecks, up to six connections over one to three of them,
    /// each line with its own faults, some of which begin or end during the run.
    pub fn random(seed: u64) -> NetworkSettings {
        let mut rng = Rng::new(seed ^ 0x6e65_7477);
        let hops = 1 + rng.below(3) as usize;
        // Each hop has two lines, one for each direction.
        let lines: Vec<LineSettings> = (0..2 * hops).map(|_| line(&mut rng)).collect();
        let flows = (0..1 + rng.below(6)).map(|_| routed(&mut rng, hops)).collect();
        let mut changes: Vec<(Duration, usize, LineSettings)> = (0..rng.below(4))
            .map(|_| {
                let after = Duration::from_millis(u64::from(rng.below(10_000)));
                (after, rng.below(2 * hops as u32) as usize, line(&mut rng))
            })
            .collect();
        changes.sort_by_key(|(after, ..)| *after);
        NetworkSettings { seed, lines, flows, changes, calm: rng.below(2) == 0 }
    }
}

fn line(rng: &mut Rng) -> LineSettings {
    let rate = [500_000, 2_000_000, 10_000_000, 100_000_000, 0][rng.below(5) as usize];
    let delay =
        Duration::from_micros(u64::from([10, 500, 10_000, 100_000][rng.below(4) as usize] + rng.below(1000)));
    // The queue holds from two packets to several times what is in flight.
    let queue = [3_100, 15_000, 60_000, 250_000, 2_000_000][rng.below(5) as usize];
    let loss = match rng.below(6) {
        0 => Loss::Random(rng.below(10_000)),
        1 => Loss::Random(rng.below(100_000)),
        2 => Loss::Burst {
            enter: rng.below(10_000),
            leave: 50_000 + rng.below(500_000),
            bad: [1_000_000, 500_000][rng.below(2) as usize],
        },
        _ => Loss::None,
    };
    let marking = match rng.below(4) {
        0 => Marking::Above(queue / 4),
        1 => Marking::CoDel { target: Duration::from_millis(5), interval: Duration::from_millis(100) },
        _ => Marking::None,
    };
    let some = |rng: &mut Rng, most: u32| if rng.below(3) == 0 { rng.below(most) } else { 0 };
    LineSettings {
        rate,
        queue,
        delay,
        jitter: Duration::from_micros(u64::from(some(rng, 30_000))),
        loss,
        reorder: some(rng, 100_000),
        held_for: Duration::from_micros(u64::from(rng.below(50_000))),
        duplicate: some(rng, 30_000),
        marking,
    }
}

fn routed(rng: &mut Rng, hops: usize) -> RoutedFlow {
    let first = rng.below(hops as u32) as usize;
    let last = first + rng.below((hops - first) as u32) as usize;
    let there = (first..=last).map(|hop| 2 * hop).collect();
    let back = (first..=last).rev().map(|hop| 2 * hop + 1).collect();
    RoutedFlow {
        flow: ends(rng),
        routes: [there, back],
        starts: Duration::from_millis(u64::from([0, rng.below(3000)][rng.below(2) as usize])),
    }
}

fn ends(rng: &mut Rng) -> FlowSettings {
    let mut plan = || Plan {
        write: [0, 1, 5_000, 60_000, 200_000][rng.below(5) as usize],
        send_buffer: [2_000, 30_000, 1 << 20][rng.below(3) as usize],
        read_max: [1_000, 1 << 20][rng.below(2) as usize],
        stall: [0, 0, 100_000][rng.below(3) as usize],
        len_max: [1460, 65_000][rng.below(2) as usize],
        no_room: 0,
        lazy_reports: rng.below(2) == 0,
        compact: rng.below(2) == 0,
        urgent: 0,
    };
    let plans = [plan(), plan()];
    let mut settings = || Settings {
        nodelay: rng.below(2) == 0,
        congestion: any_algorithm(rng),
        receive_capacity: [3_000, 65_536, 1 << 20][rng.below(3) as usize],
        ecn: [EcnMode::Off, EcnMode::Accept, EcnMode::Request][rng.below(3) as usize],
        ..Settings::default()
    };
    let settings = [settings(), settings()];
    let middlebox = Middlebox {
        strip_sack: rng.below(6) == 0,
        strip_timestamps: rng.below(6) == 0,
        strip_window_scale: rng.below(6) == 0,
        strip_blocks: rng.below(20) == 0,
        mss_max: (rng.below(6) == 0).then(|| [200, 536, 1300][rng.below(3) as usize]),
    };
    let mss = [[536, 1460, 8960][rng.below(3) as usize], 1460];
    FlowSettings { plans, settings, mss, simultaneous_open: rng.below(20) == 0, fast_open: false, middlebox }
}

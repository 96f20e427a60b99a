//! Chooses the number of processes for the replicas of a stack. Fewer processes cost the machine less while
//! there is little to do; more of them do more in parallel.
//!
//! ```text
//!   1 process    0 1 2 3              replica r is in process r mod n: for each number there is one way,
//!   2 processes  0 2 | 1 3            and from n to 2n, and back, half of the replicas move
//!   4 processes  0 | 1 | 2 | 3
//! ```
//!
//! Applications and peers see replicas, whose number does not change; they do not see the processes.

/// Returns the process that a replica is in, if there are `processes` of them.
pub const fn host_of(replica: usize, processes: usize) -> usize {
    if processes == 0 { 0 } else { replica % processes }
}

/// Chooses how many processes there should be, by how busy the replicas are. It is called at regular
/// intervals, and counts time in these calls ("looks").
///
/// The number goes up when the busiest process has had too much to do for some looks, and down when for many
/// looks fewer processes would have had little. The gap between the two marks is wide enough that one change
/// does not cause the other. If a load nevertheless comes and goes so that the number changes again and
/// again, going down takes twice as long each time.
#[derive(Clone, Debug)]
pub struct Scaler {
    min: u8,
    max: u8,
    /// The number of looks in a row at which a process had too much to do.
    hot: u32,
    /// The number of looks in a row at which fewer processes would have sufficed.
    cool: u32,
    /// The number of processes that would have sufficed at all of these looks.
    enough: u8,
    /// The number of looks in a row before the number of processes goes down.
    patience: u32,
    /// The number of looks until the next decision.
    hold: u32,
    /// The number of looks since the number of processes last went down.
    since_down: u32,
}

impl Scaler {
    /// Creates a scaler that chooses from `min` to `max` processes.
    pub fn new(min: u8, max: u8) -> Scaler {
        Scaler {
            min: min.max(1),
            max: max.max(min).max(1),
            hot: 0,
            cool: 0,
            enough: 1,
            patience: COOL_LOOKS,
            hold: 0,
            since_down: u32::MAX,
        }
    }

    /// Returns the fewest and the most processes.
    pub fn limits(&self) -> (u8, u8) {
        (self.min, self.max)
    }

    /// Judges a stack of `processes` processes, whose replicas were busy for these shares (0 to 1) of the
    /// time since the last call. Returns how many processes there should be, if that is another number.
    pub fn look(&mut self, processes: u8, shares: &[f64]) -> Option<u8> {
        self.since_down = self.since_down.saturating_add(1);
        let within = processes.clamp(self.min, self.max);
        if within != processes {
            return Some(self.decide(processes, within));
        }
        if self.hold > 0 {
            self.hold -= 1;
            return None;
        }
        let now = busiest(shares, processes);
        self.hot = if now >= HIGH { self.hot + 1 } else { 0 };
        if self.hot >= HOT_LOOKS
            && let Some(more) = self.more(processes, shares, now)
        {
            return Some(self.decide(processes, more));
        }
        let enough = (self.min..processes).find(|fewer| busiest(shares, *fewer) <= LOW).unwrap_or(processes);
        if enough == processes {
            (self.cool, self.enough) = (0, self.min);
            return None;
        }
        self.enough = self.enough.max(enough);
        self.cool += 1;
        let is_time = self.cool >= self.patience && self.enough < processes;
        is_time.then(|| self.decide(processes, self.enough))
    }

    /// Returns the number of processes that would bring relief, if there is one.
    fn more(&self, processes: u8, shares: &[f64], now: f64) -> Option<u8> {
        // How much a replica in a saturated process would need is not known.
        let least = if now >= FULL { processes.saturating_mul(2) } else { processes + 1 }.min(self.max);
        let candidates = least..=self.max;
        let brings_relief = |more: &u8| crowding(shares, *more) <= crowding(shares, processes) * RELIEF;
        let fits = |more: &u8| busiest(shares, *more) <= MIDDLE;
        let chosen = candidates.clone().find(fits).unwrap_or(self.max);
        (chosen > processes && brings_relief(&chosen)).then_some(chosen)
    }

    fn decide(&mut self, from: u8, to: u8) -> u8 {
        if to > from && self.since_down < self.patience.saturating_mul(FLAPPING) {
            self.patience = (self.patience * 2).min(COOL_LOOKS_MAX);
        } else if self.since_down >= COOL_LOOKS_MAX * 4 {
            self.patience = COOL_LOOKS;
        }
        if to < from {
            self.since_down = 0;
        }
        (self.hot, self.cool, self.enough, self.hold) = (0, 0, self.min, HOLD_LOOKS);
        to
    }
}

/// Returns the load of a process, if the replicas are in `processes` processes.
fn load(shares: &[f64], processes: u8, process: usize) -> f64 {
    let hosted =
        shares.iter().enumerate().filter(|(replica, _)| host_of(*replica, processes.into()) == process);
    hosted.map(|(_, share)| share.clamp(0.0, 1.0)).sum()
}

/// Returns the load of the busiest process, if the replicas are in `processes` processes.
fn busiest(shares: &[f64], processes: u8) -> f64 {
    (0..usize::from(processes)).map(|process| load(shares, processes, process)).fold(0.0, f64::max)
}

/// Returns how busy the process is in which a piece of work is done, on average over the work. The result
/// lacks a factor that does not depend on `processes`.
fn crowding(shares: &[f64], processes: u8) -> f64 {
    (0..usize::from(processes)).map(|process| load(shares, processes, process).powi(2)).sum()
}

/// The load from which a process has too much to do.
const HIGH: f64 = 0.75;
/// The highest load that a process should have after going up.
const MIDDLE: f64 = 0.6;
/// The highest load that a process may have after going down.
const LOW: f64 = 0.45;
/// The load from which a process counts as saturated.
const FULL: f64 = 0.95;
/// More processes are of use only if the crowding falls to this part of its present value.
const RELIEF: f64 = 0.9;
/// Going up within this many times the patience after having gone down counts as flapping.
const FLAPPING: u32 = 8;
/// The number of looks in a row before going up.
const HOT_LOOKS: u32 = 3;
/// The number of looks in a row before going down, at first and at most.
const COOL_LOOKS: u32 = 20;
const COOL_LOOKS_MAX: u32 = 1280;
/// The number of decisions to skip after a change, because replicas are still moving.
const HOLD_LOOKS: u32 = 2;

#[cfg(test)]
mod tests {
    use atoll_base::Rng;

    use super::*;

    /// Simulates a machine with enough processors: replicas in a process that is asked for more than it has
    /// time for get proportional parts of its time.
    fn shares(demand: &[f64], processes: u8) -> Vec<f64> {
        let asked = |process| -> f64 {
            (0..demand.len()).filter(|r| host_of(*r, processes.into()) == process).map(|r| demand[r]).sum()
        };
        (0..demand.len()).map(|r| demand[r] / asked(host_of(r, processes.into())).max(1.0)).collect()
    }

    /// Calls [`Scaler::look`] `looks` times with replicas of these demands. Returns the changes, each with
    /// the number of its call.
    fn run(scaler: &mut Scaler, processes: &mut u8, demand: &[f64], looks: u32) -> Vec<(u32, u8)> {
        let mut changes = Vec::new();
        for look in 0..looks {
            if let Some(to) = scaler.look(*processes, &shares(demand, *processes)) {
                assert_ne!(to, *processes, "that is no change");
                *processes = to;
                changes.push((look, to));
            }
        }
        changes
    }

    #[test]
    fn replicas_go_round_the_processes() {
        let hosts = |processes| (0..4).map(|replica| host_of(replica, processes)).collect::<Vec<_>>();
        assert_eq!(
            [hosts(1), hosts(2), hosts(3), hosts(4)],
            [[0; 4], [0, 1, 0, 1], [0, 1, 2, 0], [0, 1, 2, 3]]
        );
        assert_eq!(host_of(3, 0), 0);
    }

    #[test]
    fn who_has_too_much_to_do_for_a_while_gets_help_at_once_as_much_as_is_needed() {
        let (mut scaler, mut processes) = (Scaler::new(1, 4), 1);
        assert_eq!(run(&mut scaler, &mut processes, &[0.2; 4], 20), [(2, 2)]);
        let (mut scaler, mut processes) = (Scaler::new(1, 4), 1);
        // The demand of replicas shows only when they have the time that they need.
        assert_eq!(run(&mut scaler, &mut processes, &[0.9; 4], 20), [(2, 2), (7, 4)]);
    }

    #[test]
    fn a_peak_is_no_reason() {
        let (mut scaler, mut processes) = (Scaler::new(1, 4), 1);
        for _ in 0..1000 {
            assert_eq!(run(&mut scaler, &mut processes, &[0.25; 4], HOT_LOOKS - 1), []);
            assert_eq!(run(&mut scaler, &mut processes, &[0.1; 4], 1), []);
        }
    }

    #[test]
    fn more_processes_than_help_are_not_made() {
        // One replica has all of the load.
        let (mut scaler, mut processes) = (Scaler::new(1, 4), 1);
        assert_eq!(run(&mut scaler, &mut processes, &[0.0, 0.9, 0.0, 0.0], 1000), []);
        let mut processes = 4;
        let mut scaler = Scaler::new(4, 8);
        assert_eq!(run(&mut scaler, &mut processes, &[1.0; 4], 1000), [], "each has its own already");
    }

    #[test]
    fn with_little_to_do_it_goes_down_after_a_while() {
        let (mut scaler, mut processes) = (Scaler::new(1, 4), 4);
        assert_eq!(run(&mut scaler, &mut processes, &[0.01; 4], 500), [(19, 1)]);
        // The number is what the worst of these looks needed.
        let (mut scaler, mut processes) = (Scaler::new(1, 4), 4);
        assert_eq!(run(&mut scaler, &mut processes, &[0.2; 4], 1), []);
        assert_eq!(run(&mut scaler, &mut processes, &[0.01; 4], 19), [(18, 2)]);
    }

    #[test]
    fn limits_are_kept_at_once() {
        let mut scaler = Scaler::new(2, 3);
        assert_eq!((scaler.look(1, &[0.0; 4]), scaler.look(4, &[1.0; 4])), (Some(2), Some(3)));
        assert_eq!(scaler.limits(), (2, 3));
        let mut processes = 3;
        assert_eq!(run(&mut scaler, &mut processes, &[0.0; 4], 100), [(21, 2)]);
        assert_eq!(run(&mut scaler, &mut processes, &[1.0; 4], 100), [(2, 3)]);
    }

    #[test]
    fn a_steady_load_is_settled_for_good() {
        let mut rng = Rng::new(7);
        for round in 0..2000 {
            let replicas = 1 + rng.below(8) as usize;
            let demand: Vec<f64> = (0..replicas).map(|_| f64::from(rng.below(100)) / 100.0).collect();
            let mut scaler = Scaler::new(1, replicas as u8);
            let mut processes = 1 + rng.below(replicas as u32) as u8;
            let first = run(&mut scaler, &mut processes, &demand, 200);
            assert!(first.len() <= 5, "round {round}: {demand:?} {first:?}");
            assert_eq!(run(&mut scaler, &mut processes, &demand, 5000), [], "round {round}: {demand:?}");
        }
    }

    /// Measured loads vary. While they stay between the marks for the present number of processes, the number
    /// stays.
    #[test]
    fn a_load_that_sways_between_the_marks_changes_nothing() {
        let mut rng = Rng::new(9);
        let mut told = 0;
        for round in 0..400 {
            let replicas = 2 + rng.below(7) as u8;
            let processes = 1 + rng.below(replicas.into()) as u8;
            let mut scaler = Scaler::new(1, replicas);
            let weights: Vec<f64> = (0..replicas).map(|_| f64::from(1 + rng.below(9)) / 10.0).collect();
            for _ in 0..300 {
                // The busiest process is below the mark for too much to do, and with one process fewer it
                // would be above the other mark.
                let target = 0.05 + f64::from(rng.below(70)) / 100.0;
                let scale = target / busiest(&weights, processes);
                let shares: Vec<f64> = weights.iter().map(|weight| weight * scale).collect();
                if (1..processes).all(|fewer| busiest(&shares, fewer) > LOW) {
                    told += 1;
                    assert_eq!(
                        scaler.look(processes, &shares),
                        None,
                        "round {round}: {shares:?} in {processes}"
                    );
                }
            }
        }
        assert!(told > 20_000, "{told}");
    }

    /// With fewer processors than processes, waiting for a processor counts as work. That may cost processes
    /// that are of no use, but must not lead to endless changes.
    #[test]
    fn a_steady_load_is_settled_with_few_processors_too() {
        let mut rng = Rng::new(10);
        for round in 0..150 {
            let replicas = 1 + rng.below(8) as u8;
            let demand: Vec<f64> = (0..replicas).map(|_| f64::from(rng.below(100)) / 100.0).collect();
            let processors = 1.0 + f64::from(rng.below(4));
            let (mut scaler, mut processes) =
                (Scaler::new(1, replicas), 1 + rng.below(replicas.into()) as u8);
            let mut changes = Vec::new();
            for look in 0..4000 {
                let alone = shares(&demand, processes);
                let stretched = (alone.iter().sum::<f64>() / processors).max(1.0);
                let all = |process| {
                    alone.iter().enumerate().filter(move |(r, _)| host_of(*r, processes.into()) == process)
                };
                // A process is busy for longer, but at most all of the time.
                let longer = |replica: usize| {
                    let sum: f64 = all(host_of(replica, processes.into())).map(|(_, share)| share).sum();
                    alone[replica] * stretched.min(1.0 / sum.max(1e-9))
                };
                let seen: Vec<f64> = (0..usize::from(replicas)).map(longer).collect();
                if let Some(to) = scaler.look(processes, &seen) {
                    processes = to;
                    changes.push((look, to));
                }
            }
            let late = changes.iter().filter(|(look, _)| *look > 1000).count();
            assert!(
                changes.len() <= 6 && late == 0,
                "round {round}: {demand:?} on {processors}: {changes:?}"
            );
        }
    }

    #[test]
    fn a_load_that_comes_and_goes_is_followed_less_and_less() {
        let (mut scaler, mut processes) = (Scaler::new(1, 4), 1);
        let mut changes = 0;
        // One minute of high load and one of low load alternate for a day; a look takes half a second.
        for _ in 0..720 {
            changes += run(&mut scaler, &mut processes, &[0.8; 4], 120).len();
            changes += run(&mut scaler, &mut processes, &[0.02; 4], 120).len();
        }
        assert!(changes <= 20, "{changes}");
        assert_eq!(processes, 4, "it stays where there is enough");
        // When the load is over, the number goes down once.
        assert_eq!(run(&mut scaler, &mut processes, &[0.02; 4], 4000).len(), 1);
        assert_eq!(processes, 1);
        // The doubled patience is forgotten after a long time.
        run(&mut scaler, &mut processes, &[0.02; 4], 4 * COOL_LOOKS_MAX);
        run(&mut scaler, &mut processes, &[0.9; 4], 50);
        assert_eq!(run(&mut scaler, &mut processes, &[0.02; 4], 50).len(), 1);
    }

    #[test]
    fn whatever_it_is_told_it_stays_within_its_limits() {
        let mut rng = Rng::new(8);
        for _ in 0..500 {
            let max = 1 + rng.below(8) as u8;
            let min = 1 + rng.below(max.into()) as u8;
            let (mut scaler, mut processes) = (Scaler::new(min, max), 1 + rng.below(8) as u8);
            for _ in 0..200 {
                let noise = [f64::NAN, -1.0, 0.0, 0.3, 0.8, 1.0, 7.0, f64::INFINITY];
                let shares: Vec<f64> = (0..rng.below(9)).map(|_| noise[rng.below(8) as usize]).collect();
                if let Some(to) = scaler.look(processes, &shares) {
                    assert!((min..=max).contains(&to) && to != processes);
                    processes = to;
                }
            }
        }
    }
}

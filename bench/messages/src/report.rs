//! Prints the numbers.

use std::collections::BTreeMap;

use atoll_sys::Calibration;

use crate::Options;
use crate::case::{CASES, Case, Place};

/// The nanoseconds of each case and place, by round.
pub struct Report {
    rows: BTreeMap<(bool, &'static str), Vec<f64>>,
    title: String,
    disturbed: u32,
}

impl Report {
    pub fn new(options: &Options) -> Report {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().unwrap_or("?").to_owned();
        let title = format!(
            "{} rounds, processors {:?}, idle {}, load before {load}",
            options.rounds, options.cpus, options.idle
        );
        Report { rows: BTreeMap::new(), title, disturbed: 0 }
    }

    pub fn add(&mut self, place: Place, case: &Case, nanos: f64, disturbed: u32) {
        self.disturbed += disturbed;
        self.rows.entry((place == Place::Together, case.name)).or_default().push(nanos);
    }

    pub fn print(&self, calibration: Calibration) {
        println!("{}; {} attempts were disturbed", self.title, self.disturbed);
        // The value is 0 without a usable counter.
        let cycles = if calibration.mult == 0 { 0.0 } else { (1u64 << 48) as f64 / calibration.mult as f64 };
        println!("a cycle is one of the time stamp counter: {cycles:.3} a nanosecond");
        for (together, place) in [(false, "two processors"), (true, "one processor")] {
            println!(
                "\n| {place} | per | least ns | cycles | median | greatest | median ratio | ratio of leasts \
                 | to | aim | |"
            );
            println!("|---|---|---|---|---|---|---|---|---|---|---|");
            for case in CASES {
                let Some(values) = self.rows.get(&(together, case.name)) else { continue };
                let median = median(values);
                let (least, greatest) =
                    values.iter().fold((f64::MAX, 0.0f64), |(low, high), v| (low.min(*v), high.max(*v)));
                print!(
                    "| {} | {} | {least:.1} | {:.0} | {median:.1} | {greatest:.1} ",
                    case.name,
                    case.unit,
                    least * cycles
                );
                match case.aim.and_then(|(to, aim)| Some((self.rows.get(&(together, to))?, to, aim))) {
                    Some((limit, to, aim)) => {
                        let ratios: Vec<f64> =
                            values.iter().zip(limit).map(|(ours, theirs)| ours / theirs).collect();
                        let ratio = self::median(&ratios);
                        let least = least / limit.iter().copied().fold(f64::MAX, f64::min);
                        match aim {
                            Some(aim) => {
                                let verdict = if ratio <= aim { "reached" } else { "missed" };
                                println!("| {ratio:.2} | {least:.2} | {to} | {aim:.1} | {verdict} |");
                            }
                            None => println!("| {ratio:.2} | {least:.2} | {to} | | |"),
                        }
                    }
                    None => println!("| | | | | |"),
                }
            }
        }
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[len / 2],
        len => (sorted[len / 2 - 1] + sorted[len / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(super::median(&[3.0, 1.0, 100.0]), 3.0);
        assert_eq!(super::median(&[4.0, 1.0, 2.0, 100.0]), 3.0);
        assert_eq!(super::median(&[]), 0.0);
    }
}

//! Measures what messages between two processes cost on this machine (Table 2 of Pika, P3), and what the
//! hardware allows.
//!
//!     cargo run --release -p atoll-bench-messages            about ten seconds
//!     ... -- --rounds 50 --cpus 0,1 --idle polling
//!
//! Two processes are pinned, first to two processors, then to one. In each round every case runs once, for a
//! millisecond or a few, so that what the machine does meanwhile affects all cases alike. An attempt in which
//! others had the processors is repeated, whatever its result was. The program prints least, median and
//! greatest of the rounds, and the median of the ratios within a round. The limits are measured in the same
//! rounds: a line that goes back and forth, a stream of lines, a bare futex.
#![forbid(unsafe_code)]

mod case;
mod dispatch;
mod limits;
mod messaging;
mod partner;
mod report;
mod wake;

use std::io;
use std::process::ExitCode;

use clap::Parser;

use crate::case::{CASES, Place};
use crate::partner::Partner;
use crate::report::Report;

/// Measures messages between two processes.
#[derive(Parser)]
#[command(name = "atoll-messages")]
struct Options {
    /// The number of times that each case runs.
    #[arg(long, default_value_t = 61)]
    rounds: usize,
    /// The processors of the two processes.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1])]
    cpus: Vec<usize>,
    /// What idle processors do: `untouched`, or `polling` (they do not halt; needs root).
    #[arg(long, default_value = "untouched")]
    idle: String,
    /// Run only the cases whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Run as the other process.
    #[arg(long, hide = true)]
    partner_of: Option<u32>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = match options.partner_of {
        Some(parent) => partner::serve(parent),
        None => measure(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("atoll-messages: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> io::Result<()> {
    let [first, second] = options.cpus[..] else {
        return Err(io::Error::other("--cpus takes two processors, such as 0,1"));
    };
    let _awake = match options.idle.as_str() {
        "untouched" => None,
        "polling" => Some(atoll_sys::sched::dma_latency_zero()?),
        other => return Err(io::Error::other(format!("--idle {other}: untouched or polling"))),
    };
    atoll_sys::sched::set_affinity(&[first])?;
    let mut partner = Partner::start()?;
    let mut report = Report::new(options);
    for place in [Place::Apart, Place::Together] {
        partner.pin(if place == Place::Apart { second } else { first })?;
        // The first round warms up.
        for round in 0..=options.rounds {
            for case in CASES.iter().filter(|case| case.name.contains(&options.only) && case.runs(place)) {
                let (nanos, disturbed) = partner.run(case, place)?;
                if round > 0 {
                    report.add(place, case, nanos, disturbed);
                }
            }
        }
    }
    report.print(partner.clock().calibration());
    Ok(())
}

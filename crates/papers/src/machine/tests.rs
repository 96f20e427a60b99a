use std::time::Duration;

use super::*;
use crate::costs::Table;
use atoll_ipc::balance::{Balance, Scheme};

fn run(settings: Settings) -> Report {
    Machine::new(settings, Table::built_in().costs().expect("a whole table")).run()
}

fn short(n: usize) -> Settings {
    Settings { warm_up: Duration::from_millis(2), duration: Duration::from_millis(10), ..Settings::saturated(n) }
}

#[test]
fn explore() {
    if true {
        return;
    }
    for (scheme, tariff) in [
        (Scheme::Naive, 1),
        (Scheme::Unfiltered, 2),
        (Scheme::Unfiltered, 100),
        (Scheme::Filtered, 2),
        (Scheme::Tournament, 2),
    ] {
        for n in [1, 8, 32] {
            let t = std::time::Instant::now();
            let s = Settings { balance: Balance { scheme, tariff, ..Balance::new() }, ..short(n) };
            let r = run(s);
            println!(
                "{scheme:?} {tariff} {n}: {:.0}/s {:.0} each; busy {:.2} local {:.3} peer {:.4} heard {} reports {} timed out {} refused {} | link {:.2} tcp {:.2} cm {:.2} msg {:.2} poll {:.2} wall {:?}",
                r.rate(),
                r.rate() / n as f64,
                r.busiest(),
                r.locality(),
                r.share(Purpose::Peer),
                r.offers_heard,
                r.reports_heard,
                r.timed_out,
                r.refused,
                r.micros_each(Purpose::Link),
                r.micros_each(Purpose::Tcp),
                r.micros_each(Purpose::Cm),
                r.micros_each(Purpose::Message),
                r.micros_each(Purpose::Poll),
                t.elapsed()
            );
        }
    }
}

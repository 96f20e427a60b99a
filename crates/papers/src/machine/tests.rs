use std::time::Duration;

use super::*;
use crate::configuration::Configuration;
use crate::costs::Table;

fn run(settings: Settings) -> Report {
    Machine::new(settings, Table::built_in().costs().expect("a whole table")).run()
}

fn short(n: usize) -> Settings {
    Settings {
        warm_up: Duration::from_millis(2),
        duration: Duration::from_millis(5),
        ..Settings::saturated(n)
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let of = |seed| run(Settings { seed, ..short(4) });
    let (one, again, other) = (of(7), of(7), of(8));
    assert_eq!((one.finished, &one.services), (again.finished, &again.services));
    assert_ne!(one.services, other.services);
}

#[test]
fn a_pair_serves_as_many_as_its_server_has_time_for() {
    let report = run(short(1));
    assert!(report.busiest() > 0.98, "{}", report.busiest());
    let purposes = [Purpose::Link, Purpose::Tcp, Purpose::Cm, Purpose::Peer, Purpose::Message, Purpose::Poll];
    let each: f64 = purposes.iter().map(|purpose| report.micros_each(*purpose)).sum();
    let rate = 1e6 / each;
    assert!((report.rate() / rate - 1.0).abs() < 0.02, "{} against {rate}", report.rate());
}

#[test]
fn few_connections_are_all_served_in_every_configuration() {
    for name in [
        "TS2LS2CM2",
        "TS2LS2CM1",
        "TS2LS2+CM1",
        "TS2+LS2+CM2",
        "TS2CM2+LS1",
        "TS1LS1+CM2",
        "TS2CM2+IP2LS2",
        "TS2+IP1+LS2+CM2",
    ] {
        let configuration = Configuration::parse(name).expect(name);
        let report = run(Settings {
            configuration,
            load: Load::Constant(20_000),
            duration: Duration::from_millis(100),
            ..short(2)
        });
        assert!((1_990..=2_010).contains(&report.finished), "{name}: {}", report.finished);
        assert_eq!((report.refused, report.timed_out), (0, 0), "{name}");
    }
}

#[test]
fn applications_that_ask_get_all_connections_in_every_configuration_that_has_their_managers() {
    let places = ["TS2LS2CM2", "TS2+LS2+CM2", "TS2CM2+LS1"];
    for (name, handshake) in
        places.iter().flat_map(|name| [(*name, Handshake::Accept), (*name, Handshake::Select)])
    {
        let configuration = Configuration::parse(name).expect(name);
        let report = run(Settings {
            configuration,
            handshake,
            load: Load::Constant(20_000),
            duration: Duration::from_millis(100),
            ..short(2)
        });
        assert!((1_990..=2_010).contains(&report.finished), "{name}: {}", report.finished);
        assert_eq!((report.refused, report.timed_out), (0, 0), "{name}");
    }
}

#[test]
fn who_does_not_claim_in_time_loses_its_connections_to_others() {
    let forever = Duration::from_secs(10);
    let stuck = Delay { app: 1, from: Duration::ZERO, until: forever, by: forever };
    let report = run(Settings {
        delays: vec![stuck],
        load: Load::Constant(2_000),
        duration: Duration::from_secs(1),
        ..short(2)
    });
    assert!(report.timed_out > 0);
    // It keeps what it has claimed, which is one; the last quarter of a second may still be under way.
    let late = report.services.iter().filter(|service| service.nanos > 300_000_000).count();
    assert!(late <= 2, "{late} wait for it");
    assert!(report.finished > 1_900, "{}", report.finished);
}

#[test]
fn a_slow_application_gets_less() {
    let slow =
        Delay { app: 0, from: Duration::ZERO, until: Duration::from_secs(1), by: Duration::from_millis(2) };
    let report = run(Settings {
        delays: vec![slow],
        load: Load::Constant(10_000),
        duration: Duration::from_millis(500),
        ..short(4)
    });
    let to_it = report.assigned.iter().filter(|assigned| assigned.app == 0).count();
    assert!(to_it > 0 && to_it < report.assigned.len() / 20, "{to_it} of {}", report.assigned.len());
}

#[test]
fn who_has_little_to_do_sleeps_and_who_has_much_does_not() {
    let costs = Table::built_in().costs().expect("a whole table");
    let of =
        |load, waiting| run(Settings { load, waiting, duration: Duration::from_millis(200), ..short(2) });
    let waits = Some(Waiting::default());
    let shares =
        |report: &Report| [Purpose::Wake, Purpose::Spin].map(|purpose| report.core_share(0, purpose));
    let (little, much) = (of(Load::Constant(100), waits), of(Load::Closed(128), waits));
    let [slept, looked] = shares(&little);
    // A connection wakes its server for the SYN, if not for each of its frames.
    assert!(slept * 0.2e9 >= 8.0 * costs.suspend && slept + looked < 0.1, "{slept} {looked}");
    assert_eq!(shares(&of(Load::Constant(100), None)), [0.0, 0.0]);
    let (each, of_few) = (much.micros_each(Purpose::Wake), little.micros_each(Purpose::Wake));
    assert!(each < of_few / 20.0, "{each} {of_few}");
    assert!(much.rate() > 0.5 * of(Load::Closed(128), None).rate(), "{}", much.rate());
    let (asleep, awake) = (little.sorted_latencies(), of(Load::Constant(100), None).sorted_latencies());
    assert!(percentile(&asleep, 50.0) > percentile(&awake, 50.0) + costs.wake / 1000.0);
}

#[test]
fn percentiles_are_of_what_there_is() {
    let all: Vec<f64> = (1..=200).map(f64::from).collect();
    assert_eq!([0.0, 50.0, 99.0, 100.0].map(|percent| percentile(&all, percent)), [1.0, 100.0, 198.0, 200.0]);
    assert_eq!(percentile(&[], 50.0), 0.0);
}

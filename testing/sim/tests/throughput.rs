//! How fast is a stream over a link that loses? A snapshot, so that a change of recovery or congestion
//! control shows in the diff.

use core::time::Duration;

use atoll_sim::{FlowSettings, LinkSettings, Middlebox, Pair, Plan, Scenario};
use atoll_tcp::{Algorithm, Settings};

/// Sends one megabyte from client to server over a link of 10 ms under 5 seeds. Returns the median time in
/// milliseconds, and the retransmitted segments per 1000.
fn measure(loss: u32, reorder: u32, strip_sack: bool, algorithm: Algorithm) -> (u64, u64) {
    let link = LinkSettings {
        loss,
        duplicate: 0,
        reorder,
        latency: Duration::from_millis(10),
        merge: false,
        longest: usize::MAX,
    };
    let plan = Plan {
        write: 1 << 20,
        send_buffer: 1 << 20,
        read_max: 1 << 20,
        stall: 0,
        len_max: 65_000,
        no_room: 0,
        lazy_reports: false,
        compact: false,
        urgent: 0,
    };
    let settings = Settings { congestion: algorithm, receive_capacity: 1 << 20, ..Settings::default() };
    let mut runs: Vec<(u64, u64)> = (0..5)
        .map(|seed| {
            let scenario = Scenario {
                seed,
                flow: FlowSettings {
                    plans: [plan, Plan { write: 0, ..plan }],
                    settings: [settings, settings],
                    mss: [1460, 1460],
                    simultaneous_open: false,
                    fast_open: false,
                    middlebox: Middlebox { strip_sack, ..Middlebox::default() },
                },
                links: [link, LinkSettings { loss: 0, reorder: 0, ..link }],
                faults_for: Duration::from_secs(3600),
                stranger: 0,
                crashes: 0,
            };
            let report = Pair::new(&scenario).run().expect("the stream arrives");
            (report.delivered_after.as_millis() as u64, report.retransmits * 1000 / 725)
        })
        .collect();
    runs.sort_unstable();
    runs[2]
}

#[test]
fn throughput_over_loss() {
    let mut table = String::new();
    for (algorithm, strip_sack) in Algorithm::ALL.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        for (loss, reorder) in [(0, 0), (1_000, 0), (10_000, 0), (50_000, 0), (0, 10_000)] {
            let (ms, again) = measure(loss, reorder, strip_sack, algorithm);
            let sack = if strip_sack { "no SACK" } else { "SACK" };
            table += &format!(
                "{algorithm:?} {sack}: loss {loss} reorder {reorder}: {ms} ms, {again} sent again\n"
            );
        }
    }
    let expected = include_str!("throughput.txt");
    assert!(table.trim() == expected.trim(), "the table is now\n{table}\ninstead of\n{expected}");
}

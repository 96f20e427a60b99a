use super::*;

const MSS: u16 = 1000;

fn ack(at: Instant, acked: u32, srtt_us: u32) -> Ack {
    Ack { now: at, acked, mss: MSS, srtt_us, rtt_us: None, una: 0, nxt: 0 }
}

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

#[test]
fn slow_start_doubles_the_window_per_round_trip() {
    let mut congestion = Congestion::new(Algorithm::Cubic, MSS);
    congestion.limited = true;
    assert_eq!(congestion.cwnd, 10_000);
    congestion.handle_ack(&ack(at(0), 10_000, 1000));
    assert_eq!(congestion.cwnd, 20_000);
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    // covers: RFC 7661
    let mut congestion = Congestion::new(Algorithm::Cubic, MSS);
    congestion.handle_ack(&ack(at(0), 10_000, 1000));
    assert_eq!(congestion.cwnd, 10_000);
}

#[test]
fn new_reno_halves_and_grows_by_a_segment_per_window() {
    // covers: RFC 5681 §3.1
    let mut congestion = Congestion::new(Algorithm::NewReno, MSS);
    congestion.limited = true;
    congestion.handle_loss(20_000, MSS);
    congestion.end_recovery(MSS, true);
    assert_eq!((congestion.cwnd, congestion.ssthresh), (10_000, 10_000));
    for _ in 0..10 {
        congestion.handle_ack(&ack(at(0), 1000, 1000));
    }
    assert_eq!(congestion.cwnd, 11_000);
}

#[test]
fn cubic_keeps_seventy_percent_and_is_back_at_the_plateau_after_k() {
    // covers: RFC 9438 §4.6
    let mut congestion = Congestion::new(Algorithm::Cubic, MSS);
    congestion.limited = true;
    congestion.cwnd = 1_000_000;
    congestion.handle_loss(1_000_000, MSS);
    congestion.end_recovery(MSS, true);
    assert_eq!(congestion.cwnd, 700_000);
    // K = cbrt(300 / 0.4) = 9.086 s; a round trip of 100 ms with an acknowledgement per segment.
    let mut now = 0;
    while now < 9_086 {
        for _ in 0..congestion.cwnd / 1000 {
            congestion.handle_ack(&ack(at(now), 1000, 100_000));
        }
        now += 100;
    }
    assert!(congestion.cwnd.abs_diff(1_000_000) < 20_000, "{}", congestion.cwnd);
}

#[test]
fn a_timeout_leaves_one_segment_and_lowers_the_threshold_once() {
    let mut congestion = Congestion::new(Algorithm::NewReno, MSS);
    congestion.handle_timeout(20_000, MSS, true);
    congestion.handle_timeout(1_000, MSS, false);
    assert_eq!((congestion.cwnd, congestion.ssthresh), (1000, 10_000));
}

#[test]
fn a_small_window_grows_as_fast_as_new_reno() {
    // covers: RFC 9438 §4.3: by 0.53 segments in a round trip up to the window before the loss, then by one.
    let mut congestion = Congestion::new(Algorithm::Cubic, MSS);
    congestion.limited = true;
    congestion.handle_loss(10_000, MSS);
    congestion.end_recovery(MSS, true);
    assert_eq!(congestion.cwnd, 7_000);
    let round = |n: u64, congestion: &mut Congestion| {
        for _ in 0..congestion.cwnd / 1000 {
            congestion.handle_ack(&ack(at(n * 10), 1000, 10_000));
        }
    };
    for n in 0..5 {
        round(n, &mut congestion);
    }
    assert!((9_000..9_700).contains(&congestion.cwnd), "{}", congestion.cwnd);
    for n in 5..100 {
        round(n, &mut congestion);
    }
    assert!((90_000..110_000).contains(&congestion.cwnd), "{}", congestion.cwnd);
}

#[test]
fn the_end_of_slow_start_is_approached_by_quarters() {
    // covers: RFC 9406 §4.2
    let mut congestion = Congestion::new(Algorithm::Cubic, MSS);
    congestion.limited = true;
    let mut grown = 0;
    for (n, rtt_us) in [20_000, 20_000, 30_000].into_iter().enumerate() {
        for acked in 1..=10 {
            let una = n as i64 * 10 + acked;
            let before = congestion.cwnd;
            let news = Ack {
                rtt_us: Some(rtt_us),
                una,
                nxt: (n as i64 + 1) * 10 + acked,
                ..ack(at(0), 1000, rtt_us)
            };
            congestion.handle_ack(&news);
            grown = congestion.cwnd - before;
        }
        assert_eq!(grown, if rtt_us == 20_000 { 1000 } else { 250 }, "{n}");
    }
}

#[test]
fn after_a_time_out_the_curve_begins_where_slow_start_has_ended() {
    // covers: RFC 9438 §4.8: K is 0, and the plateau is the window at the start of congestion avoidance.
    let mut congestion = Congestion::new(Algorithm::Cubic, MSS);
    congestion.limited = true;
    congestion.cwnd = 100_000;
    congestion.handle_timeout(100_000, MSS, true);
    congestion.cwnd = congestion.ssthresh;
    assert_eq!(congestion.cwnd, 70_000);
    // W_cubic(2 s) = 0.4 * 2^3 + 70 segments.
    for ms in (0..=2_000).step_by(500) {
        for _ in 0..congestion.cwnd / 1000 {
            congestion.handle_ack(&ack(at(ms), 1000, 1));
        }
    }
    assert!(congestion.cwnd.abs_diff(73_200) < 1_000, "{}", congestion.cwnd);
}

#[test]
fn idling_decays_the_window_to_the_initial_one() {
    let mut congestion = Congestion::new(Algorithm::Cubic, MSS);
    congestion.cwnd = 100_000;
    congestion.handle_idle(at(0), Duration::from_millis(450), Duration::from_millis(200), MSS);
    assert_eq!(congestion.cwnd, 25_000);
    congestion.handle_idle(at(0), Duration::from_secs(60), Duration::from_millis(200), MSS);
    assert_eq!(congestion.cwnd, 10_000);
}

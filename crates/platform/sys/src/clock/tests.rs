use super::*;

#[test]
fn counter_and_kernel_agree_and_never_go_back() {
    let clock = Clock::calibrate();
    let mut last = clock.now();
    for _ in 0..1000 {
        let before = kernel_now();
        let now = clock.now();
        let after = kernel_now();
        assert!(now >= last);
        // The slack is 100 us, because NTP may slew the kernel's clock while the test runs.
        assert!(now + Duration::from_micros(100) >= before, "{now:?} is before {before:?}");
        assert!(after + Duration::from_micros(100) >= now, "{now:?} is after {after:?}");
        last = now;
    }
}

#[test]
fn conversion_is_exact_for_a_known_rate() {
    // At 2 GHz a tick is half a nanosecond.
    let calibration = Calibration { tsc0: 1000, ns0: 5_000_000_000, mult: 1 << 47 };
    assert_eq!(calibration.convert(1000), Instant::from_nanos(5_000_000_000));
    assert_eq!(calibration.convert(3000), Instant::from_nanos(5_000_001_000));
    assert_eq!(calibration.convert(0), Instant::from_nanos(5_000_000_000));
}

#[test]
fn a_year_of_ticks_does_not_overflow() {
    let calibration = Calibration { tsc0: 0, ns0: 0, mult: 1 << 47 };
    let year = 365 * 86_400 * 1_000_000_000u64;
    assert_eq!(calibration.convert(2 * year).as_nanos(), year);
}

#[test]
fn garbage_calibrations_do_not_panic() {
    let calibration = Calibration { tsc0: 0, ns0: u64::MAX, mult: u64::MAX };
    let _ = calibration.convert(u64::MAX);
}

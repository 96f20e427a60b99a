use super::*;

const MS: Duration = Duration::from_millis(1);

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1000)
}

/// Sends `count` packets of 1000 octets, one every `every` microseconds, and returns when each arrived.
fn send(line: &mut Line<u32>, count: u32, every: u64) -> Vec<(u64, u32)> {
    let mut arrived = Vec::new();
    for number in 0..count {
        let now = at(u64::from(number) * every);
        arrived.extend(std::iter::from_fn(|| line.poll(now)).map(|a| (a.at.as_micros(), a.item)));
        line.handle(now, 1000, Ecn::Capable, number);
    }
    while let Some(due) = line.next_due() {
        arrived.extend(std::iter::from_fn(|| line.poll(due)).map(|a| (a.at.as_micros(), a.item)));
    }
    arrived
}

fn line(settings: LineSettings) -> Line<u32> {
    Line::new(settings, 1)
}

#[test]
fn a_perfect_line_only_delays() {
    let mut line = line(LineSettings { delay: 5 * MS, ..LineSettings::default() });
    assert_eq!(send(&mut line, 3, 10), [(5000, 0), (5010, 1), (5020, 2)]);
}

#[test]
fn packets_leave_one_after_another_at_the_rate() {
    // At 8 Mb/s, 1000 octets take a millisecond.
    let mut line = line(LineSettings { rate: 8_000_000, delay: 5 * MS, ..LineSettings::default() });
    assert_eq!(send(&mut line, 3, 10), [(6000, 0), (7000, 1), (8000, 2)]);
}

#[test]
fn what_finds_no_room_is_dropped() {
    let mut line = line(LineSettings { rate: 8_000_000, queue: 2500, ..LineSettings::default() });
    assert_eq!(send(&mut line, 4, 10), [(1000, 0), (2000, 1)]);
    let counts = line.take_counts();
    assert_eq!((counts.queued, counts.overflowed, counts.queue_peak), (2, 2, 2000));
}

#[test]
fn looking_late_changes_nothing() {
    let settings = LineSettings { rate: 8_000_000, queue: 3000, delay: MS, ..LineSettings::default() };
    let mut late = line(settings);
    for number in 0..5 {
        late.handle(at(u64::from(number) * 700), 1000, Ecn::Capable, number);
    }
    let arrived: Vec<_> =
        std::iter::from_fn(|| late.poll(at(1_000_000))).map(|a| (a.at.as_micros(), a.item)).collect();
    assert_eq!(arrived, send(&mut line(settings), 5, 700));
}

#[test]
fn random_loss_is_as_frequent_as_it_says() {
    let mut line = line(LineSettings { loss: Loss::Random(10_000), ..LineSettings::default() });
    let lost = 100_000 - send(&mut line, 100_000, 1).len();
    assert!((900..1100).contains(&lost), "{lost}");
    assert_eq!(line.take_counts().lost, lost as u64);
}

#[test]
fn burst_loss_comes_in_bursts() {
    // One packet in 500 begins a burst of 5 on average, so 1 % are lost.
    let loss = Loss::Burst { enter: 2_000, leave: 200_000, bad: 1_000_000 };
    let mut line = line(LineSettings { loss, ..LineSettings::default() });
    let arrived: Vec<u32> = send(&mut line, 100_000, 1).into_iter().map(|(_, number)| number).collect();
    let lost = 100_000 - arrived.len();
    let bursts = arrived.windows(2).filter(|pair| pair[1] > pair[0] + 1).count();
    assert!((800..1200).contains(&lost), "{lost}");
    assert!((4.0..6.0).contains(&(lost as f64 / bursts as f64)), "{lost} in {bursts} bursts");
}

#[test]
fn jitter_keeps_the_order_and_reordering_does_not() {
    let in_order = |arrived: &[(u64, u32)]| arrived.is_sorted_by_key(|(_, number)| *number);
    let mut jittery = line(LineSettings { jitter: MS, ..LineSettings::default() });
    let arrived = send(&mut jittery, 1000, 100);
    assert!(in_order(&arrived) && arrived.iter().any(|(at, number)| *at != u64::from(*number) * 100));
    let mut other = line(LineSettings { reorder: 10_000, held_for: MS, ..LineSettings::default() });
    let arrived = send(&mut other, 1000, 100);
    assert!(!in_order(&arrived) && arrived.len() == 1000);
}

#[test]
fn a_shorter_delay_lets_later_packets_overtake() {
    let settings = LineSettings { delay: 10 * MS, ..LineSettings::default() };
    let mut line = line(settings);
    line.handle(at(0), 1000, Ecn::Capable, 1);
    line.change(at(0), LineSettings { delay: MS, ..settings });
    line.handle(at(0), 1000, Ecn::Capable, 2);
    let order: Vec<u32> = std::iter::from_fn(|| line.poll(at(10_000))).map(|a| a.item).collect();
    assert_eq!(order, [2, 1]);
}

#[test]
fn a_changed_rate_holds_for_what_waits() {
    let mut line = line(LineSettings { rate: 8_000_000, ..LineSettings::default() });
    for number in 0..3 {
        line.handle(at(0), 1000, Ecn::Capable, number);
    }
    line.change(at(500), LineSettings { rate: 80_000_000, ..LineSettings::default() });
    let arrived: Vec<u64> = std::iter::from_fn(|| line.poll(at(10_000))).map(|a| a.at.as_micros()).collect();
    assert_eq!(arrived, [1000, 1100, 1200]);
}

#[test]
fn a_long_queue_is_marked_for_those_who_understand() {
    let settings = LineSettings { rate: 8_000_000, marking: Marking::Above(1500), ..LineSettings::default() };
    let mut line = line(settings);
    for (number, ecn) in [Ecn::Capable, Ecn::Capable, Ecn::Capable, Ecn::Incapable].into_iter().enumerate() {
        line.handle(at(0), 1000, ecn, number as u32);
    }
    let marked: Vec<bool> = std::iter::from_fn(|| line.poll(at(10_000))).map(|a| a.marked).collect();
    assert_eq!(marked, [false, false, true, false]);
}

#[test]
fn codel_marks_a_standing_queue_more_and_more_often_and_no_burst() {
    let marking = Marking::CoDel { target: 5 * MS, interval: 100 * MS };
    let settings = LineSettings { rate: 8_000_000, marking, ..LineSettings::default() };
    let mut burst = line(settings);
    for number in 0..50 {
        burst.handle(at(0), 1000, Ecn::Capable, number);
    }
    while let Some(due) = burst.next_due() {
        burst.poll(due);
    }
    assert_eq!(burst.take_counts().marked, 0);
    // A packet every 980 us into a queue that takes one per 1000: it grows for ever.
    let mut standing = line(settings);
    send(&mut standing, 2000, 980);
    let marked = standing.take_counts().marked;
    // n marks take 100 ms * (1 + 1/sqrt 2 + ... + 1/sqrt n), that is about 200 ms * sqrt n.
    assert!((50..100).contains(&marked), "{marked}");
}

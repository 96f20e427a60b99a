use super::*;
use crate::recovery::{Counters, Sent};
use atoll_base::Duration;
use std::collections::VecDeque;

const MSS: u16 = 1000;
const MSS64: i64 = MSS as i64;

/// A path: one queue that drains at `rate` octets per second, and a delay. Segments are lost only if the
/// queue is longer than `room`.
struct Path {
    rate: u64,
    delay: Duration,
    room: usize,
}

/// Sends for `time` as much as BBR allows. Returns BBR, the octets delivered in the last second, and the
/// largest queue in that second.
fn flow(path: &Path, time: Duration) -> (Bbr, u64, usize) {
    let mut now = Instant::from_millis(1);
    let end = now + time;
    let step = Duration::from_micros(100);
    let mut bbr = Bbr::new(now, 7, MSS, 0);
    let (mut cwnd, mut paced, mut free) = (initial_window(MSS), now, now);
    let mut counters = Counters::new(0, now);
    let mut flight: VecDeque<(Sent, Instant)> = VecDeque::new();
    let (mut nxt, mut pipe, mut last_second, mut queue_max) = (0, 0, 0, 0);
    while now < end {
        let mut lost = None;
        while pipe + MSS64 <= i64::from(cwnd) && paced <= now {
            if pipe == 0 {
                (counters.first_sent_at, counters.delivered_at) = (now, now);
            }
            pipe += MSS64;
            counters.in_flight = pipe as u32;
            let sent = Sent::once(nxt, nxt + MSS64, now, counters);
            nxt += MSS64;
            paced = paced.max(now) + Duration::from_nanos(MSS64 as u64 * 1_000_000_000 / bbr.pacing_rate);
            let queue = free.since(now).as_nanos() as u64 * path.rate / 1_000_000_000 / u64::from(MSS);
            if end.since(now) < Duration::from_secs(1) {
                queue_max = queue_max.max(queue as usize);
            }
            if queue as usize >= path.room {
                lost = Some(sent);
                pipe -= MSS64;
                counters.lost += u32::from(MSS);
                continue;
            }
            free = free.max(now) + Duration::from_nanos(MSS64 as u64 * 1_000_000_000 / path.rate);
            flight.push_back((sent, free + path.delay));
        }
        let arrived = flight.front().filter(|front| front.1 <= now).map(|front| front.0);
        if arrived.is_some() || lost.is_some() {
            if arrived.is_some() {
                flight.pop_front();
                pipe -= MSS64;
                counters.delivered += MSS64;
                counters.delivered_at = now;
                last_second += u64::from(MSS) * u64::from(end.since(now) < Duration::from_secs(1));
            }
            if let Some(sent) = &arrived {
                counters.first_sent_at = sent.sent_at;
            }
            let sample = Sample {
                now,
                mss: MSS,
                delivered: counters.delivered,
                newly_delivered: if arrived.is_some() { MSS.into() } else { 0 },
                newly_lost: if lost.is_some() { MSS.into() } else { 0 },
                pipe: pipe as u32,
                srtt_us: 0,
                rtt_us: arrived.map(|sent| now.since(sent.sent_at).as_micros() as u32),
                rate: arrived.map(|sent| counters.sample(&sent, path.delay)),
                lost: lost.map(|sent| counters.sample(&sent, Duration::ZERO)),
                limited: true,
                seed: 7,
            };
            cwnd = bbr.handle_sample(&sample, cwnd);
        }
        now += if arrived.is_some() { Duration::from_nanos(1) } else { step };
    }
    (bbr, last_second, queue_max)
}

#[test]
fn the_pipe_is_filled_without_a_queue() {
    let path = Path { rate: 1_250_000, delay: Duration::from_millis(40), room: 1000 };
    let (bbr, delivered, queue) = flow(&path, Duration::from_secs(4));
    assert!(bbr.full_bw_reached && bbr.mode.probes_bandwidth(), "{bbr:?}");
    assert!((1_100_000..1_260_000).contains(&delivered), "{delivered}");
    assert!(bbr.model.min_rtt_us.abs_diff(40_800) < 2000, "{bbr:?}");
    // The pipe holds 50 segments; CUBIC would leave hundreds in the queue.
    assert!(queue < 60, "{queue}");
}

#[test]
fn a_small_buffer_is_found_out() {
    let path = Path { rate: 1_250_000, delay: Duration::from_millis(40), room: 10 };
    let (bbr, delivered, _) = flow(&path, Duration::from_secs(10));
    assert!(bbr.model.inflight_longterm < 120_000, "{bbr:?}");
    assert!(delivered > 1_000_000, "{delivered}");
}

#[test]
fn the_round_trip_is_measured_anew_every_five_seconds() {
    let path = Path { rate: 1_250_000, delay: Duration::from_millis(40), room: 1000 };
    let mut seen = false;
    for tenths in 50..60 {
        let (bbr, ..) = flow(&path, Duration::from_millis(tenths * 100));
        seen |= bbr.mode == Mode::ProbeRtt;
    }
    assert!(seen);
}

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::*;
use crate::rng::Rng;

const SHIFT: u32 = 20;

fn tick(n: u64) -> Instant {
    Instant::from_nanos(n << SHIFT)
}

fn expired(wheel: &mut Wheel, now: Instant) -> Vec<u32> {
    let mut fired = Vec::new();
    wheel.expire(now, |id| fired.push(id.0));
    fired
}

#[test]
fn a_timer_fires_at_its_tick_and_not_before() {
    let mut wheel = Wheel::new(SHIFT, tick(0));
    wheel.arm(TimerId(3), tick(100));
    assert!(expired(&mut wheel, tick(99)).is_empty());
    assert_eq!(expired(&mut wheel, tick(100)), [3]);
    assert!(wheel.is_empty());
}

#[test]
fn a_deadline_between_ticks_is_rounded_up() {
    let mut wheel = Wheel::new(SHIFT, tick(0));
    wheel.arm(TimerId(0), Instant::from_nanos((5 << SHIFT) + 1));
    assert!(expired(&mut wheel, tick(5)).is_empty());
    assert_eq!(expired(&mut wheel, tick(6)), [0]);
}

#[test]
fn a_cancelled_timer_does_not_fire() {
    let mut wheel = Wheel::new(SHIFT, tick(0));
    wheel.arm(TimerId(1), tick(5000));
    wheel.arm(TimerId(2), tick(5000));
    wheel.cancel(TimerId(1));
    assert_eq!(expired(&mut wheel, tick(6000)), [2]);
}

#[test]
fn next_expiry_is_never_later_than_the_next_deadline() {
    let mut wheel = Wheel::new(SHIFT, tick(17));
    assert_eq!(wheel.next_expiry(), None);
    wheel.arm(TimerId(0), tick(9000));
    wheel.arm(TimerId(1), tick(64));
    assert_eq!(wheel.next_expiry(), Some(tick(64)));
    assert_eq!(expired(&mut wheel, tick(64)), [1]);
    assert!(wheel.next_expiry().is_some_and(|at| at <= tick(9000) && at > tick(64)));
}

#[test]
fn the_wheel_agrees_with_a_sorted_map() {
    let mut rng = Rng::new(42);
    let mut wheel = Wheel::new(SHIFT, tick(12345));
    let mut model: BTreeMap<u32, u64> = BTreeMap::new();
    let mut now = 12345u64;
    for _ in 0..200_000 {
        match rng.below(10) {
            0..=4 => {
                let id = rng.below(500);
                let exponent = rng.below(28);
                let at = now + 1 + u64::from(rng.below(1 << exponent));
                wheel.arm(TimerId(id), tick(at));
                model.insert(id, at);
            }
            5 => {
                let id = rng.below(500);
                wheel.cancel(TimerId(id));
                model.remove(&id);
            }
            _ => {
                let exponent = rng.below(16);
                now += u64::from(rng.below(1 << exponent));
                let mut fired = expired(&mut wheel, tick(now));
                fired.sort_unstable();
                let due: Vec<u32> = model.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id).collect();
                model.retain(|_, at| *at > now);
                assert_eq!(fired, due);
            }
        }
        assert_eq!(wheel.len(), model.len());
        if let Some(first) = model.values().min() {
            let next = wheel.next_expiry().expect("armed timers have a next expiry");
            assert!(next <= tick(*first), "{next:?} is after {first}");
            assert!(next > tick(now));
        }
    }
}

//! Does a server hang? Who works says so every 50 ms, who sleeps can be woken; who does neither for long is
//! not coming back.
//!
//! Time is counted in looks, four in the time that a server has, so that nobody is blamed for a pause of the
//! whole machine. A server that wants the processor and does not get it does not hang, however long that
//! takes; one that is stopped is not waited for (stops.rs).

use atoll_base::Duration;

/// Looks without a sign of life after which a server hangs.
const LOOKS: u32 = 4;

/// The watch over the servers that serve.
#[derive(Clone, Copy, Debug)]
pub struct Watchdog {
    /// Time between two looks.
    pub period: Duration,
}

/// What is on a server's page that changes while it lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// Of who works.
    pub heartbeat: u64,
    /// Of who sleeps and wakes up: odd while it sleeps.
    pub sleep_word: u32,
}

/// What one server has shown so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    signs: Signs,
    /// Looks since these signs were new.
    looks: u32,
    /// Processor time that it had used when they were first seen again, in milliseconds.
    used_ms: u64,
}

/// What to do about a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Nothing: it lives, or may.
    Wait,
    /// Ring its bell: it sleeps, and who sleeps soundly is known by being woken.
    Ring,
    /// It hangs.
    Hangs,
}

/// What the kernel says of a process: proc_pid_stat(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its state: `R`, `S`, `D`, `T` ...
    pub state: char,
    /// Processor time that it has used, in milliseconds.
    pub used_ms: u64,
}

impl Watchdog {
    /// A watch that gives servers so much time; `None` if they have any.
    pub fn new(hang_ms: u32) -> Option<Watchdog> {
        (hang_ms > 0).then(|| Watchdog { period: Duration::from_millis(u64::from(hang_ms / LOOKS)) })
    }

    /// Looks at a server. `ask`: the kernel, which is not asked as long as the server shows that it lives.
    pub fn look(&self, watch: &mut Watch, signs: Signs, ask: impl FnOnce() -> Option<Running>) -> Judgement {
        if signs != watch.signs {
            *watch = Watch { signs, looks: 0, used_ms: 0 };
            return Judgement::Wait;
        }
        watch.looks += 1;
        if watch.looks == 1 {
            watch.used_ms = ask().map_or(0, |running| running.used_ms);
            return if signs.sleep_word & 1 == 1 { Judgement::Ring } else { Judgement::Wait };
        }
        // One look more: between the first two of them it was rung.
        if watch.looks <= LOOKS {
            return Judgement::Wait;
        }
        // Gone by itself: its end is reported by another way.
        let Some(running) = ask() else { return Judgement::Wait };
        let used = Duration::from_millis(running.used_ms.saturating_sub(watch.used_ms));
        match running.state {
            // It waits for the processor; or it has it, and does nothing that shows.
            'R' if used < self.period => Judgement::Wait,
            // It waits for the kernel, which for now would not let it be killed either.
            'D' => Judgement::Wait,
            _ => Judgement::Hangs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AWAKE: Signs = Signs { heartbeat: 7, sleep_word: 2 };
    const ASLEEP: Signs = Signs { heartbeat: 7, sleep_word: 3 };

    /// Looks until something is to be done, or so many times.
    fn judgements(signs: Signs, running: Option<Running>, count: usize) -> Vec<Judgement> {
        let (watchdog, mut watch) = (Watchdog::new(2000).unwrap(), Watch::default());
        (0..count).map(|_| watchdog.look(&mut watch, signs, || running)).collect()
    }

    fn running(state: char, used_ms: u64) -> Option<Running> {
        Some(Running { state, used_ms })
    }

    #[test]
    fn who_stands_still_hangs_and_who_sleeps_is_woken_first() {
        use Judgement::{Hangs, Ring, Wait};
        assert_eq!(judgements(AWAKE, running('t', 10), 6), [Wait, Wait, Wait, Wait, Wait, Hangs]);
        assert_eq!(judgements(ASLEEP, running('t', 10), 6), [Wait, Ring, Wait, Wait, Wait, Hangs]);
        assert_eq!(judgements(ASLEEP, running('S', 10), 6).last(), Some(&Hangs), "it does not hear its bell");
    }

    #[test]
    fn who_gives_signs_of_life_is_left_alone() {
        let (watchdog, mut watch) = (Watchdog::new(2000).unwrap(), Watch::default());
        for beat in 0..100 {
            // It works, or it sleeps and is woken by the bell.
            for signs in [Signs { heartbeat: beat, ..AWAKE }, Signs { sleep_word: 2 * beat as u32 + 5, ..ASLEEP }] {
                for _ in 0..3 {
                    assert_ne!(watchdog.look(&mut watch, signs, || running('S', 10)), Judgement::Hangs);
                }
            }
        }
    }

    #[test]
    fn who_gets_no_processor_does_not_hang() {
        assert!(!judgements(AWAKE, running('R', 10), 100).contains(&Judgement::Hangs));
        assert!(!judgements(AWAKE, running('D', 10), 100).contains(&Judgement::Hangs));
        assert!(!judgements(AWAKE, None, 100).contains(&Judgement::Hangs));
        // Who has it and does nothing that shows does.
        let (watchdog, mut watch) = (Watchdog::new(2000).unwrap(), Watch::default());
        let looks: Vec<_> = (0..8).map(|n| watchdog.look(&mut watch, AWAKE, || running('R', n * 100))).collect();
        assert_eq!(looks[5..7], [Judgement::Wait, Judgement::Hangs]);
    }

    #[test]
    fn without_a_limit_nobody_watches() {
        assert!(Watchdog::new(0).is_none());
    }
}

//! Finds servers that hang. A working server changes its heartbeat every 50 ms, and a sleeping one can be
//! woken; a server that shows neither sign for long hangs.
//!
//! Time is counted in looks, of which four fit into the time that a server has, so that no server is blamed
//! for a pause of the whole machine. A server that waits for a processor does not hang, however long that
//! takes; stopped servers are handled by `stops.rs`.

use atoll_base::Duration;

/// The number of looks without a sign of life after which a server hangs.
const LOOKS: u32 = 4;

/// Watches the servers that serve.
#[derive(Clone, Copy, Debug)]
pub struct Watchdog {
    /// Time between two looks.
    pub period: Duration,
}

/// The values on a server's page that change while the server lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// A counter that changes while the server works.
    pub heartbeat: u64,
    /// A counter that changes when the server falls asleep or wakes up; it is odd while the server sleeps.
    pub sleep_word: u32,
}

/// The signs of life of one server so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    signs: Signs,
    /// The number of looks since these signs were new.
    looks: u32,
    /// The processor time that the server had used when these signs were first seen unchanged, in
    /// milliseconds.
    used_ms: u64,
}

/// The judgement about a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Nothing: the server lives, or may live.
    Wait,
    /// Ring the server's doorbell: it sleeps, and a healthy server wakes up then.
    Ring,
    /// The server hangs.
    Hangs,
}

/// The kernel's report about a process (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    /// The state of the process: `R`, `S`, `D`, `T` and so on.
    pub state: char,
    /// The processor time that the process has used, in milliseconds.
    pub used_ms: u64,
}

impl Watchdog {
    /// Creates a watchdog for servers that hang after about `hang_ms` milliseconds without a sign of life;
    /// returns `None` if that is 0, which means for ever.
    pub fn new(hang_ms: u32) -> Option<Watchdog> {
        (hang_ms > 0).then(|| Watchdog { period: Duration::from_millis(u64::from(hang_ms / LOOKS)) })
    }

    /// Judges a server by its signs. `ask` asks the kernel about its process, and is called only if the signs
    /// have not changed.
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
        // The server has one look more than LOOKS: its doorbell was rung between the first two.
        if watch.looks <= LOOKS {
            return Judgement::Wait;
        }
        // The process has ended, which is reported in another way.
        let Some(running) = ask() else { return Judgement::Wait };
        let used = Duration::from_millis(running.used_ms.saturating_sub(watch.used_ms));
        match running.state {
            // Either it waits for a processor, or it has one and shows no progress.
            'R' if used < self.period => Judgement::Wait,
            // It waits for the kernel, which would not let it be killed at present either.
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

    /// Checks `count` times, and returns the judgements.
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
            // The server works, or it sleeps and the doorbell wakes it.
            for signs in
                [Signs { heartbeat: beat, ..AWAKE }, Signs { sleep_word: 2 * beat as u32 + 5, ..ASLEEP }]
            {
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
        // A server that uses the processor and shows no progress hangs.
        let (watchdog, mut watch) = (Watchdog::new(2000).unwrap(), Watch::default());
        let looks: Vec<_> =
            (0..8).map(|n| watchdog.look(&mut watch, AWAKE, || running('R', n * 100))).collect();
        assert_eq!(looks[5..7], [Judgement::Wait, Judgement::Hangs]);
    }

    #[test]
    fn without_a_limit_nobody_watches() {
        assert!(Watchdog::new(0).is_none());
    }
}

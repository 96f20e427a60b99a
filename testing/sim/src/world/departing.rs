//! Who hears that a program has died, and when? The supervisor tells every replica, each of which reads it a
//! moment later. One that is on its way is told when it is there again, as is one whose process has died: it
//! gets the arena of the dead, and then hears that he is dead.
//!
//! ```text
//!   dies               the family ends
//!    |--MemberGone------->|--SessionGone--> replica --"over"--> the arena goes      a successor that comes before "over" gets the arena
//! ```

use atoll_base::{Duration, Instant, Rng, SessionId};

use super::{Process, World};

/// A program that is not there any more, and who knows.
pub(super) struct Departure {
    /// Those who have its session, too, end then.
    ends_at: Instant,
    /// What each replica knows.
    told: Vec<Told>,
    /// When each looks at its control socket; what it is told before, it hears then.
    hears_at: Vec<Instant>,
    /// How long each takes.
    delays: Vec<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Told {
    Nothing,
    /// The owner of the session has died.
    Member,
    /// Nobody has it any more.
    Session,
    /// The replica has said that it needs the arena no more.
    Over,
}

impl Departure {
    /// `outlived`: for how long others of its family are there.
    pub(super) fn new(now: Instant, outlived: Duration, replicas: usize, rng: &mut Rng) -> Departure {
        let delays: Vec<Duration> = (0..replicas).map(|_| delay(rng)).collect();
        Departure {
            ends_at: now + outlived,
            told: vec![Told::Nothing; replicas],
            hears_at: delays.iter().map(|delay| now + *delay).collect(),
            delays,
        }
    }

    /// What the supervisor has to say at `at`.
    fn wanted(&self, at: Instant) -> Told {
        if at < self.ends_at { Told::Member } else { Told::Session }
    }

    /// When a replica that serves hears the next thing.
    fn next(&self, index: usize) -> Option<Instant> {
        match self.told[index] {
            Told::Nothing => Some(self.hears_at[index]),
            Told::Member => Some(self.hears_at[index].max(self.ends_at + self.delays[index])),
            Told::Session | Told::Over => None,
        }
    }

    /// Whether every replica has let its arena go.
    pub(super) fn check(&self, session: SessionId) -> Result<(), String> {
        match self.told.iter().position(|told| *told != Told::Over) {
            Some(index) => Err(format!("replica {index} keeps the arena of session {}: {:?}", session.0, self.told)),
            None => Ok(()),
        }
    }
}

impl Process {
    /// Whether a replica needs its arena no more.
    pub(super) fn is_over(&self, index: usize) -> bool {
        self.departure.as_ref().is_some_and(|departure| departure.told[index] == Told::Over)
    }
}

impl World {
    /// Replicas that serve hear who has died. Returns whether there was anything.
    pub(super) fn tell_departed(&mut self) -> bool {
        let (now, mut any) = (self.now, false);
        for process in 0..self.processes.len() {
            let Process { machine, departure: Some(departure), .. } = &self.processes[process] else { continue };
            let machine = &self.machines[*machine];
            let due: Vec<usize> = (0..departure.told.len())
                .filter(|index| machine.serves(*index) && departure.next(*index).is_some_and(|at| at <= now))
                .collect();
            for index in due {
                any = true;
                self.tell_departure(process, index);
            }
        }
        any
    }

    /// When the next of those that serve hears something.
    pub(super) fn next_telling(&self) -> Option<Instant> {
        let told = self.processes.iter().filter_map(|process| {
            let (machine, departure) = (&self.machines[process.machine], process.departure.as_ref()?);
            (0..departure.told.len()).filter(|index| machine.serves(*index)).filter_map(|at| departure.next(at)).min()
        });
        told.min()
    }

    /// As `Server::brief` in `bin/atoll`: a new replica has adopted, and is told who has died; a predecessor
    /// may have heard of it, or not. It reads that at once, or after its first round.
    pub(super) fn brief(&mut self, at: usize, index: usize) {
        for process in 0..self.processes.len() {
            let Process { machine, departure: Some(departure), .. } = &mut self.processes[process] else { continue };
            if *machine != at || departure.told[index] == Told::Over {
                continue;
            }
            self.told += 1;
            departure.told[index] = Told::Nothing;
            departure.hears_at[index] = self.now + delay(&mut self.rng);
            if self.rng.below(2) == 0 {
                self.tell_departure(process, index);
            }
        }
    }

    fn tell_departure(&mut self, process: usize, index: usize) {
        let Process { machine, session, departure: Some(departure), .. } = &mut self.processes[process] else { return };
        let replica = &mut self.machines[*machine].replicas[index];
        departure.told[index] = departure.wanted(self.now);
        match departure.told[index] {
            Told::Member => replica.member_gone(self.now, *session, OWNER),
            _ => replica.close_session(self.now, *session),
        }
    }

    /// A replica says which sessions are over.
    pub(super) fn note_ended(&mut self, at: usize, index: usize) {
        for session in self.machines[at].replicas[index].take_ended() {
            let is_it = |process: &&mut Process| process.machine == at && process.session == session;
            let process = self.processes.iter_mut().find(is_it).expect("a session of this machine");
            let departure = process.departure.as_mut().expect("a session ends with its program");
            assert!(departure.told[index] >= Told::Session, "session {} has not ended", session.0);
            if self.machines[at].lives[index].spend() {
                departure.told[index] = Told::Over;
            }
        }
    }

    /// How often a successor was told that a program had died.
    pub fn told(&self) -> u32 {
        self.told
    }
}

/// A replica looks at its control socket every millisecond.
fn delay(rng: &mut Rng) -> Duration {
    Duration::from_micros(u64::from(rng.below(1000)))
}

/// The member of a session who has opened it.
const OWNER: u8 = 0;

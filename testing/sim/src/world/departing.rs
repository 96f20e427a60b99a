//! How replicas learn that a program has died. The supervisor sends a message to every replica, each of which
//! reads it a moment later. A replica that is moving between processes gets the message when it is back, and
//! so does the successor of one that has died. It gets the arena of the dead program, and then the message.
//!
//! ```text
//!   dies               the family ends
//!    |--MemberGone------->|--SessionGone--> replica --"over"--> the arena goes      a successor that comes before "over" gets the arena
//! ```

use atoll_base::{Duration, Instant, Rng, SessionId};

use super::{Process, World, WorldViolation};

/// A program that has died, and what each replica knows of that.
pub(super) struct Departure {
    /// When the other members of its session end.
    ends_at: Instant,
    /// The messages that each replica was sent.
    told: Vec<Told>,
    /// When each replica reads its control socket, with all messages that were sent before.
    hears_at: Vec<Instant>,
    /// How long each replica takes to read its control socket.
    delays: Vec<Duration>,
}

/// A replica's knowledge of a program that has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Told {
    /// The replica knows nothing yet.
    Nothing,
    /// The owner of the session has died.
    Member,
    /// The last member of the session has gone.
    Session,
    /// The replica has said that it no longer needs the arena.
    Over,
}

impl Departure {
    /// Creates the state of a program that dies now. `outlived` is how long the other members of its family
    /// live on.
    pub(super) fn new(now: Instant, outlived: Duration, replicas: usize, rng: &mut Rng) -> Departure {
        let delays: Vec<Duration> = (0..replicas).map(|_| delay(rng)).collect();
        Departure {
            ends_at: now + outlived,
            told: vec![Told::Nothing; replicas],
            hears_at: delays.iter().map(|delay| now + *delay).collect(),
            delays,
        }
    }

    /// Creates the state of a program that died before a stack of `replicas` replicas came up.
    pub(super) fn over(now: Instant, replicas: usize) -> Departure {
        let (told, hears_at) = (vec![Told::Over; replicas], vec![now; replicas]);
        Departure { ends_at: now, told, hears_at, delays: vec![Duration::ZERO; replicas] }
    }

    /// Notes that the last other member of the session ends now.
    pub(super) fn end(&mut self, now: Instant) {
        self.ends_at = now;
    }

    /// Returns what the supervisor has to say at `at`.
    fn wanted(&self, at: Instant) -> Told {
        if at < self.ends_at { Told::Member } else { Told::Session }
    }

    /// Returns when a serving replica reads the next message.
    fn next(&self, index: usize) -> Option<Instant> {
        match self.told[index] {
            Told::Nothing => Some(self.hears_at[index]),
            Told::Member => Some(self.hears_at[index].max(self.ends_at + self.delays[index])),
            Told::Session | Told::Over => None,
        }
    }

    /// Checks that every replica has released its arena.
    pub(super) fn check(&self, session: SessionId) -> Result<(), WorldViolation> {
        match self.told.iter().position(|told| *told != Told::Over) {
            Some(replica) => {
                let (session, told) = (session.0, self.told.clone());
                Err(WorldViolation::ArenaKept { replica, session, told })
            }
            None => Ok(()),
        }
    }
}

impl Process {
    /// Returns whether a replica no longer needs the arena of this process.
    pub(super) fn is_over(&self, index: usize) -> bool {
        self.departure.as_ref().is_some_and(|departure| departure.told[index] == Told::Over)
    }
}

impl World {
    /// Sends replicas that serve the programs that have died. Returns whether there was anything to send.
    pub(super) fn tell_departed(&mut self) -> bool {
        let (now, mut any) = (self.now, false);
        for process in 0..self.processes.len() {
            let Process { machine, departure: Some(departure), .. } = &self.processes[process] else {
                continue;
            };
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

    /// Returns when the next serving replica reads a message.
    pub(super) fn next_telling(&self) -> Option<Instant> {
        let told = self.processes.iter().filter_map(|process| {
            let (machine, departure) = (&self.machines[process.machine], process.departure.as_ref()?);
            (0..departure.told.len())
                .filter(|index| machine.serves(*index))
                .filter_map(|at| departure.next(at))
                .min()
        });
        told.min()
    }

    /// Sends a new replica, which has adopted its ledger, the programs that have died, like `Server::brief`
    /// in `bin/atoll`. Its predecessor may have known them or not. The replica reads that at once, or after
    /// its first round.
    pub(super) fn brief(&mut self, at: usize, index: usize) {
        for process in 0..self.processes.len() {
            let Process { machine, departure: Some(departure), .. } = &mut self.processes[process] else {
                continue;
            };
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
        let Process { machine, session, departure: Some(departure), .. } = &mut self.processes[process]
        else {
            return;
        };
        let replica = &mut self.machines[*machine].replicas[index];
        departure.told[index] = departure.wanted(self.now);
        match departure.told[index] {
            Told::Member => replica.member_gone(self.now, *session, OWNER),
            _ => replica.close_session(self.now, *session),
        }
    }

    /// Notes which sessions a replica reports as over.
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

    /// Returns how often a successor learned that a program had died.
    pub fn told(&self) -> u32 {
        self.told
    }
}

/// Returns the time until a replica reads its control socket, which it does every millisecond.
pub(super) fn delay(rng: &mut Rng) -> Duration {
    Duration::from_micros(u64::from(rng.below(1000)))
}

/// The number of the session's member that has opened it.
const OWNER: u8 = 0;

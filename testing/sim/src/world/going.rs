//! The server's stack goes with all of its processes at once, and one of its name comes up again under its
//! programs. Peers are told nothing: they hear a RST of the next stack when they send, or their keep-alive
//! finds nobody. What the real library does is in `bin/preload/src/gone.rs`; the client is the one that
//! ships.
//!
//! ```text
//!   goes        replicas, pages, ledgers and arenas are new; frames find nobody
//!               the programs hear it at once: connections end, listeners wait
//!   is back     each program gets a session, and registers its listener as it did before
//! ```

use atoll_base::{Duration, Instant};
use atoll_ipc::HeapMemory;
use atoll_ipc::page::{APP_PAGE_BYTES, AppPage};
use atoll_sockets::client::simulated::Opening;

use super::departing::Departure;
use super::program::Program;
use super::{Machine, SERVER, World};

/// When the server's stack goes, and what comes afterwards.
#[derive(Clone, Copy, Debug)]
pub struct Going {
    /// The time from the beginning until it goes.
    pub after: Duration,
    /// The time until the next one is up.
    pub away: Duration,
    /// The number of replicas of the next one.
    pub replicas: u8,
}

impl World {
    /// Lets the server's stack go, or come back, if it is time. Returns whether it was.
    pub(super) fn go_and_come(&mut self) -> bool {
        let Some(going) = self.story.goes else { return false };
        if let Some(until) = self.away_until {
            if until <= self.now {
                self.away_until = None;
                self.come_back();
                return true;
            }
            return false;
        }
        let is_due = self.has_begun && self.gone == 0 && self.now >= self.begins_at + going.after;
        // What is handed over at that moment is not simulated.
        let is_handing = !self.letters.is_empty() || self.processes.iter().any(|it| it.handing.is_some());
        if is_due && !is_handing {
            self.go(going);
        }
        is_due && !is_handing
    }

    /// Returns when the server's stack comes back, or goes.
    pub(super) fn next_of_going(&self) -> Option<Instant> {
        let going = self.story.goes?;
        let goes_at = (self.has_begun && self.gone == 0).then(|| self.begins_at + going.after);
        self.away_until.or(goes_at)
    }

    fn go(&mut self, going: Going) {
        let until = self.now + going.away;
        (self.away_until, self.gone) = (Some(until), self.gone + 1);
        let mut machine = Machine::new(SERVER, going.replicas, &self.story, until, 1);
        machine.is_away = true;
        machine.replicas.iter_mut().for_each(|replica| replica.set_balance(self.story.workforce.rules));
        self.machines[0] = machine;
        self.wire.retain(|_, (to, _)| *to != 0);
        self.farewells.clear();
        for process in self.processes.iter_mut().filter(|process| process.machine == 0) {
            process.memberships.clear();
            process.arenas.clear();
            if let Some(departure) = &mut process.departure {
                *departure = Departure::over(self.now, going.replicas.into());
            }
            if let Some(program) = &mut process.program {
                program.resume(self.now);
                let losses = program.client.stack_gone();
                self.losses += losses.connections;
                process.wakes_at = Some(self.now);
            }
        }
    }

    fn come_back(&mut self) {
        self.machines[0].is_away = false;
        for at in 0..self.processes.len() {
            if self.processes[at].machine != 0 || self.processes[at].program.is_none() {
                continue;
            }
            let session = self.processes[at].session;
            let page = AppPage(HeapMemory::new(APP_PAGE_BYTES));
            self.processes[at].arenas = self.open_sessions(0, session, &page);
            (self.processes[at].page, self.processes[at].next_member) = (page, 1);
            let session = self.view(session, 0).1;
            let (now, seed) = (self.now, self.rng.next_u64());
            let process = &mut self.processes[at];
            process.wakes_at = Some(now);
            if let Some(program) = &mut process.program {
                program.join_again(session, now, seed);
            }
        }
    }

    /// Returns how many connections the server's programs have lost with their stack.
    pub fn losses(&self) -> usize {
        self.losses
    }
}

impl Program {
    /// Goes on with a session on the next stack, and asks for its listener's port again.
    fn join_again(
        &mut self,
        session: atoll_sockets::client::session::Session<atoll_sockets::client::simulated::Simulated>,
        now: Instant,
        seed: u64,
    ) {
        self.resume(now);
        let clock = self.clock();
        self.client.stack_is_back(session, clock, seed);
        let waiting = self.client.waiting_for_stack();
        assert_eq!(
            waiting,
            self.listener().into_iter().collect::<Vec<u32>>(),
            "its listener alone has a port"
        );
        for object in waiting {
            let opening = Opening::again(&mut self.client, object).expect("there is a stack");
            self.begin_opening(opening);
        }
    }
}

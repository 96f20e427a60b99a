//! Which answers of replicas are awaited?

use alloc::vec::Vec;

use atoll_ipc::lease::Voucher;
use atoll_ipc::{Cause, Command};

/// Commands whose answers are awaited.
#[derive(Debug)]
pub(super) struct Questions {
    all: Vec<Question>,
    next_token: u32,
}

/// Commands to a replica of the own session, the last of which is answered under `token`. They are sent again
/// when events of the replica were lost, the answer perhaps among them: commands may be repeated.
#[derive(Debug)]
struct Question {
    token: u32,
    replica: usize,
    commands: Vec<Command>,
    answer: Option<Answer>,
}

/// The answer of a replica: port and voucher mean something where the command asked for a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Why it was refused, if it was.
    pub cause: Cause,
    /// The port that was bound.
    pub port: u16,
    /// What it was granted by.
    pub voucher: Voucher,
}

impl Questions {
    pub(super) const fn new() -> Questions {
        Questions { all: Vec::new(), next_token: 1 }
    }

    /// A number for a command that is answered.
    pub(super) fn new_token(&mut self) -> u32 {
        self.next_token = self.next_token.wrapping_add(1);
        self.next_token
    }

    /// Remembers a question.
    pub(super) fn add(&mut self, token: u32, replica: usize, commands: Vec<Command>) {
        self.all.push(Question { token, replica, commands, answer: None });
    }

    /// The answer under `token`, once it is there.
    pub(super) fn answer(&self, token: u32) -> Option<Answer> {
        self.all.iter().find(|question| question.token == token)?.answer
    }

    /// Notes an answer. False: nobody waits for it any more.
    pub(super) fn set_answer(&mut self, token: u32, answer: Answer) -> bool {
        let Some(question) = self.all.iter_mut().find(|question| question.token == token) else { return false };
        question.answer = Some(answer);
        true
    }

    /// Forgets a question.
    pub(super) fn forget(&mut self, token: u32) {
        self.all.retain(|question| question.token != token);
    }

    /// Forgets all questions.
    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// All commands that were sent to a replica and whose answers are awaited.
    pub(super) fn commands_to(&self, replica: usize) -> impl Iterator<Item = &Command> {
        self.all.iter().filter(move |question| question.replica == replica).flat_map(|question| &question.commands)
    }
}

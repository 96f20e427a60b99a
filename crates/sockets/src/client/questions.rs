//! The questions to replicas whose answers are awaited.

use alloc::vec::Vec;

use atoll_ipc::lease::Voucher;
use atoll_ipc::{Cause, Command};

/// The commands whose answers are awaited.
#[derive(Debug)]
pub(super) struct Questions {
    all: Vec<Question>,
    next_token: u32,
}

/// Commands to a replica of the process's own session, the last of which is answered under `token`. They are
/// sent again when events of the replica were lost, because the answer may be among them: commands may be
/// repeated.
#[derive(Debug)]
struct Question {
    token: u32,
    replica: usize,
    commands: Vec<Command>,
    answer: Option<Answer>,
}

/// The answer of a replica. Port and voucher are only meaningful if the command asked for a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The reason of a refusal, or [`Cause::None`].
    pub cause: Cause,
    /// The port that was bound.
    pub port: u16,
    /// The grant of the port.
    pub voucher: Voucher,
}

impl Questions {
    pub(super) const fn new() -> Questions {
        Questions { all: Vec::new(), next_token: 1 }
    }

    /// Returns a new token for a command that is answered.
    pub(super) fn new_token(&mut self) -> u32 {
        self.next_token = self.next_token.wrapping_add(1);
        self.next_token
    }

    /// Stores a question: commands to a replica and the token of their answer.
    pub(super) fn add(&mut self, token: u32, replica: usize, commands: Vec<Command>) {
        self.all.push(Question { token, replica, commands, answer: None });
    }

    /// Returns the answer under `token`, once it has come.
    pub(super) fn answer(&self, token: u32) -> Option<Answer> {
        self.all.iter().find(|question| question.token == token)?.answer
    }

    /// Stores an answer; returns false if it is awaited no more.
    pub(super) fn set_answer(&mut self, token: u32, answer: Answer) -> bool {
        let Some(question) = self.all.iter_mut().find(|question| question.token == token) else {
            return false;
        };
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

    /// Returns all commands to a replica whose answers are awaited.
    pub(super) fn commands_to(&self, replica: usize) -> impl Iterator<Item = &Command> {
        self.all
            .iter()
            .filter(move |question| question.replica == replica)
            .flat_map(|question| &question.commands)
    }
}

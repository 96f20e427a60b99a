//! What do servers have to say? The standard error of each is a pipe, which only the supervisor reads.
//!
//! What comes out of it is somebody else's bytes: it gets into the log as lines of bounded length, without control characters, with the number of
//! the process in front, at a bounded rate (`log.rs`). One that says more than that is not listened to for a while; its pipe fills, and what it
//! says then is lost to it, not to others. It never waits: its end of the pipe does not block. Pipes are noted for the next supervisor, so that
//! what is said meanwhile is still in them.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use atoll_sys::epoll::{Epoll, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::supervisor::{Supervisor, WORDS, WORDS_MAX};
use crate::log::{Budget, LINE_MAX, Line, Rate};

/// The processes that are listened to, by slot.
#[derive(Debug, Default)]
pub(super) struct Words(Vec<Option<Speaker>>);

/// A process that may say something.
#[derive(Debug)]
struct Speaker {
    pid: u32,
    pipe: File,
    /// The beginning of a line.
    text: Vec<u8>,
    /// It is the rest of one that was too long.
    is_rest: bool,
    budget: Budget,
    /// It has said too much, and is not watched before this.
    until: Option<Instant>,
}

/// How it stands after somebody was listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    /// There is nothing more for now.
    All,
    /// There is more, at a later time.
    Enough,
    /// There never will be any more.
    Ended,
}

impl Speaker {
    fn new(pid: u32, pipe: OwnedFd, now: Instant) -> Speaker {
        let (text, budget) = (Vec::new(), Budget::new(RATE, now));
        Speaker { pid, pipe: pipe.into(), text, is_rest: false, budget, until: None }
    }

    /// Takes down what it has said, as far as it may.
    fn listen(&mut self, now: Instant, said: &mut Vec<Line>) -> Heard {
        let mut is_paid = true;
        loop {
            let line = self.text.iter().position(|byte| *byte == b'\n');
            if line.is_some() || self.text.len() >= LINE_MAX {
                if !self.budget.take(now) {
                    return self.interrupt(said);
                }
                is_paid = true;
                said.extend(self.line(line.unwrap_or(self.text.len())));
                self.text.drain(..line.map_or(self.text.len(), |end| end + 1));
                self.is_rest = line.is_none();
                continue;
            }
            let mut bytes = [0; CHUNK];
            match self.pipe.read(&mut bytes) {
                Ok(len) if len > 0 => {
                    self.text.extend_from_slice(&bytes[..len]);
                    is_paid = false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Being woken costs something, for a part of a line as well.
                    return if is_paid || self.budget.take(now) { Heard::All } else { Heard::Enough };
                }
                Ok(_) | Err(_) => {
                    said.extend(self.line(self.text.len()));
                    return Heard::Ended;
                }
            }
        }
    }

    /// Stops in the middle. Nobody waits for the rest of what a process has said that is gone.
    fn interrupt(&mut self, said: &mut Vec<Line>) -> Heard {
        let mut set = [PollFd::new(&self.pipe, PollFlags::empty())];
        let _ = poll(&mut set, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        if !set[0].revents().contains(PollFlags::HUP) {
            return Heard::Enough;
        }
        self.text = b"its last words were too many, and are left out".to_vec();
        self.is_rest = false;
        said.extend(self.line(self.text.len()));
        Heard::Ended
    }

    /// The first `len` bytes as a line, if there is something in it.
    fn line(&self, len: usize) -> Option<Line> {
        let text = self.text.get(..len).filter(|text| !text.is_empty() && !self.is_rest)?;
        let mut line = Line::new(&self.tag());
        // As those say it that know the log: once is enough.
        line.push_bytes(text.strip_prefix(b"atoll: ").unwrap_or(text));
        Some(line)
    }

    /// What its lines begin with.
    fn tag(&self) -> String {
        format!("atoll[{}]: ", self.pid)
    }
}

impl Words {
    /// Listens to a process from now on. Returns whether it does: not if there are too many, or the kernel is short of something.
    fn add(&mut self, epoll: &Epoll, slot: usize, pid: u32, pipe: OwnedFd) -> bool {
        if slot >= WORDS_MAX || epoll.add(&pipe, WORDS + slot as u64, EventFlags::IN).is_err() {
            return false;
        }
        self.0.resize_with(self.0.len().max(slot + 1), || None);
        self.0[slot] = Some(Speaker::new(pid, pipe, Instant::now()));
        true
    }

    /// Listens to one. Returns whether it has ended.
    fn listen(&mut self, epoll: &Epoll, slot: usize, now: Instant) -> bool {
        let Some(Some(speaker)) = self.0.get_mut(slot) else { return false };
        let mut said = Vec::new();
        let heard = speaker.listen(now, &mut said);
        let tag = speaker.tag();
        said.into_iter().for_each(|line| speaker.budget.write(line, &tag));
        let was_watched = speaker.until.is_none();
        speaker.until = (heard == Heard::Enough).then(|| speaker.budget.due());
        if heard == Heard::All && !was_watched {
            let _ = epoll.add(&speaker.pipe, WORDS + slot as u64, EventFlags::IN);
        } else if heard != Heard::All && was_watched {
            let _ = epoll.delete(&speaker.pipe);
        }
        if heard == Heard::Ended {
            self.0[slot] = None;
        }
        heard == Heard::Ended
    }

    fn free_slot(&self) -> usize {
        self.0.iter().position(Option::is_none).unwrap_or(self.0.len())
    }

    /// When one that has said too much is listened to again.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.0.iter().flatten().filter_map(|speaker| speaker.until).min()
    }

    /// Those with a number for which `wanted` says so.
    fn slots(&self, wanted: impl Fn(&Speaker) -> bool) -> Vec<usize> {
        let is_wanted = |slot: &usize| self.0[*slot].as_ref().is_some_and(&wanted);
        (0..self.0.len()).filter(is_wanted).collect()
    }
}

impl Supervisor {
    /// Listens to the process with this number through this pipe.
    pub(super) fn hear_of(&mut self, speaker: Option<(u32, OwnedFd)>) {
        if let Some((pid, pipe)) = speaker
            && let slot = self.words.free_slot()
            && self.words.add(&self.epoll, slot, pid, pipe)
        {
            self.note_words(slot);
        }
    }

    /// Goes on listening to a process that the last supervisor has noted under this name.
    pub(super) fn hear_again(&mut self, name: &str, pid: u32, pipe: OwnedFd) {
        // Under the same name: the guardian still has it.
        let slot = name.strip_prefix(NOTES).and_then(|slot| slot.parse().ok());
        let _ = slot.is_some_and(|slot| self.words.add(&self.epoll, slot, pid, pipe));
    }

    /// The process in this slot says something, or nothing any more.
    pub(super) fn words_spoken(&mut self, slot: usize) {
        if self.words.listen(&self.epoll, slot, Instant::now()) {
            self.note_words(slot);
        }
    }

    /// Listens to those again that were interrupted.
    pub(super) fn go_on_listening(&mut self, now: Instant) {
        let due = self.words.slots(|speaker| speaker.until.is_some_and(|until| until <= now));
        due.into_iter().for_each(|slot| self.words_spoken(slot));
    }

    /// What processes have said last, before others say that they are gone.
    pub(super) fn hear_last_words(&mut self, is_gone: impl Fn(u32) -> bool) {
        let slots = self.words.slots(|speaker| is_gone(speaker.pid));
        slots.into_iter().for_each(|slot| self.words_spoken(slot));
    }

    /// All slots in which there is somebody, and what the next supervisor needs of this one.
    pub(super) fn note_all_words(&mut self) {
        self.words.slots(|_| true).into_iter().for_each(|slot| self.note_words(slot));
    }

    fn note_words(&mut self, slot: usize) {
        let name = format!("{NOTES}{slot}");
        match self.words.0.get(slot).and_then(Option::as_ref) {
            Some(speaker) => self.persisted.put(name, &speaker.pid, &[speaker.pipe.as_fd()]),
            None => self.persisted.drop_note(name),
        }
    }
}

/// Names of notes about them begin so.
pub(super) const NOTES: &str = "words.";
/// How much a process may say. Servers say little: what was before them, and why they end.
const RATE: Rate = Rate { burst: 100, every: Duration::from_millis(500) };
/// How much is read at once: as much as may be written at once.
const CHUNK: usize = 4096;

#[cfg(test)]
mod tests;

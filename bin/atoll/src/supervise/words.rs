//! Reads what servers print. The standard error of each is a pipe, which only the supervisor reads.
//!
//! The bytes are not trusted: a line is an event that servers may report (`atoll_supervisor::Said`), or it is
//! the text of a `server_said`. They get into the log within bounds, without control characters, with the
//! pid of the process, at a bounded rate (`log.rs`). A process that prints more is not read for a while;
//! its pipe fills, and it loses what it prints then, at no cost to others. It never waits: its end of the
//! pipe does not block. Pipes are noted for the next supervisor, so that what is printed meanwhile stays in
//! them.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use atoll_base::{Duration, Instant};
use atoll_supervisor::SAID_MAX;
use atoll_sys::epoll::{Epoll, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::tokens::{WORDS, WORDS_MAX};
use crate::clock;
use crate::log::{self, Budget, Rate, Record, kinds};

/// The processes whose output is read, by slot.
pub struct Words {
    speakers: Vec<Option<Speaker>>,
    epoll: Rc<Epoll>,
}

/// A process whose output is read.
#[derive(Debug)]
struct Speaker {
    pid: u32,
    pipe: File,
    /// The beginning of a line.
    text: Vec<u8>,
    /// Whether `text` is the rest of a line that was too long.
    is_rest: bool,
    budget: Budget,
    /// The time before which the pipe is not watched, because the process has printed too much.
    until: Option<Instant>,
}

/// The state after a process's output was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    /// There is nothing more for now.
    All,
    /// There is more, which is to be read later.
    Enough,
    /// The process's end of the pipe is closed.
    Ended,
}

impl Speaker {
    fn new(pid: u32, pipe: OwnedFd, now: Instant) -> Speaker {
        let (text, budget) = (Vec::new(), Budget::new(RATE, now));
        Speaker { pid, pipe: pipe.into(), text, is_rest: false, budget, until: None }
    }

    /// Reads what the process has printed, as far as its budget allows.
    fn listen(&mut self, now: Instant, said: &mut Vec<Record>) -> Heard {
        let mut is_paid = true;
        loop {
            let line = self.text.iter().position(|byte| *byte == b'\n');
            if line.is_some() || self.text.len() > SAID_MAX {
                if !self.budget.take(now) {
                    return self.interrupt(said);
                }
                is_paid = true;
                said.extend(self.record(line.unwrap_or(self.text.len())));
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
                    // A wake-up costs something even for a part of a line.
                    return if is_paid || self.budget.take(now) { Heard::All } else { Heard::Enough };
                }
                Ok(_) | Err(_) => {
                    said.extend(self.record(self.text.len()));
                    return Heard::Ended;
                }
            }
        }
    }

    /// Stops reading in the middle. What a process has printed that is gone is not read later.
    fn interrupt(&mut self, said: &mut Vec<Record>) -> Heard {
        let mut set = [PollFd::new(&self.pipe, PollFlags::empty())];
        let _ = poll(&mut set, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        if !set[0].revents().contains(PollFlags::HUP) {
            return Heard::Enough;
        }
        let text = "its last words were too many, and are left out";
        said.push(Record::about(self.pid, kinds::server_cut_short, text));
        Heard::Ended
    }

    /// Returns what the first `len` bytes report, unless there is nothing.
    fn record(&self, len: usize) -> Option<Record> {
        let text = self.text.get(..len).filter(|text| !text.is_empty() && !self.is_rest)?;
        Some(Record::of_server(self.pid, text))
    }
}

impl Words {
    /// Creates an empty list of processes.
    pub fn new(epoll: Rc<Epoll>) -> Words {
        Words { speakers: Vec::new(), epoll }
    }

    /// Starts to read a process's output. Returns its slot, or `None` if there are too many processes or the
    /// kernel is short of something.
    pub fn add(&mut self, pid: u32, pipe: OwnedFd) -> Option<usize> {
        let slot = self.speakers.iter().position(Option::is_none).unwrap_or(self.speakers.len());
        self.put(slot, pid, pipe).then_some(slot)
    }

    /// Continues to read the output of a process that the last supervisor has noted under this name.
    pub fn resume(&mut self, name: &str, pid: u32, pipe: OwnedFd) {
        // The slot follows from the name, under which the guardian still has the note.
        let slot = name.strip_prefix(NOTES).and_then(|slot| slot.parse().ok());
        let _ = slot.is_some_and(|slot| self.put(slot, pid, pipe));
    }

    fn put(&mut self, slot: usize, pid: u32, pipe: OwnedFd) -> bool {
        if slot >= WORDS_MAX || self.epoll.add(&pipe, WORDS + slot as u64, EventFlags::IN).is_err() {
            return false;
        }
        self.speakers.resize_with(self.speakers.len().max(slot + 1), || None);
        self.speakers[slot] = Some(Speaker::new(pid, pipe, clock::now()));
        true
    }

    /// Reads the output of one process. Returns whether its end of the pipe is closed.
    pub fn listen(&mut self, slot: usize, now: Instant) -> bool {
        let Some(Some(speaker)) = self.speakers.get_mut(slot) else { return false };
        let mut said = Vec::new();
        let heard = speaker.listen(now, &mut said);
        said.iter().for_each(|record| log::pass_on(record, &mut speaker.budget));
        let was_watched = speaker.until.is_none();
        speaker.until = (heard == Heard::Enough).then(|| speaker.budget.due());
        if heard == Heard::All && !was_watched {
            let _ = self.epoll.add(&speaker.pipe, WORDS + slot as u64, EventFlags::IN);
        } else if heard != Heard::All && was_watched {
            let _ = self.epoll.delete(&speaker.pipe);
        }
        if heard == Heard::Ended {
            self.speakers[slot] = None;
        }
        heard == Heard::Ended
    }

    /// Returns when the next process that has printed too much is to be read again.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.speakers.iter().flatten().filter_map(|speaker| speaker.until).min()
    }

    /// Returns the slots of interrupted processes that are to be read again.
    pub fn due(&self, now: Instant) -> Vec<usize> {
        self.slots(|speaker| speaker.until.is_some_and(|until| until <= now))
    }

    /// Returns the slots of the processes for whose pids `is_wanted` returns true.
    pub fn of(&self, is_wanted: impl Fn(u32) -> bool) -> Vec<usize> {
        self.slots(|speaker| is_wanted(speaker.pid))
    }

    fn slots(&self, wanted: impl Fn(&Speaker) -> bool) -> Vec<usize> {
        let is_wanted = |slot: &usize| self.speakers[*slot].as_ref().is_some_and(&wanted);
        (0..self.speakers.len()).filter(is_wanted).collect()
    }

    /// Returns what the next supervisor needs for the process in this slot: its pid, and the pipe.
    pub fn speaker(&self, slot: usize) -> Option<(u32, BorrowedFd<'_>)> {
        let speaker = self.speakers.get(slot)?.as_ref()?;
        Some((speaker.pid, speaker.pipe.as_fd()))
    }
}

/// The prefix of the names of notes about these processes.
pub const NOTES: &str = "words.";
/// The rate at which a process may print. Servers print little: what was before them, and why they end.
const RATE: Rate = Rate { burst: 100, every: Duration::from_millis(500) };
/// The number of bytes that are read at once: as many as may be written at once.
const CHUNK: usize = 4096;

#[cfg(test)]
mod tests;

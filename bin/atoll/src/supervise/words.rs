//! What do servers have to say? The standard error of each is a pipe, which only the supervisor reads.
//!
//! What comes out of it is somebody else's bytes: it gets into the log as lines of bounded length, without
//! control characters, with the number of the process in front, at a bounded rate (`log.rs`). One that says
//! more than that is not listened to for a while; its pipe fills, and what it says then is lost to it, not to
//! others. It never waits: its end of the pipe does not block. Pipes are noted for the next supervisor, so
//! that what is said meanwhile is still in them.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use atoll_base::{Duration, Instant};
use atoll_sys::epoll::{Epoll, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::tokens::{WORDS, WORDS_MAX};
use crate::clock;
use crate::log::{Budget, LINE_MAX, Line, Rate};

/// The processes that are listened to, by slot.
pub struct Words {
    speakers: Vec<Option<Speaker>>,
    epoll: Rc<Epoll>,
}

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
    /// Nobody is listened to yet.
    pub fn new(epoll: Rc<Epoll>) -> Words {
        Words { speakers: Vec::new(), epoll }
    }

    /// Listens to a process from now on. Returns its slot; `None`: there are too many, or the kernel is short
    /// of something.
    pub fn add(&mut self, pid: u32, pipe: OwnedFd) -> Option<usize> {
        let slot = self.speakers.iter().position(Option::is_none).unwrap_or(self.speakers.len());
        self.put(slot, pid, pipe).then_some(slot)
    }

    /// Goes on listening to a process that the last supervisor has noted under this name.
    pub fn resume(&mut self, name: &str, pid: u32, pipe: OwnedFd) {
        // Under the same name: the guardian still has it.
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

    /// Listens to one. Returns whether it has ended.
    pub fn listen(&mut self, slot: usize, now: Instant) -> bool {
        let Some(Some(speaker)) = self.speakers.get_mut(slot) else { return false };
        let mut said = Vec::new();
        let heard = speaker.listen(now, &mut said);
        let tag = speaker.tag();
        said.into_iter().for_each(|line| speaker.budget.write(line, &tag));
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

    /// When one that has said too much is listened to again.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.speakers.iter().flatten().filter_map(|speaker| speaker.until).min()
    }

    /// Slots of those that are to be listened to again, because they were interrupted.
    pub fn due(&self, now: Instant) -> Vec<usize> {
        self.slots(|speaker| speaker.until.is_some_and(|until| until <= now))
    }

    /// Slots of the processes for whose numbers `is_wanted` says so.
    pub fn of(&self, is_wanted: impl Fn(u32) -> bool) -> Vec<usize> {
        self.slots(|speaker| is_wanted(speaker.pid))
    }

    fn slots(&self, wanted: impl Fn(&Speaker) -> bool) -> Vec<usize> {
        let is_wanted = |slot: &usize| self.speakers[*slot].as_ref().is_some_and(&wanted);
        (0..self.speakers.len()).filter(is_wanted).collect()
    }

    /// What the next supervisor needs of the process in this slot: its number, and the pipe.
    pub fn speaker(&self, slot: usize) -> Option<(u32, BorrowedFd<'_>)> {
        let speaker = self.speakers.get(slot)?.as_ref()?;
        Some((speaker.pid, speaker.pipe.as_fd()))
    }
}

/// Names of notes about them begin so.
pub const NOTES: &str = "words.";
/// How much a process may say. Servers say little: what was before them, and why they end.
const RATE: Rate = Rate { burst: 100, every: Duration::from_millis(500) };
/// How much is read at once: as much as may be written at once.
const CHUNK: usize = 4096;

#[cfg(test)]
mod tests;

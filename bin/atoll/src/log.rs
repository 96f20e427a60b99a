//! What does a stack write to its log, and how much of it at most? Lines of bounded length without control
//! characters, at a bounded rate, to a file of bounded size; and nobody who writes them waits for whoever
//! reads them, or dies of it.
//!
//! ```text
//!   server --say!--> its own pipe --bytes of any kind--> supervisor (`supervise/words.rs`) --line "atoll[PID]: ..."--+--> log
//!                                                        supervisor, guardian --say!--line "atoll: ..."--------------+
//! ```
//! A server has no descriptor of the log: one that somebody has taken over can write what it likes, and is
//! heard as itself. What a pipe, a terminal or a full disk does not take is lost, and the next line that is
//! taken says how much that was.

use std::fmt::{self, Write};
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};

use atoll_base::{Duration, Instant};
use atoll_sys::stderr::ErrorOutput;

use crate::clock;

/// Writes a line to the log: what a server, a supervisor or a guardian has to say. As `format!`, and "atoll:
/// " before it.
macro_rules! say {
    ($($text:tt)*) => { $crate::log::say(format_args!($($text)*)) };
}

/// Writes text to standard error, whether somebody takes it or not: what a command has to say to the person
/// who gave it.
macro_rules! complain {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// Longest line, in bytes without the end: what is longer is cut. With its newline, and a notice before it,
/// it goes into a pipe as a whole (PIPE_BUF, pipe(7)).
pub const LINE_MAX: usize = 1000;

/// Prepares this process for a log that nobody reads: it never waits for one that is slow, and panics are a
/// line of it. `file`: where the log is, if it is a file that is to be kept small.
pub fn open(file: Option<PathBuf>) {
    let _ = OUTPUT.set(Output { way: ErrorOutput::open(), file });
    // The default hook may look for symbols in files, which is deadly for servers, and waits for a pipe that
    // is full.
    std::panic::set_hook(Box::new(|panic| say_last(format_args!("{panic}"))));
}

/// [`say!`].
pub fn say(text: fmt::Arguments<'_>) {
    say_within(&mut OWN.lock().unwrap_or_else(PoisonError::into_inner), text);
}

/// The same for a panic. It may have come while this thread was writing a line: then the lock will not be
/// free again, and a process that waited for it would neither serve nor end.
fn say_last(text: fmt::Arguments<'_>) {
    match OWN.try_lock() {
        Ok(mut own) => say_within(&mut own, text),
        Err(TryLockError::Poisoned(own)) => say_within(&mut own.into_inner(), text),
        Err(TryLockError::WouldBlock) => say_within(&mut None, text),
    }
}

fn say_within(own: &mut Option<Budget>, text: fmt::Arguments<'_>) {
    let mut line = Line::new("atoll: ");
    let _ = line.write_fmt(text);
    own.get_or_insert_with(|| Budget::new(OWN_RATE, clock::now())).put(line, "atoll: ", clock::now());
}

/// How often something may be written to the log, and what was left out meanwhile.
#[derive(Debug)]
pub struct Budget {
    rate: Rate,
    /// Lines that may be written now.
    left: u32,
    /// Since when it has not grown.
    since: Instant,
    /// Lines that were not written since the last one that was.
    left_out: u64,
}

/// So many lines at once, and another one after each such time.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub burst: u32,
    pub every: Duration,
}

/// Of a process itself.
const OWN_RATE: Rate = Rate { burst: 500, every: Duration::from_millis(50) };

impl Budget {
    pub fn new(rate: Rate, now: Instant) -> Budget {
        Budget { rate, left: rate.burst, since: now, left_out: 0 }
    }

    /// Takes a line of it, if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        let grown = now.since(self.since).as_nanos() / self.rate.every.as_nanos();
        let grown = u32::try_from(grown).unwrap_or(u32::MAX);
        if grown >= self.rate.burst - self.left {
            (self.left, self.since) = (self.rate.burst, now);
        } else {
            (self.left, self.since) = (self.left + grown, self.since + self.rate.every * grown);
        }
        let taken = self.left.checked_sub(1);
        self.left = taken.unwrap_or(0);
        taken.is_some()
    }

    /// When there is a line again at the latest.
    pub fn due(&self) -> Instant {
        self.since + self.rate.every
    }

    /// One, or many, will not be written.
    pub fn leave_out(&mut self, lines: u64) {
        self.left_out += lines;
    }

    /// Writes a line, if it may. `tag`: what a notice of those that were left out begins with.
    fn put(&mut self, line: Line, tag: &str, now: Instant) {
        if !self.take(now) {
            return self.leave_out(1);
        }
        self.write(line, tag);
    }

    /// Writes a line for which [`Budget::take`] has given its leave.
    pub fn write(&mut self, line: Line, tag: &str) {
        let mut text = String::new();
        if self.left_out > 0 {
            let _ = writeln!(text, "{tag}{} lines were left out", self.left_out);
        }
        text.push_str(&line.finish());
        match OUTPUT.get_or_init(Output::default).write(text.as_bytes()) {
            Ok(()) => self.left_out = 0,
            Err(_) => self.leave_out(1),
        }
    }
}

/// A line that is being made of what others say.
#[derive(Debug)]
pub struct Line {
    text: String,
    is_cut: bool,
}

impl Line {
    /// Begins with `tag`, which is taken as it is.
    pub fn new(tag: &str) -> Line {
        let mut text = String::with_capacity(256);
        text.push_str(tag);
        Line { text, is_cut: false }
    }

    /// Adds bytes of any kind.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.utf8_chunks() {
            let _ = self.write_str(chunk.valid());
            for byte in chunk.invalid() {
                self.push_piece(format_args!("\\x{byte:02x}"));
            }
        }
    }

    /// Adds a piece as a whole, or cuts the line here.
    fn push_piece(&mut self, piece: impl fmt::Display) {
        let before = self.text.len();
        let _ = write!(self.text, "{piece}");
        if self.is_cut || self.text.len() > LINE_MAX {
            self.text.truncate(before);
            self.is_cut = true;
        }
    }

    /// The line with its end.
    pub fn finish(mut self) -> String {
        self.text.push_str(if self.is_cut { "...\n" } else { "\n" });
        self.text
    }
}

impl Write for Line {
    /// What does not print itself is written as in Rust: `\n`, `\u{1b}`. That goes for marks that change the
    /// direction of text, too.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            if self.is_cut {
                break;
            }
            match character {
                '"' | '\'' | '\\' => self.push_piece(character),
                _ => self.push_piece(character.escape_debug()),
            }
        }
        Ok(())
    }
}

/// Where lines go.
#[derive(Debug)]
struct Output {
    way: ErrorOutput,
    file: Option<PathBuf>,
}

impl Default for Output {
    fn default() -> Output {
        Output { way: ErrorOutput::open(), file: None }
    }
}

impl Output {
    fn write(&self, text: &[u8]) -> io::Result<()> {
        self.keep_small();
        match self.way.write(text)? {
            len if len == text.len() => Ok(()),
            // A disk, or a terminal, that has taken a part of it. What follows begins on another line.
            _ => {
                let _ = self.way.write(b"\n");
                Err(io::ErrorKind::WriteZero.into())
            }
        }
    }

    /// Keeps the last [`FILE_MAX`] bytes beside a file that has grown, and begins it anew.
    fn keep_small(&self) {
        let Some(path) = &self.file else { return };
        if self.way.size_of(path).is_none_or(|size| size < FILE_MAX) {
            return;
        }
        let _ = std::fs::copy(path, path.with_extension("log.old"));
        let _ = self.way.truncate();
    }
}

/// Largest log: mostly it is on a file system in memory.
const FILE_MAX: u64 = 4 << 20;

static OUTPUT: OnceLock<Output> = OnceLock::new();
static OWN: Mutex<Option<Budget>> = Mutex::new(None);

#[cfg(test)]
mod tests {
    use super::*;

    fn line_of(bytes: &[u8]) -> String {
        let mut line = Line::new("atoll[7]: ");
        line.push_bytes(bytes);
        line.finish()
    }

    #[test]
    fn a_panic_while_a_line_is_written_waits_for_nobody() {
        let (said, is_said) = std::sync::mpsc::channel();
        let held = OWN.lock();
        std::thread::spawn(move || {
            say_last(format_args!("a panic"));
            said.send(())
        });
        assert!(is_said.recv_timeout(Duration::from_secs(10)).is_ok());
        drop(held);
    }

    #[test]
    fn nothing_that_a_terminal_obeys_gets_into_a_line() {
        assert_eq!(line_of(b"replica 0: \"C:\\x\" it's up"), "atoll[7]: replica 0: \"C:\\x\" it's up\n");
        let all: Vec<u8> = (0..=255).collect();
        let line = line_of(&all);
        assert!(line.trim_end_matches('\n').bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line}");
        assert_eq!(line_of(b"\x1b[2J\r\nforged\xff"), "atoll[7]: \\u{1b}[2J\\r\\nforged\\xff\n");
        // C1, a line separator, text from right to left.
        assert_eq!(line_of("\u{9b}\u{2028}\u{202e}ü".as_bytes()), "atoll[7]: \\u{9b}\\u{2028}\\u{202e}ü\n");
    }

    #[test]
    fn a_line_ends_where_it_is_too_long() {
        for text in [vec![b'x'; 100_000], vec![0; 100_000], vec![0xff; 100_000], "é".repeat(50_000).into_bytes()] {
            let line = line_of(&text);
            assert!(line.len() <= LINE_MAX + 4 && line.len() > LINE_MAX - 10 && line.ends_with("...\n"), "{line}");
        }
        let whole = line_of(&[b'x'; LINE_MAX - 10]);
        assert!(whole.len() == LINE_MAX + 1 && !whole.contains("..."), "{whole}");
    }

    #[test]
    fn lines_come_at_their_rate() {
        let start = clock::now();
        let rate = Rate { burst: 3, every: Duration::from_secs(1) };
        let mut budget = Budget::new(rate, start);
        let taken =
            |budget: &mut Budget, at: f64| (0..10).filter(|_| budget.take(start + Duration::from_secs_f64(at))).count();
        assert_eq!(taken(&mut budget, 0.0), 3);
        assert_eq!(taken(&mut budget, 0.9), 0);
        assert_eq!(budget.due(), start + Duration::from_secs(1));
        assert_eq!(taken(&mut budget, 1.5), 1);
        // The half second is not lost.
        assert_eq!(taken(&mut budget, 2.0), 1);
        assert_eq!(taken(&mut budget, 1000.0), 3);
    }
}

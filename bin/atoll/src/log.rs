//! The log of a stack: lines of bounded length without control characters, at a bounded rate, to a file of
//! bounded size. A writer neither waits for the reader of the log, nor dies if the reader goes away.
//!
//! ```text
//!   server --say!--> its own pipe --arbitrary bytes--> supervisor (`supervise/words.rs`)
//!                      supervisor --line "atoll[PID]: ..."--------+--> log
//!                      supervisor, guardian --say!--"atoll: ..."--+
//! ```
//!
//! A server has no descriptor of the log, so a compromised server can write only lines that carry its own
//! PID. A line that a pipe, a terminal or a full disk does not take is lost, and the next line that is taken
//! says how many were.

use std::fmt::{self, Write};
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};

use atoll_base::{Duration, Instant};
use atoll_sys::stderr::ErrorOutput;

use crate::clock;

/// Writes a line of a server, a supervisor or a guardian to the log. Formats like `format!`, behind the
/// prefix `atoll:` and a space.
macro_rules! say {
    ($($text:tt)*) => { $crate::log::say(format_args!($($text)*)) };
}

/// Writes text to standard error, and ignores errors: a command's message to the person who gave the command.
macro_rules! complain {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// Longest line in bytes, without its newline; a longer one is cut. With its newline and a notice before it,
/// a line goes into a pipe as a whole (PIPE_BUF, pipe(7)).
pub const LINE_MAX: usize = 1000;

/// Prepares this process for a log that perhaps nobody reads: writing never waits for a reader, and panics
/// become a log line. `file` is the log's path if it is a file whose size is to be bounded.
pub fn open(file: Option<PathBuf>) {
    let _ = OUTPUT.set(Output { way: ErrorOutput::open(), file });
    // The default hook may look for symbols in files, which is deadly for servers, and waits for a full pipe.
    std::panic::set_hook(Box::new(|panic| say_last(format_args!("{panic}"))));
}

/// Writes a line to the log for [`say!`].
pub fn say(text: fmt::Arguments<'_>) {
    say_within(&mut OWN.lock().unwrap_or_else(PoisonError::into_inner), text);
}

/// Writes the line of a panic. The panic may have come while this thread was writing a line: the lock is
/// never free again then, and a process that waited for it would neither serve nor end.
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

/// Limits how often lines are written to the log, and counts those left out meanwhile.
#[derive(Debug)]
pub struct Budget {
    rate: Rate,
    /// The number of lines that may be written now.
    left: u32,
    /// The time up to which the growth of `left` has been counted.
    since: Instant,
    /// The number of lines left out since the last one that was written.
    left_out: u64,
}

/// A rate of lines: `burst` lines at once, and another one after each `every`.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub burst: u32,
    pub every: Duration,
}

/// The rate of lines of a process itself.
const OWN_RATE: Rate = Rate { burst: 500, every: Duration::from_millis(50) };

impl Budget {
    pub fn new(rate: Rate, now: Instant) -> Budget {
        Budget { rate, left: rate.burst, since: now, left_out: 0 }
    }

    /// Takes a line from the budget. Returns whether one was left.
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

    /// Returns when a line is available again at the latest.
    pub fn due(&self) -> Instant {
        self.since + self.rate.every
    }

    /// Counts `lines` lines that will not be written.
    pub fn leave_out(&mut self, lines: u64) {
        self.left_out += lines;
    }

    /// Writes a line if the budget allows it. `tag` begins the notice about lines that were left out.
    fn put(&mut self, line: Line, tag: &str, now: Instant) {
        if !self.take(now) {
            return self.leave_out(1);
        }
        self.write(line, tag);
    }

    /// Writes a line that [`Budget::take`] has allowed. `tag` begins the notice about lines that were left
    /// out.
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

/// A line that is being composed, possibly of untrusted text.
#[derive(Debug)]
pub struct Line {
    text: String,
    is_cut: bool,
}

impl Line {
    /// Begins a line with `tag`, which is not escaped.
    pub fn new(tag: &str) -> Line {
        let mut text = String::with_capacity(256);
        text.push_str(tag);
        Line { text, is_cut: false }
    }

    /// Adds arbitrary bytes, escaped where they are not printable.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.utf8_chunks() {
            let _ = self.write_str(chunk.valid());
            for byte in chunk.invalid() {
                self.push_piece(format_args!("\\x{byte:02x}"));
            }
        }
    }

    /// Adds a piece as a whole, or cuts the line before it.
    fn push_piece(&mut self, piece: impl fmt::Display) {
        let before = self.text.len();
        let _ = write!(self.text, "{piece}");
        if self.is_cut || self.text.len() > LINE_MAX {
            self.text.truncate(before);
            self.is_cut = true;
        }
    }

    /// Returns the line with its newline, after "..." if it was cut.
    pub fn finish(mut self) -> String {
        self.text.push_str(if self.is_cut { "...\n" } else { "\n" });
        self.text
    }
}

impl Write for Line {
    /// Adds text. Characters that are not printable are escaped as in Rust (`\n`, `\u{1b}`), and so are marks
    /// that change the direction of text.
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

/// Where log lines go.
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
            // A disk or a terminal has taken a part of the text. What follows begins on another line.
            _ => {
                let _ = self.way.write(b"\n");
                Err(io::ErrorKind::WriteZero.into())
            }
        }
    }

    /// Copies a log that has grown to [`FILE_MAX`] bytes to a file beside it, and truncates it.
    fn keep_small(&self) {
        let Some(path) = &self.file else { return };
        if self.way.size_of(path).is_none_or(|size| size < FILE_MAX) {
            return;
        }
        let _ = std::fs::copy(path, path.with_extension("log.old"));
        let _ = self.way.truncate();
    }
}

/// Largest size of the log in bytes; it usually is on a file system in memory.
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
        // These are a C1 control, a line separator, and a mark for text from right to left.
        assert_eq!(line_of("\u{9b}\u{2028}\u{202e}ü".as_bytes()), "atoll[7]: \\u{9b}\\u{2028}\\u{202e}ü\n");
    }

    #[test]
    fn a_line_ends_where_it_is_too_long() {
        for text in
            [vec![b'x'; 100_000], vec![0; 100_000], vec![0xff; 100_000], "é".repeat(50_000).into_bytes()]
        {
            let line = line_of(&text);
            assert!(
                line.len() <= LINE_MAX + 4 && line.len() > LINE_MAX - 10 && line.ends_with("...\n"),
                "{line}"
            );
        }
        let whole = line_of(&[b'x'; LINE_MAX - 10]);
        assert!(whole.len() == LINE_MAX + 1 && !whole.contains("..."), "{whole}");
    }

    #[test]
    fn lines_come_at_their_rate() {
        let start = clock::now();
        let rate = Rate { burst: 3, every: Duration::from_secs(1) };
        let mut budget = Budget::new(rate, start);
        let taken = |budget: &mut Budget, at: f64| {
            (0..10).filter(|_| budget.take(start + Duration::from_secs_f64(at))).count()
        };
        assert_eq!(taken(&mut budget, 0.0), 3);
        assert_eq!(taken(&mut budget, 0.9), 0);
        assert_eq!(budget.due(), start + Duration::from_secs(1));
        assert_eq!(taken(&mut budget, 1.5), 1);
        // The half second is not lost.
        assert_eq!(taken(&mut budget, 2.0), 1);
        assert_eq!(taken(&mut budget, 1000.0), 3);
    }
}

//! The log of a stack: events of bounded length without control characters, at a bounded rate, to a file of
//! bounded size or to the journal. A writer neither waits for the reader of the log, nor dies if the reader
//! goes away.
//!
//! ```text
//!   server --event!--> its own pipe --arbitrary bytes--> supervisor (`supervise/words.rs`)
//!                      supervisor --the event, with the server's PID--+--> log
//!                      supervisor, guardian --event!------------------+
//! ```
//!
//! A server has no descriptor of the log, so a compromised server can write only events that carry its own
//! PID, and of those only the ones that servers may report. An event that a pipe, a terminal or a full disk
//! does not take is lost, and before the next event that is taken stands how many were.
//!
//! The log is a subscriber of `tracing`, and the only one: there is no other global state.

mod budget;
mod journal;
pub mod kinds;
mod line;
mod record;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError, TryLockError};

use atoll_base::Duration;
use atoll_supervisor::{LogFormat, LogLevel, StackName};
use atoll_sys::stderr::ErrorOutput;
use tracing::level_filters::LevelFilter;
use tracing::span::{self, Attributes, Id};
use tracing::{Event, Level, Metadata, Subscriber, dispatcher};

use self::journal::Journal;
use crate::clock;

pub use self::budget::{Budget, Rate};
pub use self::record::Record;

/// Reports an event of a server, a supervisor or a guardian: its name in [`kinds`], its fields, and the
/// sentence, which is formatted like `format!`.
///
/// ```ignore
/// event!(memory_short, "memory is short: buffers are kept small");
/// event!(guardian_started, { pid, epoch = self.epoch }, "process {pid} is the guardian now");
/// ```
macro_rules! event {
    ($name:ident, { $($field:ident $(= $value:expr)?),* $(,)? }, $($text:tt)+) => {{
        const KIND: &$crate::log::kinds::Kind = $crate::log::kinds::$name;
        $(const { assert!(KIND.has(stringify!($field)), "an event of this kind has no such field") };)*
        ::tracing::event!(name: KIND.name, KIND.level, { $($field $(= $value)?),* }, $($text)+)
    }};
    ($name:ident, $($text:tt)+) => { event!($name, {}, $($text)+) };
}

/// Writes text to standard error, and ignores errors. The text is a command's message to its user.
macro_rules! complain {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// The form and level of a process's log.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name of the stack.
    pub stack: StackName,
    pub format: LogFormat,
    pub level: LogLevel,
    /// The log's path if it is a file whose size is to be bounded.
    pub file: Option<PathBuf>,
}

/// Prepares this supervisor or guardian for a log that may have no reader: writing never waits for one, and
/// panics become an event.
pub fn open(settings: Settings) {
    let level = match settings.level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
    };
    let form = match settings.format {
        LogFormat::Text => Form::Text,
        LogFormat::Json => Form::Json,
        LogFormat::Journal => Form::Journal { journal: Journal::open(), stack: settings.stack.to_string() },
    };
    Log::new(form, level, settings.file).begin();
}

/// Prepares this server to report events to the supervisor, over its standard error.
pub fn open_in_server() {
    // The supervisor knows which events are wanted.
    Log::new(Form::ToSupervisor, Level::DEBUG, None).begin();
}

/// Fails with the reason if a log of this format cannot be written to on this machine.
pub fn check(format: LogFormat) -> io::Result<()> {
    if format != LogFormat::Journal {
        return Ok(());
    }
    let with_path = |error: io::Error| {
        let text = format!("log.format = \"journal\": there is no journal at {}: {error}", journal::SOCKET);
        io::Error::new(error.kind(), text)
    };
    Journal::open().check().map_err(with_path)
}

/// Writes an event of another process, which `budget` has allowed, to this process's log.
pub fn pass_on(record: &Record, budget: &mut Budget) {
    dispatcher::get_default(|log| {
        if let Some(log) = log.downcast_ref::<Log>() {
            log.write(record, budget);
        }
    });
}

/// Returns the name of an error's number, such as `EMFILE`, if it has one.
pub fn errno(error: &io::Error) -> Option<&'static str> {
    error.raw_os_error().and_then(|number| syscalls::Errno::new(number).name())
}

/// Returns a time in milliseconds, for a field.
pub fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}

/// A log that is written to.
struct Log {
    form: Form,
    /// The least grave events that are written.
    level: Level,
    output: Output,
    /// The budget of this process itself.
    own: Mutex<Budget>,
}

/// The form of an event.
#[derive(Debug)]
enum Form {
    /// A line for people.
    Text,
    /// A line with a JSON object.
    Json,
    /// An entry of the journal, in which the events of this stack have its name.
    Journal { journal: Journal, stack: String },
    /// A line for the supervisor.
    ToSupervisor,
}

/// The rate of events of a process itself.
const OWN_RATE: Rate = Rate { burst: 500, every: Duration::from_millis(50) };

impl Log {
    fn new(form: Form, level: Level, file: Option<PathBuf>) -> Log {
        let output = Output { way: ErrorOutput::open(), file };
        Log { form, level, output, own: Mutex::new(Budget::new(OWN_RATE, clock::now())) }
    }

    fn begin(self) {
        let _ = tracing::subscriber::set_global_default(self);
        // The default hook may look for symbols in files, which is deadly for servers, and waits for a full
        // pipe.
        std::panic::set_hook(Box::new(|panic| {
            dispatcher::get_default(|log| {
                if let Some(log) = log.downcast_ref::<Log>() {
                    log.panicked(panic);
                }
            });
        }));
    }

    /// Writes an event of this process.
    fn put(&self, record: &Record, own: &mut Budget) {
        if record.level() > self.level {
        } else if own.take(clock::now()) {
            self.write(record, own);
        } else {
            own.left_out += 1;
        }
    }

    /// Writes an event that `budget` has allowed, and before it how many were left out.
    fn write(&self, record: &Record, budget: &mut Budget) {
        if record.level() > self.level {
            return;
        }
        let notice = (budget.left_out > 0).then(|| record.notice(budget.left_out));
        let records = || notice.iter().chain([record]);
        let written = match &self.form {
            Form::Journal { journal, stack } => {
                records().try_for_each(|record| journal.write(record.to_journal(stack).as_bytes()))
            }
            Form::Text => self.output.write(records().map(Record::to_text)),
            Form::Json => self.output.write(records().map(Record::to_json)),
            Form::ToSupervisor => self.output.write(records().map(Record::to_supervisor)),
        };
        match written {
            Ok(()) => budget.left_out = 0,
            Err(_) => budget.left_out += 1,
        }
    }

    /// Writes the event of a panic. The panic may have come while this thread was writing an event: the lock
    /// is never free again then, and a process that waited for it would neither serve nor end.
    fn panicked(&self, panic: impl fmt::Display) {
        let record = Record::own(kinds::panicked, panic);
        match self.own.try_lock() {
            Ok(mut own) => self.put(&record, &mut own),
            Err(TryLockError::Poisoned(own)) => self.put(&record, &mut own.into_inner()),
            Err(TryLockError::WouldBlock) => {
                self.put(&record, &mut Budget::new(OWN_RATE, clock::now()));
            }
        }
    }
}

/// There are no spans.
impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.level && metadata.target().starts_with("atoll")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level.into())
    }

    fn event(&self, event: &Event<'_>) {
        let record = Record::of(event);
        self.put(&record, &mut self.own.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The destination of the lines of a log.
#[derive(Debug)]
struct Output {
    way: ErrorOutput,
    file: Option<PathBuf>,
}

impl Output {
    /// Writes lines at once.
    fn write(&self, lines: impl Iterator<Item = String>) -> io::Result<()> {
        self.keep_small();
        let text: String = lines.collect();
        match self.way.write(text.as_bytes())? {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_while_a_line_is_written_waits_for_nobody() {
        let log = Log::new(Form::Text, Level::INFO, None);
        let (said, is_said) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let held = log.own.lock();
            scope.spawn(|| {
                log.panicked("a panic");
                said.send(())
            });
            let waited = is_said.recv_timeout(Duration::from_secs(10));
            // Who waits is let go, so that the test ends.
            drop(held);
            assert!(waited.is_ok());
        });
    }

    #[test]
    fn only_a_missing_journal_is_missed() {
        assert!(check(LogFormat::Text).is_ok() && check(LogFormat::Json).is_ok());
        if let Err(error) = check(LogFormat::Journal) {
            assert!(error.to_string().contains("there is no journal at /run/systemd/journal/socket: "));
        }
    }

    #[test]
    fn errors_and_times_have_their_fields() {
        assert_eq!(errno(&io::Error::from_raw_os_error(libc::EMFILE)), Some("EMFILE"));
        assert_eq!(errno(&io::Error::other("none")), None);
        assert_eq!(millis(Duration::from_micros(1234)), 1.234);
    }
}

//! An event that happened, and its forms: a sentence, JSON, an entry of the journal, and what a server sends
//! to the supervisor.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_supervisor::{Said, SaidValue as Value};
use serde::{Serialize, Serializer};
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

use super::kinds::{self, Kind};
use super::line::{LINE_MAX, Line};

/// An event that happened. All text in it is bounded and printable.
#[derive(Debug)]
pub struct Record {
    /// The server that has reported the event; `None` means this process.
    server: Option<u32>,
    level: Level,
    event: &'static str,
    fields: Fields,
    message: String,
}

/// The fields of an event.
#[derive(Debug, Default)]
struct Fields {
    values: Vec<(&'static str, Value)>,
    /// Bytes of all names and values.
    len: usize,
}

impl Record {
    /// Creates an event of this process.
    pub fn own(kind: &'static Kind, text: impl std::fmt::Display) -> Record {
        let mut message = Line::new(LINE_MAX);
        let _ = write!(message, "{text}");
        let (level, event, message) = (kind.level, kind.name, message.finish());
        Record { server: None, level, event, fields: Fields::default(), message }
    }

    /// Reads an event of this process from its report.
    pub fn of(event: &Event<'_>) -> Record {
        let mut visitor = Visitor { fields: Fields::default(), message: Line::new(LINE_MAX) };
        event.record(&mut visitor);
        let Visitor { fields, message } = visitor;
        let metadata = event.metadata();
        let (level, event) = (*metadata.level(), metadata.name());
        Record { server: None, level, event, fields, message: message.finish() }
    }

    /// Creates an event from what the server with this pid has printed, which may be anything: an event that
    /// servers may report, or text.
    pub fn of_server(pid: u32, printed: &[u8]) -> Record {
        let known = Said::parse(printed).and_then(|said| {
            let kind = kinds::of_server(&said.event)?;
            let mut fields = Fields::default();
            for (name, value) in said.fields {
                fields.push(kind.field(&name)?, value);
            }
            Some(Record { server: Some(pid), fields, ..Record::own(kind, said.message) })
        });
        known.unwrap_or_else(|| {
            let mut message = Line::new(LINE_MAX);
            // Servers of earlier builds print in the form of the log.
            message.push_bytes(printed.strip_prefix(b"atoll: ").unwrap_or(printed));
            Record { message: message.finish(), ..Record::about(pid, kinds::server_said, "") }
        })
    }

    /// Creates an event that stands among those of the server with this pid.
    pub fn about(pid: u32, kind: &'static Kind, text: &str) -> Record {
        Record { server: Some(pid), ..Record::own(kind, text) }
    }

    /// Creates the notice that `count` events of the same process were not written before this one.
    pub fn notice(&self, count: u64) -> Record {
        let text = format_args!("{count} lines were left out");
        let mut notice = Record { server: self.server, ..Record::own(kinds::lines_left_out, text) };
        notice.fields.push("count", Value::Unsigned(count));
        notice
    }

    /// Returns how grave the event is.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Returns the line for people, with its newline.
    pub fn to_text(&self) -> String {
        match self.server {
            Some(pid) => format!("atoll[{pid}]: {}\n", self.message),
            None => format!("atoll: {}\n", self.message),
        }
    }

    /// Returns the line with a JSON object, with its newline.
    pub fn to_json(&self) -> String {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let object = Object {
            timestamp: timestamp(since),
            level: self.level.as_str(),
            event: self.event,
            pid: self.reporter(),
            fields: &self.fields,
            message: &self.message,
        };
        serde_json::to_string(&object).unwrap_or_default() + "\n"
    }

    /// Returns the line that a server sends to the supervisor, with its newline.
    pub fn to_supervisor(&self) -> String {
        let fields = self.fields.values.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        let said =
            Said { event: self.event.to_owned(), fields: fields.collect(), message: self.message.clone() };
        said.to_line() + "\n"
    }

    /// Returns the entry for the journal of the stack with this name (systemd's "Native Journal Protocol").
    /// Values have no newlines, so that each field is a line.
    pub fn to_journal(&self, stack: &str) -> String {
        let priority = match self.level {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        let mut entry = format!(
            "PRIORITY={priority}\nMESSAGE={}\nSYSLOG_IDENTIFIER=atoll\nATOLL_STACK={stack}\nATOLL_EVENT={}\n\
             ATOLL_REPORTER={}\n",
            self.message,
            self.event,
            self.reporter()
        );
        for (name, value) in &self.fields.values {
            let name = name.to_ascii_uppercase();
            let _ = match value {
                Value::Flag(flag) => writeln!(entry, "ATOLL_{name}={flag}"),
                Value::Unsigned(number) => writeln!(entry, "ATOLL_{name}={number}"),
                Value::Signed(number) => writeln!(entry, "ATOLL_{name}={number}"),
                Value::Fraction(number) => writeln!(entry, "ATOLL_{name}={number}"),
                Value::Text(text) => writeln!(entry, "ATOLL_{name}={text}"),
            };
        }
        entry
    }

    fn reporter(&self) -> u32 {
        self.server.unwrap_or_else(std::process::id)
    }
}

impl Fields {
    /// Adds a field, whose text may be anything. Leaves it out if the fields are longer than
    /// [`FIELDS_MAX`] then.
    fn push(&mut self, name: &'static str, value: Value) {
        let value = match value {
            Value::Text(text) => {
                let mut line = Line::new(TEXT_MAX);
                let _ = line.write_str(&text);
                Value::Text(line.finish())
            }
            number => number,
        };
        let len = name.len() + if let Value::Text(text) = &value { text.len() } else { NUMBER_MAX };
        if self.len + len <= FIELDS_MAX {
            self.len += len;
            self.values.push((name, value));
        }
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.values.iter().map(|(name, value)| (name, value)))
    }
}

/// Collects the fields of an event.
struct Visitor {
    fields: Fields,
    message: Line,
}

impl Visit for Visitor {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.fields.push(field.name(), Value::Fraction(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.fields.push(field.name(), Value::Signed(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.fields.push(field.name(), Value::Unsigned(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.fields.push(field.name(), Value::Flag(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.push(field.name(), Value::Text(value.to_owned()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            self.fields.push(field.name(), Value::Text(format!("{value:?}")));
        }
    }
}

#[derive(Serialize)]
struct Object<'a> {
    timestamp: String,
    level: &'static str,
    event: &'static str,
    pid: u32,
    fields: &'a Fields,
    message: &'a str,
}

/// Returns a time after 1970-01-01 in UTC, with microseconds (RFC 3339 §5.6).
fn timestamp(since: Duration) -> String {
    let (mut days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let mut year = 1970u64;
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    // A clock that is far off costs as many steps as there are years.
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let (day, second, micros) = (days + 1, second % 60, since.subsec_micros());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Longest text of a field in bytes.
const TEXT_MAX: usize = 300;
/// The most bytes of all names and values of an event. In JSON they may be twice as long.
const FIELDS_MAX: usize = 700;
/// The bytes that a number counts as.
const NUMBER_MAX: usize = 24;

#[cfg(test)]
mod tests;

//! The events of a stack's log in JSON (docs/events.md).

use std::fmt;
use std::path::Path;

use serde_json::Value;

/// The events of a log, oldest first.
pub struct Events(Vec<Value>);

impl Events {
    /// Reads a log. Every whole line is an event.
    pub fn parse(log: &str) -> Events {
        // The last line may be incomplete.
        let whole = log.rfind('\n').map_or("", |end| &log[..end]);
        Events(whole.lines().map(|line| serde_json::from_str(line).expect(line)).collect())
    }

    /// Reads the log at `path`, which is empty if there is none.
    pub fn read(path: &Path) -> Events {
        Events::parse(&std::fs::read_to_string(path).unwrap_or_default())
    }

    /// Returns the events, each an object.
    pub fn all(&self) -> &[Value] {
        &self.0
    }

    /// Returns the fields of the events of this name.
    pub fn of(&self, name: &str) -> Vec<&Value> {
        self.0.iter().filter(|event| event["event"] == name).map(|event| &event["fields"]).collect()
    }
}

impl fmt::Display for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|event| writeln!(f, "{event}"))
    }
}

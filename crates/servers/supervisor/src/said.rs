//! The form in which a server reports an event to the supervisor: one JSON object per line, on the pipe that
//! is the server's standard error.
//!
//! ```text
//!   {"event":"connections_lost","fields":{"kept":7,"lost":1},"message":"replica 0: 7 connections ..."}
//! ```
//!
//! The bytes are hostile. A line says neither which process wrote it nor how severe it is: the supervisor
//! knows the process at the other end of the pipe, and each event has its level. If a line is lost or cut,
//! only this event is lost.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An event of a server in the form for the pipe. [`Said::parse`] returns only events within the bounds
/// below.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Said {
    /// The name of the event, such as `connections_lost`.
    pub event: String,
    /// The fields of the event by name; at most [`SAID_FIELDS_MAX`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, SaidValue>,
    /// The event as a sentence. It may contain any characters.
    pub message: String,
}

/// The value of a field of an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SaidValue {
    /// True or false.
    Flag(bool),
    /// A number that is not negative.
    Unsigned(u64),
    /// A number.
    Signed(i64),
    /// A number with a fraction.
    Fraction(f64),
    /// Text, which may contain any characters.
    Text(String),
}

/// The most fields of an event.
pub const SAID_FIELDS_MAX: usize = 16;
/// The longest line with an event, in bytes without its newline. With it, a line goes into a pipe as a whole
/// (PIPE_BUF, pipe(7)).
pub const SAID_MAX: usize = 3900;
/// The longest name of an event or of a field, in bytes.
const NAME_MAX: usize = 32;

impl Said {
    /// Reads a line without its newline. Returns `None` if it is not an event within the bounds.
    pub fn parse(line: &[u8]) -> Option<Said> {
        if line.len() > SAID_MAX || line.first() != Some(&b'{') {
            return None;
        }
        let said: Said = serde_json::from_slice(line).ok()?;
        let has_names = said.fields.keys().chain([&said.event]).all(|name| is_name(name));
        (said.fields.len() <= SAID_FIELDS_MAX && has_names).then_some(said)
    }

    /// Returns the line for this event, without a newline.
    pub fn to_line(&self) -> String {
        // Plain data has a JSON form.
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn is_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(event: &str, fields: usize) -> Said {
        let values = [
            SaidValue::Flag(true),
            SaidValue::Unsigned(u64::MAX),
            SaidValue::Signed(-1),
            SaidValue::Fraction(1.5),
            SaidValue::Text("\u{1b}[2J\"\\\n".into()),
        ];
        let fields = (0..fields).map(|n| (format!("f{n}"), values[n % values.len()].clone())).collect();
        Said { event: event.into(), fields, message: "a\nb".into() }
    }

    #[test]
    fn an_event_survives_the_pipe() {
        for fields in [0, 1, SAID_FIELDS_MAX] {
            let said = event("connections_lost", fields);
            let line = said.to_line();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(Said::parse(line.as_bytes()), Some(said));
        }
    }

    #[test]
    fn what_is_beyond_the_bounds_is_not_an_event() {
        let too_many = event("many", SAID_FIELDS_MAX + 1).to_line();
        let too_long = Said { message: "x".repeat(SAID_MAX), ..event("long", 0) }.to_line();
        let long_name = event(&"n".repeat(NAME_MAX + 1), 0).to_line();
        for line in [&*too_many, &too_long, &long_name] {
            assert_eq!(Said::parse(line.as_bytes()), None, "{line}");
        }
        for line in [
            "",
            "{",
            "replica 0: it is so",
            "[]",
            "7",
            r#"{"event":"a"}"#,
            r#"{"event":"","message":""}"#,
            r#"{"event":"A B","message":""}"#,
            r#"{"event":"a","message":"","pid":1}"#,
            r#"{"event":"a","message":"","event":"b"}"#,
            r#"{"event":"a","message":"","fields":{"f":[1]}}"#,
            r#"{"event":"a","message":"","fields":{"f":{"g":1}}}"#,
            r#"{"event":"a","message":"","fields":{"f":null}}"#,
            r#"{"event":"a","message":"","fields":{"F=1\nMESSAGE":1}}"#,
            r#"{"event":"a","message":""} {"event":"b","message":""}"#,
        ] {
            assert_eq!(Said::parse(line.as_bytes()), None, "{line}");
        }
        let deep = format!(r#"{{"event":"a","message":"","fields":{{"f":{}"#, "[".repeat(3000));
        assert_eq!(Said::parse(deep.as_bytes()), None);
    }
}

use serde_json::{Value as Json, json};

use super::*;

fn json_of(record: &Record) -> Json {
    let line = record.to_json();
    assert_eq!(line.matches('\n').count(), 1, "{line}");
    let mut object: Json = serde_json::from_str(&line).unwrap();
    object.as_object_mut().unwrap().remove("timestamp").expect("a time");
    object
}

#[test]
fn an_event_of_a_server_gets_its_pid_and_its_level() {
    let said =
        br#"{"event":"connections_lost","fields":{"kept":7,"lost":1},"message":"7 go on\n1 does not"}"#;
    let record = Record::of_server(7, said);
    assert_eq!(
        json_of(&record),
        json!({"level": "WARN", "event": "connections_lost", "pid": 7, "fields": {"kept": 7, "lost": 1},
               "message": "7 go on\\n1 does not"})
    );
    assert_eq!(record.to_text(), "atoll[7]: 7 go on\\n1 does not\n");
    assert_eq!(
        record.to_journal("web"),
        "PRIORITY=4\nMESSAGE=7 go on\\n1 does not\nSYSLOG_IDENTIFIER=atoll\nATOLL_STACK=web\n\
         ATOLL_EVENT=connections_lost\nATOLL_REPORTER=7\nATOLL_KEPT=7\nATOLL_LOST=1\n"
    );
}

#[test]
fn what_no_server_may_say_is_text() {
    for printed in [
        // These are events of other servers, or of none.
        &br#"{"event":"server_back","fields":{"index":0},"message":"replica 0 is back"}"#[..],
        br#"{"event":"nothing","message":"x"}"#,
        // Fields of other events.
        br#"{"event":"connections_lost","fields":{"role":"replica"},"message":"x"}"#,
        br#"{"event":"connections_lost","pid":1,"message":"x"}"#,
        b"{\"timestamp\":1}",
    ] {
        let object = json_of(&Record::of_server(7, printed));
        assert_eq!((&object["event"], &object["pid"]), (&json!("server_said"), &json!(7)));
        assert_eq!((&object["level"], &object["fields"]), (&json!("WARN"), &json!({})));
        assert_eq!(object["message"].as_str().unwrap().as_bytes(), printed);
    }
    assert_eq!(
        Record::of_server(7, b"atoll: by an earlier build").to_text(),
        "atoll[7]: by an earlier build\n"
    );
}

/// A field is a line of an entry of the journal, so a value that contains a newline would become another
/// field.
#[test]
fn no_text_of_a_server_begins_a_line() {
    let evil = "a\nATOLL_EVENT=server_back\r\u{2028}\u{0}\u{1b}[2J";
    let said = Said {
        event: "connections_lost".into(),
        fields: [("why".to_owned(), Value::Text(evil.into()))].into(),
        message: evil.into(),
    };
    let record = Record::of_server(7, said.to_line().as_bytes());
    for form in [record.to_text(), record.to_json()] {
        assert!(form.trim_end_matches('\n').bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{form}");
    }
    let entry = record.to_journal("web");
    assert_eq!(entry.lines().filter(|line| line.starts_with("ATOLL_EVENT=")).count(), 1, "{entry}");
    assert!(entry.bytes().all(|byte| byte == b'\n' || (b' '..=b'~').contains(&byte)), "{entry}");
}

#[test]
fn every_form_is_written_at_once() {
    // The longest there is: characters that JSON escapes.
    let said = Said {
        event: "server_failed".into(),
        fields: ["process", "error", "errno"]
            .map(|name| (name.to_owned(), Value::Text("\"".repeat(600))))
            .into(),
        message: "\\".repeat(1000),
    };
    let mut fields = Fields::default();
    for (name, value) in &said.fields {
        fields.push(kinds::server_failed.field(name).unwrap(), value.clone());
    }
    let record = Record { fields, ..Record::own(kinds::server_failed, &said.message) };
    assert!(Said::parse(record.to_supervisor().trim_end().as_bytes()).is_some());
    let notice = record.notice(u64::MAX);
    for lines in [
        [notice.to_json(), record.to_json()],
        [notice.to_text(), record.to_text()],
        [notice.to_supervisor(), record.to_supervisor()],
    ] {
        let text = lines.concat();
        assert!(text.len() <= 4096, "{} bytes", text.len());
    }
    assert!(record.fields.values.len() == 2, "what does not fit is left out: {record:?}");
}

#[test]
fn a_notice_is_an_event_of_the_same_process() {
    let record = Record::about(7, kinds::server_said, "x").notice(3);
    assert_eq!(record.to_text(), "atoll[7]: 3 lines were left out\n");
    let object = json_of(&record);
    assert_eq!((&object["event"], &object["fields"]), (&json!("lines_left_out"), &json!({"count": 3})));
}

#[test]
fn times_are_those_of_the_calendar() {
    for (second, text) in [
        (0, "1970-01-01T00:00:00.000007Z"),
        (951_782_399, "2000-02-28T23:59:59.000007Z"),
        (951_782_400, "2000-02-29T00:00:00.000007Z"),
        (951_868_800, "2000-03-01T00:00:00.000007Z"),
        (1_735_689_599, "2024-12-31T23:59:59.000007Z"),
        (1_735_689_600, "2025-01-01T00:00:00.000007Z"),
        (4_107_542_400, "2100-03-01T00:00:00.000007Z"),
    ] {
        assert_eq!(timestamp(Duration::new(second, 7999)), text);
    }
}

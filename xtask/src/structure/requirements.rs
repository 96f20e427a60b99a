//! Is what a standard asks for kept, and shown to be kept? Compares the tables in `docs/rfc` with code and tests.
//!
//! A row is `| label | what it asks | here | code | tests |`. *kept* needs a place in the code (a file and a word that stands in it) and a test;
//! *deviates* and *missing* need a note, whose number follows in parentheses; *not ours* needs nothing, but no MUST is that.

use std::collections::{BTreeMap, BTreeSet};

/// One row of a table.
struct Row<'a> {
    line: usize,
    label: &'a str,
    here: &'a str,
    /// Files and words.
    code: Vec<&'a str>,
    tests: Vec<&'a str>,
}

/// What the tables may refer to.
pub struct Known {
    /// Files of the repository, with their texts.
    pub files: BTreeMap<String, String>,
    /// Names of tests: functions and scripts.
    pub tests: BTreeSet<String>,
}

/// Checks one table. `labels`: those that have to be there.
pub fn check(path: &str, text: &str, labels: &[String], known: &Known) -> Vec<String> {
    let mut violations = Vec::new();
    let mut seen = BTreeSet::new();
    for row in rows(text) {
        let mut report = |what: String| violations.push(format!("{path}:{}: {}: {what}", row.line, row.label));
        if !labels.iter().any(|label| label == row.label) {
            report("no such label".to_owned());
        }
        if !seen.insert(row.label) {
            report("twice".to_owned());
        }
        let (verdict, note) = row.here.split_once(" (").unwrap_or((row.here, ""));
        match verdict {
            "kept" => {
                if row.code.len() < 2 || row.tests.is_empty() {
                    report("kept, but by what code, and shown by which test?".to_owned());
                }
            }
            "deviates" | "missing" => {
                let number = note.trim_end_matches(')');
                let is_argued = !number.is_empty() && text.lines().any(|line| line.starts_with(&format!("{number}. ")));
                if !is_argued {
                    report(format!("{verdict}, but there is no note that says why"));
                }
            }
            "not ours" if !row.label.starts_with("MUST") => {}
            _ => report(format!("`{}` is no verdict", row.here)),
        }
        if let [file, word] = row.code[..] {
            match known.files.get(file) {
                None => report(format!("there is no {file}")),
                Some(text) if !text.contains(word) => report(format!("{file} has no {word}")),
                Some(_) => {}
            }
        }
        for test in row.tests.iter().filter(|test| !known.tests.contains(**test)) {
            report(format!("there is no test {test}"));
        }
    }
    for label in labels.iter().filter(|label| !seen.contains(label.as_str())) {
        violations.push(format!("{path}: {label} is missing"));
    }
    violations
}

/// The labels of RFC 9293, Appendix B.
pub fn labels_of_rfc_9293() -> Vec<String> {
    let kinds = [("MUST", 69), ("SHLD", 31), ("MAY", 18), ("REC", 1)];
    kinds.into_iter().flat_map(|(kind, count)| (1..=count).map(move |n| format!("{kind}-{n}"))).collect()
}

/// Names of the tests in a source file: functions under `#[test]`, or under `@case` in Python.
pub fn tests_in(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        let function = line.trim_start_matches("pub ").strip_prefix("fn ");
        if let Some(rest) = function.or_else(|| line.strip_prefix("def "))
            && std::mem::take(&mut is_test)
        {
            names.push(rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect());
        }
        is_test |= line == "#[test]" || line == "@case";
    }
    names
}

fn rows(text: &str) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for (line, row) in (1..).zip(text.lines()) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if let ["", label, _, here, code, tests, ""] = cells[..]
            && label != "label"
            && !label.starts_with('-')
        {
            rows.push(Row { line, label, here, code: quoted(code), tests: quoted(tests) });
        }
    }
    rows
}

/// What stands between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

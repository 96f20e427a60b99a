//! Compares the tables of requirements in `docs/rfc` with code and tests: whether the requirements of a
//! standard are met, and shown to be.
//!
//! A row is `| label | what it asks | here | code | tests |`. *kept* needs a place in the code (a file and a
//! word that occurs in it) and a test. *deviates* and *missing* need a note, whose number follows in
//! parentheses. *not ours* needs a note if the requirement is a MUST.
//!
//! RFC 9293 has its own labels. Elsewhere a label consists of the section, with a letter if it asks for
//! several things, or the standard's own number of a rule, and of the level: `5.3-R1 MUST`. All rules of a
//! standard that numbers them must be there ([`RULES`]). `README.md` counts the verdicts.

use std::collections::{BTreeMap, BTreeSet};

/// One row of a table.
struct Row<'a> {
    line: usize,
    label: &'a str,
    here: &'a str,
    /// The places in the code: files and words.
    code: Vec<&'a str>,
    tests: Vec<&'a str>,
}

/// The files and tests that the tables may refer to.
pub struct Known {
    /// The files of the repository, with their texts.
    pub files: BTreeMap<String, String>,
    /// The names of tests: functions and scripts.
    pub tests: BTreeSet<String>,
}

/// The labels that a table may have.
pub enum Labels {
    /// The table has exactly these labels.
    All(Vec<String>),
    /// The labels are sections and levels; these rule numbers must be among them.
    Sections(&'static [&'static str]),
}

impl Labels {
    /// Returns the labels of the table of RFC `number`.
    pub fn of(number: &str) -> Labels {
        if number == "9293" {
            return Labels::All(labels_of_rfc_9293());
        }
        let rules = RULES.iter().find(|(rfc, _)| *rfc == number);
        Labels::Sections(rules.map_or(&[], |(_, rules)| rules))
    }

    fn allow(&self, label: &str) -> bool {
        match self {
            Labels::All(all) => all.iter().any(|known| known == label),
            Labels::Sections(_) => {
                let number = label
                    .split_once(' ')
                    .filter(|(_, level)| LEVELS.contains(level))
                    .map(|(number, _)| number);
                number.is_some_and(|number| number.starts_with(|c: char| c.is_ascii_alphanumeric()))
            }
        }
    }

    /// Returns the labels that are required and not in `seen`.
    fn missing(&self, seen: &BTreeSet<&str>) -> Vec<String> {
        match self {
            Labels::All(all) => all.iter().filter(|label| !seen.contains(label.as_str())).cloned().collect(),
            Labels::Sections(rules) => {
                let numbers: BTreeSet<&str> =
                    seen.iter().filter_map(|label| Some(label.split_once(' ')?.0)).collect();
                rules.iter().filter(|rule| !numbers.contains(*rule)).map(|rule| (*rule).to_owned()).collect()
            }
        }
    }
}

/// Checks one table; returns the violations.
pub fn check(path: &str, text: &str, labels: &Labels, known: &Known) -> Vec<String> {
    let mut violations = Vec::new();
    let mut seen = BTreeSet::new();
    let mut notes = BTreeSet::new();
    for row in rows(text) {
        let mut report =
            |what: String| violations.push(format!("{path}:{}: {}: {what}", row.line, row.label));
        if !labels.allow(row.label) {
            report("no such label".to_owned());
        }
        if !seen.insert(row.label) {
            report("twice".to_owned());
        }
        let (verdict, note) = row.verdict();
        let is_argued = text.lines().any(|line| line.starts_with(&format!("{note}. ")));
        if !note.is_empty() && !is_argued {
            report(format!("there is no note {note}"));
        }
        notes.insert(note);
        match verdict {
            "kept" => {
                if row.code.len() < 2 || row.tests.is_empty() {
                    report("kept, but by what code, and shown by which test?".to_owned());
                }
            }
            "deviates" | "missing" if note.is_empty() => report(format!("{verdict}, but no note says why")),
            "not ours" if note.is_empty() && row.is_must() => {
                report("a MUST, and no note says why it is not ours".to_owned())
            }
            "deviates" | "missing" | "not ours" => {}
            _ => report(format!("`{}` is no verdict", row.here)),
        }
        for code in row.code.chunks(2) {
            let [file, word] = code else {
                report("code is named by a file and a word in it".to_owned());
                break;
            };
            match known.files.get(*file) {
                None => report(format!("there is no {file}")),
                Some(text) if !text.contains(word) => report(format!("{file} has no {word}")),
                Some(_) => {}
            }
        }
        for test in row.tests.iter().filter(|test| !known.tests.contains(**test)) {
            report(format!("there is no test {test}"));
        }
    }
    violations.extend(labels.missing(&seen).into_iter().map(|label| format!("{path}: {label} is missing")));
    let numbers = text.lines().filter_map(|line| line.split_once(". ")).map(|(number, _)| number);
    for number in numbers.filter(|number| number.parse::<u16>().is_ok() && !notes.contains(number)) {
        violations.push(format!("{path}: nothing refers to note {number}"));
    }
    violations
}

/// Checks that the index in `text` has a row for each table, with the counts of its verdicts: `| [N.md](N.md)
/// | what | kept | deviates | missing | not ours |`. `tables` has their names and texts.
pub fn check_index(path: &str, text: &str, tables: &BTreeMap<String, String>) -> Vec<String> {
    let mut violations = Vec::new();
    for (name, table) in tables {
        let rows = rows(table);
        let [kept, deviates, missing, others] = ["kept", "deviates", "missing", "not ours"]
            .map(|verdict| rows.iter().filter(|row| row.verdict().0 == verdict).count());
        let (head, tail) =
            (format!("| [{name}]({name}) | "), format!(" | {kept} | {deviates} | {missing} | {others} |"));
        if !text.lines().any(|line| line.starts_with(&head) && line.ends_with(&tail)) {
            violations.push(format!("{path}: no row begins with `{head}` and ends with `{tail}`"));
        }
    }
    violations
}

/// Returns the labels of RFC 9293, Appendix B.
fn labels_of_rfc_9293() -> Vec<String> {
    let kinds = [("MUST", 69), ("SHLD", 31), ("MAY", 18), ("REC", 1)];
    kinds.into_iter().flat_map(|(kind, count)| (1..=count).map(move |n| format!("{kind}-{n}"))).collect()
}

/// Returns the names of the tests in a source file: functions under `#[test]`, under `@case` in Python, or
/// named in a macro that makes tests of them.
pub fn tests_in(text: &str) -> Vec<String> {
    let macros = [
        ("on_both_stacks![", ']'),
        ("with_ip_inside_and_apart![", ']'),
        ("attacks! {", '}'),
        ("cases! {", '}'),
    ];
    let lists = macros
        .iter()
        .flat_map(|(name, end)| text.split(name).skip(1).filter_map(|rest| rest.split_once(*end)));
    // A name may be followed by the arguments of the test.
    let mut names: Vec<String> = lists
        .flat_map(|(list, _)| list.split(','))
        .filter_map(|name| Some(name.split_whitespace().next()?.to_owned()))
        .collect();
    names.retain(|name| !name.is_empty());
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

impl<'a> Row<'a> {
    /// Returns the verdict, and the number of the note that it refers to, or an empty string.
    fn verdict(&self) -> (&'a str, &'a str) {
        let (verdict, note) = self.here.split_once(" (").unwrap_or((self.here, ""));
        (verdict, note.trim_end_matches(')'))
    }

    fn is_must(&self) -> bool {
        self.label.starts_with("MUST-") || self.label.ends_with(" MUST")
    }
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

/// Returns the parts of a text that stand between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The levels of requirements: MUST and SHALL (NOT), SHOULD and RECOMMENDED (NOT), MAY and OPTIONAL, or a
/// rule without any of these words.
const LEVELS: [&str; 4] = ["MUST", "SHLD", "MAY", "rule"];

/// The rules of the standards that number them.
const RULES: [(&str, &[&str]); 8] = [
    (
        "4443",
        &[
            "2.4-a", "2.4-b", "2.4-c", "2.4-d", "2.4-e.1", "2.4-e.2", "2.4-e.3", "2.4-e.4", "2.4-e.5",
            "2.4-e.6", "2.4-f",
        ],
    ),
    ("4862", &["5.5.3-a", "5.5.3-b", "5.5.3-c", "5.5.3-d", "5.5.3-e"]),
    ("5681", &["3.2-1", "3.2-2", "3.2-3", "3.2-4", "3.2-5", "3.2-6"]),
    ("5961", &["3.2-1", "3.2-2", "3.2-3", "4.2a", "5.2"]),
    ("6298", &["2.1", "2.2", "2.3", "2.4", "2.5", "3", "4", "5.1", "5.2", "5.3", "5.4", "5.5", "5.6", "5.7"]),
    (
        "6675",
        &["4-NextSeg-1", "4-NextSeg-2", "4-NextSeg-3", "4-NextSeg-4", "5-1", "5-2", "5-A", "5-B", "5-C"],
    ),
    ("7323", &["5.3-R1", "5.3-R2", "5.3-R3", "5.3-R4", "5.3-R5"]),
    ("8961", &["4-1", "4-2a", "4-2b", "4-2c", "4-2d", "4-3", "4-4a", "4-4b", "4-4c"]),
];

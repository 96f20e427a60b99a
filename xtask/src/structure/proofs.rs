//! Checks that the claims of documents are shown by tests, and that lists which no compiler compares are
//! complete. The lists are claims and their tests, dependencies and their reasons, crates whose arithmetic is
//! checked, and mutants and the code that they change.

use std::collections::{BTreeMap, BTreeSet};

use super::arrows::Crate;

/// Checks the table of claims: rows of `| claim | mechanism | tests |` under the heading `## Claims`. Each
/// claim must have a test that exists.
pub fn check_claims(path: &str, text: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let rows = table(text, "## Claims");
    let mut violations = Vec::new();
    if rows.is_empty() {
        violations.push(format!("{path}: no table of claims"));
    }
    for (line, cells) in rows {
        let [claim, mechanism, shown] = cells[..] else {
            violations.push(format!("{path}:{line}: a claim has a mechanism and tests, and nothing else"));
            continue;
        };
        if claim.is_empty() || mechanism.is_empty() {
            violations.push(format!("{path}:{line}: an empty cell"));
        }
        let named: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            violations.push(format!("{path}:{line}: shown by which test?"));
        }
        let missing = named.iter().filter(|test| !tests.contains(**test));
        violations.extend(missing.map(|test| format!("{path}:{line}: there is no test {test}")));
    }
    violations
}

/// Compares the first column of the table under `## Dependencies`, names between backticks, with the
/// third-party crates that the manifests name.
pub fn check_dependencies(path: &str, text: &str, manifests: &[String]) -> Vec<String> {
    let argued: BTreeSet<&str> = table(text, "## Dependencies")
        .iter()
        .flat_map(|(_, cells)| cells.first().map_or("", |cell| *cell).split('`').skip(1).step_by(2))
        .collect();
    let mut used = BTreeSet::new();
    for manifest in manifests {
        let mut is_list = false;
        for line in manifest.lines().map(str::trim) {
            if let Some(section) = line.strip_prefix('[') {
                is_list = section.trim_end_matches(']').ends_with("dependencies");
            } else if is_list
                && let Some((name, _)) = line.split_once(['=', '.'])
                && !name.starts_with("atoll")
                && !name.starts_with('#')
            {
                used.insert(name.trim());
            }
        }
    }
    let without = used.difference(&argued).map(|name| format!("{path}: no reason for the dependency {name}"));
    let beyond = argued.difference(&used).map(|name| format!("{path}: {name} is no dependency"));
    without.chain(beyond).collect()
}

/// Compares the crates whose arithmetic is checked in release builds with the crates that servers contain and
/// the library does not.
pub fn check_overflow(manifest: &str, crates: &[Crate]) -> Vec<String> {
    let section = manifest.split("[profile.release.package]").nth(1).unwrap_or_default();
    let checked: BTreeSet<&str> = section
        .lines()
        .take_while(|line| !line.starts_with('['))
        .filter(|line| line.contains("overflow-checks = true"))
        .filter_map(|line| Some(line.split_once('=')?.0.trim()))
        .collect();
    let (servers, library) = (closure("bin/atoll", crates), closure("bin/preload", crates));
    // The simulated machine for the papers is a tool, not a server.
    let expected: BTreeSet<&str> =
        servers.difference(&library).copied().filter(|name| *name != "atoll-papers").collect();
    let without =
        expected.difference(&checked).map(|name| format!("Cargo.toml: no overflow checks in {name}"));
    let beyond = checked.difference(&expected).map(|name| format!("Cargo.toml: overflow checks in {name}"));
    without.chain(beyond).collect()
}

/// Returns the names of the crates that the one in `folder` contains.
fn closure<'a>(folder: &str, crates: &'a [Crate]) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        let Some(member) = crates.iter().find(|member| member.folder == folder) else { continue };
        if names.insert(member.name.as_str()) {
            open.extend(member.arrows.iter().filter(|arrow| !arrow.only_tests).map(|arrow| arrow.to.clone()));
        }
    }
    names
}

/// Checks that the text which a mutant replaces occurs in its file once, and that its test exists.
/// `testing/mutants/run` explains mutants.
pub fn check_mutant(
    path: &str,
    text: &str,
    files: &BTreeMap<String, String>,
    tests: &BTreeSet<String>,
) -> Vec<String> {
    let mut violations = Vec::new();
    let (mut file, mut old): (Option<&str>, Option<Vec<&str>>) = (None, None);
    for line in text.lines() {
        match (&mut old, line) {
            (None, "<<<<") => old = Some(Vec::new()),
            (Some(lines), "====") => {
                let wanted = lines.join("\n");
                let count =
                    file.and_then(|file| files.get(file)).map_or(0, |text| text.matches(&wanted).count());
                if count != 1 {
                    violations
                        .push(format!("{path}: {} has its text {count} times", file.unwrap_or("no file")));
                }
                old = None;
            }
            (Some(lines), line) => lines.push(line),
            (None, line) => {
                file = line.strip_prefix("file ").or(file);
                if let Some(test) = line.strip_prefix("test ").and_then(|test| test.split_whitespace().last())
                {
                    // The test may be in a module.
                    let name = test.rsplit("::").next().unwrap_or(test);
                    if !tests.iter().any(|known| known.contains(name)) {
                        violations.push(format!("{path}: there is no test {test}"));
                    }
                }
            }
        }
    }
    violations
}

/// Returns the rows of the first table under a heading, with their line numbers.
fn table<'a>(text: &'a str, heading: &str) -> Vec<(usize, Vec<&'a str>)> {
    let lines = (1..).zip(text.lines());
    let section = lines
        .skip_while(|(_, line)| *line != heading)
        .skip(1)
        .take_while(|(_, line)| !line.starts_with("## "));
    let rows = section.filter(|(_, line)| line.starts_with('|'));
    rows.skip(2)
        .map(|(number, line)| (number, line.trim_matches('|').split('|').map(str::trim).collect()))
        .collect()
}

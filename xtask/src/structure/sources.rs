//! Checks that a source file contains nothing that its storey may not.

use super::arrows::storey;
use super::tokens::{Token, tokens};

/// Returns the violations of one file; `path` is relative to the root.
pub fn check_file(path: &str, text: &str) -> Vec<String> {
    let folder = crate_folder(path);
    let tokens = tokens(text);
    let mut violations = Vec::new();
    if !may_be_unsafe(folder) {
        for token in tokens.iter().filter(|token| token.text == "unsafe") {
            violations
                .push(format!("{path}:{}: unsafe code outside crates/platform and bin/preload", token.line));
        }
        let is_root = matches!(&path[folder.len()..], "/src/lib.rs" | "/src/main.rs");
        if is_root && !has(&tokens, &["forbid", "(", "unsafe_code", ")"]) {
            violations.push(format!("{path}:1: the crate does not `#![forbid(unsafe_code)]`"));
        }
    }
    if matches!(storey(folder), Ok(Some(0..=3))) && !is_test(path) {
        violations.extend(impurities(&tokens).into_iter().map(|(line, what)| {
            format!("{path}:{line}: {what}; storeys 0 to 3 get time and randomness as arguments")
        }));
    }
    violations
}

/// Returns the folder of the crate that a file belongs to: the part of the path before `src`, `tests` and so
/// on.
fn crate_folder(path: &str) -> &str {
    let ends = ["/src/", "/tests/", "/benches/", "/examples/", "/fuzz_targets/", "/build.rs"];
    let end = ends.iter().filter_map(|end| path.find(end)).min();
    &path[..end.unwrap_or(path.len())]
}

fn may_be_unsafe(folder: &str) -> bool {
    folder.starts_with("crates/platform/") || folder == "bin/preload"
}

/// Returns whether the file is a test; tests may start threads and read clocks.
fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs")
        || path.contains("/tests/")
        || path.contains("/benches/")
        || path.contains("/examples/")
}

/// Returns the uses of clocks, threads and randomness, with their lines.
fn impurities(tokens: &[Token<'_>]) -> Vec<(usize, &'static str)> {
    const RULES: &[(&[&str], &str)] = &[
        (&["Instant", ":", ":", "now"], "it asks a clock"),
        (&["SystemTime"], "it asks a clock"),
        (&["clock_gettime"], "it asks a clock"),
        (&["_rdtsc"], "it asks a clock"),
        (&["getrandom"], "it draws randomness"),
        (&["rand", ":", ":"], "it draws randomness"),
        (&["RandomState"], "it draws randomness"),
        (&["thread_local"], "it knows threads"),
    ];
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        for (pattern, what) in RULES {
            if starts_with(&tokens[at..], pattern) {
                found.push((tokens[at].line, *what));
            }
        }
        if starts_with(&tokens[at..], &["std", ":", ":"]) {
            found.extend(members_of_std(&tokens[at + 3..]));
        }
    }
    found
}

/// Returns the forbidden names behind `std::`, in one path or a group of them.
fn members_of_std(tokens: &[Token<'_>]) -> Vec<(usize, &'static str)> {
    let judge = |token: &Token<'_>| match token.text {
        "time" => Some((token.line, "it names std::time (core::time::Duration is allowed)")),
        "thread" => Some((token.line, "it names std::thread")),
        _ => None,
    };
    let Some(first) = tokens.first() else { return Vec::new() };
    if first.text != "{" {
        let map = tokens.get(3).filter(|_| first.text == "collections");
        let map = map.filter(|token| matches!(token.text, "HashMap" | "HashSet"));
        let map = map.map(|token| {
            (token.line, "std's hash maps draw randomness (BTreeMap, or hashbrown with a seed)")
        });
        return judge(first).or(map).into_iter().collect();
    }
    let (mut depth, mut found) = (0, Vec::new());
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ if depth == 1 && matches!(tokens[at - 1].text, "{" | ",") => found.extend(judge(token)),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    found
}

fn starts_with(tokens: &[Token<'_>], pattern: &[&str]) -> bool {
    tokens.len() >= pattern.len() && tokens.iter().zip(pattern).all(|(token, text)| token.text == *text)
}

fn has(tokens: &[Token<'_>], pattern: &[&str]) -> bool {
    (0..tokens.len()).any(|at| starts_with(&tokens[at..], pattern))
}

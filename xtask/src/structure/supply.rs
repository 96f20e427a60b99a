//! Whose code do we build, and may we? All crates of others: where they come from, under which licence, and
//! in how many versions.
//!
//! cargo-deny does this and more, but building it takes minutes of a processor on each fresh machine, for
//! three comparisons with what `cargo metadata` says; what it has beyond that, known faults, needs a database
//! that no registry has (see HACKING.md, "Known faults of dependencies"). cargo-vet asks for an audit of each
//! version by people: there are a hundred, and nobody to do so, so its files would only say that nobody has.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// The only place that crates come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// What a binary may contain without owing more than a notice.
const LICENCES: [&str; 11] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "NCSA",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Crates of which there are several versions, each with its reason.
const SEVERAL: &[(&str, &str)] =
    &[("syn", "derives that are waited for still have the one before; built, not part of any program")];

/// Compares what `cargo metadata` says with the rules.
pub fn check(metadata: &[u8]) -> Result<Vec<String>, String> {
    let metadata: Value = serde_json::from_slice(metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let nodes = metadata["resolve"]["nodes"].as_array().ok_or("cargo metadata: no graph")?;
    let used: BTreeSet<&str> = nodes.iter().filter_map(|node| node["id"].as_str()).collect();
    let packages = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
    let mut violations = Vec::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages.iter().filter(|package| package["id"].as_str().is_some_and(|id| used.contains(id))) {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let (name, licence) = (text("name"), text("license"));
        // Ours have no source.
        if package["source"].is_null() {
            continue;
        }
        if text("source") != REGISTRY {
            violations.push(format!("{name}: comes from {}", text("source")));
        }
        if !is_allowed(licence) {
            violations.push(format!("{name}: its licence is `{licence}`"));
        }
        versions.entry(name).or_default().insert(text("version"));
    }
    for (name, versions) in &versions {
        let is_argued = SEVERAL.iter().any(|(several, _)| several == name);
        if versions.len() > 1 && !is_argued {
            violations.push(format!("{name}: there are several versions: {versions:?}"));
        }
        if versions.len() == 1 && is_argued {
            violations.push(format!("{name}: there is one version again, and a reason for several"));
        }
    }
    Ok(violations)
}

/// Whether an SPDX expression can be kept to by licences that are allowed. `/` is an old way to write OR.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    // An AND of groups in parentheses, or one group.
    expression.split(" AND ").all(|group| {
        let group = group.trim().trim_start_matches('(').trim_end_matches(')');
        group.split(" OR ").any(|licence| LICENCES.contains(&licence.trim()))
    })
}

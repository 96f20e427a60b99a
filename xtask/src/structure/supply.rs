//! Checks third-party crates: where they come from, under which licence, and in how many versions.
//!
//! cargo-deny does this and more, but building it takes minutes on each fresh machine, for three comparisons
//! with the output of `cargo metadata`. Its other check, for known faults, needs a database that no registry
//! has (see HACKING.md, "Known faults of dependencies"). cargo-vet asks for an audit of each version by
//! people. There are a hundred versions and no auditors, so its files would only record that.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::StructureError;

/// The only registry that crates may come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The licences that demand no more than a notice of a binary.
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

/// The crates of which there are several versions, each with its reason.
const SEVERAL: &[(&str, &str)] = &[
    ("embedded-io", "postcard can write to either if it is asked to, and is not; never built"),
    ("syn", "derives that are waited for still have the one before; built, not part of any program"),
];

/// Checks the output of `cargo metadata`; returns the violations.
pub fn check(metadata: &[u8]) -> Result<Vec<String>, StructureError> {
    let metadata: Value = serde_json::from_slice(metadata)?;
    let nodes = metadata["resolve"]["nodes"].as_array().ok_or(StructureError::Incomplete("graph"))?;
    let used: BTreeSet<&str> = nodes.iter().filter_map(|node| node["id"].as_str()).collect();
    let packages = metadata["packages"].as_array().ok_or(StructureError::Incomplete("packages"))?;
    let mut violations = Vec::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in
        packages.iter().filter(|package| package["id"].as_str().is_some_and(|id| used.contains(id)))
    {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let (name, licence) = (text("name"), text("license"));
        // Crates of this workspace have no source.
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

/// Returns whether an SPDX expression can be satisfied by licences that are allowed. `/` is an old way to
/// write OR.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    // The expression is an AND of groups in parentheses, or one group.
    expression.split(" AND ").all(|group| {
        let group = group.trim().trim_start_matches('(').trim_end_matches(')');
        group.split(" OR ").any(|licence| LICENCES.contains(&licence.trim()))
    })
}

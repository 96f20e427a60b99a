//! Checks that all arrows between crates point down.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use thiserror::Error;

use super::StructureError;

/// A member of the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crate {
    /// The name of the crate.
    pub name: String,
    /// The folder of the crate, relative to the root.
    pub folder: String,
    /// The members that the crate depends on.
    pub arrows: Vec<Arrow>,
}

/// A dependency of one crate on another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrow {
    /// The folder of the crate that is used.
    pub to: String,
    /// Whether only tests use the crate.
    pub only_tests: bool,
}

/// The arrows that are allowed inside one storey, each with its reason. They cannot form a cycle, because
/// cargo refuses that.
const SIDEWAYS: &[(&str, &str)] = &[
    ("crates/platform/shm", "crates/platform/sys"), // mappings and doorbells are system calls
    ("crates/platform/tap", "crates/platform/sys"), // so are devices
    ("crates/papers", "crates/platform/shm"), // the real code is measured in memory as processes share it
    ("crates/servers/transport", "crates/servers/connmgr"), // a TS hosts the replica's part of the CM
    ("crates/servers/transport", "crates/servers/ip"), // a TS says on its page what its part of IP knows
];

/// The arrows inside one storey that are allowed for tests alone, each with its reason.
const SIDEWAYS_IN_TESTS: &[(&str, &str)] = &[
    ("crates/servers/transport", "crates/sockets"), // the programs of its tests use the client that ships
];

/// This folder of a crate has no storey.
#[derive(Debug, Error)]
#[error("{0}: no storey for this folder (ARCHITECTURE.md, \"Layout\")")]
pub struct NoStorey(String);

/// Returns the storey that a crate's folder gives it; `None` for crates outside of the building (tests,
/// tools).
pub fn storey(folder: &str) -> Result<Option<u8>, NoStorey> {
    let storey = match folder.split('/').collect::<Vec<_>>()[..] {
        ["crates", "base"] => Some(0),
        ["crates", "wire" | "ipc"] => Some(1),
        ["crates", "proto", _] | ["crates", "rpc"] => Some(2),
        ["crates", "servers", _] | ["crates", "sockets" | "descriptor"] => Some(3),
        ["crates", "platform", _] | ["crates", "papers"] => Some(4),
        ["bin", _] => Some(5),
        ["testing", ..] | ["xtask"] | ["bench", ..] => None,
        _ => return Err(NoStorey(folder.into())),
    };
    Ok(storey)
}

/// Returns the arrows that do not point down.
pub fn check(crates: &[Crate]) -> Vec<String> {
    let mut violations = Vec::new();
    for member in crates {
        let from = match storey(&member.folder) {
            Ok(Some(storey)) => storey,
            Ok(None) => continue,
            Err(error) => {
                violations.push(error.to_string());
                continue;
            }
        };
        for arrow in &member.arrows {
            let down = match storey(&arrow.to) {
                Ok(Some(to)) => {
                    let ends = (member.folder.as_str(), arrow.to.as_str());
                    to < from
                        || SIDEWAYS.contains(&ends)
                        || arrow.only_tests && SIDEWAYS_IN_TESTS.contains(&ends)
                }
                Ok(None) => arrow.only_tests,
                Err(_) => continue, // Reported at that crate itself.
            };
            if !down {
                violations.push(format!("{}: its arrow to {} does not point down", member.folder, arrow.to));
            }
        }
    }
    violations
}

/// Reads the output of `cargo metadata --no-deps`; returns the members of the workspace.
pub fn parse_metadata(json: &[u8], root: &Path) -> Result<Vec<Crate>, StructureError> {
    let metadata: Value = serde_json::from_slice(json)?;
    let packages = metadata["packages"].as_array().ok_or(StructureError::Incomplete("packages"))?;
    let relative = |path: &str| {
        Path::new(path)
            .strip_prefix(root)
            .map(|path| path.to_string_lossy().into_owned())
            .unwrap_or_else(|_| path.into())
    };
    let mut crates = BTreeMap::new();
    for package in packages {
        let name = package["name"].as_str().ok_or(StructureError::Incomplete("name of a package"))?;
        let manifest =
            package["manifest_path"].as_str().ok_or(StructureError::Incomplete("manifest of a package"))?;
        let folder = relative(manifest.trim_end_matches("/Cargo.toml"));
        let mut arrows = Vec::new();
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            if let Some(path) = dependency["path"].as_str() {
                arrows.push(Arrow {
                    to: relative(path),
                    only_tests: dependency["kind"].as_str() == Some("dev"),
                });
            }
        }
        crates.insert(folder.clone(), Crate { name: name.into(), folder, arrows });
    }
    Ok(crates.into_values().collect())
}

//! Checks that the code keeps to its architecture.
//!
//! Each rule is one function from facts to violations, so that the tests can show each of them failing.
//! Arrows between crates point down. `unsafe` only stands where it may. No crate below the platform asks a
//! clock, starts a thread or draws randomness. What standards require is done where `docs/rfc` says so, and
//! tests show it. The claims of THREAT_MODEL.md have tests. Each dependency has a reason, a licence and one
//! version. Servers check their arithmetic. No error is a text. Mutants fit the code. Lines of prose fit a
//! window.

mod arrows;
mod columns;
mod errors;
mod proofs;
mod requirements;
mod sizes;
mod sources;
mod supply;
mod tokens;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use thiserror::Error;

use arrows::Crate;

/// The folder of the tables of requirements, one per standard and named by its number, and their index.
const TABLES: &str = "docs/rfc";
const INDEX: &str = "README.md";
/// The folder of the mutants; each takes out one defence.
const MUTANTS: &str = "testing/mutants";
/// The platform that is built for; packages for other platforms may be absent.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Why the structure could not be checked, or is not as it should be.
#[derive(Debug, Error)]
pub enum StructureError {
    /// A file or folder of the repository cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The error that the system reports.
        error: std::io::Error,
    },
    /// There is no index of the tables of requirements.
    #[error("{TABLES}: no {INDEX}")]
    NoIndex,
    /// Cargo cannot be started.
    #[error("cargo metadata: {0}")]
    Cargo(std::io::Error),
    /// Cargo has failed; the text is its own.
    #[error("cargo metadata: {0}")]
    CargoFailed(String),
    /// The output of cargo is not JSON.
    #[error("cargo metadata: {0}")]
    Json(#[from] serde_json::Error),
    /// The output of cargo lacks this.
    #[error("cargo metadata: no {0}")]
    Incomplete(&'static str),
    /// This number of rules is broken, each of which has been printed.
    #[error("{0} violations of the structure (ARCHITECTURE.md, \"Layout\")")]
    Violations(usize),
}

/// Checks the repository, and prints the violations; fails if there are any.
pub fn report(root: &Path) -> Result<(), StructureError> {
    let violations = check(root)?;
    for violation in &violations {
        println!("{violation}");
    }
    match violations.len() {
        0 => Ok(()),
        count => Err(StructureError::Violations(count)),
    }
}

/// Returns all violations in the repository at `root`.
pub fn check(root: &Path) -> Result<Vec<String>, StructureError> {
    let crates = workspace(root)?;
    let mut violations = arrows::check(&crates);
    let mut known = requirements::Known { files: BTreeMap::new(), tests: BTreeSet::new() };
    for member in &crates {
        let mut files = Vec::new();
        rust_files(&root.join(&member.folder), &mut files)?;
        for file in files {
            let text = read(&file)?;
            let path = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
            violations.extend(sources::check_file(&path, &text));
            violations.extend(columns::check(&path, &text));
            violations.extend(errors::check(&path, &text));
            known.tests.extend(requirements::tests_in(&text));
            known.files.insert(path, text);
        }
    }
    for (folder, ending) in [("testing/conformance/scripts", ".pkt"), ("testing/system/programs", ".py")] {
        for path in entries(&root.join(folder))? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.ends_with(ending) {
                let text = read(&path)?;
                known.tests.extend(requirements::tests_in(&text));
                known.tests.insert(name);
            }
        }
    }
    violations.extend(sizes::check(&known.files));
    violations.extend(tables(root, &known)?);
    violations.extend(proofs(root, &crates, &known)?);
    violations.extend(supply::check(&metadata(root, &["--filter-platform", PLATFORM])?)?);
    violations.extend(forbidden_words(root)?);
    for folder in ["", "docs", "docs/decisions"] {
        for path in entries(&root.join(folder))? {
            if path.extension().is_some_and(|extension| extension == "md") {
                let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
                let text = read(&path)?;
                violations.extend(columns::check(&name, &text));
            }
        }
    }
    Ok(violations)
}

/// Compares the tables of requirements with the code and tests.
fn tables(root: &Path, known: &requirements::Known) -> Result<Vec<String>, StructureError> {
    let mut texts = BTreeMap::new();
    for path in entries(&root.join(TABLES))? {
        texts.insert(path.file_name().unwrap_or_default().to_string_lossy().into_owned(), read(&path)?);
    }
    let index = texts.remove(INDEX).ok_or(StructureError::NoIndex)?;
    let mut violations = requirements::check_index(&format!("{TABLES}/{INDEX}"), &index, &texts);
    for (name, text) in &texts {
        let labels = requirements::Labels::of(name.trim_end_matches(".md"));
        violations.extend(requirements::check(&format!("{TABLES}/{name}"), text, &labels, known));
    }
    Ok(violations)
}

/// Compares the claims and lists of documents with the code and tests.
fn proofs(root: &Path, crates: &[Crate], known: &requirements::Known) -> Result<Vec<String>, StructureError> {
    let read = |name: &str| read(&root.join(name));
    let (claims, reasons) = ("THREAT_MODEL.md", "ARCHITECTURE.md");
    let manifest = read("Cargo.toml")?;
    let mut violations = proofs::check_claims(claims, &read(claims)?, &known.tests);
    violations.extend(proofs::check_overflow(&manifest, crates));
    let manifests = [manifest, read("testing/fuzz/Cargo.toml")?];
    violations.extend(proofs::check_dependencies(reasons, &read(reasons)?, &manifests));
    for path in entries(&root.join(MUTANTS))? {
        let name = format!("{MUTANTS}/{}", path.file_name().unwrap_or_default().to_string_lossy());
        if name.ends_with(".mutant") {
            violations.extend(proofs::check_mutant(&name, &read(&name)?, &known.files, &known.tests));
        }
    }
    Ok(violations)
}

/// Returns the members of the workspace, as listed by `cargo metadata`.
fn workspace(root: &Path) -> Result<Vec<Crate>, StructureError> {
    arrows::parse_metadata(&metadata(root, &["--no-deps"])?, root)
}

/// Returns the output of `cargo metadata`. Crates that this machine does not have yet are fetched; on a fresh
/// machine, these are those that only other platforms need.
fn metadata(root: &Path, arguments: &[&str]) -> Result<Vec<u8>, StructureError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let ask = |more: &[&str]| {
        let mut command = Command::new(&cargo);
        command.args(["metadata", "--format-version", "1"]).args(more).args(arguments).current_dir(root);
        command.output().map_err(StructureError::Cargo)
    };
    let mut output = ask(&["--offline"])?;
    if !output.status.success() {
        output = ask(&["--locked"])?;
    }
    if !output.status.success() {
        return Err(StructureError::CargoFailed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(output.stdout)
}

/// Returns the text of a file.
fn read(path: &Path) -> Result<String, StructureError> {
    std::fs::read_to_string(path).map_err(|error| StructureError::Read { path: path.into(), error })
}

/// Returns the files and folders in a folder, in the order of their names.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, StructureError> {
    let paths = std::fs::read_dir(folder).and_then(|all| all.map(|entry| Ok(entry?.path())).collect());
    let mut paths: Vec<PathBuf> =
        paths.map_err(|error| StructureError::Read { path: folder.into(), error })?;
    paths.sort();
    Ok(paths)
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), StructureError> {
    for path in entries(folder)? {
        if path.is_dir() {
            // A crate inside another crate's folder is checked as its own.
            if path.file_name().is_some_and(|name| name == "target") || path.join("Cargo.toml").exists() {
                continue;
            }
            rust_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Returns the words that a contributor keeps out of the project, one a line in `forbidden-words` of the git
/// folder.
///
/// Names of private tools, hosts and paths must not be published. A list of them in the repository would
/// publish them, so each clone has its own, or none.
fn forbidden_words(root: &Path) -> Result<Vec<String>, StructureError> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let Some(folder) = git(&["rev-parse", "--git-common-dir"]) else { return Ok(Vec::new()) };
    let Ok(words) = std::fs::read_to_string(root.join(folder).join("forbidden-words")) else {
        return Ok(Vec::new());
    };
    let mut violations = Vec::new();
    for word in words.lines().map(str::trim).filter(|word| !word.is_empty()) {
        if let Some(hits) = git(&["grep", "-I", "-n", "-i", "-w", "-F", "-e", word]) {
            violations.extend(hits.lines().map(|hit| format!("{hit}: `{word}` is private")));
        }
    }
    Ok(violations)
}

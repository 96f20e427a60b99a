//! Does the code keep to its architecture?
//!
//! Three rules, each one function from facts to violations, so that the tests can show each of them failing:
//! arrows between crates point down; `unsafe` lies only where it may; nothing below the platform asks a clock, starts a
//! thread or draws randomness.

mod arrows;
mod sources;
mod tokens;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::Command;

use arrows::Crate;

/// Checks the repository and prints what it violates.
pub fn report(root: &Path) -> Result<(), String> {
    let violations = check(root)?;
    for violation in &violations {
        println!("{violation}");
    }
    match violations.len() {
        0 => Ok(()),
        count => Err(format!("{count} violations of the structure (ARCHITECTURE.md, \"Layout\")")),
    }
}

/// All violations in the repository at `root`.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let crates = workspace(root)?;
    let mut violations = arrows::check(&crates);
    for member in &crates {
        let mut files = Vec::new();
        rust_files(&root.join(&member.folder), &mut files).map_err(|e| format!("{}: {e}", member.folder))?;
        for file in files {
            let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            let path = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
            violations.extend(sources::check_file(&path, &text));
        }
    }
    violations.extend(forbidden_words(root)?);
    Ok(violations)
}

/// The members of the workspace, by `cargo metadata`.
fn workspace(root: &Path) -> Result<Vec<Crate>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    arrows::parse_metadata(&output.stdout, root)
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    entries.sort();
    for path in entries {
        if path.is_dir() {
            // A crate inside a crate's folder is checked as itself.
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

/// Words that a contributor keeps out of the project, one a line in `forbidden-words` of the git folder.
///
/// Names of private tools, hosts and paths must not be published. A list of them in the repository would publish them,
/// so each clone has its own, or none.
fn forbidden_words(root: &Path) -> Result<Vec<String>, String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let Some(folder) = git(&["rev-parse", "--git-common-dir"]) else { return Ok(Vec::new()) };
    let Ok(words) = std::fs::read_to_string(root.join(folder).join("forbidden-words")) else { return Ok(Vec::new()) };
    let mut violations = Vec::new();
    for word in words.lines().map(str::trim).filter(|word| !word.is_empty()) {
        if let Some(hits) = git(&["grep", "-I", "-n", "-i", "-w", "-F", "-e", word]) {
            violations.extend(hits.lines().map(|hit| format!("{hit}: `{word}` is private")));
        }
    }
    Ok(violations)
}

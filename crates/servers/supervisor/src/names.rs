//! The name of a stack, and the paths of its sockets and files.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

/// The name of a stack: 1 to 64 letters, digits, `-`, `_` and `.`, starting with a letter or a digit, so that
/// it can be part of a file's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StackName(String);

impl StackName {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for StackName {
    fn default() -> StackName {
        StackName("default".into())
    }
}

impl FromStr for StackName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<StackName, NameError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let starts_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if starts_well && text.len() <= 64 && text.bytes().all(allowed) {
            Ok(StackName(text.into()))
        } else {
            Err(NameError)
        }
    }
}

impl fmt::Display for StackName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text is not the name of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the name of a stack is 1 to 64 letters, digits, `-`, `_` or `.`, and starts with a letter or a digit"
)]
pub struct NameError;

/// Returns the directory in which a user's stacks keep their sockets: `/run/atoll` for root, else
/// `$XDG_RUNTIME_DIR/atoll`, else `/tmp/atoll-UID`.
///
/// `xdg` is the value of the variable. A relative path is ignored, as the XDG Base Directory Specification
/// demands.
pub fn runtime_directory(uid: u32, xdg: Option<&OsStr>) -> PathBuf {
    if uid == 0 {
        return PathBuf::from("/run/atoll");
    }
    match xdg.map(Path::new).filter(|path| path.is_absolute()) {
        Some(path) => path.join("atoll"),
        None => PathBuf::from(format!("/tmp/atoll-{uid}")),
    }
}

/// The paths of one stack's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The socket for applications.
    pub socket: PathBuf,
    /// The socket for administration: for the command line, and the supervisors of other stacks.
    pub admin: PathBuf,
    /// The file with the supervisor's pid, which is locked while the supervisor lives.
    pub pid: PathBuf,
    /// The output of a supervisor in the background, and of its replicas.
    pub log: PathBuf,
}

impl Paths {
    /// Returns the paths of the stack `name` in `directory`.
    pub fn new(directory: &Path, name: &StackName) -> Paths {
        let file = |extension| directory.join(format!("{name}.{extension}"));
        Paths { socket: file("sock"), admin: file("admin"), pid: file("pid"), log: file("log") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_run_and_others_what_their_session_gives_them() {
        let xdg = Some(OsStr::new("/run/user/1000"));
        assert_eq!(runtime_directory(0, xdg), Path::new("/run/atoll"));
        assert_eq!(runtime_directory(1000, xdg), Path::new("/run/user/1000/atoll"));
        for missing in [None, Some(OsStr::new("")), Some(OsStr::new("relative"))] {
            assert_eq!(runtime_directory(1000, missing), Path::new("/tmp/atoll-1000"));
        }
    }

    #[test]
    fn names_cannot_leave_the_directory() {
        for bad in ["", ".", "..", "a/b", "-x", ".x", "a b", "ä", &"x".repeat(65)] {
            assert!(bad.parse::<StackName>().is_err(), "{bad}");
        }
        let name: StackName = "web-1.test".parse().unwrap();
        assert_eq!(
            Paths::new(Path::new("/run/atoll"), &name).socket,
            Path::new("/run/atoll/web-1.test.sock")
        );
    }
}

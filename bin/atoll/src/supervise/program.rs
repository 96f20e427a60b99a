//! The build that servers are started from.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use atoll_supervisor::{Build, BuildReport};
use atoll_sys::process::Spawn;

use crate::self_check;

/// A build that servers are started from.
#[derive(Debug)]
pub struct Program {
    /// The build's open file; `None` means the file of this process.
    pub file: Option<OwnedFd>,
    /// The build's description of itself.
    pub build: Build,
}

impl Program {
    /// Returns the build of this process.
    pub fn own() -> Program {
        Program { file: None, build: self_check::own() }
    }

    /// Prepares the start of a process of this build.
    pub fn spawn(&self) -> io::Result<Spawn<'_>> {
        match &self.file {
            Some(file) => Spawn::file(file.as_fd(), "atoll"),
            None => Spawn::this_binary("atoll"),
        }
    }

    /// Returns what `atoll status` shows of the build.
    pub fn report(&self) -> BuildReport {
        BuildReport { version: self.build.version.clone(), id: self.build.id.clone() }
    }
}

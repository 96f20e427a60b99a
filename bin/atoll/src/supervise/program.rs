//! Which build are servers started of?

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use atoll_supervisor::{Build, BuildReport};
use atoll_sys::process::Spawn;

use crate::self_check;

/// A build that servers are started of.
#[derive(Debug)]
pub struct Program {
    /// Its file, open; `None`: that of this process.
    pub file: Option<OwnedFd>,
    /// What it says of itself.
    pub build: Build,
}

impl Program {
    /// The build that this process is of.
    pub fn own() -> Program {
        Program { file: None, build: self_check::own() }
    }

    /// A process of it about to be started.
    pub fn spawn(&self) -> io::Result<Spawn<'_>> {
        match &self.file {
            Some(file) => Spawn::file(file.as_fd(), "atoll"),
            None => Spawn::this_binary("atoll"),
        }
    }

    /// What `atoll status` shows of it.
    pub fn report(&self) -> BuildReport {
        BuildReport { version: self.build.version.clone(), id: self.build.id.clone() }
    }
}

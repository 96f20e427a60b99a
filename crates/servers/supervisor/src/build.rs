//! Decides whether servers of two builds of this program can succeed each other. A build describes itself as
//! JSON (`atoll self-check --json`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A build of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// The version of the program.
    pub version: String,
    /// The build id that the linker derived from the program's contents (NT_GNU_BUILD_ID), in hexadecimal, if
    /// there is one.
    pub id: Option<String>,
    /// The version of what applications and servers share: pages, rings, arenas.
    pub layout: u32,
    /// The version of what a supervisor passes to servers, and of the messages between servers.
    pub servers: u32,
    /// The sizes of shared memory in bytes, by its purpose.
    pub memory: BTreeMap<String, u64>,
    /// The versions of the ledger that this build reads and writes.
    pub ledger: LedgerVersions,
}

/// The versions of the ledger that a build knows. It can write every version that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerVersions {
    /// The oldest version.
    pub oldest: u32,
    /// The newest version, which the build writes unless another one is set.
    pub newest: u32,
}

/// The output of `atoll self-check --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelfCheck {
    /// The build that was checked.
    pub build: Build,
    /// The reason why the build cannot run on this machine, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// Why servers of two builds cannot succeed each other. `ours` is the build that is up, `theirs` the next
/// one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Misfit {
    /// Applications and servers share memory of another layout.
    #[error("the version of pages, rings and arenas is {theirs} in it, and {ours} in the stack that is up")]
    Layout {
        /// The version of the build that is up.
        ours: u32,
        /// The version of the next build.
        theirs: u32,
    },
    /// Supervisors pass other things to servers.
    #[error("the version of what servers are told is {theirs} in it, and {ours} in the stack that is up")]
    Servers {
        /// The version of the build that is up.
        ours: u32,
        /// The version of the next build.
        theirs: u32,
    },
    /// A shared memory has another size.
    #[error("the size of {name} is {theirs} in it, and {ours} in the stack that is up")]
    Memory {
        /// The purpose of the memory.
        name: String,
        /// The bytes of the build that is up; 0 if it has no such memory.
        ours: u64,
        /// The bytes of the next build; 0 if it has no such memory.
        theirs: u64,
    },
    /// There is no version of the ledger that both know.
    #[error(
        "it reads ledgers of versions {} to {}, and the stack that is up writes {} to {}",
        theirs.oldest,
        theirs.newest,
        ours.oldest,
        ours.newest
    )]
    Ledger {
        /// The versions of the build that is up.
        ours: LedgerVersions,
        /// The versions of the next build.
        theirs: LedgerVersions,
    },
}

impl Build {
    /// Checks that servers of this build and of `next` can succeed each other, in both directions.
    pub fn fits(&self, next: &Build) -> Result<(), Misfit> {
        if self.layout != next.layout {
            return Err(Misfit::Layout { ours: self.layout, theirs: next.layout });
        }
        if self.servers != next.servers {
            return Err(Misfit::Servers { ours: self.servers, theirs: next.servers });
        }
        for name in self.memory.keys().chain(next.memory.keys()) {
            let size = |build: &Build| build.memory.get(name).copied().unwrap_or(0);
            let (ours, theirs) = (size(self), size(next));
            if ours != theirs {
                return Err(Misfit::Memory { name: name.clone(), ours, theirs });
            }
        }
        match self.common_ledger(next) {
            Some(_) => Ok(()),
            None => Err(Misfit::Ledger { ours: self.ledger, theirs: next.ledger }),
        }
    }

    /// Returns the newest version of the ledger that both builds know.
    pub fn common_ledger(&self, other: &Build) -> Option<u32> {
        let newest = self.ledger.newest.min(other.ledger.newest);
        (newest >= self.ledger.oldest.max(other.ledger.oldest)).then_some(newest)
    }

    /// Returns the version and the start of the build id for display, such as `0.1.0 (4d85aa9f)`.
    pub fn name(&self) -> String {
        let id = self.id.as_deref().map_or("no build id", |id| id.get(..8).unwrap_or(id));
        format!("{} ({id})", self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(oldest: u32, newest: u32) -> Build {
        Build {
            version: "0.1.0".into(),
            id: Some("4d85aa9f050589b0".into()),
            layout: 3,
            servers: 1,
            memory: BTreeMap::from([("the mesh".into(), 4096)]),
            ledger: LedgerVersions { oldest, newest },
        }
    }

    #[test]
    fn builds_fit_if_they_share_memory_and_a_version_of_the_ledger() {
        let (now, before, after) = (build(1, 2), build(1, 1), build(2, 3));
        for (ours, next, common) in
            [(&now, &before, 1), (&before, &now, 1), (&now, &after, 2), (&now, &now, 2)]
        {
            assert_eq!((ours.fits(next), ours.common_ledger(next)), (Ok(()), Some(common)));
        }
        let misfit = before.fits(&after).expect_err("they have nothing in common");
        assert_eq!(
            misfit.to_string(),
            "it reads ledgers of versions 2 to 3, and the stack that is up writes 1 to 1"
        );
        for (next, misfit) in [
            (Build { layout: 4, ..build(1, 2) }, Misfit::Layout { ours: 3, theirs: 4 }),
            (Build { servers: 2, ..build(1, 2) }, Misfit::Servers { ours: 1, theirs: 2 }),
            (
                Build { memory: BTreeMap::new(), ..build(1, 2) },
                Misfit::Memory { name: "the mesh".into(), ours: 4096, theirs: 0 },
            ),
        ] {
            assert_eq!(now.fits(&next), Err(misfit));
        }
    }

    #[test]
    fn what_a_build_says_is_json() {
        let check = SelfCheck { build: build(1, 2), fault: None };
        let text = serde_json::to_string(&check).expect("plain data has a JSON form");
        assert!(text.contains(r#""ledger":{"oldest":1,"newest":2}"#) && !text.contains("\"fault"), "{text}");
        assert_eq!(serde_json::from_str::<SelfCheck>(&text).expect("it is what was written"), check);
        assert_eq!(build(1, 2).name(), "0.1.0 (4d85aa9f)");
        assert_eq!(Build { id: None, ..build(1, 2) }.name(), "0.1.0 (no build id)");
    }
}

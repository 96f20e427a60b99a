//! Decides whether servers of two builds of this program can succeed each other. A build describes itself as
//! JSON (`atoll self-check --json`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
    /// The newest version, which the build writes unless it is told another one.
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

impl Build {
    /// Returns why servers of this build and of `next` cannot succeed each other, or `None` if they can, in
    /// both directions.
    pub fn misfit(&self, next: &Build) -> Option<String> {
        let differ = |what: &str, ours: u64, theirs: u64| {
            (ours != theirs).then(|| format!("{what} is {theirs} in it, and {ours} in the stack that is up"))
        };
        let layout = differ("the version of pages, rings and arenas", self.layout.into(), next.layout.into());
        let servers =
            || differ("the version of what servers are told", self.servers.into(), next.servers.into());
        let memory = || {
            let names = self.memory.keys().chain(next.memory.keys());
            let size = |build: &Build, name: &String| build.memory.get(name).copied().unwrap_or(0);
            names
                .filter_map(|name| differ(&format!("the size of {name}"), size(self, name), size(next, name)))
                .next()
        };
        let ledger = || {
            let ours = self.ledger;
            self.common_ledger(next).is_none().then(|| {
                format!(
                    "it reads ledgers of versions {} to {}, and the stack that is up writes {} to {}",
                    next.ledger.oldest, next.ledger.newest, ours.oldest, ours.newest
                )
            })
        };
        layout.or_else(servers).or_else(memory).or_else(ledger)
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
            assert_eq!((ours.misfit(next), ours.common_ledger(next)), (None, Some(common)));
        }
        let reason = before.misfit(&after).expect("they have nothing in common");
        assert_eq!(reason, "it reads ledgers of versions 2 to 3, and the stack that is up writes 1 to 1");
        for (next, what) in [
            (Build { layout: 4, ..build(1, 2) }, "the version of pages, rings and arenas is 4 in it"),
            (Build { servers: 2, ..build(1, 2) }, "the version of what servers are told is 2 in it"),
            (
                Build { memory: BTreeMap::new(), ..build(1, 2) },
                "the size of the mesh is 0 in it, and 4096 in",
            ),
        ] {
            let reason = now.misfit(&next).expect("it does not fit");
            assert!(reason.starts_with(what), "{reason}");
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

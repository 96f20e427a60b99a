//! What does the supervisor own of what servers say to each other? A memory for every two that talk, and one
//! with keys that none can write.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use atoll_ipc::Memory;
use atoll_shm::{Access, ShmMemory};
use atoll_supervisor::Plan;
use atoll_sys::{create_memfd, process};

use crate::mesh::{COOKIE_KEY, LEASE_KEY, PAIR_BYTES, SECRETS_BYTES};

/// The memory between servers.
#[derive(Debug)]
pub struct Pairs {
    /// What only servers may know. Sealed: it can be mapped for reading only.
    secrets: OwnedFd,
    /// By the lower and the higher number.
    all: BTreeMap<(usize, usize), OwnedFd>,
}

impl Pairs {
    /// New keys, and no servers yet.
    pub fn create() -> io::Result<Pairs> {
        let (secrets, mapped) = ShmMemory::create_own("atoll-keys", SECRETS_BYTES)?;
        for place in [COOKIE_KEY, LEASE_KEY] {
            let mut key = [0; 16];
            process::random(&mut key)?;
            mapped.write(place, &key);
        }
        Ok(Pairs::resume(secrets))
    }

    /// These keys, and no servers yet.
    pub fn resume(secrets: OwnedFd) -> Pairs {
        Pairs { secrets, all: BTreeMap::new() }
    }

    /// Makes memory for every two servers that talk.
    pub fn add(&mut self, plan: &Plan) -> io::Result<()> {
        for server in 0..plan.processes().len() {
            for other in higher(plan, server) {
                self.all.insert((server, other), create_memfd("atoll-pair", PAIR_BYTES)?);
            }
        }
        Ok(())
    }

    /// Adds what [`Pairs::from`] gave of `server`.
    pub fn add_found(&mut self, plan: &Plan, server: usize, descriptors: Vec<OwnedFd>) {
        self.all.extend(higher(plan, server).map(|other| (server, other)).zip(descriptors));
    }

    /// What replicas seal grants with, and the supervisor what it says of who asks for one.
    pub fn lease_key(&self) -> io::Result<[u8; 16]> {
        let mut key = [0; 16];
        ShmMemory::map(&self.secrets, SECRETS_BYTES, Access::ReadOnly)?.read(LEASE_KEY, &mut key);
        Ok(key)
    }

    /// The keys.
    pub fn secrets(&self) -> BorrowedFd<'_> {
        self.secrets.as_fd()
    }

    /// The memory of two servers that talk.
    pub fn between(&self, one: usize, other: usize) -> Option<BorrowedFd<'_>> {
        self.all.get(&(one.min(other), one.max(other))).map(AsFd::as_fd)
    }

    /// The memory between `server` and those with higher numbers, in their order.
    pub fn from(&self, server: usize) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.range((server, 0)..(server + 1, 0)).map(|(_, memory)| memory.as_fd())
    }

    /// The memory of all servers that talk.
    pub fn all(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.values().map(AsFd::as_fd)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }
}

/// Those with a higher number that a server talks to, in order.
fn higher(plan: &Plan, server: usize) -> impl Iterator<Item = usize> {
    plan.partners_of(server).filter(move |other| *other > server)
}

//! The memory that the supervisor owns for messages between servers: one for every two that talk, and one
//! with keys that none can write.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use atoll_ipc::Memory;
use atoll_ipc::page::{COOKIE_KEY, KEY_BYTES, LEASE_KEY};
use atoll_shm::{Access, ShmMemory};
use atoll_supervisor::Plan;
use atoll_sys::{create_memfd, process};

use crate::mesh::{PAIR_BYTES, SECRETS_BYTES};

/// The memory between servers.
#[derive(Debug)]
pub struct Pairs {
    /// The keys that only servers may know. The memory is sealed: it can be mapped for reading only.
    secrets: OwnedFd,
    /// The memory of each pair, by its lower and higher server number.
    all: BTreeMap<(usize, usize), OwnedFd>,
}

impl Pairs {
    /// Draws new keys; there is no memory between servers yet.
    pub fn create() -> io::Result<Pairs> {
        let (secrets, mapped) = ShmMemory::create_own("atoll-keys", SECRETS_BYTES)?;
        for place in [COOKIE_KEY, LEASE_KEY] {
            let mut key = [0; KEY_BYTES];
            process::random(&mut key)?;
            mapped.write(place, &key);
        }
        Ok(Pairs::resume(secrets))
    }

    /// Takes over these keys; there is no memory between servers yet.
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

    /// Adds the descriptors that [`Pairs::from`] returned for `server`.
    pub fn add_found(&mut self, plan: &Plan, server: usize, descriptors: Vec<OwnedFd>) {
        self.all.extend(higher(plan, server).map(|other| (server, other)).zip(descriptors));
    }

    /// Returns the key with which replicas seal grants, and the supervisor what it states about the process
    /// that asks for one.
    pub fn lease_key(&self) -> io::Result<[u8; KEY_BYTES]> {
        let mut key = [0; KEY_BYTES];
        ShmMemory::map(&self.secrets, SECRETS_BYTES, Access::ReadOnly)?.read(LEASE_KEY, &mut key);
        Ok(key)
    }

    /// Returns the memory with the keys.
    pub fn secrets(&self) -> BorrowedFd<'_> {
        self.secrets.as_fd()
    }

    /// Returns the memory of two servers that talk.
    pub fn between(&self, one: usize, other: usize) -> Option<BorrowedFd<'_>> {
        self.all.get(&(one.min(other), one.max(other))).map(AsFd::as_fd)
    }

    /// Returns the memory between `server` and each of its partners with a higher number, in their order.
    pub fn from(&self, server: usize) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.range((server, 0)..(server + 1, 0)).map(|(_, memory)| memory.as_fd())
    }

    /// Returns the memory of all pairs.
    pub fn all(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.values().map(AsFd::as_fd)
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.all.len()
    }
}

/// Returns the partners of a server with a higher number, in order.
fn higher(plan: &Plan, server: usize) -> impl Iterator<Item = usize> {
    plan.partners_of(server).filter(move |other| *other > server)
}

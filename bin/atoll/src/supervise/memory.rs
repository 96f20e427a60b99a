//! What does the supervisor own? The memory and the bells of the stack, and of each session.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use atoll_ipc::Memory;
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::ledger::{LEDGER_BYTES, written_version};
use atoll_ipc::page::{APP_PAGE_BYTES, BELLS, REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackPage};
use atoll_shm::{Access, ShmMemory};
use atoll_sys::{create_memfd, eventfd, process};

use crate::setup::{COOKIE_KEY, MESH_MEMORY_BYTES};

/// The memory that all processes of the stack share.
#[derive(Debug)]
pub struct StackMemory {
    /// The stack page, mapped for writing.
    pub stack: StackPage<ShmMemory>,
    /// The stack page, opened for writing.
    pub stack_write: OwnedFd,
    /// The stack page, opened for reading only.
    pub stack_read: Rc<OwnedFd>,
    /// All rings between servers.
    pub mesh: OwnedFd,
    /// Page and bell of each replica.
    pub replicas: Vec<ReplicaMemory>,
    /// What each replica leaves to its successor. Nobody else maps it.
    pub ledgers: Vec<OwnedFd>,
    /// The same of the servers that are no replicas. No application sees these.
    pub others: Vec<ReplicaMemory>,
}

/// The memory of one server.
#[derive(Debug)]
pub struct ReplicaMemory {
    /// Its page, mapped for reading.
    pub page: ReplicaPage<ShmMemory>,
    /// Its page, for the replica itself.
    pub page_write: OwnedFd,
    /// Its page, opened for reading only, for applications.
    pub page_read: Rc<OwnedFd>,
    /// Its bell.
    pub bell: Rc<OwnedFd>,
}

impl StackMemory {
    /// The version that the ledger of a replica says of itself; `None`: nothing is in it yet.
    pub fn ledger_version(&self, index: usize) -> Option<u32> {
        let ledger = self.ledgers.get(index)?;
        written_version(&ShmMemory::map(ledger, 4096, Access::ReadOnly).ok()?)
    }

    /// Whether there were replicas before.
    pub fn has_past(&self) -> bool {
        (0..self.ledgers.len()).any(|index| self.ledger_version(index).is_some())
    }

    /// Memory for a stack of one replica per bell. `stack_page`: memory to use for the stack page, if somebody else made it.
    pub fn create(bells: Vec<Rc<OwnedFd>>, stack_page: Option<OwnedFd>) -> io::Result<StackMemory> {
        let (stack_page, stack) = match stack_page {
            Some(page) => {
                let stack = ShmMemory::map(&page, STACK_PAGE_BYTES, Access::ReadWrite)?;
                (page, stack)
            }
            None => ShmMemory::create_own("atoll-stack", STACK_PAGE_BYTES)?,
        };
        let replicas: Vec<_> = bells.into_iter().map(ReplicaMemory::create).collect::<io::Result<_>>()?;
        Ok(StackMemory {
            stack: StackPage(stack),
            stack_read: Rc::new(open_for_reading(stack_page.as_fd())?),
            stack_write: stack_page,
            mesh: mesh_memory()?,
            ledgers: replicas.iter().map(|_| create_memfd("atoll-ledger", LEDGER_BYTES)).collect::<io::Result<_>>()?,
            replicas,
            others: Vec::new(),
        })
    }

    /// The memory of a stack that is up. `parts`: of each server, by number, its page, its bell and, of the first `replicas`, its ledger.
    pub fn resume(stack: OwnedFd, mesh: OwnedFd, parts: Vec<Vec<OwnedFd>>, replicas: usize) -> io::Result<StackMemory> {
        let (mut servers, mut ledgers) = (Vec::new(), Vec::new());
        for part in parts {
            let mut part = part.into_iter();
            let (Some(page), Some(bell)) = (part.next(), part.next()) else {
                return Err(io::Error::other("a server without memory"));
            };
            servers.push(ReplicaMemory::resume(page, Rc::new(bell))?);
            ledgers.extend(part.next());
        }
        if servers.len() < replicas || ledgers.len() != replicas {
            return Err(io::Error::other("a replica without a ledger"));
        }
        let others = servers.split_off(replicas);
        Ok(StackMemory {
            // Sealed: who made it was the last to map it for writing, and nothing on it changes.
            stack: StackPage(ShmMemory::map(&stack, STACK_PAGE_BYTES, Access::ReadOnly)?),
            stack_read: Rc::new(open_for_reading(stack.as_fd())?),
            stack_write: stack,
            mesh,
            replicas: servers,
            ledgers,
            others,
        })
    }

    /// Adds memory for servers that are no replicas.
    pub fn add_others(&mut self, count: usize) -> io::Result<()> {
        self.others = bells(count)?.into_iter().map(ReplicaMemory::create).collect::<io::Result<_>>()?;
        Ok(())
    }

    /// All servers, by number.
    pub fn servers(&self) -> impl Iterator<Item = &ReplicaMemory> {
        self.replicas.iter().chain(&self.others)
    }
}

/// The rings between servers, and what only they may know.
fn mesh_memory() -> io::Result<OwnedFd> {
    let mesh = create_memfd("atoll-mesh", MESH_MEMORY_BYTES)?;
    let mut key = [0; 16];
    process::random(&mut key)?;
    ShmMemory::map(&mesh, MESH_MEMORY_BYTES, Access::ReadWrite)?.write(COOKIE_KEY, &key);
    Ok(mesh)
}

impl ReplicaMemory {
    fn create(bell: Rc<OwnedFd>) -> io::Result<ReplicaMemory> {
        ReplicaMemory::resume(create_memfd("atoll-replica", REPLICA_PAGE_BYTES)?, bell)
    }

    fn resume(page_write: OwnedFd, bell: Rc<OwnedFd>) -> io::Result<ReplicaMemory> {
        let page_read = Rc::new(open_for_reading(page_write.as_fd())?);
        let page = ReplicaPage(ShmMemory::map(&*page_read, REPLICA_PAGE_BYTES, Access::ReadOnly)?);
        Ok(ReplicaMemory { page, page_write, page_read, bell })
    }
}

/// Makes `count` bells.
pub fn bells(count: usize) -> io::Result<Vec<Rc<OwnedFd>>> {
    (0..count).map(|_| eventfd::create().map(Rc::new)).collect()
}

/// The memory of one session. The replicas have their own descriptors of it, so it lives on there when this is dropped.
#[derive(Debug)]
pub struct SessionMemory {
    /// The process that opened it.
    pub pid: u32,
    app_page: Rc<OwnedFd>,
    bells: Vec<Rc<OwnedFd>>,
    /// One arena per replica.
    arenas: Vec<Rc<OwnedFd>>,
    config: ArenaConfig,
}

/// What the library counts in an arena; the numbers are the application's own and may be anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LibraryCalls {
    /// Socket calls.
    pub calls: u64,
    /// Those of them that needed a system call.
    pub with_system_call: u64,
}

impl SessionMemory {
    /// Memory for a session of `pid` on `replicas` replicas.
    pub fn create(pid: u32, replicas: usize, config: ArenaConfig) -> io::Result<SessionMemory> {
        let total = config.layout().total;
        Ok(SessionMemory {
            pid,
            app_page: Rc::new(create_memfd("atoll-app", APP_PAGE_BYTES)?),
            bells: bells(BELLS)?,
            arenas: (0..replicas)
                .map(|_| create_memfd("atoll-arena", total).map(Rc::new))
                .collect::<io::Result<_>>()?,
            config,
        })
    }

    /// All its descriptors.
    pub fn descriptors(&self) -> Vec<Rc<OwnedFd>> {
        [self.app_page.clone()]
            .into_iter()
            .chain(self.bells.iter().cloned())
            .chain(self.arenas.iter().cloned())
            .collect()
    }

    /// The memory that has these descriptors; `None`: it cannot be.
    pub fn resume(pid: u32, descriptors: Vec<OwnedFd>, replicas: usize, config: ArenaConfig) -> Option<SessionMemory> {
        let mut all = descriptors.into_iter().map(Rc::new);
        let app_page = all.next()?;
        let bells: Vec<_> = all.by_ref().take(BELLS).collect();
        let arenas: Vec<_> = all.collect();
        (bells.len() == BELLS && arenas.len() == replicas).then_some(SessionMemory {
            pid,
            app_page,
            bells,
            arenas,
            config,
        })
    }

    /// The descriptors of `Request::SessionOpened` for the replica at `index`.
    pub fn for_replica(&self, index: usize) -> Vec<Rc<OwnedFd>> {
        let mut fds = vec![self.arenas[index].clone(), self.app_page.clone()];
        fds.extend(self.bells.iter().cloned());
        fds
    }

    /// The descriptors of `Reply::Joined`.
    pub fn for_application(&self, stack: &StackMemory) -> Vec<Rc<OwnedFd>> {
        let mut fds = vec![stack.stack_read.clone(), self.app_page.clone()];
        fds.extend(self.bells.iter().cloned());
        for (replica, arena) in stack.replicas.iter().zip(&self.arenas) {
            fds.extend([replica.page_read.clone(), arena.clone(), replica.bell.clone()]);
        }
        fds
    }

    /// What the library counted so far.
    pub fn library_calls(&self) -> LibraryCalls {
        let layout = self.config.layout();
        let at = layout.library + LIBRARY_COUNTERS;
        let mut sum = LibraryCalls::default();
        for arena in &self.arenas {
            let Ok(memory) = ShmMemory::map(&**arena, at + 16, Access::ReadOnly) else { continue };
            sum.calls = sum.calls.saturating_add(memory.load64(at));
            sum.with_system_call = sum.with_system_call.saturating_add(memory.load64(at + 8));
        }
        sum
    }
}

/// Offset of the library's counters in its region.
const LIBRARY_COUNTERS: usize = 1024;

/// The same memory through a descriptor that cannot write.
pub fn open_for_reading(memory: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let file: File = OpenOptions::new().read(true).open(path)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_opened_for_reading_cannot_be_mapped_for_writing() {
        let memory = StackMemory::create(bells(2).unwrap(), None).unwrap();
        assert!(ShmMemory::map(&*memory.stack_read, STACK_PAGE_BYTES, Access::ReadWrite).is_err());
        let page_read = &memory.replicas[1].page_read;
        assert!(ShmMemory::map(&**page_read, REPLICA_PAGE_BYTES, Access::ReadWrite).is_err());
        assert!(ShmMemory::map(&**page_read, REPLICA_PAGE_BYTES, Access::ReadOnly).is_ok());
    }

    /// Whoever has a descriptor of it may ask the kernel for another one with other rights, if it is his own file.
    #[test]
    fn nobody_else_writes_the_stack_page_even_by_opening_it_again() {
        let memory = StackMemory::create(bells(1).unwrap(), None).unwrap();
        let path = format!("/proc/self/fd/{}", memory.stack_read.as_raw_fd());
        let again: OwnedFd = OpenOptions::new().read(true).write(true).open(path).unwrap().into();
        assert!(ShmMemory::map(&again, STACK_PAGE_BYTES, Access::ReadWrite).is_err());
        assert!(rustix::io::write(&again, b"ATOL").is_err());
        // The supervisor does.
        memory.stack.0.store32(8, 4711);
        assert_eq!(ShmMemory::map(&again, STACK_PAGE_BYTES, Access::ReadOnly).unwrap().load32(8), 4711);
    }

    #[test]
    fn the_librarys_counters_are_summed_over_the_arenas() {
        let config = ArenaConfig { slots: 16, send_log2: 16, receive_log2: 16 };
        let session = SessionMemory::create(1, 2, config).unwrap();
        assert_eq!(session.library_calls(), LibraryCalls::default());
        let layout = config.layout();
        for arena in &session.arenas {
            let memory = ShmMemory::map(&**arena, layout.total, Access::ReadWrite).unwrap();
            memory.store64(layout.library + LIBRARY_COUNTERS, 100);
            memory.store64(layout.library + LIBRARY_COUNTERS + 8, 3);
        }
        assert_eq!(session.library_calls(), LibraryCalls { calls: 200, with_system_call: 6 });
    }
}

//! The memory and the doorbells that the supervisor owns: those of the stack, and those of each session.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use atoll_base::{Instant, SessionId};
use atoll_ipc::Memory;
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::arena::library::{
    CALLS, CALLS_BY_INSTRUCTION, CALLS_BY_TRAP, CALLS_END, CALLS_WITH_SYSTEM_CALL, INTERCEPTION,
};
use atoll_ipc::control::{Request, User};
use atoll_ipc::ledger::{LEDGER_BYTES, LedgerConfig, sessions_in, written_version};
use atoll_ipc::page::{APP_PAGE_BYTES, BELLS, REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackPage};
use atoll_shm::{Access, ShmMemory};
use atoll_supervisor::Plan;
use atoll_sys::interception::Interception;
use atoll_sys::{View, Views, create_memfd, eventfd};

use super::pairs::Pairs;
use crate::clock;
use crate::log;

/// The memory that all processes of the stack share.
#[derive(Debug)]
pub struct StackMemory {
    /// The stack page. Only the mapping of the supervisor that made it can write it.
    pub stack: StackPage<ShmMemory>,
    /// The page on the link where the other stack reads the same facts, if that stack has made the link.
    pub on_link: Option<StackPage<ShmMemory>>,
    /// The descriptor with which the stack page was made.
    pub stack_write: OwnedFd,
    /// The stack page, opened for reading only.
    pub stack_read: Rc<OwnedFd>,
    /// The rings between servers, and their keys.
    pub pairs: Pairs,
    /// The key with which grants and passes are sealed.
    pub lease_key: [u8; 16],
    /// Page and doorbell of each server, by number. Applications see only those of replicas.
    servers: Vec<ServerMemory>,
    /// The memory that each replica leaves to its successor; no other process maps it for writing.
    pub ledgers: Vec<OwnedFd>,
}

/// The memory of one server.
#[derive(Debug)]
pub struct ServerMemory {
    /// The server's page, mapped for reading.
    pub page: ReplicaPage<ShmMemory>,
    /// The server's page, for the server itself.
    pub page_write: OwnedFd,
    /// The server's page, for applications. They cannot open it again for writing, if the kernel lets the
    /// supervisor have [`Views`].
    pub page_read: Rc<OwnedFd>,
    /// The server's doorbell, for the other servers and the supervisor.
    pub bell: Rc<OwnedFd>,
}

/// Returns how many bytes the kernel has allocated for this memory; it counts in units of 512 (st_blocks,
/// inode(7)).
fn allocated(memory: BorrowedFd<'_>) -> u64 {
    rustix::fs::fstat(memory).map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0) * 512)
}

impl StackMemory {
    /// Returns how many bytes the kernel has allocated for ledgers and rings. Pages of facts are some
    /// kilobytes, and do not grow.
    pub fn allocated(&self) -> u64 {
        self.ledgers.iter().map(AsFd::as_fd).chain(self.pairs.all()).map(allocated).sum()
    }

    /// Returns the version that is in the ledger of a replica, or `None` if nothing was written yet.
    pub fn ledger_version(&self, index: usize) -> Option<u32> {
        let ledger = self.ledgers.get(index)?;
        written_version(&ShmMemory::map(ledger, 4096, Access::ReadOnly).ok()?)
    }

    /// Returns the sessions that the ledger of a dead replica names, or `None` if it cannot be read. If the
    /// replica was compromised, the result may be anything, up to the number of records.
    pub fn sessions_in_ledger(&self, index: usize) -> Option<BTreeSet<SessionId>> {
        let ledger = ShmMemory::map(self.ledgers.get(index)?, LEDGER_BYTES, Access::ReadOnly).ok()?;
        sessions_in(ledger, LedgerConfig::STACK).ok()
    }

    /// Returns whether there were replicas before.
    pub fn has_past(&self) -> bool {
        (0..self.ledgers.len()).any(|index| self.ledger_version(index).is_some())
    }

    /// Makes memory for a stack of one replica per doorbell. `on_link` is the page that the other end of a
    /// link has made for this stack.
    pub fn create(bells: Vec<Rc<OwnedFd>>, on_link: Option<OwnedFd>) -> io::Result<StackMemory> {
        let on_link = match on_link {
            Some(page) => Some(StackPage(ShmMemory::map(&page, STACK_PAGE_BYTES, Access::ReadWrite)?)),
            None => None,
        };
        let (stack_page, stack) = ShmMemory::create_own("atoll-stack", STACK_PAGE_BYTES)?;
        let views = Views::new();
        if let Err(error) = &views {
            event!(
                pages_writable,
                { error = error.to_string(), errno = log::errno(error) },
                "programs of the stack's own user could write the pages of replicas: {error}"
            );
        }
        let create = |bell| ServerMemory::create(bell, views.as_ref().ok());
        let replicas: Vec<_> = bells.into_iter().map(create).collect::<io::Result<_>>()?;
        let pairs = Pairs::create()?;
        Ok(StackMemory {
            stack: StackPage(stack),
            on_link,
            stack_read: Rc::new(open_for_reading(stack_page.as_fd())?),
            stack_write: stack_page,
            lease_key: pairs.lease_key()?,
            pairs,
            ledgers: replicas
                .iter()
                .map(|_| create_memfd("atoll-ledger", LEDGER_BYTES))
                .collect::<io::Result<_>>()?,
            servers: replicas,
        })
    }

    /// Maps the memory of a stack that is up. `parts` has, for each server by number, its page and its
    /// doorbell and, for the first `replicas`, its ledger and its page for reading.
    pub fn resume(
        stack: OwnedFd,
        pairs: Pairs,
        parts: Vec<Vec<OwnedFd>>,
        replicas: usize,
    ) -> io::Result<StackMemory> {
        let (mut servers, mut ledgers) = (Vec::new(), Vec::new());
        for part in parts {
            let mut part = part.into_iter();
            let (Some(page), Some(bell)) = (part.next(), part.next()) else {
                return Err(io::Error::other("a server without memory"));
            };
            ledgers.extend(part.next());
            // Builds of before leave no page for reading.
            let page_read = part.next().map_or_else(|| open_for_reading(page.as_fd()), Ok)?;
            servers.push(ServerMemory::resume(page, page_read, Rc::new(bell))?);
        }
        if servers.len() < replicas || ledgers.len() != replicas {
            return Err(io::Error::other("a replica without a ledger"));
        }
        Ok(StackMemory {
            // The page is sealed: its maker was the last to map it for writing, and nothing on it changes.
            stack: StackPage(ShmMemory::map(&stack, STACK_PAGE_BYTES, Access::ReadOnly)?),
            stack_read: Rc::new(open_for_reading(stack.as_fd())?),
            stack_write: stack,
            // A stack on a link has no guardian, so no supervisor takes it over.
            on_link: None,
            lease_key: pairs.lease_key()?,
            pairs,
            servers,
            ledgers,
        })
    }

    /// Adds the memory that depends on the plan: that of servers other than replicas, and that between
    /// servers that talk.
    pub fn add_plan(&mut self, plan: &Plan) -> io::Result<()> {
        self.pairs.add(plan)?;
        let count = plan.processes().len().saturating_sub(self.servers.len());
        for bell in bells(count)? {
            self.servers.push(ServerMemory::create(bell, None)?);
        }
        Ok(())
    }

    /// Returns the memory of all servers, by number.
    pub fn servers(&self) -> &[ServerMemory] {
        &self.servers
    }

    /// Returns the memory of the replicas.
    pub fn replicas(&self) -> &[ServerMemory] {
        // Each replica has a ledger.
        &self.servers[..self.ledgers.len()]
    }

    /// Returns the memory of the servers that are no replicas.
    pub fn others(&self) -> &[ServerMemory] {
        &self.servers[self.ledgers.len()..]
    }
}

impl ServerMemory {
    /// Makes the memory of a server. Its page is in `views`, if others are to read it.
    fn create(bell: Rc<OwnedFd>, views: Option<&Views>) -> io::Result<ServerMemory> {
        if let Some(views) = views {
            let View { write, read } = views.create("atoll-replica", REPLICA_PAGE_BYTES)?;
            return ServerMemory::resume(write, read, bell);
        }
        let page = create_memfd("atoll-replica", REPLICA_PAGE_BYTES)?;
        let page_read = open_for_reading(page.as_fd())?;
        ServerMemory::resume(page, page_read, bell)
    }

    fn resume(page_write: OwnedFd, page_read: OwnedFd, bell: Rc<OwnedFd>) -> io::Result<ServerMemory> {
        let page = ReplicaPage(ShmMemory::map_page(&page_read, REPLICA_PAGE_BYTES, Access::ReadOnly)?);
        Ok(ServerMemory { page, page_write, page_read: Rc::new(page_read), bell })
    }
}

/// Makes `count` doorbells.
pub fn bells(count: usize) -> io::Result<Vec<Rc<OwnedFd>>> {
    (0..count).map(|_| eventfd::create().map(Rc::new)).collect()
}

/// The memory of one session. The replicas have their own descriptors of it, so it lives on there when this
/// is dropped.
#[derive(Debug)]
pub struct SessionMemory {
    /// The pid of the process that opened the session.
    pub pid: u32,
    /// The rights of that process's user.
    pub user: User,
    app_page: Rc<OwnedFd>,
    /// The doorbells by which replicas wake the session's processes.
    bells: Vec<Rc<OwnedFd>>,
    /// One arena per replica.
    arenas: Vec<Rc<OwnedFd>>,
    /// The doorbells by which the session's processes wake each replica. No other session has them, so
    /// whatever watches them slows only its own session's wake-ups.
    doorbells: Vec<Rc<OwnedFd>>,
    config: ArenaConfig,
    /// When the library's counters started.
    since: Instant,
}

/// The library's counters in an arena. The application writes them, so they may be anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LibraryCalls {
    /// The number of socket calls.
    pub calls: u64,
    /// The number of those calls that needed a system call.
    pub with_system_call: u64,
}

/// By which way the calls of a program reached the library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ways {
    /// The way of all calls: `Symbols` unless one came by an instruction, `Dispatch` if one was trapped.
    pub interception: Interception,
    /// The number of calls on sockets of the stack that came by an instruction of the program's own.
    pub by_instruction: u64,
    /// The number of these that cost a trap.
    pub by_trap: u64,
}

impl LibraryCalls {
    /// Returns the sum of two counts.
    pub fn plus(self, other: LibraryCalls) -> LibraryCalls {
        LibraryCalls {
            calls: self.calls.saturating_add(other.calls),
            with_system_call: self.with_system_call.saturating_add(other.with_system_call),
        }
    }
}

impl SessionMemory {
    /// Makes memory for a session of `pid`, which is a process of `user`, on `replicas` replicas.
    pub fn create(pid: u32, user: User, replicas: usize, config: ArenaConfig) -> io::Result<SessionMemory> {
        let total = config.layout().total;
        Ok(SessionMemory {
            pid,
            user,
            app_page: Rc::new(create_memfd("atoll-app", APP_PAGE_BYTES)?),
            bells: bells(BELLS)?,
            arenas: (0..replicas)
                .map(|_| create_memfd("atoll-arena", total).map(Rc::new))
                .collect::<io::Result<_>>()?,
            doorbells: bells(replicas)?,
            config,
            since: clock::now(),
        })
    }

    /// Returns the sizes of the session's arenas.
    pub fn config(&self) -> ArenaConfig {
        self.config
    }

    /// Returns how many bytes the kernel has allocated for send and receive buffers, whichever process has
    /// touched them first.
    pub fn allocated(&self) -> u64 {
        self.arenas.iter().map(|arena| allocated(arena.as_fd())).sum()
    }

    /// Returns all descriptors of the session.
    pub fn descriptors(&self) -> Vec<Rc<OwnedFd>> {
        [self.app_page.clone()]
            .into_iter()
            .chain(self.bells.iter().cloned())
            .chain(self.arenas.iter().cloned())
            .chain(self.doorbells.iter().cloned())
            .collect()
    }

    /// Returns the memory with these descriptors, of a session that was opened after `since`, or `None` if
    /// their number is wrong.
    pub fn resume(
        (pid, user): (u32, User),
        descriptors: Vec<OwnedFd>,
        replicas: usize,
        config: ArenaConfig,
        since: Instant,
    ) -> Option<SessionMemory> {
        let mut all = descriptors.into_iter().map(Rc::new);
        let app_page = all.next()?;
        let bells: Vec<_> = all.by_ref().take(BELLS).collect();
        let arenas: Vec<_> = all.by_ref().take(replicas).collect();
        let doorbells: Vec<_> = all.collect();
        (bells.len() == BELLS && arenas.len() == replicas && doorbells.len() == replicas)
            .then_some(SessionMemory { pid, user, app_page, bells, arenas, doorbells, config, since })
    }

    /// Returns the message that notifies a replica of the session.
    pub fn opened(&self, session: u32) -> Request {
        Request::SessionOpened { session, pid: self.pid, config: self.config, user: self.user }
    }

    /// Returns the descriptors of `Request::SessionOpened` for the replica at `index`.
    pub fn for_replica(&self, index: usize) -> Vec<Rc<OwnedFd>> {
        let mut fds = vec![self.arenas[index].clone(), self.app_page.clone(), self.doorbells[index].clone()];
        fds.extend(self.bells.iter().cloned());
        fds
    }

    /// Returns the descriptors of `Reply::Joined`.
    pub fn for_application(&self, stack: &StackMemory) -> Vec<Rc<OwnedFd>> {
        let mut fds = vec![stack.stack_read.clone(), self.app_page.clone()];
        fds.extend(self.bells.iter().cloned());
        for ((replica, arena), doorbell) in stack.replicas().iter().zip(&self.arenas).zip(&self.doorbells) {
            fds.extend([replica.page_read.clone(), arena.clone(), doorbell.clone()]);
        }
        fds
    }

    /// Returns what the library has counted so far. An arena that claims more than a call per nanosecond
    /// counts as zero.
    pub fn library_calls(&self) -> LibraryCalls {
        let most = u64::try_from(clock::now().since(self.since).as_nanos()).unwrap_or(u64::MAX);
        let layout = self.config.layout();
        let counters = [CALLS, CALLS_WITH_SYSTEM_CALL].map(|at| layout.library + at);
        let mut sum = LibraryCalls::default();
        for arena in &self.arenas {
            let Ok(memory) = ShmMemory::map(&**arena, layout.library + CALLS_END, Access::ReadOnly) else {
                continue;
            };
            let [calls, with_system_call] = counters.map(|at| memory.load64(at));
            if calls.max(with_system_call) <= most {
                sum.calls = sum.calls.saturating_add(calls);
                sum.with_system_call = sum.with_system_call.saturating_add(with_system_call);
            }
        }
        sum
    }

    /// Returns by which way calls have reached the library so far, as the library has counted them. Counts
    /// that claim more than a call per nanosecond count as zero.
    pub fn ways(&self) -> Ways {
        let most = u64::try_from(clock::now().since(self.since).as_nanos()).unwrap_or(u64::MAX);
        let library = self.config.layout().library;
        let arena = self.arenas.first();
        let mapped = arena.map(|arena| ShmMemory::map(&**arena, library + CALLS_END, Access::ReadOnly));
        let Some(memory) = mapped.and_then(Result::ok) else { return Ways::default() };
        let counted = |at| Some(memory.load64(library + at)).filter(|count| *count <= most).unwrap_or(0);
        let said = memory.load64(library + INTERCEPTION);
        let (by_instruction, by_trap) = (counted(CALLS_BY_INSTRUCTION), counted(CALLS_BY_TRAP));
        let interception = match u8::try_from(said).map_or(Interception::Unknown, Interception::from_u8) {
            Interception::Dispatch if by_instruction == 0 && by_trap == 0 => Interception::Symbols,
            Interception::Dispatch if by_trap == 0 => Interception::Rewritten,
            said => said,
        };
        Ways { interception, by_instruction, by_trap }
    }
}

/// Opens the same memory through a descriptor that cannot write.
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
        let page_read = &memory.replicas()[1].page_read;
        assert!(ShmMemory::map_page(&**page_read, REPLICA_PAGE_BYTES, Access::ReadWrite).is_err());
        assert!(ShmMemory::map_page(&**page_read, REPLICA_PAGE_BYTES, Access::ReadOnly).is_ok());
    }

    /// A descriptor's access mode does not bind the owner of the file, which may open the file again with
    /// another mode.
    #[test]
    fn nobody_else_writes_the_page_of_a_replica_even_by_opening_it_again() {
        let memory = StackMemory::create(bells(1).unwrap(), None).unwrap();
        let page = &memory.replicas()[0];
        // This also holds for the next incarnation, though the last one has mapped the page.
        for _ in 0..2 {
            let own = ReplicaPage(
                ShmMemory::map_page(&page.page_write, REPLICA_PAGE_BYTES, Access::ReadWrite).unwrap(),
            );
            own.set_sleep_word(4711);
            assert_eq!(page.page.sleep_word(), 4711);
        }
        let path = format!("/proc/self/fd/{}", page.page_read.as_raw_fd());
        for (read, write) in [(true, true), (false, true)] {
            assert!(OpenOptions::new().read(read).write(write).open(&path).is_err());
        }
        // This also holds when another supervisor takes over the page.
        let fd = |fd: &OwnedFd| fd.try_clone().unwrap();
        let part = vec![fd(&page.page_write), fd(&page.bell), fd(&memory.ledgers[0]), fd(&page.page_read)];
        let next =
            StackMemory::resume(fd(&memory.stack_write), Pairs::create().unwrap(), vec![part], 1).unwrap();
        let path = format!("/proc/self/fd/{}", next.replicas()[0].page_read.as_raw_fd());
        assert!(OpenOptions::new().read(true).write(true).open(&path).is_err());
        assert_eq!(next.replicas()[0].page.sleep_word(), 4711);
    }

    /// The page on a link is for the other stack alone, which created it and can write it.
    #[test]
    fn a_stack_on_a_link_of_another_has_a_stack_page_of_its_own() {
        let page = create_memfd("atoll-guest-stack", STACK_PAGE_BYTES).unwrap();
        let memory = StackMemory::create(bells(1).unwrap(), Some(page.try_clone().unwrap())).unwrap();
        let theirs = ShmMemory::map(&page, STACK_PAGE_BYTES, Access::ReadWrite).unwrap();
        theirs.store32(8, 1);
        assert_eq!(memory.on_link.as_ref().unwrap().0.load32(8), 1);
        let ours = ShmMemory::map(&*memory.stack_read, STACK_PAGE_BYTES, Access::ReadOnly).unwrap();
        assert_eq!(ours.load32(8), 0);
    }

    /// The user that owns the file may open the page again with another access mode.
    #[test]
    fn nobody_else_writes_the_stack_page_even_by_opening_it_again() {
        let memory = StackMemory::create(bells(1).unwrap(), None).unwrap();
        let path = format!("/proc/self/fd/{}", memory.stack_read.as_raw_fd());
        let again: OwnedFd = OpenOptions::new().read(true).write(true).open(path).unwrap().into();
        assert!(ShmMemory::map(&again, STACK_PAGE_BYTES, Access::ReadWrite).is_err());
        assert!(rustix::io::write(&again, b"ATOL").is_err());
        // The supervisor can write it.
        memory.stack.0.store32(8, 4711);
        assert_eq!(ShmMemory::map(&again, STACK_PAGE_BYTES, Access::ReadOnly).unwrap().load32(8), 4711);
    }

    #[test]
    fn the_librarys_counters_are_summed_over_the_arenas() {
        let config = ArenaConfig { slots: 16, send_log2: 16, receive_log2: 16 };
        let session = SessionMemory::create(1, User::privileged(0), 2, config).unwrap();
        assert_eq!(session.library_calls(), LibraryCalls::default());
        let layout = config.layout();
        for arena in &session.arenas {
            let memory = ShmMemory::map(&**arena, layout.total, Access::ReadWrite).unwrap();
            memory.store64(layout.library + CALLS, 100);
            memory.store64(layout.library + CALLS_WITH_SYSTEM_CALL, 3);
        }
        assert_eq!(session.library_calls(), LibraryCalls { calls: 200, with_system_call: 6 });
        // The counters are written by the program. A saturated sum would stay so after the program is gone.
        let hostile = ShmMemory::map(&*session.arenas[1], layout.total, Access::ReadWrite).unwrap();
        for lie in [u64::MAX, u64::MAX / 2, 1 << 60] {
            hostile.store64(layout.library + CALLS, lie);
            assert_eq!(session.library_calls(), LibraryCalls { calls: 100, with_system_call: 3 });
        }
    }

    #[test]
    fn the_way_of_interception_is_what_the_library_says_and_has_counted() {
        let config = ArenaConfig { slots: 16, send_log2: 16, receive_log2: 16 };
        let session = SessionMemory::create(1, User::privileged(0), 2, config).unwrap();
        assert_eq!(session.ways(), Ways::default());
        let layout = config.layout();
        let memory = ShmMemory::map(&*session.arenas[0], layout.total, Access::ReadWrite).unwrap();
        for (said, way) in [
            (2, Interception::Symbols),
            (4, Interception::Valgrind),
            (255, Interception::Unknown),
            (u64::MAX, Interception::Unknown),
            (1 << 32 | 2, Interception::Unknown),
        ] {
            memory.store64(layout.library + INTERCEPTION, said);
            assert_eq!(session.ways().interception, way);
        }
        memory.store64(layout.library + INTERCEPTION, 2);
        for (by_instruction, by_trap, interception) in
            [(7, 0, Interception::Rewritten), (7, 3, Interception::Dispatch), (3, 3, Interception::Dispatch)]
        {
            memory.store64(layout.library + CALLS_BY_INSTRUCTION, by_instruction);
            memory.store64(layout.library + CALLS_BY_TRAP, by_trap);
            assert_eq!(session.ways(), Ways { interception, by_instruction, by_trap });
        }
        memory.store64(layout.library + CALLS_BY_TRAP, u64::MAX);
        assert_eq!(session.ways().by_trap, 0, "the program writes these words");
    }
}

//! What does the supervisor own? The memory and the bells of the stack, and of each session.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use atoll_base::{Instant, SessionId};
use atoll_ipc::Memory;
use atoll_ipc::arena::ArenaConfig;
use atoll_ipc::control::{Request, User};
use atoll_ipc::ledger::{LEDGER_BYTES, LedgerConfig, sessions_in, written_version};
use atoll_ipc::page::{APP_PAGE_BYTES, BELLS, REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackPage};
use atoll_shm::{Access, ShmMemory};
use atoll_supervisor::Plan;
use atoll_sys::{View, Views, create_memfd, eventfd};

use super::pairs::Pairs;
use crate::clock;

/// The memory that all processes of the stack share.
#[derive(Debug)]
pub struct StackMemory {
    /// The stack page; this mapping is the only one that can write it.
    pub stack: StackPage<ShmMemory>,
    /// The page on the link where the other stack reads the same, if that one has made the link.
    pub on_link: Option<StackPage<ShmMemory>>,
    /// The stack page, as it was made.
    pub stack_write: OwnedFd,
    /// The stack page, opened for reading only.
    pub stack_read: Rc<OwnedFd>,
    /// The rings between servers, and what only they may know.
    pub pairs: Pairs,
    /// What grants and passes are sealed with.
    pub lease_key: [u8; 16],
    /// Page and bell of each server, by number. No application sees those of servers that are no replicas.
    servers: Vec<ServerMemory>,
    /// What each replica leaves to its successor. Nobody else maps it for writing.
    pub ledgers: Vec<OwnedFd>,
}

/// The memory of one server.
#[derive(Debug)]
pub struct ServerMemory {
    /// Its page, mapped for reading.
    pub page: ReplicaPage<ShmMemory>,
    /// Its page, for the replica itself.
    pub page_write: OwnedFd,
    /// Its page, for applications. Nobody can open it again for writing, if the kernel lets the supervisor
    /// have [`Views`].
    pub page_read: Rc<OwnedFd>,
    /// Its bell, for the other servers and the supervisor.
    pub bell: Rc<OwnedFd>,
}

/// How many bytes the kernel has allocated for this memory. It is counted in units of 512 (st_blocks,
/// inode(7)).
fn allocated(memory: BorrowedFd<'_>) -> u64 {
    rustix::fs::fstat(memory).map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0) * 512)
}

impl StackMemory {
    /// How many bytes the kernel has allocated for it: ledgers and rings. Pages of facts are some kilobytes,
    /// and do not grow.
    pub fn allocated(&self) -> u64 {
        self.ledgers.iter().map(AsFd::as_fd).chain(self.pairs.all()).map(allocated).sum()
    }

    /// The version that the ledger of a replica says of itself; `None`: nothing is in it yet.
    pub fn ledger_version(&self, index: usize) -> Option<u32> {
        let ledger = self.ledgers.get(index)?;
        written_version(&ShmMemory::map(ledger, 4096, Access::ReadOnly).ok()?)
    }

    /// The sessions that the ledger of a replica names, which has died; `None`: it cannot be read. Who has
    /// written it may have been taken over: then it says what it likes, up to as many records as there may
    /// be.
    pub fn sessions_in_ledger(&self, index: usize) -> Option<BTreeSet<SessionId>> {
        let ledger = ShmMemory::map(self.ledgers.get(index)?, LEDGER_BYTES, Access::ReadOnly).ok()?;
        sessions_in(ledger, LedgerConfig::STACK).ok()
    }

    /// Whether there were replicas before.
    pub fn has_past(&self) -> bool {
        (0..self.ledgers.len()).any(|index| self.ledger_version(index).is_some())
    }

    /// Memory for a stack of one replica per bell. `on_link`: the page that the other end of a link has made
    /// for this stack.
    pub fn create(bells: Vec<Rc<OwnedFd>>, on_link: Option<OwnedFd>) -> io::Result<StackMemory> {
        let on_link = match on_link {
            Some(page) => Some(StackPage(ShmMemory::map(&page, STACK_PAGE_BYTES, Access::ReadWrite)?)),
            None => None,
        };
        let (stack_page, stack) = ShmMemory::create_own("atoll-stack", STACK_PAGE_BYTES)?;
        let views = Views::new();
        if let Err(error) = &views {
            say!("programs of the stack's own user could write the pages of replicas: {error}");
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
            ledgers: replicas.iter().map(|_| create_memfd("atoll-ledger", LEDGER_BYTES)).collect::<io::Result<_>>()?,
            servers: replicas,
        })
    }

    /// The memory of a stack that is up. `parts`: of each server, by number, its page, its bell and, of the
    /// first `replicas`, its ledger and its page for reading.
    pub fn resume(stack: OwnedFd, pairs: Pairs, parts: Vec<Vec<OwnedFd>>, replicas: usize) -> io::Result<StackMemory> {
        let (mut servers, mut ledgers) = (Vec::new(), Vec::new());
        for part in parts {
            let mut part = part.into_iter();
            let (Some(page), Some(bell)) = (part.next(), part.next()) else {
                return Err(io::Error::other("a server without memory"));
            };
            ledgers.extend(part.next());
            // An earlier build has no page for reading to leave.
            let page_read = part.next().map_or_else(|| open_for_reading(page.as_fd()), Ok)?;
            servers.push(ServerMemory::resume(page, page_read, Rc::new(bell))?);
        }
        if servers.len() < replicas || ledgers.len() != replicas {
            return Err(io::Error::other("a replica without a ledger"));
        }
        Ok(StackMemory {
            // Sealed: who made it was the last to map it for writing, and nothing on it changes.
            stack: StackPage(ShmMemory::map(&stack, STACK_PAGE_BYTES, Access::ReadOnly)?),
            stack_read: Rc::new(open_for_reading(stack.as_fd())?),
            stack_write: stack,
            // Such a stack is not left to anybody.
            on_link: None,
            lease_key: pairs.lease_key()?,
            pairs,
            servers,
            ledgers,
        })
    }

    /// Adds what depends on which servers there are: memory for those that are no replicas, and between those
    /// that talk.
    pub fn add_plan(&mut self, plan: &Plan) -> io::Result<()> {
        self.pairs.add(plan)?;
        let count = plan.processes().len().saturating_sub(self.servers.len());
        for bell in bells(count)? {
            self.servers.push(ServerMemory::create(bell, None)?);
        }
        Ok(())
    }

    /// Those of all servers, by number.
    pub fn servers(&self) -> &[ServerMemory] {
        &self.servers
    }

    /// Those of the replicas.
    pub fn replicas(&self) -> &[ServerMemory] {
        // Each has a ledger.
        &self.servers[..self.ledgers.len()]
    }

    /// Those of the servers that are no replicas.
    pub fn others(&self) -> &[ServerMemory] {
        &self.servers[self.ledgers.len()..]
    }
}

impl ServerMemory {
    /// `views`: where its page is, if others are to read it.
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

/// Makes `count` bells.
pub fn bells(count: usize) -> io::Result<Vec<Rc<OwnedFd>>> {
    (0..count).map(|_| eventfd::create().map(Rc::new)).collect()
}

/// The memory of one session. The replicas have their own descriptors of it, so it lives on there when this
/// is dropped.
#[derive(Debug)]
pub struct SessionMemory {
    /// The process that opened it.
    pub pid: u32,
    /// Whose that is.
    pub user: User,
    app_page: Rc<OwnedFd>,
    /// By which replicas wake its processes.
    bells: Vec<Rc<OwnedFd>>,
    /// One arena per replica.
    arenas: Vec<Rc<OwnedFd>>,
    /// By which its processes wake each replica. No other session has them: what hangs on them makes ringing
    /// slow for itself only.
    doorbells: Vec<Rc<OwnedFd>>,
    config: ArenaConfig,
    /// Since when there has been something to count.
    since: Instant,
}

/// What the library counts in an arena; the numbers are the application's own and may be anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LibraryCalls {
    /// Socket calls.
    pub calls: u64,
    /// Those of them that needed a system call.
    pub with_system_call: u64,
}

impl LibraryCalls {
    /// Both together.
    pub fn plus(self, other: LibraryCalls) -> LibraryCalls {
        LibraryCalls {
            calls: self.calls.saturating_add(other.calls),
            with_system_call: self.with_system_call.saturating_add(other.with_system_call),
        }
    }
}

impl SessionMemory {
    /// Memory for a session of `pid`, which is a process of `user`, on `replicas` replicas.
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

    /// How many bytes the kernel has allocated for it, whoever has touched them first: send and receive
    /// buffers.
    pub fn allocated(&self) -> u64 {
        self.arenas.iter().map(|arena| allocated(arena.as_fd())).sum()
    }

    /// All its descriptors.
    pub fn descriptors(&self) -> Vec<Rc<OwnedFd>> {
        [self.app_page.clone()]
            .into_iter()
            .chain(self.bells.iter().cloned())
            .chain(self.arenas.iter().cloned())
            .chain(self.doorbells.iter().cloned())
            .collect()
    }

    /// The memory that has these descriptors, of a session that was opened after `since`; `None`: it cannot
    /// be.
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
        (bells.len() == BELLS && arenas.len() == replicas && doorbells.len() == replicas).then_some(SessionMemory {
            pid,
            user,
            app_page,
            bells,
            arenas,
            doorbells,
            config,
            since,
        })
    }

    /// What a replica is told of it.
    pub fn opened(&self, session: u32) -> Request {
        Request::SessionOpened { session, pid: self.pid, config: self.config, user: self.user }
    }

    /// The descriptors of `Request::SessionOpened` for the replica at `index`.
    pub fn for_replica(&self, index: usize) -> Vec<Rc<OwnedFd>> {
        let mut fds = vec![self.arenas[index].clone(), self.app_page.clone(), self.doorbells[index].clone()];
        fds.extend(self.bells.iter().cloned());
        fds
    }

    /// The descriptors of `Reply::Joined`.
    pub fn for_application(&self, stack: &StackMemory) -> Vec<Rc<OwnedFd>> {
        let mut fds = vec![stack.stack_read.clone(), self.app_page.clone()];
        fds.extend(self.bells.iter().cloned());
        for ((replica, arena), doorbell) in stack.replicas().iter().zip(&self.arenas).zip(&self.doorbells) {
            fds.extend([replica.page_read.clone(), arena.clone(), doorbell.clone()]);
        }
        fds
    }

    /// What the library counted so far, if it can be true: whoever says more than a call each nanosecond has
    /// counted none.
    pub fn library_calls(&self) -> LibraryCalls {
        let most = u64::try_from(clock::now().since(self.since).as_nanos()).unwrap_or(u64::MAX);
        let layout = self.config.layout();
        let at = layout.library + LIBRARY_COUNTERS;
        let mut sum = LibraryCalls::default();
        for arena in &self.arenas {
            let Ok(memory) = ShmMemory::map(&**arena, at + 16, Access::ReadOnly) else { continue };
            let [calls, with_system_call] = [memory.load64(at), memory.load64(at + 8)];
            if calls.max(with_system_call) <= most {
                sum.calls = sum.calls.saturating_add(calls);
                sum.with_system_call = sum.with_system_call.saturating_add(with_system_call);
            }
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
        let page_read = &memory.replicas()[1].page_read;
        assert!(ShmMemory::map_page(&**page_read, REPLICA_PAGE_BYTES, Access::ReadWrite).is_err());
        assert!(ShmMemory::map_page(&**page_read, REPLICA_PAGE_BYTES, Access::ReadOnly).is_ok());
    }

    /// The rights of a descriptor are not those of the file: its owner may open it again.
    #[test]
    fn nobody_else_writes_the_page_of_a_replica_even_by_opening_it_again() {
        let memory = StackMemory::create(bells(1).unwrap(), None).unwrap();
        let page = &memory.replicas()[0];
        // For the next incarnation, though the last one has mapped it.
        for _ in 0..2 {
            let own =
                ReplicaPage(ShmMemory::map_page(&page.page_write, REPLICA_PAGE_BYTES, Access::ReadWrite).unwrap());
            own.set_sleep_word(4711);
            assert_eq!(page.page.sleep_word(), 4711);
        }
        let path = format!("/proc/self/fd/{}", page.page_read.as_raw_fd());
        for (read, write) in [(true, true), (false, true)] {
            assert!(OpenOptions::new().read(read).write(write).open(&path).is_err());
        }
        // So it stays when another supervisor goes on with it.
        let fd = |fd: &OwnedFd| fd.try_clone().unwrap();
        let part = vec![fd(&page.page_write), fd(&page.bell), fd(&memory.ledgers[0]), fd(&page.page_read)];
        let next = StackMemory::resume(fd(&memory.stack_write), Pairs::create().unwrap(), vec![part], 1).unwrap();
        let path = format!("/proc/self/fd/{}", next.replicas()[0].page_read.as_raw_fd());
        assert!(OpenOptions::new().read(true).write(true).open(&path).is_err());
        assert_eq!(next.replicas()[0].page.sleep_word(), 4711);
    }

    /// The page on a link is for the other stack alone: that one has made it, and can write it.
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

    /// Whoever has a descriptor of it may ask the kernel for another one with other rights, if it is his own
    /// file.
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
        let session = SessionMemory::create(1, User::privileged(0), 2, config).unwrap();
        assert_eq!(session.library_calls(), LibraryCalls::default());
        let layout = config.layout();
        for arena in &session.arenas {
            let memory = ShmMemory::map(&**arena, layout.total, Access::ReadWrite).unwrap();
            memory.store64(layout.library + LIBRARY_COUNTERS, 100);
            memory.store64(layout.library + LIBRARY_COUNTERS + 8, 3);
        }
        assert_eq!(session.library_calls(), LibraryCalls { calls: 200, with_system_call: 6 });
        // They are the program's own. Sums that are full would stay so when it is gone.
        let hostile = ShmMemory::map(&*session.arenas[1], layout.total, Access::ReadWrite).unwrap();
        for lie in [u64::MAX, u64::MAX / 2, 1 << 60] {
            hostile.store64(layout.library + LIBRARY_COUNTERS, lie);
            assert_eq!(session.library_calls(), LibraryCalls { calls: 100, with_system_call: 3 });
        }
    }
}

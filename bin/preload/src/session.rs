//! How does this process join a stack? Descriptors and mappings of one session, and of its replicas.

use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use atoll_base::{Endpoint, SlotId};
use atoll_ipc::control::{Reply, Request};
use atoll_ipc::page::{
    APP_PAGE_BYTES, AppPage, BELLS, REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackFacts, StackPage,
};
use atoll_ipc::{Command, LAYOUT_VERSION, Memory};
use atoll_shm::{Access, ShmMemory};
use atoll_sockets::port::{LOCK, Port};
use atoll_sys::unix::{Blocking, Channel};
use atoll_sys::{Calibration, Clock, eventfd};

/// Who uses a slot, as this process numbers its objects; `NOBODY` otherwise.
pub const NOBODY: u32 = u32::MAX;

/// One session: this process', or one whose sockets it inherited.
pub struct Session {
    pub id: u32,
    pub key: u64,
    pub member: u8,
    pub facts: StackFacts,
    pub stack: StackPage<ShmMemory>,
    pub app_page: AppPage<ShmMemory>,
    pub bells: Vec<OwnedFd>,
    pub replicas: Vec<Replica>,
    /// Other processes use the same arenas.
    pub shared: bool,
}

/// This process' side of one replica.
pub struct Replica {
    pub port: Port<ShmMemory>,
    pub page: ReplicaPage<ShmMemory>,
    bell: OwnedFd,
    rung: u32,
    pub overflow_seen: u32,
    /// Objects by slot: the application's half, the replica's half.
    users: [Vec<u32>; 2],
}

impl Drop for Session {
    fn drop(&mut self) {
        for bell in &self.bells {
            crate::state::set_fd(bell.as_raw_fd(), None);
        }
        for replica in &self.replicas {
            crate::state::set_fd(replica.bell.as_raw_fd(), None);
        }
    }
}

impl Session {
    /// Asks the supervisor for a session, or for membership in one.
    pub fn join(channel: &Channel, request: &Request) -> Option<Session> {
        channel.send(&request.encode(), &[]).ok()?;
        let mut packet = [0; 256];
        let mut fds = Vec::new();
        let len = channel.receive(&mut packet, &mut fds).ok()?;
        let Ok(Reply::Joined { session, key, member, replicas, config }) = Reply::decode(packet.get(..len)?) else {
            return None;
        };
        let mut fds = fds.into_iter().map(out_of_the_way);
        let stack = StackPage(ShmMemory::map(fds.next()?, STACK_PAGE_BYTES, Access::ReadOnly).ok()?);
        let app_page = AppPage(ShmMemory::map(fds.next()?, APP_PAGE_BYTES, Access::ReadWrite).ok()?);
        let bells: Vec<OwnedFd> = (0..BELLS).map_while(|_| fds.next()).collect();
        let layout = config.layout();
        let mut all = Vec::new();
        for _ in 0..replicas {
            let page = ReplicaPage(ShmMemory::map(fds.next()?, REPLICA_PAGE_BYTES, Access::ReadOnly).ok()?);
            let arena = ShmMemory::map(fds.next()?, layout.total, Access::ReadWrite).ok()?;
            let bell = fds.next()?;
            let port = Port::new(arena, layout);
            let overflow_seen = port.overflow();
            all.push(Replica { port, page, bell, rung: 0, overflow_seen, users: [Vec::new(), Vec::new()] });
        }
        let facts = stack.facts()?;
        (bells.len() == BELLS).then(|| Session {
            id: session,
            key,
            member,
            facts,
            stack,
            app_page,
            bells,
            replicas: all,
            shared: false,
        })
    }

    /// A new session of this process' own.
    pub fn attach(channel: &Channel) -> Option<Session> {
        Session::join(channel, &Request::Attach { layout_version: LAYOUT_VERSION })
    }

    /// The lock that the processes of a family share for one arena; nothing while there is only one process.
    pub fn guard(&self, replica: usize) -> Option<Guard> {
        if !self.shared {
            return None;
        }
        let port = &self.replicas.get(replica)?.port;
        Some(Guard::take(port.memory().clone(), port.layout().library + LOCK))
    }

    /// Sends a command; waits for room if the ring is full. The caller does not hold the family's lock.
    pub fn push(&mut self, replica: usize, command: &Command) {
        let _guard = self.guard(replica);
        let shared = self.shared;
        let Some(to) = self.replicas.get_mut(replica) else { return };
        if shared {
            to.port.reload();
        }
        while !to.port.push(command) {
            to.ring();
            atoll_sys::sched::yield_now();
        }
        to.ring();
    }

    /// Sleep word of a bell: odd while somebody sleeps on it.
    ///
    /// With other processes on the same page it stays odd, as somebody may always be asleep, and every sleeper makes it a
    /// new one, for which replicas ring again.
    pub fn set_asleep(&self, bell: u32, asleep: bool) {
        let word = self.app_page.sleep_word(bell);
        if self.shared {
            if asleep {
                self.app_page.set_sleep_word(bell, (word | 1).wrapping_add(2));
            }
            return;
        }
        if (word & 1 == 1) != asleep {
            self.app_page.set_sleep_word(bell, word.wrapping_add(1));
        }
    }

    /// Wakes whoever of this process sleeps on a bell.
    pub fn wake(&self, bell: u32) {
        let _ = eventfd::ring(&self.bells[bell as usize % BELLS]);
    }

    /// Whether the stack has somebody at a port, for addresses that both stack and kernel have.
    pub fn has_port(&self, udp: bool, port: u16) -> bool {
        self.replicas.iter().any(|replica| replica.page.has_port(udp, port))
    }

    /// Whether the address belongs to the stack.
    pub fn is_own(&self, addr: u32) -> bool {
        addr == self.facts.addr || addr >> 24 == 127
    }

    /// The conversion of the cycle counter that all processes of the stack share.
    pub fn clock(&self) -> Clock {
        let words = self.facts.calibration;
        Clock::new(Calibration { tsc0: words[0], ns0: words[1], mult: words[2] })
    }

    /// The replica that owns a tuple.
    pub fn owner(&self, local: Endpoint, remote: Endpoint) -> usize {
        let tuple = atoll_base::FourTuple { local, remote };
        usize::from(self.stack.owner_of(self.facts.key, &tuple).0).min(self.replicas.len() - 1)
    }
}

impl Replica {
    /// Rings the replica's bell if it sleeps and was not rung yet for this sleep.
    #[inline]
    pub fn ring(&mut self) {
        // Partner: the replica's fence between its sleep word and its last look at the ring.
        self.port.memory().fence();
        let word = self.page.sleep_word();
        if word & 1 == 1 && word != self.rung {
            self.rung = word;
            let _ = eventfd::ring(&self.bell);
        }
    }

    /// Who uses a slot.
    #[inline]
    pub fn user(&self, slot: SlotId) -> u32 {
        let (half, index) = self.place(slot);
        self.users[half].get(index).copied().unwrap_or(NOBODY)
    }

    /// Records who uses a slot.
    pub fn set_user(&mut self, slot: SlotId, object: u32) {
        if self.port.layout().slot(slot).is_none() {
            return;
        }
        let (half, index) = self.place(slot);
        let users = &mut self.users[half];
        if index >= users.len() {
            users.resize(index + 1, NOBODY);
        }
        users[index] = object;
    }

    /// Takes over who uses which slot from the parent's view of the same arena.
    pub fn adopt_users(&mut self, parent: &Replica) {
        self.users = parent.users.clone();
    }

    fn place(&self, slot: SlotId) -> (usize, usize) {
        let first = self.port.layout().replica_slots().start;
        if slot.0 < first { (0, slot.0 as usize) } else { (1, (slot.0 - first) as usize) }
    }
}

/// The family's lock on one arena, held until dropped. A holder that died is passed over.
pub struct Guard {
    memory: ShmMemory,
    at: usize,
}

impl Guard {
    /// Nobody holds it for longer than a few copies; after this many turns its holder is dead.
    const TURNS_MAX: u32 = 100_000;

    fn take(memory: ShmMemory, at: usize) -> Guard {
        if let Some(word) = memory.atomic32(at) {
            let mut turns = 0;
            while word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() && turns < Guard::TURNS_MAX
            {
                turns += 1;
                atoll_sys::sched::yield_now();
            }
        }
        Guard { memory, at }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.memory.store32_release(self.at, 0);
    }
}

/// Connects to the supervisor at `path`.
pub fn connect(path: &std::path::Path) -> Option<Channel> {
    let channel = Channel::connect(path, Blocking::Yes).ok()?;
    Some(Channel::from(out_of_the_way(OwnedFd::from(channel))))
}

/// Ends a connection to the supervisor that this process does not stand for.
pub fn disconnect(channel: Option<Channel>) {
    if let Some(channel) = channel {
        let fd = OwnedFd::from(channel);
        crate::state::set_fd(fd.as_raw_fd(), None);
    }
}

/// Moves a descriptor to a high number, where programs do not meet it, and keeps it from them.
pub fn out_of_the_way(fd: OwnedFd) -> OwnedFd {
    // SAFETY: fcntl with F_DUPFD_CLOEXEC takes a number and gives a new descriptor.
    let high = unsafe { libc::syscall(libc::SYS_fcntl, fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, high_number()) };
    let Ok(high) = i32::try_from(high) else { return fd };
    if high < 0 {
        return fd;
    }
    crate::state::hide(high);
    // Closed by number: dropping it would go through our own close().
    let low = fd.into_raw_fd();
    // SAFETY: `low` was ours and is closed once.
    unsafe { libc::syscall(libc::SYS_close, low) };
    // SAFETY: just created by the kernel for us.
    unsafe { OwnedFd::from_raw_fd(high) }
}

fn high_number() -> i32 {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: getrlimit fills the struct it is given.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let soft = i32::try_from(limit.rlim_cur.min(1 << 20)).unwrap_or(1024);
    // Programs that count descriptors up to their limit are rarer than those that use low ones.
    (soft - 256).max(soft / 2)
}

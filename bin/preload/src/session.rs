//! How does this process join a stack, and what does it share with one replica? The session's pages, rings and bells.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use atoll_base::{Addr, Duration, Endpoint, SlotId};
use atoll_ipc::command::Protocol;
use atoll_ipc::control::{Refusal, Reply, Request, set_token, token};
use atoll_ipc::lease::Pass;
use atoll_ipc::network::{Network, V4Facts};
use atoll_ipc::page::{
    APP_PAGE_BYTES, AppPage, BELLS, REPLICA_PAGE_BYTES, ReplicaPage, STACK_PAGE_BYTES, StackFacts, StackPage,
};
use atoll_ipc::{Command, LAYOUT_VERSION, Memory};
use atoll_shm::{Access, ShmMemory};
use atoll_sockets::outbox::{Outbox, Sent};
use atoll_sockets::port::{LOCK, Port};
use atoll_sys::unix::Channel;
use atoll_sys::{Calibration, Clock, eventfd};

use atoll_sockets::Errno;

use crate::backlog;
use crate::family::{Before, FamilyLock};
use crate::settings::settings;
use crate::table::Internal;

/// Who uses a slot, as this process numbers its objects; `NOBODY` otherwise.
pub const NOBODY: u32 = u32::MAX;

/// How long the supervisor may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// One session: this process' own, or one whose sockets it inherited.
#[derive(Debug)]
pub struct Session {
    pub id: u32,
    pub key: u64,
    pub member: u8,
    /// What the supervisor said, to be passed on over exec.
    pub reply: Reply,
    pub facts: StackFacts,
    pub stack: StackPage<ShmMemory>,
    pub app_page: AppPage<ShmMemory>,
    pub bells: Vec<Internal>,
    pub replicas: Vec<Replica>,
    /// Other processes use the same arenas: their state is touched under the family's lock.
    pub shared: bool,
    /// The pages and arenas, while they are to be passed on over exec.
    kept: Vec<Internal>,
}

/// Who writes a memory of this session.
#[derive(Clone, Copy)]
enum Shared {
    /// The supervisor or a replica, alone.
    OfStack,
    /// Other processes of the session as well: it has to be sealed.
    WithFamily,
}

/// This process' side of one replica.
#[derive(Debug)]
pub struct Replica {
    pub port: Port<ShmMemory>,
    outbox: Outbox,
    pub page: ReplicaPage<ShmMemory>,
    bell: Internal,
    rung: u32,
    pub overflow_seen: u32,
    pub epoch_seen: u32,
    /// Objects by slot: the application's half, the replica's half.
    users: [Vec<u32>; 2],
}

/// Why a process has no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The supervisor says so.
    Refused(Refusal),
    /// It cannot be reached, or does not answer: the number of a system call's error.
    Unreachable(i32),
}

impl Reason {
    /// What socket(2) fails with where it must not fall back on the kernel.
    pub fn errno(self) -> Errno {
        match self {
            Reason::Refused(Refusal::Permission) | Reason::Unreachable(libc::EACCES) => Errno(libc::EACCES),
            Reason::Refused(Refusal::Sessions) => Errno(libc::ENFILE),
            Reason::Refused(Refusal::Resources) => Errno::ENOBUFS,
            _ => Errno::ENETDOWN,
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reason::Refused(Refusal::Permission) | Reason::Unreachable(libc::EACCES) => {
                let uid = atoll_sys::process::effective_user();
                write!(f, "user {uid} may not use it (atoll up --allow-user {uid})")
            }
            Reason::Refused(refusal) => write!(f, "{refusal}"),
            Reason::Unreachable(libc::ENOENT | libc::ECONNREFUSED) => {
                f.write_str("it is not up, or cannot be seen from here")
            }
            Reason::Unreachable(libc::EAGAIN) => f.write_str("it does not answer"),
            Reason::Unreachable(errno) => write!(f, "{}", std::io::Error::from_raw_os_error(*errno)),
        }
    }
}

impl From<std::io::Error> for Reason {
    fn from(error: std::io::Error) -> Reason {
        Reason::Unreachable(error.raw_os_error().unwrap_or(libc::EPROTO))
    }
}

/// The connection to the supervisor, which stands for this process.
#[derive(Debug)]
pub struct Control(Internal);

impl Control {
    /// Connects to the supervisor that `ATOLL_SOCKET` names.
    pub fn connect() -> Result<Control, Reason> {
        let path = settings().socket.as_deref().ok_or(Reason::Unreachable(libc::ENOENT))?;
        let channel = Channel::connect_to_own(path, ANSWER_TIMEOUT)?;
        Ok(Control(Internal::new(OwnedFd::from(channel))))
    }

    /// A connection that was inherited over exec.
    pub fn inherited(fd: Internal) -> Control {
        Control(fd)
    }

    /// Its descriptor.
    pub fn descriptor(&self) -> &Internal {
        &self.0
    }

    /// A new session of this process' own.
    pub fn attach(&self) -> Result<Session, Reason> {
        self.ask(&Request::Attach { layout_version: LAYOUT_VERSION }, false)
    }

    /// Membership in a session that exists.
    pub fn join(&self, session: u32, key: u64) -> Option<Session> {
        self.ask(&Request::Join { session, key }, false).ok()
    }

    /// Another connection to the same supervisor, for somebody who cannot see its socket's path.
    pub fn another(&self) -> Result<Control, Reason> {
        match self.exchange(&Request::Connect)? {
            (Reply::Connected, mut fds) => {
                let fd = fds.next().ok_or(Reason::Unreachable(libc::EPROTO))?;
                let another = Control(fd);
                let _ = another.channel().set_timeouts(ANSWER_TIMEOUT);
                Ok(another)
            }
            _ => Err(Reason::Unreachable(libc::EPROTO)),
        }
    }

    /// What the supervisor says of whoever asks now for a socket: of the calling thread, if its user is its own. With the seal.
    pub fn vouch(&self, lease: u64, protocol: Protocol, port: u16) -> Result<(Pass, u64), Reason> {
        match self.exchange(&Request::Vouch { lease, protocol, port })? {
            (Reply::Vouched { pass, seal }, _) => Ok((pass, seal)),
            _ => Err(Reason::Unreachable(libc::EPROTO)),
        }
    }

    /// A new session, or membership in one, to be passed on over exec.
    pub fn ask(&self, request: &Request, keep: bool) -> Result<Session, Reason> {
        let (reply, fds) = self.exchange(request)?;
        Session::new(&reply, fds, keep).ok_or(Reason::Unreachable(libc::EPROTO))
    }

    fn channel(&self) -> ManuallyDrop<Channel> {
        // SAFETY: the descriptor is open, and stays ours.
        ManuallyDrop::new(Channel::from(unsafe { OwnedFd::from_raw_fd(self.0.number()) }))
    }

    /// Asks for something, and returns what is answered if it is no refusal.
    fn exchange(&self, request: &Request) -> Result<(Reply, impl Iterator<Item = Internal> + use<>), Reason> {
        let channel = self.channel();
        let mut number = [0; 8];
        let _ = atoll_sys::process::random(&mut number);
        let number = u64::from_ne_bytes(number) | 1;
        let mut packet = request.encode();
        set_token(&mut packet, number);
        // Should that fail, a refusal has perhaps come before anything was asked, and the connection was closed.
        let sent = channel.send_as_effective(&packet);
        loop {
            let (mut packet, mut fds) = ([0; 256], Vec::new());
            let mut received = channel.receive_within(ANSWER_TIMEOUT, &mut packet, &mut fds);
            if matches!(&received, Err(error) if error.raw_os_error() == Some(libc::ECONNRESET)) {
                // A supervisor that refuses whoever connects has not read what was asked; what it has said comes behind this error.
                received = channel.receive_within(ANSWER_TIMEOUT, &mut packet, &mut fds);
            }
            let len = match received {
                Ok(0) => return Err(sent.err().map_or(Reason::Unreachable(libc::ECONNRESET), Reason::from)),
                Ok(len) => len.min(packet.len()),
                Err(error) => return Err(error.into()),
            };
            let fds = fds.into_iter().map(Internal::new);
            // A supervisor that has taken over may answer a request of before a second time.
            if ![0, number].contains(&token(&packet[..len])) {
                fds.for_each(drop);
                continue;
            }
            return match Reply::decode(&packet[..len]) {
                Ok(Reply::Refused { reason }) => Err(Reason::Refused(reason)),
                Ok(reply) => Ok((reply, fds)),
                Err(_) => Err(Reason::Unreachable(libc::EPROTO)),
            };
        }
    }
}

impl Session {
    /// The session that a reply tells of, from its descriptors in the order that [`Reply::Joined`] says.
    pub fn new(reply: &Reply, mut fds: impl Iterator<Item = Internal>, keep: bool) -> Option<Session> {
        let Reply::Joined { session, key, member, replicas, config } = *reply else { return None };
        let mut kept = Vec::new();
        let mut map = |fd: Internal, what: Shared, len, access| {
            let memory = match what {
                Shared::OfStack => ShmMemory::map_page(&fd, len, access).ok(),
                Shared::WithFamily => ShmMemory::map(&fd, len, access).ok(),
            };
            if keep {
                kept.push(fd);
            }
            memory
        };
        let stack = StackPage(map(fds.next()?, Shared::OfStack, STACK_PAGE_BYTES, Access::ReadOnly)?);
        let app_page = AppPage(map(fds.next()?, Shared::WithFamily, APP_PAGE_BYTES, Access::ReadWrite)?);
        let bells: Vec<Internal> = fds.by_ref().take(BELLS).collect();
        let layout = config.layout();
        let mut all = Vec::new();
        for _ in 0..replicas {
            let page = ReplicaPage(map(fds.next()?, Shared::OfStack, REPLICA_PAGE_BYTES, Access::ReadOnly)?);
            let arena = map(fds.next()?, Shared::WithFamily, layout.total, Access::ReadWrite)?;
            let bell = fds.next()?;
            let port = Port::new(arena, layout);
            let (overflow_seen, epoch_seen) = (port.overflow(), page.epoch().0);
            let users = [Vec::new(), Vec::new()];
            let outbox = Outbox::new();
            all.push(Replica { port, outbox, page, bell, rung: 0, overflow_seen, epoch_seen, users });
        }
        let facts = stack.facts()?;
        (bells.len() == BELLS && !all.is_empty()).then_some(Session {
            id: session,
            key,
            member,
            reply: *reply,
            facts,
            stack,
            app_page,
            bells,
            replicas: all,
            shared: false,
            kept,
        })
    }

    /// All descriptors in the order of [`Reply::Joined`], if they were kept.
    pub fn descriptors(&self) -> impl Iterator<Item = &Internal> {
        let pages = self.kept.get(2..).unwrap_or_default().chunks(2);
        let of_replicas = pages.zip(&self.replicas).flat_map(|(kept, replica)| kept.iter().chain([&replica.bell]));
        self.kept.iter().take(2).chain(&self.bells).chain(of_replicas)
    }

    /// Sends a command. If the ring is full, it waits in the outbox, and this thread for it when the lock is free.
    #[inline]
    pub fn push(&mut self, replica: usize, command: &Command) {
        let shared = self.shared;
        let Some(to) = self.replicas.get_mut(replica) else { return };
        let sent = to.on_ring(shared, |outbox, port| outbox.send(port, command));
        if sent != Sent::All || backlog::is_there() {
            backlog::met(sent);
        }
    }

    /// Sends commands that wait, as far as there is room.
    pub fn send_waiting(&mut self) -> Sent {
        let (shared, mut all) = (self.shared, Sent::All);
        for replica in self.replicas.iter_mut().filter(|replica| !replica.outbox.is_empty()) {
            all = all.and(replica.on_ring(shared, Outbox::send_waiting));
        }
        all
    }

    /// Says that somebody sleeps on a bell, in a way that a bell rung before does not count for.
    pub fn fall_asleep(&self, bell: u32) {
        if let Some(word) = self.sleep_word(bell) {
            let _ = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| Some(word.wrapping_add(1) | 1));
        }
    }

    /// Says that nobody of this process sleeps on a bell any more. Other members of a shared session may.
    pub fn wake_up(&self, bell: u32) {
        if let Some(word) = self.sleep_word(bell).filter(|_| !self.shared) {
            let value = word.load(Ordering::Relaxed);
            if value & 1 == 1 {
                word.store(value.wrapping_add(1), Ordering::Relaxed);
            }
        }
    }

    fn sleep_word(&self, bell: u32) -> Option<&AtomicU32> {
        self.app_page.0.atomic32(64 + (bell as usize % BELLS) * 64)
    }

    /// Rings a bell of the own processes.
    pub fn ring(&self, bell: u32) {
        let _ = eventfd::ring(&self.bells[bell as usize % BELLS]);
    }

    /// Whether the stack has somebody at a port, for addresses that both stack and kernel have.
    pub fn has_port(&self, udp: bool, port: u16) -> bool {
        self.replicas.iter().any(|replica| replica.page.has_port(udp, port))
    }

    /// Whether the address belongs to the stack.
    pub fn is_own(&self, addr: Addr) -> bool {
        match addr.to_v4() {
            Some(v4) => addr.is_loopback() || self.v4().is_some_and(|own| own.addr == v4),
            None => addr == Addr::LOOPBACK || self.network().is_own(addr),
        }
    }

    /// The IPv4 address that the stack has now, if it has one.
    pub fn v4(&self) -> Option<V4Facts> {
        self.replicas[0].page.v4()
    }

    /// The addresses that the stack has now.
    pub fn network(&self) -> Network {
        self.replicas[0].page.network()
    }

    /// The address that packets to `dst` leave from; unspecified if there is none.
    pub fn source_for(&self, dst: Addr) -> Addr {
        match dst.is_v4() {
            _ if dst.is_loopback() => dst.loopback_of_family(),
            true => self.v4().map_or(Addr::V4_ANY, |own| Addr::v4(own.addr)),
            false => self.network().source_for(dst).unwrap_or_default(),
        }
    }

    /// Whether the stack has a way to `addr`: on its link, or by a gateway.
    ///
    /// A stack that has no IPv4 address yet, or lost it, is asked all the same: its programs hear ENETUNREACH, and do not end up in the
    /// kernel's network because a DHCP server is slow.
    pub fn reaches(&self, addr: Addr) -> bool {
        match addr.to_v4() {
            Some(v4) => self.v4().is_none_or(|own| own.reaches(v4)),
            None => self.network().reaches(addr),
        }
    }

    /// Whether a datagram to `addr` has nowhere to leave from: there is no IPv4 address yet, or no more. Groups have a way inside the stack.
    pub fn is_cut_off(&self, addr: Addr) -> bool {
        // The address of a configuration stays.
        self.facts.addr == 0
            && addr.to_v4().is_some_and(|v4| v4 >> 28 != 0xe)
            && !addr.is_loopback()
            && self.v4().is_none()
    }

    /// The largest packet of the family of `addr` on the link.
    pub fn mtu_for(&self, addr: Addr) -> usize {
        let v4 = if addr.is_v4() { self.v4() } else { None };
        v4.map_or(self.facts.mtu, |own| own.mtu).into()
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

    /// Whether replicas listen to it: not if servers have died of it.
    pub fn is_heard(&self) -> bool {
        !self.replicas.iter().any(|replica| replica.port.is_cut_off())
    }

    /// Whether any replica has sent something.
    #[inline]
    pub fn has_event(&self) -> bool {
        self.replicas.iter().any(|replica| replica.port.has_event())
    }
}

impl Replica {
    /// Puts commands on the ring, and rings.
    #[inline]
    fn on_ring(&mut self, shared: bool, send: impl FnOnce(&mut Outbox, &mut Port<ShmMemory>) -> Sent) -> Sent {
        let family = shared.then(|| self.family_lock());
        if shared {
            self.port.reload();
        }
        let sent = send(&mut self.outbox, &mut self.port);
        drop(family);
        self.ring();
        sent
    }

    /// Rings the replica's bell if it sleeps and was not rung yet for this sleep.
    #[inline]
    pub fn ring(&mut self) {
        // Partner: the replica's fence between its sleep word and its last look at the ring.
        self.port.memory().fence();
        let word = self.page.sleep_word();
        if word & 1 == 1 && word != self.rung {
            self.rung = word;
            SYSTEM_CALLS.set(SYSTEM_CALLS.get().wrapping_add(1));
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

    fn place(&self, slot: SlotId) -> (usize, usize) {
        let first = self.port.layout().replica_slots().start;
        if slot.0 < first { (0, slot.0 as usize) } else { (1, (slot.0 - first) as usize) }
    }

    /// Takes the family's lock on this arena. What its last holder left half done, if it died, is made good.
    pub fn family_lock(&self) -> FamilyLock {
        let (lock, before) = FamilyLock::acquire(self.port.memory().clone(), self.port.layout().library + LOCK);
        if before == Before::Died {
            self.port.repair();
        }
        lock
    }
}

thread_local! {
    /// System calls that this library made in this thread, for the count of calls without any.
    pub static SYSTEM_CALLS: Cell<u32> = const { Cell::new(0) };
}

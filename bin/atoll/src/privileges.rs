//! What may a server do besides computing? Each kind has its list of system calls, and what it does without.
//!
//! A server takes its descriptors, its processor and its timer with the privileges of the supervisor. Then,
//! before it looks at a byte that somebody else has written, it gives up for good:
//!
//! ```text
//!   standard input and output      lead to /dev/null
//!   the file system                Landlock with nothing allowed; without Landlock an empty root
//!   root                           the user is one that only servers are, if the stack has one for them
//!   capabilities                   all, of all sets; and gaining any by execve(2) (no_new_privs)
//!   limits                         no core, no process, no descriptor but those that sessions bring, bounded private memory
//!   others of the same user        may neither trace it nor read its memory (not dumpable)
//!   system calls                   all but those of its list; another one is deadly, and the supervisor says which it was
//! ```
//! What a kernel does not have is passed over, and shown by `atoll status`.

use std::io;

use atoll_ipc::page::{
    LAYER_CAPABILITIES, LAYER_EMPTY_ROOT, LAYER_LANDLOCK, LAYER_OWN_USER, LAYER_SECCOMP, ReplicaPage,
};
use atoll_shm::ShmMemory;
use atoll_sys::filesystem::{self, Confinement};
use atoll_sys::privileges::{self, CapabilitySet, Resource};
use atoll_sys::process;
use atoll_sys::seccomp::{self, Calls, Condition};

use crate::setup::ServerUser;

/// A kind of server, as far as privileges differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Gets replicas, with their memory, rings, bells and queues, and memory and bells of their sessions, at
    /// any time.
    Replica {
        /// Whether it has a queue of the device.
        queue: bool,
    },
    /// Has a queue of the device, and nothing that comes later.
    LinkServer,
    /// Has its rings.
    IpServer {
        /// Whether it has a queue of the device.
        queue: bool,
    },
    /// Has its rings only.
    Manager,
}

/// Whose end ends a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndsWith {
    /// The supervisor's: it ends with that one, whatever it does.
    Supervisor,
    /// The stack's: somebody keeps what the next supervisor needs, and it may wait for that.
    Stack,
}

/// Most private memory of a replica, in bytes: beyond it, it is a bug or an attack, and the machine's other
/// memory is not to go with it. Connections take about a kilobyte each; socket buffers are shared memory,
/// which is not counted.
const REPLICA_MEMORY: u64 = 16 << 30;
/// The same of the others, which keep some megabytes for each replica.
const OTHER_MEMORY: u64 = 1 << 30;

/// The user that a server becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Becomes {
    /// That user.
    pub user: ServerUser,
    /// The process that has started the server, with whose end it ends.
    pub supervisor: u32,
}

/// Gives up, for good, what a server of this `kind` does not need. `becomes`: the user that it is from then
/// on; `None`: it stays what it is. `page`: its own, for what it says of itself.
///
/// Called once by a process with one thread. What follows must not need anything else.
pub fn confine(
    kind: Kind,
    ends_with: EndsWith,
    becomes: Option<Becomes>,
    page: &ReplicaPage<ShmMemory>,
) -> io::Result<()> {
    page.set_layers(0);
    page.clear_forbidden_call();
    crate::log::open(None);
    privileges::learn();
    privileges::leave_standard_streams()?;
    let mut layers = match filesystem::leave()? {
        Confinement::Landlock => LAYER_LANDLOCK,
        Confinement::EmptyRoot => LAYER_EMPTY_ROOT,
        Confinement::None => 0,
    };
    set_limits(kind)?;
    if let Some(Becomes { user, supervisor }) = becomes {
        // Afterwards it may not be lowered any more.
        privileges::lower_bounding_set(CapabilitySet::empty())?;
        privileges::become_user(user.uid, user.gid)?;
        // A change of the user has cancelled this.
        process::die_with_parent(supervisor)?;
        layers |= LAYER_OWN_USER;
    }
    privileges::keep_capabilities(CapabilitySet::empty())?;
    privileges::hide()?;
    layers |= LAYER_CAPABILITIES;
    // The mapping lives as long as the process, and so may the handler's reference to it.
    let memory: &'static ShmMemory = Box::leak(Box::new(page.0.clone()));
    let word = memory.atomic32(ReplicaPage::<ShmMemory>::FORBIDDEN_CALL_AT);
    seccomp::report_to(word.ok_or_else(|| io::Error::other("the own page cannot be written"))?)?;
    if calls(kind, ends_with).enforce()? {
        layers |= LAYER_SECCOMP;
    }
    page.set_layers(layers);
    Ok(())
}

/// No limit is raised, and none can be raised later.
fn set_limits(kind: Kind) -> io::Result<()> {
    // What lies in a server's memory is the secrets and the text of all.
    privileges::limit(Resource::Core, 0)?;
    privileges::limit(Resource::Nproc, 0)?;
    let (memory, descriptors) = match kind {
        // As many descriptors as the supervisor, which bounds the sessions and has all of theirs itself.
        Kind::Replica { .. } => (REPLICA_MEMORY, u64::MAX),
        // Those that are open stay; there are no others.
        Kind::LinkServer | Kind::IpServer { .. } | Kind::Manager => (OTHER_MEMORY, 0),
    };
    privileges::limit(Resource::Data, memory)?;
    privileges::limit(Resource::Nofile, descriptors)
}

/// The list of a kind of server.
pub fn calls(kind: Kind, ends_with: EndsWith) -> Calls {
    let mut calls = Calls::new();
    loop_of_all(&mut calls);
    if ends_with == EndsWith::Stack {
        // Outlive the supervisor (`process::outlive_parent`).
        calls.allow_if(libc::SYS_prctl, &[Condition::Is(0, libc::PR_SET_PDEATHSIG as u32), Condition::Is(1, 0)]);
    }
    memory_of_all(&mut calls);
    end_of_all(&mut calls);
    match kind {
        Kind::Replica { queue } => {
            coming_and_going(&mut calls);
            if queue {
                device(&mut calls);
            }
        }
        Kind::LinkServer | Kind::IpServer { queue: true } => device(&mut calls),
        Kind::IpServer { queue: false } | Kind::Manager => {}
    }
    calls
}

/// What `server.rs` does in every server.
fn loop_of_all(calls: &mut Calls) {
    // Sleep until a bell, the device, the supervisor or the timer wakes it. (rustix asks for epoll_wait by
    // this call.)
    calls.allow(libc::SYS_epoll_pwait);
    // Arm that timer.
    calls.allow(libc::SYS_timerfd_settime);
    // Spin without keeping the application from the core.
    calls.allow(libc::SYS_sched_yield);
    // Requests of the supervisor, with the descriptors of sessions; answers.
    calls.allow(libc::SYS_recvmsg);
    calls.allow(libc::SYS_sendmsg);
    // Ring bells.
    calls.allow_if(libc::SYS_read, &[Condition::Is(2, 8)]);
    // Say why it ends.
    calls.allow(libc::SYS_write);
    // The time, where the machine has no trustworthy counter and the vDSO cannot tell.
    calls.allow(libc::SYS_clock_gettime);
    // Secrets at the start; the keys of hash tables.
    calls.allow(libc::SYS_getrandom);
}

/// What the allocator of the C library does. Memory is never executable, never placed over other memory, and
/// always such as the limit (RLIMIT_DATA) counts: neither shared nor a stack.
fn memory_of_all(calls: &mut Calls) {
    const GROWING: u64 = libc::MAP_GROWSDOWN as u64;
    const PRIVATE: u64 = libc::MAP_PRIVATE as u64 | ANONYMOUS;
    calls.allow(libc::SYS_brk);
    calls.allow_if(libc::SYS_mmap, &[NOT_EXECUTABLE, Condition::Bits(3, PLACED | GROWING | TYPE | ANONYMOUS, PRIVATE)]);
    // Large blocks grow where they are, or elsewhere.
    calls.allow_if(libc::SYS_mremap, &[Condition::Is(3, libc::MREMAP_MAYMOVE as u32)]);
    calls.allow(libc::SYS_munmap);
}

/// Ending: by return from `main`, by a panic, by a fault. Whatever it was, it is to be told as what it was.
fn end_of_all(calls: &mut Calls) {
    calls.allow(libc::SYS_exit_group);
    // Descriptors are closed on the way out; builds with assertions look whether they are open.
    calls.allow(libc::SYS_close);
    calls.allow_if(libc::SYS_fcntl, &[Condition::Is(1, libc::F_GETFD as u32)]);
    // The standard library gives back the stack of its signal handlers.
    calls.allow(libc::SYS_sigaltstack);
    // abort(3), which is how panics end: the process itself, by SIGABRT, and no other.
    calls.allow(libc::SYS_getpid);
    calls.allow(libc::SYS_gettid);
    calls.allow(libc::SYS_rt_sigprocmask);
    let (own, aborts) = (Condition::Is(0, std::process::id()), Condition::Is(2, libc::SIGABRT as u32));
    calls.allow_if(libc::SYS_tgkill, &[own, aborts]);
    // The library's handler of faults makes way, and returns to the fault. Of SIGSYS nobody takes the handler
    // away.
    for signal in [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS] {
        calls.allow_if(libc::SYS_rt_sigaction, &[Condition::Is(0, signal as u32)]);
    }
    calls.allow(libc::SYS_rt_sigreturn);
    // Unwinding begins with pthread_once(3), which wakes whoever waits for it, though nobody does.
    const WAKE: u32 = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as u32;
    calls.allow_if(libc::SYS_futex, &[Condition::Is(1, WAKE)]);
    // The C library complains of broken memory by this call.
    calls.allow_if(libc::SYS_writev, &[Condition::Is(0, libc::STDERR_FILENO as u32)]);
}

/// What comes after it was confined: replicas, one a packet (`host.rs`), and their sessions. A replica cannot
/// have all it will ever need before, because it may have to go on in a process that is there already; so a
/// process for replicas gets descriptors for as long as it lives, which other servers cannot (they may have
/// no more of them), maps shared memory, and watches something else. All of it the supervisor's doing:
/// descriptors come over its sockets only.
fn coming_and_going(calls: &mut Calls) {
    // A replica's control socket, bell and queue are watched, and the last two not any more when it leaves.
    calls.allow(libc::SYS_epoll_ctl);
    // Memory that comes: is it sealed, how large is it, map it. What applications do not use any more goes
    // back.
    calls.allow_if(libc::SYS_fcntl, &[Condition::Is(1, libc::F_GET_SEALS as u32)]);
    calls.allow(libc::SYS_fstat);
    const SHARED: u64 = libc::MAP_SHARED as u64;
    // Not anonymous: nobody else has such memory, and no limit counts it.
    calls.allow_if(libc::SYS_mmap, &[NOT_EXECUTABLE, Condition::Bits(3, PLACED | TYPE | ANONYMOUS, SHARED)]);
    calls.allow_if(libc::SYS_madvise, &[Condition::Is(2, libc::MADV_REMOVE as u32)]);
    // A successor's own memory is in large pages, where there are any (`spawn.rs`).
    calls.allow_if(libc::SYS_madvise, &[Condition::Is(2, libc::MADV_HUGEPAGE as u32)]);
}

/// Frames of a queue: one is read, or written in pieces, by one call.
fn device(calls: &mut Calls) {
    calls.allow(libc::SYS_read);
    calls.allow(libc::SYS_writev);
}

/// Flags of memory that is to lie at a certain place.
const PLACED: u64 = (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) as u64;
const TYPE: u64 = libc::MAP_TYPE as u64;
const ANONYMOUS: u64 = libc::MAP_ANONYMOUS as u64;
const NOT_EXECUTABLE: Condition = Condition::Bits(2, libc::PROT_EXEC as u64, 0);

/// What the supervisor keeps of its capabilities once the stack is up.
///
/// SETPCAP and SYS_CHROOT: servers that it starts later give up theirs, and get an empty root without
/// Landlock.
const SUPERVISORS: CapabilitySet = CapabilitySet::SETPCAP.union(CapabilitySet::SYS_CHROOT);
/// What it keeps besides if its servers run as another user: they become that user, and it signals them (also
/// by its end, see PR_SET_PDEATHSIG(2const)), and moves the one that stands by to another processor.
const OF_OTHER_USERS: CapabilitySet = TO_BECOME.union(CapabilitySet::KILL).union(CapabilitySet::SYS_NICE);
/// What it takes to become another user.
const TO_BECOME: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID);
/// What no process of a stack needs once its device is made, which a process of its own does
/// (`supervise/device.rs`).
const NETWORK: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::NET_BROADCAST)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON);

/// Gives up the privileges that change links, addresses and routes, and load BPF programs. The supervisor
/// does so before it listens to anybody.
pub fn leave_network() -> io::Result<()> {
    privileges::keep_capabilities(CapabilitySet::all().difference(NETWORK))
}

/// Gives up what the supervisor of a stack that is up does not need any more. `visible`: others of its user
/// are to enter its namespaces, so that it is not hidden from them. `own_user`: its servers run as another
/// user.
pub fn confine_supervisor(visible: bool, own_user: bool) -> io::Result<()> {
    privileges::keep_capabilities(if own_user { SUPERVISORS.union(OF_OTHER_USERS) } else { SUPERVISORS })?;
    if visible { Ok(()) } else { privileges::hide() }
}

/// Whether servers that this process starts can become another user: it is root, has the capabilities for it,
/// and its user namespace has others.
pub fn may_change_user() -> bool {
    process::effective_user() == 0
        && process::has_other_users()
        && privileges::permitted_capabilities().is_ok_and(|own| own.contains(TO_BECOME.union(CapabilitySet::KILL)))
}

/// Keeps this process, which is to start others again, from being ended when memory runs out, as far as it
/// may. proc_pid_oom_score_adj(5).
pub fn protect_from_oom() {
    let path = "/proc/self/oom_score_adj";
    let own = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if own.is_some_and(|own| own > OOM_SUPERVISOR) {
        // Without CAP_SYS_RESOURCE it stays as it is.
        let _ = std::fs::write(path, OOM_SUPERVISOR.to_string());
    }
}

/// A server goes before its supervisor, but after programs, where the supervisor could be protected.
pub fn set_oom_score(server: u32) {
    let path = format!("/proc/{server}/oom_score_adj");
    let inherited = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if inherited.is_some_and(|inherited| (OOM_SUPERVISOR..OOM_SERVER).contains(&inherited)) {
        let _ = std::fs::write(path, OOM_SERVER.to_string());
    }
}

/// Thousandths of the memory there is that a process counts as smaller by.
const OOM_SUPERVISOR: i32 = -900;
const OOM_SERVER: i32 = -500;

/// The name of a system call, for people.
pub fn name_of(call: u32) -> String {
    match syscalls::Sysno::new(call as usize) {
        Some(call) => call.name().into(),
        None => format!("number {call}"),
    }
}

#[cfg(test)]
mod tests;

//! The privileges of servers. Each kind of server has its list of system calls, and gives up everything that
//! it does not need.
//!
//! A server takes its descriptors, its processor and its timer with the privileges of the supervisor. Then,
//! before it reads a byte that another process has written, it gives up for good:
//!
//! ```text
//!   standard input and output      lead to /dev/null
//!   the file system                Landlock with nothing allowed; without Landlock an empty root
//!   root                           the server becomes a user of the servers alone, if the stack has one
//!   capabilities                   all, of all sets; and gaining any by execve(2) (no_new_privs)
//!   limits                         no core, no process, no descriptor but those that sessions bring,
//!                                  bounded private memory
//!   others of the same user        may neither trace it nor read its memory (not dumpable)
//!   system calls                   all but those of its list; another one kills the server,
//!                                  and the supervisor reports which it was
//! ```
//!
//! A mechanism that the kernel lacks is skipped, which `atoll status` shows.

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
    /// A process that gets replicas at any time, with their memory, rings, doorbells and queues, and the
    /// memory and doorbells of their sessions.
    Replica {
        /// Whether it has a queue of the device.
        queue: bool,
    },
    /// A link server, which has a queue of the device, and gets nothing later.
    LinkServer,
    /// An IP server, which has its rings and perhaps a queue.
    IpServer {
        /// Whether it has a queue of the device.
        queue: bool,
    },
    /// A connection manager, which has only its rings.
    Manager,
}

/// The process or stack with whose end a server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndsWith {
    /// The server ends with its supervisor, whatever it is doing.
    Supervisor,
    /// The server ends with the stack: a guardian keeps what the next supervisor needs, and the server may
    /// wait for that one.
    Stack,
}

/// Most private memory of a replica in bytes. A replica that wants more has a bug or is attacked, and must
/// not use up the memory of the machine. Connections take about a kilobyte each; socket buffers are shared
/// memory, which is not counted.
const REPLICA_MEMORY: u64 = 16 << 30;
/// Most private memory in bytes of servers that are no replicas, which keep some megabytes for each replica.
const OTHER_MEMORY: u64 = 1 << 30;

/// The user that a server becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Becomes {
    /// The new user.
    pub user: ServerUser,
    /// The process that started the server, with whose end the server ends.
    pub supervisor: u32,
}

/// Gives up, for good, what a server of this `kind` does not need. If `becomes` is `None`, the server keeps
/// its user. `page` is the server's own page, on which its confinement is reported. Fails if a privilege
/// cannot be given up.
///
/// Call once, in a process with one thread. The process can do nothing afterwards that needs more.
pub fn confine(
    kind: Kind,
    ends_with: EndsWith,
    becomes: Option<Becomes>,
    page: &ReplicaPage<ShmMemory>,
) -> io::Result<()> {
    page.set_layers(0);
    page.clear_forbidden_call();
    privileges::learn();
    privileges::leave_standard_streams()?;
    let mut layers = match filesystem::leave()? {
        Confinement::Landlock => LAYER_LANDLOCK,
        Confinement::EmptyRoot => LAYER_EMPTY_ROOT,
        Confinement::None => 0,
    };
    set_limits(kind)?;
    if let Some(Becomes { user, supervisor }) = becomes {
        // The bounding set cannot be lowered after that.
        privileges::lower_bounding_set(CapabilitySet::empty())?;
        privileges::become_user(user.uid, user.gid)?;
        // The change of the user has cancelled this setting.
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

/// Sets the resource limits of a server, which it cannot raise later. No limit is raised here.
fn set_limits(kind: Kind) -> io::Result<()> {
    // A server's memory holds secrets and the data of all sessions.
    privileges::limit(Resource::Core, 0)?;
    privileges::limit(Resource::Nproc, 0)?;
    let (memory, descriptors) = match kind {
        // A replica may have as many descriptors as the supervisor, which bounds the number of sessions and
        // has all of their descriptors itself.
        Kind::Replica { .. } => (REPLICA_MEMORY, u64::MAX),
        // Open descriptors stay open; no more can be opened.
        Kind::LinkServer | Kind::IpServer { .. } | Kind::Manager => (OTHER_MEMORY, 0),
    };
    privileges::limit(Resource::Data, memory)?;
    privileges::limit(Resource::Nofile, descriptors)
}

/// Returns the list of allowed system calls for a kind of server.
pub fn calls(kind: Kind, ends_with: EndsWith) -> Calls {
    let mut calls = Calls::new();
    loop_of_all(&mut calls);
    if ends_with == EndsWith::Stack {
        // Allow outliving the supervisor (`process::outlive_parent`).
        calls.allow_if(
            libc::SYS_prctl,
            &[Condition::Is(0, libc::PR_SET_PDEATHSIG as u32), Condition::Is(1, 0)],
        );
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

/// Allows what `server.rs` does in every server.
fn loop_of_all(calls: &mut Calls) {
    // Sleep until a doorbell, the device, the supervisor or the timer wakes the process. (rustix uses this
    // call for epoll_wait.)
    calls.allow(libc::SYS_epoll_pwait);
    // Arm that timer.
    calls.allow(libc::SYS_timerfd_settime);
    // Spin without keeping the application from the processor.
    calls.allow(libc::SYS_sched_yield);
    // Change between the policies for few conversations and for many (`scheduling.rs`).
    for policy in [libc::SCHED_OTHER, libc::SCHED_BATCH] {
        let own = Condition::Is(0, 0);
        calls.allow_if(libc::SYS_sched_setscheduler, &[own, Condition::Is(1, policy as u32)]);
    }
    // Receive requests of the supervisor, with the descriptors of sessions, and send answers.
    calls.allow(libc::SYS_recvmsg);
    calls.allow(libc::SYS_sendmsg);
    // Ring doorbells.
    calls.allow_if(libc::SYS_read, &[Condition::Is(2, 8)]);
    // Log why the server ends.
    calls.allow(libc::SYS_write);
    // Read the time, where the machine has no trustworthy counter and the vDSO cannot read it.
    calls.allow(libc::SYS_clock_gettime);
    // Draw secrets at the start, and the keys of hash tables.
    calls.allow(libc::SYS_getrandom);
}

/// Allows what the allocator of the C library does. Memory is never executable, never placed over other
/// memory, and always of a kind that counts against the limit (RLIMIT_DATA): neither shared nor a stack.
fn memory_of_all(calls: &mut Calls) {
    const GROWING: u64 = libc::MAP_GROWSDOWN as u64;
    const PRIVATE: u64 = libc::MAP_PRIVATE as u64 | ANONYMOUS;
    calls.allow(libc::SYS_brk);
    calls.allow_if(
        libc::SYS_mmap,
        &[NOT_EXECUTABLE, Condition::Bits(3, PLACED | GROWING | TYPE | ANONYMOUS, PRIVATE)],
    );
    // Large blocks grow in place, or move.
    calls.allow_if(libc::SYS_mremap, &[Condition::Is(3, libc::MREMAP_MAYMOVE as u32)]);
    calls.allow(libc::SYS_munmap);
}

/// Allows ending: by return from `main`, by a panic, by a fault. Each end must be reported as what it was.
fn end_of_all(calls: &mut Calls) {
    calls.allow(libc::SYS_exit_group);
    // Descriptors are closed on the way out; builds with assertions check that they are open.
    calls.allow(libc::SYS_close);
    calls.allow_if(libc::SYS_fcntl, &[Condition::Is(1, libc::F_GETFD as u32)]);
    // The standard library frees the stack of its signal handlers.
    calls.allow(libc::SYS_sigaltstack);
    // This is for abort(3), which is how panics end: it signals only the process itself, by SIGABRT.
    calls.allow(libc::SYS_getpid);
    calls.allow(libc::SYS_gettid);
    calls.allow(libc::SYS_rt_sigprocmask);
    let (own, aborts) = (Condition::Is(0, std::process::id()), Condition::Is(2, libc::SIGABRT as u32));
    calls.allow_if(libc::SYS_tgkill, &[own, aborts]);
    // The standard library's handler of faults removes itself, and returns to the fault. The handler of
    // SIGSYS cannot be removed.
    for signal in [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS] {
        calls.allow_if(libc::SYS_rt_sigaction, &[Condition::Is(0, signal as u32)]);
    }
    calls.allow(libc::SYS_rt_sigreturn);
    // Unwinding begins with pthread_once(3), which wakes waiting threads, although there are none.
    const WAKE: u32 = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as u32;
    calls.allow_if(libc::SYS_futex, &[Condition::Is(1, WAKE)]);
    // The C library reports corrupted memory by this call.
    calls.allow_if(libc::SYS_writev, &[Condition::Is(0, libc::STDERR_FILENO as u32)]);
}

/// Allows what a process for replicas does after it was confined: it gets replicas, one per packet
/// (`host.rs`), and their sessions. Not everything that a replica will need can be there before, because it
/// may have to continue in a process that exists already. Therefore a process for replicas may receive
/// descriptors as long as it lives, which other servers cannot (their limit is 0), map shared memory, and
/// change what it watches. All of this depends on the supervisor: descriptors come over its sockets only.
fn coming_and_going(calls: &mut Calls) {
    // A replica's control socket, doorbell and queue are watched; the last two are removed when it leaves.
    calls.allow(libc::SYS_epoll_ctl);
    // Shared memory that arrives is checked for its seals and its size, and mapped. Memory that applications
    // do not use any more is freed.
    calls.allow_if(libc::SYS_fcntl, &[Condition::Is(1, libc::F_GET_SEALS as u32)]);
    calls.allow(libc::SYS_fstat);
    const SHARED: u64 = libc::MAP_SHARED as u64;
    // This memory is not anonymous: only this process would have such memory, and no limit counts it.
    calls.allow_if(libc::SYS_mmap, &[NOT_EXECUTABLE, Condition::Bits(3, PLACED | TYPE | ANONYMOUS, SHARED)]);
    calls.allow_if(libc::SYS_madvise, &[Condition::Is(2, libc::MADV_REMOVE as u32)]);
    // A successor's own memory uses large pages, where there are any (`spawn.rs`).
    calls.allow_if(libc::SYS_madvise, &[Condition::Is(2, libc::MADV_HUGEPAGE as u32)]);
}

/// Allows moving frames of a queue: one call reads a frame, or writes one in pieces.
fn device(calls: &mut Calls) {
    calls.allow(libc::SYS_read);
    calls.allow(libc::SYS_writev);
}

/// Flags that place memory at a certain address.
const PLACED: u64 = (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) as u64;
const TYPE: u64 = libc::MAP_TYPE as u64;
const ANONYMOUS: u64 = libc::MAP_ANONYMOUS as u64;
const NOT_EXECUTABLE: Condition = Condition::Bits(2, libc::PROT_EXEC as u64, 0);

/// The capabilities that the supervisor keeps once the stack is up.
///
/// SETPCAP and SYS_CHROOT let servers that it starts later give up theirs, and get an empty root without
/// Landlock.
const SUPERVISORS: CapabilitySet = CapabilitySet::SETPCAP.union(CapabilitySet::SYS_CHROOT);
/// The capabilities that the supervisor keeps besides if its servers run as another user. Servers become that
/// user, and the supervisor signals them (also by its end, see PR_SET_PDEATHSIG(2const)), and moves the
/// standby to another processor.
const OF_OTHER_USERS: CapabilitySet = TO_BECOME.union(CapabilitySet::KILL).union(CapabilitySet::SYS_NICE);
/// The capabilities that are needed to become another user.
const TO_BECOME: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID);
/// The capabilities that no process of a stack needs once its device is made, which a process of its own does
/// (`supervise/device.rs`).
const NETWORK: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::NET_BROADCAST)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON);

/// Gives up the privileges that change links, addresses and routes, and load BPF programs. The supervisor
/// does so before it listens to other processes.
pub fn leave_network() -> io::Result<()> {
    privileges::keep_capabilities(CapabilitySet::all().difference(NETWORK))
}

/// Gives up what the supervisor of a running stack does not need any more. `visible` says that other
/// processes of its user are to enter its namespaces, so that it is not hidden from them; `own_user` says
/// that its servers run as another user.
pub fn confine_supervisor(visible: bool, own_user: bool) -> io::Result<()> {
    privileges::keep_capabilities(if own_user { SUPERVISORS.union(OF_OTHER_USERS) } else { SUPERVISORS })?;
    if visible { Ok(()) } else { privileges::hide() }
}

/// Returns whether servers that this process starts can become another user: the process is root, has the
/// capabilities for it, and its user namespace has other users.
pub fn may_change_user() -> bool {
    process::effective_user() == 0
        && process::has_other_users()
        && privileges::permitted_capabilities()
            .is_ok_and(|own| own.contains(TO_BECOME.union(CapabilitySet::KILL)))
}

/// Protects this process, which is to start others again, from the OOM killer as far as it may
/// (proc_pid_oom_score_adj(5)).
pub fn protect_from_oom() {
    let path = "/proc/self/oom_score_adj";
    let own = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if own.is_some_and(|own| own > OOM_SUPERVISOR) {
        // Without CAP_SYS_RESOURCE the score does not change.
        let _ = std::fs::write(path, OOM_SUPERVISOR.to_string());
    }
}

/// Sets the OOM score of a server so that it is killed before its supervisor, but after programs, if the
/// supervisor could be protected.
pub fn set_oom_score(server: u32) {
    let path = format!("/proc/{server}/oom_score_adj");
    let inherited = std::fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if inherited.is_some_and(|inherited| (OOM_SUPERVISOR..OOM_SERVER).contains(&inherited)) {
        let _ = std::fs::write(path, OOM_SERVER.to_string());
    }
}

/// OOM score adjustments: by how many thousandths of the machine's memory a process counts as smaller.
const OOM_SUPERVISOR: i32 = -900;
const OOM_SERVER: i32 = -500;

/// Returns the name of a system call, for people.
pub fn name_of(call: u32) -> String {
    match syscalls::Sysno::new(call as usize) {
        Some(call) => call.name().into(),
        None => format!("number {call}"),
    }
}

#[cfg(test)]
mod tests;

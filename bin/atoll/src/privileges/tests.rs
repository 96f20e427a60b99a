use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

use atoll_base::{Duration, Instant};
use atoll_ipc::Memory;
use atoll_ipc::page::REPLICA_PAGE_BYTES;
use atoll_shm::Access;
use atoll_sys::epoll::{self, Epoll, EventFlags};
use atoll_sys::process::{self, Exit, Spawn};
use atoll_sys::timer::LazyTimer;
use atoll_sys::unix::{Blocking, Channel};
use atoll_sys::{eventfd, sched};

use super::*;

const KINDS: &[(&str, Kind)] = &[
    ("replica", Kind::Replica { queue: false }),
    ("replica with a queue", Kind::Replica { queue: true }),
    ("link server", Kind::LinkServer),
    ("manager", Kind::Manager),
];
const INSIDE: &str = "ATOLL_TEST_INSIDE";
const MAPPED: usize = 1 << 20;

/// The resources of a test process of its own.
struct Inside {
    kind: Kind,
    what: String,
    page: ReplicaPage<ShmMemory>,
    /// The memory of a session, which is not mapped yet.
    arena: OwnedFd,
    bell: OwnedFd,
    control: Channel,
}

/// The result of a test process.
#[derive(Debug)]
struct Outcome {
    exit: Exit,
    /// The system call that killed the process.
    call: Option<String>,
    layers: u32,
    /// The output of the process on standard error.
    said: String,
}

/// Runs the test called `test` again in a process of its own, which is confined as a server of this kind and
/// does `what`.
fn again(test: &str, kind: &str, what: &str) -> Outcome {
    let (page_fd, page) = ShmMemory::create("atoll-test", REPLICA_PAGE_BYTES).unwrap();
    let (arena, _mapped) = ShmMemory::create("atoll-test", MAPPED).unwrap();
    let bell = eventfd::create().unwrap();
    let (control, theirs) = Channel::pair(Blocking::No).unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut spawn = Spawn::this_binary("atoll-test").unwrap();
    for argument in ["--nocapture", "--exact", &format!("privileges::tests::{test}")] {
        spawn.arg(argument).unwrap();
    }
    spawn.env(INSIDE, format!("{kind}:{what}")).unwrap();
    // Without this, the harness's threads have arenas of their own, which grow by mprotect. Servers have one
    // thread.
    spawn.env("MALLOC_ARENA_MAX", "1").unwrap();
    for fd in [page_fd.as_fd(), arena.as_fd(), bell.as_fd(), theirs.as_fd(), writer.as_fd()] {
        spawn.inherit(fd);
    }
    let child = spawn.start().unwrap();
    drop(spawn);
    drop(writer);
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    let exit = child.wait().unwrap();
    drop(control);
    let page = ReplicaPage(page);
    Outcome { exit, call: page.forbidden_call().map(name_of), layers: page.layers(), said }
}

/// Returns the resources of a test process, which is confined then; `None` in the harness itself.
fn inside() -> Option<Inside> {
    let (kind, what) =
        std::env::var(INSIDE).ok()?.split_once(':').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let mut fds = process::take_inherited(5).unwrap().into_iter();
    let mut next = || fds.next().unwrap();
    let page = ReplicaPage(ShmMemory::map(next(), REPLICA_PAGE_BYTES, Access::ReadWrite).unwrap());
    let (arena, bell, control) = (next(), next(), Channel::from(next()));
    rustix::stdio::dup2_stderr(next()).unwrap();
    let kind = KINDS.iter().find(|(name, _)| *name == kind).unwrap().1;
    crate::log::open_in_server();
    confine(kind, EndsWith::Supervisor, None, &page).unwrap();
    Some(Inside { kind, what, page, arena, bell, control })
}

/// A description, the system calls that may kill the process, and the attempt itself.
type Attempt = (&'static str, &'static [&'static str], fn(&Inside));

/// Everything that a compromised server might try first.
const ATTEMPTS: &[Attempt] = &[
    ("open a file", &["openat", "open"], |_| drop(File::open("/etc/passwd"))),
    ("look at a file", &["statx", "newfstatat"], |_| drop(std::fs::metadata("/etc/passwd"))),
    ("open its own memory", &["openat"], |_| drop(File::options().write(true).open("/proc/self/mem"))),
    ("remove a file", &["unlink", "unlinkat"], |_| drop(std::fs::remove_file("/etc/atoll-no-such-file"))),
    ("run a program", &[], |_| drop(Command::new("/bin/true").spawn())),
    ("start a thread", &["clone3", "clone", "mmap", "mprotect"], |_| {
        drop(std::thread::Builder::new().spawn(|| ()))
    }),
    ("make a socket", &["socket"], |_| drop(std::net::UdpSocket::bind("127.0.0.1:0"))),
    ("connect", &["socket"], |_| drop(std::net::TcpStream::connect("127.0.0.1:1"))),
    ("reach a stack", &["socket"], |_| {
        drop(Channel::connect(std::path::Path::new("/run/atoll/default.sock"), Blocking::No));
    }),
    ("signal its parent", &["kill"], |_| {
        let parent = rustix::process::Pid::from_raw(1).unwrap();
        let _ = rustix::process::kill_process(parent, rustix::process::Signal::TERM);
    }),
    ("signal another process by its pidfd", &["pidfd_open"], |_| drop(process::pidfd_open(1))),
    ("make memory to share", &["memfd_create"], |_| drop(atoll_sys::create_memfd("x", 4096))),
    ("make a bell", &["eventfd2"], |_| drop(eventfd::create())),
    ("wait for more", &["epoll_create1"], |_| drop(Epoll::new())),
    ("make a namespace", &["unshare"], |_| drop(process::unshare(process::UnshareFlags::NEWUSER))),
    ("change its name", &["prctl"], |_| drop(sched::set_name("kworker"))),
    ("be visible again", &["prctl"], |_| {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
    }),
    ("move to another processor", &["sched_setaffinity"], |_| drop(sched::set_affinity(&[0]))),
    ("change a limit", &["prlimit64", "getrlimit"], |_| drop(process::raise_nofile_limit(100))),
    ("regain capabilities", &["capget", "prctl"], |_| {
        drop(privileges::keep_capabilities(CapabilitySet::all()))
    }),
    ("have another list", &["seccomp", "prctl"], |inside| {
        drop(calls(inside.kind, EndsWith::Stack).enforce())
    }),
    ("outlive the supervisor", &["prctl"], |_| drop(process::outlive_parent())),
    ("let the supervisor's socket block", &["fcntl", "ioctl"], |inside| {
        let _ = rustix::io::ioctl_fionbio(&inside.control, false);
    }),
    ("copy a descriptor", &["fcntl"], |inside| drop(inside.bell.try_clone())),
    ("place a descriptor", &["dup3", "dup2"], |inside| {
        let _ = rustix::stdio::dup2_stdin(&inside.bell);
    }),
];

#[test]
fn what_is_not_on_the_list_is_deadly() {
    if let Some(inside) = inside() {
        let (.., attempt) = ATTEMPTS.iter().find(|(what, ..)| *what == inside.what).unwrap();
        attempt(&inside);
        // Status 0 says that the attempt was not deadly, whatever it returned.
        std::process::exit(0);
    }
    for (kind, _) in KINDS {
        for (what, names, _) in ATTEMPTS {
            let outcome = again("what_is_not_on_the_list_is_deadly", kind, what);
            assert_eq!(outcome.exit, Exit::Signal(libc::SIGSYS), "{kind}: {what}: {outcome:?}");
            // The library starts programs with all signals blocked, so the handler does not run.
            let is_named =
                outcome.call.as_ref().map_or(*what == "run a program", |call| names.contains(&&**call));
            assert!(is_named, "{kind}: {what}: {outcome:?}");
            assert!(outcome.layers & LAYER_SECCOMP != 0 && outcome.layers & LAYER_CAPABILITIES != 0);
        }
    }
}

/// Memory without a limit could exhaust that of the machine. `seccomp/tests.rs` checks that the kernel
/// enforces the lists.
#[test]
fn all_memory_that_a_server_can_have_is_counted() {
    use libc::{
        MAP_ANONYMOUS, MAP_GROWSDOWN, MAP_HUGETLB, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED,
        MAP_SHARED_VALIDATE,
    };
    let anonymous = MAP_ANONYMOUS;
    for (name, kind) in KINDS {
        let list = calls(*kind, EndsWith::Stack);
        let may = |flags: libc::c_int, fd: i64| {
            let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
            list.permits(libc::SYS_mmap, [0, 1 << 40, protection, flags as u64, fd as u64, 0])
        };
        for flags in
            [MAP_SHARED, MAP_SHARED_VALIDATE, MAP_SHARED | MAP_HUGETLB, MAP_PRIVATE | MAP_GROWSDOWN, 8, 0]
        {
            assert!(!may(anonymous | flags, -1), "{name}: {flags:#x}");
        }
        assert!(
            may(anonymous | MAP_PRIVATE, -1) && may(anonymous | MAP_PRIVATE | MAP_NORESERVE, -1),
            "{name}"
        );
        assert_eq!(
            may(MAP_SHARED, 5),
            matches!(kind, Kind::Replica { .. }),
            "{name}: the memory of a session"
        );
    }
}

#[test]
fn only_servers_of_a_stack_that_somebody_keeps_may_outlive_the_supervisor() {
    let death_signal = [libc::PR_SET_PDEATHSIG as u64, 0, 0, 0, 0, 0];
    for (name, kind) in KINDS {
        assert!(!calls(*kind, EndsWith::Supervisor).permits(libc::SYS_prctl, death_signal), "{name}");
        assert!(calls(*kind, EndsWith::Stack).permits(libc::SYS_prctl, death_signal), "{name}");
    }
}

/// The lists differ by kind: only replicas have the calls of sessions and those to watch new descriptors, and
/// only servers with a queue those of frames.
#[test]
fn each_kind_has_a_list_of_its_own() {
    if let Some(inside) = inside() {
        match inside.what.as_str() {
            "map a session" => drop(ShmMemory::map(&inside.arena, MAPPED, Access::ReadWrite).unwrap()),
            "watch something else" => {
                // The doorbell is no epoll instance, so a call that is allowed fails.
                let data = rustix::event::epoll::EventData::new_u64(0);
                let (bell, control) = (&inside.bell, &inside.control);
                assert!(
                    rustix::event::epoll::add(bell, control, data, rustix::event::epoll::EventFlags::IN)
                        .is_err()
                );
            }
            // A read of as many octets as a doorbell has is allowed to all servers.
            "read a frame" => assert_eq!(rustix::io::read(&inside.bell, &mut [0; 9]), Ok(8)),
            "write a frame" => {
                let ring = 1u64.to_ne_bytes();
                assert_eq!(rustix::io::writev(&inside.bell, &[std::io::IoSlice::new(&ring)]), Ok(8));
            }
            other => panic!("{other}"),
        }
        std::process::exit(7);
    }
    let (replica, with_queue, link_server, manager) = (0, 1, 2, 3);
    for (what, allowed, name) in [
        ("map a session", [replica, with_queue].as_slice(), "fcntl"),
        ("watch something else", &[replica, with_queue], "epoll_ctl"),
        ("read a frame", &[with_queue, link_server], "read"),
        ("write a frame", &[with_queue, link_server], "writev"),
    ] {
        for kind in [replica, with_queue, link_server, manager] {
            let outcome = again("each_kind_has_a_list_of_its_own", KINDS[kind].0, what);
            let expected = if allowed.contains(&kind) {
                (Exit::Code(7), None)
            } else {
                (Exit::Signal(libc::SIGSYS), Some(name))
            };
            assert_eq!(
                (outcome.exit, outcome.call.as_deref()),
                expected,
                "{} {what}: {}",
                KINDS[kind].0,
                outcome.said
            );
        }
    }
}

/// Checks the work of every server, and the ways in which it may end.
#[test]
fn what_servers_do_is_allowed() {
    if let Some(inside) = inside() {
        match inside.what.as_str() {
            "work" => work(&inside),
            "panic" => drop(std::panic::catch_unwind(|| panic!("as it is"))),
            "abort" => std::process::abort(),
            "overflow" => drop(std::hint::black_box(overflow(0))),
            other => panic!("{other}"),
        }
        std::process::exit(7);
    }
    for (kind, _) in KINDS {
        for (what, exit, said) in [
            ("work", Exit::Code(7), ""),
            ("panic", Exit::Code(7), "as it is"),
            ("abort", Exit::Signal(libc::SIGABRT), ""),
            ("overflow", Exit::Signal(libc::SIGABRT), "overflowed its stack"),
        ] {
            let outcome = again("what_servers_do_is_allowed", kind, what);
            assert_eq!((outcome.exit, &outcome.call), (exit, &None), "{kind}: {what}: {outcome:?}");
            assert!(outcome.said.contains(said), "{kind}: {what}: {outcome:?}");
        }
    }
}

fn work(inside: &Inside) {
    eventfd::ring(&inside.bell).unwrap();
    inside.control.send(b"ready", &[]).unwrap();
    assert!(inside.control.receive(&mut [0; 64], &mut Vec::new()).is_err(), "nothing has come");
    process::random(&mut [0; 32]).unwrap();
    sched::yield_now();
    eprintln!("writing works");
    // Memory grows and shrinks, below and above the size from which the allocator maps memory.
    let mut kept = Vec::new();
    for size in [100, 10_000, 200_000, 5 << 20, 200 << 20] {
        let mut bytes = vec![1u8; size];
        bytes.resize(size * 3 / 2, 2);
        bytes.shrink_to(size / 3);
        kept.push(bytes);
    }
    drop(kept);
    let mut table = std::collections::HashMap::new();
    table.extend((0..100_000).map(|i| (i, i)));
    assert_eq!(inside.page.layers() & LAYER_SECCOMP, LAYER_SECCOMP);
    if matches!(inside.kind, Kind::Replica { .. }) {
        let arena = ShmMemory::map(&inside.arena, MAPPED, Access::ReadWrite).unwrap();
        arena.store64(8192, 7);
        arena.mapping().punch_hole(0..MAPPED).unwrap();
        assert_eq!(arena.load64(8192), 0);
    }
}

/// Uses up the stack.
fn overflow(depth: u64) -> u8 {
    let bytes = std::hint::black_box([depth as u8; 4096]);
    if depth == u64::MAX { 0 } else { overflow(depth + 1).wrapping_add(bytes[17]) }
}

/// Checks that sleeping works with an epoll instance that was made before the confinement.
#[test]
fn a_confined_server_sleeps_and_wakes() {
    let Ok(setting) = std::env::var(INSIDE) else {
        for (kind, _) in KINDS {
            let outcome = again("a_confined_server_sleeps_and_wakes", kind, "sleep");
            assert_eq!((outcome.exit, &outcome.call), (Exit::Code(7), &None), "{kind}: {outcome:?}");
        }
        return;
    };
    assert!(setting.ends_with(":sleep"));
    let (epoll, mut timer) = (Epoll::new().unwrap(), LazyTimer::new(Duration::from_millis(1)).unwrap());
    epoll.add(&timer, 5, EventFlags::IN | EventFlags::ET).unwrap();
    let clock = atoll_sys::Clock::kernel();
    // The descriptors above do not have numbers of inherited ones.
    let _inside = inside().unwrap();
    let now: Instant = clock.now();
    timer.wake_at(now, now + Duration::from_millis(2)).unwrap();
    let mut events = [epoll::EMPTY; 4];
    assert_eq!(epoll.wait(&mut events, None).unwrap(), 1);
    std::process::exit(7);
}

#[test]
fn calls_have_names() {
    assert_eq!(name_of(libc::SYS_openat as u32), "openat");
    assert_eq!(name_of(999_999), "number 999999");
}

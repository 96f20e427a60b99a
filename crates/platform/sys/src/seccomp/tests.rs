use std::os::fd::AsFd;

use super::*;
use crate::process::{Exit, Spawn, take_inherited};
use crate::{Access, Mapping, Prefault};

const INSIDE: &str = "ATOLL_TEST_INSIDE";

/// Runs the test `test` again in a process of its own, which does `what`. Returns how that ended, and the
/// word that its handler wrote.
fn again(test: &str, what: &str) -> (Exit, u32) {
    let (fd, mapping) = Mapping::create("atoll-test", 4096, Prefault::No).unwrap();
    let mut spawn = Spawn::this_binary("atoll-test").unwrap();
    spawn.arg("--exact").unwrap().arg(format!("seccomp::tests::{test}")).unwrap();
    spawn.env(INSIDE, what).unwrap();
    spawn.inherit(fd.as_fd());
    let exit = spawn.start().unwrap().wait().unwrap();
    (exit, word_of(&mapping).load(Ordering::Acquire))
}

/// Returns what a test process of its own is to do, after preparing its word; `None` in the harness itself.
fn inside() -> Option<String> {
    let what = std::env::var(INSIDE).ok()?;
    let fd = take_inherited(1).unwrap().remove(0);
    let mapping = Mapping::new(fd, 4096, Access::ReadWrite, Prefault::No).unwrap();
    report_to(word_of(Box::leak(Box::new(mapping)))).unwrap();
    Some(what)
}

fn word_of(mapping: &Mapping) -> &AtomicU32 {
    // SAFETY: it is mapped for writing while `mapping` lives, aligned to a page, and accessed only like this.
    unsafe { AtomicU32::from_ptr(mapping.as_ptr().cast()) }
}

/// Makes a system call as [`libc::syscall`] does, and returns its result.
fn call(number: libc::c_long, arguments: [usize; 3]) -> i64 {
    // SAFETY: this makes only calls that read or write no memory.
    unsafe { libc::syscall(number, arguments[0], arguments[1], arguments[2]) }
}

/// Ends the process without what the harness does on the way out.
fn exit(status: i32) -> ! {
    // SAFETY: the call uses no memory of the process.
    unsafe { libc::_exit(status) }
}

fn list() -> Calls {
    let mut calls = Calls::new();
    calls.allow(libc::SYS_exit_group).allow(libc::SYS_getppid);
    calls.allow_if(libc::SYS_fcntl, &[Condition::Is(0, 1), Condition::Is(1, libc::F_GETFD as u32)]);
    calls.allow_if(libc::SYS_fcntl, &[Condition::Is(0, 2), Condition::Bits(1, 0xff, libc::F_GETFL as u64)]);
    calls
}

#[test]
fn a_call_that_is_not_on_the_list_is_deadly_and_named() {
    const NAME: &str = "a_call_that_is_not_on_the_list_is_deadly_and_named";
    if let Some(what) = inside() {
        assert!(list().enforce().unwrap(), "this kernel has filters");
        let fcntl = |fd, command: i32| call(libc::SYS_fcntl, [fd, command as usize, 0]);
        match what.as_str() {
            "getuid" => call(libc::SYS_getuid, [0; 3]),
            "another descriptor" => fcntl(2, libc::F_GETFD),
            "another command" => fcntl(1, libc::F_GETFL),
            "neither" => fcntl(0, libc::F_DUPFD),
            // This is getppid(2) under the number of another ABI.
            "x32" => call(libc::SYS_getppid | 0x4000_0000, [0; 3]),
            _ => exit(
                if call(libc::SYS_getppid, [0; 3]) > 0
                    && fcntl(1, libc::F_GETFD) >= 0
                    && fcntl(2, libc::F_GETFL) >= 0
                {
                    7
                } else {
                    1
                },
            ),
        };
        exit(2);
    }
    assert_eq!(again(NAME, "what is allowed"), (Exit::Code(7), 0));
    let fcntl = libc::SYS_fcntl as u32 + 1;
    for (what, number) in [
        ("getuid", libc::SYS_getuid as u32 + 1),
        ("another descriptor", fcntl),
        ("another command", fcntl),
        ("neither", fcntl),
        ("x32", (libc::SYS_getppid | 0x4000_0000) as u32 + 1),
    ] {
        assert_eq!(again(NAME, what), (Exit::Signal(libc::SIGSYS), number), "{what}");
    }
}

/// A SIGSYS that another process sends is deadly, too, but the report names no system call.
#[test]
fn a_signal_that_somebody_sends_names_no_call() {
    const NAME: &str = "a_signal_that_somebody_sends_names_no_call";
    if inside().is_some() {
        let own = std::process::id();
        let mut calls = list();
        calls.allow_if(libc::SYS_kill, &[Condition::Is(0, own), Condition::Is(1, libc::SIGSYS as u32)]);
        calls.enforce().unwrap();
        call(libc::SYS_kill, [own as usize, libc::SIGSYS as usize, 0]);
        // Another thread of the harness may have taken the signal, which ends the process as well.
        loop {
            std::hint::spin_loop();
        }
    }
    let (exit, word) = again(NAME, "kill");
    assert!(matches!(exit, Exit::Signal(libc::SIGSYS) | Exit::Code(159)), "{exit:?}");
    assert_eq!(word, 0);
}

/// A condition on a call does not narrow a rule that allows the call without one.
#[test]
fn what_is_allowed_stays_allowed() {
    let mut calls = list();
    calls.allow_if(libc::SYS_getppid, &[Condition::Is(0, 7)]);
    assert!(calls.0[&libc::SYS_getppid].is_empty());
    calls.allow(libc::SYS_fcntl);
    assert!(calls.0[&libc::SYS_fcntl].is_empty());
    assert_eq!(calls.rules().unwrap().len(), 3);
}

use super::*;
use crate::epoll::{self, Epoll, EventFlags};
use std::io::Read;

fn shell(script: &str) -> Spawn<'static> {
    let mut spawn = Spawn::program(Path::new("/bin/sh"), "sh").unwrap();
    spawn.arg("-c").unwrap().arg(script).unwrap();
    spawn
}

#[test]
fn exit_codes_and_signals_are_told_apart() {
    assert_eq!(shell("exit 7").start().unwrap().wait().unwrap(), Exit::Code(7));
    assert_eq!(shell("kill -SEGV $$").start().unwrap().wait().unwrap(), Exit::Signal(libc::SIGSEGV));
}

#[test]
fn a_running_child_can_be_killed() {
    let child = shell("exec sleep 1000").start().unwrap();
    assert_eq!(child.try_wait().unwrap(), None);
    child.kill(Signal::KILL).unwrap();
    assert_eq!(child.wait().unwrap(), Exit::Signal(libc::SIGKILL));
    assert!(child.try_wait().is_err(), "reaped only once");
}

#[test]
fn only_the_inherited_descriptors_arrive_at_their_numbers() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let (other_reader, _other_writer) = std::io::pipe().unwrap();
    // This descriptor is not CLOEXEC, so it would leak into a plain exec.
    let leak = rustix::io::dup(&other_reader).unwrap();
    let mut spawn = shell(
        "open=; for n in 0 1 2 3 4 5 6 7 8 9 10 11 12; do [ -e /proc/$$/fd/$n ] && open=$open$n,; done; echo \
         $open $GREETING >&4",
    );
    assert_eq!(spawn.inherit(other_reader.as_fd()), 3);
    assert_eq!(spawn.inherit(writer.as_fd()), 4);
    spawn.env("GREETING", "hello").unwrap();
    let child = spawn.start().unwrap();
    assert_eq!(child.wait().unwrap(), Exit::Code(0));
    drop(spawn);
    drop((writer, leak));
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert_eq!(said, "0,1,2,3,4, hello\n");
}

#[test]
fn whoever_reads_no_errors_keeps_nobody_from_writing_them() {
    let mut spawn = shell(
        "echo first >&2; i=0; while [ $i -lt 20000 ]; do echo a line of some octets >&2; i=$((i+1)); done; \
         exit 7",
    );
    let mut child = spawn.capture_errors().start().unwrap();
    // The shell writes more than a pipe holds, and no process reads. Its writes fail, and it continues.
    assert_eq!(child.wait().unwrap(), Exit::Code(7));
    let mut errors = std::fs::File::from(child.take_errors().unwrap());
    let mut said = String::new();
    errors.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("first\na line") && said.len() < 1 << 18, "{}", said.len());
    assert!(child.take_errors().is_none());
    // A process that still runs has written nothing yet.
    let mut child = shell("exec sleep 1000").capture_errors().start().unwrap();
    let mut errors = std::fs::File::from(child.take_errors().unwrap());
    assert_eq!(errors.read(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    child.kill(Signal::KILL).unwrap();
    child.wait().unwrap();
}

#[test]
fn a_missing_program_is_an_error_here_not_in_the_child() {
    let error = Spawn::program(Path::new("/nonexistent/program"), "x").unwrap().start().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(Spawn::program(Path::new("/bin/sh"), "a\0b").is_err());
}

#[test]
fn a_pidfd_reports_the_end() {
    let child = shell("exit 0").start().unwrap();
    let pidfd = pidfd_open(child.pid()).unwrap();
    let epoll = Epoll::new().unwrap();
    epoll.add(&pidfd, 1, EventFlags::IN).unwrap();
    assert_eq!(epoll.wait(&mut [epoll::EMPTY], Some(10_000)).unwrap(), 1);
    assert_eq!(child.try_wait().unwrap(), Some(Exit::Code(0)));
    assert!(pidfd_open(0).is_err());
    assert!(pidfd_open(u32::MAX).is_err());
}

#[test]
fn randomness_differs_and_limits_only_rise() {
    let (mut a, mut b) = ([0; 1000], [0; 1000]);
    random(&mut a).unwrap();
    random(&mut b).unwrap();
    assert_ne!(a, b);
    let before = raise_nofile_limit(0).unwrap();
    assert!(raise_nofile_limit(before).unwrap() >= before);
}

#[test]
fn a_private_descriptor_table_is_refused() {
    assert_eq!(unshare(UnshareFlags::FILES).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

/// Prepares another run of the test `name` in a process of its own, with the variable [`INSIDE`] set.
fn again(name: &str) -> Spawn<'static> {
    let mut spawn = Spawn::this_binary("atoll-test").unwrap();
    spawn.arg("--exact").unwrap().arg(format!("process::tests::{name}")).unwrap();
    spawn.env(INSIDE, std::process::id().to_string()).unwrap();
    spawn
}

/// Returns the pid of the original process if this is a test process of its own.
fn inside() -> Option<u32> {
    std::env::var(INSIDE).ok().map(|pid| pid.parse().unwrap())
}

const INSIDE: &str = "ATOLL_TEST_INSIDE";

#[test]
fn a_re_executed_process_takes_its_descriptors_once() {
    if let Some(parent) = inside() {
        die_with_parent(parent).unwrap();
        set_no_new_privs().unwrap();
        let taken = take_inherited(2).unwrap();
        assert!(fcntl_getfd(&taken[1]).unwrap().contains(FdFlags::CLOEXEC));
        crate::eventfd::ring(&taken[1]).unwrap();
        assert_eq!(take_inherited(2).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        return;
    }
    let (quiet, rung) = (crate::eventfd::create().unwrap(), crate::eventfd::create().unwrap());
    let mut spawn = again("a_re_executed_process_takes_its_descriptors_once");
    spawn.inherit(quiet.as_fd());
    spawn.inherit(rung.as_fd());
    assert_eq!(spawn.inherited(), 2);
    let (epoll, mut events) = (Epoll::new().unwrap(), [epoll::EMPTY; 4]);
    for (bell, token) in [(&quiet, 1), (&rung, 2)] {
        epoll.add(bell, token, crate::eventfd::WATCHED).unwrap();
    }
    assert_eq!(epoll.wait(&mut events, Some(0)).unwrap(), 2, "a watch begins with an event");
    assert_eq!(spawn.start().unwrap().wait().unwrap(), Exit::Code(0));
    assert_eq!(epoll.wait(&mut events, Some(0)).unwrap(), 1);
    assert_eq!(epoll::token(&events[0]), 2);
}

#[test]
fn descriptors_that_were_not_inherited_are_not_taken() {
    if inside().is_some() {
        assert_eq!(take_inherited(500).unwrap_err().raw_os_error(), Some(libc::EBADF));
        return;
    }
    let spawn = again("descriptors_that_were_not_inherited_are_not_taken");
    assert_eq!(spawn.start().unwrap().wait().unwrap(), Exit::Code(0));
}

#[test]
fn a_process_whose_parent_is_gone_is_told_so() {
    if inside().is_some() {
        assert_eq!(die_with_parent(u32::MAX).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        return;
    }
    let spawn = again("a_process_whose_parent_is_gone_is_told_so");
    assert_eq!(spawn.start().unwrap().wait().unwrap(), Exit::Code(0));
}

#[test]
fn the_end_of_a_process_of_others_is_noticed_and_nothing_is_known_of_it() {
    let child = shell("exec sleep 1000").start().unwrap();
    let foster = Child::foster(child.pid(), child.pidfd().try_clone_to_owned().unwrap());
    assert_eq!(foster.try_wait().unwrap(), None);
    foster.kill(Signal::KILL).unwrap();
    assert_eq!(foster.wait().unwrap(), Exit::Unknown);
    assert_eq!(foster.try_wait().unwrap(), Some(Exit::Unknown));
    assert_eq!(child.wait().unwrap(), Exit::Signal(libc::SIGKILL));
}

#[test]
fn a_program_is_started_from_its_descriptor_whatever_becomes_of_its_name() {
    let path = std::env::temp_dir().join(format!("atoll-spawn-test-{}", std::process::id()));
    std::fs::write(&path, "#!/bin/sh\n[ $1 = ok ] && exit 9\n").unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let file = rustix::fs::open(&path, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let (_reader, writer) = std::io::pipe().unwrap();
    let mut spawn = Spawn::file(file.as_fd(), "x").unwrap();
    spawn.arg("ok").unwrap();
    assert_eq!(spawn.inherit(writer.as_fd()), 3);
    assert_eq!(spawn.start().unwrap().wait().unwrap(), Exit::Code(9));
}

use super::*;
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
    // Not CLOEXEC, so it would leak into a plain exec.
    let leak = rustix::io::dup(&other_reader).unwrap();
    let mut spawn = shell(
        "open=; for n in 0 1 2 3 4 5 6 7 8 9 10 11 12; do [ -e /proc/$$/fd/$n ] && open=$open$n,; done; echo $open $GREETING >&4",
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
fn a_missing_program_is_an_error_here_not_in_the_child() {
    let error = Spawn::program(Path::new("/nonexistent/program"), "x").unwrap().start().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(Spawn::program(Path::new("/bin/sh"), "a\0b").is_err());
}

#[test]
fn a_pidfd_reports_the_end() {
    let child = shell("exit 0").start().unwrap();
    let pidfd = pidfd_open(child.pid()).unwrap();
    let epoll = crate::epoll::Epoll::new().unwrap();
    epoll.add(&pidfd, 1, crate::epoll::EventFlags::IN).unwrap();
    assert_eq!(epoll.wait(&mut [crate::epoll::EMPTY], Some(10_000)).unwrap(), 1);
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

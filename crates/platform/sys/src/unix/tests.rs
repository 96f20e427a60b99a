use super::*;
use crate::epoll::{self, Epoll};
use std::path::PathBuf;

use rustix::process::{getegid, geteuid};

/// A directory of this test that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("atoll-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn talk_through(path: &Path) {
    let listener = Listener::bind(path, 8, Blocking::No).unwrap();
    assert_eq!(listener.accept(Blocking::No).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let client = Channel::connect(path, Blocking::Yes).unwrap();
    let server = listener.accept(Blocking::No).unwrap();
    client.send(b"hello", &[]).unwrap();
    let (mut buffer, mut fds) = ([0; 16], Vec::new());
    assert_eq!(server.receive(&mut buffer, &mut fds).unwrap(), 5);
    assert_eq!(&buffer[..5], b"hello");
    let peer = server.peer().unwrap();
    assert_eq!(peer.pid, std::process::id());
    assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    drop(client);
    assert_eq!(server.receive(&mut buffer, &mut fds).unwrap(), 0);
}

#[test]
fn short_paths_work_and_a_stale_socket_is_replaced() {
    let scratch = Scratch::new("short");
    talk_through(&scratch.0.join("s"));
    talk_through(&scratch.0.join("s"));
}

#[test]
fn paths_longer_than_sun_path_work() {
    let scratch = Scratch::new("long");
    let deep = scratch.0.join("d".repeat(120));
    std::fs::create_dir(&deep).unwrap();
    talk_through(&deep.join("s"));
}

#[test]
fn a_plain_file_in_the_way_is_not_replaced() {
    let scratch = Scratch::new("file");
    let path = scratch.0.join("s");
    std::fs::write(&path, "precious").unwrap();
    assert_eq!(Listener::bind(&path, 8, Blocking::No).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn the_largest_set_of_descriptors_arrives() {
    let (a, b) = Channel::pair(Blocking::No).unwrap();
    let bell = crate::eventfd::create().unwrap();
    a.send(b"x", &[bell.as_fd(); FDS_MAX]).unwrap();
    assert!(a.send(b"x", &[bell.as_fd(); FDS_MAX + 1]).is_err());
    let mut fds = Vec::new();
    assert_eq!(b.receive(&mut [0; 8], &mut fds).unwrap(), 1);
    assert_eq!(fds.len(), FDS_MAX);
    let (epoll, mut events) = (Epoll::new().unwrap(), [epoll::EMPTY; 2]);
    epoll.add(&bell, 1, crate::eventfd::WATCHED).unwrap();
    assert_eq!(epoll.wait(&mut events, Some(0)).unwrap(), 1, "a watch begins with an event");
    crate::eventfd::ring(&fds[17]).unwrap();
    assert_eq!(epoll.wait(&mut events, Some(0)).unwrap(), 1, "it is the same bell");
    assert!(rustix::io::fcntl_getfd(&fds[0]).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
}

#[test]
fn a_message_that_does_not_fit_is_an_error_and_the_next_one_arrives() {
    let (a, b) = Channel::pair(Blocking::No).unwrap();
    let bell = crate::eventfd::create().unwrap();
    a.send(b"too long", &[bell.as_fd()]).unwrap();
    a.send(b"fits", &[]).unwrap();
    let (mut buffer, mut fds) = ([0; 4], Vec::new());
    assert_eq!(b.receive(&mut buffer, &mut fds).unwrap_err().kind(), io::ErrorKind::InvalidData);
    assert!(fds.is_empty());
    assert_eq!(b.receive(&mut buffer, &mut fds).unwrap(), 4);
    assert_eq!(b.receive(&mut buffer, &mut fds).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert!(a.send(b"", &[]).is_err());
}

#[test]
fn blocking_operations_end_at_the_timeout() {
    let (_a, b) = Channel::pair(Blocking::Yes).unwrap();
    b.set_timeouts(Duration::from_millis(5)).unwrap();
    assert_eq!(b.receive(&mut [0; 4], &mut Vec::new()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_user_trusts_himself_and_root() {
    let peer = |uid| Peer { pid: 1, uid, gid: 0 };
    assert!(peer(1000).is_trusted_by(1000) && peer(0).is_trusted_by(1000) && !peer(1001).is_trusted_by(1000));
    assert!(peer(1000).is_trusted_by(0));
}

#[test]
fn who_refuses_descriptors_gets_messages_only() {
    let scratch = Scratch::new("no-descriptors");
    let path = scratch.0.join("s");
    let listener = Listener::bind(&path, 8, Blocking::No).unwrap();
    Channel::refuse_descriptors(&listener).unwrap();
    let client = Channel::connect_to_own(&path, Duration::from_secs(5)).unwrap();
    let server = listener.accept(Blocking::No).unwrap();
    client.send(b"x", &[]).unwrap();
    assert_eq!(server.receive(&mut [0; 4], &mut Vec::new()).unwrap(), 1);
    let bell = crate::eventfd::create().unwrap();
    // Kernels before 6.16 do not have this option.
    let version = rustix::system::uname();
    let version: Vec<u32> =
        version.release().to_str().unwrap().split('.').filter_map(|n| n.parse().ok()).collect();
    if version >= vec![6, 16] {
        assert_eq!(client.send(b"x", &[bell.as_fd()]).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        // Descriptors can still be sent in the other direction.
        server.send(b"x", &[bell.as_fd()]).unwrap();
    }
}

#[test]
fn who_sends_is_told_if_it_was_asked_for() {
    let (a, b) = Channel::pair(Blocking::No).unwrap();
    let (mut buffer, mut fds) = ([0; 16], Vec::new());
    a.send(b"1", &[]).unwrap();
    assert_eq!(b.receive_from(&mut buffer, &mut fds).unwrap(), (1, None));
    Channel::ask_for_senders(&b).unwrap();
    let own = Peer { pid: std::process::id(), uid: geteuid().as_raw(), gid: getegid().as_raw() };
    a.send_as_effective(b"22").unwrap();
    a.send(b"333", &[a.as_fd(), b.as_fd()]).unwrap();
    // Looking at a message leaves it in the socket.
    assert_eq!(b.look_from(&mut buffer, &mut Vec::new()).unwrap(), (2, Some(own)));
    assert_eq!(b.receive_from(&mut buffer, &mut fds).unwrap(), (2, Some(own)));
    assert_eq!(b.receive_from(&mut buffer, &mut fds).unwrap(), (3, Some(own)));
    assert_eq!((&buffer[..3], fds.len()), (&b"333"[..], 2));
    assert!(is_channel(&a) && !is_channel(std::fs::File::open("/dev/null").unwrap()));
    // A message that does not fit is lost, and its descriptors are closed.
    a.send(&[7; 40], &[a.as_fd()]).unwrap();
    a.send(b"4", &[]).unwrap();
    fds.clear();
    assert_eq!(b.receive_from(&mut buffer, &mut fds).unwrap_err().kind(), io::ErrorKind::InvalidData);
    assert_eq!((b.receive_from(&mut buffer, &mut fds).unwrap(), fds.len()), ((1, Some(own)), 0));
}

/// A supervisor in a container sees processes outside of it with the number 0.
#[test]
fn a_sender_without_a_number_here_is_a_sender() {
    let peer = peer(libc::ucred { pid: 0, uid: 65534, gid: 65534 });
    assert_eq!(peer, Peer { pid: 0, uid: 65534, gid: 65534 });
}

#[test]
fn a_full_backlog_is_waited_for_and_no_longer_than_told() {
    let scratch = Scratch::new("backlog");
    let path = scratch.0.join("s");
    let listener = Listener::bind(&path, 1, Blocking::No).unwrap();
    let mut waiting = Vec::new();
    let full = loop {
        match Channel::connect_to_own(&path, Duration::from_millis(20)) {
            Ok(channel) => waiting.push(channel),
            Err(error) => break error,
        }
    };
    assert_eq!((full.kind(), waiting.len()), (io::ErrorKind::WouldBlock, 2));
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| Channel::connect_to_own(&path, Duration::from_secs(20)));
        std::thread::sleep(std::time::Duration::from_millis(20));
        listener.accept(Blocking::No).unwrap();
        connecting.join().unwrap().unwrap();
    });
}

#[test]
fn a_signal_ends_neither_connecting_nor_waiting_for_an_answer() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing, and no other test uses this signal.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
    }
    let scratch = Scratch::new("signals");
    let path = scratch.0.join("s");
    let listener = Listener::bind(&path, 1, Blocking::No).unwrap();
    let _full = [(); 2].map(|()| Channel::connect(&path, Blocking::No).unwrap());
    let asking = std::thread::spawn({
        let (path, time) = (path.clone(), Duration::from_secs(20));
        move || {
            let channel = Channel::connect_to_own(&path, time).unwrap();
            channel.receive_within(time, &mut [0; 4], &mut Vec::new()).unwrap()
        }
    });
    let thread = std::os::unix::thread::JoinHandleExt::as_pthread_t(&asking);
    let interrupt = || {
        for _ in 0..20 {
            // SAFETY: the thread is joined after the last signal.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    interrupt();
    let mut accepted: Vec<Channel> = Vec::new();
    // The thread ends earlier only if it has failed.
    while accepted.len() < 3 && !asking.is_finished() {
        accepted.extend(listener.accept(Blocking::No));
    }
    interrupt();
    if let Some(last) = accepted.get(2) {
        last.send(b"x", &[]).unwrap();
    }
    assert_eq!(asking.join().unwrap(), 1);
    let (_a, b) = Channel::pair(Blocking::Yes).unwrap();
    let time = Duration::from_millis(5);
    b.set_timeouts(time).unwrap();
    assert_eq!(
        b.receive_within(time, &mut [0; 4], &mut Vec::new()).unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
}

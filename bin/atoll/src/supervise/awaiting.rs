//! Waits for the ends of processes when the stack ends: for some time, after which they are killed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use atoll_base::{Duration, Instant};
use atoll_sys::process::{Child, Signal};
use atoll_sys::unix::Channel;

use crate::clock;

/// Waits for the end of a process until `deadline`, and then kills it.
pub fn await_end(child: &Child, deadline: Instant) {
    // An error means that it was reaped before.
    while matches!(child.try_wait(), Ok(None)) {
        let left = deadline.since(clock::now());
        if left.is_zero() {
            let _ = child.kill(Signal::KILL);
            let _ = child.wait();
            break;
        }
        wait_readable(child.as_fd(), left);
    }
}

/// Waits until a server closes its control socket; at `deadline` kills its process.
pub fn await_closed(control: &Channel, child: &Child, deadline: Instant) {
    while !is_closed(control) {
        let left = deadline.since(clock::now());
        if left.is_zero() {
            let _ = child.kill(Signal::KILL);
            break;
        }
        wait_readable(control.as_fd(), left);
    }
}

/// Returns whether the other end has closed the socket. Messages that are still in it are dropped.
fn is_closed(control: &Channel) -> bool {
    let (mut buffer, mut fds) = ([0; 4096], Vec::new());
    loop {
        match control.receive(&mut buffer, &mut fds) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return false,
                io::ErrorKind::InvalidData | io::ErrorKind::Interrupted => {}
                _ => return true,
            },
        }
    }
}

fn wait_readable(fd: BorrowedFd<'_>, time: Duration) {
    let mut set = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
    let time =
        rustix::event::Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    let _ = rustix::event::poll(&mut set, Some(&time));
}

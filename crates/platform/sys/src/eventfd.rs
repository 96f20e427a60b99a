//! Doorbells: how one process wakes another that sleeps in epoll (eventfd(2)).
//!
//! A doorbell is given to processes that are not trusted, and all have equal rights to it. Each may add to
//! its counter, take away from it, or make it block (O_NONBLOCK belongs to the doorbell, not to a descriptor
//! of it). So the counter carries no information. It begins so high that the doorbell is always readable and
//! writable. What wakes a sleeper is that a process has touched the doorbell: watch it edge-triggered for
//! both ([`WATCHED`]), and never read it otherwise. A watch begins with one event.
//!
//! Ringing takes one from the counter (EFD_SEMAPHORE), because that never blocks, whatever flags the doorbell
//! has: emptying it would take too long. Writing, even of zero, would wait for ever at a counter that
//! asynchronous I/O has filled to its last number.
//!
//! A doorbell belongs to one session, or to servers: a process that may watch it can make ringing it slow, by
//! watching it many thousand times.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::EventFlags;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// The initial counter: the number of rings, or reads by others, that would empty a doorbell, which takes
/// 29,000 years at ten million per second.
const HIGH: u64 = 1 << 63;

/// The events for which a sleeper watches its doorbell.
pub const WATCHED: EventFlags = EventFlags::IN.union(EventFlags::OUT).union(EventFlags::ET);

/// Creates a doorbell, which is nonblocking and CLOEXEC.
pub fn create() -> io::Result<OwnedFd> {
    let bell = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    rustix::io::write(&bell, &HIGH.to_ne_bytes())?;
    Ok(bell)
}

/// Wakes the processes that watch `fd`. Costs ~150 ns, and up to 12 us if it wakes a sleeping processor of a
/// virtual machine.
pub fn ring(fd: impl AsFd) -> io::Result<()> {
    match rustix::io::read(fd, &mut [0; 8]) {
        // AGAIN: the doorbell is not one that `create` made.
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that may signal an eventfd may also fill it, read it, and make it block. The sleeper notices
    /// every signal nevertheless, and signalling does not wait.
    #[test]
    fn others_who_have_a_bell_cannot_silence_it() {
        use crate::epoll::{EMPTY, Epoll};
        let (epoll, bell) = (Epoll::new().unwrap(), create().unwrap());
        epoll.add(&bell, 7, WATCHED).unwrap();
        let mut events = [EMPTY; 4];
        let mut woken = || epoll.wait(&mut events, Some(0)).unwrap();
        assert!(woken() <= 1);
        let hostile = rustix::io::dup(&bell).unwrap();
        let mut count = [0; 8];
        for _ in 0..3 {
            ring(&bell).unwrap();
            assert_eq!(woken(), 1);
            assert_eq!(woken(), 0, "once for each ring");
            // The doorbell is emptied between the ring and the sleeper's check.
            ring(&bell).unwrap();
            let _ = rustix::io::read(&hostile, &mut count);
            assert_eq!(woken(), 1);
            // The doorbell is filled.
            for amount in [u64::MAX - 1, u64::MAX / 2, u64::MAX / 4, 1 << 32, 1 << 16, 1 << 8, 1, 1, 1] {
                while rustix::io::write(&hostile, &amount.to_ne_bytes()).is_ok() {}
            }
            woken();
            ring(&bell).unwrap();
            assert_eq!(woken(), 1);
        }
        // The flag belongs to the doorbell, not to a descriptor of it.
        rustix::fs::fcntl_setfl(&hostile, rustix::fs::OFlags::RDWR).unwrap();
        let (told, ringing) = std::sync::mpsc::channel();
        let same = bell.try_clone().unwrap();
        std::thread::spawn(move || told.send(ring(&same)));
        ringing.recv_timeout(std::time::Duration::from_secs(20)).expect("the ringer waits for ever").unwrap();
        assert_eq!(woken(), 1);
    }

    /// The counter has the one value that write(2) cannot reach. Asynchronous I/O, which may report its
    /// completion on an eventfd, can reach it. Then even writing zero would block for ever.
    #[test]
    fn who_rings_a_bell_that_the_kernel_has_filled_does_not_wait() {
        use crate::epoll::{EMPTY, Epoll};
        let (epoll, bell) = (Epoll::new().unwrap(), create().unwrap());
        epoll.add(&bell, 7, WATCHED).unwrap();
        let top = u64::MAX - 1 - HIGH;
        rustix::io::write(&bell, &top.to_ne_bytes()).unwrap();
        if !signal_by_kernel(&bell) {
            return eprintln!("skipped: this kernel has no asynchronous input and output");
        }
        rustix::fs::fcntl_setfl(&bell, rustix::fs::OFlags::RDWR).unwrap();
        assert!(is_full(&bell));
        let mut events = [EMPTY; 4];
        epoll.wait(&mut events, Some(0)).unwrap();
        let (told, ringing) = std::sync::mpsc::channel();
        let same = bell.try_clone().unwrap();
        std::thread::spawn(move || told.send(ring(&same)));
        ringing.recv_timeout(std::time::Duration::from_secs(20)).expect("the ringer waits for ever").unwrap();
        assert_eq!(epoll.wait(&mut events, Some(0)).unwrap(), 1);
    }

    /// Lets the kernel add one to the counter, as only the kernel can (io_submit(2), IOCB_FLAG_RESFD).
    /// Returns whether it did.
    fn signal_by_kernel(bell: &OwnedFd) -> bool {
        use std::os::fd::AsRawFd;
        /// This is `struct iocb` of linux/aio_abi.h.
        #[repr(C)]
        struct Control([u32; 4], u16, i16, u32, u64, u64, i64, u64, u32, u32);
        let mut context: libc::c_ulong = 0;
        // SAFETY: the call writes only the number of the context.
        if unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) } != 0 {
            return false;
        }
        const POLL: u16 = 5;
        let (number, ready) = (bell.as_raw_fd().cast_unsigned(), u64::from(libc::POLLIN.cast_unsigned()));
        let control = Control([0; 4], POLL, 0, number, ready, 0, 0, 0, 1, number);
        let mut list = [&raw const control];
        // SAFETY: the list has one control block, which outlives the call and points to no memory.
        let submitted = unsafe { libc::syscall(libc::SYS_io_submit, context, 1, list.as_mut_ptr()) };
        // SAFETY: the call waits for what was submitted, and frees the context.
        unsafe { libc::syscall(libc::SYS_io_destroy, context) };
        submitted == 1
    }

    fn is_full(bell: &OwnedFd) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut set = [PollFd::new(bell, PollFlags::IN)];
        poll(&mut set, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        set[0].revents().contains(PollFlags::ERR)
    }
}

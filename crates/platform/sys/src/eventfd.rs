//! How does one process ring another that sleeps in epoll? eventfd(2).
//!
//! A bell is given to others who are not trusted, and all have the same rights to it: each may add to its
//! counter, take away from it, or make it block (O_NONBLOCK belongs to the bell, not to a descriptor of it).
//! So nothing is said by the counter. It stands so high from the start that the bell always is readable and
//! writable. What wakes is that somebody has touched it: to be watched edge-triggered for both ([`WATCHED`]),
//! and never to be read otherwise. A watch begins with one event.
//!
//! It is rung by taking one from the counter (EFD_SEMAPHORE), because that never blocks whatever flags the
//! bell has: nobody lives long enough to empty it. Writing, be it nothing, would wait for ever at a counter
//! that asynchronous input and output has filled to its last number.
//!
//! A bell belongs to one session, or to servers: whoever may watch it can make ringing it slow, by watching
//! it many thousand times.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::EventFlags;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Rings, or readings by others, that it would take to empty a bell, one by one: ten million a second for
/// 29,000 years.
const HIGH: u64 = 1 << 63;

/// What who sleeps on a bell watches it for.
pub const WATCHED: EventFlags = EventFlags::IN.union(EventFlags::OUT).union(EventFlags::ET);

/// A new doorbell: nonblocking, CLOEXEC.
pub fn create() -> io::Result<OwnedFd> {
    let bell = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    rustix::io::write(&bell, &HIGH.to_ne_bytes())?;
    Ok(bell)
}

/// Wakes those who watch `fd`. Cost: ~150 ns, and up to 12 us when it wakes a processor that sleeps in
/// another virtual CPU.
pub fn ring(fd: impl AsFd) -> io::Result<()> {
    match rustix::io::read(fd, &mut [0; 8]) {
        // AGAIN: it is none of ours.
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever may ring a bell may also fill it, take from it, and make it block. Who sleeps hears of every
    /// ring all the same, and who rings does not wait.
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
            // Emptied between the ring and the look at it.
            ring(&bell).unwrap();
            let _ = rustix::io::read(&hostile, &mut count);
            assert_eq!(woken(), 1);
            // Filled.
            for amount in [u64::MAX - 1, u64::MAX / 2, u64::MAX / 4, 1 << 32, 1 << 16, 1 << 8, 1, 1, 1] {
                while rustix::io::write(&hostile, &amount.to_ne_bytes()).is_ok() {}
            }
            woken();
            ring(&bell).unwrap();
            assert_eq!(woken(), 1);
        }
        // The flag belongs to the bell, not to whom it was given.
        rustix::fs::fcntl_setfl(&hostile, rustix::fs::OFlags::RDWR).unwrap();
        let (told, ringing) = std::sync::mpsc::channel();
        let same = bell.try_clone().unwrap();
        std::thread::spawn(move || told.send(ring(&same)));
        ringing.recv_timeout(std::time::Duration::from_secs(20)).expect("the ringer waits for ever").unwrap();
        assert_eq!(woken(), 1);
    }

    /// As above, but the counter is at the one number that writing cannot reach: by asynchronous input and
    /// output, which says by a bell that it is done. To write even nothing would wait for ever then.
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

    /// Lets the kernel add one to the counter, as only it can: io_submit(2), IOCB_FLAG_RESFD.
    fn signal_by_kernel(bell: &OwnedFd) -> bool {
        use std::os::fd::AsRawFd;
        /// `struct iocb`, linux/aio_abi.h.
        #[repr(C)]
        struct Control([u32; 4], u16, i16, u32, u64, u64, i64, u64, u32, u32);
        let mut context: libc::c_ulong = 0;
        // SAFETY: a place for the number of the context.
        if unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) } != 0 {
            return false;
        }
        const POLL: u16 = 5;
        let (number, ready) = (bell.as_raw_fd().cast_unsigned(), u64::from(libc::POLLIN.cast_unsigned()));
        let control = Control([0; 4], POLL, 0, number, ready, 0, 0, 0, 1, number);
        let mut list = [&raw const control];
        // SAFETY: one control block, which outlives the call; it points to no memory.
        let submitted = unsafe { libc::syscall(libc::SYS_io_submit, context, 1, list.as_mut_ptr()) };
        // SAFETY: it waits for what was submitted, and frees the context.
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

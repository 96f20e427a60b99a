//! How does one process ring another that sleeps in epoll? eventfd(2).
//!
//! A bell is given to many who do not trust each other, and all have the same rights to it: each may add to its counter, take away from
//! it, or make it block (O_NONBLOCK belongs to the bell, not to a descriptor of it). So nothing is said by the counter. It stands so
//! high from the start that the bell always is readable, and stays so however often somebody reads it, by one each time
//! (EFD_SEMAPHORE); and a ring adds nothing to it, so that it always has room. What wakes is the writing: to be watched
//! edge-triggered, and never to be read. A watch begins with one event.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Readings that it would take to make a bell unreadable, one by one.
const HIGH: u64 = 1 << 63;

/// A new doorbell: nonblocking, CLOEXEC.
pub fn create() -> io::Result<OwnedFd> {
    let bell = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    rustix::io::write(&bell, &HIGH.to_ne_bytes())?;
    Ok(bell)
}

/// Wakes those who watch `fd`. Cost: ~150 ns, and up to 12 us when it wakes a processor that sleeps in another virtual CPU.
pub fn ring(fd: impl AsFd) -> io::Result<()> {
    match rustix::io::write(fd, &0u64.to_ne_bytes()) {
        // AGAIN: the kernel itself (asynchronous input and output) has filled the counter to the brim for somebody; who did that to his
        // own bell is not woken.
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever may ring a bell may also fill it, empty it, and make it block. Who sleeps hears of every ring all the same, and who rings
    /// does not wait.
    #[test]
    fn others_who_have_a_bell_cannot_silence_it() {
        use crate::epoll::{EMPTY, Epoll, EventFlags};
        let (epoll, bell) = (Epoll::new().unwrap(), create().unwrap());
        epoll.add(&bell, 7, EventFlags::IN | EventFlags::ET).unwrap();
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
}

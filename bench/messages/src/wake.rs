//! Measures how long a sleeping process takes to wake: by the kernel's means alone, and by a message.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use atoll_base::{Duration, Epoch, Instant, ReplicaId};
use atoll_ipc::message::{Envelope, Role};
use atoll_ipc::{Memory, Message, channel};
use atoll_sys::epoll::{self, Epoll};
use atoll_sys::{eventfd, futex};

use crate::partner::{AWAKE, AWAKE_AT, FALLING_ASLEEP, RUNG, Side};

/// The longest sleep, so that a process whose partner has died ends.
const LONG: Duration = Duration::from_secs(2);

/// Wakes the other process a number of times, each time when it surely sleeps. Returns the sum of the times
/// from before the ring until the other process runs.
fn wake(
    side: &Side,
    count: u64,
    mut ring: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<Option<Duration>> {
    let mut sum = Duration::ZERO;
    for n in 1..=count {
        side.wait(|| side.memory.load64_acquire(FALLING_ASLEEP) == n);
        let asleep = side.clock.now() + FALLS_ASLEEP;
        side.wait(|| side.clock.now() >= asleep);
        let rung = side.clock.now();
        ring(n)?;
        side.wait(|| side.memory.load64_acquire(AWAKE) == n);
        sum += Instant::from_nanos(side.memory.load64(AWAKE_AT)).since(rung);
    }
    side.memory.store64(FALLING_ASLEEP, 0);
    side.memory.store64(AWAKE, 0);
    Ok(Some(sum))
}

/// Sleeps a number of times, and reports each time when the process is awake again.
fn sleep(side: &Side, count: u64, mut wait: impl FnMut(u64) -> io::Result<()>) -> io::Result<()> {
    for n in 1..=count {
        side.memory.store64_release(FALLING_ASLEEP, n);
        wait(n)?;
        side.memory.store64(AWAKE_AT, side.clock.now().as_nanos());
        side.memory.store64_release(AWAKE, n);
    }
    Ok(())
}

/// The time after which a process that has announced its sleep surely sleeps.
const FALLS_ASLEEP: Duration = Duration::from_micros(50);

/// Measures the futex of a word alone.
pub fn futex_ours(side: &Side, count: u64) -> io::Result<Option<Duration>> {
    let word = side.word(RUNG);
    wake(side, count, |_| {
        word.fetch_add(1, Ordering::Release);
        futex::wake(word, 1).map(|_| ())
    })
}

pub fn futex_theirs(side: &Side, count: u64) -> io::Result<()> {
    let word = side.word(RUNG);
    let mut rung = word.load(Ordering::Acquire);
    sleep(side, count, |_| {
        while word.load(Ordering::Acquire) == rung {
            futex::wait(word, rung, Some(LONG))?;
        }
        rung = rung.wrapping_add(1);
        Ok(())
    })
}

/// Measures a doorbell alone.
pub fn eventfd_ours(side: &Side, count: u64) -> io::Result<Option<Duration>> {
    wake(side, count, |_| eventfd::ring(&side.bells[1]))
}

pub fn eventfd_theirs(side: &Side, count: u64) -> io::Result<()> {
    let waiter = Waiter::new(&side.bells[1])?;
    sleep(side, count, |_| waiter.wait())
}

/// Measures a doorbell that is waited for as servers do: edge-triggered, so that it need not be read.
struct Waiter(Epoll);

impl Waiter {
    fn new(bell: &OwnedFd) -> io::Result<Waiter> {
        let epoll = Epoll::new()?;
        epoll.add(bell, 0, eventfd::WATCHED)?;
        // A watch begins with an event.
        epoll.wait(&mut [epoll::EMPTY], Some(0))?;
        Ok(Waiter(epoll))
    }

    fn wait(&self) -> io::Result<()> {
        self.0.wait(&mut [epoll::EMPTY], None).map(|_| ())
    }
}

/// The ways in which the end of a channel sleeps and is woken.
enum Bell<'a> {
    /// The sleeper waits on a futex, a word that the ringer counts up. The sleep word itself will not do,
    /// because the ringer may not write it, and a ring that comes before the sleep would be lost.
    Futex(&'a AtomicU32),
    /// The sleeper waits on a doorbell, as servers do.
    Eventfd(Waiter),
}

/// Measures messages to a process that sleeps.
fn messages(side: &Side, count: u64, ring: impl Fn() -> io::Result<()>) -> io::Result<Option<Duration>> {
    let mut channel = side.our_channel();
    wake(side, count, |n| {
        let message = Message::Hello { replica: ReplicaId(0), epoch: Epoch(n as u32) };
        let envelope = Envelope { role: Role::Notice, message };
        channel.push(&envelope.encode()).map_err(|_| io::Error::other("the ring is full"))?;
        if channel.publish() == channel::Bell::Ring {
            ring()
        } else {
            Err(io::Error::other("it does not sleep"))
        }
    })
}

/// Sleeps until a message is there, and takes it.
fn receive(side: &Side, count: u64, bell: &Bell<'_>) -> io::Result<()> {
    let mut channel = side.their_channel();
    sleep(side, count, |n| {
        loop {
            if let Some(payload) = channel.pop() {
                return match Envelope::decode(&payload) {
                    Ok(Envelope { message: Message::Hello { epoch, .. }, .. }) if u64::from(epoch.0) == n => {
                        Ok(())
                    }
                    other => Err(io::Error::other(format!("{other:?} instead of message {n}"))),
                };
            }
            let rung = if let Bell::Futex(word) = bell { word.load(Ordering::Acquire) } else { 0 };
            channel.fall_asleep();
            channel.memory().fence();
            if !channel.is_ready() {
                match bell {
                    Bell::Futex(word) => futex::wait(word, rung, Some(LONG)).map(|_| ())?,
                    Bell::Eventfd(waiter) => waiter.wait()?,
                }
            }
            channel.wake_up();
        }
    })?;
    channel.release();
    Ok(())
}

pub fn channel_futex_ours(side: &Side, count: u64) -> io::Result<Option<Duration>> {
    messages(side, count, || {
        side.word(RUNG).fetch_add(1, Ordering::Release);
        futex::wake(side.word(RUNG), 1).map(|_| ())
    })
}

pub fn channel_futex_theirs(side: &Side, count: u64) -> io::Result<()> {
    receive(side, count, &Bell::Futex(side.word(RUNG)))
}

pub fn channel_eventfd_ours(side: &Side, count: u64) -> io::Result<Option<Duration>> {
    messages(side, count, || eventfd::ring(&side.bells[1]))
}

pub fn channel_eventfd_theirs(side: &Side, count: u64) -> io::Result<()> {
    receive(side, count, &Bell::Eventfd(Waiter::new(&side.bells[1])?))
}

//! Lets two processes measure together. One announces the next case to the other, and both start it at once.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use atoll_base::{Duration, Epoch};
use atoll_ipc::Memory;
use atoll_ipc::channel::{self, Channel};
use atoll_shm::{Access, ShmMemory};
use atoll_sys::process::{Child, Signal, Spawn, die_with_parent, take_inherited};
use atoll_sys::{Calibration, Clock, eventfd, futex, sched};

use crate::case::{CASES, Case, Place};

/// The number of entries in each ring of the channel.
pub const CAPACITY: usize = 1024;
/// The epoch of both processes.
pub const EPOCH: Epoch = Epoch(1);
/// The place of the word for ping-pong.
pub const WORD: usize = 512;
/// The place of a futex, and of what a sleeper reports: how often it fell asleep and woke, and when it last
/// did.
pub const RUNG: usize = 640;
pub const FALLING_ASLEEP: usize = 704;
pub const AWAKE: usize = 768;
pub const AWAKE_AT: usize = 776;
/// The place of the lines of a stream, and of the reader's credit.
pub const STREAM: usize = 8192;
pub const STREAM_LINES: u64 = 1024;
pub const CREDIT: usize = 576;
/// The places of the rings: to the partner, and back.
pub const THERE: usize = STREAM + STREAM_LINES as usize * 64;
pub const BACK: usize = THERE + channel::ring_bytes(CAPACITY);
const BYTES: usize = (BACK + channel::ring_bytes(CAPACITY)).next_multiple_of(4096);

/// The place of the command's serial number, which is a futex.
const SERIAL: usize = 0;
/// The places of the command: the case or processor, the repetitions, the place of the run, and the serial
/// numbers of the command that is about to start and of the one that is done.
const COMMAND: usize = 8;
const COUNT: usize = 16;
const TOGETHER: usize = 24;
/// The clock that both processes read.
const CALIBRATION: usize = 32;
const READY: usize = 64;
const DONE: usize = 128;
const PIN: u64 = 1000;
/// The number of disturbed attempts after which the next one counts.
const ATTEMPTS_MAX: u32 = 8;

/// One of the two processes, as a case sees it.
pub struct Side {
    pub memory: ShmMemory,
    /// The doorbells of the measuring process and of the other one.
    pub bells: [OwnedFd; 2],
    pub place: Place,
    pub clock: Clock,
}

impl Side {
    /// Returns the channel's end of the measuring process.
    pub fn our_channel(&self) -> Channel<&ShmMemory> {
        let place = channel::Place { outgoing: THERE, incoming: BACK, capacity: CAPACITY };
        Channel::resume(&self.memory, place, EPOCH, EPOCH)
    }

    /// Returns the channel's end of the other process.
    pub fn their_channel(&self) -> Channel<&ShmMemory> {
        let place = channel::Place { outgoing: BACK, incoming: THERE, capacity: CAPACITY };
        Channel::resume(&self.memory, place, EPOCH, EPOCH)
    }

    /// Returns a word of the memory as an atomic.
    pub fn word(&self, at: usize) -> &AtomicU32 {
        self.memory.atomic32(at).expect("a place in the memory")
    }

    /// Waits until `ready` returns true: spins, or yields the processor that both processes share.
    #[inline(always)]
    pub fn wait(&self, mut ready: impl FnMut() -> bool) {
        match self.place {
            Place::Apart => {
                // There is no pause instruction here: a pause takes longer than the transfer of a line, and
                // costs microseconds where the hypervisor takes it for a lock that is never released.
                while !ready() {}
            }
            Place::Together => {
                while !ready() {
                    sched::yield_now();
                }
            }
        }
    }
}

/// The other process, as the measuring one sees it.
pub struct Partner {
    child: Child,
    side: Side,
    serial: u32,
}

impl Partner {
    /// Starts the other process, from the same binary.
    pub fn start() -> io::Result<Partner> {
        let (fd, memory) = ShmMemory::create("atoll-messages", BYTES)?;
        let bells = [eventfd::create()?, eventfd::create()?];
        let mut spawn = Spawn::this_binary("atoll-messages")?;
        spawn.arg("--partner-of")?.arg(std::process::id().to_string())?;
        for fd in [fd.as_fd(), bells[0].as_fd(), bells[1].as_fd()] {
            spawn.inherit(fd);
        }
        let child = spawn.start()?;
        register()?;
        let clock = Clock::calibrate();
        let Calibration { tsc0, ns0, mult } = clock.calibration();
        for (at, word) in [tsc0, ns0, mult].into_iter().enumerate() {
            memory.store64(CALIBRATION + at * 8, word);
        }
        let side = Side { memory, bells, place: Place::Apart, clock };
        Ok(Partner { child, side, serial: 0 })
    }

    /// Moves the other process to a processor.
    pub fn pin(&mut self, cpu: usize) -> io::Result<()> {
        self.command(PIN + cpu as u64, 0);
        self.finish()
    }

    /// Repeats a case until it was not disturbed: both processes together waited for their processors less
    /// than a twentieth of the time (on one processor they wait for each other). Returns the nanoseconds that
    /// one of its units took, and the number of attempts in vain.
    pub fn run(&mut self, case: &Case, place: Place) -> io::Result<(f64, u32)> {
        let mut attempts = 0;
        loop {
            let before = self.waited();
            let nanos = self.attempt(case, place)?;
            let waited = self.waited().saturating_sub(before) as f64;
            if place == Place::Together
                || waited * 20.0 < nanos * case.count(place) as f64
                || attempts == ATTEMPTS_MAX
            {
                return Ok((nanos, attempts));
            }
            attempts += 1;
        }
    }

    /// Returns for how many nanoseconds both processes were ready to run and did not (proc_pid_schedstat(5)).
    fn waited(&self) -> u64 {
        let of = |pid: u32| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
            text.split_ascii_whitespace().nth(1).and_then(|nanos| nanos.parse().ok()).unwrap_or(0u64)
        };
        of(std::process::id()) + of(self.child.pid())
    }

    fn attempt(&mut self, case: &Case, place: Place) -> io::Result<f64> {
        self.side.place = place;
        let count = case.count(place);
        if case.theirs.is_some() {
            let index =
                CASES.iter().position(|other| other.name == case.name).expect("one of the table") as u64;
            self.command(index, count);
            while self.side.memory.load32_acquire(READY) != self.serial {
                sched::yield_now();
                self.check()?;
            }
        }
        let begin = self.side.clock.now();
        let time = match (case.ours)(&self.side, count)? {
            Some(time) => time,
            None => self.side.clock.now().since(begin),
        };
        if case.theirs.is_some() {
            self.finish()?;
        }
        Ok(time.as_nanos() as f64 / count as f64)
    }

    pub fn clock(&self) -> Clock {
        self.side.clock
    }

    fn command(&mut self, command: u64, count: u64) {
        let memory = &self.side.memory;
        memory.store64(COMMAND, command);
        memory.store64(COUNT, count);
        memory.store32(TOGETHER, u32::from(self.side.place == Place::Together));
        self.serial += 1;
        memory.store32_release(SERIAL, self.serial);
        let _ = futex::wake(self.side.word(SERIAL), 1);
    }

    fn finish(&self) -> io::Result<()> {
        loop {
            let done = self.side.memory.load32_acquire(DONE);
            if done == self.serial {
                return Ok(());
            }
            futex::wait(self.side.word(DONE), done, Some(Duration::from_millis(100)))?;
            self.check()?;
        }
    }

    fn check(&self) -> io::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(exit) => Err(io::Error::other(format!("the other process has ended: {exit:?}"))),
        }
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        let _ = self.child.kill(Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Runs the other process: one case after another, until the first process ends.
pub fn serve(parent: u32) -> io::Result<()> {
    die_with_parent(parent)?;
    let mut fds = take_inherited(3)?.into_iter();
    let mut next = || fds.next().ok_or_else(|| io::Error::other("a descriptor is missing"));
    let memory = ShmMemory::map(next()?, BYTES, Access::ReadWrite)?;
    let mut side = Side { memory, bells: [next()?, next()?], place: Place::Apart, clock: Clock::kernel() };
    register()?;
    let mut serial = 0;
    loop {
        while side.memory.load32_acquire(SERIAL) == serial {
            futex::wait(side.word(SERIAL), serial, None)?;
        }
        serial += 1;
        let word = |at: usize| side.memory.load64(CALIBRATION + at * 8);
        side.clock = Clock::new(Calibration { tsc0: word(0), ns0: word(1), mult: word(2) });
        let (command, count) = (side.memory.load64(COMMAND), side.memory.load64(COUNT));
        side.place = if side.memory.load32(TOGETHER) == 1 { Place::Together } else { Place::Apart };
        match command.checked_sub(PIN) {
            Some(cpu) => sched::set_affinity(&[cpu as usize])?,
            None => {
                side.memory.store32_release(READY, serial);
                if let Some(theirs) = CASES[command as usize].theirs {
                    theirs(&side, count)?;
                }
            }
        }
        side.word(DONE).store(serial, Ordering::Release);
        futex::wake(side.word(DONE), 1)?;
    }
}

/// Registers the process for membarrier(2), so that both take part in each other's.
fn register() -> io::Result<()> {
    let command = rustix::thread::MembarrierCommand::RegisterGlobalExpedited;
    Ok(rustix::thread::membarrier(command)?)
}

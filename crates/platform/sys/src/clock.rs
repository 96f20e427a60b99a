//! The current time: CLOCK_MONOTONIC, read from the time stamp counter where that is trustworthy.
//!
//! Arming timers costs microseconds, and so does leaving a virtual machine, while the stack needs the time
//! for every batch. `rdtsc` and one multiplication take ~10 ns; the vDSO needs about twice that.

use std::fs;

use atoll_base::{Duration, Instant};

/// The conversion of time stamp counter values to nanoseconds: `ns0 + ((tsc - tsc0) * mult >> 48)`.
///
/// It is plain data. The supervisor measures it once and puts it into a shared page, so that every process
/// converts identically and instants can be compared between processes. A page that an attacker overwrites
/// yields wrong times, never undefined behaviour.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calibration {
    /// The counter value at `ns0`.
    pub tsc0: u64,
    /// CLOCK_MONOTONIC at `tsc0`, in nanoseconds.
    pub ns0: u64,
    /// Nanoseconds per tick, times 2^48; 0 if there is no usable counter, so that the kernel is asked every
    /// time.
    pub mult: u64,
}

impl Calibration {
    /// A calibration that asks the kernel every time (vDSO `clock_gettime`), which is right everywhere, and
    /// about 10 ns slower.
    pub const KERNEL: Calibration = Calibration { tsc0: 0, ns0: 0, mult: 0 };

    /// Compares the counter with CLOCK_MONOTONIC for 25 ms, sleeping. Call it once per machine.
    ///
    /// Returns [`Calibration::KERNEL`] if the counter is not invariant or the kernel itself does not trust
    /// it. The error of the rate is ~2 ppm from the measurement, plus what NTP slews later (at most 500 ppm).
    /// Instants may therefore drift from CLOCK_MONOTONIC by microseconds per second, but never differ between
    /// processes.
    pub fn measure() -> Calibration {
        if !counter_is_trustworthy() {
            return Calibration::KERNEL;
        }
        let (tsc0, ns0) = read_both();
        std::thread::sleep(MEASURING_TIME);
        let (tsc1, ns1) = read_both();
        let ticks = tsc1.saturating_sub(tsc0);
        if ticks < 1_000_000 {
            return Calibration::KERNEL; // A counter slower than 50 MHz is not worth using.
        }
        let mult = (u128::from(ns1.saturating_sub(ns0)) << SHIFT) / u128::from(ticks);
        Calibration { tsc0: tsc1, ns0: ns1, mult: u64::try_from(mult).unwrap_or(0) }
    }

    /// Returns the instant at which the counter stood at `tsc`; counter values before `tsc0` count as `tsc0`.
    #[inline]
    pub const fn convert(self, tsc: u64) -> Instant {
        let ticks = tsc.saturating_sub(self.tsc0) as u128;
        Instant::from_nanos(self.ns0.saturating_add(((ticks * self.mult as u128) >> SHIFT) as u64))
    }
}

/// A clock. It can be copied freely: it is a [`Calibration`], which decides how the time is read.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    calibration: Calibration,
}

impl Clock {
    /// Creates a clock that converts as `calibration` says; processes that share a calibration share the
    /// clock.
    pub const fn new(calibration: Calibration) -> Clock {
        Clock { calibration }
    }

    /// Creates a clock that asks the kernel.
    pub const fn kernel() -> Clock {
        Clock::new(Calibration::KERNEL)
    }

    /// Measures a calibration, which takes 25 ms, and returns a clock that uses it.
    pub fn calibrate() -> Clock {
        Clock::new(Calibration::measure())
    }

    /// Returns the calibration, which makes another process share this clock.
    pub const fn calibration(&self) -> Calibration {
        self.calibration
    }

    /// Returns the current time. Costs ~10 ns by counter, ~20 ns by kernel.
    #[inline]
    pub fn now(&self) -> Instant {
        if self.calibration.mult == 0 { kernel_now() } else { self.calibration.convert(read_counter()) }
    }
}

/// How long [`Calibration::measure`] sleeps between its two readings.
pub const MEASURING_TIME: Duration = Duration::from_millis(25);

const SHIFT: u32 = 48;

/// Returns how long the calling thread has had a processor (CLOCK_THREAD_CPUTIME_ID, clock_gettime(2)). Costs
/// a system call.
pub fn processor_time() -> Duration {
    let time = read(libc::CLOCK_THREAD_CPUTIME_ID);
    Duration::from_nanos(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
}

/// Returns CLOCK_REALTIME (clock_gettime(2)) in nanoseconds since 1970; 0 before. Costs ~20 ns (vDSO).
#[inline]
pub fn time_of_day() -> u64 {
    let time = read(libc::CLOCK_REALTIME);
    let (seconds, nanos) = (u64::try_from(time.tv_sec).unwrap_or(0), time.tv_nsec.cast_unsigned());
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Reads a clock that every kernel has.
///
/// This is the C library's function, because rustix looks for the vDSO in what the kernel says of the
/// process, and under valgrind(1) that is the vDSO of valgrind, where the program has none.
#[inline]
fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the answer.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time
}

/// Returns CLOCK_MONOTONIC (clock_gettime(2)).
#[inline]
fn kernel_now() -> Instant {
    let t = read(libc::CLOCK_MONOTONIC);
    Instant::from_nanos((t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64))
}

/// Reads the counter and the kernel's clock at one moment: of 32 attempts, the one that took the least time.
fn read_both() -> (u64, u64) {
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..32 {
        let before = read_counter();
        let nanos = kernel_now().as_nanos();
        let width = read_counter().saturating_sub(before);
        if width < best.0 {
            best = (width, before + width / 2, nanos);
        }
    }
    (best.1, best.2)
}

/// Returns whether the counter ticks at one rate in all power states, and the kernel, which watches it, uses
/// it as its clock.
///
/// Returns false if sysfs cannot be read: a clock that jumps is worse than one that takes 10 ns longer.
fn counter_is_trustworthy() -> bool {
    counter_is_invariant()
        && fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource")
            .is_ok_and(|source| source.trim() == "tsc")
}

#[cfg(target_arch = "x86_64")]
fn counter_is_invariant() -> bool {
    use core::arch::x86_64::__cpuid;
    const POWER_MANAGEMENT: u32 = 0x8000_0007;
    // CPUID leaves a virtual machine (~6 us), so this runs only once per calibration.
    __cpuid(0x8000_0000).eax >= POWER_MANAGEMENT && __cpuid(POWER_MANAGEMENT).edx & (1 << 8) != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn counter_is_invariant() -> bool {
    false
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn read_counter() -> u64 {
    // SAFETY: RDTSC exists on every x86_64 processor, touches no memory, and Linux leaves it enabled for user
    // space.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn read_counter() -> u64 {
    kernel_now().as_nanos()
}

const _: () = assert!(size_of::<Calibration>() == 24);

#[cfg(test)]
mod tests;

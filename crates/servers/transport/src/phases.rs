//! Measures where the time of an incoming connection goes: the rows of Pika's tables 4 and 5, measured by the
//! stack itself.
//!
//! ```text
//!   T_msg     waiting in rings and for bells between servers, of the handshake's two segments
//!   T_tcp     handling these two segments, without the CM's part, and without sending, which is done
//!             for a batch at once
//!   T_CM      the calls of the connection manager: whether the connection may be opened, which acceptor
//!             gets it, that it was claimed; of a CM in another process the time from the question for
//!             the acceptor until the answer
//!   T_accept  from the offer until the application has claimed it
//!   T_total   from the SYN's arrival at the link server until then; the peer's round trip lies in it
//! ```
//! One connection in [`SAMPLE_EVERY`] is measured, so that a segment of the others costs a test of a flag.
//! Samples are kept here, not in the connections, and are lost with the process.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use atoll_base::{Duration, Instant};
use atoll_ipc::page::Stat;

use crate::names::Name;
use crate::stats::Stats;

/// One of this number of incoming connections is measured.
pub const SAMPLE_EVERY: u32 = 16;
/// The most measurements under way.
const SAMPLES_MAX: usize = 8;
/// The time after which a connection that was not claimed is no longer measured.
const SAMPLE_AGE_MAX: Duration = Duration::from_secs(10);

/// Reads a clock, in nanoseconds from any start. It is an argument, as all time is; the simulator has none.
pub struct Stopwatch(Box<dyn Fn() -> u64>);

impl Stopwatch {
    /// Creates a stopwatch that reads `nanos`.
    pub fn new(nanos: impl Fn() -> u64 + 'static) -> Stopwatch {
        Stopwatch(Box::new(nanos))
    }

    fn read(&self) -> u64 {
        (self.0)()
    }
}

impl fmt::Debug for Stopwatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stopwatch")
    }
}

/// The measurements of one transport server.
#[derive(Debug, Default)]
pub(crate) struct Phases {
    stopwatch: Option<Stopwatch>,
    /// The number of connections to skip before the next one that is measured.
    skip: u32,
    samples: Vec<Sample>,
    /// The number of samples that are not offered yet.
    handshakes: usize,
    /// The time that the frame that comes next, or is being handled, has waited between servers.
    waited: Duration,
    /// The frame that is being handled, if it may matter.
    frame: Option<Frame>,
}

/// One connection that is measured, which `index` and `name` identify.
#[derive(Clone, Copy, Debug)]
struct Sample {
    index: u32,
    name: Name,
    arrived: Instant,
    offered: Option<Instant>,
    /// When a CM in another process was asked, on the stopwatch.
    asked: Option<u64>,
    msg: Duration,
    tcp: u64,
    cm: u64,
}

/// The time that the handling of a frame has taken so far, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Frame {
    began: u64,
    cm: u64,
    /// The connection that is measured, if the frame belongs to one.
    of: Option<u32>,
}

impl Phases {
    pub(crate) fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.stopwatch = Some(stopwatch);
    }

    pub(crate) const fn note_wait(&mut self, waited: Duration) {
        self.waited = waited;
    }

    /// Notes that a frame is about to be handled.
    #[inline]
    pub(crate) fn frame_begins(&mut self) {
        if (self.skip == 0 || self.handshakes > 0)
            && let Some(stopwatch) = &self.stopwatch
        {
            self.frame = Some(Frame { began: stopwatch.read(), cm: 0, of: None });
        }
    }

    /// Notes that the frame has been handled.
    #[inline]
    pub(crate) fn frame_ends(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.attribute(&frame);
        }
        self.waited = Duration::ZERO;
    }

    fn attribute(&mut self, frame: &Frame) {
        let (Some(index), Some(stopwatch)) = (frame.of, &self.stopwatch) else { return };
        let all = stopwatch.read().saturating_sub(frame.began);
        let Some(sample) = self.samples.iter_mut().find(|sample| sample.index == index) else { return };
        sample.cm += frame.cm;
        sample.tcp += all.saturating_sub(frame.cm);
        sample.msg += self.waited;
    }

    /// Notes that the CM is about to be asked while a frame is handled. The result is for
    /// [`Phases::cm_ends`].
    #[inline]
    pub(crate) fn cm_begins(&self) -> Option<u64> {
        self.frame.and(self.stopwatch.as_ref()).map(Stopwatch::read)
    }

    /// Notes that the CM has answered.
    #[inline]
    pub(crate) fn cm_ends(&mut self, began: Option<u64>) {
        if let (Some(began), Some(frame), Some(stopwatch)) = (began, &mut self.frame, &self.stopwatch) {
            frame.cm += stopwatch.read().saturating_sub(began);
        }
    }

    /// Notes that a SYN has opened a connection.
    pub(crate) fn opened(&mut self, now: Instant, index: u32, name: Name) {
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        let Some(frame) = &mut self.frame else { return };
        // An index is used again once its connection is gone.
        self.samples.retain(|sample| sample.index != index && now.since(sample.arrived) < SAMPLE_AGE_MAX);
        if self.samples.len() < SAMPLES_MAX {
            frame.of = Some(index);
            self.skip = SAMPLE_EVERY - 1;
            let arrived = Instant::from_nanos(now.as_nanos().saturating_sub(self.waited.as_nanos() as u64));
            let (offered, asked, msg) = (None, None, Duration::ZERO);
            self.samples.push(Sample { index, name, arrived, offered, asked, msg, tcp: 0, cm: 0 });
        }
        self.count_handshakes();
    }

    /// Notes that the connection's handshake is complete.
    #[inline]
    pub(crate) fn established(&mut self, index: u32, name: &Name) {
        if self.handshakes > 0
            && self.find(index, name).is_some()
            && let Some(frame) = &mut self.frame
        {
            frame.of = Some(index);
        }
    }

    /// Notes that a CM in another process is asked which acceptor gets the connection.
    #[inline]
    pub(crate) fn asked(&mut self, index: u32, name: &Name) {
        if self.handshakes > 0
            && let Some(at) = self.find(index, name)
        {
            self.samples[at].asked = self.stopwatch.as_ref().map(Stopwatch::read);
        }
    }

    /// Notes that the connection is offered to an application.
    #[inline]
    pub(crate) fn offered(&mut self, now: Instant, index: u32, name: &Name) {
        if let Some(at) = self.find(index, name) {
            // An offer that was taken back costs the application's time as well.
            self.samples[at].offered.get_or_insert(now);
            if let (Some(asked), Some(stopwatch)) = (self.samples[at].asked.take(), &self.stopwatch) {
                self.samples[at].cm += stopwatch.read().saturating_sub(asked);
            }
            self.count_handshakes();
        }
    }

    /// Notes that an application has claimed the connection; `tell_cm` reports that to the CM, and its result
    /// is returned.
    pub(crate) fn claimed<T>(
        &mut self,
        now: Instant,
        index: u32,
        name: &Name,
        stats: &mut Stats,
        tell_cm: impl FnOnce() -> T,
    ) -> T {
        let Some(at) = self.find(index, name) else { return tell_cm() };
        let read = || self.stopwatch.as_ref().map_or(0, Stopwatch::read);
        let began = read();
        let told = tell_cm();
        let cm = read().saturating_sub(began);
        let sample = self.samples.swap_remove(at);
        let nanos = |duration: Duration| duration.as_nanos() as u64;
        stats.count(Stat::HandshakesTimed);
        stats.add(Stat::TimeCm, sample.cm + cm);
        stats.add(Stat::TimeTcp, sample.tcp);
        stats.add(Stat::TimeMsg, nanos(sample.msg));
        stats.add(Stat::TimeAccept, nanos(now.since(sample.offered.unwrap_or(now))));
        stats.add(Stat::TimeTotal, nanos(now.since(sample.arrived)));
        self.count_handshakes();
        told
    }

    fn find(&self, index: u32, name: &Name) -> Option<usize> {
        self.samples.iter().position(|sample| sample.index == index && sample.name == *name)
    }

    fn count_handshakes(&mut self) {
        self.handshakes = self.samples.iter().filter(|sample| sample.offered.is_none()).count();
    }
}

#[cfg(test)]
mod tests;

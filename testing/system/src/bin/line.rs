//! A network path between two namespaces, with a rate, a queue, delay, loss and reordering:
//! `atoll-line NS:TAP NS:TAP`.
//!
//! Makes both TAPs, says `ready`, and forwards frames until its input ends. It takes orders there, one a
//! line:
//! ```text
//!   set KEY=VALUE ...    empties the path, and makes it what the words say in both directions; >KEY: left to right only,
//!                        <KEY: right to left only
//!     rate=200M          bits per second (none: no limit)       queue=500k     octets that may wait
//!     delay=10ms         one way                                jitter=1ms     most that is added to it, order kept
//!     loss=1%            each packet                            burst=1%,20,5% bursts: chance to enter, mean length in packets,
//!                                                                              chance of loss within
//!     reorder=1%,5ms     so many are held back for so long      duplicate=1%
//!     mark=100k          ECN marks above so many octets         seed=7         decides what is lost
//!   change KEY=VALUE ... changes these and leaves the rest, and what is under way, alone
//!   report               one line of JSON: what happened since the last, and how late frames were
//! ```
//! Its ends take no large segments, so loss and delay are of packets of at most the MTU. ARP passes
//! untouched: what is emulated is a path, not two hosts that lose each other's addresses.
//!
//! The processor that it runs on should be its own: it spins from shortly before a frame is due, and while
//! frames come, because a sleep ends tens of microseconds late.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{self, BufRead, Write};

use atoll_base::{Duration, Instant, Rng};
use atoll_sys::Clock;
use atoll_sys::epoll::{self, Epoll, EventFlags};
use atoll_sys::timer::LazyTimer;
use atoll_system_tests::{complete_checksum, mark_congestion, open_end};
use atoll_tap::{FRAME_LEN_MAX, Queue, VNET_HEADER_LEN};
use atoll_testkit::{Arrival, Ecn, Line, LineSettings, Loss, Marking};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Err(error) = run(&arguments) {
        eprintln!("atoll-line: {error}");
        std::process::exit(1);
    }
}

fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let [left, right] = arguments else { return Err("see the head of its source for usage".into()) };
    let mut path = Path::new([open_end(left)?, open_end(right)?]);
    // Root may raise its priority; where that is not allowed, frames are later.
    let _ = atoll_sys::sched::set_niceness(-20);
    println!("ready");
    io::stdout().flush()?;
    path.run()
}

/// Both directions of the path, and its two ends.
struct Path {
    clock: Clock,
    ends: [Queue; 2],
    lines: [Line<Vec<u8>>; 2],
    lateness: Lateness,
    orders: Vec<u8>,
    buf: Vec<u8>,
}

impl Path {
    fn new(ends: [Queue; 2]) -> Path {
        Path {
            clock: Clock::calibrate(),
            ends,
            lines: [Line::new(LineSettings::default(), 1), Line::new(LineSettings::default(), 2)],
            lateness: Lateness::default(),
            orders: Vec::new(),
            buf: vec![0; FRAME_LEN_MAX],
        }
    }

    fn run(&mut self) -> Result<(), Box<dyn Error>> {
        let epoll = Epoll::new()?;
        let mut timer = LazyTimer::new(Duration::ZERO)?;
        for (number, end) in self.ends.iter().enumerate() {
            epoll.add(end, number as u64, EventFlags::IN)?;
        }
        epoll.add(&timer, TIMER, EventFlags::IN | EventFlags::ET)?;
        epoll.add(io::stdin(), ORDERS, EventFlags::IN)?;
        let mut events = [epoll::EMPTY; 4];
        let mut last_frame = Instant::ZERO;
        let mut last_look = Instant::ZERO;
        loop {
            let now = self.clock.now();
            if self.forward(now)? {
                last_frame = now;
            }
            let due = self.lines.iter().filter_map(Line::next_due).min();
            let spin = due.is_some_and(|due| due <= now + SPIN) || now.since(last_frame) < SPIN_AFTER_FRAME;
            if spin && now.since(last_look) < LOOK {
                std::hint::spin_loop();
                continue;
            }
            last_look = now;
            if let Some(due) = due.filter(|_| !spin) {
                // The timer, and the way back into this process, take at least as long as is spun.
                timer.wake_at(now, Instant::from_nanos(due.as_nanos() - SPIN.as_nanos() as u64))?;
            }
            let count = epoll.wait(&mut events, spin.then_some(0))?;
            if events[..count].iter().any(|event| epoll::token(event) == ORDERS) && !self.take_orders()? {
                return Ok(());
            }
        }
    }

    /// Takes in frames that wait at both ends, and delivers those that are due. Returns whether there were
    /// any.
    fn forward(&mut self, now: Instant) -> io::Result<bool> {
        let mut any = false;
        for from in 0..2 {
            let to = 1 - from;
            for _ in 0..BATCH {
                let Some(len) = self.ends[from].receive(&mut self.buf)? else { break };
                any = true;
                let mut frame = self.buf[..len].to_vec();
                complete_checksum(&mut frame);
                let packet = Packet::of(&frame);
                if packet == Packet::Arp {
                    send(&mut self.ends[to], &frame)?;
                    continue;
                }
                let ecn = if packet == Packet::EcnCapable { Ecn::Capable } else { Ecn::Incapable };
                // A link carries these octets without preamble, check sequence and gap.
                let octets = len - VNET_HEADER_LEN;
                self.lines[from].handle(now, octets as u32, ecn, frame);
            }
            for _ in 0..BATCH {
                let Some(Arrival { at, marked, item: mut frame }) = self.lines[from].poll(now) else { break };
                any = true;
                if marked {
                    mark_congestion(&mut frame);
                }
                send(&mut self.ends[to], &frame)?;
                self.lateness.note(now.since(at));
            }
        }
        Ok(any)
    }

    /// Carries out the orders that were written to the input. Returns whether there may be more.
    fn take_orders(&mut self) -> Result<bool, Box<dyn Error>> {
        let mut input = io::stdin().lock();
        let bytes = input.fill_buf()?;
        let len = bytes.len();
        self.orders.extend_from_slice(bytes);
        input.consume(len);
        while let Some(end) = self.orders.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.orders.drain(..=end).collect();
            let answer = self.obey(std::str::from_utf8(&line)?.trim())?;
            println!("{answer}");
            io::stdout().flush()?;
        }
        Ok(len > 0)
    }

    fn obey(&mut self, order: &str) -> Result<String, Box<dyn Error>> {
        let (verb, words) = order.split_once(' ').unwrap_or((order, ""));
        match verb {
            "set" | "change" => {
                let fresh = verb == "set";
                let now = self.clock.now();
                let (mut settings, mut seed) = (self.lines.each_ref().map(|line| *line.settings()), 1);
                if fresh {
                    settings = [LineSettings::default(); 2];
                }
                for word in words.split_whitespace() {
                    let (key, value) =
                        word.split_once('=').ok_or_else(|| format!("{word}: KEY=VALUE is expected"))?;
                    match key.split_at(usize::from(key.starts_with(['>', '<']))) {
                        ("", "seed") => seed = value.parse()?,
                        (">", key) => apply(&mut settings[0], key, value)?,
                        ("<", key) => apply(&mut settings[1], key, value)?,
                        (_, key) => settings.iter_mut().try_for_each(|one| apply(one, key, value))?,
                    }
                }
                let mut seeds = Rng::new(seed);
                for (line, settings) in self.lines.iter_mut().zip(settings) {
                    if fresh {
                        *line = Line::new(settings, seeds.next_u64());
                    } else {
                        line.change(now, settings);
                    }
                }
                Ok("done".into())
            }
            "report" => {
                let [there, back] = self.lines.each_mut().map(json);
                let late = std::mem::take(&mut self.lateness).json();
                Ok(format!("{{\"there\": {there}, \"back\": {back}, \"late\": {late}}}"))
            }
            _ => Err(format!("{order}: unknown order").into()),
        }
    }
}

/// The kinds of frames that the path distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packet {
    Arp,
    EcnCapable,
    Other,
}

impl Packet {
    fn of(frame: &[u8]) -> Packet {
        match frame.get(VNET_HEADER_LEN + 12..VNET_HEADER_LEN + 16) {
            Some([8, 6, ..]) => Packet::Arp,
            Some([8, 0, _, tos]) if tos & 3 != 0 => Packet::EcnCapable,
            _ => Packet::Other,
        }
    }
}

fn send(to: &mut Queue, frame: &[u8]) -> io::Result<()> {
    // A frame that the kernel does not take is lost; any device on the way may lose frames.
    to.send_bytes(frame).map(drop)
}

/// Changes one setting.
fn apply(settings: &mut LineSettings, key: &str, value: &str) -> Result<(), Box<dyn Error>> {
    let parts: Vec<&str> = value.split(',').collect();
    match (key, &parts[..]) {
        ("rate", [rate]) => settings.rate = number(rate)?,
        ("queue", [octets]) => settings.queue = number(octets)?,
        ("delay", [delay]) => settings.delay = duration(delay)?,
        ("jitter", [jitter]) => settings.jitter = duration(jitter)?,
        ("loss", [chance]) => settings.loss = Loss::Random(per_million(chance)?),
        ("burst", [enter, length, bad]) => {
            let length: f64 = length.parse()?;
            let leave = (1e6 / length.max(1.0)) as u32;
            settings.loss = Loss::Burst { enter: per_million(enter)?, leave, bad: per_million(bad)? };
        }
        ("reorder", [chance, time]) => {
            (settings.reorder, settings.held_for) = (per_million(chance)?, duration(time)?)
        }
        ("duplicate", [chance]) => settings.duplicate = per_million(chance)?,
        ("mark", [octets]) => settings.marking = Marking::Above(number(octets)?),
        _ => return Err(format!("{key}={value}: unknown").into()),
    }
    Ok(())
}

fn number(text: &str) -> Result<u64, Box<dyn Error>> {
    let (digits, factor) = match text.strip_suffix(['k', 'M', 'G']) {
        Some(digits) if text.ends_with('k') => (digits, 1e3),
        Some(digits) if text.ends_with('M') => (digits, 1e6),
        Some(digits) => (digits, 1e9),
        None => (text, 1.0),
    };
    Ok((digits.parse::<f64>()? * factor) as u64)
}

fn duration(text: &str) -> Result<Duration, Box<dyn Error>> {
    let (digits, nanos) = match text {
        text if text.ends_with("us") => (text.trim_end_matches("us"), 1e3),
        text if text.ends_with("ms") => (text.trim_end_matches("ms"), 1e6),
        text => (text.strip_suffix('s').ok_or("a time is in us, ms or s")?, 1e9),
    };
    Ok(Duration::from_nanos((digits.parse::<f64>()? * nanos) as u64))
}

fn per_million(text: &str) -> Result<u32, Box<dyn Error>> {
    let percent: f64 = text.strip_suffix('%').ok_or("a chance is in %")?.parse()?;
    Ok((percent * 10_000.0).round() as u32)
}

fn json(line: &mut Line<Vec<u8>>) -> String {
    let counts = line.take_counts();
    format!(
        "{{\"queued\": {}, \"overflowed\": {}, \"lost\": {}, \"reordered\": {}, \"marked\": {}, \
         \"delivered\": {}, \"octets\": {}, \"queue_peak\": {}}}",
        counts.queued,
        counts.overflowed,
        counts.lost,
        counts.reordered,
        counts.marked,
        counts.delivered,
        counts.octets,
        counts.queue_peak
    )
}

/// The counts of frames by how much later than due they left.
#[derive(Default)]
struct Lateness {
    counts: [u64; LATE_LIMITS_US.len() + 1],
    sum: Duration,
    most: Duration,
}

impl Lateness {
    fn note(&mut self, late: Duration) {
        let us = late.as_micros() as u64;
        let bucket = LATE_LIMITS_US.iter().position(|&limit| us <= limit).unwrap_or(LATE_LIMITS_US.len());
        self.counts[bucket] += 1;
        self.sum += late;
        self.most = self.most.max(late);
    }

    fn json(&self) -> String {
        let total: u64 = self.counts.iter().sum();
        let mean = self.sum.as_secs_f64() * 1e6 / total.max(1) as f64;
        let mut above = total;
        let shares = LATE_LIMITS_US.iter().zip(self.counts).map(|(limit, count)| {
            above -= count;
            format!("\"above_{limit}us\": {:.5}", above as f64 / total.max(1) as f64)
        });
        let shares = shares.collect::<Vec<_>>().join(", ");
        format!("{{\"mean_us\": {mean:.1}, \"max_us\": {}, {shares}}}", self.most.as_micros())
    }
}

const LATE_LIMITS_US: [u64; 3] = [100, 1000, 10_000];
const TIMER: u64 = 2;
const ORDERS: u64 = 3;
/// The number of frames of one direction before the other direction has its turn.
const BATCH: usize = 32;
/// The time for which the process spins before a frame is due.
const SPIN: Duration = Duration::from_micros(150);
/// The time for which the process spins after a frame, because others tend to follow.
const SPIN_AFTER_FRAME: Duration = Duration::from_micros(1000);
/// The interval at which the process looks for orders while it spins.
const LOOK: Duration = Duration::from_millis(5);

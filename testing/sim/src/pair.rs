//! Runs two endpoints, and checks that both streams are delivered and that they fall silent afterwards.

use atoll_base::{Duration, Instant, Rng, SeqNum};
use atoll_tcp::Settings;
use atoll_wire::tcp::{Flags, Segment};
use thiserror::Error;

use crate::flow::{Flow, FlowSettings, any_algorithm};
use crate::host::Plan;
use crate::link::{Link, LinkSettings};
use crate::middlebox::Middlebox;
use crate::stranger::forged;
use crate::trace::Trace;
use crate::violation::Violation;

/// The parameters of a run, all of which a seed decides.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed; everything random comes from it.
    pub seed: u64,
    /// The settings of the two ends.
    pub flow: FlowSettings,
    /// The settings of the link, from client to server and back.
    pub links: [LinkSettings; 2],
    /// After this long the link does no more harm and the applications do not pause: what is left has to
    /// work.
    pub faults_for: Duration,
    /// How often, per million steps, a stranger that guesses sends something to either end.
    pub stranger: u32,
    /// How often, per million opportunities, the process of an end dies and is replaced.
    pub crashes: u32,
}

/// Why a run failed; its output contains what is needed to replay it.
#[derive(Debug, Error)]
#[error("{what}, after {after:?}")]
pub struct Failure {
    /// The violation.
    pub what: Violation,
    /// The time since the start.
    pub after: Duration,
    /// The last lines of the exchange.
    pub trace: Vec<String>,
}

/// The results of a run that succeeded.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// The number of moments at which something happened.
    pub steps: u64,
    /// How long it took until both streams had been delivered and closed.
    pub delivered_after: Duration,
    /// The number of segments that both ends sent again.
    pub retransmits: u64,
}

/// Two endpoints and the link between them.
#[derive(Debug)]
pub struct Pair {
    rng: Rng,
    start: Instant,
    now: Instant,
    flow: Flow,
    links: [Link; 2],
    faults_for: Duration,
    trace: Trace,
    steps: u64,
    healed: bool,
    stranger: u32,
    crashes: u32,
    /// The number of crashes so far.
    crashed: u32,
    /// The sequence number of each end's SYN.
    begins: [SeqNum; 2],
    /// The number of segments that a stranger has sent.
    forged: u32,
}

/// The most segments that a stranger sends.
const FORGED_MAX: u32 = 2000;
/// The most crashes of a run; each causes retransmissions.
const CRASHES_MAX: u32 = 500;

impl Scenario {
    /// Draws a scenario from `seed`.
    pub fn random(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed);
        let mut chance = |most: u32| if rng.below(3) == 0 { 0 } else { rng.below(most) };
        let mut link = || LinkSettings {
            loss: chance(150_000),
            duplicate: chance(50_000),
            reorder: chance(100_000),
            latency: Duration::from_micros(u64::from(20 + chance(30_000))),
            merge: chance(10) > 5,
            longest: usize::MAX,
        };
        let links = [link(), link()];
        let mut plan = || Plan {
            write: [0, 1, 4, 1000, 20_000, 150_000][rng.below(6) as usize],
            send_buffer: [100, 3000, 20_000, 200_000][rng.below(4) as usize],
            read_max: [50, 1000, 100_000][rng.below(3) as usize],
            stall: [0, 0, 100_000, 500_000][rng.below(4) as usize],
            len_max: [1, 1460, 10_000, 65_000][rng.below(4) as usize],
            no_room: [0, 0, 0, 100_000][rng.below(4) as usize],
            lazy_reports: rng.below(2) == 0,
            compact: rng.below(2) == 0,
            urgent: 0,
        };
        let mut plans = [plan(), plan()];
        let mut settings = || Settings {
            nodelay: rng.below(2) == 0,
            cork: rng.below(8) == 0,
            congestion: any_algorithm(&mut rng),
            quick_ack: rng.below(4) == 0,
            receive_capacity: [200, 3000, 65_536, 1 << 20][rng.below(4) as usize],
            receive_capacity_max: [0, 6 << 20, 1 << 30][rng.below(3) as usize],
            ..Settings::default()
        };
        let settings = [settings(), settings()];
        let mut mss = || [100, 536, 1460, 8960][rng.below(4) as usize];
        let mss = [mss(), mss()];
        let simultaneous_open = rng.below(10) == 0;
        let middlebox = Middlebox {
            strip_sack: rng.below(4) == 0,
            strip_timestamps: rng.below(4) == 0,
            strip_window_scale: rng.below(4) == 0,
            strip_blocks: rng.below(20) == 0,
            mss_max: (rng.below(4) == 0).then(|| [100, 536, 1300][rng.below(3) as usize]),
        };
        let longest = [usize::MAX, usize::MAX, 1300, 300][rng.below(4) as usize];
        let links = links.map(|link| LinkSettings { longest, ..link });
        for plan in &mut plans {
            plan.urgent = [0, 0, 300_000, 1_000_000][rng.below(4) as usize];
        }
        let fast_open = rng.below(4) == 0;
        let flow = FlowSettings { plans, settings, mss, simultaneous_open, fast_open, middlebox };
        Scenario { seed, flow, links, faults_for: Duration::from_secs(60), stranger: 0, crashes: 0 }
    }
}

impl Pair {
    /// Creates the two endpoints before the first SYN.
    pub fn new(scenario: &Scenario) -> Pair {
        let mut rng = Rng::new(scenario.seed ^ 0x5151_5151);
        let now = Instant::from_millis(1_000_000 + u64::from(rng.next_u32()));
        Pair {
            flow: Flow::new(&scenario.flow, now, &mut rng),
            rng,
            start: now,
            now,
            links: scenario.links.map(Link::new),
            faults_for: scenario.faults_for,
            trace: Trace::default(),
            steps: 0,
            healed: false,
            stranger: scenario.stranger,
            crashes: scenario.crashes,
            crashed: 0,
            begins: [SeqNum(0); 2],
            forged: 0,
        }
    }

    /// Runs until both streams are delivered and closed, and then checks that the ends are silent.
    pub fn run(mut self) -> Result<Report, Failure> {
        self.run_to_the_end().map_err(|what| {
            let after = self.now.since(self.start);
            Failure { what, after, trace: self.trace.last() }
        })
    }

    fn run_to_the_end(&mut self) -> Result<Report, Violation> {
        let faults_end = self.start + self.faults_for;
        let deadline = faults_end + Duration::from_secs(1200);
        loop {
            self.step()?;
            if self.flow.is_done() {
                break;
            }
            self.advance().ok_or(Violation::EarlySilence)?;
            if self.now > faults_end && !self.healed {
                self.healed = true;
                self.links.iter_mut().for_each(Link::heal);
            }
            if self.now > deadline || self.steps > 2_000_000 {
                return Err(Violation::NoEnd);
            }
        }
        let delivered_after = self.now.since(self.start);
        self.expect_silence()?;
        Ok(Report { steps: self.steps, delivered_after, retransmits: self.flow.retransmits() })
    }

    /// Checks that nothing but the end of TIME-WAIT happens any more.
    fn expect_silence(&mut self) -> Result<(), Violation> {
        self.links.iter_mut().for_each(Link::heal);
        self.crashes = 0;
        let deadline = self.now + Duration::from_secs(400);
        while self.advance().is_some() {
            self.step()?;
            if self.now > deadline {
                return Err(Violation::NoSilence);
            }
        }
        self.flow.expect_closed()
    }

    /// Moves to the next moment at which something happens; `None` if there is none.
    fn advance(&mut self) -> Option<()> {
        let arrivals = self.links.iter().filter_map(Link::next_arrival);
        let next = arrivals.chain(self.flow.next_event()).min()?;
        self.now = self.now.max(next);
        Some(())
    }

    fn step(&mut self) -> Result<(), Violation> {
        self.steps += 1;
        for index in 0..2 {
            while let Some((segment, text)) = self.links[1 - index].receive(self.now) {
                self.trace.note(self.now, 1 - index, "", &segment);
                self.flow.handle(index, self.now, &mut self.rng, &segment, &text)?;
                self.perhaps_crash(index)?;
                // Batches have random lengths.
                if self.rng.below(4) == 0 {
                    self.poll(index)?;
                }
            }
            self.forge(index)?;
            self.flow.commit(index);
            self.perhaps_crash(index)?;
            self.flow.act(index, self.now, &mut self.rng, self.healed)?;
            self.perhaps_crash(index)?;
            self.poll(index)?;
        }
        Ok(())
    }

    /// Sends a segment of a stranger to an end, now and then.
    fn forge(&mut self, index: usize) -> Result<(), Violation> {
        // The stranger stops at last: each answer is another step, at which it could try again. Where there
        // is no stranger, no random number is drawn for it.
        if self.stranger == 0 || self.forged > FORGED_MAX || !self.rng.chance_per_million(self.stranger) {
            return Ok(());
        }
        self.forged += 1;
        let Some(victim) = &self.flow.hosts()[index].connection else { return Ok(()) };
        let begins = [self.begins[index], self.begins[1 - index]];
        let Some((segment, text)) = forged(self.now, &mut self.rng, victim, begins) else { return Ok(()) };
        self.trace.note(self.now, 1 - index, "forged ", &segment);
        self.flow.forge(index, self.now, &mut self.rng, &segment, &text)
    }

    /// Kills the process of an end now and then, as long as there are faults.
    fn perhaps_crash(&mut self, index: usize) -> Result<(), Violation> {
        if self.crashes == 0
            || self.healed
            || self.crashed > CRASHES_MAX
            || !self.rng.chance_per_million(self.crashes)
        {
            return Ok(());
        }
        self.crashed += 1;
        self.trace.note(self.now, index, "dies here: ", &Segment::default());
        self.flow.crash(index, self.now)
    }

    fn poll(&mut self, index: usize) -> Result<(), Violation> {
        self.flow.commit(index);
        while let Some(outgoing) = self.flow.poll(index, self.now)? {
            if outgoing.segment.has(Flags::SYN) {
                self.begins[index] = outgoing.segment.seq;
            }
            self.trace.note(self.now, index, outgoing.how, &outgoing.segment);
            self.links[index].send(self.now, &mut self.rng, outgoing);
            self.perhaps_crash(index)?;
        }
        Ok(())
    }
}

//! Many connections that share paths, over any topology of lines, in virtual time.
//!
//! ```text
//!   flow 0 --access--.                            .--access-- flow 0
//!   flow 1 --access--+===== shared bottleneck ====+--access-- flow 1      each "--" and "==" is two lines, one a direction
//!   flow 2 --access--'                            '--access-- flow 2
//! ```
//! The ends are those of a `Pair`. They are connected by [`Line`]s, which the emulator also runs over real
//! frames.

use std::collections::BTreeSet;

use atoll_base::{Duration, Instant, Rng};
use atoll_testkit::{Ecn, Line, LineCounts, LineSettings, Loss};
use atoll_wire::ipv4;
use atoll_wire::tcp::{HEADER_MAX, Segment};

use crate::flow::{Flow, FlowSettings};
use crate::pair::Failure;
use crate::trace::Trace;
use crate::violation::Violation;

/// The lines, the connections over them, and when each begins.
#[derive(Clone, Debug)]
pub struct NetworkSettings {
    /// The seed, which decides everything random.
    pub seed: u64,
    /// All lines.
    pub lines: Vec<LineSettings>,
    /// All connections.
    pub flows: Vec<RoutedFlow>,
    /// The changes of lines, by time: when, which line, and its new settings.
    pub changes: Vec<(Duration, usize, LineSettings)>,
    /// Whether the applications always do at once what they can.
    pub calm: bool,
}

/// A connection and its route.
#[derive(Clone, Debug)]
pub struct RoutedFlow {
    /// The two ends.
    pub flow: FlowSettings,
    /// The numbers of the lines from client to server, and back.
    pub routes: [Vec<usize>; 2],
    /// When the connection begins, after the start of the simulation.
    pub starts: Duration,
}

impl NetworkSettings {
    /// Creates a network of connections that share a bottleneck, each with its own access lines on the
    /// client's side.
    ///
    /// `bottleneck` is the line from client to server, and the line back. `flows` has the ends, and the
    /// one-way access delay.
    pub fn dumbbell(
        seed: u64,
        bottleneck: [LineSettings; 2],
        flows: Vec<(FlowSettings, Duration)>,
    ) -> NetworkSettings {
        let mut lines = bottleneck.to_vec();
        let mut routed = Vec::new();
        for (flow, delay) in flows {
            let access = lines.len();
            lines.extend([LineSettings { delay, ..LineSettings::default() }; 2]);
            routed.push(RoutedFlow {
                flow,
                routes: [vec![access, 0], vec![1, access + 1]],
                starts: Duration::ZERO,
            });
        }
        NetworkSettings { seed, lines, flows: routed, changes: Vec::new(), calm: true }
    }
}

/// A piece of a segment on its route.
#[derive(Clone, Debug)]
struct Packet {
    flow: usize,
    /// The sender: 0 is the client, 1 the server.
    from: usize,
    /// The number of lines of the route that are behind the packet.
    hop: usize,
    segment: Segment,
    text: Vec<u8>,
}

/// Connections over shared lines.
#[derive(Debug)]
pub struct Network {
    settings: NetworkSettings,
    rng: Rng,
    start: Instant,
    now: Instant,
    lines: Vec<Line<Packet>>,
    /// The connections; `None` before one begins.
    flows: Vec<Option<Flow>>,
    changes_made: usize,
    healed: bool,
    trace: Trace,
    steps: u64,
    under_way_peak: usize,
}

impl Network {
    /// Creates the network; no connection has begun.
    pub fn new(settings: &NetworkSettings) -> Network {
        let mut rng = Rng::new(settings.seed ^ 0x4e45_5457);
        let now = Instant::from_millis(1_000_000 + u64::from(rng.next_u32()));
        let lines = settings.lines.iter().map(|line| Line::new(*line, rng.next_u64())).collect();
        Network {
            settings: settings.clone(),
            rng,
            start: now,
            now,
            lines,
            flows: settings.flows.iter().map(|_| None).collect(),
            changes_made: 0,
            healed: false,
            trace: Trace::default(),
            steps: 0,
            under_way_peak: 0,
        }
    }

    /// Returns the connections that have begun.
    pub fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.flows.iter().flatten()
    }

    /// Returns what has happened on a line since the last call.
    pub fn take_counts(&mut self, line: usize) -> LineCounts {
        self.lines[line].take_counts()
    }

    /// Returns the most packets that were under way at once.
    pub fn under_way_peak(&self) -> usize {
        self.under_way_peak
    }

    /// Runs the network for `time`.
    pub fn run_for(&mut self, time: Duration) -> Result<(), Failure> {
        let end = self.now + time;
        self.run_until(end).map_err(|what| self.failure(what))
    }

    /// Runs until all streams are delivered and closed, and then checks that the network is silent. After
    /// `faults_for` the lines do no more harm.
    pub fn run_to_the_end(&mut self, faults_for: Duration) -> Result<(), Failure> {
        self.try_to_the_end(faults_for).map_err(|what| self.failure(what))
    }

    fn try_to_the_end(&mut self, faults_for: Duration) -> Result<(), Violation> {
        let faults_end = self.start + faults_for;
        while !self.flows.iter().all(|flow| flow.as_ref().is_some_and(Flow::is_done)) {
            let next = self.next_event().ok_or(Violation::EarlySilence)?;
            if next > faults_end && !self.healed {
                self.heal();
            }
            if next > faults_end + Duration::from_secs(1200) || self.steps > STEPS_MAX {
                return Err(Violation::NoEnd);
            }
            self.step_at(next)?;
        }
        self.heal();
        let deadline = self.now + Duration::from_secs(400);
        while let Some(next) = self.next_event() {
            if next > deadline {
                return Err(Violation::NoSilence);
            }
            self.step_at(next)?;
        }
        self.flows.iter().flatten().try_for_each(Flow::expect_closed)
    }

    fn run_until(&mut self, end: Instant) -> Result<(), Violation> {
        while let Some(next) = self.next_event().filter(|next| *next <= end) {
            self.step_at(next)?;
        }
        self.now = end;
        Ok(())
    }

    fn failure(&self, what: Violation) -> Failure {
        Failure { what, after: self.now.since(self.start), trace: self.trace.last() }
    }

    /// Ends all faults: from now on nothing is lost, held back or sent twice, and the lines do not change.
    fn heal(&mut self) {
        self.healed = true;
        self.changes_made = self.settings.changes.len();
        for line in &mut self.lines {
            let settings = LineSettings { loss: Loss::None, reorder: 0, duplicate: 0, ..*line.settings() };
            line.change(self.now, settings);
        }
    }

    fn next_event(&self) -> Option<Instant> {
        let lines = self.lines.iter().filter_map(Line::next_due);
        let flows = self.flows.iter().flatten().filter_map(Flow::next_event);
        let starts = self.settings.flows.iter().zip(&self.flows);
        let starts =
            starts.filter(|(_, flow)| flow.is_none()).map(|(settings, _)| self.start + settings.starts);
        let changes = self.settings.changes.get(self.changes_made).map(|(after, ..)| self.start + *after);
        lines.chain(flows).chain(starts).chain(changes).min()
    }

    /// Does everything that is due at `now`.
    fn step_at(&mut self, now: Instant) -> Result<(), Violation> {
        self.now = self.now.max(now);
        self.steps += 1;
        self.change_lines();
        let mut touched = self.begin_flows();
        for line in 0..self.lines.len() {
            while let Some(arrival) = self.lines[line].poll(self.now) {
                let mut packet = arrival.item;
                if arrival.marked {
                    packet.segment.ecn = ipv4::Ecn::Ce;
                }
                if let Some(end) = self.arrive(packet)? {
                    touched.insert(end);
                }
            }
        }
        for (number, flow) in self.flows.iter().enumerate() {
            if flow.as_ref().and_then(Flow::next_event).is_some_and(|at| at <= self.now) {
                touched.extend([(number, 0), (number, 1)]);
            }
        }
        for (number, end) in touched {
            let flow = self.flows[number].as_mut().expect("only what has begun is touched");
            flow.act(end, self.now, &mut self.rng, self.settings.calm || self.healed)?;
            self.poll(number, end)?;
        }
        self.check_bounds()
    }

    fn change_lines(&mut self) {
        while let Some((after, line, settings)) = self.settings.changes.get(self.changes_made)
            && self.start + *after <= self.now
        {
            self.lines[*line].change(self.now, *settings);
            self.changes_made += 1;
        }
    }

    fn begin_flows(&mut self) -> BTreeSet<(usize, usize)> {
        let mut touched = BTreeSet::new();
        for (number, settings) in self.settings.flows.iter().enumerate() {
            if self.flows[number].is_none() && self.start + settings.starts <= self.now {
                self.flows[number] = Some(Flow::new(&settings.flow, self.now, &mut self.rng));
                touched.extend([(number, 0), (number, 1)]);
            }
        }
        touched
    }

    /// Handles a packet that has passed a line. Returns the end that it has reached, if any.
    fn arrive(&mut self, mut packet: Packet) -> Result<Option<(usize, usize)>, Violation> {
        packet.hop += 1;
        let Packet { flow: number, from, hop, .. } = packet;
        if hop < self.settings.flows[number].routes[from].len() {
            self.enter(packet);
            return Ok(None);
        }
        self.trace.note(self.now, from, "", &packet.segment);
        let flow = self.flows[number].as_mut().expect("only what has begun sends");
        flow.handle(1 - from, self.now, &mut self.rng, &packet.segment, &packet.text)?;
        // Batches have random lengths.
        if self.rng.below(4) == 0 {
            self.poll(number, 1 - from)?;
        }
        Ok(Some((number, 1 - from)))
    }

    /// Sends what an end has to send.
    fn poll(&mut self, number: usize, end: usize) -> Result<(), Violation> {
        loop {
            let flow = self.flows[number].as_mut().expect("only what has begun is polled");
            let Some(outgoing) = flow.poll(end, self.now)? else { return Ok(()) };
            self.trace.note(self.now, end, outgoing.how, &outgoing.segment);
            for (segment, text) in outgoing.cut() {
                self.enter(Packet { flow: number, from: end, hop: 0, segment, text });
            }
        }
    }

    /// Puts a packet on the next line of its route.
    fn enter(&mut self, packet: Packet) {
        let line = self.settings.flows[packet.flow].routes[packet.from][packet.hop];
        let octets = octets_of(&packet.segment);
        self.lines[line].handle(self.now, octets, ecn_of(&packet.segment), packet);
    }

    /// Checks that queues hold no more than they may, and that all that is under way fits into the windows of
    /// the ends.
    fn check_bounds(&mut self) -> Result<(), Violation> {
        for (number, line) in self.lines.iter().enumerate() {
            // A queue that becomes shorter does not lose what already waits.
            let changed = self.settings.changes.iter().filter(|(_, which, _)| *which == number);
            let queues =
                changed.map(|(.., settings)| settings.queue).chain([self.settings.lines[number].queue]);
            let octets = line.octets_waiting();
            if octets > queues.max().unwrap_or(0).max(OCTETS_MAX) {
                return Err(Violation::Queue { octets, line: number });
            }
        }
        let under_way = self.lines.iter().map(Line::under_way).sum();
        self.under_way_peak = self.under_way_peak.max(under_way);
        Ok(())
    }
}

/// Returns the length on the link in octets: Ethernet, IPv4, TCP with its options, text.
fn octets_of(segment: &Segment) -> u32 {
    let mut header = [0; HEADER_MAX];
    let header_len = atoll_wire::tcp::emit(segment, &mut header);
    14 + 20 + header_len as u32 + segment.len
}

/// Returns whether the segment's sender supports marks.
fn ecn_of(segment: &Segment) -> Ecn {
    if segment.ecn == ipv4::Ecn::NotEct { Ecn::Incapable } else { Ecn::Capable }
}

/// A queue may always hold one packet of this many octets.
const OCTETS_MAX: u64 = 20_000;
/// More steps than any simulation needs.
const STEPS_MAX: u64 = 20_000_000;

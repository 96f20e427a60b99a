//! Do two endpoints deliver both streams, and fall silent afterwards?

use atoll_base::{Duration, Instant, Rng, SeqNum};
use atoll_tcp::{Algorithm, Connection, Path, Settings, State};
use atoll_wire::tcp::{Flags, Segment, parse};

use crate::host::{Host, Plan};
use crate::link::{Link, LinkSettings};

/// Everything that a seed decides.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed; everything random comes from it.
    pub seed: u64,
    /// Plans of client and server.
    pub plans: [Plan; 2],
    /// Settings of client and server.
    pub settings: [Settings; 2],
    /// Largest segments of client and server.
    pub mss: [u16; 2],
    /// The link, client to server and back.
    pub links: [LinkSettings; 2],
    /// Both ends send a SYN.
    pub simultaneous_open: bool,
    /// Options that the link removes from SYNs: SACK, timestamps, window scale.
    pub strip: [bool; 3],
    /// After this long the link does no more harm and the applications do not dawdle: what is left has to work.
    pub faults_for: Duration,
}

/// Why a run failed; prints what is needed to replay it.
#[derive(Debug)]
pub struct Failure {
    /// What went wrong.
    pub what: String,
    /// The last lines of the exchange.
    pub trace: Vec<String>,
}

/// What a run that went well looked like.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Moments at which something happened.
    pub steps: u64,
    /// When both streams had been delivered and closed.
    pub delivered_after: Duration,
    /// Segments sent again, by both ends.
    pub retransmits: u64,
}

/// Two endpoints and the link between them.
#[derive(Debug)]
pub struct Pair {
    scenario: Scenario,
    rng: Rng,
    now: Instant,
    hosts: [Host; 2],
    links: [Link; 2],
    trace: Vec<String>,
    steps: u64,
    retransmits: u64,
    healed: bool,
}

impl Scenario {
    /// A scenario drawn from `seed`.
    pub fn random(seed: u64) -> Scenario {
        let mut rng = Rng::new(seed);
        let mut chance = |most: u32| if rng.below(3) == 0 { 0 } else { rng.below(most) };
        let mut link = || LinkSettings {
            loss: chance(150_000),
            duplicate: chance(50_000),
            reorder: chance(100_000),
            latency: Duration::from_micros(u64::from(20 + chance(30_000))),
            merge: chance(10) > 5,
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
        };
        let plans = [plan(), plan()];
        let mut settings = || Settings {
            nodelay: rng.below(2) == 0,
            cork: rng.below(8) == 0,
            congestion: Algorithm::ALL[rng.below(3) as usize],
            quick_ack: rng.below(4) == 0,
            receive_capacity: [200, 3000, 65_536, 1 << 20][rng.below(4) as usize],
            receive_capacity_max: [0, 6 << 20, 1 << 30][rng.below(3) as usize],
            ..Settings::default()
        };
        let settings = [settings(), settings()];
        let mut mss = || [100, 536, 1460, 8960][rng.below(4) as usize];
        let mss = [mss(), mss()];
        Scenario {
            seed,
            plans,
            settings,
            mss,
            links,
            simultaneous_open: rng.below(10) == 0,
            strip: [rng.below(4) == 0, rng.below(4) == 0, rng.below(4) == 0],
            faults_for: Duration::from_secs(60),
        }
    }
}

impl Pair {
    /// The two endpoints before the first SYN.
    pub fn new(scenario: &Scenario) -> Pair {
        let mut rng = Rng::new(scenario.seed ^ 0x5151_5151);
        let now = Instant::from_millis(1_000_000 + u64::from(rng.next_u32()));
        let mut hosts = [Host::new(scenario.plans[0], 1, 2), Host::new(scenario.plans[1], 2, 1)];
        let active = 1 + usize::from(scenario.simultaneous_open);
        for (index, host) in hosts.iter_mut().enumerate().take(active) {
            let path = Path { mss: scenario.mss[index] };
            let iss = SeqNum(rng.next_u32());
            host.connection = Some(Connection::connect(now, iss, rng.next_u32(), path, &scenario.settings[index]));
        }
        Pair {
            scenario: scenario.clone(),
            rng,
            now,
            hosts,
            links: scenario.links.map(Link::new),
            trace: Vec::new(),
            steps: 0,
            retransmits: 0,
            healed: false,
        }
    }

    /// Runs until both streams are delivered and closed, and then makes sure of the silence.
    pub fn run(mut self) -> Result<Report, Failure> {
        match self.run_to_the_end() {
            Ok(report) => Ok(report),
            Err(what) => {
                let from = self.trace.len().saturating_sub(60);
                Err(Failure { what, trace: self.trace.split_off(from) })
            }
        }
    }

    fn run_to_the_end(&mut self) -> Result<Report, String> {
        let start = self.now;
        let faults_end = self.now + self.scenario.faults_for;
        let deadline = faults_end + Duration::from_secs(1200);
        loop {
            self.step()?;
            let written = [self.scenario.plans[0].write, self.scenario.plans[1].write];
            if self.hosts[0].is_done(written[1]) && self.hosts[1].is_done(written[0]) {
                break;
            }
            self.advance().ok_or("silence before the streams are complete")?;
            if self.now > faults_end && !self.healed {
                self.healed = true;
                self.links.iter_mut().for_each(Link::heal);
            }
            if self.now > deadline || self.steps > 2_000_000 {
                return Err("no end".into());
            }
        }
        let delivered_after = self.now.since(start);
        self.expect_silence()?;
        Ok(Report { steps: self.steps, delivered_after, retransmits: self.retransmits })
    }

    /// Nothing but the end of TIME-WAIT may happen any more.
    fn expect_silence(&mut self) -> Result<(), String> {
        self.links.iter_mut().for_each(Link::heal);
        let deadline = self.now + Duration::from_secs(400);
        while self.advance().is_some() {
            self.step()?;
            if self.now > deadline {
                return Err("no silence".into());
            }
        }
        for host in &self.hosts {
            let state = host.connection.as_ref().map(Connection::state);
            if state != Some(State::Closed) {
                return Err(format!("ends in {state:?}"));
            }
        }
        Ok(())
    }

    /// Moves to the next moment at which something happens.
    fn advance(&mut self) -> Option<()> {
        let timers = self.hosts.iter().filter_map(Host::next_timeout);
        let wakes = self.hosts.iter().filter_map(|host| host.wakes_at);
        let arrivals = self.links.iter().filter_map(Link::next_arrival);
        let next = timers.chain(wakes).chain(arrivals).min()?;
        self.now = self.now.max(next);
        Some(())
    }

    fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        for index in 0..2 {
            while let Some((segment, text)) = self.links[1 - index].receive(self.now) {
                self.note(1 - index, "", &segment);
                self.open_if_listening(index, &segment);
                self.hosts[index].handle(self.now, &mut self.rng, &segment, &text)?;
                // Batches are of any length.
                if self.rng.below(4) == 0 {
                    self.poll(index)?;
                }
            }
            self.hosts[index].handle_timeout(self.now)?;
            self.hosts[index].act(self.now, &mut self.rng, self.healed)?;
            self.poll(index)?;
        }
        Ok(())
    }

    fn open_if_listening(&mut self, index: usize, segment: &Segment) {
        if self.hosts[index].connection.is_none() && segment.flags == Flags::SYN {
            let path = Path { mss: self.scenario.mss[index] };
            let (iss, ts_offset) = (SeqNum(self.rng.next_u32()), self.rng.next_u32());
            let settings = &self.scenario.settings[index];
            self.hosts[index].connection = Some(Connection::accept(self.now, segment, iss, ts_offset, path, settings));
        }
    }

    fn poll(&mut self, index: usize) -> Result<(), String> {
        for count in 0.. {
            let host = &mut self.hosts[index];
            let len_max = host.len_max();
            let Some(connection) = &mut host.connection else { return Ok(()) };
            let Some(transmit) = connection.poll_transmit(self.now, len_max) else { break };
            connection.check_invariants();
            let mss = usize::from(connection.mss());
            let text = host.text(transmit.offset, transmit.segment.len);
            let mut segment = through_the_wire(&transmit.segment);
            if text.len() > mss.max(len_max as usize) {
                return Err(format!("{} octets at once", text.len()));
            }
            if segment.has(Flags::SYN) {
                let [sack, timestamps, scale] = self.scenario.strip;
                segment.options.sack_permitted &= !sack;
                segment.options.timestamps = segment.options.timestamps.filter(|_| !timestamps);
                segment.options.window_scale = segment.options.window_scale.filter(|_| !scale);
            }
            if transmit.retransmit {
                self.retransmits += text.len().div_ceil(mss).max(1) as u64;
            }
            if count > 5000 {
                return Err("polling never ends".into());
            }
            self.note(index, if transmit.retransmit { "again " } else { "" }, &segment);
            self.links[index].send(self.now, &mut self.rng, &segment, &text, mss);
        }
        self.hosts[index].compact();
        for answer in std::mem::take(&mut self.hosts[index].answers) {
            self.note(index, "record ", &answer);
            self.links[index].send(self.now, &mut self.rng, &answer, &[], 1);
        }
        Ok(())
    }

    fn note(&mut self, from: usize, how: &str, segment: &Segment) {
        let ms = self.now.as_nanos() as f64 / 1e6;
        let Segment { seq, ack, flags, window, len, options, .. } = segment;
        let names = [("S", Flags::SYN), ("F", Flags::FIN), ("R", Flags::RST), ("P", Flags::PSH), (".", Flags::ACK)];
        let flags: String = names.iter().filter(|(_, flag)| flags.contains(*flag)).map(|(name, _)| *name).collect();
        let sack: Vec<_> = options.sack.iter().collect();
        let arrow = ["> ", "< "][from];
        self.trace.push(format!("{ms:14.3} {arrow} {how}[{flags}] {seq}+{len} ack {ack} win {window} {sack:?}"));
    }
}

/// What was emitted and parsed is what is delivered: the header format takes part in the simulation.
fn through_the_wire(segment: &Segment) -> Segment {
    let mut header = [0; atoll_wire::tcp::HEADER_MAX];
    let len = atoll_wire::tcp::emit(segment, &mut header);
    let (mut parsed, _) = parse(&header[..len]).expect("emitted headers are valid");
    parsed.len = segment.len;
    assert_eq!(&parsed, segment);
    parsed
}

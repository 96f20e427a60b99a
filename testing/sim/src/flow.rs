//! The two ends of a connection, independent of the network between them.

use atoll_base::{Instant, Rng, SeqNum};
use atoll_tcp::{Algorithm, Connection, Path, Settings, State};
use atoll_wire::fast_open::FastOpen;
use atoll_wire::tcp::{Flags, Segment, parse};

use crate::checks::Watch;
use crate::host::{Host, Plan};
use crate::middlebox::Middlebox;
use crate::violation::Violation;

/// The settings of a connection without the network. The client is first, then the server.
#[derive(Clone, Debug)]
pub struct FlowSettings {
    /// The plans of the applications.
    pub plans: [Plan; 2],
    /// The settings of the connections.
    pub settings: [Settings; 2],
    /// The largest segments, in octets.
    pub mss: [u16; 2],
    /// Whether both ends send a SYN.
    pub simultaneous_open: bool,
    /// Whether the client has a cookie of the server, so that its first text goes along with the SYN.
    pub fast_open: bool,
    /// The middlebox that alters headers on the way.
    pub middlebox: Middlebox,
}

impl FlowSettings {
    /// Returns settings for a client that sends without end and a server that reads at once; no buffer limits
    /// them.
    pub fn bulk(algorithm: Algorithm) -> FlowSettings {
        let plan = Plan {
            write: 1 << 40,
            send_buffer: 8 << 20,
            read_max: 1 << 30,
            stall: 0,
            len_max: 65_000,
            no_room: 0,
            lazy_reports: false,
            compact: false,
            urgent: 0,
        };
        let settings = Settings { congestion: algorithm, receive_capacity: 8 << 20, ..Settings::default() };
        FlowSettings {
            plans: [plan, Plan { write: 0, ..plan }],
            settings: [settings, settings],
            mss: [1460, 1460],
            simultaneous_open: false,
            fast_open: false,
            middlebox: Middlebox::default(),
        }
    }
}

/// A segment that an end sends: perhaps a super-segment, which the network cuts.
#[derive(Debug)]
pub struct Outgoing {
    /// The header as it has passed the middlebox.
    pub segment: Segment,
    /// The text of the segment.
    pub text: Vec<u8>,
    /// The octets of text in each piece.
    pub mss: usize,
    /// A remark for a trace: a retransmission, or an answer by the record of a connection in TIME-WAIT.
    pub how: &'static str,
}

/// The two ends of a connection.
#[derive(Debug)]
pub struct Flow {
    settings: FlowSettings,
    hosts: [Host; 2],
    watches: [Watch; 2],
    retransmits: u64,
    polled: u32,
}

impl Flow {
    /// Creates the ends before the first SYN.
    pub fn new(settings: &FlowSettings, now: Instant, rng: &mut Rng) -> Flow {
        let mut hosts = [Host::new(settings.plans[0], 1, 2), Host::new(settings.plans[1], 2, 1)];
        let active = 1 + usize::from(settings.simultaneous_open);
        for (index, host) in hosts.iter_mut().enumerate().take(active) {
            let path = Path { mss: settings.mss[index] };
            let iss = SeqNum(rng.next_u32());
            let mut connection =
                Connection::connect(now, iss, rng.next_u32(), path, &settings.settings[index]);
            if settings.fast_open
                && let Some(cookie) = FastOpen::cookie(&[7; 8])
            {
                connection.open_fast(cookie, settings.mss[1 - index]);
            }
            host.connection = Some(connection);
        }
        Flow { settings: settings.clone(), hosts, watches: [Watch::default(); 2], retransmits: 0, polled: 0 }
    }

    /// Returns the client and the server.
    pub fn hosts(&self) -> &[Host; 2] {
        &self.hosts
    }

    /// Returns the number of segments that both ends have sent again.
    pub fn retransmits(&self) -> u64 {
        self.retransmits
    }

    /// Returns whether both streams have been delivered and closed.
    pub fn is_done(&self) -> bool {
        let written = self.settings.plans.map(|plan| plan.write);
        self.hosts[0].is_done(written[1]) && self.hosts[1].is_done(written[0])
    }

    /// Checks what has to be true in the end, after TIME-WAIT.
    pub fn expect_closed(&self) -> Result<(), Violation> {
        for host in &self.hosts {
            let state = host.connection.as_ref().map(Connection::state);
            if state != Some(State::Closed) {
                return Err(Violation::EndsIn(state));
            }
        }
        self.compare_marks()
    }

    /// Checks that each end knows the last urgent octet of the other.
    fn compare_marks(&self) -> Result<(), Violation> {
        for (from, to) in [(0, 1), (1, 0)] {
            let sent = self.hosts[from].urgent_end.map(|end| end - 1);
            let seen = self.hosts[to].connection.as_ref().and_then(Connection::receive_mark);
            if sent != seen {
                return Err(Violation::Mark { sent, seen });
            }
        }
        Ok(())
    }

    /// Returns when something happens here although nothing arrives.
    pub fn next_event(&self) -> Option<Instant> {
        let timers = self.hosts.iter().filter_map(Host::next_timeout);
        timers.chain(self.hosts.iter().filter_map(|host| host.wakes_at)).min()
    }

    /// Handles a segment that reaches end `index`.
    pub fn handle(
        &mut self,
        index: usize,
        now: Instant,
        rng: &mut Rng,
        segment: &Segment,
        text: &[u8],
    ) -> Result<(), Violation> {
        if self.hosts[index].connection.is_none() && segment.has(Flags::SYN) && !segment.has(Flags::ACK) {
            let path = Path { mss: self.settings.mss[index] };
            let (iss, ts_offset) = (SeqNum(rng.next_u32()), rng.next_u32());
            let settings = &self.settings.settings[index];
            let connection = if segment.len > 0 {
                // Some servers do not have room for all of it.
                let len = if rng.below(3) == 0 { rng.below(segment.len) } else { segment.len };
                let connection =
                    Connection::accept_fast(now, segment, iss, ts_offset, path, settings, len, None);
                self.hosts[index].place(&text[..connection.receive_nxt() as usize]);
                connection
            } else {
                Connection::accept(now, segment, iss, ts_offset, path, settings)
            };
            self.hosts[index].connection = Some(connection);
        }
        self.hosts[index].handle(now, rng, segment, text)?;
        if let Some(connection) = &self.hosts[index].connection {
            self.watches[index].receives(segment, connection.info(now).snd_wscale);
        }
        Ok(())
    }

    /// Handles a segment that reaches end `index` and that the other end has not sent: it says nothing about
    /// the window of that end.
    pub fn forge(
        &mut self,
        index: usize,
        now: Instant,
        rng: &mut Rng,
        segment: &Segment,
        text: &[u8],
    ) -> Result<(), Violation> {
        self.hosts[index].handle(now, rng, segment, text)
    }

    /// Lets timers and application of end `index` act.
    pub fn act(&mut self, index: usize, now: Instant, rng: &mut Rng, calm: bool) -> Result<(), Violation> {
        self.hosts[index].handle_timeout(now)?;
        self.hosts[index].act(now, rng, calm)
    }

    /// Records the connection of end `index`; see [`Host::commit`].
    pub fn commit(&mut self, index: usize) {
        self.hosts[index].commit();
    }

    /// Crashes the process of end `index`; see [`Host::crash`].
    pub fn crash(&mut self, index: usize, now: Instant) -> Result<(), Violation> {
        self.hosts[index].crash(now)
    }

    /// Returns what end `index` sends now; call until `None`.
    pub fn poll(&mut self, index: usize, now: Instant) -> Result<Option<Outgoing>, Violation> {
        self.polled += 1;
        if self.polled > POLLS_MAX {
            return Err(Violation::EndlessPolling);
        }
        let outgoing = match self.poll_connection(index, now)? {
            Some(outgoing) => Some(outgoing),
            None => self.poll_record(index),
        };
        if outgoing.is_none() {
            self.polled = 0;
            self.watches[index].rests(&self.hosts[index])?;
        }
        Ok(outgoing)
    }

    fn poll_connection(&mut self, index: usize, now: Instant) -> Result<Option<Outgoing>, Violation> {
        let host = &mut self.hosts[index];
        let len_max = host.len_max();
        let Some(connection) = &mut host.connection else { return Ok(None) };
        let Some(transmit) = connection.poll_transmit(now, len_max) else { return Ok(None) };
        connection.check_invariants();
        let mss = usize::from(connection.segment_size(&transmit));
        self.watches[index].sends(now, connection, &transmit.segment)?;
        let text = host.text(transmit.offset, transmit.segment.len);
        if text.len() > mss.max(len_max as usize) {
            return Err(Violation::TooLong(text.len()));
        }
        let mut segment = through_the_wire(&transmit.segment);
        self.settings.middlebox.alter(&mut segment);
        if transmit.retransmit {
            self.retransmits += text.len().div_ceil(mss).max(1) as u64;
        }
        Ok(Some(Outgoing { segment, text, mss, how: if transmit.retransmit { "again " } else { "" } }))
    }

    /// Returns what the record of a connection in TIME-WAIT answers.
    fn poll_record(&mut self, index: usize) -> Option<Outgoing> {
        let host = &mut self.hosts[index];
        host.compact();
        let segment = host.answers.pop_front()?;
        Some(Outgoing { segment, text: Vec::new(), mss: 1, how: "record " })
    }
}

impl Outgoing {
    /// Returns the segments that a link with segmentation offload makes of this one: pieces of `mss` octets.
    pub fn cut(self) -> impl Iterator<Item = (Segment, Vec<u8>)> {
        let Outgoing { segment, text, mss, .. } = self;
        let count = text.len().div_ceil(mss).max(1);
        (0..count).map(move |index| {
            let from = index * mss;
            let piece = text[from..text.len().min(from + mss)].to_vec();
            let mut cut = segment;
            cut.seq = segment.seq.plus(from as u32);
            cut.len = piece.len() as u32;
            if index > 0 {
                // RFC 3168 §6.1.2: CWR is set once, and a link with segmentation offload sets it once.
                cut.flags = cut.flags.difference(Flags::CWR);
            }
            if index != count - 1 {
                cut.flags = cut.flags.difference(Flags::FIN | Flags::PSH);
            }
            (cut, piece)
        })
    }
}

/// Returns a random congestion control algorithm.
pub(crate) fn any_algorithm(rng: &mut Rng) -> Algorithm {
    Algorithm::ALL[rng.below(Algorithm::ALL.len() as u32) as usize]
}

/// Returns the segment after emitting and parsing it, so that the header format takes part in the simulation.
fn through_the_wire(segment: &Segment) -> Segment {
    let mut header = [0; atoll_wire::tcp::HEADER_MAX];
    let len = atoll_wire::tcp::emit(segment, &mut header);
    let (mut parsed, _) = parse(&header[..len]).expect("emitted headers are valid");
    parsed.len = segment.len;
    // The mark belongs to the IP header.
    parsed.ecn = segment.ecn;
    assert_eq!(&parsed, segment);
    parsed
}

/// A bound on polls at one moment: more segments than any window allows.
const POLLS_MAX: u32 = 5000;
